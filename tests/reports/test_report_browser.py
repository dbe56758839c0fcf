"""Pages in a real browser: drawn, without a console message, without a network, no wider than a phone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from synthetic_runs import browse, chromium

from holdfast.reports.run_report import write_run_report

pytestmark = pytest.mark.skipif(chromium() is None, reason="needs Chromium (Debian: apt-get install chromium)")


@pytest.fixture(scope="module")
def profile(tmp_path_factory) -> Path:
    """One browser profile for the module: a fresh one costs a second a page."""
    return tmp_path_factory.mktemp("chromium")


def console_of(log: str) -> list[str]:
    """What the page wrote to the console, errors of scripts and refused requests included."""
    return [line for line in log.splitlines() if "CONSOLE" in line]


def phone(page: Path, width: int) -> Path:
    """A page that holds another one in a frame of a phone's width and writes down what became of it."""
    content = json.dumps(page.read_text(encoding="utf-8")).replace("<", "\\u003c")
    harness = page.with_name(f"phone-{page.name}")
    harness.write_text(f"""<!doctype html><iframe id="f" width="{width}" height="900"></iframe>
    <pre id="found"></pre><script>
const frame = document.getElementById("f");
frame.srcdoc = {content};
const look = () => {{
  const inner = frame.contentDocument, root = inner && inner.documentElement;
  const parsed = root && inner.querySelector("main") && inner.readyState === "complete";
  const waiting = !parsed || (inner.querySelector(".plot") && !inner.querySelector(".main-svg"));
  if (waiting) return setTimeout(look, 100);
  setTimeout(() => {{
    for (const d of inner.querySelectorAll("details")) d.open = true;
    const placed = [...inner.querySelectorAll("main *")].filter((e) => !e.closest(".scroll, pre, .plot"));
    const outside = placed.filter((e) => e.getBoundingClientRect().right > {width} + 1);
    const drawn = [...inner.querySelectorAll(".plot")].filter((e) => e.querySelector(".main-svg"));
    const wide = drawn.filter((e) => e.querySelector(".main-svg").getBoundingClientRect().right > {width});
    const found = {{ scroll: root.scrollWidth,
      outside: outside.map((e) => e.outerHTML.slice(0, 80)), drawn: drawn.length, wide: wide.length }};
    document.getElementById("found").textContent = JSON.stringify(found);
  }}, 500);
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


def test_without_decompression_the_tables_take_over(make_run, profile) -> None:
    page = write_run_report(make_run())
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


@pytest.mark.slow
def test_this_check_would_see_a_message_and_a_refused_request(make_run, profile) -> None:
    page = write_run_report(make_run())
    broken = '<body><script>fetch("https://example.org/x").catch(() => 0); undefinedFunction()</script>'
    page.write_text(page.read_text(encoding="utf-8").replace("<body>", broken, 1))
    messages = " ".join(console_of(browse(page, profile, "--dump-dom").stderr))
    assert "undefinedFunction is not defined" in messages
    assert "Content Security Policy" in messages
