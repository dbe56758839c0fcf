"""The paper's printed figures, held against the rules of its own claims: a study whose models are
the columns of tables 2 to 4 for Llama 3, Llama 3.1 and DocChat.

They are printed without intervals, so that verdicts are those of the points, and rest on one run
each. What a small study has to show beforehand (held-out new text, several worlds) the paper does
not print; what can be looked at, its regime among it, is (`holdfast.papers.residual.claims`).
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.evaluation.averages import SUITE as AVERAGES
from holdfast.papers.claims.rules import joint
from holdfast.papers.residual.changes import Study
from holdfast.papers.residual.claims import STATEMENTS
from holdfast.papers.residual.printed_figures import PaperColumn, columns, rows
from holdfast.records.comparison import Comparison
from holdfast.records.figure import CONFIDENCE
from holdfast.records.residual import (
    BASE,
    DERIVED,
    INSTRUCT,
    ModelPair,
    ResidualRecord,
    StudiedModel,
)
from holdfast.studies.update.outcome import questions_of

FAMILIES = {"L3b": "L3", "L3i": "L3", "L3.1b": "L3.1", "L3.1i": "L3.1", "DocChat": "DocChat"}
"""Models of the tables -> the pair that they are of."""
LEADING = {"ifeval": "prompt_level_strict_acc", "gsm8k": "exact_match,flexible-extract"}
"""Of entries with several figures, the one that the suite leads with; else the first."""
POINT = 1e-9
"""Half-width of a figure that is printed without one."""


def printed_verdicts() -> dict[str, str]:
    """What each rule says of the printed figures, preconditions aside, by the claim's number."""
    study = Study(printed_study())
    verdicts = {}
    for statement in STATEMENTS:
        parts = statement.rule(study, CONFIDENCE)
        verdicts[statement.number] = joint(p.verdict for p in parts)
    return verdicts


def printed_study() -> ResidualRecord:
    """The tables as a finished study."""
    records: dict[str, tuple[StudiedModel, PaperColumn]] = {}
    for column in columns():
        if column.start in FAMILIES:
            model = _model(column)
            records.setdefault(model.name, (model, column))
    models = [model for model, _ in records.values()]
    pairs = []
    for model, column in records.values():
        for before, question in questions_of(model, models):
            compared = list(_compared(records[before.name][1], column))
            names = {"before": before.name, "after": model.name}
            pairs.append(ModelPair(**names, question=question, comparisons=compared))
    return ResidualRecord(
        name="printed",
        kind="study",
        status="finished",
        created="",
        config={},
        families=["L3", "L3.1"],
        models=models,
        pairs=pairs,
    )


def _model(column: PaperColumn) -> StudiedModel:
    start = {"b": BASE, "i": INSTRUCT}.get(column.start[-1], DERIVED)
    residual = None if column.residual is None else FAMILIES[column.residual]
    name = "-".join(filter(None, [column.start, str(column.tokens or ""), residual]))
    return StudiedModel(
        name=name,
        label=name,
        start=start,
        family=FAMILIES[column.start],
        budget=column.tokens or None,
        tokens=column.tokens,
        residual=residual,
        scale=None if residual is None else 1.0,
        state="complete",
    )


def _compared(before: PaperColumn, after: PaperColumn) -> Iterator[Comparison]:
    entries: set[str] = set()
    for row, old, new in zip(rows(), before.values, after.values, strict=True):
        leading = LEADING.get(row.entry)
        primary = row.key == leading if leading else row.entry not in entries
        entries.add(row.entry)
        yield _comparison(("keep", row.entry, row.key), old, new, primary=primary)
    for name in before.averages.keys() & after.averages.keys():
        average = (AVERAGES, name, "average")
        yield _comparison(average, before.averages[name], after.averages[name], primary=True)


def _comparison(
    entry: tuple[str, str, str], before: float, after: float, *, primary: bool
) -> Comparison:
    suite, name, metric = entry
    change = (after - before) / 100
    return Comparison(
        suite=suite,
        name=name,
        metric=metric,
        unit="share",
        higher_is_better=True,
        n=1,
        before=before / 100,
        after=after / 100,
        difference=change,
        interval=(change - POINT, change + POINT),
        p_value=float("nan"),
        test="",
        primary=primary,
    )
