"""The model card: valid metadata, the figures of the records, and no trace of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from synthetic_runs import comparison

from holdfast.records.run import RunFolder
from holdfast.reports.card import is_hub_id, public, write_model_card
from holdfast.reports.run_figures import read_run


def load(folder: RunFolder) -> tuple[dict, str]:
    text = write_model_card(folder).read_text(encoding="utf-8")
    assert text.startswith("---\n")
    metadata, body = text[4:].split("\n---\n", 1)
    return yaml.safe_load(metadata), body


def test_huggingface_hub_reads_the_card(make_run) -> None:
    from huggingface_hub import ModelCard

    folder = make_run()
    card = ModelCard.load(write_model_card(folder))
    assert card.data.base_model == "Qwen/Qwen2.5-0.5B"
    assert card.data.library_name == "transformers"
    assert card.data.tags == ["holdfast", "forgetting", "label-annealing"]
    assert card.data.datasets is None


def test_the_body_has_the_figures_with_their_intervals(make_run) -> None:
    folder = make_run()
    _, body = load(folder)
    rows = read_run(folder).rows
    for r in rows:
        line = next(x for x in body.splitlines() if x.startswith("| ") and r.name.replace("_", "\\_") in x)
        for figure in (
            r.before,
            r.after,
            f"{r.difference}<br>{r.interval}".replace("[", "\\[").replace("]", "\\]"),
            r.verdict,
        ):
            assert f"| {figure} " in line, figure
        numbers = [x for x in body.splitlines() if x.startswith(f"| {r.name.replace('_', chr(92) + '_')}<br>")]
        assert any(f"| {r.p.replace('<', '&lt;')} " in x and f"| {r.n} " in x for x in numbers), "folded below"
    assert read_run(folder).verdict.replace("[", "\\[").replace("]", "\\]").replace("_", "\\_") in body
    assert "| `learning_rate` | 1e-5 |" in body
    assert "torch 2.13.0" in body
    assert "AutoModelForCausalLM.from_pretrained" in body


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Qwen/Qwen2.5-0.5B", True),
        ("/data/me/model", False),
        ("~/model", False),
        ("a/b/c", False),
        ("C:\\models\\x", False),
        (None, False),
    ],
)
def test_hub_ids(name, expected) -> None:
    assert is_hub_id(name) is expected


def test_a_folder_that_looks_like_a_hub_id_is_none(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs/tiny").mkdir(parents=True)
    assert not is_hub_id("runs/tiny")
    assert is_hub_id("runs/other")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("saved to /data/me/run/model.", "saved to model."),
        ("from ~/models/tiny and C:\\models\\tiny", "from tiny and tiny"),
        ("see https://huggingface.co/Qwen/Qwen2.5-0.5B", "see https://huggingface.co/Qwen/Qwen2.5-0.5B"),
        ("prompt/completion, 3 tokens/s, a / b", "prompt/completion, 3 tokens/s, a / b"),
        ("Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-0.5B"),
        ("data='/srv/x/train.jsonl'", "data='train.jsonl'"),
        ("/srv/my data/x.jsonl", "my data/x.jsonl"),
    ],
)
def test_paths_lose_their_folders(text, expected) -> None:
    assert public(text) == expected


def test_no_machine_path_reaches_the_card(make_run) -> None:
    secret = "/srv/someone/secret-project"
    folder = make_run(
        name=f"{secret}/runs/one",
        model={"name": f"{secret}/models/tiny", "hash": "x"},
        data={"name": f"{secret}/data/train.jsonl", "examples": 5},
        config={
            "output_dir": f"{secret}/runs/one",
            "files": [f"{secret}/a.jsonl", f"{secret}/b.jsonl"],
            "nested": {"cache": f"{secret}"},
        },
        notes=[f"Cached under {secret}/cache/teacher; reading it again is free."],
        parents=[{"name": f"{secret}/models/tiny", "role": "teacher", "hash": "abc"}],
        hardware={"device": "cpu", "scratch": f"{secret}/scratch"},
        retention=[{"method": "replay", "keep": f"{secret}/data/old.jsonl", "fraction": 0.1}],
        comparisons=[comparison(name=f"{secret}/held-out.jsonl")],
    )
    metadata, body = load(folder)
    assert "someone" not in body
    assert "someone" not in yaml.safe_dump(metadata)
    assert "base_model" not in metadata
    assert "datasets" not in metadata
    assert "tiny" in body
    assert "train.jsonl" in body


def test_adapters_load_through_peft(make_run) -> None:
    folder = make_run()
    (folder.path / "adapter_config.json").write_text("{}")
    metadata, body = load(folder)
    assert metadata["library_name"] == "peft"
    assert metadata["base_model_relation"] == "adapter"
    assert "AutoPeftModelForCausalLM" in body


def test_a_hub_data_set_is_named_and_direct_fine_tuning_tagged(make_run) -> None:
    metadata, _ = load(make_run(data={"name": "allenai/c4"}, retention=[]))
    assert metadata["datasets"] == ["allenai/c4"]
    assert metadata["tags"] == ["holdfast", "forgetting", "direct-fine-tuning"]


def test_user_text_is_no_markup(make_run) -> None:
    _, body = load(make_run(name="a | b <script>", notes=["| x | [y](z) <b>\n# heading"]))
    assert "<script>" not in body
    assert "<b>" not in body
    assert "\\[y\\](z)" in body
    assert "\n# heading" not in body
