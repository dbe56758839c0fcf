"""The win rate as an entry: replies of tiny models before a judge that a test scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_files import jsonl
from evaluation import fake_endpoint as fake
from evaluation.conftest import SENTENCES, make_model, parsed
from evaluation.fake_endpoint import FakeEndpoint, completion
from holdfast.errors import DataError, HoldfastError
from holdfast.evaluation import runner
from holdfast.evaluation.loading import ModelLoading
from holdfast.evaluation.session import evaluate_models, requests_of
from holdfast.models import Loaded
from holdfast.records.evaluation import EvaluationFolder
from holdfast.records.run import RunFolder
from holdfast.statistics.length_controlled import length_controlled
from holdfast.support.progress import ProgressDisplay

pytest.importorskip("openai", reason="judging needs the extra 'judge'")


def longer_wins(instruction: str, first: str, second: str):
    """Exactly, so that the figures can be written down: the longer of two outputs, and a tie at equal lengths."""
    p = 0.5 + 0.4 * ((len(first) > len(second)) - (len(first) < len(second)))
    return completion("m" if p >= 0.5 else "M", p)


def asked_of(tmp_path: Path, server: FakeEndpoint, **changes):
    file = tmp_path / "prompts.jsonl"
    jsonl(file, [{"instruction": s} for s in SENTENCES])
    entry = {"win_rate": file.name, "judge_model": "judge", "base_url": server.url, "max_new_tokens": 8, **changes}
    plan, problems = parsed({"learn": [entry], "batch_size": 4}, tmp_path)
    assert problems == []
    return plan


def run(plan, folder: RunFolder, tokenizer, which: str, *, seed: int, cache=None, start=True):
    return runner.evaluate(
        Loaded(model=make_model(seed=seed), tokenizer=tokenizer, identity={"name": which, "hash": f"{which}-{seed}"}),
        plan,
        folder=folder.evaluated(which),
        cache=cache,
        start=folder.evaluated("start") if start else None,
    )[0]


def test_the_start_has_one_half_unasked_and_a_result_what_the_judge_prefers(tmp_path, tiny_tokenizer):
    with FakeEndpoint(rule=longer_wins) as server:
        plan, folder, cache = asked_of(tmp_path, server), RunFolder(tmp_path / "run"), tmp_path / "cache"
        assert runner.check_plan(plan, tiny_tokenizer) == []
        start = run(plan, folder, tiny_tokenizer, "start", seed=0, cache=cache)
        assert (start.primary, start.metrics["win_rate"].value, server.asked) == ("win_rate", 0.5, [])
        result = run(plan, folder, tiny_tokenizer, "result", seed=1, cache=cache)
        before, after = (folder.evaluated(w).samples("learn", "prompts") for w in ("start", "result"))
        lengths = [(len(b["output"]), len(a["output"])) for b, a in zip(before, after, strict=True)]
        wins = [0.5 + 0.4 * ((ours > theirs) - (ours < theirs)) for theirs, ours in lengths]
        assert len(set(wins)) > 1  # else the test says little
        assert [r["win_rate"] for r in after] == pytest.approx(wins)
        assert result.metrics["win_rate"].value == pytest.approx(sum(wins) / len(wins))
        apart = sum(b["output"] != a["output"] for b, a in zip(before, after, strict=True))
        assert len(server.asked) == 2 * apart  # both orders
        found = length_controlled(wins, [ours - theirs for theirs, ours in lengths])
        assert result.metrics["length_controlled_win_rate"].value == pytest.approx(found.value)
        compared = {c.metric: c for c in runner.compare_runs(folder, plan)}
        assert compared["win_rate"].primary and compared["win_rate"].n == len(SENTENCES)
        assert compared["win_rate"].gain == pytest.approx(sum(wins) / len(wins) - 0.5)
        assert compared["length_controlled_win_rate"].gain == pytest.approx(found.value - 0.5)

        count = len(server.asked)
        other = RunFolder(tmp_path / "other")  # another run from the same start: start and result are in the cache
        assert run(plan, other, tiny_tokenizer, "start", seed=0, cache=cache).key == start.key
        assert run(plan, other, tiny_tokenizer, "result", seed=1, cache=cache).key == result.key
        assert len(server.asked) == count
        third = RunFolder(tmp_path / "third")  # the same model against another start is another figure
        run(plan, third, tiny_tokenizer, "start", seed=2, cache=cache)
        assert run(plan, third, tiny_tokenizer, "result", seed=1, cache=cache).key != result.key


def test_against_the_replies_of_a_file_at_another_address(tmp_path, tiny_tokenizer):
    replies = [{"instruction": s, "output": "x" * i} for i, s in enumerate(SENTENCES)]
    jsonl(tmp_path / "known.jsonl", replies)
    folder = RunFolder(tmp_path / "run")
    with FakeEndpoint(rule=longer_wins) as server:
        plan = asked_of(tmp_path, server, reference="known.jsonl", max_documents=4)
        found = run(plan, folder, tiny_tokenizer, "start", seed=0, start=False)
        rows = folder.evaluated("start").samples("learn", "prompts")
        assert [r["length_reference"] for r in rows] == [0, 1, 2, 3]
        assert found.metrics["win_rate"].value == pytest.approx(sum(r["win_rate"] for r in rows) / 4)
        assert server.asked
    with FakeEndpoint(rule=longer_wins) as elsewhere:
        plan = asked_of(tmp_path, elsewhere, reference="known.jsonl", max_documents=4)
        assert run(plan, folder, tiny_tokenizer, "start", seed=0, start=False) == found
        assert elsewhere.asked == []


def test_what_the_judge_leaves_open_counts_half_and_is_said(tmp_path, tiny_tokenizer):
    with FakeEndpoint(rule=lambda *parts: completion("I cannot judge that.")) as server:
        plan, folder = asked_of(tmp_path, server), RunFolder(tmp_path / "run")
        run(plan, folder, tiny_tokenizer, "start", seed=0)
        found = run(plan, folder, tiny_tokenizer, "result", seed=1)
    assert found.metrics["win_rate"].value == 0.5
    assert any("gave no verdict on" in note for note in found.settings["notes"])


def test_failures_end_the_measurement_and_verdicts_stay(tmp_path, tiny_tokenizer):
    with FakeEndpoint(rule=longer_wins) as server:
        plan, folder = asked_of(tmp_path, server), RunFolder(tmp_path / "run")
        run(plan, folder, tiny_tokenizer, "start", seed=0)
        server.always = fake.status(400)
        with pytest.raises(HoldfastError, match="requests to the judge failed after all retries"):
            run(plan, folder, tiny_tokenizer, "result", seed=1)
        server.always = None
        assert run(plan, folder, tiny_tokenizer, "result", seed=1).failed is None


def test_a_model_alone_has_nothing_to_be_held_against(tmp_path, tiny_tokenizer):
    with FakeEndpoint() as server, pytest.raises(DataError, match="Give a file as `reference`"):
        run(asked_of(tmp_path, server), RunFolder(tmp_path / "run"), tiny_tokenizer, "result", seed=1, start=False)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"win_rate": "no.jsonl"}, "no such file or folder 'no.jsonl'"),
        ({"reference": "no.jsonl"}, "reference: no such file"),
        ({"base_url": "http://me:secret@host/v1"}, "expected an address without user, password or query"),
        ({"judge_model": ""}, "judge_model: expected text that is not empty"),
        ({"split": "test"}, "unknown key 'split'"),
    ],
)
def test_mistakes(tmp_path, changes, problem):
    (tmp_path / "prompts.jsonl").write_text('{"instruction": "Say it."}\n')
    entry = {"win_rate": "prompts.jsonl", "judge_model": "judge", "base_url": "http://host/v1", **changes}
    _, (found, *_) = parsed({"learn": [entry]}, tmp_path)
    assert problem in found and "secret" not in found


def test_of_several_models_the_first_is_what_the_others_are_held_against(tmp_path, tiny_tokenizer):
    """`holdfast evaluate base tuned`; the second call finds both measured."""
    for name, seed in {"base": 0, "tuned": 1}.items():
        make_model(seed=seed).save_pretrained(tmp_path / name)
        tiny_tokenizer.save_pretrained(tmp_path / name)
    models = requests_of([str(tmp_path / "base"), str(tmp_path / "tuned")])
    with FakeEndpoint(rule=longer_wins) as server:
        plan, said = asked_of(tmp_path, server), []
        evaluate_models(models, plan, tmp_path / "out", loading=ModelLoading(device="cpu"))
        found = {m: EvaluationFolder(tmp_path / "out" / m).find("learn", "prompts") for m in ("base", "tuned")}
        count = len(server.asked)
        display = ProgressDisplay(say=said.append)
        evaluate_models(models, plan, tmp_path / "out", loading=ModelLoading(device="cpu"), display=display)
        assert len(server.asked) == count > 0
    assert found["base"].metrics["win_rate"].value == 0.5 != found["tuned"].metrics["win_rate"].value
    assert said == ["base: measured before, nothing to do", "tuned: measured before, nothing to do"]
