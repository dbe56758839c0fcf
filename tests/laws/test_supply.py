"""What SECURITY.md says: whose code runs, how files are read, and that a run on local files asks no network."""

from __future__ import annotations

import ast
import functools
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from syntax_trees import no_collection, parsed_package  # noqa: F401 (a fixture)

from data_files import text_rows
from holdfast import models
from holdfast.cli.main import main
from holdfast.errors import ModelError
from tiny import SENTENCES

ROOT = Path(__file__).parents[2]


@functools.cache
def nodes() -> list[tuple[str, ast.Call | ast.Import | ast.ImportFrom]]:
    """Every call and import of the source, with its place."""
    return [
        (f"{file}:{node.lineno}", node)
        for file, tree in parsed_package().items()
        for node in ast.walk(tree)
        if isinstance(node, (ast.Call, ast.Import, ast.ImportFrom))
    ]


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
        ModelError, match=rf"names a kernel of the hub, {kernel}, which transformers would download and run"
    ):
        models.check_causal_lm(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({**config, "attn_implementation": "eager"}))
    models.check_causal_lm(str(tmp_path))


# ------------------------------------------------------------------------------------------------------- what is parsed


def test_yaml_is_read_by_the_safe_loader() -> None:
    loaders = [(place, node) for place, node in calls("load") if ast.unparse(node.func) == "yaml.load"]
    assert [place for place, node in loaders if "SafeLoader" not in ast.unparse(node)] == []
    others = [p for name in ("full_load", "unsafe_load", "UnsafeLoader", "FullLoader") for p, _ in calls(name)]
    assert others == []


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
        text_rows(f"{name}.jsonl", SENTENCES)
    words = ["--model_name_or_path", str(model_folder), "--dataset_name", "train.jsonl", "--output_dir", "out"]
    words += [
        "--max_steps",
        "1",
        "--max_length",
        "32",
        "--use_cpu",
        "--keep",
        "kept.jsonl",
        "--learn",
        "learnt.jsonl",
    ]
    assert main(["train", *words]) == 0
    assert main(["evaluate", "out", "--perplexity", "kept.jsonl", "--output_dir", "measured"]) == 0
    assert main(["merge", "out", str(model_folder), "--output_dir", "merged"]) == 0
    assert asked == []


# ------------------------------------------------------------------------------------------------------------ the audit
