"""What `benchmarks/real_model.py` and `benchmarks/real_studies.py` train and measure on, as files: made from a folder
of public data sets and from the embedded world's generated people.

The folder has `gsm8k/`, `mbpp/`, `instruct_*/`, `text_*/`, `eval_sets/` and `ifeval/` as their public repositories
hold them. Nothing is drawn at random but with a seed, and the benchmark records every file's
digest: two sessions that read other texts do not share rows.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

GSM8K_ROWS, GSM8K_VALIDATION, GSM8K_TEST, GSM8K_ANSWERS = 256, 60, 200, 100
"""Problems to train on, to choose a rate by, to solve, and whose answers are read."""
DOCUMENTS, CHARACTERS = 60, 1200
"""Held-out pieces of each kind of prose, and how long each is at most: intervals want many documents, not long ones."""
PLAIN = 150
"""Pieces of each kind of prose to restore on."""
QUESTIONS = 500
PROMPTS = 100
PEOPLE, VALIDATION_PEOPLE, ARTICLES = 64, 24, 320
"""Of whom the articles tell, of whom the validation asks, and how many articles there are."""


def prepare(data: Path, folder: Path) -> dict[str, str]:
    """Writes all files and returns their paths by name; the same data give the same bytes."""
    from holdfast.support.files import write_jsonl

    made = {**_gsm8k(data), **_mbpp(data), **_sources(data), **_conversations(data), **articles()}
    return {name: str(write_jsonl(folder / f"{name}.jsonl", rows)) for name, rows in made.items()}


def _gsm8k(data: Path) -> dict[str, list[dict[str, Any]]]:
    training, test = list(rows_of(data / "gsm8k/train.jsonl.gz")), list(rows_of(data / "gsm8k/test.jsonl"))
    end = GSM8K_ROWS + GSM8K_VALIDATION
    return {
        "gsm8k_train": [_reply(row["question"], row["answer"]) for row in training[:GSM8K_ROWS]],
        "gsm8k_validation": [_reply(row["question"], row["answer"]) for row in training[GSM8K_ROWS:end]],
        "gsm8k_answers": [_reply(row["question"], row["answer"]) for row in test[:GSM8K_ANSWERS]],
        "gsm8k": test[:GSM8K_TEST],
    }


def _mbpp(data: Path) -> dict[str, list[dict[str, Any]]]:
    """Its authors' split: problems 601 to 974 to train on, 11 to 510 to test with."""

    def asked(row: dict[str, Any]) -> dict[str, Any]:
        tests = "\n".join(row["test_list"])
        return _reply(f"{row['text']} The code should pass these tests:\n{tests}", row["code"].replace("\r\n", "\n"))

    rows = list(rows_of(data / "mbpp/mbpp.jsonl.gz"))
    return {
        "mbpp_train": [asked(row) for row in rows if 601 <= row["task_id"] <= 974],
        "mbpp_answers": [asked(row) for row in rows if 11 <= row["task_id"] <= 510],
    }


def _sources(data: Path) -> dict[str, list[dict[str, Any]]]:
    hellaswag = (_hellaswag(row) for row in rows_of(data / "eval_sets/oe_hellaswag.docs.jsonl.gz"))
    return {
        "peps": _pieces(data / "text_peps/peps.jsonl.gz"),
        "handbook": _pieces(data / "text_18f_handbook/18f_handbook.jsonl.gz"),
        "arc_easy": list(rows_of(data / "eval_sets/hf_ai2_arc_ARC-Easy_validation.jsonl.gz"))[:QUESTIONS],
        "boolq": list(rows_of(data / "eval_sets/hf_boolq_validation.jsonl.gz"))[:QUESTIONS],
        "piqa": list(rows_of(data / "eval_sets/hf_piqa_validation.jsonl.gz"))[:QUESTIONS],
        "hellaswag": [row for row in hellaswag if row is not None][:QUESTIONS],
        "ifeval": list(rows_of(data / "ifeval/input_data.jsonl"))[:PROMPTS],
    }


def _conversations(data: Path) -> dict[str, list[dict[str, Any]]]:
    """What is held out (OpenAssistant: each tree's question with its best reply), other conversations to replay and to
    estimate the Fisher information on, and these with prose that is not measured, as plain text to restore on."""
    held_out = []
    for tree in rows_of(data / "instruct_openassistant/en_100_tree.jsonl.gz"):
        question = tree["prompt"]
        replies = [r for r in question["replies"] if not r["deleted"]]
        if replies:
            best = min(replies, key=lambda r: r.get("rank", len(replies)))
            held_out.append(_reply(question["text"], best["text"][:2000]))
    others = []
    for name in ("seed_tasks", "user_oriented_instructions"):
        for row in rows_of(data / f"instruct_self_instruct/{name}.jsonl"):
            given = row["instances"][0]
            asked = "\n\n".join(part for part in (row["instruction"], given["input"]) if part)
            others.append(_reply(asked, given["output"]))
    dolly = re.compile(r"### Instruction:\n(.*?)\n\n### Response:", re.DOTALL)
    for row in rows_of(data / "instruct_dolly_sample/dolly_151.jsonl"):
        if (asked_in := dolly.search(row["prompt"])) is not None:
            others.append(_reply(asked_in[1], row["answer"]))
    answered = [row for row in others if row["completion"][0]["content"]]
    plain = [{"text": _as_text(row)} for row in answered]
    for folder in ("text_rust_book/rust_book", "text_rust_rfcs/rust_rfcs"):
        plain += _pieces(data / f"{folder}.jsonl.gz", PLAIN)
    return {"conversations": held_out[:DOCUMENTS], "other_conversations": answered, "plain_text": plain}


def articles() -> dict[str, list[dict[str, Any]]]:
    """Dated articles about people who do not exist, and questions about each fact: in a wording that no article has,
    and as a user would ask. Some people are asked about for the choice of a learning rate only."""
    from holdfast.papers.worlds.people import documents, questions
    from holdfast.papers.worlds.people.facts import make_world
    from holdfast.papers.worlds.people.wordings import WORDINGS

    world = make_world(seed=20, people=2, new_people=PEOPLE)
    people = world.new_people
    made: dict[str, list[dict[str, Any]]] = {
        "articles": [
            {"text": f"{article.title}\n{article.date}\n\n{article.text}"}
            for article in documents.articles(world, count=ARTICLES, seed=20)
        ]
    }
    for name, asked in (("validation", people[:VALIDATION_PEOPLE]), ("test", people[VALIDATION_PEOPLE:])):
        choices = questions.choices(asked, seed=20)
        made[f"articles_{name}"] = questions.completions(asked)
        made[f"articles_{name}_choices"] = choices
        made[f"articles_{name}_chat"] = [
            {
                **row,
                "prompt": WORDINGS[row["attribute"]].questions[0].format(name=row["name"]),
                "options": [
                    WORDINGS[row["attribute"]].reply.format(name=row["name"], value=value.strip())
                    for value in row["options"]
                ],
            }
            for row in choices
        ]
    return made


def _reply(asked: str, answered: str) -> dict[str, Any]:
    return {
        "prompt": [{"role": "user", "content": asked}],
        "completion": [{"role": "assistant", "content": answered}],
    }


def _as_text(row: dict[str, Any]) -> str:
    """A conversation as the model's chat template writes it, to be read as plain text."""
    turns = [*row["prompt"], *row["completion"]]
    return "".join(f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n" for turn in turns)


def _pieces(file: Path, count: int = DOCUMENTS) -> list[dict[str, Any]]:
    """One piece of each of so many documents: paragraphs from the middle on, where there is prose and no header."""
    from holdfast.papers.worlds.embedded import cut

    documents = sorted(rows_of(file), key=lambda row: row["path"])
    found = []
    for document in documents:
        pieces = [p for p in cut(document["text"], (r"\n\n", r"\n", r" "), CHARACTERS) if len(p) > CHARACTERS // 2]
        if pieces:
            found.append({"text": pieces[len(pieces) // 2], "path": document["path"]})
    return found[:: max(1, len(found) // count)][:count]


def _hellaswag(row: dict[str, Any]) -> dict[str, Any] | None:
    """A question as a beginning and four continuations: the file has them as a list under letters."""
    parts = re.fullmatch(
        r"(.*?)\s*\nChoose the best continuation:\n A\. (.*?)\n B\. (.*?)\n C\. (.*?)\n D\. (.*?)\nAnswer:",
        row["query"],
        re.DOTALL,
    )
    if parts is None:
        return None
    beginning, *endings = parts.groups()
    return {"prompt": beginning, "options": [f" {ending}" for ending in endings], "answer": row["gold"]}


def rows_of(file: Path) -> Iterator[dict[str, Any]]:
    """The rows of a JSON Lines file, packed or not."""
    with gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else file.open(encoding="utf-8") as lines:
        yield from (json.loads(line) for line in lines if line.strip())


def sizes(paths: dict[str, str]) -> Sequence[tuple[str, int]]:
    """Rows by file."""
    return [(name, sum(1 for _ in rows_of(Path(path)))) for name, path in paths.items()]
