"""The page and the terminal of an update: the answer, what was measured, what is missing. What every page has to
satisfy is in `test_every_page`."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest
from rich.console import Console

import synthetic_residuals as make
from holdfast.records.residual import ResidualRecord
from holdfast.reports.update_report import Results, print_update, write_update_report


@pytest.fixture
def updated(tmp_path: Path) -> ResidualRecord:
    return make.update(tmp_path)


def page_text(folder: Path, record: ResidualRecord) -> str:
    return make.text_of(write_update_report(folder, record))


def terminal_text(record: ResidualRecord, folder: Path, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, write_through=True)
    print_update(record, folder, Console(width=80, file=file, force_terminal=True, color_system=None))
    return raw.getvalue().decode(encoding)


def test_the_lead_says_what_was_gained_and_what_was_kept(tmp_path, updated) -> None:
    first = (
        "Against instruct: Learn: new_text −1.340 nats/token [−1.350, −1.330] (gained), new_knowledge +44.0 pt [+38.0, "
        "+50.0] (gained); keep: 1 lost, 2 not shown of 3 measures (most: prose +0.020 nats/token [+0.010, +0.030])."
    )
    second = (
        " Against instruct + new text: Learn: new_text +0.150 nats/token [+0.140, +0.160] (lost), new_knowledge −1.0 "
        "pt [−7.0, +5.0] (not shown); keep: 1 lost, 2 gained of 3 measures (most: prose +0.080 nats/token [+0.070, "
        "+0.090])."
    )
    text = page_text(tmp_path, updated)
    assert first + second in text
    for pair in updated.pairs:
        assert pair.question in text
    pairs = [pair for pair in updated.pairs if pair.before != "instruct-new"]
    shorter = page_text(tmp_path, dataclasses.replace(updated, pairs=pairs))
    assert first in shorter and "Against instruct + new text" not in shorter


def test_every_measure_has_a_row_and_every_model_a_column(tmp_path, updated) -> None:
    r = Results(tmp_path, updated)
    assert [(m.title, m.leads) for m in r.entries] == [
        ("new_knowledge", True),
        ("new_text", True),
        ("instructions", True),
        ("instructions", False),
        ("old_knowledge", True),
        ("old_knowledge", False),
        ("prose", True),
    ]
    text = page_text(tmp_path, updated)
    assert "Other metrics (2)" in text and "Learn, nats_per_token, nats/token, lower is better" in text
    assert "1.960 [1.940, 1.980]" in text


def test_the_page_says_how_models_were_made_and_what_of(tmp_path, updated) -> None:
    text = page_text(tmp_path, updated)
    for said in (
        "3,120 documents",
        "2024-01-03",
        "skipped: before the first date 118",
        "the norm of the difference is",
    ):
        assert said in text, said
    html = (tmp_path / "report.html").read_text()
    assert 'href="runs/base-new/report.html"' in html
    assert "/data/world" not in html, "whose folder it was says nothing"
    undated = dataclasses.replace(updated, corpus={"documents": 12, "tokens": 900})
    assert "it is unknown whether the text is new to the models" in page_text(tmp_path, undated)


@pytest.mark.parametrize("among", ["evidence", "notes"])
def test_a_pair_that_is_no_pair_is_warned_about_first(tmp_path, updated, among) -> None:
    warning = "WARNING: instruct does not look like a fine-tune of base <b>"
    evidence = [{**updated.ancestry[0], "warnings": [warning]}]
    changes = {"ancestry": evidence} if among == "evidence" else {"notes": [warning]}
    text = page_text(tmp_path, dataclasses.replace(updated, **changes))
    assert warning in text
    assert text.index("A pair of models does not look like a base and its fine-tune.") < text.index("Compared pairs")
    assert "These values are typical of a base and its fine-tune" not in text
    assert "These values are typical of a base and its fine-tune" in page_text(tmp_path, updated)


def test_failed_and_waiting_models_are_named(tmp_path, updated) -> None:
    record = make.with_state(updated, "base-new", state="failed", reason="CUDA out of memory", evaluations="")
    record = make.with_state(record, "result", state="waiting", evaluations="evaluations/not-there", tokens=-1)
    record = dataclasses.replace(record, status="interrupted")
    text = page_text(tmp_path, record)
    for said in ("base + new text: CUDA out of memory", "1 job failed."):
        assert said in text, said
    shown = terminal_text(record, tmp_path)
    assert "failed: CUDA" in shown and "waiting" in shown


def test_what_is_no_measure_or_cannot_be_read_is_left_out(tmp_path, updated) -> None:
    (tmp_path / "evaluations" / "base" / "keep.prose.json").write_text("{")
    text = page_text(tmp_path, updated)
    assert "keep.prose.json could not be read" in text and "What was measured" in text


@pytest.mark.parametrize("status", ["running", "interrupted", "failed", "finished"])
def test_without_evaluations_there_is_a_page_without_figures(tmp_path, status) -> None:
    record = ResidualRecord(name="u", status=status, created="", config={})
    text = page_text(tmp_path, record)
    assert f"The update is {status}, and nothing was measured yet." in text
    assert "No model has been evaluated yet." in text
    assert terminal_text(record, tmp_path).startswith(f"u ({status})")


def test_the_terminal_has_the_answer_the_pairs_and_the_page(tmp_path, updated) -> None:
    write_update_report(tmp_path, updated)
    text = terminal_text(updated, tmp_path)
    assert all(len(line) <= 80 or str(tmp_path) in line for line in text.splitlines())
    for said in ("Against instruct: ", "instructions", "New text  3,120 documents"):
        assert said in text, said
    assert "report.html" in text.replace("\n", "")
    assert "[-0.050, +0.030]" in terminal_text(updated, tmp_path, encoding="ascii")
