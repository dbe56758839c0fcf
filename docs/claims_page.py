"""What became of every claim, as `docs/claims.md` has it: made from the statements and from the committed outcomes,
`docs/outcomes/<paper>-<scale>.json`, each a claims.json as `holdfast reproduce` writes it.

    holdfast reproduce label-annealing
    holdfast reproduce label-annealing --medium
    cp reproduce-label-annealing/claims.json docs/outcomes/label-annealing-small.json
    cp reproduce-label-annealing-medium/claims.json docs/outcomes/label-annealing-medium.json
    python docs/claims_page.py                           # writes docs/claims.md, and the verdicts in docs/papers.md

Claims that were judged in a family of their own, as by `--recipes pictures`, have a file of their own beside it:
`docs/outcomes/<paper>-<recipe>-<scale>.json`.

An outcome counts only under the rules that it was judged by (`claims.RULES`, `Paper.rules`); one of other rules is
shown as not run, and so is a quick check, whose verdicts mean nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.papers.claims.claim import RULES, Statement
from holdfast.papers.claims.registry import papers
from holdfast.papers.claims.rules import FAILS, HOLDS, UNKNOWN
from holdfast.support.files import read_json

SCALES = {"small": "ours, small", "medium": "ours, medium", "real": "ours, real scale"}
"""By file name: what the column is called. Small has fewer seeds and arms; both are at toy scale."""
NOT_RUN = "not yet run under these rules"
HEAD = """\
# Claims

Every claim of the papers whose studies can be run, what the paper prints, the rule, and what came out here. The rules
were committed before any outcome under them was computed; [reproduce](reproduce.md) says how to run the studies and how
a claim is judged. `docs/claims_page.py` makes this page from the claims in `src/holdfast/papers` and the outcomes in
`docs/outcomes`; an outcome that was judged by other rules is not shown.
"""


def claims_page(papers: Mapping[str, tuple[str, Sequence[Statement[Any]]]], folder: Path) -> str:
    """The page as Markdown.

    Args:
        papers: by the paper's name, its title and statements.
        folder: with the outcomes; those that are not there were not run.

    Raises:
        DataError: an outcome that cannot be read.
    """
    parts = [HEAD]
    for name, (title, statements) in papers.items():
        outcomes = {scale: _joined(_outcomes(folder, name, scale)) for scale in SCALES}
        heads = ["claim", "the paper", "holds where", *SCALES.values(), "precondition"]
        rows = [[*_row(s, outcomes)] for s in statements]
        table = [heads, ["---"] * len(heads), *rows]
        families = [
            f"{_family_of(k, found, statements)}: {found['family']}"
            for k in SCALES
            for found in _outcomes(folder, name, k)
            if found.get("family")
        ]
        parts.append("\n".join([f"## {title}\n", *(f"| {' | '.join(row)} |" for row in table)]) + "\n")
        parts += [f"{line}\n" for line in families]
    return "\n".join(parts)


def _family_of(scale: str, found: Mapping[str, Any], statements: Sequence[Statement[Any]]) -> str:
    """Which claims were judged together: the scale, and the studies where they were not all."""
    size, studies = str(found.get("size") or ""), list(found.get("studies") or ())
    some = studies if set(studies) < {s.recipe for s in statements} else []
    own = size if scale == "real" else " and ".join(some).replace("_", " ")
    return ", ".join(filter(None, [SCALES[scale], own]))


_VERDICT = re.compile(r"(<!-- verdict: ([\w-]+) -->\n).*?(<!-- /verdict -->)", re.DOTALL)


def add_verdicts(page: str, folder: Path) -> str:
    """A page with the sums of each paper's verdicts between `<!-- verdict: PAPER -->` and `<!-- /verdict -->`."""
    return _VERDICT.sub(lambda m: f"{m[1]}\n{_verdict(m[2], folder)}\n\n{m[3]}", page)


def _verdict(paper: str, folder: Path) -> str:
    """How many claims hold, scale by scale, and which of them in the one decision over all."""
    lines = []
    for scale, words in SCALES.items():
        if found := _outcomes(folder, paper, scale):
            counts = Counter(claim["verdict"] for claim in _joined(found)["claims"].values())
            sums = ", ".join(f"{verdict} {counts[verdict]}" for verdict in (HOLDS, FAILS, UNKNOWN))
            families = "\n  ".join(one["family"] for one in found)
            lines.append(f"- {words.removeprefix('ours, ')}: {sums}.\n  {families}")
    return "\n".join(["**Our verdicts** ([claim by claim](claims.md)):\n", *lines])


def _outcomes(folder: Path, paper: str, scale: str) -> list[dict[str, Any]]:
    """What a paper has at a scale: of all its claims, and of those that were judged apart."""
    files = [folder / f"{paper}-{scale}.json", *sorted(folder.glob(f"{paper}-*-{scale}.json"))]
    known = papers().get(paper)
    rules = RULES + (known.rules if known is not None else 0)
    return [found for file in files if (found := _outcome(file, rules))]


def _joined(outcomes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Their claims by number; where a claim was judged twice, the file of its own counts."""
    return {"claims": {number: claim for one in outcomes for number, claim in one["claims"].items()}}


def _outcome(path: Path, rules: int) -> dict[str, Any]:
    """A claims.json, with its claims by number; empty where it is not there, of other rules, or a quick check."""
    found = read_json(path) if path.is_file() else {}
    if not isinstance(found, dict) or found.get("rules") != rules or found.get("size") == "quick":
        return {}
    return {**found, "claims": {claim["number"]: claim for claim in found["claims"]}}


def _row(statement: Statement[Any], outcomes: Mapping[str, Mapping[str, Any]]) -> list[str]:
    from holdfast.papers.claims.page import figure_line

    claims = [found.get("claims", {}).get(statement.number) for found in outcomes.values()]
    cells, unmet = [], []
    for scale, claim in zip(outcomes, claims, strict=True):
        lines = [] if claim is None else [f"**{claim['verdict']}**", *map(figure_line, claim["figures"][:1])]
        cells.append("<br>".join(lines) or NOT_RUN)
        failed = [] if claim is None else [p["sentence"] for p in claim["preconditions"] if not p["met"]]
        unmet += [f"{scale}: {sentence}" for sentence in failed]
    known = [claim for claim in claims if claim is not None]
    met = ("met" if any(c["preconditions"] for c in known) else "none") if known else ""
    named = f"{statement.number} ({statement.recipe.replace('_', ' ')}): {statement.text}"
    preconditions = "<br>".join(dict.fromkeys(unmet)) or met
    return [_cell(text) for text in (named, statement.paper, statement.rule.says, *cells, preconditions)]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def known_papers() -> dict[str, tuple[str, Sequence[Statement[Any]]]]:
    """The papers whose claims there are, with their statements."""
    from holdfast.papers.label_annealing.claims import STATEMENTS as ANNEALING
    from holdfast.papers.overtraining.claims import STATEMENTS as OVERTRAINING
    from holdfast.papers.residual.claims import STATEMENTS as RESIDUAL
    from holdfast.papers.sfa.claims import STATEMENTS as AVERAGING
    from holdfast.papers.stages.claims import STATEMENTS as STAGES

    statements: dict[str, Sequence[Statement[Any]]] = {
        "label-annealing": ANNEALING,
        "overtraining": OVERTRAINING,
        "residual": RESIDUAL,
        "sfa": AVERAGING,
        "stages": STAGES,
    }
    return {name: (papers()[name].title, found) for name, found in statements.items()}


if __name__ == "__main__":
    docs = Path("docs")
    index = docs / "papers.md"
    (docs / "claims.md").write_text(claims_page(known_papers(), docs / "outcomes"), encoding="utf-8")
    index.write_text(add_verdicts(index.read_text(encoding="utf-8"), docs / "outcomes"), encoding="utf-8")
