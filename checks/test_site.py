"""The site of the documentation: complete, without dead links, and without anything that a reader's browser would
fetch."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
LOADED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc(?:set)?=\"?(https?://[^\"\s>]+)|<link\b[^>]*\bhref=\"?(https?://[^\"\s>]+)"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """`docs/site.py`, writing elsewhere."""
    script = runpy.run_path(str(ROOT / "docs/site.py"))
    script["main"].__globals__["SOURCE"] = script["SOURCE"] = tmp_path_factory.mktemp("site") / "keep"
    script["main"]()
    return script


def test_every_public_name_has_its_place(site: dict[str, Any]) -> None:
    import holdfast

    pages = "\n".join(page.read_text(encoding="utf-8") for page in (site["SOURCE"] / "api").glob("*.md"))
    assert sorted(re.findall(r"^::: holdfast\.(\w+)$", pages, re.MULTILINE)) == sorted(holdfast.__all__)
    assert (
        "`holdfast.checkpoints.live`" in pages
        and (site["SOURCE"] / "api/modules/holdfast.checkpoints.live.md").is_file()
    )


def test_links_into_the_repository_become_pages(site: dict[str, Any]) -> None:
    source = site["SOURCE"]
    sweep = (source / "sweep.md").read_text(encoding="utf-8")
    assert "(repository/src/holdfast/" in sweep or "(repository/configs/label_annealing/index.md)" in sweep
    recipe = next(source.rglob("code-tiny.yaml.md")).read_text(encoding="utf-8")
    assert "```yaml\n# Code on a base, small" in recipe
    start = (source / "index.md").read_text(encoding="utf-8")
    assert "](getting_started.md)" in start and 'srcset="pictures/frontier-dark.svg"' in start
    assert (source / "pictures/frontier-dark.svg").is_file()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[a](docs/faq.md#x) `[b](docs/none.md)`", "[a](faq.md#x) `[b](docs/none.md)`"),
        ("[a](#here) [b](https://example.org/docs/x.md)", "[a](#here) [b](https://example.org/docs/x.md)"),
        ("[a](configs)", "[a](repository/configs/index.md)"),
        (
            "[a](Makefile) [b](.pre-commit-hooks.yaml)",
            "[a](repository/Makefile.md) [b](repository/pre-commit-hooks.yaml.md)",
        ),
    ],
)
def test_links_are_turned_into_the_sites(site: dict[str, Any], text: str, expected: str) -> None:
    assert site["relinked"]("README.md", text)[0] == expected


def test_a_link_that_leads_nowhere_stops_it(site: dict[str, Any]) -> None:
    with pytest.raises(FileNotFoundError, match=r"docs/faq\.md: nowhere\.md"):
        site["relinked"]("docs/faq.md", "[a](nowhere.md)")


def test_a_page_that_the_navigation_leaves_out_stops_it(site: dict[str, Any]) -> None:
    (site["SOURCE"] / "new.md").write_text("# New")
    with pytest.raises(ValueError, match=r"differ: new\.md"):
        site["check_navigation"]()
    (site["SOURCE"] / "new.md").unlink()


@pytest.mark.slow
def test_the_site_builds_strictly(site: dict[str, Any], tmp_path: Path) -> None:
    """A dead link, a dead anchor, a missing page or an object without a home is an error; nothing is fetched."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for key, value in (("docs_dir", site["SOURCE"]), ("site_dir", tmp_path / "site")):
        text = re.sub(rf"^{key}: .*$", f"{key}: {value}", text, flags=re.MULTILINE)
    text = text.replace("paths: [src]", f"paths: [{ROOT / 'src'}]")
    text = text.replace("custom_dir: docs/theme", f"custom_dir: {ROOT / 'docs/theme'}")
    (tmp_path / "mkdocs.yml").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--config-file", str(tmp_path / "mkdocs.yml")],
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {page: page.read_text(encoding="utf-8") for page in (tmp_path / "site").rglob("*.html")}
    fetched = {(page.name, m.group(1) or m.group(2)) for page, text in pages.items() for m in LOADED.finditer(text)}
    assert fetched == set() and len(pages) > 100
    missing = pages[tmp_path / "site/404.html"]
    assert all((tmp_path / "site" / page).is_file() for page in re.findall(r'<li><a href="/?([\w.]+html)"', missing))
    assert "getting_started.html" in missing
    shown = pages[tmp_path / "site/api/retention.html"]
    assert 'id="holdfast.LabelAnnealing"' in shown and "gradient and direction as in its appendix A.3" in shown
    index = (tmp_path / "site/search/search_index.json").read_text(encoding="utf-8")
    assert "methods.html#sfa" in index and "repository/configs" not in index
