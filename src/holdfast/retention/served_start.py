"""The start model behind an OpenAI-compatible server (vLLM, SGLang, llama-cpp-python), which draws its samples.

The server has to have the start's weights, which nobody can see from here. What can be seen is compared before anything
is drawn: the log-probabilities that the server gives to the tokens of a text (`echo` with `logprobs`) with the model's
own in memory, which tells apart models that differ by a little training. A server that gives none is taken at its word,
and a line says so.

Answers come as text and are tokenised again behind their prompts, so that a sample's tokens may be cut otherwise than
those that were drawn.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.errors import ConfigError, ModelError
from holdfast.retention.method import DataHost, Sample
from holdfast.support.completions import SCORED, ask, completed, prompt_scores
from holdfast.support.endpoint import PROBE, Endpoint, OptionNames, chosen_model, find_key, missing_package

NEAR = 0.05
"""Nats a token, on average, that kernels and half precision explain."""
_OPTIONS = OptionNames(
    model="the model behind '#' in self_replay.server",
    base_url="self_replay.server",
    key="self_replay.server_key_env",
)


_NOTHING_ELSE = {"min_p": 0.0, "repetition_penalty": 1.0, "repeat_penalty": 1.0}
"""Sent beside temperature and top_p: servers take what is left out from the model's generation_config, or have defaults
of their own, and what they draw is not the start's distribution. vLLM and SGLang know the first two, llama.cpp the
first and the last; each passes over what it does not know. As many `top_k` as there are tokens are all of them
everywhere, where -1 and 0 are refused by one or the other."""


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
        read = functools.partial(_log_probabilities, count=len(ids))
        [served] = ask(self.endpoint, self.model, [(ids, SCORED, read)], options=_OPTIONS, optional=True)
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
            asked.append((ids, how, completed))
        found = []
        plain = {"extra_body": {**_NOTHING_ELSE, "top_k": len(tokenizer)}}
        answers = ask(self.endpoint, self.model, asked, options=_OPTIONS, parameters=plain)
        for prompt, one in zip(prompts, answers, strict=True):
            ids = _tokenised(tokenizer, prompt, one.text)
            end = [tokenizer.eos_token_id] if not one.cut and tokenizer.eos_token_id is not None else []
            found.append(Sample(ids=(*ids, *end), ended=bool(end)))
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


def _tokenised(tokenizer: Any, prompt: Sequence[int], text: str) -> list[int]:
    """The tokens of a text that continues a prompt."""
    before = list(prompt)
    # By itself a text is a beginning, which SentencePiece's tokenizers (Metaspace) put a space before: "bar" after
    # "foo(" would become " bar".
    shown = tokenizer.decode(before, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    joint = list(tokenizer(shown + text, add_special_tokens=False)["input_ids"])
    if joint[: len(before)] == before:
        return joint[len(before) :]
    # The prompt's last token and the text's first have become one, or the prompt is not what its text is tokenised to.
    # Its tokens stay as they are, so the text is tokenised by itself, with that space where the tokenizer adds one.
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _log_probabilities(body: Any, *, count: int) -> list[float] | None:
    """Of a prompt's tokens but the first; None where the server does not give them."""
    try:
        given = prompt_scores(body, count)
    except ModelError as error:
        raise ModelError(f"self_replay.server: {error}") from error
    if given is None or not all(isinstance(v, (int, float)) for v in given[0]):
        return None
    return [float(v) for v in given[0]]
