"""A comparison as text: Markdown that stays a table, XML that a build server reads, a terminal that stays readable."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from synthetic_runs import SOURCE_LOST, SOURCE_NOISE, comparison, shown

from holdfast.evaluation.compare.request import CompareSettings, Side
from holdfast.evaluation.compare.result import Result
from holdfast.records.comparison import GateOutcome
from holdfast.records.evaluation import EvaluationFolder
from holdfast.reports.comparison_text import comparison_junit, comparison_line, comparison_markdown, print_comparison

COMPARISONS = [comparison(), comparison(**SOURCE_LOST), comparison(**SOURCE_NOISE)]
LABELS = ("base", "tuned")
EVIL = "a|b`c <script>alert(1)</script> *x* _y_ [z](http://q) #1 @all\nnext & \x07bell"


def outcome(rule: str = "any drop > 1pt", result: str = "passed", name: str = "arc_easy", **fields) -> GateOutcome:
    known = {
        "suite": "keep",
        "metric": "acc",
        "value": 0.4,
        "interval": (-0.2, 0.9),
        "threshold": 1.0,
        "unit": "pt",
        "why": {"failed": "beyond", "passed": "within"}.get(result, "threshold inside"),
        "direction": "drop",
        "operator": ">",
    }
    return GateOutcome(rule=rule, name=name, outcome=result, **{**known, **fields})


GATES = [
    outcome("mmlu drop > 1pt", "failed", "mmlu"),
    outcome("any drop > 2%", "passed", "mmlu"),
    outcome("any drop > 2%", "undecided", "arc_easy"),
    outcome("prose rise > 3%", "passed", "prose"),
]


def many(n: int, **fields) -> list:
    return [comparison(**(SOURCE_NOISE | {"name": f"task{i}"} | fields)) for i in range(n)]


def result(comparisons=COMPARISONS, *, labels=LABELS, strict: bool = False, **fields) -> Result:
    sides = [Side(folder=EvaluationFolder(Path(label[:4])), label=label) for label in labels]
    return Result(sides=sides, comparisons=comparisons, settings=CompareSettings(strict=strict), **fields)


# ------------------------------------------------------------------------------------------------------------ markdown


def tables(markdown: str) -> list[list[list[str]]]:
    """Cells of each table, split where GitHub splits: at bars that are not escaped."""
    found: list[list[list[str]]] = []
    inside = False
    for line in markdown.splitlines():
        if line.startswith("|"):
            if not inside:
                found.append([])
            found[-1].append([c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]])
        inside = line.startswith("|")
    return found


def test_markdown_has_the_figures():
    text = comparison_markdown(
        result(COMPARISONS, gates=GATES, unmatched=["keep/x: measured only before."], notes=["Mind the gap."])
    )
    rules, rows, numbers = tables(text)
    assert text.startswith("### base → tuned\n")
    assert [r[0] for r in rules[2:]] == [
        "❌ failed",
        "⚠️ undecided, which counts as passed without --strict",
        "✅ passed",
    ]
    assert rules[2][1] == "`mmlu drop > 1pt`"
    assert "arc\\_easy" in rules[3][2] and "mmlu" not in rules[3][2], "the entries that decided"
    assert "3 rules: 1 passed, 1 failed, 1 undecided" in text
    head, _, answers, prose, arc = rows
    assert head == ["task", "verdict", "before", "after", "difference"]
    assert numbers[0] == ["task", "p", "lost / gained", "n"]
    assert answers == [
        "learn/answers `nats_per_token` ↓",
        "▲ gained",
        "3.215",
        "2.802",
        "−0.412 \\[−0.439, −0.386\\]",
    ]
    assert (prose[1], arc[1]) == ("▼ lost", "not shown")
    assert numbers[2] == ["learn/answers `nats_per_token` ↓", "&lt;0.001", "", "400"]
    assert numbers[4][2:] == ["21 / 18", "570"]
    assert "- Not compared: keep/x: measured only before." in text and "- Mind the gap." in text
    assert "95 %" in text
    assert "undecided counts as failed" not in text
    assert "undecided, which counts as failed" in comparison_markdown(result(COMPARISONS, gates=GATES, strict=True))


def test_markdown_survives_any_name():
    gates = [outcome(EVIL, "failed", EVIL, why="not finite", failed=EVIL)]
    evil = comparison(suite=EVIL, name=EVIL, metric=EVIL)
    text = comparison_markdown(result([evil], labels=(EVIL, EVIL), gates=gates, unmatched=[EVIL], notes=[EVIL]))
    for table in tables(text):
        assert len({len(cells) for cells in table}) == 1, table
    outside = re.sub(r"(?<!\\)`[^`]*`", "", text)  # inside a code span everything is text
    assert "alert(1)" in outside and "<script" not in outside
    assert "@all" not in outside, "nobody is called"
    assert not re.search(r"(?<!\\)[*_`]", outside.replace("**1 rule: 1 failed**", "").replace("**HOLD**", ""))


def test_long_markdown_shows_what_changed_and_folds_the_rest():
    text = comparison_markdown(result([*many(60), *COMPARISONS]))
    shown, _, rest, _ = tables(text)
    assert [r[1] for r in shown[2:]] == ["▲ gained", "▼ lost"]
    assert "<details>" in text and "<summary>61 more: 61 not shown</summary>" in text
    assert len(rest) == 63
    assert len(comparison_markdown(result(many(500)))) < 65_536
    assert "400 more rows are not shown." in comparison_markdown(result(many(500)))
    assert len(tables(comparison_markdown(result(many(20))))[0]) == 22


# --------------------------------------------------------------------------------------------------------------- junit

ATTRIBUTES = {
    "testsuites": set(),
    "testsuite": {"name", "tests", "failures", "errors", "time", "skipped"},
    "testcase": {"name", "time", "classname"},
    "failure": {"type", "message"},
    "skipped": {"message"},
    "system-out": set(),
}
"""All that is used of what the schema of Jenkins' xUnit plugin (junit-10.xsd) allows; what it requires is among it."""
CHILDREN = {"testsuites": {"testsuite"}, "testsuite": {"testcase"}, "testcase": {"failure", "skipped", "system-out"}}


def suite_of(content: bytes) -> ET.Element:
    """The one suite, after holding everything against the schema."""
    root = ET.fromstring(content)
    assert root.tag == "testsuites" and len(root) == 1
    for element in root.iter():
        assert set(element.attrib) == ATTRIBUTES[element.tag]
        assert {child.tag for child in element} <= CHILDREN.get(element.tag, set())
    [suite] = root
    cases = list(suite)
    counted = {
        k: sum(c.find(tag) is not None for c in cases) for k, tag in (("failures", "failure"), ("skipped", "skipped"))
    }
    assert {k: int(suite.get(k)) for k in ("tests", "failures", "skipped")} == {"tests": len(cases), **counted}
    assert float(suite.get("time")) >= 0
    return suite


def test_a_test_case_a_benchmark():
    suite = suite_of(comparison_junit(result(COMPARISONS, gates=GATES), seconds=1.5))
    cases = {(c.get("classname").removeprefix("holdfast.compare."), c.get("name")): c for c in suite}
    assert list(cases) == [
        ("learn", "answers nats_per_token"),
        ("keep", "prose nats_per_token"),
        ("keep", "arc_easy acc"),
        ("keep", "mmlu acc"),
        ("keep", "prose acc"),
    ]
    failed = cases["keep", "mmlu acc"].find("failure")
    assert failed.get("message") == "mmlu drop > 1pt: drop 0.4 pt [-0.2, 0.9]: the whole interval is above 1 pt."
    assert failed.text == failed.get("message"), "what passed is not told where something failed"
    undecided = cases["keep", "arc_easy acc"].find("skipped").get("message")
    assert undecided.startswith("undecided: any drop > 2%: ")
    assert "prose rise > 3%: " in cases["keep", "prose acc"].find("system-out").text
    assert cases["learn", "answers nats_per_token"].find("system-out").text == comparison_line(COMPARISONS[0])
    strict = suite_of(comparison_junit(result(COMPARISONS, gates=GATES, strict=True)))
    assert [c.find("failure") is not None for c in strict] == [False, False, True, True, False]
    assert strict[2].find("failure").get("type") == "undecided"
    assert comparison_line(COMPARISONS[2]) in strict[2].find("failure").text


def test_junit_survives_any_text():
    bad = f"{EVIL} \x00 \ud800 \uffff ]]> \u2603"
    suite = suite_of(
        comparison_junit(
            result([], labels=(bad, bad), gates=[outcome(bad, "failed", bad, why="not finite", failed=bad)])
        )
    )
    assert "<script>alert(1)</script>" in suite[0].find("failure").get("message")
    assert "\u2603" in suite[0].get("name") and "\x07" not in suite[0].get("name")


# ------------------------------------------------------------------------------------------------------------ terminal


def printed(width: int = 80, *, ascii_only: bool = False, **options) -> str:
    return shown(lambda out: print_comparison(result(**options), out), width, ascii_only=ascii_only)


@pytest.mark.parametrize("width", [80, 120])
def test_the_terminal_has_the_figures_and_cuts_nothing(width):
    text = printed(width, gates=GATES, unmatched=["keep/x: measured only before."], notes=["Mind the gap."])
    for figure in (
        "3.215",
        "−0.412",
        "[−0.439, −0.386]",
        "<0.001",
        "21 / 18",
        "570",
        "not shown",
        "lost",
        "gained",
    ):
        assert figure in text, figure
    assert max(len(line) for line in text.splitlines()) <= width
    assert "…" not in text
    assert "UNDECIDED  any drop > 2% (1 of 2), which counts as passed without --strict" in " ".join(text.split("\n"))
    lines = text.splitlines()
    assert [line.partition(",")[0] for line in lines if line.startswith(("PASS", "FAIL", "UNDECIDED"))] == [
        "FAIL       mmlu drop > 1pt",
        "UNDECIDED  any drop > 2% (1 of 2)",
        "PASS       prose rise > 3%",
    ]
    assert "Not compared: keep/x: measured only before." in text and "Note: Mind the gap." in text


def test_strict_is_said_and_markup_is_text():
    assert "UNDECIDED  any drop > 2% (1 of 2), which counts as failed" in printed(strict=True, gates=GATES)
    assert "[red]x[/red]" in printed(notes=["[red]x[/red]"], comparisons=[])


def test_an_ascii_terminal_gets_ascii():
    text = printed(ascii_only=True, gates=GATES)
    assert text.isascii() and "-0.412" in text and "base -> tuned" in text
