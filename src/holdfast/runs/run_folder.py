"""The run folder's rules: what may be continued, what is refused, what a killed process left
behind.

A folder holds one run. The same settings continue it; other settings, other data or another start
model are refused once training has begun, so that a record never tells of weights it did not make.
One process works in a folder at a time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast.checkpoints.reader import checkpoint_hash
from holdfast.errors import DataError, ModelError, RunFolderError
from holdfast.records.run import RunFolder, RunRecord
from holdfast.runs.identity import deciding
from holdfast.support.environment import hardware, now, shown_name, versions
from holdfast.support.files import fingerprint, read_object
from holdfast.support.inputs import AS_SAVED, hold_to, inputs_of
from holdfast.support.paths import real

ENDED = ".not_finite.json"
"""In a run's folder: how one of several processes ended whose figures were not finite, for who
launched them."""

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.runs.config import TrainConfig


def run_to_continue(folder: RunFolder, config: TrainConfig) -> RunRecord | None:
    """The record of the run that `config` continues, None where it would begin a new one.

    Raises:
        RunFolderError: the folder holds another run, with the settings that differ, files that are
            no run, or a file where a folder of the run belongs. Model and data that were moved, or
            copied, are the same.
    """
    from holdfast.training.checkpoint_folders import refuse_files

    refuse_foreign(folder)
    if folder.exists():
        refuse_files(folder.path)
        record = _read(folder)
        same = record.config_key == config.key or _moved(folder, record, config)
        if not same and not _replaceable(folder, record):
            differences = config.explain_difference(record.config)
            raise RunFolderError(
                f"{folder.path} contains another run ({record.name}, {record.status}) with other "
                "settings:",
                *(f"  - {d}" for d in differences or ["(the settings that decide the weights)"]),
                "Give another output_dir, or delete the folder if the old run is not wanted.",
            )
        if same:
            return record
    return None


def _moved(folder: RunFolder, record: RunRecord, config: TrainConfig) -> bool:
    """Whether only the paths of model and data differ, and what lies there now has the content that
    the run began with."""
    paths = {name: config.resolved.get(name) for name in ("model_name_or_path", "dataset_name")}
    other = {name for name, value in paths.items() if value != record.config.get(name)}
    if not other or fingerprint(deciding({**record.config, **paths})) != config.key:
        return False
    start, known = _start_folder(config), record.model.get("hash")
    if "dataset_name" in other and record.data.get("hash") != (data_hash(config) or ""):
        return False
    if "model_name_or_path" not in other:
        return True
    return start is not None and checkpoint_hash(start) == known and _reads_alike(start, folder)


def _reads_alike(start: Path, folder: RunFolder) -> bool:
    """Whether a model's configuration, tokenizer and chat template are those that the run has
    saved, which its weights do not tell; not where it has saved none."""
    from holdfast.training.checkpoint_folders import checkpoints_in

    def of(model: Path) -> list[Any]:
        config = {k: v for k, v in read_object(model / "config.json").items() if k not in AS_SAVED}
        files = [model / name for name in ("tokenizer.json", "chat_template.jinja")]
        return [config, *(file.read_bytes() if file.is_file() else None for file in files)]

    saved = [
        path
        for path in (folder.path, *checkpoints_in(folder.path))
        if (path / "config.json").is_file()
    ]
    is_known = all((start / name).is_file() for name in ("config.json", "tokenizer.json"))
    return bool(saved) and is_known and of(start) == of(saved[0])


def _start_folder(config: TrainConfig) -> Path | None:
    from holdfast.models import model_folder

    return model_folder(config.model.model_name_or_path, config.model.model_revision)


def _read(folder: RunFolder) -> RunRecord:
    try:
        return folder.read()
    except (DataError, AttributeError, TypeError, ValueError) as error:
        raise RunFolderError(
            f"Expected the record of a run in {folder.run_file}, but it cannot be read "
            f"({error}). Restore it, give another output_dir, or delete the folder if the run is "
            "not wanted."
        ) from error


def open_run(folder: RunFolder, config: TrainConfig) -> RunRecord:
    """The record to continue, or a new one, written.

    Raises:
        RunFolderError: see `run_to_continue`.
    """
    record = run_to_continue(folder, config)
    if record is not None:
        record.config, record.config_key = config.resolved, config.key
        if record.status != "finished":
            record.status, record.error = "running", None
        return record
    record = RunRecord(
        name=real(folder.path).name,
        config=config.resolved,
        config_key=config.key,
        retention=[m.record() for m in config.retention],
        seed=config.training.seed,
        versions=versions(),
        hardware=hardware(),
        created=now(),
        notes=list(config.notes),
    )
    folder.write(record)
    return record


def refuse_foreign(folder: RunFolder) -> None:
    """A folder with files that are no run is not touched at all, not even by the lock."""
    if (
        not folder.exists()
        and folder.path.is_dir()
        and any(not entry.name.startswith(".") for entry in folder.path.iterdir())
    ):
        raise RunFolderError(
            "Expected a new or empty output_dir, so that none of your files is overwritten; "
            f"{folder.path} contains files that do not belong to a holdfast run. Choose another "
            "output_dir."
        )


def began_training(folder: RunFolder, record: RunRecord) -> bool:
    """Whether the folder holds steps that were paid for; before that, only evaluations, which carry
    their own keys."""
    from holdfast.training.checkpoint_folders import checkpoints_in

    return (
        bool(record.training.get("saved"))
        or folder.metrics_file.is_file()
        or bool(checkpoints_in(folder.path))
    )


def _replaceable(folder: RunFolder, record: RunRecord) -> bool:
    """A run that failed before its first step, over a wrong setting or file, leaves nothing that
    another try in its folder could spoil."""
    return record.status == "failed" and not began_training(folder, record)


def data_name(config: TrainConfig) -> str:
    name = config.script.dataset_name
    return shown_name(name) if name and not config.mixture.datasets else "mixture"


def data_hash(config: TrainConfig) -> str | None:
    """The content's hash where the training data is local, else None; with that of held-out rows
    where they choose the result."""
    from holdfast.data.sources import content_hash

    name, held_out = config.script.dataset_name, config.holdfast.eval_dataset_name
    if not name or config.mixture.datasets or not os.path.exists(name):
        return None
    chooses = (
        held_out is not None and config.training.load_best_model_at_end and os.path.exists(held_out)
    )
    watched = {rule.entry for rule in config.holdfast.stop_rules}
    choosing = [str(held_out)] if chooses else []
    for entry in config.evaluation.entries if not chooses else ():
        if f"{entry.suite}/{entry.name}" in watched:
            choosing += map(str, entry.local_files())
    return content_hash([name, *choosing] if choosing else name)


def refuse_changed_samples(folder: RunFolder, record: RunRecord, data_info: dict[str, Any]) -> None:
    """Of data that the start model wrote: the very rows that the run began with have to be there
    again.

    Args:
        data_info: what the trainer says of its data.
    """
    before = _hashes_of_samples(record.data)
    if before and before != _hashes_of_samples(data_info) and began_training(folder, record):
        raise RunFolderError(
            f"The initial model's samples differ from those with which the run in {folder.path} "
            "began. They were generated again, on another device or with other library versions. "
            "Restore the old samples (self_replay in $HOLDFAST_CACHE, or cache_dir), or choose a "
            "new output_dir."
        )


def _hashes_of_samples(data: Mapping[str, Any]) -> list[str]:
    return [mixed["rows"] for mixed in data.get("mixed", ()) if "rows" in mixed]


def images_hash(rows: Any) -> str | None:
    """Of the files that the images of prepared rows lie in; None where rows hold none."""
    from holdfast.data.vision import IMAGES, content_of_images

    return (
        content_of_images(rows) if IMAGES in (getattr(rows, "column_names", None) or ()) else None
    )


def refuse_changed_images(folder: RunFolder, record: RunRecord, images: str | None) -> None:
    if (
        images is not None
        and record.data.get("images") not in (None, images)
        and began_training(folder, record)
    ):
        raise RunFolderError(
            f"Images of the training data changed since the run in {folder.path} began. Restore "
            "the old images, or choose a new output_dir."
        )


def refuse_changed_model(
    folder: RunFolder, record: RunRecord, config: TrainConfig, identity: str
) -> None:
    if record.model.get("hash") not in (None, identity) and began_training(folder, record):
        raise RunFolderError(
            f"The model at {config.model.model_name_or_path} changed since the run in "
            f"{folder.path} began. Restore the old model, or choose a new output_dir."
        )


def hold_to_inputs(folder: RunFolder, record: RunRecord, config: TrainConfig) -> list[str]:
    """Holds a run to what the settings that decide its weights name; see `inputs.hold_to`.

    Raises:
        RunFolderError: inputs are others than those that training began with.
    """
    settings = {
        name: config.resolved[name] for name in deciding(config.resolved) if name in config.resolved
    }
    inputs = inputs_of(settings, within=folder.path)
    return hold_to(
        folder.path, inputs, begun=began_training(folder, record), what=f"the run in {folder.path}"
    )


def _images_now(config: TrainConfig) -> str | None:
    """`images_hash` of the training data as it lies there; None where rows or images went, as the
    data itself may."""
    from holdfast.runs.loading import load_processor, load_training_data

    try:
        return images_hash(load_training_data(config, load_processor(config))[0])
    except (DataError, ModelError, OSError):
        return None


def nothing_left(
    folder: RunFolder, record: RunRecord, config: TrainConfig, *, evaluated: str
) -> bool:
    """Whether everything the config asks for is there: the evaluations of this very plan on this
    very data, and pages newer than the record.

    Args:
        evaluated: fingerprint of the plan that is asked for (`evaluation.runner.plan_fingerprint`).

    Raises:
        RunFolderError: the start model or the training data is another than the one the run was
            made from.
    """
    hold_to_inputs(folder, record, config)
    if record.data.get("images") is not None:
        refuse_changed_images(folder, record, _images_now(config))
    start = _start_folder(config)
    if start is not None:
        refuse_changed_model(folder, record, config, checkpoint_hash(start))
    if record.training.get("evaluated") != evaluated:
        return False
    pages = (folder.report_file, folder.path / "README.md")
    return all(
        page.is_file() and page.stat().st_mtime_ns >= folder.run_file.stat().st_mtime_ns
        for page in pages
    )
