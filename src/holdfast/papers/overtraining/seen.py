"""What models of an overtraining study answer about pictures, family by family, and examples with their pictures.

Both are read from the samples of the test of a task whose checkpoints have a vision tower, at each budget's tuned rate.
"""

from __future__ import annotations

import base64
import io
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.papers.overtraining.plan import TEST, OvertrainingConfig
from holdfast.papers.overtraining.record import OvertrainingRecord, SeenExample, SeenGroup, TunedModel
from holdfast.records.evaluation import EvaluationFolder

if TYPE_CHECKING:
    from holdfast.evaluation.entries import DataEntry

MOST = 6
"""Examples of a task."""
SIDE = 96
"""Pixels that an embedded picture has at most in each direction."""
Folder = Any
"""`(model, seed) -> EvaluationFolder`: what was measured of a fine-tuned model."""


def seen_groups(record: OvertrainingRecord, config: OvertrainingConfig, folder: Folder) -> list[SeenGroup]:
    """The share of right answers of each family of questions, for every way to fine-tune at its tuned rates, mean over
    the seeds; empty where questions are not grouped.

    Args:
        record: with tuned rates.
        config: of the study.
        folder: see `Folder`.
    """
    found = []
    for task, entry in _entries(record, config):
        for rate in (r for r in record.rates if r.task == task):
            model = record.model(task, rate.arm, rate.rate, rate.checkpoint)
            if model is None or model.diverged:
                continue
            seeds = [folder(model, seed).samples(TEST, entry.name) for seed in model.seeds]
            for group in dict.fromkeys(str(row["task"]) for row in seeds[0] if "task" in row):
                own = [row for rows in seeds for row in rows if str(row.get("task")) == group]
                found.append(
                    SeenGroup(
                        task=task,
                        arm=rate.arm,
                        checkpoint=rate.checkpoint,
                        group=group,
                        value=statistics.fmean(row["acc"] for row in own),
                        chance=statistics.fmean(1 / len(row["choices"]) for row in own),
                        n=len(own) // len(seeds),
                    )
                )
    return found


def seen_examples(record: OvertrainingRecord, config: OvertrainingConfig, folder: Folder) -> list[SeenExample]:
    """The first question of each family (the first questions, where they are not grouped), and what every checkpoint
    answers after direct fine-tuning at its tuned rate, with the first seed.

    Args:
        record, config, folder: as of `seen_groups`.
    """
    found = []
    for task, entry in _entries(record, config):
        answered: dict[str, Sequence[Mapping[str, Any]]] = {}
        for rate in (r for r in record.rates if (r.task, r.arm) == (task, record.direct)):
            model = record.model(task, rate.arm, rate.rate, rate.checkpoint)
            if model is not None and not model.diverged and model.seeds:
                answered[rate.checkpoint] = _samples(folder, model, entry)
        if not answered:
            continue
        rows = next(iter(answered.values()))
        first: dict[str, int] = {}
        for place, row in enumerate(rows):
            first.setdefault(str(row.get("task", place)), place)
        pictures = _pictures(entry)
        for group, place in list(first.items())[:MOST]:
            row = rows[place]
            found.append(
                SeenExample(
                    task=task,
                    group=group if "task" in row else "",
                    picture=pictures(place),
                    question=str(row["question"]),
                    options=[str(option) for option in row["choices"]],
                    right=int(row["gold"]),
                    answers={label: int(own[place]["answer"]) for label, own in answered.items()},
                )
            )
    return found


def _entries(record: OvertrainingRecord, config: OvertrainingConfig) -> Iterator[tuple[str, DataEntry]]:
    """The tasks whose checkpoints see, each with the entry that leads its test, where that is a file of choices whose
    questions are samples."""
    from holdfast.evaluation.entries import ChoicesEntry

    for task in record.tasks:
        lead = record.leading(task, TEST)
        if lead is None or not config.way_to_see(task):
            continue
        for entry in config.plan(task).entries:
            own = (entry.suite, entry.name) == (TEST, lead.name)
            if own and isinstance(entry, ChoicesEntry) and entry.unit is None:
                yield task, entry


def _samples(folder: Folder, model: TunedModel, entry: DataEntry) -> list[dict[str, Any]]:
    measured: EvaluationFolder = folder(model, model.seeds[0])
    return measured.samples(TEST, entry.name)


def _pictures(entry: DataEntry) -> Any:
    """What gives the picture of the row at a place: PNG in base64, "" for a row without."""
    from holdfast.data.vision import stored_images, undecoded
    from holdfast.evaluation.images import RowImages
    from holdfast.evaluation.text.question_files import question_rows

    rows = undecoded(question_rows(entry))
    images = RowImages(entry, rows)

    def picture(place: int) -> str:
        stored = stored_images(rows[place], images.columns, images.folders)
        return _small(stored[0]["bytes"] or Path(stored[0]["path"]).read_bytes()) if stored else ""

    return picture


def _small(content: bytes) -> str:
    from PIL import Image

    buffer = io.BytesIO()
    with Image.open(io.BytesIO(content)) as image:
        shown = image.convert("RGB")
        shown.thumbnail((SIDE, SIDE))
        shown.save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()
