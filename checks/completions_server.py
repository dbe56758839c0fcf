"""A model behind an OpenAI-compatible server on this machine: `/v1/models` and `/v1/completions` as vLLM answers them,
over a small model in memory. What a server may lack or do wrong, a test switches on."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch


@dataclass
class CompletionsServer:
    """The server; a context manager."""

    model: Any
    tokenizer: Any
    card: dict[str, Any] = field(default_factory=dict)
    """What `/v1/models` says of the model beside its name."""
    names: tuple[str, ...] = ("tiny",)
    scores: bool = True
    """Whether it gives log-probabilities of prompts."""
    failures: int = 0
    """Requests that are refused as busy before the others are answered."""
    asked: list[dict[str, Any]] = field(default_factory=list)
    adds: int = 0
    """Tokens that it puts before every prompt of ids without being asked."""
    port: int = 0
    """0: a free one."""

    def __enter__(self) -> CompletionsServer:
        outer, lock = self, threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                assert self.path == "/v1/models", self.path
                models = [{"id": name, "object": "model", **outer.card} for name in outer.names]
                self.reply(200, {"object": "list", "data": models})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                assert self.path in ("/v1/completions", "/v1/chat/completions"), self.path
                with lock:
                    outer.asked.append(body)
                    busy, outer.failures = outer.failures > 0, max(0, outer.failures - 1)
                    if busy:
                        self.reply(503, {"error": {"message": "busy"}})
                    elif body["model"] not in outer.names:
                        self.reply(404, {"error": {"message": f"no model {body['model']}"}})
                    else:
                        self.reply(200, outer.complete(body) if self.path == "/v1/completions" else outer.chat(body))

            def reply(self, code: int, body: dict[str, Any]) -> None:
                content = json.dumps(body).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.send_header("Retry-After", "0")
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/v1"

    @torch.no_grad()
    def complete(self, asked: dict[str, Any]) -> dict[str, Any]:
        prompt = asked["prompt"]
        prompt = self.tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else prompt
        prompts = prompt if isinstance(prompt[0], list) else [prompt]
        return {
            "object": "text_completion",
            "choices": [{"index": i, **self.one(ids, asked)} for i, ids in enumerate(prompts)],
            "usage": {"prompt_tokens": sum(map(len, prompts)) + self.adds, "completion_tokens": 1},
        }

    @torch.no_grad()
    def chat(self, asked: dict[str, Any]) -> dict[str, Any]:
        text = self.tokenizer.apply_chat_template(asked["messages"], tokenize=False, add_generation_prompt=True)
        found = self.one(self.tokenizer(text, add_special_tokens=False)["input_ids"], asked)
        message = {"role": "assistant", "content": found["text"]}
        return {"choices": [{"index": 0, "message": message, "finish_reason": found["finish_reason"]}]}

    def one(self, prompt: list[int], asked: dict[str, Any]) -> dict[str, Any]:
        assert not asked.get("temperature"), "this server is greedy"
        ids, written, stops = list(prompt), "", asked.get("stop") or []
        reason = "length"
        for _ in range(asked["max_tokens"]):
            logits = self.model(torch.tensor([ids])).logits[0, -1]
            token = int(logits.argmax())
            if token == self.tokenizer.eos_token_id and not asked.get("echo"):
                reason = "stop"
                break
            ids.append(token)
            written = self.tokenizer.decode(ids[len(prompt) :], skip_special_tokens=True)
            if found := [written.find(s) for s in stops if s in written]:
                written, reason = written[: min(found)], "stop"
                break
        choice: dict[str, Any] = {"text": written, "finish_reason": reason, "logprobs": None}
        if asked.get("echo"):
            choice["text"] = self.tokenizer.decode(prompt, skip_special_tokens=True) + written
        if asked.get("logprobs") and self.scores:
            rows = self.model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
            own = [None, *(float(rows[i - 1, ids[i]]) for i in range(1, len(ids)))]
            best = [None, *({f"t{int(rows[i - 1].argmax())}": float(rows[i - 1].max())} for i in range(1, len(ids)))]
            choice["logprobs"] = {"tokens": [f"t{i}" for i in ids], "token_logprobs": own, "top_logprobs": best}
        return choice
