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

    settings_group: ClassVar[str] = "if the checkpoints differ (default: an error with a list)"
    settings_section: ClassVar[str] = "policies"

    vocabulary: Literal["error", "keep", "zero"] = "error"
    """If vocabularies differ: keep (the layout's rows), zero (a model that lacks a row does not
    change it)."""
    tied_heads: Literal["error", "untie", "tie"] = "error"
    """If one head is tied and another is not: untie (write a head), tie (leave heads out)."""
    unmatched: Literal["error", "keep", "drop"] = "error"
    """If some models lack a tensor: keep (unchanged if the base has it; else from the model that
    has it, or the weighted mean of several), drop (unless the layout has it)."""
    architecture: Literal["error", "keep"] = "error"
    """If configurations differ in settings that change the meaning of weights (rope, heads, norm,
    activation, window): keep (the layout's)."""

    def __post_init__(self) -> None:
        known = {s.name: s for s in settings_of(Policies)}
        RawRequest().check(coerce_all(known, {name: getattr(self, name) for name in known})[1])
