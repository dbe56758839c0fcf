"""What became of every claim, as `docs/claims.md` has it: made from the statements and from the committed outcomes,
`docs/outcomes/<paper>-<scale>.json`, each a claims.json as `holdfast reproduce` writes it.

    holdfast reproduce label-annealing
    holdfast reproduce label-annealing --medium
    cp reproduce-label-annealing/claims.json docs/outcomes/label-annealing-small.json
    cp reproduce-label-annealing-medium/claims.json docs/outcomes/label-annealing-medium.json
    python docs/claims_page.py                           # writes docs/claims.md, and the verdicts of docs/paper_*.md

Claims that were judged in a family of their own, as by `--recipes pictures`, have a file of their own beside it:
`docs/outcomes/<paper>-<recipe>-<scale>.json`.

An outcome counts only under the rules that it was judged by (`claims.RULES`, `Paper.rules`); one of other rules is
shown as not run, and so is a quick check, whose verdicts mean nothing.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.papers.claims.claim import RULES, Claim, Statement, family_lines
from holdfast.papers.claims.page import figure_basis, figure_line
from holdfast.papers.claims.registry import papers
from holdfast.papers.claims.rules import FAILS, HOLDS, UNKNOWN
from holdfast.support.files import read_json

SCALES = {"small": "small", "medium": "medium", "real": "real scale"}
"""By file name: what it is called. Small has fewer seeds and arms; small and medium are toy models."""
VERDICTS = (HOLDS, FAILS, UNKNOWN)
NOT_RUN = "Not yet run under these rules."
HEAD = """\
# Claims

Every claim of the papers whose studies can be run: what the paper prints, the rule, and what came out here. The rules
were committed before any outcome under them was computed; [reproduce](reproduce.md) says how to run the studies and how
a claim is judged. `docs/claims_page.py` makes this page from the claims in `src/holdfast/papers` and the outcomes in
`docs/outcomes`; an outcome that was judged by other rules is not shown. A figure has its 95 % interval, what it was
measured on, its unit, and the bound that it is held against.
"""


@dataclass(frozen=True)
class Outcome:
    """A claims.json: claims that were judged together."""

    claims: list[Claim]
    size: str
    studies: Sequence[str]


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
        parts.append(f"## {title}\n")
        outcomes = {scale: _outcomes(folder, name, scale) for scale in SCALES}
        parts += _sums(outcomes, statements)
        for statement in statements:
            parts.append(_section(statement, outcomes))
    return "\n".join(parts)


def _sums(outcomes: Mapping[str, Sequence[Outcome]], statements: Sequence[Statement[Any]]) -> list[str]:
    """The claims by verdict, and which of them hold at once."""
    rows = [["claims", "scale", *VERDICTS, "not run"]]
    for of_whom, ours in (("the paper's", False), ("ours", True)):
        numbers = [statement.number for statement in statements if statement.ours == ours]
        if not numbers:
            continue
        for scale, words in SCALES.items():
            claims = _by_number(outcomes[scale])
            counts = Counter(claims[number].verdict for number in numbers if number in claims)
            judged = [str(counts[verdict]) for verdict in VERDICTS]
            rows.append([f"{of_whom} ({len(numbers)})", words, *judged, str(len(numbers) - counts.total())])
    parts = [_table(rows)]
    for scale, found in outcomes.items():
        for outcome in found:
            named = f"{SCALES[scale].capitalize()}{_of_which(scale, outcome, statements)}"
            parts += [f"{_wrapped(f'{named}: {line}')}\n" for line in family_lines(outcome.claims)]
    return parts


def _of_which(scale: str, outcome: Outcome, statements: Sequence[Statement[Any]]) -> str:
    """The model at real scale, or the studies where they are not all."""
    if scale == "real":
        return f", {outcome.size}"
    is_part = bool(outcome.studies) and set(outcome.studies) < {s.recipe for s in statements}
    return f", {' and '.join(outcome.studies).replace('_', ' ')}" if is_part else ""


def _section(statement: Statement[Any], outcomes: Mapping[str, Sequence[Outcome]]) -> str:
    """A claim: the statement, the paper's figure, the rule, and what came out at every scale."""
    lines = [
        f"### {statement.number}. {statement.text}\n",
        *(["- This claim is ours, not the paper's."] if statement.ours else []),
        _wrapped(f"- Study: {statement.recipe.replace('_', ' ')}"),
        _wrapped(f"- The paper: {statement.paper or 'no figure'}"),
        _wrapped(f"- Holds where: {statement.rule.says}"),
        "",
    ]
    rows = [["scale", "verdict", "figures", "why"]]
    for scale, found in outcomes.items():
        claim = _by_number(found).get(statement.number)
        if claim is not None:
            rows.append([SCALES[scale], f"**{claim.verdict}**", _figures(claim), _why(claim)])
    lines.append(_table(rows) if len(rows) > 1 else f"{NOT_RUN}\n")
    return "\n".join(lines)


def _figures(claim: Claim) -> str:
    lines = [f"{figure_line(figure)} ({figure_basis(figure)})" for figure in claim.figures]
    return "<br>".join(lines) or "none"


def _why(claim: Claim) -> str:
    met = len(claim.preconditions) - len(claim.unmet)
    lines = [claim.reason]
    if claim.preconditions:
        lines.append(f"Preconditions met: {met} of {len(claim.preconditions)}.")
    return "<br>".join([*lines, *(f"Warning: {warning}" for warning in claim.warnings)])


def _wrapped(text: str) -> str:
    indent = "  " if text.startswith(("- ", "  ")) else ""
    return textwrap.fill(text, width=118, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _table(rows: Sequence[Sequence[str]]) -> str:
    heads = rows[0]
    lines = []
    for row in (heads, ["---"] * len(heads), *rows[1:]):
        lines.append(f"| {' | '.join(_cell(text) for text in row)} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


_VERDICT = re.compile(r"(<!-- verdict: ([\w-]+) -->\n).*?(<!-- /verdict -->)", re.DOTALL)


def add_verdicts(page: str, folder: Path) -> str:
    """A page with the sums of its paper's verdicts between `<!-- verdict: PAPER -->` and `<!-- /verdict -->`."""
    return _VERDICT.sub(lambda m: f"{m[1]}\n{_verdict(m[2], folder)}\n\n{m[3]}", page)


def _verdict(paper: str, folder: Path) -> str:
    """How many claims hold, scale by scale, and which of them in the one decision over all."""
    lines = ["**Our verdicts** ([claim by claim](claims.md)):\n"]
    for scale, words in SCALES.items():
        found = _outcomes(folder, paper, scale)
        if not found:
            continue
        counts = Counter(claim.verdict for claim in _by_number(found).values())
        lines.append(f"- {words}: {', '.join(f'{verdict} {counts[verdict]}' for verdict in VERDICTS)}.")
        for outcome in found:
            lines += [_wrapped(f"  {line}") for line in family_lines(outcome.claims)]
    if len(lines) == 1:
        lines.append(f"- {NOT_RUN}")
    return "\n".join(lines)


def _outcomes(folder: Path, paper: str, scale: str) -> list[Outcome]:
    """What a paper has at a scale: of all its claims, and of those that were judged apart."""
    files = [folder / f"{paper}-{scale}.json", *sorted(folder.glob(f"{paper}-*-{scale}.json"))]
    known = papers().get(paper)
    rules = RULES + (known.rules if known is not None else 0)
    return [found for file in files if (found := _outcome(file, rules)) is not None]


def _outcome(path: Path, rules: int) -> Outcome | None:
    """None where it is not there, of other rules, or a quick check."""
    found = read_json(path) if path.is_file() else {}
    if not isinstance(found, dict) or found.get("rules") != rules or found.get("size") == "quick":
        return None
    claims = [Claim.from_json(claim) for claim in found["claims"]]
    return Outcome(claims=claims, size=str(found["size"]), studies=list(found.get("studies") or ()))


def _by_number(outcomes: Sequence[Outcome]) -> dict[str, Claim]:
    """Where a claim was judged twice, the file of its own counts."""
    return {claim.number: claim for outcome in outcomes for claim in outcome.claims}


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
    (docs / "claims.md").write_text(claims_page(known_papers(), docs / "outcomes"), encoding="utf-8")
    for page in sorted(docs.glob("paper_*.md")):
        page.write_text(add_verdicts(page.read_text(encoding="utf-8"), docs / "outcomes"), encoding="utf-8")
