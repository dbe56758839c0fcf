"""Chat templates and rules of tokenizers that cannot be used: each is named, and none runs for ever."""

from __future__ import annotations

import copy
import json
import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast import models
from holdfast.errors import ModelError
from holdfast.evaluation.runner import tokenizer_fingerprint
from holdfast.support import rendering
from holdfast.support.dates import dates_in, dates_of

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
        ("{{ 'a' * 3000000000 }}", "MiB of memory"),
        ("{{ messages[0].content * 300000000 }}", "MiB of memory"),
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


def test_a_template_without_an_end_is_stopped(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "SECONDS", 0.05)
    made = with_template(tokenizer, "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}")
    with pytest.raises(ModelError, match=r"more than 0\.1 seconds"):
        made.apply_chat_template(ASKED, tokenize=False)


def test_limits_leave_nothing_behind(tokenizer: Any) -> None:
    before = rendering.resource.getrlimit(rendering.resource.RLIMIT_AS)
    made = with_template(tokenizer, "{{ messages[0].content }}")
    assert made.apply_chat_template(ASKED, tokenize=False) == "What is it?"
    assert rendering.resource.getrlimit(rendering.resource.RLIMIT_AS) == before
    assert rendering.signal.getitimer(rendering.signal.ITIMER_VIRTUAL) == (0, 0)


@pytest.mark.parametrize(
    ("part", "rule"),
    [
        ("pre_tokenizer", {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}),
        ("normalizer", {"type": "Replace", "pattern": {"Regex": "(a|aa)+\\!$|(.*a){20}b"}, "content": "b"}),
    ],
)
def test_rules_that_backtrack_are_refused(model_folder: Path, tmp_path: Path, part: str, rule: dict[str, Any]) -> None:
    folder = shutil.copytree(model_folder, tmp_path / "model")
    rules = json.loads((folder / "tokenizer.json").read_text())
    rules[part] = rule
    (folder / "tokenizer.json").write_text(json.dumps(rules))
    with pytest.raises(ModelError, match=f"{folder}.*the rules of the tokenizer cannot be used"):
        models.load_tokenizer(str(folder))


def test_a_panic_on_one_text_names_the_tokenizer(tokenizer: Any) -> None:
    class PanicException(BaseException):
        pass

    def encode(self: Any, text: str) -> None:
        raise PanicException("retry-limit-in-match over")

    guarded = rendering._tokenizer_named(encode)
    with pytest.raises(ModelError, match="cannot read this text: retry-limit-in-match over"):
        guarded(tokenizer, "a")


def test_what_is_tried_says_why_it_fails() -> None:
    assert rendering.tried(lambda: None) == ""
    assert rendering.tried(lambda: 1 // 0).startswith("integer division")
    assert "Memory" in rendering.tried(lambda: "a" * (3 * rendering.BYTES))


def test_a_date_is_that_of_the_folder(tokenizer: Any) -> None:
    made = with_template(tokenizer, "{{ strftime_now('%d %b %Y') }}: {{ messages[0].content }}")
    found, keys = [], []
    for created in ("2024-05-01T23:59:59+00:00", "2024-05-02T00:00:01+00:00", "2024-05-01T08:00:00+00:00"):
        with dates_of(created), dates_of("1999-01-01T00:00:00+00:00"):
            found.append(made.apply_chat_template(ASKED, tokenize=False))
            keys.append(tokenizer_fingerprint(made))
    assert found == ["01 May 2024: What is it?", "02 May 2024: What is it?", "01 May 2024: What is it?"]
    assert keys[0] == keys[2] != keys[1]
    assert dates_in(made.chat_template) == [datetime.now().strftime("%d %b %Y")]
