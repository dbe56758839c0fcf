"""A model made of ranges of layers, as `deep[0:24]+other[8:32]`: layers 0 to 23 of one model and on them layers 8 to 31
of another, numbered anew.

What lies before the layers (embeddings) is the first model's, what lies behind (norm, head) the last one's. Nothing is
written: it is a source like a folder, so that such models are merged, copied and taken apart as all others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.checkpoints.companions import changed_config, config_value
from holdfast.checkpoints.methods.varying import layer_of, layers_in, place_of
from holdfast.checkpoints.sources import Entry, Source, config_of, folders_of, tied_head
from holdfast.checkpoints.vocabulary import home_of, same_tokenizer_files, vocabulary, vocabulary_tensors
from holdfast.errors import ModelError
from holdfast.support.paths import expanded

if TYPE_CHECKING:
    import numpy as np

    from holdfast.checkpoints.dtypes import Operand

_PART = re.compile(r"(.+)\[(\d+):(\d+)\]")
_COUNTS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_ALIKE = (
    "model_type",
    "hidden_size",
    "n_embd",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
)
"""Keys of the configuration that models have to share for layers of one to stand on layers of another."""
_BY_LAYER = ("layer_types", "no_rope_layers", "layers_block_type", "attn_layer_types", "mlp_layer_types")
"""Keys with an entry a layer."""
_OF_LAYERS = ("max_window_layers", "first_k_dense_replace", "num_kv_shared_layers", "mlp_only_layers")
"""Keys that speak of layers by their number."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A range of a model's layers."""

    name: str
    """The model, as `locate.open_source` takes it."""
    first: int
    last: int
    """The one behind the last."""


def parts_of(name: str) -> list[Part] | None:
    """The parts of a model that is named by ranges of layers; None for any other name."""
    if "[" not in name or expanded(name).exists():
        return None
    found = []
    for text in re.split(r"(?<=\])\+", name):
        match = _PART.fullmatch(text.strip())
        if match is None:
            return None
        found.append(Part(name=match[1], first=int(match[2]), last=int(match[3])))
    return found


def open_stacked(name: str, parts: Sequence[Part], opened: Callable[[str], Source]) -> Source:
    """The model of these parts; the model itself where the only part is the whole of it.

    Args:
        name: as it was written.
        parts: of it.
        opened: opens one model.

    Raises:
        ModelError: a range that the model does not have, or models whose layers do not fit on each other.
    """
    sources = {part.name: opened(part.name) for part in parts}
    for part in parts:
        count = layers_in(sources[part.name].entries)
        if not 0 <= part.first < part.last <= count:
            raise ModelError(
                f"{name}: expected layers within [0:{count}] of {part.name}, got [{part.first}:{part.last}]."
            )
    if len(parts) == 1 and (parts[0].first, parts[0].last) == (0, layers_in(sources[parts[0].name].entries)):
        return sources[parts[0].name]
    return Stacked(name, parts, sources)


class Stacked:
    """See the module; a `Source`."""

    def __init__(self, name: str, parts: Sequence[Part], sources: Mapping[str, Source]) -> None:
        self.label = name
        self.sources = list(sources.values())
        first, last = sources[parts[0].name], sources[parts[-1].name]
        self.folder: Path = first.folder
        self._check(parts, sources)
        self._held: dict[str, tuple[Source, str]] = {}
        self._entries: dict[str, Entry] = {}
        offset = 0
        self._take(first, {n: n for n in first.entries if place_of(n, 1).layer < 0})
        for part in parts:
            source = sources[part.name]
            inside = {n: layer for n in source.entries if (layer := layer_of(n)) is not None}
            moved = {
                n: _renumbered(n, layer - part.first + offset)
                for n, layer in inside.items()
                if part.first <= layer < part.last
            }
            self._take(source, moved)
            offset += part.last - part.first
        self._take(last, {n: n for n in last.entries if layer_of(n) is None and place_of(n, 1).layer > 0})
        self.entries: Mapping[str, Entry] = self._entries
        self.config_changes = self._changes(parts, sources, offset)
        self.config = changed_config(config_of(first), self.config_changes)
        shown = ", ".join(f"{part.name} [{part.first}:{part.last}]" for part in parts)  # whole: it is what the model is
        own = config_of(first)
        text = own["text_config"] if isinstance(own.get("text_config"), dict) else own
        left = [key for key in _OF_LAYERS if text.get(key)]
        self.notes = [
            f"made of {offset} layers: {shown}",
            *(f"{key} of the configuration speaks of layers and is left as it is" for key in left),
        ]

    def read(self, name: str, start: int, stop: int, buffer: np.ndarray) -> Operand:
        """See `Source.read`."""
        source, inner = self._held[name]
        return source.read(inner, start, stop, buffer)

    def _take(self, source: Source, names: Mapping[str, str]) -> None:
        for inner, name in names.items():
            self._held[name] = (source, inner)
            self._entries[name] = source.entries[inner]._replace(name=name)

    def _check(self, parts: Sequence[Part], sources: Mapping[str, Source]) -> None:
        first = parts[0]
        here = config_of(sources[first.name])
        for part in parts[1:]:
            there = config_of(sources[part.name])
            unlike = [key for key in _ALIKE if config_value(here, key) != config_value(there, key)]
            if unlike:
                shown = "; ".join(f"{k} {config_value(here, k)} and {config_value(there, k)}" for k in unlike)
                raise ModelError(
                    f"{self.label}: layers of {part.name} do not fit on those of {first.name}: {shown}. Expected "
                    f"models of one architecture and width."
                )

        last = parts[-1]
        if bool(tied_head(here)) != bool(tied_head(config_of(sources[last.name]))):
            raise ModelError(
                f"{self.label}: the head is tied to the embeddings in one of {first.name} and {last.name} and not in "
                f"the other. Expected both alike, for embeddings are the first one's and the head is the last one's."
            )
        if unlike_vocabularies(sources[first.name], sources[last.name]):
            raise ModelError(
                f"{self.label}: the vocabulary of {last.name} is not that of {first.name}: embeddings are the first "
                f"one's and the head is the last one's. Expected the same tokens with the same numbers."
            )

    def _changes(self, parts: Sequence[Part], sources: Mapping[str, Source], layers: int) -> dict[str, Any]:
        """Keys of the configuration that tell the number of layers, and those that list something layer by layer."""
        first = config_of(sources[parts[0].name])
        count = next((key for key in _COUNTS if config_value(first, key) is not None), _COUNTS[0])
        changes: dict[str, Any] = {count: layers}
        for key in _BY_LAYER:
            whole = [config_value(config_of(sources[part.name]), key) for part in parts]
            if all(isinstance(one, list) and len(one) >= part.last for one, part in zip(whole, parts, strict=True)):
                changes[key] = [
                    one for part, own in zip(parts, whole, strict=True) for one in own[part.first : part.last]
                ]
        return changes


def unlike_vocabularies(one: Source, other: Source) -> bool:
    """Whether two models have other tokens, or other numbers of rows for them, as far as their tokenizers can be
    read."""
    rows = [
        source.entries[names[0]].shape[0] if (names := vocabulary_tensors(config_of(source), source.entries)) else None
        for source in (one, other)
    ]
    if None not in rows and rows[0] != rows[1]:
        return True
    homes = [home_of(folders_of(source)) for source in (one, other)]
    if homes[0] is None or homes[1] is None or same_tokenizer_files(homes[0], homes[1]):
        return False
    found = [vocabulary(home) for home in homes if home is not None]
    return None not in found and found[0] != found[1]


def _renumbered(name: str, layer: int) -> str:
    old = layer_of(name)
    return re.sub(rf"(?<=\.){old}(?=\.)", str(layer), name, count=1)
