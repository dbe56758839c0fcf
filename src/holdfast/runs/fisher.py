"""The Fisher diagonal of a model on a data file, as a folder: what `holdfast fisher` does.

Data is read, tokenised and cut as in a run, and gradients are taken as in a run
(`training.method_services`), so that this is the Fisher information that EWC would compute on the
same data itself. The model's folder is not touched.

Memory: weights, one gradient and one float32 accumulator: 12 bytes a parameter in float32, 8 in
bfloat16.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from holdfast.config.declare import Meta
from holdfast.config.decode import decode
from holdfast.errors import ConfigError, Problem, RunFolderError
from holdfast.retention.fisher import (
    FILE,
    KIND,
    RECORD,
    Estimator,
    SavedFisher,
    all_ranks,
    choose_rows,
    diagonal_fisher,
    fingerprints,
    made_of,
    save_fisher,
)
from holdfast.support.environment import quiet_datasets, quiet_libraries, shown_name, versions
from holdfast.support.leftovers import scratch_folder
from holdfast.support.paths import expanded, real

if TYPE_CHECKING:
    from holdfast.runs.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class FisherSettings:
    """How a Fisher diagonal is computed."""

    samples: Annotated[int, Meta(ge=1)] = 256
    """Maximum number of samples to take from the data."""
    estimator: Estimator = "empirical"
    """Labels: those of the data, or sampled from the model."""
    seed: int = 0
    """Random seed for choosing samples and for sampling labels."""
    max_length: Annotated[int | None, Meta(ge=2)] = None
    """Maximum length of a sample in tokens. Longer samples are cut (default: 1024, at most the
    model's context)."""
    dtype: Literal["float32", "bfloat16", "auto"] = "float32"
    """Dtype of weights and gradients. Sums are in float32."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to compute on."""

    def problems(self) -> list[str | Problem]:
        """One problem if `device` names a GPU that does not exist."""
        from holdfast.runs.config import has_accelerator

        if self.device != "cuda" or has_accelerator():
            return []
        return [
            Problem("device", "expected a machine with a GPU for cuda, got one without. Use cpu.")
        ]


def compute_fisher(
    model: str | os.PathLike[str],
    data: str | os.PathLike[str],
    settings: FisherSettings = FisherSettings(),
    *,
    output_dir: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> SavedFisher:
    """Computes the diagonal Fisher information of a model on data and writes it to a folder.

    ```python
    compute_fisher("base-model", "old_task.jsonl", FisherSettings(samples=1024))      # base-model-fisher/
    ```

    Args:
        model: folder (safetensors) or hub id of a causal language model.
        data: file, folder or hub id, in any format that `holdfast train` reads. The format decides
            which tokens are trained.
        settings: number of samples, labels, dtype and device.
        output_dir: the folder to write; None: `<model>-fisher` beside the model.
        overwrite: replace a different Fisher diagonal in the folder. If the folder already has the
            result of the same request, it is not computed again.
        say: called with a few lines about the progress.

    Returns:
        The Fisher diagonal in its folder.

    Raises:
        ConfigError: values are out of range, or the model or data does not exist; the message lists
            all mistakes.
        ModelError: the model cannot be read, or its gradients are not finite.
        DataError: the data cannot be read, or has no tokens to train on.
        RunFolderError: the output folder holds something else, or cannot be written.
    """
    name, data = os.fspath(model), os.fspath(data)
    folder = expanded(output_dir) if output_dir is not None else default_folder(name)
    problems = (
        _source_problems(name, data) + decode(FisherSettings, dataclasses.asdict(settings))[1]
    )
    if problems:
        raise ConfigError(problems)
    refuse_folder(folder, overwrite=True)
    with scratch_folder(None, "holdfast-fisher-") as work, quiet_libraries(), quiet_datasets(0):
        config = _config(name, data, str(work), settings)
        host, parameters = _host(config, say)
        rows = choose_rows(host.rows(data), settings.samples, seed=settings.seed, label=data)
        described = {"name": shown_name(name), "dtype": settings.dtype}
        record = made_of(
            rows,
            fingerprints(parameters),
            estimator=settings.estimator,
            seed=settings.seed,
            data=shown_name(data),
            model=described,
        )
        if (folder / RECORD).is_file() and _made_of(folder) == record["made_of"]:
            say(f"{folder} already contains this Fisher diagonal. Nothing to do.")
            return SavedFisher(folder)
        refuse_folder(folder, overwrite=overwrite)
        say(f"Fisher information of {name} on {len(rows)} samples of {data} ({settings.estimator})")
        diagonal = diagonal_fisher(
            host,
            parameters,
            rows,
            sampled=settings.estimator == "sampled",
            seed=settings.seed,
            label=shown_name(data),
        )
        if host.first():
            save_fisher(
                folder,
                diagonal.values,
                {**record, "tokens": diagonal.tokens, "versions": versions()},
            )
        all_ranks(host, parameters, True)  # the others wait for the files
    return SavedFisher(folder)


def default_folder(model: str) -> Path:
    """`<model>-fisher` beside a model's folder; in the working directory for a hub id."""
    path = expanded(model)
    if path.is_dir():
        path = real(path)
        return path.with_name(f"{path.name}-fisher")
    return Path(f"{path.name}-fisher")


def _source_problems(model: str, data: str) -> list[Problem]:
    from holdfast.runs.config_checks import check_model, check_path

    problems = (
        check_path("data", data)
        if data
        else [Problem("data", "expected a file, folder or hub id, got nothing")]
    )
    return check_model(model, key="model") + problems


def refuse_folder(folder: Path, *, overwrite: bool) -> None:
    """Refuses a destination that holds something else.

    Raises:
        RunFolderError: it is a file, or a folder that is not empty and holds no Fisher diagonal, or
            one and `overwrite` was not asked for.
    """
    if folder.exists() and not folder.is_dir():
        raise RunFolderError(
            f"Expected a folder to write at {folder}, found a file. Choose another output_dir."
        )
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if names and set(names) != {FILE, RECORD}:
        raise RunFolderError(
            f"{folder} contains files that do not belong to a Fisher diagonal "
            f"({', '.join(names[:4])}). Choose another output_dir."
        )
    if names and not overwrite:
        raise RunFolderError(
            f"{folder} contains another Fisher diagonal ({_described(folder)}). Choose another "
            "output_dir, or add --overwrite."
        )


def _described(folder: Path) -> str:
    from holdfast.support.files import read_json

    try:
        record = read_json(folder / RECORD)
        return (
            f"{record['model'].get('name') or 'the start of a run'} on {record['samples']} samples "
            f"of {record['data']['name']}, {record['estimator']}"
        )
    except Exception:  # whatever it is, it is another one
        return KIND


def _made_of(folder: Path) -> str | None:
    from holdfast.errors import HoldfastError

    try:
        return SavedFisher(folder).record.get("made_of")
    except HoldfastError:
        return None


def _config(model: str, data: str, work: str, settings: FisherSettings) -> TrainConfig:
    from holdfast.runs.config import train_config

    more: dict[str, Any] = {"use_cpu": True} if settings.device == "cpu" else {}
    if settings.max_length is not None:
        more["max_length"] = settings.max_length
    return train_config(
        model_name_or_path=model,
        dataset_name=data,
        output_dir=work,
        dtype=settings.dtype,
        bf16=False,
        save_strategy="no",
        report_to="none",
        **more,
    )


def _host(config: TrainConfig, say: Callable[[str], None]) -> tuple[Any, dict[str, Any]]:
    """A run that never trains, as a host, and its parameters by name."""
    from datasets import Dataset

    from holdfast.data.formats import rows_by_name
    from holdfast.runs.loading import load_model, load_tokenizer
    from holdfast.training.method_services import TrainerServices
    from holdfast.training.trainers import SFTRetentionTrainer

    tokenizer = load_tokenizer(config)
    model = load_model(config)
    args = config.training
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if limit and (args.max_length is None or args.max_length > limit):
        args.max_length = limit
    nothing = [tokenizer.eos_token_id] * 2  # a trainer wants rows
    trainer = SFTRetentionTrainer(
        model=model,
        args=args,
        train_dataset=Dataset.from_list([{"input_ids": nothing, "labels": nothing}]),
        processing_class=tokenizer,
        load_rows=rows_by_name(tokenizer, say=say),
    )
    return TrainerServices(trainer, say), {
        name: p for name, p in trainer.model.named_parameters() if p.requires_grad
    }
