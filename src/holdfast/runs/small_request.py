"""A request made small: the same settings on a copy of its model with few layers, on its first
rows and on one sample of each entry.

The tokenizer, the chat template and the vocabulary stay whole. The copy is narrowed where it would
have too many parameters, and batches and rows where their logits would take too much memory. What
this machine has no part in is left out: several processes, DeepSpeed, vLLM, weights that are stored
quantised, compiled models, trackers, judges, data of the hub.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.checkpoints.named import located
from holdfast.errors import ConfigError, HoldfastError, ModelError
from holdfast.retention.anchor import START
from holdfast.runs.rewards import OVERLONG
from holdfast.runs.trainers import TRAINERS

if TYPE_CHECKING:
    from holdfast.evaluation.entries import EvaluationPlan
    from holdfast.retention.protocol import RetentionMethod
    from holdfast.runs.config import Machine, TrainConfig
    from holdfast.runs.settings import RunSettings

MOST_PARAMETERS = 16_000_000
"""Of the copy; with gradients and AdamW's moments each takes 16 bytes."""
MOST_LOGITS = 20_000_000
"""Tokens that have logits at once, times the vocabulary: 80 MB in float32."""
MOST_NEW_TOKENS = 16
"""Of what the copy writes."""
FIRST_ROWS = 200
"""Rows among which those are looked for that fit, and rows of other data that methods read."""
LARGEST_FILE = 100_000_000
"""Bytes of a file beside the weights that is copied; a tokenizer's are fewer."""
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".index.json")
CHANGED: dict[str, Any] = {
    "logging_steps": 1,
    "save_steps": 1,
    "eval_steps": 1,
    "disable_tqdm": True,
    "dataset_num_proc": None,
    "deepspeed_plugin": None,
    "fsdp_plugin_args": None,
}
LEFT_OUT: dict[str, Any] = {
    "push_to_hub": False,
    "report_to": [],
    "deepspeed": None,
    "fsdp": [],
    "use_vllm": False,
    "torch_compile": False,
}
"""Training arguments that are left out, and what stands in their place."""
OF_A_GPU = {"bf16": False, "fp16": False, "tf32": None}
"""Those that are left out where the run is for another machine."""
OF_METHODS = {"reference": START, "fisher": "", "cache_dir": None}
"""Parameters of methods that name files of the whole model."""


class NoCopy(HoldfastError):
    """There is no small copy of a model, so that nothing can be rehearsed."""


class SmallRequest:
    """Makes a request small.

    Args:
        config: of the run.
        folder: gets the copy of the model, the rows, and the run.
        tokenizer: of the model.
        machine: that the run is for.
    """

    def __init__(self, config: TrainConfig, folder: Path, tokenizer: Any, machine: Machine) -> None:
        self.config, self.folder, self.machine = config, folder, machine
        self.tokenizer = tokenizer
        self.args = copy.copy(config.training)
        self.smaller: list[str] = []
        """What is smaller, in a few words each."""
        self.left_out: list[str] = []
        """What is left out."""

    def in_words_of_the_request(self, text: str) -> str:
        """A message of the small run, with the names that the request has, on one line."""
        names = {
            "model": self.config.model.model_name_or_path,
            "rows": self.config.script.dataset_name,
            "run": self.config.training.output_dir,
        }
        for entry, name in names.items():
            text = text.replace(str(self.folder / entry), str(name))
        return f"{' '.join(text.split())} (rehearsed on a copy: {', '.join(self.smaller)})"

    def made(self, steps: int | None) -> TrainConfig:
        """The small request.

        Args:
            steps: optimiser steps of the run; None: counted by its rows.

        Raises:
            NoCopy: the model cannot be made small.
            ConfigError: there are too few rows.
        """
        from trl import DatasetMixtureConfig

        from holdfast.runs.dry_run import check_fit

        config, model = self.config, copy.copy(self.config.model)
        room = MOST_LOGITS // self._copy_model()
        self._change_arguments()
        rows, held_out = self._copy_rows(room, steps)
        model.model_name_or_path, model.model_revision = str(self.folder / "model"), "main"
        small = dataclasses.replace(
            config,
            script=self._script(rows),
            training=self.args,
            model=model,
            mixture=config.mixture if rows is None else DatasetMixtureConfig(),
            holdfast=self._settings(held_out),
            retention=[self._method(method) for method in config.retention if not method.off],
            evaluation=self._plan(),
            launch={},
            notes=[],
            resolved={},  # whose inputs would be hashed, the model's weights among them
        )
        try:
            check_fit(small)
        except (ConfigError, ModelError):  # which passed for the model itself
            self.left_out.append("settings that name layers")
            model.lora_target_modules = "all-linear"
            settings = dataclasses.replace(
                small.holdfast, train_only=(), learning_rate_multipliers={}
            )
            return dataclasses.replace(small, holdfast=settings)
        return small

    def _copy_model(self) -> int:
        """Writes the copy, with the model's own tokenizer and template; how many tokens it has."""
        import torch

        from holdfast.checkpoints.fit import auto_class
        from holdfast.checkpoints.tiny_copy import shallow_copy
        from holdfast.models import check_causal_lm

        name, trusted = str(self.config.model.model_name_or_path), self.args.trust_remote_code
        shape = check_causal_lm(name, trust_remote_code=trusted)
        dtype = shape.dtype if isinstance(shape.dtype, torch.dtype) else torch.float32
        if getattr(shape, "quantization_config", None) is not None:
            del shape.quantization_config
            self.left_out.append("weights that are stored quantised")
        make = functools.partial(
            auto_class(shape.model_type).from_config, trust_remote_code=trusted
        )
        try:
            model = shallow_copy(shape, make, most=MOST_PARAMETERS)
        except ValueError as error:
            raise NoCopy(f"no small copy of {name} can be made ({error.__cause__})") from error
        text, small = shape.get_text_config(), model.config.get_text_config()
        if text is not shape and text.hidden_size != small.hidden_size:
            raise NoCopy(f"{name} reads images, and such models are not made narrower")
        target = self.folder / "model"
        target.mkdir()
        for file in Path(located(name)).iterdir():
            is_small = file.is_file() and file.stat().st_size < LARGEST_FILE
            if is_small and not file.name.endswith(WEIGHTS):
                shutil.copyfile(file, target / file.name)
        model.to(dtype).save_pretrained(target)
        for key, word in {"num_hidden_layers": "layers", "hidden_size": "width"}.items():
            before, after = getattr(text, key, None), getattr(small, key, None)
            if before != after:
                self.smaller.append(f"{after} of {before} {word}")
        self.smaller.append("random weights")
        return int(model.get_input_embeddings().weight.shape[0])

    def _change_arguments(self) -> None:
        """Changes what is written, where and how often, and leaves out what is not here."""
        args = self.args
        changes: dict[str, Any] = {**CHANGED, "output_dir": str(self.folder / "run")}
        for name in ("eval_strategy", "save_strategy"):
            if _word(getattr(args, name)) not in ("no", "best"):
                changes[name] = type(getattr(args, name))("steps")
        without = LEFT_OUT if self.machine.here else LEFT_OUT | OF_A_GPU
        for name, nothing in without.items():
            if getattr(args, name, None):
                changes[name] = nothing
                self.left_out.append(name)
        if self.config.launch:
            self.left_out.append(f"launching {self.config.processes} processes")
        for name, value in changes.items():
            if hasattr(args, name):
                setattr(args, name, value)

    # --------------------------------------------------------------------------------------- rows

    def _copy_rows(self, room: int, steps: int | None) -> tuple[str | None, str | None]:
        """Writes the first rows that fit, and of `eval_strategy` two; where they are. Rows with
        images stay where their pictures are.

        Args:
            room: tokens that may have logits at once.
            steps: as of `made`.
        """
        from holdfast.runs.loading import all_rows, held_out_rows

        args, rows = self.args, all_rows(self.config)
        batch = args.per_device_train_batch_size * self.config.processes
        count = len(rows) if hasattr(rows, "__len__") else batch
        if args.max_steps <= 0:
            args.max_steps = steps or math.ceil(args.num_train_epochs * math.ceil(count / batch))
        first = _first(rows)
        if {"image", "images"} & set(first.column_names):
            self._set("per_device_train_batch_size", 1)
            return None, None
        lengths = self._lengths(first)
        longest = self._fit_batch(lengths, room)
        most = max(16, 2 * args.per_device_train_batch_size * args.gradient_accumulation_steps)
        path = self._write("rows", first, lengths, longest, most)
        if _word(args.eval_strategy) == "no":
            return path, None
        first = _first(held_out_rows(self.config)[0])
        return path, self._write("held_out", first, self._lengths(first), longest, 2)

    def _lengths(self, rows: Any) -> list[int]:
        """About how many tokens of each row the request reads."""
        from holdfast.data.overlap import texts_of

        most = self.args.max_length if self.config.holdfast.cuts_rows else None
        lengths = []
        for row in rows:
            tokens = row.get("input_ids") or self.tokenizer(" ".join(texts_of(row)))["input_ids"]
            lengths.append(min(len(tokens), most or len(tokens)))
        return lengths

    def _fit_batch(self, lengths: Sequence[int], room: int) -> int:
        """Makes a batch as small as memory wants it; how many tokens its rows may have.

        Args:
            lengths: of the first rows.
            room: tokens that may have logits at once.
        """
        args, kind = self.args, TRAINERS[self.config.holdfast.trainer]
        if self.config.holdfast.on_policy is not None or kind.settings == "GRPOConfig":
            return max(lengths)  # their logits are those of answers alone
        room //= 2 if kind.reader else 1  # both of a pair
        batch = args.per_device_train_batch_size
        changes = {"gradient_accumulation_steps": min(args.gradient_accumulation_steps, 2)}
        fitting = sum(length * batch <= room for length in lengths)
        if args.packing or fitting < min(len(lengths), 2 * batch):
            batch = min(batch, 2 if kind.settings == "KTOConfig" else 1)
            changes["per_device_train_batch_size"] = batch
        longest = room // batch
        if args.packing or min(lengths) > longest:
            changes["max_length"] = min(args.max_length or longest, longest)
            args.truncation_mode = "keep_end"
        for name, value in changes.items():
            self._set(name, value)
        return longest

    def _set(self, name: str, value: int) -> None:
        """Makes a training argument smaller."""
        if value != (before := getattr(self.args, name)):
            self.smaller.append(f"{name} {value} instead of {before}")
            setattr(self.args, name, value)

    def _write(self, name: str, rows: Any, lengths: Sequence[int], longest: int, most: int) -> str:
        """Writes some rows as a data set; where they are.

        Args:
            name: of the data set.
            rows: the first ones.
            lengths: tokens of each.
            longest: tokens that they may have; where all have more, the first ones are taken.
            most: of them.
        """
        fitting = [index for index, length in enumerate(lengths) if length <= longest]
        rows = rows.select((fitting or range(len(lengths)))[:most])
        path = self.folder / name
        if self.config.script.dataset_streaming or self.config.mixture.streaming:
            path = path.with_suffix(".jsonl")
            rows.to_json(path)
        else:
            rows.save_to_disk(path)
        return str(path)

    # -------------------------------------------------------------- settings, methods and entries

    def _script(self, rows: str | None) -> Any:
        """TRL's arguments about data and rewards, with the rows that were written."""
        script = copy.copy(self.config.script)
        if rows is not None:
            script.dataset_name, script.dataset_config = rows, None
            script.dataset_train_split = "train"
            script.dataset_streaming = rows.endswith(".jsonl")
        if getattr(script, "reward_model_name_or_path", None):
            self.left_out.append("reward_model_name_or_path")
            script.reward_model_name_or_path = None
            script.reward_funcs = script.reward_funcs or [OVERLONG]
        return script

    def _settings(self, held_out: str | None) -> RunSettings:
        """holdfast's own settings, with the held-out rows that were written; answers are short."""
        settings = self.config.holdfast
        if held_out is not None:
            settings = dataclasses.replace(
                settings, eval_dataset_name=held_out, eval_dataset_split="train"
            )
        sampling: Any = settings.on_policy or self.args
        length = getattr(sampling, "max_completion_length", None) or 0
        if length <= MOST_NEW_TOKENS:
            return settings
        self.smaller.append(f"answers of {MOST_NEW_TOKENS} instead of {length} tokens")
        if settings.on_policy is None:
            self.args.max_completion_length = MOST_NEW_TOKENS
            return settings
        short = dataclasses.replace(settings.on_policy, max_completion_length=MOST_NEW_TOKENS)
        return dataclasses.replace(settings, on_policy=short)

    def _method(self, method: RetentionMethod) -> RetentionMethod:
        """A method on the copy, and on the first rows of the data that it names."""
        from holdfast.data.sources import is_path, load_rows

        values = {field.name: getattr(method, field.name) for field in dataclasses.fields(method)}
        changes: dict[str, Any] = {}
        for name, nothing in OF_METHODS.items():
            if values.get(name, nothing) != nothing:
                changes[name] = nothing
                self.left_out.append(f"{method.name}.{name}")
        for name in {"data", "prompts"} & values.keys():
            if values[name] and is_path(values[name]):
                changes[name] = str(self.folder / f"{method.name}_{name}")
                _first(load_rows(values[name])).save_to_disk(changes[name])
        if "fisher" in changes:
            changes["data"] = str(self.folder / "rows")
        for name in {"samples", "max_new_tokens"} & values.keys():
            changes[name] = min(values[name] or MOST_NEW_TOKENS, MOST_NEW_TOKENS)
        if "max_dropped" in values:  # nobody knows what random weights write
            changes |= {"max_dropped": 1.0, "least_tokens": 1, "max_repetition": 1.0}
        return dataclasses.replace(method, **changes)

    def _plan(self) -> EvaluationPlan:
        """One sample of each entry whose data is here, and which asks nobody else; two documents,
        as the first may be an empty one."""
        from holdfast.evaluation.kinds.task import TaskEntry
        from holdfast.evaluation.kinds.win_rate import WinRateEntry

        plan, entries = self.config.evaluation, []
        for entry in plan.entries:
            of_hub = isinstance(entry, TaskEntry) and entry.may_read_hub()
            if isinstance(entry, WinRateEntry) or of_hub or not entry.local_files():
                self.left_out.append(entry.path)
                continue
            limits: dict[str, Any] = {"max_documents": 2, "limit": 1}
            changes = {name: limits[name] for name in limits.keys() & vars(entry).keys()}
            entries.append(dataclasses.replace(entry, **changes))
        return dataclasses.replace(plan, entries=tuple(entries), averages=(), along=None)


def _word(value: Any) -> str:
    """A member of an enumeration of transformers as a request writes it."""
    return str(getattr(value, "value", value))


def _first(rows: Any) -> Any:
    """The first rows, as a data set of known length."""
    from datasets import Dataset

    if hasattr(rows, "select"):
        return rows.select(range(min(len(rows), FIRST_ROWS)))
    return Dataset.from_list(list(itertools.islice(rows, FIRST_ROWS)))
