"""Articles to train on, written by a language model out of questions with answers, or out of documents (Memory
Retaining Finetuning, section 3.2).

Every prompt holds a few rows of the input; `variations` asks for several articles about the same rows, each with
another focus. All prompts of one variation come before those of the next, so that a budget that ends early has covered
all rows once before it covered any twice.

Asking costs money, so nothing that was answered is asked again: every reply goes to `<output>.ledger.jsonl` the moment
it is there, keyed by all that decides it (the whole prompt, the model, its settings, the variation; not the address).
`<output>` is made of that file, in the order of the prompts.

**The budget** holds over all sessions, however they end. Before a request is sent, the most that it can cost is written
down (its bytes halved as tokens, and `max_tokens` of reply); the reply's own cost, by the endpoint's count of tokens,
takes its place. What was sent and never answered, because the process was killed or the connection broke, stays on the
account at that most: it may have been charged.

**What is not kept** is counted, and stays in the ledger with its text: replies that were cut (`finish_reason` is
"length"), refusals, and replies that are too short. They are not asked again; requests that failed for good are, by the
next session.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from holdfast.config.declare import Meta
from holdfast.config.decode import field_mistakes
from holdfast.data import unread
from holdfast.data.layouts import BadRow, Convert, converter, recognise
from holdfast.data.outputs import found_instead, output_problems, own_record, record_path, rows_file
from holdfast.data.prepare.reading import Reading, records
from holdfast.data.readers import kind_of
from holdfast.data.sources import content_hash
from holdfast.data.synthesis_prompts import PROMPTS, TEXTBOOK_FOCI, filled, focus_of, joined
from holdfast.errors import ConfigError, DataError, HoldfastError, did_you_mean
from holdfast.records.evaluation import SCHEMA
from holdfast.support.endpoint import Answer, Client, Endpoint, missing_package, run, work_through
from holdfast.support.environment import now, versions
from holdfast.support.files import fingerprint, write_json
from holdfast.support.ledger import Ledger, ledger_places, read_ledger
from holdfast.support.paths import expanded
from holdfast.support.progress import progress as shown_progress

KEPT, CUT, REFUSED, SHORT, FAILED, SENT = "kept", "cut", "refused", "short", "failed", "sent"
REJECTED = (CUT, REFUSED, SHORT)
_RULES = 1
"""Part of every key; raised when the same settings would ask something else."""
ENOUGH_FAILURES = 20
"""Requests that failed for good one after the other; with so many it is the endpoint, not the prompts."""
_REFUSALS = re.compile(
    r"(i'?m |i am )?(very |really )?(sorry|afraid)\b|i (can'?t|cannot|can not|won'?t|am unable|am not able)\b|i'?m "
    r"(unable|not able)\b|as an ai\b",
    re.I,
)
_REFUSAL_LENGTH = 600
"""Characters; a long article may begin with "Sorry" too."""
_THOUGHT = re.compile(r"\s*<think>.*?</think>\s*", re.DOTALL)
_FINISHED = ("stop", "eos", "end_turn", None)


@dataclass(frozen=True, kw_only=True)
class SynthesisFiles:
    """What is read and written."""

    input: Annotated[tuple[Path, ...], Meta(repeatable=True, metavar="FILE", least=1)]
    """Rows of any layout that 'holdfast train' knows, .jsonl, .json or .parquet, such as 'holdfast data prepare'
    writes."""
    output: Annotated[Path, Meta(metavar="FILE.jsonl")]
    """The articles: text, and the hashes of the rows each was made of."""
    limit: Annotated[int | None, Meta(ge=1, group="what is asked")] = None
    """The first N prompts only."""


_MONEY = "money, in USD"


@dataclass(frozen=True, kw_only=True)
class Synthesis(SynthesisFiles):
    """One request: rows, what is asked about them, and for how much money."""

    settings_group: ClassVar[str] = "what is asked"

    model: Annotated[str, Meta(metavar="NAME")]
    """The model's name, as the endpoint knows it."""
    prompt: Annotated[str, Meta(metavar="textbook|article|FILE")] = "textbook"
    """For questions with answers, for documents, or a template of your own."""
    per_article: Annotated[int, Meta(ge=1)] = 3
    """Rows in a prompt (1 for article)."""
    variations: Annotated[int, Meta(ge=1)] = 1
    """Articles about the same rows, each with another focus."""
    max_tokens: Annotated[int, Meta(ge=1)] = 3000
    """Tokens of a reply; what is cut there is not kept."""
    temperature: Annotated[float, Meta(ge=0, le=2)] = 0.7
    """Temperature of sampling."""
    least_characters: Annotated[int, Meta(ge=0)] = 300
    """Shorter replies are not kept."""
    budget_usd: Annotated[float | None, Meta(gt=0, metavar="USD", group=_MONEY)] = None
    """For all sessions that write this output, requests in flight counted at their maximum (no bound)."""
    price_input: Annotated[float, Meta(ge=0, metavar="USD", group=_MONEY)] = 0.15
    """A million tokens sent."""
    price_output: Annotated[float, Meta(ge=0, metavar="USD", group=_MONEY)] = 0.60
    """A million tokens received."""

    @functools.cached_property
    def template(self) -> tuple[str, str]:
        """(name, text) of the prompt: one of holdfast's, or a file with {material} and maybe {focus}.

        Raises:
            ConfigError: neither, with the nearest name.
        """
        if self.prompt in PROMPTS:
            return self.prompt, PROMPTS[self.prompt]
        path = expanded(self.prompt)
        try:
            return path.name, path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            beside = [*PROMPTS, *(p.name for p in path.parent.glob("*") if path.parent.is_dir())]
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(
                f"prompt: expected textbook, article or a file with a template, got '{self.prompt}' "
                f"({reason}).{did_you_mean(path.name, beside)}"
            ) from None

    @property
    def ledger(self) -> Path:
        """Where replies are kept."""
        return self.output.with_name(f"{self.output.name}.ledger.jsonl")

    @property
    def identity(self) -> str:
        """What all sessions that write one output share."""
        return fingerprint(
            {
                "model": self.model,
                "template": self.template[1],
                "per": self.per_article,
                "max": self.max_tokens,
                "temperature": self.temperature,
            }
        )

    def cost(self, sent: int, received: int) -> float:
        """USD for so many tokens of prompts and of replies."""
        return sent * self.price_input / 1e6 + received * self.price_output / 1e6

    def most_cost(self, message: str) -> float:
        """USD that one request can cost: no tokenizer makes more tokens of ordinary text than half its bytes."""
        return self.cost(len(message.encode("utf-8", "replace")) // 2 + 16, self.max_tokens)

    def problems(self) -> list[str]:
        """One sentence a mistake; empty when all is well."""
        found = [m.sentence() for m in field_mistakes(self)]
        if not self.model:
            found.append("model: expected the name of a model, got nothing")
        name, template = self.prompt, "{material}"
        try:
            name, template = self.template
        except ConfigError as error:
            found += error.problems
        if "{material}" not in template:
            found.append(f"prompt: expected {{material}} in the template {name}, where the rows go; it is not there")
        different = 10**9 if name == "article" else len(TEXTBOOK_FOCI) if "{focus}" in template else 1
        if self.temperature == 0 and self.variations > different:
            found.append(
                f"variations: at temperature 0 the same prompt gives the same article; the template makes {different} "
                f"different prompts of a row, got {self.variations}. Raise the temperature, or ask for fewer"
            )
        for path in self.input:
            if not path.is_file():
                found.append(f"input: expected a file at {path}, {found_instead(path)}")
            elif kind_of(path) not in ("json", "parquet"):
                found.append(f"input: expected a .jsonl, .json or .parquet file, got {path}")
        found += output_problems("output", self.output, self.input)
        if self.budget_usd is not None and not (self.price_input or self.price_output):
            found.append("budget_usd: needs price_input or price_output above 0; without a price nothing is counted")
        return found


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One request, as it is asked."""

    key: str
    message: str
    sources: list[str]
    """Hashes of the rows in it."""
    variation: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a request would ask, before anything is asked."""

    rows: int
    prompts: int
    there: int
    """Of the prompts, how many have a reply already."""
    prompt_tokens: int
    """Of what is left to ask, at four characters a token."""
    most_tokens: int
    """Of the replies, if each is as long as it may be."""
    mean_tokens: float | None
    """Of the replies there are; None before there are any."""
    spent: float
    """USD so far."""
    most: float
    """USD that what is left costs at most, at four characters a token of prompt."""
    likely: float | None
    """The same with replies of the mean length so far."""
    notes: list[str]


@dataclass(frozen=True, kw_only=True)
class Synthesised:
    """What there is after a session."""

    record: dict[str, Any]
    """As in `<output>.json`."""
    asked: int
    """Requests of this session that came to an end."""
    left: int
    """Prompts that the budget left unasked."""
    notes: list[str]


def request_key(message: str, variation: int, request: Synthesis) -> str:
    """All that decides an answer."""
    return fingerprint(
        {
            "message": message,
            "model": request.model,
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "variation": variation,
            "rules": _RULES,
        }
    )


# ------------------------------------------------------------------------------------------------------------- prompts


def materials(request: Synthesis, reading: Reading) -> Iterator[str]:
    """The rows of the input as text, in order; rows that cannot be used are counted in `reading`.

    Raises:
        DataError: a file that cannot be read, or whose columns make no layout.
    """
    for file in request.input:
        convert: Convert | None = None
        columns: list[str] = []
        for place, record in records(file, reading):
            if record is None:
                continue
            if convert is None:
                layout = recognise(list(record), record)
                if layout is None or layout.name == "tokenised":
                    raise DataError(
                        f"{file}: the columns {', '.join(record)} make no layout that can be written about. Expected "
                        f"text; question + answer; "
                        "prompt + completion; instruction + output; or messages."
                    )
                columns = [*layout.columns.values(), *layout.beside.values()]
                convert = converter(
                    layout, chat_template=True, messages=isinstance(record.get(layout.columns.get("prompt", "")), list)
                )
            try:
                text = _material(convert({**dict.fromkeys(columns), **record}))
            except BadRow as error:
                reading.bad(place, str(error))
            else:
                reading.not_read.update(unread.of_row(record, columns))
                yield text


def _material(row: Mapping[str, Any]) -> str:
    if "text" in row:
        return str(row["text"]).strip()
    turns = (
        row["messages"]
        if "messages" in row
        else [*_turns(row["prompt"], "user"), *_turns(row["completion"], "assistant")]
    )
    names = {"user": "Question", "assistant": "Answer", "system": "Setting", "tool": "Tool"}
    return "\n\n".join(f"{names[turn['role']]}: {turn['content'].strip()}" for turn in turns if turn["content"].strip())


def _turns(value: Any, role: str) -> list[dict[str, str]]:
    return value if isinstance(value, list) else [{"role": role, "content": value}]


def prompts_of(request: Synthesis) -> Iterator[Prompt]:
    """All prompts in their order, built as they are taken."""
    made = itertools.chain.from_iterable(_variation(request, number) for number in range(request.variations))
    return itertools.islice(made, request.limit)


def _variation(request: Synthesis, number: int) -> Iterator[Prompt]:
    rows, (name, template) = materials(request, _reading(request)), request.template
    while group := list(itertools.islice(rows, request.per_article)):
        material = joined(group)
        message = filled(template, material=material, focus=focus_of(name, number, material))
        yield Prompt(
            key=request_key(message, number, request),
            message=message,
            sources=[fingerprint(text, length=32) for text in group],
            variation=number,
        )


def _reading(request: Synthesis) -> Reading:
    return Reading(files=list(request.input), options={})


def _count_rows(request: Synthesis) -> tuple[int, list[str]]:
    """The rows of the input, all of them looked at, and a sentence on what of them is not read.

    Raises:
        DataError: rows that cannot be used (the first ten), or none at all.
    """
    reading = _reading(request)
    with shown_progress(
        "Reading the input", total=sum(f.stat().st_size for f in request.input), unit="bytes"
    ) as advance:
        reading.advance = advance
        count = sum(1 for _ in materials(request, reading))
    if reading.malformed:
        raise reading.error(
            f"{reading.malformed} of {reading.records} rows of the input cannot be used. Correct or remove them. The "
            f"first"
        )
    if not count:
        raise DataError("Expected at least one row in the input, got none.")
    return count, [unread.sentence(reading.not_read, "the input")] if reading.not_read else []


def _prompt_count(request: Synthesis, rows: int) -> int:
    count = -(-rows // request.per_article) * request.variations
    return count if request.limit is None else min(count, request.limit)


# ------------------------------------------------------------------------------------------------------------ the money


@dataclass(kw_only=True)
class Account:
    """What was spent and may be spent, over all sessions; sees every row of the ledger once, in order."""

    request: Synthesis
    spent: float = 0.0
    """USD: replies, and what was sent in earlier attempts and never answered."""
    open: dict[str, float] = field(default_factory=dict)
    """What is in flight may cost at most, by key."""
    tokens: Counter[str] = field(default_factory=Counter)
    replies: int = 0
    """Replies whose tokens the endpoint counted."""

    def note(self, row: dict[str, Any]) -> dict[str, Any]:
        """Takes a row into account; returns the little of it that stays in memory."""
        before = self.open.pop(row["key"], 0.0)
        if row["outcome"] == SENT:
            self.spent += before  # sent again: nobody will ever know what became of the first
            self.open[row["key"]] = self._usd(row, "most")
            return {"outcome": SENT}
        self.spent += self._usd(row, "cost")
        if row.get("completion_tokens") is not None:
            self.replies += 1
            self.tokens["completion"] += row["completion_tokens"]
            self.tokens["prompt"] += row.get("prompt_tokens") or 0
        return {"outcome": outcome_of(row, self.request.least_characters)}

    def _usd(self, row: Mapping[str, Any], name: str) -> float:
        """
        Raises:
            DataError: what would hide what was spent, such as NaN, of which every comparison is false.
        """
        found = row.get(name) or 0.0
        if isinstance(found, (int, float)) and 0 <= found < math.inf:
            return float(found)
        raise DataError(
            f"{self.request.ledger}: expected '{name}' of at least 0 USD, got {found!r}, so that nobody knows what was "
            f"spent. Correct the row, or choose another --output."
        )

    def close(self) -> None:
        """Earlier sessions are over: what they left on its way is spent, as far as anybody knows."""
        self.spent += sum(self.open.values())
        self.open.clear()

    @property
    def committed(self) -> float:
        """USD spent, and at most spent by what is on its way."""
        return self.spent + sum(self.open.values())

    def fits(self, most: float) -> bool:
        budget = self.request.budget_usd
        return budget is None or self.committed + most <= budget


def outcome_of(row: Mapping[str, Any], least_characters: int) -> str:
    """ "kept", "cut", "refused", "short" or "failed" for a row of the ledger with a reply; its `text` decides, and how
    it ended."""
    if row["outcome"] != "answered":
        return str(row["outcome"])
    article = article_of(row["text"])
    finish = row.get("finish_reason")
    if row.get("refusal") or finish == "content_filter":
        return REFUSED
    unfinished_thought = row["text"].lstrip().startswith("<think>") and "</think>" not in row["text"]
    if finish not in _FINISHED or unfinished_thought:
        return CUT
    if len(article) <= _REFUSAL_LENGTH and _REFUSALS.match(article.replace("’", "'")):
        return REFUSED
    return KEPT if len(article) >= max(1, least_characters) else SHORT


def article_of(text: str) -> str:
    """The article in a reply: without the thoughts that some models write before it."""
    return _THOUGHT.sub("", text, count=1).strip() if text.lstrip().startswith("<think>") else text.strip()


# ------------------------------------------------------------------------------------------------------------- the work


def plan(request: Synthesis) -> Plan:
    """What the request would ask and cost. Asks nothing, writes nothing.

    Raises:
        ConfigError: mistakes in the request, all of them.
        DataError: rows that cannot be used.
        RunFolderError: the output is another request's.
    """
    if problems := request.problems():
        raise ConfigError(problems)
    _check_output(request)
    rows, notes = _count_rows(request)
    account = Account(request=request)
    kept = read_ledger(request.ledger, keep=account.note)
    account.close()
    there, characters, left = 0, 0, 0
    seen: set[str] = set()
    with shown_progress("Counting prompts", total=_prompt_count(request, rows)) as advance:
        for one in prompts_of(request):
            advance(1)
            if one.key in seen:
                continue
            seen.add(one.key)
            if kept.get(one.key, {}).get("outcome") in (KEPT, *REJECTED):
                there += 1
            else:
                left += 1
                characters += len(one.message)
    prompt_tokens, mean = characters // 4, account.tokens["completion"] / account.replies if account.replies else None
    return Plan(
        rows=rows,
        prompts=len(seen),
        there=there,
        prompt_tokens=prompt_tokens,
        most_tokens=left * request.max_tokens,
        mean_tokens=mean,
        spent=account.spent,
        most=request.cost(prompt_tokens, left * request.max_tokens),
        likely=request.cost(prompt_tokens, round(left * mean)) if mean is not None else None,
        notes=notes,
    )


def synthesise(
    request: Synthesis, endpoint: Endpoint, *, progress: Callable[[int, int, float], None] | None = None
) -> Synthesised:
    """Asks for what is missing, as far as the budget goes, and writes the articles there are.

    Args:
        request: what to ask.
        endpoint: where.
        progress: called with (prompts that have a reply, prompts in all, USD so far) as replies come.

    Raises:
        ConfigError: mistakes in the request; the endpoint refuses the key, or does not know the model or the address.
        DataError: rows of the input that cannot be used.
        HoldfastError: nobody answers, the account has no credit, or one request after the other fails. What came before
            is kept in all cases.
        RunFolderError, StorageError: the output is another request's, another process is at it, or it cannot be
            written.
    """
    if problems := request.problems() + endpoint.problems() + missing_package("writing articles"):
        raise ConfigError(problems)
    _check_output(request)
    rows, notes = _count_rows(request)
    total = _prompt_count(request, rows)
    account = Account(request=request)
    with Ledger(request.ledger, keep=account.note) as ledger:
        account.close()
        session = _Session(request, endpoint, ledger, account, total, progress or (lambda done, total, spent: None))
        if not record_path(request.output).is_file():
            write_json(record_path(request.output), _record(request, account, status="writing"))
        notes += run(session.ask_all())
        return _finish(request, session, notes)


class _Session:
    """The asking of one process."""

    def __init__(
        self,
        request: Synthesis,
        endpoint: Endpoint,
        ledger: Ledger,
        account: Account,
        total: int,
        progress: Callable[[int, int, float], None],
    ) -> None:
        self.request, self.endpoint, self.ledger, self.account, self.total = request, endpoint, ledger, account, total
        self.progress = progress
        self.taken: set[str] = set()
        """Keys of all prompts that were looked at in this session."""
        self.asked = 0
        self.done = 0
        self.left = 0
        self.failures = 0
        """For good, since the last reply."""
        self.changed = asyncio.Condition()

    async def ask_all(self) -> list[str]:
        """Asks for everything that has no reply; returns the client's notes."""
        self.progress(0, self.total, self.account.spent)
        parameters = {"max_tokens": self.request.max_tokens, "temperature": self.request.temperature}
        async with Client(self.endpoint, model=self.request.model, parameters=parameters) as client:

            async def work(one: Prompt) -> None:
                await self.ask(one, client)

            await work_through(self.missing(), work, workers=self.endpoint.workers)
        return client.notes

    def missing(self) -> Iterator[Prompt]:
        """Prompts without a reply, each once. When the budget is at its end the rest is counted, no more."""
        for one in prompts_of(self.request):
            if one.key in self.taken:
                self.total -= 1
                continue
            self.taken.add(one.key)
            if self.ledger.rows.get(one.key, {}).get("outcome") in (KEPT, *REJECTED):
                self.done += 1
            elif self.left:
                self.left += 1
            else:
                yield one

    async def ask(self, one: Prompt, client: Client) -> None:
        """Asks one prompt and records what came, unless the budget does not reach."""
        most = self.request.most_cost(one.message)

        def send() -> None:
            """Notes that it goes out; what it may cost counts from here on, should the process die."""
            if not self.account.fits(most):
                raise _Spent
            self.ledger.add([{"key": one.key, "outcome": SENT, "most": most}])

        async with self.changed:
            # replies cost less than they might: while some are on their way, there may be room again
            await self.changed.wait_for(lambda: bool(self.left) or self.account.fits(most) or not self.account.open)
            if self.left or not self.account.fits(most):
                self.left += 1
                self.changed.notify_all()
                return
            send()
        try:
            answer = await client.ask(one.message, _read_reply, on_lost=send)
        except _Spent:
            answer = Answer(value=None, attempts=0, error="the budget does not reach for another attempt", lost=True)
        self.ledger.add([self.row(one, answer, client, most)])
        self.asked += 1
        self.done += answer.value is not None
        self.failures = 0 if answer.value is not None else self.failures + 1
        self.progress(self.done, self.total, self.account.spent)
        async with self.changed:
            self.changed.notify_all()
        if self.failures >= max(ENOUGH_FAILURES, 2 * self.endpoint.workers):
            raise HoldfastError(
                f"{self.failures} requests failed one after the other, the last with: {answer.error}. Stopped; what "
                f"was answered is kept, and the "
                "same command asks for the rest."
            )

    def row(self, one: Prompt, answer: Answer[_Reply], client: Client, most: float) -> dict[str, Any]:
        """A row of the ledger."""
        common = {
            "key": one.key,
            "sources": one.sources,
            "variation": one.variation,
            "model": self.request.model,
            "attempts": answer.attempts,
        }
        if answer.value is None:
            return {**common, "outcome": FAILED, "error": answer.error, "cost": most if answer.lost else 0.0}
        sent, received = answer.prompt_tokens, answer.completion_tokens
        return {
            **common,
            "outcome": "answered",
            "text": client.without_key(answer.value.text),
            "refusal": client.without_key(answer.value.refusal) or None,
            "finish_reason": answer.value.finish_reason,
            "prompt_tokens": sent,
            "completion_tokens": received,
            "cost": self.request.cost(sent, received) if sent is not None and received is not None else most,
        }


class _Spent(Exception):
    """The budget does not reach for this attempt."""


@dataclass(frozen=True, kw_only=True)
class _Reply:
    text: str
    refusal: str
    finish_reason: str | None


def _read_reply(body: Any) -> _Reply:
    """The reply in a chat completion.

    Raises:
        ValueError: it is none.
    """
    choices = body.get("choices") if isinstance(body, Mapping) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], Mapping):
        raise ValueError("the answer holds no choices")
    message, finish = choices[0].get("message"), choices[0].get("finish_reason")
    if not isinstance(message, Mapping):
        raise ValueError("the answer's choice holds no message")
    text, refusal = message.get("content"), message.get("refusal")
    return _Reply(
        text=text if isinstance(text, str) else "",
        refusal=refusal if isinstance(refusal, str) else "",
        finish_reason=finish if isinstance(finish, str) else None,
    )


# ----------------------------------------------------------------------------------------------------------- the output


def _check_output(request: Synthesis) -> None:
    """Whether the output may be written.

    Raises:
        RunFolderError: it is there and is another request's.
    """
    own_record(
        request.output,
        [request.output, record_path(request.output), request.ledger],
        command="data synthesise",
        mine={"identity": request.identity},
        differs="it came from another model, prompt, per_article, max_tokens or temperature",
    )


def _record(request: Synthesis, account: Account, *, status: str) -> dict[str, Any]:
    name, template = request.template
    return {
        "command": "data synthesise",
        "status": status,
        "identity": request.identity,
        "inputs": [{"name": path.name, "sha256": content_hash(path)} for path in request.input],
        "settings": {
            "model": request.model,
            "prompt": name,
            "template": template,
            "per_article": request.per_article,
            "variations": request.variations,
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "least_characters": request.least_characters,
        },
        "limit": request.limit,
        "budget_usd": request.budget_usd,
        "prices": {"input": request.price_input, "output": request.price_output},
        "cost_usd": account.spent,
        "prompt_tokens": account.tokens["prompt"],
        "completion_tokens": account.tokens["completion"],
        "versions": versions(),
        "updated": now(),
        "schema": SCHEMA,
    }


def _finish(request: Synthesis, session: _Session, notes: list[str]) -> Synthesised:
    """Writes the articles in the order of their prompts, and the record; says what is missing."""
    outcomes = Counter(row["outcome"] for key, row in session.ledger.rows.items() if key in session.taken)
    written, repeated = _write_articles(request)
    record = _record(request, session.account, status="partial" if session.left or outcomes[FAILED] else "complete")
    record["counts"] = {
        "prompts": len(session.taken),
        "articles": written["rows"],
        "repeated": repeated,
        **{name: outcomes[name] for name in (CUT, REFUSED, SHORT, FAILED)},
        "unasked": session.left,
    }
    record["output"] = written
    write_json(record_path(request.output), record)
    if outcomes[CUT]:
        notes.append(
            f"{outcomes[CUT]} replies were cut at max_tokens and are not kept. A larger --max_tokens asks again, into "
            f"another --output."
        )
    if session.left:
        notes.append(
            f"{session.left} prompts were not asked: the budget of {request.budget_usd:g} USD is used up. A larger "
            f"--budget_usd goes on."
        )
    if outcomes[FAILED]:
        notes.append(f"{outcomes[FAILED]} requests failed for good. The same command asks for them again.")
    return Synthesised(record=record, asked=session.asked, left=session.left, notes=notes)


def _write_articles(request: Synthesis) -> tuple[dict[str, Any], int]:
    """(what the record says of the output, equal articles left out); the output is whole or as it was before.

    Raises:
        StorageError: the disk is full.
    """
    places, repeated = ledger_places(request.ledger), 0
    texts: set[bytes] = set()
    name, template = request.template[0], fingerprint(request.template[1], length=16)
    with (
        rows_file(request.output) as file,
        open(request.ledger, "rb") as ledger,
        shown_progress("Writing articles", total=len(places)) as advance,
    ):
        for one in prompts_of(request):
            place = places.pop(one.key, None)  # a prompt that comes twice is written once
            if place is None:
                continue
            advance(1)
            ledger.seek(place)
            row = json.loads(ledger.readline())
            if outcome_of(row, request.least_characters) != KEPT:
                continue
            text = article_of(row["text"])
            known = hashlib.sha256(text.encode()).digest()[:16]
            if known in texts:
                repeated += 1
                continue
            texts.add(known)
            article = {
                "text": text,
                "sources": one.sources,
                "prompt": name,
                "template": template,
                "variation": one.variation,
                "model": request.model,
                "key": one.key,
            }
            file.add((json.dumps(article, ensure_ascii=False) + "\n").encode())
    return file.about, repeated
