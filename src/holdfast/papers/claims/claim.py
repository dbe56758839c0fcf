"""Claims held against studies: a statement, where it is from, the rule that judges it, what has to
be so before the rule may speak, and the verdict: holds, does not hold, or cannot tell.

- A *warning* says that one seed, one base or one pair carries a verdict: with it left out, the
  figures themselves (their intervals at level 0) would say otherwise.
- *Family-wise*: which claims hold at once at 5 % (Holm 1979, "A simple sequentially rejective
  multiple test procedure"). The paper's own claims are one family, ours on the same paper another.
  A rule that holds with intervals at the level 1 - a has a p-value of at most a (of several parts
  the largest counts: intersection-union, Berger 1982), so that Holm's steps are looks at the rules
  with wider intervals. One seed or one world shows no spread between worlds: what rests on one may
  hold by itself, and never family-wise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic

from holdfast.papers.claims.requirements import Precondition
from holdfast.papers.claims.rules import HOLDS, UNKNOWN, ClaimFigure, R, Rule, joint, unknown
from holdfast.records.figure import CONFIDENCE

RULES = 3
"""Grows with every change of a rule or a bound of any paper: an outcome counts under the rules it
was judged by."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim and what a study says of it. Sentences on it are made when they are shown."""

    number: str
    """As in the paper's list of claims, with a letter where a number has several."""
    text: str
    recipe: str
    """The study that it is judged on."""
    paper: str
    """What the paper prints, and where."""
    ours: bool = False
    """Not the paper's: added here."""
    verdict: str
    """"holds", "does not hold" or "cannot tell"."""
    by_rule: str
    """What the rule says by itself, whatever the preconditions."""
    parts: list[str]
    """What the rule says of each of its parts, as clauses."""
    figures: list[ClaimFigure]
    preconditions: list[Precondition] = dataclasses.field(default_factory=list)
    """Those that were looked at, met or not."""
    waiting: int = 0
    """Jobs that are not finished and may change the verdict."""
    noun: str = "trial"
    """What a job is called."""
    one_seed: bool = False
    """Whether it rests on one training seed or one world."""
    carried_by: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    """Seeds, bases or pairs that the verdict depends on, by the verdict that the figures give
    without them."""
    hints: list[str] = dataclasses.field(default_factory=list)
    """What else a reader has to know of its parts, as clauses."""
    family: bool | None = None
    """Whether it holds at a family-wise level of 5 % over all claims of its family that were judged
    with it; None where it does not hold by itself, or rests on one seed."""

    @property
    def unmet(self) -> list[Precondition]:
        """The preconditions that are not met."""
        return [precondition for precondition in self.preconditions if not precondition.met]

    @property
    def reason(self) -> str:
        """Why this verdict, for people."""
        reasons = [precondition.sentence for precondition in self.unmet]
        if reasons and self.by_rule != UNKNOWN:
            reasons.append(f"without preconditions, the verdict would be: {self.by_rule}")
        if self.waiting:
            are = f"{self.waiting} {self.noun}{'s are' if self.waiting > 1 else ' is'}"
            late = f"{are} not finished and may change the verdict; so far: {self.by_rule}"
            reasons = [late, *reasons]
        return _sentences([*reasons, *self.parts])

    @property
    def warnings(self) -> list[str]:
        """What the verdict hangs on: one seed, one base, a way to compare."""
        clauses = list(self.hints)
        if self.one_seed and self.verdict != UNKNOWN:
            clauses.append(
                "the study has only one seed or world, so intervals cover only the samples, and "
                "another seed may give another verdict"
            )
        for other, names in self.carried_by.items():
            clauses.append(
                f"the verdict depends on {', '.join(names)}: without it, the verdict would be: "
                f"{other}"
            )
        return [_sentences([clause]) for clause in dict.fromkeys(clauses)]

    def to_json(self) -> dict[str, Any]:
        """As claims.json has it."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Claim:
        """As it was before `to_json`.

        Raises:
            TypeError: a claim of another version.
        """
        figures = [ClaimFigure(**figure) for figure in stored["figures"]]
        preconditions = [Precondition(**precondition) for precondition in stored["preconditions"]]
        return cls(**{**stored, "figures": figures, "preconditions": preconditions})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Statement(Generic[R]):
    """One claim before it meets a study."""

    number: str
    recipe: str
    text: str
    paper: str
    rule: Rule[R]
    ours: bool = False
    """Not the paper's: added here, and judged in a family of its own."""
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
    """Training seeds or worlds of the study; a verdict on one is warned of, and holds in no
    family."""
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
        f"{count} {'model' if count == 1 else 'models'} failed; run the same command to retry"
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
    families: dict[bool, dict[int, Callable[[float], bool] | None]] = {False: {}, True: {}}
    for statement in statements:
        if statement.recipe not in evidence:
            continue
        study = evidence[statement.recipe]
        claim = _judged(statement, study)
        candidate = claim.verdict == HOLDS and not claim.one_seed
        families[claim.ours][len(claims)] = _holds(statement, study) if candidate else None
        claims.append(claim)
    for family in families.values():
        surviving = _holm(family)
        for number, rule in family.items():
            if rule is not None:
                claims[number] = dataclasses.replace(claims[number], family=number in surviving)
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
    waiting = 0
    if not all(precondition.met for precondition in preconditions):
        verdict = UNKNOWN
    if evidence.waiting and statement.resumable_changes and verdict != UNKNOWN:
        verdict, waiting = UNKNOWN, evidence.waiting
    figures: list[ClaimFigure] = []
    for condition in parts:
        figures += condition.figures
    is_decided = verdict != UNKNOWN
    return Claim(
        number=statement.number,
        text=statement.text,
        recipe=statement.recipe,
        paper=statement.paper,
        ours=statement.ours,
        verdict=verdict,
        by_rule=by_rule,
        parts=[condition.reason for condition in parts],
        figures=figures,
        preconditions=preconditions,
        waiting=waiting,
        noun=evidence.noun,
        one_seed=evidence.seeds == 1 or any(figure.seeds == 1 for figure in figures),
        carried_by=_carried_by(statement, evidence, verdict) if is_decided else {},
        hints=[condition.warning for condition in parts if condition.warning],
    )


def _sentences(texts: Iterable[str]) -> str:
    sentences = []
    for text in dict.fromkeys(texts):
        sentences.append(f"{text[:1].upper()}{text[1:]}.")
    return " ".join(sentences)


# ----------------------------------------------------------------------- one alone, several at once


def _carried_by(
    statement: Statement[R], evidence: Evidence[R], verdict: str
) -> dict[str, list[str]]:
    """Seeds, bases or pairs that a verdict depends on, by the verdict that the figures (intervals
    at level 0) give without them."""
    names: dict[str, list[str]] = {}
    for name, record in evidence.without.items():
        other = UNKNOWN
        if statement.lacking(record) is None:
            other = joint(condition.verdict for condition in statement.rule(record, 0.0))
        if other != verdict:
            names.setdefault(other, []).append(name)
    return names


def _holds(statement: Statement[R], evidence: Evidence[R]) -> Callable[[float], bool]:
    """Whether the rule of a claim that holds does so with intervals of another level."""
    record = evidence.record
    assert record is not None, "expected a verdict other than 'holds' for a claim without a study"
    return lambda level: (
        joint(condition.verdict for condition in statement.rule(record, level)) == HOLDS
    )


def _holm(holds: Mapping[int, Callable[[float], bool] | None]) -> set[int]:
    """Holm's procedure at 1 - `CONFIDENCE` over the claims of a family, by number; None for one
    that does not hold by itself, which counts in the family all the same."""
    surviving: set[int] = set()
    while True:
        level = 1 - (1 - CONFIDENCE) / max(1, len(holds) - len(surviving))
        more = set()
        for number, rule in holds.items():
            if rule is not None and number not in surviving and rule(level):
                more.add(number)
        if not more:
            return surviving
        surviving |= more


def family_lines(claims: Sequence[Claim]) -> list[str]:
    """What of the claims holds at once, a sentence or two for each family that has claims."""
    of_paper = [claim for claim in claims if not claim.ours]
    ours = [claim for claim in claims if claim.ours]
    lines = []
    for of_whom, family in (("the paper", of_paper), ("ours", ours)):
        if family:
            lines.append(_family_line(family, of_whom))
    return lines


def _family_line(claims: Sequence[Claim], of_whom: str) -> str:
    both = [c.number for c in claims if c.family]
    alone = [c.number for c in claims if c.family is False]
    single = [c.number for c in claims if c.family is None and c.verdict == HOLDS]
    count = f"{len(claims)} claim{'' if len(claims) == 1 else 's'} of {of_whom}"
    holds = f"{len(both)} hold{'s' if len(both) == 1 else ''}"
    line = (
        f"Of {count}, {holds} at a family-wise level of 5 % "
        f"(Holm){': ' if both else ''}{', '.join(both)}."
    )
    if alone:
        line += f" Without the Holm correction, these claims also hold: {', '.join(alone)}."
    if single:
        line += (
            " These claims hold, but are not counted, because they rest on one seed or world: "
            f"{', '.join(single)}."
        )
    return line
