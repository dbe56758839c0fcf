"""Win rates as an entry of an evaluation: a model's replies against those of the model that it was
tuned from, or of a file, before a judge.

One sample a prompt: the mean over both orders of P(the judge prefers the model's reply), so equal
replies count as half a win. The initial model held against itself has one half everywhere, without
a judge, and what a tuned model gains over it is a paired difference like that of any other entry. A
sample needs a value in every model that is compared, so what a judge does not decide counts as half
a win too, and a note says how often.

Beside it stands the win rate at equal lengths (`statistics.length_controlled.samplewise`). Verdicts
are kept in a `judgements.jsonl` beside the evaluation, or for all runs of a study in its cache:
nothing is asked twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from holdfast.config.declare import Meta
from holdfast.errors import ConfigError, DataError, HoldfastError, Problem
from holdfast.evaluation.entries import DataEntry, Word, WordOrNone
from holdfast.evaluation.judge.answers import answers_to, read_answers, read_prompts
from holdfast.evaluation.judge.settings import JudgeSettings, ReplySettings
from holdfast.evaluation.measures import Outcome, Subject
from holdfast.evaluation.text.documents import chat_prompt, prompt_ids
from holdfast.support.files import fingerprint

if TYPE_CHECKING:
    from holdfast.evaluation.judge.judge import AnswerPair, PairResult

WIN_RATE, EQUAL_LENGTHS = "win_rate", "length_controlled_win_rate"
MOST_FAILURES = 0.05
"""Share of the requests that may fail for good."""


@dataclass(frozen=True, kw_only=True)
class WinRateEntry(DataEntry, ReplySettings):
    """Prompts with two models' replies, which a judge (a language model behind an OpenAI-compatible
    endpoint) compares in both orders. Rows have a prompt."""

    kind = "win_rate"
    without = ("split", "config")
    batched = True

    judge_model: Word
    """Name of the judge model at the endpoint."""
    base_url: Word
    """Address of the endpoint, such as http://localhost:8000/v1."""
    api_key_env: WordOrNone = None
    """Environment variable with the key (OPENAI_API_KEY for api.openai.com, else none)."""
    reference: WordOrNone = None
    """File with the replies that the model's replies are compared with. null: the replies of the
    model's base, or, if several models are measured, those of the first one."""
    max_new_tokens: Annotated[int, Meta(ge=1)] = 512
    """Maximum number of tokens of a reply (greedy decoding)."""
    apply_chat_template: bool = False
    """Put prompts in the tokenizer's chat template."""

    @property
    def against_start(self) -> bool:  # type: ignore[override]
        """Without a file of replies."""
        return self.reference is None

    def local_files(self) -> list[Path]:
        """The prompts and the replies."""
        files = super().local_files()
        return files if self.reference is None else [*files, Path(self.reference)]

    def deciding(self) -> dict[str, Any]:
        """As of every entry; without the address, which changes with every server that is
        started."""
        settings = super().deciding()
        del settings["base_url"], settings["api_key_env"]
        return settings

    def problems(self) -> list[Problem]:
        """What cannot be, beyond each setting's own bounds; a sentence each."""
        from holdfast.support.endpoint import Endpoint

        if "@" in self.base_url or "?" in self.base_url:  # it stands in records
            return [
                Problem(
                    "base_url",
                    "expected an address without user, password or query. Name the key by "
                    "`api_key_env`.",
                )
            ]
        return Endpoint(base_url=self.base_url).problems()

    def requests(self, tokenizer: Any, processor: Any = None) -> list[str]:
        """The prompts, see `Entry.requests`. The endpoint is not asked.

        Raises:
            ConfigError: the key is not there, or the package is not installed.
            DataError: prompts or replies that cannot be read, prompts without a reply.
            ModelError: the chat template is asked for, and the tokenizer has none.
        """
        from holdfast.support.endpoint import find_key, missing_package

        problems = missing_package("judging")
        _, _, problem = find_key(self.base_url, self.api_key_env)
        if problem:
            problems.append(problem)
        if problems:
            raise ConfigError(problems)
        prompts = read_prompts(self.data, limit=self.max_documents)
        self._text("", tokenizer)
        if self.reference is not None:
            self._replies_of_file(self.reference, prompts)
        return prompts

    def scores(self, requests: list[str], on: Subject) -> Outcome:
        """See `Entry.scores`.

        Raises:
            ConfigError: the endpoint refuses the key or does not know the model or the address.
            DataError: prompts without a reply to be held against.
            ModelError: the context has no room for a reply, or the tokenizer has no end of
                sequence.
            HoldfastError: the endpoint does not answer, or too many requests failed; what was
                judged is kept.
        """
        import numpy as np

        from holdfast.evaluation.judge.judge import AnswerPair
        from holdfast.evaluation.text.replies import reply
        from holdfast.statistics.estimates import Ratio
        from holdfast.statistics.length_controlled import length_controlled, samplewise

        texts = [self._text(prompt, on.tokenizer) for prompt in requests]
        encoded = [prompt_ids(text, on.tokenizer, chat=self.apply_chat_template) for text in texts]
        replies = reply(on, encoded, self.max_new_tokens, chat=self.apply_chat_template)
        candidates = [text.strip() for text in replies.texts]
        references = self._references(on, requests, candidates)
        pairs = []
        for prompt, candidate, reference in zip(requests, candidates, references, strict=True):
            pairs.append(AnswerPair(instruction=prompt, candidate=candidate, reference=reference))

        def judged() -> tuple[list[PairResult], list[str]]:
            return (_unjudged(pairs), []) if replies.broken else self._judged(pairs, on)

        results, notes = on.processes.broadcast(judged)
        undecided = sum(result.preference is None for result in results)
        if undecided:
            notes.append(
                f"The judge gave no verdict on {undecided} of {len(results)} pairs. Each of them "
                "counts as half a win."
            )
        wins = np.array(
            [0.5 if result.preference is None else result.preference for result in results]
        )
        lengths = np.array(
            [result.length_candidate - result.length_reference for result in results],
            dtype=np.float64,
        )
        wins_at_equal_lengths = samplewise(wins, lengths, length_controlled(wins, lengths))
        rows: list[dict[str, Any]] = []
        for number, (pair, result) in enumerate(zip(pairs, results, strict=True)):
            rows.append(
                {
                    "doc": fingerprint(pair.instruction, length=32),
                    "prompt": fingerprint(texts[number], length=32),
                    "question": pair.instruction,
                    "output": pair.candidate,
                    WIN_RATE: float(wins[number]),
                    EQUAL_LENGTHS: float(wins_at_equal_lengths[number]),
                    "status": result.status,
                    "length": result.length_candidate,
                    "length_reference": result.length_reference,
                }
            )
        figures = {}
        for name in (WIN_RATE, EQUAL_LENGTHS):
            figures[name] = Ratio(numerator=name, unit=WIN_RATE, higher_is_better=True)
        settings = {"longest": self.max_new_tokens, "notes": [*replies.notes, *notes]}
        return Outcome(rows=rows, figures=figures, settings=settings, broken=replies.broken)

    def _text(self, prompt: str, tokenizer: Any) -> str:
        return (
            chat_prompt([{"role": "user", "content": prompt}], tokenizer)
            if self.apply_chat_template
            else prompt
        )

    def _references(self, on: Subject, prompts: Sequence[str], candidates: list[str]) -> list[str]:
        """The replies to hold against, in the order of the prompts."""
        if self.reference is not None:
            return self._replies_of_file(self.reference, prompts)
        if on.start is None or on.folder is None:
            raise DataError(
                "expected replies to compare the model's with, got none. Give a file as "
                "`reference`, or first measure the base of this model."
            )
        if on.start.path == on.folder.path:
            return candidates
        rows = on.start.samples(self.suite, self.name)
        return answers_to(prompts, {row["question"]: row["output"] for row in rows}, "the start")

    def _replies_of_file(self, file: str, prompts: Sequence[str]) -> list[str]:
        return answers_to(prompts, read_answers(file), Path(file).name)

    def _judged(self, pairs: list[AnswerPair], on: Subject) -> tuple[list[PairResult], list[str]]:
        """Every pair's verdicts, and what qualifies them; nobody is asked where all replies are
        equal."""
        from holdfast.evaluation.judge.judge import JUDGEMENTS, judge_pairs
        from holdfast.support.endpoint import Endpoint, find_key
        from holdfast.support.environment import wait_for_lock

        if all(pair.candidate == pair.reference for pair in pairs):
            return _unjudged(pairs), []
        assert on.verdicts is not None, "the measuring process must have a folder for verdicts"
        settings = JudgeSettings(
            model=self.judge_model, max_tokens=self.max_tokens, top_logprobs=self.top_logprobs
        )
        variable, key, _ = find_key(self.base_url, self.api_key_env)
        endpoint = Endpoint(base_url=self.base_url, api_key=key, key_variable=variable)
        with wait_for_lock(
            on.verdicts
        ):  # of runs side by side one asks, and the others find what they have in common
            judged = judge_pairs(pairs, settings, endpoint, on.verdicts, progress=on.report)
        if judged.failed > MOST_FAILURES * judged.questions:
            raise HoldfastError(
                f"{judged.failed} of {judged.questions} requests to the judge failed after all "
                f"retries (see {on.verdicts / JUDGEMENTS}). Run the same command to send them "
                "again."
            )
        return judged.pairs, judged.notes


def _unjudged(pairs: Sequence[AnswerPair]) -> list[PairResult]:
    from holdfast.evaluation.judge.judge import pair_result

    return [pair_result(pair, candidate_first=None, reference_first=None) for pair in pairs]
