"""Requests that are sound and requests that are not, for every command that reads settings.

A case is a name, the words, the text of `asked.yaml` (None: there is none) and what the message should name. A change
is the path of a key and its value over a sound request; `DELETED` takes a key away.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import material

Case = tuple[str, list[str], str | None, list[str]]
DELETED = object()

COMMANDS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "train": (["train", "--config", "asked.yaml", "--dry_run", "--quick"], {**material.TRAIN, "output_dir": "asked"}),
    "suite": (["evaluate", "base", "--suite", "asked.yaml", "--dry_run"], material.SUITE),
    "sweep": (["sweep", "--config", "asked.yaml", "--dry_run"], {**material.SWEEP, "output_dir": "asked"}),
    "update": (["update", "--config", "asked.yaml", "--dry_run"], {**material.UPDATE, "output_dir": "asked"}),
    "residual": (
        ["study", "run", "--config", "asked.yaml", "--dry_run"],
        {**material.RESIDUAL_STUDY, "output_dir": "asked"},
    ),
    "merge": (["merge", "--config", "asked.yaml", "--dry_run"], {**material.MERGE, "output_dir": "asked"}),
    "evaluate": (
        ["evaluate", "--config", "asked.yaml", "--dry_run"],
        {"model": ["base"], "perplexity": ["prose.jsonl"], "limit": 3, "output_dir": "asked"},
    ),
    "compare": (["compare", "--config", "asked.yaml"], {"models": ["measured:base", "measured:math"]}),
    "world": (["reproduce", "--world", "--quick", "--config", "asked.yaml"], {"output_dir": "world", "workers": 1}),
    "apply": (
        ["residual", "apply", "--config", "asked.yaml", "--dry_run"],
        {"instruct": "instruct", "old_base": "base", "base": "math", "output_dir": "asked"},
    ),
    "prepare": (
        ["data", "prepare", "--config", "asked.yaml"],
        {"input": ["news.jsonl"], "output": "asked.jsonl"},
    ),
}
"""Name: the words and a request that is sound."""

SOUND: dict[str, list[dict[str, Any]]] = {
    "train": [
        {},
        {"retention": "none"},
        {"retention": "l2"},
        {"retention": {"sfa": {"p": 0.5}}},
        {
            "retention": [
                {"label_annealing": {"weight": "1e-1", "temperature": 2}},
                {"replay": {"data": "old.jsonl", "fraction": 0.1}},
            ]
        },
        {"retention": [{"sfa": {"every": 3.0}}]},
        {"retention": [{"l2": {"decoupled": "TRUE"}}]},
        {"learning_rate": "1e-5", "max_steps": "3", "packing": "true"},
        {"data": {"text": "{text}!"}, "env": {"SOMETHING": "1"}},
        {"data": {"prompt": "{text}", "completion": " {text}"}},
        {"evaluation.batch_size": 4, "evaluation.seed": 1, "evaluation.confidence": 0.9, "evaluation.before": False},
        {"use_peft": True, "lora_r": 4, "lora_target_modules": ["q_proj"]},
        {"learning-rate": 1e-4},
    ],
    "suite": [
        {},
        {
            "keep": [
                {
                    "perplexity": "prose.jsonl",
                    "name": "a",
                    "window": 32,
                    "stride": 16,
                    "max_documents": 2,
                    "text": "{text}",
                }
            ],
            "averages": DELETED,
        },
        {
            "keep": [{"task": "colours.yaml", "name": "b", "num_fewshot": 0, "limit": 2, "apply_chat_template": False}],
            "averages": DELETED,
        },
        {
            "keep": [{"multiple_choice": "choices.jsonl", "name": "c", "length_normalised": True, "max_documents": 2}],
            "averages": DELETED,
        },
        {"third": ["code.jsonl"], "batch_size": 2, "seed": 3, "limit": 2, "skip": ["reviews"]},
    ],
    "sweep": [
        {},
        {
            "vary.learning_rate": [1e-3, 3e-3],
            "objectives": {"learn": "code", "keep": "prose"},
            "keep_weights": "none",
            "workers": 1,
        },
        {"arms": [{"l2": {"coefficient": {"log": [0.01, 1], "points": 3}}}], "select": {"rule": "knee"}},
        {"search": {"sampler": "random", "trials": 3, "seed": 1}},
        {"select": {"rule": "keep_within", "points": 0.1, "strict": True}, "teacher": "online"},
        {"train": "train.yaml"},
    ],
    "update": [
        {},
        {"tokens": "1k", "scale": 0.5, "seed": 3, "epochs": 2, "keep_weights": "result"},
        {
            "after": "2024-02-01",
            "before": "2024-11-30",
            "undated": "drop",
            "minimum_characters": 5,
            "titles": True,
        },
        {
            "text_column": "text",
            "date_column": "date",
            "continued_instruct": False,
        },
    ],
    "residual": [
        {},
        {
            "seeds": [0, 1],
            "starts": ["base"],
            "siblings": False,
            "residuals": True,
            "continued": ["b"],
            "workers": 1,
            "keep_weights": "none",
        },
    ],
    "merge": [
        {},
        {"models": [{"model": "math", "weight": 0.6}, {"model": "code", "weight": 0.4}], "dtype": "bfloat16"},
        {"method": "dare", "p": 0.5, "density": DELETED},
    ],
    "evaluate": [{}, {"limit": "3", "batch_size": 2, "confidence": 0.9, "seed": 1, "dtype": "float32"}],
    "compare": [
        {},
        {"fail_if": ["colours drop > 90pt"], "confidence": 0.9, "resamples": 500, "seed": 1, "metrics": "all"},
        {"fail_if": "prose drop > -100%"},
    ],
    "world": [{}],
    "apply": [{}, {"scale": 0.5, "vocabulary": "keep", "dtype": "float16"}],
    "prepare": [{}],
}

REFUSED: dict[str, list[tuple[dict[str, Any], list[str]]]] = {
    "train": [
        ({"learning_rat": 1}, ["learning_rat", "learning_rate"]),
        ({"learning_rate": "much"}, ["learning_rate", "much"]),
        ({"max_steps": 1.5}, ["max_steps"]),
        ({"packing": 3}, ["packing"]),
        ({"packing_strategy": "tight"}, ["packing_strategy", "tight"]),
        ({"model_name_or_path": DELETED}, ["model_name_or_path"]),
        ({"model_name_or_path": "nowhere"}, ["nowhere"]),
        ({"dataset_name": "nowhere.jsonl"}, ["nowhere.jsonl"]),
        ({"lr": 3}, ["lr", "learning_rate"]),
        ({"retention": "l3"}, ["l3", "l2"]),
        ({"retention": [{"l2": {"coeficient": 1}}]}, ["coeficient", "coefficient"]),
        ({"retention": [{"l2": {"coefficient": -1}}]}, ["coefficient"]),
        ({"retention": [{"l2": {"coefficient": "a"}}]}, ["coefficient"]),
        ({"retention": [{"label_annealing": {"temperature": 0}}]}, ["temperature"]),
        ({"retention": [{"label_annealing": {"direction": "sideways"}}]}, ["direction", "sideways"]),
        ({"retention": [{"sfa": {"p": 2}}]}, ["p"]),
        ({"retention": [{"sfa": {"every": 2.5}}]}, ["every"]),
        ({"retention": [{"ema": {"decay": 2}}]}, ["decay"]),
        ({"retention": ["replay"]}, ["data"]),
        ({"retention": ["ema", "sfa"]}, []),
        ({"retention": [{"budget": {"kl": 0.1}}]}, ["budget"]),
        ({"data": {"prompt": "{text}"}}, ["completion"]),
        ({"data": {"txt": "{text}"}}, ["txt"]),
        ({"evaluation.sauce": 3}, ["sauce"]),
        ({"evaluation.seed": 7.0}, ["seed"]),
        ({"evaluation.batch_size": 0}, ["batch_size"]),
        ({"evaluation.confidence": 1}, ["confidence"]),
        ({"evaluation.before": "TRUE"}, ["before"]),
        ({"evaluation.keep": ["nowhere.jsonl"]}, ["nowhere.jsonl"]),
        ({"evaluation.keep": [{"perplexity": "prose.jsonl", "windw": 3}]}, ["windw", "window"]),
        ({"learning_rat": 1, "retention": "l3", "evaluation.sauce": 3}, ["learning_rat", "l3", "sauce"]),
    ],
    "suite": [
        ({"keep": [{"task": "nowhere.yaml"}]}, ["nowhere.yaml"]),
        ({"keep": [{"multiple_choice": "choices.jsonl", "groop": "a"}]}, ["groop", "group"]),
        ({"keep": [{"multiple_choice": "choices.jsonl", "length_normalised": "yes"}]}, ["length_normalised"]),
        ({"learn": [{"classification": "reviews.jsonl", "prompt": "text", "options": [" a"]}]}, ["prompt", "options"]),
        ({"averages": {"both": ["nothing/acc"]}}, ["nothing"]),
        ({"batch_sise": 3}, ["batch_sise", "batch_size"]),
        ({"keep": "prose.jsonl"}, ["keep"]),
    ],
    "sweep": [
        ({"train": DELETED}, ["train"]),
        ({"arms": DELETED, "vary": DELETED}, ["arms"]),
        ({"vari": {}}, ["vari", "vary"]),
        ({"vary.learning_rat": [1]}, ["learning_rat"]),
        ({"train.max_step": 3}, ["max_step", "max_steps"]),
        ({"seeds": [1, 1]}, ["seeds"]),
        ({"seeds": "many"}, ["seeds"]),
        ({"search": {"sampler": "annealed"}}, ["annealed"]),
        ({"search": {"sampler": "random"}}, ["trials"]),
        ({"select": {"rule": "kne"}}, ["kne", "knee"]),
        ({"select": {"rule": "paper", "poins": 1}}, ["poins", "points"]),
        ({"keep_weights": "some"}, ["keep_weights", "some"]),
        ({"workers": -1}, ["workers"]),
        ({"objectives": {"learn": "nothing"}}, ["nothing"]),
        ({"arms": [{"l2": {"coeficient": [1]}}]}, ["coeficient"]),
    ],
    "update": [
        ({"base": DELETED}, ["base"]),
        ({"instruct": "nowhere"}, ["nowhere"]),
        ({"corpus": "nowhere.jsonl"}, ["nowhere.jsonl"]),
        ({"tokns": "1k"}, ["tokns", "tokens"]),
        ({"tokens": "some"}, ["tokens", "some"]),
        ({"held_out": 2}, ["held_out"]),
        ({"window": 1.5}, ["window"]),
        ({"after": "yesterday"}, ["after", "yesterday"]),
        ({"keep": "some"}, ["keep", "some"]),
        ({"train.learning_rat": 1}, ["learning_rat"]),
        ({"evaluation": "nothing"}, ["evaluation"]),
        ({"near_duplicates": 0.8}, ["near_duplicates"]),
    ],
    "residual": [
        ({"families": DELETED}, ["families"]),
        ({"families.a": {"base": "base"}}, ["instruct"]),
        ({"budgts": [1]}, ["budgts", "budgets"]),
        ({"budgets": ["few"]}, ["budgets", "few"]),
        ({"continued": ["c"]}, ["continued", "c"]),
        ({"starts": ["middle"]}, ["starts", "middle"]),
        ({"toy": "city"}, ["toy", "city"]),
        ({"toy": "world", "families": DELETED, "world": {"peple": 3}}, ["peple", "people"]),
    ],
    "merge": [
        ({"method": "tise"}, ["tise", "ties"]),
        ({"density": 2}, ["density"]),
        ({"densty": 0.3}, ["densty", "density"]),
        ({"base": DELETED}, ["base"]),
        ({"models": ["math", "nowhere"]}, ["nowhere"]),
        ({"weights": [1]}, ["weights"]),
        ({"output_dir": DELETED}, ["output_dir"]),
        ({"vocabulary": "shrink"}, ["vocabulary", "shrink"]),
    ],
    "evaluate": [
        ({"limit": "few"}, ["limit", "few"]),
        ({"sweet": 1}, ["sweet"]),
        ({"perplexity": DELETED}, []),
        ({"model": ["nowhere"]}, ["nowhere"]),
    ],
    "compare": [
        ({"fail_if": "colours drop"}, ["fail_if"]),
        ({"confidence": 2}, ["confidence"]),
        ({"metrics": "some"}, ["metrics"]),
        ({"strickt": True}, ["strict"]),
    ],
    "world": [({"people": "many"}, ["people"]), ({"layers": 0}, ["layers"]), ({"peple": 3}, ["people"])],
    "apply": [
        ({"old_base": DELETED}, ["old_base"]),
        ({"scale": "a"}, ["scale"]),
        ({"tokenizer": "mine"}, ["tokenizer", "mine"]),
    ],
    "prepare": [
        ({"heldout": 2}, ["heldout"]),
        ({"input": ["nowhere"]}, ["nowhere"]),
    ],
}
"""What is changed, and what the message should name. A few are accepted at present, or before a model is loaded."""

TWICE: dict[str, tuple[str, Any]] = {
    "train": ("max_steps", 3),
    "sweep": ("seeds", [3]),
    "update": ("tokens", "1k"),
    "residual": ("window", 32),
    "merge": ("density", 0.2),
    "suite": ("description", "again"),
    "evaluate": ("limit", 2),
}
"""A key that stands twice in the YAML."""

WORDS: list[tuple[list[str], list[str]]] = [
    *(([name], []) for name in ("train", "evaluate", "compare", "sweep", "reproduce", "report", "update", "merge")),
    *(([name], []) for name in ("residual", "fisher", "inspect", "data")),
    ([], []),
    (["--version"], []),
    (["trian"], ["trian", "train"]),
    (["train", "--config", "nowhere.yaml"], ["nowhere.yaml"]),
    (["train", "--learning_rte", "1"], ["learning_rte", "learning_rate"]),
    (["train", "--config", "train.yaml", "--max-steps", "3", "--dry-run"], []),
    (["train", "--config", "train.yaml", "--max_steps", "many", "--dry_run"], ["max_steps", "many"]),
    (["train", "--config", "train.yaml", "--retention", "l2:coeficient=1", "--dry_run"], ["coeficient"]),
    (["evaluate", "base", "--suite", "knowlege", "--dry_run"], ["knowlege", "knowledge"]),
    (["evaluate", "base", "--tasks", "nothing_of_this_name", "--dry_run"], ["nothing_of_this_name"]),
    (["compare", "nowhere", "elsewhere"], ["nowhere"]),
    (["compare", "measured:nobody", "measured:base"], ["nobody"]),
    (["sweep", "wroker"], ["wroker", "worker"]),
    (["sweep", "--config", "sweep.yaml", "--workers", "two"], ["workers", "two"]),
    (["sweep", "status", "nowhere"], ["nowhere"]),
    (["sweep", "report", "nowhere"], ["nowhere"]),
    (["sweep", "worker"], ["storage"]),
    (["report", "nowhere"], ["nowhere"]),
    (["reproduce", "label-anealing"], ["label-annealing"]),
    (["reproduce", "residual", "--recipes", "math"], ["recipes"]),
    (["reproduce", "residual", "--theory"], ["theory"]),
    (["study", "rnu"], ["rnu", "run"]),
    (["merge", "math", "--method", "wise_ft", "--output_dir", "asked"], ["base"]),
    (["inspect", "base", "nowhere"], ["nowhere"]),
    (["inspect", "base", "math", "--per", "row"], ["per", "row"]),
    (["inspect", "nowhere"], ["nowhere"]),
    (["fisher", "base", "--samples", "0", "--data", "old.jsonl"], ["samples"]),
    (
        ["data", "prepare", "--input", "news.jsonl", "--output", "asked.jsonl", "--after", "soon"],
        ["after", "soon"],
    ),
    (["quickstart", "--workers", "0"], ["workers"]),
]


def cases() -> Iterator[Case]:
    """All of them."""
    for words, wanted in WORDS:
        yield f"words: {' '.join(words)}", words, None, wanted
    for name, (words, sound) in COMMANDS.items():
        for change in SOUND[name]:
            yield f"{name}: {_shown(change)}", words, json.dumps(_changed(sound, change)), []
        for change, wanted in REFUSED[name]:
            yield f"{name}: {_shown(change)}", words, json.dumps(_changed(sound, change)), wanted
        if name in TWICE:
            key, value = TWICE[name]
            lines = [json.dumps(k) + ": " + json.dumps(v) for k, v in {**sound, key: value}.items()]
            yield f"{name}, twice: {key}", words, "\n".join([*lines, f"{key}: {json.dumps(value)}"]), [key]
        yield f"{name}, no mapping", words, "[1, 2]", []
        yield f"{name}, no YAML", words, "{a: [", []


def _changed(sound: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    found = copy.deepcopy(sound)
    for path, value in change.items():
        *above, key = path.split(".")
        place = found
        for name in above:
            place = place[name]
        if value is DELETED:
            place.pop(key)
        else:
            place[key] = value
    return found


def _shown(change: dict[str, Any]) -> str:
    return json.dumps({k: "(none)" if v is DELETED else v for k, v in change.items()}).replace('"', "")
