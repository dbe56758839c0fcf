"""Prepares the worked example: a small base pre-trained on Python's PEPs, and held-out files for both sides.

    python examples/peps_gsm8k/prepare.py --data ../shared/data --out runs/peps_gsm8k

writes `base/` (the model), `peps_heldout.jsonl` (source: what the base knows), `gsm8k_train.jsonl` (what it is
fine-tuned on) and `gsm8k_test.jsonl` (target: what is learnt), and a benchmark file for a harness task. Then, from the
repository's root:

    holdfast train --config examples/peps_gsm8k/label_annealing.yaml

The PEPs are split by document: every tenth is held out. About 15 minutes on two cores for the base; interrupted, it
continues.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
from pathlib import Path

from holdfast.papers.worlds.embedded import cut
from holdfast.papers.worlds.pretrain import BaseRecipe, pretrain
from holdfast.support.files import write_jsonl

BORDERS = (r"\n\n(?=\S)", r"\n\n", r"\n", r" ")
"""Where a PEP may be cut: sections, paragraphs, lines, words."""

RECIPE = BaseRecipe(
    layers=6,
    width=192,
    heads=6,
    mlp=512,
    vocab_size=4096,
    context=256,
    batch_size=16,
    steps=700,
    learning_rate=2e-3,
    warmup_steps=50,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with text_peps/, gsm8k/ and eval_sets/")
    parser.add_argument("--out", type=Path, default=Path("runs/peps_gsm8k"))
    options = parser.parse_args()

    with gzip.open(options.data / "text_peps" / "peps.jsonl.gz", "rt", encoding="utf-8") as file:
        documents = [json.loads(line) for line in file]
    documents.sort(key=lambda d: d["path"])
    held_out = [d["text"] for d in documents[::10]]
    training = [d["text"] for i, d in enumerate(documents) if i % 10]
    pieces = [piece for text in held_out for piece in cut(text, BORDERS, 1500) if len(piece) > 200]
    write_jsonl(
        options.out / "peps_heldout.jsonl", ({"text": piece} for piece in pieces[:: max(1, len(pieces) // 300)])
    )

    with gzip.open(options.data / "gsm8k" / "train.jsonl.gz", "rt", encoding="utf-8") as file:
        write_jsonl(options.out / "gsm8k_train.jsonl", (json.loads(line) for line in file))
    with open(options.data / "gsm8k" / "test.jsonl", encoding="utf-8") as file:
        write_jsonl(options.out / "gsm8k_test.jsonl", [json.loads(line) for line in file][:400])

    shutil.copyfile(
        options.data / "eval_sets" / "hf_ai2_arc_ARC-Easy_validation.jsonl.gz", options.out / "arc_easy.jsonl.gz"
    )

    base = options.out / "base"
    if not (base / "model.safetensors").is_file():
        pretrain(training, RECIPE, base)
    print(f"Ready: {options.out}")


if __name__ == "__main__":
    main()
