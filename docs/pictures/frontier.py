"""The README's picture, made of the quickstart's figures in docs/tour.md: `python docs/pictures/frontier.py`.

Two files, for light and for dark pages: what each way of fine-tuning learns (target) against what it keeps (source).
"""

from __future__ import annotations

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
    "direct fine-tuning": (12, 5, "start"),
    "L2 (0.01)": (-12, 5, "end"),
    "SFA (p = 0.25)": (0, 22, "middle"),
    "replay (10 % prose)": (12, 5, "start"),
    "label annealing, weight 0.3": (12, 5, "start"),
    "label annealing, weight 1": (10, -8, "start"),
    "label annealing, weight 3": (0, -14, "middle"),
}
"""Where a label stands beside its point: right, down, and which of its ends is there."""


def main() -> None:
    """Writes `frontier-light.svg` and `frontier-dark.svg`."""
    points = figures((PLACE.parent / "tour.md").read_text(encoding="utf-8"))
    for name in COLOURS:
        (PLACE / f"frontier-{name}.svg").write_text(drawn(points, name), encoding="utf-8")


def figures(page: str) -> dict[str, tuple[float, float]]:
    """By way of fine-tuning, source and target in nats per token."""
    table = page.split("<!-- quickstart figures -->")[1].split("<!-- end of quickstart figures -->")[0]
    rows = re.findall(r"^\| (.+?) \| ([\d.]+) \| ([\d.]+) \|$", table, re.MULTILINE)
    return {name: (float(source), float(target)) for name, source, target in rows}


def drawn(points: dict[str, tuple[float, float]], colours: str) -> str:
    """The picture as SVG. Both axes point to the better side: right is more learnt, up is more kept."""
    c = COLOURS[colours]
    xs, ys = [4.6, 4.8, 5.0, 5.2], [4.9, 5.0, 5.1, 5.2]
    low, high = (4.49, 4.85), (5.32, 5.24)  # target and source at the better and at the worse end

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
    for value in (v for v in xs if low[0] <= v <= high[0]):
        x, y = at(high[1], value)
        parts.append(f'<path d="M{x:.1f} {y:.1f}V{TOP}" stroke="{c["grid"]}"/>')
        parts.append(text(x, y + 18, f"{value:.1f}", colour="faint"))
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, "held-out code, nats per token → more is learnt"))
    turned = f' transform="rotate(-90 18 {(TOP + HEIGHT - BOTTOM) / 2})"'
    parts.append(text(18, (TOP + HEIGHT - BOTTOM) / 2, "held-out prose, nats per token → more is kept", more=turned))
    curve = [at(*p) for name, p in points.items() if name == "direct fine-tuning" or name.startswith("label annealing")]
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in curve)
    parts.append(f'<path d="M{path}" fill="none" stroke="{c["line"]}" stroke-width="2"/>')
    for name, point in points.items():
        x, y = at(*point)
        colour = {"start": "ink", "direct fine-tuning": "bad"}.get(name, "line" if "annealing" in name else "good")
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
