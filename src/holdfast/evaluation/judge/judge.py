"""Which of two answers is better, asked of a language model behind any OpenAI-compatible endpoint,
in both orders of the pair.

A judge sees an instruction and two outputs and answers with one letter;
`holdfast.evaluation.judge.verdict` reads the probability of it from the log-probabilities. Every
pair is asked in both orders, since judges favour a position (Zheng et al. 2023, "Judging
LLM-as-a-Judge", arXiv 2306.05685). The wording is our own, in the spirit of AlpacaEval
(github.com/tatsu-lab/alpaca_eval).

Asking costs money, so nothing is asked twice: every judgement goes to `judgements.jsonl` the moment
it is there, keyed by all that decides it (instruction, both outputs, their order, the judge's name,
template and settings; not the address, which changes with every server that is started). What fails
for good is recorded, asked again by the next run, and does not stop this one. How an endpoint is
asked, and what it may refuse, is `holdfast.support.endpoint`'s.
"""

from __future__ import annotations

import dataclasses
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


@dataclass(frozen=True, kw_only=True)
class PairResult:
    """One prompt with the judgements of both orders."""

    status: str
    """"judged", "identical" (equal answers: a tie, not asked), "refused" or "failed" (in at least
    one order)."""
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
        """Mean P(candidate wins) over the orders, so that a judge's liking for what it reads first
        cancels; None for a pair without a verdict in both."""
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


def question(instruction: str, first: str, second: str, settings: JudgeSettings) -> tuple[str, str]:
    """The key and the message of one request."""
    parts = {"instruction": instruction, "first": first, "second": second}
    decides = {
        **parts,
        "judge_model": settings.model,
        "template": TEMPLATE,
        "settings": {
            "max_tokens": settings.max_tokens,
            "temperature": TEMPERATURE,
            "top_logprobs": settings.top_logprobs,
        },
        "rules": _RULES,
    }
    # in one pass, so that braces in an answer stay what they are
    message = re.sub(
        r"\{(instruction|first|second)\}", lambda match: parts[match.group(1)], TEMPLATE
    )
    return fingerprint(decides), message


def _is_sound(row: Mapping[str, Any]) -> bool:
    """Whether a row of the ledger is a judgement: refused, or with a probability."""
    outcome, p = row.get("outcome"), row.get("p_first")
    return outcome == "refused" or (
        outcome == "judged" and isinstance(p, (int, float)) and 0 <= p <= 1
    )


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
        RunFolderError, StorageError: the folder cannot be written. What was judged before is kept
            in all cases.
    """
    keys: list[list[str]] = []  # of both orders of every pair; none where the answers are equal
    messages: dict[str, str] = {}
    for pair in pairs:
        keys.append([])
        if pair.candidate == pair.reference:
            continue
        for first, second in ((pair.candidate, pair.reference), (pair.reference, pair.candidate)):
            key, messages[key] = question(pair.instruction, first, second, settings)
            keys[-1].append(key)
    notes: list[str] = []
    with Ledger(Path(folder) / JUDGEMENTS) as ledger:
        missing = {}
        for key, message in messages.items():
            if not _is_sound(ledger.rows.get(key, {})):  # failed ones are asked again
                missing[key] = message
        if missing:
            notes += run(
                _ask_all(
                    missing, settings, endpoint, ledger, progress or (lambda done, total: None)
                )
            )
        rows = {key: ledger.rows[key] for key in messages}
    results = []
    for pair, of_pair in zip(pairs, keys, strict=True):
        candidate_first, reference_first = [rows[key] for key in of_pair] or (None, None)
        results.append(
            pair_result(pair, candidate_first=candidate_first, reference_first=reference_first)
        )
    outcomes = [row["outcome"] for row in rows.values()]
    judged = outcomes.count("judged")
    by_letter = judged - sum(row.get("source") == "logprobs" for row in rows.values())
    if by_letter > 0:
        notes.append(
            f"{by_letter} of {judged} verdicts came without log-probabilities and count as 0 or 1 "
            "(a tie as 0.5). Such verdicts are coarser, so the win rate needs more prompts for an "
            "interval of the same width."
        )
    cut = sum(
        row["outcome"] == "refused" and row.get("finish_reason") == "length"
        for row in rows.values()
    )
    if cut:
        notes.append(
            f"{cut} replies were cut at max_tokens before a verdict, and count as refused. If the "
            "judge reasons first, raise max_tokens."
        )
    return Judged(
        pairs=results,
        questions=len(messages),
        asked=len(missing),
        judged=judged,
        refused=outcomes.count("refused"),
        failed=outcomes.count("failed"),
        notes=notes,
    )


def pair_result(
    pair: AnswerPair,
    *,
    candidate_first: Mapping[str, Any] | None,
    reference_first: Mapping[str, Any] | None,
) -> PairResult:
    """One prompt's result from its two judgements.

    Args:
        pair: the answers.
        candidate_first: the judgement (`{"outcome": ..., "p_first": ...}`) of the order with the
            candidate first; None: not asked.
        reference_first: that of the other order.
    """
    status, first, second = "identical", None, None
    if pair.candidate != pair.reference:
        judgements = [
            judgement or {"outcome": "failed"} for judgement in (candidate_first, reference_first)
        ]
        outcomes = [judgement["outcome"] for judgement in judgements]
        status = (
            "failed" if "failed" in outcomes else "refused" if "refused" in outcomes else "judged"
        )
        first, second = (judgement.get("p_first") for judgement in judgements)
    return PairResult(
        status=status,
        length_candidate=len(pair.candidate),
        length_reference=len(pair.reference),
        candidate_first=first,
        candidate_second=None if second is None else 1 - second,
    )


# ------------------------------------------------------------------------------------------- asking


async def _ask_all(
    messages: Mapping[str, str],
    settings: JudgeSettings,
    endpoint: Endpoint,
    ledger: Ledger,
    progress: Callable[[int, int], None],
) -> list[str]:
    """Asks all messages, adds every answer to the ledger the moment it is there, and returns the
    client's notes."""
    parameters = {
        "max_tokens": settings.max_tokens,
        "temperature": TEMPERATURE,
        "logprobs": True,
        "top_logprobs": settings.top_logprobs,
    }
    done = 0
    progress(done, len(messages))
    async with Client(
        endpoint, model=settings.model, parameters=parameters, options=OPTIONS
    ) as client:

        async def work(key: str) -> None:
            nonlocal done
            answer = await client.ask(messages[key], read_verdict)
            ledger.add([{"key": key, "judge_model": settings.model, **_row(answer, client)}])
            done += 1
            progress(done, len(messages))

        await work_through(list(messages), work, workers=min(endpoint.workers, len(messages)))
    return client.notes


def _row(answer: Answer[Verdict], client: Client) -> dict[str, Any]:
    """The judgement of one question, as it is stored; with outcome "failed" where it cannot be
    had."""
    verdict = answer.value
    if verdict is None:
        return {"outcome": "failed", "error": answer.error, "attempts": answer.attempts}
    return {
        **dataclasses.asdict(verdict),
        "reply": client.clean(verdict.reply, 500),
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "attempts": answer.attempts,
    }
