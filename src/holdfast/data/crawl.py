"""Articles of newspapers by the library `fundus` (Dallabetta et al. 2024), kept one by one (`holdfast data crawl`).

fundus knows the publishers, finds their articles by feeds and site maps, minds robots.txt, and takes text, title and
date out of a page. What is added here: which publishers are meant, the range of dates and the languages, the pauses
that robots.txt asks for, articles that are saved as soon as they arrive, and addresses that are not fetched again.

Two files grow, one line an article:

- `OUTPUT`: the articles, `{"url", "title", "text", "date", "publisher", "language", "authors", "topics", "free_access",
  "fetched"}`, which `holdfast data prepare corpus` reads without options.
- `OUTPUT.addresses`: the addresses that gave no article to keep, and why. One that gave no answer is asked for by one
  more session.

fundus's crawler knows no dates: an article's date is known once it is fetched, so that what lies outside the range is
fetched once, and counted. Publishers whose robots.txt forbids training on their articles are left out. Needs `pip
install 'holdfast[crawl]'`.
"""

from __future__ import annotations

import contextlib
import fnmatch
import importlib.util
import logging
import re
import signal
import threading
import time
import urllib.robotparser
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import Annotated, Any

from holdfast.config.declare import Meta
from holdfast.config.decode import field_mistakes
from holdfast.data.outputs import output_problems
from holdfast.data.prepare import dates
from holdfast.errors import ConfigError, did_you_mean
from holdfast.support.environment import now
from holdfast.support.ledger import Ledger

MISSING = "crawling needs the package fundus, which is not installed. Install it with: pip install 'holdfast[crawl]'"
UNSOUND = (
    "the package fundus does not load with what is installed beside it; pip install 'holdfast[crawl]' installs "
    "what fits"
)

OUTSIDE = "outside the dates"
UNDATED = "without a date"
NO_TEXT = "without text"
OTHER_LANGUAGE = "in another language"
BROKEN = "not readable by fundus"
UNANSWERED = "no article (not reached, refused by robots.txt, or a redirection to a known address)"
REPEATED = "an address that leads to an article that is there"
TRIES = 2
"""Sessions that ask for an address before it is given up."""
LARGEST_PAGE = 2**26
"""Bytes of a page, a feed or a site map, as they come; a site map may have 50 MB. What is longer gives no article."""

_TRACKING = re.compile(r"utm_[a-z]+|fbclid|gclid|at_medium|at_campaign", re.IGNORECASE)
_LANGUAGE = re.compile(r"[a-z]{2}(-[a-z]{2})?")
_WHICH, _HOW = "which articles", "how"


@dataclass(frozen=True, kw_only=True)
class Crawl:
    """What is to be gathered."""

    publishers: Annotated[tuple[str, ...], Meta(repeatable=True, metavar="NAME")]
    """Publishers as us.TheNewYorker or TheNewYorker, countries as us, patterns as 'uk.The*'; capitals do not matter.
    --list_publishers names them."""
    output: Annotated[Path, Meta(metavar="FILE.jsonl")]
    """The articles; grows with every session."""
    after: Annotated[Any, Meta(metavar="DATE", group=_WHICH)] = None
    """Published on this day or later, as 2024-01-01."""
    before: Annotated[Any, Meta(metavar="DATE", group=_WHICH)] = None
    """Published before this day, which is not in the range itself."""
    languages: Annotated[tuple[str, ...], Meta(repeatable=True, metavar="CODE", group=_WHICH)] = ()
    """Languages of the text, such as en, as langdetect finds them (any)."""
    limit: Annotated[int | None, Meta(ge=1, group=_WHICH)] = None
    """Articles in OUTPUT at most, over all sessions."""
    timeout: Annotated[float | None, Meta(gt=0, metavar="SECONDS", group=_HOW)] = None
    """End when no article came for so long (when all sources are exhausted)."""
    delay: Annotated[float, Meta(ge=0, metavar="SECONDS", group=_HOW)] = 1.0
    """Between two pages of a publisher; a longer pause that robots.txt asks for goes before it."""

    @property
    def addresses(self) -> Path:
        """Where addresses without an article are kept."""
        return self.output.with_name(f"{self.output.name}.addresses")

    def problems(self, collection: Any = None) -> list[str]:
        """One sentence a mistake; empty when all is well.

        Args:
            collection: the publishers; None: fundus's own.
        """
        found = []
        if not self.publishers:
            found.append(
                "publishers: expected at least one, such as us.TheNewYorker or de; --list_publishers names them"
            )
        if collection is None and importlib.util.find_spec("fundus") is None:
            found.append(MISSING)
        elif self.publishers:
            try:
                found += chosen(self.publishers, collection)[1]
            except ConfigError as error:
                found += error.problems
        found += output_problems("output", self.output, ())
        if self.output.is_dir():
            found.append(f"output: expected a file, {self.output} is a folder")
        found += dates.range_problems(self.after, self.before)
        found += [m.sentence() for m in field_mistakes(self)]
        wrong = [language for language in self.languages if not _LANGUAGE.fullmatch(language)]
        if wrong:
            found.append(f"languages: expected codes such as en or zh-cn, got {', '.join(wrong)}")
        return found


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A publisher that fundus knows."""

    key: str
    """`us.TheNewYorker`."""
    name: str
    domain: str
    languages: tuple[str, ...]
    note: str
    """Why it cannot be crawled now; empty where it can."""
    publisher: Any = field(repr=False, compare=False)


@dataclass(frozen=True, kw_only=True)
class Crawled:
    """What a session came to."""

    kept: Mapping[str, int]
    """Articles kept by this session, by publisher; all publishers asked for."""
    total: int
    """Articles in the output now."""
    left_out: Mapping[str, Mapping[str, int]]
    """Addresses that this session asked for in vain, by publisher and reason."""
    notes: tuple[str, ...]
    """What stood in the way, such as sites that could not be reached."""
    end: str
    """"exhausted", "limit" or "timeout"."""


def publishers(collection: Any = None) -> list[Listed]:
    """The publishers that fundus knows, by country.

    Args:
        collection: in place of fundus's own.

    Raises:
        ConfigError: fundus is not installed, or not with the packages that it needs.
    """
    if collection is None:
        if importlib.util.find_spec("fundus") is None:
            raise ConfigError(MISSING)
        try:
            import fundus
        except ImportError as error:
            raise ConfigError(f"{UNSOUND} ({error})") from error
        collection = fundus.PublisherCollection
    found = []
    for country, group in collection.get_subgroup_mapping().items():
        for name, one in group.mapping.items():
            languages = tuple(
                sorted(
                    {
                        language
                        for sources in one.source_mapping.values()
                        for source in sources
                        for language in source.languages
                    }
                )
            )
            note = (
                "not kept up by fundus"
                if one.deprecated
                else "forbids training on its articles"
                if getattr(one, "_disallows_training", False)
                else ""
            )
            found.append(
                Listed(
                    key=f"{country}.{name}",
                    name=one.name,
                    domain=one.domain,
                    languages=languages,
                    note=note,
                    publisher=one,
                )
            )
    return found


def chosen(names: Sequence[str], collection: Any = None) -> tuple[list[Listed], list[str]]:
    """The publishers that are meant, each once, and a sentence for each name that means none.

    Of a country or a pattern those that cannot be crawled are left out; one of them by its own name is a mistake.
    """
    known = publishers(collection)
    countries = {one.key.partition(".")[0] for one in known}
    found: dict[str, Listed] = {}
    problems = []
    for name in names:
        lower = name.lower()
        whole = lower in countries or any(sign in name for sign in "*?[")
        pattern = f"{lower}.*" if lower in countries else lower
        mine = [
            one
            for one in known
            if any(fnmatch.fnmatchcase(own, pattern) for own in (one.key.lower(), one.key.partition(".")[2].lower()))
        ]
        usable = [one for one in mine if not one.note]
        if not mine:
            words = {word.lower(): word for one in known for word in (one.key, one.key.partition(".")[2], one.name)} | {
                c: c for c in countries
            }
            near = did_you_mean(lower, words)
            for word in words:
                near = near.replace(f"'{word}'", f"'{words[word]}'")
            problems.append(
                f"publishers: '{name}' is none that fundus knows.{near or ' --list_publishers names them.'}"
            )
        elif not usable:
            reasons = ", ".join(sorted({f"{one.key} ({one.note})" for one in mine}))
            problems.append(
                f"publishers: '{name}' cannot be crawled: {reasons}"
                if not whole
                else f"publishers: none of '{name}' can be crawled: {reasons}"
            )
        found |= {one.key: one for one in usable}
    return list(found.values()), problems


def crawl(
    request: Crawl,
    *,
    collection: Any = None,
    report: Callable[[int, Mapping[str, int]], None] = lambda total, kept: None,
) -> Crawled:
    """Gathers articles until the sources are exhausted, the limit is reached, or none came for `timeout` seconds.

    Args:
        request: what is wanted.
        collection: the publishers; None: fundus's own.
        report: called for every article that is kept with how many there are, and how many of each publisher this
            session kept.

    Raises:
        ConfigError: mistakes in the request, all of them; fundus is not installed.
        RunFolderError: another process writes the output.
        DataError: the output holds something else.
        StorageError: the disk is full; what was written is whole.
        KeyboardInterrupt: the user stopped it; everything that was fetched is kept.
    """
    if problems := request.problems(collection):
        raise ConfigError(problems)
    listed = chosen(request.publishers, collection)[0]
    with (
        Ledger(request.output, key="url", keep=lambda row: {"asked": row.get("asked")}) as articles,
        Ledger(request.addresses, key="url", keep=dict) as addresses,
    ):
        session = _Session(request, listed, articles, addresses)
        if request.limit is None or len(articles.rows) < request.limit:
            session.run(report)
        return session.result()


class _Session:
    """One session: what is known, what was asked for, what came."""

    def __init__(self, request: Crawl, listed: Sequence[Listed], articles: Ledger, addresses: Ledger) -> None:
        self.request, self.listed, self.articles, self.addresses = request, listed, articles, addresses
        self.after, self.before = (
            dates.cut_off(day) if day is not None else None for day in (request.after, request.before)
        )
        self.known = {url for row_url, row in articles.rows.items() for url in (row_url, row["asked"]) if url}
        self.known |= {url for url, row in addresses.rows.items() if self._settled(row)}
        self.asked: dict[int, list[str]] = defaultdict(list)
        """Addresses that were let through, by thread (a publisher's own), in order."""
        self.came: set[str] = set()
        self.kept = {one.name: 0 for one in listed}
        self.left_out: dict[str, Counter[str]] = {one.name: Counter() for one in listed}
        self.unanswered = 0
        self.heard = _Heard()
        self.end = "exhausted" if request.limit is None or len(articles.rows) < request.limit else "limit"

    def run(self, report: Callable[[int, Mapping[str, int]], None]) -> None:
        from fundus import Crawler

        for one in self.listed:
            _mind_pauses(one.publisher.robots, self.request.delay)
        # a thread a publisher, as fundus has it; one publisher needs none, and then nothing is on its way when the
        # crawl is stopped
        crawler = Crawler(
            *(one.publisher for one in self.listed), delay=float(self.request.delay), threading=len(self.listed) > 1
        )
        timeout = max(1, round(self.request.timeout)) if self.request.timeout is not None else None
        with self.heard, _bounded_pages(), _Stops(timeout) as stops:
            found: Any = crawler.crawl(
                timeout=timeout,
                error_handling="catch",
                # every page is seen here, so that none is fetched again for want of a date or text
                only_complete=False,
                only_unique=False,
                url_filter=self._known_address,
                skip_publishers_disallowing_training=True,
            )
            with contextlib.closing(found):
                for article in found:
                    stops.heard()
                    if self._keep(article):
                        report(len(self.articles.rows), self.kept)
                    if self.request.limit is not None and len(self.articles.rows) >= self.request.limit:
                        self.end = "limit"
                        break
        if stops.silent:
            self.end = "timeout"
        if self.end == "exhausted" and not stops.stopped:
            # of what was cut off, some may have come and not have been read, and some not have been fetched
            self._settle()
        if stops.stopped:  # fundus ends as if all were well
            raise KeyboardInterrupt

    def result(self) -> Crawled:
        return Crawled(
            kept=self.kept,
            total=len(self.articles.rows),
            left_out={name: dict(reasons) for name, reasons in self.left_out.items()},
            notes=(*self._refusals(), *self.heard.notes()),
            end=self.end,
        )

    # ------------------------------------------------------------------------------------------------------- addresses

    def _known_address(self, url: str) -> bool:
        """fundus's filter of addresses, asked before a page is fetched and again with where it led; true: leave it
        out."""
        plain = plain_address(url)
        if plain in self.known:
            return True
        self.asked[threading.get_ident()].append(plain)
        return False

    def _settled(self, row: Mapping[str, Any]) -> bool:
        """Whether an address without an article need not be asked for again, under the dates and languages of this
        request."""
        if row["outcome"] == OUTSIDE:
            return not self._in_range(date.fromisoformat(row["date"]))
        if row["outcome"] == UNDATED:
            return self.after is not None or self.before is not None
        if row["outcome"] == OTHER_LANGUAGE:
            return bool(self.request.languages) and row["language"] not in self.request.languages
        return row["outcome"] != UNANSWERED or row["tries"] >= TRIES

    def _settle(self) -> None:
        """Notes the addresses that gave nothing."""
        rows = []
        for urls in self.asked.values():
            for url in dict.fromkeys(urls):
                if url in self.came or url in self.known:
                    continue
                before = self.addresses.rows.get(url, {})
                rows.append({"url": url, "outcome": UNANSWERED, "tries": before.get("tries", 0) + 1, "time": now()})
        if rows:
            self.addresses.add(rows)
        self.unanswered = len(rows)

    # -------------------------------------------------------------------------------------------------------- articles

    def _keep(self, article: Any) -> bool:
        """Sets an article down, or why it is not kept."""
        publisher = article.publisher
        asked = plain_address(self._as_asked(article))
        url = plain_address(article.html.responded_url)
        self.came |= {asked, url}
        if url in self.articles.rows:
            self._leave_out(asked, publisher, REPEATED)
            return False
        row, reason, more = self._row(article, url)
        if reason:
            self._leave_out(asked, publisher, reason, **more)
            return False
        self.articles.add([row if asked == url else {**row, "asked": asked}])
        self.known |= {asked, url}
        self.kept[publisher] = self.kept.get(publisher, 0) + 1
        return True

    def _row(self, article: Any, url: str) -> tuple[dict[str, Any], str, dict[str, Any]]:
        """(the row, why it is not kept, what to note about that)."""
        if article.exception is not None:
            return {}, BROKEN, {}
        title, body, when = (_sound(getattr(article, name, None)) for name in ("title", "body", "publishing_date"))
        text = str(body).strip() if body else ""
        if not text:
            return {}, NO_TEXT, {}
        try:
            day = dates.day_of(when, now=dates.today())
        except ValueError:
            day = when = None
        if day is None and (self.after is not None or self.before is not None):
            return {}, UNDATED, {}
        if day is not None and not self._in_range(day):
            return {}, OUTSIDE, {"date": day.isoformat()}
        language = _language(article)
        if self.request.languages and language not in self.request.languages:
            return {}, OTHER_LANGUAGE, {"language": language}
        row = {
            "url": url,
            "title": title if isinstance(title, str) else None,
            "text": text,
            "date": when.isoformat() if isinstance(when, datetime) else day.isoformat() if day is not None else None,
            "publisher": article.publisher,
            "language": language,
            "authors": _texts(getattr(article, "authors", None)),
            "topics": _texts(getattr(article, "topics", None)),
            "free_access": _sound(getattr(article, "free_access", None)),
            "fetched": now(),
        }
        return row, "", {}

    def _in_range(self, day: date) -> bool:
        return (self.after is None or day >= self.after) and (self.before is None or day < self.before)

    def _leave_out(self, url: str, publisher: str, reason: str, **more: Any) -> None:
        self.addresses.add([{"url": url, "outcome": reason, "publisher": publisher, **more, "time": now()}])
        self.known.add(url)
        self.left_out.setdefault(publisher, Counter())[reason] += 1

    def _as_asked(self, article: Any) -> str:
        """The address before fundus put the publisher's own query parameters behind it."""
        url: str = article.html.requested_url
        publisher = next((one.publisher for one in self.listed if one.name == article.publisher), None)
        for key, value in reversed(list((getattr(publisher, "query_parameter", None) or {}).items())):
            url = url.removesuffix(f"?{key}={value}").removesuffix(f"&{key}={value}")
        return url

    def _refusals(self) -> Iterator[str]:
        """Publishers whose robots.txt, where it was read, forbids everything, or training."""
        for one in self.listed:
            robots = one.publisher.robots
            if robots.ready and robots.disallow_all():
                yield f"{one.key}: left out, its robots.txt forbids all pages"
            elif robots.ready and robots.disallows_training():
                yield f"{one.key}: left out, its robots.txt forbids training on its articles"
        if self.unanswered:
            yield f"{self.unanswered:,} addresses gave {UNANSWERED}; they are asked for by {TRIES} sessions at most"


def plain_address(url: str) -> str:
    """An address without what only says how somebody came to it: the fragment, and parameters for counting visits."""
    bare, mark, query = url.partition("#")[0].partition("?")
    kept = "&".join(part for part in query.split("&") if not _TRACKING.fullmatch(part.partition("=")[0]))
    return f"{bare}{mark}{kept}" if kept else bare


def _bounded_pages() -> contextlib.AbstractContextManager[Any]:
    """Inside, fundus gives up what is longer than `LARGEST_PAGE`; after half a minute it gives up anyway."""
    from curl_cffi import CurlOpt
    from fundus.scraping.session import session_handler

    pages: contextlib.AbstractContextManager[Any] = session_handler.context(
        curl_options={CurlOpt.MAXFILESIZE_LARGE: LARGEST_PAGE}
    )
    return pages


def _mind_pauses(robots: Any, least: float) -> None:
    """Lets a publisher's robots.txt ask for pauses.

    fundus asks it for them, but the parser that fundus uses (robotspy) reads no Crawl-delay: Python's own reads the
    same lines.
    """
    parser, known = robots.robots_file_parser, urllib.robotparser.RobotFileParser()
    if robots.ready or "parse" in vars(parser):
        return
    parse = parser.parse

    def parse_both(lines: Iterable[str]) -> None:
        read = list(lines)
        known.parse(read)
        parse(read)

    def crawl_delay(agent: str) -> float | None:
        robots.ensure_ready()
        found = known.crawl_delay(agent)
        return None if found is None else max(least, float(found))

    parser.parse, robots.crawl_delay = parse_both, crawl_delay


def _sound(value: Any) -> Any:
    """A part of an article; None where fundus could not read it, and gives the error."""
    return None if isinstance(value, Exception) else value


def _language(article: Any) -> str | None:
    """The language of an article; None where it is not recognised."""
    try:
        found = article.lang
        return str(found) if found else None
    except Exception:  # langdetect and lxml have errors of their own, and none of them may cost an article
        return None


def _texts(value: Any) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, (list, tuple)) else []


class _Stops:
    """Tells Ctrl-C from fundus's own time-out. Both are a KeyboardInterrupt in the main thread, and fundus swallows
    both.

    Args:
        timeout: seconds without an article after which fundus stops.
    """

    def __init__(self, timeout: float | None) -> None:
        self.timeout = timeout
        self.stopped = self.silent = False
        self._last = time.monotonic()
        self._held: dict[int, Any] = {}

    def heard(self) -> None:
        """An article came."""
        self._last = time.monotonic()

    def __enter__(self) -> _Stops:
        if threading.current_thread() is threading.main_thread():
            self._held = {number: signal.signal(number, self._interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
        self.heard()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._held.items():
            signal.signal(number, handler)

    def _interrupt(self, number: int, frame: Any) -> None:
        waited = time.monotonic() - self._last
        if number == signal.SIGINT and self.timeout is not None and waited >= 0.9 * self.timeout and not self.stopped:
            self.silent = True
        else:
            self.stopped = True
        raise KeyboardInterrupt


class _Heard(logging.Handler):
    """Warnings of fundus, kept for the end instead of on the terminal."""

    def __init__(self) -> None:
        super().__init__(level=logging.WARNING)
        self._warnings: dict[str, None] = {}
        self._levels: dict[Any, int] = {}

    def __enter__(self) -> _Heard:
        import fundus.logging as own

        self._levels = {handler: handler.level for handler in own.handlers.values()}
        own.set_log_level(logging.CRITICAL + 1)
        logging.getLogger("fundus").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("fundus").removeHandler(self)
        for handler, level in self._levels.items():
            handler.setLevel(level)

    def emit(self, record: logging.LogRecord) -> None:
        self._warnings.setdefault(" ".join(record.getMessage().split())[:300])

    def notes(self, most: int = 10) -> list[str]:
        """The warnings, each once; the first of them where there are many."""
        found = list(self._warnings)
        return [f"fundus: {line}" for line in found[:most]] + (
            [f"fundus: and {len(found) - most} more warnings"] if len(found) > most else []
        )
