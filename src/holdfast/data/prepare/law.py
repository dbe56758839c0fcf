"""Three tasks of United States law as questions with options: which holding a citation stands for, whether a clause of
terms of service may be unfair to the consumer, whether a sentence overrules an earlier case.

| task | a record, as published |
|---|---|
| casehold | LexGLUE's `context`, `endings`, `label`; or CaseHOLD's own `citing_prompt`, `holding_0` to `holding_4`,
`label` |
| terms_of_service | LexGLUE's `text` and `labels`, the kinds of unfairness, none where a clause is fair; or `text` and
`label` 0 or 1 |
| overruling | LegalBench's `text` and `answer`, Yes or No |

Rows have `prompt` and `completion` to train on, and `options` and `answer` for the `choices` entry of an evaluation,
whose `group: task` gives each task its own accuracy. "Soup to Go" mixes the three and does not print its prompts: these
are ours.

References: Zheng et al. 2021, When does pretraining help? (CaseHOLD, Overruling); Lippi et al. 2019, CLAUDETTE (terms
of service); Soup to Go, section 5.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.data.prepare.options import class_number, options_row
from holdfast.data.prepare.reading import Malformed, PreparedRow, Reading, made_of, text_of

HOLDINGS = 5
CASEHOLD, TERMS, OVERRULING = "casehold", "terms_of_service", "overruling"
_ASKED = {
    CASEHOLD: "Which holding does <HOLDING> stand for?",
    TERMS: "Is this clause of terms of service potentially unfair to the consumer?",
    OVERRULING: "Does this sentence overrule an earlier case?",
}
_NO_YES = ("No", "Yes")


def read(reading: Reading) -> Iterator[PreparedRow]:
    """`{"prompt", "completion", "options", "answer", "task"}`."""
    return made_of(reading, _made)


def _made(record: Mapping[str, Any]) -> Iterator[PreparedRow]:
    if "endings" in record or "holding_0" in record:
        endings = record.get("endings")
        holdings = [record.get(f"holding_{i}") for i in range(HOLDINGS)] if endings is None else endings
        if not isinstance(holdings, list) or len(holdings) != HOLDINGS or not all(isinstance(h, str) for h in holdings):
            raise Malformed(f"expected {HOLDINGS} holdings as text")
        gold = class_number(record.get("label"), HOLDINGS)
        yield _row(CASEHOLD, text_of(record, "context", "citing_prompt"), holdings, gold)
    elif "labels" in record:
        labels = record["labels"]
        if not isinstance(labels, list):
            raise Malformed(f"'labels' is {type(labels).__name__}, expected a list of kinds of unfairness")
        yield _row(TERMS, text_of(record, "text"), _NO_YES, int(bool(labels)))
    elif "answer" in record:
        answer = text_of(record, "answer").strip().capitalize()
        if answer not in _NO_YES:
            raise Malformed(f"'answer' is {answer!r}, expected Yes or No")
        yield _row(OVERRULING, text_of(record, "text"), _NO_YES, _NO_YES.index(answer))
    else:
        yield _row(TERMS, text_of(record, "text"), _NO_YES, class_number(record.get("label"), 2))


def _row(task: str, text: str, options: Sequence[str], answer: int) -> PreparedRow:
    return options_row(task, f"{text.strip()}\n\n{_ASKED[task]}", options, answer, group=text.strip())
