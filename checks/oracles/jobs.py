"""The jobs of every study in `configs`: labels, coordinates, order, folders, and the settings that decide them."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pages
import tree
import yaml

CONFIGS = pages.ROOT / "configs"
UNCHECKED = ("ladder", "overtraining", "sequence", "stages")
"""Kinds whose settings are read without looking at models and data."""
SWEEPS = ("label_annealing", "without_old_data")
RUNGS = [{"model": f"rung-{tokens}", "tokens": tokens * 1_000_000, "label": f"rung-{tokens}"} for tokens in (1, 2, 4)]
"""Of the ladders that studies name."""


def jobs() -> dict[str, Any]:
    """By path of the study's file: its settings and its jobs."""
    data = {}
    for kind in tree.STUDIES:
        for path in sorted((CONFIGS / kind).glob("[!.]*.yaml")):
            with stand_ins(path):
                data[f"{kind}/{path.stem}.json"] = study_data(kind, path)
    return data


@contextlib.contextmanager
def stand_ins(path: Path) -> Iterator[None]:
    """A working directory with a small file for every file of data, and every ladder, that a study names."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            text = path.read_text(encoding="utf-8")
            for name in re.findall(r"[\w./-]+\.jsonl\b|\bdata/[\w/]+\.json\b", text):
                put_file(Path(name), '{"text": "a"}\n')
            for name in re.findall(r"^ladder: (\S+\.yaml)", text, re.MULTILINE):
                put_file(Path(name), json.dumps({"ladder": RUNGS}))
            yield
        finally:
            os.chdir(before)


def put_file(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def study_data(kind: str, path: Path) -> dict[str, Any]:
    """Settings and jobs of a study."""
    values = {"name": path.stem, **yaml.safe_load(path.read_text(encoding="utf-8"))}
    read = tree.load(tree.STUDIES[kind])
    if kind in UNCHECKED:
        config = with_small_files(read(values, source=path.name, check=False))
    elif kind in (*SWEEPS, "residual"):  # what a machine without an accelerator refuses is planned all the same
        config = read(values, source=path.name, check=False)
    else:
        config = read(values, source=path.name)
    planned = [job_data(kind, config, job) for job in config.jobs()]
    data = {"settings": config.resolved, "folder": config.output_dir, "jobs": planned}
    return json.loads(json.dumps(data, default=str).replace(f"{os.getcwd()}/", ""))


def with_small_files(config: Any) -> Any:
    """A study with files in the place of what its small setting makes."""
    names = tree.load(tree.SMALL_FILES)(config.resolved["toy"], "data")
    for name in names.values():
        put_file(Path(name), '{"text": "a"}\n')
    return dataclasses.replace(config, names=names)


def job_data(kind: str, config: Any, job: Any) -> list[Any]:
    """A job as plain JSON: what it is known by, which jobs it waits for, its folders, and a hash of the settings that
    it trains with."""
    folders = folders_of(kind, config, job.attributes)
    below = [os.path.relpath(folder, config.output_dir) for folder, _ in folders]
    settings = json.dumps([settings for _, settings in folders], default=str, sort_keys=True)
    digest = hashlib.sha256(settings.replace(os.getcwd(), "").encode()).hexdigest()
    return [job.attributes, list(job.after), below, digest[:12] if folders else ""]


def folders_of(kind: str, config: Any, attributes: dict[str, Any]) -> list[tuple[Path, Any]]:
    """Where a job trains, and with which settings, as far as they are known beforehand."""
    if kind in SWEEPS:
        return sweep_folder(config, attributes)
    if kind == "ladder" and attributes["rung"] in config.rungs:
        rung = config.rungs[attributes["rung"]]
        return [(config.run_folder(rung, seed), config.training(rung, seed, {})) for seed in config.request.seeds]
    if kind == "overtraining" and attributes["kind"] == "tune":
        names = attributes["checkpoint"], attributes["model"]
        return [(config.run_folder(*names, seed), config.training(*names, seed)) for seed in config.request.seeds]
    if kind == "sequence":
        model = config.models[attributes["model"]]
        return [(config.folder(model.name, attributes["seed"]), model.settings or model.merge)]
    if kind == "stages":
        step = config.steps[attributes["step"]]
        settings = config.tuning(step.arm) if step.kind == "tune" else config.restoring(step.name, config.base)
        return [(config.run_folder(step.name), settings)]
    return []


def sweep_folder(config: Any, attributes: dict[str, Any]) -> list[tuple[Path, Any]]:
    """Those of a trial that is not drawn; the name of its folder has a hash too."""
    params = attributes.get("params")
    if not attributes["direct"] and params is None:
        return []
    settings, kind = config.reference(), "direct"
    if params is not None:
        settings, kind = config.settings(params), config.space.kind(params)
    return [(config.output_dir / tree.load(tree.RUN_FOLDER_NAME)(settings, kind), settings)]
