"""The documentation is complete and true as far as a machine can tell.

Every method, parameter, key, command and option is described; every YAML in it is a sound configuration; every command
line parses; every Python example runs; every link leads somewhere.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import re
import shlex
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from declared_commands import command_of
from extending import write_method
from holdfast.config.command_line import find_option, parse_words
from holdfast.config.decode import coerce_all
from holdfast.records.run import RunFolder, RunRecord
from preference_trainers import pairs
from stand_ins import put_data
from tiny import build_model, build_tokenizer

ROOT = Path(__file__).parents[1]
PAGES = [
    *(
        ROOT / name
        for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "skills/holdfast/SKILL.md")
    ),
    *sorted((ROOT / "docs").glob("*.md"), key=lambda page: (page.stem != "tutorial_python", page.name)),
    *sorted((ROOT / "docs/methods").glob("*.md")),
]
"""The Python tutorial first: its examples take the scene's names as they are."""
IDS = [path.name for path in PAGES]
ENTRY_PAGES = ("evaluation_entries", "evaluation_entries_generated")
COMPARISON_PAGES = ("comparing", "comparing_statistics", "policy")


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(language: str) -> list[Any]:
    """Fenced blocks of a language as parameters: page, content."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            line = text.count("\n", 0, match.start()) + 1
            found.append(pytest.param(match.group(1), id=f"{page.name}:{line}"))
    assert found, f"no {language} block; the search is broken"
    return found


def section(text: str, title: str, level: int = 2) -> str:
    """What stands under a heading, up to the next of its level or above."""
    match = re.search(
        rf"^{'#' * level} {re.escape(title)}$(.*?)(?=^#{{1,{level}}} |\Z)", text, re.MULTILINE | re.DOTALL
    )
    assert match, f"no section '{title}'"
    return match.group(1)


def table_rows(text: str) -> dict[str, list[str]]:
    """Rows of the tables whose first cell holds names in backticks: name -> the other cells."""
    rows = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if line.startswith("| `"):
            for name in re.findall(r"`([^`]+)`", cells[0]):
                rows[name] = cells[1:]
    return rows


# --------------------------------------------------------------------------------------------------------- completeness


def test_every_method_has_its_page():
    """With a YAML, its source, where it acts, what it costs, when to use it, when not, and its keys."""
    from holdfast.retention.registry import METHODS

    table = text_of("docs/methods.md").split("## Choose methods in a run")[0]
    names = {*METHODS, "auto"}
    assert {page.stem for page in (ROOT / "docs/methods").glob("*.md")} == names
    for name in names:
        mine = text_of(f"docs/methods/{name}.md")
        assert mine.startswith(f"# {name}\n")
        assert re.search(rf"^```yaml\n(?:[^`]*\n)?(?:  - |retention: ){name}\b", mine, re.MULTILINE), name
        assert f"<!-- keys: {name} -->" in mine
        for word in (
            "Source:",
            "**Where it acts.**",
            "**Memory.**",
            "**Time.**",
            "**Under LoRA",
            "**Use it**",
            "**Do not**",
        ):
            assert word in mine, f"{name}: {word}"
        assert f"](methods/{name}.md)" in table
        assert f"`{name}`" in text_of("docs/which_method.md"), name
    assert "<!-- keys: asft -->" in section(text_of("docs/methods/token_weighting.md"), "asft")
    assert "](methods/token_weighting.md#asft)" in table


def test_the_table_of_methods_says_which_old_data_each_needs():
    from holdfast.retention.protocol import OLD_DATA
    from holdfast.retention.registry import METHODS

    page = text_of("docs/methods.md").split("## Choose methods in a run")[0]
    [head] = re.findall(r"^\| method \|(.*)\|$", page, re.MULTILINE)
    column = [cell.strip() for cell in head.split("|")].index("old data")
    rows = re.findall(r"^\| \[`(\w+)`\]\(methods/\w+\.md\) \|(.*)\|$", page, re.MULTILINE)
    shown = {name: cells.split(" | ")[column].strip() for name, cells in rows}
    needing = {name for name, cls in METHODS.items() if OLD_DATA in cls().needs}
    assert {name for name, cell in shown.items() if cell != "no"} == needing and shown.keys() == METHODS.keys()


def test_what_a_method_declares_is_there():
    from holdfast.retention.protocol import RetentionMethod

    known = {*dir(RetentionMethod), *RetentionMethod.__annotations__}
    cells = [
        line.split("|")[1]
        for line in section(text_of("docs/extending.md"), "What a method declares").splitlines()
        if line.startswith("| `")
    ]
    assert set(re.findall(r"`(\w+)", "".join(cells))) <= known


def test_tables_of_keys_are_those_of_the_declarations():
    from holdfast.evaluation.suite import KEYS
    from holdfast.retention.presets import PRESETS
    from holdfast.retention.registry import METHODS
    from key_tables import MERGE_TABLES, with_tables

    pages = {path: path.read_text(encoding="utf-8") for path in PAGES}
    stale = [path.name for path, page in pages.items() if with_tables(page) != page]
    assert stale == [], "run: python docs/key_tables.py"
    tables = re.findall("<!-- keys: (.*?) -->", "".join(pages.values()))
    sections = ["train", "train options", "data", "on_policy", "world", "evaluation", "along", "every entry"]
    sections += ["policy", "policy entry", "suites", *MERGE_TABLES]
    sections += ["sweep", "objectives", "search", "sequence", "update", "restore"]
    sections += ["ladder", "overtraining", "residual study"]
    entries = [f"entry {kind}" for kind in KEYS]
    assert sorted(tables) == sorted([*METHODS, *PRESETS, *sections, *entries])


def test_every_own_key_is_described():
    from holdfast.runs.settings import OWN

    page = text_of("docs/configuration.md")
    for name in (s.name for s in OWN.values() if s.meta.yaml):
        assert len(section(page, name).strip()) > 100, name


def test_every_merge_method_and_parameter_is_described():
    """The generated tables: one row a method with its source, one row a parameter that names its methods."""
    from holdfast.checkpoints.methods.registry import METHODS
    from holdfast.checkpoints.policies import Policies
    from holdfast.config.declare import settings_of

    page = text_of("docs/merge_methods.md")
    assert re.findall("<!-- keys: (.*?) -->", page) == ["merge methods", "merge parameters"]
    lines = [[cell.strip() for cell in line.split(" | ")] for line in page.splitlines() if line.startswith("| `")]
    methods = {cells[0].strip("| `"): cells for cells in lines if len(cells) == 3}
    assert set(methods) == set(METHODS) and all(len(cells[2]) > 10 for cells in methods.values())
    rows = [(cells[0].strip("| `"), re.findall(r"`(\w+)`", cells[1])) for cells in lines if len(cells) == 5]
    wanted = {(setting.name, name) for name, cls in METHODS.items() for setting in settings_of(cls)}
    assert {(parameter, method) for parameter, held in rows for method in held} == wanted
    differences = text_of("docs/checkpoints_differ.md")
    for policy in settings_of(Policies):
        assert f"`--{policy.name}`" in differences
        assert all(f"`{c}`" in differences for c in policy.choices if c != "error")


def test_every_kind_of_evaluation_entry_has_its_section():
    """With the table of its keys; the settings of a suite and of `along` have theirs. Tables are those of the
    declarations, see above."""
    from holdfast.evaluation import suite

    pages = "\n".join(text_of(f"docs/{name}.md") for name in ENTRY_PAGES)
    for kind in suite.KEYS:
        title = "Tasks" if kind == "task" else f"{kind.capitalize().replace('_', ' ')} entries"
        assert f"<!-- keys: entry {kind} -->" in section(pages, title), title
    assert "<!-- keys: every entry -->" in section(pages, "Keys of every entry")
    page = text_of("docs/evaluation.md")
    assert "<!-- keys: evaluation -->" in section(page, "Settings")
    assert "<!-- keys: along -->" in section(page, "Along training")


def test_every_command_and_its_options_are_shown():
    from holdfast.cli import quickstart
    from holdfast.cli.main import COMMANDS

    listed = re.findall(r"^\| `holdfast ([\w-]+)` \|", text_of("docs/commands.md"), re.MULTILINE)
    assert set(listed) == set(COMMANDS)
    everything = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    for name in COMMANDS:
        assert f"holdfast {name}" in everything, name
    options = [f"--{setting.name}" for setting in quickstart.COMMAND.settings]
    assert [o for o in options if o not in text_of("docs/getting_started.md")] == []


def test_exit_codes_are_those_of_the_errors():
    from holdfast.errors import HoldfastError, Interrupted, NotFinite, UserError

    words = (
        f"0 done, {HoldfastError.exit_code} failed, {UserError.exit_code} the request has to change, "
        f"{NotFinite.exit_code} what was measured is NaN or infinite, "
        f"{Interrupted.exit_code} interrupted"
    )
    assert words in text_of("docs/getting_started.md")


def test_the_skill_is_short_and_its_names_exist():
    """`skills/holdfast/SKILL.md`, for coding agents; its commands and YAML are checked as those of every page."""
    import yaml

    from holdfast.cli.schema import SCHEMAS
    from holdfast.errors import HoldfastError, Interrupted, NotFinite, UserError
    from holdfast.retention.registry import METHODS
    from holdfast.runs.settings import OWN

    page = text_of("skills/holdfast/SKILL.md")
    _, front, body = page.split("---\n", 2)
    head = yaml.safe_load(front)
    assert set(head) == {"name", "description"} and head["name"] == "holdfast" and len(head["description"]) <= 1024
    assert len(page.split()) < 500
    named = set(re.findall(r"`([\w-]+)`", body))
    assert set(SCHEMAS) <= named and set(METHODS) <= named
    of_training = {"retention", "evaluation", "keep", "learn"}
    assert of_training <= named and of_training <= set(OWN)
    codes = (
        f"{HoldfastError.exit_code} failed, {UserError.exit_code} the request has to change, 3 a rule",
        f"{NotFinite.exit_code} something measured is NaN or infinite, {Interrupted.exit_code} interrupted",
    )
    assert all(code in body for code in codes)


def test_every_page_is_in_the_navigation():
    listed = re.findall(r"^ +- (?:.+: )?(\S+\.md)$", text_of("mkdocs.yml"), re.MULTILINE)
    assert [p.name for p in (ROOT / "docs").glob("*.md") if p.name not in listed] == []


def test_pages_are_short():
    """Every page is read in one sitting, and all of them in a day; what scripts write does not count."""
    from words import written_words

    words = written_words()
    assert {name: count for name, count in words.items() if count > 1_200} == {}
    assert sum(words.values()) <= 45_000


def test_the_readme_is_short():
    assert len(text_of("README.md").split()) <= 600
    assert len(text_of("CONTRIBUTING.md").split()) <= 700


def test_the_picture_is_made_of_the_quickstarts_figures():
    import runpy

    script = runpy.run_path(str(ROOT / "docs/pictures/frontier.py"))
    points = script["figures"](text_of("docs/getting_started.md"))
    assert set(points) == set(script["BESIDE"])
    for name in script["COLOURS"]:
        assert text_of(f"docs/pictures/frontier-{name}.svg") == script["drawn"](points, name), (
            "stale: python docs/pictures/frontier.py"
        )


def test_the_version_is_in_the_changes_and_in_the_citation():
    import yaml

    from holdfast import __version__

    assert f"## {__version__}" in text_of("CHANGELOG.md")
    citation = yaml.safe_load(text_of("CITATION.cff"))
    assert citation["version"] == __version__ and len(citation["references"]) == 5


def test_the_quickstart_table_has_the_quickstarts_arms(tmp_path):
    from holdfast.cli.quickstart import sweep_of
    from holdfast.studies.sweep.study import StudyConfig

    names = {
        name: f"{tmp_path}/{name}.jsonl" for name in ("code_train", "prose_train", "code_heldout", "prose_heldout")
    }
    for file in names.values():
        Path(file).touch()
    config = StudyConfig.read(sweep_of({"base": "base", **names}), check=False)
    table = (
        text_of("docs/getting_started.md")
        .split("<!-- quickstart figures -->")[1]
        .split("<!-- end of quickstart figures -->")[0]
    )
    rows = {cells[1].strip(): cells[2:4] for line in table.splitlines() if len(cells := line.split("|")) == 5}
    figures = {name: cells for name, cells in rows.items() if name and not name.startswith("-")}
    assert set(figures) == {"start", "direct fine-tuning", *(config.space.label(p) for p in config.trials())}
    assert all(re.fullmatch(r"\s*\d\.\d{3}\s*", cell) for cells in figures.values() for cell in cells)


# ------------------------------------------------------------------------------------------------------------- examples


@pytest.fixture
def place(desk: Path, model_folder: Path) -> Path:
    """A working directory with the files and folders that the examples name."""
    put_data("\n".join(re.findall(r"\b\w+\.jsonl\b", "\n".join(page.read_text(encoding="utf-8") for page in PAGES))))
    Path("run.yaml").write_text(
        "model_name_or_path: YOUR_MODEL\ndataset_name: train.jsonl\n"
        "evaluation: {keep: [mmlu, humaneval, prose.jsonl], learn: [gsm8k], allow_code_execution: true}\n"
    )
    Path("ladder.yaml").write_text("ladder: [{model: owner/base, tokens: 1.0e9}]")
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    Path("conversations.jsonl").write_text(json.dumps({"messages": turns}))
    for name in ("YOUR_MODEL", "ORIGINAL"):
        shutil.copytree(model_folder, name)
    [template] = blocks("jinja")
    Path("YOUR_MODEL/chat_template.jinja").write_text(str(template.values[0]).rstrip("\n"))
    write_method(desk)
    return desk


@pytest.mark.parametrize("content", blocks("yaml"))
def test_a_yaml_is_a_sound_configuration(content, place):
    from holdfast.runs.config import load_train_config

    Path("example.yaml").write_text(content)
    if content.startswith("ladder:") and "\ntasks:" in content:
        import yaml

        from holdfast.config.decode import decode
        from holdfast.papers.overtraining.settings import OvertrainingSettings

        asked = {**yaml.safe_load(content), "ladder": [{"model": m, "tokens": t} for m, t in (("a", 1.0), ("b", 2.0))]}
        assert decode(OvertrainingSettings, asked)[1] == []
        return
    if "supporting_losses:" in content:
        from holdfast.evaluation.compare.policy import read_policy

        assert read_policy(Path("example.yaml")).entries
        return
    if content.startswith("ladder:"):
        import yaml

        from holdfast.evaluation.ladder import parse_ladder

        assert parse_ladder(yaml.safe_load(content)["ladder"])
        return
    if "\ntuned:" in content:  # names a corpus and a suite that are not here
        import yaml

        from holdfast.config.decode import decode
        from holdfast.studies.stages.settings import StagesSettings

        assert decode(StagesSettings, yaml.safe_load(content))[1] == []
        return
    if "my_entry.py" in content:
        [code] = re.findall(r"```python\n(# my_entry.py\n.*?)```", text_of("docs/evaluation_own.md"), re.DOTALL)
        Path("my_entry.py").write_text(code)
    if "\narms:" in content and "\ntasks:" not in content:
        from holdfast.studies.sweep.study import load_study

        assert load_study("example.yaml").trials()
        return
    if "\nbudgets:" in content:
        import yaml

        from holdfast.config.decode import decode
        from holdfast.papers.ladder.settings import LadderSettings

        assert decode(LadderSettings, yaml.safe_load(content))[1] == []
        return
    if "\ncorpus:" in content:
        import yaml

        from holdfast.studies.update.plan import UpdateConfig

        config = yaml.safe_load(content)
        for name in config["corpus"]:
            (Path(name).mkdir if name.endswith("/") else Path(name).touch)()
        assert UpdateConfig.read({**config, "base": "owner/base", "instruct": "owner/instruct"}).models()
        return
    if "\ntasks:" in content:
        import yaml

        from holdfast.studies.sequence.plan import SequenceConfig

        values = yaml.safe_load(content)
        if "toy" not in values:  # whose base is made
            values["train"]["model_name_or_path"] = "YOUR_MODEL"
        assert SequenceConfig.read(values, source="example.yaml").models
        return
    config = load_train_config(["--config", "example.yaml"])
    assert config.retention or config.evaluation.entries


def commands_of(content: str) -> list[list[str]]:
    return [words for line in content.replace("\\\n", " ").splitlines() if (words := shlex.split(line, comments=True))]


@pytest.mark.parametrize("content", blocks("bash"))
def test_a_command_is_sound(content, place, capsys):
    for words in commands_of(content):
        check_command(words, capsys)


READ = ("quickstart", "fisher", "reproduce")
"""Commands whose examples are whole requests; those of the others name files that are not here."""
WORK = ("merge", "inspect")
"""Commands that work on checkpoints, and `residual extract|apply`."""


def check_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    from holdfast.cli.main import main

    program, *rest = words
    if program == "export" or (program == "pip" and rest[0] == "install"):
        assert "HOLDFAST_STORAGE" in words[1] or re.search(r"^postgres = ", text_of("pyproject.toml"), re.MULTILINE)
        return
    if program == "make":
        assert all(re.search(rf"^{target}:", text_of("Makefile"), re.MULTILINE) for target in rest)
        return
    if words == [".", ".venv/bin/activate"]:
        return
    if program == "python":
        script = text_of(rest[0])
        assert all(f'"{word}"' in script for word in rest if word.startswith("--"))
        return
    assert program == "holdfast", f"no check for {program!r}: add one"
    name, options = rest[0], rest[1:]
    study = name == "sweep" and options[0] == "--config" and Path(options[1]).is_file()
    if "--help" in rest or rest[-1] == "--list":
        assert main(rest) == 0
    elif name in ("train", "check") or study:
        model = find_option(rest[1:], "model_name_or_path")
        if model is not None and not Path(model).exists():  # of the hub
            build_model().save_pretrained(model)
            build_tokenizer().save_pretrained(model)
        dry = {"check": ["--quick"], "train": ["--dry_run", "--quick"]}.get(name, ["--dry_run"])
        assert main([*(w for w in rest if w != "--dry_run"), *dry]) == 0, capsys.readouterr().err
    elif rest[:2] == ["study", "run"]:
        check_study(ROOT / rest[2], rest[3:])
    elif name == "report":
        RunFolder(options[0]).write(RunRecord(name="run"))
        command_of(words)[0].read(options)
    else:
        command, options = command_of(words)
        file = find_option(options, "config")
        settings = {s.name: s for s in command.settings}
        here = file is None or Path(file).is_file()
        given = command.given(options) if here else parse_words(options, settings)
        given.check(coerce_all(settings, given.values)[1])
        if name in READ:
            command.read(options)
        if name in WORK or command.name in ("holdfast residual extract", "holdfast residual apply"):
            check_checkpoint_command(rest, given.values, capsys)


def check_study(file: Path, options: list[str]) -> None:
    """The file is there, and the options are those of its kind of study."""
    from holdfast.cli.study import STUDIES, kind_of_file

    command = STUDIES[kind_of_file(file)].command
    settings = {setting.name: setting for setting in command.settings}
    given = parse_words(options, settings)
    given.check(coerce_all(settings, given.values)[1])


def check_checkpoint_command(words: list[str], given: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Puts tiny checkpoints where the command expects some, and runs it; with `--dry_run` where it would write one."""
    from holdfast.cli.main import main

    for option in (
        *("models", "model", "checkpoints", "base", "old_base", "instruct", "adapter_base"),
        *("fisher", "residual"),
    ):
        value = given.get(option, [])
        for folder in [value] if isinstance(value, str) else value:
            put_checkpoint(Path(folder), option)
    dry = [] if words[0] == "inspect" else ["--dry_run", "--overwrite"]
    assert main([*words, *dry]) == 0, capsys.readouterr().err


def put_checkpoint(folder: Path, option: str) -> None:
    """A tiny model in a folder that is not there yet, or what else the option names: a residual, or a Fisher diagonal,
    which is not negative."""
    from tiny import build_model

    if not folder.exists():
        model = build_model()
        if option == "fisher":
            for parameter in model.parameters():
                parameter.data.square_()
        model.save_pretrained(folder)
        if option in ("residual", "fisher"):
            (folder / "model.safetensors").rename(folder / f"{option}.safetensors")


def test_commands_within_the_text_name_what_exists():
    """`python FILE` and `make TARGET` in running text."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert [f for f in re.findall(r"`python (\S+)`?", text) if not (ROOT / f.rstrip("`")).is_file()] == []
        assert [
            t
            for t in re.findall(r"`make (\w[\w-]*)`", text)
            if not re.search(rf"^{t}:", text_of("Makefile"), re.MULTILINE)
        ] == []


@pytest.fixture
def scene(model_folder, tokenizer, tmp_path, monkeypatch) -> dict[str, Any]:
    """The names that the Python examples take as given: a model, its tokenizer, data, and finished runs."""
    from rich.console import Console
    from transformers import AutoModelForCausalLM, DataCollatorForSeq2Seq, TrainingArguments

    from holdfast.runs.config import train_config
    from holdfast.runs.run import train
    from holdfast.support.files import write_jsonl
    from reports.synthetic_studies import finished_frontier
    from tiny import SENTENCES

    monkeypatch.chdir(tmp_path)
    for name in ("prose", "code", "held_out", "train"):
        write_jsonl(f"{name}.jsonl", [{"text": f"{i} {name}: {s}"} for i in range(3) for s in SENTENCES])
    suites = {"keep": [{"perplexity": "prose.jsonl"}], "learn": [{"perplexity": "code.jsonl"}]}
    least = {
        "model_name_or_path": str(model_folder),
        "dataset_name": "train.jsonl",
        "max_steps": 2,
        "learning_rate": 1e-2,
        "use_cpu": True,
    }
    for name, methods in (("direct", None), ("la-1", "label_annealing")):
        config = train_config(
            least, output_dir=f"runs/{name}", retention=methods, evaluation=suites, max_length=64, save_strategy="no"
        )
        train(config, console=Console(quiet=True))
    finished_frontier().write("runs/my-study")
    for name in ("base-model", "math-model", "code-model"):
        put_checkpoint(Path(name), "model")
    rows = [{"input_ids": ids, "labels": ids} for ids in (tokenizer(s)["input_ids"] for s in SENTENCES)]
    return {
        "model": AutoModelForCausalLM.from_pretrained(model_folder),
        "start": AutoModelForCausalLM.from_pretrained(model_folder),
        "tuned": AutoModelForCausalLM.from_pretrained("runs/direct"),
        "tokenizer": tokenizer,
        "collator": DataCollatorForSeq2Seq(tokenizer),
        "rows": rows,
        "pairs": pairs().select(range(8)),
        "prompts": pairs().select_columns(["prompt"]),
        "args": TrainingArguments(
            "out",
            max_steps=4,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            learning_rate=1e-2,
        ),
    }


def test_the_python_examples_run(scene, capsys, monkeypatch, tmp_path):
    from holdfast.papers.worlds import world

    real, small = world.WorldRecipe, dataclasses.asdict(world.quick_recipe())
    monkeypatch.setattr(
        world, "WorldRecipe", lambda **changes: real(**{**small, **changes})
    )  # the page's own takes minutes
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    examples = blocks("python")
    for example in examples:
        exec(compile(example.values[0], str(example.id), "exec"), scene)
    trainer = scene["trainer"]
    assert trainer.state.global_step == 4
    assert [m.name for m in trainer.retain] == ["label_annealing", "sfa"]
    assert "learn held_out nats_per_token" in capsys.readouterr().out
    assert len(examples) >= 3


@pytest.mark.parametrize("content", blocks("python"))
def test_python_examples_import_public_names(content):
    import holdfast

    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.ImportFrom) and node.module == "holdfast":
            assert {alias.name for alias in node.names} <= set(holdfast.__all__)


def test_names_after_the_package_in_the_text_exist():
    """`holdfast.something` in backticks is a public name or a module."""
    import holdfast

    for page in PAGES:
        for name in re.findall(r"`holdfast\.([\w.]+)", page.read_text(encoding="utf-8")):
            first = name.partition(".")[0]
            module = ROOT / "src/holdfast" / first
            assert first in holdfast.__all__ or module.is_dir() or module.with_suffix(".py").is_file(), (
                f"{page.name}: holdfast.{name}"
            )


# ---------------------------------------------------------------------------------------------------------------- links


def anchors(text: str) -> set[str]:
    """Anchors as GitHub makes them of headings."""
    titles = re.findall(
        r"^#{1,6} (.+)$", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("http"):
            continue
        file, _, anchor = target.partition("#")
        there = (page.parent / file).resolve() if file else page
        assert there.exists(), f"{page.name}: {target}"
        if anchor:
            assert anchor in anchors(there.read_text(encoding="utf-8")), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_pages_are_plain(page):
    """Short lines, one title, no left-overs."""
    text = page.read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert len(re.findall(r"^# ", prose, re.MULTILINE)) == 1
    assert max(len(line) for line in text.splitlines() if not line.startswith("|")) <= 160
    assert not re.search(r"\b(TODO|FIXME|XXX|lorem)\b", text)
    assert text.count("```") % 2 == 0


def test_every_suite_and_benchmark_of_ours_is_described():
    from holdfast.evaluation.shipped import shipped_suites
    from holdfast.evaluation.tasks.tasks import own_benchmarks

    page = text_of("docs/benchmarks_and_suites.md")
    assert set(shipped_suites()) <= set(table_rows(page))
    assert set(own_benchmarks()) == set(table_rows(section(page, "Benchmarks that the harness lacks")))


def test_every_option_of_measuring_is_described():
    pages = "\n".join(
        text_of(f"docs/{name}.md") for name in ("evaluation", *ENTRY_PAGES, "benchmarks_and_suites", *COMPARISON_PAGES)
    )
    commands = [import_module(f"holdfast.cli.{name}").COMMAND for name in ("evaluate", "compare")]
    missing = [
        f"{command.name} --{s.name}"
        for command in commands
        for s in command.settings
        if f"--{s.name}" not in pages and not s.meta.positional
    ]
    assert missing == []
