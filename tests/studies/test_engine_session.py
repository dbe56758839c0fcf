"""The engine on a whole study in a few lines: two jobs, two seeds, one claim, a page."""

from __future__ import annotations

import dataclasses
import io
import os
import time
from pathlib import Path

import pytest
from rich.console import Console

from holdfast.errors import DataError, HoldfastError
from holdfast.papers.claims.claim import Evidence, Statement, judge_claims
from holdfast.papers.claims.rules import ClaimFigure, Rule, above
from holdfast.studies.engine.progress import time_left
from holdfast.studies.engine.session import execute_study
from holdfast.studies.engine.study import Job, JobState, Study, StudyState
from holdfast.support.environment import lock_folder
from holdfast.support.files import read_json, write_json

WAIT = "HOLDFAST_TOY_SECONDS"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Toy:
    """How far a ball flies: settings of the study."""

    output_dir: Path
    speeds: tuple[float, ...] = (3.0, 6.0)
    name: str = "toy"
    storage: str = ""
    workers: int | None = 2
    measures: tuple[str, ...] = ("distance",)

    @property
    def resolved(self):
        return {"speeds": list(self.speeds), "output_dir": str(self.output_dir)}

    def differences(self, old):
        return [] if old["speeds"] == list(self.speeds) else [f"speeds: {old['speeds']} before, {self.speeds} now"]

    def jobs(self):
        return [Job(attributes={"label": f"speed {v:g}", "speed": v}) for v in self.speeds]


class ToyStudy(Study):
    seeds = (0, 1)

    @classmethod
    def load(cls, resolved, *, storage, output_dir):
        return cls(Toy(output_dir=output_dir, storage=storage, speeds=tuple(resolved["speeds"])))

    def make(self, task):
        speed = task.attributes["speed"]
        file = self.settings.output_dir / "throws" / f"{speed:g}-{task.seed}.json"
        if not file.is_file():
            time.sleep(float(os.environ.get(WAIT, "0")))
            write_json(file, {"distance": speed**2 / 9.8 + 0.01 * task.seed})
        return read_json(file)

    def values(self, task):
        return [sum(r["distance"] for r in task.results) / len(task.results)]

    def outcome(self, state):
        throws = {j.attributes["label"]: self.results(j.attributes) for j in state.latest}
        evidence = Evidence(record=throws, waiting=sum(j.open for j in state.jobs))
        claims = judge_claims(CLAIMS, {"toy": evidence})
        return {"name": state.name, "status": state.status, "throws": throws, "claims": claims}

    def write(self, record):
        write_json(self.settings.output_dir / "study.json", record)

    def page(self, record):
        lines = [f"{c.number}. {c.text} {c.verdict}" for c in record["claims"]]
        return lambda path: path.write_text("\n".join(lines))


def _farther(throws, level):
    slow, *_, fast = ([r["distance"] for r in runs] for runs in throws.values())
    gain = [b - a for a, b in zip(slow, fast, strict=True)]
    figure = ClaimFigure(
        what="fast - slow", value=sum(gain) / 2, interval=(min(gain), max(gain)), n="2 seeds", unit="m"
    )
    return [above(figure, 0.0, yes="it flies farther", no="it flies less far")]


def _all_thrown(throws):
    return None if all(len(runs) == 2 for runs in throws.values()) else "throws are missing"


CLAIM = "The faster ball flies farther."
RULE = Rule("The fastest throw flies farther than the slowest.", _farther)
CLAIMS = [Statement(number="1", recipe="toy", text=CLAIM, paper="1638", rule=RULE, lacking=_all_thrown)]


def quiet():
    return Console(file=io.StringIO(), width=120)


def toy(out: Path, **changes) -> ToyStudy:
    return ToyStudy(Toy(output_dir=out, storage=f"sqlite:///{out}/study.db", **changes))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chained(Toy):
    """Each throw needs the next one of the plan, so the last one comes first."""

    def jobs(self):
        jobs = super().jobs()
        return [dataclasses.replace(j, after=(i + 1,) if i + 1 < len(jobs) else ()) for i, j in enumerate(jobs)]


class ChainedStudy(ToyStudy):
    seeds = (0,)

    @classmethod
    def load(cls, resolved, *, storage, output_dir):
        return cls(Chained(output_dir=output_dir, storage=storage, speeds=tuple(resolved["speeds"])))

    def make(self, task):
        speed = task.attributes["speed"]
        needed = self.settings.speeds[self.settings.speeds.index(speed) + 1 :][:1]
        folder = self.settings.output_dir / "throws"
        if needed and not (folder / f"{needed[0]:g}-0.json").is_file():
            raise DataError(f"there is no throw at {needed[0]:g}")
        if speed == float(os.environ.get("HOLDFAST_TOY_FAILS", "0")):
            raise DataError("the ball is gone")
        return super().make(task)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_job_begins_when_those_before_it_have_ended(tmp_path, monkeypatch, workers):
    monkeypatch.setattr(ChainedStudy, "one_in_process", True)
    monkeypatch.setenv(WAIT, "0.2")
    settings = Chained(output_dir=tmp_path / "toy", storage=f"sqlite:///{tmp_path}/toy/study.db", speeds=(9, 3, 6))
    monkeypatch.setenv("HOLDFAST_TOY_FAILS", "3")
    with pytest.raises(HoldfastError, match="2 of 3 jobs failed") as failed:
        execute_study(ChainedStudy(settings), console=quiet(), workers=workers)
    assert "(speed 3): the ball is gone" in str(failed.value)
    assert failed.value.exit_code == 2, "a fault of the data is one of the request"
    assert str(failed.value).endswith("Run the same command to retry them after you change the request.")
    assert "(speed 9): there is no throw at 3" in str(failed.value)
    monkeypatch.delenv("HOLDFAST_TOY_FAILS")
    record = execute_study(ChainedStudy(settings), console=quiet(), workers=workers)
    assert [len(throws) for throws in record["throws"].values()] == [1, 1, 1]
    times = [(tmp_path / "toy" / "throws" / f"{v}-0.json").stat().st_mtime_ns for v in (6, 3, 9)]
    assert times == sorted(times)


@pytest.mark.parametrize(("error", "exit_code"), [(HoldfastError("it rained"), 1), (DataError("no ball"), 2)])
def test_where_all_jobs_fail_alike_the_exit_code_is_theirs(tmp_path, monkeypatch, error, exit_code):
    def make(self, task):
        raise error

    monkeypatch.setattr(ToyStudy, "make", make)
    monkeypatch.setattr(ToyStudy, "one_in_process", True)
    for speeds in ((1.0, 2.0), (1.0, 2.0, 3.0)):  # from three on, the rest is not tried
        out = tmp_path / f"{len(speeds)}"
        with pytest.raises(HoldfastError, match=str(error)) as failed:
            execute_study(toy(out, speeds=speeds), console=quiet(), workers=1)
        assert failed.value.exit_code == exit_code


def test_jobs_that_fail_for_different_reasons_are_all_tried(tmp_path, monkeypatch):
    def make(self, task):
        raise DataError(f"no ball of speed {task.attributes['speed']}")

    monkeypatch.setattr(ToyStudy, "make", make)
    monkeypatch.setattr(ToyStudy, "one_in_process", True)
    with pytest.raises(HoldfastError, match="4 of 4 jobs failed"):
        execute_study(toy(tmp_path / "toy", speeds=(1.0, 2.0, 3.0, 4.0)), console=quiet(), workers=1)


def test_the_time_left_is_what_complete_jobs_took_over_the_workers():
    def job(number: int, state: str, **more) -> JobState:
        times = {"started": "2026-01-01T00:00:00+00:00", "finished": None} | more
        return JobState(
            number=number, slot=number, state=state, attributes={}, params={}, values=None, worker=f"w{number}",
            continued_by=None, **times,
        )  # fmt: skip

    study = toy(Path("nowhere"))
    done = job(0, "complete", finished="2026-01-01T00:10:00+00:00")
    jobs = [done, job(1, "running"), job(2, "running"), job(3, "waiting")]
    state = StudyState(name="toy", status="running", created="", jobs=jobs, storage="", attributes={})
    assert time_left(study, state) == "; about 15 min left with 2 workers"
    assert time_left(study, dataclasses.replace(state, jobs=jobs[1:])) == "", "nothing says how long a job takes"
    assert time_left(study, dataclasses.replace(state, jobs=[done])) == ""


def test_a_preparation_that_failed_leaves_the_folder_free(tmp_path, monkeypatch):
    """The same folder can be used at once, by this process and by others, with other settings too."""
    monkeypatch.setattr(ToyStudy, "one_in_process", True)
    with monkeypatch.context() as broken:
        broken.setattr(ToyStudy, "prepare", lambda self, console: (_ for _ in ()).throw(DataError("no balls")))
        with pytest.raises(DataError, match="no balls") as failed:
            execute_study(toy(tmp_path), console=quiet())
    assert failed.value.__traceback__ is not None  # its frames are alive: no lock is left to the garbage collector
    for lock in tmp_path.rglob(".lock"):
        with lock_folder(lock.parent):
            pass
    assert execute_study(toy(tmp_path, speeds=(1.0, 2.0)), console=quiet(), workers=1)["status"] == "finished"
