"""The README's picture, made of the quickstart's figures in docs/getting_started.md:
`python docs/pictures/frontier.py`.

Two files, for light and for dark pages: what each arm learns (target) against what it keeps (source).
"""

from __future__ import annotations

import math
import re
from pathlib import Path

PLACE = Path(__file__).parent
WIDTH, HEIGHT = 760, 400
LEFT, RIGHT, TOP, BOTTOM = 70, 24, 22, 58
COLOURS = {
    "light": {
        "ink": "#1f2933",
        "faint": "#8a94a0",
        "grid": "#e4e8ec",
        "line": "#2456c4",
        "bad": "#b3261e",
        "good": "#1b7f4b",
    },
    "dark": {
        "ink": "#e6e9ed",
        "faint": "#98a2ae",
        "grid": "#2f3640",
        "line": "#7ea6ff",
        "bad": "#ff8a80",
        "good": "#69d39b",
    },
}
BESIDE = {
    "start": (10, 5, "start"),
    "direct fine-tuning": (-12, 5, "end"),
    "direct fine-tuning (at 3e-4)": (-12, 18, "end"),
    "label annealing": (-12, 5, "end"),
    "replay (10 % prose)": (-12, 8, "end"),
}
"""Where a label stands beside its point: right, down, and which of its ends is there."""


def main() -> None:
    """Writes `frontier-light.svg` and `frontier-dark.svg`."""
    points = figures((PLACE.parent / "getting_started.md").read_text(encoding="utf-8"))
    for name in COLOURS:
        (PLACE / f"frontier-{name}.svg").write_text(drawn(points, name), encoding="utf-8")


def figures(page: str) -> dict[str, tuple[float, float]]:
    """By way of fine-tuning, source and target in nats per token."""
    table = page.split("<!-- quickstart figures -->")[1].split("<!-- end of quickstart figures -->")[0]
    rows = re.findall(r"^\| (.+?) \| ([\d.]+) \| ([\d.]+) \|$", table, re.MULTILINE)
    return {name: (float(source), float(target)) for name, source, target in rows}


def axis(values: list[float]) -> tuple[float, float]:
    """Both ends of an axis: a tenth of the values' range beyond them."""
    beyond = (max(values) - min(values)) / 10
    return min(values) - beyond, max(values) + beyond


def ticks(low: float, high: float) -> list[float]:
    """Multiples of 0.1 between the ends."""
    first, last = math.ceil(low * 10), math.floor(high * 10)
    return [number / 10 for number in range(first, last + 1)]


def drawn(points: dict[str, tuple[float, float]], colours: str) -> str:
    """The picture as SVG. Both axes point to the better side: right is more learnt, up is more kept."""
    c = COLOURS[colours]
    target_range, source_range = (axis([point[side] for point in points.values()]) for side in (1, 0))
    low, high = zip(target_range, source_range, strict=True)  # the better and the worse end of both
    xs, ys = (ticks(*ends) for ends in (target_range, source_range))

    def at(source: float, target: float) -> tuple[float, float]:
        across = (high[0] - target) / (high[0] - low[0])
        up = (high[1] - source) / (high[1] - low[1])
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    def text(x: float, y: float, words: str, *, anchor: str = "middle", colour: str = "ink", more: str = "") -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{c[colour]}"{more}>{words}</text>'

    parts = []
    for value in ys:
        x, y = at(value, high[0])
        parts.append(f'<path d="M{x:.1f} {y:.1f}H{WIDTH - RIGHT}" stroke="{c["grid"]}"/>')
        parts.append(text(x - 8, y + 4, f"{value:.1f}", anchor="end", colour="faint"))
    for value in xs:
        x, y = at(high[1], value)
        parts.append(f'<path d="M{x:.1f} {y:.1f}V{TOP}" stroke="{c["grid"]}"/>')
        parts.append(text(x, y + 18, f"{value:.1f}", colour="faint"))
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, "held-out code, nats per token → more is learnt"))
    turned = f' transform="rotate(-90 18 {(TOP + HEIGHT - BOTTOM) / 2})"'
    parts.append(text(18, (TOP + HEIGHT - BOTTOM) / 2, "held-out prose, nats per token → more is kept", more=turned))
    for name, point in points.items():
        x, y = at(*point)
        colour = "line" if "annealing" in name else "good"
        if name == "start" or name.startswith("direct"):
            colour = "ink" if name == "start" else "bad"
        right, down, anchor = BESIDE[name]
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5.5" fill="{c[colour]}"/>')
        parts.append(text(x + right, y + down, name, anchor=anchor, colour=colour))
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="system-ui, sans-serif" font-size="13">\n'
        f"<title>The quickstart: what each way of fine-tuning learns, and what it keeps</title>\n{body}\n</svg>\n"
    )


if __name__ == "__main__":
    main()
