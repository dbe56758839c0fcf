"""One run from start to report: evaluate the start, train, save, evaluate the result, compare,
write what people read.

Every stage leaves its outcome in the run folder before the next begins, so the same command after
Ctrl-C, a crash or `kill -9` goes on where it stopped and computes nothing twice. The trained
weights are those of an uninterrupted run: training continues from the last whole checkpoint with
its optimiser, schedule, random state and position in the data.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.checkpoints.distance import layer_distances, share_changed
from holdfast.checkpoints.live_tensors import checkpoint_names
from holdfast.checkpoints.reader import CheckpointReader, checkpoint_hash
from holdfast.errors import (
    ConfigError,
    HoldfastError,
    Interrupted,
    NotFinite,
    RunFolderError,
    TrainingDiverged,
)
from holdfast.records.evaluation import EvaluationFolder
from holdfast.records.run import LayerDistance, RunFolder, RunRecord
from holdfast.runs import run_folder
from holdfast.runs.loading import loaded_otherwise
from holdfast.runs.nodes import check_same, check_shared_folder
from holdfast.runs.trainers import TRAINERS
from holdfast.support.environment import (
    EFFICIENT_LOADING,
    loads_on_one_process_only,
    now,
    quiet_datasets,
    quiet_libraries,
    result_folder,
    say,
    shown_bytes,
    shown_name,
    terminated_is_interrupted,
    wait_for_lock,
)
from holdfast.support.files import fingerprint, write_json
from holdfast.support.inputs import configuration_hash
from holdfast.support.resources import file_trouble

if TYPE_CHECKING:
    from transformers import TrainerCallback

    from holdfast.evaluation.entries import EvaluationPlan
    from holdfast.evaluation.processes import ProcessGroup
    from holdfast.records.evaluation import Evaluation
    from holdfast.runs.config import TrainConfig
    from holdfast.runs.on_policy import OnPolicySettings
    from holdfast.support.leftovers import NewFolder
    from holdfast.training.callbacks import MetricsFile, Progress
    from holdfast.training.preferences import OwnLoss


KEPT = "along-weights"
"""Folder of a run of several processes: its weights at the steps of `evaluation.along`, until they
are measured."""
MOST_CHANGE = 0.5
"""Where a smaller share of weights in half precision changes, steps are lost to rounding."""


def train(
    config: TrainConfig,
    *,
    console: Any = None,
    evaluation_cache: str | os.PathLike[str] | None = None,
    callbacks: Sequence[TrainerCallback] = (),
    alone: bool = True,
) -> RunFolder:
    """Trains a model as `config` says, or continues an interrupted run of the same config in its
    folder.

    Args:
        config: the checked configuration, see `holdfast.runs.config.train_config`.
        console: a `rich.console.Console` for progress; None: a new one on standard output.
        evaluation_cache: a folder in which runs share evaluations. The same initial model is then
            measured once, even if runs work side by side.
        callbacks: further trainer callbacks, for code that watches the run.
        alone: whether this run is the whole request. A run that is part of something larger (False)
            prints no summary of its own.

    Returns:
        The folder of the finished run.

    Raises:
        UserError: the request has to change (see `holdfast.errors`), or it needs more processes
            than were started.
        TrainingDiverged: a loss, a gradient or a weight was not finite.
        NotFinite: a measurement of the initial model or of the result is not finite.
        Interrupted: Ctrl-C or SIGTERM; calling again continues.
    """
    from rich.console import Console

    from holdfast.evaluation.runner import plan_fingerprint
    from holdfast.runs import launch
    from holdfast.runs.config import has_accelerator
    from holdfast.support.dates import dates_of
    from holdfast.training.checkpoint_folders import clear_leftovers

    launch.check_started(config.launch, has_accelerator=has_accelerator())
    console = console or Console()
    folder = RunFolder(config.training.output_dir)
    main = int(os.environ.get("RANK", "0")) == 0
    run_folder.refuse_foreign(folder)
    with (
        result_folder(folder.path) if main else contextlib.nullcontext() as new_folder,
        quiet_libraries(),
        terminated_is_interrupted(),
    ):
        check_shared_folder(folder.path, config.training)
        record = run_folder.open_run(folder, config)
        if main:
            clear_leftovers(folder.path)
        if record.status == "finished":
            if run_folder.nothing_left(
                folder, record, config, evaluated=plan_fingerprint(config.evaluation)
            ):
                when = f", finished {record.finished}" if record.finished else ""
                if alone:
                    say(
                        console,
                        f"{folder.path} already contains this run{when}. Nothing to do. For a new "
                        "run, give another output_dir.",
                    )
                return folder
            record.status = "running"
        run = _Run(
            config=config, folder=folder, record=record, console=console, cache=evaluation_cache, main=main,
            callbacks=callbacks, new_folder=new_folder, alone=alone,
        )  # fmt: skip
        try:
            with dates_of(record.created):
                run.go()
        except Interrupted:
            run.end("interrupted")
            raise
        except KeyboardInterrupt:
            run.end("interrupted")
            raise Interrupted(
                f"Interrupted during stage '{record.stage}'; finished work is in {folder.path}. "
                "Run the same command to continue."
            ) from None
        except Exception as error:
            error.stage = record.stage  # type: ignore[attr-defined]  # for who runs it to see
            run.end("failed", str(error).strip().split("\n")[0] or type(error).__name__)
            if (
                config.processes > 1
                and isinstance(error, (TrainingDiverged, NotFinite))
                and folder.path.is_dir()
            ):
                # launchers end with their own exit code, and the other processes are stopped
                # wherever they are
                write_json(
                    folder.path / run_folder.ENDED,
                    {"kind": type(error).__name__, "error": str(error)},
                )
            trouble = None if isinstance(error, HoldfastError) else file_trouble(error, folder.path)
            if trouble is not None and folder.path.is_dir():
                stage = (
                    f"The run was in stage '{record.stage}'. Everything written before this error "
                    f"is complete{run.last_checkpoint()}."
                )
                raise type(trouble)(f"{trouble} {stage}") from error
            raise
    return folder


@dataclass(kw_only=True)
class _Run:
    """The stages of one run, in order. Holds what one stage hands to the next."""

    config: TrainConfig
    folder: RunFolder
    record: RunRecord
    console: Any
    cache: Any
    main: bool
    """Whether this is the process that evaluates and writes."""
    callbacks: Sequence[TrainerCallback] = ()
    alone: bool = True
    model: Any = None
    tokenizer: Any = None
    processor: Any = None
    """Of a vision-language model; it has a tokenizer of its own, as training takes it."""
    trainer: Any = None
    start_folder: Path | None = None
    rows: Any = None
    layout: str = ""
    eval_rows: Any = None
    new_folder: NewFolder | None = None
    """The run's folder, which goes again where the request turns out to be wrong before anything
    was measured or trained; None on other processes."""
    added_tokens: Sequence[int] = ()
    """Ids that came with the chat template of another model."""
    stopped: bool = False
    trackers: Any = None
    """Those of `report_to`, see `runs.tracking`; None before there is a model to train or to
    measure."""
    entered: float = field(default_factory=time.monotonic)
    """When the present stage began, in seconds."""

    def go(self) -> None:
        from holdfast.evaluation.runner import plan_fingerprint
        from holdfast.runs.rewards import reward_functions

        trained = bool(self.record.training.get("saved"))
        plan, count = self.config.evaluation, len(self.config.evaluation.entries)
        entries = f"{count} entr{'y' if count == 1 else 'ies'}"
        self.stage("prepare")
        if self.config.holdfast.trainer == "grpo":
            # what is wrong with them shows before anything is loaded
            reward_functions(self.config.script)
        self.prepare(trained=trained)
        self.check_evaluation()
        if plan.entries and plan.before:
            self.stage("evaluate start", f"Evaluating the initial model on {entries}")
            shared = self.cache is not None and self.main
            with wait_for_lock(Path(self.cache) / "start") if shared else contextlib.nullcontext():
                self.evaluate("start", self.model, self.start_identity())
            self.keep()
        if trained:
            self.load_result()
        else:
            self.stage("train")
            self.fit()
            self.stage("save")
            self.save()
            if self.stopped:
                raise Interrupted(
                    "Interrupted after the last step; the trained model is in "
                    f"{self.folder.path}. Run the same command to continue."
                )
        kept = self.measure_kept()
        self.note_unmeasured()
        self.stage("evaluate result", f"Evaluating the result on {entries}" if plan.entries else "")
        if plan.entries:
            if kept or (self.trainer is not None and self.trainer.is_fsdp_enabled):
                self.load_result()  # what is in memory is of another step, or sharded
            identity = {
                "name": self.record.name,
                "hash": checkpoint_hash(self.folder.path),
                "configuration": configuration_hash(self.folder.path),
                **loaded_otherwise(self.config.model),
            }
            try:
                self.evaluate("result", self.model, identity)
            except NotFinite:
                self.report()  # what failed stands beside what did not
                raise
        self.stage("report")
        self.report()
        self.record.training["evaluated"] = plan_fingerprint(plan)
        self.record.finished = now()
        self.stage("done")
        self.end("finished")
        self.write_pages()
        self.push()

    # --------------------------------------------------------------------------------------- stages

    def prepare(self, *, trained: bool) -> None:
        """Loads the start model and, unless training is over, reads all data: what is wrong with
        the request shows here, before anything slow."""
        from holdfast.models import check_causal_lm
        from holdfast.runs.dry_run import check_fit
        from holdfast.runs.packing import check_packing
        from holdfast.training.frozen import matched

        model, args = self.config.model, self.config.training
        shape = check_causal_lm(
            model.model_name_or_path,
            revision=model.model_revision,
            trust_remote_code=args.trust_remote_code,
        )
        if not trained:
            if problems := check_packing({**vars(args), **vars(model)}, shape):  # of the hub, too
                raise ConfigError(problems)
            if model.use_peft:
                check_fit(self.config)
        self._load_start(trained=trained)
        limit = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        if limit and (args.max_length is None or args.max_length > limit):
            if self.config.holdfast.cuts_rows and args.max_length is not None:
                self.note(
                    f"max_length={args.max_length} is more than the model's context; {limit} is "
                    "used."
                )
            args.max_length = limit
        if not getattr(self.model, "is_quantized", False):
            self.model.to(args.device)
        matched(
            [name for name, _ in self.model.named_parameters()], self.config.holdfast.train_only
        )
        if (
            not trained and not model.use_peft
        ):  # an adapter's weights are there later, and are looked at by the trainer
            self._check_methods_fit()
        self.write()

    def _load_start(self, *, trained: bool) -> None:
        """Loads the start model and, unless training is over, the rows, and writes into the record
        what they are."""
        from holdfast.models import model_folder
        from holdfast.runs.loading import (
            add_template_tokens,
            load_data,
            load_model,
            load_processor,
            load_tokenizer,
        )
        from holdfast.runs.rows import check_batches, remarks_on_rows

        model = self.config.model
        not_read: dict[str, int | None] = {}
        remarks: list[str] = []
        with self.status(f"Loading {model.model_name_or_path}"):
            self.tokenizer, self.processor = (
                load_tokenizer(self.config),
                load_processor(self.config),
            )
            data_hash = run_folder.data_hash(self.config)
            if self.main:
                for text in run_folder.hold_to_inputs(self.folder, self.record, self.config):
                    self.note(text)
            if not trained:
                processing = self.processor or self.tokenizer
                self.rows, self.layout, self.eval_rows = load_data(
                    self.config, processing, not_read
                )
                check_batches(self.config, self.rows)
                remarks = remarks_on_rows(self.config, processing, self.rows, not_read)
            images = run_folder.images_hash(self.rows)
            run_folder.refuse_changed_images(self.folder, self.record, images)
            self.model = load_model(self.config)
            self.added_tokens = add_template_tokens(self.model, self.tokenizer, self.config)
            self.start_folder = model_folder(model.model_name_or_path, model.model_revision)
            identity = checkpoint_hash(self.start_folder) if self.start_folder else "unknown"
        hashes = {"model_name_or_path": identity, "the training data": data_hash}
        check_same(hashes, self.config.training)
        run_folder.refuse_changed_model(self.folder, self.record, self.config, identity)
        self._record_start(identity)
        if trained:
            return
        data_hash = data_hash or str(getattr(self.rows, "_fingerprint", ""))
        source = {
            "name": run_folder.data_name(self.config),
            "hash": data_hash,
            "format": self.layout,
        }
        resume_checks = {
            k: v for k, v in self.record.data.items() if k in ("mixed", "rewards")
        }  # if it is continued
        self.record.data = {**source, **resume_checks, "not_read": not_read}
        for remark in remarks:
            self.note(remark)
        if images is not None:
            self.record.data["images"] = images
        if not model.use_peft:  # how much of the model LoRA saves is known later
            self._check_space(self.model)

    def _record_start(self, identity: str) -> None:
        """Writes into the record which model training starts from."""
        from holdfast.models import origin_of
        from holdfast.runs.loading import quantised_by

        model, name = self.config.model, shown_name(self.config.model.model_name_or_path)
        parameters = sum(p.numel() for p in self.model.parameters())
        head = self.model.get_output_embeddings()
        self.record.model = {
            **self.record.model,
            "name": name,
            "hash": identity,
            "architecture": type(self.model).__name__,
            "parameters": parameters,
            "vocabulary": head.weight.shape[0],
        }
        if origin := origin_of(model.model_name_or_path, model.model_revision) or quantised_by(
            model
        ):
            self.record.model["origin"] = origin
        self.record.parents = [{"role": "start", "name": name, "hash": identity}]

    def _check_methods_fit(self) -> None:
        """Looks whether each method's weights are those of the model.

        Raises:
            ConfigError: they are not.
        """
        from holdfast.training.method_checks import weights_problems

        methods = [method for method in self.config.retention if not method.off]
        if misfits := weights_problems(methods, dict(self.model.named_parameters())):
            raise ConfigError(misfits, source="retention")

    def by_rewards(self, hosted: dict[str, Any]) -> OwnLoss:
        """The trainer of a run with `trainer: grpo`."""
        from holdfast.runs.on_policy import check_lengths
        from holdfast.runs.rewards import refuse_changed_rewards, reward_functions
        from holdfast.training.preferences import GRPORetentionTrainer

        limit = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        check_lengths(self.config, self.rows, self.tokenizer, limit)
        rewards, about = reward_functions(self.config.script)
        refuse_changed_rewards(self.record.data.get("rewards"), about)
        trainer = GRPORetentionTrainer(reward_funcs=rewards, **hosted)
        trainer.data_info["rewards"] = about
        return trainer

    def on_own_text(self, hosted: dict[str, Any], settings: OnPolicySettings) -> OwnLoss:
        """The trainer of a run with `on_policy`."""
        from trl import DistillationConfig

        from holdfast.runs.on_policy import check_lengths
        from holdfast.training.preferences import OnPolicyTrainer, add_settings

        limit = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        check_lengths(self.config, self.rows, self.tokenizer, limit)
        args, sampling = hosted["args"], dataclasses.asdict(settings)
        if direction := sampling.pop("self_distillation"):
            from holdfast.training.self_distillation import (
                SelfDistillationTrainer,
                sampling_arguments,
            )

            sampling_arguments(args, direction, **sampling)
            return SelfDistillationTrainer(**hosted)
        add_settings(args, DistillationConfig, **sampling)
        return OnPolicyTrainer(**hosted)

    def start_identity(self) -> dict[str, Any]:
        """What tells the start model's figures from others; rows of tokens that it got are drawn
        from the seed."""
        identity = {
            **{name: self.record.model[name] for name in ("name", "hash")},
            **loaded_otherwise(self.config.model),
        }
        if self.start_folder is not None:
            identity["configuration"] = configuration_hash(self.start_folder)
        if self.added_tokens:
            identity["added_tokens"] = [len(self.added_tokens), self.config.training.seed]
        return identity

    def check_evaluation(self) -> None:
        """Finds wrong columns, unknown tasks and unreadable held-out files before anything is
        trained."""
        from holdfast.evaluation.runner import check_plan
        from holdfast.runs.rows import remarks_on_held_out_rows

        if self.main and self.config.evaluation.entries:
            with self.status("Checking the evaluation suites"):
                problems = check_plan(self.config.evaluation, self.tokenizer, self.reads_images)
            if problems:
                raise ConfigError(problems, source="evaluation")
            for text in remarks_on_held_out_rows(self.config, self.tokenizer, self.rows):
                self.note(text)

    def evaluate(self, which: str, model: Any, identity: dict[str, Any]) -> None:
        plan, folder = self.config.evaluation, self.folder.evaluated(which)
        self.evaluate_into(folder, plan, model, identity)

    def evaluate_into(
        self, folder: EvaluationFolder, plan: EvaluationPlan, model: Any, identity: dict[str, Any]
    ) -> None:
        """Measures a model on a plan, by all processes that can."""
        from rich.console import Console

        from holdfast.evaluation.runner import evaluate
        from holdfast.models import Loaded

        if not self.main and self.processes.world_size == 1:
            return
        if origin := self.record.model.get("origin"):
            identity = {**identity, "origin": origin}
        loaded = Loaded(
            model=model,
            tokenizer=self.tokenizer,
            identity=identity,
            processor=self.reads_images,
        )
        measured = evaluate(
            loaded,
            plan,
            folder=folder,
            cache=self.cache,
            console=self.console if self.main else Console(quiet=True),
            start=self.folder.evaluated("start"),
            processes=self.processes,
        )
        for evaluation in measured:
            for note in evaluation.notes:
                self.note(note)

    @property
    def reads_images(self) -> Callable[[], Any] | None:
        """Gives the processor, as evaluation asks for it; None for a model that takes text only."""
        return None if self.processor is None else lambda: self.processor

    @functools.cached_property
    def processes(self) -> ProcessGroup:
        """Those that measure together: all that train, where each of them has a whole model from
        the start."""
        import torch.distributed

        from holdfast.evaluation.processes import SINGLE, join_launched

        hold_whole_model = torch.distributed.is_initialized() and not loads_on_one_process_only()
        return join_launched() if hold_whole_model else SINGLE

    def fit(self) -> None:
        """Makes the trainer, gets its teacher and methods ready, trains, and records what came of
        it."""
        from holdfast.runs.tracking import AtStart, Trackers
        from holdfast.training.callbacks import MetricsFile, Progress

        active = [method.name for method in self.config.retention if not method.off]
        progress = Progress(
            self.console, " with ".join(filter(None, ["Fine-tuning", ", ".join(active)]))
        )
        self.trainer = self.make_trainer(MetricsFile(self.folder.metrics_file))
        self.trackers = Trackers(self.config.training)
        self.trackers.hold(self.trainer)
        if self.main:
            self.trainer.add_callback(AtStart(self.trackers, self.folder.evaluated("start").all()))
        self.check_trainer()
        self._own_progress(progress)
        self.note_trainer()
        checkpoint = self.trainer.whole_checkpoint(self.folder.path, say=self.note)
        self.record.training = {
            **self.record.training,
            "sessions": self.record.training.get("sessions", 0) + 1,
        }
        self.write()
        # Here, where Ctrl-C stops at once and keeps what was computed.
        self.trainer.prepare_teacher(say=lambda text: say(self.console, text))
        self.trainer.prepare_methods(say=lambda text: say(self.console, text))
        if self.trainer.teacher_info:
            self.record.training["teacher"] = self.trainer.teacher_info
            self.write()
        self.keep()
        self.trainer.on_loss_backend = self.note_loss
        self.run_training(checkpoint, progress)

    def make_trainer(self, metrics: MetricsFile) -> Any:
        """The run's trainer, with its data tokenised; `metrics`: what writes down its figures."""
        from holdfast.data.formats import rows_by_name
        from holdfast.training.adapters import adapter_config
        from holdfast.training.trainers import SFTRetentionTrainer

        config, args = self.config, self.config.training
        measures = self.measures_along(metrics)
        rows = len(self.rows) if hasattr(self.rows, "__len__") else 10**9
        with self.status("Tokenising the training data") as spinner, quiet_datasets(rows):

            def announce(text: str) -> None:
                if spinner is not None:  # what follows has a bar of its own
                    spinner.stop()
                say(self.console, text)

            hosted: dict[str, Any] = {
                "model": self.model,
                "args": args,
                "train_dataset": self.rows,
                "eval_dataset": self.eval_rows,
                "processing_class": self.processor or self.tokenizer,
                "peft_config": adapter_config(config.model, config.adapter, self.added_tokens),
                "retain": config.retention,
                "learning_rate_multipliers": config.holdfast.learning_rate_multipliers,
                "train_only": config.holdfast.train_only,
                "fused_layers": config.holdfast.fused_layers
                and not args.torch_compile,  # which does so itself
                "callbacks": [metrics, *self.stops_early(), *self.callbacks, *measures],
            }
            if config.holdfast.on_policy is not None:
                return self.on_own_text(hosted, config.holdfast.on_policy)
            if host := TRAINERS[config.holdfast.trainer].host:
                from holdfast.training import preferences  # imports several trainers of TRL

                return getattr(preferences, host)(**hosted)
            if config.holdfast.trainer == "grpo":
                return self.by_rewards(hosted)
            read = rows_by_name(self.processor or self.tokenizer)
            return SFTRetentionTrainer(**hosted, load_rows=read, say=announce)

    def check_trainer(self) -> None:
        """
        Raises:
            HoldfastError: the processes do not know of each other.
            ConfigError: what measures along the way needs a whole model, and this one is taken
                apart.
        """
        config, trainer = self.config, self.trainer
        if config.holdfast.stop_rules:  # what measures along keeps a best one
            config.training.load_best_model_at_end = True
        world, processes = int(os.environ.get("WORLD_SIZE") or 1), trainer.accelerator.num_processes
        if processes != world:
            raise HoldfastError(
                f"Expected training over {world} processes, but the trainer found {processes}: "
                "every process would train alone. On CPUs set use_cpu: true."
            )
        is_apart = trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled
        if config.evaluation.along and world == 1 and is_apart:
            raise ConfigError(
                "evaluation.along: needs the whole model in one process, but FSDP and DeepSpeed "
                "shard the model. Leave it out, and measure checkpoints afterwards: "
                "'holdfast evaluate RUN/checkpoint-*'."
            )

    def note_trainer(self) -> None:
        """What is known of data and weights once there is a trainer, for the record and as notes.

        Raises:
            ConfigError: a run that is continued would train on other samples.
            StorageError: its checkpoints will not fit on the disk.
        """
        from holdfast.ops.layers import why_not
        from holdfast.runs.dry_run import remarks_on_rounding

        config, trainer = self.config, self.trainer
        for note in trainer.data_notes:
            self.note(note)
        if config.holdfast.fused_layers and not config.training.torch_compile:
            self.record.training["fused_layers"] = trainer.fused_layers
            if not trainer.fused_layers and config.training.device.type == "cpu":
                why = why_not() or "the model has no float32 layer that can be fused"
                self.note(f"fused_layers changed nothing: {why}.")
        if self.start_folder is not None:
            for note in remarks_on_rounding(config, self.start_folder):
                self.note(note)
        trained = [parameter for parameter in trainer.model.parameters() if parameter.requires_grad]
        if any(str(parameter.dtype) == "torch.float16" for parameter in trained):
            self.note(
                "The trained weights are float16 without loss scaling: small gradients become 0, "
                "first those of the KL term. Train in bfloat16 (dtype: bfloat16) or float32; see "
                "docs/loss.md."
            )
        self.record.model["trainable"] = sum(parameter.numel() for parameter in trained)
        run_folder.refuse_changed_samples(self.folder, self.record, trainer.data_info)
        self.record.data = {**self.record.data, **trainer.data_info}
        if hasattr(trainer.model, "peft_config"):
            self._check_space(trainer.model)

    def run_training(self, checkpoint: Path | None, progress: Progress) -> None:
        """Trains from a checkpoint, or from the beginning, and records how far.

        Raises:
            Interrupted: it was stopped before its last step.
            ConfigError: it ended without a step.
        """
        from holdfast.training.callbacks import StopOnSignal

        args = self.config.training
        began = time.monotonic()
        with StopOnSignal(self.console) as stop:
            self.trainer.add_callback(stop)
            try:
                self.trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
            finally:
                progress.close()
        self.stopped = stop.stopped
        state = self.trainer.state
        if state.global_step == 0 and not stop.stopped:
            raise ConfigError(
                "No optimiser step was taken, because the training data has fewer rows than a "
                "batch (per_device_train_batch_size times the number of processes). "
                "An incomplete batch is left out if dataloader_drop_last is set or answers are "
                "sampled. Give more rows, or lower per_device_train_batch_size."
            )
        logged = [row for row in self.folder.metrics() if "loss" in row]
        seconds = max(
            (float(row.get("seconds", 0.0)) for row in logged), default=time.monotonic() - began
        )
        tokens = int(getattr(self.trainer, "tokens_seen", 0))
        best = state.best_global_step if args.load_best_model_at_end else None
        final = dict(logged[-1]) if logged else {}
        final.pop("seconds", None)
        result_step = {"result_step": best} if best else {}
        rate = round(tokens / seconds, 1) if seconds > 0 else 0.0
        self.record.training = {
            **self.record.training,
            "steps": state.global_step,
            **result_step,
            "total_steps": state.max_steps,
            "epochs": state.epoch,
            "tokens": tokens,
            "seconds": round(seconds, 2),
            "tokens_per_second": rate,
            "final": final,
        }
        if state.global_step < state.max_steps and stop.stopped:
            again = "Run the same command to continue."
            if args.save_only_model:
                again = (
                    "The same command starts over, because save_only_model: true keeps nothing to "
                    "continue from."
                )
            raise Interrupted(
                f"Interrupted at step {state.global_step} of {state.max_steps}; a checkpoint is in "
                f"{self.folder.path}. {again}"
            )

    def stops_early(self) -> list[TrainerCallback]:
        """What ends training once held-out rows are not predicted better any more."""
        from holdfast.training.callbacks import EarlyStopping

        patience = self.config.holdfast.early_stopping_patience
        return [] if patience is None else [EarlyStopping(patience, say=self.note)]

    def measures_along(self, metrics: MetricsFile) -> list[TrainerCallback]:
        """What measures while the model is trained; `metrics`: whose clock does not count the time
        for it."""
        from holdfast.reports.along import point_line
        from holdfast.runs.measuring import KeepAt, MeasureAt, Point, StopEarly
        from holdfast.runs.tracking import evaluation_figures

        plan = self.config.evaluation
        if plan.along is None:
            return []
        if int(os.environ.get("WORLD_SIZE") or 1) > 1:
            return [
                KeepAt(plan.along, self.folder.path / KEPT, self.folder.along, self.keep_weights)
            ]
        measured: set[int] = set()

        def reached(point: Point) -> None:
            if point.step in measured:  # two shares at one step
                return
            measured.add(point.step)
            say(self.console, f"  {point_line(point.step, aside(point))}")

        def aside(point: Point) -> list[Evaluation]:
            began = time.monotonic()
            evaluations = point.measure()
            metrics.leave_out(time.monotonic() - began)
            self.trackers.add(evaluation_figures(evaluations), point.step)
            return evaluations

        deciding = [self.config.key, self.record.model["hash"], self.record.data.get("hash")]
        shared: dict[str, Any] = {
            "along": plan.along, "folder": self.folder.along, "key": fingerprint(deciding),
            "start": self.folder.evaluated("start"), "tokenizer": self.tokenizer,
            "processor": self.reads_images,
        }  # fmt: skip
        callbacks = [MeasureAt(plan=plan.on_the_way, reached=reached, **shared)]
        if rules := self.config.holdfast.stop_rules:
            callbacks.append(StopEarly(rules, plan=plan, reached=aside, say=self.note, **shared))
        return callbacks

    def keep_weights(self, folder: Path) -> None:
        """Writes the model as it is, in the middle of training; called by every process."""
        from holdfast.training.checkpoint_folders import remove_folder

        staging, together = folder.with_name(f".{folder.name}"), self.trainer.accelerator
        if self.main:
            remove_folder(staging)
        together.wait_for_everyone()
        self.trainer.save_model(str(staging), _internal_call=True)
        together.wait_for_everyone()
        if self.main:
            os.replace(staging, folder)
        together.wait_for_everyone()

    def measure_kept(self) -> bool:
        """Measures what several processes wrote down along training (`KeepAt`); whether there was
        anything, so that other weights are in memory now."""
        from holdfast.training.checkpoint_folders import remove_folder

        folders = sorted(
            (self.folder.path / KEPT).glob("step-*"),
            key=lambda path: int(path.name.removeprefix("step-")),
        )
        if not folders or self.config.evaluation.along is None:
            return False
        self.stage("evaluate along", f"Evaluating {len(folders)} steps of the training")
        for folder in folders:
            step = folder.name.removeprefix("step-")
            if self.main or self.processes.world_size > 1:
                self.load_weights(folder)
                identity = {"name": f"step {step}", "hash": checkpoint_hash(folder)}
                plan, target = self.config.evaluation.on_the_way, self.folder.along / folder.name
                self.evaluate_into(EvaluationFolder(target), plan, self.model, identity)
        if self.main:
            remove_folder(self.folder.path / KEPT)
        return True

    def note_unmeasured(self) -> None:
        """Says which steps were asked for and not measured: the run has no such steps, or had been
        there already."""
        along, total = self.config.evaluation.along, int(self.record.training.get("steps") or 0)
        if along is None or not total:
            return
        candidates = [*range(1, total), *along.steps]
        steps = sorted({step for step in candidates if step > total or along.reached(step, total)})
        left = [str(step) for step in steps if not (self.folder.along / f"step-{step}").is_dir()]
        if left:
            listed = ", ".join(left[:8]) + (f" and {len(left) - 8} more" if len(left) > 8 else "")
            self.note(
                f"Not measured along training: step {listed}. The run has {total} steps. A step "
                "can be measured only if it was requested before training reached it."
            )

    def note_loss(self, backend: str) -> None:
        """Told by the trainer in the first step: how the loss is computed, for the log and the
        record; how many steps there will be is known by then, too."""
        self.record.training |= {"loss": backend, "total_steps": self.trainer.state.max_steps}
        self.write()
        say(self.console, f"Loss: {backend}")

    def save(self) -> None:
        from holdfast.checkpoints.named import name_base
        from holdfast.training.checkpoint_folders import remove_folder, sync_folder

        staging = self.folder.path / ".final"
        if (
            self.main
        ):  # only one process: another that comes late would remove what this one is writing
            remove_folder(staging)
        self.trainer.accelerator.wait_for_everyone()
        with self.status("Saving the model"):
            try:
                self.trainer.save_model(str(staging), _internal_call=True)
            except BaseException:
                if self.main:
                    # half a model is worth nothing, and its space may be what is missing
                    remove_folder(staging)
                raise
            if self.main:
                # a pickle that nothing here reads
                (staging / "training_args.bin").unlink(missing_ok=True)
                name_base(
                    staging, self.config.model.model_name_or_path, self.config.model.model_revision
                )
                sync_folder(staging)
                for item in sorted(staging.iterdir()):
                    if item.is_dir():
                        remove_folder(self.folder.path / item.name)
                    os.replace(item, self.folder.path / item.name)
                remove_folder(staging)
            self.trainer.accelerator.wait_for_everyone()  # other ranks read the folder only when it is whole
            self.model = self.trainer.accelerator.unwrap_model(
                self.trainer.model, keep_fp32_wrapper=False
            )
            self.record.distance = self._distances(self.model)
            self.note_rounded_away(self.model)
        self.record.training["saved"] = True
        self.write()

    def load_result(self) -> None:
        """The finished weights from disk: an earlier session trained them and this one only
        measures, or no process holds them whole."""
        self.load_weights(self.folder.path)

    def load_weights(self, folder: Path) -> None:
        """Weights of this run from a folder."""
        from holdfast import models
        from holdfast.runs.loading import load_model

        os.environ[EFFICIENT_LOADING] = "false"  # FSDP is over: every process measures
        path, trusted = str(folder), self.config.training.trust_remote_code
        if (
            self.config.training.chat_template_path is not None
        ):  # tokens may have come with the template
            self.tokenizer = models.load_tokenizer(path, trust_remote_code=trusted)
        if (folder / "adapter_config.json").is_file():
            from holdfast.training.adapters import load_adapter

            if self.trainer is not None:
                self.model = load_model(self.config)
            self.model = load_adapter(self.model, path)
        else:
            model = self.config.model
            self.model = None  # its memory is needed for the result
            self.model = models.from_pretrained(
                path,
                dtype=model.dtype,
                attn_implementation=model.attn_implementation,
                trust_remote_code=trusted,
                use_safetensors=True,
            )
        self.model.to(self.config.training.device)

    def report(self) -> None:
        from holdfast.evaluation.runner import check_whole, compare_runs

        plan = self.config.evaluation
        if self.main and plan.entries and plan.before:
            compare_runs(self.folder, plan)
        elif self.main:
            check_whole(self.folder.evaluated("result"), plan)
        self.track_result()
        self.write()

    def track_result(self) -> None:
        """Hands the trackers what was measured of the result, and the differences."""
        from holdfast.runs.tracking import Trackers, comparison_figures, evaluation_figures

        step = int(
            self.record.training.get("result_step") or self.record.training.get("steps") or 0
        )
        figures = evaluation_figures(self.folder.evaluated("result").all()) if self.main else {}
        if figures and self.trackers is None:  # trained by an earlier session
            self.trackers = Trackers(self.config.training)
            self.trackers.begin(self.model, step)
        if figures:
            self.trackers.add({**figures, **comparison_figures(self.folder.comparisons())}, step)

    def write_pages(self) -> None:
        from holdfast.reports.card import write_model_card
        from holdfast.reports.run_report import print_run_summary, write_run_report

        if self.main:
            write_run_report(self.folder)
            write_model_card(self.folder)
            if self.alone:
                print_run_summary(self.folder, self.console)

    def push(self) -> None:
        if self.config.training.push_to_hub and self.trainer is not None:
            self.trainer.push_to_hub(dataset_name=self.config.script.dataset_name)

    # -------------------------------------------------------------------------------------- helpers

    def stage(self, name: str, announcement: str = "") -> None:
        self._count_seconds()
        self.record.stage = name
        self.write()
        if announcement and self.main:
            say(self.console, announcement)

    def _count_seconds(self) -> None:
        """Adds the time since the last call to the stage that is ending, over all sessions:
        `training.stages`, in seconds."""
        now = time.monotonic()
        stages = self.record.training.setdefault("stages", {})
        stages[self.record.stage] = round(
            stages.get(self.record.stage, 0.0) + now - self.entered, 3
        )
        self.entered = now

    def end(self, status: str, error: str | None = None) -> None:
        self.record.status = status
        self.record.error = error
        if status == "finished":
            self.write()
            if self.trackers is not None:
                self.trackers.close()
            return
        self._count_seconds()
        # What stopped the run matters more than a record or a page that cannot be written, on a
        # full disk for example.
        with contextlib.suppress(Exception):
            if self.trackers is not None:
                self.trackers.close()
        with contextlib.suppress(Exception):
            self.write()
            if self.main and self.folder.metrics_file.is_file():
                from holdfast.reports.run_report import write_run_report

                write_run_report(self.folder)

    def keep(self) -> None:
        if self.new_folder is not None:
            self.new_folder.keep()

    def write(self) -> None:
        if self.main:
            self.folder.write(self.record)

    def note(self, text: str) -> None:
        if text not in self.record.notes:
            self.record.notes.append(text)
            if self.main:
                say(self.console, f"Note: {text}")

    def status(self, text: str) -> Any:
        from rich.markup import escape

        return (
            self.console.status(escape(text))
            if self.console.is_terminal and self.main
            else contextlib.nullcontext()
        )

    def last_checkpoint(self) -> str:
        """`, the last checkpoint is checkpoint-40`, or nothing where this run has none; for the end
        of a sentence."""
        from holdfast.training.checkpoint_folders import checkpoints_in

        step = self.trainer.state.global_step if self.trainer is not None else 0
        checkpoints = checkpoints_in(self.folder.path, before=step + 1)
        return f", the last checkpoint is {checkpoints[-1].name}" if checkpoints else ""

    def _own_progress(self, progress: Any) -> None:
        from transformers import PrinterCallback, ProgressCallback

        self.trainer.remove_callback(ProgressCallback)
        self.trainer.remove_callback(PrinterCallback)
        self.trainer.add_callback(progress)

    def _check_space(self, model: Any) -> None:
        """Refuses what is certain to fail: no room for one checkpoint and the final weights."""
        saved = (
            [p for p in model.parameters() if p.requires_grad]
            if hasattr(model, "peft_config")
            else list(model.parameters())
        )
        weights = sum(p.numel() * p.element_size() for p in saved)
        moments = (
            0
            if self.config.training.save_only_model
            else 8 * sum(p.numel() for p in model.parameters() if p.requires_grad)
        )
        keeps = (
            str(
                getattr(
                    self.config.training.save_strategy, "value", self.config.training.save_strategy
                )
            )
            != "no"
        )
        needed = weights + (weights + moments if keeps else 0)
        free = shutil.disk_usage(self.folder.path).free
        if free < needed:
            raise RunFolderError(
                f"No room in {self.folder.path}: the final weights and one checkpoint take "
                f"{shown_bytes(needed)}, {shown_bytes(free)} are free. Free some space, or choose "
                "another output_dir. Or set save_only_model: true or save_strategy: 'no'; then an "
                "interrupted run starts over."
            )

    def note_rounded_away(self, model: Any) -> None:
        """Says where weights in half precision are mostly what they were: smaller steps are rounded
        away."""
        import torch

        from holdfast.runs.dry_run import ROUNDED

        if self.start_folder is None or not self.trainer.args.learning_rate:
            return
        if self.trainer.is_fsdp_enabled or hasattr(model, "peft_config"):
            return
        # rows of tokens that are not in the data do not move
        embeddings = model.get_input_embeddings().weight
        half = {}
        for name, parameter in model.named_parameters():
            is_trained = parameter.requires_grad and parameter is not embeddings
            if is_trained and parameter.dtype in (torch.bfloat16, torch.float16):
                half[name] = parameter.detach()
        if not half:
            return
        with CheckpointReader(self.start_folder) as reader:
            pairs = self._beside_start(reader, half)
            share = share_changed((reader.tensor(name), tensor) for name, tensor in pairs.items())
        if share < MOST_CHANGE:
            dtype = str(next(iter(half.values())).dtype).removeprefix("torch.")
            self.note(
                f"Only {100 * share:.2g} % of the trained weights differ from the initial ones. In "
                f"every step, {dtype} rounds away changes below about 1/{ROUNDED[dtype]} of a "
                "weight. Train with dtype: float32 (with bf16: true, computation stays in "
                "bfloat16), or at a higher learning_rate."
            )

    def _distances(self, model: Any) -> list[LayerDistance]:
        """How far each layer moved: stored start weights against the result, tensor by tensor;
        adapters by their merged delta."""
        if hasattr(model, "peft_config"):
            from holdfast.training.adapters import merged_weight

            pairs = []
            for name, module in model.named_modules():
                weight = getattr(getattr(module, "base_layer", None), "weight", None)
                if (
                    weight is not None
                    and hasattr(module, "get_delta_weight")
                    and weight.is_floating_point()
                ):
                    for adapter in module.active_adapters:
                        pairs.append((f"{name}.weight", weight, merged_weight(module, adapter)))
            return layer_distances(pairs) if pairs else []
        if self.start_folder is None:
            return []
        reader = CheckpointReader(self.start_folder)
        beside = self._beside_start(reader, model.state_dict())
        if len(beside) < len(reader.names()):
            self.note(
                f"The distance per layer covers {len(beside)} of {len(reader.names())} stored "
                "tensors; the others have other names or shapes."
            )
        return (
            layer_distances((n, reader.tensor(n), tensor.cpu()) for n, tensor in beside.items())
            if beside
            else []
        )

    def _beside_start(self, reader: CheckpointReader, result: Mapping[str, Any]) -> dict[str, Any]:
        """Tensors of the result, by the names of those in the start's files that have their
        shape."""
        live = {}
        for name in result:
            for stored in reversed(checkpoint_names(name)):
                live[stored] = name
        live |= {checkpoint_names(name)[0]: name for name in result}
        tensors = {}
        for name in reader.names():
            stored = checkpoint_names(name)[0]
            if stored in live and tuple(result[live[stored]].shape) == reader.shape(name):
                tensors[name] = result[live[stored]]
        return tensors
