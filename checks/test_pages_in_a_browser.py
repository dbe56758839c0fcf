"""Pages in a real browser: drawn, without a console message, without a network, no wider than the window."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from synthetic_evaluations import ACCURACY, GATES, Pair, multiple_choice
from synthetic_runs import write_run
from synthetic_studies import large
from test_comparison_report import questions
from test_every_page import NASTY, PAGES, every

from holdfast.reports.charts import Chart
from holdfast.reports.comparison_report import comparison_page
from holdfast.reports.html import render, write_page
from holdfast.reports.run_report import write_run_report
from holdfast.reports.sweep_report import sweep_page
from holdfast.statistics.selection import select_all


def chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def browse(page: Path, profile: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Opens a page in headless Chromium without a network."""
    command = [
        str(chromium()),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
    ]
    command += [
        "--disable-sync",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        f"--user-data-dir={profile}",
        "--enable-logging=stderr",
        "--v=0",
    ]
    command += ["--virtual-time-budget=20000", *options, page.resolve().as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


pytestmark = pytest.mark.skipif(chromium() is None, reason="needs Chromium (Debian: apt-get install chromium)")


@pytest.fixture(scope="module")
def profile(tmp_path_factory) -> Path:
    """One browser profile for the module: a fresh one costs a second a page."""
    return tmp_path_factory.mktemp("chromium")


def console_of(log: str) -> list[str]:
    """What the page wrote to the console, errors of scripts and refused requests included."""
    return [line for line in log.splitlines() if "CONSOLE" in line]


def phone(page: Path, width: int) -> Path:
    """A page that holds another one in a frame, which narrows to a phone's width once the figures are drawn, and
    writes down what became of it. Figures follow a moment later; until then they must not widen the page."""
    content = json.dumps(page.read_text(encoding="utf-8")).replace("<", "\\u003c")
    harness = page.with_name(f"phone-{page.name}")
    harness.write_text(f"""<!doctype html><iframe id="f" width="{width + 120}" height="900"></iframe>
    <pre id="found"></pre><script>
const frame = document.getElementById("f");
frame.srcdoc = {content};
const look = () => {{
  const inner = frame.contentDocument, root = inner && inner.documentElement;
  const parsed = root && inner.querySelector("main") && inner.readyState === "complete";
  const waiting = !parsed || (inner.querySelector(".plot") && !inner.querySelector(".main-svg"));
  if (waiting) return setTimeout(look, 100);
  frame.width = {width};
  const narrowed = root.scrollWidth;
  const settle = (tries) => {{
    for (const d of inner.querySelectorAll("details")) d.open = true;
    const placed = [...inner.querySelectorAll("main *")].filter((e) => !e.closest(".scroll, pre, .plot"));
    const outside = placed.filter((e) => e.getBoundingClientRect().right > {width} + 1);
    const drawn = [...inner.querySelectorAll(".plot")].filter((e) => e.querySelector(".main-svg"));
    const wide = drawn.filter((e) => e.querySelector(".main-svg").getBoundingClientRect().right > {width});
    if (wide.length && tries) return setTimeout(() => settle(tries - 1), 500); // plotly draws anew
    const found = {{ narrowed, scroll: root.scrollWidth,
      outside: outside.map((e) => e.outerHTML.slice(0, 80)), drawn: drawn.length, wide: wide.length }};
    document.getElementById("found").textContent = JSON.stringify(found);
  }};
  setTimeout(() => settle(20), 500);
}};
look();
</script>""")
    return harness


def look_on_phone(page: Path, profile: Path, width: int) -> dict:
    done = browse(phone(page, width), profile, "--dump-dom", "--window-size=900,1000")
    assert console_of(done.stderr) == []
    found = re.search(r'<pre id="found">(\{.*?\})</pre>', done.stdout, re.S)
    assert found is not None, done.stderr[-2000:]
    return json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))


def test_without_decompression_the_tables_take_over(tmp_path, profile) -> None:
    page = write_run_report(write_run(tmp_path / "run"))
    page.write_text(
        page.read_text(encoding="utf-8").replace(
            "<body>", "<body><script>delete window.DecompressionStream</script>", 1
        )
    )
    done = browse(page, profile, "--dump-dom")
    assert console_of(done.stderr) == []
    body = re.sub(r"<(script|style).*?</\1>", "", done.stdout, flags=re.S)
    assert body.count("This figure could not be drawn (this browser has no DecompressionStream)") == 8
    assert body.count('<details class="numbers" open="">') == 8
    assert 'class="main-svg"' not in body


def test_this_check_would_see_a_message_and_a_refused_request(tmp_path, profile) -> None:
    page = write_run_report(write_run(tmp_path / "run"))
    broken = '<body><script>fetch("https://example.org/x").catch(() => 0); undefinedFunction()</script>'
    page.write_text(page.read_text(encoding="utf-8").replace("<body>", broken, 1))
    messages = " ".join(console_of(browse(page, profile, "--dump-dom").stderr))
    assert "undefinedFunction is not defined" in messages
    assert "Content Security Policy" in messages


def test_figures_are_drawn_a_click_sorts_and_another_shows_all(tmp_path, profile):
    study = large(80)
    page = write_page(sweep_page(study, tmp_path, selections=select_all(study)), tmp_path / "report.html")
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
    assert len(plots) == 4  # a pair each
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


CLICKS = """<script>
addEventListener("load", () => {
  const panel = document.querySelector(".flips"), found = {}, search = panel.querySelector("input");
  const visible = () => [...panel.querySelectorAll("tbody tr")].filter((row) => row.offsetParent !== null);
  const type = (text) => { search.value = text; search.dispatchEvent(new Event("input")); };
  found.first = visible().length;
  type("lost"); found.only = visible().every((row) => row.querySelector(".chip").textContent === "lost");
  type("nothing like it"); found.none = visible().length;
  type(""); panel.querySelector(".more").click(); found.all = visible().length;
  const pre = document.createElement("pre");
  document.body.append(Object.assign(pre, { id: "clicks", textContent: JSON.stringify(found) }));
});
</script></body>"""


def test_the_whole_page_draws_without_a_message_and_its_questions_can_be_searched(tmp_path, profile) -> None:
    pair = Pair(tmp_path)
    pair.add("knowledge", "arc", "task", multiple_choice("arc", 600, 0.52, 0.47), ACCURACY)
    path = write_page(comparison_page(pair.result(gates=GATES)), tmp_path / "c.html")
    page = path.read_text(encoding="utf-8")
    path.write_text(CLICKS.join(page.rsplit("</body>", 1)), encoding="utf-8")
    done = browse(path, profile, "--dump-dom")
    assert console_of(done.stderr) == []
    plots = re.findall(r'<div class="[^"]*plot[^"]*" data-figure="\d+"', done.stdout)
    assert len(plots) == page.count("data-figure=") >= 1
    assert all("js-plotly-plot" in p for p in plots)
    clicks = re.search(r'<pre id="clicks">(.*?)</pre>', done.stdout, re.S)
    assert clicks is not None
    assert json.loads(clicks[1]) == {"first": 40, "only": True, "none": 0, "all": len(questions(page))}


WIDTHS = (360, 390, 768, 1024, 1300, 1920, 2560)
LAYOUT = """<!doctype html><iframe id="frame" height="900"></iframe><pre id="found"></pre><script>
const frame = document.getElementById("frame"), pages = PAGES, found = [];
// An interval is one word; a hyphen, a dash and a slash end one.
const WORD = /\\[[^\\[\\]\\s]+, [^\\[\\]\\s]+\\]|[^\\s\\u200b\\/\\u2013\\u2014-]+/g;
const look = (name, page, root) => {
  for (const details of page.querySelectorAll("details")) details.open = true;
  root.style.setProperty("--font", FONT);
  const reads = (node) => !node.parentElement.closest("script, style, noscript, pre, .plot") && node.data.trim();
  const texts = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT), nodes = [];
  while (texts.nextNode()) if (reads(texts.currentNode)) nodes.push(texts.currentNode);
  const range = page.createRange();
  for (const width of WIDTHS) {
    frame.width = width;
    const outside = (e) => !e.closest(".scroll, pre, .plot, dd") && e.getBoundingClientRect().right > width + 1;
    const wide = [...page.querySelectorAll("main *")].filter(outside);
    found.push(...wide.map((e) => [name, width, e.outerHTML.slice(0, 80)]));
    if (root.scrollWidth > width) found.push([name, width, `scrolls to ${root.scrollWidth}`]);
    for (const node of nodes) {
      if (node.parentElement.closest("thead")?.offsetWidth <= 1) continue; // of cards: the labels say it
      for (const word of node.data.matchAll(WORD)) {
        range.setStart(node, word.index);
        range.setEnd(node, word.index + word[0].length);
        const lines = [...range.getClientRects()].filter((line) => line.width > 0);
        if (lines.some((line) => line.top >= lines[0].bottom - 1)) found.push([name, width, word[0]]);
      }
    }
  }
};
const next = () => {
  if (!pages.length) return void (document.getElementById("found").textContent = JSON.stringify(found));
  const [name, content] = pages.shift();
  frame.onload = () => (look(name, frame.contentDocument, frame.contentDocument.documentElement), next());
  frame.srcdoc = content;
};
next();
</script>"""


def installed_fonts() -> str:
    listing = shutil.which("fc-list")
    return subprocess.run([listing, ":", "family"], capture_output=True, text=True).stdout if listing else ""


@pytest.mark.parametrize("font", ["DejaVu Sans", "Liberation Sans", "system-ui"])
def test_no_width_cuts_a_word_or_scrolls_the_page(font: str, tmp_path: Path, profile: Path) -> None:
    if font != "system-ui" and font not in installed_fonts():
        pytest.skip(f"the font {font} is not installed")
    pages = []
    for number, (name, make) in enumerate(PAGES.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        page = render(make(folder, "prose_of_physics"))
        pages.append((name, re.sub(r"<script.*?</script>", "", page, flags=re.S)))
    harness = tmp_path / "pages.html"
    script = LAYOUT.replace("FONT", json.dumps(font)).replace("WIDTHS", json.dumps(WIDTHS))
    harness.write_text(script.replace("PAGES", json.dumps(pages).replace("<", "\\u003c")), encoding="utf-8")
    done = browse(harness, profile, "--dump-dom", "--window-size=2700,1000")
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.S)
    assert found is not None and found[1] == "[]", found[1][:3000] if found is not None else done.stderr[-2000:]


@pytest.mark.parametrize("name", PAGES)
def test_a_phone_draws_every_chart_without_a_message_and_holds_them(name: str, tmp_path: Path, profile: Path) -> None:
    page = PAGES[name](tmp_path, NASTY)
    path = tmp_path / "page.html"
    path.write_text(render(page), encoding="utf-8")
    charts = sum(isinstance(x, Chart) for x in every(page.blocks))
    expected = {"narrowed": 360, "scroll": 360, "outside": [], "drawn": charts, "wide": 0}
    assert look_on_phone(path, profile, 360) == expected
