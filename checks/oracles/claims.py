"""Claims with their verdicts, figures, intervals and warnings: those of the committed outcomes as pages show them, and
those that the committed records give today."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pages
import tree

from holdfast.support.files import read_json

OUTCOMES = pages.ROOT / "docs" / "outcomes"
STUDIES = {
    "overtraining.json": ("budgets",),
    "sequence.json": ("tasks", "three_tasks"),
    "stages.json": ("world-0",),
    tree.STUDY_FILE: ("math", "code"),
}
"""File of a record: the studies of the paper that it is taken for."""
OWN_STUDIES = {"pictures": ("pictures",)}
"""Records that are of another study than the others of their kind, by folder."""

FIGURE = ("what", "value", "interval", "n", "unit", "needs")
PRECONDITION = ("name", "value", "bound", "sense", "met")


def claims() -> dict[str, Any]:
    """By name of the file: claims of the outcomes, and of the records."""
    data: dict[str, Any] = {}
    for path in sorted(OUTCOMES.glob("*.json")):
        outcome = read_json(path)
        page = tree.load(tree.CLAIMS_PAGE)({"studies": {}, "created": "", **outcome})
        stored = [tree.load(tree.CLAIM).from_json(claim) for claim in outcome["claims"]]
        judged = {claim.number: claim_data(claim) for claim in stored}
        lead = pages.page_data(page)["lead"]
        data[f"outcomes/{path.name}"] = {"lead": lead, "claims": judged}
    markdown = tree.load(tree.CLAIMS_MARKDOWN)(tree.load(tree.PAPERS)(), OUTCOMES)
    data["outcomes/page.json"] = markdown.splitlines()
    for file, check in tree.CLAIMS.items():
        for name, folder in pages.records(file):
            data[f"{name}/{file}"] = judged_record(file, name, folder, tree.load(check))
    return data


def judged_record(file: str, name: str, folder: Path, check: Any) -> dict[str, Any]:
    """The claims of a record's paper, by study and number."""
    record = pages.read_record(file, folder)
    studies = OWN_STUDIES.get(name, STUDIES[file])
    judged = check(dict.fromkeys(studies, record))
    return {f"{claim.recipe} {claim.number}": claim_data(claim) for claim in judged}


def claim_data(claim: Any) -> dict[str, Any]:
    """What was data of a claim; its own words are those of the page."""
    figures = [[getattr(figure, key) for key in FIGURE] for figure in claim.figures]
    preconditions = [[getattr(condition, key) for key in PRECONDITION] for condition in claim.preconditions]
    kept = {key: getattr(claim, key) for key in ("verdict", "family", "reason", "warnings")}
    return {**kept, "figures": figures, "preconditions": preconditions}
