"""Claims held against studies: a statement, where it is from, the rule that judges it, what has to
be so before the rule may speak, and the verdict: holds, does not hold, or cannot tell.

- A *warning* says that one seed, one base or one pair carries a verdict: with it left out, the
  figures themselves (their intervals at level 0) would say otherwise.
- *Family-wise*: which claims of one paper hold at once at 5 % (Holm 1979, "A simple sequentially
  rejective multiple test procedure"). A rule that holds with intervals at the level 1 - a has a
  p-value of at most a (of several parts the largest counts: intersection-union, Berger 1982), so
  that Holm's steps are looks at the rules with wider intervals.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic

from holdfast.papers.claims.requirements import Precondition
from holdfast.papers.claims.rules import HOLDS, UNKNOWN, ClaimFigure, R, Rule, joint, unknown
from holdfast.records.figure import CONFIDENCE

RULES = 2
"""Grows with every change of a rule or a bound of any paper: an outcome counts under the rules it
was judged by."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim and what a study says of it."""

    number: str
    """As in the paper's list of claims, with a letter where a number has several."""
    text: str
    recipe: str
    """The study that it is judged on."""
    paper: str
    """What the paper prints, and where."""
    verdict: str
    """"holds", "does not hold" or "cannot tell"."""
    figures: list[ClaimFigure]
    reason: str
    """Why this verdict, for people."""
    preconditions: list[Precondition] = dataclasses.field(default_factory=list)
    """Those that were looked at, met or not."""
    warnings: list[str] = dataclasses.field(default_factory=list)
    """What the verdict hangs on: one seed, one base, a way to compare."""
    family: bool | None = None
    """Whether it holds at a family-wise level of 5 % over all claims that were judged with it; None
    where it does not hold by itself."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Statement(Generic[R]):
    """One claim before it meets a study."""

    number: str
    recipe: str
    text: str
    paper: str
    rule: Rule[R]
    preconditions: Sequence[Callable[[R], Sequence[Precondition]]] = ()
    """What has to be so before the rule may speak; a function that returns none does not concern
    the record."""
    lacking: Callable[[R], str | None] = lambda record: None
    """Why neither rule nor preconditions can be applied to a record; None where they can."""
    resumable_changes: bool = True
    """Whether jobs that are not finished may change the verdict."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evidence(Generic[R]):
    """A study, as claims are held against it."""

    record: R | None
    """Finished or not; None: not run."""
    waiting: int = 0
    """Jobs that are not finished."""
    seeds: int = 2
    """Of the study; one is warned of."""
    noun: str = "trial"
    """What a job is called."""
    without: Mapping[str, R] = dataclasses.field(default_factory=dict)
    """The record with one thing left out, by the name of what is left out: "seed 1", "the base
    llama-3"."""

    @classmethod
    def of(cls, record: R | None, jobs: Iterable[Any], **about: Any) -> Evidence[R]:
        """A study with its jobs (models, trials); `about` are the other fields."""
        return cls(
            record=record, waiting=sum(job.state in ("waiting", "running") for job in jobs), **about
        )


def failed_models(models: Iterable[Any]) -> str | None:
    """Why a study with models that failed cannot be judged; None where none did."""
    count = sum(model.state == "failed" for model in models)
    return (
        f"{count} {'model' if count == 1 else 'models'} failed; the same command tries them again"
        if count
        else None
    )


def judge_claims(
    statements: Iterable[Statement[R]], evidence: Mapping[str, Evidence[R]]
) -> list[Claim]:
    """Every statement, held against the study of its recipe.

    Args:
        statements: of one paper.
        evidence: by recipe; statements about others are left out.

    Returns:
        In the order of the statements, with what of them holds family-wise.
    """
    claims: list[Claim] = []
    holds: list[Callable[[float], bool] | None] = []
    for statement in statements:
        if statement.recipe in evidence:
            study = evidence[statement.recipe]
            claims.append(_judged(statement, study))
            holds.append(_holds(statement, study) if claims[-1].verdict == HOLDS else None)
    for number in _holm(holds):
        claims[number] = dataclasses.replace(claims[number], family=True)
    return claims


def judge_records(
    statements: Iterable[Statement[R]],
    records: Mapping[str, Any],
    evidence: Callable[[Any], Evidence[R]],
) -> list[Claim]:
    """`judge_claims` of records by recipe.

    Args:
        statements: of one paper.
        records: finished or not; None: not run.
        evidence: of a record.
    """
    studies: dict[str, Evidence[R]] = {}
    for recipe, record in records.items():
        studies[recipe] = Evidence(record=None) if record is None else evidence(record)
    return judge_claims(statements, studies)


def _judged(statement: Statement[R], evidence: Evidence[R]) -> Claim:
    record = evidence.record
    lacking = "the study was not run" if record is None else statement.lacking(record)
    preconditions: list[Precondition] = []
    if record is None or lacking is not None:
        parts = [unknown(str(lacking))]
    else:
        parts = statement.rule(record, CONFIDENCE)
        for look in statement.preconditions:
            preconditions += look(record)
    by_rule = verdict = joint(condition.verdict for condition in parts)
    reasons = [condition.reason for condition in parts]
    unmet = [precondition.sentence for precondition in preconditions if not precondition.met]
    if unmet and by_rule != UNKNOWN:
        verdict = UNKNOWN
        unmet.append(f"the rule by itself: {by_rule}")
    reasons = [*unmet, *reasons]
    if evidence.waiting and statement.resumable_changes and verdict != UNKNOWN:
        are = f"{evidence.waiting} {evidence.noun}{'s are' if evidence.waiting > 1 else ' is'}"
        verdict, reasons = (
            UNKNOWN,
            [f"{are} not finished and may change it; so far: {by_rule}", *reasons],
        )
    figures: list[ClaimFigure] = []
    for condition in parts:
        figures += condition.figures
    warnings = [condition.warning for condition in parts if condition.warning]
    if verdict != UNKNOWN:
        if evidence.seeds == 1:
            warnings.append(
                "one seed: intervals cover the samples alone, and another seed may say otherwise"
            )
        warnings += _leave_one_out_warnings(statement, evidence, verdict)
    return Claim(
        number=statement.number,
        text=statement.text,
        recipe=statement.recipe,
        paper=statement.paper,
        verdict=verdict,
        figures=figures,
        reason=_sentences(reasons),
        preconditions=preconditions,
        warnings=[_sentences([warning]) for warning in dict.fromkeys(warnings)],
        family=False if verdict == HOLDS else None,
    )


def _sentences(texts: Iterable[str]) -> str:
    sentences = []
    for text in dict.fromkeys(texts):
        sentences.append(f"{text[:1].upper()}{text[1:]}.")
    return " ".join(sentences)


# ----------------------------------------------------------------------- one alone, several at once


def _leave_one_out_warnings(
    statement: Statement[R], evidence: Evidence[R], verdict: str
) -> list[str]:
    """What carries a verdict: left out, the figures themselves, whatever their intervals, would say
    otherwise."""
    names: dict[str, list[str]] = {}
    for name, record in evidence.without.items():
        other = UNKNOWN
        if statement.lacking(record) is None:
            other = joint(condition.verdict for condition in statement.rule(record, 0.0))
        if other != verdict:
            names.setdefault(other, []).append(name)
    return [
        f"{', '.join(those)} carries it: left out, the verdict would be: {other}"
        for other, those in names.items()
    ]


def _holds(statement: Statement[R], evidence: Evidence[R]) -> Callable[[float], bool]:
    """Whether the rule of a claim that holds does so with intervals of another level."""
    record = evidence.record
    assert record is not None, "a claim without a study does not hold"
    return lambda level: (
        joint(condition.verdict for condition in statement.rule(record, level)) == HOLDS
    )


def _holm(holds: Sequence[Callable[[float], bool] | None]) -> set[int]:
    """Holm's procedure at 1 - `CONFIDENCE` over claims; None for one that does not hold by itself,
    which counts in the family all the same."""
    surviving: set[int] = set()
    while True:
        level = 1 - (1 - CONFIDENCE) / max(1, len(holds) - len(surviving))
        more = set()
        for number, rule in enumerate(holds):
            if rule is not None and number not in surviving and rule(level):
                more.add(number)
        if not more:
            return surviving
        surviving |= more


def family_line(claims: Sequence[Claim]) -> str:
    """What of the claims holds at once, in a sentence."""
    both = [c.number for c in claims if c.family]
    alone = [c.number for c in claims if c.family is False]
    what = f"{len(both)} hold{'s' if len(both) == 1 else ''}"
    line = (
        f"Of {len(claims)} claims {what} at a family-wise level of 5 % "
        f"(Holm){': ' if both else ''}{', '.join(both)}."
    )
    return (
        f"{line} By {'itself' if len(alone) == 1 else 'themselves'} only: {', '.join(alone)}."
        if alone
        else line
    )


def claims_json(claims: Iterable[Claim]) -> list[dict[str, Any]]:
    """The claims as claims.json has them."""
    record = []
    for claim in claims:
        preconditions = []
        for p in claim.preconditions:
            preconditions.append(
                {**dataclasses.asdict(p), "met": p.met, "by": p.by, "sentence": p.sentence}
            )
        record.append({**dataclasses.asdict(claim), "preconditions": preconditions})
    return record
