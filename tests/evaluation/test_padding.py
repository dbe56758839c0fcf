"""What a model writes after a prompt does not depend on the prompts beside it, whatever the architecture makes of
padding."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from evaluation.conftest import make_model, make_tokenizer
from holdfast.generation import continued, ignores_padding

PROMPTS = [[5, 9, 13], [7, 8, 11, 21, 30, 4, 9, 17], [40]]


def rwkv():
    """Reads a row as one sequence, padding included."""
    torch.manual_seed(0)
    config = AutoConfig.for_model("rwkv", vocab_size=512, hidden_size=32, num_hidden_layers=2, context_length=64)
    return AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize(("make", "ignores"), [(make_model, True), (rwkv, False)])
def test_prompts_are_continued_as_each_alone(make, ignores, monkeypatch):
    model, tokenizer = make().eval(), make_tokenizer()
    assert ignores_padding(model) == ignores
    rows = []
    generate = model.generate
    monkeypatch.setattr(model, "generate", lambda **how: rows.append(len(how["input_ids"])) or generate(**how))
    together = continued(model, tokenizer, PROMPTS, max_new_tokens=6)
    assert rows == ([3] if ignores else [1, 1, 1])
    assert together == [continued(model, tokenizer, [prompt], max_new_tokens=6)[0] for prompt in PROMPTS]


def test_prompts_of_one_length_are_one_batch_whatever_the_model(monkeypatch):
    model, tokenizer = rwkv(), make_tokenizer()
    rows = []
    generate = model.generate
    monkeypatch.setattr(model, "generate", lambda **how: rows.append(len(how["input_ids"])) or generate(**how))
    continued(model, tokenizer, [[1, 2], [3, 4]], max_new_tokens=2)
    assert rows == [2]


def test_the_harness_generates_alike(colour_task):
    from lm_eval.api.instance import Instance

    from holdfast.evaluation.tasks.harness_model import SharedPrefixLM

    model, tokenizer = rwkv(), make_tokenizer()
    texts = ["The ships", "The ships of the old harbour were all", "A"]
    found = []
    for size in (3, 1):
        lm = SharedPrefixLM(model, tokenizer, batch_size=size, length=64)
        asked = [
            Instance("generate_until", {}, (text, {"until": ["\n\n"], "max_gen_toks": 5}), number)
            for number, text in enumerate(texts)
        ]
        found.append(lm.generate_until(asked))
    assert found[0] == found[1]
