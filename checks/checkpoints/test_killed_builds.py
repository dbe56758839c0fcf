"""Builds that are killed: whatever the moment, inputs and the earlier output are whole, and the same request goes on to
the same bits."""

from __future__ import annotations

import json
import os
import shutil
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from killed_builds import CALLS, Parents, at_call, die, half_done, hidden, in_child

from checkpoint_folders import contents, llama_shapes, random_model, read_folder, stored, weights, write_folder
from holdfast.checkpoints.adapter_settings import FILE as ADAPTER
from holdfast.checkpoints.merge import merge
from holdfast.errors import Interrupted, RunFolderError


@pytest.fixture
def parents(tmp_path: Path) -> Parents:
    return Parents(tmp_path)


def calls_of(work: Callable[[], Any], note: Path) -> int:
    """How many calls that change the disk it makes."""

    def counting() -> None:
        count = 0

        def add() -> None:
            nonlocal count
            count += 1

        for name in CALLS:
            real = getattr(os, name)
            setattr(os, name, lambda *a, real=real, **k: (add(), real(*a, **k))[1])
        work()
        note.write_text(str(count))

    assert in_child(counting) == 0
    return int(note.read_text())


@pytest.mark.slow
@pytest.mark.parametrize(("what", "earlier"), [("merge", True), ("extract", False)])
def test_a_kill_at_any_moment(what: str, earlier: bool, tmp_path: Path) -> None:
    parents = Parents(tmp_path, dtype="BF16" if what == "merge" else "F32")
    build = parents.merge if what == "merge" else parents.extract
    wanted = build(tmp_path / "uninterrupted")
    bits, inputs = weights(wanted.folder), [contents(p) for p in parents.parents]
    (tmp_path / "earlier").mkdir()
    old = contents(parents.merge(tmp_path / "earlier" / "out", density=1.0).folder)
    resumed = set()

    def prepare() -> None:
        for leftover in [parents.output, *hidden(tmp_path)]:
            shutil.rmtree(leftover, ignore_errors=True)
        if earlier:
            shutil.copytree(tmp_path / "earlier" / "out", parents.output)

    prepare()
    count = calls_of(build, tmp_path / "count")
    # all moments at the beginning and the end, some in the middle
    for number in [*range(3), *range(3, count - 32, 11), *range(count - 32, count, 2), count - 1]:
        prepare()
        assert os.WTERMSIG(in_child(lambda number=number: (at_call(number, die), build()))) == signal.SIGKILL
        assert [contents(p) for p in parents.parents] == inputs
        if parents.output.exists() and (not earlier or contents(parents.output) != old):
            assert weights(parents.output) == bits  # it was killed when all was done
            assert (
                json.loads((parents.output / "provenance.json").read_text())["fingerprint"]
                == wanted.record["fingerprint"]
            )
        else:
            assert parents.output.exists() == earlier
        built = build()
        resumed.add(len(built.resumed))
        assert weights(parents.output) == bits and not hidden(tmp_path), number
        assert (
            not (parents.output / ".lock").exists()
            and contents(parents.output).keys() == contents(wanted.folder).keys()
        )
    assert {0, 6} < resumed


def test_another_version_begins_anew(parents: Parents, monkeypatch: pytest.MonkeyPatch) -> None:
    half_done(parents)
    monkeypatch.setattr("holdfast.checkpoints.build.versions", lambda: {"holdfast": "another"})
    assert parents.merge().resumed == ()


def test_an_adapter_whose_settings_changed_begins_anew(tmp_path: Path) -> None:
    base = random_model(0, "F32", llama_shapes(layers=6))
    write_folder(tmp_path / "base", base, shards=6)
    adapter = {}
    for i in range(6):
        for factor, shape in (("lora_A", (2, 12)), ("lora_B", (12, 2))):
            adapter[f"base_model.model.model.layers.{i}.self_attn.q_proj.{factor}.weight"] = stored(
                np.ones(shape), "F32"
            )
    write_folder(tmp_path / "adapter", adapter, stem="adapter_model")
    (tmp_path / "adapter" / "config.json").unlink()
    settings = {
        "peft_type": "LORA",
        "r": 2,
        "lora_alpha": 2,
        "target_modules": ["q_proj"],
        "base_model_name_or_path": str(tmp_path / "base"),
    }
    (tmp_path / "adapter" / ADAPTER).write_text(json.dumps(settings))

    def work() -> None:
        at_call(4, die, ("rename",))
        merge([tmp_path / "adapter"], tmp_path / "out", workers=1)

    assert in_child(work) != 0
    (tmp_path / "adapter" / ADAPTER).write_text(json.dumps(settings | {"lora_alpha": 4}))
    built = merge([tmp_path / "adapter"], tmp_path / "out")
    assert built.resumed == ()
    for i in range(6):
        name = f"model.layers.{i}.self_attn.q_proj.weight"
        assert np.allclose(read_folder(built.folder)[name].values, base[name].values + 4, atol=1e-6)


def test_a_resumed_extraction_does_not_claim_to_have_looked_at_everything(tmp_path: Path) -> None:
    parents = Parents(tmp_path, dtype="F32")
    whole = parents.extract(tmp_path / "whole").record["audit"]
    assert whole["remainders"] > 0
    assert in_child(lambda: (at_call(6, die, ("rename",)), parents.extract())) != 0
    built = parents.extract()
    assert (
        built.resumed
        and built.record["audit"] == {"remainders": whole["remainders"], "compared_in": ["F32"]}
        and weights(built.folder) == weights(tmp_path / "whole")
    )


def test_control_c_at_many_moments(parents: Parents, tmp_path: Path) -> None:
    """Python handles the signal where it likes; the message is true wherever that is."""
    wanted = read_folder(parents.merge(tmp_path / "uninterrupted").folder)
    inputs = [contents(p) for p in parents.parents]
    stated = set()
    for number in [0, 1, 5, *range(14, 80, 13)]:
        for leftover in [parents.output, *hidden(tmp_path)]:
            shutil.rmtree(leftover, ignore_errors=True)

        def work(number: int = number) -> None:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            at_call(number, lambda: os.kill(os.getpid(), signal.SIGINT))
            try:
                parents.merge()
            except Interrupted as stopped:
                (tmp_path / "stated").write_text(str(stopped))
                os._exit(3)

        (tmp_path / "stated").write_text("")
        status = in_child(work)
        assert os.WIFEXITED(status) and os.WEXITSTATUS(status) in (0, 3), number
        text = (tmp_path / "stated").read_text()
        assert (os.WEXITSTATUS(status) == 3) == bool(text)
        complete = not text or "was written and is complete" in text
        assert parents.output.exists() == complete, text
        assert ("continues after the finished files" in text) == any(
            list(p.glob("*.safetensors")) for p in hidden(tmp_path)
        ), text
        stated |= {"continues"} if "continues" in text else {"anew"} if "starts over" in text else set()
        assert [contents(p) for p in parents.parents] == inputs
        parents.merge()
        assert read_folder(parents.output) == wanted and not hidden(tmp_path)
    assert "continues" in stated


@pytest.mark.parametrize("same", [True, False])
def test_two_processes_that_write_the_same_output(same: bool, parents: Parents, tmp_path: Path) -> None:
    ready, go = os.pipe(), os.pipe()

    def wait() -> None:
        os.write(ready[1], b".")
        os.read(go[0], 1)

    child = os.fork()
    if child == 0:
        try:
            at_call(10, wait, ("pwrite",))
            parents.merge(overwrite=False)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.read(ready[0], 1)
    for overwrite in (False, True):
        with pytest.raises(RunFolderError, match=r"Another process is writing .*out at this moment"):
            parents.merge(density=0.4 if same else 0.9, overwrite=overwrite)
    os.write(go[1], b".")
    assert os.waitpid(child, 0)[1] == 0
    assert read_folder(parents.output) == read_folder(parents.merge(tmp_path / "single").folder) and not hidden(
        tmp_path
    )
    for end in (*ready, *go):
        os.close(end)


def test_what_killed_runs_of_other_requests_left_is_removed(parents: Parents, tmp_path: Path) -> None:
    half_done(parents)
    left = hidden(tmp_path)
    parents.merge(tmp_path / "other")
    assert hidden(tmp_path) == left  # of another destination
    parents.merge(density=0.9)
    assert not hidden(tmp_path)
