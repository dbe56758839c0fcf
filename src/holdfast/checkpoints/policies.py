"""What to do where checkpoints differ.

Nothing is dropped in silence. What differs between the checkpoints is an error that lists all of
it, unless a policy says what to do:

| difference | policy | choices besides "error" (the default) |
|---|---|---|
| vocabularies | `vocabulary` | "keep": such rows come from the layout; "zero": who lacks a row has no say |
| one head tied, one separate | `tied_heads` | "untie": the output gets a head of its own; "tie": heads are left out |
| tensors that not all have | `unmatched` | "keep": from who has them, or their mean; "drop": left out |
| what weights mean | `architecture` | "keep": all the same, with the layout's configuration |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from holdfast.config.declare import settings_of
from holdfast.config.decode import coerce_all
from holdfast.config.raw_request import RawRequest


@dataclass(frozen=True, kw_only=True)
class Policies:
    """What to do if checkpoints differ; see the module docstring."""

    settings_group: ClassVar[str] = (
        "where the checkpoints differ (refused with a list, unless an option says otherwise)"
    )
    settings_section: ClassVar[str] = "policies"

    vocabulary: Literal["error", "keep", "zero"] = "error"
    """Vocabularies differ: keep (the layout's rows), zero (who lacks a row has no say in it)."""
    tied_heads: Literal["error", "untie", "tie"] = "error"
    """One head is tied, another is not: untie (write a head), tie (leave heads out)."""
    unmatched: Literal["error", "keep", "drop"] = "error"
    """Tensors that not all have: keep (unchanged where the base has it; else from the model that
    has it, or the mean of several by weight), drop (unless the layout has it)."""
    architecture: Literal["error", "keep"] = "error"
    """Configurations differ in what weights mean (rope, heads, norm, activation, window): keep (the
    layout's)."""

    def __post_init__(self) -> None:
        known = {s.name: s for s in settings_of(Policies)}
        RawRequest().check(coerce_all(known, {name: getattr(self, name) for name in known})[1])
