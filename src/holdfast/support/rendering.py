"""Chat templates and tokenizers of models: what they fail with names them, and the date that a template reads is ours.

A template that writes today's date writes other text every day: inside `dates_of` it is the day on which the folder was
begun. jinja2's sandbox keeps a template from the system; how long it takes is not limited.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

from jinja2.exceptions import TemplateError
from transformers import ProcessorMixin, TokenizersBackend, tokenization_utils_base
from transformers.utils import chat_template_utils

from holdfast.errors import ModelError, first_line


class UnusableTemplate(ModelError, TemplateError):
    """A chat template failed. As an error of jinja2, too: libraries try again without a system message at one."""


def guard_models() -> None:
    """From now on, in this process, what a tokenizer or a template fails with is a `ModelError` that names it."""
    for owner, name, guard in (
        (tokenization_utils_base.PreTrainedTokenizerBase, "apply_chat_template", _template_named),
        (ProcessorMixin, "apply_chat_template", _template_named),
        (TokenizersBackend, "_encode_plus", _tokenizer_named),
    ):
        function = getattr(owner, name)
        if not hasattr(function, "_holdfast"):
            guarded = functools.wraps(function)(guard(function))
            guarded._holdfast = True  # type: ignore[attr-defined]
            setattr(owner, name, guarded)


def _template_named(apply: Callable[..., Any]) -> Callable[..., Any]:
    def named(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return apply(self, *args, **kwargs)
        except ModelError:
            raise
        except Exception as error:  # what a template raises has no common base
            raise UnusableTemplate(
                f"The chat template of {_name(self)} cannot write these messages: {type(error).__name__}: "
                f"{first_line(error)}. Mend chat_template.jinja there (or what chat_template or chat_template_path "
                f"names), or the messages."
            ) from error

    return named


def _tokenizer_named(encode: Callable[..., Any]) -> Callable[..., Any]:
    def named(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return encode(self, *args, **kwargs)
        except BaseException as error:
            if not is_panic(error):
                raise
            raise ModelError(
                f"The tokenizer of {_name(self)} cannot read this text: {first_line(error)}. Look at the regular "
                f"expressions of its tokenizer.json (pre_tokenizer, normalizer), or copy it again from the model."
            ) from error

    return named


def is_panic(error: BaseException) -> bool:
    """Whether code in Rust has given up; what it raises then is no `Exception`."""
    return type(error).__name__ == "PanicException"


def _name(processing: Any) -> str:
    return str(getattr(getattr(processing, "tokenizer", processing), "name_or_path", "")) or "the model"


class _Clock:
    """Stands in for `datetime` where templates ask for the time."""

    def __init__(self, moment: datetime) -> None:
        self.moment = moment

    def now(self) -> datetime:
        return self.moment


@contextlib.contextmanager
def dates_of(created: str) -> Iterator[None]:
    """Templates that write a date write this one within the block, unless a block around it says another.

    Args:
        created: ISO 8601, of the record of the folder that is written to; empty: now.
    """
    held = chat_template_utils.datetime
    if isinstance(held, _Clock):
        yield
        return
    chat_template_utils.datetime = _Clock(datetime.fromisoformat(created) if created else datetime.now())
    try:
        yield
    finally:
        chat_template_utils.datetime = held


def dates_in(template: Any) -> list[str]:
    """The dates that a template writes now: what tells apart two texts of one template."""
    formats = re.findall(r"strftime_now\(\s*['\"](.*?)['\"]", str(template or ""))
    return [chat_template_utils.datetime.now().strftime(pattern) for pattern in formats]
