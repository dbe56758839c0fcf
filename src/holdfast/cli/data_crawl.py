"""`holdfast data crawl`: articles of newspapers, gathered by fundus."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.cli.checkpoint_options import stderr_console, stdout_console
from holdfast.cli.request import Request, RequestParser
from holdfast.errors import Interrupted

if TYPE_CHECKING:
    from holdfast.data.crawl import Crawl, Crawled

DESCRIPTION = """\
Gathers articles of newspapers with the library fundus, which knows the publishers. Their robots.txt is minded, and the
pauses that it asks for. Every article is kept the moment it is there: after Ctrl-C the same command goes on, and no address is
fetched again. Publishers whose robots.txt forbids training on their articles are left out. Whether you may use what you
gather is for you to find out: the articles stay their publishers'.
"""
EPILOG = """\
examples
  holdfast data crawl --list_publishers
  holdfast data crawl --publishers us.TheNewYorker uk --after 2024-01-01 --limit 10000 --output news/articles.jsonl
  holdfast data crawl --publishers 'de.*' --languages de --timeout 120 --output news/german.jsonl
  holdfast data prepare corpus --input news/ --after 2024-01-01 --near_duplicates 0.8 --output new.jsonl --heldout 0.01

needs
  pip install 'holdfast[crawl]'

dates
  A page's date is known once it is fetched: pages outside the range are fetched once, counted and not kept. Feeds and site
  maps hold what is recent; for years back use Common Crawl's WET files, which 'holdfast data prepare corpus' reads.
"""


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast data crawl --help`."""
    from holdfast.support.environment import terminated_is_interrupted

    request = Request(crawl_parser(), argv)
    if request.on("list_publishers"):
        request.check()
        list_publishers()
        return 0
    asked = read_crawl(request)
    request.check()

    from holdfast.data.crawl import crawl

    said = f"Stopped. What was fetched is kept in {asked.output}; the same command goes on from there."
    with terminated_is_interrupted(), _stoppable(said), _bar(asked.limit) as report:
        found = crawl(asked, report=report)
    show(asked, found)
    return 0


def crawl_parser() -> RequestParser:
    """The options of `crawl`."""
    usage = "--publishers NAME... --output FILE.jsonl [options]"
    parser = RequestParser(prog="holdfast data crawl", description=DESCRIPTION, epilog=EPILOG, usage=usage)
    parser.many(
        "publishers", "NAME", "publishers as us.TheNewYorker or TheNewYorker, countries as us, patterns as 'uk.The*'"
    )
    parser.one("output", "FILE.jsonl", "the articles; grows with every session")
    parser.switch("list_publishers", "names what fundus knows, and ends")
    group = parser.add_argument_group("which articles")
    parser.one("after", "DATE", "published on this day or later, as 2024-01-01", group=group)
    parser.one("before", "DATE", "published before this day, which is not in the range itself", group=group)
    parser.many("languages", "CODE", "of the text, such as en", group=group)
    parser.one("limit", "N", "articles in OUTPUT at most, over all sessions", group=group)
    group = parser.add_argument_group("how")
    parser.one(
        "timeout", "SECONDS", "end when no article came for so long (when all sources are exhausted)", group=group
    )
    parser.one(
        "delay",
        "SECONDS",
        "between two pages of a publisher; a longer pause that robots.txt asks for goes before it (1)",
        group=group,
    )
    return parser


def read_crawl(request: Request) -> Crawl:
    """What is asked for; mistakes are added to the request's problems."""
    from holdfast.data.crawl import Crawl

    if not request.has("publishers"):
        request.problems.append("--publishers is missing: such as us.TheNewYorker or de; --list_publishers names them")
    output = request.required("output", "the .jsonl file that the articles go to")
    asked = Crawl(
        publishers=tuple(request.texts("publishers")),
        output=Path(output or "articles.jsonl").expanduser(),
        after=request.text("after", None),
        before=request.text("before", None),
        limit=request.whole("limit", None, least=1),
        languages=tuple(language.lower() for language in request.texts("languages")),
        timeout=request.number("timeout", None),
        delay=request.number("delay", 1.0),
    )
    for problem in asked.problems():
        name = problem.partition(":")[0]
        if name == "publishers" and not request.has("publishers"):
            continue
        option = name in request.parser.values
        request.problems.append(f"{request.named(name)}{problem.removeprefix(name)}" if option else problem)
    return asked


def list_publishers() -> None:
    """Prints the publishers that fundus knows."""
    from holdfast.data.crawl import publishers

    known, out = publishers(), stdout_console()
    keys, names = (
        max(len(text) for text in texts) for texts in zip(*((one.key, one.name) for one in known), strict=True)
    )
    for one in known:
        note = f" ({one.note})" if one.note else ""
        line = f"{one.key:<{keys}}  {one.name:<{names}}  {one.domain}  {' '.join(one.languages)}{note}"
        out.print(line, soft_wrap=True, markup=False, highlight=False)


def show(asked: Crawl, found: Crawled) -> None:
    """Prints what a session came to, publisher by publisher."""
    from rich.table import Table

    out = stdout_console()

    def say(line: str) -> None:
        out.print(line, soft_wrap=True, markup=False, highlight=False)

    table = Table(box=None, pad_edge=False, padding=(0, 2), show_header=False)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for name, count in found.kept.items():
        reasons = found.left_out.get(name, {})
        left_out = ", ".join(
            f"{number:,} {reason}" for reason, number in sorted(reasons.items(), key=lambda item: -item[1])
        )
        table.add_row(f"{count:,}", f"{name}{f' (not kept: {left_out})' if left_out else ''}")
    out.print(table, markup=False)
    ends = {
        "exhausted": "all sources are exhausted",
        "limit": f"the limit of {asked.limit:,} is reached" if asked.limit is not None else "",
        "timeout": f"no article came for {asked.timeout:g} seconds" if asked.timeout is not None else "",
    }
    say(
        f"{sum(found.kept.values()):,} articles were fetched, {found.total:,} are in {asked.output}; {ends[found.end]}."
    )
    for note in found.notes:
        say(f"note: {note}")


@contextlib.contextmanager
def _stoppable(said: str) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(said) from None


@contextlib.contextmanager
def _bar(limit: int | None) -> Iterator[Callable[[int, Mapping[str, int]], None]]:
    """A bar on stderr, where somebody is watching: articles so far, of the limit where there is one, and the time left
    to it."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = stderr_console()
    last = TextColumn("{task.fields[last]}")
    columns: Sequence[Any] = (
        TextColumn("Fetching articles"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        last,
    )
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    row = bar.add_task("", total=limit, last="")

    def report(total: int, kept: Mapping[str, int]) -> None:
        said = ", ".join(
            f"{name} {count:,}" for name, count in sorted(kept.items(), key=lambda item: -item[1])[:3] if count
        )
        bar.update(row, completed=total, last=said)

    bar.start()
    try:
        yield report
    finally:
        bar.stop()
