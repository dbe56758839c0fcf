"""Makes the base of `holdfast quickstart` again, as the package carries it.

    python examples/quickstart_base.py                 # a few minutes on two cores, into the package's folder
    python examples/quickstart_base.py --output DIR    # elsewhere, to compare

It is pre-trained on `base_texts` of the corpus inside this Python, with `BaseRecipe` and seed 0, and
stored in bfloat16. Another Python has other texts, another processor rounds otherwise: then the digests differ, and
the losses, which are printed for the new weights and for those of the package, are close. Trained for longer it knows
its texts by heart, and held-out prose improves when it learns code.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import asdict
from pathlib import Path

import torch
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer

from holdfast.papers.worlds.embedded import EmbeddedCorpus, embedded_corpus
from holdfast.papers.worlds.gguf import file_sha256
from holdfast.papers.worlds.pretrain import BaseRecipe, pack_rows, pretrain
from holdfast.papers.worlds.quickstart_base import FOLDER
from holdfast.papers.worlds.toy_settings import base_texts
from holdfast.papers.worlds.tuned import deciding_libraries
from holdfast.support.files import write_json


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder of the base (the package's)")
    options = parser.parse_args()
    corpus = embedded_corpus()
    if FOLDER.is_dir():
        report_losses("the package's", FOLDER, corpus)
    make(options.output, corpus)
    report_losses("new", options.output, corpus)
    return 0


def make(folder: Path, corpus: EmbeddedCorpus) -> None:
    """Pre-trains the base and writes weights, tokenizer and `base.json` to `folder`."""
    recipe = BaseRecipe()
    texts = base_texts(corpus)
    with tempfile.TemporaryDirectory() as work:
        pretrain(texts, recipe, Path(work), console=Console())
        model = AutoModelForCausalLM.from_pretrained(work, dtype=torch.bfloat16)
        tokenizer = AutoTokenizer.from_pretrained(work)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    vocabulary = folder / "tokenizer.json"
    vocabulary.write_text(json.dumps(json.loads(vocabulary.read_text()), ensure_ascii=False, separators=(",", ":")))
    record = {
        "made_by": "examples/quickstart_base.py",
        "texts": "prose and code of CPython (PSF licence): base_texts of holdfast.papers.worlds.toy_settings",
        "python": corpus.python,
        "corpus_sha256": corpus.sha256,
        "recipe": asdict(recipe),
        "parameters": model.num_parameters(),
        "libraries": deciding_libraries(),
        "sha256": {file.name: file_sha256(file) for file in sorted(folder.iterdir()) if file.name != "base.json"},
    }
    write_json(folder / "base.json", record)


@torch.no_grad()
def report_losses(name: str, folder: Path, corpus: EmbeddedCorpus) -> None:
    """Prints the digest of a base's weights and its cross-entropy on held-out prose and code, in nats a token."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    print(f"{name}: model.safetensors {file_sha256(folder / 'model.safetensors')}")
    for what, texts in (("prose", corpus.prose_heldout), ("code", corpus.code_heldout[:100])):
        rows = torch.tensor(pack_rows(texts, tokenizer, 128))
        losses = [float(model(input_ids=batch, labels=batch).loss) for batch in rows.split(32)]
        print(f"  held-out {what}: {sum(losses) / len(losses):.3f} nats a token")


if __name__ == "__main__":
    raise SystemExit(main())
