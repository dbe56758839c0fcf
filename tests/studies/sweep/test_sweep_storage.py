"""Trials and leases in SQLite and in a real PostgreSQL: one owner a trial, takeover, continued and changed studies."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from holdfast.errors import ConfigError, DataError, RunFolderError, StorageError
from holdfast.studies.engine import storage as stored
from holdfast.studies.engine.session import kind_name, kind_named, open_existing
from holdfast.studies.engine.storage import Storage
from holdfast.studies.sweep.session import SweepStudy
from holdfast.studies.sweep.study import StudyConfig
from holdfast.support.files import write_json


@pytest.fixture(params=["sqlite", "postgresql"])
def where(request, tmp_path) -> str:
    """The address of a storage."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/study.db"
    return request.getfixturevalue("postgres")


@pytest.fixture
def opened():
    """Opens storages, and closes them at the end."""
    found: list[Storage] = []

    def make(address: str, **how) -> Storage:
        found.append(Storage(address, **how))
        return found[-1]

    yield make
    for storage in found:
        storage.close()


@pytest.fixture
def clock() -> list[float]:
    """The time that the watching storage sees."""
    return [0.0]


@pytest.fixture
def named(where, asked, request) -> dict:
    """A study of five trials in that storage, under a name of its own."""
    return {**asked, "name": f"s{abs(hash(request.node.nodeid))}", "storage": where}


@pytest.fixture
def begun(named, opened, clock):
    """A storage, its study of five trials, and the configuration."""
    config = StudyConfig.read(named, check=False)
    storage = opened(config.storage, grace=60.0, interval=0.05, clock=lambda: float(clock[0]))
    return storage, storage.open_study(config), config


@pytest.fixture
def held(begun):
    """Its five trials in the hands of workers far away, seen once."""
    storage, study, _ = begun
    leases = [storage.take(study, f"far|1:{i}:1") for i in range(5)]
    assert storage.take(study, "near|1:9:1") is None
    return storage, study, leases


def test_a_study_begins_with_its_trials_waiting(begun, named):
    storage, study, config = begun
    trials = study.get_trials()
    assert [(t.user_attrs["slot"], t.state.name) for t in trials] == [(i, "WAITING") for i in range(5)]
    assert trials[0].user_attrs["direct"]
    assert trials[3].user_attrs["label"] == "L2, coefficient 0.01"
    assert len(storage.open_study(config).get_trials()) == 5
    changed = StudyConfig.read({**named, "seeds": [0, 1]}, check=False)
    with pytest.raises(ConfigError, match=r"begun with another configuration:\n  - seeds: \[0\] before, \[0, 1\] now"):
        storage.open_study(changed)
    assert len(study.get_trials()) == 5
    with pytest.raises(ConfigError, match=rf"no study '{config.name}x' .*Did you mean '{config.name}'"):
        storage.load(f"{config.name}x")


def test_a_trial_has_one_owner(begun, opened):
    """Eight workers grab at once, again and again: every trial goes to one of them."""
    storage, study, config = begun
    taken: list[int] = []
    ready = threading.Barrier(8)

    def grab(owner: str) -> None:
        mine = opened(config.storage)
        own = mine.load(config.name)
        ready.wait()
        while (lease := mine.take(own, owner)) is not None:
            taken.append(lease.number)

    threads = [threading.Thread(target=grab, args=(f"elsewhere|1:{i}:1",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == [0, 1, 2, 3, 4]
    assert storage.take(study, "elsewhere|1:9:1") is None


def test_a_silent_worker_loses_its_trial_and_cannot_report_it(held, clock):
    storage, study, (first, *others) = held
    clock[0] = 61.0
    assert all(storage.renew(lease) for lease in others)
    taken = storage.take(study, "near|1:9:1")
    assert (taken.number, taken.attempt, taken.after_death) == (first.number, 2, True)
    assert storage.take(study, "near|1:9:1") is None
    with storage.heartbeat(first) as lost:
        assert lost.wait(30)
    assert not storage.finish(study, first, values=[1.0, 1.0])
    assert storage.finish(study, taken, values=[2.0, 3.0])
    assert study.get_trials()[first.number].values == [2.0, 3.0]
    assert not storage.finish(study, taken, values=[4.0, 4.0])


def test_a_worker_that_beats_at_the_last_moment_keeps_its_trial(held, clock, monkeypatch):
    """Between the look that found it silent and the update that takes its trial."""
    storage, study, leases = held
    clock[0] = 61.0
    claim = storage._claim

    def claim_after_a_beat(*arguments):
        assert all(storage.renew(lease) for lease in leases)
        return claim(*arguments)

    monkeypatch.setattr(storage, "_claim", claim_after_a_beat)
    assert storage.take(study, "near|1:9:1") is None


def test_beats_come_by_themselves_while_a_trial_runs(begun):
    storage, study, _ = begun
    lease = storage.take(study, "far|1:1:1")
    before = storage.held(study)[lease.trial_id].beat
    with storage.heartbeat(lease) as lost:
        for _ in range(600):
            if storage.held(study)[lease.trial_id].beat > before + 2:
                break
            threading.Event().wait(0.05)
        else:
            pytest.fail("no beat in half a minute")
        assert not lost.is_set()


def test_a_process_that_ended_is_known_to_be_gone_at_once(begun):
    """No grace is waited for where the process was this machine's."""
    storage, study, config = begun
    script = f"""
from holdfast.studies.engine.storage import Storage, this_process
storage = Storage({config.storage!r})
print(storage.take(storage.load({config.name!r}), this_process()).number)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    storage.grace = 1e9
    lease = storage.take(study, stored.this_process())
    assert (lease.number, lease.attempt) == (int(done.stdout), 2)
    assert storage.take(study, "far|1:1:1").number == 1  # and a living one is left alone
    assert not stored.process_is_gone(stored.this_process())


def test_a_trial_given_back_waits_with_what_was_drawn(named, opened):
    draws = {
        **named,
        "arms": [{"label_annealing": {"weight": {"log": [0.1, 10]}}}],
        "search": {"sampler": "tpe", "trials": 2, "seed": 5},
    }
    config = StudyConfig.read(draws, check=False)
    storage = opened(config.storage)
    study = storage.open_study(config)
    storage.take(study, "far|1:1:1")
    lease = storage.take(study, "far|1:1:1")
    drawn = config.space.suggest(storage.trial(study, lease, config))
    storage.release(lease, waiting=True)
    assert study.get_trials()[1].state.name == "WAITING"
    again = storage.take(study, "near|1:2:1")
    assert (again.number, again.attempt, again.after_death) == (1, 2, False)
    assert config.space.suggest(storage.trial(study, again, config)) == drawn


def test_draws_do_not_depend_on_who_runs_them(named, opened):
    def weights(order, name) -> dict[int, float]:
        search = {"sampler": "random", "trials": 3, "seed": 1}
        config = StudyConfig.read(
            {**named, "name": name, "vary": {"learning_rate": {"log": [1e-5, 1e-3]}}, "search": search}, check=False
        )
        storage = opened(config.storage)
        study = storage.open_study(config)
        leases = {lease.number: lease for _ in range(4) if (lease := storage.take(study, "x|1:1:1"))}
        return {n: config.space.suggest(storage.trial(study, leases[n], config))["learning_rate"] for n in order}

    name = named["name"]
    forward, backward = weights([1, 2, 3], f"{name}a"), weights([3, 2, 1], f"{name}b")
    assert forward == backward
    assert len(set(forward.values())) == 3


def test_failed_trials_wait_again_and_more_can_be_asked_for(named, opened):
    values = {**named, "search": {"sampler": "random", "trials": 2}}
    storage = opened(named["storage"])
    config = StudyConfig.read(values, check=False)
    study = storage.open_study(config)
    lease = storage.take(study, "x|1:1:1")
    assert storage.finish(study, lease)
    more = StudyConfig.read({**values, "search": {"sampler": "random", "trials": 4}}, check=False)
    trials = storage.open_study(more).get_trials()
    assert [(t.user_attrs["slot"], t.state.name) for t in trials] == [
        (0, "FAIL"),
        (1, "WAITING"),
        (2, "WAITING"),
        (0, "WAITING"),
        (3, "WAITING"),
        (4, "WAITING"),
    ]


@pytest.mark.parametrize(
    ("address", "error", "problem"),
    [
        (
            "postgresql://me:s3cr3t@127.0.0.1:9/db",
            StorageError,
            "The storage postgresql://127.0.0.1:9/db does not answer",
        ),
        ("nonsense", ConfigError, "expected an address such as sqlite:///study.db or postgresql"),
        ("oracel://host/db", ConfigError, "no such kind of database: 'oracel'"),
    ],
)
def test_a_storage_that_is_not_there(address, error, problem):
    with pytest.raises(error) as caught:
        Storage(address)
    assert problem in str(caught.value)
    assert "s3cr3t" not in str(caught.value)


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match=r"study.db: .*Choose an output_dir that can be written"):
        Storage(f"sqlite:///{tmp_path}/file/study.db")


def test_addresses_are_shown_without_secrets():
    assert stored.redacted_url("postgresql+psycopg://me:s3cr3t@host:5432/db?password=x") == "postgresql://host:5432/db"
    assert stored.redacted_url("sqlite:////tmp/x.db") == "sqlite:////tmp/x.db"


@pytest.mark.parametrize(
    ("url", "recorded"),
    [
        ("sqlite:///runs/mine/study.db", "sqlite:///study.db"),
        ("sqlite:///shared.db", "sqlite:///../../shared.db"),
        ("sqlite:////data/shared.db", "sqlite:////data/shared.db"),
        ("postgresql://me:s3cr3t@host/db", "postgresql://host/db"),
    ],
)
def test_a_record_names_the_storage_from_the_studys_folder(url, recorded, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = Path("runs/mine")
    assert stored.recorded_address(url, folder) == recorded
    if (file := stored.file_of(url)) is None or file.is_absolute():
        assert stored.reached_address(recorded, folder) == recorded
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    file.touch()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for seen in (Path("../runs/mine"), tmp_path / "runs" / "mine"):
        reached = stored.file_of(stored.reached_address(recorded, seen))
        assert reached is not None and reached.resolve() == (tmp_path / file).resolve()


def test_a_study_that_no_class_is_recorded_of_says_what_to_do():
    with pytest.raises(
        ConfigError, match=r"did not record its kind in the storage.* First run the study's own command again"
    ):
        kind_named("")


def test_a_study_is_opened_from_any_directory_and_after_it_was_moved(asked, opened, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = StudyConfig.read({**asked, "output_dir": "runs/mine", "storage": None}, check=False)
    storage = opened(config.storage)
    storage.open_study(config).set_user_attr(stored.KIND, kind_name(SweepStudy))
    storage.close()
    write_json(config.output_dir / "study.json", {"name": config.name, "storage": "sqlite:///study.db"})
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for folder in (Path("../runs/mine"), tmp_path / "runs" / "mine"):
        with open_existing(folder) as found:
            assert found.study.settings.output_dir == folder
    with open_existing(None, storage=f"sqlite:///{tmp_path}/runs/mine/study.db") as found:
        assert found.study.settings.output_dir == tmp_path / "runs" / "mine"
    (tmp_path / "runs" / "mine").rename(tmp_path / "moved")
    with open_existing(tmp_path / "moved") as found:
        assert found.queue.study_name == config.name
    with pytest.raises(RunFolderError, match=r"found no study\.db"), open_existing(tmp_path / "nowhere"):
        pass


@pytest.mark.parametrize("damage", ["cut", "zeros in the middle", "another schema"])
def test_a_damaged_file_is_an_error_with_its_name(damage, asked, opened, tmp_path):
    file = tmp_path / "study.db"
    config = StudyConfig.read({**asked, "storage": f"sqlite:///{file}"}, check=False)
    storage = opened(config.storage)
    storage.open_study(config)
    storage.close()
    whole = file.read_bytes()
    half = len(whole) // 2
    if damage == "another schema":
        with sqlite3.connect(file) as connection:
            connection.execute("ALTER TABLE trials RENAME COLUMN state TO x")
        connection.close()
    else:
        parts = {
            "cut": whole[:half],
            "zeros in the middle": whole[:half] + bytes(8192) + whole[half + 8192 :],
        }
        file.write_bytes(parts[damage])

    def read() -> None:
        again = opened(config.storage)
        again.state(again.load(config.name))

    with pytest.raises(DataError, match=rf"The storage sqlite:///{file} is damaged, or is not a study of holdfast: "):
        read()


def test_a_plan_may_get_more_in_any_place():
    """A job keeps its slot by its coordinates, one whose coordinates got more by its place; labels do not count."""
    from holdfast.studies.engine.study import LABEL, Job

    def slots(names, there):
        planned = [Job(attributes={"model": n, LABEL: f"{n}, now"}) for n in names]
        begun = {slot: {"model": n, LABEL: n, "slot": slot, "runs": [1]} for slot, n in there.items()}
        return stored._slots(planned, begun)

    assert slots("abc", {}) == [0, 1, 2]
    assert slots("abc", {0: "a", 1: "b", 2: "c"}) == [0, 1, 2]
    assert slots("xaybz", {0: "a", 1: "b"}) == [2, 0, 3, 1, 4]
    assert slots("aaa", {0: "a", 1: "a"}) == [0, 1, 2], "what is drawn later is known by its place"
    assert slots("AB", {0: "a", 1: "b"}) == [0, 1], "as another version wrote them"


def test_a_file_that_is_gone_is_not_waited_for(asked, opened, tmp_path):
    config = StudyConfig.read({**asked, "storage": f"sqlite:///{tmp_path}/study.db"}, check=False)
    storage = opened(config.storage)
    storage.open_study(config)
    storage.close()
    (tmp_path / "study.db").unlink()

    def ask():
        raise StorageError("it does not answer")

    with pytest.raises(StorageError, match=r"study.db no longer exists"):
        storage.retry(ask)
