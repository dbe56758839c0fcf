"""Win rates as an entry of an evaluation: a model's replies against those of the model that it was tuned from, or of a
file, before a judge.

One sample a prompt: the mean over both orders of P(the judge prefers the model's reply), so equal replies count half.
The start held against itself has one half everywhere, without a judge, and what a tuned model gains over it is a paired
difference like that of any other entry. A sample needs a value in every model that is compared, so what a judge will
not decide counts half too, and a note says how often.

Beside it stands the win rate at equal lengths (`statistics.length_controlled.samplewise`). Verdicts are kept in a
`judgements.jsonl` beside the evaluation, or for all runs of a study in its cache: nothing is asked twice.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from holdfast.config.declare import settings_of
from holdfast.errors import ConfigError, DataError, HoldfastError
from holdfast.evaluation.entries import WinRateEntry
from holdfast.evaluation.judge.answers import answers_to, read_answers, read_prompts
from holdfast.evaluation.judge.judge import JUDGEMENTS, AnswerPair, PairResult, judge_pairs, pair_result
from holdfast.evaluation.judge.settings import JudgeSettings, ReplySettings
from holdfast.evaluation.measures import Outcome, Subject
from holdfast.evaluation.text.documents import chat_prompt, prompt_ids
from holdfast.evaluation.text.instructions import reply
from holdfast.statistics.estimates import Ratio
from holdfast.statistics.length_controlled import length_controlled, samplewise
from holdfast.support.endpoint import Endpoint, find_key, missing_package
from holdfast.support.environment import wait_for_lock
from holdfast.support.files import fingerprint

WIN_RATE, EQUAL_LENGTHS = "win_rate", "length_controlled_win_rate"
MOST_FAILURES = 0.05
"""Share of the requests that may fail for good."""
_FIGURES = {name: Ratio(numerator=name, unit=WIN_RATE, higher_is_better=True) for name in (WIN_RATE, EQUAL_LENGTHS)}


def measure(entry: WinRateEntry, on: Subject) -> Outcome:
    """See `holdfast.evaluation.measures.measure`.

    Raises:
        ConfigError: the endpoint refuses the key or does not know the model or the address.
        DataError: prompts without a reply to be held against.
        ModelError: the context has no room for a reply, or the tokenizer has no end of sequence.
        HoldfastError: the endpoint does not answer, or too many requests failed; what was judged is kept.
    """
    prompts = read_prompts(entry.data, limit=entry.max_documents)
    texts = [_written(prompt, entry, on.tokenizer) for prompt in prompts]
    encoded = [prompt_ids(text, on.tokenizer, chat=entry.apply_chat_template) for text in texts]
    found = reply(on, encoded, entry.max_new_tokens, chat=entry.apply_chat_template)
    replies = [text.strip() for text in found.texts]
    references = _references(entry, on, prompts, replies)
    pairs = [
        AnswerPair(instruction=p, candidate=ours, reference=theirs)
        for p, ours, theirs in zip(prompts, replies, references, strict=True)
    ]
    broken = bool(found.broken)
    results, notes = on.processes.broadcast(lambda: (_unjudged(pairs), []) if broken else _judged(pairs, entry, on))
    undecided = sum(r.preference is None for r in results)
    if undecided:
        notes.append(f"The judge gave no verdict on {undecided} of {len(results)} pairs; these count half.")
    preferences = np.array([0.5 if r.preference is None else r.preference for r in results])
    differences = np.array([r.length_candidate - r.length_reference for r in results], dtype=np.float64)
    at_equal = length_controlled(preferences, differences)
    equal = samplewise(preferences, differences, at_equal)
    rows: list[dict[str, Any]] = [
        {
            "doc": fingerprint(prompt, length=32),
            "prompt": fingerprint(text, length=32),
            "question": prompt,
            "output": pair.candidate,
            WIN_RATE: float(preference),
            EQUAL_LENGTHS: float(adjusted),
            "status": result.status,
            "length": result.length_candidate,
            "length_reference": result.length_reference,
        }
        for prompt, text, pair, result, preference, adjusted in zip(
            prompts, texts, pairs, results, preferences, equal, strict=True
        )
    ]
    settled = {"longest": entry.max_new_tokens, "notes": [*found.notes, *notes]}
    return Outcome(rows=rows, figures=_FIGURES, settings=settled, broken=found.broken)


def _written(prompt: str, entry: WinRateEntry, tokenizer: Any) -> str:
    return chat_prompt([{"role": "user", "content": prompt}], tokenizer) if entry.apply_chat_template else prompt


def _references(entry: WinRateEntry, on: Subject, prompts: list[str], replies: list[str]) -> list[str]:
    """The replies to hold against, in the order of the prompts."""
    if entry.reference is not None:
        return answers_to(prompts, read_answers(entry.reference), Path(entry.reference).name)
    if on.start is None or on.folder is None:
        raise DataError(
            "expected replies to hold the model's against: name a file as `reference`, or measure the model that it "
            "was tuned from first."
        )
    if on.start.path == on.folder.path:
        return replies
    rows = on.start.samples(entry.suite, entry.name)
    return answers_to(prompts, {row["question"]: row["output"] for row in rows}, "the start")


def _judged(pairs: list[AnswerPair], entry: WinRateEntry, on: Subject) -> tuple[list[PairResult], list[str]]:
    """Every pair's verdicts, and what qualifies them; nobody is asked where all replies are equal."""
    if all(pair.candidate == pair.reference for pair in pairs):
        return _unjudged(pairs), []
    assert on.verdicts is not None, "who measures the entry keeps its verdicts"
    settings = JudgeSettings(
        model=entry.judge_model, **{s.name: getattr(entry, s.name) for s in settings_of(ReplySettings)}
    )
    variable, key, _ = find_key(entry.base_url, entry.api_key_env)
    endpoint = Endpoint(base_url=entry.base_url, api_key=key, key_variable=variable)
    with wait_for_lock(on.verdicts):  # of runs side by side one asks, and the others find what they have in common
        judged = judge_pairs(pairs, settings, endpoint, on.verdicts, progress=on.report)
    if judged.failed > MOST_FAILURES * judged.questions:
        raise HoldfastError(
            f"{judged.failed} of {judged.questions} requests to the judge failed for good (see "
            f"{on.verdicts / JUDGEMENTS}). The same command asks for them again."
        )
    return judged.pairs, judged.notes


def _unjudged(pairs: list[AnswerPair]) -> list[PairResult]:
    return [
        pair_result(doc=p.doc, candidate=p.candidate, reference=p.reference, candidate_first=None, reference_first=None)
        for p in pairs
    ]


def check(entry: WinRateEntry, tokenizer: Any) -> None:
    """See `holdfast.evaluation.measures.check`. The endpoint is not asked.

    Raises:
        ConfigError: the key is not there, or the package is not installed.
        DataError: prompts or replies that cannot be read, prompts without a reply.
        ModelError: the chat template is asked for, and the tokenizer has none.
    """
    problems = [*missing_package("judging"), find_key(entry.base_url, entry.api_key_env)[2]]
    if any(problems):
        raise ConfigError([p for p in problems if p])
    prompts = read_prompts(entry.data, limit=entry.max_documents)
    _written("", entry, tokenizer)
    if entry.reference is not None:
        answers_to(prompts, read_answers(entry.reference), Path(entry.reference).name)
