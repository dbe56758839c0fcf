"""A leaderboard run, or continued: the trade-off study of every track, then record, page and Markdown.

Nothing of the studies is done here: queue, workers, resuming and growing grids are those of `studies.tradeoff`.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterator
from typing import Any

from holdfast.errors import ConfigError, DataError, HoldfastError, RunFolderError, first_line
from holdfast.records.leaderboard import ASKED_FILE, LEADERBOARD_FILE, LeaderboardRecord, write_leaderboard
from holdfast.records.study import StudyRecord
from holdfast.studies.engine.study import PAGE, refuse_foreign
from holdfast.studies.leaderboard.figures import leaderboard_record
from holdfast.studies.leaderboard.settings import LeaderboardConfig, TrackConfig
from holdfast.support.environment import hardware, now, say, versions
from holdfast.support.files import fingerprint, read_as, write_bytes_atomic

MARKDOWN = "README.md"
MARKERS = (LEADERBOARD_FILE, ASKED_FILE)
"""Files by which a folder is known to be a leaderboard's."""


def run_leaderboard(
    config: LeaderboardConfig, *, console: Any = None, workers: int | None = None, grace: float = 60.0
) -> LeaderboardRecord:
    """Runs a leaderboard to its end, or continues it: tracks in order, what is finished is not computed again.

    Args:
        config: see `settings.load_leaderboard`.
        console: a `rich.console.Console` for progress; None: a new one on standard output.
        workers: runs at a time on this machine; None: as the settings or the machine say.
        grace: as of `run_study`.

    Returns:
        The record, as in leaderboard.json.

    Raises:
        ConfigError: a track was begun with other settings.
        RunFolderError: the folder is another's.
        Interrupted: Ctrl-C; the same call continues. What there is was written.
        HoldfastError: runs failed (which), after the others ended and everything was written.
    """
    from rich.console import Console

    from holdfast.studies.tradeoff.session import run_study

    console = console or Console()
    refuse_foreign(config.output_dir, MARKERS, "leaderboard")
    write_asked(config)
    failures: list[str] = []
    try:
        for number, track in enumerate(config.tracks, 1):
            where = f"Track {number} of {len(config.tracks)}: {track.name}"
            if track.study is None:
                say(console, f"{where} is read from {track.record}.")
                continue
            say(console, where)
            try:
                run_study(track.study, console=console, workers=workers, grace=grace)
            except (ConfigError, DataError, RunFolderError):
                raise
            except HoldfastError as error:
                if error.exit_code == 130:
                    raise
                failures.append(f"{track.name}: {error}")
                say(console, f"{track.name} failed. {first_line(error)}")
    finally:
        record = finish(config)
    if failures:
        raise HoldfastError("\n".join([*failures, "The same command tries them again."]))
    return record


def write_asked(config: LeaderboardConfig) -> None:
    """Writes leaderboard.yaml, by which the leaderboard is continued and added to."""
    import yaml

    config.output_dir.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump(config.resolved, sort_keys=False, allow_unicode=True, width=150)
    write_bytes_atomic(config.output_dir / ASKED_FILE, text.encode())


def record_of(config: LeaderboardConfig) -> LeaderboardRecord:
    """The leaderboard as it is now, from the tracks' records.

    Raises:
        DataError: a record cannot be read.
    """
    studies = {t.name: (_folder(t, config), _study(t)) for t in config.tracks}
    about = {"config": config.resolved, "versions": versions(), "hardware": hardware()}
    return leaderboard_record(studies, name=config.name, created=now(), **about)


def finish(config: LeaderboardConfig) -> LeaderboardRecord:
    """Writes record, page and Markdown of what there is; returns the record."""
    from holdfast.reports.html import write_page
    from holdfast.reports.leaderboard_report import leaderboard_markdown, leaderboard_page

    record = record_of(config)
    write_leaderboard(config.output_dir, record)
    write_page(leaderboard_page(record), config.output_dir / PAGE)
    write_bytes_atomic(config.output_dir / MARKDOWN, leaderboard_markdown(record).encode())
    return record


def _folder(track: TrackConfig, config: LeaderboardConfig) -> str:
    place = track.file.parent
    return place.relative_to(config.output_dir).as_posix() if place.is_relative_to(config.output_dir) else str(place)


def _study(track: TrackConfig) -> StudyRecord | None:
    return read_as(track.file, StudyRecord) if track.file.is_file() else None


# ----------------------------------------------------------------------------------------------------------- beforehand


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ahead:
    """What is to be done on a track, as far as that is known."""

    track: str
    status: str
    ways: int
    """Direct fine-tuning among them."""
    trials: int
    runs: int
    """Trials times seeds, without what grids grow by."""
    most: int
    """The same with all that they may grow by."""
    done: int
    """Runs that are finished."""
    failed: int
    """Trials."""
    seconds: float | None
    """Of one run: the mean of those that are finished; None without any."""

    @property
    def left(self) -> int:
        """Runs."""
        return max(0, self.runs - self.done)


def ahead(config: LeaderboardConfig) -> list[Ahead]:
    """What every track still needs; of one that is read from a record nothing."""
    return list(_each(config))


def _each(config: LeaderboardConfig) -> Iterator[Ahead]:
    for track in config.tracks:
        record, study = _study(track), track.study
        held = [t for t in record.trials if t.state != "lost" and t.continued_by is None] if record else []
        seconds = [r.seconds for t in held for r in t.runs]
        failed = sum(t.state == "failed" for t in held)
        done, trials, missing = len(seconds), len(held), 0
        seeds = len(record.seeds) if record else 0
        most, ways = trials * seeds, len({t.way or t.kind for t in held})
        if study is not None:
            space, seeds = study.space, len(study.seeds)
            asked = [fingerprint(params) for params in ({}, *study.trials())]
            there = [fingerprint(t.params) for t in held]
            missing = len({*asked} - {*there})
            ways = len({space.way({"method": a.name}) for a in space.alternatives} | {"direct fine-tuning"})
            ends = 0
            for alternative in space.alternatives:
                strengths, lengths = space.strengths(alternative), space.parameters(alternative)
                for name in list(strengths)[:1]:
                    others = math.prod(len(v.tried()) for n, v in lengths.items() if n != name)
                    ends += 2 * study.search.extend * others
            grown = len({*there} - {*asked})
            trials = len(asked) + grown
            most = (len(asked) + max(ends, grown)) * seeds
        finished = record is not None and record.status == "finished" and not missing
        yield Ahead(
            track=track.name,
            status="not begun" if record is None else "not finished" if missing else record.status,
            ways=ways,
            trials=trials,
            runs=done if study is None else trials * seeds,
            most=done if finished or study is None else most,
            done=done,
            failed=failed,
            seconds=statistics.fmean(seconds) if seconds else None,
        )


def time_left(tracks: list[Ahead], workers: int) -> float | None:
    """Seconds that the runs that are left take with so many workers, grids that grow aside; None where a track has runs
    left and none is finished to say how long one takes."""
    if any(t.left and t.seconds is None for t in tracks):
        return None
    return sum(t.left * (t.seconds or 0.0) for t in tracks) / max(1, workers)
