"""The figures of a page or of a command's output as a multiset, so that the same figures in another layout are the
same.

A figure is a number with its sign and, where it follows at once, `%`, `pt` or `x`. Times, dates, versions and rates
differ from run to run and are left out. What plots draw counts apart from what is read.
"""

from __future__ import annotations

import html.parser
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

_VARYING = re.compile(
    r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?(?:[+-]\d\d:\d\d|Z)?)?"  # dates
    r"|bookkeeping \([\d.]+ %\)|[\w.-]+:\d+\s+\d+\s+\S+ \S+\s+\d+ %"  # what a worker, HOST:PID, did with its time
    r"|\d\d?:\d\d(?::\d\d)?"  # times of day
    r"|\d+\.\d+\.\d+[\w.+-]*"  # versions
    r"|[\d.,]+\s?(?:[kMGT]i?B|[A-Za-z]+)?/s\b"  # rates
    r"|[\d.,]+\s(?:[A-Za-z]+ )?(?:a|per) second"
    r"|[\d.,]+\s?(?:ms|µs|s|sec|seconds?|min|minutes?|h|hours?|GPU-hours?)\b"
)
_FIGURE = re.compile(
    r"(?<![\w.#/-])[+\-−±]?\d+(?:[, \u202f]\d{3})*(?:\.\d+)?(?:[eE][+-]?\d+)?(?:\s?(?:%|pt\b|×|x\b))?(?![\w])"
)
_WORKER = re.compile(r"[\w.-]+:\d+")
_UNSEEN = {"script", "style", "head", "noscript", "template"}


def of_text(text: str) -> dict[str, int]:
    """Figures of plain text, with how often each stands there."""
    found = Counter(re.sub(r"[\s\u202f]", "", m).replace("−", "-") for m in _FIGURE.findall(_VARYING.sub(" ", text)))
    return dict(sorted(found.items()))


class _Reader(html.parser.HTMLParser):
    """Visible text, and the JSON that scripts draw from."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.data: list[str] = []
        self.json = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _UNSEEN:
            self.open.append(tag)
        self.json = tag == "script" and dict(attrs).get("type") == "application/json"
        self.text.append(" ")

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1] == tag:
            self.open.pop()
        self.json = False
        self.text.append("\n")

    def handle_data(self, data: str) -> None:
        if self.json:
            self.data.append(data)
        elif not self.open:
            self.text.append(data)


def of_page(path: Path) -> dict[str, dict[str, int]]:
    """Figures of a page: what is read, and what is drawn (numbers inside arrays, six digits)."""
    reader = _Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    drawn: Counter[str] = Counter()
    for text in reader.data:
        _numbers(json.loads(text), drawn, inside=False)
    return {"read": of_text("".join(reader.text)), "drawn": dict(sorted(drawn.items()))}


def _numbers(value: Any, found: Counter[str], *, inside: bool) -> None:
    """Counts the numbers that stand in arrays below `value`."""
    if isinstance(value, dict):
        if any(isinstance(v, list) and v and isinstance(v[0], str) and _WORKER.fullmatch(v[0]) for v in value.values()):
            return  # the time of workers
        for item in (v for k, v in value.items() if k not in ("layout", "marker", "line")):
            _numbers(item, found, inside=False)
    elif isinstance(value, list):
        for item in value:
            _numbers(item, found, inside=True)
    elif inside and isinstance(value, (int, float)) and not isinstance(value, bool):
        found[f"{value:.6g}"] += 1
