"""Many prompts to `/completions` of an OpenAI-compatible server at once, and what its answers say:
texts, and the log-probabilities of a prompt's own tokens (`echo` with `logprobs`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.errors import HoldfastError, ModelError
from holdfast.support.endpoint import Client, Endpoint, OptionNames, run, work_through

SCORED: Mapping[str, Any] = {"echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0.0}
"""Parameters of a request for a prompt's own log-probabilities; one token has to be asked for
beside them."""
Prompt = Sequence[int] | str
"""Token ids, or a text."""
Request = tuple[Prompt, Mapping[str, Any], Callable[[Any], Any]]
"""A prompt, its parameters, and what reads the answer's body (ValueError: asked again)."""


def ask(
    endpoint: Endpoint,
    model: str,
    requests: Sequence[Request],
    *,
    options: OptionNames,
) -> list[Any]:
    """Asks, as many at once as the endpoint's workers.

    Args:
        endpoint: where.
        model: its name there.
        requests: what is asked.
        options: what a command calls things that messages speak of.

    Returns:
        What was read, in the order of the requests.

    Raises:
        HoldfastError: no answer after all attempts, a wrong key, model or address.
    """
    answers: list[Any] = [None] * len(requests)

    async def all_of_them() -> None:
        async with Client(endpoint, model=model, parameters={}, options=options) as client:

            async def one(number: int) -> None:
                prompt, how, read = requests[number]
                answer = await client.complete(
                    prompt if isinstance(prompt, str) else list(prompt), read, **how
                )
                if answer.error is not None:
                    raise HoldfastError(
                        f"{endpoint.shown} did not answer a prompt of {len(prompt)} tokens: "
                        f"{answer.error}. Finished batches are kept. Run the same command to "
                        "continue."
                    )
                answers[number] = answer.value

            await work_through(range(len(requests)), one, workers=endpoint.workers)

    run(all_of_them())
    return answers


def choice(body: Any) -> Mapping[str, Any]:
    """The only choice of an answer.

    Raises:
        ValueError: none, or several.
    """
    choices = body.get("choices") if isinstance(body, Mapping) else None
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], Mapping):
        raise ValueError(f"expected a completion with one choice, got {str(body)[:200]}")
    return choices[0]


def completed(body: Any) -> str:
    """What was written.

    Raises:
        ValueError: no text.
    """
    completion = choice(body)
    if not isinstance(completion.get("text"), str):
        raise ValueError(f"expected a completion with a text, got {str(completion)[:200]}")
    return str(completion["text"])


def finished(body: Any) -> tuple[str, bool | None]:
    """What was written, and whether it ended by itself; None where the server does not say.

    Raises:
        ValueError: no text.
    """
    reason = choice(body).get("finish_reason")
    return completed(body), None if reason is None else reason == "stop"


def prompt_scores(body: Any, count: int) -> tuple[list[Any], list[Any]] | None:
    """Of a prompt of `count` tokens, each but the first: log-probabilities in nats, and the most
    likely tokens' by token, as the server gives them; None where it gives none, or of other tokens.

    Raises:
        ModelError: the server reads another number of tokens, so that its figures would be those of
            other places.
        ValueError: no answer with one choice.
    """
    logprobs = choice(body).get("logprobs")
    scores = logprobs.get("token_logprobs") if isinstance(logprobs, Mapping) else None
    tops = logprobs.get("top_logprobs") if isinstance(logprobs, Mapping) else None
    usage = body.get("usage")
    read = usage.get("prompt_tokens") if isinstance(usage, Mapping) else None
    if isinstance(read, int) and read != count:
        raise ModelError(
            f"Expected the server to count {count} tokens in the prompt, as sent, but it counted "
            f"{read}. Configure it to use the model's own tokenizer, and to add nothing to prompts, "
            "such as a beginning-of-text token."
        )
    # the prompt's tokens, and at most the one that had to be asked for
    if not isinstance(scores, list) or not count <= len(scores) <= count + 1:
        return None
    return scores[1:count], tops[1:count] if isinstance(tops, list) else []
