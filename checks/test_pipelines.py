"""The ready-made pipelines: their own scripts are run, on two tiny models, as a build server would run them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
GITLAB = yaml.safe_load((ROOT / "pipelines/gitlab-ci.yml").read_text())["holdfast-gate"]
TEXTS = [
    "Rome is the capital of Italy.",
    "Bern lies in Switzerland.",
    "Water boils when it is hot.",
    "The cat sat.",
] * 6


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, the same again under another name, and one that was damaged; and a suite."""
    import torch

    from tiny import build_model, build_tokenizer

    folder = tmp_path_factory.mktemp("models")
    for name, noise in (("base", 0.0), ("same", 0.0), ("worse", 0.5)):
        model = build_model()
        with torch.no_grad():
            for parameter in model.parameters():
                torch.manual_seed(1)
                parameter.add_(torch.randn_like(parameter), alpha=noise)
        model.save_pretrained(folder / name)
        tokenizer = build_tokenizer(320)
        tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
        tokenizer.save_pretrained(folder / name)
    (folder / "prose.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    (folder / "suite.yaml").write_text("keep: [prose.jsonl]\n")
    return folder


@pytest.fixture
def server(models: Path, tmp_path: Path) -> dict[str, str]:
    """The environment of a job: commands that it finds, and files that it writes to."""
    commands = tmp_path / "bin"
    commands.mkdir()
    scripts = {
        "holdfast": f'exec {sys.executable} -m holdfast "$@"',
        "gh": f'printf "%s\\n" "$@" > {tmp_path}/gh.txt',
        "python": f'printf "%s\\n" "$@" >> {tmp_path}/pip.txt',
    }
    for name, line in scripts.items():
        (commands / name).write_text(f"#!/bin/sh\n{line}\n")
        (commands / name).chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{commands}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
        "GITHUB_OUTPUT": str(tmp_path / "output.txt"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "OMP_NUM_THREADS": "1",
    }


def shell(script: str, environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """As GitHub and GitLab run bash: the first command that fails ends it."""
    words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    return subprocess.run(words, env=environment, cwd=folder, capture_output=True, text=True, timeout=300)


def action(server: dict[str, str], models: Path, **inputs: str) -> list[int]:
    """Runs the action's own steps with these inputs; the exit codes."""
    values = {name: str(one.get("default", "")) for name, one in ACTION["inputs"].items()} | inputs
    values = {"github.event.pull_request.number": "7"} | {f"inputs.{name}": value for name, value in values.items()}
    codes = []
    for step in ACTION["runs"]["steps"]:
        if "run" not in step:
            continue
        assert "${{" not in step["run"], "inputs reach a script through its environment alone"
        given = {
            key: re.sub(r"\$\{\{ ([\w.-]+) \}\}", lambda m: values.get(m[1], ""), text)
            for key, text in step["env"].items()
        }
        codes.append(shell(step["run"], {**server, **given}, models).returncode)
    return codes


@pytest.mark.slow
def test_the_action_passes_where_nothing_was_lost(server: dict[str, str], models: Path, tmp_path: Path) -> None:
    inputs = {"before": "base", "after": "same", "suite": "suite.yaml", "output_dir": str(tmp_path / "gate")}
    assert action(server, models, **inputs, strict="true", fail_if="\nsource rise > 5%\nany drop > 2%\n") == [
        0,
        0,
        0,
        0,
    ]
    assert (tmp_path / "output.txt").read_text() == "outcome=passed\n"
    assert "prose" in (tmp_path / "summary.md").read_text()
    assert (tmp_path / "pip.txt").read_text().split() == ["-m", "pip", "install", "holdfast"]
    asked = (tmp_path / "gh.txt").read_text().split("\n")
    assert asked[:3] == ["pr", "comment", "7"] and Path(asked[4]).read_text() == (tmp_path / "summary.md").read_text()
    assert (tmp_path / "gate/comparison/comparison.html").is_file()


def test_the_action_fails_where_something_was_lost(server: dict[str, str], models: Path, tmp_path: Path) -> None:
    inputs = {"before": "base", "after": "worse", "suite": "suite.yaml", "output_dir": str(tmp_path / "gate")}
    assert action(server, models, **inputs) == [0, 0, 3, 0], "the comment comes all the same"
    assert (tmp_path / "output.txt").read_text() == "outcome=failed\n"
    suite = ET.fromstring((tmp_path / "gate/comparison/comparison.xml").read_bytes())[0]
    [case] = suite.findall("testcase")
    assert case.get("name") == "prose nats_per_token" and case.find("failure") is not None


def test_the_action_holds_a_model_against_a_policy(server: dict[str, str], models: Path, tmp_path: Path) -> None:
    policy = tmp_path / "gate.yaml"
    policy.write_text("entries: {prose: 2%}\n")
    inputs = {"before": "base", "after": "worse", "suite": "suite.yaml", "output_dir": str(tmp_path / "gate")}
    assert action(server, models, **inputs, policy=str(policy)) == [0, 0, 3, 0]
    assert "**HOLD**" in (tmp_path / "summary.md").read_text()


@pytest.mark.slow
def test_a_rule_that_speaks_of_nothing_is_no_outcome(server: dict[str, str], models: Path, tmp_path: Path) -> None:
    inputs = {"before": "base", "after": "worse", "suite": "suite.yaml", "output_dir": str(tmp_path / "gate")}
    assert action(server, models, **inputs, fail_if="qiuz drop > 2%")[2] == 2


def test_the_actions_outputs_and_steps_are_there() -> None:
    names = {step.get("id") for step in ACTION["runs"]["steps"]}
    assert ACTION["runs"]["using"] == "composite" and "compare" in names
    assert all(step["shell"] == "bash" for step in ACTION["runs"]["steps"] if "run" in step)
    assert {one["description"].endswith(".") for one in ACTION["inputs"].values()} == {True}


@pytest.mark.parametrize(("after", "code"), [pytest.param("same", 0, marks=pytest.mark.slow), ("worse", 3)])
def test_the_gitlab_job(server: dict[str, str], models: Path, tmp_path: Path, after: str, code: int) -> None:
    given = {**GITLAB["variables"], "BEFORE": str(models / "base"), "AFTER": str(models / after)}
    given |= {"FAIL_IF": "keep rise > 90%\nany drop > 2%", "SUITE": "suite.yaml"}
    (tmp_path / "suite.yaml").write_text(f"keep: [{models / 'prose.jsonl'}]\n")
    ended = shell("\n".join([*GITLAB["before_script"], *GITLAB["script"]]), {**server, **given}, tmp_path)
    assert ended.returncode == code, ended.stderr
    report = tmp_path / GITLAB["artifacts"]["reports"]["junit"]
    [case] = ET.fromstring(report.read_bytes())[0].findall("testcase")
    assert (case.find("failure") is not None) == (code == 3)
    assert all((tmp_path / path).is_dir() for path in GITLAB["artifacts"]["paths"])


@pytest.mark.slow
def test_the_pre_commit_hook(server: dict[str, str], models: Path, tmp_path: Path) -> None:
    [hook] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    data = models / "prose.jsonl"
    for name, extra in (("sound", "bf16: true"), ("wrong", "lerning_rate: 1")):
        text = f"model_name_or_path: {models / 'base'}\ndataset_name: {data}\noutput_dir: {tmp_path / 'out'}\n{extra}\n"
        (tmp_path / f"{name}.yaml").write_text(text)
    sound = shell(f"{hook['entry']} sound.yaml", server, tmp_path)
    assert sound.returncode == 0 and "The request is sound" in sound.stdout
    wrong = shell(f"{hook['entry']} sound.yaml wrong.yaml", server, tmp_path)
    assert wrong.returncode == 2 and "Did you mean 'learning_rate'?" in wrong.stderr


def test_the_image_is_made_of_what_is_there() -> None:
    text = (ROOT / "Dockerfile").read_text()
    copied = [word for words in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE) for word in words.split()]
    assert len(copied) > 3 and all((ROOT / word).exists() for word in copied)
    assert {f"!{word}" for word in copied} <= set((ROOT / ".dockerignore").read_text().split())
    extras = set(re.findall(r"EXTRAS=(\w+)", text))
    import tomllib

    known: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras <= set(known) and "EXTRAS=\n" in text
