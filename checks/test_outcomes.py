"""docs/claims.md is what the statements and the committed outcomes make of it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
import transformers

import packed_documents
from claim_studies import paper_like
from claims_page import NOT_RUN, add_verdicts, claims_page, known_papers
from holdfast.papers.claims.claim import RULES, Evidence, Statement, judge_claims
from holdfast.papers.claims.registry import papers
from holdfast.papers.claims.rules import FAILS, HOLDS, UNKNOWN, Part, Rule
from holdfast.papers.label_annealing.claims import RECIPES, STATEMENTS, check_claims
from holdfast.support.files import read_json, write_json

ROOT = Path(__file__).parents[1]
ORDER = [papers()[name] for name in ("label-annealing", "stages", "sfa", "overtraining", "residual")]
"""As the paper index has them."""


def test_the_page_is_made_from_the_outcomes():
    made = claims_page(known_papers(), ROOT / "docs" / "outcomes")
    assert (ROOT / "docs" / "claims.md").read_text(encoding="utf-8") == made, "stale: python docs/claims_page.py"


def test_the_list_of_architectures_is_made_from_its_file():
    page = (ROOT / "docs" / "packing.md").read_text(encoding="utf-8")
    assert packed_documents.with_list(page) == page, "stale: python docs/packed_documents.py"


@pytest.mark.slow
def test_every_architecture_keeps_documents_apart_as_the_file_says():
    found = read_json(packed_documents.OUTCOMES)
    if found["transformers"] != transformers.__version__:
        pytest.skip(f"tried with transformers {found['transformers']}: python docs/packed_documents.py --try")
    assert packed_documents.try_all(sorted(found["architectures"])) == found["architectures"]


def test_every_paper_has_its_page_with_its_verdicts():
    pages = {f"paper_{name.replace('-', '_')}": paper for name, paper in papers().items()}
    assert {path.stem for path in (ROOT / "docs").glob("paper_*.md")} == set(pages)
    for stem, paper in pages.items():
        page = (ROOT / "docs" / f"{stem}.md").read_text(encoding="utf-8")
        assert add_verdicts(page, ROOT / "docs" / "outcomes") == page, "stale: python docs/claims_page.py"
        assert re.findall("<!-- verdict: (.*?) -->", page) == [paper.name]
        assert page.startswith(f"# {paper.short}\n") and paper.title.startswith(paper.short)
        plain = " ".join(page.split())
        assert f"*{paper.title.partition(' (')[0]}" in plain and f"holdfast reproduce {paper.name}\n" in page


def test_the_paper_index_lists_every_paper():
    page = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[(.+?)\]\((paper_\w+\.md)\).*`holdfast reproduce (\S+)`", page, re.MULTILINE)
    assert rows == [(p.short, f"paper_{p.name.replace('-', '_')}.md", p.name) for p in ORDER]


def test_a_verdict_counts_the_claims(tmp_path):
    written(tmp_path, paper_like())
    page = add_verdicts("<!-- verdict: x -->\nstale\n<!-- /verdict -->", tmp_path)
    counts = Counter(c.verdict for c in check_claims(dict.fromkeys(RECIPES, paper_like())))
    assert len(counts) > 1 and "stale" not in page
    sums = f"holds {counts[HOLDS]}, does not hold {counts[FAILS]}, cannot tell {counts[UNKNOWN]}"
    own = sum(not statement.ours for statement in STATEMENTS)
    assert f"\n- medium: {sums}.\n  Of {own} claims" in page
    assert NOT_RUN in add_verdicts("<!-- verdict: y -->\n<!-- /verdict -->", tmp_path)


def written(folder, study, rules=RULES, size="medium"):
    claims = [claim.to_json() for claim in check_claims(dict.fromkeys(RECIPES, study))]
    write_json(folder / "x-medium.json", {"rules": rules, "size": size, "claims": claims})
    return claims_page({"x": ("A paper", STATEMENTS)}, folder)


def section(page, number):
    """The part of the page on a claim."""
    return page.partition(f"### {number}. ")[2].partition("\n### ")[0]


def test_an_outcome_stands_beside_the_paper(tmp_path):
    """Statement, the paper's figure, the rule, and every figure with its interval, its samples and its bound."""
    page = written(tmp_path, paper_like())
    found = section(page, "2a")
    assert "- The paper: " in found and "- Holds where: " in found
    [line] = [row for row in found.splitlines() if row.startswith("| medium ")]
    figure = "label annealing at 90 % of direct fine-tuning's gain: share of forgetting avoided: "
    assert line.startswith(f"| medium | **holds** | {figure}")
    [claim] = [c for c in check_claims(dict.fromkeys(RECIPES, paper_like())) if c.number == "2a"]
    for figure in claim.figures:
        assert f"{figure.n}; {figure.unit}" in line and figure.needs in line
    assert "Preconditions met: " in line and "| real " not in found, "nothing was run at the real scale"
    assert page.count("\n### ") == len(STATEMENTS)


def test_counts_by_verdict_stand_on_top(tmp_path):
    page = written(tmp_path, paper_like())
    claims = check_claims(dict.fromkeys(RECIPES, paper_like()))
    top = page.partition("\n### ")[0]
    for of_whom, ours in (("the paper's", False), ("ours", True)):
        family = [c for c in claims if c.ours == ours]
        counts = Counter(c.verdict for c in family)
        sums = " | ".join(str(counts[verdict]) for verdict in (HOLDS, FAILS, UNKNOWN))
        assert f"| {of_whom} ({len(family)}) | medium | {sums} | 0 |" in top
        assert f"| {of_whom} ({len(family)}) | small | 0 | 0 | 0 | {len(family)} |" in top
        assert f"Medium: Of {len(family)} claims of {'ours' if ours else 'the paper'}, " in top


def test_a_precondition_that_is_not_met_is_named(tmp_path):
    page = written(tmp_path, None)
    assert "**cannot tell**" in page and "**holds**" not in page
    short = paper_like()
    runs = [[r.__class__(**{**vars(r), "references": {}}) for r in t.runs] for t in short.trials]
    trials = [t.__class__(**{**vars(t), "runs": found}) for t, found in zip(short.trials, runs, strict=True)]
    page = written(tmp_path, short.__class__(**{**vars(short), "trials": trials}))
    assert "Precondition not met: direct fine-tuning forgets moderately" in page


@pytest.mark.parametrize("changes", [{"rules": RULES - 1}, {"size": "quick"}])
def test_outcomes_of_other_rules_and_of_a_quick_check_are_not_shown(tmp_path, changes):
    page = written(tmp_path, paper_like(), **changes)
    assert "**holds**" not in page and page.count(NOT_RUN) == len(STATEMENTS)


def test_claims_that_were_judged_apart_stand_in_one_list(tmp_path):
    """Each file keeps its own line on what holds at once; ours are a family of their own."""
    rule = Rule("It is so.", lambda record, level: [Part(verdict=HOLDS, reason="so it is")])
    statements = [Statement(number=n, recipe=f"r_{n}", text="t", paper="p", rule=rule, ours=n == "2") for n in "123"]
    for name, number in (("sfa-small", 0), ("sfa-more-small", 1)):
        claims = judge_claims(statements[number : number + 1], {f"r_{number + 1}": Evidence(record=1)})
        rules = RULES + papers()["sfa"].rules
        about = {"rules": rules, "size": "small", "studies": {f"r_{number + 1}": {}}}
        write_json(tmp_path / f"{name}.json", {**about, "claims": [claim.to_json() for claim in claims]})
    page = claims_page({"sfa": ("Soup", statements)}, tmp_path)
    assert ["**holds**" in section(page, number) for number in "123"] == [True, True, False]
    assert "Small, r 1: Of 1 claim of the paper, 1 holds" in page and "Small, r 2: Of 1 claim of ours, 1 holds" in page
    assert "### 2. t\n\n- This claim is ours, not the paper's.\n" in page
    told = add_verdicts("<!-- verdict: sfa -->\n<!-- /verdict -->", tmp_path)
    assert "holds 2" in told and "of the paper" in told and "of ours" in told
