"""A paper again, from its recipes to its claims: every study is run, or found finished, and each claim is held against
what came out.

    output_dir/
      math/ code/ alignment_tax/ niche_knowledge/    the studies, each with its report.html
      claims.json                                    every claim: the paper's figure, ours, the verdict
      claims.html                                    the same as a page

Small twins (`recipes/*-tiny.yaml`) run offline on two CPU cores in about half an hour. `full` runs the recipes of the
paper's own size, for which the model and the data have to be there; what is missing is said before anything starts.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigError, DataError, HoldfastError, Interrupted, did_you_mean
from holdfast.records.study import STUDY_FILE, StudyRecord, read_study
from holdfast.studies.claims import RECIPES, Claim, check_claims
from holdfast.support.environment import hardware, now, say, versions
from holdfast.support.files import to_jsonable, write_json

if TYPE_CHECKING:
    from holdfast.studies.tradeoff.study import StudyConfig

PAPER = "Memory Retaining Finetuning via Distillation (label annealing)"
CLAIMS_FILE = "claims.json"
PAGE = "claims.html"
QUICK_STEPS = 4
QUICK_DOCUMENTS = 12


def recipe_file(recipe: str, *, full: bool = False) -> Path:
    """The study file of a recipe, as it comes with the package; `configs/label_annealing/` shows the same files.

    Args:
        recipe: one of `holdfast.studies.claims.RECIPES`.
        full: the paper's own size instead of the small twin.

    Raises:
        ConfigError: no such recipe.
    """
    if recipe not in RECIPES:
        raise ConfigError(
            f"recipes: expected some of {', '.join(RECIPES)}, got '{recipe}'.{did_you_mean(recipe, RECIPES)}"
        )
    return Path(__file__).resolve().parent / "recipes" / (f"{recipe}.yaml" if full else f"{recipe}-tiny.yaml")


def reproduce(
    *,
    recipes: Sequence[str] = RECIPES,
    full: bool = False,
    quick: bool = False,
    workers: int | None = None,
    output_dir: str | os.PathLike[str] = "reproduce-label-annealing",
    console: Any = None,
) -> list[Claim]:
    """Runs the recipes' studies, or continues them, and checks the claims about them.

    Args:
        recipes: which of `RECIPES`; claims about the others are left out.
        full: the paper's own sizes.
        quick: studies of a minute that only show that everything works; not with `full`.
        workers: trials at a time; None: as the study or the machine says.
        output_dir: gets a folder a study, claims.json and claims.html.
        console: a `rich.console.Console`; None: a new one on standard output.

    Returns:
        The claims, as in claims.json.

    Raises:
        ConfigError: wrong recipes or options, a model or data that is missing (all of them at once), or a folder with
            other studies.
        Interrupted: Ctrl-C; the same call continues. The claims are written as far as they can be told.
        HoldfastError: a study failed, after the others ended and the claims were written.
    """
    from rich.console import Console

    console = console or Console()
    out = Path(output_dir)
    chosen = list(dict.fromkeys(recipes))
    problems = [
        f"expected some of {', '.join(RECIPES)}, got '{r}'.{did_you_mean(r, RECIPES)}"
        for r in chosen
        if r not in RECIPES
    ]
    if not chosen:
        problems.append(f"expected at least one of {', '.join(RECIPES)}, got none")
    if full and quick:
        problems.append("quick and full go ill together: quick only shows that everything works")
    if problems:
        raise ConfigError([f"recipes: {p}" if "expected" in p else p for p in problems])
    if full:
        _refuse_missing(chosen)
    configs = {recipe: _config(recipe, out, full=full, quick=quick, console=console) for recipe in chosen}
    records: dict[str, StudyRecord | None] = {recipe: _on_disk(out / recipe) for recipe in chosen}
    failures: list[str] = []
    try:
        for number, (recipe, config) in enumerate(configs.items(), 1):
            record = records[recipe]
            if record is not None and record.status == "finished" and not config.differences(record.config):
                say(console, f"{number} of {len(chosen)}: {recipe} is finished; nothing is run again.")
                continue
            say(console, f"{number} of {len(chosen)}: {recipe}")
            try:
                records[recipe] = _run(config, console, workers)
            except (ConfigError, Interrupted):
                raise
            except HoldfastError as error:
                failures.append(f"{recipe}: {error}")
                records[recipe] = _on_disk(out / recipe)
                say(console, f"{recipe} failed; the others go on. {str(error).splitlines()[0]}")
    except (Interrupted, KeyboardInterrupt):
        if any(records.values()):
            _write(out, {r: _on_disk(out / r) for r in chosen}, full=full, quick=quick)
        raise
    claims = _write(out, records, full=full, quick=quick)
    print_claims(claims, console)
    say(console, f"\nPage: {out / PAGE}")
    if failures:
        raise HoldfastError(
            "\n".join(
                [f"{len(failures)} of {len(chosen)} studies failed:", *failures, "The same command tries them again."]
            )
        )
    return claims


def print_claims(claims: Sequence[Claim], console: Any) -> None:
    """A table of claims: the paper's figure beside ours, and the verdict."""
    from rich.table import Table
    from rich.text import Text

    from holdfast.reports.claims_report import figure_line

    table = Table(box=None, pad_edge=False, padding=(0, 2), header_style="bold")
    for title in ("", "claim", "paper", "here", "verdict"):
        table.add_column(title, overflow="fold", no_wrap=title in ("", "verdict"))
    colours = {"holds": "green", "does not hold": "red", "not enough data": "yellow"}
    for claim in claims:
        here = "\n".join(figure_line(dataclasses.asdict(figure)) for figure in claim.figures[:2])
        table.add_row(
            claim.number,
            Text(f"{claim.text} ({claim.recipe})"),
            Text(claim.paper),
            Text(here or claim.reason),
            Text(claim.verdict, style=colours[claim.verdict]),
        )
    console.print(table)


# -------------------------------------------------------------------------------------------------------------- studies


def _run(config: StudyConfig, console: Any, workers: int | None) -> StudyRecord:
    from holdfast.studies.tradeoff import session

    return session.run_study(config, console=console, workers=workers)


def _config(recipe: str, out: Path, *, full: bool, quick: bool, console: Any) -> StudyConfig:
    from holdfast.studies.tradeoff.study import load_study

    path = recipe_file(recipe, full=full)
    folder = str(out / recipe)
    return _quick_config(path, recipe, folder, console) if quick else load_study(path, {"output_dir": folder})


def _quick_config(path: Path, recipe: str, folder: str, console: Any) -> StudyConfig:
    """The study with a base of seconds, a few steps, few documents, one seed, and the first two alternatives."""
    import yaml

    from holdfast.studies.tradeoff.study import fill, study_config
    from holdfast.worlds.small_settings import make_setting

    values = fill(
        yaml.safe_load(path.read_text(encoding="utf-8")),
        make_setting(recipe, Path(folder) / "data", quick=True, console=console),
    )
    values.pop("small", None)
    train = copy.deepcopy(values["train"])
    train["max_steps"] = QUICK_STEPS
    for entries in train["evaluation"].values():
        for entry in entries if isinstance(entries, list) else []:
            entry["max_documents"] = QUICK_DOCUMENTS
    vary = {"retention": [_first_of(alternative) for alternative in values["vary"]["retention"]]}
    return study_config({**values, "train": train, "vary": vary, "seeds": [0], "output_dir": folder}, source=str(path))


def _first_of(alternative: Any) -> Any:
    """An alternative with the first value of each list."""
    if isinstance(alternative, list):
        return [_first_of(method) for method in alternative]
    return {
        name: {k: v[0] if isinstance(v, list) else v for k, v in (settings or {}).items()}
        for name, settings in alternative.items()
    }


def _on_disk(folder: Path) -> StudyRecord | None:
    """The study that lies in a folder; None where none does, or it cannot be read."""
    if not (folder / STUDY_FILE).is_file():
        return None
    try:
        return read_study(folder)
    except (DataError, KeyError, TypeError, ValueError):
        return None


def _write(out: Path, records: Mapping[str, StudyRecord | None], *, full: bool, quick: bool) -> list[Claim]:
    from holdfast.reports.claims_report import write_claims_report

    claims = check_claims(records)
    studies = {
        recipe: {
            "status": "not run" if record is None else record.status,
            "report": f"{recipe}/report.html" if (out / recipe / "report.html").is_file() else None,
            "seeds": [] if record is None else record.seeds,
            "trials": 0 if record is None else sum(t.state == "complete" for t in record.trials),
            "target": "" if record is None else f"{record.target.label} ({record.target.unit})",
            "source": "" if record is None else f"{record.source.label} ({record.source.unit})",
        }
        for recipe, record in records.items()
    }
    found = {
        "paper": PAPER,
        "size": "full" if full else "quick" if quick else "small twins",
        "created": now(),
        "studies": studies,
        "claims": [dataclasses.asdict(claim) for claim in claims],
        "versions": versions(),
        "hardware": hardware(),
    }
    write_json(out / CLAIMS_FILE, found)
    write_claims_report(to_jsonable(found), out / PAGE)
    return claims


# ----------------------------------------------------------------------------------------- what the full recipes need


def _refuse_missing(recipes: Sequence[str]) -> None:
    problems = [problem for recipe in recipes for problem in missing(recipe_file(recipe, full=True))]
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))


def missing(path: Path) -> list[str]:
    """What a study file names that is not on this machine, a sentence each, with the command that gets it.

    Looked at: the model (a folder, or a hub id in the cache), the training data, replayed data and held-out files.
    Benchmarks that the evaluation harness fetches by itself are not.

    Args:
        path: a study's YAML, whose head comment holds the commands that prepare its data.
    """
    import yaml

    from holdfast.models import model_folder

    text = path.read_text(encoding="utf-8")
    values = yaml.safe_load(text)
    train = values.get("train") or {}
    if isinstance(train, str):
        beside = path.parent / train
        train = yaml.safe_load((beside if beside.is_file() else Path(train)).read_text(encoding="utf-8"))
    problems = []
    model = train.get("model_name_or_path")
    if model and model_folder(str(model), str(train.get("model_revision") or "main")) is None:
        problems.append(
            f"{path.stem}: the model {model} is neither a folder nor in the hub's cache. Get it with 'hf download "
            f"{shlex.quote(str(model))}' (some "
            "models ask for their licence to be accepted first)."
        )
    commands = _commands(text)
    for file in dict.fromkeys(_files(train) + _files(values.get("vary") or {})):
        if not Path(file).expanduser().exists():
            made = next((c for c in commands if file in c), None)
            how = f"Make it with '{made}'." if made else f"The head of {path.name} says how to prepare it."
            problems.append(f"{path.stem}: {file} is missing. {how}")
    return problems


def _commands(text: str) -> list[str]:
    """The commands of a file's head comment, lines that end with a backslash joined."""
    head = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        head.append(line.lstrip("#").strip())
    joined = "\n".join(head).replace("\\\n", " ").splitlines()
    return [" ".join(line.split()) for line in joined if line.startswith("holdfast ")]


_FILE_KEYS = (
    "dataset_name",
    "data",
    "fewshot_data",
    "perplexity",
    "memorisation",
    "classes",
    "choices",
    "instructions",
    "questions",
)
_FILE_ENDS = (".jsonl", ".json", ".parquet", ".csv", ".txt", ".arrow")


def _files(value: Any, key: str = "") -> list[str]:
    """Local data files named anywhere in a configuration."""
    if isinstance(value, Mapping):
        return [file for k, v in value.items() for file in _files(v, str(k))]
    if isinstance(value, list):
        return [file for item in value for file in _files(item, key)]
    return (
        [value]
        if isinstance(value, str) and (key in _FILE_KEYS or key in ("source", "target")) and value.endswith(_FILE_ENDS)
        else []
    )
