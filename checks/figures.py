"""The figures of a command's output as a multiset, so that the same figures in another layout are the same.

A figure is a number with its sign and, where it follows at once, `%`, `pt` or `x`. Times, dates, versions and rates
differ from run to run and are left out. What plots draw counts apart from what is read.
"""

from __future__ import annotations

import re
from collections import Counter

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


def of_text(text: str) -> dict[str, int]:
    """Figures of plain text, with how often each stands there."""
    found = Counter(re.sub(r"[\s\u202f]", "", m).replace("−", "-") for m in _FIGURE.findall(_VARYING.sub(" ", text)))
    return dict(sorted(found.items()))
