"""The page of a leaderboard, what the terminal prints, and Markdown for a repository: blocks of one list.

Reads the record, nothing else; which way is better is decided there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.records.leaderboard import AtLevel, Curve, Estimate, LeaderboardRecord, Row, Standing, Track
from holdfast.reports.blocks import (
    Banner,
    Block,
    Bullets,
    Facts,
    Fold,
    Page,
    Panel,
    Paragraph,
    Section,
    Span,
    Table,
    Text,
    Tile,
    Tiles,
    columns,
    figure,
    notes,
    sub,
)
from holdfast.reports.charts import COLOURS, DASHES, SYMBOLS, Axis, Chart, Col, Mark, Rule, Value, tabulate
from holdfast.reports.format import (
    decimals_for,
    flatten,
    hardware_text,
    interval_text,
    listed,
    number,
    p_value,
    percent,
    plural,
)
from holdfast.reports.methods import DIRECT
from holdfast.reports.study_charts import window

if TYPE_CHECKING:
    from rich.console import Console

NAMED = 6
"""Ways that the first lines name at most of those that are as good as the best."""


def leaderboard_page(record: LeaderboardRecord) -> Page:
    """The page as blocks."""
    done = all(t.status == "finished" for t in record.tracks)
    ways = len(record.standing)
    runs = sum(t.runs for t in record.tracks)
    machine = hardware_text(record.hardware) or "not recorded"
    about = [("Machine", machine), ("Computed", record.created)]
    return Page(
        tab=f"{record.name}: holdfast leaderboard",
        eyebrow="holdfast leaderboard",
        title=record.name,
        lead=lead(record),
        status=("finished", "good") if done else ("not finished", "warn"),
        details=f"{plural(len(record.tracks), 'track')} · {plural(ways, 'way')} · {plural(runs, 'run')}",
        blocks=[
            Tiles(_tiles(record)),
            Section("Standing", [standing_table(record), Paragraph(_standing_note(record), "note")], anchor="standing"),
            *(_track(t, record) for t in record.tracks),
            _text_losses(record),
            _pairs(record),
            notes(_cut(record), "What was cut, failed or is missing", anchor="notes"),
            Section("How to read this page", [Panel([Bullets(reading(record))], "card")], anchor="reading"),
            Section(
                "The leaderboard",
                [
                    Panel([Facts(about)], "card"),
                    Fold("Configuration", [Facts(flatten(record.config))]) if record.config else None,
                    Fold("Versions", [Facts(sorted(record.versions.items()))]) if record.versions else None,
                ],
            ),
        ],
        footer="Written by holdfast from the tracks' records.",
    )


def print_leaderboard(record: LeaderboardRecord, folder: str | Path, console: Console | None = None) -> None:
    """Prints the standing, every track, and where the page is.

    Args:
        record: finished or not.
        folder: the leaderboard's.
        console: where to print; the terminal by default.
    """
    from holdfast.reports.terminal import Printer

    blocks: list[Block] = [Paragraph(record.name, "strong"), Paragraph(lead(record)), Paragraph("")]
    blocks += [standing_table(record), Paragraph(_standing_note(record), "note"), Paragraph("")]
    for track in record.tracks:
        blocks += [Paragraph(_title(track), "strong"), *_words(track)]
        blocks += [_rows(track, record), Paragraph("")] if track.rows else [Paragraph("")]
    blocks += [Paragraph(f"Note: {text}", "note") for text in _cut(record)]
    Printer(console).show([*blocks, Paragraph(f"Report    {Path(folder) / 'report.html'}")])


def leaderboard_markdown(record: LeaderboardRecord) -> str:
    """The tables as Markdown, with what has to be known to read them; without the trials behind them."""
    from holdfast.reports.blocks import Heading
    from holdfast.reports.markdown import render

    blocks: list[Block] = [Heading(record.name, 1), Paragraph(lead(record)), Heading("Standing", 2)]
    blocks += [standing_table(record), Paragraph(_standing_note(record))]
    for track in record.tracks:
        blocks += [Heading(_title(track), 2), *_words(track), _rows(track, record) if track.rows else None]
    if (texts := _text_losses(record)) is not None:
        blocks += [Heading(texts.title, 2), Paragraph(texts.intro), *texts.blocks]
    cut = _cut(record)
    blocks += [Heading("What was cut, failed or is missing", 2), Bullets(cut)] if cut else []
    return render([*blocks, Heading("How to read this", 2), Bullets(reading(record))])


# --------------------------------------------------------------------------------------------------------------- words


def lead(record: LeaderboardRecord) -> str:
    """Who leads, by how much, and how far that can be trusted, in a few sentences."""
    ranked = [t for t in record.tracks if t.ranked]
    late = [t.name for t in record.tracks if t.status != "finished"]
    going = f" Not finished: {listed(late)}." if late else ""
    if not ranked:
        few = [t.name for t in record.tracks if t.reason is None]
        why = (
            [f"nothing can be told on {listed([t.name for t in record.tracks if t.reason])}"]
            if len(few) < len(record.tracks)
            else []
        )
        why += [f"{listed(few)} {'have' if len(few) > 1 else 'has'} too few seeds"] if few else []
        return f"No track can be ranked: {listed(why)}.{going}"
    first = record.standing[0]
    parts = []
    for track in ranked:
        row = next((r for r in track.rows if r.way == first.way), None)
        at = None if row is None else _at(row, record.headline)
        if at is not None and at.avoided.value is not None:
            parts.append(f"{_share(at.avoided)} on {track.name}")
    kept = f"Where it has {_level(record)} of direct fine-tuning's gain, it avoids of the loss {listed(parts)}."
    tied = [s.way for s in record.standing[1:] if set(first.as_good) & set(s.as_good)]
    text = f"{_capital(first.way)} has the best mean rank, {_rank(first)} over {plural(first.tracks, 'track')}."
    text += f" {kept}" if parts else ""
    if len(tied) > NAMED:
        tied = [*tied[: NAMED - 1], f"{len(tied) - NAMED + 1} others"]
    text += f" Not told from the best somewhere: {listed(tied)}." if tied else ""
    return f"{text} {_optimism(ranked)}{going}".rstrip()


def _optimism(tracks: Sequence[Track]) -> str:
    """That the best of many is the best on these seeds, and what it is on others."""
    told = []
    for track in tracks:
        reached = sum(1 for r in track.rows if r.rank is not None and r.way != DIRECT)
        if track.best_unseen is not None:
            told.append(f"{percent(100 * track.best_unseen, sign=False)} on {track.name} (best of {reached + 1})")
    if not told:
        return ""
    return (
        f"Each track's first is the best of many on the same seeds, so its figure is optimistic: chosen by the other "
        f"seeds, the best avoids {listed(told)} on the seed left out."
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _level(record: LeaderboardRecord) -> str:
    return f"{100 * record.headline:.0f} %"


def _rank(standing: Standing) -> str:
    return "" if standing.mean_rank is None else f"{standing.mean_rank:.2g}"


def _at(row: Row, level: float) -> AtLevel | None:
    return next((at for at in row.levels if at.level == level), None)


def _interval(found: Estimate) -> str:
    if found.interval is None:
        return ""
    low, high = (100 * end for end in found.interval)
    return interval_text((low, high), 1 if max(abs(low), abs(high)) < 1000 else 0)


def _share(found: Estimate) -> str:
    """`91.2 % [85.0, 97.3]`."""
    if found.value is None:
        return "n/a"
    return f"{percent(100 * found.value, sign=False)} {_interval(found)}".rstrip()


def _title(track: Track) -> str:
    return f"{track.name}: {track.target} against {track.source}" if track.target else track.name


def _words(track: Track) -> list[Block]:
    """What the track is, and whether anything can be told."""
    if track.gained is None or track.lost is None:
        return [Paragraph(f"Nothing can be told: {track.reason}.")]
    gained, lost = (_plain(e) for e in (track.gained, track.lost))
    text = (
        f"{_capital(track.direct)} (tuned) changes {track.target} by {gained} {track.target_unit} and {track.source} "
        f"by {lost} {track.source_unit}, more is better; {plural(len(track.seeds), 'seed')}, "
        f"{plural(track.runs, 'run')}."
    )
    return [Paragraph(text), *([Banner(f"Nothing can be told: {track.reason}.", "warn")] if track.reason else [])]


def _plain(found: Estimate) -> str:
    digits = decimals_for(found.interval)
    return f"{number(found.value, digits, sign=True)} {interval_text(found.interval, digits, sign=True)}".rstrip()


def _cut(record: LeaderboardRecord) -> list[str]:
    found = list(record.notes)
    for track in record.tracks:
        if track.status != "finished":
            found.append(f"{track.name}: {track.status}.")
        found += [f"{track.name}: {text}" for text in track.notes]
        ways: dict[str, list[str]] = {}  # what holds for many is said once
        for way, text in ((row.way, text) for row in track.rows for text in row.notes):
            ways.setdefault(text, []).append(way)
        found += [f"{track.name}, {listed(own)}: {text}" for text, own in ways.items()]
    everywhere = {s.way for s in record.standing}
    for track in (t for t in record.tracks if t.rows):
        lacking = sorted(everywhere - {r.way for r in track.rows})
        found += [f"{track.name} has no runs of {listed(lacking)}."] if lacking else []
    return list(dict.fromkeys(found))


def reading(record: LeaderboardRecord) -> list[str]:
    """What the figures mean."""
    levels = listed([f"{100 * level:.0f}" for level in record.levels])
    return [
        f"Avoided at {levels} %: where a way has learnt this share of what tuned direct fine-tuning gains on the "
        "target, the share of its source loss that the way does not lose; 100 % keeps all of it, below 0 more is lost. "
        "Along a grid's strengths the place is interpolated, seed by seed; 95 % intervals (Fieller) cover seeds and "
        "samples.",
        "Each way is at its own best: rate, strength and other settings are, for each seed, those that the other seeds "
        "choose, so that a grid of many values has no advantage. Direct fine-tuning's row is its own other rates.",
        "Hypervolume: the mean share avoided over all targets from nothing to direct fine-tuning's gain, a target that "
        "is not reached counting 0; the interval is over seeds.",
        "Step: seconds a training step beside direct fine-tuning's on the same machine, medians.",
        f"Ranks go by what is avoided at {_level(record)}; ways that do not reach it share the last. Better, worse and "
        "not told from the best are two-sided t-tests of differences at equal target, seeds paired. Pairs with direct "
        "fine-tuning of all tracks are adjusted together, and so are all pairs of two ways, any of which might have "
        f"held the best (Holm, each at half of {100 * record.level:.0f} %).",
        "The best of many is the best on these seeds and samples. Its figure on seeds that did not choose it stands in "
        "the first lines; the samples are the same in both.",
    ]


# -------------------------------------------------------------------------------------------------------------- tables


def _tiles(record: LeaderboardRecord) -> list[Tile]:
    ranked = [t for t in record.tracks if t.ranked]
    sure = sum(a.p_adjusted < record.level for a in record.against)
    found = [Tile("Tracks ranked", f"{len(ranked)} of {len(record.tracks)}")]
    if ranked:
        first = record.standing[0]
        found += [
            Tile("Best mean rank", _rank(first), first.way),
            Tile("Pairs told apart", f"{sure} of {len(record.against)}", "all at once (Holm)"),
        ]
    return found


def standing_table(record: LeaderboardRecord) -> Table:
    """Every way over all ranked tracks, the best mean rank first."""

    def row(s: Standing) -> list[Text]:
        rank = Span(_rank(s) or "not ranked", value=s.mean_rank)
        cells = [", ".join(names) for names in (s.better, s.worse, s.as_good)]
        return [s.way, rank, str(s.tracks), *cells, s.old_data or "no"]

    titles = (
        "Way",
        "Mean rank",
        "Tracks",
        "Better than direct on",
        "Worse on",
        "Tied with the best on",
        "Old data",
    )
    rows = [row(s) for s in record.standing]
    return Table(columns=columns(*titles, right=(1, 2), wide=(3, 4, 5)), rows=rows, kind="dense", find="way")


def _standing_note(record: LeaderboardRecord) -> str:
    return (
        f"Ranks by what is avoided where {_level(record)} of direct fine-tuning's gain is learnt. Tied: the best, or "
        f"not told from it. Pairs are adjusted: the chance of any false difference is {100 * record.level:.0f} %."
    )


def _avoided(at: AtLevel | None) -> Text:
    if at is None:
        return ""
    if at.avoided.value is None:
        return "not reached" if "does not reach" in str(at.avoided.reason) else "cannot tell"
    text = percent(100 * at.avoided.value, sign=False)
    return figure(text, _interval(at.avoided), value=at.avoided.value)


def _rows(track: Track, record: LeaderboardRecord) -> Table:
    """Every way on a track, the best first."""

    def level(of: float) -> Callable[[Row], Text]:
        return lambda row: _avoided(_at(row, of)) if row.levels else "cannot tell"

    def settings(row: Row) -> Text:
        at = _at(row, record.headline)
        return at.setting if at is not None else ""

    def volume(row: Row) -> Text:
        found = row.hypervolume
        if found.value is None:
            return "cannot tell"
        digits = decimals_for(found.interval)
        return figure(number(found.value, digits), interval_text(found.interval, digits), value=found.value)

    def trials(row: Row) -> Text:
        return str(row.trials) if row.trials == row.complete else f"{row.complete} of {row.trials}"

    costs = any(r.seconds_a_step is not None for r in track.rows)
    cols = [
        Col("Way", lambda r: (r.way, *(sub(line) for line in _needs(r))), numeric=False),
        Col("Rank", lambda r: "" if r.rank is None else f"{r.rank:g}"),
        *(Col(f"Avoided at {100 * of:.0f} %", level(of)) for of in record.levels),
        Col("Hypervolume", volume),
        *([Col("Step", lambda r: "" if r.seconds_a_step is None else f"{r.seconds_a_step:.2f}")] if costs else []),
        Col("Trials", trials),
        Col(f"Settings at {_level(record)}", settings, numeric=False, wide=True),
    ]
    return tabulate(track.rows, cols, kind="dense", find="way")


def _needs(row: Row) -> Iterator[str]:
    if row.old_data:
        yield f"old data: {row.old_data}"
    if row.keeps:
        yield f"keeps in memory: {row.keeps}"


def _track(track: Track, record: LeaderboardRecord) -> Section:
    link = Paragraph(Span("the study's page", link=f"{track.folder}/report.html"))
    blocks: list[Block | None] = [*_words(track), _rows(track, record) if track.rows else None]
    blocks += [curves_chart(track, record.levels), avoided_chart(track, record)]
    own = track.rows and not Path(track.folder).is_absolute()
    return Section(_title(track), [*blocks, link if own else None], anchor=track.name)


def _text_losses(record: LeaderboardRecord) -> Section | None:
    """PEFT's own measure, where the source has texts."""
    found = [
        (track, row, at.text_loss)
        for track in record.tracks
        for row in track.rows
        if (at := _at(row, record.headline)) is not None and at.text_loss is not None
    ]
    if not found:
        return None
    rows = [
        [t.name, r.way, figure(number(rise.value, 4, sign=True), _rise(rise), value=rise.value)] for t, r, rise in found
    ]
    titles = ("Track", "Way", "Rise of loss (nats/token)")
    intro = (
        "PEFT's comparison of methods has the rise of the mean loss on held-out text beside an accuracy. The same, "
        f"on the source's texts, where every way has learnt {_level(record)} of direct fine-tuning's gain; smaller is "
        "better."
    )
    table = Table(columns=columns(*titles, right=(2,)), rows=rows, kind="dense", find="way")
    return Section("Beside PEFT's table", [table], intro=intro, anchor="peft")


def _rise(found: Estimate) -> str:
    return interval_text(found.interval, 4, sign=True)


def _pairs(record: LeaderboardRecord) -> Section | None:
    if not record.against:
        return None
    cols = [
        Col("Track", "track", numeric=False),
        Col("Way", "way", numeric=False),
        Col("Against", "rival", numeric=False),
        Col("Avoids more by", lambda a: _difference(a.difference)),
        Col("p", lambda a: p_value(a.p_value)),
        Col("p, all pairs", lambda a: p_value(a.p_adjusted)),
    ]
    table = tabulate(record.against, cols, kind="dense", find="pair")
    return Section("Pairs", [Fold(f"All {len(record.against)} pairs", [table])], anchor="pairs")


def _difference(found: Estimate) -> Text:
    if found.value is None:
        return "n/a"
    return figure(f"{percent(100 * found.value)}", _interval(found), value=found.value)


# -------------------------------------------------------------------------------------------------------------- charts


def _styles(ways: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Way -> (colour, symbol)."""
    others = [w for w in ways if w != DIRECT]
    return {w: (COLOURS[i % 5], SYMBOLS[(i + i // 5) % 5]) for i, w in enumerate(others)} | {DIRECT: ("bad", "x")}


def curves_chart(track: Track, levels: Sequence[float]) -> Chart | None:
    """Every way's curves: what is learnt against what is kept; None without a complete trial."""
    styles = _styles(sorted(r.way for r in track.rows))
    rows: list[dict[str, Any]] = []
    curves: list[tuple[str, Curve, int]] = []
    for row in track.rows:
        for place, curve in enumerate(row.curves):
            for point in curve.points:
                values = {"x": _value(point.source), "y": _value(point.target)}
                rows.append({"way": row.way, "label": point.label, "curve": len(curves), "at": len(rows), **values})
            curves.append((row.way, curve, place))
    if not rows or track.gained is None or track.lost is None:
        return None
    marks = [
        Mark(
            kind="line" if len(curve.points) > 1 else "points",
            where={"curve": number_},
            name=way,
            legend=place == 0,
            colour=styles[way][0],
            symbol=styles[way][1],
            dash=DASHES[place % len(DASHES)],
            size=7,
            bars=0.6,
            more={"legendgroup": way},
        )
        for number_, (way, curve, place) in enumerate(curves)
    ]

    def limits(key: str, direct: Estimate) -> tuple[float, float]:
        ends = {r["at"]: (r[key].value, None) for r in rows}
        return window([0.0, direct.value or 0.0], ends, reach=0.6)[0]

    return Chart(
        title=f"{track.target} against {track.source}",
        rows=rows,
        columns=[
            Col("Way", "way", numeric=False),
            Col("Trial", "label", numeric=False),
            Col(f"Target gain ({track.target_unit})", "y"),
            Col(f"Source gain ({track.source_unit})", "x"),
        ],
        marks=marks,
        x=Axis(title=f"source gain ({track.source_unit}) → better", zero=True, range=limits("x", track.lost)),
        y=Axis(title=f"target gain ({track.target_unit}) → better", zero=True, range=limits("y", track.gained)),
        rules=[Rule(y=(track.gained.value or 0.0) * level) for level in levels if track.reason is None],
        caption=(
            "Gains against the start, 95 % intervals. A line is a grid along the method's strength at one rate; dotted "
            "across: the targets at which ways are compared. What lies far off is outside the plot."
        ),
        height=520,
        legend=True,
    )


def _value(found: Estimate) -> Value:
    low, high = found.interval or (None, None)
    digits = decimals_for(found.interval)
    text, interval = number(found.value, digits, sign=True), interval_text(found.interval, digits, sign=True)
    return Value(value=found.value or 0.0, low=low, high=high, text=text, interval=interval)


def avoided_chart(track: Track, record: LeaderboardRecord) -> Chart | None:
    """What each way avoids at the headline's level, the best on top; None where none is known."""
    held = [(r, at.avoided) for r in track.rows if (at := _at(r, record.headline)) and at.avoided.value is not None]
    if not held:
        return None
    rows = []
    for place, (row, found) in enumerate(held):
        low, high = found.interval or (None, None)
        text, interval = percent(100 * (found.value or 0.0), sign=False), _interval(found)
        value = Value(value=found.value or 0.0, low=low, high=high, text=text, interval=interval)
        rows.append({"way": row.way, "x": value, "y": place})
    return Chart(
        title=f"Avoided where {_level(record)} of the gain is learnt",
        rows=rows,
        columns=[Col("Way", "way", numeric=False), Col("Avoided", "x")],
        marks=[Mark()],
        x=Axis(title="share of direct fine-tuning's loss that is avoided → better"),
        y=Axis(names=[str(r["way"]) for r in rows], length=44),
        rules=[Rule(x=0), Rule(x=1)],
        caption="95 % intervals over seeds and samples, of each way alone.",
        height=110 + 26 * len(rows),
    )
