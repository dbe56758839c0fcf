"""Paper 004 again, small: its study on the embedded world, and its claims held against what came out.

output_dir/
  residual/       the study, with its report.html
  claims.json     every claim: the paper's figure, ours, the verdict
  claims.html     the same as a page
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.errors import ConfigError, DataError, HoldfastError, Interrupted
from holdfast.records.residual import RECORD_FILE, ResidualRecord, read_update
from holdfast.studies.claims import Claim
from holdfast.studies.residual.claims import READING, RECIPE, check_claims
from holdfast.support.environment import hardware, now, say, versions
from holdfast.support.files import to_jsonable, write_json

PAPER = "Balancing Continuous Pre-Training and Instruction Fine-Tuning (the instruction residual)"
CLAIMS_FILE, PAGE = "claims.json", "claims.html"
QUICK: dict[str, Any] = {
    "world": {"quick": True, "sibling": True, "derived": True},
    "budgets": [300, 600],
    "seeds": [0],
    "held_out": 0.2,
    "window": 64,
    "epochs": 1,
}
"""A study of a minute that only shows that everything works."""


def recipe_file(name: str = "tiny") -> Path:
    """A study file of paper 004, as it comes with the package; `configs/residual/` shows the same files.

    Raises:
        ConfigError: no such file.
    """
    path = Path(__file__).resolve().parents[1] / "recipes" / "residual" / f"{name}.yaml"
    if not path.is_file():
        known = sorted(p.stem for p in path.parent.glob("*.yaml"))
        raise ConfigError(f"recipes: expected one of {', '.join(known)}, got '{name}'.")
    return path


def reproduce(
    *,
    quick: bool = False,
    workers: int | None = None,
    output_dir: str | os.PathLike[str] = "reproduce-residual",
    console: Any = None,
) -> list[Claim]:
    """Runs the small study, or continues it, and checks the claims about it.

    Args:
        quick: a study of a minute; its verdicts mean nothing.
        workers: models at a time; None: as the machine says.
        output_dir: gets the study, claims.json and claims.html.
        console: a `rich.console.Console`; None: a new one on standard output.

    Returns:
        The claims, as in claims.json.

    Raises:
        ConfigError: the folder holds another study (what differs).
        Interrupted: Ctrl-C; the same call continues. The claims are written as far as they can be told.
        HoldfastError: models failed, after the others were made and the claims were written.
    """
    import yaml
    from rich.console import Console

    from holdfast.studies.residual.grid import run_study
    from holdfast.studies.residual.plan import study_config

    console = console or Console()
    out = Path(output_dir)
    path = recipe_file()
    values = {
        **yaml.safe_load(path.read_text(encoding="utf-8")),
        "name": RECIPE,
        "output_dir": str(out / RECIPE),
        **(QUICK if quick else {}),
    }
    config = study_config(values, source=path.name)
    record = _on_disk(out / RECIPE)
    failure: HoldfastError | None = None
    try:
        if record is not None and record.status == "finished" and not config.differences(record.config):
            say(console, "The study is finished; nothing is run again.")
        else:
            record = run_study(config, console=console, workers=workers)
    except (ConfigError, DataError):
        raise
    except Interrupted:
        _write(out, _on_disk(out / RECIPE), quick=quick)
        raise
    except HoldfastError as error:
        failure, record = error, _on_disk(out / RECIPE)
    claims = _write(out, record, quick=quick)
    _print(claims, console)
    say(console, f"\nPage: {out / PAGE}")
    if failure is not None:
        raise failure
    return claims


def _print(claims: Sequence[Claim], console: Any) -> None:
    from holdfast.studies.reproduce import print_claims

    print_claims(claims, console)


def _on_disk(folder: Path) -> ResidualRecord | None:
    if not (folder / RECORD_FILE).is_file():
        return None
    try:
        return read_update(folder)
    except (DataError, KeyError, TypeError, ValueError):
        return None


def _write(out: Path, record: ResidualRecord | None, *, quick: bool) -> list[Claim]:
    from holdfast.reports.claims_report import write_claims_report

    claims = check_claims(record)
    study = {
        "status": "not run" if record is None else record.status,
        "report": f"{RECIPE}/report.html" if (out / RECIPE / "report.html").is_file() else None,
        "seeds": [] if record is None else sorted({m.seed for m in record.models}),
        "trials": 0 if record is None else sum(m.state == "complete" for m in record.models),
        "target": "instructions followed, held-out new text",
        "source": "old knowledge, prose",
    }
    found = {
        "paper": PAPER,
        "size": "quick" if quick else "small twins",
        "created": now(),
        "studies": {RECIPE: study},
        "claims": [dataclasses.asdict(claim) for claim in claims],
        "reading": list(READING),
        "versions": versions(),
        "hardware": hardware(),
    }
    write_json(out / CLAIMS_FILE, found)
    write_claims_report(to_jsonable(found), out / PAGE)
    return claims
