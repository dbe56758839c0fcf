"""LoRA adapters as checkpoints: merged into their base block by block while it is read.

    W' = W + s B A                          s = alpha / r, with rsLoRA alpha / sqrt(r)
    W' = m (W + s B A) / |W + s B A|        DoRA; m and the norm per output of the layer

Linear layers, trained modules and biases saved beside the factors, and single trained tokens are
merged as PEFT's `merge_and_unload` does, in float32. The product of a row depends on nothing but
its tensor, so any stretch gives the same bits. Only the factors of a few tensors are in memory at a
time.

Where the base ties its head to its embeddings and the adapter trained only one of them, the result
gets a head of its own, which is what was trained; PEFT adds the product of a head to the shared
tensor, which changes both (it warns then).

Other adapters are refused by name: those that are no LoRA, that change the base when they are made
(PiSSA, CorDA, OLoRA, LoRA-GA, LoftQ, KaSA), that depend on the input (aLoRA, Arrow), and LoRA on
anything but linear layers (embeddings, convolutions, GPT-2's Conv1D, bare parameters as of fused
experts, `lora_bias`). `peft_command` says how to merge those once with PEFT, where it can.

Source: Hu et al. (2021), "LoRA: Low-Rank Adaptation of Large Language Models", section 4.1;
Kalajdzievski (2023), "A Rank Stabilization Scaling Factor for Fine-Tuning with LoRA"; Liu et al.
(2024), "DoRA: Weight-Decomposed Low-Rank Adaptation", equation 5.
"""

from __future__ import annotations

import functools
import math
import os
import re
import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.checkpoints.adapter_settings import (
    EXPERTS,
    FILE,
    PREFIX,
    TENSOR,
    WRAPPERS,
    adapter_config,
    fuses_experts,
    lacking,
    trained_otherwise,
)
from holdfast.checkpoints.companions import changed_config
from holdfast.checkpoints.dtypes import compute_dtype, decode
from holdfast.checkpoints.element_types import DTYPES, Operand
from holdfast.checkpoints.peft_command import CHANGES_BASE, merge_advice
from holdfast.checkpoints.reader import CheckpointReader, only_pickles
from holdfast.checkpoints.sources import bullets, config_of, same_values, stretches
from holdfast.checkpoints.vocabulary import EMBEDDINGS, HEADS, first_matrix
from holdfast.errors import ModelError

if TYPE_CHECKING:
    from holdfast.checkpoints.sources import Entry, Source

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
_HEAD = re.compile(r"(?:^|\.)(?:lm_head|embed_out|output_layer)\.weight$")
_ROWS = 8
"""Rows that one product computes. Fixed, so that a row's bits do not depend on the stretch it is
read in."""
_BLOCK = 262_144
"""Elements at a time where a whole tensor is gone through."""
_KEPT = 8
"""Tensors whose factors stay in memory."""


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
    """A base with a LoRA adapter merged into it; a `Source`. Values that the adapter changes come
    as float32 (float64 where the base is F64).

    Args:
        base: the model the adapter was trained on.
        folder: the adapter's.

    Attributes:
        base, adapter: the two sources.
        config: the base's config.json as the result needs it.
        config_changes: what differs from the base's: `vocab_size` where rows were added,
            `tie_word_embeddings` where the result has its own head.

    Raises:
        ModelError: an adapter that cannot be merged while reading, with the reason and what to do;
            adapter tensors that fit no tensor of the base, all of them; a quantised base.
    """

    def __init__(self, base: Source, folder: str | os.PathLike[str]) -> None:
        self.base, self.folder = base, Path(folder)
        self.label = f"{folder} on {base.label}"
        self._notes: list[str] = []
        self._settings = adapter_config(folder)
        self.adapter = _opened(self.folder, self._settings, base)
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
        self._note_what_is_unread()
        self._loaded: OrderedDict[str, _Loaded] = OrderedDict()
        self._lock = threading.Lock()
        self.config_changes: dict[str, Any] = {}
        self._tie(changes, base_config)
        self._changes = changes
        changed = {name: self._entry(name, change) for name, change in changes.items()}
        self.entries: Mapping[str, Entry] = {**base.entries, **changed}
        embedding = _embedding(base.entries)
        if embedding is not None and self.entries[embedding].shape != base.entries[embedding].shape:
            before, after = base.entries[embedding].shape[0], self.entries[embedding].shape[0]
            self.config_changes["vocab_size"] = after
            self._notes.append(
                f"The adapter changes the number of vocabulary rows from {before} to {after}."
            )
        self.config: dict[str, Any] = changed_config(base_config, self.config_changes)

    def _note_what_is_unread(self) -> None:
        targets = self._settings.get("target_modules")
        endings = (
            tuple(f".{target}.weight" for target in targets) if isinstance(targets, list) else ()
        )
        experts = [name for name in self.base.entries if EXPERTS in name and name.endswith(endings)]
        if experts and fuses_experts(self.adapter.names()):
            self._notes.append(
                f"The adapter's target_modules name expert modules, such as {experts[0]}, but it "
                "stores no factors for them, because it was trained with fused experts. The "
                "experts keep the base's weights."
            )
        unknown = sorted(key for key, value in self._settings.items() if value and key not in _READ)
        if unknown:
            self._notes.append(
                f"{self.folder / FILE} has unknown settings, which are ignored: "
                f"{', '.join(unknown)}."
            )

    @functools.cached_property
    def notes(self) -> list[str]:
        """What is worth knowing; sentences. Reads the base once where the adapter's run says what
        it was."""
        return [*self._notes, *trained_otherwise(self.folder, self.base.folder)]

    def read(self, name: str, start: int, stop: int, buffer: NDArray[np.uint8]) -> Operand:
        """See `Source.read`."""
        change = self._changes.get(name)
        if change is None:
            return self.base.read(name, start, stop, buffer)
        entry = self.entries[name]
        stored = change.source.read(
            change.name, start, stop, self._room(change, stop - start, buffer)
        )
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
            self._replace_tokens(values, change.tokens, start, columns)
        return Operand(values, DTYPES["F64" if wide == np.float64 else "F32"])

    def _replace_tokens(
        self, values: NDArray[Any], tokens: tuple[tuple[int, ...], str], start: int, columns: int
    ) -> None:
        """Puts the rows of trained tokens into elements from `start` on."""
        indices, tensor = tokens
        stop, rows = start + len(values), None
        for row, index in enumerate(indices):
            begin, end = max(index * columns, start), min((index + 1) * columns, stop)
            if begin < end:
                rows = self._whole(tensor) if rows is None else rows
                values[begin - start : end - start] = rows[
                    row, begin - index * columns : end - index * columns
                ]

    def _room(self, change: _Change, count: int, buffer: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The caller's buffer, or a larger one: trained tensors are often stored wider than the
        base."""
        needed = count * change.source.entries[change.name].dtype.itemsize
        return buffer if len(buffer) >= needed else np.empty(needed, np.uint8)

    def _entry(self, name: str, change: _Change) -> Entry:
        """Of the base's dtype and in the base's file, so that an output keeps both; a head of its
        own takes after the embeddings."""
        like = self.base.entries.get(name) or self.base.entries[str(_embedding(self.base.entries))]
        return like._replace(name=name, shape=change.source.entries[change.name].shape, offset=-1)

    def _whole(self, name: str) -> NDArray[np.float32]:
        """One adapter tensor in float32, in its shape."""
        entry = self.adapter.entries[name]
        raw, kind = self.adapter.read(name, 0, entry.size, np.empty(entry.nbytes, np.uint8))
        return decode(raw, kind).astype(np.float32, copy=False).reshape(entry.shape)

    def _load(self, name: str, factors: _Factors) -> _Loaded:
        with self._lock:
            loaded = self._loaded.get(name)
            if loaded is None:
                loaded = _Loaded(self._whole(factors.left), self._whole(factors.right), None)
                if factors.magnitude is not None:
                    loaded = loaded._replace(gain=self._gain(name, factors, loaded))
                self._loaded[name] = loaded
                while len(self._loaded) > _KEPT:
                    self._loaded.popitem(last=False)
            self._loaded.move_to_end(name)
            return loaded

    def _gain(self, name: str, factors: _Factors, loaded: _Loaded) -> NDArray[Any]:
        """m / |W + s B A|, the norms summed in float64."""
        change = self._changes[name]
        source, columns = change.source, loaded.right.shape[1]
        squares = np.zeros(len(loaded.left))
        step = max(_ROWS, _BLOCK // max(1, columns) // _ROWS * _ROWS) * columns
        for start, stop in stretches(len(loaded.left) * columns, step):
            buffer = self._room(change, stop - start, np.empty(0, np.uint8))
            stored = source.read(change.name, start, stop, buffer)
            values = decode(stored.raw, stored.dtype)
            _add_product(values, loaded, factors.scaling, start, columns)
            rows = np.square(values, out=values).reshape(-1, columns)
            squares[start // columns : stop // columns] = rows.sum(1, dtype=np.float64)
        norms = np.sqrt(squares).astype(compute_dtype(source.entries[change.name].dtype))
        return self._whole(str(factors.magnitude)).reshape(-1) / norms

    # ----------------------------------------------------------------------------------- tied heads

    def _tie(self, changes: dict[str, _Change], config: Mapping[str, Any]) -> None:
        """Decides what becomes of a head that the base ties to its embeddings: it stays tied, or
        `changes` gets a head of its own."""
        embedding = _embedding(self.base.entries)
        if embedding is None or _head(self.base.entries) is not None:
            return
        head = _head(changes)
        trained = changes.get(embedding)
        if head is None and trained is not None and _predicts_tokens(config):
            same_shape = (
                trained.source.entries[trained.name].shape == self.base.entries[embedding].shape
            )
            if (
                trained.source is self.adapter
                and same_shape
                and not self._settings.get("ensure_weight_tying")
            ):
                head = _head_name(embedding)
                changes[head] = _Change(self.base, embedding)
        if head is None:
            return
        if self._same(changes[head], trained or _Change(self.base, embedding)):
            del changes[head]
            return
        self.config_changes["tie_word_embeddings"] = False
        self._notes.append(
            "The base ties its head to the embeddings, but the adapter changes head and "
            f"embeddings in different ways: the result has a separate head ({head})."
        )

    def _same(self, head: _Change, embedding: _Change) -> bool:
        if head.factors is not None or head.tokens != embedding.tokens:
            return False
        return same_values(head.source, head.name, embedding.source, embedding.name)


def _add_product(
    values: NDArray[Any], loaded: _Loaded, scaling: float, start: int, columns: int
) -> None:
    """Adds elements [start, start + len(values)) of `scaling * left @ right` to `values`."""
    first, last = start // columns, -(-(start + len(values)) // columns)
    begin = first // _ROWS * _ROWS
    grouped = min(-(-last // _ROWS) * _ROWS, len(loaded.left) // _ROWS * _ROWS)
    products = []
    if begin < grouped:
        groups = loaded.left[begin:grouped].reshape(-1, _ROWS, loaded.left.shape[1])
        products.append(np.matmul(groups, loaded.right).reshape(-1))
    if last > grouped:
        products.append((loaded.left[grouped:] @ loaded.right).reshape(-1))
    product = products[0] if len(products) == 1 else np.concatenate(products)
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


def _opened(folder: Path, settings: Mapping[str, Any], base: Source) -> CheckpointReader:
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
        reasons.append(f"peft_type is {kind!r}, but only LoRA adapters are merged while reading")
    reasons += [f"{key}: {what}" for key, what in _REFUSED.items() if settings.get(key)]
    start = settings.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(CHANGES_BASE):
        reasons.append(
            f"init_lora_weights is {start!r}, which changes the base when the adapter is created. "
            "So the adapter does not belong to the stored base"
        )
    embeddings, convolutions = [], []
    for name, entry in adapter.entries.items():
        if ".lora_embedding_" in name:
            embeddings.append(f"{name}: LoRA on embeddings")
        elif ".lora_" in name and len(entry.shape) > 2:
            convolutions.append(f"{name}: LoRA on a convolution")
    reasons += [*embeddings[:1], *convolutions[:1]]
    if reasons:
        raise ModelError(
            f"The adapter {folder} cannot be merged while reading:",
            bullets(reasons),
            merge_advice(adapter, settings, base, tied=_is_tied(base)),
        )
    return adapter


def _changes(
    settings: Mapping[str, Any], base: Source, adapter: CheckpointReader
) -> tuple[dict[str, _Change], list[str]]:
    """What happens to each tensor of the base that the adapter touches, and everything that does
    not fit."""
    modules: dict[str, dict[str, str]] = {}
    trained: dict[str, str] = {}
    problems: list[str] = []
    for name in adapter.names():
        plain = name.removeprefix(PREFIX)
        tensor = TENSOR.fullmatch(plain)
        if tensor is not None:
            kind = tensor["factor"] or tensor["magnitude"] or tensor["tokens"]
            modules.setdefault(tensor["module"], {})[kind] = name
        elif any(word.startswith("lora_") for word in plain.split(".")):
            problems.append(f"{name}: not a LoRA tensor that holdfast knows")
        else:
            trained[WRAPPERS.sub("", plain)] = name
    targets = _names_in_base(
        [*dict.fromkeys([*(f"{module}.weight" for module in modules), *trained])], base.entries
    )
    for name, target in targets.items():
        if target is None:
            tensors = [trained[name]] if name in trained else []
            tensors += modules.get(name.removesuffix(".weight"), {}).values()
            problems.append(
                f"{', '.join(tensors)}: the base has no {name}, or several tensors match"
            )
    changes: dict[str, _Change] = {}
    for name, stored in trained.items():
        target = targets[name]
        if target is not None:
            problems += _shape_problems(target, adapter.entries[stored], base.entries)
            changes[target] = _Change(adapter, stored)
    for module, tensors_of in modules.items():
        target = targets[f"{module}.weight"]
        if target is None:
            continue
        start = target if target in base.entries else str(_embedding(base.entries))
        change = changes.get(target) or _Change(base, start)
        dtype = change.source.entries[change.name].dtype
        if dtype.kind != "float":
            problems.append(
                f"{change.name} is stored as {dtype.name}: the base is quantised. Give the "
                "unquantised base"
            )
            continue
        try:
            changes[target] = _with_factors(change, module, tensors_of, settings, adapter)
        except _Misfit as misfit:
            problems.append(str(misfit))
    return changes, problems


class _Misfit(Exception):
    """One sentence about tensors that do not fit."""


def _with_factors(
    change: _Change,
    module: str,
    tensors: Mapping[str, str],
    settings: Mapping[str, Any],
    adapter: CheckpointReader,
) -> _Change:
    """A change with what the adapter holds for its module, by kind.

    Raises:
        _Misfit: shapes or tensors that do not belong together.
    """
    entry = change.source.entries[change.name]
    if tokens := tensors.get("trainable_tokens_delta"):
        indices = _token_indices(module, settings)
        expected = (len(indices), *entry.shape[1:])
        if adapter.entries[tokens].shape != expected or max(indices, default=0) >= entry.shape[0]:
            raise _Misfit(
                f"{tokens}: expected {list(expected)} for rows of {entry.name} "
                f"{list(entry.shape)}, got {list(adapter.entries[tokens].shape)}"
            )
        change = replace(change, tokens=(indices, tokens))
        if set(tensors) == {"trainable_tokens_delta"}:
            return change
    a, b = tensors.get("lora_A"), tensors.get("lora_B")
    if a is None or b is None:
        raise _Misfit(f"{', '.join(tensors.values())}: expected both factors A and B of {module}")
    rank, scaling = _scaling(module, settings)
    down, up = adapter.entries[a].shape, adapter.entries[b].shape
    if down[:1] != (rank,) or up[1:] != (rank,):
        raise _Misfit(
            f"{a} {list(down)} and {b} {list(up)}: expected rank {rank} between them, as the "
            "adapter's configuration says"
        )
    if (*up[:1], *down[1:]) != entry.shape:
        raise _Misfit(
            f"{a} {list(down)} and {b} {list(up)}: their product does not have the shape of "
            f"{entry.name} {list(entry.shape)}"
        )
    magnitude = tensors.get("lora_magnitude_vector")
    if magnitude is not None and math.prod(adapter.entries[magnitude].shape) != entry.shape[0]:
        raise _Misfit(
            f"{magnitude} {list(adapter.entries[magnitude].shape)}: expected one number for each "
            f"output of {entry.name} {list(entry.shape)}"
        )
    if magnitude is None and settings.get("use_dora"):
        raise _Misfit(
            f"{a}: expected a lora_magnitude_vector beside it, as the adapter's configuration "
            "says use_dora"
        )
    return replace(change, factors=_Factors(b, a, scaling, magnitude))


def _scaling(module: str, settings: Mapping[str, Any]) -> tuple[int, float]:
    """(rank, scaling) of a module; the first pattern that matches the end of its name counts, as in
    PEFT's `get_pattern_key`."""

    def chosen(pattern: str, key: str, default: int) -> Any:
        for name, value in (settings.get(pattern) or {}).items():
            if re.match(rf"(.*\.)?({name})$", module):
                return value
        return settings.get(key, default)

    rank, alpha = chosen("rank_pattern", "r", 8), chosen("alpha_pattern", "lora_alpha", 8)
    return int(rank), alpha / (math.sqrt(rank) if settings.get("use_rslora") else rank)


def _token_indices(module: str, settings: Mapping[str, Any]) -> tuple[int, ...]:
    stated = settings.get("trainable_token_indices")
    if isinstance(stated, dict):
        by_module, stated = stated, None
        for name, indices in by_module.items():
            if module == name or module.endswith(f".{name}"):
                stated = indices
                break
    if not isinstance(stated, list):
        raise _Misfit(
            f"{module}: trained tokens are stored, but trainable_token_indices does not say which"
        )
    return tuple(int(i) for i in stated)


def _shape_problems(name: str, stored: Entry, entries: Mapping[str, Entry]) -> list[str]:
    """A trained tensor has the shape of the base's; those of the vocabulary may have more rows or
    fewer."""
    expected = entries.get(name) or entries[str(_embedding(entries))]
    words = name.split(".")
    if len(words) > 1 and words[-2] in EMBEDDINGS + HEADS:
        fits = stored.shape[1:] == expected.shape[1:] and len(stored.shape) == len(expected.shape)
    else:
        fits = stored.shape == expected.shape
    if fits:
        return []
    return [
        f"{stored.name}: expected the shape of {expected.name}, {list(expected.shape)}, got "
        f"{list(stored.shape)}"
    ]


# -------------------------------------------------------------------------------------------- names


def _names_in_base(names: Sequence[str], entries: Mapping[str, Entry]) -> dict[str, str | None]:
    """The base's name for each tensor: the same name, else the only one that differs only in the
    words before the first number.

    Adapters are named after modules, and a model's file may lack the words of outer modules, or
    have them in another order. A head is the base's whatever it is called there; one that the base
    ties to its embeddings keeps its name.
    """
    by_ending: dict[tuple[str, ...], list[tuple[set[str], str]]] = {}
    for name in entries:
        words, ending = _split(name)
        by_ending.setdefault(ending, []).append((words, name))
    matches: dict[str, str | None] = {}
    for name in names:
        words, ending = _split(name)
        candidates = []
        for theirs, other in by_ending.get(ending, []):
            if words <= theirs or theirs <= words:
                candidates.append(other)
        if not candidates and _head([name]) is not None and _embedding(entries) is not None:
            candidates = [_head(entries) or name]
        only = candidates[0] if len(candidates) == 1 else None
        matches[name] = name if name in entries else only
    claims = Counter(matches.values())
    for name, match in matches.items():
        if claims[match] > 1:
            matches[name] = None
    return matches


def _split(name: str) -> tuple[set[str], tuple[str, ...]]:
    """The words before the layer's number, and the number with what follows; without a number, the
    last two words follow."""
    words = name.split(".")
    at = next((i for i, word in enumerate(words) if word.isdigit()), max(0, len(words) - 2))
    return set(words[:at]), tuple(words[at:])


def _embedding(entries: Mapping[str, Any]) -> str | None:
    return first_matrix(entries, EMBEDDINGS)


def _head(names: Mapping[str, Any] | Sequence[str]) -> str | None:
    return next((n for n in names if _HEAD.search(n)), None)


def _head_name(embedding: str) -> str:
    if embedding.endswith("embed_in.weight"):
        return "embed_out.weight"
    return (
        "language_model.lm_head.weight"
        if embedding.startswith("language_model.model.")
        else "lm_head.weight"
    )


def _is_tied(base: Source) -> bool:
    """Whether a base that predicts tokens has no head of its own."""
    has_embedding, has_head = _embedding(base.entries) is not None, _head(base.entries) is not None
    return has_embedding and not has_head and _predicts_tokens(config_of(base))


def _predicts_tokens(config: Mapping[str, Any]) -> bool:
    names = config.get("architectures") or []
    return any(
        str(name).endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration"))
        for name in names
    )
