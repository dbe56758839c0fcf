"""How far the trials of a study gain on the same samples, read from what their runs have measured."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from holdfast.errors import DataError
from holdfast.evaluation.compare.samples import join, sheet_of
from holdfast.records.run import RunFolder
from holdfast.records.study import Entry, StudyRecord, TrialRecord
from holdfast.statistics.gains import incomplete
from holdfast.statistics.samples_part import correlation
from holdfast.support.progress import progress


def with_correlations(record: StudyRecord, folder: Path) -> StudyRecord:
    """The record with the correlations of its complete trials over the samples of its objectives' entries.

    Trials whose samples are not all in the folder (made on another machine, deleted) are left out, and a note counts
    them: their parts of the noise count as independent. So do those of averages of entries, which have no samples of
    their own.

    Args:
        record: of a study.
        folder: its own.
    """
    whole = [trial for trial in record.trials if incomplete(trial, record) is None]
    objectives = (record.target, record.source, record.chooses_by)
    entries = list(dict.fromkeys(entry for objective in objectives for entry in objective.entries))
    found, lacking = [], set()
    with progress("Samples of the trials", total=len(entries) * len(whole)) as advance:
        for entry in entries:
            answered: dict[int, tuple[list[str], np.ndarray]] = {}
            for trial in whole:
                with contextlib.suppress(DataError, OSError):
                    answered[trial.number] = _influence(trial, entry, record.seeds, folder)
                advance(1)
            asked = next((samples for samples, _ in answered.values()), [])
            same = {number: w for number, (samples, w) in answered.items() if samples == asked and len(asked) > 1}
            if same:
                found.append(correlation(entry, same))
                lacking |= {t.number for t in whole} - set(same)
    notes = list(record.notes)
    if lacking:
        notes.append(
            f"the samples of {len(lacking)} of {len(whole)} complete trials are not in this folder: differences to "
            f"them and their shares of what direct fine-tuning did take samples as independent, as a rule too wide"
        )
    return dataclasses.replace(record, correlations=found, notes=notes)


def _influence(trial: TrialRecord, entry: Entry, seeds: Sequence[int], folder: Path) -> tuple[list[str], np.ndarray]:
    """The samples, by their documents' hashes, and `[n]` float64: what each contributes to the trial's change on the
    entry, mean over the seeds.

    Raises:
        DataError: samples that are not there, are not those of the evaluation, or differ between seeds.
    """
    suite, name, metric = entry
    asked: list[str] = []
    parts = []
    for run in (r for r in trial.runs if r.seed in seeds):
        sides = [RunFolder(folder / run.folder).evaluated(which) for which in ("start", "result")]
        evaluations = [e for e in (side.find(suite, name) for side in sides) if e is not None]
        if len(evaluations) < len(sides):
            raise DataError(f"{folder / run.folder}: {suite}/{name} was not measured")
        rows = join(*(side.samples(suite, name) for side in sides), what=f"{suite}/{name}")
        sheet = sheet_of(rows, evaluations, one_tokenizer=False)
        if metric not in sheet.columns:
            raise DataError(f"{suite}/{name}: {metric} {sheet.left_out.get(metric, 'was not measured')}")
        samples = [str(row["doc"]) for row in rows[0]]
        if asked and samples != asked:
            raise DataError(f"{suite}/{name}: seeds answered other samples")
        asked = samples
        parts.append(sheet.influence(metric))
    return asked, np.mean(parts, axis=0)
