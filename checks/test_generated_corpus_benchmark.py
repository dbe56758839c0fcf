"""`benchmarks/generated_corpus.py`: what its rules say of figures that are made up."""

from __future__ import annotations

from typing import Any

import pytest

PSEUDO, ACTUAL, OPEN = "pseudo forgetting", "actual forgetting", "inconclusive"


def world(bench: Any, shifts: tuple[float, ...], verdicts: str, error: float = 1.0) -> dict[str, Any]:
    """A world whose restored models score so many points more on generated text; its verdicts on real and on
    generated text, as "pa" for pseudo and actual."""
    words = {"p": PSEUDO, "a": ACTUAL, "o": OPEN}
    arms = {}
    for number, arm in enumerate((bench.REAL, bench.GENERATED)):
        said = verdicts.split()[number]
        arms[arm] = {"checkpoints": [{"verdict": words[letter]} for letter in said]}
    arms[bench.GENERATED] |= {"shift": list(shifts), "shift_error": [error] * len(shifts)}
    return {"world": 0, "arms": arms}


@pytest.mark.parametrize(
    ("worlds", "said"),
    [
        ([((0.0, 1.0), "pa pa")], "agree"),
        ([((0.0, 1.0), "pa po")], "agree"),
        ([((0.0, 4.0), "pa pa")], "cannot tell"),
        ([((0.0, 1.0), "pa pp")], "cannot tell"),
        ([((0.0, 9.0), "pa pa")], "part"),
        ([((0.0, 1.0), "pa pp"), ((0.0, 1.0), "pa pp")], "part"),
        ([((0.0, 1.0), "pa pa"), ((0.1, 1.1), "pa pa")], "agree"),
        ([((0.0, 1.0), "pa pa"), ((6.0, 1.0), "pa pa")], "cannot tell"),
    ],
    ids=["agree", "open", "wide", "one against", "beyond", "two against", "two agree", "worlds differ"],
)
def test_the_rules(script, worlds, said):
    bench = script("generated_corpus")
    figures = [world(bench, shifts, verdicts) for shifts, verdicts in worlds]
    assert bench.judged(figures, bench.GENERATED, 2) == said
