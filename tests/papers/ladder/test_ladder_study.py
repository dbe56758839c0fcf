"""The pre-training of a ladder: its runs, what it refuses before anything runs, and a whole one of seconds."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from data_files import text_rows
from holdfast.errors import ConfigError, HoldfastError
from holdfast.papers.ladder.plan import LadderConfig
from holdfast.papers.ladder.record import read_ladder
from holdfast.papers.ladder.study import LadderStudy
from holdfast.records.run import RunFolder
from holdfast.studies.engine.session import execute_study

WORDS = "the model reads one window after the other and learns what comes next in each of them"


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A ladder of two sizes and two budgets on files that are there."""
    monkeypatch.chdir(tmp_path)
    words = WORDS.split()
    texts = [" ".join(words[(i * k) % len(words)] for k in range(1, 30)) for i in range(120)]
    text_rows("text.jsonl", texts)
    held = [" ".join(words[(i + k * k) % len(words)] for k in range(30)) for i in range(4)]
    text_rows("held.jsonl", held)
    return {
        "text": ["text.jsonl"],
        "sizes": {"small": {"layers": 1, "width": 16, "heads": 2}, "wide": {"layers": 1, "width": 32, "heads": 2}},
        "budgets": [640, 1280],
        "context": 16,
        "batch_size": 4,
        "vocab_size": 300,
        "learning_rate": 1e-2,
        "train": {"use_cpu": True},
        "evaluation": [{"perplexity": "held.jsonl", "name": "held"}],
        "output_dir": "ladder",
    }


def quiet() -> Console:
    return Console(file=io.StringIO(), width=160)


def test_every_budget_is_a_run_and_the_shortest_is_begun_first(asked: dict[str, Any]) -> None:
    config = LadderConfig.read(asked)
    assert [job.attributes["label"] for job in config.jobs()] == [
        "tokenising the text",
        "small, 640 tokens",
        "small, 1.28k tokens",
        "wide, 640 tokens",
        "wide, 1.28k tokens",
    ]
    assert all(job.after == (0,) for job in config.jobs()[1:])
    rung = config.rungs["small-tokens1.28k"]
    settings = config.training(rung, 0, {"x": 0.5})
    assert (settings["max_steps"], settings["max_length"], settings["learning_rate_multipliers"]) == (
        20,
        16,
        {"x": 0.5},
    )
    assert (settings["lr_scheduler_type"], settings["warmup_steps"], settings["adam_beta2"]) == ("cosine", 0.1, 0.95)
    assert settings["evaluation"]["before"] is False and settings["retention"] == "none"


def test_windows_of_a_step_are_shared_out(asked: dict[str, Any]) -> None:
    config = LadderConfig.read({**asked, "per_device": 2})
    assert config.batches(config.request.sizes["small"]) == (2, 2)
    with pytest.raises(ConfigError, match="batch_size: expected a multiple of 3 windows per device"):
        LadderConfig.read({**asked, "per_device": 3})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"text": []}, "text: is missing"),
        ({"text": ["no.jsonl"]}, r"text: .*no\.jsonl"),
        ({"sizes": {}}, "sizes: "),
        (
            {"sizes": {"a": {"layers": 1, "width": 15, "heads": 2}}},
            r"sizes.a.width: expected a multiple of the number of heads",
        ),
        ({"sizes": {"a": {"layer": 1, "width": 16, "heads": 2}}}, r"sizes.a: unknown key 'layer'"),
        ({"budgets": [1280, 640]}, "budgets: expected rising budgets"),
        ({"budgets": [64]}, "expected a budget of at least 10 steps of 4 windows of 16 tokens for small, got 64"),
        ({"architecture": "olmo3x"}, r"architecture: expected a causal language model .* Did you mean 'olmo3'"),
        ({"architecture": "gpt2"}, "architecture: the configuration of gpt2 lacks"),
        ({"model": {"rope_thta": 1}}, r"model.rope_thta: .*Did you mean 'rope_th|no such key"),
        ({"model": {"hidden_size": 8}}, "model.hidden_size: is set by `sizes`"),
        ({"train": {"max_steps": 3}}, "train.max_steps: is set by the ladder"),
        (
            {"base_width": 16, "model": {"tie_word_embeddings": True}},
            "base_width: muP needs separate embeddings and head",
        ),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(asked: dict[str, Any], change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        LadderConfig.read({**asked, **change})
    assert not Path("ladder").exists()


@pytest.mark.slow
def test_text_that_holds_what_is_measured_is_refused(asked: dict[str, Any]) -> None:
    rows = Path("text.jsonl").read_text().splitlines()
    Path("held.jsonl").write_text("\n".join([*Path("held.jsonl").read_text().splitlines(), rows[7]]) + "\n")
    asked["sizes"].pop("wide")
    with pytest.raises(HoldfastError, match=r"1 of 5 documents of keep/held \(held\.jsonl\) also occur in the text"):
        execute_study(LadderStudy(LadderConfig.read(asked)), console=quiet(), workers=1)
    assert not list(Path("ladder").glob("small-*")), "nothing was pre-trained"
    record = execute_study(LadderStudy(LadderConfig.read({**asked, "overlap": "keep"})), console=quiet(), workers=1)
    assert record.status == "finished" and any("1 of 5 documents of keep/held" in n for n in record.notes)
    assert "1 of 5 documents" in Path("ladder/report.html").read_text()
    with pytest.raises(ConfigError, match="overlap: was 'keep', is 'refuse'"):
        execute_study(LadderStudy(LadderConfig.read(asked)), console=quiet(), workers=1)


@pytest.mark.slow
def test_a_whole_ladder(asked: dict[str, Any]) -> None:
    config = LadderConfig.read({**asked, "base_width": 16})
    record = execute_study(LadderStudy(config), console=quiet(), workers=1)
    assert record.status == "finished" and {r.state for r in record.rungs} == {"complete"}
    assert read_ladder("ladder") == record and Path("ladder/report.html").is_file()
    assert [(r.size, r.tokens, r.steps) for r in record.rungs] == [
        (size, tokens, tokens // 64) for size in ("small", "wide") for tokens in (640, 1280)
    ]
    for rung in record.rungs:
        assert rung.seconds > 0
        assert rung.figures["keep/held"].unit == "nats/token"
        run = RunFolder(Path("ladder", rung.folder))
        assert run.metrics()[-1]["learning_rate"] < 1e-2 / 10, "annealed"
        assert not list(run.path.glob("checkpoint-*")), "what resuming needed is gone"
    # budgets of a size begin with the same weights, and read the same windows
    first, second = (RunFolder(f"ladder/small-tokens{n}").read() for n in ("640", "1.28k"))
    assert first.model["hash"] == second.model["hash"] and first.data["hash"] == second.data["hash"]
    assert {s.width: s.parameters - s.without_tables for s in record.sizes.values()} == {
        16: 2 * 300 * 16,
        32: 2 * 300 * 32,
    }
    # muP: the wide model's matrices go at half the rate, its other parameters at the whole one
    multipliers = json.loads(Path("ladder/fresh/wide-seed0/learning_rate_multipliers.json").read_text())
    assert list(multipliers.values()) == [0.5]
    # what the commands on ladders take
    from holdfast.evaluation.ladder import parse_ladder, unlike

    rungs = parse_ladder("ladder/small.yaml")
    assert [rung.budget for rung in rungs] == [640.0, 1280.0] and not unlike([rung.model for rung in rungs])
    # nothing is done twice
    before = {p: p.stat().st_mtime_ns for p in Path("ladder").rglob("model.safetensors")}
    again = execute_study(LadderStudy(LadderConfig.read({**asked, "base_width": 16})), console=quiet(), workers=1)
    assert again.rungs == record.rungs
    assert before == {p: p.stat().st_mtime_ns for p in Path("ladder").rglob("model.safetensors")}


@pytest.mark.slow
def test_a_shorter_budget_reads_the_beginning_of_a_longer_one(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.training.trainers import SFTRetentionTrainer

    seen: list[list[int]] = []
    step = SFTRetentionTrainer.training_step

    def watched(self: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(inputs["input_ids"].flatten().tolist())
        return step(self, model, inputs, *args, **kwargs)

    monkeypatch.setattr(SFTRetentionTrainer, "training_step", watched)
    sizes = {"small": asked["sizes"]["small"]}
    execute_study(LadderStudy(LadderConfig.read({**asked, "sizes": sizes})), console=quiet(), workers=1)
    assert len(seen) == 30
    short, long = seen[:10], seen[10:]
    assert short == long[:10] and len({tuple(batch) for batch in long}) == 20


def test_a_budget_that_would_repeat_the_text_is_refused(asked: dict[str, Any]) -> None:
    few = {**asked, "budgets": [640, 64_000]}
    with pytest.raises(HoldfastError, match=r"budgets: expected at most .* 1 pass over the text .* max_passes: "):
        execute_study(LadderStudy(LadderConfig.read(few)), console=quiet(), workers=1)
    assert not list(Path("ladder").glob("*-tokens*")), "no run was begun"


def test_budgets_and_sizes_may_come_later(asked: dict[str, Any]) -> None:
    """A size of another shape, a budget less or another rate is another ladder."""
    small, wide = asked["sizes"]["small"], asked["sizes"]["wide"]
    first = {**asked, "sizes": {"small": small}, "budgets": [640]}
    begun = LadderConfig.read(first).resolved
    for change, said in (
        ({"sizes": {"small": {**small, "budgets": [640, 1280]}, "wide": wide}}, []),
        ({"sizes": {"small": {**small, "width": 32}}}, ["sizes"]),
        ({"budgets": [1280]}, ["budgets"]),
        ({"learning_rate": 1e-3, "budgets": [640, 1280]}, ["learning_rate"]),
    ):
        differences = LadderConfig.read({**first, **change}).differences(begun)
        assert [text.partition(":")[0] for text in differences] == said
