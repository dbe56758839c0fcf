"""What an anchor names: the same for the check before a run, for anchors in memory and for streamed ones."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from holdfast.errors import ModelError
from holdfast.retention.anchor import START, Anchors, anchor_folder, anchor_problems

KEPT = ("device", "cpu", "disk")
HELD = {"a.weight": torch.arange(6.0).reshape(2, 3), "b.weight": torch.ones(4, dtype=torch.bfloat16)}


def parameters(*names: str) -> dict[str, torch.nn.Parameter]:
    return {name: torch.nn.Parameter(torch.zeros_like(HELD[key])) for name, key in zip(names, HELD, strict=True)}


@pytest.mark.parametrize("where", KEPT)
@pytest.mark.parametrize(
    ("stored", "live"),
    [
        ("{}", "{}"),
        ("{}", "_orig_mod.{}"),
        ("{}", "module.{}"),
        ("{}", "base_model.model.{}"),
        ("base_model.model.{}", "base_model.model.{}"),
    ],
)
def test_names_that_the_check_takes_are_taken_wherever_the_anchor_is_kept(stored, live, where, tmp_path):
    save_file({stored.format(name): tensor for name, tensor in HELD.items()}, str(tmp_path / "model.safetensors"))
    named = parameters(*(live.format(name) for name in HELD))
    assert anchor_problems("l2.reference", str(tmp_path), named) == []
    found = Anchors(named).keep(str(tmp_path), where)
    tensors = list(found.values()) if isinstance(found, dict) else [found.tensor(k) for k in found.names()]
    for tensor, expected in zip(tensors, HELD.values(), strict=True):
        assert tensor.dtype == expected.dtype
        assert torch.equal(tensor, expected)


@pytest.mark.parametrize("where", KEPT)
@pytest.mark.parametrize(
    ("held", "said"),
    [
        (
            {"a.weight": torch.zeros(3, 2), "b.weight": torch.zeros(4)},
            r"a.weight: expected \(2, 3\), the checkpoint has",
        ),
        ({"a.weight": torch.zeros(2, 3)}, "b.weight: not in the checkpoint"),
        ({"a.weight": torch.zeros(2, 3, dtype=torch.int64), "b.weight": torch.zeros(4)}, "floating-point values"),
    ],
)
def test_what_the_check_refuses_is_refused_wherever_the_anchor_is_kept(held, said, where, tmp_path):
    save_file(held, str(tmp_path / "model.safetensors"))
    named = parameters("a.weight", "b.weight")
    [problem] = anchor_problems("l2.reference", str(tmp_path), named)
    with pytest.raises(ModelError, match=said) as caught:
        Anchors(named).keep(str(tmp_path), where)
    assert problem == f"l2.reference: {caught.value}"


def test_tied_parameters_share_one_tensor_of_the_file(tmp_path):
    save_file(dict(HELD), str(tmp_path / "model.safetensors"))
    named = parameters("a.weight", "b.weight")
    named["head.weight"] = named["a.weight"]
    found = Anchors(named).get(str(tmp_path))
    assert torch.equal(found["head.weight"], HELD["a.weight"])


def test_adapters_run_folders_and_homes(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for file in ("model", "adapter_model"):
        (tmp_path / file).mkdir()
        save_file(dict(HELD), str(tmp_path / file / f"{file}.safetensors"))
        (tmp_path / file / "run.json").write_text("{}")
        assert anchor_folder(f"~/{file}") == tmp_path / file
        assert len(Anchors(parameters("a.weight", "b.weight")).get(f"~/{file}")) == 2
    assert anchor_problems("l2.reference", START) == []


def test_what_is_no_anchor_says_what_is_near(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for step in (9, 10):
        (tmp_path / "run" / f"checkpoint-{step}").mkdir(parents=True)
        save_file(dict(HELD), str(tmp_path / "run" / f"checkpoint-{step}" / "model.safetensors"))
    (tmp_path / "pickled").mkdir()
    (tmp_path / "pickled" / "pytorch_model.bin").write_bytes(b"")
    for name, said in (
        ("ruin", "no such folder: ruin. Did you mean 'run'?"),
        ("owner/name", "first download a model of the hub"),
        ("run", "Its folder checkpoint-10 has weights: use run/checkpoint-10."),
        ("pickled", "holds only pickled weights"),
    ):
        [problem] = anchor_problems("sfa.reference", name)
        assert problem.startswith("sfa.reference: ")
        assert said in problem
