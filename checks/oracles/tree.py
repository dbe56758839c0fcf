"""Where the package keeps what the oracles read: `module:name`. A move of modules changes this file alone."""

from __future__ import annotations

import pkgutil
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2] / "docs"))  # `claims_page`, which writes docs/claims.md

PAGES = {
    "ladder.json": ("holdfast.papers.ladder.record:read_ladder", "holdfast.papers.ladder.page:ladder_page"),
    "overtraining.json": (
        "holdfast.papers.overtraining.record:read_overtraining",
        "holdfast.papers.overtraining.page:overtraining_page",
    ),
    "probe.json": ("holdfast.records.probe:read_probe", "holdfast.reports.probe_report:probe_page"),
    "sequence.json": ("holdfast.records.sequence:read_sequence", "holdfast.reports.sequence_report:sequence_page"),
    "stages.json": ("holdfast.records.stages:read_stages", "holdfast.reports.stages_report:stages_page"),
}
"""File of a record: what reads its folder, and what makes its page."""
STUDY_FILE = "study.json"
READ_STUDY = "holdfast.records.study:read_study"
STUDY_PAGE = "holdfast.reports.sweep_report:sweep_page"
SELECT_ALL = "holdfast.statistics.selection:select_all"
RUN_FILE = "run.json"
RUN_FOLDER = "holdfast.records.run:RunFolder"
READ_RUN = "holdfast.reports.run_figures:read_run"
RUN_PAGE = "holdfast.reports.run_report:run_page"

CLAIMS = {
    "overtraining.json": "holdfast.papers.overtraining.claims:check_claims",
    "sequence.json": "holdfast.papers.sfa.claims:check_claims",
    "stages.json": "holdfast.papers.stages.claims:check_claims",
    STUDY_FILE: "holdfast.papers.label_annealing.claims:check_claims",
}
"""File of a record: what judges the claims of its paper, given records by the name of their study."""
CLAIM = "holdfast.papers.claims.claim:Claim"
CLAIMS_PAGE = "holdfast.papers.claims.page:claims_page"
PAPERS = "claims_page:known_papers"
CLAIMS_MARKDOWN = "claims_page:claims_page"

STUDIES = {
    "ladder": "holdfast.papers.ladder.plan:LadderConfig.read",
    "overtraining": "holdfast.papers.overtraining.plan:OvertrainingConfig.read",
    "sequence": "holdfast.studies.sequence.plan:SequenceConfig.read",
    "stages": "holdfast.studies.stages.plan:StagesConfig.read",
    "residual": "holdfast.papers.residual.plan:StudyConfig.read",
    "label_annealing": "holdfast.studies.sweep.study:StudyConfig.read",
    "without_old_data": "holdfast.studies.sweep.study:StudyConfig.read",
}
"""Folder below `configs`: what reads its studies."""
SMALL_FILES = "holdfast.studies.engine.toy:placeholder_paths"
RUN_FOLDER_NAME = "holdfast.studies.sweep.names:run_folder_name"

BLOCKS = "holdfast.reports.blocks"
CHARTS = "holdfast.reports.charts"


def load(place: str) -> Any:
    """What stands at `module:name`, or the module."""
    return pkgutil.resolve_name(place)
