"""A LoRA adapter out of two checkpoints: the low-rank part of what tuning changed, matrix by matrix.

    tuned - base = D,   adapter: B A = the nearest matrix of rank r to D (`low_rank`),   scaling alpha / r = 1

The adapter is PEFT's: `adapter_model.safetensors` with `adapter_config.json`. Linear layers, GPT-2's Conv1D (stored
[in, out]) and embeddings get factors. Embeddings that the head is tied to are saved whole unless asked otherwise: PEFT
0.21 runs factors of tied weights rightly (`ensure_weight_tying`) and adds them twice when it merges them. What LoRA has
no factors for (norms, biases, position embeddings, fused experts) is reported where it changed, and saved whole where
that is asked for (`modules_to_save`, `bias`). A tensor that did not change gets nothing; PEFT loads no adapter without
factors, so where no matrix changed one gets factors of zero.

Which module a matrix belongs to is asked of transformers (`fit.modules_of`); of models that it does not know, names
tell. A tensor that the model in memory has not by that name and shape (experts that transformers stacks) is out of an
adapter's reach, and left out. One tensor is in memory at a time; finished factors wait on the disk until their number
is known.

The checkpoints have to have the same tensors: an adapter adds to rows that are there. So a vocabulary that grew is
refused, with the command that gives the base the new rows.

Source: Hu et al. (2021), "LoRA: Low-Rank Adaptation of Large Language Models", section 4.1; mergekit's
`mergekit-extract-lora` does the same for the whole model in memory.
"""

from __future__ import annotations

import dataclasses
import math
import os
import tempfile
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.checkpoints.adapters import FILE as ADAPTER_CONFIG
from holdfast.checkpoints.companions import copy_companions
from holdfast.checkpoints.dtypes import DType, compute_dtype, count_nonfinite, decode, encode
from holdfast.checkpoints.dtypes import dtype as dtype_named
from holdfast.checkpoints.engine import Reader, Scratch, nonfinite_error, overflow_error
from holdfast.checkpoints.fit import Modules, modules_of
from holdfast.checkpoints.locate import open_source
from holdfast.checkpoints.lora_settings import RANK, LoraSettings
from holdfast.checkpoints.low_rank import distance_squared, low_rank
from holdfast.checkpoints.plan import Alias, quantised
from holdfast.checkpoints.provenance import FILE, UNIT, Digests, content_fingerprint, now, parent_record, versions
from holdfast.checkpoints.reader import CheckpointReader, stretches
from holdfast.checkpoints.sources import Source, bullets, config_of, folders_of, listing, same_values, tied_head
from holdfast.checkpoints.vocabulary import EMBEDDINGS, HEADS, vocabulary_tensors
from holdfast.checkpoints.writer import CheckpointWriter, Slot, check_destination, disk_errors
from holdfast.errors import ConfigError, Interrupted, ModelError, RunFolderError, ShapeError
from holdfast.support.display import Displayed
from holdfast.support.files import fingerprint, write_json
from holdfast.support.leftovers import NewFolder
from holdfast.support.paths import expanded
from holdfast.support.progress import progress

Name = str | os.PathLike[str]
WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_TIED = "embed_tokens"
"""The name of embeddings whose factors PEFT ties to those of the head."""


class Part(NamedTuple):
    """What became of one tensor that tuning changed."""

    name: str
    """Of the tensor."""
    how: str
    """"lora"; "whole": saved as it is; "left out"; "out of reach": left out, since the model in memory has no such
    tensor (module docstring)."""
    rank: int
    """Of its factors; 0: none."""
    squares: float
    """|tuned - base|^2."""
    lost: float
    """|tuned - base - what the adapter adds|^2."""

    @property
    def kept(self) -> float:
        """Share of the squared difference that the adapter gives back."""
        return 1 - self.lost / self.squares if self.squares else 1.0


@dataclass(frozen=True, kw_only=True, repr=False)
class ExtractedLora(Displayed):
    """An adapter's folder that was written."""

    folder: Path
    record: dict[str, Any]
    """What `provenance.json` holds."""
    parts: tuple[Part, ...]
    """Every tensor that changed, in the order of the base."""

    @property
    def kept(self) -> float:
        """Share of the squared difference of the whole model."""
        squares = sum(part.squares for part in self.parts)
        return 1 - sum(part.lost for part in self.parts) / squares if squares else 1.0


def extract_lora(
    tuned: Name,
    base: Name,
    output_dir: Name,
    *,
    settings: LoraSettings | None = None,
    adapter_base: Name | None = None,
    dtype: str = "float32",
    overwrite: bool = False,
    sync: bool = True,
) -> ExtractedLora:
    """Writes the low-rank part of `tuned - base` as a PEFT adapter of `base`.

    ```python
    extract_lora("tuned", "base", "adapter", settings=LoraSettings(rank=64))
    ```

    Args:
        tuned: a folder, hub id or adapter.
        base: what it was tuned from; the adapter names it as its base.
        output_dir: the folder to write; complete or absent.
        settings: rank or share, and what becomes of the rest.
        adapter_base: the model that an adapter belongs to; default: `base`.
        dtype: of the factors and of what is saved whole.
        overwrite: replace a folder that is there.
        sync: put everything on the disk before the folder gets its name.

    Raises:
        ConfigError: settings that exclude each other, no floating-point dtype.
        ModelError: a checkpoint that cannot be read, quantised weights, NaN or infinities, nothing that changed.
        ShapeError: the checkpoints have not the same tensors; all differences at once.
        RunFolderError, StorageError: the output cannot be written.
    """
    settings, kind = settings or LoraSettings(), dtype_named(dtype)
    problems = [m if isinstance(m, str) else m.sentence() for m in settings.problems()]
    if kind.kind != "float":
        problems.append(f"dtype: expected a floating-point type such as bfloat16 or float32, got {kind.name}")
    if problems:
        raise ConfigError(problems)
    sources = [
        _plain_head(open_source(base)),
        _plain_head(open_source(tuned, base=adapter_base if adapter_base is not None else base)),
    ]
    folder = Path(os.path.realpath(expanded(output_dir)))
    for source in sources:
        for held in folders_of(source):
            if Path(os.path.realpath(held)) in (folder, *folder.parents):
                raise RunFolderError(f"{folder} is or lies in the input {held}. Choose another output folder.")
    check_destination(folder, overwrite=overwrite)
    _check_alike(*sources)
    work = _Work(sources, settings, kind)
    with (
        disk_errors(folder),
        NewFolder(folder.parent, content=False),
        tempfile.TemporaryFile(dir=folder.parent) as spool,
    ):
        work.run(spool)
        if not work.stored:
            what = f"{sources[1].label} differs from {sources[0].label} in nothing that an adapter would hold."
            raise ModelError(" ".join([what, *work.reasons()]))
        return _written(work, spool, folder, os.fspath(base), overwrite=overwrite, sync=sync)


# ------------------------------------------------------------------------------------------------------------- matching


def _plain_head(source: Source) -> Source:
    """A source without a head that is stored although it is tied and the same as the embeddings."""
    embedding, head = _of(source, EMBEDDINGS), _of(source, HEADS)
    stored = tied_head(config_of(source)) and embedding and head
    if stored and same_values(source, str(head), source, str(embedding)):
        return Alias(source, without=[str(head)])
    return source


def _of(source: Source, modules: Sequence[str]) -> str | None:
    names = vocabulary_tensors(config_of(source), source.entries)
    return next((n for n in names if n.endswith(".weight") and n.split(".")[-2] in modules), None)


def _check_alike(base: Source, tuned: Source) -> None:
    """Raises ShapeError or ModelError where one has what the other has not."""
    both = ((base, "the base"), (tuned, "the tuned model"))
    for source, role in both:
        if method := quantised(source):
            raise ModelError(
                f"{role} {source.label} is quantised ({method}): the numbers it stores are not its weights. Take the "
                f"checkpoint that was quantised, or dequantise it."
            )
    problems = []
    same = f"holdfast merge {base.label} {tuned.label} --weights 1 0"
    rows = {n for s in (base, tuned) for n in vocabulary_tensors(config_of(s), s.entries)}
    grown = [
        f"{name}: the base has {list(base.entries[name].shape)}, the tuned model {list(tuned.entries[name].shape)}"
        for name in base.entries
        if name in tuned.entries and base.entries[name].shape != tuned.entries[name].shape
    ]
    if any(line.partition(":")[0] in rows for line in grown):
        grown.append(
            "the vocabularies differ, and an adapter adds to rows that are there. Give the base the tokens first, and "
            f"extract from that: {same} --tokenizer union --output_dir base-with-tokens"
        )
    heads = {_of(base, HEADS), _of(tuned, HEADS)} - {None}
    for (one, has), (other, lacks) in (both, both[::-1]):
        names = [n for n in one.entries if n not in other.entries]
        tied = [n for n in names if n in heads]
        if tied:
            problems.append(
                f"{has} has a head of its own ({tied[0]}), {lacks} ties it to the embeddings. Write the one that ties "
                f"it with a separate head first (holdfast merge ... --weights 1 0 --tied_heads untie), and extract "
                f"between the two"
            )
        if rest := [n for n in names if n not in tied]:
            problems.append(f"{len(rest)} tensors of {has} are not in {lacks}: {listing(rest)}")
    if problems := [*grown, *problems]:
        raise ShapeError(
            f"{tuned.label} and {base.label} have not the same tensors, so that their difference is no adapter:\n"
            f"{bullets(problems)}"
        )


# -------------------------------------------------------------------------------------------------------------- factors


class _Stored(NamedTuple):
    """A tensor of the adapter, which waits in the spool."""

    name: str
    shape: tuple[int, ...]
    offset: int


class _Work:
    """The pass over all tensors: factors and whole tensors go to the spool, what became of each to `parts`."""

    def __init__(self, sources: Sequence[Source], settings: LoraSettings, kind: DType) -> None:
        self.base, self.tuned = sources
        self.settings, self.kind = settings, kind
        self.digests = [Digests(), Digests()]
        self.reader = Reader(sources, self.digests)
        self.scratch = Scratch(2)
        self.config = config_of(self.base)
        home = next((f for f in reversed(folders_of(self.base)) if (f / "config.json").is_file()), self.base.folder)
        known = modules_of(home)
        if known is not None and not known.kinds.keys() & self.base.entries.keys():
            names, modules = listing(list(self.base.entries), 2), listing(list(known.kinds), 2)
            raise ModelError(
                f"{self.base.label}: its file has other names ({names}) than its model in transformers ({modules}), "
                f"after which an adapter is named. Load and save it once with transformers."
            )
        self.kinds = known.kinds if known is not None else _kinds_by_name(self.base)
        self.head = known.head if known is not None else "lm_head"
        """The module; "": the model has none."""
        self.places = _places(self.base, known)
        self.names = set(known.shapes if known is not None else self.base.entries)
        """Of the model's tensors in memory."""
        self.vocabulary = set(vocabulary_tensors(self.config, self.base.entries))
        tied = tied_head(self.config) is not False and _of(self.base, HEADS) is None
        separate = self.head and f"{self.head}.weight" not in self.base.entries
        self.tied = _of(self.base, EMBEDDINGS) if tied and separate else None
        """The embeddings, where the head is tied to them: PEFT wants its tensors for both."""
        self.embeddings = settings.embeddings or ("save" if self.tied is not None else "lora")
        if self.tied is not None and self.embeddings == "lora":
            word = self.tied.split(".")[-2]
            beside = "beside Conv1D layers" if "conv1d" in self.kinds.values() else ""
            if beside or word != _TIED:
                raise ConfigError(
                    f"embeddings: PEFT does not run factors of tied embeddings {beside or f'called {word}'} (only of "
                    f"{_TIED} beside Linear layers); expected save or leave, got lora"
                )
        self.parts: list[Part] = []
        self.stored: list[_Stored] = []
        self.ranks: dict[str, int] = {}
        """Of each module with factors."""
        self.whole: list[str] = []
        """Modules that are saved whole."""
        self.biases = False
        self.turned = False
        """Whether a matrix is stored [in, out]."""

    def run(self, spool: IO[bytes]) -> None:
        others: list[tuple[str, float]] = []
        total = sum(s.entries[n].nbytes for s in (self.base, self.tuned) for n in self.base.entries)
        with progress(f"Comparing with {self.base.label}", total=total, unit="bytes") as advance:
            for name, entry in self.base.entries.items():
                if entry.dtype.kind == "float":
                    difference, squares = self._difference(name)
                    if squares and not self._factors(name, difference, squares, spool):
                        others.append((name, squares))
                elif not same_values(self.base, name, self.tuned, name):
                    others.append((name, 0.0))
                advance(entry.nbytes + self.tuned.entries[name].nbytes)
        self._others(others, spool)
        if self.stored and not self.ranks:
            self._zero(spool)
        order = {name: i for i, name in enumerate(self.base.entries)}
        self.parts.sort(key=lambda part: order[part.name])

    def _difference(self, name: str) -> tuple[NDArray[np.floating], float]:
        """tuned - base, flat, float32 (float64 where one is), and the sum of its squares."""
        entries = [s.entries[name] for s in (self.base, self.tuned)]
        wide = compute_dtype(*(e.dtype for e in entries))
        found, squares = np.empty(entries[0].size, wide), 0.0
        for start, stop in stretches(entries[0].size, UNIT):
            values = []
            for index, source in enumerate((self.base, self.tuned)):
                operand = self.reader.read(index, name, start, stop, self.scratch)
                if count_nonfinite(*operand):
                    raise nonfinite_error(source, name, ("base", "tuned model")[index])
                values.append(decode(operand.raw, operand.dtype, np.empty(stop - start, wide)))
            here = np.subtract(values[1], values[0], out=found[start:stop])
            squares += float(np.square(here, dtype=np.float64).sum())
        return found, squares

    def _factors(self, name: str, flat: NDArray[np.floating], squares: float, spool: IO[bytes]) -> bool:
        """Stores the factors of a tensor that LoRA has some for."""
        asked = "lora" if name not in self.vocabulary else self.embeddings
        if self.places.get(name) not in self.kinds or asked != "lora":
            return False
        matrix = flat.reshape(self.base.entries[name].shape)
        left, right = low_rank(
            matrix,
            rank=None if self.settings.energy is not None else self.settings.rank or RANK,
            energy=self.settings.energy,
            svd=self.settings.svd,
            seed=self.settings.seed ^ zlib.crc32(name.encode()),
        )
        pair = self._store_factors(name, left, right, spool)
        values = [decode(raw.reshape(-1), self.kind).reshape(raw.shape) for raw in pair]
        self.parts.append(Part(name, "lora", len(right), squares, distance_squared(matrix, *values)))
        return True

    def _store_factors(
        self, name: str, left: NDArray[np.floating], right: NDArray[np.floating], spool: IO[bytes]
    ) -> list[NDArray[Any]]:
        """Stores left @ right, which has the shape of the tensor; returns both as they are stored."""
        place = self.places[name]
        kind, module = self.kinds[place], place.removesuffix(".weight")
        pair = [self._rounded(name, x) for x in (left, right)]
        self.ranks[module] = len(right)
        # PEFT's B A has the shape [out, in], and an embedding's [width, rows], transposed
        straight = kind == "linear"
        self.turned |= kind == "conv1d"
        up, down = pair if straight else (pair[1].T, pair[0].T)
        inner = ("lora_embedding_A", "lora_embedding_B") if kind == "embedding" else ("lora_A.weight", "lora_B.weight")
        for suffix, raw in zip(inner, (down, up), strict=True):
            self._store(f"{module}.{suffix}", np.ascontiguousarray(raw), spool)
        if name == self.tied:
            self.ranks[self.head] = len(right)
            self._store(f"{self.head}.lora_A.weight", pair[1], spool)
            self._store(f"{self.head}.lora_B.weight", pair[0], spool)
        return pair

    def _zero(self, spool: IO[bytes]) -> None:
        """Factors of zero for one matrix, in the layers where there is one: PEFT loads no adapter without a target."""
        free = [
            name
            for name, place in self.places.items()
            if place in self.kinds and name != self.tied and not any(place.startswith(f"{m}.") for m in self.whole)
        ]
        if not free:
            raise ModelError(
                f"{self.tuned.label}: expected a matrix that LoRA has factors for, since PEFT loads no adapter without "
                f"one, but all lie in modules that would be saved whole. Keep the tuned model itself."
            )
        chosen = min(free, key=lambda name: name in self.vocabulary)
        rows, columns = self.base.entries[chosen].shape
        self._store_factors(chosen, np.zeros((rows, 1)), np.zeros((1, columns)), spool)

    def reasons(self) -> list[str]:
        """Why nothing is stored of what changed, in sentences."""
        held = [part.name for part in self.parts if part.name in self.places]
        lost = [part.name for part in self.parts if part.name not in self.places]
        found = [f"others: save, and embeddings: save, keep such tensors whole: {listing(held)}."] if held else []
        if lost:
            found.append(
                f"transformers renames or stacks these on loading, beyond an adapter's reach: {listing(lost)}."
            )
        return found

    def _others(self, changed: Sequence[tuple[str, float]], spool: IO[bytes]) -> None:
        """What has no factors: saved whole with its module where that is asked for and can be, else left out."""
        by_module: dict[str, list[tuple[str, float]]] = {}
        for name, squares in changed:
            by_module.setdefault(self.places.get(name, "").rpartition(".")[0], []).append((name, squares))
        for module, tensors in sorted(by_module.items(), key=lambda one: one[0].count(".")):
            below = [n for n, place in self.places.items() if place.startswith(f"{module}.")]
            wanted = [
                self.embeddings == "save" if n in self.vocabulary else self.settings.others == "save"
                for n, _ in tensors
            ]
            factored = any(m == module or m.startswith(f"{module}.") for m in self.ranks)
            bias = module in self.ranks and [self.places.get(n) for n, _ in tensors] == [f"{module}.bias"]
            floats = all(self.base.entries[n].dtype.kind == "float" for n in below)
            complete = {self.places[n] for n in below} == {n for n in self.names if n.startswith(f"{module}.")}
            saved = bool(module) and all(wanted) and (bias or (floats and complete and not factored))
            covered = any(module.startswith(f"{m}.") for m in self.whole)
            if saved and bias:
                self.biases = True
                self._store(f"{module}.base_layer.bias", self._tuned(tensors[0][0]), spool)
            elif saved and not covered:
                self.whole.append(module)
                for name in below:
                    self._store(self.places[name], self._tuned(name), spool)
                    if name == self.tied:
                        self._store(f"{self.head}.weight", self._tuned(name), spool)
            for name, squares in tensors:
                how = "whole" if saved else "left out" if name in self.places else "out of reach"
                self.parts.append(Part(name, how, 0, squares, 0.0 if saved else squares))

    def _tuned(self, name: str) -> NDArray[Any]:
        entry = self.tuned.entries[name]
        operand = self.tuned.read(name, 0, entry.size, np.empty(entry.size * 8, np.uint8))
        return self._rounded(name, decode(operand.raw, operand.dtype).reshape(entry.shape))

    def _rounded(self, name: str, values: NDArray[np.floating]) -> NDArray[Any]:
        raw = np.empty(values.size, self.kind.storage)
        wide = compute_dtype(self.kind)
        if lost := encode(np.ascontiguousarray(values, wide).reshape(-1), self.kind, raw):
            raise overflow_error(name, self.kind, lost)
        return raw.reshape(values.shape)

    def _store(self, name: str, raw: NDArray[Any], spool: IO[bytes]) -> None:
        self.stored.append(_Stored(_PREFIX + name, raw.shape, spool.tell()))
        spool.write(raw.data.cast("B") if raw.size else b"")


def _places(base: Source, known: Modules | None) -> dict[str, str]:
    """Names in the model, by those in the file, of tensors that have the same name and shape in both. Heads are matched
    by what they are: that of a GPT-NeoX file is called embed_out."""
    if known is None:
        return {name: name for name in base.entries}
    found = {}
    head = (_of(base, HEADS) or "").removesuffix(".weight")
    for name, entry in base.entries.items():
        module, _, word = name.rpartition(".")
        place = f"{known.head}.{word}" if module == head and name not in known.shapes else name
        if known.shapes.get(place) == tuple(entry.shape):
            found[name] = place
    return found


def _kinds_by_name(base: Source) -> dict[str, str]:
    """Kinds of matrices, of a model that transformers does not know: names tell embeddings, and positions from
    weights."""
    found = {}
    for name, entry in base.entries.items():
        module = (["", *name.split(".")])[-2]
        if name.endswith(".weight") and len(entry.shape) == 2 and "pos" not in module and module != "wpe":
            found[name] = "embedding" if module in EMBEDDINGS else "linear"
    return found


# -------------------------------------------------------------------------------------------------------------- writing


def _written(work: _Work, spool: IO[bytes], folder: Path, base: str, *, overwrite: bool, sync: bool) -> ExtractedLora:
    spool.flush()
    kind = work.kind
    slots = [Slot(s.name, kind, s.shape, math.prod(s.shape) * kind.itemsize) for s in work.stored]
    parents = [
        parent_record(role, source, content_fingerprint(source, known=known))
        for role, held, known in zip(("base", "tuned"), (work.base, work.tuned), work.digests, strict=True)
        for source in [held.source if isinstance(held, Alias) else held]
        if isinstance(source, CheckpointReader)
    ]
    config = adapter_settings(work, base)
    settings = dataclasses.asdict(work.settings)
    key = fingerprint(["extract-lora", settings, kind.name, parents, config, [list(s) for s in work.stored]])
    try:
        writer = CheckpointWriter(folder, [(WEIGHTS, slots)], key=key, overwrite=overwrite, sync=sync)
    except KeyboardInterrupt:
        raise Interrupted(f"Stopped. {folder} was not written.") from None
    record: dict[str, Any] = {
        "command": "extract-lora",
        "method": {"method": "extract_lora", **settings},
        "request": {"dtype": kind.name},
        "parents": parents,
        "created": now(),
        "versions": versions(),
        "parts": [{**part._asdict(), "kept": part.kept} for part in work.parts],
    }

    def add(place: Path) -> None:
        for held in folders_of(work.tuned):
            copy_companions(held, place)
        write_json(place / ADAPTER_CONFIG, config)
        digests = Digests()
        with CheckpointReader(place) as result:
            record["fingerprint"] = content_fingerprint(result, known=digests)
            record["tensors"] = {n: digests.tensor(n, entry.size) for n, entry in sorted(result.entries.items())}
        write_json(place / FILE, record)

    try:
        for held in work.stored if not all(writer.done(s.name) for s in work.stored) else ():
            writer.write(held.name, 0, _read_back(spool, held, kind))
        writer.close(add)
    except KeyboardInterrupt:
        writer.abandon(keep_finished=False)
        raise Interrupted(f"Stopped. {folder} was not written.") from None
    except BaseException:
        writer.abandon(keep_finished=False)
        raise
    return ExtractedLora(folder=folder, record=record, parts=tuple(work.parts))


def _read_back(spool: IO[bytes], held: _Stored, kind: DType) -> NDArray[Any]:
    spool.seek(held.offset)
    count = math.prod(held.shape)
    return np.frombuffer(spool.read(count * kind.itemsize), kind.storage)


def adapter_settings(work: _Work, base: str) -> dict[str, Any]:
    """adapter_config.json: scaling 1 for every rank."""
    ranks = work.ranks
    usual = Counter(ranks.values()).most_common(1)[0][0] if ranks else 1
    others = {module: rank for module, rank in ranks.items() if rank != usual}
    embeddings = work.places.get(work.tied or "", "").removesuffix(".weight")
    tied = embeddings in (*ranks, *work.whole)
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": usual,
        "lora_alpha": usual,
        "rank_pattern": others,
        "alpha_pattern": others,
        "target_modules": _short([m for m in ranks if not (tied and m == work.head)], work.kinds),
        "modules_to_save": work.whole or None,
        "bias": "all" if work.biases else "none",
        "fan_in_fan_out": work.turned,
        "ensure_weight_tying": tied,
        "lora_dropout": 0.0,
        "use_rslora": False,
        "use_dora": False,
        "init_lora_weights": True,
        "inference_mode": True,
    }


def _short(modules: Sequence[str], kinds: Mapping[str, str]) -> list[str]:
    """Last words of modules' names where these select the same modules, else their full names."""
    words = sorted({module.rpartition(".")[2] for module in modules})
    chosen = {name.removesuffix(".weight") for name in kinds if name.split(".")[-2] in words}
    return words if chosen == set(modules) else sorted(modules)
