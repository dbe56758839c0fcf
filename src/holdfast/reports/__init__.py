"""What people read: one HTML page a run, one a comparison of runs, the same figures in the terminal and in a model
card.

    figures     the numbers of one run as text, and the verdict in one sentence
    arms        the same for several runs over one source and one target
    charts      plotly figures as plain dictionaries
    markup, page (with page.css and page.js)        one self-contained HTML document
    run_report, tradeoff_report, terminal, card     the four things written or printed
    distance_report                 how far one checkpoint lies from another
    evaluation_report, comparison_report    models side by side, two models question by question
    evaluation_charts, flips        their figures, and the questions whose answers changed
    calibration                     whether confidence comes true: error, interval, chance
    comparison_text                 a comparison in a terminal, as Markdown, as JUnit
    study_report (with study_report.css and .js), study_charts, study_figures, study_text
        a trade-off study: page, plots, words, terminal
    residual_report (with residual_report.css), residual_figures, residual_scores, residual_charts, residual_text
        an update or a residual study
    paper_004                       what paper 004 prints, for the pages to put beside ours
    claims_report                   a paper's claims beside what was found
    theory_report, theory_charts    the papers' theories: statements checked, geometry, convergence, frontier

Everything is read from plain records; torch is never imported.
"""

from holdfast.reports.arms import Arm
from holdfast.reports.card import write_model_card
from holdfast.reports.distance_report import write_distance_report
from holdfast.reports.run_report import write_run_report
from holdfast.reports.terminal import print_run_summary, print_tradeoff
from holdfast.reports.tradeoff_report import write_tradeoff_report

__all__ = [
    "Arm",
    "print_run_summary",
    "print_tradeoff",
    "write_distance_report",
    "write_model_card",
    "write_run_report",
    "write_tradeoff_report",
]
