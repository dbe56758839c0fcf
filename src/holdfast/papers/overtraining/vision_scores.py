"""What models of an overtraining study answer about pictures, family by family, and examples with their pictures.

Both are read from the samples of the test of a task whose checkpoints have a vision tower, at each budget's tuned rate.
"""

from __future__ import annotations

import base64
import io
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.papers.overtraining.plan import LEARN, OvertrainingConfig
from holdfast.papers.overtraining.record import OvertrainingRecord, SeenExample, SeenGroup, TunedModel
from holdfast.records.evaluation import EvaluationFolder

if TYPE_CHECKING:
    from holdfast.evaluation.entries import DataEntry

MOST = 6
"""Examples of a task."""
SIDE = 96
"""Pixels that an embedded picture has at most in each direction."""
Folder = Callable[[TunedModel, int], EvaluationFolder]
"""What was measured of a fine-tuned model with a seed."""


def seen_groups(record: OvertrainingRecord, config: OvertrainingConfig, folder: Folder) -> list[SeenGroup]:
    """The share of right answers of each family of questions, for every way to fine-tune at its tuned rates, mean over
    the seeds; empty where questions are not grouped.

    Args:
        record: with tuned rates.
        config: of the study.
        folder: see `Folder`.
    """
    groups = []
    for task, entry in _entries(record, config):
        for model in _tuned_models(record, task):
            families: dict[str, list[Mapping[str, Any]]] = {}
            for seed in model.seeds:
                for row in folder(model, seed).samples(LEARN, entry.name):
                    if "task" in row:
                        families.setdefault(str(row["task"]), []).append(row)
            for family, rows in families.items():
                value = statistics.fmean(row["acc"] for row in rows)
                chance = statistics.fmean(1 / len(row["choices"]) for row in rows)
                about: dict[str, Any] = {"task": task, "arm": model.arm, "checkpoint": model.checkpoint}
                n = len(rows) // len(model.seeds)
                groups.append(SeenGroup(**about, group=family, value=value, chance=chance, n=n))
    return groups


def seen_examples(record: OvertrainingRecord, config: OvertrainingConfig, folder: Folder) -> list[SeenExample]:
    """The first question of each family (the first questions, where they are not grouped), and what every checkpoint
    answers after direct fine-tuning at its tuned rate, with the first seed.

    Args:
        record, config, folder: as of `seen_groups`.
    """
    examples = []
    for task, entry in _entries(record, config):
        answers: dict[str, Sequence[Mapping[str, Any]]] = {}
        for model in _tuned_models(record, task):
            if model.arm == record.direct:
                answers[model.checkpoint] = folder(model, model.seeds[0]).samples(LEARN, entry.name)
        if not answers:
            continue
        rows = next(iter(answers.values()))
        first: dict[str, int] = {}
        for number, row in enumerate(rows):
            first.setdefault(str(row.get("task", number)), number)
        pictures = _pictures(entry)
        for family, number in list(first.items())[:MOST]:
            row, answer = rows[number], {}
            for label, of_model in answers.items():
                answer[label] = int(of_model[number]["answer"])
            examples.append(
                SeenExample(
                    task=task,
                    group=family if "task" in row else "",
                    picture=pictures(number),
                    question=str(row["question"]),
                    options=list(map(str, row["choices"])),
                    right=int(row["gold"]),
                    answers=answer,
                )
            )
    return examples


def _tuned_models(record: OvertrainingRecord, task: str) -> Iterator[TunedModel]:
    """The models of a task at the tuned rates, without those that diverged."""
    for rate in record.rates:
        model = record.model(task, rate.arm, rate.rate, rate.checkpoint) if rate.task == task else None
        if model is not None and model.seeds and not model.diverged:
            yield model


def _entries(record: OvertrainingRecord, config: OvertrainingConfig) -> Iterator[tuple[str, DataEntry]]:
    """The tasks whose checkpoints see, each with the entry that leads its test, where that is a file of choices whose
    questions are samples."""
    from holdfast.evaluation.kinds.multiple_choice import MultipleChoiceEntry

    for task in record.tasks:
        lead = record.leading(task, LEARN)
        if lead is None or not config.way_to_see(task):
            continue
        for entry in config.plan(task).entries:
            leads = (entry.suite, entry.name) == (LEARN, lead.name)
            if leads and isinstance(entry, MultipleChoiceEntry) and entry.cluster is None:
                yield task, entry


def _pictures(entry: DataEntry) -> Callable[[int], str]:
    """What gives the picture of a row by its number: PNG in base64, "" for a row without."""
    from holdfast.data.vision import stored_images, undecoded
    from holdfast.evaluation.images import RowImages
    from holdfast.evaluation.text.question_files import question_rows

    rows = undecoded(question_rows(entry))
    images = RowImages(entry, rows)

    def picture(number: int) -> str:
        stored = stored_images(rows[number], images.columns, images.folders)
        return _small(stored[0]["bytes"] or Path(stored[0]["path"]).read_bytes()) if stored else ""

    return picture


def _small(content: bytes) -> str:
    from PIL import Image

    buffer = io.BytesIO()
    with Image.open(io.BytesIO(content)) as image:
        small = image.convert("RGB")
        small.thumbnail((SIDE, SIDE))
        small.save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()
