"""A plugin: how long each package of tests took, against the budget that keeps `make test` under five minutes on two
cores."""

from __future__ import annotations

from collections import Counter
from pathlib import PurePosixPath

import pytest

BUDGETS = {
    "runs": 140,
    "laws": 130,
    "papers": 85,
    "evaluation": 85,
    "checkpoints": 70,
    "cli": 60,
    "studies": 60,
    "training": 48,
    "retention": 30,
    "data": 25,
    "reports": 22,
    "config": 12,
    "ops": 10,
    "support": 10,
    "statistics": 8,
    "(top)": 5,
    "records": 2,
}
"""Seconds of one worker for the tests that `make test` runs; the sum is what three workers have in five minutes on two
cores, without the start."""


class Durations:
    """Sums the durations of setup, call and teardown by package; with xdist the controller gets every worker's
    reports."""

    def __init__(self) -> None:
        self.fast: Counter[str] = Counter()
        self.slow: Counter[str] = Counter()
        self.tests: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        folders = PurePosixPath(report.nodeid.split("::")[0]).parts
        package = folders[1] if len(folders) > 2 else "(top)"
        package = "checks" if folders[0] == "checks" else package
        (self.slow if "slow" in report.keywords else self.fast)[package] += report.duration
        self.tests[package] += report.when == "call"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if sum(self.fast.values()) + sum(self.slow.values()) < 20:  # a few tests: nobody asks
            return
        terminalreporter.section("seconds per package")
        for package in sorted(self.tests, key=lambda p: -self.fast[p] - self.slow[p]):
            seconds, budget = self.fast[package], BUDGETS.get(package)
            words = f"{package:14}{self.tests[package]:6} tests {seconds:7.1f} s"
            words += f" of {budget:4}" if budget else "  no budget: give it one in tests/durations.py"
            if budget and seconds > budget:
                words += "  OVER"
            terminalreporter.line(words + (f"   slow {self.slow[package]:7.1f} s" if self.slow[package] else ""))


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # the controller, or the only process
        config.pluginmanager.register(Durations(), "seconds per package")
