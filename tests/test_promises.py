"""What the README promises, and the test that shows it: `promises.yaml` has every sentence of the README, so that a new
promise without a test fails here."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml

from stand_ins import put_data

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS_PAGE = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
TOUR = (ROOT / "docs/tour.md").read_text(encoding="utf-8").partition("## All pages")[0]
PAGES = (README, COMMANDS_PAGE, TOUR)
"""The README and what it hands on to."""
LIST = yaml.safe_load(Path(__file__).with_name("promises.yaml").read_text(encoding="utf-8"))
TESTS = sorted({test for entry in LIST["promises"] for test in entry["shown_by"]})


def sentences(text: str) -> list[str]:
    """Sentences of a page, rows of its tables, and comments within its examples; headings promise nothing."""
    found: list[str] = []
    text = re.sub(r"<!--.*?-->|<picture>.*?</picture>", "", text, flags=re.DOTALL)
    for part in re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL):
        if part.startswith("```"):
            found += re.findall(r"(?:^|\s)# ?(.+)$", part, re.MULTILINE)
            continue
        paragraph: list[str] = []
        for line in [*map(str.strip, part.splitlines()), ""]:
            if not line or line.startswith(("#", "|", "- ")):
                found += [s for s in re.split(r"(?<=[.!?])\s+(?=[A-Z`\[\"(*])", " ".join(paragraph)) if s]
                paragraph = [line.removeprefix("- ")] if line.startswith("- ") else []
            else:
                paragraph.append(line)
            if line.startswith("|") and set(line) - set("|-: "):
                found.append(" | ".join(cell.strip() for cell in line.strip("|").split(" | ") if cell.strip(" |")))
    return found


def test_every_sentence_of_the_readme_is_in_the_list() -> None:
    """A sentence that promises something comes under `promises` with its tests, another one under `no_promises`."""
    listed = Counter(
        [entry["says"] for entry in LIST["promises"]] + [s for held in LIST["no_promises"].values() for s in held]
    )
    there = {sentence for page in PAGES for sentence in sentences(page)}
    assert sorted(there - set(listed)) == [], "not in tests/promises.yaml"
    assert sorted(set(listed) - there) == [], "in tests/promises.yaml, and no longer in the pages"
    assert [sentence for sentence, times in listed.items() if times > 1] == []


def test_a_promise_of_the_readme_links_a_test_that_holds_it() -> None:
    promises = README.split("## Promises")[1].split("\n## ")[0]
    bullets = [s for s in sentences(promises) if s.endswith(")).")]
    shown = {entry["says"]: {t.partition("::")[0] for t in entry["shown_by"]} for entry in LIST["promises"]}
    assert (
        len(bullets) >= 8 and {b for b in bullets if not set(re.findall(r"\]\((tests/\S+?)\)", b)) & shown[b]} == set()
    )


def test_a_promise_names_a_test() -> None:
    assert [entry["says"] for entry in LIST["promises"] if not entry["shown_by"]] == []


def test_a_sentence_is_found_wherever_it_stands() -> None:
    page = "# A\n\nOne `x`. Two\nlines? *Three*.\n\n- four\n  goes on\n- five\n\n| a | b |\n|---|--:|\n| `c` |  | d |\n"
    page += "\n```bash\nrun  # six\n```\n<!-- no -->\n"
    wanted = ["One `x`.", "Two lines?", "*Three*.", "four goes on", "five", "a | b", "`c` | d", "six"]
    assert sentences(page) == wanted


@pytest.mark.parametrize("test", TESTS)
def test_the_test_is_there(test: str) -> None:
    """As a function that pytest collects by its name, at the top of its file or in a class of tests."""
    file, *inner = test.split("::")
    assert re.fullmatch(r"tests/(?:[\w-]+/)*test_\w+\.py", file) and (ROOT / file).is_file(), test
    nodes: list[ast.stmt] = ast.parse((ROOT / file).read_text(encoding="utf-8")).body
    for depth, name in enumerate(inner):
        kind = ast.FunctionDef if depth == len(inner) - 1 else ast.ClassDef
        node = next((n for n in nodes if isinstance(n, kind) and n.name == name), None)
        assert node is not None and name.startswith(("test_", "Test")), test
        assert not re.search(r"\bmark\.(skip|xfail|gpu|network)\b", " ".join(map(ast.unparse, node.decorator_list))), (
            test
        )
        nodes = node.body
    assert inner, test


@pytest.mark.slow
def test_pytest_collects_them_all() -> None:
    """Without a device and without a network; but for files that a missing package keeps from being collected."""
    files = {test.partition("::")[0] for test in TESTS}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-o",
        "addopts=",
        "--collect-only",
        "-q",
        "-m",
        "not gpu and not network",
    ]
    done = subprocess.run([*command, *sorted(files)], cwd=ROOT, capture_output=True, text=True, check=False)
    collected = {line.partition("[")[0] for line in done.stdout.splitlines() if "::" in line}
    there = {test.partition("::")[0] for test in collected}
    skipped = {f for f in files - there if "pytest.importorskip(" in (ROOT / f).read_text()}
    missing = sorted(t for t in set(TESTS) - collected if t.partition("::")[0] not in skipped)
    assert missing == [], done.stdout[-2000:] + done.stderr[-2000:]


# ------------------------------------------------------------------------------------ promises without a test elsewhere


def test_the_worked_example_has_its_reports_and_rows() -> None:
    place = ROOT / "docs/examples/peps_gsm8k"
    for run in ("direct", "label_annealing"):
        for model in ("start", "result"):
            figures = sorted((place / run / "evaluations" / model).glob("*.json"))
            assert len(figures) == 3
            assert all(f.with_name(f"{f.stem}.samples.jsonl").stat().st_size for f in figures)
    assert (place / "tradeoff.html").is_file() and (place / "label_annealing/report.html").is_file()


def test_a_dry_run_loads_no_model(desk: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast import models
    from holdfast.cli.main import main

    put_data("train.jsonl")
    for name in ("load", "from_pretrained"):
        monkeypatch.setattr(models, name, lambda *_, **__: pytest.fail("the model was loaded"))
    assert main(["train", "--model_name_or_path", str(model_folder), "--dataset_name", "train.jsonl", "--dry_run"]) == 0


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    from holdfast.cli.main import COMMANDS, main

    told = set(re.findall(r"^\| `holdfast ([\w-]+)` \|", COMMANDS_PAGE, re.MULTILINE))
    assert told == set(COMMANDS)
    for name in COMMANDS:
        assert main([name, "--help"]) == 0 and f"holdfast {name}" in capsys.readouterr().out


def test_the_trainers_are_the_mixin_over_others() -> None:
    from transformers import Trainer
    from trl import SFTTrainer

    from holdfast import RetentionMixin, RetentionTrainer, SFTRetentionTrainer

    for ours, theirs in ((RetentionTrainer, Trainer), (SFTRetentionTrainer, SFTTrainer)):
        assert issubclass(ours, theirs) and issubclass(ours, RetentionMixin)
        assert ours.__mro__.index(RetentionMixin) < ours.__mro__.index(theirs)
