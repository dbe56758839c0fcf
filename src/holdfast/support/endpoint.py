"""Asking a language model behind any OpenAI-compatible endpoint, many requests at once, with
retries.

What is busy, broken or late is asked again with growing pauses (a server's `Retry-After` holds for
all workers); what fails for good is handed back as such; a key, a model or an address that is
wrong, and an account without credit, stop everything at once. A parameter that an endpoint refuses
(log-probabilities, their number, `max_tokens`, a temperature) is left out or replaced from then on.
The key is never written, logged or shown.

A body is read to a bound, and one attempt ends after `timeout` seconds, whatever trickles in; what
is longer, packed, or nested too deeply fails that attempt, and no other request.

Nothing is kept here: whoever asks records the answers, one by one, in a
`holdfast.support.ledger.Ledger`. Needs the package `openai`, once it asks.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import json
import os
import random
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

from holdfast.errors import ConfigError, HoldfastError, Problem, did_you_mean

T = TypeVar("T")

DEFAULT_KEY_VARIABLE = "OPENAI_API_KEY"
_REFUSAL = re.compile(
    r"support|unrecogni|unexpected|unknown|not permitted|not allowed|extra|invalid|must be|at most|less "
    r"than|maximum|greater"
)
"""How endpoints speak of a parameter that they do not take; without it the name of one may be a
word of the prompt."""
_NO_KEY = "none"
"""Sent where there is no key: the client wants one, a server of one's own takes any."""
_NESTED = "the answer is nested too deeply"


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where the model is, and how often it is asked again. Decides no answer."""

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
    """For one request; then it has failed."""
    first_wait: float = 1.0
    """Seconds before the second attempt, doubled with every further one, with jitter."""
    longest_wait: float = 120.0
    """Seconds; also of what a server asks for by Retry-After."""
    longest_body: int = 2**22
    """Bytes of an answer."""

    def problems(self) -> list[Problem]:
        """One sentence a mistake; empty when all is well."""
        parts = urlsplit(self.base_url)
        problems = []
        if parts.scheme not in ("http", "https") or not parts.netloc:
            problems.append(
                Problem(
                    "base_url",
                    f"expected an address such as http://localhost:8000/v1, got '{self.shown}'.",
                )
            )
        for name, least in (("workers", 1), ("attempts", 1)):
            if getattr(self, name) < least:
                problems.append(
                    Problem(name, f"expected at least {least}, got {getattr(self, name)}.")
                )
        if not self.timeout > 0:
            problems.append(
                Problem("timeout", f"expected more than 0 seconds, got {self.timeout}.")
            )
        return problems

    @property
    def shown(self) -> str:
        """The address without what may be secret in it: user, password and query."""
        parts = urlsplit(self.base_url)
        return (
            f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
            if parts.netloc
            else self.base_url.partition("?")[0]
        )


PROBE = (
    "Memory is kept in the data, the loss, the gradient or the weights. In 1912 three ships sailed "
    "south; the price of 12 apples at 3 euros each is 36 euros. def add(a, b): return a + b"
)
"""The text whose log-probabilities tell served models apart."""


def find_key(base_url: str, variable: str | None) -> tuple[str, str | None, str]:
    """(variable, key, what is wrong): the variable that is named, or OpenAI's own for OpenAI's own
    endpoint, so that no key goes where it was not meant to go."""
    if variable is not None:
        key = os.environ.get(variable, "").strip()
        if key:
            return variable, key, ""
        # somebody may have put the key itself there
        name = variable if re.fullmatch(r"[A-Z_][A-Z0-9_]*", variable) else "the one given"
        state = "is not set" if variable not in os.environ else "is empty"
        return (
            variable,
            None,
            f"expected the name of an environment variable that holds the key; {name} {state}.",
        )
    is_openai = urlsplit(base_url).hostname == "api.openai.com"
    return (
        DEFAULT_KEY_VARIABLE,
        (os.environ.get(DEFAULT_KEY_VARIABLE, "").strip() or None) if is_openai else None,
        "",
    )


@dataclass(frozen=True, kw_only=True)
class OptionNames:
    """What a command calls the things that messages tell people to check."""

    model: str = "--model"
    base_url: str = "--base_url"
    key: str = "--api_key_variable"


@dataclass(frozen=True, kw_only=True)
class Answer(Generic[T]):
    """What came of one request."""

    value: T | None
    """What `read` made of the reply; None: the request failed for good."""
    attempts: int
    error: str | None = None
    """Why it failed."""
    prompt_tokens: int | None = None
    """As the endpoint counts them; None where it does not say."""
    completion_tokens: int | None = None


class _Again(Exception):
    """This attempt failed in a way that another may not.

    Args:
        reason: for the record.
        wait: seconds that the server asked for; None: as the policy has it.
        unreachable: whether nobody answered at all.
    """

    def __init__(
        self, reason: str, *, wait: float | None = None, unreachable: bool = False
    ) -> None:
        super().__init__(reason)
        self.wait, self.unreachable = wait, unreachable


class _Failed(Exception):
    """This request fails whenever it is sent."""


class _Unreadable(Exception):
    """A body that is too long, or packed, which was not asked for."""


class Client:
    """Asks one model; an asynchronous context manager.

    Args:
        endpoint: where it is.
        model: its name there.
        parameters: sent with every request, such as `max_tokens`; what the endpoint refuses is left
            out or replaced.
        options: how messages name the options.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        model: str,
        parameters: Mapping[str, Any],
        options: OptionNames | None = None,
    ) -> None:
        self.endpoint, self.model = endpoint, model
        self.options = options or OptionNames()
        self.parameters: dict[str, Any] = dict(parameters)
        """What is sent, less what the endpoint has refused."""
        self.notes: list[str] = []
        """What was left out or replaced."""
        self._answered = False
        # whether the endpoint has ever answered; until then a request that fails for good stops the
        # run
        self._not_before = 0.0
        # no request before this time (monotonic clock): Retry-After in one answer holds for all
        self._client: Any = None

    async def __aenter__(self) -> Client:
        import openai

        # retries are ours: the client gives up on a broken body, and on long pauses that a server
        # asks for
        self._client = openai.AsyncOpenAI(
            api_key=self.endpoint.api_key or _NO_KEY,
            base_url=self.endpoint.base_url,
            timeout=self.endpoint.timeout,
            max_retries=0,
            default_headers={"Accept-Encoding": "identity"},
            http_client=openai.DefaultAsyncHttpxClient(
                event_hooks={"response": [self._read_to_a_bound]}
            ),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def ask(self, message: str, read: Callable[[Any], T]) -> Answer[T]:
        """Sends one message of the user until there is an answer or no more attempts.

        Args:
            message: the whole prompt.
            read: see `_until_answered`.

        Raises:
            see `_until_answered`.
        """
        create = self._client.chat.completions.with_raw_response.create
        messages = [{"role": "user", "content": message}]
        return await self._until_answered(
            functools.partial(create, model=self.model, messages=messages), read
        )

    async def complete(
        self, prompt: list[int] | str, read: Callable[[Any], T], **parameters: Any
    ) -> Answer[T]:
        """Sends a prompt to `/completions`, as `ask` sends a message.

        Args:
            prompt: a text, or its token ids.
            read: see `_until_answered`.
            parameters: of this request.
        """
        create = self._client.completions.with_raw_response.create
        return await self._until_answered(
            functools.partial(create, model=self.model, prompt=prompt, **parameters), read
        )

    async def models(self, read: Callable[[Any], T]) -> Answer[T]:
        """The list of what is served; `read`: see `_until_answered`."""
        return await self._until_answered(self._client.models.with_raw_response.list, read)

    async def _until_answered(
        self, send: Callable[..., Awaitable[Any]], read: Callable[[Any], T]
    ) -> Answer[T]:
        """Sends a request until there is an answer or no more attempts.

        Args:
            send: the request; takes the parameters that all requests of this client have.
            read: makes a value of the endpoint's body (parsed JSON); raises ValueError where it is
                no chat completion, which is worth asking again.

        Raises:
            ConfigError: the endpoint refuses the key or does not know the model or the address.
            HoldfastError: nobody answers there and never has, or the account has no credit left.
        """
        attempt, unreachable, reason = 0, False, ""
        while attempt < self.endpoint.attempts:
            attempt += 1
            while (pause := self._not_before - time.monotonic()) > 0:
                await asyncio.sleep(pause)
            wait = None
            try:
                body = await self._send(send)
                value = read(body)
            except _Again as error:
                unreachable, reason, wait = error.unreachable, str(error), error.wait
            except _Failed as error:
                return Answer(value=None, attempts=attempt, error=str(error))
            except (ValueError, RecursionError) as error:
                reason = _NESTED if isinstance(error, RecursionError) else self.clean(str(error))
                unreachable = False
            else:
                self._answered = True
                usage = body.get("usage") if isinstance(body, Mapping) else None
                counts = usage if isinstance(usage, Mapping) else {}
                return Answer(
                    value=value,
                    attempts=attempt,
                    prompt_tokens=counts.get("prompt_tokens"),
                    completion_tokens=counts.get("completion_tokens"),
                )
            if attempt < self.endpoint.attempts:
                await self._wait(attempt, wait)
        if unreachable and not self._answered:
            raise HoldfastError(
                f"No answer from {self.endpoint.shown} ({reason}, {attempt} attempts). Check "
                f"{self.options.base_url}, and that the server is up and reachable. Then run the "
                "same command to continue."
            )
        return Answer(value=None, attempts=attempt, error=reason)

    def clean(self, text: str, length: int = 300) -> str:
        """Text from outside, cut and without the key, should the endpoint have echoed it."""
        key = self.endpoint.api_key
        if key:
            text = text.replace(key, "***")
        return text if len(text) <= length else f"{text[:length]}..."

    async def _wait(self, attempt: int, asked: float | None) -> None:
        """Sleeps before the next attempt: what the server asked for, else a pause that doubles,
        with jitter so that workers do not come together."""
        longest = self.endpoint.longest_wait
        if asked is not None:
            self._not_before = max(self._not_before, time.monotonic() + min(asked, longest))
            return
        await asyncio.sleep(
            min(longest, self.endpoint.first_wait * 2 ** (attempt - 1)) * random.uniform(0.5, 1.0)
        )

    async def _send(self, send: Callable[..., Awaitable[Any]]) -> Any:
        """One attempt: the endpoint's body, parsed.

        Raises:
            _Again, _Failed: see there. ConfigError, HoldfastError: nothing that is sent can
                succeed.
        """
        import openai

        while True:
            sent = dict(self.parameters)
            try:
                async with asyncio.timeout(
                    self.endpoint.timeout
                ):  # the client's own is for each read, and a slow server resets it
                    answer = await send(**sent)
                    text = answer.http_response.text
            except (openai.APITimeoutError, TimeoutError):
                raise _Again(
                    f"no answer within {self.endpoint.timeout:g} s", unreachable=True
                ) from None
            except openai.APIStatusError as error:
                self._answered = True
                if not self._adapt(error, sent):
                    self._refuse(error)
            except openai.APIConnectionError as error:
                cause = error.__cause__
                raise _Again(
                    self.clean(
                        f"connection failed: {type(cause).__name__ if cause else 'unknown'}: "
                        f"{cause}"
                    ),
                    unreachable=True,
                ) from None
            except _Unreadable as error:
                raise _Again(str(error)) from None
            except openai.OpenAIError as error:
                raise _Again(self.clean(f"{type(error).__name__}: {error}")) from None
            else:
                try:
                    return json.loads(text)
                except ValueError:
                    raise _Again(self.clean(f"the answer is not JSON: {text[:80]!r}")) from None

    async def _read_to_a_bound(self, response: Any) -> None:
        """Reads a body before the HTTP client does, which reads whatever comes; called for every
        response, those of redirections and of errors too.

        Raises:
            _Unreadable: see there.
        """
        import httpx2

        encoding = response.headers.get("content-encoding", "identity")
        if encoding.strip().lower() != "identity":  # httpx would unpack a bomb
            raise _Unreadable(
                self.clean(f"the answer is compressed with {encoding!r}, which was not requested")
            )
        longest = self.endpoint.longest_body
        body = bytearray()
        async for piece in response.stream:
            body += piece
            if len(body) > longest:
                raise _Unreadable(f"the answer is longer than {longest:,} bytes")
        await response.stream.aclose()
        # without what the server says of it: some of Python's encodings are no text's, and unpack
        response.headers["content-type"] = "application/json"
        response.stream = httpx2.ByteStream(bytes(body))

    def _refuse(self, error: Any) -> None:
        """Turns an HTTP status into what follows from it; always raises."""
        status, text = error.status_code, self.clean(_message(error))
        where = f"{self.endpoint.shown} answered {status}"
        variable, options = self.endpoint.key_variable, self.options
        if status in (401, 403):
            if self.endpoint.api_key is None:
                advice = (
                    "No key was sent: put one into an environment variable and name it with "
                    f"{options.key} (such as {variable})."
                )
            else:
                advice = (
                    f"Check the key in the environment variable {variable}, and that it may use "
                    f"'{self.model}'."
                )
            raise ConfigError(f"{where}: {text}. {advice}") from None
        if status == 404:
            ending = (
                ""
                if urlsplit(self.endpoint.base_url).path.rstrip("/").endswith("/v1")
                else " (most end with /v1)"
            )
            raise ConfigError(
                f"{where}: {text}. Check {options.model} ('{self.model}') and "
                f"{options.base_url}{ending}."
            ) from None
        if status == 402 or (
            status == 429 and "insufficient_quota" in f"{error.code} {error.type} {text}"
        ):  # waiting helps no account
            raise HoldfastError(
                f"{where}: {text}. The account has no credit left. Add some, and run the same "
                "command to continue."
            ) from None
        if status in (408, 409, 425, 429) or status >= 500:
            raise _Again(
                f"HTTP {status}: {text}", wait=_retry_after(error.response.headers)
            ) from None
        raise _Failed(f"HTTP {status}: {text}") from None

    def _adapt(self, error: Any, sent: Mapping[str, Any]) -> bool:
        """Leaves out what the endpoint does not take, if that is what it says; True: send again."""
        if error.status_code not in (400, 422):
            return False
        text = f"{error.param} {_message(error)[:500]}".lower()
        if not (error.param or _REFUSAL.search(text)):
            return False
        if sent != self.parameters:
            return True  # a worker beside this one has adapted meanwhile
        if "logprob" in text and "logprobs" in sent:
            if sent.get("top_logprobs", 0) > 5 and "top_logprobs" in text:
                self.parameters = {**sent, "top_logprobs": 5}
            else:
                self.parameters = {
                    name: value
                    for name, value in sent.items()
                    if name not in ("logprobs", "top_logprobs")
                }
        elif "max_completion_tokens" in text and "max_tokens" in sent:
            self.parameters = {
                ("max_completion_tokens" if name == "max_tokens" else name): value
                for name, value in sent.items()
            }
        elif "temperature" in text and "temperature" in sent:
            self.parameters = {name: value for name, value in sent.items() if name != "temperature"}
        else:
            return False
        self.notes.append(
            "The endpoint refused a parameter. The request was sent again with "
            f"{', '.join((f'{k}={v}' for k, v in self.parameters.items()))}."
        )
        return True


def chosen_model(
    endpoint: Endpoint, wanted: str, options: OptionNames
) -> tuple[str, Mapping[str, Any]]:
    """(name, what the server says of it) of one of the models that a server has.

    Args:
        endpoint: where.
        wanted: the name; "": the only one there is.
        options: how messages name the options.

    Raises:
        ConfigError: no such model, or several and none is named.
        HoldfastError: nobody answers, or no models.
    """

    def read(body: Any) -> dict[str, Mapping[str, Any]]:
        data = body.get("data") if isinstance(body, Mapping) else None
        if not isinstance(data, list) or not all(
            isinstance(m, Mapping) and isinstance(m.get("id"), str) for m in data
        ):
            raise ValueError(f"expected a list of models, got {str(body)[:200]}")
        return {m["id"]: m for m in data}

    async def asked() -> Answer[dict[str, Mapping[str, Any]]]:
        async with Client(endpoint, model="", parameters={}, options=options) as client:
            return await client.models(read)

    answer = run(asked())
    listed = answer.value
    if not listed:
        raise HoldfastError(
            f"{endpoint.shown} names no models: {answer.error or 'the list is empty'}."
        )
    if wanted not in listed and (wanted or len(listed) != 1):
        raise ConfigError(
            f"{endpoint.shown}: expected one of its models ({', '.join(listed)}) after '#', got "
            f"'{wanted}'.{did_you_mean(wanted, listed)}"
        )
    name = wanted or next(iter(listed))
    return name, listed[name]


async def work_through(
    items: Iterable[T], work: Callable[[T], Awaitable[None]], *, workers: int
) -> None:
    """Does `work` for every item, `workers` at once, taking the next item when a worker is free.
    The first exception stops all and is raised."""
    waiting = iter(items)

    async def worker() -> None:
        for item in waiting:
            await work(item)

    tasks = [asyncio.create_task(worker()) for _ in range(workers)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine to its end, in a thread of its own where a loop is running already (a
    notebook)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(asyncio.run, work).result()


def missing_package(doing: str) -> list[str]:
    """A sentence where the package `openai` is not installed; empty where it is."""
    if importlib.util.find_spec("openai") is not None:
        return []
    return [
        f"{doing} needs the package openai, which is not installed. Install it with: pip install "
        "'holdfast[judge]'"
    ]


def _message(error: Any) -> str:
    """What an endpoint says about a refused request, in one line."""
    body = error.body
    for name in ("error", "message", "detail"):
        if isinstance(body, Mapping) and body.get(name):
            body = body[name]
    text = (
        body
        if isinstance(body, str)
        else json.dumps(body)
        if body
        else error.response.text or error.response.reason_phrase
    )
    return " ".join(str(text).split()).rstrip(".")


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a server asks to wait, from `retry-after-ms` or `Retry-After` (seconds or a
    date); None: it does not say."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        try:
            seconds = float(value) * unit
        except ValueError:
            try:
                seconds = parsedate_to_datetime(value).timestamp() - time.time()
            except (ValueError, TypeError, OverflowError):
                continue
        if 0 <= seconds < float("inf"):
            return seconds
    return None
