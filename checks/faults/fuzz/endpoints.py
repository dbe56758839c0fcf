"""Endpoints that answer nonsense, too much, too slowly or not at all."""

from __future__ import annotations

import contextlib
import gzip
import importlib.util
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fuzz.case import Case

PATIENCE = ["--attempts", "2", "--timeout", "1", "--longest_wait", "0.1", "--base_url"]
WRITE = ["data", "synthesise", "--input", "tuned-answers.jsonl", "--model", "big", "--output", "articles.jsonl"]
WRITE += ["--limit", "3", "--least_characters", "5", *PATIENCE]


def _fake() -> Any:
    """`tests/evaluation/fake_endpoint.py`."""
    path = Path(__file__).parents[3] / "tests" / "evaluation" / "fake_endpoint.py"
    spec = importlib.util.spec_from_file_location("fake_endpoint", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["fake_endpoint"] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def endpoints_case(rng: random.Random) -> Case:
    """An endpoint that always answers in one wrong way."""
    what = rng.choice(list(BODIES) + list(WAYS))
    seed = rng.random()

    @contextlib.contextmanager
    def around(folder: Path) -> Iterator[list[str]]:
        fake = _fake()
        own = random.Random(seed)
        always = fake.body(BODIES[what](fake.completion("M", 0.25), own)) if what in BODIES else WAYS[what](fake)
        with fake.FakeEndpoint(always=always) as server:
            server.server.handle_error = lambda *_: None  # a client that goes away is no news
            yield [server.url]

    return Case(
        what=f"data synthesise: {what}",
        words=WRITE,
        valid=None if what in UNHARMED else False,
        around=around,
        codes=(1, 2),
        limit=30.0,
    )


def _with(found: dict[str, Any], path: str, value: Any) -> bytes:
    place: Any = found
    *above, key = path.split(".")
    for name in above:
        place = place[int(name) if isinstance(place, list) else name]
    place[key] = value
    return json.dumps(found).encode()


BODIES = {
    "an empty body": lambda c, r: b"",
    "HTML": lambda c, r: b"<html><body>Bad gateway</body></html>",
    "no JSON": lambda c, r: json.dumps(c).encode()[:-20],
    "a list": lambda c, r: b"[]",
    "null": lambda c, r: b"null",
    "binary": lambda c, r: r.randbytes(3000),
    "deep nesting": lambda c, r: b"[" * 200_000,
    "deep nesting that closes": lambda c, r: b'{"choices":' * 3000 + b"1" + b"}" * 3000,
    "5,000 digits": lambda c, r: b'{"created": ' + b"9" * 5000 + b"}",
    "no choices": lambda c, r: _with(c, "choices", []),
    "choices of another kind": lambda c, r: _with(c, "choices", r.choice((None, 7, {}, [None], ["a"], [[]]))),
    "a message of another kind": lambda c, r: _with(c, "choices.0.message", r.choice((None, 7, [], "M"))),
    "content of another kind": lambda c, r: _with(c, "choices.0.message.content", r.choice((7, [], {"a": 1}, True))),
    "a negative number of tokens": lambda c, r: _with(c, "usage.prompt_tokens", -5),
    "a huge number of tokens": lambda c, r: _with(c, "usage.completion_tokens", 10**400),
    "tokens as text": lambda c, r: _with(c, "usage.completion_tokens", "many"),
    "a very long reply": lambda c, r: _with(c, "choices.0.message.content", "fox " * 2_000_000),
    "half a surrogate pair": lambda c, r: _with(c, "choices.0.message.content", "\ud800 M"),
    "a null character": lambda c, r: _with(c, "choices.0.message.content", "\0 M"),
    "an error with status 200": lambda c, r: b'{"error": {"message": "no"}}',
}
"""What comes with status 200, out of a sound completion."""
UNHARMED = {"a very long reply", "a null character", "half a surrogate pair", "a redirect", "late once"}
"""What may be a reply like any other."""


def _bomb(fake: Any) -> Any:
    def play(handler: Any, asked: Any) -> bool:
        handler.reply(200, gzip.compress(bytes(500_000_000), 1), {"Content-Encoding": "gzip"})
        return True

    return play


def _endless(fake: Any) -> Any:
    def play(handler: Any, asked: Any) -> bool:
        handler.send_response(200)
        handler.send_header("Content-Type", "application/json")
        handler.end_headers()
        handler.close_connection = True
        with contextlib.suppress(OSError):
            while not handler.server.stopped.is_set():
                handler.wfile.write(b" " * 65536)
        return True

    return play


def _trickle(fake: Any) -> Any:
    def play(handler: Any, asked: Any) -> bool:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        handler.close_connection = True
        with contextlib.suppress(OSError):
            while not handler.server.stopped.wait(0.2):
                handler.wfile.write(b" ")
        return True

    return play


WAYS = {
    "no answer": lambda fake: fake.reset(),
    "half an answer": lambda fake: fake.cut(),
    "an answer too late": lambda fake: fake.late(4),
    "a trickle": _trickle,
    "an endless body": _endless,
    "a bomb in gzip": _bomb,
    "gzip that is none": lambda fake: (
        lambda handler, asked: handler.reply(200, b"x", {"Content-Encoding": "gzip"}) or True
    ),
    "400": lambda fake: fake.status(400),
    "401": lambda fake: fake.status(401),
    "404": lambda fake: fake.status(404),
    "429 for ever": lambda fake: fake.status(429, headers={"Retry-After": "1000000"}),
    "429 until nonsense": lambda fake: fake.status(429, headers={"Retry-After": "nonsense"}),
    "500": lambda fake: fake.status(500),
    "503 with a text": lambda fake: fake.status(503, "\x1b[31m no"),
    "a status that does not exist": lambda fake: fake.status(999),
    "a redirect": lambda fake: fake.status(302, headers={"Location": "/v1/elsewhere"}),
    "a redirect to a file": lambda fake: fake.status(302, headers={"Location": "file:///etc/passwd"}),
    "a length that is none": lambda fake: (
        lambda handler, asked: handler.reply(200, b"{}", {"Content-Length": "-1"}) or True
    ),
    "another character set": lambda fake: (
        lambda handler, asked: handler.reply(200, b"{}", {"Content-Type": "text/plain; charset=nonsense"}) or True
    ),
}
"""How it answers otherwise."""
