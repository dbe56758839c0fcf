"""One run from start to report: evaluate the start, train, save, evaluate the result, compare, write what people read.

Every stage leaves its outcome in the run folder before the next begins, so the same command after Ctrl-C, a crash or `kill -9` goes on where
it stopped and computes nothing twice. The trained weights are those of an uninterrupted run: training continues from the last whole
checkpoint with its optimiser, schedule, random state and position in the data.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.checkpoints.distance import layer_distances
from holdfast.checkpoints.reader import CheckpointReader, checkpoint_hash
from holdfast.errors import ConfigError, HoldfastError, Interrupted, RunFolderError, StorageError
from holdfast.results import LayerDistance, RunFolder, RunRecord

if TYPE_CHECKING:
    from holdfast.training.config import TrainConfig


def train(config: TrainConfig, *, console: Any = None, evaluation_cache: str | os.PathLike[str] | None = None) -> RunFolder:
    """Runs `config` to its end, or continues a run of the same config in the same folder.

    Args:
        config: see `holdfast.training.config.train_config`.
        console: a `rich.console.Console` for progress; None: a new one on standard output.
        evaluation_cache: a folder where evaluations are shared between runs (the same start is then measured once).

    Returns:
        The finished run's folder.

    Raises:
        UserError: something in the request has to change (see `holdfast.errors`).
        TrainingDiverged: a loss or gradient was not finite.
        Interrupted: Ctrl-C or SIGTERM; calling again continues.
    """
    from rich.console import Console

    console = console or Console()
    folder = RunFolder(config.training.output_dir)
    main = int(os.environ.get("RANK", "0")) == 0
    with _lock(folder.path) if main else contextlib.nullcontext():
        record = _open_run(folder, config)
        if record.status == "finished" and _nothing_left(folder, record, config):
            console.print(f"{folder.path} holds this run, finished {record.finished}. Nothing to do; give another output_dir for a new run.")
            return folder
        run = _Run(config, folder, record, console, evaluation_cache, main)
        try:
            run.go()
        except (Interrupted, KeyboardInterrupt):
            run.end("interrupted")
            raise
        except OSError as error:
            run.end("failed", str(error))
            if error.errno == 28:  # ENOSPC
                raise _disk_full(folder) from error
            raise
        except BaseException as error:
            run.end("failed", str(error).split("\n")[0])
            if "No space left" in str(error):
                raise _disk_full(folder) from error
            raise
    return folder


class _Run:
    """The stages of one run, in order. Holds what one stage hands to the next."""

    def __init__(self, config: TrainConfig, folder: RunFolder, record: RunRecord, console: Any, cache: Any, main: bool) -> None:
        self.config, self.folder, self.record, self.console, self.cache, self.main = config, folder, record, console, cache, main
        self.model: Any = None
        self.tokenizer: Any = None
        self.trainer: Any = None
        self.start_folder: Path | None = None

    def go(self) -> None:
        trained = self.record.stage in ("evaluate result", "report", "done")
        self.stage("prepare")
        self.prepare()
        self.check_evaluation()
        if self.config.evaluation.entries and self.config.evaluation.before:
            self.stage("evaluate start")
            self.evaluate("start", self.model, {"name": self.record.model["name"], "hash": self.record.model["hash"]})
        if trained:
            self.load_result()
        else:
            self.stage("train")
            self.fit()
            self.stage("save")
            self.save()
        self.stage("evaluate result")
        if self.config.evaluation.entries:
            self.evaluate("result", self.model, {"name": self.record.name, "hash": checkpoint_hash(self.folder.path)})
        self.stage("report")
        self.report()
        self.record.finished = _now()
        self.record.error = None
        self.record.stage = "done"
        self.end("finished")
        self.write_pages()
        self.push()

    # ------------------------------------------------------------------------------------------------------- stages

    def prepare(self) -> None:
        from holdfast.training.loading import load_model, load_tokenizer, model_folder

        with self.status(f"Loading {self.config.model.model_name_or_path}"):
            self.tokenizer = load_tokenizer(self.config)
            self.model = load_model(self.config)
            self.start_folder = model_folder(self.config.model.model_name_or_path, self.config.model.model_revision)
            identity = checkpoint_hash(self.start_folder) if self.start_folder else "unknown"
        known = self.record.model.get("hash")
        if known not in (None, identity):
            raise RunFolderError(
                f"The model at {self.config.model.model_name_or_path} changed since the run in {self.folder.path} began. "
                "Choose a new output_dir, or put the old model back."
            )
        self.record.model = {
            **self.record.model,
            "name": _shown_name(self.config.model.model_name_or_path),
            "hash": identity,
            "architecture": type(self.model).__name__,
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "vocabulary": self.model.get_output_embeddings().weight.shape[0],
        }
        self.record.parents = [{"role": "start", "name": self.record.model["name"], "hash": identity}]
        limit = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        if limit and (self.config.training.max_length or 0) > limit:
            self.note(f"max_length={self.config.training.max_length} is more than the model's context; {limit} is used.")
            self.config.training.max_length = limit
        self.model.to(self.config.training.device) if not getattr(self.model, "is_quantized", False) else None

    def check_evaluation(self) -> None:
        """Finds wrong columns, unknown tasks and unreadable held-out files before anything is trained."""
        from holdfast.evaluation.runner import check_plan

        if self.main and self.config.evaluation.entries:
            with self.status("Checking the evaluation suites"):
                problems = check_plan(self.config.evaluation, self.tokenizer)
            if problems:
                raise ConfigError(problems, source="evaluation")

    def evaluate(self, which: str, model: Any, identity: dict[str, Any]) -> None:
        from holdfast.evaluation.runner import evaluate

        if not self.main:
            return
        evaluate(
            model,
            self.tokenizer,
            self.config.evaluation,
            folder=self.folder,
            which=which,
            model_identity=identity,
            cache=self.cache,
            console=self.console,
        )

    def fit(self) -> None:
        from trl import get_peft_config

        from holdfast.data.sources import content_hash
        from holdfast.training.callbacks import MetricsFile, Progress, StopOnSignal
        from holdfast.training.hosts import SFTRetentionTrainer
        from holdfast.training.loading import load_eval_data, load_training_data, other_rows
        from holdfast.training.mixin import last_checkpoint, remove_folder

        config, args = self.config, self.config.training
        if self.main:
            remove_folder(self.folder.path / ".saving")
        with self.status("Reading and tokenising the training data"):
            rows, layout = load_training_data(config, self.tokenizer)
            name = config.script.dataset_name
            data_hash = content_hash(name) if name and os.path.exists(name) else str(getattr(rows, "_fingerprint", ""))
            if self.record.data.get("hash") not in (None, data_hash) and name and os.path.exists(name):
                raise RunFolderError(f"{name} changed since the run in {self.folder.path} began. Choose a new output_dir, or put the old data back.")
            progress = Progress(self.console, " with ".join(filter(None, ["Fine-tuning", ", ".join(m.name for m in config.retention)])))
            with _quiet_datasets(len(rows) if hasattr(rows, "__len__") else 10**9):
                self.trainer = SFTRetentionTrainer(
                    model=self.model,
                    args=args,
                    train_dataset=rows,
                    eval_dataset=load_eval_data(config, self.tokenizer),
                    processing_class=self.tokenizer,
                    peft_config=get_peft_config(config.model),
                    retain=config.retention,
                    load_rows=other_rows(self.tokenizer),
                    callbacks=[MetricsFile(self.folder.metrics_file)],
                )
        self._own_progress(progress)
        for note in self.trainer.data_notes:
            self.note(note)
        self.record.model["trainable"] = sum(p.numel() for p in self.trainer.model.parameters() if p.requires_grad)
        self.record.data = {"name": _shown_name(name) if name else "mixture", "hash": data_hash, "format": layout, **self.trainer.data_info}
        self.write()
        self._check_space()
        checkpoint = last_checkpoint(self.folder.path)
        sessions = self.record.training.get("sessions", 0) + 1
        self.record.training = {**self.record.training, "sessions": sessions}
        self.write()
        began = time.monotonic()
        with StopOnSignal(self.console) as stop:
            self.trainer.add_callback(stop)
            try:
                self.trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
            finally:
                progress.close()
        logged = [row for row in self.folder.metrics() if "loss" in row]
        seconds = max((float(r.get("seconds", 0.0)) for r in logged), default=time.monotonic() - began)
        tokens = int(max((r.get("tokens", 0) for r in logged), default=0))
        self.record.training = {
            **self.record.training,
            "steps": self.trainer.state.global_step,
            "total_steps": self.trainer.state.max_steps,
            "epochs": self.trainer.state.epoch,
            "tokens": tokens,
            "seconds": round(seconds, 2),
            "tokens_per_second": round(tokens / seconds, 1) if seconds > 0 else 0.0,
            "final": {k: v for k, v in (logged[-1] if logged else {}).items() if k != "seconds"},
        }
        if self.trainer.state.global_step < self.trainer.state.max_steps and stop.stopped:
            raise Interrupted(
                f"Interrupted at step {self.trainer.state.global_step} of {self.trainer.state.max_steps}; a checkpoint is in {self.folder.path}. "
                "The same command continues."
            )

    def save(self) -> None:
        from holdfast.training.mixin import remove_folder, sync_folder

        staging = self.folder.path / ".final"
        remove_folder(staging)
        self.trainer.save_model(str(staging), _internal_call=True)
        if self.main:
            (staging / "training_args.bin").unlink(missing_ok=True)  # a pickle that nothing here reads
            sync_folder(staging)
            for file in sorted(staging.iterdir()):
                os.replace(file, self.folder.path / file.name)
            remove_folder(staging)
        self.model = self.trainer.accelerator.unwrap_model(self.trainer.model, keep_fp32_wrapper=False)
        self.record.distance = self._distances()
        self.write()

    def load_result(self) -> None:
        """The finished weights, when an earlier session trained them and this one only measures."""
        from transformers import AutoModelForCausalLM

        path = str(self.folder.path)
        if (self.folder.path / "adapter_config.json").is_file():
            from peft import PeftModel

            self.model = PeftModel.from_pretrained(self.model, path)
        else:
            model = self.config.model
            self.model = AutoModelForCausalLM.from_pretrained(path, dtype=model.dtype, attn_implementation=model.attn_implementation)
        self.model.to(self.config.training.device)

    def report(self) -> None:
        from holdfast.evaluation.runner import compare_runs

        if self.main and self.config.evaluation.entries and self.config.evaluation.before:
            compare_runs(self.folder, self.config.evaluation)
        self.write()

    def write_pages(self) -> None:
        from holdfast.reports.card import write_model_card
        from holdfast.reports.run_report import write_run_report
        from holdfast.reports.terminal import print_run_summary

        if self.main:
            write_run_report(self.folder)
            write_model_card(self.folder)
            print_run_summary(self.folder, self.console)

    def push(self) -> None:
        if self.config.training.push_to_hub and self.trainer is not None:
            self.trainer.push_to_hub(dataset_name=self.config.script.dataset_name)

    # ------------------------------------------------------------------------------------------------------ helpers

    def stage(self, name: str) -> None:
        self.record.stage = name
        self.write()

    def end(self, status: str, error: str | None = None) -> None:
        self.record.status = status
        self.record.error = error
        self.write()
        if status != "finished" and self.main and self.record.training:
            with contextlib.suppress(HoldfastError):  # the page is a courtesy here; the error that stopped the run matters more
                from holdfast.reports.run_report import write_run_report

                write_run_report(self.folder)

    def write(self) -> None:
        if self.main:
            self.folder.write(self.record)

    def note(self, text: str) -> None:
        if text not in self.record.notes:
            self.record.notes.append(text)
            self.console.print(f"Note: {text}", highlight=False)

    def status(self, text: str) -> Any:
        return self.console.status(text) if self.console.is_terminal else contextlib.nullcontext()

    def _own_progress(self, progress: Any) -> None:
        from transformers import PrinterCallback, ProgressCallback

        self.trainer.remove_callback(ProgressCallback)
        self.trainer.remove_callback(PrinterCallback)
        self.trainer.add_callback(progress)

    def _check_space(self) -> None:
        """Refuses what is certain to fail: no room for one checkpoint and the final weights."""
        model = self.trainer.model
        saved = [p for p in model.parameters() if p.requires_grad] if hasattr(model, "peft_config") else list(model.parameters())
        weights = sum(p.numel() * p.element_size() for p in saved)
        moments = 0 if self.config.training.save_only_model else 8 * sum(p.numel() for p in model.parameters() if p.requires_grad)
        keeps = str(getattr(self.config.training.save_strategy, "value", self.config.training.save_strategy)) != "no"
        needed = weights + (weights + moments if keeps else 0)
        free = shutil.disk_usage(self.folder.path).free
        if free < needed:
            raise RunFolderError(
                f"No room in {self.folder.path}: the final weights and one checkpoint take {needed / 1e9:.2f} GB, {free / 1e9:.2f} GB are free. "
                "Free some space, choose another output_dir, or set save_only_model: true or save_strategy: 'no'."
            )

    def _distances(self) -> list[LayerDistance]:
        """How far each layer moved: stored start weights against the result, tensor by tensor; LoRA by its merged delta."""
        if hasattr(self.model, "peft_config"):
            pairs = []
            for name, module in self.model.named_modules():
                weight = getattr(getattr(module, "base_layer", None), "weight", None)
                if weight is not None and hasattr(module, "get_delta_weight") and weight.is_floating_point():
                    for adapter in module.lora_A:
                        pairs.append((f"{name}.weight", weight, weight + module.get_delta_weight(adapter).to(weight)))
            return layer_distances(pairs) if pairs else []
        if self.start_folder is None:
            return []
        reader, result = CheckpointReader(self.start_folder), self.model.state_dict()
        names = [n for n in reader.names() if n in result and tuple(result[n].shape) == reader.shape(n)]
        if len(names) < len(reader.names()):
            self.note(f"The distance per layer covers {len(names)} of {len(reader.names())} stored tensors; the others have other names or shapes.")
        return layer_distances((n, reader.tensor(n), result[n].cpu()) for n in names) if names else []


# --------------------------------------------------------------------------------------------------------- the folder


def _open_run(folder: RunFolder, config: TrainConfig) -> RunRecord:
    """The record to continue, or a new one.

    Raises:
        RunFolderError: the folder holds another run, or files that are no run.
    """
    if folder.exists():
        record = folder.read()
        if record.config_key != config.key:
            differences = config.explain_difference(record.config)
            shown = "\n".join(f"  - {d}" for d in differences) or "  - (the settings that decide the weights)"
            raise RunFolderError(
                f"{folder.path} holds another run ({record.name}, {record.status}), whose settings differ:\n{shown}\n"
                "Give another output_dir, or delete the folder if the old run is not wanted."
            )
        record.config = config.resolved
        if record.status != "finished":
            record.status = "running"
        return record
    if folder.path.is_dir() and any(not entry.name.startswith(".") for entry in folder.path.iterdir()):
        raise RunFolderError(
            f"{folder.path} is not empty and holds no holdfast run. Expected a new or empty output_dir, so that nothing of yours is overwritten."
        )
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"Could not make the folder {folder.path}: {error.strerror}. Choose an output_dir that can be written.") from error
    record = RunRecord(
        name=folder.path.resolve().name,
        config=config.resolved,
        config_key=config.key,
        retention=[m.describe() for m in config.retention],
        seed=config.training.seed,
        versions=versions(),
        hardware=hardware(),
        created=_now(),
        notes=list(config.notes),
    )
    folder.write(record)
    return record


def _disk_full(folder: RunFolder) -> StorageError:
    return StorageError(f"No space left on the disk of {folder.path}. Earlier checkpoints are intact; free some space and run again.")


def _nothing_left(folder: RunFolder, record: RunRecord, config: TrainConfig) -> bool:
    """Whether every evaluation the config asks for is there and the pages are written."""
    wanted = [(e.suite, e.name) for e in config.evaluation.entries]
    sides = ["result"] + (["start"] if config.evaluation.before else [])
    return folder.report_file.is_file() and all(folder.find_evaluation(side, *entry) is not None for side in sides for entry in wanted)


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """One process a folder. The kernel lets go of the lock when the process ends, however it ends.

    Raises:
        RunFolderError: another process is at work in the folder.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        handle = open(path / ".lock", "a+")  # noqa: SIM115
    except OSError as error:
        raise RunFolderError(f"Could not write in the output folder {path}: {error.strerror}. Choose an output_dir that can be written.") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunFolderError(f"Another holdfast process is at work in {path}. Wait for it, or choose another output_dir.") from None
        yield
    finally:
        handle.close()


@contextlib.contextmanager
def _quiet_datasets(rows: int) -> Iterator[None]:
    """Bars for tokenising only where it takes more than a moment."""
    import datasets

    if rows > 20_000 or datasets.are_progress_bars_disabled():
        yield
        return
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.enable_progress_bars()


def versions() -> dict[str, str]:
    """Versions of everything that can change a figure."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version()}
    for name in ("holdfast", "torch", "transformers", "trl", "peft", "accelerate", "datasets", "lm_eval", "tokenizers", "safetensors", "numpy"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def hardware() -> dict[str, Any]:
    """Processor, cores, memory and accelerators, without names of people or machines."""
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found: dict[str, Any] = {"system": platform.system(), "machine": platform.machine(), "processor": _processor(), "cores": cores}
    with contextlib.suppress(OSError, ValueError):
        found["memory_gb"] = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    found["threads"] = torch.get_num_threads()
    found["accelerators"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    return found


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def _shown_name(name: str) -> str:
    """A hub id as it is; a local path by its last part, so that reports carry no machine's paths."""
    return Path(name).resolve().name if os.path.exists(name) else name


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
