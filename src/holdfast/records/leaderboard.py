"""Plain records of a leaderboard: ways of fine-tuning on several tracks, each at its own best settings. JSON on disk,
no torch.

```
leaderboard.json           LeaderboardRecord, computed anew from the tracks' study.json whenever it is asked for
leaderboard.yaml           what was asked for, the rows that were added later among it
<track>/                   the track's trade-off study, a folder as `holdfast sweep` leaves it
report.html  README.md     what people read
```

A *way* is one of fine-tuning: direct, or an alternative with its methods and settings, without what is tuned. *Avoided*
is the share of direct fine-tuning's source loss that a way does not lose where it has learnt a share (the level) of
direct fine-tuning's target gain.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

from holdfast.records.evaluation import SCHEMA
from holdfast.support.display import Displayed
from holdfast.support.files import read_as, write_json

LEADERBOARD_FILE = "leaderboard.json"
ASKED_FILE = "leaderboard.yaml"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """A figure with its interval at 95 %."""

    value: float | None
    """None where it cannot be had."""
    interval: tuple[float, float] | None = None
    reason: str | None = None
    """Why there is no value, or no interval."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AtLevel:
    """A way where it has learnt a share of direct fine-tuning's gain."""

    level: float
    """The share of the gain, 0 to 1."""
    avoided: Estimate
    """1 is all of direct fine-tuning's loss. The other settings (a rate) are those that the other seeds choose."""
    setting: str = ""
    """The settings that all seeds together choose, and between which strengths the place lies."""
    text_loss: Estimate | None = None
    """By how much the loss on the source's texts rose there, nats a token; None where the source has none."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """One trial of a curve: gains against the start, more is better, in the sides' own units."""

    label: str
    target: Estimate
    source: Estimate


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curve:
    """Trials that differ in the strength alone, from the weakest on."""

    setting: str
    """What they have in common."""
    points: list[CurvePoint]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One way on one track."""

    way: str
    old_data: str
    """Which old data its methods need; empty: none."""
    keeps: str = ""
    """What it keeps in memory beside the model, its gradients and its optimiser: copies of the trained weights and
    where they lie, a teacher; empty: nothing."""
    trials: int
    complete: int
    """Of the trials; only these count."""
    levels: list[AtLevel]
    """One for each of the leaderboard's; empty where no trial is complete."""
    hypervolume: Estimate
    """Mean share of the loss avoided over all targets from 0 to direct's (`statistics.equal_target.area`)."""
    seconds_a_step: float | None = None
    """Of training, as a multiple of direct fine-tuning's: medians over the runs; None where runs do not say their
    steps."""
    curves: list[Curve] = dataclasses.field(default_factory=list)
    rank: float | None = None
    """By what is avoided at the headline's level, 1 is the best; those that do not reach it share the last ranks. None
    on a track that is not ranked."""
    notes: list[str] = dataclasses.field(default_factory=list)
    """What is missing: trials that failed, grids that do not reach far enough."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Track:
    """One trade-off study with all its ways."""

    name: str
    folder: str
    """Relative to the leaderboard's; of a record that was read, where it lies."""
    status: str
    """Of the study; "not begun" without a record of it."""
    seeds: list[int] = dataclasses.field(default_factory=list)
    runs: int = 0
    """Finished fine-tuning runs."""
    target: str = ""
    source: str = ""
    target_unit: str = ""
    source_unit: str = ""
    direct: str = ""
    """Label of tuned direct fine-tuning, which the shares are of."""
    gained: Estimate | None = None
    """By it on the target, more is better."""
    lost: Estimate | None = None
    """Its gain on the source; negative is forgetting."""
    reason: str | None = None
    """Why nothing can be told on this track; None where it can."""
    ranked: bool = False
    """Whether it counts for the standing: it has seeds enough, and something can be told."""
    rows: list[Row] = dataclasses.field(default_factory=list)
    best: str | None = None
    """The way that avoids most at the headline's level."""
    best_unseen: float | None = None
    """What the best avoids on seeds that did not choose it."""
    notes: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Against:
    """One way against another on a track, at the headline's level, pairs by seed."""

    track: str
    way: str
    rival: str
    role: str
    """"direct": against direct fine-tuning at its own rates; "best": against the track's best way."""
    difference: Estimate
    """In shares of direct fine-tuning's loss, positive where the way is better; the interval is of this pair alone."""
    p_value: float
    """Two-sided."""
    p_adjusted: float
    """For all pairs of this role on the leaderboard, of role "best" those of any two ways (Holm), and for there being
    two roles."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Standing:
    """One way over all ranked tracks."""

    way: str
    old_data: str
    mean_rank: float | None
    """Over the tracks that have it; None without any."""
    tracks: int
    """How many these are."""
    better: list[str]
    """Tracks on which it is better than direct fine-tuning, all pairs accounted for."""
    worse: list[str]
    as_good: list[str]
    """Tracks on which it is the best, or cannot be told from the best."""


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class LeaderboardRecord(Displayed):
    """leaderboard.json."""

    name: str
    created: str
    """ISO 8601, UTC: when it was computed."""
    levels: list[float]
    headline: float
    """The level that ranks and pairs go by."""
    tracks: list[Track]
    against: list[Against]
    standing: list[Standing]
    """By mean rank."""
    level: float = 0.05
    """The chance of any false difference among all pairs."""
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    hardware: dict[str, Any] = dataclasses.field(default_factory=dict)
    schema: int = SCHEMA


def read_leaderboard(folder: str | os.PathLike[str]) -> LeaderboardRecord:
    """The leaderboard in a folder.

    Raises:
        DataError: no leaderboard.json, or one that cannot be read.
    """
    return read_as(Path(folder) / LEADERBOARD_FILE, LeaderboardRecord)


def write_leaderboard(folder: Path, record: LeaderboardRecord) -> Path:
    """Writes leaderboard.json, atomically."""
    return write_json(folder / LEADERBOARD_FILE, record)
