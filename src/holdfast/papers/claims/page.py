"""One page on a paper's claims: what it says, what came out here, and whether the claim holds.

Reads claims.json as `holdfast reproduce` writes it, nothing else: its figures and verdicts are shown
as they are, and sentences are made of them here. Every study's own report is linked.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.papers.claims.claim import Claim, family_lines
from holdfast.papers.claims.rules import ClaimFigure
from holdfast.records.measure import interval_text, number
from holdfast.reports.blocks import (
    Banner,
    Block,
    Bullets,
    Facts,
    Fold,
    Page,
    Panel,
    Section,
    Span,
    Table,
    Text,
    Tile,
    Tiles,
    chip,
    columns,
    sub,
)
from holdfast.reports.format import hardware_text, join_and

TONES = {"holds": "good", "does not hold": "bad", "cannot tell": "warn"}
SHARES = ("share of direct fine-tuning's gain", "share of direct fine-tuning's loss")
READING = (
    "A gain is the change of a metric from the initial model, signed so that more is better.",
    "The share of gain kept is a trial's gain on the learn entries divided by direct "
    "fine-tuning's gain. The share of forgetting avoided is the part of direct fine-tuning's loss "
    "on the keep entries that the trial avoids. 1 means that the whole gain is kept or all "
    "forgetting is avoided.",
    "95 % intervals cover training seeds and evaluated samples, or only the samples if there is "
    "one seed. If a claim needs only one of several weights to pass, its intervals are wider "
    "(Bonferroni).",
    'Every figure is shown with the bound that it is compared with. "Lowers", "improves" and '
    '"better" mean that the whole interval lies beyond the smallest effect that counts. "Keeps '
    'the initial level" and "alike" mean that the whole interval lies within 20 % of what direct '
    "fine-tuning lost or gained.",
    "Methods are compared at equal learning: each method's grid is interpolated to the share of "
    "direct fine-tuning's gain that the claim names, and its score on the keep entries is read "
    "there. The paper instead takes, among the trials that improve the learn entries, the trial "
    "with the best score on the keep entries. If that trial gives another verdict, a warning says "
    "so.",
    '"Cannot tell" means that the interval contains the bound, data is missing, or a '
    'precondition is not met. It does not mean "does not hold".',
)


SIZES = {
    "quick": "a quick check; its verdicts mean nothing",
    "small": "small versions of the paper's recipes, with fewer seeds, arms and steps",
    "medium": "small versions of the paper's recipes",
    "study": "your own study",
}
QUICK = (
    "This quick check only shows that everything works: it trains a few steps on a few documents. "
    "Its verdicts mean nothing."
)
SMALL = (
    "This is the small size, with fewer seeds, arms and steps than the study files. Its verdicts "
    "say what is likely. '--medium' runs the study files in full."
)
TOY_SCALE = (
    "These models have about a million parameters and are trained on text that comes with Python. "
    "A claim that holds here shows the direction of an effect. It does not show that the effect "
    "occurs at the paper's size. The comments at the top of each study file list what it cannot "
    "show."
)


def claims_page(found: Mapping[str, Any]) -> Page:
    """The page as blocks, of claims.json."""
    claims = [Claim.from_json(claim) for claim in found["claims"]]
    studies = dict(found["studies"])
    size = SIZES.get(found["size"], SIZES["medium"])
    written = f"{str(found['created'])[:16].replace('T', ' ')} UTC"
    titles = ", ".join(_title(recipe, studies) for recipe in studies)
    blocks: list[Block | None] = [
        *_banners(found, studies),
        Tiles([_tile(verdict, claims) for verdict in TONES]),
    ]
    if claims:
        blocks.append(Banner(" ".join(family_lines(claims))))
        blocks.append(Section("Claims", [_claims(claims, studies)]))
    reading = [str(line) for line in found.get("reading") or READING]
    blocks += [_studies(studies), Section("How to read this", [Panel([Bullets(reading)], "card")])]
    blocks.append(Section("Software and hardware", _made_with(found, written)))
    return Page(
        tab=f"{found['paper']}: claims",
        eyebrow="holdfast reproduce",
        title=str(found["paper"]),
        lead=verdict_sentence(claims),
        details=f"Recipes: {titles}. Size: {size}. {written}",
        blocks=blocks,
        footer="Written by holdfast from the records of the studies.",
    )


def _made_with(found: Mapping[str, Any], written: str) -> list[Block | None]:
    machine = hardware_text(dict(found.get("hardware") or {})) or "not recorded"
    versions = [
        (str(name), str(version))
        for name, version in sorted(dict(found.get("versions") or {}).items())
    ]
    facts = Panel([Facts([("machine", machine), ("written", written)])], "card")
    return [facts, Fold("Versions", [Facts(versions)]) if versions else None]


def _title(recipe: str, studies: Mapping[str, Any]) -> str:
    """The title of a study; its name in records that were made before studies had titles."""
    return str((studies.get(recipe) or {}).get("title") or recipe.replace("_", " "))


def verdict_sentence(claims: Sequence[Claim]) -> str:
    """What became of the claims, in a sentence."""
    if not claims:
        return "No claims were checked."
    if len(claims) == 1:
        return f"One claim was checked: {claims[0].verdict}."
    counts = Counter(claim.verdict for claim in claims)
    holds, fails, unknown = counts["holds"], counts["does not hold"], counts["cannot tell"]
    parts = []
    if holds:
        parts.append(f"{holds} hold{'s' if holds == 1 else ''}")
    if fails:
        parts.append(f"{fails} {'does' if fails == 1 else 'do'} not")
    if unknown:
        parts.append(f"{unknown} cannot be judged")
    return f"Of {len(claims)} claims, {join_and(parts)}."


def _banners(found: Mapping[str, Any], studies: Mapping[str, Any]) -> list[Block]:
    banners: list[Block] = []
    if found["size"] == "quick":
        banners.append(Banner(QUICK, "warn"))
    elif found["size"] != "study":
        if found["size"] == "small":
            banners.append(Banner(SMALL, "warn"))
        banners.append(Banner(TOY_SCALE))
    late = [
        _title(recipe, studies)
        for recipe, study in studies.items()
        if study["status"] != "finished"
    ]
    if late:
        banners.append(
            Banner(f"Not finished: {', '.join(late)}. Run the same command to continue.", "warn")
        )
    return banners


def _tile(verdict: str, claims: Sequence[Claim]) -> Tile:
    numbers = [claim.number for claim in claims if claim.verdict == verdict]
    tone = TONES[verdict]
    return Tile(
        verdict, str(len(numbers)), ", ".join(numbers) or "none", tone if tone != "warn" else "flat"
    )


def verdict_table(claims: Sequence[Claim]) -> Table:
    """A claim a row, for a terminal: its leading figure, or why there is none, and the verdict."""
    rows: list[list[Text]] = []
    for claim in claims:
        here = figure_line(claim.figures[0]) if claim.figures else claim.reason
        rows.append(
            [
                _statement(claim),
                chip(claim.verdict, TONES[claim.verdict]),
                here,
            ]
        )
    return Table(columns=columns("Claim", "Verdict", "Here", right=()), rows=rows)


def _statement(claim: Claim) -> str:
    whose = " (Ours, not the paper's.)" if claim.ours else ""
    return f"{claim.number}. {claim.text}{whose}"


def _claims(claims: Sequence[Claim], studies: Mapping[str, Any]) -> Table:
    rows = []
    for claim in claims:
        text = (
            _statement(claim),
            sub(_link(claim.recipe, studies.get(claim.recipe))),
        )
        verdict = [chip(claim.verdict, TONES[claim.verdict]), *map(sub, _why(claim))]
        rows.append([text, claim.paper, _figures(claim.figures), verdict])
    heads = columns("Claim", "Paper", "Here", "Verdict", right=(), wide=(1, 2, 3))
    return Table(columns=heads, rows=rows, kind="dense claims")


def _why(claim: Claim) -> list[str]:
    """The lines below a verdict: the reason, how it stands among all claims, the preconditions, the
    warnings."""
    met = len(claim.preconditions) - len(claim.unmet)
    lines = [claim.reason]
    if claim.family is not None:
        lines.append(
            "Family-wise over all claims (5 %, Holm): "
            f"{'it holds' if claim.family else 'it does not hold'}."
        )
    if claim.preconditions:
        lines.append(f"Preconditions met: {met} of {len(claim.preconditions)}.")
    return lines + [f"Warning: {warning}" for warning in claim.warnings]


def _link(recipe: str, study: Mapping[str, Any] | None) -> Text:
    report, title = (study or {}).get("report"), _title(recipe, {recipe: study or {}})
    return Span(f"study: {title}", link=report) if report else f"study: {title} (no page)"


def _figures(figures: Sequence[ClaimFigure]) -> Text:
    if not figures:
        return "none"
    first, *rest = figures
    lines: list[Text] = [figure_line(first)]
    for before, f in zip(figures, rest, strict=False):
        lines += [_what(before), figure_line(f)]
    return [*lines, _what(figures[-1])]


def _what(figure: ClaimFigure) -> Span:
    return sub(figure_basis(figure))


def figure_basis(figure: ClaimFigure) -> str:
    """What is behind a figure, its unit and the bound that it is held against: "3 seeds, 300
    samples; accuracy; needs above 0.02"."""
    needs = f"needs {figure.needs}" if figure.needs else ""
    return "; ".join(filter(None, [figure.n, figure.unit, needs]))


def figure_line(figure: ClaimFigure) -> str:
    """ "L2, coefficient 0.1: source loss avoided 0.62 [0.55, 0.69]"."""
    value, interval = figure.value, figure.interval
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return f"{figure.what}: not available"
    digits = 2 if figure.unit in SHARES else 3
    sign = figure.unit not in SHARES or " - " in figure.what
    text = f"{figure.what}: {number(value, digits, sign=sign)}"
    ends = interval_text(interval, digits, sign=sign)
    return f"{text} {ends}" if ends.startswith("[") else f"{text} ({ends})"


def _studies(studies: Mapping[str, Any]) -> Section:
    rows = []
    for recipe, study in studies.items():
        title = Span(_title(recipe, studies), link=study["report"] or "")
        counts = str(study["trials"]), str(len(study["seeds"]))
        rows.append([title, study["status"], *counts])
    heads = columns("study", "status", "trials", "seeds", right=(2, 3))
    return Section("Studies", [Table(columns=heads, rows=rows)])
