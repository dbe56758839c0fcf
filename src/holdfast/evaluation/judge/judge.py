"""Which of two answers is better, asked of a language model behind any OpenAI-compatible endpoint, in both orders of
the pair.

A judge sees an instruction and two outputs and answers with one letter; `holdfast.evaluation.judge.verdict` reads the
probability of it from the log-probabilities. Every pair is asked in both orders, since judges favour a position (Zheng
et al. 2023, "Judging LLM-as-a-Judge", arXiv 2306.05685). The wording is our own, in the spirit of AlpacaEval
(github.com/tatsu-lab/alpaca_eval).

Asking costs money, so nothing is asked twice: every judgement goes to `judgements.jsonl` the moment it is there, keyed
by all that decides it (instruction, both outputs, their order, the judge's name, template and settings; not the
address, which changes with every server that is started). What fails for good is recorded, asked again by the next run,
and does not stop this one. How an endpoint is asked, and what it may refuse, is `holdfast.support.endpoint`'s.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.evaluation.judge.settings import TEMPERATURE, TEMPLATE, JudgeSettings
from holdfast.evaluation.judge.verdict import Verdict, read_verdict
from holdfast.support.endpoint import Answer, Client, Endpoint, OptionNames, run, work_through
from holdfast.support.files import fingerprint
from holdfast.support.ledger import Ledger

JUDGEMENTS = "judgements.jsonl"
OPTIONS = OptionNames(model="judge_model", base_url="base_url", key="api_key_env")
_RULES = 2
"""Raised when what a reply means changes, so that older judgements are made again."""


@dataclass(frozen=True, kw_only=True)
class AnswerPair:
    """One prompt with the answers of both models."""

    instruction: str
    candidate: str
    reference: str

    @property
    def doc(self) -> str:
        """Hash of the instruction."""
        return fingerprint(self.instruction, length=32)


@dataclass(frozen=True, kw_only=True)
class Question:
    """One order of one pair, as it is asked."""

    key: str
    doc: str
    message: str


@dataclass(frozen=True, kw_only=True)
class PairResult:
    """One prompt with the judgements of both orders."""

    doc: str
    """Hash of the prompt, the key that comparisons join on."""
    status: str
    """"judged", "identical" (equal answers: a tie, not asked), "refused" or "failed" (in at least one order)."""
    length_candidate: int
    """Characters of the candidate's answer."""
    length_reference: int
    """Characters of the reference's answer."""
    candidate_first: float | None = None
    """P(candidate wins) where it was shown first; None where there is no verdict."""
    candidate_second: float | None = None
    """P(candidate wins) where it was shown second."""

    @property
    def preference(self) -> float | None:
        """Mean P(candidate wins) over the orders, so that a judge's liking for what it reads first cancels; None for a
        pair without a verdict in both."""
        if self.status == "identical":
            return 0.5
        if self.status != "judged" or self.candidate_first is None or self.candidate_second is None:
            return None
        return (self.candidate_first + self.candidate_second) / 2


@dataclass(frozen=True, kw_only=True)
class Judged:
    """All pairs with their judgements, and what these took."""

    pairs: list[PairResult]
    """In the order of the pairs given."""
    questions: int
    """Requests that all pairs need: two a pair, none where the answers are equal."""
    asked: int
    """Of these, how many were asked now; the others were there already."""
    judged: int
    refused: int
    failed: int
    notes: list[str]


def question(instruction: str, first: str, second: str, settings: JudgeSettings) -> Question:
    """One request and its key."""
    decides = {
        "instruction": instruction,
        "first": first,
        "second": second,
        "judge_model": settings.model,
        "template": TEMPLATE,
        "settings": {
            "max_tokens": settings.max_tokens,
            "temperature": TEMPERATURE,
            "top_logprobs": settings.top_logprobs,
        },
        "rules": _RULES,
    }
    parts = {"instruction": instruction, "first": first, "second": second}
    # in one pass, so that braces in an answer stay what they are
    message = re.sub(r"\{(instruction|first|second)\}", lambda match: parts[match.group(1)], TEMPLATE)
    return Question(key=fingerprint(decides), doc=fingerprint(instruction, length=32), message=message)


def questions_of(pairs: Sequence[AnswerPair], settings: JudgeSettings) -> list[tuple[Question, Question] | None]:
    """For each pair the question with the candidate first and the one with the reference first; None where the answers
    are equal."""
    questions: list[tuple[Question, Question] | None] = []
    for pair in pairs:
        if pair.candidate == pair.reference:
            questions.append(None)
            continue
        candidate_first = question(pair.instruction, pair.candidate, pair.reference, settings)
        reference_first = question(pair.instruction, pair.reference, pair.candidate, settings)
        questions.append((candidate_first, reference_first))
    return questions


def missing_questions(
    questions: Sequence[tuple[Question, Question] | None], kept: Mapping[str, Mapping[str, Any]]
) -> list[Question]:
    """What has no verdict yet, each question once: failed ones are asked again."""
    missing: dict[str, Question] = {}
    for both in questions:
        for order in both or ():
            if not _is_sound(kept.get(order.key, {})):
                missing[order.key] = order
    return list(missing.values())


def _is_sound(row: Mapping[str, Any]) -> bool:
    """Whether a row of the ledger is a judgement: refused, or with a probability."""
    outcome, p = row.get("outcome"), row.get("p_first")
    return outcome == "refused" or (outcome == "judged" and isinstance(p, (int, float)) and 0 <= p <= 1)


def judge_pairs(
    pairs: Sequence[AnswerPair],
    settings: JudgeSettings,
    endpoint: Endpoint,
    folder: str | Path,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Judged:
    """Asks for what is missing and returns all.

    Args:
        pairs: what to compare.
        settings: the judge and how it is asked.
        endpoint: where it is.
        folder: `judgements.jsonl` lies or is made there.
        progress: called with (requests done, requests in all) as answers come.

    Raises:
        ConfigError: the endpoint refuses the key or does not know the model or the address.
        HoldfastError: nobody answers there, or the account has no credit left.
        RunFolderError, StorageError: the folder cannot be written. What was judged before is kept in all cases.
    """
    questions = questions_of(pairs, settings)
    notes: list[str] = []
    with Ledger(Path(folder) / JUDGEMENTS) as ledger:
        missing = missing_questions(questions, ledger.rows)
        if missing:
            notes += run(_ask_all(missing, settings, endpoint, ledger, progress or (lambda done, total: None)))
        rows_by_question = dict(ledger.rows)
    results, rows_by_key = [], {}
    for pair, questions_of_pair in zip(pairs, questions, strict=True):
        rows = [rows_by_question.get(question.key) for question in questions_of_pair or ()]
        for row in rows:
            if row is not None:
                rows_by_key[row["key"]] = row
        candidate_first, reference_first = rows or (None, None)
        results.append(pair_result(pair, candidate_first=candidate_first, reference_first=reference_first))
    return _summary(results, list(rows_by_key.values()), questions, asked=len(missing), notes=notes)


def pair_result(
    pair: AnswerPair, *, candidate_first: Mapping[str, Any] | None, reference_first: Mapping[str, Any] | None
) -> PairResult:
    """One prompt's result from its two judgements.

    Args:
        pair: the answers.
        candidate_first: the judgement (`{"outcome": ..., "p_first": ...}`) of the order with the candidate first; None:
            not asked.
        reference_first: that of the other order.
    """
    status, first, second = "identical", None, None
    if pair.candidate != pair.reference:
        judgements = [judgement or {"outcome": "failed"} for judgement in (candidate_first, reference_first)]
        outcomes = [judgement["outcome"] for judgement in judgements]
        status = "failed" if "failed" in outcomes else "refused" if "refused" in outcomes else "judged"
        first, second = (judgement.get("p_first") for judgement in judgements)
    return PairResult(
        doc=pair.doc,
        status=status,
        length_candidate=len(pair.candidate),
        length_reference=len(pair.reference),
        candidate_first=first,
        candidate_second=None if second is None else 1 - second,
    )


def _summary(
    results: list[PairResult],
    rows: Sequence[Mapping[str, Any]],
    questions: Sequence[tuple[Question, Question] | None],
    *,
    asked: int,
    notes: list[str],
) -> Judged:
    outcomes = [row["outcome"] for row in rows]
    judged = outcomes.count("judged")
    by_letter = judged - sum(row.get("source") == "logprobs" for row in rows)
    if by_letter > 0:
        notes.append(
            f"{by_letter} of {judged} verdicts came without log-probabilities and count as 0 or 1 (a tie as 0.5), "
            "which is coarser: the win rate needs more prompts for the same interval."
        )
    cut = sum(row["outcome"] == "refused" and row.get("finish_reason") == "length" for row in rows)
    if cut:
        notes.append(
            f"{cut} replies were cut at max_tokens before a verdict; if the judge reasons first, raise max_tokens "
            f"(cut ones count as refused)."
        )
    keys: set[str] = set()
    for both in questions:
        keys.update(question.key for question in both or ())
    return Judged(
        pairs=results,
        questions=len(keys),
        asked=asked,
        judged=judged,
        refused=outcomes.count("refused"),
        failed=outcomes.count("failed"),
        notes=notes,
    )


# ------------------------------------------------------------------------------------------------------------- asking


async def _ask_all(
    questions: Sequence[Question],
    settings: JudgeSettings,
    endpoint: Endpoint,
    ledger: Ledger,
    progress: Callable[[int, int], None],
) -> list[str]:
    """Asks all, adds every answer to the ledger the moment it is there, and returns the client's notes."""
    parameters = {
        "max_tokens": settings.max_tokens,
        "temperature": TEMPERATURE,
        "logprobs": True,
        "top_logprobs": settings.top_logprobs,
    }
    done = 0
    progress(done, len(questions))
    async with Client(endpoint, model=settings.model, parameters=parameters, options=OPTIONS) as client:

        async def work(asked: Question) -> None:
            nonlocal done
            answer = await client.ask(asked.message, read_verdict)
            identity = {"key": asked.key, "doc": asked.doc, "judge_model": settings.model}
            ledger.add([{**identity, **_row(answer, client)}])
            done += 1
            progress(done, len(questions))

        await work_through(questions, work, workers=min(endpoint.workers, len(questions)))
    return client.notes


def _row(answer: Answer[Verdict], client: Client) -> dict[str, Any]:
    """The judgement of one question, as it is stored; with outcome "failed" where it cannot be had."""
    verdict = answer.value
    if verdict is None:
        return {"outcome": "failed", "error": answer.error, "attempts": answer.attempts}
    return {
        "outcome": verdict.outcome,
        "p_first": verdict.p_first,
        "letter": verdict.letter,
        "source": verdict.source,
        "mass": verdict.mass,
        "reply": client.clean(verdict.reply, 500),
        "finish_reason": verdict.finish_reason,
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "attempts": answer.attempts,
    }
