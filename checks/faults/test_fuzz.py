"""Sixty generated faults in what comes in, in this process; all kinds of them, and kills, in the slow tests.

`make faults` runs 2,000; see `checks/faults/fuzz`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fuzz.__main__ import KINDS, KNOWN, case_of, table
from fuzz.case import (
    ACCEPTED,
    CODE,
    DIED,
    FAULT,
    GOOD,
    HANG,
    NAMELESS,
    RAW,
    REFUSED,
    SILENT,
    STRICT,
    Case,
    alone,
    verdict,
)
from fuzz.stage import Stage
from safetensors.numpy import save_file

import material
from commandline import Outcome
from evaluated_folders import write
from holdfast.cli.main import main
from holdfast.records.evaluation import EvaluationRecord
from holdfast.support.files import write_json

ROOT = Path(__file__).resolve().parents[2]
SEED = 1
LIGHT = {"merge", "compare", "residual", "data", "inspect"}
"""Commands that need no torch; of `residual`, what is done to checkpoints."""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """Data files, checkpoints of random numbers, and two evaluated models, made without a model."""
    folder = tmp_path_factory.mktemp("fuzz") / "stage"
    folder.mkdir()
    before = Path.cwd()
    os.chdir(folder)
    try:
        material.write_data()
        for name, value in material.YAMLS.items():
            material.write_yaml(f"{name}.yaml", value)
    finally:
        os.chdir(before)
    rng = np.random.default_rng(0)
    names = [f"model.layers.{n}.{part}.weight" for n in (0, 1) for part in ("self_attn.q_proj", "mlp.up_proj")]
    for number, model in enumerate(("base", "math", "code", "instruct")):
        tensors = {name: rng.normal(size=(8, 8)).astype(np.float32) for name in ("model.embed_tokens.weight", *names)}
        (folder / model).mkdir()
        save_file(tensors, folder / model / "model.safetensors", metadata={"format": "pt"})
        config = {
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": 8,
            "hidden_size": 8,
            "tie_word_embeddings": True,
        }
        (folder / model / "config.json").write_text(json.dumps(config))
        for file in ("tokenizer.json", "tokenizer_config.json"):
            (folder / model / file).write_text("{}")
        rows = [{"doc": str(n), "prompt": str(n), "acc": float((n + number) % 2)} for n in range(20)]
        write(folder / "measured" / model, "keep", "colours", rows, model=model)
    models = [{"label": name, "name": name, "hash": name} for name in ("base", "math")]
    write_json(folder / "measured" / "evaluate.json", EvaluationRecord(models=models, status="finished"))
    return Stage(folder)


def light_cases() -> list[tuple[str, int, Case]]:
    """The first ten or twenty of each kind that need no torch."""
    wanted = {"yaml": 24, "rows": 12, "tensors": 16, "words": 8}
    found = []
    for kind, count in wanted.items():
        number, kept = 0, 0
        while kept < count:
            case = case_of(SEED, kind, number)
            light = case.words[0] in LIGHT and "study" not in case.words and case.around is alone
            if light:
                found.append((kind, number, case))
                kept += 1
            number += 1
    return found


@pytest.mark.parametrize(("kind", "number", "case"), [pytest.param(*c, id=f"{c[0]}-{c[1]}") for c in light_cases()])
def test_a_generated_fault_ends_well(
    kind: str,
    number: int,
    case: Case,
    stage: Stage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "case"
    stage.offer(folder, case.copies)
    case.prepare(folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOLDFAST_DEBUG", "")
    code = main(list(case.words))
    out, err = capfd.readouterr()
    outcome = Outcome(code=code, out=out, err=err)
    assert verdict(case, outcome) in GOOD, f"{case.what}: {outcome}"


CASE = Case(what="", words=[], valid=False, names=("data.jsonl",))


@pytest.mark.parametrize(
    ("case", "outcome", "said"),
    [
        (CASE, Outcome(code=2, out="", err="error: data.jsonl, line 3: ..."), REFUSED),
        (CASE, Outcome(code=2, out="", err="error: line 3: ..."), NAMELESS),
        (CASE, Outcome(code=1, out="", err="error: data.jsonl, line 3: ..."), CODE),
        (CASE, Outcome(code=0, out="", err=""), SILENT),
        (CASE, Outcome(code=1, out="", err=f"error: KeyError: 'a'\n{FAULT}"), RAW),
        (CASE, Outcome(code=0, out="Traceback (most recent call last)", err=""), RAW),
        (CASE, Outcome(code=-1, out="", err="", signal=signal.SIGALRM), HANG),
        (CASE, Outcome(code=-1, out="", err="", signal=signal.SIGSEGV), DIED),
        (Case(what="", words=[], valid=True), Outcome(code=0, out="", err=""), ACCEPTED),
        (Case(what="", words=[], valid=True), Outcome(code=2, out="", err="error: ..."), STRICT),
        (Case(what="", words=[], valid=None), Outcome(code=0, out="", err=""), ACCEPTED),
    ],
)  # fmt: skip
def test_a_verdict_is_what_it_says(case: Case, outcome: Outcome, said: str) -> None:
    assert verdict(case, outcome) == said


def test_another_result_without_a_word_is_silent() -> None:
    assert verdict(Case(what="", words=[], valid=None), Outcome(code=0, out="", err=""), "other weights") == SILENT


@pytest.mark.parametrize("kind", KINDS)
def test_a_case_can_be_made_again(kind: str) -> None:
    for number in range(30):
        one, again = case_of(7, kind, number), case_of(7, kind, number)
        assert (one.what, one.words, one.valid) == (again.what, again.words, again.valid)
    if kind not in ("checkpoints", "caches"):  # which say in the folder what they damage
        assert len({case_of(7, kind, number).what for number in range(30)}) > 3


def test_the_command_line_says_of_a_fault_of_ours_what_the_fuzzer_looks_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from holdfast.cli import inspect

    def broken(argv: list[str]) -> int:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(inspect, "run", broken)
    assert main(["inspect", "x"]) == 1
    assert FAULT in capsys.readouterr().err


def test_the_table_counts_by_kind() -> None:
    found = [{"kind": "rows", "verdict": v} for v in (REFUSED, REFUSED, RAW)] + [{"kind": "yaml", "verdict": ACCEPTED}]
    lines = table(found).splitlines()
    assert lines[2] == "| yaml | 1 |  | 1 |  |  |  |  |  |  |  |  |"
    assert lines[3] == "| rows | 3 | 2 |  |  | 1 |  |  |  |  |  |  |"
    assert lines[4] == "| all | 4 | 2 | 1 |  | 1 |  |  |  |  |  |  |"


def test_what_is_known_is_known_by_kind_verdict_and_reason() -> None:
    import yaml

    for known in yaml.safe_load(KNOWN.read_text()) or []:
        assert set(known) == {"kind", "verdict", "what", "why"} and known["why"].endswith(".")


@pytest.mark.slow
def test_two_hundred_cases_of_every_kind_and_a_few_kills(tmp_path: Path) -> None:
    paths = [ROOT / "src", ROOT / "tests", ROOT / "checks", ROOT / "checks" / "faults"]
    words = [
        "--cases",
        "200",
        "--kills",
        "6",
        "--seed",
        "3",
        "--workers",
        "1",
        "--results",
        str(tmp_path / "found.json"),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "fuzz", *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert len(json.loads((tmp_path / "found.json").read_text())["cases"]) >= 200
    shutil.rmtree(tmp_path)
