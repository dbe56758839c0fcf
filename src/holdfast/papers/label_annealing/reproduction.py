"""Memory Retaining Finetuning: its recipes run as studies, and its claims held against what came out
(`holdfast.papers.label_annealing.claims`).

Small twins (`recipes/*-tiny.yaml`) run offline on two CPU cores: in whole (`medium`), with what `claims/sizes.yaml`
leaves of them (`small`), or in seconds (`quick`). `full` runs the recipes of the paper's own size, for which the model
and the data have to be there; what is missing is listed before anything starts.
"""

from __future__ import annotations

import copy
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigError, did_you_mean
from holdfast.papers.claims import reproduction
from holdfast.papers.claims.claim import Claim
from holdfast.papers.claims.registry import SMALL
from holdfast.papers.label_annealing.claims import RECIPES, check_claims
from holdfast.papers.label_annealing.paper import PAPER
from holdfast.records.study import StudyRecord, read_study
from holdfast.support.paths import expanded

if TYPE_CHECKING:
    from holdfast.studies.sweep.study import StudyConfig

QUICK_STEPS = 4
QUICK_DOCUMENTS = 12


def recipe_file(recipe: str, *, full: bool = False) -> Path:
    """The study file of a recipe, as it comes with the package; `configs/label_annealing/` shows the same files.

    Args:
        recipe: one of `holdfast.papers.label_annealing.claims.RECIPES`.
        full: the paper's own size instead of the small twin.

    Raises:
        ConfigError: no such recipe.
    """
    if recipe not in RECIPES:
        raise ConfigError(
            f"recipes: expected some of {', '.join(RECIPES)}, got '{recipe}'.{did_you_mean(recipe, RECIPES)}"
        )
    return Path(__file__).resolve().parents[1] / "recipes" / (f"{recipe}.yaml" if full else f"{recipe}-tiny.yaml")


def reproduce(
    *,
    recipes: Sequence[str] = RECIPES,
    size: str = SMALL,
    workers: int | None = None,
    output_dir: str | os.PathLike[str] = "reproduce-label-annealing",
    console: Any = None,
) -> list[Claim]:
    """Runs the recipes' studies, or continues them, and checks the claims about them.

    Args:
        recipes: which of `RECIPES`; claims about the others are left out.
        size: one of `papers.SIZES`.
        workers: trials at a time; None: as the study or the machine says.
        output_dir: gets a folder a study, claims.json and claims.html.
        console: a `rich.console.Console`; None: a new one on standard output.

    Returns:
        The claims, as in claims.json.

    Raises:
        ConfigError: wrong recipes or size, a model or data that is missing (all of them at once), or a folder with
            other studies.
        Interrupted: Ctrl-C; the same call continues. The claims are written as far as they can be told.
        HoldfastError: a study failed, after the others ended and the claims were written.
    """
    from holdfast.studies.sweep import session

    chosen = list(dict.fromkeys(recipes))
    problems = []
    for recipe in chosen:
        if recipe not in RECIPES:
            hint = did_you_mean(recipe, RECIPES)
            problems.append(f"expected some of {', '.join(RECIPES)}, got '{recipe}'.{hint}")
    if not chosen:
        problems.append(f"expected at least one of {', '.join(RECIPES)}, got none")
    if problems:
        raise ConfigError([f"recipes: {p}" for p in problems])
    if reproduction.known_size(size) == "full":
        for recipe in chosen:
            problems += missing(recipe_file(recipe, full=True))
        if problems:
            raise ConfigError(list(dict.fromkeys(problems)))
    out = Path(output_dir)
    studies = []
    for name in chosen:
        config = _config(name, out, size=size, console=console)
        studies.append(reproduction.Recipe(name=name, settings=config, run=session.run_study))
    return CLAIMS.run_and_judge(studies, size=size, output_dir=out, workers=workers, console=console)


# -------------------------------------------------------------------------------------------------------------- studies


def _summary(record: StudyRecord | None) -> dict[str, Any]:
    if record is None:
        return reproduction.study_facts([], [], learn="", keep="")
    learn = f"{record.learn.label} ({record.learn.unit})"
    if record.validation is not None:
        learn += f"; direct fine-tuning's rate and the trials are chosen by {record.validation.label}"
    keep = f"{record.keep.label} ({record.keep.unit})"
    return reproduction.study_facts(record.seeds, record.trials, learn=learn, keep=keep)


CLAIMS = reproduction.PaperClaims(paper=PAPER, read=read_study, summary=_summary, check=check_claims)
judge = CLAIMS.judge


def _config(recipe: str, out: Path, *, size: str, console: Any) -> StudyConfig:
    from holdfast.studies.sweep.study import load_study

    path, folder = recipe_file(recipe, full=size == "full"), str(out / recipe)
    if size == "quick":
        return _quick_config(path, recipe, folder, console)
    if size == SMALL:
        return _changed_config(path, reproduction.size_changes()[recipe][SMALL], folder)
    return load_study(path, {"output_dir": folder})


def _changed_config(path: Path, changes: Mapping[str, Any], folder: str) -> StudyConfig:
    import yaml

    from holdfast.studies.sweep.study import study_config

    values = reproduction.changed(yaml.safe_load(path.read_text(encoding="utf-8")), changes)
    return study_config({**values, "output_dir": folder}, source=str(path))


def _quick_config(path: Path, recipe: str, folder: str, console: Any) -> StudyConfig:
    """The study with a base of seconds, a few steps, few documents, one seed, and the first two alternatives."""
    import yaml

    from holdfast.papers.worlds.toy_settings import make_setting
    from holdfast.studies.engine.toy import fill
    from holdfast.studies.sweep.study import study_config

    values = fill(
        yaml.safe_load(path.read_text(encoding="utf-8")),
        make_setting(recipe, Path(folder) / "data", quick=True, console=console),
    )
    values.pop("toy", None)
    train = copy.deepcopy(values["train"])
    train["max_steps"] = QUICK_STEPS
    for entries in train["evaluation"].values():
        for entry in entries if isinstance(entries, list) else []:
            entry["max_documents"] = QUICK_DOCUMENTS
    arms = [_first_of(arm) for arm in values["arms"]]
    return study_config({**values, "train": train, "arms": arms, "seeds": [0], "output_dir": folder}, source=str(path))


def _first_of(arm: Any) -> Any:
    """An arm with the first value of each list."""
    if isinstance(arm, list):
        return [_first_of(method) for method in arm]
    first = dict(arm)
    for name, settings in arm.items():
        if isinstance(settings, Mapping):
            first[name] = values = dict(settings)
            for key, value in settings.items():
                if isinstance(value, list):
                    values[key] = value[0]
    return first


# ----------------------------------------------------------------------------------------- what the full recipes need


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
    for file in dict.fromkeys(_files(train) + _files(values.get("arms") or [])):
        if not expanded(file).exists():
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
    return [" ".join(line.split()) for line in joined if line.startswith(("holdfast ", "python "))]


_FILE_KEYS = (
    "dataset_name",
    "data",
    "fewshot_data",
    "perplexity",
    "memorisation",
    "classes",
    "choices",
    "lettered",
    "instructions",
    "win_rate",
    "reference",
    "questions",
)
_FILE_ENDS = (".jsonl", ".json", ".parquet", ".csv", ".txt", ".arrow")


def _files(value: Any, key: str = "") -> list[str]:
    """Local data files named anywhere in a configuration."""
    files: list[str] = []
    if isinstance(value, Mapping):
        for name, setting in value.items():
            files += _files(setting, str(name))
    elif isinstance(value, list):
        for item in value:
            files += _files(item, key)
    elif isinstance(value, str) and (key in _FILE_KEYS or key in ("keep", "learn")) and value.endswith(_FILE_ENDS):
        files.append(value)
    return files
