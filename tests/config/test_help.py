"""The text of `--help`: short, of a section, of an option, whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import pytest

from declared_commands import declared_commands
from holdfast.cli.study import STUDIES
from holdfast.cli.train import train_help
from holdfast.config.command_line import Command, read_step
from holdfast.config.declare import Meta
from holdfast.config.help import Section, wrapped
from holdfast.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Server:
    settings_group: ClassVar[str] = "a model behind a server"
    settings_section: ClassVar[str] = "server"

    address: str = ""
    """Where it answers."""


@dataclass(frozen=True, kw_only=True)
class Request(Server):
    rate: Annotated[float, Meta(gt=0, lt=1)] = 0.1
    """Learning rate at its peak. It falls to zero, e.g. along a cosine."""
    schedule: Annotated[Literal["cosine", "linear"], Meta(section="rare")] = "cosine"
    """How the rate falls."""


@dataclass(frozen=True, kw_only=True)
class Ties:
    density: Annotated[float, Meta(ge=0)] = 0.2
    """Share to keep."""
    fast: bool = True
    """Whether it hurries."""


COMMAND = Command(
    name="holdfast example",
    request=Request,
    epilog="examples\n  holdfast example --rate 0.2",
    sections=(
        Section(
            name="ties", summary="keep the largest", group="methods", declared=Ties, prefix="", text="from: a paper"
        ),
        Section(name="files", summary="what is read", text=lambda: "data.jsonl"),
    ),
)


def test_the_short_help_has_first_sentences_and_lists_the_sections() -> None:
    text = COMMAND.help()
    assert "  --rate X                Learning rate at its peak (0.1)\n" in text
    assert "methods (--help NAME)\n  ties  keep the largest\n" in text
    assert "  server  --address\n  rare    --schedule\n" in text
    assert "It falls" not in text and "density" not in text and "cosine" not in text
    assert text.endswith("examples\n  holdfast example --rate 0.2\n")


@pytest.mark.parametrize(
    ("topic", "words"),
    [
        ("server", "a model behind a server\n  --address ADDRESS       Where it answers.\n"),
        ("rare", "options\n  --schedule cosine|linear    How the rate falls (cosine)\n"),
        ("--rate", "  --rate X                Learning rate at its peak. It falls to zero, e.g."),
        ("rate", " cosine (0.1; above 0 and below 1)\n"),
        (
            "ties",
            "ties: keep the largest\n\nparameters\n  density X               Share to keep (0.2; at least 0)\n",
        ),
        ("ties", "  fast true|false         Whether it hurries.\n\nfrom: a paper\n"),
        ("files", "files: what is read\n\ndata.jsonl\n"),
    ],
)
def test_a_topic_is_explained_alone(topic: str, words: str) -> None:
    text = COMMAND.help(topic)
    assert words in text
    assert "usage" not in text and len(text.splitlines()) < 9


def test_all_has_everything() -> None:
    text = COMMAND.help("all")
    assert all(COMMAND.help(topic).strip() in text for topic in ("server", "ties", "files"))
    assert "It falls to zero" in text and "--schedule cosine|linear" in text


def test_a_topic_that_is_not_there_is_refused_with_the_nearest_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=r"--help tise: no section or option .* Did you mean 'ties'"):
        COMMAND.read(["--help", "tise"])
    with pytest.raises(ConfigError, match="Known: ties, files, server, rare, all, and every option"):
        COMMAND.read(["--help=zzz"])
    with pytest.raises(SystemExit):
        COMMAND.read(["--help", "--rate"])
    assert "usage: holdfast example" in capsys.readouterr().out


def test_paragraphs_and_tables_are_wrapped_and_code_is_not() -> None:
    text = """\
one two three
four see `a.very.long.name`

files
  a.txt   first second
          third
  run --with an --option  # why
"""
    assert wrapped(text, 18).splitlines() == [
        *("one two three four", "see", "`a.very.long.name`", "", "files"),
        *("  a.txt   first", "          second", "          third", "  run --with an --option  # why"),
    ]


def test_a_command_of_several_steps_explains_itself_and_each_step(capsys: pytest.CaptureFixture[str]) -> None:
    def step(*words: str) -> tuple[str, list[str]]:
        return read_step(words, ("extract", "apply"), command="holdfast residual", text="usage: residual")

    assert step("apply", "--scale", "2") == ("apply", ["--scale", "2"])
    assert step("--help", "apply", "scale") == ("apply", ["--help", "scale"])
    for words, code in (((), 2), (("--help",), 0)):
        with pytest.raises(SystemExit) as ended:
            step(*words)
        assert (ended.value.code, capsys.readouterr().out) == (code, "usage: residual\n")
    with pytest.raises(ConfigError, match=r"one of extract, apply, got 'aply'. Did you mean 'apply'"):
        step("aply")


HELPS = {name: command.help for name, command in declared_commands().items()}
HELPS |= {f"holdfast study run: {kind}": study.command.help for kind, study in STUDIES.items()}
HELPS["holdfast train"] = train_help().text


@pytest.mark.parametrize("name", HELPS)
def test_the_short_help_of_every_command_fits_60_lines_of_80_columns(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = HELPS[name]().splitlines()
    assert len(lines) <= 60
    assert [line for line in lines if len(line) > 80] == []
