"""README.md of a run as a Hugging Face model card: what the model is, what it learnt, what it lost, how to load and
repeat it.

A card travels with the weights, so no path of the machine it was made on may stand in it: absolute paths are cut to
their last component, and `base_model` and `datasets` are filled in only with hub ids.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.records.run import RunFolder
from holdfast.reports.figures import RunFigures, hardware_text, method_name, read_run
from holdfast.support.files import write_bytes_atomic

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_DATA_ENDINGS = (".jsonl", ".json", ".parquet", ".csv", ".txt", ".arrow", ".gz", ".zst", ".safetensors", ".gguf")
# An absolute POSIX path of two parts or more, one below the home folder, or a Windows path; not the path of a URL. A
# dollar sign or a letter before the first slash makes it part of a longer word.
_PATH = re.compile(
    r"(?<![\w:/.~$-])(?:~?/(?:[^\s/'\"`,;:)\]|]+/)+|[A-Za-z]:\\(?:[^\\'\"`,;:)\]|\n]+\\)+)(?=[^\s/\\'\"`,;:)\]|]*)"
)


def is_hub_id(name: Any) -> bool:
    """Whether a model or data set name is `owner/name` of a hub, and not a folder or file on this machine."""
    if (
        not isinstance(name, str)
        or not _HUB_ID.fullmatch(name)
        or "--" in name
        or ".." in name
        or name.lower().endswith(_DATA_ENDINGS)
    ):
        return False
    return not Path(name).exists()


def public(text: Any) -> str:
    """Text without the machine's folders: `saved to /data/me/run/model` becomes `saved to model`."""
    return _PATH.sub("", str(text))


def _cell(text: Any) -> str:
    """Text for a Markdown table or list: no markup of its own, one line."""
    plain = public(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_|\[\]])", r"\\\1", " ".join(plain.split()))


def _code(text: Any) -> str:
    """Text as inline code; backticks in it would end the code."""
    return "`" + " ".join(public(text).split()).replace("`", "'").replace("|", "\\|") + "`"


def write_model_card(folder: RunFolder) -> Path:
    """Writes `README.md` into the run folder and returns its path.

    Raises:
        DataError: the folder has no readable `run.json`.
        StorageError: the card could not be written; an earlier one is intact.
    """
    import yaml

    run = read_run(folder)
    metadata = yaml.safe_dump(_metadata(run, folder), sort_keys=False, allow_unicode=True, width=120)
    text = "\n".join(["---", metadata.rstrip(), "---", "", *_body(run, folder)])
    return write_bytes_atomic(folder.path / "README.md", (text.rstrip() + "\n").encode())


def _adapter(folder: RunFolder) -> bool:
    return (folder.path / "adapter_config.json").is_file()


def _title(run: RunFigures) -> str:
    return Path(public(run.title)).name or "tuned model"


def _metadata(run: RunFigures, folder: RunFolder) -> dict[str, Any]:
    record = run.record
    found: dict[str, Any] = {}
    if is_hub_id(record.model.get("name")):
        found["base_model"] = record.model["name"]
        found["base_model_relation"] = "adapter" if _adapter(folder) else "finetune"
    found["library_name"] = "peft" if _adapter(folder) else "transformers"
    found["pipeline_tag"] = "text-generation"
    methods = [str(m["method"]).replace("_", "-") for m in record.retention if m.get("method")]
    found["tags"] = list(dict.fromkeys(["holdfast", "forgetting", *(methods or ["direct-fine-tuning"])]))
    if is_hub_id(record.data.get("name")):
        found["datasets"] = [record.data["name"]]
    results = _results(run)
    if results:
        found["model-index"] = [{"name": _title(run), "results": results}]
    return found


def _results(run: RunFigures) -> list[dict[str, Any]]:
    """Figures of the result, one entry a data set, as the hub's model index wants them."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for r in run.rows:
        if math.isfinite(r.raw.after):
            found.setdefault((r.raw.suite, r.name), []).append(
                {"type": r.metric, "name": f"{r.metric} ({r.unit})", "value": r.raw.after}
            )
    return [
        {
            "task": {"type": "text-generation"},
            "dataset": {"name": f"{public(name)} ({suite})", "type": public(name)},
            "metrics": metrics,
        }
        for (suite, name), metrics in found.items()
    ]


def _body(run: RunFigures, folder: RunFolder) -> list[str]:
    record = run.record
    lines = [f"# {_cell(_title(run))}", "", _cell(run.verdict), ""]
    base = record.model.get("name")
    shown = (
        f"[{base}](https://huggingface.co/{base})"
        if is_hub_id(base)
        else _cell(Path(str(base)).name)
        if base
        else "a model that was not recorded"
    )
    kind = "An adapter for" if _adapter(folder) else "Fine-tuned from"
    lines += [f"{kind} {shown} with {_cell(run.method)}, using holdfast.", ""]
    if record.status != "finished":
        lines += [
            f"**The run behind this folder is {record.status} (stage: {_cell(record.stage)}); its weights may be "
            f"missing or incomplete.**",
            "",
        ]
    lines += _what_changed(run)
    lines += _how_to_load(folder)
    lines += _training(run)
    return lines


def _what_changed(run: RunFigures) -> list[str]:
    lines = ["## What changed", ""]
    if run.rows:
        lines += [
            "| Measure | Before | After | Difference (interval) | Relative gain | p | n | Test | Verdict |",
            "|---|--:|--:|--:|--:|--:|--:|---|---|",
        ]
        for r in run.rows:
            measure = f"{_cell(r.label)}<br>{_cell(r.metric)}, {_cell(r.unit)}, {r.direction}"
            difference = f"{r.difference} {r.interval}"
            test = _cell(r.test) + (f" ({r.flips})" if r.flips else "")
            lines.append(
                f"| {measure} | {r.before} | {r.after} | {difference} | {r.relative} | {_cell(r.p)} | {r.n} | {test} "
                f"| {r.verdict} |"
            )
        confidence = 100 * run.rows[0].raw.confidence
        lines += [
            "",
            f"Target is what was to be learnt, source what was to be kept. Intervals: paired, {confidence:g} %, over "
            f"the evaluated samples; they do"
            " not cover the variation between training seeds. Relative gain: the change in percent of the value "
            "before, positive is better.",
            "",
        ]
    if run.levels:
        lines += ["| Model | Measure | Value | Interval | n |", "|---|---|--:|--:|--:|"]
        lines += [
            f"| {v.which} | {_cell(f'{v.group}: {v.name}')} ({_cell(v.unit)}) | {v.value} | {v.interval} | {v.n} |"
            for v in run.levels
        ]
        lines.append("")
    lines += [f"{_cell(m)}\n" for m in (*run.missing, *run.problems)]
    return lines


def _how_to_load(folder: RunFolder) -> list[str]:
    if _adapter(folder):
        code = [
            "from peft import AutoPeftModelForCausalLM",
            "from transformers import AutoTokenizer",
            "",
            'name = "<this repository or folder>"',
        ]
        code += [
            "model = AutoPeftModelForCausalLM.from_pretrained(name)",
            "tokenizer = AutoTokenizer.from_pretrained(name)",
        ]
    else:
        code = [
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "",
            'name = "<this repository or folder>"',
        ]
        code += [
            'model = AutoModelForCausalLM.from_pretrained(name, dtype="auto")',
            "tokenizer = AutoTokenizer.from_pretrained(name)",
        ]
    return ["## How to load it", "", "```python", *code, "```", ""]


def _training(run: RunFigures) -> list[str]:
    record = run.record
    lines = ["## How it was trained", ""]
    shown = {"Model", "Data"}
    for label, text in run.facts:
        if label in shown:  # the name may be a path; the rest of the line is not
            head, dot, rest = text.partition(" · ")
            text = (head if is_hub_id(head) else Path(head).name) + dot + rest
        lines.append(f"- {label}: {_cell(text)}")
    for method in record.retention:
        parameters = (
            ", ".join(f"{_code(k)} = {_code(v)}" for k, v in method.items() if k != "method") or "no parameters"
        )
        lines.append(f"- Parameters of {_cell(method_name(method))}: {parameters}")
    lines.append("")
    if run.settings:
        lines += ["<details><summary>Settings</summary>", "", "| Key | Value |", "|---|---|"]
        lines += [f"| {_code(k)} | {_cell(_named(v))} |" for k, v in run.settings]
        lines += ["", "</details>", ""]
    if record.versions:
        lines += ["Versions: " + _cell(", ".join(f"{k} {v}" for k, v in record.versions.items())) + ".", ""]
    if record.hardware:
        lines += ["Hardware: " + _cell(hardware_text(_without_paths(record.hardware))) + ".", ""]
    if record.notes:
        lines += ["Notes of the run:", "", *(f"- {_cell(n)}" for n in record.notes), ""]
    return lines


def _named(value: str) -> str:
    """A setting's value; a whole value that is an absolute path keeps only its last component."""
    return Path(value).name if value.startswith(("/", "~/")) and "\n" not in value and " " not in value else value


def _without_paths(hardware: Mapping[str, Any]) -> dict[str, Any]:
    return {k: public(v) if isinstance(v, str) else v for k, v in hardware.items()}
