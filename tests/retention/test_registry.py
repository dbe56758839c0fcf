"""How a config names methods, and what it hears when it names them wrongly."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import ConfigError
from holdfast.retention.methods.l2 import L2
from holdfast.retention.methods.label_annealing import LabelAnnealing
from holdfast.retention.methods.replay import Replay
from holdfast.retention.methods.self_replay import SelfReplay
from holdfast.retention.methods.sfa import SequentialAveraging
from holdfast.retention.methods.token_weighting import TokenWeighting
from holdfast.retention.presets import PRESETS
from holdfast.retention.protocol import OLD_DATA
from holdfast.retention.registry import METHODS, parse_retention, retention


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "task1").mkdir()
    (tmp_path / "task1" / "model.safetensors").write_bytes(b"")
    return tmp_path


@pytest.mark.parametrize("value", [None, "none", "None", "direct", "", [], ["none"], {"direct": {}}, [{"none": None}]])
def test_direct_fine_tuning_is_no_method(value) -> None:
    assert parse_retention(value) == ([], [])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("l2", [L2()]),
        ({"l2": None}, [L2()]),
        ({"l2": {"coefficient": "1e-4"}}, [L2(coefficient=1e-4)]),  # YAML 1.1 reads 1e-4 as text
        ([{"sfa": {"every": 7.0, "reset_optimizer": "True"}}], [SequentialAveraging(every=7, reset_optimizer=True)]),
        (["label_annealing", {"replay": {"data": "old.jsonl"}}], [LabelAnnealing(), Replay(data="old.jsonl")]),
        (
            [{"replay": {"data": "old.jsonl"}}, {"replay": {"data": "owner/name"}}],
            [Replay(data="old.jsonl"), Replay(data="owner/name")],
        ),
        ({"l2": {"reference": "task1"}}, [L2(reference="task1")]),
        ({"label_annealing": {"teacher_dtype": None}}, [LabelAnnealing()]),
    ],
)
def test_spellings(value, expected) -> None:
    assert parse_retention(value) == (expected, [])
    # A field that holds a number holds a number, whatever the YAML held: 2 and 2.0 are one run.
    for method, wanted in zip(parse_retention(value)[0], expected, strict=True):
        assert repr(method) == repr(wanted)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (
            "label_anealing",
            f"retention: unknown method 'label_anealing'; known: {', '.join([*METHODS, *PRESETS])}. "
            "Did you mean 'label_annealing'?",
        ),
        (
            [{"sfa": {}, "l2": {}}],
            "retention[0]: expected a method name or one '{name: {parameters}}' mapping, got {'sfa': {}, 'l2': "
            "{}} (mapping).",
        ),
        ({"l2": {"coeficient": 1}}, "retention.l2: unknown key 'coeficient'. Did you mean 'coefficient'?"),
        (
            {"l2": {"coefficient": -1}},
            "retention.l2.coefficient: expected a number of at least 0, got -1 (whole number).",
        ),
        ({"l2": {"reference": "task2"}}, "retention.l2.reference: no such folder: task2. Did you mean 'task1'?"),
        ({"sfa": {"p": 0.5, "every": 3}}, "retention.sfa: expected either p or every, got both (p=0.5, every=3)"),
        (
            {"replay": {"data": ""}},
            "retention.replay.data: expected a file, folder or hub id of the data to replay, got nothing",
        ),
        (["l2", "l2"], "retention: 'l2' is given 2 times; expected once. Put all its parameters in one entry."),
    ],
)
def test_one_mistake_is_one_sentence(value, problem: str) -> None:
    assert parse_retention(value)[1] == [problem]


def test_replay_data_that_is_a_path_must_exist(place: Path) -> None:
    (problem,) = parse_retention({"replay": {"data": "odl.jsonl"}})[1]
    assert problem.path == ("retention", "replay", "data")
    assert problem.text == f"no such file or folder: odl.jsonl (working directory: {place}). Did you mean 'old.jsonl'?"
    assert parse_retention({"replay": {"data": "owner/some_data"}})[1] == []  # a hub id is not looked up here


@pytest.mark.parametrize("entry", ["asft", {"asft": None}, {"asft": {"weight": 0.05}}, ["asft", {"l2": {}}]])
def test_a_preset_stands_for_its_methods(entry):
    found = retention(entry)
    weight = 0.05 if entry == {"asft": {"weight": 0.05}} else 0.1
    assert found[:2] == [TokenWeighting(kind="dft"), LabelAnnealing(weight=weight)]
    assert found[0].identity() == retention({"token_weighting": {"kind": "dft"}})[0].identity()


@pytest.mark.parametrize(
    ("method", "before"),
    [
        (L2(reference="task1", reference_device="disk"), {"l2": {"anchor": "task1", "keep": "disk"}}),
        (SequentialAveraging(reference="task1"), {"sfa": {"previous": "task1"}}),
        (
            LabelAnnealing(teacher="online", reference="task1"),
            {"label_annealing": {"teacher": "online", "teacher_model": "task1"}},
        ),
    ],
)
def test_the_reference_is_read_under_its_former_names_and_is_the_same_run(method, before):
    assert retention(before) == [method]
    key = next(key for values in before.values() for key in values if key not in ("teacher", "keep"))
    assert method.identity()[key] == "task1" and "reference" not in method.identity()


def test_auto_is_what_was_found_without_old_data():
    found = retention("auto")
    assert [m.name for m in found] == ["self_replay", "label_annealing", "wise_ft"]
    assert not any(OLD_DATA in m.needs for m in found) and not found[0].ce and found[0].prompts == "start"
    [mine, *_] = retention({"auto": {"fraction": 0.3, "prompts": "target", "samples": 64, "max_new_tokens": 48}})
    assert mine == SelfReplay(fraction=0.3, ce=False, prompts="target", samples=64, max_new_tokens=48)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (["auto", "wise_ft"], "'auto' includes self_replay, label_annealing and wise_ft, and 'wise_ft' is given"),
        (
            ["asft", "label_annealing"],
            "'asft' includes token_weighting and label_annealing, and 'label_annealing' is",
        ),
        ([{"token_weighting": {"kind": "talr"}}, "asft"], "'token_weighting' is given as well. Leave one out"),
        ({"asft": {"weight": 0}}, "asft.weight.*above 0"),
        ("asfd", "known: .*asft.*asft"),
    ],
)
def test_a_preset_beside_what_it_contains_or_mistaken_is_refused(entry, message):
    with pytest.raises(ConfigError, match=message):
        retention(entry)
