"""The stages study: its plan, what it refuses before anything runs, and a whole one of seconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from data_files import jsonl
from holdfast.errors import ConfigError
from holdfast.studies.stages.plan import StagesConfig

QUESTIONS = {"prompt": "a", "options": [" b", " c"], "answer": 0}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A study of two checkpoints, by the names of files that are there."""
    monkeypatch.chdir(tmp_path)
    Path("questions.jsonl").write_text(json.dumps(QUESTIONS) + "\n")
    Path("text.jsonl").write_text('{"text": "a"}\n')
    for name in ("base", "one", "two"):
        Path(name).mkdir()
        Path(name, "config.json").write_text("{}")
        Path(name, "model.safetensors").write_bytes(b"")
    return {
        "base": "base",
        "tuned": ["one", "two"],
        "corpus": ["text.jsonl"],
        "tokens": 9,
        "keep": [{"multiple_choice": "questions.jsonl", "name": "facts"}],
        "restore": {"use_cpu": True},
    }


def test_every_checkpoint_is_restored_and_the_base_too(files: dict[str, Any]) -> None:
    config = StagesConfig.read(files)
    assert [job.attributes["label"] for job in config.jobs()] == [
        "measuring the base",
        "choosing the text to restore on",
        "restoring the base (control)",
        "restoring tuned, checkpoint 1",
        "restoring tuned, checkpoint 2",
    ]
    settings = config.restoring("tuned-1-restored", "one")
    assert (settings["learning_rate"], settings["num_train_epochs"], settings["retention"]) == (3e-5, 1, "none")
    assert settings["per_device_train_batch_size"] * settings["gradient_accumulation_steps"] == 256
    assert settings["packing"] is False, "256 passages a step, as in the paper"


def test_every_dose_has_a_control_and_a_text_of_its_own(files: dict[str, Any]) -> None:
    config = StagesConfig.read({**files, "doses": [1, 4]})
    assert list(config.steps)[1:] == [
        "texts",
        "base-restored",
        "tuned-1-restored",
        "tuned-2-restored",
        "texts-4x",
        "base-restored-4x",
        "tuned-1-restored-4x",
        "tuned-2-restored-4x",
    ]
    assert config.steps["tuned-2-restored-4x"].label == "restoring tuned, checkpoint 2, 4 times the dose"
    one, four = config.selection(9)[0], config.selection(9, 4)[0]
    assert one is not None and four is not None and (one.tokens, four.tokens) == (9, 36)
    assert four.output == one.output / "4x" and four.scores == one.output / "scores.ledger.jsonl", "ranked once"
    read = config.restoring("x", "one", 4)["dataset_name"], config.restoring("x", "one")["dataset_name"]
    assert read == tuple(str(config.texts_at(dose)[0]) for dose in (4, 1))
    assert config.restoring("x", "one", 4)["evaluation"]["probing"] == config.evaluation["probing"]


def test_larger_doses_may_be_added_to_a_study(files: dict[str, Any]) -> None:
    without, later = StagesConfig.read(files), StagesConfig.read({**files, "doses": [1, 4]})
    assert later.differences(without.resolved) == []
    assert list(later.steps)[: len(without.steps)] == list(without.steps), "what was done keeps its place"
    (difference,) = without.differences(later.resolved)
    assert difference.startswith("doses: was [1, 4]")


def test_an_average_may_be_judged_in_place_of_its_parts(files: dict[str, Any]) -> None:
    for name in ("more", "other"):
        Path(f"{name}.jsonl").write_text(json.dumps(QUESTIONS) + "\n")
    keep = [{"multiple_choice": f"{name}.jsonl", "name": name} for name in ("more", "other")]
    Path("suite.yaml").write_text(json.dumps({"keep": keep, "averages": {"both": ["more", "other"]}}))
    config = StagesConfig.read({**files, "suite": "suite.yaml", "judge": ["facts", "both"]})
    assert config.judged == [("knowledge", "facts"), ("average", "both")]
    with pytest.raises(ConfigError, match=r"judge: expected some of .*, got bath\. Did you mean 'both'"):
        StagesConfig.read({**files, "suite": "suite.yaml", "judge": ["bath"]})


def test_guessing_at_an_average_is_the_mean_of_its_parts(tmp_path: Path) -> None:
    from holdfast.records.evaluation import Evaluation, EvaluationFolder, Metric
    from holdfast.studies.stages.outcome import is_above_chance

    folder = EvaluationFolder(tmp_path)

    def entry(name: str, chance: float, **about: Any) -> Evaluation:
        metric = Metric(value=0.5, n=9, unit="accuracy", higher_is_better=True, interval=(0.41, 0.6))
        evaluation = Evaluation(
            suite="knowledge",
            name=name,
            primary="acc",
            key=name,
            metrics={"acc": metric},
            model={},
            references={"acc": {"chance": chance}},
            **{"kind": "multiple_choice", "settings": {}, **about},
        )
        folder.write(evaluation, [])
        return evaluation

    entry("a", 0.25), entry("b", 0.5)
    members = [{"suite": "knowledge", "name": name, "metric": "acc"} for name in ("a", "b")]
    average = Evaluation(
        suite="average",
        name="both",
        kind="average",
        primary="acc",
        key="both",
        metrics=entry("c", 0.25).metrics,
        settings={"members": members},
        model={},
    )
    assert is_above_chance(folder, average), "0.41 is above 0.375"
    assert not is_above_chance(folder, entry("d", 0.45))


def test_texts_and_distributions_are_drawn_and_not_judged(files: dict[str, Any]) -> None:
    files["keep"] += [
        {"answer_distribution": "arc_easy", "name": "letters"},
        {"perplexity": "text.jsonl", "name": "prose"},
        {"memorisation": "text.jsonl", "name": "learnt"},
    ]
    assert StagesConfig.read(files).judged == [("knowledge", "facts")]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tuned": []}, "tuned: expected the checkpoints of a fine-tuning, or `train`"),
        ({"tuned": ["one", "./one"]}, "tuned: expected each checkpoint once."),
        ({"tuned": ["one", "three"]}, "tuned: expected the folder of a checkpoint at three, found none."),
        (
            {"tuned": ["./base"]},
            "tuned: expected checkpoints that were fine-tuned from the base, got the base itself: base.",
        ),
        ({"tokens": None}, "tokens: is missing"),
        ({"select": {"minimum_token": 3}}, "select: unknown key 'minimum_token'"),
        (
            {"select": {"minimum_tokens": 600}},
            "select.minimum_tokens: expected at most max_length (512), got 600",
        ),
        ({"corpus": []}, "corpus: is missing"),
        ({"corpus": ["generated", "text.jsonl"]}, "corpus: expected either generated or files, got both"),
        ({"corpus": ["generated"], "doses": [1, 4]}, "doses: expected [1] with generated text"),
        ({"corpus": ["generated"], "select": {"minimum_token": 3}}, "select: unknown key 'minimum_token'"),
        ({"keep": [{"perplexity": "text.jsonl"}]}, "expected at least one entry with right and wrong answers"),
        ({"with_retention": "label_annealing"}, "with_retention: fine-tunes a second time, so it needs `train`"),
        ({"restore": {"seed": 1}}, "restore.seed: is set by the study"),
        ({"doses": [4, 1]}, "doses: expected multiples of the budget, ascending from 1, got [4, 1]"),
        ({"doses": [2, 4]}, "doses: expected multiples of the budget, ascending from 1, got [2, 4]"),
    ],
)
def test_mistakes_are_named_before_anything_runs(files: dict[str, Any], change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        StagesConfig.read({k: v for k, v in {**files, **change}.items() if v is not None})
    assert said in str(error.value)


def test_the_base_writes_the_text_where_there_is_none(files: dict[str, Any]) -> None:
    config = StagesConfig.read({**files, "corpus": ["generated"]})
    assert config.request.probing_passages == 500
    assert StagesConfig.read(files).request.probing_passages == 10_000
    Path(config.generated).parent.mkdir(parents=True)
    Path(config.generated).write_text("")
    selection, problems = config.selection(9)
    assert not problems and selection is not None
    assert selection.input == (config.generated,) and selection.probing == 500


def test_another_architecture_is_refused(files: dict[str, Any]) -> None:
    from holdfast.errors import ModelError
    from holdfast.studies.stages.study import _check_same_architecture

    Path("two", "config.json").write_text('{"hidden_size": 8}')
    with pytest.raises(ModelError, match="two is of another architecture than the base base: hidden_size None and 8"):
        _check_same_architecture("base", ["one", "two"])


def test_an_adapter_is_restored_merged_into_the_base_that_is_named(
    files: dict[str, Any], model_folder: Path, tmp_path: Path
) -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    from holdfast.errors import HoldfastError
    from holdfast.studies.stages.study import StagesStudy, _check_same_architecture

    torch.manual_seed(0)
    settings = LoraConfig(r=2, lora_alpha=6, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(model_folder), settings)
    model.save_pretrained(tmp_path / "adapter")  # names the folder that it was trained on, wherever that was
    merged = model.merge_and_unload()
    named = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    named["base_model_name_or_path"] = "/a/machine/of/somebody/else"
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(named))

    given = {**files, "base": str(model_folder), "tuned": ["adapter"], "output_dir": "study"}
    study = StagesStudy(StagesConfig.read(given))
    whole = Path(study.whole_model("tuned-1-restored", "adapter"))
    assert whole == Path("study/merged/tuned-1-restored")
    assert study.whole_model("x", str(model_folder)) == str(model_folder)
    found, wanted = load_file(whole / "model.safetensors"), merged.state_dict()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, wanted[name])
    _check_same_architecture(str(model_folder), ["adapter"])
    Path("one", "config.json").write_text('{"hidden_size": 8}')
    with pytest.raises(HoldfastError, match="one is of another architecture"):
        _check_same_architecture(str(model_folder), ["adapter", "one"])


@pytest.mark.parametrize(
    ("given", "epochs"), [("chats.jsonl", 10), ({"dataset_name": "chats.jsonl", "num_train_epochs": 3}, 3)]
)
def test_raw_data_is_enough(files: dict[str, Any], given: Any, epochs: int) -> None:
    Path("chats.jsonl").write_text(json.dumps({"prompt": "a", "completion": "b"}) + "\n")
    del files["tuned"]
    config = StagesConfig.read({**files, "train": given, "restore": {"use_cpu": True}})
    assert config.arms == {"direct": epochs} and len(config.steps) == epochs + 4
    tuning = config.tuning("direct")
    assert tuning["num_train_epochs"] == epochs and tuning["save_strategy"] == "epoch"


def test_a_remedy_may_be_added_to_a_study_and_not_be_changed(files: dict[str, Any]) -> None:
    Path("chats.jsonl").write_text(json.dumps({"prompt": "a", "completion": "b"}) + "\n")
    del files["tuned"]
    tuned = {**files, "train": {"dataset_name": "chats.jsonl", "num_train_epochs": 2}}
    without = StagesConfig.read(tuned)
    later = StagesConfig.read({**tuned, "with_retention": "label_annealing"})
    assert later.differences(without.resolved) == []
    assert list(without.steps)[:2] == ["base-measured", "texts"], "what may fail comes before hours of fine-tuning"
    steps = list(later.steps)
    assert steps[: len(without.steps)] == list(without.steps), "what was done keeps its place"
    assert [job.after for job in later.jobs()][: len(without.steps)] == [job.after for job in without.jobs()]
    assert steps[len(without.steps) :] == ["tune-remedy", "remedy-1-restored", "remedy-2-restored"]
    for other in (
        without,
        StagesConfig.read({**tuned, "with_retention": "l2"}),
    ):
        (difference,) = other.differences(later.resolved)
        assert difference.startswith("with_retention: was {'label_annealing'")


def test_a_fine_tuning_is_measured_on_the_way_where_that_is_asked(files: dict[str, Any]) -> None:
    Path("chats.jsonl").write_text(json.dumps({"prompt": "a", "completion": "b"}) + "\n")
    del files["tuned"]
    asked = {**files, "train": {"dataset_name": "chats.jsonl", "num_train_epochs": 1}}
    assert "evaluation" not in StagesConfig.read(asked).tuning("direct")
    found = StagesConfig.read({**asked, "along": {"steps": [1, 2]}}).tuning("direct")["evaluation"]
    assert found["along"] == {"steps": [1, 2]} and "probing" not in found
    with pytest.raises(ConfigError, match=r"train: .*along"):
        StagesConfig.read({**asked, "along": {"step": [1]}})
    with pytest.raises(ConfigError, match="along: measures during fine-tuning"):
        StagesConfig.read({**files, "tuned": ["one"], "along": {"steps": [1]}})


def test_what_could_not_be_looked_for_in_the_corpus_is_named(files: dict[str, Any]) -> None:
    from holdfast.studies.engine.study import StudyState
    from holdfast.studies.stages.outcome import stages_record

    asked = {**files, "output_dir": "study", "keep": [*files["keep"], {"task": "arc_easy"}]}
    config = StagesConfig.read(asked)
    assert config.question_files == [Path("questions.jsonl").resolve()]
    Path("study/texts").mkdir(parents=True)
    state = StudyState(name="a", status="running", created="", jobs=[], storage="", attributes={})
    assert not stages_record(state, config, {}).notes, "before anything is chosen"
    Path("study/texts/selection.json").write_text('{"counts": {}}')
    (note,) = stages_record(state, config, {}).notes
    assert "was not checked for questions of knowledge/arc_easy" in note


def test_a_base_that_knows_nothing_is_seen_before_anything_is_restored(
    files: dict[str, Any], model_folder: Path
) -> None:
    from types import SimpleNamespace

    from holdfast.errors import HoldfastError
    from holdfast.studies.stages import outcome
    from holdfast.studies.stages.study import StagesStudy

    rows = [{"prompt": f"{n} a", "options": [" b", " b and so on and on"]} for n in range(30)]
    for name, answers in {"questions": [0, 1], "zeros": [0], "ones": [1]}.items():
        asked = [{**row, "answer": answers[n % len(answers)]} for n, row in enumerate(rows)]
        jsonl(f"{name}.jsonl", asked)
    notes: list[str] = []
    restore = SimpleNamespace(attributes={"step": "base-restored"}, console=None, note=notes.append)
    task = SimpleNamespace(attributes={"step": "base-measured"}, console=None, note=notes.append)
    study = StagesStudy(StagesConfig.read({**files, "base": str(model_folder), "output_dir": "none"}))
    with pytest.raises(HoldfastError, match=r"better than chance on knowledge/facts, so there is nothing to forg"):
        study.make(task)
    with pytest.raises(HoldfastError, match="needs a base that is better than chance"):
        study.make(restore)
    assert not Path("none/runs").exists() and notes == []

    both = [{"multiple_choice": f"{name}.jsonl", "name": name} for name in ("zeros", "ones")]
    study = StagesStudy(StagesConfig.read({**files, "base": str(model_folder), "keep": both, "output_dir": "some"}))
    assert study.make(task).folder == "base-measured"
    (note,) = notes
    folder = outcome.EvaluationFolder("some/base-measured/model")
    found = {e.name: outcome.is_above_chance(folder, e) for e in folder.all()}
    assert sorted(found.values()) == [False, True]
    (poor,) = (name for name, above in found.items() if not above)
    assert note == (
        f"The base is not shown to be better than chance on knowledge/{poor}: "
        "for these entries only a gain can be shown."
    )
