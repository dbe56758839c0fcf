"""The judge before a server that is busy or real, and on a full disk."""

from __future__ import annotations

import importlib.util
import itertools
import socket
import subprocess
import sys
import time
import urllib.request
from email.utils import formatdate
from pathlib import Path

import pytest

from evaluation import fake_endpoint as fake
from evaluation.fake_endpoint import FakeEndpoint
from evaluation.test_judge import PAIRS, ask
from holdfast.errors import StorageError
from holdfast.evaluation.judge.judge import JUDGEMENTS, judge_pairs
from holdfast.evaluation.judge.settings import JudgeSettings
from holdfast.support import endpoint as endpoint_module
from holdfast.support.endpoint import Endpoint
from holdfast.support.ledger import Ledger, read_ledger

pytest.importorskip("openai", reason="judging needs the extra 'judge'")


def test_pauses_grow_and_are_capped(tmp_path, monkeypatch):
    pauses = []
    sleep = endpoint_module.asyncio.sleep

    async def noted(seconds):
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr(endpoint_module.asyncio, "sleep", noted)
    with FakeEndpoint(always=fake.status(500)) as server:
        found = ask(server, tmp_path, PAIRS[1:2], workers=1, attempts=6, first_wait=1.0, longest_wait=5.0)
    assert found.failed == 2 and len(server.asked) == 12
    for pause, most in zip(pauses, [1, 2, 4, 5, 5] * 2, strict=True):
        assert most / 2 <= pause <= most


@pytest.mark.parametrize(
    ("headers", "least"),
    [({"Retry-After": "1"}, 1.0), ({"retry-after-ms": "400"}, 0.4), ({"Retry-After": "date"}, 0.3)],
)
def test_retry_after_is_honoured_by_all_workers(headers, least, tmp_path):
    if headers.get("Retry-After") == "date":
        headers = {"Retry-After": formatdate(time.time() + 2, usegmt=True)}
    with FakeEndpoint(faults=[fake.status(429, headers=headers)]) as server:
        found = ask(server, tmp_path, PAIRS[:3], workers=1)
    times = [asked.time for asked in server.asked]
    assert found.judged == 6 and times[1] - times[0] >= least * 0.95
    with FakeEndpoint(faults=[fake.fine(), fake.status(429, headers={"Retry-After": "0.5"})]) as server:
        ask(server, tmp_path / "two", PAIRS, workers=2)
    times = sorted(asked.time for asked in server.asked)[1:]
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) >= 0.45, "while it lasts nobody asks"


def test_a_full_disk_stops_the_run_and_keeps_what_there_is(tmp_path, monkeypatch):
    add, left = Ledger.add, [3]

    def filling(self, rows):
        left[0] -= 1
        if left[0] < 0:
            raise StorageError("Could not write: the disk is full")
        add(self, rows)

    with FakeEndpoint() as server:
        monkeypatch.setattr(Ledger, "add", filling)
        with pytest.raises(StorageError):
            ask(server, tmp_path)
        monkeypatch.setattr(Ledger, "add", add)
        assert ask(server, tmp_path).asked == 7


@pytest.mark.slow
def test_a_real_server(tmp_path):
    """`transformers serve` with a model that answers "m", without log-probabilities: what is shown first wins."""
    missing = [name for name in ("fastapi", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"needs transformers[serving]: {', '.join(missing)} not installed")
    save_yes_sayer(tmp_path / "sayer")
    port = free_port()
    script = Path(sys.executable).with_name("transformers")
    words = [script, "serve", tmp_path / "sayer", "--port", str(port), "--device", "cpu"]
    with open(tmp_path / "serve.log", "w") as log:
        server = subprocess.Popen(words, stdout=log, stderr=log)
    try:
        wait_for(port, server, tmp_path / "serve.log")
        settings = JudgeSettings(model=str(tmp_path / "sayer"))
        found = judge_pairs(PAIRS, settings, Endpoint(base_url=f"http://localhost:{port}/v1"), tmp_path)
    finally:
        server.terminate()
        server.wait(20)
    assert [(r.candidate_first, r.candidate_second) for r in found.pairs] == [(1.0, 0.0)] * 5
    assert any("without log-probabilities" in note for note in found.notes)
    assert {row["reply"] for row in read_ledger(tmp_path / JUDGEMENTS).values()} == {"m"}


def save_yes_sayer(folder: Path) -> None:
    """A Llama whose layers add nothing: any token is followed by "m", and "m" by the end."""
    import torch

    from tiny import build_model, build_tokenizer

    tokenizer = build_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
    model = build_model(tie=False)
    letter, end = tokenizer.convert_tokens_to_ids("m"), tokenizer.eos_token_id
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.model.norm.weight.fill_(1.0)
        embedding = model.model.embed_tokens.weight
        embedding[:, 0] = 1.0
        embedding[letter, 0], embedding[letter, 1] = 0.0, 1.0
        model.lm_head.weight[letter, 0] = model.lm_head.weight[end, 1] = 1.0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def wait_for(port: int, server: subprocess.Popen, log: Path) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until and server.poll() is None:
        try:
            with urllib.request.urlopen(f"http://localhost:{port}/health", timeout=2):
                return
        except OSError:
            time.sleep(0.3)
    pytest.fail(f"the server did not come up:\n{log.read_text()[-3000:]}")
