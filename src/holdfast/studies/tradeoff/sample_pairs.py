"""How far the trials of a study gain on the same samples, read from what their runs have measured."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from holdfast.evaluation.compare.contributions import independent, sample_correlation
from holdfast.records.run import RunFolder
from holdfast.records.study import StudyRecord
from holdfast.statistics.gains import incomplete
from holdfast.support.progress import progress


def with_correlations(record: StudyRecord, folder: Path) -> StudyRecord:
    """The record with the correlations of its complete trials over the samples of its objectives' entries.

    Trials that are left out (their samples are on another machine, or the metric is an average of entries, which has no
    samples of its own) are counted in a note: their parts of the noise are taken as independent.

    Args:
        record: of a study.
        folder: its own.
    """
    whole = [trial for trial in record.trials if incomplete(trial, record) is None]
    objectives = (record.target, record.source, record.chooses_by)
    entries = list(dict.fromkeys(entry for objective in objectives for entry in objective.entries))
    changes = {
        trial.number: [
            (run.evaluated("start"), run.evaluated("result"))
            for run in (RunFolder(folder / r.folder) for r in trial.runs if r.seed in record.seeds)
        ]
        for trial in whole
    }
    found, notes = [], list(record.notes)
    with progress("Samples of the trials", total=len(entries) * len(whole)) as advance:
        for entry in entries if len(whole) > 1 else ():
            one, left_out = sample_correlation(entry, changes, advance)
            found += [] if one is None else [one]
            notes += [independent(entry, left_out, len(whole), "complete trials")] if left_out else []
    return dataclasses.replace(record, correlations=found, notes=notes)
