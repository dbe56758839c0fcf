"""Text of others as text, at every outlet."""

from __future__ import annotations

import copy
import json
import pickle
import re
from pathlib import Path

import pytest

from holdfast.errors import ConfigError, DataError, HoldfastError
from holdfast.printable import Lines, json_escaped, lines, printable
from holdfast.reports import blocks as b
from holdfast.reports import html, markdown
from holdfast.reports.terminal import Printer
from holdfast.support.secrets import Withheld, is_secret, withheld, without_secrets

HOSTILE = "x\x1b[2K\x07\x9b1m\u202eevil\u2066\u2028\r\n::error file=a::pwned\nPASS       any drop"
RAW = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


def is_safe(text: str) -> bool:
    """Whether nothing raw is in the text, and none of its lines is one of `HOSTILE`."""
    return not RAW.search(text) and not any(line.strip().startswith(("::", "PASS")) for line in text.splitlines())


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, as it is: ä 漢 👩\u200d🔬 \\n", "plain text, as it is: ä 漢 👩\u200d🔬 \\n"),
        ("a\x1b[2K\x00\x7f\x9b", "a\\x1b[2K\\x00\\x7f\\x9b"),
        ("\u202etxt\u2069\u2028\ufeff", "\\u202etxt\\u2069\\u2028\\ufeff"),
        ("a\r\n\tb", "a\\r\\n\\tb"),
        ("\udc80\U000e0041", "\\udc80\\U000e0041"),
        (" ::error::x", " \\x3a:error::x"),
        ("a ::b", "a ::b"),
        ("see ##[error]x and ##vso[task]", "see \\x23#[error]x and \\x23#vso[task]"),
        ("## heading", "## heading"),
    ],
)
def test_everything_unprintable_is_an_escape(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(printable(text)) == shown
    assert json.loads(json_escaped(json.dumps({"a": text}, ensure_ascii=False))) == {"a": text}


def test_line_breaks_are_ours_or_escaped() -> None:
    assert lines("a\nb", "c", lines("d", "e")) == "a\\nb\nc\nd\ne"
    assert printable("a\n\tb\x1b", breaks=True) == "a\n\tb\\x1b"


def test_errors_keep_their_lines_and_escape_those_of_others() -> None:
    error = DataError("two rows:", "  - a\n::error::b", "Correct them.")
    assert str(error) == "two rows:\n  - a\\n::error::b\nCorrect them."
    assert f"file: {error}" == "file: two rows: - a\\n::error::b Correct them."
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert str(ConfigError([HOSTILE, lines("one", "two")])).count("\n") == 3
    assert is_safe(str(HoldfastError(HOSTILE))) and is_safe(str(ConfigError([HOSTILE, HOSTILE], source=HOSTILE)))
    assert str(HoldfastError()) == ""


def blocks() -> list[b.Block]:
    table = b.Table(
        columns=b.columns(HOSTILE, "n"), rows=[[HOSTILE, (HOSTILE, b.sub(HOSTILE))]], title=HOSTILE, note=HOSTILE
    )
    return [
        b.Heading(HOSTILE),
        b.Paragraph((HOSTILE, b.Span(HOSTILE, "code"), b.chip(HOSTILE))),
        b.Bullets([HOSTILE]),
        b.Facts([(HOSTILE, HOSTILE)]),
        b.Banner(HOSTILE, items=[HOSTILE]),
        b.Tiles([b.Tile(HOSTILE, HOSTILE, HOSTILE)]),
        b.Fold(HOSTILE, [table]),
        b.Section(HOSTILE, [table], HOSTILE),
    ]


@pytest.mark.parametrize("terminal", [True, False])
def test_the_terminal_shows_escapes(terminal: bool) -> None:
    import io

    from rich.console import Console

    out = io.StringIO()
    Printer(Console(file=out, width=4000, force_terminal=terminal, color_system=None)).show(blocks())
    assert is_safe(out.getvalue()) and "\\x1b[2K" in out.getvalue() and "\\u202e" in out.getvalue()


def test_markdown_and_pages_show_escapes() -> None:
    page = b.Page(tab=HOSTILE, eyebrow=HOSTILE, title=HOSTILE, lead=HOSTILE, blocks=blocks(), footer=HOSTILE)
    text = [x for x in blocks() if not isinstance(x, b.Facts | b.Banner | b.Tiles)]
    assert is_safe(markdown.render(text))
    body = html.render(page).partition("</head>")[2].partition("<script>")[0]
    assert not RAW.search(body) and "\\u202e" in body


def test_charts_show_escapes() -> None:
    from holdfast.reports.charts import plain

    assert not RAW.search(plain(HOSTILE))


# ------------------------------------------------------------------------------------------------------------- secrets


def test_a_secret_is_itself_here_and_empty_in_a_pickle() -> None:
    held = withheld({"hub_token": "hf_a", "seed": 3, "model_init_kwargs": {"token": "b", "dtype": "float32"}})
    assert held == {"hub_token": "hf_a", "seed": 3, "model_init_kwargs": {"token": "b", "dtype": "float32"}}
    assert copy.deepcopy(held) == held and isinstance(copy.copy(held["hub_token"]), Withheld)
    stored = pickle.loads(pickle.dumps(held))
    assert stored == {"hub_token": "", "seed": 3, "model_init_kwargs": {"token": "", "dtype": "float32"}}


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("WANDB_API_KEY", "x", True),
        ("GITHUB_PAT", "x", True),
        ("DB_PWD", "x", True),
        ("SENTRY_DSN", "x", True),
        ("URL", "postgres://me:pw@host/db", True),
        ("ANY", "hf_abcdef", True),
        ("ANY", "0123456789abcdef0123456789abcdef", True),
        ("PATH", "/usr/bin:/bin", False),
        ("CUDA_VISIBLE_DEVICES", "0,1", False),
        ("WANDB_PROJECT", "forgetting-of-the-base-model", False),
    ],
)
def test_what_looks_like_a_secret(name: str, value: str, secret: bool) -> None:
    assert is_secret(name, value) is secret


def test_lines_are_text(tmp_path: Path) -> None:
    assert isinstance(lines("a", "b"), str) and isinstance(printable("a"), Lines)
    assert json.dumps(lines("a", "b")) == '"a\\nb"'


def test_a_request_is_written_down_without_secrets() -> None:
    train = {"hub_token": "a", "seed": 1, "env": {"API_KEY": "b", "MODE": "c"}, "teacher": {"token": "d", "name": "e"}}
    asked = {"train": train, "tasks": {"token": {"train": [train]}}}
    kept = {"seed": 1, "env": {"MODE": "c"}, "teacher": {"name": "e"}}
    assert without_secrets(asked) == {"train": kept, "tasks": {"token": {"train": [kept]}}}
