"""`vllm serve` for as long as a model is measured, and the model behind it as `served` has it.

vLLM is a program of its own here, as it is where models are deployed: it brings its own torch, and holdfast needs none
of its modules. The weights are a folder's, so that a model is known by their hash, as in memory; figures of both do not
stand for each other, since the kernels differ.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator

from holdfast.checkpoints.named import at_revision
from holdfast.errors import ConfigError, HoldfastError
from holdfast.evaluation.loading import ServerSettings
from holdfast.evaluation.served import connect
from holdfast.models import Loaded, adapter_base, configuration_of, weights_hash
from holdfast.support.environment import shown_name
from holdfast.support.files import fingerprint

STARTS_WITHIN = 1800.0
"""Seconds: reading weights and compiling kernels."""
_NAME = "model"


def problems_of(name: str) -> list[str]:
    """Why vLLM cannot serve a model here; empty where it can be tried."""
    problems = []
    if shutil.which("vllm") is None:
        problems.append(
            "backend: vllm is not installed. Install it with: pip install vllm (or give a server's address)."
        )
    if adapter_base(name) is not None:
        problems.append(f"backend: vllm serves whole models, and {name} is an adapter. Merge it first: holdfast merge.")
    return problems


def version() -> str:
    """vLLM's, as the program says it.

    Raises:
        ConfigError: it does not run.
    """
    done = subprocess.run(["vllm", "--version"], capture_output=True, text=True, check=False)
    if done.returncode != 0 or not done.stdout.strip():
        raise ConfigError(f"backend: vllm does not run here: {(done.stderr or 'it says nothing').strip()[-300:]}")
    return done.stdout.strip().splitlines()[-1]


def hash_of(weights: str, server: ServerSettings) -> str:
    """What identifies the figures of a model that vLLM serves.

    Args:
        weights: hash of the model in memory, with its dtype.
        server: what of it decides figures.
    """
    return fingerprint([weights, "vllm", version(), server.context_length, server.chat])


@contextlib.contextmanager
def serve(name: str, server: ServerSettings, *, dtype: str, trust_remote_code: bool = False) -> Iterator[Loaded]:
    """A model behind a server of its own, which ends with the block.

    Args:
        name: folder, name of `holdfast models`, or hub id, optionally with `@revision`.
        server: how it is asked.
        dtype: of the weights; "auto": as saved.
        trust_remote_code: runs Python code that comes with the model.

    Raises:
        HoldfastError: vLLM did not start; the end of what it wrote is in the message.
        ModelError: the weights are nowhere on disk, so that nothing says which model was measured.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    model, revision = at_revision(name)
    options = {
        "host": "127.0.0.1",
        "port": port,
        "served-model-name": _NAME,
        "dtype": dtype,
        "seed": 0,
        "generation-config": "vllm",  # greedy is greedy, whatever the model's own configuration says
        "tensor-parallel-size": _devices(),
    }
    if revision != "main":
        options["revision"] = revision
    if server.context_length is not None:
        options["max-model-len"] = server.context_length
    words = ["vllm", "serve", model]
    for key, value in options.items():
        words += [f"--{key}", str(value)]
    if trust_remote_code:
        words.append("--trust-remote-code")
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            until = time.monotonic() + STARTS_WITHIN
            while not _listens(port):
                if process.poll() is not None or time.monotonic() > until:
                    log.seek(0)
                    lines = log.read().decode("utf-8", "replace").strip().splitlines()[-12:]
                    how = "did not start in time" if process.poll() is None else f"ended ({process.returncode})"
                    raise HoldfastError(f"vllm serve {name} {how}:", *(f"  {line}" for line in lines))
                time.sleep(0.2)
            server = dataclasses.replace(server, tokenizer=server.tokenizer or name)
            loaded = connect(f"http://127.0.0.1:{port}/v1", server)
            weights = weights_hash(name, dtype=dtype)  # of the hub they are on disk by now
            identity = {
                **loaded.identity,
                "name": shown_name(name),
                "hash": hash_of(weights, server),
                "configuration": configuration_of(name),
                "weights": weights,
                "origin": f"as vLLM {version()} serves it",
            }
            yield dataclasses.replace(loaded, identity=identity)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _devices() -> int:
    import torch

    return max(1, torch.accelerator.device_count()) if torch.accelerator.is_available() else 1


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
