"""A study's live page: jobs by state, workers, time left and what was found, read without a trace."""

from __future__ import annotations

import datetime
import html
import re
from pathlib import Path

import pytest
from test_toy_study import Toy, ToyStudy, quiet, toy

from holdfast.errors import ConfigError, HoldfastError
from holdfast.reports.blocks import Page, Paragraph
from holdfast.reports.html import parts
from holdfast.studies.engine.live import WatchedStudy, live_page, remaining
from holdfast.studies.engine.session import execute_study, open_existing
from holdfast.studies.engine.storage import KIND, Storage
from holdfast.studies.engine.study import JobState, StudyState

NOW = datetime.datetime(2026, 1, 1, 12, 0, tzinfo=datetime.UTC).timestamp()


def at(minutes: float) -> str:
    return datetime.datetime.fromtimestamp(NOW + 60 * minutes, datetime.UTC).isoformat()


def job(number: int, state: str, **changes) -> JobState:
    fields = {
        "slot": number,
        "attributes": {"label": f"speed {number}", **changes.pop("attributes", {})},
        "params": {},
        "values": None,
        "worker": "",
        "started": None,
        "finished": None,
        "continued_by": None,
    }
    return JobState(number=number, state=state, **{**fields, **changes})


def state(*jobs: JobState, status: str = "running") -> StudyState:
    return StudyState(name="toy", status=status, created="", jobs=list(jobs), storage="sqlite:///x", attributes={})


def text_of(page: Page) -> str:
    return html.unescape(re.sub(r"<[^>]+>", " ", " ".join(p.html for p in parts(page))))


MIXED = (
    job(0, "complete", started=at(-20), finished=at(-10), values=(0.25,), worker="a:1"),
    job(1, "running", started=at(-4), worker="a:1"),
    job(2, "waiting"),
    job(3, "failed", started=at(-9), finished=at(-8), attributes={"reason": "no <memory>"}),
    job(4, "pruned", started=at(-9), finished=at(-8), attributes={"reason": "behind"}),
)


def test_jobs_by_state_workers_and_the_time_left(tmp_path: Path) -> None:
    text = text_of(live_page(toy(tmp_path), state(*MIXED), now=NOW))
    assert "3 of 5 jobs ended, 1 worker at work, about 16 min left" in text  # 6 of the one at work, 10 of the next
    assert "1 of 5" in text
    assert "1 running, 1 waiting, 1 pruned, 1 failed" in text
    assert "a:1: job 1, speed 1, for 4 min" in text
    assert "job 3, speed 3: no <memory>" in text
    assert "0.25" in text


def test_time_left_needs_something_to_go_by() -> None:
    assert remaining([job(0, "waiting")], NOW) is None
    assert remaining([job(0, "running", started=at(-1), worker="a:1")], NOW) is None
    lasted = [job(0, "complete", started=at(-20), finished=at(-10)), job(1, "running", started=at(-10), worker="b:1")]
    assert remaining(lasted, NOW) == 0.0


def test_a_study_that_nobody_works_on_says_so(tmp_path: Path) -> None:
    jobs = [MIXED[0], job(1, "running", started=at(-4), worker="a:1")]
    text = text_of(live_page(toy(tmp_path), state(*jobs, status="interrupted"), now=NOW))
    assert "nobody is at work. The command that began the study continues it" in text


class Found(ToyStudy):
    """A toy study with a page on what there is."""

    one_in_process = True

    def so_far(self, record) -> Page:
        return Page(
            tab="t", eyebrow="e", title="toy", lead="The faster ball flies farther.", blocks=[Paragraph("a table")]
        )


class Broken(ToyStudy):
    def so_far(self, record) -> Page:
        raise LookupError("no throws")


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    out = tmp_path / "toy"
    execute_study(Found(Toy(output_dir=out, storage=f"sqlite:///{out}/study.db", workers=1)), console=quiet())
    return out


def test_a_study_is_read_without_a_trace(finished: Path) -> None:
    def snapshot() -> dict[str, tuple[int, int]]:
        return {str(p): (p.stat().st_mtime_ns, p.stat().st_size) for p in [finished, *finished.rglob("*")]}

    before = snapshot()
    look = WatchedStudy(finished, kind=Found)()
    assert snapshot() == before
    assert look.over
    text = text_of(look.page)
    assert "The faster ball flies farther." in text
    assert "a table" in text
    assert "All 2 jobs, by state and worker" in text


def test_a_page_that_cannot_be_drawn_yet_spoils_nothing(finished: Path) -> None:
    text = text_of(WatchedStudy(finished, kind=Broken)().page)
    assert "What was found so far cannot be shown yet: no throws." in text
    assert "2 of 2" in text


def test_a_read_only_storage_cannot_be_written(finished: Path) -> None:
    with (
        open_existing(ToyStudy, finished, read_only=True) as opened,
        pytest.raises(Exception, match="during the commit") as refused,
    ):
        opened.queue.set_user_attr("x", 1)
    assert "readonly database" in str(refused.value.__cause__)


def test_a_storage_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError):
        Storage(f"sqlite:///{tmp_path}/none/study.db", read_only=True)
    assert list(tmp_path.iterdir()) == []


def test_a_class_of_ones_own_is_not_imported_because_a_file_names_it(finished: Path) -> None:
    with pytest.raises(ConfigError, match=r"--kind is missing: 'toy' is a study of .*Found"):
        WatchedStudy(finished)()


def test_the_class_of_a_study_of_holdfasts_is_known(finished: Path) -> None:
    storage = Storage(f"sqlite:///{finished}/study.db")
    storage.load("toy").set_user_attr(KIND, "holdfast.studies.tradeoff.session:Tradeoff")
    storage.close()
    with pytest.raises(HoldfastError), open_existing(None, finished, read_only=True):  # found, and not its settings
        pass


def test_a_study_whose_folder_went_away(finished: Path) -> None:
    watched = WatchedStudy(finished, kind=Found)
    watched()
    finished.rename(finished.with_name("aside"))
    with pytest.raises(HoldfastError, match=r"found no study\.db"):
        watched()
