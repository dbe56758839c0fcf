"""`python -m holdfast.evaluation.worker`: one of the processes that `evaluate_models` launches. It
receives the request from the main process and prints nothing but an error."""

from __future__ import annotations

import sys
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.evaluation.processes import join_launched
from holdfast.support.own_code import load_own
from holdfast.support.progress import ProgressDisplay


def main() -> int:
    """Receives a request, measures this process's share of it, and returns the exit code."""
    from rich.console import Console

    from holdfast.evaluation.session import evaluate_models

    processes = join_launched()
    nothing: Any = None
    for reference in processes.broadcast(lambda: nothing):
        load_own(reference)
    request = processes.broadcast(lambda: nothing)
    try:
        evaluate_models(
            **request, processes=processes, display=ProgressDisplay(console=Console(quiet=True))
        )
    except HoldfastError as error:
        sys.stderr.write(f"{error}\n")  # a file, whose end the main process shows
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
