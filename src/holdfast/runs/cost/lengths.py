"""Lengths of training documents in tokens, from the data itself: a sample of rows goes through the run's own tokenizer.

Rows are taken evenly over the data set. The tokens of an epoch are the sample's mean times the rows, so the figure is
an estimate unless all rows are in the sample. Only local data is read: what a cost estimate would have to download
first is stated by hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.runs.cost.plan import Corpus

if TYPE_CHECKING:
    from holdfast.runs.config import TrainConfig

SAMPLE = 2000
"""Rows that are tokenised at most."""


def read_corpus(config: TrainConfig, *, sample: int = SAMPLE) -> Corpus:
    """Lengths of the run's training rows, which lie on this machine.

    Args:
        config: whose `dataset_name`, templates and tokenizer are used.
        sample: rows that are tokenised at most.

    Raises:
        DataError: the data cannot be read, or its columns are not understood.
        ModelError: no tokenizer.
    """
    from holdfast.runs.loading import load_tokenizer, load_training_data
    from holdfast.support.environment import quiet_datasets, quiet_libraries

    name = config.script.dataset_name
    with quiet_libraries():
        tokenizer = load_tokenizer(config)
        rows, _ = load_training_data(config, tokenizer)
        count = len(rows)
        places = range(count) if count <= sample else [i * count // sample for i in range(sample)]
        with quiet_datasets(len(places)):
            lengths = tuple(max(1, _tokens(rows[i], tokenizer)) for i in places)
    known = len(lengths) == count
    source = f"{name}: {count:,} rows" + (
        ", all tokenised" if known else f", tokens estimated from {len(lengths):,} of them"
    )
    return Corpus(lengths=lengths, tokens=sum(lengths) / len(lengths) * count, source=source)


def _tokens(row: dict[str, Any], tokenizer: Any) -> int:
    """Tokens of one row as training will have them, with the end-of-sequence token."""
    if row.get("input_ids") is not None:
        return len(row["input_ids"])
    if row.get("messages") is not None:
        return len(tokenizer.apply_chat_template(row["messages"], tokenize=True, return_dict=True)["input_ids"])
    prompt, completion = row.get("prompt"), row.get("completion")
    if isinstance(prompt, list) and isinstance(completion, list):
        return len(tokenizer.apply_chat_template([*prompt, *completion], tokenize=True, return_dict=True)["input_ids"])
    text = row["text"] if row.get("text") is not None else f"{prompt or ''}{completion or ''}"
    return len(tokenizer(text)["input_ids"]) + 1
