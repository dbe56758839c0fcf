"""Two tasks one after another on a real language model: `configs/sequence/smollm2.yaml` on data from a folder.

    python benchmarks/real_sequence.py --data DATA             # goes on where it was stopped; some hours of one core
    python benchmarks/real_sequence.py --data DATA --workers 2
    python benchmarks/real_sequence.py --quick                 # under a minute: a tiny model, the machinery only

DATA is a folder with the public data sets (see `real_model_data.py`); the model is `holdfast models get
smollm2-135m-instruct`. The page and its records are copied to docs/examples/real_sequence when all models are there.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "configs" / "sequence" / "smollm2.yaml"
RESULTS = ROOT / "docs" / "examples" / "real_sequence"
DATA, STUDY = Path("runs/sequence/smollm2-data"), Path("runs/sequence/smollm2")
"""As the configuration names them."""


def quick(work: Path) -> int:
    """Two steps of two arms on a tiny model and a little data: of no meaning."""
    import real_model_data
    import yaml
    from rich.console import Console

    from holdfast.cli.main import main as holdfast
    from holdfast.support.files import write_jsonl
    from holdfast.worlds.embedded import embedded_corpus
    from holdfast.worlds.people.chat import CHAT_TEMPLATE
    from holdfast.worlds.pretrain import BaseRecipe, Vocabulary, cached_base

    made, prose = real_model_data.articles(), embedded_corpus().prose_heldout[:8]
    recipe = BaseRecipe(layers=2, width=32, heads=2, mlp=64, vocab_size=384, context=256, batch_size=4, steps=3)
    vocabulary = Vocabulary(chat_template=CHAT_TEMPLATE)
    model = cached_base(prose, recipe, vocabulary=vocabulary, console=Console(file=sys.stderr))
    values = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    values["train"] |= {"model_name_or_path": str(model), "max_steps": 2, "max_length": 128}
    values |= {"arms": ["sequential", {"sfa": {"p": 0.5}}], "source": values["source"][:1]}
    os.chdir(work)
    for task in values["tasks"].values():
        for file in (task["train"]["dataset_name"], task["evaluation"][0]["perplexity"]):
            write_jsonl(Path(file), made["articles_validation"][:12])
    write_jsonl(Path(values["source"][0]["perplexity"]), [{"text": text[:300]} for text in prose])
    Path("quick.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    return holdfast(["sequence", "--config", "quick.yaml"])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="folder of the data sets")
    parser.add_argument("--workers", type=int, default=1, help="models at a time, each with its own memory (1)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="gets the page and its records")
    parser.add_argument("--quick", action="store_true", help="under a minute: a tiny model, the machinery only")
    options = parser.parse_args(arguments)
    if options.quick:
        with tempfile.TemporaryDirectory() as place:
            return quick(Path(place))
    import real_model_data

    from holdfast.cli.main import main as holdfast

    real_model_data.prepare(options.data, DATA)
    code = holdfast(["sequence", "--config", str(CONFIG), "--workers", str(options.workers)])
    if code == 0:
        options.results.mkdir(parents=True, exist_ok=True)
        for name in ("report.html", "sequence.json"):
            shutil.copy2(STUDY / name, options.results / name)
    return code


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.exit(main())
