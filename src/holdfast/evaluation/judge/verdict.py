"""What a judge's reply says: which of two outputs is better, and with what probability.

The judge answers with one letter, `m` for the first output and `M` for the second. With the
log-probabilities of the verdict token,

    P(first better) = p(m) / (p(m) + p(M)),

each summed over the variants that a tokenizer has of it (" m", "m.", "**m"); upper and lower case
are different letters. This is what AlpacaEval 2 calls the weighted win rate (Li et al. 2023,
"AlpacaEval", github.com/tatsu-lab/alpaca_eval): less variance than the bare letter, and near ties
show. Where the endpoint gives no log-probabilities the letter counts as 1 or 0, and the verdict
says so (`source`).

A reply that names neither letter, or both, is a refusal. It is no tie: a judge that refuses has not
found the two outputs equal. A tie is the word itself, or a probability of exactly one half.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FIRST, SECOND = "m", "M"
"""The letters of the output shown first and of the one shown second."""

_AROUND = frozenset(
    {"output", "answer", "response", "model", "the", "is", "better", "best", "verdict", "winner"}
)
"""Words that may stand around the letter, as in "Output (m)"; anything else is prose, whose letters
mean nothing."""
_TIE = frozenset({"tie", "tied", "draw"})


LARGEST = 1e-3
"""The largest log-probability there is; rounding may be above 0."""


class MalformedReply(ValueError):
    """A body that is no chat completion, or holds what no probability can be: worth asking
    again."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What one reply says."""

    outcome: str
    """"judged" or "refused"."""
    letter: str | None = None
    """`FIRST`, `SECOND` or "tie"; None for a refusal."""
    p_first: float | None = None
    """P(the output shown first is better), in [0, 1]; None for a refusal."""
    source: str | None = None
    """"logprobs" or "text"; None for a refusal."""
    mass: float | None = None
    """p(m) + p(M): how much of the judge's belief is on the two letters. None without
    log-probabilities."""
    reply: str = ""
    """The reply's text."""
    finish_reason: str | None = None
    """"length" where the reply was cut at `max_tokens`."""


def read_verdict(body: Any) -> Verdict:
    """The verdict of a chat completion.

    Args:
        body: the parsed JSON of the endpoint's answer.

    Raises:
        MalformedReply: no choices, or other things than the protocol has, such as log-probabilities
            that are NaN, above 0 or text. Leaving these out would give the verdict to the other
            letter.
    """
    choices = body.get("choices") if isinstance(body, Mapping) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], Mapping):
        raise MalformedReply("the answer has no choices")
    choice = choices[0]
    message = choice.get("message")
    if not isinstance(message, Mapping):
        raise MalformedReply("the answer's choice has no message")
    reply = _text(message.get("content")) or _text(message.get("refusal"))
    finish = choice.get("finish_reason")
    common: dict[str, Any] = {
        "reply": reply,
        "finish_reason": finish if isinstance(finish, str) else None,
    }
    letter = letter_of(reply)
    if letter is None:
        return Verdict(outcome="refused", **common)
    if letter == "tie":
        return Verdict(outcome="judged", letter=letter, p_first=0.5, source="text", **common)
    masses = _masses(choice.get("logprobs"), letter)
    if masses is None:
        return Verdict(
            outcome="judged", letter=letter, p_first=float(letter == FIRST), source="text", **common
        )
    first, second = masses
    return Verdict(
        outcome="judged",
        letter=letter,
        p_first=first / (first + second),
        source="logprobs",
        mass=first + second,
        **common,
    )


def letter_of(reply: str) -> str | None:
    """The letter that a reply names, "tie", or None for neither, both, or prose."""
    answer = reply.rpartition("</think>")[
        2
    ]  # some endpoints leave a model's reasoning in the reply
    words = [word.strip("_") for word in re.findall(r"[\w'’]+", answer)]
    words = [word for word in words if word]
    letters = {word for word in words if word in (FIRST, SECOND)}
    others = {word.lower() for word in words if word not in (FIRST, SECOND)} - _AROUND
    if not letters and others and others <= _TIE:
        return "tie"
    return letters.pop() if len(letters) == 1 and not others else None


def _masses(logprobs: Any, letter: str) -> tuple[float, float] | None:
    """(p(m), p(M)) at the token that says the letter; None where the endpoint gave no alternatives
    there, or none of the log-probabilities of the letters.

    Raises:
        MalformedReply: a log-probability of the token or its alternatives is no finite number of at
            most 0, or the two letters have more than all of the probability.
    """
    tokens = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    # from the end: reasoning may come before the verdict and name letters too
    for token in reversed(tokens) if isinstance(tokens, list) else ():
        if isinstance(token, Mapping) and _bare(token.get("token")) == letter:
            return _masses_at(token)
    return None


def _masses_at(token: Mapping[str, Any]) -> tuple[float, float] | None:
    alternatives = token.get("top_logprobs")
    if not isinstance(alternatives, list) or not alternatives:
        return None
    of_letters: dict[str, Any] = {}
    for entry in (token, *alternatives):
        if not isinstance(entry, Mapping) or not isinstance(entry.get("token"), str):
            continue
        text, logprob = entry["token"], entry.get("logprob")
        if logprob is not None and not _is_log_probability(logprob):
            raise MalformedReply(
                f"expected log-probabilities of at most 0, got {text[:20]!r}: {logprob!r:.40}"
            )
        if _bare(text) in (FIRST, SECOND):
            of_letters[text] = logprob
    if None in of_letters.values():
        return None
    sums = {FIRST: 0.0, SECOND: 0.0}
    for text, logprob in of_letters.items():
        sums[_bare(text)] += math.exp(logprob)
    both = sums[FIRST] + sums[SECOND]
    if both > 1 + 2 * (1 + len(alternatives)) * LARGEST:
        raise MalformedReply(
            f"expected the probabilities of both letters to sum to at most 1, got {both:.3g}"
        )
    return (sums[FIRST], sums[SECOND]) if both > 0 else None


def _is_log_probability(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and -sys.float_info.max <= value <= LARGEST


def _bare(token: Any) -> str:
    """A token without white space and punctuation, in whatever way its tokenizer writes a leading
    space."""
    text = token if isinstance(token, str) else ""
    return "".join(c for c in text if c.isalnum() and c not in "ĠĊ")


def _text(content: Any) -> str:
    """A message's content as text; some endpoints give it in parts."""
    if isinstance(content, list):
        texts = [item.get("text") for item in content if isinstance(item, Mapping)]
        return "".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""
