"""A forecast: what the first steps of a fine-tune showed of the model's drift (`forecast.json` of a run), what is
expected of the run's end, and the predictor that expects it, as `holdfast forecast fit` writes it."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from holdfast.records.comparison import Comparison
from holdfast.records.evaluation import SCHEMA
from holdfast.support.files import fingerprint, read_as, write_json

RUN_FILE = "forecast.json"
"""In a run's folder."""
SUITE = "source"
"""What is forecast: what is to be kept."""
RUNS = "runs"
"""What is held out where a predictor is tested on runs that it was not fitted on."""
POINTS, NATS = "points", "nats/token"
"""Units of a loss: of shares such as accuracy, and of held-out text."""


@dataclass(frozen=True, kw_only=True)
class TextSigns:
    """How the model has changed on one text, in nats a token over the tokens that were looked at."""

    entry: str
    """ "suite/name"."""
    loss: float
    """Of the model that the run starts from."""
    rise: float
    """How much more it is now."""
    kl: float
    """KL of the present distributions to the start's, `KL(start || now)`."""
    fisher: float
    """The way gone so far in the metric of the text's Fisher information, `d' F d`: mean squared change of the log
    probability of the text's tokens."""
    noise: float
    """KL of the start to itself under noise of a fixed relative size: how easily it is moved."""


@dataclass(frozen=True, kw_only=True)
class EarlySigns:
    """What can be seen of a run after its first steps."""

    step: int
    steps: int
    """Of the whole run."""
    ahead: float
    """Sum of the learning rates of all steps over the sum of those taken."""
    distance: float
    """Of the weights from the start, relative to their norm."""
    fall: float
    """How much lower the loss on rows that are trained on is than the start's, nats a token."""
    kl: float
    """KL to the start on these rows, nats a token."""
    parameters: int
    method: str
    """How it is fine-tuned, in words: the methods with their parameters, or "direct fine-tuning"; and whether by an
    adapter."""
    texts: list[TextSigns]

    @property
    def fingerprint(self) -> str:
        """Tells runs apart wherever their folders lie: no two runs drift alike in every digit."""
        return fingerprint(self, length=16)


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What is expected of one entry at the end of the run."""

    entry: str
    """ "suite/name"."""
    unit: str
    """`NATS` or `POINTS`."""
    loss: float | None
    """How much worse than the start; below 0 better. None where nothing can be said."""
    interval: tuple[float, float] | None
    why: str = ""
    """Why nothing can be said."""


@dataclass(frozen=True, kw_only=True)
class RunForecast:
    """forecast.json of a run."""

    signs: EarlySigns
    expected: list[Expected]
    level: float
    """Of the intervals."""
    predictor: str
    """What it was fitted on, in words; "" where there was none."""
    elsewhere: float | None = None
    """Coverage of the intervals, measured with each kind of data left out of the fit, of the unit where it is smallest;
    None: not measured."""
    schema: int = SCHEMA

    @staticmethod
    def in_folder(folder: str | os.PathLike[str]) -> RunForecast | None:
        """A run's forecast; None where there is none.

        Raises:
            DataError: it cannot be read.
        """
        file = Path(folder) / RUN_FILE
        return read_as(file, RunForecast) if file.is_file() else None


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """How well runs are predicted that differ from all that were fitted on, in one respect."""

    axis: str
    """"data", "model", "learning rate", "method" or `RUNS`."""
    unit: str
    values: int
    """Of the axis, each held out once; of `RUNS` the methods that were predicted."""
    rows: int
    """Predicted: an entry of a run each."""
    refused: int
    """Left without a forecast: outside what was fitted on."""
    r2: float
    """Of the losses, 1 - squared errors over squared deviations from their mean; NaN of fewer than two rows."""
    r2_scaled: float
    """Likewise of `asinh(loss / resolution)`, in which small losses count like large ones."""
    coverage: float
    """Share of the rows whose loss lies in its interval."""
    width: float
    """Median width of the intervals."""
    error: float
    """Median absolute error."""


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """One entry of a run, predicted by what was fitted without its likes."""

    axis: str
    unit: str
    value: str
    """Of the axis, held out."""
    run: str
    entry: str
    came: float
    loss: float
    interval: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Linear:
    """A ridge regression of `asinh(loss / resolution)` on standardised features."""

    unit: str
    features: list[str]
    resolution: float
    centre: list[float]
    scale: list[float]
    weights: list[float]
    intercept: float
    penalty: float
    half: float
    """Half-width of an interval, in the regression's units: the `level` quantile of the errors on groups of runs that
    were left out of the fit."""
    low: list[float]
    high: list[float]
    """Of each feature among the runs that it was fitted on."""
    rows: int
    groups: int
    """Of runs that differ by more than their seed."""


@dataclass(frozen=True, kw_only=True)
class Predictor:
    """What `holdfast forecast fit` writes."""

    about: str
    """What it was fitted on, in words."""
    level: float
    parameters: tuple[int, int]
    """Of the smallest and the largest model."""
    methods: list[str]
    """Ways to fine-tune that it knows, see `EarlySigns.method`."""
    fits: list[Linear]
    """One a unit."""
    held_out: list[HeldOut] = field(default_factory=list)
    predicted: list[Predicted] = field(default_factory=list)
    """Behind `held_out`; not in the file."""
    runs: int = 0
    fitted_on: list[str] = field(default_factory=list)
    """Fingerprints of the early signs of the runs, so that no test on them passes for one on others; empty in files of
    before 2026-11-28."""
    notes: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    schema: int = SCHEMA

    def fit(self, unit: str) -> Linear | None:
        """The regression of a unit."""
        return next((fit for fit in self.fits if fit.unit == unit), None)


def read_predictor(path: str | os.PathLike[str]) -> Predictor:
    """A predictor.

    Raises:
        DataError: not there, or not one.
    """
    return read_as(path, Predictor)


def write_predictor(path: str | os.PathLike[str], predictor: Predictor) -> Path:
    """Writes a predictor, atomically, without the single predictions that its tests are made of."""
    return write_json(path, replace(predictor, predicted=[]))


def loss_in(comparison: Comparison, unit: str) -> float:
    """How much worse the result is than the start.

    Args:
        comparison: of one measure.
        unit: `NATS`, or `POINTS` for a share.
    """
    return -comparison.gain * (100.0 if unit == POINTS else 1.0)


def pooled(texts: list[TextSigns]) -> TextSigns:
    """The mean over texts, for what is measured on none of them."""
    names = ("loss", "rise", "kl", "fisher", "noise")
    means = {n: math.fsum(getattr(t, n) for t in texts) / len(texts) if texts else math.nan for n in names}
    return TextSigns(entry="", **means)
