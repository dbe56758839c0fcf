"""What to do where checkpoints differ.

Nothing is dropped in silence. What differs between the checkpoints is an error that lists all of
it, unless a policy says what to do:

| difference | policy | choices besides "error" (the default) |
|---|---|---|
| vocabularies | `vocabulary` | "keep": the tokenizer's model gives such rows; "zero": no change |
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
    """If vocabularies differ: keep (a model that lacks a row gets it from the model that provides
    the output's tokenizer), zero (a model that lacks a row contributes no change to it)."""
    tied_heads: Literal["error", "untie", "tie"] = "error"
    """If only some models tie the output head to the embeddings: untie (write a separate head), tie
    (leave out separate heads)."""
    unmatched: Literal["error", "keep", "drop"] = "error"
    """If some models lack a tensor: keep (take it from the models that have it; if the base has it,
    the others contribute no change to it), drop (leave it out, unless the layout has it)."""
    architecture: Literal["error", "keep"] = "error"
    """If configurations differ in settings that change the meaning of weights (rope, heads, norm,
    activation, window): keep (the layout's settings)."""

    def __post_init__(self) -> None:
        known = {s.name: s for s in settings_of(Policies)}
        RawRequest().check(coerce_all(known, {name: getattr(self, name) for name in known})[1])
