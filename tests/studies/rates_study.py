"""A whole study in one file: what does a higher learning rate cost of what must be kept? It has settings, models in two
roles (the base, and one tuned at each rate), figures, a page and a claim; the engine does the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from holdfast.evaluation.compare.folders import compare_folders
from holdfast.evaluation.entries import EvaluationPlan
from holdfast.evaluation.suite import parse_evaluation
from holdfast.papers.claims.claim import Statement
from holdfast.papers.claims.rules import Check, rule
from holdfast.records.base import BaseRecord
from holdfast.records.evaluation import EvaluationFolder
from holdfast.records.figure import Figure, NotMeasured
from holdfast.records.measure import Measure
from holdfast.reports.blocks import Section
from holdfast.reports.html import write_page
from holdfast.reports.study_page import cell, grid, study_page
from holdfast.studies.engine.base import ConfiguredStudy, StudyConfigBase
from holdfast.studies.engine.keys import BaseStudySettings, SeedSettings, ToySettings
from holdfast.studies.engine.recipes import Given, Recipe, Trained, make
from holdfast.studies.engine.study import LABEL, Job, StudyState

RATE = "rate"
COST = Measure(name="cost", unit="nats/token", higher_is_better=False)


@dataclass(frozen=True, kw_only=True)
class RatesSettings(SeedSettings, ToySettings, BaseStudySettings):
    name: str = "rates"
    train: dict[str, Any] = field(default_factory=dict)
    rates: tuple[float, ...] = (1e-3, 1e-2)
    keep: list[Any] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class RatesConfig(StudyConfigBase[RatesSettings]):
    settings_class = RatesSettings

    @property
    def plan(self) -> EvaluationPlan:
        return parse_evaluation({"keep": self.request.keep})[0]

    def recipe(self, rate: float | None, seed: int) -> Recipe:
        if rate is None:
            return Given(model=self.request.train["model_name_or_path"], folder=self.output_dir / "base")
        folder = self.output_dir / f"rate-{rate:g}-seed-{seed}"
        own = {"learning_rate": rate, "seed": seed, "evaluation": {"keep": self.request.keep}, "output_dir": folder}
        return Trained(settings={**self.request.train, **own})

    def jobs(self) -> list[Job]:
        tuned = [Job(attributes={LABEL: f"rate {rate:g}", RATE: rate}) for rate in self.request.rates]
        return [Job(attributes={LABEL: "base", RATE: None}), *tuned]


@dataclass(frozen=True, kw_only=True, repr=False)
class RatesRecord(BaseRecord):
    file: ClassVar[str] = "rates.json"
    folders: dict[str, list[str]] = field(default_factory=dict)
    costs: dict[str, Figure] = field(default_factory=dict)

    @property
    def measured(self) -> Iterator[OneRecord]:
        yield OneRecord(costs=self.costs)


@dataclass(frozen=True, kw_only=True)
class OneRecord:
    """What the claim speaks of: the costs of one study."""

    costs: Mapping[str, Figure]
    where: str = ""
    unit: str = COST.unit

    def behind(self, figure: Figure) -> str:
        return f"{len(figure.by_seed)} seeds"

    def rise(self) -> Figure:
        if len(self.costs) < 2:
            raise NotMeasured("two rates")
        first, *_, last = self.costs.values()
        return last - first


class RatesStudy(ConfiguredStudy[RatesConfig]):
    config_class = RatesConfig
    markers = (RatesRecord.file, "study.db", "logs")

    def make(self, task: Any) -> dict[str, str]:
        config = self.settings
        recipe = config.recipe(task.attributes[RATE], task.seed)
        made = make(recipe, config.plan, cache=config.output_dir / "evaluations", task=task)
        return {"evaluations": str(made.measured.path)}

    def outcome(self, state: StudyState) -> RatesRecord:
        folders = {job.label: [made["evaluations"] for made in self.results(job.attributes)] for job in state.latest}
        return RatesRecord(**state.record_fields(self.settings.resolved), folders=folders)

    def complete(self, record: RatesRecord) -> RatesRecord:
        costs = {}
        (base, *_), *tuned = record.folders.values()
        for label, folders in zip(list(record.folders)[1:], tuned, strict=True):
            pairs = (compare_folders(EvaluationFolder(base), EvaluationFolder(after))[0][0] for after in folders)
            costs[label] = Figure.over_seeds({seed: -pair.gain for seed, pair in enumerate(pairs)})
        return replace(record, costs=costs)

    def page(self, record: RatesRecord) -> Any:
        table = grid(record.costs.items(), {"Rate": lambda item: item[0], "Cost": lambda item: cell(COST, item[1])})
        lead = f"The highest rate costs {COST.text(list(record.costs.values())[-1])}."
        page = study_page(record, "rates", lead, [Section("Costs", [table])], reading=["Lower is better."])
        return lambda path: write_page(page, path)


COSTS_MORE = Check(what="cost, last - first", of=OneRecord.rise, above=0.0, yes="it costs more", no="it costs no more")
RULE = rule("The highest rate costs more than the lowest.", lambda record: record.measured, COSTS_MORE)
CLAIMS = [Statement(number="1", recipe="rates", text="A higher rate costs more.", paper="here", rule=RULE)]
