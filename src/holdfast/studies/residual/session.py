"""`holdfast update`: the whole job, from new text to a model that is current and still follows instructions.

1. models and requests are checked: same architecture and vocabulary, and that the instruct model looks like a child of
the base;
2. the new text is read, a part held out, budgets counted (`new_text`);
3. the base is continued on it, and with `continued_instruct` the instruct model too, to see what that costs (`making`);
4. the residual is added in one pass over the three checkpoints;
5. base, instruct, continued models and result are measured alike, held against each other in pairs, and reported.

Every step leaves its outcome in the folder: the same command goes on where it stopped and does nothing twice.
Source: paper 004.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigError, HoldfastError, Interrupted, ModelError, RunFolderError, ShapeError
from holdfast.records.residual import BASE, RECORD_FILE, ResidualRecord, StudiedModel, read_update, write_update
from holdfast.studies.residual.making import Workshop, drop_weights
from holdfast.studies.residual.new_text import NewText, new_text
from holdfast.studies.residual.outcome import choose_scale, pairs_of, with_choice
from holdfast.studies.residual.plan import (
    HELD_OUT_DOCUMENTS,
    NEW_TEXT,
    Family,
    ResidualConfig,
    is_continued,
    training_settings,
)
from holdfast.support.environment import (
    hardware,
    lock_folder,
    now,
    quiet_libraries,
    say,
    shown_name,
    terminated_is_interrupted,
    versions,
)
from holdfast.support.files import to_jsonable

if TYPE_CHECKING:
    from holdfast.evaluation.entries import EvaluationPlan

PAGE = "report.html"


def update(config: ResidualConfig, *, console: Any = None) -> ResidualRecord:
    """Does the whole job, or continues it.

    Args:
        config: see `plan.update_config`.
        console: a `rich.console.Console` for progress; None: a new one on standard output.

    Returns:
        The record; `record.result` names the updated model.

    Raises:
        ConfigError, ModelError, ShapeError, DataError: something in the request has to change; before anything is
        trained.
        RunFolderError: the folder holds something else, or an update with another configuration (what differs).
        Interrupted: Ctrl-C or SIGTERM; the same command continues.
    """
    from rich.console import Console

    console = console or Console()
    out = config.output_dir
    record = open_record(config, out)
    with lock_folder(out), quiet_libraries(), terminated_is_interrupted():
        write_update(out, record)
        try:
            _update(config, record, out, console)
        except (Interrupted, KeyboardInterrupt):
            end(record, out, "interrupted")
            raise Interrupted(f"Interrupted; what is done stays in {out}. The same command continues.") from None
        except BaseException as error:
            record.notes = [*dict.fromkeys([*record.notes, f"Failed: {error}"])]
            end(record, out, "failed")
            raise
    return record


def _update(config: ResidualConfig, record: ResidualRecord, out: Path, console: Any) -> None:
    workshop = open_workshop(config, record, out, console)
    models = {m.name: m for m in config.models()}
    record.models = list(models.values())
    write_update(out, record)
    for number, model in enumerate(list(models.values()), 1):
        say(console, f"{number} of {len(models)}: {model.label}")
        done = finished(workshop, model)
        models[model.name] = done
        record.models = list(models.values())
        write_update(out, record)
    results = [m for m in record.models if is_continued(m) and m.residual is not None]
    chosen = results[0]
    confidence = workshop.plan.confidence
    if config.chooses:
        record.scale = choose_scale(results, _continued_base(record.models), out, config, confidence=confidence)
        chosen = next(m for m in results if m.scale == record.scale.chosen)
        say(console, f"Scale {record.scale.chosen:g}: {record.scale.reason}.")
        for other in results:
            if other.name != chosen.name:
                drop_weights(out, other)
    record.result = chosen.name
    compared = [m for m in record.models if m not in results or m is chosen]
    record.pairs = pairs_of(compared, out, confidence=confidence)
    if config.keep != "all":
        for model in record.models:
            if is_continued(model) and (model.name != chosen.name or config.keep == "none"):
                drop_weights(out, model)
    record.finished = now()
    end(record, out, "finished")


def _continued_base(models: list[StudiedModel]) -> StudiedModel:
    return next(m for m in models if m.start == BASE and is_continued(m) and m.residual is None)


def finished(workshop: Workshop, model: StudiedModel) -> StudiedModel:
    """A model made and measured."""
    return workshop.measure(workshop.make(model))


# ------------------------------------------------------------------------------------------------------- before it runs


def open_record(config: ResidualConfig, out: Path) -> ResidualRecord:
    """The record in the folder, or a new one.

    Raises:
        RunFolderError: the folder holds something else, or another configuration was begun in it.
    """
    new = ResidualRecord(name=config.name, kind=config.kind, created=now(), config=config.resolved)
    record = new
    if (out / RECORD_FILE).is_file():
        record = read_update(out)
        differences = config.differences(record.config)
        if differences and not any((out / place).exists() for place in ("runs", "models", "evaluations")):
            record = new  # it failed before anything was made: a corrected request may take its place
        elif differences:
            listed = "\n".join(f"  - {d}" for d in differences)
            raise RunFolderError(
                f"{out} was begun with another configuration:\n{listed}\nPut the old values back to continue it, or "
                f"choose another output_dir."
            )
    else:
        if out.is_dir() and any(not p.name.startswith(".") for p in out.iterdir()):
            raise RunFolderError(
                f"{out} is not empty and holds no update. Expected a new or empty output_dir, so that nothing of "
                f"yours is overwritten."
            )
    record.families = [f.name for f in config.families]
    record.status, record.finished, record.notes = "running", None, []
    record.versions, record.hardware = versions(), hardware()
    return record


def open_workshop(config: ResidualConfig, record: ResidualRecord, out: Path, console: Any) -> Workshop:
    """Everything that is needed to make models: checked, the new text read, the plan complete. Fills in the record.

    Raises:
        ConfigError, ModelError, ShapeError, DataError: what has to change.
    """
    notes, record.ancestry = check_models(config)
    record.notes += notes
    for note in notes:
        say(console, note)
    check_measuring(config)
    text: NewText | None = None
    if config.continued:
        from holdfast.models import load_tokenizer

        tokenizer = load_tokenizer(config.family(config.continued[0]).base)
        text = new_text(config, tokenizer, out / "corpus")
        record.corpus = text.facts
        record.notes += text.notes
        facts = text.facts
        say(
            console,
            f"New text: {facts['documents']:,} documents, {facts['tokens']:,} tokens; {facts['held_out']:,} documents "
            f"held out.",
        )
        for note in text.notes:
            say(console, note)
    plan = whole_plan(config, text)
    if text is not None:
        record.cost = planned_cost(config, text)
        hours = ", ".join(f"{gpu} {hours:.3g} h" for gpu, hours in record.cost.get("gpu_hours", {}).items())
        if hours and record.cost["flops"] > 1e15:  # of a toy it says nothing
            say(
                console,
                f"To train: {record.cost['flops']:.3g} operations ({hours} at {100 * record.cost['utilisation']:.0f} "
                f"% of the peak).",
            )
    record.notes = list(dict.fromkeys(record.notes))
    return Workshop(config=config, out=out, texts=text.files if text else {}, plan=plan, console=console)


def planned_cost(config: ResidualConfig, text: NewText) -> dict[str, Any]:
    """What the continued models will take: operations each and in all, and hours on named GPUs."""
    from holdfast.runs.config import train_config
    from holdfast.runs.cost.estimate import estimate

    models: dict[str, Any] = {}
    hours: dict[str, float] = {}
    total, utilisation = 0.0, 0.0
    for model in config.models():
        if not is_continued(model) or model.residual is not None:
            continue
        family = config.family(model.family)
        start = family.base if model.start == BASE else family.instruct
        data = text.files[model.budget]
        settings = training_settings(config, start, config.output_dir / "runs" / model.name, data, seed=model.seed)
        try:
            found = estimate(train_config(settings), lengths=text.lengths[model.budget])
        except HoldfastError as error:  # a kind of training that is not counted stops nothing
            return {"note": f"No estimate: {error}"}
        models[model.name] = {"flops": found.flops.total}
        total += found.flops.total
        utilisation = found.utilisation
        for gpu in found.gpus:
            hours[gpu.gpu.name] = hours.get(gpu.gpu.name, 0.0) + gpu.gpu_hours
    return {"flops": total, "models": models, "gpu_hours": hours, "utilisation": utilisation} if models else {}


def check_models(config: ResidualConfig) -> tuple[list[str], list[dict[str, Any]]]:
    """Whether every residual can be added to what it will be added to, and whether the instruct models look like
    children of their bases.

    Returns:
        Sentences for people (a strange parent is a warning with its evidence), and the evidence a family.

    Raises:
        ModelError, ShapeError: models that do not fit together; all of them in one message.
    """
    from holdfast.checkpoints.residual import prepare_transfer

    problems: list[str] = []
    notes: list[str] = []
    shapes = False
    evidence = []
    targets: list[tuple[Family, str]] = [(f, f.base) for f in config.families]
    if config.siblings:
        targets += [(f, g.base) for f in config.families for g in config.families if f.name != g.name]
    targets += [(f, path) for path in config.derived.values() for f in config.families]
    for family, onto in targets:
        try:
            _check_vocabulary(family)
            prepared = prepare_transfer(family.instruct, family.base, onto, adapter_base=None)
        except (ModelError, ShapeError, ConfigError) as error:
            problems.append(str(error))
            shapes = shapes or isinstance(error, ShapeError)
            continue
        notes += prepared.plan.notes
        if onto == family.base:
            total = next((d for d in prepared.plan.ancestry if d.layer == "total"), None)
            evidence.append(
                {
                    "family": family.name,
                    "base": shown_name(family.base),
                    "instruct": shown_name(family.instruct),
                    "total": to_jsonable(total),
                    "layers": to_jsonable(prepared.plan.ancestry),
                    "warnings": [note for note in prepared.plan.notes if note.startswith("WARNING")],
                }
            )
    if problems:
        raise (ShapeError if shapes else ModelError)("\n".join(dict.fromkeys(problems)))
    return list(dict.fromkeys(notes)), evidence


def _check_vocabulary(family: Family) -> None:
    """The tokenizers of a pair write text alike.

    Raises:
        ModelError: they do not.
    """
    from holdfast.models import load_tokenizer

    probe = "On 12 May 2024, the café's Zürich branch re-opened; 3,400 people came. def f(x): return x**2\n"
    base, instruct = (load_tokenizer(name) for name in (family.base, family.instruct))
    ids = [tokenizer(probe, add_special_tokens=False)["input_ids"] for tokenizer in (base, instruct)]
    if ids[0] != ids[1]:
        raise ModelError(
            f"Expected {family.instruct} to have the vocabulary of {family.base}, but the same text becomes "
            f"{len(ids[0])} tokens in one and "
            f"{len(ids[1])} others in the other: they are not of one family, and the residual would be noise. Name "
            f"the base of this instruct model."
        )


def check_measuring(config: ResidualConfig) -> None:
    """Tasks and their data, before anything slow.

    Raises:
        ConfigError: all mistakes in one message.
    """
    from holdfast.evaluation.session import ModelRequest, check_request
    from holdfast.evaluation.suite import parse_evaluation

    plan, problems = parse_evaluation(config.evaluation)
    plan, found = with_choice(plan, config)
    problems += found
    if problems:
        raise ConfigError(problems)
    family = config.families[0]
    check_request(
        [ModelRequest(name=family.base, label="base"), ModelRequest(name=family.instruct, label="instruct")], plan
    )


def whole_plan(config: ResidualConfig, text: NewText | None) -> EvaluationPlan:
    """The user's plan with the held-out new text, and with the average that chooses a scale."""
    from holdfast.evaluation.suite import parse_evaluation

    wanted: dict[str, Any] = dict(config.evaluation)
    if text is not None and text.held_out is not None:
        entry = {"perplexity": str(text.held_out.resolve()), "name": "held_out", "max_documents": HELD_OUT_DOCUMENTS}
        wanted[NEW_TEXT] = [entry]
    plan, problems = parse_evaluation(wanted)
    plan, found = with_choice(plan, config)
    if problems + found:
        raise ConfigError(problems + found)
    if not plan.entries:
        raise ConfigError(
            "evaluation: nothing would be measured: hold out some of the new text (held_out: 0.01), or name what to "
            "measure."
        )
    return dataclasses.replace(plan)


def end(record: ResidualRecord, out: Path, status: str) -> None:
    """Writes record and page; a page that cannot be drawn spoils only a finished one."""
    record.status = status
    try:
        write_update(out, record)
        write_page(record, out)
    except (HoldfastError, OSError):
        if status == "finished":
            raise


def write_page(record: ResidualRecord, out: Path) -> Path:
    """The page of an update or a study."""
    from holdfast.reports.residual_report import write_residual_report

    return write_residual_report(out, record)
