"""`holdfast data crawl`: articles of newspapers, gathered by fundus."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.cli.console import print_counts, print_line, stderr_console, stdout_console, stoppable
from holdfast.config.command_line import Command, switch_is_on
from holdfast.config.declare import settings_of
from holdfast.data.crawl import Crawl, Crawled
from holdfast.support.progress import counted

DESCRIPTION = """\
Collects articles of newspapers with the library fundus, which knows the publishers. Their robots.txt is respected, and
the pauses that it asks for. Every article is saved as soon as it arrives: after Ctrl-C the same command continues, and
no address is fetched again. Publishers whose robots.txt forbids training on their articles are left out. Whether you
may use what you collect is for you to find out: the articles stay their publishers'.
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
  A page's date is known once it is fetched: pages outside the range are fetched once, counted and not kept. Feeds and
  site maps hold what is recent; for years back use Common Crawl's WET files, which 'holdfast data prepare corpus'
  reads.
"""


@dataclass(frozen=True, kw_only=True)
class CrawlRequest(Crawl):
    """`holdfast data crawl`."""

    list_publishers: bool = False
    """Print the names that fundus knows, and end."""


COMMAND = Command(
    name="holdfast data crawl",
    request=CrawlRequest,
    description=DESCRIPTION,
    epilog=EPILOG,
    usage="--publishers NAME... --output FILE.jsonl [options]",
)


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast data crawl --help`."""
    from holdfast.support.environment import terminated_is_interrupted

    given = COMMAND.given(argv)
    if switch_is_on(given, next(s for s in settings_of(CrawlRequest) if s.name == "list_publishers")):
        given.check()
        list_publishers()
        return 0
    if isinstance(languages := given.values.get("languages"), list):
        given.values["languages"] = [str(language).lower() for language in languages]
    request = COMMAND.decode(given)

    from holdfast.data.crawl import crawl

    text = f"Stopped. What was fetched is kept in {request.output}; the same command goes on from there."
    with (
        terminated_is_interrupted(),
        stoppable(text),
        counted("Fetching articles", console=stderr_console()) as bar,
    ):

        def report(total: int, kept: Mapping[str, int]) -> None:
            most = sorted(kept.items(), key=lambda item: -item[1])[:3]
            bar(total, request.limit, ", ".join(f"{name} {count:,}" for name, count in most if count))

        report(0, {})
        found = crawl(request, report=report)
    show(request, found)
    return 0


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
        print_line(out, line)


def show(asked: Crawl, found: Crawled) -> None:
    """Prints what a session came to, publisher by publisher."""
    out = stdout_console()
    say = functools.partial(print_line, out)
    rows = []
    for name, count in found.kept.items():
        reasons = sorted(found.left_out.get(name, {}).items(), key=lambda item: -item[1])
        left_out = ", ".join(f"{number:,} {reason}" for reason, number in reasons)
        rows.append((count, f"{name}{f' (not kept: {left_out})' if left_out else ''}"))
    print_counts(out, rows)
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
