"""The study's page in a real browser: drawn without a message, sortable, no wider than a phone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from synthetic_runs import browse, chromium
from synthetic_studies import large
from test_report_browser import console_of

from holdfast.reports.study_report import write_study_report
from holdfast.statistics.selection import select_all

pytestmark = pytest.mark.skipif(chromium() is None, reason="needs Chromium (Debian: apt-get install chromium)")


@pytest.fixture(scope="module")
def profile(tmp_path_factory) -> Path:
    """One browser profile for the module: a fresh one costs a second a page."""
    return tmp_path_factory.mktemp("chromium")


@pytest.mark.slow
def test_figures_are_drawn_a_click_sorts_and_another_shows_all(tmp_path, profile):
    study = large(80)
    page = write_study_report(tmp_path / "report.html", study, selections=select_all(study))
    script = """<script>addEventListener("load", () => {
      const heads = [...document.querySelectorAll(".trials thead button")];
      const column = (i) => [...document.querySelectorAll(".trials tbody tr")]
        .filter((r) => !r.hidden).map((r) => r.cells[i].querySelector("data")?.value ?? "-");
      const found = { before: column(3).length };
      heads[3].click(); found.down = column(3);
      heads[3].click(); found.up = column(3);
      document.querySelector(".trials .more").click(); found.all = column(3);
      document.body.append(Object.assign(
        document.createElement("pre"), { id: "found", textContent: JSON.stringify(found) }));
    })</script></body>"""
    page.write_text(page.read_text(encoding="utf-8").replace("</body>", script, 1), encoding="utf-8")
    done = browse(page, profile, "--dump-dom")
    assert console_of(done.stderr) == []
    plots = re.findall(r'<div class="[^"]*plot[^"]*" data-figure="\d+"', done.stdout)
    assert len(plots) == 15  # four pairs, two panels for each of five numbers, time
    assert all("js-plotly-plot" in p for p in plots)
    found = re.search(r'<pre id="found">(\{.*?\})</pre>', done.stdout, re.S)
    assert found is not None
    seen = json.loads(found[1])
    assert seen["before"] == 40
    down, up = ([float(v) for v in seen[k]] for k in ("down", "up"))
    assert down == sorted(down, reverse=True)
    assert up == sorted(up)
    assert len(seen["all"]) == 80
    assert seen["all"][-4:] == ["-"] * 4  # what has no figure comes last, either way
