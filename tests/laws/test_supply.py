"""What SECURITY.md says: whose code runs, what reads which files, what is fetched, and that an audit which checked
nothing does not say that it found nothing."""

from __future__ import annotations

import ast
import functools
import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import audit
from holdfast import models
from holdfast.cli.main import main
from holdfast.errors import ConfigError, ModelError
from tiny import SENTENCES

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/holdfast"
PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")


@functools.cache
def nodes() -> list[tuple[str, ast.Call | ast.Import | ast.ImportFrom]]:
    """Every call and import of the source, with its place."""
    found = []
    for file in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Call, ast.Import, ast.ImportFrom)):
                found.append((f"{file.relative_to(SOURCE)}:{node.lineno}", node))
    return found


@pytest.fixture(scope="module", autouse=True)
def let_go_of_the_trees() -> Iterator[None]:
    """Every node holds its tree: objects that the collector would look through for the rest of the process."""
    yield
    nodes.cache_clear()


def calls(name: str) -> list[tuple[str, ast.Call]]:
    """Every call of something that is called so."""
    held = ((place, node) for place, node in nodes() if isinstance(node, ast.Call))
    return [(p, n) for p, n in held if getattr(n.func, "attr", getattr(n.func, "id", None)) == name]


def keywords(node: ast.Call) -> set[str | None]:
    return {keyword.arg for keyword in node.keywords}


# ------------------------------------------------------------------------------------------------------ whose code runs


def test_every_load_says_whether_remote_code_may_run() -> None:
    """Without a word transformers asks on the terminal. Keywords that are handed on (`**kwargs`) are the callers'."""
    loads = [(place, node) for place, node in calls("from_pretrained") if "Auto" in ast.unparse(node.func)]
    assert len(loads) >= 4, "the search is broken"
    assert [place for place, node in loads if not keywords(node) & {"trust_remote_code", None}] == []
    handed_on = [
        (place, node) for place, node in calls("from_pretrained") if ast.unparse(node.func) == "models.from_pretrained"
    ]
    assert handed_on and all(keywords(node) & {"trust_remote_code", None} for _, node in handed_on)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """A file that hostile code makes when it runs."""
    return tmp_path / "it-ran"


def hostile(marker: Path) -> str:
    return f"open({str(marker)!r}, 'w').close()\n"


@pytest.mark.parametrize("kind", ["model", "tokenizer"])
def test_code_beside_a_model_runs_only_when_asked(
    kind: str, marker: Path, tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked on the terminal"))
    folder = tmp_path / "foreign"
    folder.mkdir()
    code = hostile(marker)
    if kind == "model":
        code += "from transformers import LlamaConfig\nclass Theirs(LlamaConfig):\n    model_type = 'theirs'\n"
        (folder / "theirs.py").write_text(code)
        config = {"model_type": "theirs", "architectures": ["TheirsForCausalLM"]}
        (folder / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoConfig": "theirs.Theirs"}}))
        with pytest.raises(ModelError):
            models.check_causal_lm(str(folder))
        assert not marker.exists()
        with pytest.raises(ModelError):  # the code runs; what it makes has no weights
            models.load(str(folder), trust_remote_code=True)
    else:
        code += "from transformers import PreTrainedTokenizerFast\nclass Theirs(PreTrainedTokenizerFast):\n    pass\n"
        (folder / "theirs.py").write_text(code)
        theirs = {"tokenizer_class": "Theirs", "auto_map": {"AutoTokenizer": [None, "theirs.Theirs"]}}
        (folder / "tokenizer_config.json").write_text(json.dumps(theirs))
        (folder / "tokenizer.json").write_bytes((model_folder / "tokenizer.json").read_bytes())
        (folder / "config.json").write_text((model_folder / "config.json").read_text())
        with pytest.raises(ModelError):
            models.load_tokenizer(str(folder))
        assert not marker.exists()
        models.load_tokenizer(str(folder), trust_remote_code=True)
    assert marker.exists(), "the example is no example"


@pytest.mark.parametrize("kernel", ["someone/kernel", "kernels-community/flash-attn2"])
def test_a_kernel_that_a_model_names_is_refused(kernel: str, model_folder: Path, tmp_path: Path) -> None:
    """transformers would fetch and run it."""
    config = json.loads((model_folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "attn_implementation": kernel}))
    with pytest.raises(
        ModelError, match=rf"names a kernel of the hub, {kernel}, which transformers would fetch and run"
    ):
        models.check_causal_lm(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({**config, "attn_implementation": "eager"}))
    models.check_causal_lm(str(tmp_path))


def test_a_task_file_is_code(marker: Path, tmp_path: Path, model_folder: Path) -> None:
    """As the page warns: naming it runs the Python beside it, with `--dry_run`, too."""
    (tmp_path / "helper.py").write_text(hostile(marker) + "def ask(doc):\n    return 'a'\n")
    (tmp_path / "rows.jsonl").write_text('{"question": "a", "answer": "b"}\n' * 3)
    (tmp_path / "theirs.yaml").write_text(
        "task: theirs\ndataset_path: json\ndataset_kwargs: {data_files: {test: rows.jsonl}}\ntest_split: test\n"
        "output_type: generate_until\ndoc_to_text: !function helper.ask\ndoc_to_target: '{{answer}}'\n"
        "metric_list: [{metric: exact_match}]\n"
    )
    words = ["--tasks", str(tmp_path / "theirs.yaml"), "--output_dir", str(tmp_path / "out"), "--dry_run"]
    main(["evaluate", str(model_folder), *words])
    assert marker.exists() and "!function" in PAGE


def test_a_configuration_can_name_code(marker: Path, tmp_path: Path) -> None:
    from holdfast.runs.config import train_config

    (tmp_path / "theirs.py").write_text(hostile(marker) + "class Method: pass\n")
    with pytest.raises(ConfigError):
        train_config({"retention": [f"{tmp_path / 'theirs.py'}:Method"]})
    assert marker.exists() and "**A configuration is as good as code.**" in PAGE


@pytest.mark.parametrize("file", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_a_checkpoints_states_are_read_without_unpickling(file: str) -> None:
    """transformers' own loads of them, which a run's continuation goes through."""
    import inspect

    from transformers import Trainer

    text = inspect.getsource(inspect.getmodule(Trainer))  # type: ignore[arg-type]
    loads = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call) and ast.unparse(n.func) == "torch.load"]
    assert len(loads) >= 6
    for node in loads:
        assert [k.value.value for k in node.keywords if k.arg == "weights_only"] == [True], ast.unparse(node)  # type: ignore[attr-defined]
    assert f"`{file}`" in PAGE


# ------------------------------------------------------------------------------------------------------- what is parsed

PARSERS = {
    "json": "`json`",
    "yaml": "PyYAML",
    "csv": "`csv`",
    "pyarrow": "pyarrow",
    "datasets": "datasets",
    "safetensors": "safetensors",
    "tokenizers": "tokenizers",
    "jinja2": "jinja2",
    "optuna": "Optuna",
    "lm_eval": "harness",
    "peft": "PEFT",
    "transformers": "transformers",
    "gzip": "`.gz`",
    "zlib": "`.gz`",
    "zstandard": "`.zst`",
    "sqlite3": None,  # a scratch file of our own
    "xml.etree": None,  # writes JUnit
    "configparser": "",
    "tomllib": "",
    "plistlib": "",
    "zipfile": "`zipfile`",
    "tarfile": "",
    "lxml": "",
    "bs4": "",
    "xml.dom": "",
    "xml.sax": "",
    "pandas": "",
    "h5py": "",
    "numpy.lib.format": "",
    "onnx": "",
}
"""Modules that read files of others: how SECURITY.md calls them; None: no files of others; "": not in use."""


def test_every_file_that_is_parsed_is_in_the_table() -> None:
    """And what is not in use comes into use only with a line there."""
    used = set()
    for _, node in nodes():
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{a.name}" for a in node.names)]
        used |= {module for module in PARSERS for name in names if f"{name}.".startswith(f"{module}.")}
    assert sorted(m for m in used if PARSERS[m] == "") == [], "say in SECURITY.md what it reads, and here"
    unsaid = [m for m in used if PARSERS[m] and PARSERS[m] not in PAGE]
    assert sorted(unsaid) == []
    from holdfast.data.readers import COMPRESSIONS, KINDS

    assert [suffix for suffix in (*KINDS, *COMPRESSIONS) if f"`{suffix}`" not in PAGE] == []


def test_yaml_is_read_by_the_safe_loader() -> None:
    loaders = [(place, node) for place, node in calls("load") if ast.unparse(node.func) == "yaml.load"]
    assert [place for place, node in loaders if "SafeLoader" not in ast.unparse(node)] == []
    others = [p for name in ("full_load", "unsafe_load", "UnsafeLoader", "FullLoader") for p, _ in calls(name)]
    assert others == []


def test_arrays_of_numpy_are_mapped_and_never_loaded() -> None:
    assert [place for place, node in calls("load") if ast.unparse(node.func) in ("np.load", "numpy.load")] == []


# --------------------------------------------------------------------------------------------------------- the network


def test_a_run_on_local_files_asks_no_network(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def refuse(*arguments: Any, **_: Any) -> Any:
        asked.append(arguments)
        raise OSError("no network here")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.chdir(tmp_path)
    for name in ("train", "kept", "learnt"):
        Path(f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in SENTENCES))
    words = ["--model_name_or_path", str(model_folder), "--dataset_name", "train.jsonl", "--output_dir", "out"]
    words += [
        "--max_steps",
        "1",
        "--max_length",
        "32",
        "--use_cpu",
        "--source",
        "kept.jsonl",
        "--target",
        "learnt.jsonl",
    ]
    assert main(["train", *words]) == 0
    assert main(["evaluate", "out", "--perplexity", "kept.jsonl", "--output_dir", "measured"]) == 0
    assert main(["merge", "out", str(model_folder), "--output_dir", "merged"]) == 0
    assert asked == []


# ------------------------------------------------------------------------------------------------------------ the audit


def stand_in(
    answers: Any = None, *, known: bool = True, status: int = 1, err: str = ""
) -> tuple[audit.Run, list[list[str]]]:
    """What runs pip-audit: an answer to the canary, then `answers` (a list, or text)."""
    name, version = audit.CANARY
    asked: list[list[str]] = []

    def run(command: Sequence[str]) -> tuple[int, str, str]:
        file = Path(command[command.index("--requirement") + 1])
        asked.append(file.read_text().splitlines())
        if asked[-1] == [f"{name}=={version}"]:
            found = [{"name": name.upper(), "version": version, "vulns": [{"id": "CVE-1"}] if known else []}]
            return status, json.dumps({"dependencies": found}), ""
        return status, answers if isinstance(answers, str) else json.dumps({"dependencies": answers}), err

    return run, asked


PINNED = {"torch": "2.13.0", "Two_Words": "1.0"}
SOUND = [{"name": "torch", "version": "2.13.0", "vulns": []}, {"name": "two-words", "version": "1.0", "vulns": []}]


def test_an_audit_that_finds_nothing_has_asked_about_everything() -> None:
    run, asked = stand_in(SOUND, status=0)
    verdict = audit.audit(PINNED, run)
    assert (verdict.status, verdict.lines) == (0, ["2 pinned versions: no known vulnerabilities."])
    assert asked == [["jinja2==2.4.1"], ["torch==2.13.0", "Two_Words==1.0"]]


def test_what_is_known_is_listed_with_what_mends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"id": "PYSEC-1", "aliases": ["CVE-2"], "fix_versions": ["2.13.1"]}
    run, _ = stand_in([{**SOUND[0], "vulns": [known]}, SOUND[1]])
    verdict = audit.audit(PINNED, run)
    assert verdict.status == 1 and verdict.lines[0] == "torch 2.13.0: PYSEC-1 (CVE-2), mended in 2.13.1"
    monkeypatch.setitem(audit.ACCEPTED, "CVE-2", "does not concern us")
    assert audit.audit(PINNED, run).status == 0


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (
            stand_in("", err="x\nERROR: Could not connect to PyPI's vulnerability feed\n")[0],
            "Could not connect to PyPI",
        ),
        (stand_in("", err="No module named pip_audit")[0], "No module named pip_audit"),
        (stand_in("[]", status=0)[0], "it ended with 0 and said nothing"),
        (
            stand_in(SOUND, known=False, status=0)[0],
            "knows nothing of jinja2 2.4.1, which is vulnerable (it has no list",
        ),
        (stand_in(SOUND[:1], status=0)[0], "1 of 2 were left out: Two_Words 1.0 (no answer)"),
        (
            stand_in([SOUND[0], {"name": "two-words", "skip_reason": "not found on PyPI"}], status=0)[0],
            "(not found on PyPI)",
        ),
        (stand_in([SOUND[0], {**SOUND[1], "version": "2.0"}], status=0)[0], "1 of 2 were left out"),
    ],
    ids=["no network", "no pip-audit", "no answer", "no list", "left out", "skipped", "another version"],
)
def test_what_was_not_checked_is_never_taken_for_nothing_found(run: audit.Run, why: str) -> None:
    verdict = audit.audit(PINNED, run)
    assert verdict.status == 2 and verdict.lines[0].startswith("NOT CHECKED: ") and why in verdict.lines[0]


def test_every_pin_is_read() -> None:
    lines = [line for line in audit.PINS.read_text().splitlines() if line and not line.startswith("#")]
    assert len(audit.read_pins(audit.PINS.read_text())) == len(lines) > 100
    with pytest.raises(ValueError, match="expected NAME==VERSION, got 'torch>=2'"):
        audit.read_pins("torch>=2\n")
    assert audit.main(["no-such-package"]) == 2


def test_make_installs_what_each_target_needs() -> None:
    """On a machine where nothing is: what `make -n` would run, in its order."""

    def commands(target: str) -> str:
        words = ["make", "-n", "-C", str(ROOT), target, "VENV=/nowhere/venv", f"PYTHON={sys.executable}"]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout

    for target, last in {
        "quickstart": "holdfast quickstart",
        "test": "-m 'not slow and not gpu and not network'",
        "test-all": "-m 'not gpu and not network'",
        "bench": "benchmarks/gate.py --check",
    }.items():
        shown = commands(target)
        steps = ["-m venv", "'^torch=='", "--constraint constraints.txt --editable .", last]
        places = [shown.index(step) for step in steps]
        assert places == sorted(places) and "(3, 11)" in shown[: places[0]], target
    assert "pip_audit" not in commands("test") and re.search(r"venv-audit/bin/python tests/audit.py", commands("audit"))
