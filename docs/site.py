"""What the site is built from: the pages of this folder, the repository's files that they link to, and the public API.

    python docs/site.py           # writes build/site-source, from which `mkdocs build --strict` makes `site/`

Pages stay plain Markdown that reads well in the repository. Here their links are turned into the site's: a page links
to a page, and a file of the repository (a recipe, a benchmark, a test) becomes a page that shows it, as does a folder.
Pages of the API name the public objects; mkdocstrings fills in their docstrings. Nothing here knows the generator, so
that another one may take its place.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "build/site-source"
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
"""Pages that stand outside this folder -> their place in the site. Those of this folder keep theirs."""
LANGUAGES = {
    ".py": "python",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".toml": "toml",
    ".json": "json",
    ".c": "c",
    ".jinja": "jinja",
    ".txt": "text",
    "": "text",
}
"""By ending, files that are shown as text; others (pages of runs, pictures) are copied as they are."""
LARGEST = 200_000
"""Bytes of a file that is shown; a larger one is copied."""
API = {
    "training": ("Training", ("runs", "training", "models", "support")),
    "retention": ("Retention methods", ("retention",)),
    "evaluation": ("Evaluation", ("evaluation", "records", "reports")),
    "checkpoints": ("Checkpoints", ("checkpoints",)),
    "studies": ("Studies", ("studies", "statistics")),
    "loss": ("The loss", ("ops",)),
    "errors": ("Errors", ("errors",)),
}
"""Page of the API -> its title, and the rooms whose public names it has."""
INTERFACE = """The public interface: `holdfast.NAME`. `import holdfast` takes milliseconds; a name is imported at its
first use. [Modules](modules.md) has what lies deeper."""
MODULES = "Modules that the pages of this site name. Only what `holdfast` itself lists is kept from version to version."
FENCE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(\]\()([^)\s]+)(\))|((?:src|srcset|href)=\")([^\"]+)(\")")


def main() -> None:
    """Writes the folder anew."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    shutil.copytree(ROOT / "docs/site", SOURCE / "assets")
    waiting = [*PAGES, *(path.relative_to(ROOT).as_posix() for path in pages())]
    made: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in made:
            made.add(name)
            waiting += stage(name)
    draw_studies()
    for name, text in api_pages():
        write(SOURCE / "api" / name, text)
    check_navigation()


def pages() -> list[Path]:
    """Those of this folder that a reader finds in the navigation: `NAME.md` and `methods/NAME.md`."""
    return [*sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs/methods").glob("*.md"))]


def draw_studies() -> None:
    """Writes the whole page of every committed record, with a link in the README above it."""
    sys.path.append(str(ROOT / "docs"))
    from records import EXAMPLES, record_pages, write_page

    for name, page in record_pages():
        folder = (EXAMPLES / name).parent
        write_page(page, SOURCE / folder.relative_to(ROOT / "docs") / "report.html")
        home = next(place for place in (folder, *folder.parents) if (place / "README.md").is_file())
        readme = SOURCE / home.relative_to(ROOT / "docs") / "README.md"
        address = (folder / "report.html").relative_to(home)
        with readme.open("a", encoding="utf-8") as file:
            file.write(f"\n[{page.title}: the whole page]({address})\n")


# ---------------------------------------------------------------------------------------------- files of the repository


def stage(name: str) -> list[str]:
    """Puts a file or folder of the repository into the site's source.

    Returns:
        What it links to: paths from the repository's root.
    """
    path, target = ROOT / name, SOURCE / place(name)
    if path.is_dir():
        inside = children(name)
        lines = [
            f"- [{PurePosixPath(child).name}{'/' * (ROOT / child).is_dir()}]({link(name, child)})" for child in inside
        ]
        write(target, unlisted(f"# {name}\n\n" + "\n".join(lines) + "\n"))
        return inside
    if path.suffix == ".md":
        text, found = relinked(name, path.read_text(encoding="utf-8"))
        write(target, text)
        return found
    if target.suffix == ".md":
        text = shown(name, path.read_text(encoding="utf-8"))
        write(target, text if path.suffix == ".ipynb" else unlisted(text))
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    return []


def place(name: str) -> str:
    """Where a file or folder of the repository stands in the site's source."""
    path = ROOT / name
    if name in PAGES:
        return PAGES[name]
    visible = name.removeprefix(".")  # generators leave out what begins with a dot
    home = name.removeprefix("docs/") if name.startswith("docs/") else f"repository/{visible}"
    if path.is_dir():
        return f"{home}/index.md"
    if path.suffix == ".ipynb" or (path.suffix in LANGUAGES and path.stat().st_size <= LARGEST):
        return f"{home}.md"
    return home


def children(folder: str) -> list[str]:
    """What git knows inside a folder; a README stands first."""
    listed = subprocess.run(["git", "ls-files", "--", folder], cwd=ROOT, capture_output=True, text=True, check=True)
    depth = len(PurePosixPath(folder).parts) + 1
    found = {"/".join(PurePosixPath(line).parts[:depth]) for line in listed.stdout.splitlines()}
    return sorted(found, key=lambda child: (not child.endswith("README.md"), child))


def relinked(name: str, text: str) -> tuple[str, list[str]]:
    """A page with the site's links in place of the repository's, and what it links to.

    Raises:
        FileNotFoundError: a link that leads nowhere.
    """
    found: list[str] = []

    def change(match: re.Match[str]) -> str:
        before, target, after = match.group(1, 2, 3) if match.group(2) else match.group(4, 5, 6)
        file, mark, anchor = target.partition("#")
        if not file or re.match(r"[a-z]+:", file):
            return match.group(0)
        path = os.path.normpath(os.path.join(os.path.dirname(name), file))
        if not (ROOT / path).exists():
            raise FileNotFoundError(f"{name}: {target}")
        path = os.path.relpath((ROOT / path).resolve(), ROOT)  # recipes are links into the package
        readme = f"{path}/README.md"
        path = readme if (ROOT / readme).is_file() else path
        found.append(path)
        return f"{before}{link(name, path)}{mark}{anchor}{after}"

    parts = FENCE.split(text)
    return "".join(part if i % 2 else LINK.sub(change, part) for i, part in enumerate(parts)), found


def link(page: str, target: str) -> str:
    """From one place of the site to another."""
    return os.path.relpath(place(target), os.path.dirname(place(page)) or ".")


def shown(name: str, text: str) -> str:
    """A file as a page."""
    if name.endswith(".ipynb"):
        cells = json.loads(text)["cells"]
        parts = [(c["cell_type"], "".join(c["source"])) for c in cells]
        return "\n\n".join(f"```python\n{s}\n```" if kind == "code" else s for kind, s in parts) + "\n"
    ticks = "`" * max(3, 1 + max(map(len, re.findall(r"`+", text)), default=0))
    return (
        f"# {PurePosixPath(name).name}\n\n`{name}`\n\n{ticks}{LANGUAGES[Path(name).suffix]}\n{text.rstrip()}\n{ticks}\n"
    )


def unlisted(text: str) -> str:
    """A page that the search does not look into."""
    return f"---\nsearch:\n  exclude: true\n---\n\n{text}"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def check_navigation() -> None:
    """Holds the navigation of mkdocs.yml against the pages.

    Raises:
        ValueError: it names a page that is not there, or leaves one out that a reader should find.
    """
    named = re.findall(r"^ +- (?:.+: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    wanted = {path.name for path in SOURCE.glob("*.md")}
    for folder in ("api", "methods"):
        wanted |= {f"{folder}/{path.name}" for path in (SOURCE / folder).glob("*.md")}
    lost = sorted(wanted - set(named)) + sorted(n for n in named if not (SOURCE / n).is_file())
    if lost:
        raise ValueError(f"The navigation of mkdocs.yml and the pages differ: {', '.join(lost)}")


# -------------------------------------------------------------------------------------------------------------- the API


def api_pages() -> Iterator[tuple[str, str]]:
    """Name and text of every page: a page a group of public names, and one of the modules that the pages name.

    Raises:
        ValueError: a public name that belongs to no page.
    """
    homes, names = declared()
    grouped: dict[str, list[str]] = {page: [] for page in API}
    for home, members in homes.items():
        page = next((p for p, (_, rooms) in API.items() if home.partition(".")[0] in rooms), None)
        if page is None:
            raise ValueError(f"holdfast.{home} belongs to no page of the API: name it in docs/site.py")
        grouped[page] += members
    if sorted(n for members in grouped.values() for n in members) != sorted(names):
        raise ValueError("holdfast.__all__ and its table of homes differ")
    rows = []
    for page, (title, _) in API.items():
        held = sorted(grouped[page], key=str.lower)
        rows.append(f"| [{title}]({page}.md) | {', '.join(f'`{name}`' for name in held)} |")
        yield f"{page}.md", f"# {title}\n\n" + "\n".join(f"::: holdfast.{name}\n" for name in held)
    yield "index.md", f"# API\n\n{INTERFACE}\n\n| page | names |\n|---|---|\n" + "\n".join(rows) + "\n"
    listed = []
    for name in named_modules():
        listed.append(f"- [`{name}`](modules/{name}.md): {first_sentence(name)}")
        yield f"modules/{name}.md", f"# {name}\n\n::: {name}\n    options:\n      show_root_heading: false\n"
    yield "modules.md", f"# Modules\n\n{MODULES}\n\n" + "\n".join(listed) + "\n"


def declared() -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """Homes of the public names, and the names, read from the package's source."""
    values: dict[str, object] = {}
    for node in ast.parse((ROOT / "src/holdfast/__init__.py").read_text(encoding="utf-8")).body:
        target = (
            node.target
            if isinstance(node, ast.AnnAssign)
            else node.targets[0]
            if isinstance(node, ast.Assign)
            else None
        )
        if isinstance(target, ast.Name) and target.id in ("_HOMES", "__all__"):
            values[target.id] = ast.literal_eval(node.value)  # type: ignore[union-attr,arg-type]
    return values["_HOMES"], values["__all__"]  # type: ignore[return-value]


def named_modules() -> list[str]:
    """Modules below `holdfast` that the pages name in words or in examples."""
    found = set()
    for page in pages():
        for dotted in re.findall(r"\bholdfast(?:\.\w+)+", page.read_text(encoding="utf-8")):
            parts = dotted.split(".")
            while len(parts) > 2 and not module_file(parts).is_file():
                parts.pop()
            if len(parts) > 2:
                found.add(".".join(parts))
    return sorted(found)


def first_sentence(module: str) -> str:
    text = ast.get_docstring(ast.parse(module_file(module.split(".")).read_text(encoding="utf-8"))) or ""
    return re.split(r"(?<=[.:?])\s", " ".join(text.split()))[0].rstrip(":")


def module_file(parts: list[str]) -> Path:
    file = ROOT.joinpath("src", *parts)
    return file / "__init__.py" if file.is_dir() else file.with_suffix(".py")


if __name__ == "__main__":
    main()
