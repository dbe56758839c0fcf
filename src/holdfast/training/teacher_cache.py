"""The `cached` teacher in a trainer: which documents it will need, building what is missing, and the proof that what
was stored fits.

Before the first step, while the model still is the start model:

1. the teacher's key (`retention.teacher.teacher_states`) names a folder in the cache, shared by all runs from the same
start;
2. the documents of the prepared training and evaluation data are hashed, and those that are stored are compared with
their checksums;
3. what is missing or damaged is computed and stored: each process of DDP a share, one run at a time (others wait and
find the work done);
4. the longest and the shortest row, collated as training collates them, go through the start model once more, and the
stored states must be the same
   but for rounding. This finds what the key could not know: states that are stale (code of a model that changed, for
   example; they are computed again), models whose states depend on neighbours or padding after all, and collators that
   change tokens (both refused).

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
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.errors import ConfigError, DataError, ModelError, UserError
from holdfast.ops.heads import Head, causal_lm, describe_head
from holdfast.retention.protocol import TeacherSettings
from holdfast.retention.teacher.cached_teacher import (
    CachedTeacher,
    document_key,
    find_documents,
)
from holdfast.retention.teacher.state_store import StateStore
from holdfast.retention.teacher.teacher import AdapterOffTeacher, Teacher
from holdfast.retention.teacher.teacher_states import (
    ROUNDING_AT,
    StartModel,
    build_states,
    plan_batches,
    rounding_error,
    sample_states,
    teacher_key,
)
from holdfast.support.cache import cache_folder
from holdfast.support.environment import shown_bytes
from holdfast.support.files import read_object, write_json
from holdfast.support.leftovers import NewFolder
from holdfast.support.paths import expanded
from holdfast.support.progress import progress
from holdfast.training.image_batches import of_the_model
from holdfast.training.processes import Processes
from holdfast.training.zero import engine_dtype

BUILD_TOKENS = {"cpu": 4096, "cuda": 32768}
"""Tokens of one batch while building, by kind of device; there is no graph, so it is more than a training step
holds."""
CHECK_TOLERANCE = {"whole": 1e-2, "half": 0.15}
"""Largest relative difference between stored states and those of a training batch. Rounding stays far below, a leaking
neighbour far above."""
SLOW_BYTES = 2 * 10**9
"""Checksums of less are read in about a second: no bar is worth it."""

Say = Callable[[str], None]


@dataclass
class _Rows:
    """The documents of one data set, and the rows that make the widest batch."""

    documents: dict[bytes, np.ndarray] = field(default_factory=dict)
    longest: int = 0
    shortest: int = 0
    lengths: tuple[int, int] = (-1, 10**18)
    """Of the longest and of the shortest row, tokens."""

    def saw_row(self, index: int, length: int) -> None:
        low, high = self.lengths[1], self.lengths[0]
        if length > high:
            self.longest, high = index, length
        if 0 < length < low:
            self.shortest, low = index, length
        self.lengths = (high, low)


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
        self.found: CachedTeacher | None = None
        """What batches are looked up in; None until `prepare`."""
        self.info: dict[str, Any] = {}
        """What a run records of it: key, documents, tokens, bytes, dtype, how many were built, and the error of a lossy
        dtype."""
        self.tokens_per_batch = BUILD_TOKENS.get(trainer.args.device.type) or max(BUILD_TOKENS.values())
        self._store: StateStore | None = None
        self._made: NewFolder | None = None
        self._facts: dict[str, Any] = {}
        self._known: dict[bytes, int] = {}
        self._processes = Processes(trainer.accelerator.process_index, trainer.accelerator.num_processes)

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
        try:
            return self._prepare(datasets, at_start=at_start, say=say if self._processes.rank == 0 else _silent)
        except UserError:
            if self._made is not None and self._store is not None and not len(self._store):
                handle = self._store.try_lock()
                if handle is not None:  # else another run is filling it
                    self._made.remove()
                    self._store.unlock(handle)
            raise

    def _prepare(self, datasets: Iterable[Any], *, at_start: bool, say: Say) -> CachedTeacher:
        found = [(d, read_documents(self.trainer, d)) for d in datasets if d is not None]
        documents = {k: v for _, rows in found for k, v in rows.documents.items()}
        wanted = {k: v for k, v in documents.items() if k not in self._known}
        store = self._open()
        self._verify(store, wanted)
        missing, computed = max(self._processes.gather(len(store.missing(wanted)))), 0
        began = time.monotonic()
        if missing:
            if not at_start:
                raise DataError(
                    f"label_annealing.teacher: cached has nothing of {missing} document(s), and training has changed "
                    "the model it "
                    f"would have to come from. Give all evaluation data as eval_dataset before training, or "
                    f"use teacher: online."
                )
            computed = self._build(store, wanted, say)
        self._known.update({k: len(v) for k, v in wanted.items()})
        if wanted:
            self._describe(store, computed, time.monotonic() - began, say)
        if self.found is None:
            dtype = getattr(torch, store.note().get("forward", "float32"))
            self.found = CachedTeacher(store, self._head(), dtype=dtype)
        if at_start and not self._sharded:
            self._check(found, wanted, fresh=computed > 0, say=say)
        return self.found

    # ------------------------------------------------------------------------------------------------------ the store

    @property
    def _sharded(self) -> bool:
        trainer = self.trainer
        whole = trainer.is_deepspeed_enabled and trainer.zero_stage() < 3 and engine_dtype(trainer.args) is None
        return bool(trainer.is_fsdp_enabled or (trainer.is_deepspeed_enabled and not whole))

    def _open(self) -> StateStore:
        if self._store is None:
            import transformers

            def key() -> tuple[str, dict[str, Any]] | None:
                if self._processes.rank != 0:  # under FSDP only the first process may hold the weights
                    return None
                library = "transformers " + ".".join(transformers.__version__.split(".")[:2])
                with self.trainer.accelerator.autocast():
                    return teacher_key(
                        self.trainer.model,
                        device=self.trainer.args.device,
                        stored=self.stored,
                        library=library,
                    )

            try:
                name, self._facts = self._processes.gather(self._processes.together(key))[0]
            except ModelError as error:
                raise ConfigError(
                    f"label_annealing.teacher: cached cannot tell whose states to look for. {error} Instead, "
                    f"use teacher: online."
                ) from error
            self._store = self._processes.together(lambda: self._open_store(name))
        return self._store

    def _open_store(self, name: str) -> StateStore:
        folder = self.root / name
        if self._processes.rank == 0:
            with contextlib.suppress(OSError):  # the store says what is wrong
                self._made = NewFolder(folder)
        return StateStore(folder, teacher=name)

    def _verify(self, store: StateStore, wanted: dict[bytes, Any]) -> None:
        """Checks the stored documents, each process a share, and lets all leave out what any found damaged."""
        keys = sorted(k for k in wanted if k in store)
        size = store.documents_bytes(keys)
        with self._bar(
            "Checking the teacher's states", size / self._processes.world, show=size > SLOW_BYTES
        ) as advance:
            store.verify(keys[self._processes.rank :: self._processes.world], advance=advance)
        store.leave_out(
            {n: why for damaged in self._processes.gather(dict(store.damaged)) for n, why in damaged.items()}
        )

    def _build(self, store: StateStore, wanted: dict[bytes, np.ndarray], say: Say, *, anew: bool = False) -> int:
        """Computes what is missing; returns how many documents all processes of this run computed (another run may have
        been first).

        Args:
            anew: what is there is not the teacher's: delete it first.
        """
        if self._sharded:
            raise ConfigError(
                f"label_annealing.teacher: cached has nothing of {len(store.missing(wanted))} of {len(wanted)} "
                "documents in "
                f"{store.folder}, and a model that FSDP or DeepSpeed shards cannot compute it. Build it first in a run "
                f"of one process (the same model, data, precision and attention; it may be stopped after its first "
                f"step), or use teacher: online."
            )
        handle = self._lock(store, say)
        try:
            self._processes.together(lambda: self._clear_damaged(store, say) if self._processes.rank == 0 else None)
            if anew:
                self._processes.together(lambda: store.discard(wanted))
            store.damaged.clear()  # another run may have put sound shards in their place, which get the same names
            store.scan()
            left = {k: wanted[k] for k in store.missing(wanted)}
            computed = max(self._processes.gather(len(left)))
            if computed:
                self._processes.together(
                    lambda: self._announce(store, left, say) if self._processes.rank == 0 else None
                )
                batches = [b for b in plan_batches(wanted, tokens=self.tokens_per_batch) if any(k in left for k in b)]
                self._processes.together(
                    lambda: self._compute(store, wanted, batches[self._processes.rank :: self._processes.world])
                )
        finally:
            if handle is not None:
                store.unlock(handle)
        store.scan()
        still = max(self._processes.gather(len(store.missing(wanted))))
        if still:
            raise ConfigError(
                f"label_annealing.cache_dir: {still} document(s) that one process stored are not in {store.folder} "
                f"for another. Give a folder that "
                "all processes share."
            )
        return computed

    def _lock(self, store: StateStore, say: Say) -> int | None:
        """Waits for the builder's lock on behalf of all processes; they meet at every attempt, so that no collective
        times out meanwhile."""
        announced = False
        while True:
            handle = store.try_lock() if self._processes.rank == 0 else None
            if self._processes.gather(handle is not None)[0]:
                return handle
            if not announced:
                say(f"Teacher cache: another run is filling {store.folder}; waiting for it.")
                announced = True
            time.sleep(0.5)

    def _clear_damaged(self, store: StateStore, say: Say) -> None:
        why = dict(store.damaged)
        for name in store.remove_damaged():
            say(f"Teacher cache: removed the damaged shard {name} ({why[name]}); its documents are computed again.")

    def _announce(self, store: StateStore, left: dict[bytes, np.ndarray], say: Say) -> None:
        """States the size, refuses what will not fit, writes down whose states they are, and measures what a lossy
        dtype costs."""
        with self.trainer.accelerator.autocast():
            states_NK, head = sample_states(
                self.source, sorted(left.values(), key=len), device=self.trainer.args.device
            )
        tokens = sum(map(len, left.values()))
        stored = self.stored or states_NK.dtype
        size = tokens * states_NK.shape[1] * stored.itemsize
        free = shutil.disk_usage(store.folder).free
        text = (
            f"{len(left)} documents, {tokens} tokens of {states_NK.shape[1]} x "
            f"{str(stored).removeprefix('torch.')}, {shown_bytes(size)}"
        )
        if size > free:
            raise ConfigError(
                f"label_annealing.cache_dir: the teacher's states ({text}) do not fit in {store.folder}, where "
                f"{shown_bytes(free)} are free. Free some space, choose another cache_dir, store them in a smaller "
                f"dtype (cache_dtype; its error is measured), or use teacher: online."
            )
        say(f"Teacher cache: computing {text}, into {store.folder}")
        record: dict[str, Any] = {
            "teacher": self._facts,
            "width": states_NK.shape[1],
            "forward": str(states_NK.dtype).removeprefix("torch."),
        }
        if torch.promote_types(stored, states_NK.dtype) != stored:  # it cannot hold every value of the other
            record["rounding"] = rounding_error(states_NK, head, stored)
        write_json(store.folder / "teacher.json", record)

    def _compute(self, store: StateStore, documents: dict[bytes, np.ndarray], batches: list[list[bytes]]) -> None:
        device, tokens = self.trainer.args.device, sum(len(documents[k]) for batch in batches for k in batch)
        with self._bar("Computing the teacher's states", tokens) as advance, self.trainer.accelerator.autocast():
            build_states(store, documents, batches, self.source, device=device, stored=self.stored, advance=advance)

    def _bar(self, text: str, total: float, *, show: bool = True) -> Any:
        """A progress bar on the first process: its own share stands for all."""
        return progress(text, total=total) if show and self._processes.rank == 0 else _NoBar()

    def _describe(self, store: StateStore, computed: int, seconds: float, say: Say) -> None:
        size = store.documents_bytes(self._known)
        dtype = str(store.dtype()).removeprefix("torch.")
        rounding = self._rounding(store)
        self.info = {
            "name": "cached",
            "key": store.teacher,
            "documents": len(self._known),
            "tokens": sum(self._known.values()),
            "bytes": size,
            "dtype": dtype,
            "computed": computed + self.info.get("computed", 0),
            **({"rounding": rounding} if rounding else {}),
        }
        how = f"computed {computed} of them in {seconds:.1f} s" if computed else "found"
        say(f"Teacher cache: {len(self._known)} documents, {shown_bytes(size)}, {how} in {store.folder}")
        if rounding:
            errors = ", ".join(
                f"{rounding[f'error at KL {k:g}']:.1%} at KL {k:g}"
                for k in ROUNDING_AT
                if f"error at KL {k:g}" in rounding
            )
            say(
                f"Teacher cache: stored as {dtype}, which is lossy. Measured error of the KL's gradient: {errors} "
                f"(nats per token)."
            )
        for name in store.foreign:
            say(f"Teacher cache: {name} in {store.folder} is not one of its shards and is not used.")

    def _rounding(self, store: StateStore) -> dict[str, float] | None:
        """The measured error of a lossy dtype, from the record that its builder left."""
        try:
            found = read_object(store.folder / "teacher.json").get("rounding") if self.stored is not None else None
        except DataError:
            return None
        return found if isinstance(found, dict) else None

    # --------------------------------------------------------------------------------------------------- head and check

    def _check(self, found: list[tuple[Any, _Rows]], wanted: dict[bytes, np.ndarray], *, fresh: bool, say: Say) -> None:
        """Compares stored states with the start model's own in a batch of each data set; what an earlier run stored and
        does not fit is replaced.

        Raises:
            DataError: a document of the batch is not stored.
            ModelError: the states differ although they have just been computed.
        """
        assert self._store is not None and self.found is not None
        half = (
            self.trainer.accelerator.mixed_precision != "no"
            or self.stored is not None
            or self.found.dtype not in (torch.float32, torch.float64)
        )
        tolerance = CHECK_TOLERANCE["half" if half else "whole"]
        for dataset, rows in found:
            if not rows.documents:
                continue
            difference = self._processes.gather(
                self._processes.together(partial(self._difference_on_batch, dataset, rows))
            )[0]
            if difference <= tolerance:
                continue
            if not fresh:
                say(
                    f"Teacher cache: the stored states differ from the model's by {difference:.2g} of their "
                    f"size; computing them again."
                )
                computed = self._build(self._store, wanted, say, anew=True)
                self._describe(self._store, computed, 0.0, _silent)
                self._check(found, wanted, fresh=True, say=say)
                return
            raise ModelError(
                "label_annealing.teacher: cached expects states that depend on their document's tokens only, but in "
                "a batch "
                f"of training those of {type(causal_lm(self.trainer.model)).__name__} differ from the stored ones by "
                f"{difference:.2g} of their size (rounding explains {tolerance:g}). The model looks at padding or at "
                f"neighbours in a packed row, or scales positions by the longest row. Instead, use teacher: online."
            )

    @torch.no_grad()
    def _difference_on_batch(self, dataset: Any, rows: _Rows) -> float:
        """Relative difference for the longest and the shortest row, collated as in training; on the first process, 0 on
        others."""
        if self._processes.rank != 0:
            return 0.0
        assert self.found is not None
        inputs = self._collate(dataset, list(dict.fromkeys([rows.longest, rows.shortest])))
        found = find_documents(inputs)
        with self.trainer.accelerator.autocast():
            stored_BTK = self.found.of(inputs)
            own_BTK, _ = self.source.hidden(inputs)
        spans = [
            s
            for s, k in zip(zip(found.row, found.start, found.length, strict=True), found.keys, strict=True)
            if k in self.found.store
        ]
        ours = torch.cat([stored_BTK[b, s : s + n] for b, s, n in spans]).double()
        own = torch.cat([own_BTK[b, s : s + n] for b, s, n in spans]).double()
        difference = float((ours - own).norm() / own.norm())
        return difference if difference == difference else float("inf")

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
        if hasattr(model, "disable_adapter"):
            with model.disable_adapter():
                head = describe_head(model)
        else:
            head = describe_head(model)
        if (
            not self._sharded
            and not head.weight_VH.requires_grad
            and not (head.bias_V is not None and head.bias_V.requires_grad)
        ):
            return head.detached()
        frozen = head.detached()
        return replace(
            frozen,
            weight_VH=self._copied(frozen.weight_VH),
            bias_V=None if frozen.bias_V is None else self._copied(frozen.bias_V),
        )

    def _copied(self, tensor: Tensor) -> Tensor:
        if not self._sharded:
            return tensor.clone()
        device = self.trainer.args.device
        held = (
            torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
            if tensor.is_meta
            else tensor.to(device, copy=True)
        )
        if self._processes.world > 1:
            torch.distributed.broadcast(held, src=0)  # only the first process may have loaded the weights
        return held


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
            f"{type(dataset).__name__}, which has no "
            f"length. Turn streaming off, or use teacher: online."
        )
    if _is_arrow(dataset):
        dataset = trainer._remove_unused_columns(dataset, description="training")
        if (
            "input_ids" in dataset.column_names
            and dataset.format["type"] != "custom"
            and not {"attention_mask", "position_ids"} & {*dataset.column_names}
        ):
            return _read_arrow(dataset)
    found = _Rows()
    for index in range(len(dataset)):
        row = dataset[index]
        if "input_ids" not in row:
            raise ConfigError(
                f"label_annealing.teacher: cached expects rows with input_ids, got the columns {', '.join(row)}. "
                "Instead, "
                f"use teacher: online."
            )
        inputs = {
            k: torch.as_tensor(row[k])[None]
            for k in ("input_ids", "attention_mask", "position_ids")
            if row.get(k) is not None
        }
        tokens = inputs["input_ids"][0].to(torch.int32).contiguous().numpy().astype("<i4", copy=False)
        found.saw_row(index, len(tokens))
        if len(tokens):
            spans = find_documents(inputs)
            for key, start, length in zip(spans.keys, spans.start, spans.length, strict=True):
                found.documents.setdefault(key, tokens[start : start + length])
    return found


def _is_arrow(dataset: Any) -> bool:
    """Whether it is a `datasets.Dataset`; a plain trainer works without that library."""
    library = sys.modules.get("datasets")
    return library is not None and isinstance(dataset, library.Dataset)


def _read_arrow(dataset: Any) -> _Rows:
    """Columns in batches, never as Python lists of tokens."""
    found = _Rows()
    packed = "seq_lengths" in dataset.column_names
    row = 0
    for table in dataset.with_format("arrow").iter(batch_size=1000):
        for tokens, lengths in zip(
            _lists(table, "input_ids"), _lists(table, "seq_lengths") if packed else _nothing(), strict=False
        ):
            found.saw_row(row, len(tokens))
            row += 1
            start = 0
            for length in lengths.tolist() if lengths is not None else [len(tokens)]:
                piece = tokens[start : start + length]
                if length:
                    found.documents.setdefault(document_key(piece), piece)
                start += length
    return found


def _lists(table: Any, column: str) -> Iterator[np.ndarray]:
    """The lists of an Arrow column, as views of one int32 array a chunk."""
    import pyarrow.compute as pc

    for chunk in table.column(column).chunks:
        values = chunk.flatten().to_numpy(zero_copy_only=False).astype("<i4")
        lengths = pc.list_value_length(chunk).to_numpy(zero_copy_only=False)
        ends = lengths.cumsum()
        for start, end in zip((ends - lengths).tolist(), ends.tolist(), strict=True):
            yield values[start:end]


def _nothing() -> Iterator[None]:
    while True:
        yield None


class _NoBar:
    def __enter__(self) -> Callable[[float], None]:
        return lambda amount: None

    def __exit__(self, *_: object) -> None: ...


def _silent(text: str) -> None: ...
