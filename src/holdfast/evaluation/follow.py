"""`python -m holdfast.evaluation.follow`: one of the processes that `evaluate_models` starts, which is told what to
measure by the leader and says nothing itself."""

from __future__ import annotations

import sys
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.evaluation.entries import EvaluationPlan, OwnEntry
from holdfast.evaluation.processes import Processes, joined
from holdfast.support.own_code import load_own


def tell(processes: Processes, request: dict[str, Any]) -> None:
    """Tells the others what to measure.

    Args:
        processes: as the leader sees them.
        request: arguments of `evaluate_models`.
    """
    plan: EvaluationPlan = request["plan"]
    own = [f"{e.file}:{type(e.own).__qualname__}" for e in plan.entries if isinstance(e, OwnEntry)]
    processes.first(lambda: own)  # before what is of their classes
    processes.first(lambda: request)


def follow() -> int:
    """Measures a share of what the leader tells, and returns the exit code."""
    from rich.console import Console

    from holdfast.evaluation.session import evaluate_models

    processes = joined()
    nothing: Any = None
    for reference in processes.first(lambda: nothing):
        load_own(reference)
    request = processes.first(lambda: nothing)
    try:
        evaluate_models(**request, processes=processes, console=Console(quiet=True))
    except HoldfastError as error:
        sys.stderr.write(f"{error}\n")  # a file that the leader shows the end of
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(follow())
