"""What people read: one HTML page a run, one a comparison of runs, the same figures in the terminal and in a model card.

    figures     the numbers of one run as text, and the verdict in one sentence
    arms        the same for several runs over one source and one target
    charts      plotly figures as plain dictionaries
    markup, page (with page.css and page.js)        one self-contained HTML document
    run_report, tradeoff_report, terminal, card     the four things written or printed

Everything is read from run folders; torch is never imported.
"""

from holdfast.reports.arms import Arm
from holdfast.reports.card import write_model_card
from holdfast.reports.run_report import write_run_report
from holdfast.reports.terminal import print_run_summary, print_tradeoff
from holdfast.reports.tradeoff_report import write_tradeoff_report

__all__ = ["Arm", "print_run_summary", "print_tradeoff", "write_model_card", "write_run_report", "write_tradeoff_report"]
