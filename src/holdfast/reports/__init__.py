"""What people read: a page is a list of blocks, a chart is data and marks, and three renderers show the same list.

    format                          numbers, intervals and settings as text
    blocks, charts                  what a page is made of; the one engine that plotly draws from
    study_page                      the frame of studies' pages, and their charts and tables of figures
    html (with page.css, page.js), terminal, markdown    the three renderers
    compared, methods, measured     paired comparisons, methods, evaluation folders, as every page shows them
    run_report, card                one run: page and terminal, model card (along: what was measured on the way)
    study_report, study_text        a trade-off study: page, terminal (arms: runs of one's own, as such a study)
    evaluation_report, comparison_report    models side by side; two models question by question
    evaluation_text, comparison_text                what evaluate and compare print
    flips                           the questions whose answers changed
    update_report                   an update: what was gained, what was kept
    sequence_report                 tasks one after another: the plane of the tasks, forgetting curves
    distance_report                 how far one checkpoint lies from another
    claims_report                   a paper's claims beside what was found
    overtraining_report             what fine-tuning and other changes cost checkpoints of rising budgets

Everything is read from plain records; torch is never imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.reports.card import write_model_card
    from holdfast.reports.distance_report import write_distance_report
    from holdfast.reports.run_report import print_run_summary, write_run_report

_HOMES = {
    "print_run_summary": "run_report",
    "write_distance_report": "distance_report",
    "write_model_card": "card",
    "write_run_report": "run_report",
}

__all__ = [
    "print_run_summary",
    "write_distance_report",
    "write_model_card",
    "write_run_report",
]


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
