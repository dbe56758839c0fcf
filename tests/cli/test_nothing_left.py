"""A request that is refused leaves no folder that was not there, whichever command finds it out, and however late."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from data_files import jsonl
from holdfast.cli.main import main
from stand_ins import put_study

ROWS = [{"text": f"{n}. The quick brown fox jumps over the lazy dog."} for n in range(12)]
OUT = "new/deep/out"


@pytest.fixture
def desk(desk: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Models, one of them cut off, and rows, some of which are none."""
    for name in ("OPENAI_API_KEY", "HOLDFAST_STORAGE", "WORLD_SIZE", "RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, rows in {
        "rows": ROWS,
        "numbers": [{"number": n} for n in range(4)],
        "answers": [{"prompt": n, "answer": "b"} for n in "ab"],
        "qa": [{"question": "a?", "answer": "b"}, {"question": "", "answer": ""}],
        "dated": [{"text": row["text"], "date": "2024-02-01"} for row in ROWS],
    }.items():
        jsonl(desk / f"{name}.jsonl", rows)
    (desk / "bad.jsonl").write_text((desk / "rows.jsonl").read_text() + '{"text": 3\n')
    (desk / "queries.json").write_text(json.dumps([{"query": "a"}] * 9))
    put_study(desk / "study.yaml", "base")
    damaged = (desk / "code" / "model.safetensors").read_bytes()
    (desk / "damaged").mkdir()
    for path in (desk / "code").iterdir():
        (desk / "damaged" / path.name).write_bytes(path.read_bytes())
    (desk / "damaged" / "model.safetensors").write_bytes(damaged[: len(damaged) // 2])
    return desk


TRAIN = "train --model_name_or_path base --dataset_name rows.jsonl --max_steps 2 --use_cpu"
REFUSED: dict[str, str] = {
    "train, a key": f"{TRAIN} --learning_rate many --output_dir {OUT}",
    "train, the data": f"{TRAIN.replace('rows', 'bad')} --output_dir {OUT}",
    "train, the model": f"{TRAIN.replace('base', 'damaged')} --output_dir {OUT}",
    "train, a method": f"{TRAIN} --retention l2:reference=wide --output_dir {OUT}",
    "train, held-out text": f"{TRAIN} --keep numbers.jsonl --output_dir {OUT}",
    "evaluate, the data": f"evaluate base --keep numbers.jsonl --output_dir {OUT}",
    "evaluate, the model": f"evaluate damaged --keep rows.jsonl --output_dir {OUT}",
    "sweep": f"sweep --config study.yaml --output_dir {OUT} --storage nothing:///study.db",
    "update": f"update --base base --instruct wide --corpus dated.jsonl --tokens 50 --output_dir {OUT}",
    "update, the corpus": f"update --base base --instruct math --corpus numbers.jsonl --tokens 50 --output_dir {OUT}",
    "merge, shapes": f"merge math wide --base base --method ties --output_dir {OUT}",
    "merge, a damaged model": f"merge math damaged --method linear --output_dir {OUT}",
    "residual extract": f"residual extract --instruct wide --base base --output_dir {OUT}",
    "residual apply": f"residual apply --instruct math --old_base base --base wide --output_dir {OUT}",
    "probe, a copy": f"probe damaged --noise 0.1 --write {OUT}",
    "fisher": f"fisher base --data numbers.jsonl --output_dir {OUT}",
    "distance": f"inspect base wide --plot {OUT}/page.html",
    "inspect": "inspect damaged/nowhere --verify",
    "data prepare": f"data prepare --input queries.json --output {OUT}/rows.jsonl",
    "world": f"reproduce --world --output_dir {OUT} --layers 0",
    "quickstart": f"quickstart --output_dir {OUT} --workers 0",
    "reproduce": f"reproduce nothing --output_dir {OUT}",
    "reproduce, theory": f"reproduce residual --theory --output_dir {OUT}",
    "compare": f"compare base tuned --output {OUT}/page.html",
    "report": f"report {OUT}",
    "schema": f"schema nothing --output {OUT}/schema.json",
}


@pytest.mark.parametrize("words", REFUSED.values(), ids=REFUSED)
def test_a_refused_request_leaves_everything_as_it_was(
    words: str, desk: Path, tree: Callable[[Path], list[tuple[str, int]]], capsys: pytest.CaptureFixture[str]
) -> None:
    before = tree(desk)
    assert main(words.split()) == 2, capsys.readouterr().err
    assert tree(desk) == before


def test_a_not_finite_value_found_half_way(desk: Path, tree: Callable[[Path], list[tuple[str, int]]]) -> None:
    """Merging sees it when it comes to the tensor; the folder has been begun by then."""
    import torch
    from safetensors.torch import load_file, save_file

    tensors = load_file(desk / "code" / "model.safetensors")
    tensors["model.norm.weight"][3] = torch.nan
    save_file(tensors, desk / "code" / "model.safetensors", metadata={"format": "pt"})
    before = tree(desk)
    assert main(f"merge math code --base base --method task_arithmetic --output_dir {OUT}".split()) == 2
    assert tree(desk) == before
