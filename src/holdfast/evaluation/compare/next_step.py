"""What to do next about a loss: one step, the first of a small table that fits.

| what the comparison shows | next step |
|---|---|
| something is not finite | none: the comparison has failed, and says so |
| turns do not end as before | `holdfast check` on the training request |
| the strict reading of answers fell, another did not | both answers side by side |
| questions lost that the model before answered by chance | other questions |
| questions lost, by a model that was not tuned from the one before | both answers side by side |
| other questions lost | `holdfast diagnose` |
| text lost, and no questions asked | a suite of questions |
| text lost, questions not | training with a retention method |
| nothing lost, something cannot be told | how many samples would decide |

A command is one that runs as it is written, with the models and the entries that were lost. Where
the models or the entry are not known, as in logs of other tools, the step has none.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.checkpoints.architecture import shape_differences
from holdfast.checkpoints.sources import read_config
from holdfast.config.declare import settings_of
from holdfast.errors import ConfigError, ModelError
from holdfast.evaluation.entries import Entry, EvaluationPlan
from holdfast.evaluation.request import PlanRequest, plan_of
from holdfast.evaluation.suite import parse_evaluation
from holdfast.records.comparison import ACCEPTED, LOST, NOT_SHOWN, Comparison, GateOutcome
from holdfast.records.metrics import readings
from holdfast.records.run import RunFolder
from holdfast.support.paths import expanded, real

if TYPE_CHECKING:
    from holdfast.evaluation.compare.request import CompareSettings, Side

Key = tuple[str, str]
"""(suite, name) of an entry."""
TEXTS = ("perplexity", "memorisation")
"""Kinds of entries that measure text."""
BEHAVIOUR, AVERAGE = "behaviour", "average"
ASIDE = (*TEXTS, BEHAVIOUR, AVERAGE, "answer_distribution")
"""Kinds without questions that are right or wrong."""
TOKENS = 1_000_000
"""To restore on, where nobody knows how many the fine-tuning read."""
MOST_ENTRIES = 3
"""That a diagnosis is proposed for."""


@dataclass(frozen=True, kw_only=True)
class NextStep:
    """What to do next."""

    text: str
    """Why, and what, in a sentence or two."""
    command: str = ""
    """That does it; empty where there is none."""
    on_page: bool = False
    """Whether the command makes the page of the comparison, which shows it."""


@dataclass(frozen=True, kw_only=True)
class _Found:
    """What a comparison found."""

    sides: Sequence[Side]
    settings: CompareSettings
    comparisons: Sequence[Comparison]
    """Of all metrics."""
    kinds: Mapping[Key, str]
    """Of the entries."""
    lost: Sequence[Comparison]
    """Metrics that lead, the largest loss in standard errors first; without what was accepted."""

    def lost_of(self, *kinds: str) -> list[Comparison]:
        """Losses of entries of these kinds."""
        return [c for c in self.lost if self.kinds.get((c.suite, c.name)) in kinds]

    @property
    def asked(self) -> list[Comparison]:
        """Losses of entries with questions."""
        return [c for c in self.lost if self.kinds.get((c.suite, c.name), AVERAGE) not in ASIDE]


def next_step(
    sides: Sequence[Side],
    settings: CompareSettings,
    comparisons: Sequence[Comparison],
    kinds: Mapping[Key, str],
    gates: Sequence[GateOutcome] = (),
) -> NextStep | None:
    """The next step; None where nothing was lost and nothing is open.

    Args:
        sides: the two models.
        settings: how they were compared.
        comparisons: of all metrics.
        kinds: of the entries.
        gates: what rules and a policy say; what is accepted is no loss.
    """
    accepted = {(g.suite, g.name, g.metric) for g in gates if g.outcome == ACCEPTED}
    lost = []
    for c in comparisons:
        if c.failed is not None:
            return None
        if c.primary and c.verdict == LOST and (c.suite, c.name, c.metric) not in accepted:
            lost.append(c)
    lost.sort(key=lambda c: c.p_value)
    comparison = _Found(
        sides=sides, settings=settings, comparisons=comparisons, kinds=kinds, lost=lost
    )
    for step in (_turns, _form, _chance, _questions, _text):
        proposed = step(comparison)
        if proposed is not None:
            return proposed
    return None if lost else _samples(comparison)


# --------------------------------------------------------------------------------------------- cases


def _turns(found: _Found) -> NextStep | None:
    """Turns that do not end."""
    for c in found.lost_of(BEHAVIOUR):
        if c.metric == "turn_ended":
            text = (
                f"{_name(c)}: replies end differently than before. Perhaps training gives the "
                "end-of-turn token no loss. Run 'holdfast check' on the training configuration "
                "to find out."
            )
            return NextStep(text=text)
    return None


def _form(found: _Found) -> NextStep | None:
    """A loss in one reading of the answers alone."""
    for c in found.asked:
        of_entry = [o for o in found.comparisons if (o.suite, o.name) == (c.suite, c.name)]
        for other in of_entry:
            reads_alike = other.metric in readings(c.metric, [o.metric for o in of_entry])
            if reads_alike and other.verdict != LOST:
                why = f"{c.metric} fell, but there is no evidence that {other.metric} fell"
                text = f"{_name(c)}: {why}. Perhaps only the format of the answers changed."
                return _on_the_page(found, text)
    return None


def _chance(found: _Found) -> NextStep | None:
    """Questions that the model before could not answer."""
    losses = found.asked
    if not losses or not all("before" in c.at_chance for c in losses):
        return None
    text = (
        f"{_names(losses)}: there is no evidence that the initial model does better than chance, so "
        "there was nothing to forget. Use questions that this model can answer, or ask for whole answers "
        "instead of letters."
    )
    return NextStep(text=text)


def _questions(found: _Found) -> NextStep | None:
    """Other questions."""
    losses = [c for c in found.asked if "before" not in c.at_chance][:MOST_ENTRIES]
    if not losses:
        return None
    base, tuned = (side.model for side in found.sides)
    if base and tuned and not _is_tuned_from(*found.sides):
        text = (
            f"{_names(losses)}: {tuned} was not tuned from {base}, so the difference is not "
            "forgetting."
        )
        return _on_the_page(found, text)
    text = (
        f"{_names(losses)}: this may be pseudo forgetting. If so, training on plain text reverses "
        "it."
    )
    entries = _entries(found, losses)
    if not base or not tuned or entries is None:
        return NextStep(
            text=f"{text} Run 'holdfast diagnose' with the two models and text like the base's "
            "pre-training data."
        )
    words = ["holdfast", "diagnose", "--base", base, "--tuned", tuned]
    words += ["--corpus", "generated", "--tokens", str(_tokens(found.sides[-1]))]
    words += ["--keep", *entries]
    return NextStep(
        text=(
            f"{text} If you have a file of text like the base's pre-training data, write its name "
            "in place of `generated`. Text that the base itself writes may contain answers to the "
            "questions, and training on it would teach these answers again."
        ),
        command=shlex.join(words),
    )


def _text(found: _Found) -> NextStep | None:
    """Text alone."""
    lost = found.lost_of(*TEXTS)
    if not lost:
        return None
    if any(kind not in ASIDE for kind in found.kinds.values()):
        text = (
            f"{_names(lost)}: the loss on text rose, but the questions show no forgetting. Train "
            "with a retention method, such as --retention label_annealing."
        )
        return NextStep(text=text)
    text = (
        f"{_names(lost)}: the loss on text does not show whether knowledge was lost. Ask both "
        "models questions:"
    )
    models = [side.model for side in found.sides]
    if not all(models):
        return NextStep(text=f"{text} 'holdfast compare' with two models and --suite knowledge.")
    command = shlex.join(["holdfast", "compare", *models, "--suite", "knowledge"])
    return NextStep(text=text, command=command)


def _samples(found: _Found) -> NextStep | None:
    """What more samples would decide, the entry that needs the fewest. Where both models guess, more
    samples do not help."""
    open_ = []
    for c in found.comparisons:
        both_guess = len(c.at_chance) == 2
        if c.primary and c.verdict == NOT_SHOWN and c.needed and not both_guess:
            open_.append(c)
    if not open_:
        return None
    nearest = min(open_, key=lambda c: (c.needed or 0) / c.n)
    text = (
        f"{_name(nearest)}: not decided yet. Measure about {nearest.needed_about:,} samples "
        f"instead of {nearest.n:,}."
    )
    return NextStep(text=text)


# --------------------------------------------------------------------------------------------- parts


def _name(c: Comparison) -> str:
    return f"{c.suite}/{c.name}"


def _names(comparisons: Sequence[Comparison]) -> str:
    return ", ".join(_name(c) for c in comparisons[:MOST_ENTRIES])


def _on_the_page(found: _Found, text: str) -> NextStep:
    """The step that shows which questions flipped, with both answers."""
    text = f"{text} The page shows both models' answers to every question that flipped."
    if not found.settings.models:
        return NextStep(text=text, on_page=True)
    words = ["holdfast", "compare", *found.settings.models]
    for setting in settings_of(type(found.settings)):
        if setting.name in ("suite", "measured_dir", "allow_unpaired"):
            value = getattr(found.settings, setting.name)
            if value != setting.default:
                values = value if isinstance(value, tuple) else (value,)
                words += [f"--{setting.name}", *map(str, values)]
    return NextStep(
        text=text, command=shlex.join([*words, "--html", "comparison.html"]), on_page=True
    )


def _is_tuned_from(before: Side, after: Side) -> bool:
    """Whether the model after may have been tuned from the one before: the runs that made them say
    so, or where there are none, their sizes do not differ."""
    if after.run is not None:
        return _starts_from(after.run, before.model)
    if before.run is not None and _starts_from(before.run, after.model):
        return False  # the other way round
    try:
        base, tuned = read_config(expanded(before.model)), read_config(expanded(after.model))
    except ModelError:
        return True  # nobody can tell; loading it says what is wrong
    return not base or not tuned or not shape_differences(base, tuned)


def _starts_from(run: RunFolder, model: str) -> bool:
    """Whether a run began with a model."""
    start = str(run.read().config.get("model_name_or_path"))
    return start == model or real(expanded(start)) == real(expanded(model))


def _tokens(side: Side) -> int:
    """To restore on: an epoch of the fine-tuning, where a run tells."""
    if side.run is None:
        return TOKENS
    tokens = side.run.read().data.get("tokens")
    return int(tokens) if tokens else TOKENS


def _entries(found: _Found, lost: Sequence[Comparison]) -> list[str] | None:
    """The entries that were lost, as `holdfast diagnose --keep` takes them; None where one is not
    known."""
    plan = _plan(found)
    if plan is None:
        return None
    by_key = {(entry.suite, entry.name): entry for entry in plan.entries}
    words = []
    for c in lost:
        entry = by_key.get((c.suite, c.name))
        if entry is None or not entry.written:
            return None
        words.append(json.dumps(entry_mapping(entry), default=str))
    return words


def _plan(found: _Found) -> EvaluationPlan | None:
    """What was measured, where suites or a run say so and it is still there."""
    settings, run = found.settings, found.sides[-1].run
    try:
        if settings.suite:
            plan, problems = plan_of(PlanRequest(suite=settings.suite))
        elif run is not None:
            plan, problems = parse_evaluation(run.read().config.get("evaluation") or {})
        else:
            return None
    except ConfigError:
        return None
    return None if problems else plan


def entry_mapping(entry: Entry) -> dict[str, Any]:
    """An entry as a suite writes it here: its kind and name, and what is not by default."""
    mapping = {entry.kind: getattr(entry, entry.source), "name": entry.name}
    for setting in dataclasses.fields(entry):
        value = getattr(entry, setting.name)
        default = setting.default
        if setting.default_factory is not dataclasses.MISSING:
            default = setting.default_factory()
        is_said = setting.name in ("suite", "name", entry.source)
        if not is_said and value != default:
            mapping[setting.name] = value
    return {key: _from_here(value) for key, value in mapping.items()}


def _from_here(value: Any) -> Any:
    """A file below the working directory by its name from there: it may be shown to others."""
    if isinstance(value, str) and Path(value).is_absolute():
        here = Path.cwd()
        return str(Path(value).relative_to(here)) if Path(value).is_relative_to(here) else value
    return value
