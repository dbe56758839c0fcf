"""What a judge is sent, and what decides a judgement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from holdfast.config.declare import Meta

TEMPLATE = """\
You compare two outputs that two models gave for the same instruction, and say which one people would prefer. Judge \
how well each output does what the instruction asks: whether it is right, helpful, clear and to the point. Neither the \
order of the outputs nor their length alone makes one of them better.

### Instruction
{instruction}

### Output (m)
{first}

### Output (M)
{second}

### Your verdict
Which output is better, m or M? Answer with that one letter (small m for the first output, capital M for the second) \
and nothing else.
"""
"""What the judge is sent, as one message of the user."""
TEMPERATURE = 0.0
"""Of the reply."""


@dataclass(frozen=True, kw_only=True)
class ReplySettings:
    """What the judge's reply may have."""

    max_tokens: Annotated[int, Meta(ge=1)] = 8
    """Maximum number of tokens of a judge's reply. A judge that reasons first needs hundreds."""
    top_logprobs: Annotated[int, Meta(ge=5, le=20)] = 20
    """Number of alternatives to request at each token."""


@dataclass(frozen=True, kw_only=True)
class JudgeSettings(ReplySettings):
    """What decides a judgement, beside the two outputs."""

    model: str
    """Name of the judge model at the endpoint."""
