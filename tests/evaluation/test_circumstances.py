"""What two models differ in beside their weights is said with their comparison, and "the same model" only where nothing
differs."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from evaluated_folders import answers, write
from evaluation.conftest import make_model, make_tokenizer
from holdfast.evaluation.circumstances import circumstances, remarks_on_circumstances
from holdfast.evaluation.runner import tokenizer_fingerprint, tokenizer_rules
from holdfast.records.evaluation import Evaluation
from holdfast.support.files import fingerprint

KNOWN = {"tokenizer": "a", "chat_template": "b", "context": 512, "dtype": "float32", "config": "c"}


def remarks(tmp_path, one: dict[str, Any], other: dict[str, Any]) -> str:
    found = write(tmp_path, "keep", "quiz", answers([1, 0])).find("keep", "quiz")
    assert isinstance(found, Evaluation)
    sides = [dataclasses.replace(found, model={"name": "m", **model}) for model in (one, other)]
    return " ".join(remarks_on_circumstances([(sides[0], sides[1])]))


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"tokenizer": "z"}, "The tokenizers differ before and after"),
        ({"chat_template": "z"}, "The chat templates differ"),
        ({"context": 64}, "512 tokens before and 64 after"),
        ({"dtype": "bfloat16"}, "float32 before and bfloat16 after"),
        ({"config": "z"}, "a different config.json"),
    ],
)
def test_what_differs_is_named_and_it_is_not_the_same_model(tmp_path, change, part):
    found = remarks(tmp_path, {"hash": "h", **KNOWN}, {"hash": "h", **KNOWN, **change})
    assert part in found and "the same weights" in found and "the same model" not in found
    other = remarks(tmp_path, {"hash": "h", **KNOWN}, {"hash": "i", **KNOWN, **change})
    assert "same" not in other.replace("the same text", "") and (part in other) == ("config" not in change)


def test_the_same_model_is_one_of_which_all_is_known(tmp_path):
    same = {"hash": "h", **KNOWN}
    assert remarks(tmp_path, same, same).startswith("Both are the same model")
    assert remarks(tmp_path, {"hash": "h"}, {"hash": "h"}).startswith("Both have the same weights")
    assert remarks(tmp_path, same, {**same, "hash": "i"}) == ""
    assert remarks(tmp_path, {"hash": "h"}, {"hash": "i", **KNOWN}) == ""


def test_circumstances_tell_models_apart_by_what_decides_figures():
    model, tokenizer = make_model(), make_tokenizer()
    found = circumstances(model, tokenizer, tokenizer_rules(tokenizer))
    assert {"context": 64, "dtype": "float32"}.items() <= found.items()
    again = make_model(seed=1)
    again.config.use_cache = not again.config.use_cache  # how it is run, not what it is
    assert circumstances(again, tokenizer, tokenizer_rules(tokenizer)) == found
    again.config.rms_norm_eps = 0.5
    tokenizer.chat_template = "{{ messages }}"
    other = circumstances(again.bfloat16(), tokenizer, tokenizer_rules(tokenizer))
    assert {key for key in found if found[key] != other[key]} == {"config", "chat_template", "dtype"}


def test_hashes_of_a_tokenizer_are_those_of_what_it_writes():
    tokenizer = make_tokenizer()
    rules = json.loads(tokenizer.backend_tokenizer.to_str())
    rules = {name: value for name, value in rules.items() if name not in ("padding", "truncation")}
    special = {name: value for name, value in tokenizer.special_tokens_map.items() if name != "pad_token"}
    content = {"class": type(tokenizer).__name__, "rules": rules, "special": special}
    assert tokenizer_rules(tokenizer) == fingerprint(content, length=16)
    for template in (None, "{{ messages }}"):
        tokenizer.chat_template = template
        assert tokenizer_fingerprint(tokenizer) == fingerprint({**content, "chat_template": template})
    tokenizer.add_tokens(["<|more|>"])
    assert tokenizer_rules(tokenizer) != fingerprint(content, length=16)
