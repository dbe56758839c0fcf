"""One page on a paper's claims: what it says, what came out here, and whether the claim holds.

Reads claims.json as `holdfast reproduce` writes it, nothing else; the figures' intervals and the rules behind the
verdicts are those of the record (`holdfast.studies.claims`). Every study's own report is linked.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.errors import DataError
from holdfast.reports.figures import hardware_text, number, plural
from holdfast.reports.legacy_charts import Chart, axis, layout, plain, shorten
from holdfast.reports.markup import Column, Html, table, tag
from holdfast.reports.page import Page, banner, bullets, facts, fold, header, tiles

TONES = {"holds": "good", "does not hold": "bad", "not enough data": "warn"}
KEPT, AVOIDED = "target gain kept", "source loss avoided"
SHARES = ("share of direct's gain", "share of direct's loss")
READING = (
    "A gain is a measure's change against the start, signed so that more is better.",
    "Kept: a trial's gain on the target as a share of what direct fine-tuning gained. Avoided: 1 minus its loss on "
    "the source as a share of what "
    "direct fine-tuning lost. 1 is all of it.",
    "Intervals are at 95 % and cover training seeds and evaluated samples; with one seed the samples alone. A claim "
    "about some of several weights "
    "has wider ones, for there were several chances.",
    "Keeping the start's level, no loss, and alike mean: within 20 % of what direct fine-tuning lost or gained, with "
    "the whole interval. An interval "
    "that contains the bound is not enough data: finding no difference is no equivalence.",
    "A method is judged by the trial that the paper's rule takes: of those whose target improves on the start, the "
    "best source.",
)


def write_claims_report(found: Mapping[str, Any], path: str | os.PathLike[str]) -> Path:
    """Writes the page and returns its path.

    Args:
        found: claims.json as `read_json` gives it.
        path: the HTML file; links to the studies are relative to its folder.

    Raises:
        DataError: `found` is no such record.
        StorageError: the page could not be written; an earlier one is intact.
    """
    try:
        claims, studies = list(found["claims"]), dict(found["studies"])
        page = Page(f"{found['paper']}: claims")
        _head(page, found, claims, studies)
        _claims(page, claims, studies)
        _shares(page, claims, studies)
        _studies(page, studies)
        page.section(
            "How to read this", tag("div", bullets([str(line) for line in found.get("reading") or READING]), cls="card")
        )
        _small_print(page, found)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"Expected the record of 'holdfast reproduce' (claims.json), got something else ({type(error).__name__}: "
            f"{error})."
        ) from error
    return page.write(Path(path))


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
    if counted["not enough data"]:
        parts.append(f"for {counted['not enough data']} there is not enough data")
    joined = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
    return f"Of {len(claims)} claims {joined}."


STYLE = """
.claims td > div > div + div { margin-top: 6px; }
@media screen and (min-width: 761px) {
  .claims table { table-layout: fixed; } .claims th:nth-child(1) { width: 25%; }
  .claims th:nth-child(2) { width: 20%; } .claims th:nth-child(3) { width: 29%; }
}
@media screen and (max-width: 760px) {
  .claims table.cards td { display: block; text-align: left; } .claims table.cards td::before { display: block; }
}
"""


def _head(
    page: Page, found: Mapping[str, Any], claims: Sequence[Mapping[str, Any]], studies: Mapping[str, Any]
) -> None:
    size = {"full": "the paper's own size", "quick": "a quick check: its verdicts mean nothing"}.get(
        found["size"], "small twins of the paper's recipes"
    )
    ran = ", ".join(_title(r, studies) for r in studies)
    page.add(tag("style", Html(STYLE)))
    page.add(
        header(
            eyebrow="holdfast reproduce",
            title=str(found["paper"]),
            lead=verdict_sentence(claims),
            details=f"Recipes: {ran}. Size: {size}. {str(found['created'])[:16].replace('T', ' ')} UTC",
        )
    )
    if found["size"] == "quick":
        page.add(
            banner(
                "This was a quick check that everything works: a few steps on a few documents. Its verdicts mean "
                "nothing.",
                "warn",
            )
        )
    elif found["size"] != "full":
        page.add(
            banner(
                "Models of a million parameters on text that every Python carries: a claim that holds here holds in "
                "its shape, not at the paper's "
                "size. What each twin cannot show stands at the head of its study file.",
            )
        )
    late = [r for r, s in studies.items() if s["status"] != "finished"]
    if late:
        page.add(
            banner(f"Not finished: {', '.join(_title(r, studies) for r in late)}. The same command continues.", "warn")
        )
    items = []
    for verdict, tone in TONES.items():
        named = [c["number"] for c in claims if c["verdict"] == verdict]
        items.append((verdict, str(len(named)), ", ".join(named) or "none", tone if tone != "warn" else "flat"))
    page.add(tiles(items))


def _claims(page: Page, claims: Sequence[Mapping[str, Any]], studies: Mapping[str, Any]) -> None:
    columns = [
        Column(title="Claim"),
        Column(title="Paper", wide=True),
        Column(title="Here", wide=True),
        Column(title="Verdict", wide=True),
    ]
    rows = []
    for claim in claims:
        recipe = claim["recipe"]
        rows.append(
            [
                tag(
                    "span",
                    f"{claim['number']}. {claim['text']}",
                    tag("span", _link(recipe, studies.get(recipe)), cls="sub"),
                ),
                claim["paper"],
                _figures(claim["figures"]),
                tag(
                    "span",
                    tag("span", claim["verdict"], cls=f"chip {TONES[claim['verdict']]}"),
                    tag("span", claim["reason"], cls="sub"),
                ),
            ]
        )
    if rows:
        page.section("Claims", tag("div", table(columns, rows, cards=True), cls="panel dense claims"))


def _title(recipe: str, studies: Mapping[str, Any]) -> str:
    """What a study is called in front of people; records made before studies had titles have their names alone."""
    return str(studies.get(recipe, {}).get("title") or recipe.replace("_", " "))


def _link(recipe: str, study: Mapping[str, Any] | None) -> Html:
    title = _title(recipe, {recipe: study or {}})
    report = (study or {}).get("report")
    return tag("a", f"study: {title}", href=report) if report else tag("span", f"study: {title} (no page)")


def _figures(figures: Sequence[Mapping[str, Any]]) -> Html:
    """The first two figures in full, the others behind a click."""
    if not figures:
        return tag("span", "none")
    lines = [tag("div", figure_line(f), tag("span", f"{f['n']}; {f['unit']}", cls="sub")) for f in figures]
    rest = (
        tag("details", tag("summary", f"{plural(len(lines) - 2, 'more figure')}"), *lines[2:], cls="numbers")
        if len(lines) > 2
        else None
    )
    return tag("div", *lines[:2], rest)


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


def _shares(page: Page, claims: Sequence[Mapping[str, Any]], studies: Mapping[str, Any]) -> None:
    chart = shares_chart(claims, studies)
    if chart is not None:
        page.section(
            "Shares of what direct fine-tuning did", tag("div", page.chart(chart, heading=False), cls="panels")
        )


def shares_chart(claims: Sequence[Mapping[str, Any]], studies: Mapping[str, Any]) -> Chart | None:
    """Every share that a claim speaks of, with its interval, by recipe; None where there is none."""
    found: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    for claim in claims:
        for figure in claim["figures"]:
            trial, _, what = figure["what"].rpartition(": ")
            known = figure["unit"] in SHARES and figure["interval"] is not None and math.isfinite(figure["value"])
            if known and what in (KEPT, AVOIDED):
                found.setdefault((claim["recipe"], trial), {}).setdefault(what, figure)
    if not found:
        return None
    names = [f"{_title(recipe, studies)}: {trial}" for recipe, trial in found]
    data: list[dict[str, Any]] = []
    rows: list[tuple[int, str, str, Mapping[str, Any]]] = []
    for what, colour, symbol, shift in (
        (KEPT, "var(--second)", "diamond", -0.14),
        (AVOIDED, "var(--accent)", "circle", 0.14),
    ):
        held = [(place, shares[what]) for place, shares in enumerate(found.values()) if what in shares]
        rows += [(place, what, names[place], figure) for place, figure in held]
        if held:
            data.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": what,
                    "x": [f["value"] for _, f in held],
                    "y": [place + shift for place, _ in held],
                    "text": [
                        plain(f"{names[place]}<br>{what} {figure_line(f).rpartition(': ')[2]}") for place, f in held
                    ],
                    "hovertemplate": "%{text}<extra></extra>",
                    "marker": {"color": colour, "symbol": symbol, "size": 9},
                    "error_x": {
                        "type": "data",
                        "symmetric": False,
                        "array": [f["interval"][1] - f["value"] for _, f in held],
                        "arrayminus": [f["value"] - f["interval"][0] for _, f in held],
                        "color": colour,
                        "thickness": 1.5,
                        "width": 3,
                    },
                }
            )
    height = 120 + 34 * len(names)
    ticks = [plain(shorten(name, 56)) for name in names]
    narrow = [
        plain(shorten(trial.replace("label annealing", "LA").replace("weight ", "").replace("coefficient ", ""), 17))
        for _, trial in found
    ]
    lines = [
        {
            "type": "line",
            "x0": x,
            "x1": x,
            "y0": 0,
            "y1": 1,
            "yref": "paper",
            "line": {"color": "var(--muted)", "width": 1, "dash": "dot"},
        }
        for x in (0, 1)
    ]
    figure = {
        "data": data,
        "layout": layout(
            height,
            xaxis=axis("share; 1 is all of it", zeroline=False),
            yaxis=axis(
                tickvals=list(range(len(names))),
                ticktext=ticks,
                range=[len(names) - 0.4, -0.6],
                fixedrange=True,
                zeroline=False,
            ),
            shapes=lines,
            showlegend=True,
            legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0},
            meta={"narrow": narrow},
        ),
    }
    columns = [
        Column(title="trial"),
        Column(title="share"),
        Column(title="value", numeric=True),
        Column(title="interval", numeric=True),
    ]
    cells = [
        [name, what, number(f["value"], 2), f"[{number(f['interval'][0], 2)}, {number(f['interval'][1], 2)}]"]
        for _, what, name, f in sorted(rows, key=lambda row: row[:2])
    ]
    caption = (
        "Points with intervals over seeds and samples. Both far to the right: learnt as direct fine-tuning "
        "does, and forgot nothing."
    )
    return Chart(
        title="Shares of what direct fine-tuning did",
        figure=figure,
        caption=caption,
        columns=columns,
        rows=cells,
        height=height,
    )


def _studies(page: Page, studies: Mapping[str, Any]) -> None:
    columns = [
        Column(title="study"),
        Column(title="status"),
        Column(title="trials", numeric=True),
        Column(title="seeds", numeric=True),
        Column(title="target", wide=True),
        Column(title="source", wide=True),
    ]
    rows = [
        [
            tag("a", _title(recipe, studies), href=s["report"]) if s["report"] else _title(recipe, studies),
            s["status"],
            str(s["trials"]),
            str(len(s["seeds"])),
            s["target"] or "none",
            s["source"] or "none",
        ]
        for recipe, s in studies.items()
    ]
    page.section("Studies", tag("div", table(columns, rows, cards=True), cls="panel"))


def _small_print(page: Page, found: Mapping[str, Any]) -> None:
    versions = [(str(k), str(v)) for k, v in sorted(dict(found.get("versions") or {}).items())]
    machine = hardware_text(dict(found.get("hardware") or {}))
    page.section(
        "Made with",
        tag(
            "div",
            facts(
                [
                    ("machine", machine or "not recorded"),
                    ("written", f"{str(found['created'])[:16].replace('T', ' ')} UTC"),
                ]
            ),
            cls="card",
        ),
        fold("Versions", facts(versions)) if versions else None,
    )
    page.add(tag("footer", "Written by holdfast from the studies' records. This page needs no network."))
