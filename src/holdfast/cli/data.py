"""`holdfast data`: from the files of public data sets and corpora to rows to train on, to articles made of them, to
news from the web, and to passages that a model knows."""

from __future__ import annotations

import importlib

from holdfast.errors import ConfigError, did_you_mean

HELP = """\
usage: holdfast data prepare|synthesise|crawl|select [options]

  prepare      the files of a public data set or of a corpus, as they are, to rows that 'holdfast train' reads
  synthesise   rows to textbook articles, written by a language model behind any OpenAI-compatible endpoint
  crawl        articles of newspapers, gathered by the library fundus (pip install 'holdfast[crawl]')
  select       passages of a corpus that a model knows, ranked by its perplexity, and a sample to probe with

examples
  holdfast data prepare metamath --input MetaMathQA-395K.json --output data/math/metamath.jsonl --seed 0
  holdfast data prepare stackexchange --input Posts.xml --tags algebra calculus --min_score 3 \\
      --output data/math/stack.jsonl
  holdfast data synthesise --input data/math/metamath.jsonl data/math/stack.jsonl --model gpt-4o-mini \\
      --base_url https://api.openai.com/v1 --budget_usd 50 --output data/math/articles.jsonl --dry_run
  holdfast train --config run.yaml --dataset_name data/math/articles.jsonl

  holdfast data crawl --publishers us.TheNewYorker uk --after 2024-01-01 --limit 10000 --output news/articles.jsonl
  holdfast data prepare corpus --input news/ --after 2024-01-01 --near_duplicates 0.8 --output new.jsonl --heldout 0.01

  holdfast data select --model base --input CC-MAIN-2023-40/ --tokens 20000000 --output passages

'holdfast data prepare --help', and so on, explains the options.
"""

STEPS = {
    "prepare": "holdfast.cli.data_prepare",
    "synthesise": "holdfast.cli.data_synthesise",
    "crawl": "holdfast.cli.data_crawl",
    "select": "holdfast.cli.data_select",
}
"""Step: the module that runs it."""


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast data --help`."""
    if not argv or argv[0] in ("--help", "-h", "help"):
        print(HELP)
        return 0 if argv else 2
    step, *rest = argv
    if step not in STEPS:
        raise ConfigError(
            f"expected 'holdfast data' with one of {', '.join(STEPS)}, got '{step}'.{did_you_mean(step, STEPS)}"
        )
    return int(importlib.import_module(STEPS[step]).run(rest))
