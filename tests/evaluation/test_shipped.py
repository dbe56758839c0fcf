"""The suites that come with holdfast, suites of the user's, and what the command line changes in them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from data_files import jsonl
from evaluation.conftest import parsed
from holdfast.cli.evaluate import COMMAND
from holdfast.errors import ConfigError
from holdfast.evaluation.entries import EvaluationPlan
from holdfast.evaluation.kinds.classification import ClassificationEntry
from holdfast.evaluation.kinds.perplexity import PerplexityEntry
from holdfast.evaluation.kinds.task import TaskEntry
from holdfast.evaluation.shipped import changed, description_of, read_suites, shipped_suites, suite_files
from holdfast.evaluation.suite import parse_evaluation

NAMES = (
    "behaviour",
    "forgetting_stages",
    "instruction_residual",
    "knowledge",
    "label_annealing-alignment_tax",
    "label_annealing-code",
    "label_annealing-math",
    "label_annealing-niche_knowledge",
    "overtraining",
    "sequential_averaging",
)


def plan_of(*names: str) -> EvaluationPlan:
    mapping, problems = read_suites(names)
    assert problems == []
    plan, problems = parse_evaluation({**mapping, "allow_code_execution": True})
    assert problems == []
    return plan


# ------------------------------------------------------------------------------------------------------------- shipped


@pytest.mark.parametrize("name", NAMES)
def test_each_is_sound_and_says_what_it_measures(name: str) -> None:
    plan = plan_of(name)
    assert plan.entries
    assert description_of(shipped_suites()[name])
    for average in plan.averages:
        raw = yaml.safe_load(shipped_suites()[name].read_text())["averages"][average.name]
        assert len(average.members) == len(raw)
        for (_, entry, metric), text in zip(average.members, raw, strict=True):
            assert text in (entry, f"{entry}/{metric}")


def test_a_paper_has_several() -> None:
    assert [path.stem for path in suite_files("label_annealing")] == [
        n for n in NAMES if n.startswith("label_annealing-")
    ]
    names = [(entry.suite, entry.name) for entry in plan_of("label_annealing").entries]
    assert len(names) == len(set(names)), "what two suites share is measured once"
    assert {("keep", "mmlu"), ("learn", "gsm8k"), ("keep", "gsm8k"), ("learn", "humaneval")} <= set(names)


# -------------------------------------------------------------------------------------------------- by name and by file


def test_unknown_suites_are_named_with_the_nearest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.yaml").write_text("keep: [")
    (tmp_path / "list.yaml").write_text("- arc_easy\n")
    _, problems = read_suites(["knowlege", "nowhere.yaml", "broken.yaml", "list.yaml", "label"])
    assert len(problems) == 5
    assert "unknown suite 'knowlege'. Did you mean 'knowledge'? Known: behaviour, forgetting_stages, " in problems[0]
    assert "no such suite file: nowhere.yaml" in problems[1]
    assert "broken.yaml, line 1, column 8: not valid YAML" in problems[2]
    assert "list.yaml: expected a mapping" in problems[3]
    assert "unknown suite 'label'" in problems[4]


def test_files_of_a_suite_lie_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "prose.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "prose.jsonl").write_text('{"text": "the other one"}\n')
    (tmp_path / "here.jsonl").write_text('{"text": "b"}\n')
    (tmp_path / "mine" / "suite.yaml").write_text(
        "evaluation:\n  keep:\n    - prose.jsonl\n    - {perplexity: here.jsonl}\n    - {task: arc_easy, "
        "data: prose.jsonl}\n"
    )
    monkeypatch.chdir(tmp_path)
    prose, here, arc = plan_of("mine/suite.yaml").entries
    assert isinstance(prose, PerplexityEntry) and isinstance(here, PerplexityEntry) and isinstance(arc, TaskEntry)
    assert prose.data == str((tmp_path / "mine" / "prose.jsonl").resolve()) == arc.data
    assert here.data == str((tmp_path / "here.jsonl").resolve()), (
        "what is not beside the suite is meant from the working directory"
    )


def test_two_suites_that_ask_the_same_in_different_ways() -> None:
    """Entries of one name cannot both be kept, and a shipped suite cannot be given other names."""
    with pytest.raises(ConfigError) as caught:
        COMMAND.read(["base=.", "--suite", "knowledge", "overtraining"])
    assert len(caught.value.problems) == 7
    for name in ("arc_challenge", "arc_easy", "piqa", "winogrande", "boolq", "copa", "hellaswag"):
        assert f"the name '{name}' is used by" in str(caught.value)
    assert "another `name:`, or measure their suites one after the other" in str(caught.value)
    _, [problem] = read_suites(["knowledge", "forgetting_stages"])
    assert "different settings for averages.knowledge" in problem, "averages are not replaced in silence"
    assert "--output_dir" in problem
    assert read_suites(["knowledge", "knowledge"]) == read_suites(["knowledge"])


# ------------------------------------------------------------------------------------------- what the command line says


@pytest.mark.parametrize("word", ["no", "No", "false", "'false'", "off", "'off'", "'no'", "0", ""])
def test_a_suite_that_refuses_programs_is_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code.yaml").write_text(f"allow_code_execution: {word}\nsource: [humaneval]\n")
    with pytest.raises(ConfigError, match="'humaneval' runs programs that the model writes"):
        COMMAND.read(["base=.", "--suite", "code.yaml"])
    assert COMMAND.read(["base=.", "--suite", "code.yaml", "--allow_code_execution"]).to_measure.allow_code_execution


@pytest.mark.parametrize("word", ["true", "yes", "'on'"])
def test_the_option_takes_a_suite_s_permission_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code.yaml").write_text(f"allow_code_execution: {word}\nsource: [humaneval]\n")
    words = ["base=.", "--suite", "code.yaml"]
    assert COMMAND.read(words).to_measure.allow_code_execution is True
    (tmp_path / "asked.yaml").write_text("allow_code_execution: false\n")
    for option in (
        ["--no_allow_code_execution"],
        ["--allow_code_execution", "false"],
        ["--allow-code-execution=no"],
        ["--config", "asked.yaml"],
    ):
        with pytest.raises(ConfigError, match="'humaneval' runs programs that the model writes"):
            COMMAND.read([*words, *option])
        plan = COMMAND.read([*words, *option, "--tasks", "piqa", "--skip", "humaneval"]).to_measure
        assert plan.allow_code_execution is False


def test_the_chat_template_can_be_taken_away_and_reaches_every_entry_that_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text("{}\n")
    (tmp_path / "chat.yaml").write_text(
        "allow_code_execution: true\n"
        "keep:\n- {task: ifeval, apply_chat_template: true}\n- {multiple_choice: rows.jsonl}\n"
        "- {multiple_choice_letters: rows.jsonl, name: letters}\n- {instructions: rows.jsonl, name: asked}\n"
        "- {perplexity: rows.jsonl, name: text}\n- humaneval\n- humaneval_instruct\n"
    )

    def asked(*words: str) -> dict[str, tuple[bool | None, int | None]]:
        plan = COMMAND.read(["base=.", "--suite", "chat.yaml", *words]).to_measure
        return {
            e.name: (getattr(e, "apply_chat_template", None), getattr(e, "num_fewshot", None)) for e in plan.entries
        }

    assert [name for name, (chat, _) in asked().items() if chat] == ["ifeval"]
    for words in (["--no_apply_chat_template"], ["--apply_chat_template=false"]):
        assert not any(chat for chat, _ in asked(*words).values())
    found = asked("--apply_chat_template", "--num_fewshot", "2")
    assert found == {
        "ifeval": (True, 2),
        "rows": (True, None),
        "letters": (True, None),
        "asked": (True, None),
        "text": (None, None),
        "humaneval": (False, 2),
        "humaneval_instruct": (True, None),
    }, "a code task keeps what its prompts have no place for"


@pytest.fixture
def plan(tmp_path: Path) -> EvaluationPlan:
    rows = [{"text": "a", "label": 0}]
    jsonl(tmp_path / "prose.jsonl", rows)
    config = {
        "keep": ["arc_easy", {"task": "arc_easy", "name": "arc_again"}, {"answer_distribution": "mmlu"}, "prose.jsonl"],
        "learn": [
            "arc_easy",
            {"classification": "prose.jsonl", "name": "kinds", "prompt": "{text}", "options": [" a", " b"]},
        ],
        "averages": {"both": ["keep/arc_easy", "arc_again"], "one": ["mmlu-answers/acc"]},
    }
    found, problems = parsed(config, tmp_path)
    assert problems == []
    return found


def test_a_file_for_a_task_or_one_entry(plan: EvaluationPlan, tmp_path: Path) -> None:
    (tmp_path / "arc.jsonl").write_text("{}\n")
    (tmp_path / "shown.jsonl").write_text("{}\n")
    file, shown = str(tmp_path / "arc.jsonl"), str(tmp_path / "shown.jsonl")
    found, problems = changed(plan, data={"arc_easy": file, "arc_again": shown}, fewshot_data={"keep/arc_easy": shown})
    assert problems == []
    got = {(e.suite, e.name): (e.data, e.fewshot_data) for e in found.entries if isinstance(e, TaskEntry)}
    assert got == {
        ("keep", "arc_easy"): (file, shown),
        ("keep", "arc_again"): (shown, None),
        ("keep", "mmlu-answers"): (None, None),
        ("learn", "arc_easy"): (file, None),
    }


def test_what_does_not_fit_is_named(plan: EvaluationPlan, tmp_path: Path) -> None:
    (tmp_path / "arc.jsonl").write_text("{}\n")
    file = str(tmp_path / "arc.jsonl")
    _, problems = changed(
        plan, data={"arc_eazy": file}, fewshot_data={"arc_again": "nowhere.jsonl", "mmlu": file}, skip=["prse"]
    )
    text = "\n".join(f"--{problem}" for problem in problems)
    assert (
        "--data: no entry or task 'arc_eazy' in the plan. Did you mean 'arc_easy'? There are: "
        "arc_again, arc_easy, " in text
    )
    assert "--skip: no entry or task 'prse'" in text and "Did you mean 'prose'?" in text
    assert "--fewshot_data.arc_again: no such file or folder 'nowhere.jsonl'" in text
    assert "--fewshot_data.mmlu: needs `data` for the same task" in text


def test_entries_that_are_skipped_take_their_averages_along(plan: EvaluationPlan) -> None:
    found, problems = changed(plan, skip=["arc_again", "learn/arc_easy"])
    assert problems == []
    assert [(e.suite, e.name) for e in found.entries] == [
        ("keep", "arc_easy"),
        ("keep", "mmlu-answers"),
        ("keep", "prose"),
        ("learn", "kinds"),
    ]
    assert [average.name for average in found.averages] == ["one"]


def test_settings_for_all(plan: EvaluationPlan) -> None:
    found, _ = changed(plan, limit=5, num_fewshot=0, apply_chat_template=None)
    for entry in found.entries:
        if isinstance(entry, TaskEntry):
            assert (entry.limit, entry.num_fewshot, entry.apply_chat_template) == (5, 0, False)
        else:
            assert isinstance(entry, (PerplexityEntry, ClassificationEntry)) and entry.max_documents == 5
    assert changed(plan) == (plan, [])
