"""A chat-completions endpoint on this machine for the tests: a real HTTP server in a thread, which judges by a rule and
plays faults.

Faults are taken in order, one a request, before the rule: what it does to a request, the test decides and the client
has to live with. Every request is kept, so that tests can count what was asked, and how often.
"""

from __future__ import annotations

import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from holdfast.evaluation.judge.settings import TEMPLATE

_PARTS = re.compile(re.sub(r"\\\{(instruction|first|second)\\\}", r"(?P<\1>.*)", re.escape(TEMPLATE)), re.DOTALL)


@dataclass
class Received:
    """One request as it came."""

    path: str
    headers: dict[str, str]
    """Names in small letters."""
    body: dict[str, Any]
    time: float

    @property
    def message(self) -> str:
        return self.body["messages"][0]["content"]

    @property
    def parts(self) -> tuple[str, str, str]:
        """(instruction, first, second) of the default template."""
        match = _PARTS.fullmatch(self.message)
        assert match, self.message
        return match["instruction"], match["first"], match["second"]


Fault = Callable[[Any, Received], bool]
"""Answers a request in the rule's place, or returns False to leave it to the rule."""


def status(code: int, message: Any = "no", headers: dict[str, str] | None = None) -> Fault:
    """An HTTP error."""

    def play(handler: Any, asked: Received) -> bool:
        body = (
            message
            if isinstance(message, dict)
            else {"error": {"message": message, "type": "error", "param": None, "code": None}}
        )
        handler.reply(code, json.dumps(body).encode(), headers or {})
        return True

    return play


def body(content: bytes) -> Fault:
    """A body of one's own with status 200."""

    def play(handler: Any, asked: Received) -> bool:
        handler.reply(200, content, {})
        return True

    return play


def cut() -> Fault:
    """The connection ends in the middle of the body."""

    def play(handler: Any, asked: Received) -> bool:
        content = json.dumps(completion("m")).encode()
        handler.send_response(200)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content[: len(content) // 2])
        handler.wfile.flush()
        handler.close_connection = True
        return True

    return play


def reset() -> Fault:
    """The connection ends without an answer."""

    def play(handler: Any, asked: Received) -> bool:
        handler.close_connection = True
        return True

    return play


def late(seconds: float) -> Fault:
    """The answer comes, but late."""

    def play(handler: Any, asked: Received) -> bool:
        handler.server.stopped.wait(seconds)
        return False

    return play


def fine() -> Fault:
    """No fault: this request is left to the rule."""
    return lambda handler, asked: False


def completion(
    reply: str | None,
    p: float | None = None,
    *,
    tokens: Iterable[str] | None = None,
    finish_reason: str = "stop",
    leak: float = 0.0,
) -> dict[str, Any]:
    """A chat completion that says `reply`, with log-probabilities where `p`, that of `m`, is given; `leak` is the mass
    on neither letter."""
    logprobs = None
    if p is not None:
        log = lambda x: math.log(x) if x > 0 else -9999.0
        top = {"m": 0.75 * p, " m": 0.25 * p, "M": 1 - p, "Both": leak}
        entries = [
            {"token": t, "logprob": log(v * (1 - leak) if t != "Both" else v), "bytes": None} for t, v in top.items()
        ]
        content = []
        for text in tokens or [reply or ""]:
            bare = text.strip()
            content.append(
                {
                    "token": text,
                    "logprob": log(p if bare == "m" else 1 - p),
                    "bytes": None,
                    "top_logprobs": entries if bare in "mM" else [],
                }
            )
        logprobs = {"content": content}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": "judge",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": reply},
                "finish_reason": finish_reason,
                "logprobs": logprobs,
            }
        ],
        "usage": {"prompt_tokens": 100, "completion_tokens": 2, "total_tokens": 102},
    }


def by_quality(instruction: str, first: str, second: str) -> dict[str, Any]:
    """The built-in rule: the answer with more exclamation marks is better, and the first one has a small advantage."""
    p = 1 / (1 + math.exp(-(first.count("!") - second.count("!")) - 0.2))
    return completion("m" if p >= 0.5 else "M", p)


@dataclass
class FakeEndpoint:
    """The server; a context manager."""

    rule: Callable[[str, str, str], dict[str, Any]] = by_quality
    faults: list[Fault] = field(default_factory=list)
    """Played in order, one a request; then the rule answers all."""
    always: Fault | None = None
    """Played for every request after the faults."""
    asked: list[Received] = field(default_factory=list)
    answered: list[Received] = field(default_factory=list)
    """Requests that the rule answered."""

    def __enter__(self) -> FakeEndpoint:
        outer, lock = self, threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["Content-Length"]))
                with lock:
                    asked = Received(
                        path=self.path,
                        headers={name.lower(): value for name, value in self.headers.items()},
                        body=json.loads(content),
                        time=time.monotonic(),
                    )
                    outer.asked.append(asked)
                    fault = outer.faults.pop(0) if outer.faults else outer.always
                if fault is not None and fault(self, asked):
                    return
                self.reply(200, json.dumps(outer.rule(*asked.parts)).encode(), {})
                with lock:
                    outer.answered.append(asked)

            def reply(self, code: int, content: bytes, headers: dict[str, str]) -> None:
                try:
                    self.send_response(code)
                    for name, value in {
                        "Content-Type": "application/json",
                        "Content-Length": str(len(content)),
                        **headers,
                    }.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(content)
                except OSError:  # the client has gone
                    self.close_connection = True

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.stopped = threading.Event()  # type: ignore[attr-defined]
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.stopped.set()  # type: ignore[attr-defined]
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/v1"

    @property
    def messages(self) -> list[str]:
        return [asked.message for asked in self.asked]
