"""A tiny Llama, byte-level tokenizers with and without BOS, and a local task for the harness."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data_files import jsonl
from holdfast.evaluation.entries import EvaluationPlan
from holdfast.evaluation.measures import Subject, measure, no_report
from holdfast.evaluation.resume import Partial
from holdfast.evaluation.suite import parse_evaluation

SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "A teacher should give the pupil what the pupil needs.",
    "Question: what colour is the sky? Answer: blue.",
    "Seven ships sailed south; none came back before winter.",
    "Memory is kept in the data, the loss, the gradient or the weights.",
]
CHAT = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}{% if "
    "add_generation_prompt %}<|assistant|>{% endif %}"
)


def parsed(config: Any, folder: Path) -> tuple[EvaluationPlan, list[str]]:
    """`parse_evaluation` in a folder."""
    with contextlib.chdir(folder):
        return parse_evaluation(config)


def make_tokenizer(*, bos: bool = True, chat: bool = False):
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    bpe = ByteLevelBPETokenizer()
    special = ["<|begin|>", "<|stop|>"]
    bpe.train_from_iterator(SENTENCES * 4, vocab_size=300, special_tokens=special, show_progress=False)
    names = {"eos_token": "<|stop|>"} | ({"bos_token": "<|begin|>"} if bos else {})
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe._tokenizer, **names)
    if chat:
        tokenizer.chat_template = CHAT
    return tokenizer


def make_model(*, seed: int = 0, positions: int = 64, **changes):
    """A Llama with weights large enough that a leak between documents is far above rounding."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=positions,
        initializer_range=0.3,
        bos_token_id=0,
        eos_token_id=1,
        **changes,
    )
    return LlamaForCausalLM(config).eval()


def measured(model, tokenizer, entry, *, partial=None, report=no_report, **plan) -> SimpleNamespace:
    """What `measure` finds, with its figures as metrics."""
    plan = EvaluationPlan(**plan)
    on = Subject(model=model, tokenizer=tokenizer, plan=plan, report=report, partial=partial or Partial(None))
    found = measure(entry, on)
    return SimpleNamespace(
        rows=found.rows, metrics=found.metrics(plan), primary=found.primary, settings=dict(found.settings)
    )


@pytest.fixture(scope="session")
def tiny_tokenizer():
    return make_tokenizer()


@pytest.fixture(scope="session")
def tiny_model():
    return make_model()


@pytest.fixture
def colour_task(tmp_path: Path) -> Path:
    """A multiple-choice task YAML with its data beside it, referred to by a relative path."""
    rows = [{"q": f"Is item {i} red or blue?", "options": ["red", "blue"], "right": i % 2} for i in range(10)]
    jsonl(tmp_path / "colours.jsonl", rows)
    path = tmp_path / "colour_task.yaml"
    path.write_text(
        "task: colour_task\n"
        "dataset_path: json\n"
        "dataset_kwargs:\n  data_files:\n    test: colours.jsonl\n"
        "test_split: test\n"
        "output_type: multiple_choice\n"
        'doc_to_text: "Question: {{q}}\\nAnswer:"\n'
        "doc_to_choice: options\n"
        "doc_to_target: right\n"
        "metric_list:\n  - metric: acc\n    aggregation: mean\n    higher_is_better: true\n"
    )
    return path
