"""The figures that page, terminal and model card share: formatted once here, so that they cannot disagree.

Everything is derived from what lies on disk in a run folder (`holdfast.results`); nothing is measured, and torch is
never imported.

Number of decimals: the paired interval of a difference decides. With half-width h, `1 - floor(log10(h))` decimals show
two significant digits of it (never fewer than 3 nor more than 6), and before, after and difference carry the same
number, so that a reader can subtract.

A *gain* is a difference with its sign turned so that more is better; a *relative* gain is `100 · gain / |before|` in
percent, which is what puts nats, accuracies and bits on one axis. It does not exist where `before` is 0.

What this module does not do: tests, bootstraps and verdicts of single measures are made by `holdfast.evaluation` and
lie in the records.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.errors import DataError
from holdfast.records.comparison import Comparison
from holdfast.records.evaluation import Evaluation, Metric
from holdfast.records.run import LayerDistance, RunFolder, RunRecord
from holdfast.reports.methods import ABOUT

NOT_MEASURED = "not measured"
MINUS = "\u2212"
GROUPS = ("target", "source")
"""Suites in the order of reading: what was to be learnt, then what was to be kept. Suites of the user's own follow."""

# ------------------------------------------------------------------------------------------------------ formatting


def number(value: float | None, decimals: int = 4, *, sign: bool = False) -> str:
    """`value` with `decimals` decimals and a typographic minus; `sign` shows a plus too. None and NaN read "n/a",
    infinities "∞"."""
    if value is None or math.isnan(value):
        return "n/a"
    if math.isinf(value):
        return f"{MINUS if value < 0 else '+' if sign else ''}∞"
    text = f"{abs(value):.{decimals}f}"
    zero = not float(text)
    return f"{MINUS if value < 0 and not zero else '+' if sign and not zero else ''}{text}"


def percent(value: float | None, *, sign: bool = True) -> str:
    """A percentage: two decimals below 1 %, one below 100 %, else none; "n/a" where it does not exist."""
    if value is None or not math.isfinite(value):
        return "n/a"
    decimals = 2 if abs(value) < 1 else 1 if abs(value) < 100 else 0
    return f"{number(value, decimals, sign=sign)} %"


def significant(value: Any) -> str:
    """A setting or a logged figure in as few characters as say it: `1e-05`, `0.05`, `1,234`; other types as text."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        if not math.isfinite(value):
            return number(value)
        return f"{value:.4g}".replace("e-0", "e-").replace("e+0", "e")
    return str(value)


def count(value: float | None) -> str:
    """A count for people: `950`, `12,345`, `1.23 M`, `7.62 B`."""
    if value is None or not math.isfinite(value):
        return "n/a"
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if abs(value) >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:,.0f}"


def duration(seconds: float | None) -> str:
    """`0.8 s`, `45 s`, `12 min 3 s`, `3 h 20 min`, `2 d 4 h`."""
    if seconds is None or not math.isfinite(seconds):
        return "n/a"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, name, small, small_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = (whole % size) // small
            return f"{whole // size} {name}" + (f" {rest} {small_name}" if rest else "")
    return f"{whole} s"


def p_value(value: float) -> str:
    """A p value to three decimals, "<0.001" below that."""
    if math.isnan(value):
        return "n/a"
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def plural(n: int, word: str) -> str:
    """`1 measure`, `2 measures`, `0 losses`."""
    return f"{n:,} {word}{'' if n == 1 else 'es' if word.endswith('s') else 's'}"


def ascii_only(text: str) -> str:
    """The same text for terminals that cannot show more than ASCII."""
    for fancy, plain in (
        (MINUS, "-"),
        ("∞", "inf"),
        ("→", "->"),
        ("·", "-"),
        ("…", "..."),
        ("–", "-"),
        ("—", "-"),
        ("×", "x"),
        ("↓", "v"),
        ("↑", "^"),
    ):
        text = text.replace(fancy, plain)
    return text.encode("ascii", "replace").decode()


def decimals_for(interval: tuple[float, float] | None) -> int:
    """Decimals that show two significant digits of the interval's half-width; between 3 and 6, and 4 where there is no
    interval."""
    if interval is None or not all(math.isfinite(v) for v in interval):
        return 4
    half = abs(interval[1] - interval[0]) / 2
    return 4 if half == 0 else max(3, min(6, 1 - math.floor(math.log10(half))))


def interval_text(interval: tuple[float, float] | None, decimals: int, *, sign: bool = False) -> str:
    """`[low, high]`, or "no interval"."""
    if interval is None or any(math.isnan(v) for v in interval):
        return "no interval"
    return f"[{number(interval[0], decimals, sign=sign)}, {number(interval[1], decimals, sign=sign)}]"


# ----------------------------------------------------------------------------------------------------- comparisons


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One comparison, every figure of it as text; `raw` keeps the numbers for plots."""

    raw: Comparison
    group: str
    """"Target", "Source" or the user's suite name."""
    name: str
    metric: str
    unit: str
    direction: str
    """"lower is better" or "higher is better"."""
    before: str
    after: str
    difference: str
    """After minus before, signed, in the metric's own unit."""
    interval: str
    p: str
    n: str
    test: str
    relative: str
    """Gain in percent of `before`: positive is better whatever the metric's direction."""
    verdict: str
    """"gained", "lost" or "within noise"."""
    flips: str
    """"12 lost, 20 gained" for right/wrong metrics, else empty."""

    @property
    def label(self) -> str:
        return f"{self.group}: {self.name}"

    @property
    def tone(self) -> str:
        """ "good", "bad" or "flat", the style of the verdict."""
        return {"gained": "good", "lost": "bad"}.get(self.verdict, "flat")

    @property
    def gain_interval(self) -> tuple[float, float]:
        """The interval of the gain: the difference's, turned where lower is better."""
        low, high = self.raw.interval
        return (low, high) if self.raw.higher_is_better else (-high, -low)

    def to_relative(self, value: float) -> float | None:
        """`value`, in the metric's unit, as percent of `before`; None where `before` is 0 or not finite."""
        before = abs(self.raw.before)
        return 100.0 * value / before if before > 0 and math.isfinite(before) else None


def row(c: Comparison) -> Row:
    """Formats one comparison."""
    digits = decimals_for(c.interval)
    before = abs(c.before)
    flips = (
        ""
        if c.flips_lost is None and c.flips_gained is None
        else f"{c.flips_lost or 0:,} lost, {c.flips_gained or 0:,} gained"
    )
    return Row(
        raw=c,
        group=group_title(c.suite),
        name=c.name,
        metric=c.metric,
        unit=c.unit,
        direction="higher is better" if c.higher_is_better else "lower is better",
        before=number(c.before, digits),
        after=number(c.after, digits),
        difference=number(c.difference, digits, sign=True),
        interval=interval_text(c.interval, digits, sign=True),
        p=p_value(c.p_value),
        n=f"{c.n:,}",
        test=c.test,
        relative=percent(100.0 * c.gain / before if before > 0 and math.isfinite(before) else None),
        verdict=c.verdict,
        flips=flips,
    )


def group_title(suite: str) -> str:
    return suite[:1].upper() + suite[1:] if suite in GROUPS else suite


def group_rank(suite: str) -> tuple[int, str]:
    return (GROUPS.index(suite) if suite in GROUPS else len(GROUPS), suite)


def ordered(comparisons: Iterable[Comparison]) -> list[Comparison]:
    """Target, source, then other suites; within a suite primary metrics first, otherwise as recorded."""
    return sorted(comparisons, key=lambda c: (group_rank(c.suite), not c.primary))


def verdict_sentence(record: RunRecord, comparisons: Sequence[Comparison]) -> str:
    """The run in one sentence of plain words, from its status and its primary comparisons."""
    primary = [c for c in comparisons if c.primary] or list(comparisons)
    if not primary:
        what = {
            "running": "The run has not finished",
            "interrupted": "The run was interrupted",
            "failed": "The run failed",
        }.get(record.status)
        if what:
            return f"{what} (stage: {record.stage}), so there is no comparison with the starting model yet."
        return (
            "Training finished, but start and result were not compared, so what was learnt and what was lost is "
            "not known."
        )
    parts = []
    for suite in sorted({c.suite for c in primary}, key=group_rank):
        verdicts = [c.verdict for c in primary if c.suite == suite]
        gained, lost, n = verdicts.count("gained"), verdicts.count("lost"), len(verdicts)
        title = group_title(suite)
        if suite == "target":
            if gained:
                parts.append(
                    f"Target improved on {gained} of {n} measures" + (f" and got worse on {lost}" if lost else "")
                )
            elif lost:
                parts.append(f"Target got worse on {lost} of {n} measures")
            else:
                parts.append(f"Target did not change beyond noise on {plural(n, 'measure')}")
            continue
        tally = [
            f"{k} {word}" for k, word in ((lost, "lost"), (gained, "gained"), (n - lost - gained, "within noise")) if k
        ]
        shown = title if not parts or suite not in GROUPS else title.lower()
        parts.append(f"{shown}: {', '.join(tally)}")
    return "; ".join(parts) + "."


# ------------------------------------------------------------------------------------------------- a whole run folder


METHOD_NAMES = {
    "label_annealing": "label annealing",
    "l2": "L2 penalty towards the start",
    "ewc": "elastic weight consolidation",
    "sfa": "sequential fine-tuning averaging",
    "sequential_averaging": "sequential averaging",
    "wise_ft": "WiSE-FT weight interpolation",
    "ema": "exponential moving average",
    "replay": "replay of source data",
    "multitask": "multitask mixing",
    "budget": "budget for forgetting",
}
"""Method keys as prose; others are shown with their underscores as spaces."""

DIRECT = "direct fine-tuning"


def method_name(method: Mapping[str, Any]) -> str:
    key = str(method.get("method", "unnamed method"))
    return str(method.get("title") or METHOD_NAMES.get(key, key.replace("_", " ")))


def method_text(retention: Sequence[Mapping[str, Any]]) -> str:
    """`label annealing (weight 1, temperature 1) + replay of source data (fraction 0.05)`; "direct fine-tuning" for
    none."""
    texts = []
    for method in retention:
        # Files by their last part: a page is shown to others, and whose folder it was says nothing.
        shown = {
            k: v.rstrip("/").rsplit("/", 1)[-1] if isinstance(v, str) and v.startswith(("/", ".", "~")) else v
            for k, v in method.items()
        }
        parameters = ", ".join(
            f"{k.replace('_', ' ')} {setting(v)}" for k, v in shown.items() if k not in ABOUT and v not in (None, "")
        )
        texts.append(method_name(method) + (f" ({parameters})" if parameters else ""))
    return " + ".join(texts) or DIRECT


def setting(value: Any) -> str:
    """One value of a configuration as text."""
    if isinstance(value, (list, tuple)):
        return ", ".join(setting(v) for v in value) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{k}: {setting(v)}" for k, v in value.items()) or "none"
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return significant(value)


def flatten(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """A nested configuration as (dotted key, text) rows in the order of the file."""
    rows: list[tuple[str, str]] = []
    for key, item in value.items():
        if isinstance(item, Mapping) and item:
            rows += flatten(item, f"{prefix}{key}.")
        else:
            rows.append((f"{prefix}{key}", setting(item)))
    return rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Level:
    """A figure of one model alone, where there is nothing to compare it with."""

    which: str
    """"start" or "result"."""
    group: str
    name: str
    metric: str
    unit: str
    value: str
    interval: str
    n: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunFigures:
    """Everything a report says about one run."""

    record: RunRecord
    verdict: str
    rows: list[Row]
    levels: list[Level]
    """Evaluations of only one of the two models, or not compared for another reason."""
    metrics: list[dict[str, Any]]
    method: str
    facts: list[tuple[str, str]]
    """(label, text): model, data, method, steps, tokens, time, ..."""
    settings: list[tuple[str, str]]
    problems: list[str]
    """Files that could not be read; a report says so instead of leaving them out."""
    missing: list[str]
    """What a complete run would have and this one has not, one sentence each."""

    @property
    def title(self) -> str:
        return self.record.name or "unnamed run"

    @property
    def largest_move(self) -> LayerDistance | None:
        """The layer with the largest relative distance from the start."""
        finite = [d for d in self.record.distance if math.isfinite(d.relative)]
        return max(finite, key=lambda d: d.relative, default=None)

    def compared(self, suite: str) -> list[Row]:
        """The primary rows of one suite."""
        return [r for r in self.rows if r.raw.suite == suite and r.raw.primary]


def read_run(folder: RunFolder) -> RunFigures:
    """Reads a run folder as far as it goes: unfinished runs and unreadable files are reported, not refused.

    Raises:
        DataError: there is no `run.json`, or it cannot be read, so there is no run to report on.
    """
    if not folder.exists():
        raise DataError(
            f"Expected the folder of a run at {folder.path}, but it has no run.json. Give the output folder of a "
            f"holdfast run."
        )
    record = folder.read()
    problems: list[str] = []
    metrics: list[dict[str, Any]] = _or_problem(folder.metrics, [], problems, "metrics.jsonl")
    comparisons: list[Comparison] = _or_problem(folder.comparisons, [], problems, "evaluations/comparisons.json")
    rows = [row(c) for c in ordered(comparisons)]
    levels = _levels(folder, {(c.suite, c.name) for c in comparisons}, problems)
    return RunFigures(
        record=record,
        verdict=verdict_sentence(record, comparisons),
        rows=rows,
        levels=levels,
        metrics=metrics,
        method=method_text(record.retention),
        facts=_facts(record, metrics),
        settings=flatten(record.config),
        problems=problems,
        missing=_missing(record, rows, levels, metrics),
    )


def _or_problem(read: Any, default: Any, problems: list[str], what: str) -> Any:
    try:
        return read()
    except (DataError, KeyError, TypeError, AssertionError) as error:
        reason = str(error) if isinstance(error, DataError) else f"unexpected content ({type(error).__name__}: {error})"
        problems.append(f"{what} could not be read and is left out here: {reason}")
        return default


def _levels(folder: RunFolder, compared: set[tuple[str, str]], problems: list[str]) -> list[Level]:
    levels: list[Level] = []
    for which in ("start", "result"):
        for path in sorted((folder.evaluations / which).glob("*.json")):
            evaluation: Evaluation | None = _or_problem(
                lambda p=path: read_evaluation(p), None, problems, f"evaluations/{which}/{path.name}"
            )
            if evaluation is None or (evaluation.suite, evaluation.name) in compared:
                continue
            levels += [level(which, evaluation, key, metric) for key, metric in evaluation.metrics.items()]
    return levels


def read_evaluation(path: Any) -> Evaluation:
    """One evaluation file."""
    from holdfast.support.files import read_json

    return Evaluation.from_json(read_json(path))


def level(which: str, evaluation: Evaluation, key: str, metric: Metric) -> Level:
    digits = decimals_for(metric.interval)
    return Level(
        which=which,
        group=group_title(evaluation.suite),
        name=evaluation.name,
        metric=key,
        unit=metric.unit,
        value=number(metric.value, digits),
        interval=interval_text(metric.interval, digits),
        n=f"{metric.n:,}",
    )


def training_figures(record: RunRecord, metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`{"steps", "tokens", "seconds", "tokens_per_second"}` from run.json, or from the log where the run did not get to
    write them."""
    found = {k: record.training.get(k) for k in ("steps", "tokens", "seconds", "tokens_per_second")}
    for key, logged in (("steps", "step"), ("tokens", "tokens"), ("seconds", "seconds")):
        if found[key] is None:
            found[key] = next((m[logged] for m in reversed(metrics) if m.get(logged) is not None), None)
    if found["tokens_per_second"] is None and found["tokens"] and found["seconds"]:
        found["tokens_per_second"] = found["tokens"] / found["seconds"]
    return found


def _facts(record: RunRecord, metrics: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    model, data, trained = record.model, record.data, training_figures(record, metrics)
    facts: list[tuple[str, str]] = []

    size = ""
    if model.get("parameters"):
        size = f"{count(model['parameters'])} parameters"
        if model.get("trainable") and model["trainable"] != model["parameters"]:
            size += (
                f", {count(model['trainable'])} trained "
                f"({percent(100 * model['trainable'] / model['parameters'], sign=False)})"
            )
    facts.append(("Model", _joined(model.get("name"), model.get("architecture"), size) or "not recorded"))

    examples = plural(int(data["examples"]), "example") if data.get("examples") is not None else ""
    tokens = f"{count(data['tokens'])} tokens" if data.get("tokens") is not None else ""
    replayed = f"{plural(int(data['replay_examples']), 'replayed example')}" if data.get("replay_examples") else ""
    facts.append(
        (
            "Data",
            _joined(
                data.get("name"), examples, tokens, replayed, data.get("format"), "packed" if data.get("packed") else ""
            )
            or "not recorded",
        )
    )

    facts.append(("Method", method_text(record.retention)))
    facts.append(("Steps", significant(trained["steps"]) if trained["steps"] is not None else "none logged"))
    facts.append(("Tokens trained on", count(trained["tokens"]) if trained["tokens"] is not None else "not recorded"))
    speed = f"{count(trained['tokens_per_second'])} tokens/s" if trained["tokens_per_second"] else ""
    sessions = record.training.get("sessions")
    several = plural(int(sessions), "session") if isinstance(sessions, int) and sessions > 1 else ""
    facts.append(
        (
            "Training time",
            _joined(duration(trained["seconds"]), speed, several) if trained["seconds"] is not None else "not recorded",
        )
    )
    facts.append(("Seed", str(record.seed)))
    facts.append(("Hardware", hardware_text(record.hardware) or "not recorded"))
    if record.parents:
        facts.append(
            (
                "Derived from",
                "; ".join(_joined(p.get("name"), p.get("role"), str(p.get("hash", ""))[:12]) for p in record.parents),
            )
        )
    facts.append(("Started", record.created or "not recorded"))
    facts.append(("Finished", record.finished or f"no ({record.status})"))
    return facts


def hardware_text(hardware: Mapping[str, Any]) -> str:
    """The hardware in one line, in the order it was recorded."""
    return ", ".join(f"{k.replace('_', ' ')}: {setting(v)}" for k, v in hardware.items() if v not in (None, "", [], {}))


def _joined(*parts: Any) -> str:
    return " · ".join(str(p) for p in parts if p)


def _missing(
    record: RunRecord, rows: Sequence[Row], levels: Sequence[Level], metrics: Sequence[Mapping[str, Any]]
) -> list[str]:
    missing = []
    if not rows and not levels:
        missing.append("No evaluation lies in this folder: what the model learnt and lost was not measured.")
    elif not rows:
        missing.append(
            "Only one of the two models was evaluated, or the two were not compared; the figures below stand alone."
        )
    for suite, purpose in (("target", "what was to be learnt"), ("source", "what was to be kept")):
        if rows and not any(r.raw.suite == suite for r in rows):
            missing.append(f"No {suite} measure was compared, so this report cannot say anything about {purpose}.")
    if not metrics:
        missing.append("No training step was logged.")
    if not record.distance:
        missing.append("The distance from the starting weights was not recorded.")
    return missing
