"""LoRA adapters as checkpoints: merged into their base block by block while it is read.

    W' = W + s B A                          s = alpha / r, with rsLoRA alpha / sqrt(r)
    W' = m (W + s B A) / |W + s B A|        DoRA; m and the norm per output of the layer

Linear layers, trained modules and biases saved beside the factors, and single trained tokens are merged as PEFT's
`merge_and_unload` does, in float32. The product of a row depends on nothing but its tensor, so any stretch gives the
same bits. Only the factors of a few tensors are in memory at a time.

Where the base ties its head to its embeddings and the adapter trained only one of them, the result gets a head of its
own, which is what was trained; PEFT adds the product of a head to the shared tensor, which changes both (it warns
then).

Other adapters are refused by name: those that are no LoRA, that change the base when they are made (PiSSA, CorDA,
OLoRA, LoRA-GA, LoftQ, KaSA), that depend on the input (aLoRA, Arrow), and LoRA on anything but linear layers
(embeddings, convolutions, GPT-2's Conv1D, bare parameters as of fused experts, `lora_bias`). Merge those once with
PEFT.

Source: Hu et al. (2021), "LoRA: Low-Rank Adaptation of Large Language Models", section 4.1; Kalajdzievski (2023), "A
Rank Stabilization Scaling Factor for Fine-Tuning with LoRA"; Liu et al. (2024), "DoRA: Weight-Decomposed Low-Rank
Adaptation", equation 5.
"""

from __future__ import annotations

import functools
import math
import os
import re
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.checkpoints.companions import changed_config
from holdfast.checkpoints.dtypes import compute_dtype, decode
from holdfast.checkpoints.element_types import DTYPES, Operand
from holdfast.checkpoints.reader import CheckpointReader, checkpoint_hash, only_pickles
from holdfast.checkpoints.sources import bullets, config_of, read_object, same_values, stretches
from holdfast.checkpoints.vocabulary import EMBEDDINGS, HEADS
from holdfast.errors import ModelError
from holdfast.support.paths import expanded

if TYPE_CHECKING:
    from holdfast.checkpoints.sources import Entry, Source

FILE = "adapter_config.json"

_PREFIX = "base_model.model."
_REFUSED = {
    "target_parameters": "LoRA on bare parameters, such as fused experts",
    "layer_replication": "repeats layers of the base",
    "megatron_config": "belongs to a Megatron model",
    "alora_invocation_tokens": "aLoRA, which is active only after certain tokens",
    "use_qalora": "QA-LoRA, which needs a quantised base",
    "monteclora_config": "MonteCLoRA, which samples its weights",
    "use_bdlora": "block-diagonal LoRA",
    "arrow_config": "Arrow, which routes between adapters",
    "kasa_config": "KaSA, which changes the base",
    "lora_bias": "factors with a bias",
    "fan_in_fan_out": "layers that are stored [in, out], as GPT-2's Conv1D",
}
_CHANGES_BASE = ("pissa", "corda", "olora", "lora_ga", "loftq")
"""Initialisations that leave a base other than the stored one."""
_READ = frozenset(
    {
        *_REFUSED,
        "peft_type",
        "base_model_name_or_path",
        "revision",
        "r",
        "lora_alpha",
        "rank_pattern",
        "alpha_pattern",
        "use_rslora",
        "use_dora",
        "bias",
        "modules_to_save",
        "target_modules",
        "trainable_token_indices",
        "ensure_weight_tying",
        "init_lora_weights",
        # these matter while training only
        "task_type",
        "peft_version",
        "auto_mapping",
        "inference_mode",
        "exclude_modules",
        "lora_dropout",
        "layers_to_transform",
        "layers_pattern",
        "megatron_core",
        "loftq_config",
        "eva_config",
        "corda_config",
        "lora_ga_config",
        "velora_config",
        "qalora_group_size",
        "runtime_config",
    }
)
_PART = re.compile(
    r"(?P<module>.+?)(?:\.(?P<factor>lora_[AB])\.weight|\.(?P<magnitude>lora_magnitude_vector)(?:\.weight)?"
    r"|\.token_adapter\.(?P<tokens>trainable_tokens_delta))"
)
_WRAPPERS = re.compile(r"\.(?:token_adapter\.base_layer|base_layer|modules_to_save)(?=\.)")
_HEAD = re.compile(r"(?:^|\.)(?:lm_head|embed_out|output_layer)\.weight$")
_EXPERTS = ".experts."
_ROWS = 8
"""Rows that one product computes. Fixed, so that a row's bits do not depend on the stretch it is read in."""
_BLOCK = 262_144
"""Elements at a time where a whole tensor is gone through."""
_KEPT = 8
"""Tensors whose factors stay in memory."""


def is_adapter(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder holds an adapter and no model of its own."""
    here = Path(folder)
    return (here / FILE).is_file() and not any(
        (here / name).is_file() for name in ("model.safetensors", "model.safetensors.index.json")
    )


def base_of(folder: str | os.PathLike[str]) -> str:
    """The base an adapter names: a folder or a hub id, with `@revision` where the adapter states one.

    Raises:
        ModelError: no readable adapter_config.json, or it names no base.
    """
    config = adapter_config(folder)
    name, revision = config.get("base_model_name_or_path"), config.get("revision")
    if not name:
        raise ModelError(f"Expected base_model_name_or_path in {Path(folder) / FILE}, found none. Set it there.")
    return f"{name}@{revision}" if revision and not expanded(name).is_dir() else str(name)


def adapter_config(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """`adapter_config.json`.

    Raises:
        ModelError: it is not there or cannot be read.
    """
    return read_object(Path(folder) / FILE, "an adapter's configuration")


def trained_otherwise(folder: str | os.PathLike[str], base: str | os.PathLike[str] | None) -> list[str]:
    """What keeps an adapter on its base, as it lies there, from being the model that its run trained and measured.

    Args:
        folder: the adapter's, with the run's record beside it where holdfast trained it.
        base: folder of the base; None: it is not known.

    Returns:
        Sentences: the base was quantised in training, or has other weights now. Empty without a record.
    """
    here = Path(folder)
    if not (here / "run.json").is_file():
        return []
    record = read_object(here / "run.json", "the record of a run")
    settings, model = record.get("config") or {}, record.get("model") or {}
    found = []
    bits = next((bits for bits in (4, 8) if str(settings.get(f"load_in_{bits}bit")).lower() == "true"), None)
    if bits is not None:
        found.append(
            f"The run of {here.name} trained and measured this adapter on its base in {bits} bits; on the base as it "
            f"lies there it is another model, with other figures."
        )
    known = model.get("hash")
    if base is not None and known and not is_adapter(base) and checkpoint_hash(base) != known:
        found.append(
            f"The run of {here.name} trained this adapter on a base with other weights than {Path(base).name} has now "
            f"({str(known)[:12]} in its record)."
        )
    return found


def scale_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """What of an adapter's configuration says what its factors are worth: equal factors are equal changes of the
    weights only where this is equal too."""
    rank, alpha = int(config.get("r") or 8), float(config.get("lora_alpha") or 8)
    return {
        "scaling": alpha / (math.sqrt(rank) if config.get("use_rslora") else rank),
        "rank_pattern": dict(config.get("rank_pattern") or {}),
        "alpha_pattern": dict(config.get("alpha_pattern") or {}),
        "use_dora": bool(config.get("use_dora")),
    }


class _Factors(NamedTuple):
    """Names and numbers of a low-rank change `scaling * left @ right`."""

    left: str
    """B."""
    right: str
    """A."""
    scaling: float
    magnitude: str | None


@dataclass(frozen=True)
class _Change:
    """One tensor of the result: what it starts from and what happens to it."""

    source: Source
    name: str
    factors: _Factors | None = None
    tokens: tuple[tuple[int, ...], str] | None = None
    """Rows that are replaced and the tensor that holds them."""


class _Loaded(NamedTuple):
    left: NDArray[np.float32]
    right: NDArray[np.float32]
    gain: NDArray[Any] | None
    """DoRA's m / norm, one a row."""


class AdaptedSource:
    """A base with a LoRA adapter merged into it; a `Source`. Values that the adapter changes come as float32 (float64
    where the base is F64).

    Args:
        base: the model the adapter was trained on.
        folder: the adapter's.

    Attributes:
        base, adapter: the two sources.
        config: the base's config.json as the result needs it.
        config_changes: what differs from the base's: `vocab_size` where rows were added, `tie_word_embeddings` where
            the result has its own head.

    Raises:
        ModelError: an adapter that cannot be merged while reading, with the reason and what to do; adapter tensors that
            fit no tensor of the base, all of them; a quantised base.
    """

    def __init__(self, base: Source, folder: str | os.PathLike[str]) -> None:
        self.base, self.folder = base, Path(folder)
        self.label = f"{folder} on {base.label}"
        self._notes: list[str] = []
        self._settings = adapter_config(folder)
        self.adapter = _opened(self.folder, self._settings)
        base_config = config_of(base)
        changes, problems = _changes(self._settings, base, self.adapter)
        problems += lacking(self._settings, self.adapter.names(), base.entries)
        if problems:
            raise ModelError(
                f"The adapter {folder} does not fit {base.label}; it names "
                f"{self._settings.get('base_model_name_or_path')!r} as its base. "
                f"{len(problems)} problem{'s' if len(problems) > 1 else ''}:",
                bullets(problems),
            )
        named = self._settings.get("target_modules")
        targets = tuple(f".{target}.weight" for target in named) if isinstance(named, list) else ()
        experts = [name for name in base.entries if _EXPERTS in name and name.endswith(targets)]
        if experts and fuses_experts(self.adapter.names()):
            self._notes.append(
                f"The adapter's target_modules name modules of experts, such as {experts[0]}, and it holds no factors "
                f"of experts: it was trained where they are fused. They stay as the base has them."
            )
        if unknown := sorted(k for k, v in self._settings.items() if v and k not in _READ):
            self._notes.append(
                f"{self.folder / FILE} has settings that are not known here and are ignored: {', '.join(unknown)}."
            )
        self._loaded: OrderedDict[str, _Loaded] = OrderedDict()
        self._lock = threading.Lock()
        self.config_changes: dict[str, Any] = {}
        self._tie(changes, base_config)
        self._changes = changes
        self.entries: Mapping[str, Entry] = {
            **base.entries,
            **{name: self._entry(name, change) for name, change in changes.items()},
        }
        embedding = _embedding(base.entries)
        if embedding is not None and self.entries[embedding].shape != base.entries[embedding].shape:
            self.config_changes["vocab_size"] = self.entries[embedding].shape[0]
            self._notes.append(
                f"The adapter changes the number of vocabulary rows from {base.entries[embedding].shape[0]} to "
                f"{self.entries[embedding].shape[0]}."
            )
        self.config: dict[str, Any] = changed_config(base_config, self.config_changes)

    @functools.cached_property
    def notes(self) -> list[str]:
        """What is worth knowing; sentences. Reads the base once where the adapter's run says what it was."""
        return [*self._notes, *trained_otherwise(self.folder, self.base.folder)]

    def read(self, name: str, start: int, stop: int, buffer: NDArray[np.uint8]) -> Operand:
        """See `Source.read`."""
        change = self._changes.get(name)
        if change is None:
            return self.base.read(name, start, stop, buffer)
        entry = self.entries[name]
        stored = change.source.read(change.name, start, stop, self._room(change, stop - start, buffer))
        if change.factors is None and change.tokens is None and stored.dtype is entry.dtype:
            return stored
        wide = compute_dtype(stored.dtype)
        values = decode(stored.raw, stored.dtype, np.empty(stop - start, wide))
        columns = math.prod(entry.shape[1:])
        if change.factors is not None and stop > start:
            loaded = self._load(name, change.factors)
            _add_product(values, loaded, change.factors.scaling, start, columns)
            _multiply(values, loaded.gain, start, columns)
        if change.tokens is not None:
            indices, trained = change.tokens
            here = [
                (row, index * columns)
                for row, index in enumerate(indices)
                if index * columns < stop and (index + 1) * columns > start
            ]
            rows = self._whole(trained) if here else None
            for row, first in here:
                begin, end = max(first, start), min(first + columns, stop)
                values[begin - start : end - start] = rows[row, begin - first : end - first]  # type: ignore[index]
        return Operand(values, DTYPES["F64" if wide == np.float64 else "F32"])

    def _room(self, change: _Change, count: int, buffer: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The caller's buffer, or a larger one: trained tensors are often stored wider than the base."""
        needed = count * change.source.entries[change.name].dtype.itemsize
        return buffer if len(buffer) >= needed else np.empty(needed, np.uint8)

    def _entry(self, name: str, change: _Change) -> Entry:
        """Of the base's dtype and in the base's file, so that an output keeps both; a head of its own takes after the
        embeddings."""
        like = self.base.entries.get(name) or self.base.entries[str(_embedding(self.base.entries))]
        return like._replace(name=name, shape=change.source.entries[change.name].shape, offset=-1)

    def _whole(self, name: str) -> NDArray[np.float32]:
        """One adapter tensor in float32, in its shape."""
        entry = self.adapter.entries[name]
        raw, kind = self.adapter.read(name, 0, entry.size, np.empty(entry.nbytes, np.uint8))
        return decode(raw, kind).astype(np.float32, copy=False).reshape(entry.shape)

    def _load(self, name: str, factors: _Factors) -> _Loaded:
        with self._lock:
            found = self._loaded.get(name)
            if found is None:
                found = _Loaded(self._whole(factors.left), self._whole(factors.right), None)
                if factors.magnitude is not None:
                    found = found._replace(gain=self._gain(name, factors, found))
                self._loaded[name] = found
                while len(self._loaded) > _KEPT:
                    self._loaded.popitem(last=False)
            self._loaded.move_to_end(name)
            return found

    def _gain(self, name: str, factors: _Factors, loaded: _Loaded) -> NDArray[Any]:
        """m / |W + s B A|, the norms summed in float64."""
        change = self._changes[name]
        columns, size = loaded.right.shape[1], len(loaded.left) * loaded.right.shape[1]
        squares = np.zeros(len(loaded.left))
        step = max(_ROWS, _BLOCK // max(1, columns) // _ROWS * _ROWS) * columns
        for start, stop in stretches(size, step):
            stored = change.source.read(
                change.name, start, stop, self._room(change, stop - start, np.empty(0, np.uint8))
            )
            values = decode(stored.raw, stored.dtype)
            _add_product(values, loaded, factors.scaling, start, columns)
            block = np.square(values, out=values).reshape(-1, columns)
            squares[start // columns : stop // columns] = block.sum(1, dtype=np.float64)
        norms = np.sqrt(squares).astype(compute_dtype(change.source.entries[change.name].dtype))
        return self._whole(str(factors.magnitude)).reshape(-1) / norms

    # ----------------------------------------------------------------------------------- tied heads

    def _tie(self, changes: dict[str, _Change], config: Mapping[str, Any]) -> None:
        """Decides what becomes of a head that the base ties to its embeddings: it stays tied, or `changes` gets a head
        of its own."""
        embedding = _embedding(self.base.entries)
        if embedding is None or _head(self.base.entries) is not None:
            return
        head = _head(changes)
        trained = changes.get(embedding)
        if head is None and trained is not None and _predicts_tokens(config):
            same_shape = trained.source.entries[trained.name].shape == self.base.entries[embedding].shape
            if trained.source is self.adapter and same_shape and not self._settings.get("ensure_weight_tying"):
                head = _head_name(embedding)
                changes[head] = _Change(self.base, embedding)
        if head is None:
            return
        if self._same(changes[head], trained or _Change(self.base, embedding)):
            del changes[head]
            return
        self.config_changes["tie_word_embeddings"] = False
        self._notes.append(
            f"The adapter does not train embeddings and head alike, which the base ties: the result has a head of its "
            f"own ({head})."
        )

    def _same(self, head: _Change, embedding: _Change) -> bool:
        if head.factors is not None or head.tokens != embedding.tokens:
            return False
        return same_values(head.source, head.name, embedding.source, embedding.name)


def _add_product(values: NDArray[Any], loaded: _Loaded, scaling: float, start: int, columns: int) -> None:
    """Adds elements [start, start + len(values)) of `scaling * left @ right` to `values`."""
    first, last = start // columns, -(-(start + len(values)) // columns)
    begin = first // _ROWS * _ROWS
    whole = min(-(-last // _ROWS) * _ROWS, len(loaded.left) // _ROWS * _ROWS)
    parts = []
    if begin < whole:
        parts.append(
            np.matmul(loaded.left[begin:whole].reshape(-1, _ROWS, loaded.left.shape[1]), loaded.right).reshape(-1)
        )
    if last > whole:
        parts.append((loaded.left[whole:] @ loaded.right).reshape(-1))
    product = parts[0] if len(parts) == 1 else np.concatenate(parts)
    product = product[start - begin * columns :][: len(values)]
    product *= np.float32(scaling)
    values += product


def _multiply(values: NDArray[Any], gain: NDArray[Any] | None, start: int, columns: int) -> None:
    """Multiplies elements from `start` on by their row's gain."""
    if gain is None:
        return
    first, last = start // columns, -(-(start + len(values)) // columns)
    values *= np.repeat(gain[first:last], columns)[start - first * columns :][: len(values)]


# ---------------------------------------------------------------------------- what the adapter says


def _opened(folder: Path, settings: Mapping[str, Any]) -> CheckpointReader:
    """The adapter's tensors.

    Raises:
        ModelError: it cannot be merged here.
    """
    if not any(folder.glob("*.safetensors")) and (folder / "adapter_model.bin").is_file():
        raise only_pickles(folder, "adapter_model.bin", "peft import AutoPeftModelForCausalLM")
    adapter = CheckpointReader(folder)
    reasons = []
    kind = settings.get("peft_type")
    if kind != "LORA":
        reasons.append(f"peft_type is {kind!r}; LoRA adapters are merged while reading, others are not")
    reasons += [f"{key}: {what}" for key, what in _REFUSED.items() if settings.get(key)]
    start = settings.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGES_BASE):
        reasons.append(
            f"init_lora_weights is {start!r}, which changes the base when the adapter is made, so that the stored "
            f"base is not the one it belongs to"
        )
    if name := next((name for name in adapter.entries if ".lora_embedding_" in name), None):
        reasons.append(f"{name}: LoRA on embeddings")
    if name := next(
        (name for name, entry in adapter.entries.items() if ".lora_" in name and len(entry.shape) > 2), None
    ):
        reasons.append(f"{name}: LoRA on a convolution")
    if reasons:
        raise ModelError(
            f"The adapter {folder} cannot be merged while reading:",
            bullets(reasons),
            f'Merge it once with: python -c "from peft import AutoPeftModelForCausalLM as M; '
            f"M.from_pretrained('{folder}').merge_and_unload().save_pretrained('{folder}-merged')\"",
        )
    return adapter


def lacking(settings: Mapping[str, Any], names: Sequence[str], base: Iterable[str]) -> list[str]:
    """Modules that an adapter's configuration names and of which it holds nothing; a loader would leave them as they
    are, or fill them with random numbers. Configurations that name modules by a pattern are not judged, nor are experts
    where the adapter holds none: transformers fuses them, so that their names are those of no module.

    Args:
        settings: adapter_config.json.
        names: the adapter's tensors.
        base: the base's tensors.
    """
    targets = settings.get("target_modules")
    if settings.get("peft_type") != "LORA" or not isinstance(targets, list):
        return []
    if settings.get("layers_to_transform") or settings.get("exclude_modules"):
        return []

    def keys(module: str) -> set[tuple[str, str]]:
        """Layer and target; what lies between them may have other names in the model than in its file."""
        layer = next((word for word in module.split(".") if word.isdigit()), "")
        return {(layer, target) for target in targets if f".{module}".endswith(f".{target}")}

    parts = [_PART.fullmatch(name.removeprefix(_PREFIX)) for name in names]
    there = {key for part in parts if part is not None for key in keys(part["module"])}
    modules = (name.removesuffix(".weight") for name in base if name.endswith(".weight"))
    fused = fuses_experts(names)
    lost = [module for module in modules if keys(module) - there and not (fused and _EXPERTS in f"{module}.")]
    return [f"{module}: target_modules names it, and the adapter holds nothing for it" for module in lost]


def fuses_experts(names: Sequence[str]) -> bool:
    """Whether no tensor of an adapter is of an expert."""
    return not any(_EXPERTS in name for name in names)


def _changes(
    settings: Mapping[str, Any], base: Source, adapter: CheckpointReader
) -> tuple[dict[str, _Change], list[str]]:
    """What happens to each tensor of the base that the adapter touches, and everything that does not fit."""
    modules: dict[str, dict[str, str]] = {}
    trained: dict[str, str] = {}
    problems: list[str] = []
    for name in adapter.names():
        plain = name.removeprefix(_PREFIX)
        part = _PART.fullmatch(plain)
        if part is not None:
            key = next(value for label, value in part.groupdict().items() if label != "module" and value)
            modules.setdefault(part["module"], {})[key] = name
        elif any(word.startswith("lora_") for word in plain.split(".")):
            problems.append(f"{name}: not a tensor that LoRA has, as it is known here")
        else:
            trained[_WRAPPERS.sub("", plain)] = name
    weights = {module: f"{module}.weight" for module in modules}
    places = _places([*dict.fromkeys([*weights.values(), *trained])], base.entries)
    for name, place in places.items():
        if place is None:
            tensors = [trained[name]] if name in trained else []
            tensors += modules.get(name.removesuffix(".weight"), {}).values()
            problems.append(f"{', '.join(tensors)}: the base has no {name}, or several tensors that could be meant")
    changes: dict[str, _Change] = {}
    for name, stored in trained.items():
        place = places[name]
        if place is not None:
            problems += _misfit(place, adapter.entries[stored], base.entries)
            changes[place] = _Change(adapter, stored)
    for module, parts in modules.items():
        place = places[weights[module]]
        if place is None:
            continue
        change = changes.get(place) or _Change(base, place if place in base.entries else str(_embedding(base.entries)))
        if change.source.entries[change.name].dtype.kind != "float":
            problems.append(
                f"{change.name} is stored as {change.source.entries[change.name].dtype.name}: the base is quantised. "
                f"Give the base that was quantised"
            )
            continue
        try:
            changes[place] = _with_parts(change, module, parts, settings, adapter)
        except _Misfit as misfit:
            problems.append(str(misfit))
    return changes, problems


class _Misfit(Exception):
    """One sentence about tensors that do not fit."""


def _with_parts(
    change: _Change, module: str, parts: Mapping[str, str], settings: Mapping[str, Any], adapter: CheckpointReader
) -> _Change:
    entry = change.source.entries[change.name]
    if tokens := parts.get("trainable_tokens_delta"):
        indices = _token_indices(module, settings)
        expected = (len(indices), *entry.shape[1:])
        if adapter.entries[tokens].shape != expected or max(indices, default=0) >= entry.shape[0]:
            raise _Misfit(
                f"{tokens}: expected {list(expected)} for rows of {entry.name} {list(entry.shape)}, got "
                f"{list(adapter.entries[tokens].shape)}"
            )
        change = replace(change, tokens=(indices, tokens))
        if set(parts) == {"trainable_tokens_delta"}:
            return change
    a, b = parts.get("lora_A"), parts.get("lora_B")
    if a is None or b is None:
        raise _Misfit(f"{', '.join(parts.values())}: expected both factors A and B of {module}")
    rank, scaling = _scaling(module, settings)
    down, up = adapter.entries[a].shape, adapter.entries[b].shape
    if down[:1] != (rank,) or up[1:] != (rank,):
        raise _Misfit(
            f"{a} {list(down)} and {b} {list(up)}: expected rank {rank} between them, as the adapter's configuration "
            f"says"
        )
    if (*up[:1], *down[1:]) != entry.shape:
        raise _Misfit(
            f"{a} {list(down)} and {b} {list(up)}: their product does not have the shape of {entry.name} "
            f"{list(entry.shape)}"
        )
    magnitude = parts.get("lora_magnitude_vector")
    if magnitude is not None and math.prod(adapter.entries[magnitude].shape) != entry.shape[0]:
        raise _Misfit(
            f"{magnitude} {list(adapter.entries[magnitude].shape)}: expected one number for each output of "
            f"{entry.name} {list(entry.shape)}"
        )
    if magnitude is None and settings.get("use_dora"):
        raise _Misfit(f"{a}: expected a lora_magnitude_vector beside it, as the adapter's configuration says use_dora")
    return replace(change, factors=_Factors(b, a, scaling, magnitude))


def _scaling(module: str, settings: Mapping[str, Any]) -> tuple[int, float]:
    """(rank, scaling) of a module; the first pattern that matches the end of its name counts, as in PEFT's
    `get_pattern_key`."""

    def chosen(patterns: Mapping[str, Any] | None, default: Any) -> Any:
        return next(
            (value for key, value in (patterns or {}).items() if re.match(rf"(.*\.)?({key})$", module)), default
        )

    rank, alpha = (
        chosen(settings.get("rank_pattern"), settings.get("r", 8)),
        chosen(settings.get("alpha_pattern"), settings.get("lora_alpha", 8)),
    )
    return int(rank), alpha / (math.sqrt(rank) if settings.get("use_rslora") else rank)


def _token_indices(module: str, settings: Mapping[str, Any]) -> tuple[int, ...]:
    stated = settings.get("trainable_token_indices")
    if isinstance(stated, dict):
        stated = next((value for key, value in stated.items() if module == key or module.endswith(f".{key}")), None)
    if not isinstance(stated, list):
        raise _Misfit(f"{module}: trained tokens are stored, but trainable_token_indices does not say which")
    return tuple(int(i) for i in stated)


def _misfit(place: str, stored: Entry, entries: Mapping[str, Entry]) -> list[str]:
    """A trained tensor has the shape of the base's; those of the vocabulary may have more rows or fewer."""
    expected = entries.get(place) or entries[str(_embedding(entries))]
    rows_may_differ = place.split(".")[-2:-1] and place.split(".")[-2] in EMBEDDINGS + HEADS
    if stored.shape == expected.shape or (
        rows_may_differ and stored.shape[1:] == expected.shape[1:] and len(stored.shape) == len(expected.shape)
    ):
        return []
    return [f"{stored.name}: expected the shape of {expected.name}, {list(expected.shape)}, got {list(stored.shape)}"]


# -------------------------------------------------------------------------------------------- names


def _places(wanted: Sequence[str], entries: Mapping[str, Entry]) -> dict[str, str | None]:
    """The base's name for each tensor: the same name, else the only one that differs only in the words before the first
    number.

    Adapters are named after modules, and a model's file may lack the words of outer modules, or have them in another
    order. A head is the base's whatever it is called there; one that the base ties to its embeddings keeps its name.
    """
    keys: dict[tuple[str, ...], list[tuple[set[str], str]]] = {}
    for name in entries:
        words, tail = _split(name)
        keys.setdefault(tail, []).append((words, name))
    found: dict[str, str | None] = {}
    for name in wanted:
        if name in entries:
            found[name] = name
            continue
        words, tail = _split(name)
        candidates = [other for theirs, other in keys.get(tail, []) if words <= theirs or theirs <= words]
        if not candidates and _head([name]) is not None and _embedding(entries) is not None:
            candidates = [_head(entries) or name]
        found[name] = candidates[0] if len(candidates) == 1 else None
    claims = Counter(found.values())
    return {name: place if claims[place] == 1 else None for name, place in found.items()}


def _split(name: str) -> tuple[set[str], tuple[str, ...]]:
    """The words before the layer's number, and the number with what follows; without a number, the last two words
    follow."""
    words = name.split(".")
    at = next((i for i, word in enumerate(words) if word.isdigit()), max(0, len(words) - 2))
    return set(words[:at]), tuple(words[at:])


def _embedding(entries: Mapping[str, Any]) -> str | None:
    return next((n for n in entries if n.endswith(".weight") and n.split(".")[-2] in EMBEDDINGS), None)


def _head(names: Mapping[str, Any] | Sequence[str]) -> str | None:
    return next((n for n in names if _HEAD.search(n)), None)


def _head_name(embedding: str) -> str:
    if embedding.endswith("embed_in.weight"):
        return "embed_out.weight"
    return "language_model.lm_head.weight" if embedding.startswith("language_model.model.") else "lm_head.weight"


def _predicts_tokens(config: Mapping[str, Any]) -> bool:
    names = config.get("architectures") or []
    return any(str(name).endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")) for name in names)
