"""What is looked at before anything of an update is made: that models fit together and look like
base and child, and that what is asked of them can be measured."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigError, HoldfastError, ModelError, ShapeError
from holdfast.records.residual import BASE, INSTRUCT
from holdfast.studies.engine.models import rounding_notes
from holdfast.studies.update.plan import HELD_OUT_DOCUMENTS, UpdateConfig
from holdfast.studies.update.settings import NEW_TEXT
from holdfast.support.environment import shown_name
from holdfast.support.files import to_jsonable

if TYPE_CHECKING:
    from holdfast.evaluation.entries import EvaluationPlan


def check_models(config: UpdateConfig) -> tuple[list[str], list[dict[str, Any]]]:
    """Whether every residual can be added to what it will be added to, and whether the instruct
    models look like children of their bases.

    Returns:
        Sentences for people (a strange parent is a warning with its evidence; steps that training
        would round away), and the evidence a family.

    Raises:
        ModelError, ShapeError: models that do not fit together; all of them in one message.
    """
    from holdfast.checkpoints.locate import open_source
    from holdfast.checkpoints.residual import prepare_transfer

    problems: list[HoldfastError] = []
    notes: list[str] = []
    evidence = []
    for name, onto in _residual_targets(config):
        pair = config.request.families[name]
        base, instruct = str(pair.base), str(pair.instruct)
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
            evidence.append(
                {
                    **names,
                    **to_jsonable({"total": total, "layers": plan.ancestry}),
                    "warnings": warnings,
                }
            )
    if problems:
        kind = ShapeError if any(isinstance(p, ShapeError) for p in problems) else ModelError
        raise kind(*dict.fromkeys(map(str, problems)))
    for where, settings in config.runs():
        notes += [f"{where}: {note}" for note in rounding_notes(settings)]
    return list(dict.fromkeys(notes)), evidence


def _residual_targets(config: UpdateConfig) -> Iterator[tuple[str, str]]:
    """Every family with what its residual is added to."""
    bases = {name: str(family.base) for name, family in config.request.families.items()}
    yield from bases.items()
    for name, other in itertools.product(bases, repeat=2):
        if config.request.siblings and name != other:
            yield name, bases[other]
    for path, name in itertools.product(config.request.derived.values(), bases):
        yield name, path


def _check_vocabulary(base: str, instruct: str) -> None:
    """The tokenizers of a pair write text alike.

    Raises:
        ModelError: they do not.
    """
    from holdfast.models import load_tokenizer

    probe = (
        "On 12 May 2024, the café's Zürich branch re-opened; 3,400 people came. def f(x): return "
        "x**2\n"
    )
    first, second = (
        load_tokenizer(name)(probe, add_special_tokens=False)["input_ids"]
        for name in (base, instruct)
    )
    if first != second:
        raise ModelError(
            f"Expected {instruct} to have the vocabulary of {base}, but the same text becomes "
            f"{len(first)} tokens in one and {len(second)} tokens in the other. They are not of "
            "one family, so the residual would be noise. Name the base of this instruct model."
        )


def check_measuring(config: UpdateConfig) -> None:
    """Tasks and their data, before anything slow.

    Raises:
        ConfigError: all mistakes in one message.
    """
    from holdfast.evaluation.session import ModelRequest, check_request

    family = next(iter(config.request.families.values()))
    base, instruct = str(family.base), str(family.instruct)
    models = [ModelRequest(name=base, label=BASE), ModelRequest(name=instruct, label=INSTRUCT)]
    check_request(models, whole_plan(config))


def whole_plan(config: UpdateConfig, held_out: Path | None = None) -> EvaluationPlan:
    """The user's plan with the held-out new text.

    Raises:
        ConfigError: all mistakes in one message.
    """
    from holdfast.evaluation.suite import parse_evaluation

    suites = dict(config.request.evaluation)
    if held_out is not None:
        entry = {
            "perplexity": str(held_out.resolve()),
            "name": "held_out",
            "max_documents": HELD_OUT_DOCUMENTS,
        }
        suites[NEW_TEXT] = [entry]
    plan, problems = parse_evaluation(suites)
    if problems:
        raise ConfigError(problems)
    return plan
