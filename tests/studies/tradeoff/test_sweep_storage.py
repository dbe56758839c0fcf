"""Trials and leases in SQLite and in a real PostgreSQL: one owner a trial, takeover, continued and changed studies."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from holdfast.errors import ConfigError, RunFolderError, StorageError
from holdfast.studies.engine import storage as stored
from holdfast.studies.engine.storage import Storage
from holdfast.studies.tradeoff.study import study_config


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
def begun(where, asked, request, opened, clock):
    """A storage, its study of five trials, and the configuration."""
    config = study_config({**asked, "name": f"s{abs(hash(request.node.nodeid))}", "storage": where}, prepared=True)
    storage = opened(where, grace=60.0, interval=0.05, clock=lambda: float(clock[0]))
    return storage, storage.open_study(config), config


def test_a_study_begins_with_its_trials_waiting(begun):
    storage, study, config = begun
    trials = study.get_trials()
    assert [t.user_attrs["slot"] for t in trials] == [0, 1, 2, 3, 4]
    assert [t.state.name for t in trials] == ["WAITING"] * 5
    assert trials[0].user_attrs["direct"]
    assert trials[3].user_attrs["label"] == "L2, coefficient 0.01"
    again = storage.open_study(config)
    assert len(again.get_trials()) == 5


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


def test_a_silent_worker_loses_its_trial_and_cannot_report_it(begun, clock):
    storage, study, _ = begun
    first, *others = [storage.take(study, f"far|1:{i}:1") for i in range(5)]
    assert storage.take(study, "near|1:9:1") is None  # seen for the first time
    clock[0] = 61.0
    assert all(storage.renew(lease) for lease in others)
    taken = storage.take(study, "near|1:9:1")
    assert (taken.number, taken.attempt, taken.after_death) == (first.number, 2, True)
    assert storage.take(study, "near|1:9:1") is None
    assert not storage.renew(first)
    assert not storage.finish(study, first, values=[1.0, 1.0])
    assert storage.finish(study, taken, values=[2.0, 3.0])
    assert study.get_trials()[first.number].values == [2.0, 3.0]
    assert not storage.finish(study, taken, values=[4.0, 4.0])


def test_a_slow_worker_that_beats_keeps_its_trial(begun, clock):
    storage, study, _ = begun
    leases = [storage.take(study, f"far|1:{i}:1") for i in range(5)]
    for _ in range(5):
        assert storage.take(study, "near|1:9:1") is None
        clock[0] += 50.0
        assert all(storage.renew(lease) for lease in leases)


def test_whoever_lost_a_lease_is_told(begun, clock):
    storage, study, _ = begun
    lease, *others = [storage.take(study, f"far|1:{i}:1") for i in range(5)]
    storage.take(study, "near|1:9:1")
    clock[0] = 61.0
    assert all(storage.renew(other) for other in others)
    assert storage.take(study, "near|1:9:1").number == lease.number
    with storage.heartbeat(lease) as lost:
        assert lost.wait(30)


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


def test_a_trial_given_back_waits_with_what_was_drawn(where, asked, request, opened):
    draws = {
        **asked,
        "name": f"s{abs(hash(request.node.nodeid))}",
        "vary": {"retention": [{"label_annealing": {"weight": {"log": [0.1, 10]}}}]},
        "search": {"sampler": "tpe", "trials": 2, "seed": 5},
    }
    config = study_config(draws, prepared=True)
    storage = opened(where)
    study = storage.open_study(config)
    storage.take(study, "far|1:1:1")
    lease = storage.take(study, "far|1:1:1")
    drawn = config.space.suggest(storage.trial(study, lease, config))
    storage.release(lease, waiting=True)
    assert study.get_trials()[1].state.name == "WAITING"
    again = storage.take(study, "near|1:2:1")
    assert (again.number, again.attempt, again.after_death) == (1, 2, False)
    assert config.space.suggest(storage.trial(study, again, config)) == drawn


def test_draws_do_not_depend_on_who_runs_them(where, asked, request, opened):
    def weights(order, name) -> dict[int, float]:
        search = {"sampler": "random", "trials": 3, "seed": 1}
        config = study_config(
            {**asked, "name": name, "vary": {"learning_rate": {"log": [1e-5, 1e-3]}}, "search": search}, prepared=True
        )
        storage = opened(where)
        study = storage.open_study(config)
        leases = {lease.number: lease for _ in range(4) if (lease := storage.take(study, "x|1:1:1"))}
        return {n: config.space.suggest(storage.trial(study, leases[n], config))["learning_rate"] for n in order}

    name = f"s{abs(hash(request.node.nodeid))}"
    forward, backward = weights([1, 2, 3], f"{name}a"), weights([3, 2, 1], f"{name}b")
    assert forward == backward
    assert len(set(forward.values())) == 3


def test_failed_trials_wait_again_and_more_can_be_asked_for(where, asked, request, opened):
    values = {**asked, "name": f"s{abs(hash(request.node.nodeid))}", "search": {"sampler": "random", "trials": 2}}
    storage = opened(where)
    config = study_config(values, prepared=True)
    study = storage.open_study(config)
    lease = storage.take(study, "x|1:1:1")
    assert storage.finish(study, lease)
    more = study_config({**values, "search": {"sampler": "random", "trials": 4}}, prepared=True)
    trials = storage.open_study(more).get_trials()
    assert [(t.user_attrs["slot"], t.state.name) for t in trials] == [
        (0, "FAIL"),
        (1, "WAITING"),
        (2, "WAITING"),
        (0, "WAITING"),
        (3, "WAITING"),
        (4, "WAITING"),
    ]


def test_another_configuration_is_refused_with_what_differs(begun, asked):
    storage, study, config = begun
    changed = study_config({**asked, "name": config.name, "seeds": [0, 1]}, prepared=True)
    with pytest.raises(ConfigError, match=r"begun with another configuration:\n  - seeds: \[0\] there, \[0, 1\] now"):
        storage.open_study(changed)
    assert len(study.get_trials()) == 5


def test_an_unknown_study_has_its_nearest_name(begun):
    storage, _, config = begun
    with pytest.raises(ConfigError, match=rf"no study '{config.name}x' .*Did you mean '{config.name}'"):
        storage.load(f"{config.name}x")


@pytest.mark.parametrize(
    ("address", "error", "said"),
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
def test_a_storage_that_is_not_there(address, error, said):
    with pytest.raises(error) as caught:
        Storage(address)
    assert said in str(caught.value)
    assert "s3cr3t" not in str(caught.value)


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match=r"study.db: .*Choose an output_dir that can be written"):
        Storage(f"sqlite:///{tmp_path}/file/study.db")


def test_addresses_are_shown_without_secrets():
    assert stored.shown("postgresql+psycopg://me:s3cr3t@host:5432/db?password=x") == "postgresql://host:5432/db"
    assert stored.shown("sqlite:////tmp/x.db") == "sqlite:////tmp/x.db"


def test_the_study_opens_in_optunas_dashboard(asked, tmp_path, opened):
    dashboard = pytest.importorskip("optuna_dashboard")
    config = study_config(asked, prepared=True)
    storage = opened(config.storage)
    study = storage.open_study(config)
    storage.finish(study, storage.take(study, "x|1:1:1"), values=[0.5, -0.1])
    app = dashboard.wsgi(config.storage)
    seen: dict = {}

    def begin(status, headers, error=None) -> None:
        seen.update(status=status)

    def get(path: str) -> str:
        environ = {
            "REQUEST_METHOD": "GET",
            "PATH_INFO": path,
            "SERVER_NAME": "x",
            "SERVER_PORT": "80",
            "wsgi.url_scheme": "http",
            "QUERY_STRING": "",
            "SCRIPT_NAME": "",
        }
        environ |= {"wsgi.input": __import__("io").BytesIO(), "wsgi.errors": sys.stderr}
        return b"".join(app(environ, begin)).decode()

    listed = get("/api/studies")
    assert seen["status"] == "200 OK"
    assert '"tiny"' in listed
    shown = get(f"/api/studies/{study._study_id}")
    assert seen["status"] == "200 OK"
    assert '"target gain"' in shown
    assert "direct" in shown
