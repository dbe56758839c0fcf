"""The settings engine on declarations made here: coercion, mistakes with lines, command lines, help, schema."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest

from holdfast.config.command_line import Command, find_option
from holdfast.config.declare import Meta, deciding, part_of, settings_of
from holdfast.config.decode import decode, problems_in
from holdfast.config.raw_request import RawRequest
from holdfast.config.schema import json_schema
from holdfast.config.yaml_file import read_yaml
from holdfast.errors import ConfigError, Problem, dotted
from key_tables import keys_table


def settings_value(cls, values):
    """A settings object, or every mistake at once."""
    value, problems = decode(cls, values)
    RawRequest().check(problems)
    return value


@dataclass(frozen=True, kw_only=True)
class Model:
    layers: Annotated[int, Meta(ge=1)] = 2
    """Layers of the model."""
    kind: Literal["llama", "qwen"] = "llama"
    """Architecture."""


@dataclass(frozen=True, kw_only=True)
class Base:
    settings_group: ClassVar[str] = "where"

    folder: Annotated[Path | None, Meta(decides=False)] = None
    """Where it goes."""


@dataclass(frozen=True, kw_only=True)
class Request(Base):
    settings_group: ClassVar[str] = "what"

    name: str
    """What it is called."""
    rate: Annotated[float, Meta(gt=0, lt=1)] = 0.1
    """Learning rate."""
    steps: Annotated[int | None, Meta(ge=1)] = None
    """Steps; null: one epoch."""
    fast: bool = False
    """Whether it hurries."""
    seeds: Annotated[tuple[int, ...], Meta(ge=0, repeatable=True)] = (0,)
    """Seeds of the repetitions."""
    model: Model = Model()
    """The model."""
    files: dict[str, str] = dataclasses.field(default_factory=dict)
    """File by task."""
    tokens: Annotated[int, Meta(parse=lambda value: 10 ** len(str(1.0 * value)), expected="tokens")] = 1
    """Something that a function reads."""
    models: Annotated[tuple[str, ...], Meta(positional=True, metavar="MODEL")] = ()
    """Models to look at."""

    def problems(self) -> list[str]:
        """A rule over two settings."""
        return ["rate: expected below 0.5 where fast is on, got more."] if self.fast and self.rate >= 0.5 else []


COMMAND = Command(name="holdfast example", request=Request)


@pytest.mark.parametrize(
    ("key", "given", "expected"),
    [
        ("rate", "1e-1", 0.1),
        ("rate", 0.25, 0.25),
        ("steps", 7.0, 7),
        ("steps", "1e3", 1000),
        ("steps", "none", None),
        ("fast", "TRUE", True),
        ("fast", "no", False),
        ("seeds", 3, (3,)),
        ("seeds", "[1, 2]", (1, 2)),
        ("seeds", ["010", "1_000", 2**63 - 1], (10, 1000, 2**63 - 1)),
        ("name", 7, "7"),
        ("model", {"layers": "3"}, Model(layers=3)),
        ("model", "{kind: qwen}", Model(kind="qwen")),
        ("files", {"a": "b"}, {"a": "b"}),
        ("folder", "x/y", Path("x/y")),
    ],
)
def test_what_yaml_and_shells_give_becomes_what_is_declared(key: str, given: Any, expected: Any) -> None:
    value = settings_value(Request, {"name": "n", key: given})
    assert getattr(value, key) == expected
    assert type(getattr(value, key)) is type(expected)


@pytest.mark.parametrize(
    ("key", "given", "words"),
    [
        ("rate", True, "rate: expected a number above 0 and below 1, got True (true/false)."),
        ("rate", 1, "rate: expected a number above 0 and below 1, got 1 (whole number)."),
        ("rate", float("nan"), "rate: expected"),
        ("steps", 0, "steps: expected a whole number of at least 1, got 0 (whole number)."),
        ("steps", 1.5, "steps: expected"),
        ("steps", "many", "steps: expected a whole number of at least 1, got 'many' (text)."),
        ("fast", "maybe", "fast: expected true or false"),
        ("seeds", [1, -1], "seeds[1]: expected a whole number of at least 0, got -1 (whole number)."),
        ("seeds", "[1, 2", "seeds: expected"),
        ("name", 1.5, "Put it in quotes"),
        ("name", None, "name: expected text, got nothing (null). Give one."),
        ("rate", None, "Leave the key out for its default, 0.1."),
        ("model", {"layers": 0}, "model.layers: expected a whole number of at least 1"),
        ("model", {"layer": 1}, "unknown key 'layer'. Did you mean 'layers'?"),
        (
            "model",
            {"kind": "lama"},
            "model.kind: expected one of llama, qwen, got 'lama' (text). Did you mean 'llama'?",
        ),
        ("files", {"a": [1]}, "files.a: expected text"),
        ("steps", 10**400, "steps: expected a whole number of at least 1, got "),
        ("steps", "9" * 5000, "steps: expected a whole number of at least 1, got "),
        ("rate", 10**400, "rate: expected a number above 0 and below 1, got "),
        ("tokens", "[" * 3000, "tokens: expected tokens"),
        ("seeds", "[" * 3000 + "]" * 3000, "seeds: expected a list of whole numbers"),
        ("model", "{kind: !!int foo}", "model: expected a mapping"),
        ("name", "a\0b", "name: expected text, got 'a\\x00b' (text)."),
        ("folder", "a\ud800", "folder: expected a path, got 'a\\ud800' (text)."),
        (
            "folder",
            "/dev/null/x/y",
            "folder: expected a path, got '/dev/null/x/y' (text). /dev/null is a file, not a folder",
        ),
        ("folder", [1, 2], "folder: expected a path, got [1, 2] (list)."),
    ],
)
def test_what_does_not_fit_is_refused_by_name(key: str, given: Any, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        settings_value(Request, {"name": "n", key: given})
    assert words in str(error.value)


def test_all_mistakes_come_at_once_and_missing_keys_with_them() -> None:
    _, problems = decode(Request, {"rate": 2, "steps": 0})
    assert [dotted(m.path) for m in problems] == ["rate", "steps", "name"]
    assert problems[-1].text == "is missing: expected text (what it is called)."
    _, problems = decode(Request, {"nam": "x"})
    assert [m.text for m in problems] == ["unknown key 'nam'. Did you mean 'name'?"], "the missing one is the mistyped"


def test_values_made_in_python_are_checked_alike() -> None:
    assert problems_in(Request(name="n")) == []
    assert problems_in(Request(name="n", rate=0.7, fast=True)) == [
        "rate: expected below 0.5 where fast is on, got more."
    ]
    assert [m.path for m in problems_in(Request(name="n", rate=3.0))] == [("rate",)]


def test_what_decides_leaves_folders_out() -> None:
    found = deciding(Request(name="n", folder=Path("x")))
    assert (
        "folder" not in found
        and found["name"] == "n"
        and set(found) == {s.name for s in settings_of(Request)} - {"folder"}
    )


def request_file(folder: Path, text: str) -> str:
    (folder / "request.yaml").write_text(text)
    return str(folder / "request.yaml")


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    file = request_file(tmp_path, "name: a\nrate: 0.3\nseeds: [4, 5]\nmodel: {layers: 4}\n")
    value = COMMAND.read(["one", "--config", file, "--rate=0.2", "two", "--fast", "--seeds", "1", "2", "--seeds", "3"])
    assert (value.name, value.rate, value.fast, value.seeds) == ("a", 0.2, True, (1, 2, 3))
    assert value.models == ("one", "two")
    assert value.model == Model(layers=4)


@pytest.mark.parametrize("words", [["--fast", "m"], ["--fast", "true", "m"], ["--fast=yes", "m"], ["m", "--fast"]])
def test_switches_leave_words_alone(words: list[str]) -> None:
    value = COMMAND.read(["--name", "n", *words])
    assert value.fast is True and value.models == ("m",)
    assert COMMAND.read(["--name", "n", "--no-fast"]).fast is False


def test_two_dashes_end_the_values_of_an_option() -> None:
    assert COMMAND.read(["--name", "n", "--seeds", "1", "2", "--", "m", "--fast"]).models == ("m",)


def test_settings_beside_the_request_and_files_of_another_kind(tmp_path: Path) -> None:
    """`more` are taken before the request is decoded; `adapt` rewrites a file before it counts."""

    def adapt(file: RawRequest) -> None:
        file.values["name"] = file.values.pop("title")

    known = Command(name="x", request=Request, more=settings_of(Model), adapt=adapt)
    given = known.given(["--config", request_file(tmp_path, "title: a\nkind: qwen\n"), "--layers", "3"])
    assert given.take("layers", "kind") == {"layers": "3", "kind": "qwen"}
    value = known.decode(given)
    assert value.name == "a"
    assert part_of(value, Base) == Base(folder=None)


def test_mistakes_name_the_option_or_the_line(tmp_path: Path) -> None:
    file = request_file(tmp_path, "name: a\nsteps: 0\nmodel:\n  layers: none at all\nname: b\nbogus: 1\n")
    with pytest.raises(ConfigError) as error:
        COMMAND.read(["--config", file, "--rate", "2", "--lr", "3", "--ratte", "1", "--models", "m"])
    said = error.value.problems
    assert "line 2: steps: expected a whole number of at least 1, got 0 (whole number)." in said
    assert "line 4: model.layers: expected a whole number of at least 1, got 'none at all' (text)." in said
    assert "'name' is listed twice, in line 1 and in line 5. Keep one of them." in said
    assert "--rate: expected a number above 0 and below 1, got '2' (text)." in said
    assert any(s.startswith("unknown option '--lr'.") for s in said)
    assert "unknown option '--ratte'. Did you mean '--rate'?" in said
    assert any(s.startswith("unknown key 'bogus'. Known: name, rate") or "unknown key 'bogus'" in s for s in said)
    assert "unknown option '--models'. MODEL is positional: write only its value." in said
    assert len(said) == 8


@dataclass(frozen=True, kw_only=True)
class Inner:
    top_k: Annotated[int, Meta(ge=1)] = 1


@dataclass(frozen=True, kw_only=True)
class Outer:
    batch_size: Annotated[int, Meta(ge=1)] = 1
    sampling: Inner = Inner()
    files: dict[str, str] = dataclasses.field(default_factory=dict)


def test_keys_with_dashes_are_those_with_underscores(tmp_path: Path) -> None:
    command = Command(name="holdfast example", request=Outer)
    file = request_file(tmp_path, "batch-size: 0\nsampling:\n  top-k: 0\nfiles: {a-b: c, a_b: d}\n")
    with pytest.raises(ConfigError) as error:
        command.read(["--config", file])
    assert [p.split(", got")[0] for p in error.value.problems] == [
        "line 1: batch_size: expected a whole number of at least 1",
        "line 3: sampling.top_k: expected a whole number of at least 1",
    ]
    assert command.read(["--config", file, "--batch-size", "2", "--sampling", "{top-k: 3}"]).sampling == Inner(top_k=3)
    file = request_file(tmp_path, "batch-size: 1\nbatch_size: 2\nsampling: {top-k: 1, top_k: 2}\n")
    with pytest.raises(ConfigError) as error:
        command.read(["--config", file])
    assert error.value.problems == [
        "'batch_size' is listed twice, in line 1 and in line 2. Keep one of them.",
        "line 3: sampling.top_k: is listed twice, as 'top-k' and as 'top_k'. Keep one of them.",
    ]


@dataclass(frozen=True, kw_only=True)
class Files:
    seed: int
    output: Path
    format: str = "rows"
    input: tuple[str, ...] = ()
    kind: Literal["a", "b"]

    def problems(self) -> list[str]:
        """What no single declaration can tell."""
        found: list[str] = [Problem("input", f"{name} is not here.") for name in self.input]
        if self.format == "rates":
            found.append(Problem("format", f"{1 / (self.seed - 1)} a second."))
        return [*found, Problem("output", f"{self.output} is there already."), "a rule over several."]


def test_rules_about_what_was_given_are_heard_though_other_keys_are_missing() -> None:
    def problems(**given: Any) -> list[str]:
        return [m.partition(": expected")[0] for m in decode(Files, given)[1]]

    whole: dict[str, Any] = {"seed": 2, "output": "x", "kind": "a", "input": "b"}
    everything = ["input: b is not here.", "output: x is there already.", "a rule over several."]
    assert problems(**whole) == everything
    assert problems(input="b", kind="a") == ["seed: is missing", "output: is missing", "input: b is not here."]
    assert problems(**{**whole, "seed": "many"}) == ["seed", *everything[:2]]
    assert problems(input="b", format="rates", kind="a", output="x") == ["seed: is missing"], "the rule needs a seed"
    with pytest.raises(ZeroDivisionError):
        problems(**{**whole, "seed": 1, "format": "rates"})


def test_duplicates_are_found_at_every_depth(tmp_path: Path) -> None:
    given = read_yaml(request_file(tmp_path, "a:\n  - b: 1\n    b: 2\nc: {d: 1, d: 2}\n"))
    assert [m.text for m in given.problems] == [
        "'a[0].b' is listed twice, in line 2 and in line 3. Keep one of them.",
        "'c.d' is listed twice, in line 4 and in line 4. Keep one of them.",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", r"the file is empty. The file needs at least 'name:'\."),
        ("- a\n", r"expected a mapping \('key: value' lines\), got \['a'\] \(list\)"),
        ("a: !!python/object:os.system {}\n", "could not determine a constructor"),
        ("a: b: c\n", "needs quotes"),
        ("a:\n\t- b\n", "spaces, not tabs"),
    ],
)
def test_files_that_are_no_mapping(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_yaml(request_file(tmp_path, text), needs="'name:'")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes("name: caf\xe9".encode("latin-1"))
    for place, words in (("latin.yaml", "in UTF-8"), (".", "got a folder"), ("no/run.yaml", "does not exist either")):
        with pytest.raises(ConfigError, match=words):
            read_yaml(tmp_path / place)


def test_a_missing_file_names_its_neighbour(tmp_path: Path) -> None:
    request_file(tmp_path, "name: a\n")
    with pytest.raises(ConfigError, match=r"no such file. Did you mean 'request.yaml'\?"):
        read_yaml(tmp_path / "requst.yaml")


def test_options_found_before_the_settings_are_known() -> None:
    assert find_option(["--config", "a.yaml", "--x"], "config") == "a.yaml"
    assert find_option(["--con-fig=a"], "con_fig") == "a"
    for words in (["--config"], ["--config", "--x"], ["--config", "a", "--config=b"]):
        with pytest.raises(ConfigError):
            find_option(words, "config")


def test_words_without_dashes_are_reported_without_dashes() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Numbers:
        number: Annotated[tuple[int, ...], Meta(positional=True)] = ()
        other: int = 0
        rule: Annotated[tuple[str, ...], Meta(repeatable=True, one_word=True)] = ()

    command = Command(name="holdfast numbers", request=Numbers)
    assert command.read(["--rule", "a", "1", "--rule=b", "2"]) == Numbers(number=(1, 2), rule=("a", "b"))
    with pytest.raises(ConfigError) as raised:
        command.read(["1", "two", "--other", "three"])
    assert [p.partition(":")[0] for p in raised.value.problems] == ["number[1]", "--other"]


def test_help_and_table_say_what_is_declared(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        COMMAND.read(["--rate", "nonsense", "--help", "all"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    for words in (
        "usage: holdfast example",
        "\nwhat\n",
        "\nwhere\n",
        "--rate X",
        "(0.1; above 0 and below 1)",
        "MODEL",
    ):
        assert words in said
    assert "| `steps` | a whole number of at least 1 |  | Steps; null: one epoch. |" in keys_table(settings_of(Request))


def test_the_schema_takes_what_the_engine_takes() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json_schema(Request, title="example")
    jsonschema.Draft202012Validator.check_schema(schema)
    sound = {"name": "n", "rate": 0.2, "seeds": [1], "model": {"kind": "qwen"}, "files": {"a": "b"}, "steps": None}
    jsonschema.validate(sound, schema)
    for wrong in (
        {"rate": 0.2},
        {"name": "n", "rate": 2},
        {"name": "n", "bogus": 1},
        {"name": "n", "model": {"layers": 0}},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)
        with pytest.raises(ConfigError):
            settings_value(Request, wrong)


def test_a_command_without_a_file_of_options_may_have_a_setting_named_config() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Study:
        config: Path
        """The study."""

    command = Command(name="holdfast example", request=Study, yaml=False)
    assert command.read(["--config", "study.yaml"]).config == Path("study.yaml")
    assert command.help().count("--config") == 1
