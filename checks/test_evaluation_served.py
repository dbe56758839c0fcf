"""A served model measured as one in memory is: the same figures, and what a server cannot give is refused before
anything is measured."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tokenizers.normalizers import Lowercase

from completions_server import CompletionsServer
from evaluation.test_processes import OPEN, OWN, SUITE, TASK
from holdfast.cli.main import main
from holdfast.records.evaluation import EvaluationFolder
from tiny import build_model, build_tokenizer

ROLLING = """\
task: rolling
dataset_path: json
dataset_kwargs: {data_files: {test: texts.jsonl}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: bits_per_byte}]
"""
SERVED = """\
keep:
  - {perplexity: texts.jsonl, text: "{text}"}
  - {task: colours.yaml}
  - {task: open.yaml}
  - {task: rolling.yaml}
  - {multiple_choice: texts.jsonl, name: chosen}
  - {classification: texts.jsonl, name: classified, prompt: "{text} is", options: [" the", " a list"]}
  - {instructions: texts.jsonl, name: followed, max_new_tokens: 4}
  - {behaviour: texts.jsonl, name: replies, max_new_tokens: 4, apply_chat_template: false}
batch_size: 3
"""


@pytest.fixture
def desk(tmp_path: Path, tokenizer, monkeypatch: pytest.MonkeyPatch) -> Path:
    build_model(seed=3).save_pretrained(tmp_path / "tuned")
    tokenizer.save_pretrained(tmp_path / "tuned")
    shared = {"options": ["red", "a list"], "instruction_id_list": ["plain:capitals"], "kwargs": [{}]}
    rows = [
        {"text": f"The fox {i} jumps over {'a lazy dog ' * (i % 4 + 1)}", "prompt": f"Say {i}", **shared}
        | {"answer": i % 2, "label": i % 2}
        for i in range(11)
    ]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    texts = {"suite": SERVED, "colours": TASK, "open": OPEN.replace(", do_sample: true, temperature: 1.0", "")}
    for name, text in {**texts, "rolling": ROLLING}.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def served(desk: Path, tokenizer):
    model = build_model(seed=3).eval()
    card = {"root": str(desk / "tuned"), "max_model_len": 128}
    with CompletionsServer(model, tokenizer, card) as server:
        yield server


def test_the_figures_are_those_of_the_model_in_memory(desk: Path, served: CompletionsServer, capsys) -> None:
    served.failures = 2  # busy at first: asked again
    command = ["evaluate", "tuned", f"there={served.url}", "--suite", "suite.yaml", "--output_dir", "out"]
    assert main(command) == 0, capsys.readouterr().err
    here, there = EvaluationFolder(desk / "out" / "tuned"), EvaluationFolder(desk / "out" / "there")
    assert len(there.all()) == 8
    for one in here.all():
        other = there.find(one.suite, one.name)
        assert other is not None and other.metrics.keys() == one.metrics.keys()
        rows = zip(here.samples(one.suite, one.name), there.samples(one.suite, one.name), strict=True)
        for mine, theirs in rows:
            assert mine.keys() == theirs.keys()
            for name, value in mine.items():
                if isinstance(value, float):
                    assert theirs[name] == pytest.approx(value, abs=2e-4), (one.name, name)
                elif not isinstance(value, list) or not value or not isinstance(value[0], float):
                    assert theirs[name] == value, (one.name, name)
    assert "as 127.0.0.1" in (desk / "out" / "evaluate.json").read_text()
    before = len(served.asked)
    assert main(command) == 0
    assert len(served.asked) - before == 3  # who is there; nothing is measured twice
    assert "there: measured before" in capsys.readouterr().out
    with torch_noise(served.model):
        assert main(command) == 0
    assert "there: 8 entries measured" in capsys.readouterr().out  # other weights behind the same address


class torch_noise:
    """Other weights inside."""

    def __init__(self, model) -> None:  # type: ignore[no-untyped-def]
        self.weight = model.get_output_embeddings().weight.data

    def __enter__(self) -> None:
        self.weight.mul_(1.001)

    def __exit__(self, *_: object) -> None:
        self.weight.div_(1.001)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"names": ("a", "b")}, "expected one of its models (a, b)"),
        ({"card": {"root": "tuned"}}, "--context_length"),
        ({"card": {"root": "other", "max_model_len": 128}}, "The tokenizer is not that of 'tiny'"),
        ({"card": {"root": "fewer", "max_model_len": 128}}, "The tokenizer is not that of 'tiny'"),
        ({"scores": False}, "keep/chosen: needs log-probabilities"),
    ],
)
def test_what_does_not_fit_is_said_before_anything_is_measured(how, said, desk: Path, tokenizer, capsys) -> None:
    for name, words in {"other": build_tokenizer(unk_token="<|pad|>"), "fewer": build_tokenizer(290)}.items():
        if name == "other":
            words.backend_tokenizer.normalizer = Lowercase()
        shutil.copytree(desk / "tuned", desk / name)
        words.save_pretrained(desk / name)
    card = {"root": str(desk / "tuned"), "max_model_len": 128}
    with CompletionsServer(build_model(seed=3).eval(), tokenizer, **{"card": card, **how}) as server:
        code = main(["evaluate", server.url, "--suite", "suite.yaml", "--output_dir", "out"])
    error = capsys.readouterr().err
    assert code == 2
    assert said in error
    assert not (desk / "out").exists()
    assert "keep/open:" not in error  # replies alone can be generated


def test_generated_entries_need_no_log_probabilities(desk: Path, served: CompletionsServer) -> None:
    served.scores = False
    (desk / "suite.yaml").write_text("keep: [{task: open.yaml}, {instructions: texts.jsonl, max_new_tokens: 4}]\n")
    assert main(["evaluate", served.url, "--suite", "suite.yaml", "--output_dir", "out"]) == 0
    [folder] = [p for p in (desk / "out").iterdir() if p.is_dir()]
    assert len(EvaluationFolder(folder).all()) == 2


def test_what_needs_the_model_in_memory_is_named(desk: Path, served: CompletionsServer, capsys) -> None:
    (desk / "own.py").write_text(OWN)
    letters = TASK.replace("task: colours", "task: letters").replace(
        "doc_to_choice: options", 'doc_to_choice: ["A", "B"]'
    )
    (desk / "letters.yaml").write_text(letters)
    (desk / "suite.yaml").write_text(SUITE)
    assert main(["evaluate", served.url, "--suite", "suite.yaml", "--output_dir", "out"]) == 2
    error = capsys.readouterr().err
    for kind in ("answer_distribution", "memorisation", "multiple_choice_letters", "own"):
        assert f": {kind} needs the model in memory" in error
    assert error.count("needs the model in memory") == 4


def test_a_server_that_is_not_there(desk: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.evaluation import served

    original = served.Endpoint
    monkeypatch.setattr(served, "Endpoint", lambda **given: original(**given, attempts=2, first_wait=0.01))
    assert main(["evaluate", "http://127.0.0.1:9/v1", "--suite", "suite.yaml"]) == 1
    assert "No answer from http://127.0.0.1:9/v1" in capsys.readouterr().err
    assert main(["evaluate", "http://user:s3cret@127.0.0.1:9/v1", "--suite", "suite.yaml"]) == 2
    assert "s3cret" not in capsys.readouterr().err


def test_a_server_that_adds_tokens_to_prompts_is_refused(desk: Path, served: CompletionsServer, capsys) -> None:
    """Its log-probabilities would be those of the places beside."""
    served.adds = 1
    assert main(["evaluate", served.url, "--suite", "suite.yaml", "--output_dir", "out"]) == 2
    assert "tokens in the prompt, as sent, but it counted" in capsys.readouterr().err
    assert not (desk / "out").exists()


def test_weights_that_are_not_on_disk_are_not_taken_for_measured() -> None:
    from holdfast.evaluation.session import ModelRequest, _hash

    assert _hash(ModelRequest(name="somebody/some-model", label="x"), "auto") == ""
