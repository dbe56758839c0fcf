"""The recipes of public data sets: each is a sound request, and its template reads a row as published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest
import yaml

from holdfast.data.formats import standardise
from holdfast.data.layouts import Templates
from holdfast.runs.config import train_config
from tiny import build_tokenizer

RECIPES = Path(__file__).parents[1] / "configs" / "data"
TURNS = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]
EXPECTED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "alpaca": (
        {"instruction": "Add.", "input": "1 and 2", "output": "3", "text": "Below is an instruction. 3"},
        {
            "prompt": [{"role": "user", "content": "Add.\n\n1 and 2"}],
            "completion": [{"role": "assistant", "content": "3"}],
        },
    ),
    "hh": ({"chosen": "\n\nHuman: a\n\nAssistant: b", "rejected": "c"}, {"text": "\n\nHuman: a\n\nAssistant: b"}),
    "magicoder": ({"instruction": "Write f.", "response": "f"}, {"prompt": "Write f.\n\n", "completion": "f"}),
    "metamath": (
        {"query": "1 + 1?", "response": "2", "type": "GSM_Rephrased", "original_question": "q"},
        {"prompt": "1 + 1?\n\n", "completion": "2"},
    ),
    "self_oss_instruct": (
        {"prompt": "for the writer", "instruction": "Write f.", "response": "f", "seed": "s"},
        {"prompt": "Write f.\n\n", "completion": "f"},
    ),
    "stackmathqa": (
        {"Q": "Is $1$ prime?", "A": "No.", "meta": {"url": "u"}},
        {"prompt": "Is $1$ prime?\n\n", "completion": "No."},
    ),
    "tulu": ({"dataset": "d", "id": "1", "messages": TURNS}, {"messages": TURNS}),
    "ultrachat": ({"prompt": "Why?", "prompt_id": "1", "messages": TURNS}, {"messages": TURNS}),
}
"""Recipe: a row as published, and what is trained on."""


def test_the_recipes_are_these():
    assert {path.stem for path in RECIPES.glob("*.yaml")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_recipe_reads_a_row_of_its_data_set(name):
    path = RECIPES / f"{name}.yaml"
    text = path.read_text(encoding="utf-8")
    values = yaml.safe_load(text)
    assert train_config(values).training.output_dir == f"runs/{name}"
    assert f"holdfast train --config configs/data/{name}.yaml" in text
    row, expected = EXPECTED[name]
    tokenizer = build_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    templates = Templates(**values["data"]) if "data" in values else None
    rows, _ = standardise(datasets.Dataset.from_list([row]), tokenizer, templates=templates)
    assert {column: rows[0][column] for column in expected} == expected
