"""`holdfast merge`: what it takes, what it refuses, what it shows; and requests written for mergekit."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
import yaml

from holdfast.checkpoints.merge import merge
from holdfast.checkpoints.mergekit import translate
from holdfast.checkpoints.reader import CheckpointReader
from holdfast.cli import merge as command
from holdfast.cli.main import main

FOUR = ["--method", "ties", "--base", "base", "--density", "0.5"]


def weights(folder: str | Path) -> dict[str, np.ndarray]:
    """All tensors as they are stored."""
    with CheckpointReader(folder) as reader:
        return {name: np.array(reader.mapped(name)) for name in reader.entries}


def same(one: str | Path, other: str | Path) -> bool:
    a, b = weights(one), weights(other)
    return a.keys() == b.keys() and all(np.array_equal(a[n], b[n]) for n in a)


def record(folder: str) -> dict:
    return json.loads(Path(folder, "provenance.json").read_text())


def errors(words: list[str], capsys: pytest.CaptureFixture[str], code: int = 2) -> str:
    """What a failing command says; nothing may be written."""
    assert main(["merge", *words]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    assert not Path("out").exists()
    return captured.err


# ----------------------------------------------------------------------------------------------------------------- help


def test_the_examples_in_the_help_are_sound(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every command and the YAML of the help text pass the checks, with checkpoints of those names in place."""
    for name in ("run-1", "run-2", "run-3", "tuned"):
        Path(name).symlink_to("math")
    Path("merge.yaml").write_text(dedent(command.MERGE_YAML.split("merge.yaml\n")[-1].split("\nholdfast also")[0]))
    lines = (command.EPILOG + command.EXAMPLES).replace("\\\n", " ").splitlines()
    examples = [shlex.split(line)[1:] for line in lines if line.startswith("  holdfast merge ")]
    assert len(examples) == 7
    for words in examples:
        assert main([*words, "--dry_run"]) == 0, capsys.readouterr().err


# ----------------------------------------------------------------------------------------------------------- the result


@pytest.mark.parametrize(
    ("words", "request_"),
    [
        (
            ["math", "code", "--no_normalize", "--weights=0.7,-1e-1"],
            {"method": "linear", "weights": (0.7, -0.1), "normalize": False},
        ),
        (
            ["math", "--method", "WiSE-FT", "--base", "base", "--alpha", "0.3"],
            {"method": "wise_ft", "base": "base", "alpha": 0.3},
        ),
        (
            [
                "--weights",
                "1",
                "-1e-1",
                "--scale",
                "0.5",
                "--method",
                "task-arithmetic",
                "--base",
                "base",
                "--",
                "math",
                "code",
            ],
            {"method": "task_arithmetic", "base": "base", "weights": (1, -0.1), "scale": 0.5},
        ),
        (
            ["math", "code", *FOUR, "--semantics=mergekit"],
            {"method": "ties", "base": "base", "density": 0.5, "semantics": "mergekit"},
        ),
        (
            ["math", "--method", "dare-ties", "--base", "base", "--rescale=false"],
            {"method": "dare_ties", "base": "base", "rescale": False},
        ),
        (["adapter", "--adapter-base", "base"], {"method": "linear", "adapter_base": "base"}),
    ],
    ids=lambda v: " ".join(v)[:60] if isinstance(v, list) else "",
)
def test_writes_what_the_function_writes(
    desk: Path, words: list[str], request_: dict, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["merge", "--output_dir", "out", *words, "--no-sync", "--workers", "2"]) == 0, capsys.readouterr().err
    models = [name for name in ("math", "code", "adapter") if name in words]
    merge(models, "expected", sync=False, **request_)
    assert same("out", "expected")
    assert record("out")["method"] == record("expected")["method"]
    assert Path("out/tokenizer.json").is_file()


def test_no_torch_is_imported(desk: Path) -> None:
    """Not by a merge, an extraction, a distance or an inspection, however real, of models that are whole."""
    code = """
import sys
from holdfast.checkpoints.perturb import perturb
from holdfast.cli.main import main
assert main(["merge", "math", "adapter", "--base", "base", "--method", "ties", "--output_dir", "out"]) == 0
assert main(["residual", "extract", "--instruct", "math", "--base", "base", "--output_dir", "residual"]) == 0
assert main(["residual", "apply", "--residual", "residual", "--base", "code", "--output_dir", "new"]) == 0
assert main(["inspect", "base", "out"]) == 0
perturb("base", "noisy", scale=0.1, seed=1)
assert main(["inspect", "out"]) == 0
print([m for m in ("torch", "transformers", "peft", "datasets", "safetensors") if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("[]\n")


# -------------------------------------------------------------------------------------------------------------- dry run


def test_dry_run_shows_the_plan_and_writes_nothing(desk: Path, tree, capsys: pytest.CaptureFixture[str]) -> None:
    before = tree(desk)
    assert main(["merge", "math", "adapter", *FOUR, "--output_dir", "deep/er/out", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    for part in (
        "nothing was written",
        "  merge       ties(density=0.5, scale=1, semantics=original, normalize=true)\n",
        "  base        base: 21 tensors, ",
        "  model 2     adapter on base: 21 tensors, ",
        "  output      deep/er/out: 21 tensors, ",
        " kB in 1 file\n",
        "  layout      base (names, dtypes, shards, configuration); tokenizer, chat template "
        "and generation settings of base\n",
        "  matching    21 of 21 tensors are combined\n",
        "  policies    vocabulary: error, tied_heads: error, unmatched: error, architecture: error\n",
        "in 3 passes",
        " free\n",
    ):
        assert part in shown, part
    assert tree(desk) == before


# ------------------------------------------------------------------------------------------------------------- mistakes


def test_all_mistakes_show_at_once(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "math code --method ties --dencity 0.5 --density 1.5 --floor 0.1 --vocabulary kepe --dtype bf61 --workers 0"
    shown = errors([*words.split(), "--layout", "nobody", "--no-snyc"], capsys)
    for part in (
        "8 problems:",
        "unknown option '--dencity'. Did you mean '--density'?",
        "unknown option '--no_snyc'. Did you mean '--no_sync'?",
        "--floor: ties does not take this option; fisher does. Its own: --density, --normalize, "
        "--scale, --semantics, --weights.",
        "--density: expected a number or a list of numbers above 0 and at most 1, got '1.5'",
        "--vocabulary: expected one of error, keep, zero, got 'kepe' (text). Did you mean 'keep'?",
        "--dtype: expected one of",
        "--workers: expected a whole number of at least 1, got '0'",
        "output_dir: is missing",
    ):
        assert part in shown, part
    words = "math code --method ties --weights 1 2 3 --layout nobody --output_dir out --vocabulary all"
    shown = errors(words.split(), capsys)
    for part in (
        "4 problems:",
        "--vocabulary: expected one of",
        "--weights: expected one weight for each of the 2 models, got 3 (1, 2, 3)",
        "base: ties needs a base",
        "--layout: expected one of the parents",
    ):
        assert part in shown, part


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("", ["models: is missing", "output_dir: is missing"]),
        (
            "math code --density 0.5",
            ["--density: linear does not take this option; ties, dare and dare_ties do."],
        ),
        (
            "--weights 1 2 math code",
            ["--weights: expected numbers, one per model (on a command line in the order of the models"],
        ),
        ("linear math code", ["models: expected a checkpoint, got the method linear. Write --method linear"]),
        ("math code ties", ["models: expected a checkpoint, got the method ties. Write --method ties"]),
        ("math/model.safetensors code", ["found a file. Give the folder that contains it"]),
        ("math code --method fisher", ["needs Fisher information for each model: expected 2 checkpoints, got 0"]),
        ("math wide", ["These checkpoints do not fit together", "embed_tokens.weight"]),
        ("math code --method task_arithmetic --base base --output_dir math", ["is the input math"]),
        ("math code --method task_arithmetic --base base --output_dir base/out", ["is inside the input base"]),
    ],
)
def test_mistakes(desk: Path, words: str, parts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    output = [] if "--output_dir" in words or not words else ["--output_dir", "out"]
    shown = errors([*words.split(), *output], capsys)
    for part in parts:
        assert part in shown, shown


def test_a_method_of_the_users_own(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From a file, with a parameter as an option or in the YAML; the record says whose code it was."""
    Path("mine.py").write_text(OWN)
    words = ["math", "code", "--method", "mine.py:Second", "--output_dir", "out"]
    assert main(["merge", *words, "--share", "0.5"]) == 0
    for name, values in weights("out").items():
        np.testing.assert_allclose(values, 0.5 * weights("code")[name], rtol=1e-6)
    assert record("out")["method"]["code"] == "mine.py:Second"
    write("mine.yaml", models=["math", "code"], method="mine.py:Second", share="5e-1", output_dir="again")
    assert main(["merge", "--config", "mine.yaml"]) == 0
    assert same("out", "again")
    assert main(["merge", "--method", "mine.py:Second", "--help", "second"]) == 0
    assert "--share X               Share of the second model (1; above 0)" in capsys.readouterr().out
    shutil.rmtree("out")
    assert "--share: expected a number above 0, got '0'" in errors([*words, "--share", "0"], capsys)


OWN = """
from dataclasses import dataclass
from typing import Annotated, ClassVar

from holdfast.checkpoints.methods.protocol import MergeMethod, Sum
from holdfast.config.declare import Meta


@dataclass(frozen=True, kw_only=True)
class Second(MergeMethod):
    name: ClassVar[str] = "second"
    needs_base: ClassVar[bool] = False
    models: ClassVar[tuple[int, int | None]] = (2, 2)

    share: Annotated[float, Meta(gt=0)] = 1.0
    '''Share of the second model.'''

    def as_sum(self, models, statistics):
        return Sum(None, [(self.share, 2, None)])
"""


def test_interrupted_is_exit_code_130_and_leaves_nothing(
    desk: Path, tree, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    before = [name for name, _ in tree(desk)]
    monkeypatch.setattr("holdfast.checkpoints.execute.map_blocks", interrupt)
    assert main(["merge", "math", "code", "--output_dir", "out"]) == 130
    shown = capsys.readouterr().err
    assert f"stopped: Stopped. {desk / 'out'} was not written. The same command" in shown
    assert [name for name, _ in tree(desk)] == before


# ----------------------------------------------------------------------------------------------------------------- YAML


def write(name: str, **keys) -> str:
    Path(name).write_text(yaml.safe_dump(keys))
    return name


def test_yaml_and_command_line_are_one_request(desk: Path) -> None:
    write(
        "a.yaml",
        method="task-arithmetic",
        base="base",
        models=["math", "code"],
        weights=[0.25, "75e-2"],
        scale="5e-1",
        output_dir="out",
        **{"no-sync": True},
    )
    assert main(["merge", "--config", "a.yaml"]) == 0
    merge(["math", "code"], "expected", method="task_arithmetic", base="base", weights=(0.25, 0.75), scale=0.5)
    assert same("out", "expected")
    assert main(["merge", "--config", "a.yaml", "--scale", "2", "--output_dir", "second"]) == 0
    assert record("second")["method"] == {"method": "task_arithmetic", "weights": [0.25, 0.75], "scale": 2.0}
    assert main(["merge", "stranger", "--config", "a.yaml", "--output_dir", "third"]) == 0
    assert record("third")["method"]["weights"] is None, "the weights leave with the YAML's models"


def test_mistakes_in_a_yaml(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = ["math", {"modle": "code"}, None]
    write("bad.yaml", methd="ties", densty=0.5, models=models, overwrite="yes")
    shown = errors(["--config", "bad.yaml"], capsys)
    for part in (
        "problems in bad.yaml",
        "unknown key 'methd'. Did you mean 'method'?",
        "unknown key 'densty'. Did you mean 'density'?",
        "line 5: models[1]: expected text",
        "models[2]: expected text, got None (null)",
    ):
        assert part in shown, part


# ------------------------------------------------------------------------------------------------------------- mergekit


def mergekit(text: str) -> tuple[dict, list[str]]:
    found, problems = translate(yaml.safe_load(dedent(text)), [])
    return found, problems


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            """
            merge_method: ties
            base_model: base
            models:
              - model: base
              - {model: math, parameters: {weight: 0.3, density: 0.5}}
              - {model: {model: {path: code}}, parameters: {weight: [0.7], density: {value: 0.5}}}
            parameters: {normalize: true, int8_mask: true, lambda: 0.9}
            dtype: bfloat16
            """,
            {
                "method": "ties",
                "base": "base",
                "models": ["math", "code"],
                "weights": [0.3, 0.7],
                "density": 0.5,
                "normalize": True,
                "scale": 0.9,
                "semantics": "mergekit",
                "dtype": "bfloat16",
            },
        ),
        (
            "{merge_method: slerp, base_model: base, models: [{model: math}, {model: base}], "
            "parameters: {t: 0.3}, tokenizer_source: base}",
            {"method": "slerp", "models": ["base", "math"], "t": 0.3, "tokenizer": "base"},
        ),
        (
            "{merge_method: dare_linear, base_model: base, models: [{model: math, parameters: "
            "{weight: 1, density: 0.2}}]}",
            {
                "method": "dare",
                "base": "base",
                "models": ["math"],
                "weights": [1.0],
                "density": 0.2,
                "rescale": True,
                "scale": 1.0,
                "semantics": "mergekit",
            },
        ),
        (
            "{merge_method: dare_ties, base_model: base, models: [{model: math, parameters: "
            "{weight: 1}}], parameters: {rescale: false}}",
            {
                "method": "dare_ties",
                "base": "base",
                "models": ["math"],
                "weights": [1.0],
                "density": 1.0,
                "rescale": False,
                "scale": 1.0,
                "normalize": False,
                "semantics": "mergekit",
            },
        ),
        (
            "{merge_method: linear, models: [{model: base+adapter, parameters: {weight: 0.5}}, "
            "{model: {model: {path: math}, lora: {path: adapter}}, parameters: {weight: 0.5}}]}",
            {"method": "linear", "models": ["base+adapter", "math+adapter"], "weights": [0.5, 0.5], "normalize": True},
        ),
        # as mergekit's documentation of its methods has them
        (
            """
            models:
              - model: math
              - model: code
            merge_method: model_stock
            base_model: base
            dtype: bfloat16
            """,
            {
                "method": "model_stock",
                "base": "base",
                "models": ["math", "code"],
                "dtype": "bfloat16",
            },
        ),
    ],
    ids=lambda v: v["method"] if isinstance(v, dict) else "",
)
def test_a_request_for_mergekit_is_translated(desk: Path, text: str, expected: dict) -> None:
    found, problems = mergekit(text)
    assert problems == []
    assert found == expected
    Path("mergekit.yml").write_text(dedent(text))
    assert main(["merge", "--config", "mergekit.yml", "--output_dir", "out", "--dry_run"]) == 0


def test_an_adapter_is_merged_into_the_base_before_its_plus(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["merge", "code+adapter", "--output_dir", "plus"]) == 0
    assert main(["merge", "adapter", "--adapter_base", "code", "--output_dir", "named"]) == 0
    assert Path("plus/model.safetensors").read_bytes() == Path("named/model.safetensors").read_bytes()
    capsys.readouterr()
    assert "without adapter_config.json" in errors(["code+math", "--output_dir", "no"], capsys)
    assert "Expected a checkpoint folder at ./lost" in errors(["./lost+adapter", "--output_dir", "no"], capsys)


def test_what_mergekit_has_and_this_has_not_is_one_error(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("mergekit.yml").write_text(
        dedent(
            """
            merge_method: ties
            base_model: base
            models:
              - {model: math, parameters: {weight: {filter: mlp, value: 1}, density: 0.5}}
              - {model: code, parameters: {weight: 1, density: 0.3, epsilon: 0.1}}
              - {model: stranger, parameters: {weight: 1, density: [1, 0.7, 0.1]}}
              - {model: wide, layer_range: [0, 1]}
            parameters: {normalise: true, lambda: [1, 2]}
            modules: {}
            slices: []
            """
        )
    )
    shown = errors(["--config", "mergekit.yml", "--output_dir", "out"], capsys)
    for part in (
        "line 5: models[0].parameters.weight: weight has to be the same for all layers and tensors",
        "line 6: models[1].parameters.epsilon: is not a parameter of ties in holdfast. Remove it if it has no",
        "line 7: models[2].parameters.density: density has to be the same for all layers and tensors",
        "line 8: models[3]: unknown key 'layer_range'",
        "line 9: parameters.normalise: is not a parameter of ties in holdfast.",
        "use mergekit for this merge. Did you mean 'normalize'?",
        "line 9: parameters.lambda: lambda has to be the same for all layers and tensors. Give one value",
        "modules: merging parts of a model",
        "slices: layers of several models",
    ):
        assert part in shown, part
    assert "models: is missing" not in shown


@pytest.mark.parametrize(
    ("text", "part"),
    [
        *(
            (
                f"{{merge_method: {method}, base_model: base, models: [{{model: math, parameters: {each}}}], "
                f"parameters: {{{key}: null}}}}",
                f"parameters.{key}: expected a value, got nothing (null)",
            )
            for method, each, key in (
                ("slerp", "{}", "t"),
                ("linear", "{weight: 1}", "normalize"),
                ("task_arithmetic", "{weight: 1}", "lambda"),
                ("dare_ties", "{weight: 1}", "rescale"),
            )
        ),
        (
            "{merge_method: della, base_model: base, models: [{model: math}]}",
            "merge_method: expected one of linear, slerp, task_arithmetic, ties, dare_linear, "
            "dare_ties, model_stock, got",
        ),
        (
            "{merge_method: slerp, base_model: base, models: [{model: math}]}",
            "parameters.t: is missing: mergekit requires it",
        ),
        (
            "{merge_method: ties, models: [{model: math, parameters: {weight: 1}}]}",
            "base_model: is missing: ties needs one",
        ),
        (
            "{merge_method: linear, base_model: base, models: [{model: math, parameters: {weight: 1}}]}",
            "mergekit merges as one more model. List it under 'models' with its weight",
        ),
        (
            "{merge_method: ties, base_model: base, models: [{model: base, parameters: {weight: 1}}]}",
            "models: expected a model besides base_model, got only base",
        ),
        ("{base_model: base, gate_mode: hidden, experts: [{source_model: math}]}", "experts: is a key of mergekit-moe"),
        (
            "{merge_method: nuslerp, base_model: base, models: [{model: math}]}",
            "got 'nuslerp'. For other methods, use mergekit for this merge",
        ),
        (
            "{merge_method: linear, models: [{model: math, parameters: {weight: much}}]}",
            "models[0].parameters.weight: expected a number, got 'much'",
        ),
        (
            "{merge_method: linear, models: [{model: math, parameters: {weight: 1}}], tokenizer_source: union}",
            "tokenizer_source: unions of vocabularies are not supported",
        ),
        (
            "{merge_method: linear, models: [{model: math, parameters: {weight: 1}}], "
            "tokenizer: {source: math, tokens: {}}}",
            "tokenizer.tokens: not",
        ),
        ("{merge_method: linear, models: [{model: math, parameters: [1]}]}", "expected parameters by name"),
    ],
)
def test_what_cannot_be_translated_is_named(text: str, part: str) -> None:
    assert part in "\n".join(mergekit(text)[1])


def test_all_that_cannot_be_translated_is_named_once() -> None:
    problems = mergekit(
        "{merge_method: ties, tokenizer_source: union, models: [{model: math, parameters: {weight: [0, 1]}}, "
        "{model: code, parameters: {density: 0.5}}]}"
    )[1]
    for part in ("weight has to be the same", "base_model: is missing", "weight: is missing", "unions of vocabularies"):
        assert sum(part in problem for problem in problems) == 1, part
    assert len(problems) == 4


@pytest.mark.parametrize(
    ("method", "parameters", "fits"),
    [
        ("ties", "{rescale: false}", True),
        ("ties", "{rescale: true}", False),
        ("model_stock", "{filter_wise: false}", True),
        ("model_stock", "{filter_wise: true}", False),
    ],
)
def test_parameters_that_say_what_is_done_here_have_no_effect(method: str, parameters: str, fits: bool) -> None:
    weights = "{weight: 1}" if method == "ties" else "{}"
    models = ", ".join(f"{{model: {name}, parameters: {weights}}}" for name in ("math", "code"))
    text = f"{{merge_method: {method}, base_model: base, models: [{models}], parameters: {parameters}}}"
    assert (mergekit(text)[1] == []) is fits


def test_a_request_of_ours_with_a_chat_template_is_ours(desk: Path) -> None:
    write("merge.yml", models=["math", "code"], method="linear", chat_template="chatml")
    assert main(["merge", "--config", "merge.yml", "--output_dir", "out"]) == 0
    assert "im_start" in Path("out/chat_template.jinja").read_text()
