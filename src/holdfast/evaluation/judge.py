"""Which of two answers is better, asked of a language model behind any OpenAI-compatible endpoint, in both orders of the pair.

A judge sees an instruction and two outputs and answers with one letter; `holdfast.evaluation.verdict` reads the probability of it from the
log-probabilities. Every pair is asked in both orders, since judges favour a position (Zheng et al. 2023, "Judging LLM-as-a-Judge", arXiv 2306.05685).
The wording is our own, in the spirit of AlpacaEval (github.com/tatsu-lab/alpaca_eval).

Asking costs money, so nothing is asked twice: every judgement goes to `judgements.jsonl` the moment it is there, keyed by all that decides it
(instruction, both outputs, their order, the judge's name, template and settings; not the address, which changes with every server that is
started). What is busy, broken or late is asked again with growing pauses; what fails for good is recorded, asked again by the next run, and does
not stop this one. A key, a model or an address that is wrong stops it at once.

Endpoints differ in what they take. A parameter that one refuses (log-probabilities, their number, `max_tokens`, a temperature) is left out or
replaced from then on.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import random
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from holdfast.errors import ConfigError, DataError, HoldfastError
from holdfast.evaluation.ledger import Ledger, read_ledger
from holdfast.evaluation.verdict import MalformedReply, read_verdict
from holdfast.evaluation.win_rate import PairResult, pair_result
from holdfast.results import fingerprint

TEMPLATE = """\
You compare two outputs that two models gave for the same instruction, and say which one people would prefer. Judge how well each output does \
what the instruction asks: whether it is right, helpful, clear and to the point. Neither the order of the outputs nor their length alone makes \
one of them better.

### Instruction
{instruction}

### Output (m)
{first}

### Output (M)
{second}

### Your verdict
Which output is better, m or M? Answer with that one letter (small m for the first output, capital M for the second) and nothing else.
"""
"""What the judge is sent, as one message of the user."""

PLACEHOLDERS = ("instruction", "first", "second")
JUDGEMENTS = "judgements.jsonl"
DEFAULT_KEY_VARIABLE = "OPENAI_API_KEY"
_RULES = 1
"""Raised when what a reply means changes, so that older judgements are made again."""
_REFUSAL = re.compile(r"support|unrecogni|unexpected|unknown|not permitted|not allowed|extra|invalid|must be|at most|less than|maximum|greater")
"""How endpoints speak of a parameter that they do not take; without it the name of one may be a word of the prompt."""
_NO_KEY = "none"
"""Sent where there is no key: the client wants one, a server of one's own takes any."""


@dataclass(frozen=True, kw_only=True)
class JudgeSettings:
    """What decides a judgement, beside the two outputs."""

    model: str
    """The judge's name, as the endpoint knows it."""
    template: str = TEMPLATE
    """With {instruction}, {first} and {second}; must ask for the letters m and M."""
    max_tokens: int = 8
    """Of the reply. Judges that reason first need hundreds."""
    temperature: float = 0.0
    top_logprobs: int = 20
    """Alternatives asked for at each token, 5 to 20."""

    def problems(self) -> list[str]:
        """One sentence a mistake; empty when all is well."""
        found = [] if self.model else ["judge_model: expected the name of a model, got nothing"]
        missing = [f"{{{name}}}" for name in PLACEHOLDERS if f"{{{name}}}" not in self.template]
        if missing:
            found.append(f"template: expected {', '.join(f'{{{p}}}' for p in PLACEHOLDERS)} in it; {' and '.join(missing)} missing")
        if self.max_tokens < 1:
            found.append(f"max_tokens: expected at least 1, got {self.max_tokens}")
        if not 5 <= self.top_logprobs <= 20:
            found.append(f"top_logprobs: expected 5 to 20, got {self.top_logprobs}")
        if not 0 <= self.temperature <= 2:
            found.append(f"temperature: expected 0 to 2, got {self.temperature}")
        return found


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where the judge is, and how patiently it is asked. Decides no judgement."""

    base_url: str
    """Such as http://localhost:8000/v1."""
    api_key: str | None = field(default=None, repr=False)
    """Never written, logged or put into a message. None: a server that wants none."""
    key_variable: str = DEFAULT_KEY_VARIABLE
    """The environment variable that the key comes from; named in messages."""
    workers: int = 4
    """Requests at once."""
    timeout: float = 120.0
    """Seconds for one attempt, all in all."""
    attempts: int = 6
    """For one request; then it is recorded as failed."""
    first_wait: float = 1.0
    """Seconds before the second attempt, doubled with every further one, with jitter."""
    longest_wait: float = 120.0
    """Seconds; also of what a server asks for by Retry-After."""

    def problems(self) -> list[str]:
        """One sentence a mistake; empty when all is well."""
        parts = urlsplit(self.base_url)
        found = []
        if parts.scheme not in ("http", "https") or not parts.netloc:
            found.append(f"base_url: expected an address such as http://localhost:8000/v1, got '{self.shown}'")
        for name, least in (("workers", 1), ("attempts", 1)):
            if getattr(self, name) < least:
                found.append(f"{name}: expected at least {least}, got {getattr(self, name)}")
        if not self.timeout > 0:
            found.append(f"timeout: expected more than 0 seconds, got {self.timeout}")
        return found

    @property
    def shown(self) -> str:
        """The address without what may be secret in it: user, password and query."""
        parts = urlsplit(self.base_url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}" if parts.netloc else self.base_url.partition("?")[0]


@dataclass(frozen=True, kw_only=True)
class Pair:
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
class Judged:
    """All pairs with what the judge said, and what it took."""

    pairs: list[PairResult]
    """In the order of the pairs given."""
    questions: int
    """Requests that all pairs need: two a pair, none where the answers are equal."""
    asked: int
    """Of these, how many were asked now; the others were there already."""
    judged: int
    refused: int
    failed: int
    by_logprobs: int
    """Judgements whose probability comes from log-probabilities; the others are 0, 1 or a tie."""
    mean_mass: float | None
    """Mean p(m) + p(M) of these: near 1 where the judge keeps to the two letters."""
    prompt_tokens: int
    """As the endpoint counts them, over all judgements used, those of earlier runs too."""
    completion_tokens: int
    notes: list[str]


def question(instruction: str, first: str, second: str, settings: JudgeSettings) -> Question:
    """One request and its key."""
    decides = {
        "instruction": instruction,
        "first": first,
        "second": second,
        "judge_model": settings.model,
        "template": settings.template,
        "settings": {"max_tokens": settings.max_tokens, "temperature": settings.temperature, "top_logprobs": settings.top_logprobs},
        "rules": _RULES,
    }
    parts = {"instruction": instruction, "first": first, "second": second}
    # in one pass, so that braces in an answer stay what they are
    message = re.sub(r"\{(instruction|first|second)\}", lambda match: parts[match.group(1)], settings.template)
    return Question(key=fingerprint(decides), doc=fingerprint(instruction, length=32), message=message)


def questions_of(pairs: Sequence[Pair], settings: JudgeSettings) -> list[tuple[Question, Question] | None]:
    """For each pair the question with the candidate first and the one with the reference first; None where the answers are equal."""
    return [
        None
        if pair.candidate == pair.reference
        else (
            question(pair.instruction, pair.candidate, pair.reference, settings),
            question(pair.instruction, pair.reference, pair.candidate, settings),
        )
        for pair in pairs
    ]


def missing_questions(questions: Sequence[tuple[Question, Question] | None], kept: Mapping[str, Mapping[str, Any]]) -> list[Question]:
    """What has no verdict yet, each question once: failed ones are asked again."""
    found: dict[str, Question] = {}
    for both in questions:
        for one in both or ():
            if kept.get(one.key, {}).get("outcome") not in ("judged", "refused"):
                found[one.key] = one
    return list(found.values())


def judge_pairs(
    pairs: Sequence[Pair],
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
        ConfigError: mistakes in the settings; the endpoint refuses the key or does not know the model or the address.
        HoldfastError: nobody answers there, or the account has no credit left.
        RunFolderError, StorageError: the folder cannot be written. What was judged before is kept in all cases.
    """
    problems = settings.problems() + endpoint.problems()
    if importlib.util.find_spec("openai") is None:
        problems.append("judging needs the package openai, which is not installed. Install it with: pip install 'holdfast[judge]'")
    if problems:
        raise ConfigError(problems)
    if not pairs:
        raise DataError("Expected at least one pair of answers to judge, got none.")
    questions = questions_of(pairs, settings)
    notes: list[str] = []
    with Ledger(Path(folder) / JUDGEMENTS) as ledger:
        missing = missing_questions(questions, ledger.rows)
        if missing:
            asker = _Asker(settings, endpoint, ledger, progress)
            _run(asker.ask_all(missing))
            notes += asker.notes
        kept = dict(ledger.rows)
    results, used = [], {}
    for pair, both in zip(pairs, questions, strict=True):
        one, other = (kept.get(q.key) for q in both) if both is not None else (None, None)
        used.update({row["key"]: row for row in (one, other) if row is not None})
        results.append(pair_result(doc=pair.doc, candidate=pair.candidate, reference=pair.reference, candidate_first=one, reference_first=other))
    return _summary(results, used, questions, asked=len(missing), notes=notes)


def kept_judgements(folder: str | Path) -> dict[str, dict[str, Any]]:
    """The judgements of a folder by key; none where there are none."""
    return read_ledger(Path(folder) / JUDGEMENTS)


def _summary(
    results: list[PairResult],
    used: Mapping[str, Mapping[str, Any]],
    questions: Sequence[tuple[Question, Question] | None],
    *,
    asked: int,
    notes: list[str],
) -> Judged:
    rows = list(used.values())
    outcomes = [row["outcome"] for row in rows]
    masses = [row["mass"] for row in rows if row.get("mass") is not None]
    judged, by_logprobs = outcomes.count("judged"), sum(row.get("source") == "logprobs" for row in rows)
    if by_logprobs < judged:
        notes.append(
            f"{judged - by_logprobs} of {judged} verdicts came without log-probabilities and count as 0 or 1 (a tie as 0.5), "
            "which is coarser: the win rate needs more prompts for the same interval."
        )
    cut = sum(row["outcome"] == "refused" and row.get("finish_reason") == "length" for row in rows)
    if cut:
        notes.append(
            f"{cut} replies were cut at max_tokens before a verdict; if the judge reasons first, raise --max_tokens (cut ones count as refused)."
        )
    return Judged(
        pairs=results,
        questions=len({one.key for both in questions for one in both or ()}),
        asked=asked,
        judged=judged,
        refused=outcomes.count("refused"),
        failed=outcomes.count("failed"),
        by_logprobs=by_logprobs,
        mean_mass=sum(masses) / len(masses) if masses else None,
        prompt_tokens=sum(row.get("prompt_tokens") or 0 for row in rows),
        completion_tokens=sum(row.get("completion_tokens") or 0 for row in rows),
        notes=notes,
    )


# ------------------------------------------------------------------------------------------------------------- asking


class _Again(Exception):
    """This attempt failed in a way that another may not.

    Args:
        reason: for the record.
        wait: seconds that the server asked for; None: as the policy has it.
        unreachable: whether nobody answered at all.
    """

    def __init__(self, reason: str, *, wait: float | None = None, unreachable: bool = False) -> None:
        super().__init__(reason)
        self.wait, self.unreachable = wait, unreachable


class _Failed(Exception):
    """This request fails whenever it is sent."""


class _Asker:
    """Asks many questions, a few at a time, and adds every answer to the ledger."""

    def __init__(self, settings: JudgeSettings, endpoint: Endpoint, ledger: Ledger, progress: Callable[[int, int], None] | None) -> None:
        self.settings, self.endpoint, self.ledger = settings, endpoint, ledger
        self.progress = progress or (lambda done, total: None)
        self.notes: list[str] = []
        self.answered = False
        """Whether the endpoint has ever answered; until then a request that fails for good stops the run."""
        self.not_before = 0.0
        """No request before this time (monotonic clock): what one is told by Retry-After holds for all."""
        self.parameters: dict[str, Any] = {
            "max_tokens": settings.max_tokens,
            "temperature": settings.temperature,
            "logprobs": True,
            "top_logprobs": settings.top_logprobs,
        }
        """What is sent, less what the endpoint has refused."""
        self.client: Any = None

    async def ask_all(self, questions: Sequence[Question]) -> None:
        import openai

        # retries are ours: the client gives up on a broken body, and on long pauses that a server asks for
        self.client = openai.AsyncOpenAI(
            api_key=self.endpoint.api_key or _NO_KEY, base_url=self.endpoint.base_url, timeout=self.endpoint.timeout, max_retries=0
        )
        waiting = iter(questions)
        done = 0
        self.progress(done, len(questions))

        async def work() -> None:
            nonlocal done
            for one in waiting:
                self.ledger.add([await self.ask(one)])
                done += 1
                self.progress(done, len(questions))

        tasks = [asyncio.create_task(work()) for _ in range(min(self.endpoint.workers, len(questions)))]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.client.close()

    async def ask(self, one: Question) -> dict[str, Any]:
        """The judgement of one question, as it is stored; with outcome "failed" where it cannot be had."""
        common = {"key": one.key, "doc": one.doc, "judge_model": self.settings.model}
        attempt, unreachable, reason = 0, False, ""
        while attempt < self.endpoint.attempts:
            attempt += 1
            while (pause := self.not_before - time.monotonic()) > 0:
                await asyncio.sleep(pause)
            try:
                body = await self.send(one.message)
                verdict = read_verdict(body)
            except MalformedReply as error:
                unreachable, reason, wait = False, str(error), None
            except _Again as error:
                unreachable, reason, wait = error.unreachable, str(error), error.wait
            except _Failed as error:
                return {**common, "outcome": "failed", "error": str(error), "attempts": attempt}
            else:
                self.answered = True
                return {
                    **common,
                    "outcome": verdict.outcome,
                    "p_first": verdict.p_first,
                    "letter": verdict.letter,
                    "source": verdict.source,
                    "mass": verdict.mass,
                    "reply": self.clean(verdict.reply, 500),
                    "finish_reason": verdict.finish_reason,
                    **_usage(body),
                    "attempts": attempt,
                }
            if attempt < self.endpoint.attempts:
                await self.wait(attempt, wait)
        if unreachable and not self.answered:
            raise HoldfastError(
                f"Nobody answers at {self.endpoint.shown} ({reason}, {attempt} attempts). Check --base_url, and that the server is up and reachable "
                "from here; the same command then continues."
            )
        return {**common, "outcome": "failed", "error": reason, "attempts": attempt}

    async def wait(self, attempt: int, told: float | None) -> None:
        """Sleeps before the next attempt: what the server asked for, else a pause that doubles, with jitter so that workers do not come together."""
        longest = self.endpoint.longest_wait
        if told is not None:
            self.not_before = max(self.not_before, time.monotonic() + min(told, longest))
            return
        await asyncio.sleep(min(longest, self.endpoint.first_wait * 2 ** (attempt - 1)) * random.uniform(0.5, 1.0))

    async def send(self, message: str) -> Any:
        """One attempt: the endpoint's body, parsed.

        Raises:
            _Again, _Failed: see there. ConfigError, HoldfastError: nothing that is sent can succeed.
        """
        import openai

        while True:
            sent = dict(self.parameters)
            try:
                async with asyncio.timeout(self.endpoint.timeout):  # the client's own is for each read, and a slow server resets it
                    answer = await self.client.chat.completions.with_raw_response.create(
                        model=self.settings.model, messages=[{"role": "user", "content": message}], **sent
                    )
                    text = answer.http_response.text
            except (openai.APITimeoutError, TimeoutError):
                raise _Again(f"no answer within {self.endpoint.timeout:g} s", unreachable=True) from None
            except openai.APIStatusError as error:
                self.answered = True
                if not self.adapt(error, sent):
                    self.refuse(error)
            except openai.APIConnectionError as error:
                cause = error.__cause__
                raise _Again(self.clean(f"connection failed: {type(cause).__name__ if cause else 'unknown'}: {cause}"), unreachable=True) from None
            except openai.OpenAIError as error:
                raise _Again(self.clean(f"{type(error).__name__}: {error}")) from None
            else:
                try:
                    return json.loads(text)
                except ValueError:
                    raise _Again(self.clean(f"the answer is no JSON: {text[:80]!r}")) from None

    def refuse(self, error: Any) -> None:
        """Turns an HTTP status into what follows from it; always raises."""
        status, said = error.status_code, self.clean(_message(error))
        where = f"{self.endpoint.shown} answered {status}"
        variable = self.endpoint.key_variable
        if status in (401, 403):
            if self.endpoint.api_key is None:
                advice = f"No key was sent: put one into an environment variable and name it with --api_key_env (such as {variable})."
            else:
                advice = f"Check the key in the environment variable {variable}, and that it may use '{self.settings.model}'."
            raise ConfigError(f"{where}: {said}. {advice}") from None
        if status == 404:
            ending = "" if urlsplit(self.endpoint.base_url).path.rstrip("/").endswith("/v1") else " (most end with /v1)"
            raise ConfigError(f"{where}: {said}. Check --judge_model ('{self.settings.model}') and --base_url{ending}.") from None
        if status == 402 or (status == 429 and "insufficient_quota" in f"{error.code} {error.type} {said}"):  # waiting helps no account
            raise HoldfastError(f"{where}: {said}. The account has no credit left; add some, and the same command continues.") from None
        if status in (408, 409, 425, 429) or status >= 500:
            raise _Again(f"HTTP {status}: {said}", wait=_retry_after(error.response.headers)) from None
        raise _Failed(f"HTTP {status}: {said}") from None

    def adapt(self, error: Any, sent: Mapping[str, Any]) -> bool:
        """Leaves out what the endpoint does not take, if that is what it says; True: send again."""
        if error.status_code not in (400, 422):
            return False
        said = f"{error.param} {_message(error)[:500]}".lower()
        if not (error.param or _REFUSAL.search(said)):
            return False
        if sent != self.parameters:
            return True  # a worker beside this one has adapted meanwhile
        if "logprob" in said and "logprobs" in sent:
            if sent.get("top_logprobs", 0) > 5 and "top_logprobs" in said:
                self.parameters = {**sent, "top_logprobs": 5}
            else:
                self.parameters = {name: value for name, value in sent.items() if name not in ("logprobs", "top_logprobs")}
        elif "max_completion_tokens" in said and "max_tokens" in sent:
            self.parameters = {("max_completion_tokens" if name == "max_tokens" else name): value for name, value in sent.items()}
        elif "temperature" in said and "temperature" in sent:
            self.parameters = {name: value for name, value in sent.items() if name != "temperature"}
        else:
            return False
        self.notes.append(f"The endpoint refused a parameter and was asked with {', '.join(f'{k}={v}' for k, v in self.parameters.items())}.")
        return True

    def clean(self, text: str, length: int = 300) -> str:
        """Text from outside, cut and without the key, should the endpoint have echoed it."""
        key = self.endpoint.api_key
        text = text.replace(key, "***") if key else text
        return text if len(text) <= length else f"{text[:length]}..."


def _run(work: Any) -> None:
    """Runs a coroutine to its end, in a thread of its own where a loop is running already (a notebook)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(work)
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(max_workers=1) as pool:
        pool.submit(asyncio.run, work).result()


def _message(error: Any) -> str:
    """What an endpoint says about a refused request, in one line."""
    body = error.body
    for name in ("error", "message", "detail"):
        if isinstance(body, Mapping) and body.get(name):
            body = body[name]
    text = body if isinstance(body, str) else json.dumps(body) if body else error.response.text or error.response.reason_phrase
    return " ".join(str(text).split()).rstrip(".")


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a server asks to wait, from `retry-after-ms` or `Retry-After` (seconds or a date); None: it does not say."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        try:
            seconds = float(value) * unit
        except ValueError:
            try:
                seconds = parsedate_to_datetime(value).timestamp() - time.time()
            except (ValueError, TypeError):
                continue
        if 0 <= seconds < float("inf"):
            return seconds
    return None


def _usage(body: Mapping[str, Any]) -> dict[str, int | None]:
    usage = body.get("usage")
    counts = usage if isinstance(usage, Mapping) else {}
    return {name: value if isinstance(value := counts.get(name), int) else None for name in ("prompt_tokens", "completion_tokens")}


def cost(tokens: Iterable[tuple[int, float | None]]) -> float | None:
    """The price of (tokens, price a million) pairs; None where no price is known."""
    priced = [(count, price) for count, price in tokens if price is not None]
    return sum(count * price / 1e6 for count, price in priced) if priced else None
