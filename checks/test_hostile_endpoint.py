"""Asking an endpoint that means no good: bodies without end, bombs, nesting, what trickles in. Each costs one request,
within its time and its memory, and the others are answered."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from evaluation.fake_endpoint import FakeEndpoint, Fault, completion
from holdfast.errors import HoldfastError
from holdfast.support.endpoint import Answer, Client, Endpoint, work_through

pytest.importorskip("openai", reason="endpoints need the extra 'judge'")

BOUND = 20_000
"""Bytes of an answer in these tests."""
GOOD = json.dumps(completion("m")).encode()


def ask(server: FakeEndpoint, *, read: Callable[[Any], Any] = lambda body: body, **changes: Any) -> Answer[Any]:
    """One request, with few attempts that come one right after the other."""
    settings = {"first_wait": 0.001, "attempts": 2, "timeout": 5.0, "longest_body": BOUND, **changes}
    parameters = settings.pop("parameters", {})

    async def asked() -> Answer[Any]:
        endpoint = Endpoint(base_url=server.url, **settings)
        async with Client(endpoint, model="m", parameters=parameters) as client:
            return await client.ask("hello", read)

    return asyncio.run(asked())


def sent(content: bytes, *, code: int = 200, **headers: str) -> Fault:
    """A whole answer with headers of its own."""

    def play(handler: Any, asked: Any) -> bool:
        handler.reply(code, content, {name.replace("_", "-"): value for name, value in headers.items()})
        return True

    return play


def endless(piece: bytes = b" " * 1000, *, code: int = 200, pause: float = 0.0, **headers: str) -> Fault:
    """An answer that never ends."""

    def play(handler: Any, asked: Any) -> bool:
        handler.close_connection = True
        try:
            handler.send_response(code)
            for name, value in headers.items():
                handler.send_header(name.replace("_", "-"), value)
            handler.end_headers()
            while not handler.server.stopped.wait(pause):
                handler.wfile.write(piece)
                handler.wfile.flush()
        except OSError:  # the client has gone
            pass
        return True

    return play


def bomb(size: int = 200 * BOUND) -> bytes:
    """Gzip of many spaces."""
    return gzip.compress(b" " * size)


def nested(depth: int, inner: bytes = b"1") -> bytes:
    return b'{"choices": ' + b"[" * depth + inner + b"]" * depth + b"}"


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (endless(), "the answer is longer than 20,000 bytes"),
        (endless(code=500), "the answer is longer than 20,000 bytes"),
        (endless(code=307, Location="/v1/chat/completions"), "the answer is longer than 20,000 bytes"),
        (endless(bomb()), "the answer is longer than 20,000 bytes"),
        (sent(bomb(), Content_Encoding="gzip"), "compressed with 'gzip', which was not requested"),
        (sent(bomb(), code=400, Content_Encoding="gzip"), "compressed with 'gzip', which was not requested"),
        (sent(zlib.compress(GOOD), Content_Encoding="deflate"), "compressed with 'deflate', which was not requested"),
        (sent(zlib.compress(b" " * 9999), Content_Type="text/plain; charset=zlib"), "the answer is not JSON"),
        (sent(nested(9000)), "the answer is nested too deeply"),
        (sent(nested(9000), code=500), "HTTP 500"),
        (sent(nested(9000), code=400), "HTTP 400"),
        (sent(b'{"error": {"param": ' + nested(400) + b'}}', code=400), "HTTP 400"),
        (sent(b"9" * 5000), "the answer is not JSON"),
    ],
    ids=[
        "endless", "endless 500", "endless redirection", "endless bytes", "bomb", "bomb 400", "deflate", "charset",
        "nested", "nested 500", "nested 400", "nested parameter", "digits",
    ],
)  # fmt: skip
def test_a_hostile_answer_costs_one_request(fault, reason):
    """It is asked again like any broken answer, and then given up."""
    with FakeEndpoint(always=fault) as server:
        began = time.monotonic()
        found = ask(server)
        assert found.value is None and reason in str(found.error), found.error
        assert time.monotonic() - began < 12, "nothing waits for the end of what has none"


def test_the_other_requests_are_answered():
    """Side by side with what has no end, through one client."""

    def play(handler: Any, asked: Any) -> bool:
        return (endless() if "bad" in asked.message else sent(GOOD))(handler, asked)

    async def asked(server: FakeEndpoint) -> dict[str, Any]:
        found: dict[str, Any] = {}
        endpoint = Endpoint(base_url=server.url, attempts=1, longest_body=BOUND)
        async with Client(endpoint, model="m", parameters={}) as client:

            async def work(message: str) -> None:
                found[message] = (await client.ask(message, lambda body: body)).value

            await work_through([f"{kind} {n}" for n in range(3) for kind in ("bad", "good")], work, workers=3)
        return found

    with FakeEndpoint(always=play) as server:
        found = asyncio.run(asked(server))
    assert {name: value is not None for name, value in found.items()} == {
        f"{kind} {n}": kind == "good" for n in range(3) for kind in ("bad", "good")
    }


@pytest.mark.parametrize("pause", [0.0, 0.02])
@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n", b" "),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
        (b"HTTP/1.1 200 OK\r\n", b"A: b\r\n"),
        (b"", b"HTTP/1.1 102 Processing\r\n\r\n"),
    ],
    ids=["length", "chunks", "headers", "processing"],
)
def test_an_attempt_has_its_time_whatever_trickles_in(begin, piece, pause):
    """Every piece comes in time, and none is the last; with a wide bound the time alone ends it."""

    def play(handler: Any, asked: Any) -> bool:
        handler.close_connection = True
        try:
            handler.wfile.write(begin)
            while not handler.server.stopped.wait(pause):
                handler.wfile.write(piece)
                handler.wfile.flush()
        except OSError:  # the client has gone
            pass
        return True

    with FakeEndpoint(always=play) as server:
        began = time.monotonic()
        with pytest.raises(HoldfastError, match="No answer from"):  # nothing whole ever came
            ask(server, timeout=0.2, longest_body=2**27, attempts=1)
        assert time.monotonic() - began < 10


def test_nothing_packed_is_asked_for():
    with FakeEndpoint(always=sent(GOOD)) as server:
        found = ask(server)
        assert (found.value, found.prompt_tokens, found.completion_tokens) == (completion("m"), 100, 2)
    assert {asked.headers["accept-encoding"] for asked in server.asked} == {"identity"}
