"""Ladders: budgets read from names and files, and what makes checkpoints no ladder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from holdfast.config.values import Refused
from holdfast.evaluation.ladder import Rung, order_problems, parse_ladder, tokens_in, unlike
from tiny import build_model, build_tokenizer


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("allenai/OLMo-1B-hf@step117850-tokens494B", 494e9),
        ("allenai/OLMo-2-1124-7B@stage1-step928646-tokens3896B", 3896e9),
        ("owner/model@0.12T", 0.12e12),
        ("runs/ladder/tokens-8.2M", 8.2e6),
        ("runs/ladder/8.2M-tokens/", 8.2e6),
        ("LLM360/Amber@ckpt_040", None),
        ("allenai/OLMo-1B-hf", None),
        ("runs/pythia-160M", None),
        ("runs/model@2", None),
    ],
)
def test_the_budget_that_a_name_states(name: str, tokens: float | None) -> None:
    assert tokens_in(name) == tokens


def test_a_ladder_out_of_a_file_or_a_list(tmp_path: Path) -> None:
    file = tmp_path / "ladder.yaml"
    file.write_text("ladder:\n  - a@tokens1B\n  - {model: b, tokens: 2.0e9, label: two}\n")
    expected = (Rung(model="a@tokens1B"), Rung(model="b", tokens=2e9, label="two"))
    assert (
        parse_ladder(str(file))
        == expected
        == parse_ladder(["a@tokens1B", {"model": "b", "tokens": 2e9, "label": "two"}])
    )
    assert [rung.budget for rung in expected] == [1e9, 2e9]
    written = parse_ladder([{"model": "a", "tokens": "1.5M"}, {"model": "b", "tokens": "2B"}])
    assert [rung.budget for rung in written] == [1.5e6, 2e9]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (["a@tokens1B", "b"], "the number of pre-training tokens of each checkpoint, found none for b. Add 'tokens:'"),
        (["a@tokens2B", "b@tokens1B"], r"budgets in rising order, got a@tokens2B \(2e\+09 tokens\) before b@tokens1B"),
        (["a@tokens1B", "b@tokens1B"], "budgets in rising order"),
        ([{"model": "a", "tokens": -1}], r"\[0\].tokens: expected a number .*above 0"),
        ([{"modle": "a", "tokens": 1}], "modle"),
        ([{"model": "a", "tokens": 0.0}], r"\[0\].tokens: expected a number .*above 0"),
        (
            [{"model": "a", "tokens": "many"}],
            r"\[0\].tokens: expected a number of tokens above 0, such as 4\.0e9 or 4B",
        ),
        ("nowhere.yaml", r"no such file.*'holdfast study run' writes one"),
    ],
)
def test_what_is_no_ladder(value: object, message: str) -> None:
    with pytest.raises(Refused, match=message):
        parse_ladder(value)


def test_budgets_that_rise_have_no_problem() -> None:
    assert order_problems([Rung(model="a", tokens=1), Rung(model="b", tokens=2)]) == []


def test_checkpoints_of_two_architectures_or_tokenizers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, changes in (("a", {}), ("b", {}), ("wide", {"width": 64}), ("other", {})):
        build_model(seed=len(name), **changes).save_pretrained(name)
        build_tokenizer().save_pretrained(name)
    assert unlike(["a", "b"]) == []
    [problem] = unlike(["a", "b", "wide"])
    assert "one architecture, but a and wide differ" in problem and "hidden_size 32 and 64" in problem
    tokenizer = build_tokenizer()
    tokenizer.add_tokens(["<new>"])
    shutil.rmtree("other")
    shutil.copytree("a", "other")
    tokenizer.save_pretrained("other")
    [problem] = unlike(["a", "other"])
    assert "one tokenizer, but a and other have different ones" in problem
    assert "Expected a model at nowhere" in unlike(["a", "nowhere"])[0]
