"""Chat templates and tokenizers that cannot be used are named, and dates are those of the folder."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from transformers.utils import chat_template_utils

from holdfast.errors import ModelError
from holdfast.evaluation.runner import tokenizer_fingerprint
from holdfast.support import rendering

ASKED = [{"role": "user", "content": "What is it?"}, {"role": "assistant", "content": "It is."}]


def with_template(tokenizer: Any, template: str) -> Any:
    rendering.guard_models()
    made = copy.deepcopy(tokenizer)
    made.chat_template = template
    return made


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ messages.__class__.__mro__ }}", "SecurityError"),
        ("{% import 'os' as os %}{{ os }}", "TypeError"),
        ("{{ raise_exception('no system role') }}", "no system role"),
        ("{{ range(1000000)|random }}", "OverflowError"),
        ("{% if %}", "TemplateSyntaxError"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}", "RecursionError"),
    ],
)
def test_a_template_that_fails_is_named(tokenizer: Any, template: str, reason: str) -> None:
    made = with_template(tokenizer, template)
    made.name_or_path = "some/model"
    with pytest.raises(ModelError, match=f"some/model.*{reason}"):
        made.apply_chat_template(ASKED, tokenize=False)


def test_a_panic_on_one_text_names_the_tokenizer(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        pass

    def encode(self: Any, text: str) -> None:
        raise PanicException("retry-limit-in-match over")

    guarded = rendering._tokenizer_named(encode)
    with pytest.raises(ModelError, match="cannot read this text: retry-limit-in-match over"):
        guarded(tokenizer, "a")


def test_a_date_is_that_of_the_folder(tokenizer: Any) -> None:
    made = with_template(tokenizer, "{{ strftime_now('%d %b %Y') }}: {{ messages[0].content }}")
    found, keys = [], []
    for created in ("2024-05-01T23:59:59+00:00", "2024-05-02T00:00:01+00:00", "2024-05-01T08:00:00+00:00"):
        with rendering.dates_of(created), rendering.dates_of("1999-01-01T00:00:00+00:00"):
            found.append(made.apply_chat_template(ASKED, tokenize=False))
            keys.append(tokenizer_fingerprint(made))
    assert found == ["01 May 2024: What is it?", "02 May 2024: What is it?", "01 May 2024: What is it?"]
    assert keys[0] == keys[2] != keys[1]
    assert not isinstance(chat_template_utils.datetime, rendering._Clock)
