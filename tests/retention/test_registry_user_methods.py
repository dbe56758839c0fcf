"""A method in the user's own file: how it is found, what is refused, and what decides its identity."""

from __future__ import annotations

import hashlib
import re
from importlib.metadata import EntryPoint

import pytest

from extending import REFERENCE, write_method
from holdfast.errors import ConfigError
from holdfast.retention.registry import retention, title
from holdfast.runs.settings import parse_compact_method


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_method(tmp_path)
    return tmp_path


def test_a_file_and_a_class(place):
    [method] = retention([{REFERENCE: {"rate": "0.2"}}])
    assert (method.name, method.rate, method.label()) == ("dropback", 0.2, "dropback(rate=0.2)")
    sha256 = hashlib.sha256((place / "my_method.py").read_bytes()).hexdigest()[:16]
    assert method.describe() == {
        "method": "dropback",
        "rate": 0.2,
        "seed": 0,
        "from": REFERENCE,
        "sha256": sha256,
    }
    assert method.record()["title"] == title("dropback") == "dropback to the start"
    assert method.setting() == {REFERENCE: {"rate": 0.2, "seed": 0, "sha256": sha256}}
    assert retention([method.setting()]) == [method]
    for value, said in (
        ([{REFERENCE: {"rat": 1}}], "Did you mean 'rate'?"),
        ([REFERENCE, REFERENCE], "'dropback' is given 2 times"),
        ({REFERENCE: {"rate": 1.5}}, "dropback.rate: expected a number"),
    ):
        with pytest.raises(ConfigError) as caught:
            retention(value)
        assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (REFERENCE, [REFERENCE]),
        (f"{REFERENCE}:rate=0.1,seed=2", [{REFERENCE: {"rate": 0.1, "seed": 2}}]),
        ("own/place.py:Dropback:rate=0.1", [{"own/place.py:Dropback": {"rate": 0.1}}]),
        ("my_package.module:Dropback", ["my_package.module:Dropback"]),
        ("replay:data=http://host:80/x", [{"replay": {"data": "http://host:80/x"}}]),
    ],
)
def test_on_the_command_line(text, expected):
    assert parse_compact_method(text) == expected


def test_an_import_path_and_an_entry_point(place, monkeypatch):
    write_method(place, name="own_methods.py")
    monkeypatch.syspath_prepend(str(place))
    [imported] = retention(["own_methods:Dropback"])
    assert imported.describe()["from"] == "own_methods:Dropback"
    point = EntryPoint(name="dropback", value="own_methods:Dropback", group="holdfast.methods")
    monkeypatch.setattr(
        "importlib.metadata.entry_points",
        lambda **wanted: [point] if wanted == {"group": point.group, "name": point.name} else [],
    )
    [pointed] = retention([{"dropback": {"rate": 0.3}}])
    assert (pointed.rate, pointed.setting()["dropback"]["sha256"]) == (0.3, imported.sha256)
    with pytest.raises(ConfigError, match=r"No module named 'my_method_'.*Write a file with its extension"):
        retention(["my_method_:Dropback"])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("my_metod.py:Dropback", r"my_metod.py: no such file .*Did you mean 'my_method.py'\?"),
        (
            "my_method.py:Dropbak",
            r"my_method.py has no 'Dropbak'; it has Dropback, Falling. Did you mean 'Dropback'\?",
        ),
        ("my_method.py:Falling", "expected a subclass of .*RetentionMethod, got the class Falling.*docs/extending.md"),
        ("my_method.py:dataclass", "got a value of type function"),
        (
            "raises.py:Any",
            r"raises.py: the code cannot be loaded: ZeroDivisionError: division by zero \(.*raises.py, line 2\)",
        ),
        ("syntax.py:Any", r"syntax.py: the code cannot be loaded: SyntaxError: .*\(.*syntax.py, line 1\)"),
        ("taken.py:Dropback", "the name 'l2' is taken by a method of holdfast"),
        ("nameless.py:Dropback", "the class lacks title; write for example"),
        ("thawed.py:Dropback", "expected a frozen dataclass"),
        ("strong.py:Dropback", "the parameters sha256, strength, title would hide .* such as 'sha256_'"),
    ],
)
def test_what_is_refused(name, said, place):
    code = (place / "my_method.py").read_text()
    (place / "raises.py").write_text("x = 1\ny = x / 0\n")
    (place / "syntax.py").write_text("def\n")
    (place / "taken.py").write_text(code.replace('"dropback"\n', '"l2"\n', 1))
    lines = [line for line in code.splitlines() if not line.strip().startswith(("title:", "source:"))]
    (place / "nameless.py").write_text("\n".join(lines))
    more = "    strength: float = 1.0\n    title: str = 'x'\n    sha256: str = ''\n    seed: int = 0\n"
    (place / "strong.py").write_text(code.replace("    seed: int = 0\n", more))
    (place / "thawed.py").write_text(code.replace("@dataclass(frozen=True, kw_only=True)\n", ""))
    with pytest.raises(ConfigError, match=said):
        retention([name])


def test_a_method_of_one_s_own_needs_no_paper(place):
    from holdfast.retention.registry import METHODS
    from holdfast.training.method_laws import LawBroken, documents_itself

    code = (place / "my_method.py").read_text().replace(" References: Mixout (Lee, Cho and Kang 2020), section 4.", "")
    lines = [line for line in code.splitlines() if not line.strip().startswith("source:")]
    (place / "idea.py").write_text("\n".join(lines))
    [method] = retention(["idea.py:Dropback"])
    documents_itself(type(method))
    (place / "mute.py").write_text(re.sub(r'    """Probability.*"""\n', "", "\n".join(lines) + "\n"))
    [mute] = retention(["mute.py:Dropback"])
    with pytest.raises(LawBroken, match="a docstring under rate"):
        documents_itself(type(mute))
    ours = type(
        "Ours", (METHODS["l2"],), {"__module__": "holdfast.retention.methods.l2", "__doc__": "Pull.", "source": ""}
    )
    with pytest.raises(LawBroken, match=r"source \(a paper.*References"):
        documents_itself(ours)


def test_an_edited_file_is_another_run_and_old_records_run_no_code(place):
    from holdfast.runs.config import train_config
    from holdfast.runs.identity import explain_difference

    asked = {
        "model_name_or_path": "owner/model",
        "dataset_name": "owner/data",
        "retention": [{REFERENCE: {"rate": 0.2}}],
    }
    before = train_config(asked)
    assert train_config(asked).key == before.key
    write_method(place, more="# another\n")
    after = train_config(asked)
    assert after.key != before.key
    [line] = explain_difference(before.resolved, after.resolved)
    assert line.startswith("retention: dropback(rate=0.2) with source ")
    assert before.retention[0].sha256[:12] in line
    assert after.retention[0].sha256[:12] in line
    record = {"retention": [{"never.py:Loaded": {"rate": 1, "sha256": "0"}}]}
    (place / "never.py").write_text("raise SystemExit('this code must not run')\n")
    assert len(explain_difference(record, after.resolved)) > 0
