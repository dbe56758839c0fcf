"""README.md of a run as a Hugging Face model card: what the model is, what it learnt, what it lost,
how to load and repeat it.

A card travels with the weights, so no path of the machine it was made on may stand in it: absolute
paths are cut to their last component, and `base_model` and `datasets` are filled in only with hub
ids.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from holdfast.records.run import RunFolder
from holdfast.reports.blocks import (
    Block,
    Bullets,
    Code,
    Fold,
    Heading,
    Paragraph,
    Section,
    Span,
    Table,
    Text,
    columns,
    paragraphs,
)
from holdfast.reports.format import flatten, hardware_text
from holdfast.reports.markdown import render
from holdfast.reports.run_figures import RunFigures, read_run
from holdfast.reports.run_report import change_tables
from holdfast.support.files import write_bytes_atomic

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_DATA_ENDINGS = (
    ".jsonl",
    ".json",
    ".parquet",
    ".csv",
    ".txt",
    ".arrow",
    ".gz",
    ".zst",
    ".safetensors",
    ".gguf",
)
# An absolute POSIX path of two parts or more, one below the home folder, or a Windows path; not the
# path of a URL. A dollar sign or a letter before the first slash makes it part of a longer word.
_PATH = re.compile(
    r"(?<![\w:/.~$-])(?:~?/(?:[^\s/'\"`,;:)\]|]+/)+|[A-Za-z]:\\(?:[^\\'\"`,;:)\]|\n]+\\)+)(?=[^\s/\\'\"`,;:)\]|]*)"
)


def is_hub_id(name: Any) -> bool:
    """Whether a model or data set name is `owner/name` of a hub, and not a folder or file on this
    machine."""
    if not isinstance(name, str) or not _HUB_ID.fullmatch(name) or "--" in name or ".." in name:
        return False
    return not name.lower().endswith(_DATA_ENDINGS) and not Path(name).exists()


def public(text: Any) -> str:
    """Text without the machine's folders: `saved to /data/me/run/model` becomes
    `saved to model`."""
    return _PATH.sub("", str(text))


def write_model_card(folder: RunFolder) -> Path:
    """Writes `README.md` into the run folder and returns its path.

    Raises:
        DataError: the folder has no readable `run.json`.
        StorageError: the card could not be written; an earlier one is intact.
    """
    import yaml

    run = read_run(folder)
    metadata = yaml.safe_dump(
        _metadata(run, folder), sort_keys=False, allow_unicode=True, width=120
    )
    text = "\n".join(
        ["---", metadata.rstrip(), "---", "", render(_body(run, folder), clean=public)]
    )
    return write_bytes_atomic(folder.path / "README.md", text.encode())


def _adapter(folder: RunFolder) -> bool:
    return (folder.path / "adapter_config.json").is_file()


def _title(run: RunFigures) -> str:
    return Path(public(run.title)).name or "tuned model"


def _metadata(run: RunFigures, folder: RunFolder) -> dict[str, Any]:
    record, adapter = run.record, _adapter(folder)
    metadata: dict[str, Any] = {}
    if is_hub_id(record.model.get("name")):
        metadata["base_model"] = record.model["name"]
        metadata["base_model_relation"] = "adapter" if adapter else "finetune"
    metadata["library_name"] = "peft" if adapter else "transformers"
    metadata["pipeline_tag"] = "text-generation"
    methods = [
        str(method["method"]).replace("_", "-")
        for method in record.retention
        if method.get("method")
    ]
    metadata["tags"] = list(
        dict.fromkeys(["holdfast", "forgetting", *(methods or ["direct-fine-tuning"])])
    )
    if is_hub_id(record.data.get("name")):
        metadata["datasets"] = [record.data["name"]]
    return metadata


def _body(run: RunFigures, folder: RunFolder) -> list[Block]:
    record = run.record
    base = record.model.get("name")
    name: Text = "a model that is not recorded"
    if base:
        name = (
            Span(base, link=f"https://huggingface.co/{base}")
            if is_hub_id(base)
            else Path(str(base)).name
        )
    kind = "An adapter for " if _adapter(folder) else "Fine-tuned from "
    blocks: list[Block] = [Heading(_title(run), level=1), Paragraph(run.verdict)]
    blocks.append(Paragraph((kind, name, f" with {run.method}, using holdfast.")))
    if record.status != "finished":
        text = (
            f"The run behind this folder is {record.status} (stage: {record.stage}); its weights "
            "may be missing or incomplete."
        )
        blocks.append(Paragraph(Span(text, "strong")))
    gaps = paragraphs([*run.missing, *run.problems])
    return [
        *blocks,
        Section("What changed", [*change_tables(run), *gaps]),
        _how_to_load(folder),
        _training(run),
    ]


def _how_to_load(folder: RunFolder) -> Section:
    adapter, sees = _adapter(folder), (folder.path / "processor_config.json").is_file()
    kind = "AutoModelForImageTextToText" if sees else "AutoModelForCausalLM"
    reader, variable = ("AutoProcessor", "processor") if sees else ("AutoTokenizer", "tokenizer")
    load = f'model = {kind}.from_pretrained(name, dtype="auto")'
    imports = f"from transformers import {kind}, {reader}"
    if adapter and not sees:
        imports = f"from peft import AutoPeftModelForCausalLM\nfrom transformers import {reader}"
        load = "model = AutoPeftModelForCausalLM.from_pretrained(name)"
    code = f"""{imports}

name = "<this repository or folder>"
{load}
{variable} = {reader}.from_pretrained(name)"""
    return Section("How to load it", [Code(code, "python")])


def _training(run: RunFigures) -> Section:
    record = run.record
    items: list[Text] = []
    for label, text in run.facts:
        if label in ("Model", "Data"):  # the name may be a path; the rest of the line is not
            name, dot, rest = text.partition(" · ")
            text = (name if is_hub_id(name) else Path(name).name) + dot + rest
        items.append(f"{label}: {text}")
    blocks: list[Block] = [Bullets(items)]
    settings = [
        [Span(key, "code"), _without_folder(value)] for key, value in flatten(record.config)
    ]
    if settings:
        blocks.append(
            Fold("Settings", [Table(columns=columns("Key", "Value", right=()), rows=settings)])
        )
    if record.versions:
        blocks.append(Paragraph(f"Versions: {', '.join(map(' '.join, record.versions.items()))}."))
    if record.hardware:
        blocks.append(Paragraph(f"Hardware: {public(hardware_text(record.hardware))}."))
    if record.notes:
        blocks += [Paragraph("Notes of the run:"), Bullets(record.notes)]
    return Section("How it was trained", blocks)


def _without_folder(value: str) -> str:
    """A setting's value; a whole value that is an absolute path keeps only its last component."""
    return (
        Path(value).name
        if value.startswith(("/", "~/")) and "\n" not in value and " " not in value
        else value
    )
