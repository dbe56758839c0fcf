"""The table of `benchmarks/real_model.py`, made from its rows: Markdown, a record a target, and the outcome that claims
are checked against.

    python benchmarks/real_model_table.py            # docs/examples/real_model: README.md, *.json; and
                                                     # docs/outcomes/label-annealing-real.json, for docs/claims.md

Every figure is a difference to the start on the same samples. *Beside direct* is what a method is worth: the source
loss of the line of direct learning rates at the method's own target, minus the method's. The line goes from the start
through the rates in ascending order, straight between two; where it reaches a target more than once, its smallest loss
counts, so that a method is held against the best rate; a run of one seed against direct runs of that seed. Intervals
(95 %) draw documents with replacement, the same ones for all runs and seeds; seeds are averaged before. They do not
cover the choice of a run among many.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from real_model import RATE, RESULTS, ROOT, SEEDS, runs, seeds_of

TABLE = ROOT / "docs" / "examples" / "real_model"
"""Where table and records of the committed study are."""
TARGETS = {"gsm8k": ("learn", "answers"), "articles": ("learn", "facts")}
VALIDATION = {"gsm8k": ("validation", "answers_validation"), "articles": ("validation", "facts_validation")}
TEXTS = (("keep", "conversations"), ("keep", "peps"), ("keep", "handbook"))
METRIC = "nats_per_token"
TITLES = {
    "gsm8k": "GSM8K: 256 problems, one epoch, near what the model knows",
    "articles": "Dated articles about people who do not exist, three epochs, far from what it knows",
}
SHARES: dict[str, tuple[tuple[str, str, str], ...]] = {
    "gsm8k": (
        ("gsm8k", "exact_match,strict-match", "GSM8K strict"),
        ("gsm8k", "exact_match,flexible-extract", "flexible"),
    ),
    "articles": (("facts_asked", "acc", "facts, 4-way"), ("facts_in_chat", "acc", "in chat")),
}
SOURCES = (
    ("arc_easy", "acc", "ARC-Easy"),
    ("piqa", "acc", "PIQA"),
    ("hellaswag", "acc", "HellaSwag"),
    ("ifeval", "prompt_level_loose_acc", "IFEval"),
)
NEEDED_LOSS = 0.01
"""Nats per token that direct fine-tuning has to lose of the source at its tuned rate."""
DRAWS = 4000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arm:
    """The rows of one way of fine-tuning, by seed."""

    name: str
    rows: dict[int, dict[str, Any]]

    @property
    def rate(self) -> float:
        return float(next(iter(self.rows.values()))["rate"])

    @property
    def direct(self) -> bool:
        return self.name.startswith("direct-")

    def of(self, seeds: Collection[int]) -> Arm:
        """The runs of some seeds alone."""
        return Arm(name=self.name, rows={seed: self.rows[seed] for seed in sorted(seeds)})

    @property
    def label(self) -> str:
        row = next(iter(self.rows.values()))
        methods = ", ".join(
            f"{name} {' '.join(f'{k} {v}' for k, v in about.items() if k not in ('teacher', 'data'))}".strip()
            for method in row["retention"]
            for name, about in method.items()
        )
        if "alpha" in row:
            return f"WiSE-FT {row['alpha']:g} of direct, {self.rate:g}"
        if row["settings"].get("use_peft"):
            methods = f"LoRA, rank {row['settings']['lora_r']}"
        elif "loss_type" in row["settings"]:
            methods = "DFT"
        return f"{methods.replace('_', ' ') or 'direct'}, {self.rate:g}"


def read_arms(results: Path, target: str) -> tuple[dict[str, Any], list[Arm]]:
    """The start's row, and every arm that has a row, in the order of the plan.

    Raises:
        SystemExit: nothing was measured yet, or rows of different starts lie side by side.
    """
    from holdfast.support.files import read_object

    folder = results / "rows" / target
    if not (folder / "start.seed-0.json").is_file():
        raise SystemExit(f"Expected rows in {folder}, found none. Run benchmarks/real_model.py first.")
    names = []
    for run in runs(target):
        names += [run.name, *(f"wise_ft-{alpha:g}" for alpha in run.halfway)]
    found = []
    for name in names:
        rows = {
            seed: read_object(folder / f"{name}.seed-{seed}.json")
            for seed in SEEDS
            if (folder / f"{name}.seed-{seed}.json").is_file()
        }
        if rows:
            found.append(Arm(name=name, rows=rows))
    return read_object(folder / "start.seed-0.json"), found


# ------------------------------------------------------------------------------------------------------------ figures


class Texts:
    """Nats per token of texts for the start and every arm, with joint draws of documents.

    Args:
        start: its row.
        arms: at least one.
        entries: (suite, name) of the texts; their figures are averaged.
    """

    def __init__(self, start: Mapping[str, Any], arms: Sequence[Arm], entries: Sequence[tuple[str, str]]) -> None:
        point, drawn = [], []
        for entry in entries:
            columns = [_columns(start, entry)]
            columns += [
                np.mean([_columns(row, entry) for row in arm.rows.values()], axis=0, dtype=np.float64) for arm in arms
            ]
            sheet = np.stack(columns)  # [1 + arms, documents, 2]
            if not np.array_equal(sheet[0, :, 1], sheet[-1, :, 1]):
                raise SystemExit(f"{entry}: the runs did not read the same tokens.")
            rng = np.random.default_rng(sum(entry[1].encode()))
            n = sheet.shape[1]
            counts = rng.multinomial(n, np.full(n, 1 / n), size=DRAWS).astype(np.float64)
            point.append(_change(sheet.sum(1)))
            drawn.append(_change(np.einsum("bd,adk->bak", counts, sheet)))
        self.change = np.mean(point, axis=0)
        """`[arms]`: difference to the start, nats per token."""
        self.draws = np.mean(drawn, axis=0)
        """`[DRAWS, arms]`: the same of resampled documents."""


def _columns(row: Mapping[str, Any], entry: tuple[str, str]) -> np.ndarray:
    """`[documents, 2]`: nats and tokens."""
    columns = _entry(row, entry)["columns"]
    return np.stack([np.asarray(columns["nats"], float), np.asarray(columns["tokens"], float)], axis=1)


def _entry(row: Mapping[str, Any], entry: tuple[str, str]) -> Mapping[str, Any]:
    return next(e for e in row["entries"] if (e["evaluation"]["suite"], e["evaluation"]["name"]) == entry)


def _change(sums: np.ndarray) -> np.ndarray:
    """Nats per token of each arm minus the start's, of sums `[..., 1 + arms, 2]`."""
    figures = sums[..., 0] / sums[..., 1]
    return figures[..., 1:] - figures[..., :1]


def interval(draws: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(low), float(high)


def beside_direct(gain: np.ndarray, loss: np.ndarray, line: Sequence[int]) -> np.ndarray:
    """By how much the line of direct rates loses more of the source than each run, at the run's own learn gain.

    Args:
        gain: `[..., arms]` nats that each gained on the target.
        loss: `[..., arms]` nats that each lost of the source.
        line: places of the direct runs by ascending rate.

    Returns:
        `[..., arms]`; NaN where no point of the line learns as much.
    """
    points = 200
    zeros = np.zeros((*gain.shape[:-1], 1))
    along, lost = (np.concatenate([zeros, values[..., list(line)]], axis=-1) for values in (gain, loss))
    share = np.linspace(0.0, 1.0, points)
    gains = np.concatenate(
        [along[..., i, None] * (1 - share) + along[..., i + 1, None] * share for i in range(len(line))], axis=-1
    )
    losses = np.concatenate(
        [lost[..., i, None] * (1 - share) + lost[..., i + 1, None] * share for i in range(len(line))], axis=-1
    )
    reached = gains[..., None, :] >= gain[..., :, None] - 1e-12
    least = np.where(reached, losses[..., None, :], np.inf).min(-1)
    return np.where(np.isinf(least), np.nan, least) - loss


@dataclasses.dataclass(kw_only=True)
class Table:
    """One target's figures."""

    target: str
    start: dict[str, Any]
    arms: list[Arm]

    def __post_init__(self) -> None:
        there = {e["evaluation"]["name"] for e in self.start["entries"]}
        self.asked, self.kept = (
            [column for column in columns if column[0] in there] for columns in (SHARES[self.target], SOURCES)
        )
        self.learnt = Texts(self.start, self.arms, [TARGETS[self.target]])
        self.validation = Texts(self.start, self.arms, [VALIDATION[self.target]])
        self.lost = Texts(self.start, self.arms, TEXTS)
        self.line = sorted((i for i, a in enumerate(self.arms) if a.direct), key=lambda i: self.arms[i].rate)
        self.worth, self.worth_draws = np.full(len(self.arms), np.nan), np.full((DRAWS, len(self.arms)), np.nan)
        for seeds in {frozenset(arm.rows) for arm in self.arms}:
            self._hold_beside_direct(seeds)

    def _hold_beside_direct(self, seeds: frozenset[int]) -> None:
        """Runs of these seeds against direct fine-tuning of the same ones: seeds are compared as pairs."""
        places = [i for i, arm in enumerate(self.arms) if arm.rows.keys() == seeds]
        line = [arm.of(seeds) for arm in (self.arms[i] for i in self.line) if seeds <= arm.rows.keys()]
        if not line:
            return
        held = [*line, *(self.arms[i] for i in places)]
        learnt, lost = Texts(self.start, held, [TARGETS[self.target]]), Texts(self.start, held, TEXTS)
        along, own = range(len(line)), slice(len(line), None)
        self.worth[places] = beside_direct(-learnt.change, lost.change, along)[own]
        self.worth_draws[:, places] = beside_direct(-learnt.draws, lost.draws, along)[:, own]

    @property
    def made(self) -> int:
        """Rows that are there, the start's aside."""
        return sum(len(arm.rows) for arm in self.arms)

    @property
    def planned(self) -> int:
        """Rows of the whole plan."""
        return sum(len(seeds_of(self.target, run)) * (1 + len(run.halfway)) for run in runs(self.target))

    @property
    def tuned(self) -> int | None:
        """The direct run with the best target on validation data; None where there is none yet."""
        return min(self.line, key=lambda i: self.validation.change[i], default=None)

    @property
    def precondition(self) -> str:
        """Whether there is anything to keep, in a sentence."""
        if self.tuned is None:
            return "Direct fine-tuning was not run yet, so nothing can be said."
        low, high = interval(self.lost.draws[:, self.tuned])
        what = (
            f"Direct fine-tuning at its tuned rate ({self.arms[self.tuned].rate:g}, the best of {len(self.line)} on "
            f"validation data) changes the source by {self.lost.change[self.tuned]:+.4f} nats per token "
            f"[{low:+.4f}, {high:+.4f}]"
        )
        if low > NEEDED_LOSS:
            return f"{what}: there is something to keep."
        if high < NEEDED_LOSS:
            return (
                f"{what}, less than the {NEEDED_LOSS} that were asked for beforehand: **at the tuned rate there is "
                f"nothing to keep on this target, and this experiment cannot tell what a method is worth there.** "
                f"Methods at {RATE:g} are held against direct fine-tuning at {RATE:g}, a rate that nobody would choose."
            )
        return f"{what}; whether that is more than {NEEDED_LOSS} cannot be told."

    def cells(self, place: int) -> list[str]:
        """One arm's line of the table."""
        arm = self.arms[place]
        seconds = [row["training_seconds"] for row in arm.rows.values()]
        worth, draws = self.worth[place], self.worth_draws[:, place]
        beside = ""
        if not arm.direct:
            shown = draws[~np.isnan(draws)]
            beside = (
                "learns more than any rate of direct"
                if math.isnan(worth)
                else _with(worth, interval(shown))
                if len(shown) > 0.95 * DRAWS
                else f"{worth:+.3f}"
            )
        texts = [Texts(self.start, [arm], [entry]) for entry in TEXTS]
        return [
            f"**{arm.label}**" if place == self.tuned else arm.label,
            str(len(arm.rows)),
            _with(self.learnt.change[place], interval(self.learnt.draws[:, place])),
            *(self.share(arm, name, metric) for name, metric, _ in self.asked),
            *(f"{text.change[0]:+.3f}" for text in texts),
            _with(self.lost.change[place], interval(self.lost.draws[:, place])),
            beside,
            *(self.share(arm, name, metric) for name, metric, _ in self.kept),
            f"{np.median(seconds) / 60:.0f}",
        ]

    def share(self, arm: Arm, name: str, metric: str) -> str:
        """Points of a share against the start, mean over seeds that were asked, with a star where every seed's paired
        interval excludes 0; a dash where none was."""
        if not any(row["asked"] for row in arm.rows.values()):
            return "-"
        changes = [
            c for row in arm.rows.values() for c in row["comparisons"] if (c["name"], c["metric"]) == (name, metric)
        ]
        if not changes:
            raise SystemExit(f"{arm.name}: {name} has no {metric}.")
        shown = all(c["interval"][0] > 0 or c["interval"][1] < 0 for c in changes)
        return f"{100 * np.mean([c['difference'] for c in changes]):+.1f}{'*' if shown else ''}"

    def markdown(self) -> str:
        first = [
            "start",
            "",
            f"{_value(self.start, TARGETS[self.target], METRIC):.3f}",
            *(f"{100 * _value(self.start, ('target', n), m):.1f} %" for n, m, _ in self.asked),
            *(f"{_value(self.start, entry, METRIC):.3f}" for entry in TEXTS),
            "",
            "",
            *(f"{100 * _value(self.start, ('source', n), m):.1f} %" for n, m, _ in self.kept),
            "",
        ]
        heads = [
            "",
            "seeds",
            "learn",
            *(title for *_, title in self.asked),
            "conversations",
            "PEPs",
            "handbook",
            "mean of the three",
            "beside direct",
            *(title for *_, title in self.kept),
            "min",
        ]
        lines = [heads, ["---", *("--:" for _ in heads[1:])], first, *(self.cells(i) for i in range(len(self.arms)))]
        table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        progress = f"{self.made} of {self.planned} rows are made so far.\n\n" if self.made < self.planned else ""
        return f"## {TITLES[self.target]}\n\n{progress}{self.precondition}\n\n{table.replace('+-', '-')}\n"


def _value(row: Mapping[str, Any], entry: tuple[str, str], metric: str) -> float:
    return float(_entry(row, entry)["evaluation"]["metrics"][metric]["value"])


def _with(value: float, ends: tuple[float, float]) -> str:
    return f"{value:+.3f} [{ends[0]:+.3f}, {ends[1]:+.3f}]"


# ------------------------------------------------------------------------------------------------------------- records


def study_of(table: Table) -> Any:
    """The arms as a trade-off study, for pages and claims: tuned direct fine-tuning first."""
    from holdfast.records.comparison import Comparison
    from holdfast.records.evaluation import Evaluation
    from holdfast.records.study import FINISHED, Objective, SeedRun, StudyRecord, TrialRecord
    from holdfast.statistics.estimates import TEXT_FIGURES
    from holdfast.statistics.samples_part import Contributions, correlation
    from holdfast.studies.sweep.trial import references_of

    planned = {run.name: seeds_of(table.target, run) for run in runs(table.target)}
    seeds = [s for s in SEEDS if all(s in arm.rows for arm in table.arms if s in planned.get(arm.name, SEEDS))]
    short = [arm for arm in table.arms if not set(seeds) <= set(arm.rows)]
    suite, name = TARGETS[table.target]
    levels = references_of([Evaluation.from_json(entry["evaluation"]) for entry in table.start["entries"]])

    def objective(side: str, entries: Iterable[tuple[str, str]], label: str) -> Objective:
        named = [(*entry, METRIC) for entry in entries]
        return Objective(side=side, entries=named, label=label, unit="nats/token", higher_is_better=False)

    whole = [i for i, arm in enumerate(table.arms) if arm not in short]
    order = sorted(whole, key=lambda i: i != table.tuned)
    trials = []
    for number, place in enumerate(order):
        arm = table.arms[place]
        row = arm.rows[seeds[0]]
        methods = [{"wise_ft": {"alpha": row["alpha"]}}] if "alpha" in row else row["retention"]
        kind = "+".join(name for method in methods for name in method)
        kind = kind or ("lora" if row["settings"].get("use_peft") else arm.name.partition("-")[0])
        strengths = [item for method in methods for about in method.values() for item in about.items()]
        trials.append(
            TrialRecord(
                number=number,
                state=FINISHED,
                kind=kind,
                label=arm.label,
                params={"learning_rate": arm.rate, **{k: v for k, v in strengths if isinstance(v, float)}},
                settings={"learning_rate": arm.rate, **row["settings"], "retention": methods},
                runs=[
                    SeedRun(
                        seed=seed,
                        folder="",
                        host="",
                        seconds=one["seconds"]["wall"],
                        training_seconds=one["training_seconds"],
                        comparisons=[Comparison.from_json(c) for c in one["comparisons"]],
                        references=levels,
                    )
                    for seed, one in arm.rows.items()
                    if seed in seeds
                ],
            )
        )
    first = table.arms[order[0]].rows[seeds[0]]
    target, source = objective("learn", [(suite, name)], name), objective("keep", TEXTS, "mean of three texts")
    chooses = VALIDATION[table.target]

    def contributions(place: int, entry: tuple[str, str]) -> Contributions:
        """Of an arm, mean over the seeds; all rows are of the same documents in one order."""
        of = TEXT_FIGURES[METRIC].influence
        rows = [row for seed, row in table.arms[place].rows.items() if seed in seeds]
        start = of(_columns(table.start, entry))
        values = np.mean([of(_columns(row, entry)) - start for row in rows], axis=0)
        return Contributions(samples=tuple(map(str, range(len(start)))), values=values)

    pairs = [
        correlation((*entry, METRIC), {number: contributions(place, entry) for number, place in enumerate(order)})
        for entry in ((suite, name), chooses, *TEXTS)
    ]

    return StudyRecord(
        name=f"SmolLM2-135M-Instruct on {table.target}",
        status="finished",
        created="",
        config={},
        seeds=seeds,
        learn=target,
        keep=source,
        pairs=[(target, objective("keep", [entry], entry[1])) for entry in TEXTS],
        trials=trials,
        selection={"rule": "knee"},
        validation=objective("validation", [chooses], chooses[1]),
        correlations=[one for one in pairs if one is not None],
        versions=first["versions"],
        hardware=first["hardware"],
        notes=[
            "The model's weights were quantised to 4 bits once (Q4_1) and are dequantised: figures are of that model.",
            *(f"{arm.label} has one seed alone and is left out here." for arm in short),
        ],
    )


def outcome(record: Any) -> dict[str, Any]:
    """What "Memory Retaining Finetuning" claims of mathematics, held against the rows of GSM8K by the rules of every
    study: as claims.json.

    The target is the answers' nats, the source the mean of the three texts, direct fine-tuning the one of its tuned
    rate. Claims that need an arm which the table has not (replay with label annealing) cannot be told.
    """
    from holdfast.papers.claims.reproduction import claims_record
    from holdfast.papers.label_annealing.claims import check_claims
    from holdfast.papers.label_annealing.paper import PAPER

    about = {"seeds": record.seeds, "trials": len(record.trials)}
    claims = check_claims({"math": record})
    return claims_record(PAPER, record.name, claims, **about, versions=record.versions, hardware=record.hardware)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the rows are")
    parser.add_argument("--partial", action="store_true", help="record and outcome of a table that is not whole, too")
    options = parser.parse_args(arguments)

    from holdfast.support.files import write_bytes_atomic, write_json

    place = TABLE if options.results == RESULTS else options.results
    texts = []
    for target in TARGETS:
        if not (options.results / "rows" / target / "start.seed-0.json").is_file():
            continue
        start, arms = read_arms(options.results, target)
        if not any(arm.direct for arm in arms):
            continue
        table = Table(target=target, start=start, arms=arms)
        texts.append(table.markdown())
        if table.made < table.planned and not options.partial:
            continue
        record = study_of(table)
        record.write(place / target)
        if target == "gsm8k" and place == TABLE:
            write_json(ROOT / "docs" / "outcomes" / "label-annealing-real.json", outcome(record))
    if not texts:
        raise SystemExit(f"Expected rows in {options.results}, found none. Run benchmarks/real_model.py first.")
    head = (TABLE / "head.md").read_text(encoding="utf-8")
    write_bytes_atomic(place / "README.md", "\n".join([head, *texts]).encode())
    print(place / "README.md")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
