"""docs/claims.md is what the statements and the committed outcomes make of it."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
import transformers

import packed_documents
from claim_studies import paper_like
from claims_page import NOT_RUN, add_verdicts, claims_page, known_papers
from holdfast.papers.claims.claim import RULES, Statement, claims_json, family_line
from holdfast.papers.claims.registry import papers
from holdfast.papers.claims.rules import FAILS, HOLDS, UNKNOWN, Rule
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


def test_the_paper_index_has_their_verdicts():
    page = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    assert add_verdicts(page, ROOT / "docs" / "outcomes") == page, "stale: python docs/claims_page.py"
    assert sorted(re.findall("<!-- verdict: (.*?) -->", page)) == sorted(papers())
    sections = re.findall("^## (.+)$", page, re.MULTILINE)
    assert sections == [*(p.short for p in ORDER), "Methods of other papers", "Token weighting"]
    for paper in papers().values():
        assert paper.title.startswith(paper.short)
        assert f"*{paper.title.partition(' (')[0]}" in page and f"holdfast reproduce {paper.name}\n" in page


def test_a_verdict_counts_the_claims(tmp_path):
    written(tmp_path, paper_like())
    page = add_verdicts("<!-- verdict: x -->\nstale\n<!-- /verdict -->", tmp_path)
    counts = Counter(c.verdict for c in check_claims(dict.fromkeys(RECIPES, paper_like())))
    assert len(counts) > 1 and "stale" not in page
    sums = f"holds {counts[HOLDS]}, does not hold {counts[FAILS]}, cannot tell {counts[UNKNOWN]}"
    assert f"\n- medium: {sums}.\n  Of {len(STATEMENTS)} claims" in page


def written(folder, study, rules=RULES, size="medium"):
    claims = check_claims(dict.fromkeys(RECIPES, study))
    found = {"rules": rules, "size": size, "claims": claims_json(claims), "family": family_line(claims)}
    write_json(folder / "x-medium.json", found)
    return claims_page({"x": ("A paper", STATEMENTS)}, folder)


def test_an_outcome_stands_beside_the_paper(tmp_path):
    page = written(tmp_path, paper_like())
    [line] = [row for row in page.splitlines() if row.startswith("| 2a ")]
    assert "**holds**<br>label annealing at 90 % of the gain: source loss avoided: " in line
    assert line.endswith(f"| {NOT_RUN} | met |"), "nothing was run at the real scale"
    assert "ours, medium: Of 18 claims" in page
    assert len([row for row in page.splitlines() if row.startswith("| ")]) == len(STATEMENTS) + 2


def test_a_precondition_that_is_not_met_is_named(tmp_path):
    page = written(tmp_path, None)
    assert "**cannot tell**" in page and "**holds**" not in page
    short = paper_like()
    runs = [[r.__class__(**{**vars(r), "references": {}}) for r in t.runs] for t in short.trials]
    trials = [t.__class__(**{**vars(t), "runs": found}) for t, found in zip(short.trials, runs, strict=True)]
    page = written(tmp_path, short.__class__(**{**vars(short), "trials": trials}))
    assert "precondition not met, direct fine-tuning forgets moderately" in page


@pytest.mark.parametrize("changes", [{"rules": RULES - 1}, {"size": "quick"}])
def test_outcomes_of_other_rules_and_of_a_quick_check_are_not_shown(tmp_path, changes):
    page = written(tmp_path, paper_like(), **changes)
    assert "**holds**" not in page and page.count(NOT_RUN) == 3 * len(STATEMENTS)


def test_claims_that_were_judged_apart_stand_in_one_table(tmp_path):
    """Each file keeps its own line on what holds at once."""
    claim = {"verdict": "holds", "figures": [], "preconditions": []}
    for name, number in (("sfa-small", "1"), ("sfa-more-small", "2")):
        about = {"rules": RULES, "size": "small", "family": f"family of {number}", "studies": {f"r_{number}": {}}}
        (tmp_path / f"{name}.json").write_text(json.dumps({**about, "claims": [{**claim, "number": number}]}))
    rule = Rule("It is so.", lambda record, level: [])
    statements = [Statement(number=n, recipe=f"r_{n}", text="t", paper="p", rule=rule) for n in "123"]
    page = claims_page({"sfa": ("Soup", statements)}, tmp_path)
    rows = [line for line in page.splitlines() if line.startswith(("| 1", "| 2", "| 3"))]
    assert ["**holds**" in row for row in rows] == [True, True, False]
    assert "ours, small, r 1: family of 1" in page and "ours, small, r 2: family of 2" in page
    told = add_verdicts("<!-- verdict: sfa -->\n<!-- /verdict -->", tmp_path)
    assert "holds 2" in told and "family of 1" in told and "family of 2" in told
