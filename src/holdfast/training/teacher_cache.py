"""The `cached` teacher in a trainer: which documents it will need, building what is missing, and
the proof that what was stored fits.

Before the first step, while the model still is the start model:

1. the teacher's key (`retention.teacher.teacher_states`) names a folder in the cache, shared by all
runs from the same start; 2. the documents of the prepared training and evaluation data are hashed,
and the files that hold them are compared with their checksums; a damaged one is deleted; 3. what is
missing is computed and stored: each process of DDP a share, one run at a time (others wait and find
the work done); 4. the longest and the shortest row, collated as training collates them, go through
the start model once more, and the stored states must be the same but for rounding. This finds what
the key could not know: states that are stale (code of a model that changed, for example), models
whose states depend on neighbours or padding after all, and collators that change tokens. All are
refused.

A run that finds everything computes nothing but step 4. The model is sharded only when training
begins, so FSDP runs use a cache that is there; they cannot build one. Nor can DeepSpeed under ZeRO
3, or where it casts the model after the states would have been computed.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import random
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from holdfast.errors import ConfigError, DataError, ModelError
from holdfast.ops.heads import Head, causal_lm, describe_head
from holdfast.retention.protocol import TeacherSettings
from holdfast.retention.teacher.cached_teacher import CachedTeacher, document_key, find_documents
from holdfast.retention.teacher.state_store import StateStore
from holdfast.retention.teacher.teacher import AdapterOffTeacher, Teacher
from holdfast.retention.teacher.teacher_states import (
    StartModel,
    build_states,
    plan_batches,
    teacher_facts,
)
from holdfast.support.cache import cache_folder
from holdfast.support.environment import shown_bytes
from holdfast.support.files import fingerprint, write_json
from holdfast.support.paths import expanded
from holdfast.support.progress import progress
from holdfast.training.image_batches import of_the_model
from holdfast.training.processes import Processes
from holdfast.training.zero import engine_dtype

CPU_TOKENS, GPU_TOKENS = 4096, 32768
"""Tokens of one batch while building; there is no graph, so it is more than a training step
holds."""
TOLERANCE, HALF_TOLERANCE = 1e-2, 0.15
"""Largest relative difference between stored states and those of a training batch, in full and in
half precision. Rounding stays far below, a leaking neighbour far above."""

Documents = dict[bytes, np.ndarray]
"""Token ids, int32, by `document_key`."""


class TeacherCache:
    """One run's cached teacher: the start model's hidden states of each document of the run's data,
    kept on disk.

    Args:
        trainer: a `RetentionMixin` whose model is the start model and not yet wrapped.
        settings: the teacher's; `cache_dir` and `cache_dtype` count.

    Raises:
        ModelError: adapters that change the base weights.
    """

    def __init__(self, trainer: Any, settings: TeacherSettings) -> None:
        self.trainer = trainer
        self.device = trainer.args.device
        self.root = (
            expanded(settings.cache_dir)
            if settings.cache_dir
            else cache_folder() / "teacher_states"
        )
        """The folder of all such caches."""
        self.stored: torch.dtype | None = (
            getattr(torch, settings.cache_dtype) if settings.cache_dtype else None
        )
        """dtype on disk; None: as the forward yields."""
        self.source: Teacher = (
            AdapterOffTeacher(trainer.model)
            if hasattr(trainer.model, "disable_adapter")
            else StartModel(trainer.model)
        )
        self.teacher: CachedTeacher | None = None
        """What batches are looked up in; None until `prepare`."""
        self.info: dict[str, Any] = {"name": "cached", "computed": 0}
        """What a run records of it: the teacher's key, how many documents, and how many of them
        were computed."""
        self.tokens_per_batch = CPU_TOKENS if self.device.type == "cpu" else GPU_TOKENS
        self._known: set[bytes] = set()
        self._processes = Processes(
            trainer.accelerator.process_index, trainer.accelerator.num_processes
        )
        self._main = self._processes.rank == 0

    @functools.cached_property
    def store(self) -> StateStore:
        """Opened by all processes together, at its first use.

        Raises:
            ConfigError: the weights are sharded.
        """
        try:  # the first process looks, because under FSDP only that may hold the weights
            self.facts = self._processes.first(self._teacher_facts)
        except ModelError as error:
            raise ConfigError(
                f"label_annealing.teacher: cached cannot identify the teacher. {error} Use "
                "teacher: online."
            ) from error
        key = fingerprint(self.facts, length=32)
        store: StateStore = self._processes.together(
            lambda: StateStore(self.root / key, teacher=key)
        )
        return store

    def _teacher_facts(self) -> dict[str, Any]:
        with self.trainer.accelerator.autocast():
            return teacher_facts(self.trainer.model, device=self.device, stored=self.stored)

    def prepare(
        self, datasets: Iterable[Any], *, at_start: bool, say: Callable[[str], None]
    ) -> CachedTeacher:
        """Makes sure that the states of all documents of these prepared data sets are there, and
        gives the teacher that reads them.

        Args:
            datasets: as the trainer's collator will see them; None is passed over.
            at_start: the model still is the start model, so that missing states can be computed.
            say: gets a line on what is found and done, on the first process only.

        Raises:
            ConfigError: data without a length, no room on the disk, weights that are sharded, a
                folder that processes do not share.
            DataError: missing states although training has begun.
            ModelError: stored states differ from those in a batch, or are not finite.
            StorageError: the disk.
        """
        self._say = say if self._main else lambda text: None
        store = self.store
        documents: Documents = {}
        prepared = []
        for dataset in datasets:
            if dataset is not None:
                more, lengths = read_documents(self.trainer, dataset)
                documents.update(more)
                prepared.append((dataset, lengths))
        for key in self._known:
            documents.pop(key, None)
        with store.new_folder:  # a refused request leaves none behind
            self._remove_damaged(documents)
            missing = self._count_missing(documents)
            if missing and not at_start:
                raise DataError(
                    f"label_annealing.teacher: cached has no states for {missing} document(s), "
                    "and training has already changed the model. Give all evaluation data as "
                    "eval_dataset before training, or use teacher: online."
                )
            computed = self._build(documents, missing) if missing else 0
        self._known.update(documents)
        self.info = {
            "name": "cached",
            "key": store.teacher,
            "documents": len(self._known),
            "computed": computed + self.info["computed"],
        }
        if documents:
            what = f"computed {computed} of them" if computed else "found"
            self._say(f"Teacher cache: {len(self._known)} documents, {what} in {store.folder}")
        if self.teacher is None:
            self.teacher = CachedTeacher(store, self._head())
        if at_start and not self._sharded:
            for dataset, lengths in prepared:
                if lengths:
                    self._check(self.teacher, dataset, lengths)
        return self.teacher

    # ------------------------------------------------------------------------------------ the store

    @property
    def _sharded(self) -> bool:
        trainer = self.trainer
        has_whole_weights = (
            trainer.is_deepspeed_enabled
            and trainer.zero_stage() < 3
            and engine_dtype(trainer.args) is None
        )
        return bool(
            trainer.is_fsdp_enabled or (trainer.is_deepspeed_enabled and not has_whole_weights)
        )

    def _remove_damaged(self, documents: Documents) -> None:
        """Compares the shards that hold these documents with their checksums, each process a share,
        and deletes what is damaged."""
        store = self.store
        share = store.shards_of(documents)[self._processes.rank :: self._processes.world]
        damaged = set(store.unreadable)
        with (
            self._bar("Checking the teacher's states", len(share)) as advance,
            ThreadPoolExecutor(8) as pool,
        ):
            for name, sound in zip(share, pool.map(store.is_sound, share), strict=True):
                advance(1)
                if not sound:
                    damaged.add(name)
        damaged = set().union(*self._processes.gather(damaged))
        for name in sorted(damaged):
            if self._main:
                (store.folder / name).unlink(missing_ok=True)
            self._say(
                f"Teacher cache: removed the damaged shard {name}; computing its documents again."
            )
        if damaged:
            self._processes.gather(None)  # the first process has deleted them
            store.scan()

    def _count_missing(self, documents: Documents) -> int:
        """Documents without states, on the process that lacks most."""
        return max(self._processes.gather(len(documents.keys() - self.store.states.keys())))

    def _build(self, documents: Documents, missing: int) -> int:
        """Computes what is missing; returns how many documents all processes of this run computed
        (another run may have been first)."""
        store = self.store
        if self._sharded:
            raise ConfigError(
                f"label_annealing.teacher: cached has no states for {missing} of "
                f"{len(documents)} documents in {store.folder}, and a model sharded by FSDP or "
                "DeepSpeed cannot compute them. Compute them first in a run of one process "
                "(same model, data, precision and attention; stop it after its first step), or "
                "use teacher: online."
            )
        with contextlib.ExitStack() as stack:
            self._wait_for_lock(stack)
            store.scan()
            computed = self._count_missing(documents)
            if computed:
                lacking = documents.keys() - store.states.keys()
                self._processes.first(lambda: self._announce([documents[key] for key in lacking]))
                batches = plan_batches(documents, tokens=self.tokens_per_batch)
                batches = [batch for batch in batches if not lacking.isdisjoint(batch)]
                share = batches[self._processes.rank :: self._processes.world]
                self._processes.together(lambda: self._compute(documents, share))
        store.scan()
        still = self._count_missing(documents)
        if still:
            raise ConfigError(
                f"label_annealing.cache_dir: {still} document(s) that one process stored in "
                f"{store.folder} are missing for another process. Give a folder that all "
                "processes share."
            )
        if self._main:
            write_json(store.folder / "teacher.json", self.facts)  # for people
        return computed

    def _wait_for_lock(self, stack: contextlib.ExitStack) -> None:
        """Waits for the builder's lock on behalf of all processes; they meet at every attempt, so
        that no collective times out meanwhile."""
        handle = self._processes.first(self.store.try_lock)
        if handle is None:
            self._say(f"Teacher cache: waiting for another run that fills {self.store.folder}.")
        while handle is None:
            time.sleep(0.5)
            handle = self._processes.first(self.store.try_lock)
        if self._main:
            stack.callback(os.close, handle)

    def _announce(self, missing: list[np.ndarray]) -> None:
        """States the size and refuses what will not fit."""
        lm: Any = causal_lm(self.trainer.model)
        width = lm.config.get_text_config().hidden_size
        stored = self.stored or lm.dtype
        tokens = sum(map(len, missing))
        size = tokens * width * stored.itemsize
        free = shutil.disk_usage(self.store.folder).free
        text = f"{len(missing)} documents, {tokens} tokens, {shown_bytes(size)}"
        if size > free:
            raise ConfigError(
                f"label_annealing.cache_dir: the teacher's states ({text}) do not fit in "
                f"{self.store.folder}, where {shown_bytes(free)} are free. Free some space, choose "
                "another cache_dir, store them in a smaller dtype (cache_dtype), or use teacher: "
                "online."
            )
        self._say(f"Teacher cache: computing the states of {text} in {self.store.folder}")

    def _compute(self, documents: Documents, batches: list[list[bytes]]) -> None:
        tokens = sum(len(documents[key]) for key in itertools.chain(*batches))
        with (
            self._bar("Computing the teacher's states", tokens) as advance,
            self.trainer.accelerator.autocast(),
        ):
            build_states(
                self.store,
                documents,
                batches,
                self.source,
                device=self.device,
                stored=self.stored,
                advance=advance,
            )

    def _bar(
        self, text: str, total: float
    ) -> contextlib.AbstractContextManager[Callable[[float], None]]:
        """A progress bar on the first process: its own share stands for all."""
        return (
            progress(text, total=total)
            if self._main
            else contextlib.nullcontext(lambda amount: None)
        )

    # ------------------------------------------------------------------------------- head and check

    def _check(self, teacher: CachedTeacher, dataset: Any, lengths: dict[int, int]) -> None:
        """Compares stored states with the start model's own in a batch of a data set's longest row
        and its shortest.

        Raises:
            DataError: a document of the batch is not stored.
            ModelError: the states differ.
        """
        numbers = {max(lengths, key=lengths.__getitem__), min(lengths, key=lengths.__getitem__)}
        difference = self._processes.first(
            lambda: self._difference(teacher, [dataset[row] for row in numbers])
        )
        half = (
            self.trainer.accelerator.mixed_precision != "no"
            or self.stored
            or self.store.forward.itemsize < 4
        )
        tolerance = HALF_TOLERANCE if half else TOLERANCE
        if not difference <= tolerance:
            raise ModelError(
                "label_annealing.teacher: cached expects states that depend only on their "
                "document's tokens. In a training batch, the states of "
                f"{type(causal_lm(self.trainer.model)).__name__} have a relative difference of "
                f"{difference:.2g} from the stored ones (rounding explains at most {tolerance:g}). "
                "If the model's code has changed since they were stored, delete "
                f"{self.store.folder}. Otherwise the states also depend on padding, on other "
                "documents in a packed row or on the length of the longest row: use teacher: "
                "online."
            )

    @torch.no_grad()
    def _difference(self, teacher: CachedTeacher, rows: list[Any]) -> float:
        """Relative difference of the states of rows that are collated as in training; leaves random
        states as they were."""
        trainer = self.trainer
        collate = trainer._get_collator_with_removed_columns(
            trainer.data_collator, description="training"
        )
        states = random.getstate(), np.random.get_state()
        with torch.random.fork_rng(devices=[]):
            batch = of_the_model(collate(rows))
        random.setstate(states[0])
        np.random.set_state(states[1])
        inputs = trainer._prepare_inputs(batch)
        inputs.pop("labels", None)
        with trainer.accelerator.autocast():
            stored_BTK, _ = teacher.hidden(inputs)
            own_BTK, _ = self.source.hidden(inputs)
        spans = [
            document.span
            for document in find_documents(inputs)
            if document.key in teacher.store.states
        ]
        stored_NK = torch.cat([stored_BTK[span] for span in spans]).double()
        own_NK = torch.cat([own_BTK[span] for span in spans]).double()
        return float((stored_NK - own_NK).norm() / own_NK.norm())

    @torch.no_grad()
    def _head(self) -> Head:
        """The start model's head, copied where training will move it."""
        model = self.trainer.model
        with (
            model.disable_adapter()
            if hasattr(model, "disable_adapter")
            else contextlib.nullcontext()
        ):
            head = describe_head(model)
        tensors: dict[str, Any] = {"weight_VH": head.weight_VH, "bias_V": head.bias_V}
        for name, tensor in tensors.items():
            if tensor is None or not (self._sharded or tensor.requires_grad):
                continue
            copy = (
                torch.empty_like(tensor, device=self.device)
                if tensor.is_meta
                else tensor.to(self.device, copy=True)
            )
            if self._processes.world > 1:
                # only the first process may have loaded the weights
                torch.distributed.broadcast(copy, src=0)
            tensors[name] = copy
        return replace(head, **tensors).detached()


# ------------------------------------------------------------------------------------ the documents


def read_documents(trainer: Any, dataset: Any) -> tuple[Documents, dict[int, int]]:
    """The documents of a prepared data set, as the trainer's collator will lay them out.

    Args:
        trainer: its columns that the model does not know are left out, as in its data loader.
        dataset: `input_ids`, and where rows are packed `seq_lengths`, or `position_ids`, or
            `attention_mask`.

    Returns:
        The documents, and the lengths of the rows that have tokens, by their number.

    Raises:
        ConfigError: no length (streaming), no `input_ids`.
    """
    if not hasattr(dataset, "__len__"):
        raise ConfigError(
            "label_annealing.teacher: cached needs the whole data before training, got "
            f"{type(dataset).__name__}, which has no length. Turn streaming off, or use teacher: "
            "online."
        )
    documents: Documents = {}
    lengths = {}
    for number, row in enumerate(_rows(trainer, dataset)):
        if "input_ids" not in row:
            raise ConfigError(
                "label_annealing.teacher: cached expects rows with input_ids, got the columns "
                f"{', '.join(row)}. Use teacher: online."
            )
        tokens = np.asarray(row["input_ids"]).astype("<i4")
        if not len(tokens):
            continue
        lengths[number] = len(tokens)
        layout = {}
        for name in ("attention_mask", "position_ids"):
            if row.get(name) is not None:
                layout[name] = torch.tensor(row[name])[None]
        texts = [tokens]
        if layout:
            inputs = {"input_ids": torch.tensor(tokens)[None], **layout}
            texts = [text.tokens for text in find_documents(inputs)]
        elif row.get("seq_lengths") is not None:
            texts = np.split(tokens, np.cumsum(row["seq_lengths"])[:-1])
        documents.update((document_key(text), text) for text in texts)
    return documents, lengths


def _rows(trainer: Any, dataset: Any) -> Iterator[dict[str, Any]]:
    """The rows; those of a `datasets.Dataset` as arrays, never Python lists of tokens, where it
    holds them itself."""
    from datasets import Dataset

    if isinstance(dataset, Dataset):
        dataset = trainer._remove_unused_columns(dataset, description="training")
        columns = {"input_ids", "seq_lengths", "attention_mask", "position_ids"}.intersection(
            dataset.column_names
        )
        if "input_ids" in columns and dataset.format["type"] != "custom":
            for table in dataset.with_format("pandas", columns=sorted(columns)).iter(
                batch_size=1000
            ):
                yield from table.to_dict("records")
            return
    for index in range(len(dataset)):
        yield dataset[index]
