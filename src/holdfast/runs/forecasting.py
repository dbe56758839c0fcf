"""A forecast of what a run will lose, from its first steps: a predictor, fitted on runs whose ends are known, takes the
early signs of a run (`runs.early_signs`) and says what the loss at the end will be. Beyond what it was fitted on
nothing is said."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from holdfast.errors import DataError
from holdfast.records.comparison import Comparison
from holdfast.records.evaluation import Evaluation
from holdfast.records.forecast import (
    NATS,
    POINTS,
    RUN_FILE,
    RUNS,
    SUITE,
    EarlySigns,
    Expected,
    HeldOut,
    Predicted,
    Predictor,
    RunForecast,
    loss_in,
    pooled,
    read_predictor,
)
from holdfast.records.metrics import is_share
from holdfast.records.run import RunFolder, RunRecord
from holdfast.reports.format import plural
from holdfast.statistics.forecast import Example, fit, held_out, outside, predict

RESOLUTION = {NATS: 0.02, POINTS: 1.0}
"""Losses below it are alike."""
LEVEL = 0.9
METHOD, KL = "method", "log10 KL on the text"
DATA = "data"
AXES = (DATA, "model", "learning rate", METHOD)
LARGER = 2.0
"""How many times smaller or larger a model may be than those that were fitted on."""
SHIPPED = Path(__file__).with_name("predictor.json")
"""Fitted on runs in the small world (`configs/overtraining/forecast.yaml`)."""


def forecast(signs: EarlySigns, start: Iterable[Evaluation], predictor: Predictor | None) -> RunForecast:
    """What is expected of the entries that are to be kept.

    Args:
        signs: of the run.
        start: what was measured of the model that it starts from.
        predictor: None: nothing is expected.
    """
    found = []
    for entry in start:
        unit = _unit(entry)
        if entry.suite == SUITE and unit is not None and predictor is not None:
            found.append(_expected(f"{entry.suite}/{entry.name}", unit, signs, predictor))
    about, level = ("", LEVEL) if predictor is None else (predictor.about, predictor.level)
    tests = [t.coverage for t in predictor.held_out if t.axis == DATA] if predictor is not None else []
    elsewhere = min(tests, default=None)
    return RunForecast(signs=signs, expected=found, level=level, predictor=about, elsewhere=elsewhere)


def _expected(key: str, unit: str, signs: EarlySigns, predictor: Predictor) -> Expected:
    asked = _ask(predictor, unit, features_of(signs, key, unit), method=signs.method, parameters=signs.parameters)
    if isinstance(asked, str):
        return Expected(entry=key, unit=unit, loss=None, interval=None, why=asked)
    return Expected(entry=key, unit=unit, loss=asked[0], interval=asked[1])


def _ask(
    predictor: Predictor, unit: str, features: Mapping[str, float], *, method: str, parameters: int
) -> tuple[float, tuple[float, float]] | str:
    """(loss, interval), or why nothing is said."""
    linear, (least, most) = predictor.fit(unit), predictor.parameters
    if method not in predictor.methods:
        return f"it was fitted on no run with {method}"
    if linear is None:
        return f"it was fitted on nothing that is measured in {unit}"
    if not least / LARGER <= parameters <= LARGER * most:
        return f"{parameters:,} parameters (fitted on {least:,} to {most:,})"
    whole = by_method(features, method, predictor.methods)
    return outside(linear, whole) or predict(linear, whole)


def features_of(signs: EarlySigns, entry: str, unit: str) -> dict[str, float]:
    """What an entry's loss is predicted from: for text its own signs, for other entries the mean over the texts.

    What is seen on training rows is not among it: it says more of the data than of the drift, and misleads on other
    data (docs/forecast.md).
    """
    own = next((t for t in signs.texts if t.entry == entry and unit == NATS), None) or pooled(signs.texts)
    return {
        KL: _log10(own.kl),
        "log10 Fisher product on the text": _log10(own.fisher),
        "log10 KL of the start under noise": _log10(own.noise),
        "log10 loss of the text": _log10(own.loss),
        "rise of the text's loss (asinh)": math.asinh(own.rise / RESOLUTION[NATS]),
        "log10 distance": _log10(signs.distance),
        "log10 learning rate ahead": _log10(signs.ahead),
    }


def by_method(features: Mapping[str, float], method: str, methods: Sequence[str]) -> dict[str, float]:
    """The same with a level and a slope of its own for each way to fine-tune: what holds a model to its start, or
    averages later than what is looked at, shows in the end and not in the beginning."""
    found = dict(features)
    for one in methods:
        found[one] = float(one == method)
        found[f"{KL}, {one}"] = features[KL] if one == method else 0.0
    return found


def method_of(record: RunRecord) -> str:
    """How a run fine-tunes, see `records.forecast.EarlySigns`."""
    from holdfast.reports.methods import method_text
    from holdfast.retention.registry import METHODS

    used = []
    for held in record.retention:  # of its parameters those that say how strongly it holds on
        known = METHODS.get(str(held["method"]))
        used.append({k: v for k, v in held.items() if known is None or k in ("method", *known.strength)})
    return method_text(used) + (" by an adapter" if record.config.get("use_peft") else "")


def _log10(value: float) -> float:
    return math.log10(value) if value > 0 else -math.inf if value == 0 else math.nan


def _unit(entry: Evaluation | Comparison) -> str | None:
    """The unit of the loss of an evaluation, or of a comparison; None of one that is not forecast, win rates among
    them: those of the start are one half whatever it knows."""
    if isinstance(entry, Evaluation):
        metric = entry.metrics[entry.primary]
        unit, name, values = metric.unit, entry.primary, [metric.value]
    else:
        unit, name, values = entry.unit, entry.metric, [entry.before, entry.after]
    return NATS if unit == NATS else POINTS if unit != "win_rate" and is_share(unit, name, values) else None


# ------------------------------------------------------------------------------------------------------------- fitting


def run_folders(places: Iterable[str | Path]) -> list[RunFolder]:
    """Runs with signs, in folders and below them.

    Raises:
        DataError: a folder that is not there, or none with such a run.
    """
    found: dict[Path, RunFolder] = {}
    for place in map(Path, places):
        if not place.is_dir():
            raise DataError(f"Expected a folder with runs, {place} is none.")
        files = sorted(place.rglob(RUN_FILE))
        if not files:
            raise DataError(
                f"Expected runs that were looked at early in {place}, found none. Train them with forecast: true."
            )
        found |= {file.parent.resolve(): RunFolder(file.parent) for file in files}
    return list(found.values())


def examples_of(runs: Iterable[RunFolder], *, known: Collection[str] = ()) -> tuple[list[Example], list[str]]:
    """What came of every run's entries beside its early signs; and what was left out, in words.

    Args:
        known: fingerprints of the early signs of runs to leave out.

    Raises:
        DataError: a record cannot be read, or nothing is left.
    """
    found, unfinished, broken, fitted = list[Example](), 0, 0, 0
    for run in runs:
        seen, record, compared = RunForecast.in_folder(run.path), run.read(), run.comparisons()
        if seen is None or record.status != "finished" or not compared:
            unfinished += 1
            continue
        if (signs := seen.signs.fingerprint) in known:
            fitted += 1
            continue
        axes = {
            DATA: f"{record.data['name']} {str(record.data['hash'])[:8]}",  # files of one name are not one text
            "model": str(record.model["hash"]),
            "learning rate": f"{float(record.config['learning_rate']):g}",
            METHOD: method_of(record),
        }
        for comparison in (c for c in compared if c.suite == SUITE and c.primary):
            unit, key = _unit(comparison), f"{comparison.suite}/{comparison.name}"
            if unit is None:
                continue
            features = features_of(seen.signs, key, unit)
            loss = loss_in(comparison, unit)
            if not math.isfinite(loss) or not all(map(math.isfinite, features.values())):
                broken += 1
                continue
            found.append(
                Example(
                    run=record.name, entry=key, unit=unit, features=features, loss=loss, axes=axes,
                    parameters=seen.signs.parameters, signs=signs,
                )
            )  # fmt: skip
    notes = [f"{unfinished} runs are left out: they are not finished or were not compared."] if unfinished else []
    notes += [f"{broken} entries are left out: a figure of theirs is not finite."] if broken else []
    notes += [f"{plural(fitted, 'run')} left out: the predictor was fitted on them."] if fitted else []
    if not found:
        raise DataError(" ".join(["Expected finished runs with text or questions under evaluation.source.", *notes]))
    return found, notes


def fit_predictor(places: Sequence[str | Path], *, level: float = LEVEL, about: str = "") -> Predictor:
    """A predictor from runs, tested on runs that it was not fitted on.

    Args:
        places: folders with runs, searched to the bottom.
        level: of the intervals.
        about: what the runs are, in words.

    Raises:
        DataError: no runs, or too few.
    """
    from holdfast.support.environment import versions

    examples, notes = examples_of(run_folders(places))
    methods = sorted({e.axes[METHOD] for e in examples})
    fits, tests, predicted = [], list[HeldOut](), list[Predicted]()
    for unit, resolution in RESOLUTION.items():
        plain = [e for e in examples if e.unit == unit]
        if not plain:
            continue
        own = [replace(e, features=by_method(e.features, e.axes[METHOD], methods)) for e in plain]
        try:
            fits.append(fit(own, resolution=resolution, level=level))
        except DataError as error:
            notes.append(f"Nothing is forecast in {unit}. {error}")
            continue
        for axis in AXES:
            asked = plain if axis == METHOD else own  # of a method that it does not know it knows no level either
            if (found := held_out(asked, axis, resolution=resolution, level=level)) is not None:
                tests.append(found[0])
                predicted += found[1]
    if not fits:
        raise DataError(" ".join(notes))
    sizes, runs = [e.parameters for e in examples], len({(e.run, *e.group) for e in examples})
    return Predictor(
        about=about or f"{runs} runs",
        level=level,
        parameters=(min(sizes), max(sizes)),
        methods=methods,
        fits=fits,
        held_out=tests,
        predicted=predicted,
        runs=runs,
        fitted_on=sorted({e.signs for e in examples}),
        notes=notes,
        versions=versions(),
    )


def tested(places: Sequence[str | Path], predictor: Predictor) -> Predictor:
    """A predictor with its tests replaced by one on finished runs; those that it was fitted on are left out.

    Args:
        places: folders with runs, searched to the bottom.

    Raises:
        DataError: no runs, or none that it was not fitted on.
    """
    from holdfast.statistics.forecast import figures

    examples, notes = examples_of(run_folders(places), known=frozenset(predictor.fitted_on))
    if not predictor.fitted_on:
        notes.append("Whether it was fitted on these runs cannot be told: its file does not name the runs of its fit.")
    tests, predicted, silent = list[HeldOut](), list[Predicted](), Counter[str]()
    for unit, resolution in RESOLUTION.items():
        found, of_unit = list[Predicted](), [e for e in examples if e.unit == unit]
        for e in of_unit:
            asked = _ask(predictor, unit, e.features, method=e.axes[METHOD], parameters=e.parameters)
            if isinstance(asked, str):
                silent[asked] += 1
                continue
            found.append(
                Predicted(
                    axis=RUNS, unit=unit, value=e.axes[METHOD], run=e.run, entry=e.entry, came=e.loss, loss=asked[0],
                    interval=asked[1],
                )
            )  # fmt: skip
        if of_unit:
            refused, methods = len(of_unit) - len(found), len({p.value for p in found})
            tests.append(figures(found, axis=RUNS, unit=unit, values=methods, refused=refused, resolution=resolution))
            predicted += found
    notes += [f"No forecast of {plural(count, 'measure')}: {why}." for why, count in silent.most_common()]
    runs = len({(e.run, *e.group) for e in examples})
    return replace(predictor, held_out=tests, predicted=predicted, runs=runs, notes=notes)


def predictor_of(path: str | Path | None) -> Predictor | None:
    """The predictor in a file, or the one that comes along, if any does.

    Raises:
        DataError: a file that is no predictor.
    """
    if path is not None:
        return read_predictor(path)
    return read_predictor(SHIPPED) if SHIPPED.is_file() else None
