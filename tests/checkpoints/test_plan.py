"""The planner: all differences in one error, each policy, and what the output will look like."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoint_folders import Model, Stored, llama_shapes, random_model, read_folder, stored, write_folder
from holdfast.checkpoints.merge import merge, prepare_merge
from holdfast.checkpoints.methods.parameters import WeightedMethod
from holdfast.checkpoints.methods.registry import METHODS, find_method
from holdfast.checkpoints.plan import Plan, Policies
from holdfast.errors import ConfigError, ShapeError

HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"


def plan_of(
    tmp_path: Path,
    *models: Model,
    method: str = "linear",
    configs: tuple[dict[str, Any], ...] = (),
    tokens: Any = None,
    **request: Any,
) -> Plan:
    folders = []
    for i, model in enumerate(models):
        folder = tmp_path / f"m{i}"
        if not folder.exists():
            write_folder(folder, model, config=configs[i] if configs else None, tokens=tokens[i] if tokens else None)
        folders.append(folder)
    if method == "task_arithmetic":
        return prepare_merge(method, folders[1:], base=folders[0], **request).plan
    return prepare_merge(method, folders, **request).plan


def without(model: Model, *names: str) -> Model:
    return {n: t for n, t in model.items() if n not in names}


# ------------------------------------------------------------------------------------------------------------- refusals


def test_all_differences_are_in_one_error(tmp_path: Path) -> None:
    shapes = llama_shapes(head=True) | {"odd.weight": (2, 3), "extra.bias": (2,)}
    first = random_model(0, shapes=shapes) | {"mask": stored(np.ones(3, bool), "BOOL")}
    second = without(random_model(1, shapes=shapes), HEAD, "extra.bias")
    second |= {"mask": stored(np.ones(3), "F32"), "new.weight": stored(np.zeros(2), "BF16")}
    second["odd.weight"] = stored(np.zeros((3, 2)), "BF16")
    tokens = [[f"t{i}" for i in range(40)], [f"t{i}" for i in range(39)] + ["other"]]
    configs = ({}, {"quantization_config": {"quant_method": "fp8"}})
    with pytest.raises(ShapeError) as caught:
        plan_of(tmp_path, first, second, configs=configs, tokens=tokens)
    text = str(caught.value)
    assert text.startswith("These checkpoints do not fit together (7 differences):")
    for words in (
        "model 2 is quantised (fp8): the stored numbers are not its weights",
        "the head is tied to the embeddings in model 2, separate (lm_head.weight) in model 1. Use `--tied_heads untie`",
        "are not in the output ('other'). With --vocabulary keep",
        "mask: model 1 has BOOL, model 2 has F32",
        "odd.weight: model 1 has [2, 3], model 2 has [3, 2]",
        "1 tensors are not in model 2: extra.bias. --unmatched keep",
        "1 tensors are not in model 1: new.weight",
    ):
        assert words in text, text


def test_policies_are_checked_together() -> None:
    with pytest.raises(ConfigError) as caught:
        Policies(vocabulary="kep", tied_heads="tied", unmatched="")
    assert (
        len(caught.value.problems) == 3
        and "Did you mean 'keep'?" in caught.value.problems[0]
        and "Did you mean 'tie'?" in caught.value.problems[1]
    )


# ------------------------------------------------------------------------------------------------------ what is planned


def test_the_summary_counts_what_will_be_done(tmp_path: Path) -> None:
    model = random_model(0) | {"ids": stored(np.arange(5), "I64")}
    summary = plan_of(tmp_path, model, model, model, method="task_arithmetic").summary()
    floats = sum(np.prod(t.shape, dtype=int) for t in model.values() if t.dtype != "I64")
    nbytes = sum(len(t.content) for t in model.values())
    expected = {
        "tensors": len(model),
        "parameters": floats + 5,
        "combined": len(model) - 1,
        "copied": 1,
        "bytes_written": nbytes,
        "bytes_read": 3 * nbytes,
        "passes": 1,
        "files": ["model.safetensors"],
        "dtypes": {"BF16": floats, "I64": 5},
        "notes": [],
    }
    assert {name: summary[name] for name in expected} == expected


def test_dtypes_are_the_layouts_tensor_by_tensor_or_the_asked_one(tmp_path: Path) -> None:
    mixed = dict.fromkeys(llama_shapes(), "F16") | {"model.norm.weight": "F32"}
    first, second = random_model(0, mixed), random_model(1, "BF16")
    kept = plan_of(tmp_path, first, second)
    assert {j.name: j.dtype.name for j in kept.jobs} == {n: t.dtype for n, t in first.items()} and kept.config == {}
    wide = plan_of(tmp_path, first, second, dtype="float32")
    assert {j.dtype.name for j in wide.jobs} == {"F32"} and wide.config == {"dtype": "F32"}
    other = plan_of(tmp_path, first, second, layout="model 2")
    assert {j.dtype.name for j in other.jobs} == {"BF16"}
    with pytest.raises(ConfigError, match="dtype: expected a floating-point type such as bfloat16"):
        plan_of(tmp_path, first, second, dtype="int8")


def test_a_layout_is_one_of_the_parents(tmp_path: Path) -> None:
    models = random_model(0), random_model(1)
    with pytest.raises(ConfigError, match=r"layout: expected one of the parents .*, got elsewhere"):
        plan_of(tmp_path, *models, layout="elsewhere")
    for name in ("model 2", "2", tmp_path / "m1"):
        assert plan_of(tmp_path, *models, layout=name).layout == 1


# ------------------------------------------------------------------------------------------------- tensors not all have


def built(
    tmp_path: Path, *models: Model, method: str = "linear", configs: tuple[dict[str, Any], ...] = (), **request: Any
) -> tuple[Plan, Model]:
    plan = plan_of(tmp_path, *models, method=method, configs=configs, **request)
    folders = [tmp_path / f"m{i}" for i in range(len(models))]
    base = {"base": folders.pop(0)} if method == "task_arithmetic" else {}
    merge(folders, tmp_path / "out", method=method, sync=False, overwrite=True, **base, **request)
    return plan, read_folder(tmp_path / "out")


@pytest.mark.parametrize("policy", ["keep", "drop"])
def test_without_a_base_what_one_lacks_is_copied_or_left_out(policy: str, tmp_path: Path) -> None:
    first = random_model(0, shapes=llama_shapes() | {"a": (3,)})
    second = random_model(1, shapes=llama_shapes() | {"b": (3,)})
    plan, result = built(tmp_path, first, second, policies=Policies(unmatched=policy))
    assert result["a"] == first["a"]  # the layout's own are always kept
    assert result.get("b") == (second["b"] if policy == "keep" else None)
    assert len(plan.notes) == 2 and all(f"unmatched: {policy}" in note for note in plan.notes)


def test_with_a_base_what_a_model_lacks_has_not_changed(tmp_path: Path) -> None:
    shapes = llama_shapes() | {"a": (3,), "c": (2,)}
    base, one, two = (random_model(i, "F32", shapes) for i in range(3))
    one = without(one, "c") | {"new": stored(np.ones(2), "F32")}
    two = without(two, "a", "c")
    policies = Policies(unmatched="keep")
    _, result = built(tmp_path, base, one, two, method="task_arithmetic", policies=policies)
    assert np.allclose(result["a"].values, one["a"].values, rtol=0, atol=1e-6)
    assert result["c"] == base["c"] and result["new"] == one["new"]


def constant(value: float, *names: str, dtype: str = "F32") -> Model:
    """A model of one number everywhere, with tensors of its own beside the common one; 5,000 elements each."""
    return {n: stored(np.full(5000, value), dtype) for n in ("common", *names)}


@pytest.mark.parametrize("least", [512, 1 << 60], ids=["streamed", "blocks"])
@pytest.mark.parametrize("dtype", ["BF16", "F32"])
def test_what_several_but_not_all_have_is_their_mean_by_weight(
    least: int, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.checkpoints.execute.STREAMED", least)
    models = [
        constant(8.0, dtype=dtype),
        constant(1.0, "x", dtype=dtype),
        constant(2.0, "x", "y", dtype=dtype),
        constant(5.0, "y", "z", dtype=dtype),
    ]
    weights = [1.0, 1.0, 2.0, 3.0]
    plan, kept = built(tmp_path, *models, weights=weights, policies=Policies(unmatched="keep"))
    means = {"common": 28 / 7, "x": 5 / 3, "y": 19 / 5, "z": 5.0}
    assert kept == {n: stored(np.full(5000, np.float32(v)), dtype) for n, v in means.items()}
    record = json.loads((tmp_path / "out" / "provenance.json").read_text())
    assert record["averaged"] == {"model 2, model 3": ["x"], "model 3, model 4": ["y"]}
    assert record["copied"] == {"model 4": ["z"]} and plan.summary()["combined"] == 3
    _, dropped = built(tmp_path, *models, weights=weights, policies=Policies(unmatched="drop"))
    assert set(dropped) == {"common"}
    # what the layout has is kept under either policy, and is the mean of all that have it
    _, third = built(tmp_path, *models, weights=weights, layout="model 3", policies=Policies(unmatched="drop"))
    assert set(third) == {"common", "x", "y"} and third["y"] == kept["y"]


OTHERS = {"linear": {"normalize": False}, "ties": {"density": 0.5}, "dare": {"p": 0.5}}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_averages_what_the_base_or_others_lack(method: str, tmp_path: Path) -> None:
    """y: in the last model alone; x: in the last two, where there are so many."""
    cls = find_method(method)
    count = cls.models[1] or 3
    extra_names = [(), ("x",), ("x", "y")] if count == 3 else [()] * (count - 1) + [("y",)]
    models = [constant(1.0 + i, *names) for i, names in enumerate(extra_names)]
    folders = [write_folder(tmp_path / f"m{i}", model) for i, model in enumerate(models)]
    request: dict[str, Any] = dict(OTHERS.get(method, {}))
    if cls.needs_base:
        request["base"] = write_folder(tmp_path / "base", constant(8.0))
    if issubclass(cls, WeightedMethod):
        request["weights"] = [1.0, 1.0, 3.0][:count]
    if cls.extras:
        diagonals = [{n: stored(np.ones(5000), "F32") for n in model} for model in models]
        request["fisher"] = [write_folder(tmp_path / f"f{i}", d) for i, d in enumerate(diagonals)]
    merge(folders, tmp_path / "out", method=method, policies=Policies(unmatched="keep"), sync=False, **request)
    result = read_folder(tmp_path / "out")
    assert result["y"] == models[-1]["y"]
    if count == 3:
        assert np.allclose(result["x"].values, 2.75 if issubclass(cls, WeightedMethod) else 2.5, rtol=1e-6)


@pytest.mark.parametrize(
    ("method", "parameters"),
    [("linear", {"weights": [1.0, 0.0]}), ("task_arithmetic", {"weights": [1.0, -1.0]}), ("slerp", {"t": 0.0})],
)
def test_a_model_without_a_say_gives_no_tensors(method: str, parameters: dict[str, Any], tmp_path: Path) -> None:
    """Of weight 0, or taken away: that its tensors are in the result is not what was asked for."""
    folders = [write_folder(tmp_path / "m0", constant(1.0)), write_folder(tmp_path / "m1", constant(2.0, "y"))]
    request = dict(parameters)
    if method == "task_arithmetic":
        request["base"] = write_folder(tmp_path / "base", constant(8.0))
    with pytest.raises(
        ShapeError,
        match=r"1 tensors are only in model 2: y\. With --unmatched keep, .* their mean .* here: weights: expected",
    ):
        prepare_merge(method, folders, policies=Policies(unmatched="keep"), **request)
    plan = prepare_merge(method, folders, policies=Policies(unmatched="drop"), **request).plan
    assert [job.name for job in plan.jobs] == ["common"]


def test_fisher_information_may_lack_what_its_model_lacks_and_nothing_else(tmp_path: Path) -> None:
    names = ("a", "b")
    folders = [write_folder(tmp_path / name, constant(1.0, name)) for name in names]
    diagonals = [write_folder(tmp_path / f"f{name}", constant(1.0, name)) for name in names]
    policies = Policies(unmatched="keep")
    plan = prepare_merge("fisher", folders, fisher=diagonals, policies=policies).plan
    assert {job.name: job.action for job in plan.jobs} == {"common": "combine", "a": "copy", "b": "copy"}
    with pytest.raises(ShapeError, match=r"Fisher 2 must have values for every merged tensor"):
        prepare_merge("fisher", folders, fisher=[diagonals[0]] * 2, policies=policies)


# ---------------------------------------------------------------------------------------------------------------- heads


def with_head(model: Model, head: Stored | None = None) -> Model:
    return model | {
        HEAD: head or stored(np.random.default_rng(9).normal(size=model[EMBEDDING].shape), model[EMBEDDING].dtype)
    }


def test_tied_and_separate_heads_are_brought_in_line(tmp_path: Path) -> None:
    tied, separate = random_model(0, "F32"), with_head(random_model(1, "F32"))
    untie = Policies(tied_heads="untie")
    plan, result = built(tmp_path, tied, separate, policies=untie, weights=[1.0, 0.0])
    assert result[HEAD].content == tied[EMBEDDING].content and plan.config == {"tie_word_embeddings": False}
    _, result = built(tmp_path, tied, separate, policies=untie, weights=[0.0, 1.0])
    assert result[HEAD].content == separate[HEAD].content
    plan, result = built(tmp_path, tied, separate, policies=Policies(tied_heads="tie"), layout="model 2")
    assert HEAD not in result and plan.config == {"tie_word_embeddings": True}


def test_a_stored_head_that_repeats_the_embeddings_is_a_tied_one(tmp_path: Path) -> None:
    first, second = random_model(0), random_model(1)
    second = with_head(second, second[EMBEDDING])
    plan, found = built(tmp_path, first, second, configs=({}, {"tie_word_embeddings": True}))
    assert HEAD not in found and "Both have the same values" in plan.notes[0] and plan.config == {}


def test_a_stored_head_of_its_own_is_not_dropped_because_the_configuration_says_tied(tmp_path: Path) -> None:
    """transformers loads such a checkpoint with both."""
    first, second = with_head(random_model(0)), with_head(random_model(1))
    tied = {"tie_word_embeddings": True}
    plan, found = built(tmp_path, first, second, configs=(tied, tied), weights=[1.0, 0.0])
    assert (
        found[HEAD] == first[HEAD]
        and plan.config == {"tie_word_embeddings": False}
        and "Both are used" in plan.notes[0]
    )


def test_a_layers_output_weight_is_no_head(tmp_path: Path) -> None:
    shapes = llama_shapes() | {
        f"model.layers.{i}.attention.{n}.weight": (3, 2) for i in range(2) for n in ("output", "c_output")
    }
    first, second = random_model(0, shapes=shapes), random_model(1, shapes=shapes)
    plan, found = built(tmp_path, first, second, configs=({"tie_word_embeddings": True}, {"tie_word_embeddings": True}))
    assert set(found) == set(shapes) and plan.notes == ()
