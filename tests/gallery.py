"""One small example of everything that holdfast makes, by its commands; and what of it has to stay, read from the files
on disk."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import commandline
import figures
import material

METHODS: dict[str, list[str]] = {
    "direct": ["--retention", "none"],
    "label_annealing": ["--retention", "label_annealing:weight=1.0,temperature=2"],
    "label_annealing-reverse": ["--retention", "label_annealing:weight=1.0,direction=reverse"],
    "label_annealing-cached": ["--retention", "label_annealing:weight=1.0,teacher=cached"],
    "l2": ["--retention", "l2:coefficient=0.1"],
    "l2-decoupled": ["--retention", "l2:coefficient=0.1,decoupled=true"],
    "ewc": ["--retention", "ewc:data=old.jsonl,samples=8"],
    "sfa": ["--retention", "sfa:p=0.5"],
    "wise_ft": ["--retention", "wise_ft:alpha=0.5"],
    "ema": ["--retention", "ema:decay=0.9"],
    "replay": ["--retention", "replay:data=old.jsonl,fraction=0.3"],
    "multitask": ["--retention", "multitask:data=old.jsonl"],
    "budget": ["--retention", "budget:kl=0.01", "--retention", "label_annealing"],
    "two-methods": ["--retention", "label_annealing:weight=0.5", "--retention", "sfa:every=3"],
    "lora": [
        "--retention",
        "label_annealing:weight=1.0",
        "--use_peft",
        "--lora_r",
        "4",
        "--lora_target_modules",
        "q_proj",
        "v_proj",
    ],
    "packed": ["--retention", "label_annealing:weight=1.0", "--packing", "--packing_strategy", "wrapped"],
    "chat": ["--model_name_or_path", "instruct", "--dataset_name", "chat.jsonl", "--assistant_only_loss", "false"],
}
"""Run: its options over train.yaml."""

MERGES: dict[str, list[str]] = {
    "linear": ["math", "code", "--weights", "0.6", "0.4"],
    "wise_ft": ["math", "--base", "base", "--alpha", "0.3"],
    "slerp": ["math", "code", "--t", "0.4"],
    "task_arithmetic": ["math", "code", "--base", "base", "--scale", "0.7"],
    "ties": ["math", "code", "--base", "base", "--density", "0.3"],
    "dare": ["math", "code", "--base", "base", "--p", "0.5", "--seed", "3"],
    "dare_ties": ["math", "code", "--base", "base", "--p", "0.5"],
    "fisher": ["math", "code", "--fisher", "math-fisher", "code-fisher"],
}
"""Method: its words."""

MEASURED = ["measured:base", "measured:math"]
WITHIN = ["--workers", "1"]
STEPS: list[tuple[str, list[str]]] = [
    *(
        (f"train-{name}", ["train", "--config", "train.yaml", "--output_dir", f"runs/{name}", *words])
        for name, words in METHODS.items()
    ),
    ("report-run", ["report", "runs/label_annealing"]),
    ("evaluate", ["evaluate", "base", "math", "code", "--suite", "suite.yaml", "--output_dir", "measured"]),
    ("report-evaluation", ["report", "measured"]),
    ("compare-one", ["compare", "runs/direct"]),
    (
        "compare-two",
        ["compare", "runs/direct", "runs/label_annealing", "--metrics", "all", "--output_dir", "compared/runs"],
    ),
    (
        "compare-measured",
        [
            "compare",
            *MEASURED,
            "--output_dir",
            "compared/measured",
            "--fail_if",
            "colours drop > 90pt",
            "--confidence",
            "0.9",
        ],
    ),
    ("compare-failed", ["compare", *MEASURED, "--fail_if", "prose nats_per_token rise > -1000%", "--strict"]),
    (
        "compare-stages",
        [
            "compare",
            *MEASURED,
            "measured:code",
            "--stages",
            "math=colours",
            "code=choices",
            "--json",
            "compared/stages.json",
        ],
    ),
    ("sweep", ["sweep", "--config", "sweep.yaml", *WITHIN]),
    ("sweep-status", ["sweep", "status", "study"]),
    ("sweep-knee", ["sweep", "report", "study", "--rule", "knee"]),
    ("sweep-within", ["sweep", "report", "study", "--rule", "target_within", "--points", "0.5"]),
    ("sweep-report", ["sweep", "report", "study"]),
    ("update", ["update", "--config", "update.yaml"]),
    ("update-again", ["update", "--config", "update.yaml"]),
    ("residual-study", ["residual", "study", "--config", "residuals.yaml", *WITHIN]),
    ("residual-study-again", ["residual", "study", "--config", "residuals.yaml", *WITHIN]),
    (
        "residual-extract",
        ["residual", "extract", "--instruct", "instruct", "--base", "base", "--output_dir", "residual", *WITHIN],
    ),
    (
        "residual-apply",
        [
            "residual",
            "apply",
            "--residual",
            "residual",
            "--base",
            "math",
            "--scale",
            "0.5",
            "--output_dir",
            "applied",
            *WITHIN,
        ],
    ),
    *((f"fisher-{name}", ["fisher", name, "--data", "old.jsonl", "--samples", "8"]) for name in ("math", "code")),
    *(
        (f"merge-{n}", ["merge", *words, "--method", n, "--output_dir", f"merged/{n}", "--json", *WITHIN])
        for n, words in MERGES.items()
    ),
    ("merge-yaml", ["merge", "--config", "merge.yaml", *WITHIN]),
    (
        "merge-adapter",
        [
            "merge",
            "adapter",
            "code",
            "--base",
            "base",
            "--method",
            "task_arithmetic",
            "--output_dir",
            "merged/adapter",
            "--dtype",
            "bfloat16",
            *WITHIN,
        ],
    ),
    ("probe-write", ["probe", "base", "--noise", "0.5", "--noise_seed", "1", "--write", "perturbed"]),
    ("inspect", ["inspect", "merged/ties", "--verify"]),
    ("inspect-two", ["inspect", "base", "math", "--per", "tensor", "--plot", "distances/page.html", *WITHIN]),
    ("theory", ["reproduce", "label-annealing", "--theory", "--quick"]),
    (
        "corpus",
        [
            "data",
            "prepare",
            "--input",
            "news.jsonl",
            "--after",
            "2024-03-01",
            "--output",
            "prepared/news.jsonl",
        ],
    ),
    ("world", ["reproduce", "--world", "--output_dir", "world", "--quick", *WITHIN]),
]
"""Name: the command's words. In this order, in one working directory."""
MADE = ("train-direct", "train-label_annealing", "evaluate", "sweep", "update", "residual-study", "merge-ties")
"""Steps whose finished work the tests' fixture `gallery` offers."""
SHOW = re.compile(r"report.*|compare.*|sweep-.*|.*-again|inspect.*|cost.*|theory")
"""Steps whose printed figures are recorded; the others print progress, which depends on the machine."""

REPRODUCTIONS: list[tuple[str, list[str]]] = [
    (f"reproduce-{paper}", ["reproduce", paper, "--quick", *WITHIN, "--output_dir", f"reproduced/{paper}"])
    for paper in ("label-annealing", "residual")
]


def make(folder: Path, steps: Iterable[tuple[str, list[str]]] = STEPS) -> dict[str, Any]:
    """Runs the steps in a folder that has the material; for each the exit code, and of those in `SHOW` the figures that
    they printed.

    Raises:
        RuntimeError: a step ended with another code than 0 or 3 (a rule failed). Of `reproduce` the code is recorded,
        whatever it is.
    """
    printed = {}
    for name, words in steps:
        began = time.monotonic()
        outcome = commandline.holdfast(words, folder)
        print(f"  {name}: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
        if outcome.code not in (0, 3) and not name.startswith("reproduce-"):
            raise RuntimeError(f"holdfast {' '.join(words)} ended with {outcome.code}:\n{outcome.err[-3000:]}")
        printed[name] = {"code": outcome.code, "figures": figures.of_text(outcome.out) if SHOW.fullmatch(name) else {}}
    return printed


# ----------------------------------------------------------------------------------------------------- what has to stay

_ASIDE = re.compile(
    r"(config|generation_config|tokenizer.*|special_tokens_map|trainer_state|adapter_config"
    r"|.*\.safetensors\.index)\.json"
)
"""Files of other packages."""
_VARYING = re.compile(
    r"(.*_)?(seconds|created|finished|started|updated|began|ended|time|times|date_made|versions|libraries|hardware|host"
    r"|pid|machine|holdfast|runtime)"
    r"|.*(_per_second|_seconds|_memory|memory_gb|_ns|_at|_bytes_per_s)|peak(_.*)?|memory|seconds_.*|speed|worker|processor"
    r"|threads|cores|overhead"
)
"""Keys whose values differ between two equal runs, or between versions and machines."""
_HEX = re.compile(r"(?<![0-9a-zA-Z])(?=[0-9a-f]*[0-9])[0-9a-f]{10,64}(?![0-9a-zA-Z])")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[\d.]*(Z|[+-]\d\d:\d\d)?")


def outputs(folder: Path, pattern: str) -> list[Path]:
    """Files that commands wrote, in order; the material, the cache and hidden files are none."""
    given = {"base", "instruct", "math", "code", "base-b", "instruct-b", "adapter", "cache"}
    found = (p.relative_to(folder) for p in folder.rglob(pattern) if p.is_file())
    least = 1 if pattern == "*.json" else 2
    return sorted(
        p
        for p in found
        if p.parts[0] not in given and len(p.parts) >= least and not any(part.startswith(".") for part in p.parts)
    )


def normalised(value: Any, root: str) -> Any:
    """A JSON value without what differs from run to run (of a run's stages their names are left); the working directory
    becomes `WORK`."""
    if isinstance(value, dict):
        kept = {
            k: list(v) if k == "stages" and isinstance(v, dict) else v
            for k, v in value.items()
            if not _VARYING.fullmatch(k)
        }
        return {normalised(k, root): normalised(v, root) for k, v in kept.items()}
    if isinstance(value, list):
        return [normalised(v, root) for v in value]
    if isinstance(value, str):
        return _TIME.sub("TIME", value.replace(root, "WORK"))
    return value


def without_hashes(value: Any) -> Any:
    """The value with every long hexadecimal number as `HEX`: fingerprints are compared in a part of their own."""
    if isinstance(value, dict):
        return {_HEX.sub("HEX", k): without_hashes(v) for k, v in value.items()}
    if isinstance(value, list):
        return [without_hashes(v) for v in value]
    return _HEX.sub("HEX", value) if isinstance(value, str) else value


def hashes(value: Any, path: str = "") -> dict[str, str]:
    """Every text of a JSON value that holds a fingerprint, by where it stands."""
    if isinstance(value, dict):
        return {p: t for k, v in value.items() for p, t in hashes(v, f"{path}.{k}" if path else k).items()}
    if isinstance(value, list):
        return {p: t for i, v in enumerate(value) for p, t in hashes(v, f"{path}.{i}").items()}
    return {path: value} if isinstance(value, str) and _HEX.search(value) else {}


def read_records(folder: Path) -> dict[str, Any]:
    """Every JSON file that a command wrote, normalised; of rows the logged metrics, and of others a hash."""
    found: dict[str, Any] = {}
    for path in outputs(folder, "*.json"):
        if not _ASIDE.fullmatch(path.name):
            found[str(path)] = normalised(json.loads((folder / path).read_text()), str(folder))
    for path in outputs(folder, "*.jsonl"):
        rows = [normalised(json.loads(line), str(folder)) for line in (folder / path).read_text().splitlines()]
        whole = path.name == "metrics.jsonl" and path.parts[0] == "runs"
        digest = hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()
        found[str(path)] = rows if whole else {"rows": len(rows), "sha256": f"sha256:{digest[:16]}"}
    return found


def records(folder: Path) -> dict[str, Any]:
    """The JSON records without fingerprints."""
    return {_HEX.sub("HEX", path): without_hashes(value) for path, value in read_records(folder).items()}


def fingerprints(folder: Path) -> dict[str, Any]:
    """Fingerprints in the records, and the names of folders and files that carry one: by them finished work is found
    again.

    Those made of absolute paths or of the times of files say nothing here; the part `folders` shows that they are found
    again."""
    found: dict[str, Any] = {}
    for path, value in read_records(folder).items():
        if "corpus" not in Path(path).parts:
            found[_HEX.sub("HEX", path)] = {
                where: text for where, text in hashes(value).items() if where != "training.evaluated"
            }
    named = sorted(
        str(p.relative_to(folder)) for p in folder.rglob("*") if _HEX.search(p.name) and "harness" not in p.parts
    )
    return {**{path: value for path, value in found.items() if value}, "names": named}


def weights(folder: Path) -> dict[str, str]:
    """A hash over the tensors of every safetensors file, whatever its metadata and their order."""
    return {str(path): tensors_hash(folder / path) for path in outputs(folder, "*.safetensors")}


def tensors_hash(path: Path) -> str:
    """SHA-256 over names, dtypes, shapes and bytes of a safetensors file."""
    from safetensors import deserialize

    digest = hashlib.sha256()
    for name, tensor in sorted(deserialize(path.read_bytes())):
        digest.update(f"{name} {tensor['dtype']} {tensor['shape']} ".encode() + tensor["data"])
    return digest.hexdigest()


def pages(folder: Path) -> dict[str, Any]:
    """The figures of every page."""
    return {_HEX.sub("HEX", str(path)): figures.of_page(folder / path) for path in outputs(folder, "*.html")}


def reproductions(folder: Path) -> dict[str, Any]:
    """The records of reproductions, without those of their runs, and the figures that are read on their pages."""
    names = ("claims.json", "study.json", "update.json")
    found = {path: value for path, value in records(folder).items() if path.endswith(names)}
    return {
        "records": found,
        "pages": {path: value["read"] for path, value in pages(folder).items() if "/runs/" not in path},
    }


def material_in(folder: Path) -> None:
    """Puts models, data and requests into a new folder."""
    folder.mkdir(parents=True)
    write: Callable[[], None] = material.write_all
    outcome = commandline.in_process(write, folder, name="material")
    if outcome.code:
        raise RuntimeError(outcome.err)
