"""What the reference runs on: models of a few thousand weights, data files and YAML files, all relative to the working
directory.

It stands on its own: a helper shared with other tests could change, and every recorded figure with it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "A list is a mutable sequence of objects in Python.",
    "Question: what is two plus two? Answer: four.",
    "The with statement wraps the execution of a block with a context manager.",
    "Names refer to objects; assignment binds a name to an object.",
    "def add(a, b):\n    return a + b\n",
]
WORDS = [
    "river",
    "stone",
    "garden",
    "winter",
    "letter",
    "music",
    "table",
    "window",
    "morning",
    "paper",
    "silver",
    "forest",
]
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
TASK = """\
task: colours
dataset_path: json
dataset_kwargs: {data_files: {test: colours.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "Question: {{q}}\\nAnswer:"
doc_to_choice: options
doc_to_target: right
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
  - {metric: acc_norm, aggregation: mean, higher_is_better: true}
"""

EVALUATION = {
    "keep": [{"perplexity": "prose.jsonl", "window": 64}],
    "learn": [{"perplexity": "code.jsonl", "window": 64}],
}
TRAIN: dict[str, Any] = {
    "model_name_or_path": "base",
    "dataset_name": "train.jsonl",
    "max_steps": 6,
    "per_device_train_batch_size": 4,
    "max_length": 64,
    "learning_rate": 3e-3,
    "logging_steps": 1,
    "save_steps": 4,
    "use_cpu": True,
    "report_to": "none",
    "evaluation": EVALUATION,
}
SUITE: dict[str, Any] = {
    "description": "everything that can be measured",
    "keep": [
        "prose.jsonl",
        {"task": "colours.yaml"},
        {"answer_distribution": "letters.yaml"},
        {"multiple_choice": "choices.jsonl"},
    ],
    "learn": [
        {"classification": "reviews.jsonl", "prompt": "{text} is", "options": [" the", " a list"]},
        {"memorisation": "prose.jsonl"},
        {"instructions": "instructions.jsonl", "max_new_tokens": 8},
    ],
    "averages": {"both": ["colours/acc", "colours/acc_norm", "letters-answers/acc"]},
}
SWEEP: dict[str, Any] = {
    "name": "small",
    "train": TRAIN,
    "arms": [{"label_annealing": {"weight": [0.5, 2]}}, {"l2": {"coefficient": [0.1]}}],
    "seeds": [0, 1],
    "output_dir": "study",
}
CONTINUED: dict[str, Any] = {
    "learning_rate": 1e-3,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 1,
    "bf16": False,
    "use_cpu": True,
    "save_strategy": "no",
    "gradient_checkpointing": False,
    "logging_steps": 1,
}
OLD = {"keep": [{"perplexity": "old.jsonl", "name": "old", "window": 64}]}
UPDATE: dict[str, Any] = {
    "base": "base",
    "instruct": "instruct",
    "corpus": "news.jsonl",
    "held_out": 0.2,
    "window": 64,
    "train": CONTINUED,
    "evaluation": OLD,
    "continued_instruct": True,
    "output_dir": "updated",
}
RESIDUAL_STUDY: dict[str, Any] = {
    "families": {"a": {"base": "base", "instruct": "instruct"}, "b": {"base": "base-b", "instruct": "instruct-b"}},
    "corpus": ["news.jsonl"],
    "budgets": [300, 600],
    "held_out": 0.2,
    "window": 64,
    "train": CONTINUED,
    "evaluation": OLD,
    "derived": {"child": "math"},
    "scales": [0.5, 1],
    "output_dir": "residuals",
}
MERGE: dict[str, Any] = {
    "method": "ties",
    "base": "base",
    "models": ["math", "code"],
    "density": 0.3,
    "output_dir": "merged/yaml",
}
YAMLS = {"train": TRAIN, "suite": SUITE, "sweep": SWEEP, "update": UPDATE, "residuals": RESIDUAL_STUDY, "merge": MERGE}


def write_yaml(path: str, value: Any) -> None:
    """A YAML file; JSON is YAML."""
    Path(path).write_text(json.dumps(value))


def write_rows(path: str, rows: list[dict[str, Any]]) -> None:
    """One JSON object a line."""
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_all() -> None:
    """Models, data and requests, into the working directory."""
    write_data()
    write_models()
    for name, value in YAMLS.items():
        write_yaml(f"{name}.yaml", value)


def write_data() -> None:
    """The files that models learn from and are measured on."""
    for name, times in {"train": 8, "prose": 3, "code": 4, "old": 2}.items():
        write_rows(
            f"{name}.jsonl", [{"text": f"{sentence} {name} {i}"} for i, sentence in enumerate(SENTENCES * times)]
        )
    news = []
    for n in range(60):
        words = " ".join(WORDS[(n * k + k * k) % len(WORDS)] for k in range(1, 12))
        text = f"News {n}. The {words}. {SENTENCES[n % len(SENTENCES)]}"
        news.append({"text": text, "date": f"2024-{1 + n % 12:02d}-{1 + n % 28:02d}", "title": f"News {n}"})
    write_rows("news.jsonl", news)
    write_rows("reviews.jsonl", [{"text": f"Answer {i}: four", "label": i % 2} for i in range(12)])
    options = ["red", "a context manager"]
    write_rows(
        "colours.jsonl",
        [{"q": f"Is item {i} red or a context manager?", "options": options, "right": i % 2} for i in range(12)],
    )
    write_rows(
        "choices.jsonl",
        [{"prompt": f"Item {i} is", "options": [" red", " a list"], "answer": i % 2} for i in range(12)],
    )
    write_rows(
        "instructions.jsonl",
        [{"prompt": s, "instruction_id_list": ["plain:capitals"], "kwargs": [{}]} for s in SENTENCES],
    )
    write_rows(
        "chat.jsonl",
        [{"messages": [{"role": "user", "content": s}, {"role": "assistant", "content": "yes"}]} for s in SENTENCES],
    )
    write_rows(
        "tuned-answers.jsonl", [{"instruction": f"Say {i}.", "output": f"{i}" + "!" * (i % 4)} for i in range(10)]
    )
    write_rows("base-answers.jsonl", [{"prompt": f"Say {i}.", "answer": f"{i}!"} for i in range(10)])
    Path("colours.yaml").write_text(TASK)
    Path("letters.yaml").write_text(
        TASK.replace("task: colours", "task: letters").replace("doc_to_choice: options", 'doc_to_choice: ["A", "B"]')
    )


def write_models() -> None:
    """base and what was tuned from it (instruct, math, code), a second pair, and a LoRA adapter."""
    import torch
    from safetensors.torch import save_file
    from tokenizers import ByteLevelBPETokenizer
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(
        SENTENCES * 4, vocab_size=320, special_tokens=["<|endoftext|>", "<|pad|>"], show_progress=False
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe._tokenizer, eos_token="<|endoftext|>", pad_token="<|pad|>")
    config = LlamaConfig(
        vocab_size=320,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        eos_token_id=0,
        pad_token_id=1,
        bos_token_id=None,
    )
    for number, (name, seed, moved) in enumerate(
        [
            ("base", 0, 0),
            ("instruct", 0, 2e-3),
            ("math", 0, 1e-2),
            ("code", 0, 1e-2),
            ("base-b", 0, 1e-3),
            ("instruct-b", 0, 3e-3),
        ]
    ):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
        torch.manual_seed(100 + number)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=moved)
        model.save_pretrained(name)
        tokenizer.chat_template = TEMPLATE if name.startswith("instruct") else None
        tokenizer.save_pretrained(name)
    prefix = "base_model.model.model.layers.0.self_attn.q_proj"
    Path("adapter").mkdir()
    tensors = {f"{prefix}.lora_A.weight": torch.randn(4, 32) / 10, f"{prefix}.lora_B.weight": torch.randn(32, 4) / 10}
    save_file(tensors, "adapter/adapter_model.safetensors", metadata={"format": "pt"})
    adapter = {
        "peft_type": "LORA",
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["q_proj"],
        "layers_to_transform": [0],
        "base_model_name_or_path": "base",
        "bias": "none",
    }
    Path("adapter/adapter_config.json").write_text(json.dumps(adapter))
