"""What a judgement and a generated answer depend on, declared once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

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

PLACEHOLDERS = ("instruction", "first", "second")


@dataclass(frozen=True, kw_only=True)
class ReplySettings:
    """What the judge's reply may have."""

    settings_group: ClassVar[str] = "the judge"

    max_tokens: Annotated[int, Meta(ge=1)] = 8
    """Tokens of a reply; hundreds for a judge that reasons first."""
    top_logprobs: Annotated[int, Meta(ge=5, le=20)] = 20
    """Alternatives asked for at each token."""


@dataclass(frozen=True, kw_only=True)
class JudgeSettings(ReplySettings):
    """What decides a judgement, beside the two outputs."""

    model: str
    """The judge's name, as the endpoint knows it."""
    template: str = TEMPLATE
    """With {instruction}, {first} and {second}; must ask for the letters m and M."""
    temperature: Annotated[float, Meta(ge=0, le=2)] = 0.0
    """Of the reply."""

    def problems(self) -> list[str]:
        """What is missing in the template, or the model's name."""
        found = [] if self.model else ["model: expected the name of a model, got nothing."]
        missing = [f"{{{name}}}" for name in PLACEHOLDERS if f"{{{name}}}" not in self.template]
        if missing:
            wanted = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
            found.append(f"template: expected {wanted} in it; {' and '.join(missing)} missing.")
        return found


@dataclass(frozen=True, kw_only=True)
class AnsweringSettings:
    """How a local model answers."""

    settings_group: ClassVar[str] = "answers of a model"

    max_new_tokens: Annotated[int, Meta(ge=1)] = 512
    """Longest answer, tokens."""
    batch_size: Annotated[int, Meta(ge=1)] = 8
    """Prompts at once; answers depend on it in the last digits, hence in rare words."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of the weights; auto: as saved."""
    trust_remote_code: bool = False
    """Runs Python that comes with the model."""


@dataclass(frozen=True, kw_only=True)
class GenerationSettings(AnsweringSettings):
    """How a local model answers: greedily, always."""

    chat_template: bool = True
    """Use the tokenizer's chat template where it has one; False: the bare prompt."""
    device: str | None = None
    """None: an accelerator where there is one."""
