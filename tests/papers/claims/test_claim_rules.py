"""What the engine does with every paper's claims: preconditions, warnings, the family, shapes."""

from __future__ import annotations

import dataclasses
import json

import pytest

from holdfast.papers.claims.claim import Claim, Evidence, Statement, family_lines, judge_claims
from holdfast.papers.claims.requirements import Requirement, at_least, at_most
from holdfast.papers.claims.rules import (
    FAILS,
    HOLDS,
    UNKNOWN,
    Check,
    ClaimFigure,
    Part,
    Rule,
    Trend,
    above,
    below,
    monotone,
    rising,
    rule,
    some,
    unknown,
    within,
)
from holdfast.records.figure import Figure, NotMeasured, rescaled
from holdfast.support.quantiles import normal_quantile


def figure(value, half, level=0.95):
    half *= rescaled(level)
    return ClaimFigure(what="x", value=value, interval=(value - half, value + half), n="", unit="")


def better(record, level):
    return [above(figure(sum(record) / len(record), 0.5, level), 1.0, yes="more than 1", no="less than 1")]


def statement(number="1", check=better, **about):
    rule = Rule("The mean lies above 1 with its interval.", check)
    return Statement(number=number, recipe="r", text="It is more.", paper="", rule=rule, **about)


PLAIN = statement()


def one(record, *, without=(), statement=None, **about):
    [found] = judge_claims([statement or PLAIN], {"r": Evidence(record=record, without=dict(without), **about)})
    return found


def test_a_claim_by_itself():
    assert one([2.0]).verdict == HOLDS and one([0.1]).verdict == FAILS and one([1.2]).verdict == UNKNOWN
    assert one([2.0]).figures[0].needs == "above 1"
    assert one(None).reason == "The study was not run."
    lacking = statement(lacking=lambda record: "nothing is there", preconditions=[lambda record: 1 / 0])
    assert one([2.0], statement=lacking).reason == "Nothing is there."
    assert judge_claims([statement()], {}) == []


def limited(value, advice="wait"):
    return statement(preconditions=[lambda record: [at_most("it is small", value, 3.0, figure="size", advice=advice)]])


def test_a_precondition_comes_before_the_rule():
    assert one([2.0], statement=limited(3.0)).verdict == HOLDS
    for record, alone in (([2.0], "holds"), ([0.1], "does not hold")):
        found = one(record, statement=limited(3.5))
        assert found.verdict == UNKNOWN
        assert found.reason.startswith(
            "Precondition not met: it is small; size is 3.5, expected at most 3, off by 0.5; wait. "
            f"Without preconditions, the verdict would be: {alone}."
        )
    open_ = one([1.2], statement=limited(3.5))
    assert "size is 3.5" in open_.reason and "preconditions" not in open_.reason
    assert "size was not measured; wait" in one([2.0], statement=limited(None)).reason
    assert one([2.0], statement=limited(float("nan"))).verdict == UNKNOWN
    [kept] = one([2.0], statement=limited(3.5)).preconditions
    assert (kept.met, kept.by, kept.sense, kept.bound) == (False, 0.5, "at most", 3.0)
    least = at_least("it is large", 2.0, 3.0, figure="size", advice="grow")
    assert (least.met, least.by) == (False, 1.0) and at_least("", 3.0, 3.0, figure="", advice="").by == 0.0


def test_what_carries_a_verdict_is_named():
    found = one([1.6, 1.6, 9.0], without=[("base a", [1.6, 9.0]), ("base b", [0.4, 0.6]), ("base c", [])][:2])
    assert found.verdict == HOLDS
    assert found.warnings == ["The verdict depends on base b: without it, the verdict would be: does not hold."]
    close = one([2.0], without=[("seed 0", [1.1]), ("seed 1", [1.2])])
    assert close.warnings == [], "the figures themselves still say so; their intervals are wider for there is less"
    lacking = statement(lacking=lambda record: None if record else "none left")
    alone = one([2.0], without=[("the pair x", [])], statement=lacking)
    assert alone.warnings == ["The verdict depends on the pair x: without it, the verdict would be: cannot tell."]
    assert one([1.2], without=[("seed 0", [9.0])]).warnings == [], "where nothing can be told nothing is carried"


def test_jobs_and_seeds():
    assert one([2.0], waiting=1).reason.startswith("1 trial is not finished and may change the verdict; so far: holds.")
    assert one([2.0], waiting=2, noun="model").reason.startswith("2 models are not finished")
    assert one([2.0], waiting=2, statement=statement(resumable_changes=False)).verdict == HOLDS
    assert "only one seed" in one([2.0], seeds=1).warnings[0] and one([1.2], seeds=1).warnings == []
    warned = statement(check=lambda record, level: [Part(verdict=HOLDS, reason="x", warning="mind the gap")])
    assert one([2.0], statement=warned).warnings == ["Mind the gap."]


def holds_at(p):
    """A rule that holds with intervals of the level 1 - a for every a of at least p."""
    half = 1.0 / rescaled(1 - p) * (1 - 1e-9)
    return lambda record, level: [above(figure(1.0, half, level), 0.0, yes="", no="")]


@pytest.mark.parametrize(
    ("p", "expected"),
    [
        ([0.01, 0.02, 0.04], [True, True, True]),  # 0.05/3, 0.05/2, 0.05
        ([0.01, 0.03, 0.04], [True, False, False]),  # 0.03 is above 0.025, and stops it
        ([0.02, 0.02, 0.02], [False, False, False]),  # none is below 0.0167
        ([0.04], [True]),
        ([0.02, 0.06], [True, None]),  # 0.05/2 for the first; the second counts, and does not hold
        ([0.03, 0.06], [False, None]),
    ],
)
def test_holms_procedure(p, expected):
    assert normal_quantile(0.975) == pytest.approx(1.959964)
    claims = judge_claims(
        [statement(str(i), holds_at(value)) for i, value in enumerate(p)], {"r": Evidence(record=[1.0])}
    )
    assert [c.family for c in claims] == expected
    [line] = family_lines(claims)
    assert line.startswith(f"Of {len(p)} claim{'s' * (len(p) > 1)} of the paper, {expected.count(True)} hold")
    assert ("also hold" in line) == (False in expected)


def test_our_claims_are_a_family_of_their_own():
    """Three of p 0.02 hold at once in no family of three; one alone, and two of another family, do or do not by
    themselves."""
    rules = [statement(str(i), holds_at(0.02), ours=i == 2) for i in range(3)]
    claims = judge_claims(rules, {"r": Evidence(record=[1.0])})
    assert [c.family for c in claims] == [True, True, True], "0.05 / 2 for the paper's, 0.05 for ours"
    assert family_lines(claims) == [
        "Of 2 claims of the paper, 2 hold at a family-wise level of 5 % (Holm): 0, 1.",
        "Of 1 claim of ours, 1 holds at a family-wise level of 5 % (Holm): 2.",
    ]


def test_one_seed_holds_in_no_family():
    whole = judge_claims([statement("1", holds_at(1e-9))], {"r": Evidence(record=[1.0], seeds=1)})
    assert (whole[0].verdict, whole[0].family) == (HOLDS, None)
    [line] = family_lines(whole)
    assert "0 hold" in line and line.endswith("are not counted, because they rest on one seed or world: 1.")

    def one_world(record, level):
        return [above(dataclasses.replace(figure(9.0, 0.5, level), seeds=1), 1.0, yes="", no="")]

    mixed = judge_claims([statement("1", one_world), statement("2", holds_at(0.001))], {"r": Evidence(record=[1.0])})
    assert [c.family for c in mixed] == [None, True] and "one seed or world" in mixed[0].warnings[0]


def test_a_figure_says_how_many_seeds_it_is_of():
    """A figure that did not would let one world hold family-wise."""
    shown = ClaimFigure.of(seeds(1.0, 2.0), what="x", level=0.95, n="2 seeds", unit="nats/token")
    assert (shown.value, shown.seeds, shown.interval) == (1.5, 2, seeds(1.0, 2.0).interval_at(0.95))
    without = Figure(value=1.0, samples_half=0.1)
    assert ClaimFigure.of(without, what="x", level=0.95, n="", unit="").seeds is None


def test_a_stored_claim_says_the_same():
    """Sentences are made from what is stored, not stored."""
    for claim in (one([2.0], statement=limited(3.5)), one([2.0], waiting=2, noun="model"), one([2.0], seeds=1)):
        stored = claim.to_json()
        assert claim.reason not in json.dumps(stored) and Claim.from_json(json.loads(json.dumps(stored))) is not None
        again = Claim.from_json(stored)
        assert (again.reason, again.warnings, again.figures) == (claim.reason, claim.warnings, claim.figures)


def seeds(*values, half=0.0):
    return Figure(value=sum(values) / len(values), by_seed=dict(enumerate(values)), samples_half=half)


def shape(*means, half=0.02, rises=True, level=0.95):
    line = [(f"weight {i}", seeds(m - 0.001, m, m + 0.001, half=half)) for i, m in enumerate(means)]
    trend = Trend(rises=rises, least=0.1, margin=0.1)
    return monotone(line, trend, what="keep", level=level, n="", unit="")


def test_a_shape_holds_where_every_step_is_shown_to_be_within_its_margin():
    assert shape(0.0, 0.3, 0.6, 0.9).verdict == HOLDS
    assert shape(0.9, 0.6, 0.3, 0.0, rises=False).verdict == HOLDS
    assert shape(0.0, 0.3, 0.25, 0.9).verdict == HOLDS, "a way back of half the margin, measured well"
    assert shape(0.0, 0.3, 0.25, 0.9, half=0.05).verdict == UNKNOWN, "and measured less well"
    assert shape(0.0, 0.3, 0.3, 0.9, half=0.1).verdict == UNKNOWN, "no step contradicts, and none is shown"
    assert shape(0.0, 0.6, 0.3, 0.9).verdict == FAILS
    assert "from weight 1 to weight 2" in shape(0.0, 0.6, 0.3, 0.9).reason
    assert shape(0.0, 0.01, 0.02).verdict == FAILS, "it rises by less than counts"
    assert shape(0.0, 0.3, 0.28, 0.26, 0.22, 0.16, 0.1, 0.9).verdict == FAILS, "small steps add up"
    assert shape(0.0, 0.3, 0.25, 0.9, half=0.05, level=0.0).verdict == HOLDS, "the figures themselves"


def test_bounds_and_equivalence():
    assert within(figure(0.0, 0.1), 0.2, yes="alike", no="not").verdict == HOLDS
    assert within(figure(0.3, 0.05), 0.2, yes="alike", no="not").verdict == FAILS
    assert within(figure(-0.3, 0.05), 0.2, yes="alike", no="not").verdict == FAILS
    assert within(figure(0.1, 0.15), 0.2, yes="alike", no="not").verdict == UNKNOWN
    assert within(figure(0.1, 0.1), 0.2, yes="alike", no="not").verdict == HOLDS
    assert below(figure(0.0, 0.1), 0.2, yes="", no="").figures[0].needs == "below 0.2"
    bare = dataclasses.replace(figure(0.0, 0.1), interval=None)
    assert within(bare, 0.2, yes="", no="").verdict == UNKNOWN and unknown("x").verdict == UNKNOWN


# ------------------------------------------------------------------------------------------------------ declared rules


@dataclasses.dataclass(frozen=True)
class Field:
    """A case: what grows on it, by how it was treated."""

    where: str
    yields: dict[str, Figure]
    unit = "kg"

    def behind(self, figure):
        return f"{len(figure.by_seed)} harvests"

    def of(self, treatment):
        if treatment not in self.yields:
            raise NotMeasured(f"the yield with {treatment}")
        return self.yields[treatment]


def field(where="north", **means):
    return Field(where, {name: seeds(mean - 0.01, mean, mean + 0.01) for name, mean in means.items()})


MORE = Check(
    what="{arm} - {other}",
    of=lambda case, arm, other: case.of(arm) - case.of(other),
    above=0.1,
    yes="{arm} beats {other} in the {case.where}",
    no="{arm} does not beat {other}",
)
POSITIVE = Check(what="yield", of=lambda case: case.of("plain"), above=0.0, yes="it grows", no="it does not")


def test_every_check_in_every_case():
    grows = rule("Plain grows.", list, POSITIVE, dataclasses.replace(POSITIVE, above=None, below=9.0, unit="g"))
    first, second, low, _ = grows([field(plain=1.0), field("south", plain=-1.0)], 0.95)
    assert (first.verdict, second.verdict, low.verdict) == (HOLDS, FAILS, HOLDS) and grows.says == "Plain grows."
    [figure_] = first.figures
    assert (figure_.what, figure_.n, figure_.unit, figure_.needs) == ("north: yield", "3 harvests", "kg", "above 0")
    assert low.figures[0].unit == "g" and low.figures[0].needs == "below 9"
    [missing] = rule("", list, POSITIVE)([field("")], 0.95)
    assert (missing.verdict, missing.reason) == (UNKNOWN, "the yield with plain was not measured")
    assert [part.verdict for part in rule("", list, POSITIVE)([], 0.95)] == [UNKNOWN], "no case is no evidence"


def test_a_rule_of_its_own_may_lack_a_figure():
    def judge(record, level):
        raise NotMeasured("rain")

    assert Rule("It rains.", judge)(None, 0.95) == [unknown("rain was not measured")]


def test_one_of_several_arms_in_every_case():
    def options(case):
        return [(rival, ["dung", "ash"]) for rival in ("plain", "sand") if case.of("dung")]

    beats = some("Dung or ash beats plain and sand.", list, options, MORE)
    parts = beats([field(plain=0.0, sand=0.2, dung=0.05, ash=0.5)], 0.95)
    assert [(part.verdict, part.reason) for part in parts] == [
        (HOLDS, "ash beats plain in the north"),
        (HOLDS, "ash beats sand in the north"),
    ]
    [none, _] = beats([field(plain=1.0, sand=1.0, dung=0.05, ash=0.5)], 0.95)
    assert (none.verdict, none.reason) == (FAILS, "dung does not beat plain; ash does not beat plain")
    [missing] = beats([field(plain=1.0)], 0.95)
    assert missing.reason == "north: the yield with dung was not measured"
    noisy = Field("", {"plain": seeds(0.0, 0.0, 0.0), "ash": seeds(0.1, 0.5, 0.9), "dung": seeds(0.0, 0.0, 0.1)})
    [part] = some("", list, lambda case: [("plain", ["ash", "dung"])], MORE)([noisy], 0.95)
    low = MORE.part(noisy, 0.95, arm="ash", other="plain").figures[0].interval[0]
    assert part.verdict == UNKNOWN and part.figures[0].interval[0] < low, "wider for two arms"


def test_a_line_that_rises():
    def line(case):
        return [(name, case.of(name)) for name in sorted(case.yields)]

    more = rising("", list, line, what="yield", least=0.1, back=lambda case: 0.1, along="dose", points=3)
    assert [part.verdict for part in more([field(a=0.0, b=0.5, c=1.0), field(a=1.0, b=0.5, c=0.0)], 0.95)] == [
        HOLDS,
        FAILS,
    ]
    [short] = more([field(a=0.0, b=1.0)], 0.95)
    assert short.reason == "north: yield at 3 points was not measured"


def test_a_requirement_of_every_case():
    needs = Requirement(
        name="{case.where} grows",
        cases=list,
        of=lambda case: case.of("plain").value,
        at_least=lambda case: 0.5 if case.where == "north" else 0.0,
        figure="yield in the {case.where}",
        advice="water it",
    )
    north, south, bare = needs([field(plain=0.2), field("south", plain=0.2), field("east")])
    assert (north.met, south.met, bare.met) == (False, True, False) and bare.value is None
    assert north.sentence == (
        "precondition not met: north grows; yield in the north is 0.2, expected at least 0.5, off by 0.3; water it"
    )
