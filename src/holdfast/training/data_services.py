"""The trainer as a `retention.services.DataServices`: the start model at hand while the training
data is made.

That is before the trainer is complete: no accelerator, no optimiser; an adapter's layers may be in
the model already, and are switched off meanwhile where they are new and change nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from holdfast.errors import ConfigError, ModelError
from holdfast.generation import Sampling, beginning_token, continued
from holdfast.ops.heads import causal_lm
from holdfast.retention.services import PrepareData, Sample
from holdfast.retention.teacher.teacher import without_dropout
from holdfast.retention.teacher.teacher_states import forward_configuration, weights_digest
from holdfast.support.files import fingerprint
from holdfast.training.adapters import new_adapters_off
from holdfast.training.processes import Processes
from holdfast.training.zero import is_partitioned

if TYPE_CHECKING:
    from datasets import Dataset


BATCH_SIZES = {"cpu": 32, "cuda": 256}
"""Prompts of a generation batch, by kind of device."""


class StartModel:
    """The model that a trainer is given, before anything changes it.

    Args:
        model: as the user gave it; a loaded causal LM, maybe with an adapter, which then is part of
            the start.
        adapter: configuration of the adapter that the trainer will put into it; None: none.
        first: whether this is the process that finds out which model it is.

    Raises:
        ConfigError: it is not loaded, or its weights are not whole in this process.
    """

    def __init__(self, model: Any, *, adapter: Any, first: bool) -> None:
        if not isinstance(model, nn.Module):
            raise ConfigError(
                "self_replay: expected a loaded model that can generate the text, got "
                f"{type(model).__name__}."
            )
        if any(p.is_meta for p in model.parameters()):
            raise ConfigError(
                "fsdp_cpu_ram_efficient_loading: expected false with self_replay, which generates "
                "text in every process, got true. If it is true, only one process per machine has "
                "the weights. 'holdfast train' sets it to false. In your own script set "
                "FSDP_CPU_RAM_EFFICIENT_LOADING=false before the model is loaded."
            )
        self.model: Any = model
        self.adapter = adapter
        self.key = ""
        """Of the weights; known to the first process."""
        if not first:
            return
        try:
            lm = causal_lm(model)
            self.key = fingerprint(
                [type(lm).__name__, weights_digest(lm), forward_configuration(lm)], length=32
            )
        except ModelError as error:
            raise ConfigError(
                f"self_replay: cannot identify the initial model. {error} Generate the samples "
                "in a run in which each process has the whole model (DDP, FSDP2 or one process)."
            ) from error


class TrainerDataServices:
    """See `retention.services.DataServices`.

    Args:
        start: the model.
        processing_class: its tokenizer, or processor.
        args: the trainer's arguments.
        prepare: loads and tokenises other data.
        new_rows: the run's own, before methods mix others in.
        say: gets one line at a time, on the first process.
    """

    def __init__(
        self,
        start: StartModel | None,
        *,
        processing_class: Any,
        args: Any,
        prepare: PrepareData,
        new_rows: Dataset,
        say: Callable[[str], None],
    ) -> None:
        self._args = args
        self.tokenizer = getattr(processing_class, "tokenizer", processing_class)
        processes = Processes(args.process_index, args.world_size)
        self.rank, self.world = processes.rank, processes.world
        self.gather, self.together = processes.gather, processes.together
        self._start, self._processing, self._say = start, processing_class, say
        self.prepare, self.new_rows = prepare, new_rows
        self.seed = int(args.seed)

    def batch_size(self) -> int:
        """See `DataServices.batch_size`."""
        return BATCH_SIZES.get(self._args.device.type, max(BATCH_SIZES.values()))

    @property
    def window(self) -> int:
        """See `DataServices.window`."""
        config = causal_lm(self._model).config.get_text_config()
        context = getattr(config, "max_position_embeddings", None) or 1 << 30
        return min(int(context), int(getattr(self._args, "max_length", None) or 1 << 30))

    @property
    def cut(self) -> int | None:
        """See `DataServices.cut`."""
        split = getattr(self._args, "packing", False) and self._args.packing_strategy in (
            "bfd_split",
            "wrapped",
        )
        return None if split else getattr(self._args, "max_length", None)

    @property
    def _model(self) -> Any:
        if self._start is None:
            raise AssertionError("this trainer was set up for methods that need no initial model")
        return self._start.model

    def start_key(self) -> str:
        """See `DataServices.start_key`; known to the first process."""
        assert self._start is not None
        return self._start.key

    def beginning(self) -> int | None:
        """See `DataServices.beginning`."""
        return beginning_token(self._model, self.tokenizer, causal_lm(self._model).config)

    def prompts(self, data: str) -> tuple[list[list[int]], int]:
        """See `DataServices.prompts`.

        Raises:
            DataError: the data cannot be read, or makes no prompts.
        """
        from holdfast.data.prompts import prompts_by_name

        return prompts_by_name(data, self._processing)

    def continued(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        temperature: float,
        top_p: float,
        seed: int,
    ) -> list[Sample]:
        """See `DataServices.continued`.

        Raises:
            ConfigError: the model is in pieces over the ranks.
            ModelError: what it is sampled by is NaN or infinite.
            HoldfastError: memory does not suffice.
        """
        sampling = (
            Sampling(temperature=temperature, top_p=top_p, seed=seed) if temperature > 0 else None
        )
        with self._ready() as model:
            answers = continued(
                model,
                self.tokenizer,
                prompts,
                max_new_tokens=max_new_tokens,
                sampling=sampling,
                advice="Lower self_replay.batch_size. Finished batches are kept.",
            )
        if any(answer.broken for answer in answers):
            raise ModelError(
                "self_replay: the initial model's logits are NaN or infinite. Check its weights "
                "and dtype."
            )
        return [Sample(ids=tuple(answer.ids), ended=answer.ended) for answer in answers]

    def say(self, text: str) -> None:
        """See `DataServices.say`."""
        if self.rank == 0:
            self._say(text)

    @contextlib.contextmanager
    def _ready(self) -> Iterator[Any]:
        """The start model in evaluation mode, on the run's device, new adapters off; as it was
        afterwards."""
        model = self._model
        assert self._start is not None
        if is_partitioned(model):
            raise ConfigError(
                "self_replay: sampling needs the whole model in each process, and ZeRO 3 shards "
                "it. Generate the samples in a run of one process first (stop it after its "
                "first step)."
            )
        if next(model.parameters()).device.type == "cpu" and self._args.device.type != "cpu":
            model.to(self._args.device)  # where the trainer takes it anyway
        with without_dropout(model), new_adapters_off(model, self._start.adapter):
            yield model
