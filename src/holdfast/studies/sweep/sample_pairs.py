"""How far the trials of a study gain on the same samples, read from what their runs have
measured."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from holdfast.evaluation.compare.contributions import independent, sample_correlation
from holdfast.records.evaluation import EvaluationFolder
from holdfast.records.run import RunFolder
from holdfast.records.study import StudyRecord
from holdfast.statistics.gains import incomplete
from holdfast.support.progress import progress


def with_correlations(record: StudyRecord, folder: Path) -> StudyRecord:
    """The record with the correlations of its complete trials over the samples of its objectives'
    entries.

    Trials that are left out (their samples are on another machine, or the metric is an average of
    entries, which has no samples of its own) are counted in a note: their parts of the noise are
    taken as independent.

    Args:
        record: of a study.
        folder: its own.
    """
    entries = list(
        dict.fromkeys([*record.learn.entries, *record.keep.entries, *record.chooses_by.entries])
    )
    changes: dict[int, list[tuple[EvaluationFolder, EvaluationFolder]]] = {}
    for trial in record.trials:
        if incomplete(trial, record) is None:
            changes[trial.number] = []
            for run in trial.runs:
                if run.seed in record.seeds:
                    measured = RunFolder(folder / run.folder)
                    changes[trial.number].append(
                        (measured.evaluated("start"), measured.evaluated("result"))
                    )
    correlations, notes = [], list(record.notes)
    with progress("Samples of the trials", total=len(entries) * len(changes)) as advance:
        for entry in entries if len(changes) > 1 else ():
            correlation, left_out = sample_correlation(entry, changes, advance)
            if correlation is not None:
                correlations.append(correlation)
            if left_out:
                notes.append(independent(entry, left_out, len(changes), "complete trials"))
    return dataclasses.replace(record, correlations=correlations, notes=notes)
