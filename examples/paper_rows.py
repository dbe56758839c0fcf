"""Rows for the studies of the papers, out of data sets as their authors publish them.

    python examples/paper_rows.py metamath MetaMathQA-395K.json --output metamath.jsonl --heldout 0.01
    python examples/paper_rows.py mr rotten_tomatoes.parquet --output mr.jsonl --heldout 0.2 --seed 0

Files are read by the library `datasets`: .json, .jsonl, .csv and .parquet; nothing is downloaded. Rows that are about
the same question (a rewording, another answer) are on one side of --heldout, and equal rows are written once. The
prompts of the law and classification tasks are ours: the papers do not print theirs.

A data set whose columns a template can join needs no such file: `configs/data/` trains on it directly.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

Record = dict[str, Any]
Made = tuple[str, Record] | None
"""What the row is about, and the row; None: the record gives none."""


def metamath(record: Record) -> Made:
    """MetaMathQA (Yu et al. 2024)."""
    row = {"question": record["query"], "answer": record["response"]}
    return record.get("original_question") or record["query"], row


def stackmathqa(record: Record) -> Made:
    """StackMathQA: questions and answers of Stack Exchange's mathematical sites."""
    return record["Q"], {"question": record["Q"], "answer": record["A"]}


def code(record: Record) -> Made:
    """Instructions of BigCode's self-oss-instruct, and of Magicoder-Evol-Instruct."""
    prompt = record.get("instruction") or record["prompt"]
    # the line breaks end the prompt, so that no token spans the border to what is learnt
    row = {"prompt": f"{prompt.rstrip()}\n\n", "completion": record["response"]}
    return record.get("seed") or prompt, row


def chat(record: Record) -> Made:
    """UltraChat 200k and TULU: a last turn that nobody answers is left out."""
    messages = [{"role": turn["role"], "content": turn["content"]} for turn in record["messages"]]
    if messages[-1]["role"] == "user":
        messages.pop()
    if not any(message["role"] == "assistant" for message in messages):
        return None
    first = next(message["content"] for message in messages if message["role"] == "user")
    return first, {"messages": messages}


def alpaca(record: Record) -> Made:
    """Alpaca (Taori et al. 2023), for a model's own chat template."""
    prompt = f"{record['instruction'].strip()}\n\n{(record['input'] or '').strip()}".strip()
    answer = record["output"].strip()
    if not answer:
        return None
    messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
    return record["instruction"].strip(), {"messages": messages}


def hh(record: Record) -> Made:
    """The chosen conversations of Anthropic's hh-rlhf (Bai et al. 2022)."""
    parts = re.split(r"(?:^|\n\n)(Human|Assistant):(?: |$)", record["chosen"], flags=re.MULTILINE)
    roles = {"Human": "user", "Assistant": "assistant"}
    messages = []
    for speaker, content in zip(parts[1::2], parts[2::2], strict=True):
        messages.append({"role": roles[speaker], "content": content.strip()})
    alternate = [("user", "assistant")[place % 2] for place in range(len(messages))]
    sound = [message["role"] for message in messages] == alternate and len(messages) % 2 == 0
    if not messages or not sound or not all(message["content"] for message in messages):
        return None
    return messages[0]["content"], {"messages": messages}


# ---------------------------------------------------------------------------------------- questions with options


def choice(task: str, text: str, question: str, options: Sequence[str], answer: int) -> Made:
    """A row to train on by its right answer, which is measured as `choices` or `classes`."""
    # the space before an option belongs to it, so that no token spans the border to what is learnt
    shown = [f" {option.strip()}" for option in options]
    row = {"prompt": f"{text}\n\n{question}\nAnswer:", "completion": shown[answer]}
    return text, {**row, "options": shown, "answer": answer, "task": task}


def law(record: Record) -> Made:
    """CaseHOLD and unfair terms of service (LexGLUE), Overruling (LegalBench)."""
    if "endings" in record:
        question = "Which holding does <HOLDING> stand for?"
        return choice("casehold", record["context"].strip(), question, record["endings"], int(record["label"]))
    if "labels" in record:
        question = "Is this clause of terms of service potentially unfair to the consumer?"
        unfair = len(record["labels"]) > 0
        return choice("terms_of_service", record["text"].strip(), question, ("No", "Yes"), int(unfair))
    question = "Does this sentence overrule an earlier case?"
    overruled = record["answer"].strip().lower() == "yes"
    return choice("overruling", record["text"].strip(), question, ("No", "Yes"), int(overruled))


SENTIMENT = ("negative", "positive")
SENTENCES = {
    "subj": ("Is this sentence objective or subjective?", ("objective", "subjective")),
    "mr": ("Is this review negative or positive?", SENTIMENT),
    "cr": ("Is this review negative or positive?", SENTIMENT),
    "tweets": ("Is this tweet negative, neutral or positive?", ("negative", "neutral", "positive")),
    "trec": (
        "Does this question ask for an abbreviation, an entity, a description, a person, a location or a number?",
        ("abbreviation", "entity", "description", "person", "location", "number"),
    ),
}
"""Tables of a `text` and its class: the question, and the classes in their order."""
LABELS = ("label", "coarse_label")
"""Columns with the number of a class, from 0. Kaggle's tweets have its word, as `sentiment`."""


def sentences(task: str) -> Callable[[Record], Made]:
    """SUBJ, MR (rotten_tomatoes), CR, TREC; as tweets Kaggle's Tweet Sentiment Extraction, or TweetEval's sentiment."""
    question, classes = SENTENCES[task]

    def made(record: Record) -> Made:
        text = (record["text"] or "").strip()
        if not text:  # one of Kaggle's tweets has none
            return None
        if "sentiment" in record:
            return choice(task, text, question, classes, classes.index(record["sentiment"]))
        label = next(record[name] for name in LABELS if name in record)
        return choice(task, text, question, classes, int(label))

    return made


def boolq(record: Record) -> Made:
    """BoolQ (Clark et al. 2019)."""
    question = record["question"].strip().rstrip("?")
    question = f"Question: {question[:1].upper()}{question[1:]}?"
    return choice("boolq", record["passage"].strip(), question, ("No", "Yes"), int(record["answer"]))


def rte(record: Record) -> Made:
    """RTE as in GLUE."""
    question = f"Question: {record['sentence2'].strip()} True or False?"
    return choice("rte", record["sentence1"].strip(), question, ("True", "False"), int(record["label"]))


def siqa(record: Record) -> Made:
    """Social IQa (Sap et al. 2019)."""
    options = [record[f"answer{letter}"] for letter in "ABC"]
    question = record["question"].strip()
    return choice("siqa", record["context"].strip(), question, options, int(record["label"]) - 1)


# --------------------------------------------------------------------------------------------------------- QuALITY


def quality(record: Record) -> Made:
    """The articles of QuALITY (Pang et al. 2022); each comes once for every writer of questions."""
    title, author = (record.get("title") or "").strip(), author_of(record)
    heading = f"{title}\nby {author}\n\n" if title and author else ""
    return record["article_id"], {"text": heading + record["article"].strip()}


def author_of(record: Record) -> str:
    """Turns "Harrison, Harry" round."""
    author = (record.get("author") or "").strip()
    last, comma, first = author.partition(", ")
    return f"{first} {last}" if comma and "," not in first else author


def quality_questions(record: Record) -> Iterator[Made]:
    """The questions of QuALITY, in the form that the task `quality` reads. "Why did he leave?" alone means nothing:
    each names its article first, as Yang et al. 2024 (arXiv 2409.07431) do."""
    for question in record["questions"]:
        if question.get("gold_label") is None:
            continue
        text = question["question"].strip()
        if text[1:2].islower():  # "Why did" becomes "why did"; "I" and "NASA" stay
            text = text[:1].lower() + text[1:]
        article = f'"{record["title"]}", written by {author_of(record)} in {record["year"]}'
        row = {
            "question": f"In the context of {article}, {text}",
            "options": [option.strip() for option in question["options"]],
            "answer": int(question["gold_label"]) - 1,
            "article": record["article"].strip(),
            "hard": bool(question.get("difficult", 0)),
        }
        yield record["article_id"], row


ROWS: dict[str, Callable[[Record], Made | Iterator[Made]]] = {
    "metamath": metamath,
    "stackmathqa": stackmathqa,
    "code": code,
    "chat": chat,
    "alpaca": alpaca,
    "hh": hh,
    "law": law,
    **{task: sentences(task) for task in SENTENCES},
    "boolq": boolq,
    "rte": rte,
    "siqa": siqa,
    "quality": quality,
    "quality_questions": quality_questions,
}


# ----------------------------------------------------------------------------------------------------- the files


def records(file: Path) -> Iterator[Record]:
    """The records of a file; an ending that is not known is read as JSON Lines."""
    import datasets

    builder = {".parquet": "parquet", ".csv": "csv"}.get(file.suffix, "json")
    yield from datasets.load_dataset(builder, data_files=str(file), split="train")


def rows_of(name: str, files: Sequence[Path]) -> Iterator[tuple[str, Record]]:
    """What every row is about, and the row."""
    for file in files:
        for record in records(file):
            made = ROWS[name](record)
            yield from (made if isinstance(made, Iterator) else [made] if made is not None else [])


def is_held_out(about: str, share: float) -> bool:
    """Decided by what a row is about alone, so that it is the same in every file."""
    content = " ".join(about.casefold().split())
    digest = hashlib.sha256(b"heldout\0" + content.encode("utf-8", "replace")).digest()
    return int.from_bytes(digest[:8]) < share * 2**64


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=ROWS, metavar="NAME", help=", ".join(ROWS))
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--output", required=True, type=Path, metavar="FILE.jsonl")
    parser.add_argument("--heldout", type=float, default=0.0, metavar="SHARE", help="goes to OUTPUT.heldout.jsonl")
    parser.add_argument("--seed", type=int, help="shuffles")
    options = parser.parse_args(arguments)
    rows = {json.dumps(row, ensure_ascii=False): about for about, row in rows_of(options.name, options.files)}
    lines = list(rows)
    if options.seed is not None:
        random.Random(options.seed).shuffle(lines)
    sides: dict[bool, list[str]] = {False: [], True: []}
    for line in lines:
        sides[is_held_out(rows[line], options.heldout)].append(line)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    held_out = options.output.with_suffix(".heldout.jsonl")
    for path, side in ((options.output, sides[False]), (held_out, sides[True])):
        if path == options.output or options.heldout:
            path.write_text("".join(f"{line}\n" for line in side), encoding="utf-8")
            print(f"{len(side):,} rows in {path}")


if __name__ == "__main__":
    main()
