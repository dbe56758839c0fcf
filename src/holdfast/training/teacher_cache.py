"""The `cached` teacher in a trainer: which documents it will need, building what is missing, and the proof that what
was stored fits.

Before the first step, while the model still is the start model:

1. the teacher's key (`retention.teacher.teacher_states`) names a folder in the cache, shared by all runs from the same
start;
2. the documents of the prepared training and evaluation data are hashed, and the files that hold them are compared with
their checksums; a damaged one is deleted;
3. what is missing is computed and stored: each process of DDP a share, one run at a time (others wait and find the work
done);
4. the longest and the shortest row, collated as training collates them, go through the start model once more, and the
stored states must be the same but for rounding. This finds what the key could not know: states that are stale (code of
a model that changed, for example), models whose states depend on neighbours or padding after all, and collators that
change tokens. All are refused.

A run that finds everything computes nothing but step 4. The model is sharded only when training begins, so FSDP runs
use a cache that is there; they cannot build one. Nor can DeepSpeed under ZeRO 3, or where it casts the model after the
states would have been computed.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.errors import ConfigError, DataError, ModelError, UserError
from holdfast.ops.heads import Head, causal_lm, describe_head
from holdfast.retention.protocol import TeacherSettings
from holdfast.retention.teacher.cached_teacher import CachedTeacher, document_key, find_documents
from holdfast.retention.teacher.state_store import StateStore
from holdfast.retention.teacher.teacher import AdapterOffTeacher, Teacher
from holdfast.retention.teacher.teacher_states import StartModel, build_states, plan_batches, teacher_key
from holdfast.support.cache import cache_folder
from holdfast.support.environment import shown_bytes
from holdfast.support.files import write_json
from holdfast.support.leftovers import NewFolder
from holdfast.support.paths import expanded
from holdfast.support.progress import progress
from holdfast.training.image_batches import of_the_model
from holdfast.training.processes import Processes
from holdfast.training.zero import engine_dtype

BUILD_TOKENS = {"cpu": 4096, "cuda": 32768}
"""Tokens of one batch while building, by kind of device; there is no graph, so it is more than a training step
holds."""
TOLERANCE, HALF_TOLERANCE = 1e-2, 0.15
"""Largest relative difference between stored states and those of a training batch, in full and in half precision.
Rounding stays far below, a leaking neighbour far above."""

Say = Callable[[str], None]


@dataclass
class _Rows:
    """The documents of one data set, and the lengths of its rows."""

    documents: dict[bytes, np.ndarray] = field(default_factory=dict)
    lengths: list[int] = field(default_factory=list)

    def extremes(self) -> list[int]:
        """The longest row and the shortest that has tokens: two indices, or one where all are as long."""
        filled = [index for index, length in enumerate(self.lengths) if length]
        longest = max(filled, key=self.lengths.__getitem__)
        shortest = min(filled, key=self.lengths.__getitem__)
        return list(dict.fromkeys([longest, shortest]))


class TeacherCache:
    """One run's cached teacher: the start model's hidden states of each document of the run's data, kept on disk.

    Args:
        trainer: a `RetentionMixin` whose model is the start model and not yet wrapped.
        settings: the teacher's; `cache_dir` and `cache_dtype` count.

    Raises:
        ModelError: adapters that change the base weights.
    """

    def __init__(self, trainer: Any, settings: TeacherSettings) -> None:
        self.trainer = trainer
        self.root = expanded(settings.cache_dir) if settings.cache_dir else cache_folder() / "teacher_states"
        """The folder of all such caches."""
        self.stored: torch.dtype | None = getattr(torch, settings.cache_dtype) if settings.cache_dtype else None
        """dtype on disk; None: as the forward yields."""
        self.source: Teacher = (
            AdapterOffTeacher(trainer.model) if hasattr(trainer.model, "disable_adapter") else StartModel(trainer.model)
        )
        self.teacher: CachedTeacher | None = None
        """What batches are looked up in; None until `prepare`."""
        self.info: dict[str, Any] = {}
        """What a run records of it: key, documents, tokens, bytes, dtype, and how many were built."""
        self.tokens_per_batch = BUILD_TOKENS.get(trainer.args.device.type) or max(BUILD_TOKENS.values())
        self._store: StateStore | None = None
        self._new_folder: NewFolder | None = None
        self._facts: dict[str, Any] = {}
        self._known: dict[bytes, int] = {}
        self._processes = Processes(trainer.accelerator.process_index, trainer.accelerator.num_processes)
        self._main = self._processes.rank == 0

    def prepare(self, datasets: Iterable[Any], *, at_start: bool, say: Say) -> CachedTeacher:
        """Makes sure that the states of all documents of these prepared data sets are there, and gives the teacher that
        reads them.

        Args:
            datasets: as the trainer's collator will see them; None is passed over.
            at_start: the model still is the start model, so that missing states can be computed.
            say: gets a line on what is found and done, on the first process only.

        Raises:
            ConfigError: data without a length, no room on the disk, weights that are sharded, a folder that processes
                do not share.
            DataError: missing states although training has begun.
            ModelError: stored states differ from those in a batch, or are not finite.
            StorageError: the disk.
        """
        if not self._main:
            say = _silent
        prepared = [(dataset, read_documents(self.trainer, dataset)) for dataset in datasets if dataset is not None]
        documents: dict[bytes, np.ndarray] = {}
        for _, rows in prepared:
            documents.update((k, tokens) for k, tokens in rows.documents.items() if k not in self._known)
        store = self._open()
        try:
            self._verify(store, documents, say)
            missing = max(self._processes.gather(len(store.missing(documents))))
            if missing and not at_start:
                raise DataError(
                    f"label_annealing.teacher: cached has nothing of {missing} document(s), and training has changed "
                    "the model it would have to come from. Give all evaluation data as eval_dataset before training, "
                    "or use teacher: online."
                )
            began = time.monotonic()
            computed = self._build(store, documents, say) if missing else 0
            seconds = time.monotonic() - began
        except UserError:
            self._clean_up(store)
            raise
        self._known.update({k: len(tokens) for k, tokens in documents.items()})
        if documents:
            self._describe(store, computed, seconds, say)
        if self.teacher is None:
            self.teacher = CachedTeacher(store, self._head(), dtype=getattr(torch, store.forward() or "float32"))
        if at_start and not self._sharded:
            for dataset, rows in prepared:
                if rows.documents:
                    self._check(store, self.teacher, dataset, rows)
        return self.teacher

    # ------------------------------------------------------------------------------------------------------ the store

    @property
    def _sharded(self) -> bool:
        trainer = self.trainer
        whole = trainer.is_deepspeed_enabled and trainer.zero_stage() < 3 and engine_dtype(trainer.args) is None
        return bool(trainer.is_fsdp_enabled or (trainer.is_deepspeed_enabled and not whole))

    def _open(self) -> StateStore:
        if self._store is not None:
            return self._store
        try:
            key, self._facts = self._processes.gather(self._processes.together(self._key))[0]
        except ModelError as error:
            raise ConfigError(
                f"label_annealing.teacher: cached cannot tell whose states to look for. {error} Instead, "
                f"use teacher: online."
            ) from error
        folder = self.root / key
        if self._main:
            with contextlib.suppress(OSError):  # the store says what is wrong
                self._new_folder = NewFolder(folder)
        self._store = self._processes.together(lambda: StateStore(folder, teacher=key))
        return self._store

    def _key(self) -> tuple[str, dict[str, Any]] | None:
        """The teacher's key and what it was made of; on the first process, because under FSDP only that may hold the
        weights."""
        import transformers

        if not self._main:
            return None
        library = "transformers " + ".".join(transformers.__version__.split(".")[:2])
        device = self.trainer.args.device
        with self.trainer.accelerator.autocast():
            return teacher_key(self.trainer.model, device=device, stored=self.stored, library=library)

    def _clean_up(self, store: StateStore) -> None:
        """Takes away the folder that a refused request made; not what another run is filling."""
        if self._new_folder is None:
            return
        handle = store.try_lock()
        if handle is None:
            return
        store.scan()
        if not len(store):
            self._new_folder.remove()
        store.unlock(handle)

    def _verify(self, store: StateStore, documents: dict[bytes, Any], say: Say) -> None:
        """Compares the shards that hold these documents with their checksums, each process a share, and deletes what is
        damaged."""
        names = store.shards_of(documents)[self._processes.rank :: self._processes.world]
        with self._bar("Checking the teacher's states", store.shard_bytes(names)) as advance:
            damaged = store.damaged(names, advance=advance)
        reasons = dict(store.unreadable)
        for share in self._processes.gather(damaged):
            reasons.update(dict.fromkeys(share, "its states differ from their checksums"))
        for name, reason in sorted(reasons.items()):
            if self._main:
                store.remove(name)
            say(f"Teacher cache: removed the damaged shard {name} ({reason}); its documents are computed again.")
        self._processes.gather(None)  # the first process has deleted them
        store.scan()

    def _build(self, store: StateStore, documents: dict[bytes, np.ndarray], say: Say) -> int:
        """Computes what is missing; returns how many documents all processes of this run computed (another run may have
        been first)."""
        if self._sharded:
            raise ConfigError(
                f"label_annealing.teacher: cached has nothing of {len(store.missing(documents))} of {len(documents)} "
                f"documents in {store.folder}, and a model that FSDP or DeepSpeed shards cannot compute it. Build it "
                f"first in a run of one process (the same model, data, precision and attention; it may be stopped "
                f"after its first step), or use teacher: online."
            )
        handle = self._lock(store, say)
        try:
            store.scan()
            missing = set(store.missing(documents))
            computed = max(self._processes.gather(len(missing)))
            if computed:
                left = {key: documents[key] for key in missing}
                self._processes.together(lambda: self._announce(store, left, say) if self._main else None)
                batches = [
                    b for b in plan_batches(documents, tokens=self.tokens_per_batch) if not missing.isdisjoint(b)
                ]
                share = batches[self._processes.rank :: self._processes.world]
                self._processes.together(lambda: self._compute(store, documents, share))
        finally:
            if handle is not None:
                store.unlock(handle)
        store.scan()
        still = max(self._processes.gather(len(store.missing(documents))))
        if still:
            raise ConfigError(
                f"label_annealing.cache_dir: {still} document(s) that one process stored are not in {store.folder} "
                f"for another. Give a folder that all processes share."
            )
        return computed

    def _lock(self, store: StateStore, say: Say) -> int | None:
        """Waits for the builder's lock on behalf of all processes; they meet at every attempt, so that no collective
        times out meanwhile."""
        announced = False
        while True:
            handle = store.try_lock() if self._main else None
            if self._processes.gather(handle is not None)[0]:
                return handle
            if not announced:
                say(f"Teacher cache: another run is filling {store.folder}; waiting for it.")
                announced = True
            time.sleep(0.5)

    def _announce(self, store: StateStore, missing: dict[bytes, np.ndarray], say: Say) -> None:
        """States the size, refuses what will not fit, and writes down whose states they are."""
        shortest = torch.as_tensor(min(missing.values(), key=len), dtype=torch.int64, device=self.trainer.args.device)
        with self.trainer.accelerator.autocast():
            states_1NK, _ = self.source.hidden({"input_ids": shortest[None]})
        width = states_1NK.shape[-1]
        tokens = sum(map(len, missing.values()))
        stored = self.stored or states_1NK.dtype
        size = tokens * width * stored.itemsize
        free = shutil.disk_usage(store.folder).free
        text = (
            f"{len(missing)} documents, {tokens} tokens of {width} x {str(stored).removeprefix('torch.')}, "
            f"{shown_bytes(size)}"
        )
        if size > free:
            raise ConfigError(
                f"label_annealing.cache_dir: the teacher's states ({text}) do not fit in {store.folder}, where "
                f"{shown_bytes(free)} are free. Free some space, choose another cache_dir, store them in a smaller "
                f"dtype (cache_dtype), or use teacher: online."
            )
        say(f"Teacher cache: computing {text}, into {store.folder}")
        forward = str(states_1NK.dtype).removeprefix("torch.")
        write_json(store.folder / "teacher.json", {"teacher": self._facts, "width": width, "forward": forward})

    def _compute(self, store: StateStore, documents: dict[bytes, np.ndarray], batches: list[list[bytes]]) -> None:
        tokens = sum(len(documents[k]) for batch in batches for k in batch)
        device = self.trainer.args.device
        with self._bar("Computing the teacher's states", tokens) as advance, self.trainer.accelerator.autocast():
            build_states(store, documents, batches, self.source, device=device, stored=self.stored, advance=advance)

    def _bar(self, text: str, total: float) -> contextlib.AbstractContextManager[Callable[[float], None]]:
        """A progress bar on the first process: its own share stands for all."""
        return progress(text, total=total) if self._main else contextlib.nullcontext(lambda amount: None)

    def _describe(self, store: StateStore, computed: int, seconds: float, say: Say) -> None:
        size = store.documents_bytes(self._known)
        self.info = {
            "name": "cached",
            "key": store.teacher,
            "documents": len(self._known),
            "tokens": sum(self._known.values()),
            "bytes": size,
            "dtype": str(store.dtype()).removeprefix("torch."),
            "computed": computed + self.info.get("computed", 0),
        }
        how = f"computed {computed} of them in {seconds:.1f} s" if computed else "found"
        say(f"Teacher cache: {len(self._known)} documents, {shown_bytes(size)}, {how} in {store.folder}")
        for name in store.foreign:
            say(f"Teacher cache: {name} in {store.folder} is not one of its shards and is not used.")

    # --------------------------------------------------------------------------------------------------- head and check

    def _check(self, store: StateStore, teacher: CachedTeacher, dataset: Any, rows: _Rows) -> None:
        """Compares stored states with the start model's own in a batch of a data set.

        Raises:
            DataError: a document of the batch is not stored.
            ModelError: the states differ.
        """
        mixed = self.trainer.accelerator.mixed_precision != "no" or self.stored is not None
        half = mixed or teacher.dtype.itemsize < 4
        tolerance = HALF_TOLERANCE if half else TOLERANCE
        difference = self._processes.together(
            lambda: self._difference_on_batch(teacher, dataset, rows) if self._main else 0.0
        )
        difference = self._processes.gather(difference)[0]
        if not difference <= tolerance:
            raise ModelError(
                "label_annealing.teacher: cached expects states that depend on their document's tokens only, but in "
                f"a batch of training those of {type(causal_lm(self.trainer.model)).__name__} differ from the stored "
                f"ones by {difference:.2g} of their size (rounding explains {tolerance:g}). If the model's code has "
                f"changed since they were stored, delete {store.folder}. Otherwise the model looks at padding or at "
                f"neighbours in a packed row, or scales positions by the longest row: use teacher: online."
            )

    @torch.no_grad()
    def _difference_on_batch(self, teacher: CachedTeacher, dataset: Any, rows: _Rows) -> float:
        """Relative difference for the longest and the shortest row, collated as in training."""
        inputs = self._collate(dataset, rows.extremes())
        with self.trainer.accelerator.autocast():
            stored_BTK = teacher.of(inputs)
            own_BTK, _ = self.source.hidden(inputs)
        compared_BT = torch.zeros(stored_BTK.shape[:2], dtype=torch.bool, device=stored_BTK.device)
        for key, row, start, length in find_documents(inputs):
            compared_BT[row, start : start + length] = key in teacher.store
        stored_NK, own_NK = stored_BTK[compared_BT].double(), own_BTK[compared_BT].double()
        return float((stored_NK - own_NK).norm() / own_NK.norm())

    def _collate(self, dataset: Any, indices: list[int]) -> dict[str, Any]:
        """A batch of these rows as the trainer's data loader makes it, on the device, without labels; leaves random
        states as they were."""
        trainer, states = self.trainer, (random.getstate(), np.random.get_state(), torch.get_rng_state())
        collate = trainer.data_collator
        if _is_arrow(dataset):
            dataset = trainer._remove_unused_columns(dataset, description="training")
        else:
            collate = trainer._get_collator_with_removed_columns(collate, description="training")
        try:
            batch = collate([dataset[i] for i in indices])
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
            torch.set_rng_state(states[2])
        batch = {k: v.to(trainer.args.device) if torch.is_tensor(v) else v for k, v in batch.items()}
        return {k: v for k, v in of_the_model(batch).items() if k not in ("labels", "num_items_in_batch")}

    def _head(self) -> Head:
        """The start model's head, copied where training will move it."""
        model = self.trainer.model
        with model.disable_adapter() if hasattr(model, "disable_adapter") else contextlib.nullcontext():
            head = describe_head(model)
        frozen = head.detached()
        trained = any(tensor is not None and tensor.requires_grad for tensor in (head.weight_VH, head.bias_V))
        if not trained and not self._sharded:
            return frozen
        bias_V = None if frozen.bias_V is None else self._copied(frozen.bias_V)
        return replace(frozen, weight_VH=self._copied(frozen.weight_VH), bias_V=bias_V)

    def _copied(self, tensor: Tensor) -> Tensor:
        if not self._sharded:
            return tensor.clone()
        device = self.trainer.args.device
        copy = torch.empty_like(tensor, device=device) if tensor.is_meta else tensor.to(device, copy=True)
        if self._processes.world > 1:
            torch.distributed.broadcast(copy, src=0)  # only the first process may have loaded the weights
        return copy


# ------------------------------------------------------------------------------------------------------- the documents


def read_documents(trainer: Any, dataset: Any) -> _Rows:
    """The documents of a prepared data set, as the trainer's collator will lay them out.

    Args:
        trainer: its columns that the model does not know are left out, as in its data loader.
        dataset: `input_ids`, and where rows are packed `seq_lengths`, or `position_ids`, or `attention_mask`.

    Raises:
        ConfigError: no length (streaming), no `input_ids`.
    """
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise ConfigError(
            "label_annealing.teacher: cached has to see the whole data before training, got "
            f"{type(dataset).__name__}, which has no length. Turn streaming off, or use teacher: online."
        )
    rows = _Rows()
    for row in _rows(trainer, dataset):
        if "input_ids" not in row:
            raise ConfigError(
                f"label_annealing.teacher: cached expects rows with input_ids, got the columns {', '.join(row)}. "
                "Instead, use teacher: online."
            )
        tokens = np.asarray(row["input_ids"]).astype("<i4")
        rows.lengths.append(len(tokens))
        layout = {
            k: torch.as_tensor(row[k])[None] for k in ("attention_mask", "position_ids") if row.get(k) is not None
        }
        if not len(tokens):
            continue
        if layout:
            for key, _, start, length in find_documents({"input_ids": torch.as_tensor(tokens)[None], **layout}):
                rows.documents.setdefault(key, tokens[start : start + length])
            continue
        lengths = row.get("seq_lengths")
        for document in [tokens] if lengths is None else np.split(tokens, np.cumsum(lengths)[:-1]):
            if len(document):
                rows.documents.setdefault(document_key(document), document)
    return rows


def _rows(trainer: Any, dataset: Any) -> Iterator[dict[str, Any]]:
    if _is_arrow(dataset):
        dataset = trainer._remove_unused_columns(dataset, description="training")
        if "input_ids" in dataset.column_names and dataset.format["type"] != "custom":
            yield from _arrow_rows(dataset)
            return
    for index in range(len(dataset)):
        yield dataset[index]


def _arrow_rows(dataset: Any) -> Iterator[dict[str, Any]]:
    """Rows as arrays, never Python lists of tokens."""
    lists = ("input_ids", "seq_lengths", "attention_mask", "position_ids")
    columns = [name for name in lists if name in dataset.column_names]
    for table in dataset.select_columns(columns).with_format("arrow").iter(batch_size=1000):
        for cells in zip(*table.select(columns), strict=True):
            arrays = [cell.values.to_numpy() if cell.is_valid else None for cell in cells]
            yield dict(zip(columns, arrays, strict=True))


def _is_arrow(dataset: Any) -> bool:
    """Whether it is a `datasets.Dataset`; a plain trainer works without that library."""
    library = sys.modules.get("datasets")
    return library is not None and isinstance(dataset, library.Dataset)


def _silent(text: str) -> None: ...
