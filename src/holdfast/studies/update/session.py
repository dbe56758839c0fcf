"""`holdfast update`: the whole job, from new text to a model that is current and still follows instructions.

1. models and requests are checked: same architecture and vocabulary, and that the instruct model looks like a child of
the base;
2. the new text is read, a part held out, budgets counted (`new_text`);
3. the base is continued on it, and with `continued_instruct` the instruct model too, to see what that costs (`making`);
4. the residual is added in one pass over the three checkpoints;
5. base, instruct, continued models and result are measured alike, held against each other in pairs, and reported.

Every step leaves its outcome in the folder: the same command goes on where it stopped and does nothing twice.
Source: Balancing Continuous Pre-Training.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigError, HoldfastError, Interrupted, ModelError, RunFolderError, ShapeError
from holdfast.records.residual import BASE, INSTRUCT, RECORD_FILE, ResidualRecord, read_update
from holdfast.studies.engine.study import refuse_foreign
from holdfast.studies.update.making import Workshop, drop_weights
from holdfast.studies.update.new_text import NewText, new_text
from holdfast.studies.update.outcome import choose_scale, pairs_of, with_choice
from holdfast.studies.update.plan import HELD_OUT_DOCUMENTS, NEW_TEXT, ResidualConfig
from holdfast.support.environment import (
    hardware,
    now,
    quiet_libraries,
    result_folder,
    say,
    shown_name,
    terminated_is_interrupted,
    versions,
)
from holdfast.support.files import to_jsonable
from holdfast.support.inputs import hold_to, inputs_of

if TYPE_CHECKING:
    from holdfast.evaluation.entries import EvaluationPlan


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

    from holdfast.support.dates import dates_of

    console = console or Console()
    out = config.output_dir
    record = open_record(config)
    with result_folder(out) as result_dir, quiet_libraries(), terminated_is_interrupted():
        begun = any((out / folder).is_dir() for folder in _MADE)
        for text in hold_to(out, inputs_of(config.resolved, within=out), begun=begun, what=f"the work in {out}"):
            say(console, f"Note: {text}")
        record.write(out)
        try:
            workshop = open_workshop(config, record, console)
            result_dir.keep()
            with dates_of(record.created):
                _update(config, record, workshop, console)
        except (Interrupted, KeyboardInterrupt):
            end(record, out, "interrupted")
            raise Interrupted(f"Interrupted; what is done stays in {out}. The same command continues.") from None
        except BaseException as error:
            record.notes = [*dict.fromkeys([*record.notes, f"Failed: {error}"])]
            end(record, out, "failed")
            raise
    return record


def _update(config: ResidualConfig, record: ResidualRecord, workshop: Workshop, console: Any) -> None:
    out = config.output_dir
    record.models = config.models()
    for number, model in enumerate(record.models):
        record.write(out)
        say(console, f"{number + 1} of {len(record.models)}: {model.label}")
        record.models[number] = workshop.measure(workshop.make(model))
    results = [m for m in record.models if m.continued and m.residual is not None]
    chosen, confidence = results[0], workshop.plan.confidence
    if config.chooses:
        [base] = [m for m in record.models if m.start == BASE and m.continued and m.residual is None]
        record.scale = choose_scale(results, base, out, confidence=confidence)
        chosen = next(m for m in results if m.scale == record.scale.chosen)
        say(console, f"Scale {record.scale.chosen:g}: {record.scale.reason}.")
    record.result = chosen.name
    compared = [m for m in record.models if m not in results or m is chosen]
    record.pairs, left_out = pairs_of(compared, out, confidence=confidence)
    record.notes = list(dict.fromkeys([*record.notes, *left_out]))
    for model in record.models:
        keeps = config.keep != "none" if model is chosen else config.keep == "all" and model not in results
        if model.continued and not keeps:
            drop_weights(out, model)
    record.finished = now()
    end(record, out, "finished")


_MADE = ("runs", "models", "evaluations")
"""Folders that hold what was computed from the inputs."""

# ------------------------------------------------------------------------------------------------------- before it runs


def open_record(config: ResidualConfig) -> ResidualRecord:
    """The record in the folder, or a new one.

    Raises:
        RunFolderError: the folder holds something else, or another configuration was begun in it.
    """
    out, kind = config.output_dir, config.kind
    record = ResidualRecord(name=config.name, kind=kind, created=now(), config=config.resolved)
    refuse_foreign(out, (RECORD_FILE,), kind)
    if (out / RECORD_FILE).is_file():
        known = read_update(out)
        differences = config.differences(known.config)
        if differences and any((out / folder).exists() for folder in _MADE):
            raise RunFolderError(
                f"{out} was begun with another configuration:",
                *(f"  - {d}" for d in differences),
                "Put the old values back to continue it, or choose another output_dir.",
            )
        if not differences:  # else it failed before anything was made: a corrected request takes its place
            record = known
    record.families = list(config.families)
    record.status, record.finished, record.notes = "running", None, []
    record.versions, record.hardware = versions(), hardware()
    return record


def open_workshop(config: ResidualConfig, record: ResidualRecord, console: Any) -> Workshop:
    """Everything that is needed to make models: checked, the new text read, the plan complete. Fills in the record.

    Raises:
        ConfigError, ModelError, ShapeError, DataError: what has to change.
    """
    out = config.output_dir
    notes, evidence = check_models(config)
    record.ancestry = evidence

    def note(lines: list[str]) -> None:
        record.notes = list(dict.fromkeys([*record.notes, *lines]))
        for line in lines:
            say(console, line)

    note(notes)  # at once: what comes next may take hours, or fail
    check_measuring(config)
    text: NewText | None = None
    if config.continued:
        from holdfast.models import load_tokenizer

        base = str(config.families[config.continued[0]].base)
        text = new_text(config, load_tokenizer(base), config.folder / "corpus")
        facts = text.facts
        record.corpus = record.corpus or facts
        amount = f"{facts['documents']:,} documents, {facts['tokens']:,} tokens"
        say(console, f"New text: {amount}; {facts['held_out']:,} documents held out.")
        note(text.notes)
    plan = whole_plan(config, text.held_out if text is not None else None)
    if not plan.entries:
        raise ConfigError(
            "evaluation: nothing would be measured: hold out some of the new text (held_out: 0.01), or name what to "
            "measure."
        )
    return Workshop(config=config, out=out, texts=text.files if text else {}, plan=plan, console=console)


def check_models(config: ResidualConfig) -> tuple[list[str], list[dict[str, Any]]]:
    """Whether every residual can be added to what it will be added to, and whether the instruct models look like
    children of their bases.

    Returns:
        Sentences for people (a strange parent is a warning with its evidence), and the evidence a family.

    Raises:
        ModelError, ShapeError: models that do not fit together; all of them in one message.
    """
    from holdfast.checkpoints.locate import open_source
    from holdfast.checkpoints.residual import prepare_transfer

    problems: list[HoldfastError] = []
    notes: list[str] = []
    evidence = []
    for name, onto in _residual_targets(config):
        base, instruct = str(config.families[name].base), str(config.families[name].instruct)
        try:
            for model in (base, instruct):
                open_source(model)  # whether it is whole
            _check_vocabulary(base, instruct)
            plan = prepare_transfer(instruct, base, onto, adapter_base=None).plan
        except (ModelError, ShapeError, ConfigError) as error:
            problems.append(error)
            continue
        notes += plan.notes
        if onto == base:
            names = {"family": name, "base": shown_name(base), "instruct": shown_name(instruct)}
            total = next((d for d in plan.ancestry if d.layer == "total"), None)
            warnings = [note for note in plan.notes if note.startswith("WARNING")]
            evidence.append({**names, **to_jsonable({"total": total, "layers": plan.ancestry}), "warnings": warnings})
    if problems:
        kind = ShapeError if any(isinstance(p, ShapeError) for p in problems) else ModelError
        raise kind(*dict.fromkeys(map(str, problems)))
    return list(dict.fromkeys(notes)), evidence


def _residual_targets(config: ResidualConfig) -> Iterator[tuple[str, str]]:
    """Every family with what its residual is added to."""
    bases = {name: str(family.base) for name, family in config.families.items()}
    yield from bases.items()
    for name, other in itertools.product(bases, repeat=2):
        if config.siblings and name != other:
            yield name, bases[other]
    for path, name in itertools.product(config.derived.values(), bases):
        yield name, path


def _check_vocabulary(base: str, instruct: str) -> None:
    """The tokenizers of a pair write text alike.

    Raises:
        ModelError: they do not.
    """
    from holdfast.models import load_tokenizer

    probe = "On 12 May 2024, the café's Zürich branch re-opened; 3,400 people came. def f(x): return x**2\n"
    first, second = (load_tokenizer(name)(probe, add_special_tokens=False)["input_ids"] for name in (base, instruct))
    if first != second:
        raise ModelError(
            f"Expected {instruct} to have the vocabulary of {base}, but the same text becomes {len(first)} tokens in "
            f"one and {len(second)} others in the other: they are not of one family, and the residual would be noise. "
            f"Name the base of this instruct model."
        )


def check_measuring(config: ResidualConfig) -> None:
    """Tasks and their data, before anything slow.

    Raises:
        ConfigError: all mistakes in one message.
    """
    from holdfast.evaluation.session import ModelRequest, check_request

    family = next(iter(config.families.values()))
    models = [ModelRequest(name=str(getattr(family, label)), label=label) for label in (BASE, INSTRUCT)]
    check_request(models, whole_plan(config))


def whole_plan(config: ResidualConfig, held_out: Path | None = None) -> EvaluationPlan:
    """The user's plan with the held-out new text, and with the average that chooses a scale.

    Raises:
        ConfigError: all mistakes in one message.
    """
    from holdfast.evaluation.suite import parse_evaluation

    suites = dict(config.evaluation)
    if held_out is not None:
        entry = {"perplexity": str(held_out.resolve()), "name": "held_out", "max_documents": HELD_OUT_DOCUMENTS}
        suites[NEW_TEXT] = [entry]
    plan, problems = parse_evaluation(suites)
    plan, more = with_choice(plan, config)
    if problems + more:
        raise ConfigError(problems + more)
    return plan


def end(record: ResidualRecord, out: Path, status: str) -> None:
    """Writes record and page; a page that cannot be drawn spoils only a finished one."""
    from holdfast.reports.update_report import write_update_report

    record.status = status
    try:
        record.write(out)
        write_update_report(out, record)
    except (HoldfastError, OSError):
        if status == "finished":
            raise
