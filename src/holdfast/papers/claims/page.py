"""One page on a paper's claims: what it says, what came out here, and whether the claim holds.

Reads claims.json as `holdfast reproduce` writes it, nothing else; the figures' intervals and the rules behind the
verdicts are those of the record (`holdfast.papers.label_annealing.claims`). Every study's own report is linked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.errors import DataError
from holdfast.records.measure import number
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
from holdfast.reports.charts import Axis, Chart, Col, Mark, Rule, Value
from holdfast.reports.format import hardware_text, listed

TONES = {"holds": "good", "does not hold": "bad", "cannot tell": "warn"}
KEPT, AVOIDED = "target gain kept", "source loss avoided"
SHARES = ("share of direct's gain", "share of direct's loss")
READING = (
    "A gain is a measure's change against the start, signed so that more is better.",
    "Kept: a trial's gain on the target as a share of what direct fine-tuning gained. Avoided: 1 minus its loss on "
    "the source as a share of what "
    "direct fine-tuning lost. 1 is all of it.",
    "Intervals are at 95 % and cover training seeds and evaluated samples; with one seed the samples only. A claim "
    "about some of several weights "
    "has wider ones, for there were several chances.",
    "A bound stands with every figure that it is held against. Lowers, improves and better mean: by at least an effect "
    "that counts, with the whole interval. Keeping the start's level and alike mean: within 20 % of what direct "
    "fine-tuning lost or gained, with the whole interval.",
    "A method is judged at equal target: what its grid, interpolated, keeps of the source where it has learnt the "
    "share of direct fine-tuning's gain that the claim speaks of. What the trial would say that the paper's rule takes "
    "(of those whose target improves on the start, the best source) is a warning where it says otherwise.",
    "Cannot tell: the interval contains the bound, something is missing, or a precondition is not met. It is not "
    "'does not hold'.",
)


SIZES = {
    "full": "the paper's own size",
    "quick": "a quick check: its verdicts mean nothing",
    "look": "a look at small twins of the paper's recipes",
    "thorough": "small twins of the paper's recipes",
    "study": "a study of one's own",
}


def claims_page(found: Mapping[str, Any]) -> Page:
    """The page as blocks.

    Raises:
        DataError: `found` is no such record.
    """
    try:
        return _page(found)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"Expected the record of 'holdfast reproduce' (claims.json), got something else ({type(error).__name__}: "
            f"{error})."
        ) from error


def _page(found: Mapping[str, Any]) -> Page:
    claims, studies = list(found["claims"]), dict(found["studies"])
    size = SIZES.get(found["size"], SIZES["thorough"])
    written = f"{str(found['created'])[:16].replace('T', ' ')} UTC"
    chart = shares_chart(claims, studies)
    versions = [(str(k), str(v)) for k, v in sorted(dict(found.get("versions") or {}).items())]
    machine = hardware_text(dict(found.get("hardware") or {})) or "not recorded"
    reading = [str(line) for line in found.get("reading") or READING]
    shares = Section("Shares of what direct fine-tuning did", [chart]) if chart is not None else None
    return Page(
        tab=f"{found['paper']}: claims",
        eyebrow="holdfast reproduce",
        title=str(found["paper"]),
        lead=verdict_sentence(claims),
        details=f"Recipes: {', '.join(_title(r, studies) for r in studies)}. Size: {size}. {written}",
        blocks=[
            *_banners(found, studies),
            Tiles([_tile(verdict, claims) for verdict in TONES]),
            Banner(str(found["family"])) if found.get("family") else None,
            Section("Claims", [_claims(claims, studies)]) if claims else None,
            shares,
            _studies(studies),
            Section("How to read this", [Panel([Bullets(reading)], "card")]),
            Section(
                "Software and hardware",
                [
                    Panel([Facts([("machine", machine), ("written", written)])], "card"),
                    Fold("Versions", [Facts(versions)]) if versions else None,
                ],
            ),
        ],
        footer="Written by holdfast from the studies' records.",
    )


def _title(recipe: str, studies: Mapping[str, Any]) -> str:
    """The title of a study; its name in records that were made before studies had titles."""
    return str((studies.get(recipe) or {}).get("title") or recipe.replace("_", " "))


def verdict_sentence(claims: Sequence[Mapping[str, Any]]) -> str:
    """What became of the claims, in a sentence."""
    counted = {verdict: sum(c["verdict"] == verdict for c in claims) for verdict in TONES}
    if not claims:
        return "No claim was checked."
    if len(claims) == 1:
        return f"The one claim that was checked: {claims[0]['verdict']}."
    parts = []
    if counted["holds"]:
        parts.append(f"{counted['holds']} hold{'s' if counted['holds'] == 1 else ''}")
    if counted["does not hold"]:
        parts.append(f"{counted['does not hold']} {'does' if counted['does not hold'] == 1 else 'do'} not")
    if counted["cannot tell"]:
        parts.append(f"{counted['cannot tell']} cannot be told")
    return f"Of {len(claims)} claims {listed(parts)}."


def _banners(found: Mapping[str, Any], studies: Mapping[str, Any]) -> list[Block]:
    out: list[Block] = []
    if found["size"] == "quick":
        text = (
            "This was a quick check that everything works: a few steps on a few documents. Its verdicts mean nothing."
        )
        out.append(Banner(text, "warn"))
    elif found["size"] not in ("full", "study"):
        if found["size"] == "look":
            text = (
                "This is a look: fewer seeds, arms and steps than the study files have. Its verdicts say what is "
                "likely; '--thorough' runs the small twins in whole."
            )
            out.append(Banner(text, "warn"))
        text = (
            "Models of a million parameters on text that every Python carries: a claim that holds here holds in its "
            "shape, not at the paper's size. What each twin cannot show stands at the head of its study file."
        )
        out.append(Banner(text))
    late = [_title(r, studies) for r, s in studies.items() if s["status"] != "finished"]
    return out + ([Banner(f"Not finished: {', '.join(late)}. The same command continues.", "warn")] if late else [])


def _tile(verdict: str, claims: Sequence[Mapping[str, Any]]) -> Tile:
    named = [c["number"] for c in claims if c["verdict"] == verdict]
    tone = TONES[verdict]
    return Tile(verdict, str(len(named)), ", ".join(named) or "none", tone if tone != "warn" else "flat")


def _claims(claims: Sequence[Mapping[str, Any]], studies: Mapping[str, Any]) -> Table:
    rows = [
        [
            (f"{c['number']}. {c['text']}", sub(_link(c["recipe"], studies.get(c["recipe"])))),
            c["paper"],
            _figures(c["figures"]),
            [chip(c["verdict"], TONES[c["verdict"]]), *(sub(line) for line in _why(c))],
        ]
        for c in claims
    ]
    heads = columns("Claim", "Paper", "Here", "Verdict", right=(), wide=(1, 2, 3))
    return Table(columns=heads, rows=rows, kind="dense claims")


def _why(claim: Mapping[str, Any]) -> list[str]:
    """The lines below a verdict: the reason, how it stands among all claims, the preconditions, the warnings."""
    preconditions = list(claim.get("preconditions") or [])
    met = sum(bool(p["met"]) for p in preconditions)
    lines = [str(claim["reason"])]
    if claim.get("family") is not None:
        lines.append(f"Among all claims at once (5 %): {'it holds' if claim['family'] else 'it does not stand out'}.")
    if preconditions:
        lines.append(f"Preconditions met: {met} of {len(preconditions)}.")
    return lines + [f"Warning: {warning}" for warning in claim.get("warnings") or []]


def _link(recipe: str, study: Mapping[str, Any] | None) -> Text:
    report, title = (study or {}).get("report"), _title(recipe, {recipe: study or {}})
    return Span(f"study: {title}", link=report) if report else f"study: {title} (no page)"


def _figures(figures: Sequence[Mapping[str, Any]]) -> Text:
    if not figures:
        return "none"
    first, *rest = figures
    lines: list[Text] = [figure_line(first)]
    for before, f in zip(figures, rest, strict=False):
        lines += [_what(before), figure_line(f)]
    return [*lines, _what(figures[-1])]


def _what(f: Mapping[str, Any]) -> Span:
    needs = f"; needs {f['needs']}" if f.get("needs") else ""
    return sub(f"{f['n']}; {f['unit']}{needs}")


def figure_line(figure: Mapping[str, Any]) -> str:
    """ "L2, coefficient 0.1: source loss avoided 0.62 [0.55, 0.69]"."""
    value, interval = figure["value"], figure["interval"]
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return f"{figure['what']}: cannot be had"
    digits = 2 if figure["unit"] in SHARES else 3
    sign = figure["unit"] not in SHARES or " - " in figure["what"]
    text = f"{figure['what']}: {number(value, digits, sign=sign)}"
    if interval is None:
        return f"{text} (no interval)"
    return f"{text} [{number(interval[0], digits, sign=sign)}, {number(interval[1], digits, sign=sign)}]"


def shares_chart(claims: Sequence[Mapping[str, Any]], studies: Mapping[str, Any]) -> Chart | None:
    """Every share that a claim speaks of, with its interval, by recipe; None where there is none."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for claim in claims:
        for f in claim["figures"]:
            trial, _, what = f["what"].rpartition(": ")
            known = f["unit"] in SHARES and f["interval"] is not None and math.isfinite(f["value"])
            if known and what in (KEPT, AVOIDED):
                low, high = f["interval"]
                interval = f"[{number(low, 2)}, {number(high, 2)}]"
                value = Value(value=f["value"], low=low, high=high, text=number(f["value"], 2), interval=interval)
                found.setdefault((claim["recipe"], trial), {}).setdefault(what, value)
    if not found:
        return None
    names = [f"{_title(recipe, studies)}: {trial}" for recipe, trial in found]
    rows = [
        {"name": name, "kept place": place - 0.14, "avoided place": place + 0.14, **values}
        for place, (name, values) in enumerate(zip(names, found.values(), strict=True))
    ]
    return Chart(
        title="Shares of what direct fine-tuning did",
        heading=False,
        rows=rows,
        columns=[Col("trial", "name", numeric=False), Col(KEPT, KEPT), Col(AVOIDED, AVOIDED)],
        marks=[
            Mark(x=KEPT, y="kept place", name=KEPT, colour="second", symbol="diamond"),
            Mark(x=AVOIDED, y="avoided place", name=AVOIDED),
        ],
        x=Axis(title="share; 1 is all of it"),
        y=Axis(names=names, length=56),
        rules=[Rule(x=0), Rule(x=1)],
        caption=(
            "Points with intervals over seeds and samples. Both far to the right: learnt as direct fine-tuning does, "
            "and forgot nothing."
        ),
        height=120 + 34 * len(names),
        legend=True,
    )


def _studies(studies: Mapping[str, Any]) -> Section:
    rows = [
        [
            Span(_title(recipe, studies), link=s["report"] or ""),
            s["status"],
            str(s["trials"]),
            str(len(s["seeds"])),
            s["target"] or "none",
            s["source"] or "none",
        ]
        for recipe, s in studies.items()
    ]
    heads = columns("study", "status", "trials", "seeds", "target", "source", right=(2, 3), wide=(4, 5))
    return Section("Studies", [Table(columns=heads, rows=rows)])
