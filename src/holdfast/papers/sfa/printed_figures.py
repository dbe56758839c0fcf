"""The figures that "Soup to Go" prints, as a record of a study, so that its claims can be held
against its own tables by the rules that ours are held to.

The paper prints one figure a model, without seeds or intervals. Here each counts as exact: what a
rule says of it is what the point values say. Preconditions are not asked for.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.papers.claims.rules import joint
from holdfast.papers.sfa.claims import RECIPE, STATEMENTS
from holdfast.records.figure import CONFIDENCE, Figure
from holdfast.records.sequence import MERGE, SEQUENTIAL, ArmResult, SequenceRecord, TaskScore

MERGES = ("task_arithmetic", "ties")


@functools.cache
def printed() -> dict[str, Any]:
    """`printed_figures.yaml`."""
    import yaml

    content: dict[str, Any] = yaml.safe_load(
        Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    )
    return content


def printed_record(name: str) -> SequenceRecord:
    """One of the tables as a record.

    Args:
        name: a key of `printed`, such as "math-law, Llama 2 7B".
    """
    content = printed()[name]
    order, keys = list(content["order"]), list(content["scores"])
    tasks: dict[str, TaskScore] = {}
    entries: dict[str, TaskScore] = {}
    for key, before in zip(keys, content["base"], strict=True):
        task, _, entry = key.partition("/")
        about = TaskScore(
            suite=task,
            name=entry or task,
            metric="acc",
            unit="accuracy",
            higher_is_better=True,
            before=before,
        )
        (entries if entry else tasks)[key] = about
    arms = []
    for label, row in {**content["arms"], "single": content["single"]}.items():
        arms.append(_arm(label, row, content))
    return SequenceRecord(
        name=name,
        status="finished",
        created="",
        finished="",
        config={},
        tasks=tasks,
        entries=entries,
        orders=[order],
        seeds=[0, 1],
        models=[],
        arms=arms,
    )


def _arm(label: str, row: Sequence[float | None], content: Mapping[str, Any]) -> ArmResult:
    import yaml

    parsed = yaml.safe_load(label)
    method, parameters = (parsed, {}) if isinstance(parsed, str) else next(iter(parsed.items()))
    is_merge = method in MERGES
    scores, against = {}, {}
    sequential = content["arms"][SEQUENTIAL]
    for key, value, reference in zip(content["scores"], row, sequential, strict=True):
        if value is not None:
            scores[key] = _exact(value)
            against[key] = _exact(value - reference)
    distance = content.get("distances", {}).get(label)
    return ArmResult(
        arm=label,
        kind=MERGE if is_merge else method,
        strength=None,
        order=list(content["order"]),
        retention=[{method: parameters}] if method == "sfa" else [],
        merge={"method": method, **parameters} if is_merge else {},
        scores=scores,
        against={} if method == SEQUENTIAL else against,
        distance=None if distance is None else _exact(distance),
    )


def _exact(value: float) -> Figure:
    """A figure that is taken as it stands: two seeds that agree have an interval without width."""
    return Figure(value=value, by_seed={0: value, 1: value})


def printed_verdicts() -> dict[str, dict[str, str]]:
    """What the rules of the language tasks say of the printed figures: by claim and table."""
    verdicts: dict[str, dict[str, str]] = {}
    for statement in STATEMENTS:
        if statement.recipe == RECIPE:
            by_table = {}
            for name in printed():
                parts = statement.rule(printed_record(name), CONFIDENCE)
                by_table[name] = joint(p.verdict for p in parts)
            verdicts[statement.number] = by_table
    return verdicts
