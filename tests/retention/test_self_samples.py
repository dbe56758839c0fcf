"""The stream of the start model's samples, over a model that is a few lines of Python."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from data_files import jsonl, rows_of
from holdfast.errors import ModelError
from holdfast.retention.self_samples import Drawing, Drawn, Filters, Stream, repetition
from holdfast.retention.services import Sample

PROMPTS = [[i, i + 1, *range(i % 5)] for i in range(10)]


class Decoder:
    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        return "".join(" " if i == 9 else "x" for i in ids)


@dataclass
class FakeHost:
    """One process of `world`, which sees what the others would draw by drawing it itself."""

    world: int = 1
    rank: int = 0
    said: list[str] = field(default_factory=list)
    tokenizer: Any = field(default_factory=Decoder)

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def together(self, work: Callable[[], Any]) -> Any:
        return work()

    def say(self, text: str) -> None:
        self.said.append(text)


def writes(prompts: Sequence[Sequence[int]], tokens: int, seed: int) -> list[Sample]:
    rng = random.Random(seed)
    return [Sample(ids=tuple(rng.randrange(20, 99) for _ in range(tokens)), ended=False) for _ in prompts]


@dataclass
class Counting:
    """A start model that is asked for `most` batches before somebody presses Ctrl-C."""

    most: int = 10**9
    write: Any = writes
    asked: list[Any] = field(default_factory=list)

    def __call__(self, prompts: Sequence[Sequence[int]], tokens: int, seed: int) -> list[Sample]:
        if len(self.asked) == self.most:
            raise KeyboardInterrupt
        self.asked.append((tuple(map(tuple, prompts)), seed))
        return self.write(prompts, tokens, seed)


def stream(prompts: Sequence[Sequence[int]] = PROMPTS, **changes: Any) -> Stream:
    defaults = {"max_new_tokens": 12, "window": 64, "batch_size": 4, "seed": 0, "once": False, "how": {"start": "a"}}
    return Stream(prompts=prompts, **{**defaults, **changes})


def drawn(
    folder: Path, tokens: float, *, draw: Any = writes, services: Any = None, of: Stream | None = None, **changes: Any
) -> Drawn:
    settings: dict[str, Any] = {"filters": Filters(), "most": None, "max_dropped": 0.5, "advice": "Ask otherwise."}
    drawing = Drawing(
        services=services or FakeHost(), stream=of or stream(), draw=draw, folder=folder, **{**settings, **changes}
    )
    return drawing.until(lambda found: tokens - found.tokens)


def test_a_larger_share_draws_on_where_a_smaller_one_ended(tmp_path: Path) -> None:
    first = drawn(tmp_path, 100)
    assert first.new == first.drawn and first.tokens >= 100
    again = Counting()
    assert drawn(tmp_path, 100, draw=again).kept == first.kept and not again.asked
    more = drawn(tmp_path, 300, draw=again)
    assert more.kept[: len(first.kept)] == first.kept and more.new == more.drawn - first.drawn
    assert more.kept == drawn(tmp_path / "anew", 300).kept


def test_the_number_of_ranks_changes_nothing(tmp_path: Path) -> None:
    """Each rank draws every `world`-th batch that is missing; what is used is a prefix of all batches."""

    class Three(FakeHost):
        def gather(self, value: Any) -> list[Any]:
            if not isinstance(value, dict) or "ids" not in value:
                return [value]
            others = [self.drawing._batch(n) for n in self.drawing._wanted()[1:]]
            return [value, *others]

    services = Three(world=3)
    drawing = Drawing(
        services=services,  # type: ignore[arg-type]
        stream=stream(),
        filters=Filters(),
        draw=writes,
        folder=tmp_path / "three",
        most=None,
        max_dropped=0.5,
        advice="",
    )
    services.drawing = drawing  # type: ignore[attr-defined]
    found = drawing.until(lambda d: 250 - d.tokens)
    one = drawn(tmp_path / "one", 250)
    assert found.kept == one.kept and found.new > one.new, "the last round draws more than is used"


def test_every_prompt_has_its_turn_before_one_has_another() -> None:
    of = stream()
    rounds = [[tuple(p) for n in range(k * 3, k * 3 + 3) for p in of.batch(n)] for k in range(3)]
    assert all(sorted(r) == sorted(map(tuple, PROMPTS)) for r in rounds) and rounds[0] != rounds[1]
    assert stream(once=True).batches == 3 and of.batches is None
    assert of.room([[1] * 60]) == 4 and stream(window=10**6).facts["window"] is None


def test_an_interruption_costs_one_batch(tmp_path: Path) -> None:
    stopped = Counting(most=3)
    with pytest.raises(KeyboardInterrupt):
        drawn(tmp_path, 300, draw=stopped)
    rest = Counting()
    found = drawn(tmp_path, 300, draw=rest)
    assert len(stopped.asked) == 3 and not set(stopped.asked) & set(rest.asked)
    assert found.kept == drawn(tmp_path / "anew", 300).kept and found.new < found.drawn


def test_damaged_batches_are_drawn_again(tmp_path: Path) -> None:
    first, file = drawn(tmp_path, 100), tmp_path / "samples.jsonl"
    lines = rows_of(file)
    lines[0]["ids"][0][0] += 1
    jsonl(file, lines)
    services, again = FakeHost(), Counting()
    assert drawn(tmp_path, 100, draw=again, services=services).kept == first.kept and len(again.asked) == 1
    assert "1 damaged batch(es)" in services.said[0]


def test_a_second_run_waits_and_finds(tmp_path: Path) -> None:
    began, goes_on = threading.Event(), threading.Event()

    def slow(prompts: Sequence[Sequence[int]], tokens: int, seed: int) -> list[Sample]:
        began.set()
        assert goes_on.wait(20)
        return writes(prompts, tokens, seed)

    first: list[Drawn] = []
    thread = threading.Thread(target=lambda: first.append(drawn(tmp_path, 100, draw=slow)))
    thread.start()
    assert began.wait(20)
    services, second = FakeHost(), Counting()
    timer = threading.Timer(0.3, goes_on.set)
    timer.start()
    found = drawn(tmp_path, 100, draw=second, services=services)
    thread.join()
    assert found.kept == first[0].kept and not second.asked and "waiting" in services.said[0]


def test_what_is_left_out_is_counted_and_draws_nothing_again(tmp_path: Path) -> None:
    def mixed(prompts: Sequence[Sequence[int]], tokens: int, seed: int) -> list[Sample]:
        plain = writes(prompts, tokens, seed)
        kinds = [Sample(ids=(0,), ended=True), Sample(ids=(9, 9, 0), ended=True), Sample(ids=(7, 8) * 6, ended=False)]
        return [*kinds, *plain[3:]]

    found = drawn(tmp_path, 100, draw=mixed, of=stream([[1]], batch_size=8), max_dropped=0.9)
    assert dict(found.dropped) == {"empty": 4} and found.repeating == 2 and found.drawn == 16
    strict, again = Filters(max_repetition=0.5, least_tokens=3), Counting()
    kept = drawn(tmp_path, 30, draw=again, of=stream([[1]], batch_size=8), max_dropped=0.9, filters=strict)
    assert not again.asked and kept.dropped["repeats itself"] == 1


@pytest.mark.parametrize(
    ("says", "reason"),
    [((), "48 are empty"), ((0,), "48 are empty"), ((7, 8, 9) * 8, "48 only repeat themselves")],
    ids=["nothing", "the end token", "the same again and again"],
)
def test_a_start_model_without_usable_text_is_refused(says: tuple[int, ...], reason: str, tmp_path: Path) -> None:
    def write(prompts: Sequence[Sequence[int]], tokens: int, seed: int) -> list[Sample]:
        return [Sample(ids=says, ended=says == (0,)) for _ in prompts]

    model = Counting(write=write)
    with pytest.raises(ModelError, match=rf"of 48 samples {reason}; expected at most 50% .* Ask otherwise"):
        drawn(tmp_path, 10**6, draw=model)
    assert len(model.asked) <= 16, "not after everything was drawn"


def test_repetition_is_the_share_of_stretches_that_were_there_before() -> None:
    assert repetition(range(40)) == 0.0 and repetition([1] * 5) == 0.0
    assert repetition([1, 2, 3, 4] * 8) == pytest.approx(1 - 4 / 29)
