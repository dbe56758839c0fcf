"""The page of claims: what it says, that text stays text, and what it refuses."""

from __future__ import annotations

import dataclasses
import math
import re

from claim_studies import paper_like
from holdfast.papers.claims.claim import Claim
from holdfast.papers.claims.page import claims_page, figure_basis, figure_line, verdict_sentence
from holdfast.papers.claims.rules import ClaimFigure
from holdfast.papers.label_annealing.claims import RECIPES, check_claims
from holdfast.papers.label_annealing.paper import PAPER
from holdfast.reports.html import write_page
from holdfast.support.files import to_jsonable


def found(studies, **changes):
    """claims.json of these studies."""
    claims = [claim.to_json() for claim in check_claims(studies)]
    listed = {
        r: {
            "title": PAPER.recipes[r],
            "status": "finished" if s else "not run",
            "report": f"{r}/report.html" if s else None,
            "seeds": [0, 1, 2],
            "trials": 8,
            "learn": "x",
            "keep": "y",
        }
        for r, s in studies.items()
    }
    return to_jsonable(
        {
            "paper": "A paper",
            "size": "medium",
            "created": "2026-01-02",
            "studies": listed,
            "claims": claims,
            "versions": {"torch": "2.13"},
            "hardware": {"cpu": "a fast one"},
            **changes,
        }
    )


def written(tmp_path, record):
    return write_page(claims_page(record), tmp_path / "claims.html").read_text()


def test_every_claim_with_its_figures_and_link(tmp_path):
    recipes = [recipe for recipe in RECIPES if "variants" not in recipe]
    record = found(dict.fromkeys(recipes, paper_like()))
    page = re.sub(r'<span class="whole">(.*?)</span>', r"\1", written(tmp_path, record))
    assert "Of 18 claims, 17 hold and 1 does not." in page
    for claim in map(Claim.from_json, record["claims"]):
        for text in (claim.text, claim.reason):
            assert text.replace("'", "&#x27;") in page
    assert "TriviaQA -14.19 points" in page
    assert "HumanEval +25.76 points" in page
    for recipe in recipes:
        assert f'href="{recipe}/report.html"' in page
    assert page.count('class="chip good"') == 17
    assert "occurs at the paper&#x27;s size" in page


def test_verdicts_are_counted():
    verdicts = ["holds", "does not hold", "cannot tell"]
    whole = Claim(number="1", text="", recipe="", paper="", verdict="", by_rule="", parts=[], figures=[])
    claims = [dataclasses.replace(whole, verdict=verdict) for verdict in verdicts]
    assert verdict_sentence(claims) == "Of 3 claims, 1 holds, 1 does not and 1 cannot be judged."
    assert verdict_sentence(claims[:1] * 2 + claims[1:2] * 2) == "Of 4 claims, 2 hold and 2 do not."
    assert verdict_sentence(claims[2:] * 2) == "Of 2 claims, 2 cannot be judged."
    assert verdict_sentence(claims[:1]) == "One claim was checked: holds."
    assert verdict_sentence([]) == "No claims were checked."


def test_a_quick_check_says_that_it_means_nothing(tmp_path):
    assert "Its verdicts mean nothing." in written(tmp_path, found({"code": paper_like()}, size="quick"))
    own = written(tmp_path, found({"code": paper_like()}, size="study"))
    assert "mean nothing" not in own and "million parameters" not in own
    small, medium = (written(tmp_path, found({"code": paper_like()}, size=size)) for size in ("small", "medium"))
    assert "This is the small size" in small and "This is the small size" not in medium


def test_figures_in_words():
    figure = ClaimFigure(
        what="L2 0.1: share of forgetting avoided",
        value=0.301,
        interval=(0.28, 0.32),
        n="3 seeds, 150 samples",
        unit="share of direct fine-tuning's loss",
    )
    assert figure_basis(dataclasses.replace(figure, needs="above 0.2")) == (
        "3 seeds, 150 samples; share of direct fine-tuning's loss; needs above 0.2"
    )
    assert figure_line(figure) == "L2 0.1: share of forgetting avoided: 0.30 [0.28, 0.32]"
    assert figure_line(dataclasses.replace(figure, interval=None)).endswith("0.30 (no interval)")
    assert figure_line(dataclasses.replace(figure, value=math.nan)).endswith("not available")
    in_nats = dataclasses.replace(figure, unit="nats/token")
    assert figure_line(in_nats) == "L2 0.1: share of forgetting avoided: +0.301 [+0.280, +0.320]"
