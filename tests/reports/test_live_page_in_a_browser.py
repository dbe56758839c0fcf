"""Live pages in a real browser: drawn, moved by a line that comes into the log, kept where the reader was."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from synthetic_runs import browse, chromium, perplexity
from test_live_page import Impatient, append, live_of, started
from test_report_browser import console_of

from holdfast.records.run import RunFolder
from holdfast.reports.live import LivePage, Look
from holdfast.reports.live_run import WatchedRun
from holdfast.reports.live_server import serving

pytestmark = pytest.mark.skipif(chromium() is None, reason="needs Chromium (Debian: apt-get install chromium)")


@pytest.fixture(scope="module")
def profile(tmp_path_factory) -> Path:
    """One browser profile for the module: a fresh one costs a second a page."""
    return tmp_path_factory.mktemp("chromium")


class Growing:
    """A run of which something happens between two looks."""

    def __init__(self, folder: RunFolder, *events) -> None:
        self.watched, self.events, self.looks = WatchedRun(folder), list(events), 0

    def __call__(self) -> Look:
        self.looks += 1
        if self.looks > 2 and self.events:
            self.events.pop(0)()
        return self.watched()


SCRIPT = """<script>
// What a reader does, and what became of it: opens the numbers of the first chart, zooms into it, goes to a button.
const seen = { titles: [] };
const timer = setInterval(() => {
  const plot = document.querySelector(".plot.js-plotly-plot");
  if (!plot || !plot.layout.xaxis.range) return;
  clearInterval(timer);
  const numbers = document.querySelector("details.numbers > summary");
  numbers.click();
  numbers.focus();
  Plotly.relayout(plot, { "xaxis.range": [20, 60] });
  seen.lead = document.querySelector(".lead").textContent;
  setInterval(() => {
    Object.assign(seen, { now: document.querySelector(".lead").textContent, open: numbers.parentElement.open,
      same: plot.isConnected && numbers.isConnected, focus: document.activeElement === numbers,
      range: plot.layout.xaxis.range, points: plot.data.at(-1).x.length, title: document.title,
      state: document.querySelector(".live [role=status]").textContent,
      wide: document.documentElement.scrollWidth });
    let found = document.getElementById("found");
    if (!found) document.body.append(found = Object.assign(document.createElement("pre"), { id: "found" }));
    found.textContent = JSON.stringify(seen);
  }, 300);
}, 100);
</script></body>"""


@contextmanager
def served(take, monkeypatch) -> Iterator[str]:
    """The address of a live page with a reader's script."""
    live = live_of(take)
    whole = live.document
    monkeypatch.setattr(LivePage, "document", whole.replace("</body>", SCRIPT, 1))
    with serving(live, port=0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server.url
        finally:
            server.shutdown()
            thread.join()


def found_in(dom: str) -> dict:
    found = re.search(r'<pre id="found">(\{.*?\})</pre>', dom, re.S)
    assert found is not None, dom[-3000:]
    return json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))


@pytest.mark.parametrize("width", [1200, 500])
def test_it_draws_and_a_new_line_moves_it(tmp_path, profile, monkeypatch, width) -> None:
    folder = started(tmp_path, 10)
    lines = [lambda n=n: append(folder, f'{{"step": {n}, "loss": 2.5, "seconds": {n / 2}}}\n') for n in (110, 120)]
    with served(Growing(folder, *lines), monkeypatch) as url:
        done = browse(url, profile, "--dump-dom", f"--window-size={width},1000")
    assert console_of(done.stderr) == []
    found = found_in(done.stdout)
    assert found["lead"].startswith("Training: step 1")
    assert found["now"].startswith("Training: step 120 of 400")
    assert found["points"] == 12
    assert found["title"].startswith("30 %")
    assert found["state"] == "Live"
    plots = re.findall(r'<div class="([^"]*\bplot\b[^"]*)" data-figure', done.stdout)
    assert plots
    assert all("js-plotly-plot" in p for p in plots)
    # the reader's own: the same nodes, what was opened, where the focus was, where was zoomed in
    assert (found["same"], found["open"], found["focus"], found["range"]) == (True, True, True, [20, 60])
    assert found["wide"] <= width


def test_sections_that_come_later_are_put_where_they_belong(tmp_path, profile, monkeypatch) -> None:
    folder = started(tmp_path, 10)
    event = lambda: folder.evaluated("start").write(perplexity("source", "prose", 2.9, 20), [])
    with served(Growing(folder, event), monkeypatch) as url:
        done = browse(url, profile, "--dump-dom")
    assert console_of(done.stderr) == []
    titles = re.findall(r"<h2>(.*?)</h2>", done.stdout)
    assert titles == ["Training", "Measured so far", "What is trained"]
    assert found_in(done.stdout)["same"] is True


def test_a_server_that_is_gone_is_said(tmp_path, profile, monkeypatch) -> None:
    folder = started(tmp_path, 10)
    growing = Growing(folder)

    def take() -> Look:
        if growing.looks > 2:
            stop()
        return growing()

    with served(take, monkeypatch) as url:

        def stop() -> None:
            monkeypatch.setattr(Impatient, "changes", lambda self, since="": 1 / 0)

        done = browse(url, profile, "--dump-dom")
    assert found_in(done.stdout)["state"] == "No answer from holdfast watch; this page shows what came last"
    assert "Training: step 100 of 400" in done.stdout
