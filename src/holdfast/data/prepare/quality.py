"""QuALITY (Pang et al. 2022): long articles with multiple-choice questions, the niche of the fourth recipe of "Memory
Retaining Finetuning".

The release (`QuALITY.v1.0.1.htmlstripped.train`, `.dev`) has one line for each article and writer of questions, so that
an article comes several times. Training rows are the articles, each once. With `questions` it is the multiple-choice
questions instead, in the form that the task `quality` of `holdfast evaluate` reads: `question`, `options`, `answer`
(from 0), `article`, `hard`. These are the held-out data: nothing of a question is in an article's row.

Asked without the article, "Why did he leave?" means nothing. So a question names its article first, as Yang et al. 2024
(arXiv 2409.07431) do: 'In the context of "Title", written by Author in 1968, why did he leave?'.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from holdfast.data.prepare.reading import Malformed, PreparedRow, Reading, made_of, text_of


@dataclass(frozen=True, kw_only=True)
class QualityOptions:
    """Options of the format."""

    settings_group: ClassVar[str] = "quality"

    questions: bool = False
    """The multiple-choice questions, for 'holdfast evaluate', in place of the articles."""


def read(reading: Reading) -> Iterator[PreparedRow]:
    """`{"text"}` an article, or with the option `questions` a row a question."""
    if reading.options.get("questions"):
        return made_of(reading, lambda record: _questions(record, reading))
    seen: set[str] = set()

    def article(record: Mapping[str, Any]) -> Iterator[PreparedRow]:
        text, name = text_of(record, "article").strip(), _identity(record)
        if name in seen:
            reading.skip("an article that is there already (one line for each writer of questions)")
            return
        seen.add(name)
        heading = _heading(record)
        notes = {key: record[key] for key in ("title", "author") if isinstance(record.get(key), str)}
        yield PreparedRow(
            row={"text": f"{heading}\n\n{text}" if heading else text}, group=name, notes={"id": name, **notes}
        )

    return made_of(reading, article)


def _questions(record: Mapping[str, Any], reading: Reading) -> Iterator[PreparedRow]:
    article, questions, name = text_of(record, "article").strip(), record.get("questions"), _identity(record)
    if not isinstance(questions, list):
        raise Malformed(f"no list of 'questions' (keys: {', '.join(list(record)[:8])})")
    made = []
    for number, question in enumerate(questions, 1):
        if not isinstance(question, Mapping):
            raise Malformed(f"question {number} is {type(question).__name__}, expected an object")
        asked, options, gold = (
            text_of(question, "question").strip(),
            question.get("options"),
            question.get("gold_label"),
        )
        if gold is None:
            reading.skip("a question without a published answer")
            continue
        if not isinstance(options, list) or len(options) != 4 or not all(isinstance(option, str) for option in options):
            raise Malformed(f"question {number}: expected four options")
        if not isinstance(gold, int) or not 1 <= gold <= 4:
            raise Malformed(f"question {number}: expected a gold_label from 1 to 4, got {gold!r}")
        row = {
            "question": _named(asked, record),
            "options": [option.strip() for option in options],
            "answer": gold - 1,
            "article": article,
            "hard": bool(question.get("difficult", 0)),
        }
        made.append(PreparedRow(row=row, group=name, notes={"id": str(question.get("question_unique_id", ""))}))
    yield from made


def _identity(record: Mapping[str, Any]) -> str:
    """What tells articles apart: the release's id, else the text itself."""
    name = record.get("article_id")
    return str(name) if isinstance(name, (str, int)) and str(name).strip() else str(record["article"]).strip()


def _author(record: Mapping[str, Any]) -> str:
    """Turns "Harrison, Harry" round."""
    author = str(record.get("author") or "").strip()
    last, comma, first = author.partition(", ")
    return f"{first} {last}" if comma and "," not in first else author


def _heading(record: Mapping[str, Any]) -> str:
    title = str(record.get("title") or "").strip()
    author = _author(record)
    return f"{title}\nby {author}" if title and author else title


def _named(question: str, record: Mapping[str, Any]) -> str:
    """The question with the name of its article in front."""
    title, author, year = str(record.get("title") or "").strip(), _author(record), record.get("year")
    if not title:
        return question
    by = f", written by {author}" if author else ""
    when = f" in {year}" if author and isinstance(year, (int, str)) and str(year).strip() else ""
    first, second = question[:1], question[1:2]
    # "Why did" becomes "why did"; "I" and "NASA" stay
    lowered = first.lower() + question[1:] if second.islower() else question
    return f'In the context of "{title}"{by}{when}, {lowered}'
