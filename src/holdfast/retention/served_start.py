"""The start model behind an OpenAI-compatible server (vLLM, SGLang, llama-cpp-python), which draws its samples.

The server has to have the start's weights, which nobody can see from here. What can be seen is compared before anything
is drawn: the log-probabilities that the server gives to the tokens of a text (`echo` with `logprobs`) with the model's
own in memory, which tells apart models that differ by a little training. A server that gives none is taken at its word,
and a line says so.

Answers come as text and are tokenised again, so that a sample's tokens may be cut otherwise than those that were drawn.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.errors import ConfigError, HoldfastError, ModelError
from holdfast.retention.method import DataHost, Sample
from holdfast.support.endpoint import (
    PROBE,
    Client,
    Endpoint,
    OptionNames,
    chosen_model,
    find_key,
    missing_package,
    run,
    work_through,
)

_Asked = tuple[list[int], Mapping[str, Any], Callable[[Any], Any]]
"""A prompt, its parameters, and what reads the answer's body."""
NEAR = 0.05
"""Nats a token, on average, that kernels and half precision explain."""
_OPTIONS = OptionNames(
    model="the model behind '#' in self_replay.server",
    base_url="self_replay.server",
    key="self_replay.server_key_env",
)


@dataclass(frozen=True, kw_only=True)
class ServedStart:
    """The start at an address.

    Args:
        endpoint: where, and with how many requests at once.
        model: its name there.
    """

    endpoint: Endpoint
    model: str

    def check(self, host: DataHost) -> None:
        """Compares what the server serves with the start in memory.

        Raises:
            ModelError: another model's log-probabilities, or a tokenizer that is not the server's.
            HoldfastError: it does not answer.
        """
        ids = list(host.tokenizer(PROBE, add_special_tokens=False)["input_ids"])
        [own] = host.log_likelihoods([(ids[:1], ids[1:])])
        how = {"echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0.0}
        [served] = self._ask([(ids, how, functools.partial(_log_probabilities, count=len(ids)))], optional=True)
        if served is None:
            host.say(
                f"Self-replay: {self.endpoint.shown} gives no log-probabilities of prompts; that it serves the start "
                f"model is not checked."
            )
            return
        apart = sum(abs(a - b) for a, b in zip(own, served, strict=True)) / len(own)
        if not apart <= NEAR:
            raise ModelError(
                f"self_replay.server: expected the start model at {self.endpoint.shown}, got a model ('{self.model}') "
                f"whose log-probabilities of a text differ by {apart:.3g} nats a token (at most {NEAR:g} is rounding). "
                f"Serve the model that the run begins with, or leave out server."
            )

    def continued(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        temperature: float,
        top_p: float,
        seed: int,
        tokenizer: Any,
    ) -> list[Sample]:
        """See `DataHost.continued`.

        Raises:
            HoldfastError: the server does not answer a prompt.
        """
        asked = []
        for number, ids in enumerate(prompts):
            own_seed = (seed + number) % 2**31
            how = {"max_tokens": max_new_tokens, "temperature": temperature, "top_p": top_p, "seed": own_seed}
            asked.append((list(ids), how, _completed))
        found = []
        for text, ended in self._ask(asked):
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            end = [tokenizer.eos_token_id] if ended and tokenizer.eos_token_id is not None else []
            found.append(Sample(ids=(*ids, *end), ended=bool(end)))
        return found

    def _ask(
        self, requests: Sequence[tuple[list[int], Mapping[str, Any], Any]], *, optional: bool = False
    ) -> list[Any]:
        """What came of requests, each a prompt, its parameters and what reads the body; `optional`: None for one that
        the server does not take, which is an error otherwise."""
        found: list[Any] = [None] * len(requests)

        async def all_of_them() -> None:
            async with Client(self.endpoint, model=self.model, parameters={}, options=_OPTIONS) as client:

                async def one(number: int) -> None:
                    prompt, how, read = requests[number]
                    answer = await client.complete(prompt, read, **how)
                    if answer.error is not None and not optional:
                        raise HoldfastError(
                            f"{self.endpoint.shown} did not answer a prompt of {len(prompt)} tokens: {answer.error}. "
                            f"Finished batches are kept; the same command continues."
                        )
                    found[number] = answer.value

                await work_through(range(len(requests)), one, workers=self.endpoint.workers)

        run(all_of_them())
        return found


def connect(address: str, *, key_variable: str | None, workers: int) -> ServedStart:
    """A server, asked what it serves.

    Args:
        address: such as http://localhost:8000/v1, with `#NAME` where it serves several models.
        key_variable: the environment variable with its key.
        workers: requests at once.

    Raises:
        ConfigError: no such model there, the key is missing, or the package that asks.
        HoldfastError: nobody answers.
    """
    url, _, wanted = address.partition("#")
    variable, key, problem = find_key(url, key_variable)
    endpoint = Endpoint(base_url=url, api_key=key, key_variable=variable, workers=workers, timeout=600.0)
    problems = [*missing_package("a served model"), *endpoint.problems(), *([problem] if problem else [])]
    if problems:
        raise ConfigError([f"self_replay.server: {p}" for p in problems])
    name, _ = chosen_model(endpoint, wanted, _OPTIONS)
    return ServedStart(endpoint=endpoint, model=name)


def _choice(body: Any) -> Mapping[str, Any]:
    choices = body.get("choices") if isinstance(body, Mapping) else None
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], Mapping):
        raise ValueError(f"expected a completion with one choice, got {str(body)[:200]}")
    return choices[0]


def _completed(body: Any) -> tuple[str, bool]:
    choice = _choice(body)
    if not isinstance(choice.get("text"), str):
        raise ValueError(f"expected a completion with a text, got {str(choice)[:200]}")
    return choice["text"], choice.get("finish_reason") != "length"


def _log_probabilities(body: Any, *, count: int) -> list[float] | None:
    """Of a prompt's tokens but the first; None where the server does not give them."""
    given = _choice(body).get("logprobs")
    own = given.get("token_logprobs") if isinstance(given, Mapping) else None
    usage = body.get("usage")
    read = usage.get("prompt_tokens") if isinstance(usage, Mapping) else None
    if isinstance(read, int) and read != count:
        raise ModelError(
            f"self_replay.server: expected a server that reads a prompt's {count} tokens as they are, got one that "
            f"reads {read}. Switch off what it adds to prompts, and serve the start's tokenizer."
        )
    if not isinstance(own, list) or not count <= len(own) <= count + 1:
        return None
    values = own[1:count]
    return [float(v) for v in values] if all(isinstance(v, (int, float)) for v in values) else None
