"""Merges of ranges of layers, with parameters that differ between layers, tensors and models, and with the tokens and
the chat template of several models: against float64 references, and as transformers loads them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from holdfast.checkpoints.merge import merge
from holdfast.checkpoints.methods.registry import METHODS
from holdfast.checkpoints.methods.varying import place_of, value_at, vary_problems
from holdfast.checkpoints.policies import Policies
from holdfast.checkpoints.reader import CheckpointReader
from holdfast.errors import ConfigError, HoldfastError, ShapeError
from tiny import build_model, build_tokenizer


def with_tokens(folder: str, *tokens: str) -> dict[str, int]:
    """Gives a model tokens of its own, with rows for them."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(list(tokens), special_tokens=True)
    model = AutoModelForCausalLM.from_pretrained(folder)
    torch.manual_seed(len(tokens))
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return dict(tokenizer.get_vocab())


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders a, b, c of one architecture and one of another width, with a tokenizer each."""
    folder = tmp_path_factory.mktemp("models")
    for seed, name in enumerate("abc"):
        build_model(tie=False, seed=seed).save_pretrained(folder / name)
    build_model(tie=False, width=16).save_pretrained(folder / "narrow")
    build_model(tie=True).save_pretrained(folder / "tied")
    build_model(tie=False).save_pretrained(folder / "more")
    for name in (*"abc", "narrow", "tied", "more"):
        build_tokenizer(320).save_pretrained(folder / name)
    with_tokens(str(folder / "more"), "<|new|>")
    return folder


@pytest.fixture
def desk(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(models, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def weights(folder: str) -> dict[str, np.ndarray]:
    with CheckpointReader(folder) as reader:
        return {n: np.array(reader.mapped(n), np.float64).reshape(reader.shape(n)) for n in reader.entries}


def loaded(folder: str) -> Any:
    model, told = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(told[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return model.eval()


# --------------------------------------------------------------------------------------------------------------- layers


def test_layers_stand_on_each_other_bit_for_bit(desk: Path) -> None:
    built = merge(["a[0:2]+b[1:2]+c[0:1]"], "out")
    out, parts = weights("out"), {name: weights(name) for name in "abc"}
    wanted = [("a", 0), ("a", 1), ("b", 1), ("c", 0)]
    assert json.loads(Path("out/config.json").read_text())["num_hidden_layers"] == 4
    for name, values in out.items():
        if ".layers." in name:
            _, _, layer, rest = name.split(".", 3)
            model, inner = wanted[int(layer)]
            assert np.array_equal(values, parts[model][f"model.layers.{inner}.{rest}"]), name
    assert np.array_equal(out["model.embed_tokens.weight"], parts["a"]["model.embed_tokens.weight"])
    for behind in ("model.norm.weight", "lm_head.weight"):
        assert np.array_equal(out[behind], parts["c"][behind])
    roles = [parent["role"] for parent in built.record["parents"]]
    assert roles == ["model 1 (part 1)", "model 1 (part 2)", "model 1 (part 3)"]
    assert any("made of 4 layers" in note for note in built.record["plan"]["notes"])


def test_it_computes_what_its_parts_compute(desk: Path) -> None:
    merge(["a[0:2]+a[0:2]"], "twice")
    model, once = loaded("twice"), loaded("a")
    ids = torch.arange(6)[None]
    with torch.no_grad():
        states = once.model.embed_tokens(ids)
        rotary = once.model.rotary_emb(states, torch.arange(6)[None])
        mask = torch.triu(torch.full((6, 6), float("-inf")), 1)[None, None]
        for layer in [*once.model.layers, *once.model.layers]:
            out = layer(states, attention_mask=mask, position_embeddings=rotary)
            states = out[0] if isinstance(out, tuple) else out
        expected = once.lm_head(once.model.norm(states))
        torch.testing.assert_close(model(ids).logits, expected, rtol=1e-5, atol=1e-6)


def test_the_whole_of_a_model_is_the_model(desk: Path) -> None:
    merge(["a[0:2]", "b[0:2]"], "named", weights=[0.3, 0.7])
    merge(["a", "b"], "plain", weights=[0.3, 0.7])
    assert all(np.array_equal(v, weights("plain")[n]) for n, v in weights("named").items())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a[0:3]", r"expected layers within \[0:2\] of a, got \[0:3\]"),
        ("a[1:1]", r"within \[0:2\]"),
        ("a[0:1]+narrow[1:2]", "layers of narrow do not fit on those of a: hidden_size 32 and 16"),
        ("a[0:1]+missing[0:1]", "missing"),
        ("a[0:1]+tied[1:2]", "the head is tied to the embeddings in one of a and tied"),
        ("a[0:1]+more[1:2]", "the vocabulary of more is not that of a"),
    ],
)
def test_ranges_that_are_not_there_and_models_that_do_not_fit(desk: Path, name: str, said: str) -> None:
    with pytest.raises(HoldfastError, match=said):
        merge([name], "out")
    assert not Path("out").exists()


def test_a_folder_with_brackets_in_its_name_is_a_folder(desk: Path) -> None:
    Path("a").rename("x[0:1]")
    merge(["x[0:1]"], "out")
    assert json.loads(Path("out/config.json").read_text())["num_hidden_layers"] == 2


def test_what_is_listed_by_layer_follows(desk: Path) -> None:
    for name, kinds in (("a", ["full_attention", "sliding_attention"]), ("b", ["sliding_attention", "full_attention"])):
        config = json.loads(Path(name, "config.json").read_text())
        Path(name, "config.json").write_text(json.dumps({**config, "layer_types": kinds}))
    merge(["a[0:2]+b[0:1]"], "out")
    found = json.loads(Path("out/config.json").read_text())["layer_types"]
    assert found == ["full_attention", "sliding_attention", "sliding_attention"]


# ------------------------------------------------------------------------------------------------------ what may differ


def test_values_at_places() -> None:
    def at(value: Any, name: str, layers: int = 5) -> Any:
        return value_at(value, place_of(name, layers))

    names = [f"model.layers.{i}.mlp.up_proj.weight" for i in range(5)]
    assert [at([0, 1], n) for n in names] == [0, 0.25, 0.5, 0.75, 1]
    assert [at([0, 1, 0], n) for n in names] == [0, 0.5, 1, 0.5, 0]
    assert (at([3, 1], "model.embed_tokens.weight"), at([3, 1], "model.norm.weight")) == (3, 1)
    assert at([3, 1], "model.layers.0.x.weight", layers=1) == 1, "mergekit: a single layer is the end"
    entries = [
        {"filter": "mlp", "layers": [1, 4], "value": [0, 1]},
        {"part": "behind", "value": 9},
        {"part": "before", "value": 8},
        {"filter": "*", "value": 0.5},
    ]
    assert [at(entries, n) for n in names] == [0.5, 0, 0.5, 1, 0.5]
    assert (at(entries, "lm_head.weight"), at(entries, "transformer.wte.weight")) == (9, 8)
    assert at([{"filter": "attn", "value": 1}], names[0]) is None
    assert at({"layers": [0, 1], "value": 7}, "model.embed_tokens.weight") == 7
    assert at({"layers": [4, 5], "value": 7}, "model.norm.weight") == 7


def slerp(a: np.ndarray, b: np.ndarray, t: float) -> np.ndarray:
    x, y = a.ravel(), b.ravel()
    cosine = np.clip(x @ y / np.linalg.norm(x) / np.linalg.norm(y), -1, 1)
    if t in (0, 1) or abs(cosine) > 0.9995:
        return (1 - t) * a + t * b
    omega = np.arccos(cosine)
    return (np.sin((1 - t) * omega) * a + np.sin(t * omega) * b) / np.sin(omega)


def test_slerp_from_the_first_layer_to_the_last(desk: Path) -> None:
    vary = {"t": [{"filter": "self_attn", "value": [0.25, 0.75]}, {"part": "before", "value": 0}]}
    built = merge(["a", "b"], "out", method="slerp", t=0.4, vary=vary)
    assert built.record["method"]["vary"] == vary
    a, b, out = weights("a"), weights("b"), weights("out")
    for name, values in out.items():
        layer = int(name.split(".")[2]) if ".layers." in name else None
        t = 0.0 if "embed" in name else 0.4 if layer is None or "self_attn" not in name else (0.25, 0.75)[layer]
        np.testing.assert_allclose(values, slerp(a[name], b[name], t), rtol=2e-6, atol=1e-8, err_msg=name)


def trimmed(delta: np.ndarray, density: float) -> np.ndarray:
    k = max(1, int(density * delta.size))
    return np.where(np.abs(delta) >= np.sort(np.abs(delta).ravel())[-k], delta, 0)


def test_ties_with_a_density_for_each_model_and_layer(desk: Path) -> None:
    vary = {"density": {1: [0.2, 0.9], 2: 0.5}, "weights": {2: {"filter": "mlp", "value": 2.0}}}
    merge(["b", "c"], "out", method="ties", base="a", semantics="mergekit", weights=[1, 1], density=0.3, vary=vary)
    a, b, c, out = (weights(name) for name in ("a", "b", "c", "out"))
    for name, values in out.items():
        layer = int(name.split(".")[2]) if ".layers." in name else 0 if "embed" in name else 1
        first, second = (0.2, 0.9)[layer], 2.0 if "mlp" in name else 1.0
        deltas = [trimmed(b[name] - a[name], first), second * trimmed(c[name] - a[name], 0.5)]
        total = np.sum(deltas, axis=0)
        sign = np.where(total >= 0, 1, -1)
        agree = [np.sign(d) == sign for d in deltas]
        divisor = agree[0] * 1.0 + agree[1] * second
        merged = sum(d * g for d, g in zip(deltas, agree, strict=True)) / np.where(divisor == 0, 1, divisor)
        np.testing.assert_allclose(values, a[name] + merged, rtol=2e-6, atol=1e-7, err_msg=name)


@pytest.mark.parametrize(
    ("method", "given"),
    [
        ("ties", {"semantics": "original"}),
        ("ties", {"semantics": "mergekit"}),
        ("dare", {"semantics": "mergekit"}),
        ("dare_ties", {}),
        ("breadcrumbs", {"gamma": (0.1, 0.1)}),
    ],
)
def test_one_number_for_all_is_that_number_for_each(desk: Path, method: str, given: dict[str, Any]) -> None:
    plain = {key: value[0] if isinstance(value, tuple) else value for key, value in given.items()}
    merge(["b", "c"], "one", method=method, base="a", density=0.6, **plain)
    merge(["b", "c"], "each", method=method, base="a", density=(0.6, 0.6), **given)
    assert all(np.array_equal(v, weights("one")[n]) for n, v in weights("each").items())
    merge(["b", "c"], "other", method=method, base="a", density=(0.6, 0.2), **given)
    assert not all(np.array_equal(v, weights("one")[n]) for n, v in weights("other").items())
    with pytest.raises(ConfigError, match="density: expected one number, or one for each of the 2 models, got 3"):
        merge(["b", "c"], "out", method=method, base="a", density=(0.6, 0.2, 0.1), **given)


def test_what_varies_has_to_fit_the_method(desk: Path) -> None:
    with pytest.raises(ConfigError, match=r"ties looks at the whole model at once\. Add semantics: mergekit"):
        merge(["b", "c"], "out", method="ties", base="a", vary={"density": [0.2, 0.9]})
    with pytest.raises(ConfigError, match=r"vary: lm_head.*density: expected .*above 0"):
        merge(["b"], "out", method="ties", base="a", semantics="mergekit", vary={"density": [0.2, 0]})
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("vary", "said"),
    [
        ([1], "vary: expected values by parameter"),
        ({"d": 1}, "vary.d: is none of its parameters of ties; what may vary: weights, density, scale."),
        ({"semantics": "x"}, "vary.semantics: is no number of ties"),
        ({"density": {3: 0.5}}, "vary.density: expected numbers of models, 1 to 2, got 3"),
        ({"scale": {1: 0.5}}, "vary.scale: ties has one for all models"),
        ({"density": []}, "vary.density: expected a number, numbers from the first layer to the last, or entries"),
        ({"density": [{"valu": 1}]}, "vary.density[0]: expected {filter: TEXT, value: NUMBER}"),
        ({"density": [{"fliter": "x", "value": 1}]}, "unknown key 'fliter'. Did you mean 'filter'?"),
        ({"density": [{"layers": [3, 1], "value": 1}]}, "vary.density[0].layers: expected the first layer"),
        ({"density": [{"part": "behnd", "value": 1}]}, "expected one of before, layers, behind"),
        ({"density": {1: [0.1, True]}}, "vary.density.1[0]: expected"),
    ],
)
def test_what_is_wrong_with_it_is_said(vary: Any, said: str) -> None:
    assert said in "\n".join(vary_problems(vary, METHODS["ties"], 2))


# -------------------------------------------------------------------------------------------------------------- tokens


def test_a_union_has_the_tokens_of_all(desk: Path) -> None:
    held = {
        "a": with_tokens("a"),
        "b": with_tokens("b", "<|tool|>", "<|think|>"),
        "c": with_tokens("c", "<|think|>", "<|end|>"),
    }
    built = merge(["a", "b", "c"], "out", tokenizer="union", weights=[0.2, 0.3, 0.5])
    tokenizer, model = AutoTokenizer.from_pretrained("out"), loaded("out")
    vocabulary = tokenizer.get_vocab()
    assert set(vocabulary) == set().union(*held.values()) and len(vocabulary) == len(held["a"]) + 3
    assert model.config.vocab_size == model.get_input_embeddings().num_embeddings == len(vocabulary)
    assert tokenizer.tokenize("x<|tool|>y")[1] == "<|tool|>" and tokenizer.convert_tokens_to_ids("<|end|>") > 0
    rows = {name: weights(name)["model.embed_tokens.weight"] for name in held}
    out = weights("out")["model.embed_tokens.weight"]
    for token, row in vocabulary.items():
        own = {name: rows[name][ids[token]] for name, ids in held.items() if token in ids}
        stand_in = own["a"] if "a" in own else sum(own.values()) / len(own)
        shares = zip("abc", (0.2, 0.3, 0.5), strict=True)
        expected = sum(share * own.get(name, stand_in) for name, share in shares)
        np.testing.assert_allclose(out[row], expected, rtol=1e-6, atol=1e-8, err_msg=token)
    assert any("3 tokens are added to the tokenizer of model 1" in note for note in built.record["plan"]["notes"])


def test_a_union_over_a_base_leaves_its_rows_where_a_model_has_none(desk: Path) -> None:
    base = with_tokens("a", "<|old|>")
    with_tokens("b")
    merge(["b"], "out", method="task_arithmetic", base="a", scale=1.0, tokenizer="union")
    row = base["<|old|>"]
    out, own = weights("out"), weights("a")
    np.testing.assert_array_equal(out["model.embed_tokens.weight"][row], own["model.embed_tokens.weight"][row])


def test_the_union_of_one_vocabulary_is_that(desk: Path) -> None:
    merge(["a", "b"], "plain")
    merge(["a", "b"], "united", tokenizer="union")
    assert all(np.array_equal(v, weights("plain")[n]) for n, v in weights("united").items())
    assert Path("plain/tokenizer.json").read_bytes() == Path("united/tokenizer.json").read_bytes()


def test_pieces_of_another_vocabulary_are_refused(desk: Path) -> None:
    content = json.loads(Path("b/tokenizer.json").read_text())
    plain = sorted(set(content["model"]["vocab"]) - {t["content"] for t in content["added_tokens"]})
    content["model"]["vocab"]["zzz"] = content["model"]["vocab"].pop(plain[-1])
    Path("b/tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(
        ShapeError, match=r"model 2 has 1 tokens of its own that are pieces of its vocabulary \('zzz'\)"
    ):
        merge(["a", "b"], "out", tokenizer="union")
    for file in Path("b").glob("tokenizer*"):
        file.unlink()
    with pytest.raises(ShapeError, match="model 2: a union needs its tokenizer: b has no tokenizer"):
        merge(["a", "b"], "out", tokenizer="union")


# ------------------------------------------------------------------------------------------------------- chat templates


def test_a_chat_template_takes_the_place_of_the_parents(desk: Path) -> None:
    for name, text in (("a", "A{{ messages }}"), ("b", "B{{ messages }}"), ("c", "B{{ messages }}")):
        tokenizer = AutoTokenizer.from_pretrained(name)
        tokenizer.chat_template = text
        tokenizer.save_pretrained(name)
    Path("own.jinja").write_text("own {{ messages }}")
    cases = {"auto": "B{{ messages }}", "own.jinja": "own {{ messages }}", "{{ messages }}!": "{{ messages }}!"}
    for number, (given, expected) in enumerate(cases.items()):
        merge(["a", "b", "c"], f"out{number}", chat_template=given)
        assert AutoTokenizer.from_pretrained(f"out{number}").chat_template == expected
    merge(["a"], "chatml", chat_template="chatml")
    said = AutoTokenizer.from_pretrained("chatml").apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert said == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    with pytest.raises(ConfigError, match=r"chat_template: expected auto, chatml, a \.jinja file"):
        merge(["a"], "out", chat_template="llama3")
    with pytest.raises(ConfigError, match=r"no\.jinja cannot be read"):
        merge(["a"], "out", chat_template="no.jinja")


def test_a_template_in_the_settings_of_the_tokenizer_gives_way(desk: Path) -> None:
    settings = json.loads(Path("a/tokenizer_config.json").read_text())
    Path("a/tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": "old {{ messages }}"}))
    merge(["a"], "out", chat_template="new {{ messages }}")
    assert AutoTokenizer.from_pretrained("out").chat_template == "new {{ messages }}"
    for file in Path("a").glob("*template*"):
        file.unlink()
    merge(["a", "b"], "most", chat_template="auto")
    assert AutoTokenizer.from_pretrained("most").chat_template == "old {{ messages }}"
    with pytest.raises(ConfigError, match="none has one"):
        merge(["c"], "none", chat_template="auto")


# -------------------------------------------------------------------------------------------- found by a second reading


def test_every_part_of_a_long_stack_is_part_of_its_request(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed merge is not continued by another one that begins alike."""
    from holdfast.checkpoints import build

    def stopped(*_: Any) -> None:
        raise KeyboardInterrupt

    long = "+".join(["a[0:1]"] * 9)
    with monkeypatch.context() as patch:
        patch.setattr(build, "_add_files", stopped)
        with pytest.raises(HoldfastError, match="Stopped"):
            merge([long], "out")
    other = "+".join(["a[0:1]"] * 8 + ["a[1:2]"])
    built = merge([other], "out")
    assert built.resumed == ()
    name = "mlp.up_proj.weight"
    assert np.array_equal(weights("out")[f"model.layers.8.{name}"], weights("a")[f"model.layers.1.{name}"])


def test_weights_that_vary_hold_for_tensors_that_only_some_models_have(desk: Path) -> None:
    from safetensors.torch import load_file, save_file

    for name, value in (("b", 2.0), ("c", 6.0)):
        tensors = load_file(f"{name}/model.safetensors")
        biases = {
            f"{n.removesuffix('.weight')}.bias": torch.full((len(t),), value)
            for n, t in tensors.items()
            if "_attn" in n
        }
        save_file({**tensors, **biases}, f"{name}/model.safetensors", {"format": "pt"})
        config = json.loads(Path(name, "config.json").read_text())
        Path(name, "config.json").write_text(json.dumps({**config, "attention_bias": True}))
    policies = Policies(unmatched="keep")
    merge(["a", "b", "c"], "out", weights=[1, 1, 1], policies=policies, vary={"weights": {2: 3.0, 3: 1.0}})
    np.testing.assert_allclose(weights("out")["model.layers.0.self_attn.q_proj.bias"], 3.0)


def test_a_token_that_the_layout_has_no_row_for_keeps_its_number(desk: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained("a")
    tokenizer.add_tokens(["<|late|>"], special_tokens=True)
    tokenizer.save_pretrained("a")  # its embeddings end before it
    held = with_tokens("b", "<|z|>", "<|late|>")
    built = merge(["a", "b"], "out", tokenizer="union")
    vocabulary = AutoTokenizer.from_pretrained("out").get_vocab()
    assert (vocabulary["<|late|>"], vocabulary["<|z|>"]) == (320, 321) and len(vocabulary) == 322
    rows, own = weights("out")["model.embed_tokens.weight"], weights("b")["model.embed_tokens.weight"]
    np.testing.assert_allclose(rows[320], own[held["<|late|>"]])
    assert len(rows) == 322 and built.record["plan"]["notes"]
    merge(["a", "c"], "same", tokenizer="union")
    assert len(weights("same")["model.embed_tokens.weight"]) == 320, "nothing is added where nothing is to be had"


def test_a_share_for_some_models_needs_one_for_the_others(desk: Path) -> None:
    with pytest.raises(ConfigError, match="density: expected the method's own density, too"):
        merge(["b", "c"], "out", method="dare", base="a", vary={"density": {1: 0.5}})
    merge(["b", "c"], "out", method="breadcrumbs", base="a", density=(0.5, 1.0), gamma=0.1)


def test_heads_of_other_names_stand_behind_the_layers() -> None:
    assert place_of("embed_out.weight", 2).part == "behind" and place_of("gpt_neox.embed_in.weight", 2).part == "before"
    assert place_of("shared.weight", 2).part == "before"


def test_lists_of_the_configuration_that_are_not_by_layer_stay(desk: Path) -> None:
    config = json.loads(Path("a/config.json").read_text())
    Path("a/config.json").write_text(json.dumps({**config, "eos_token_id": [0, 1], "mlp_only_layers": [0, 1]}))
    built = merge(["a[0:2]+a[1:2]"], "out")
    found = json.loads(Path("out/config.json").read_text())
    assert (found["eos_token_id"], found["mlp_only_layers"]) == ([0, 1], [0, 1])
    assert any(
        "mlp_only_layers of the configuration speaks of layers" in note for note in built.record["plan"]["notes"]
    )


def test_templates_by_name_and_those_of_a_base(desk: Path) -> None:
    settings = json.loads(Path("a/tokenizer_config.json").read_text())
    named = [{"name": "default", "template": "D{{ messages }}"}, {"name": "tools", "template": "T"}]
    Path("a/tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": named}))
    merge(["a", "b"], "out", chat_template="auto")
    assert AutoTokenizer.from_pretrained("out").chat_template == "D{{ messages }}"
    Path("b/additional_chat_templates").mkdir()
    Path("b/additional_chat_templates/tools.jinja").write_text("T{{ messages }}")
    Path("b/chat_template.jinja").write_text("B{{ messages }}")
    merge(["b"], "one", chat_template="new {{ messages }}")
    assert AutoTokenizer.from_pretrained("one").chat_template == "new {{ messages }}"
    Path("c/chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(HoldfastError, match="cannot be read"):
        merge(["c"], "bad", chat_template="auto")
