"""A newspaper on this machine: robots.txt, a feed, a site map and articles from a thread's web server, and the
publisher that fundus needs for it."""

from __future__ import annotations

import contextlib
import importlib.util
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

needs_fundus = pytest.mark.skipif(
    importlib.util.find_spec("fundus") is None,
    reason="crawling needs the package fundus: pip install 'holdfast[crawl]'",
)

ENGLISH = (
    "The bridge over the river was opened on Monday morning, and many people came to see the first cars drive across "
    "it. {} There were speeches."
)
GERMAN = (
    "Die Brücke über den Fluss wurde am Montagmorgen eröffnet, und viele Menschen kamen, um die ersten Autos darüber "
    "fahren zu sehen. {}"
)


def page(
    number: int, *, day: str | None = "2024-03-{:02d}", text: str | None = ENGLISH, title: str | None = "Bridge {}"
) -> str:
    """An article's HTML."""
    date = f'<meta name="when" content="{day.format(number % 28 + 1)}T10:00:00+00:00">' if day else ""
    heading = f"<h1>{title.format(number)}</h1>" if title else ""
    body = (
        f"<p class='lead'>Report {number}.</p><article><p>{text.format(f'This is report {number}.')}</p>"
        "<p>It ended well.</p></article>"
        if text
        else ""
    )
    return f"<html><head>{date}</head><body>{heading}{body}</body></html>"


class Newspaper:
    """Serves while its `with` block runs.

    Args:
        pages: HTML by path, or a number of articles.
        robots: what robots.txt says; None: there is none.
        in_map: paths in the site map, beside the feed's; None: the second half of the pages.
    """

    def __init__(
        self,
        pages: dict[str, str] | int,
        *,
        robots: str | None = "User-agent: *\nAllow: /\n",
        in_map: list[str] | None = None,
    ) -> None:
        self.pages = {f"/article/{i}": page(i) for i in range(pages)} if isinstance(pages, int) else pages
        half = (len(self.pages) + 1) // 2
        self.in_map = in_map if in_map is not None else list(self.pages)[half:]
        self.in_feed = [path for path in self.pages if path not in self.in_map]
        self.robots = robots
        self.redirects: dict[str, str] = {}
        self.endless: set[str] = set()
        """Paths whose pages never end."""
        self.asked: list[str] = []
        self.agents: set[str] = set()
        self.before: Callable[[str], None] = lambda path: None
        """Is called with the path of every request for an article."""

    def __enter__(self) -> Newspaper:
        paper = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = 1 << 16  # one packet an answer; two would wait for each other

            def do_GET(self) -> None:
                path = self.path
                paper.asked.append(path)
                paper.agents.add(self.headers.get("user-agent", ""))
                if path.startswith("/article"):
                    paper.before(path)
                if path in paper.endless:
                    self.close_connection = True
                    self.send_response(200)
                    self.end_headers()
                    with contextlib.suppress(OSError):  # the client has gone
                        while True:
                            self.wfile.write(b" " * 10_000)
                if path in paper.redirects:
                    self.answer(302, "", location=paper.redirects[path])
                    return
                known = {
                    "/robots.txt": paper.robots,
                    "/feed.xml": paper.feed(),
                    "/sitemap.xml": paper.map(),
                    **paper.pages,
                }
                content = known.get(path.partition("?")[0])
                self.answer(
                    404 if content is None else 200,
                    content or "",
                    kind="text/xml" if path.endswith(".xml") else "text/html",
                )

            def answer(
                self, status: int, content: str, *, kind: str = "text/html", location: str | None = None
            ) -> None:
                sent = content.encode()
                self.send_response(status)
                self.send_header("content-type", f"{kind}; charset=utf-8")
                self.send_header("content-length", str(len(sent)))
                if location:
                    self.send_header("location", location)
                self.end_headers()
                self.wfile.write(sent)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def feed(self) -> str:
        items = "".join(f"<item><title>x</title><link>{self.url}{path}</link></item>" for path in self.in_feed)
        about = f"<title>Paper</title><link>{self.url}</link><description>x</description>"
        return f'<?xml version="1.0"?><rss version="2.0"><channel>{about}{items}</channel></rss>'

    def map(self) -> str:
        items = "".join(f"<url><loc>{self.url}{path}</loc></url>" for path in self.in_map)
        return (
            f'<?xml version="1.0" encoding="UTF-8"?><urlset '
            f'xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{items}</urlset>'
        )

    @property
    def articles(self) -> list[str]:
        """Paths of articles that were asked for, in order."""
        return [path for path in self.asked if path.startswith("/article")]


def publisher(url: str, name: str, **more: Any) -> Any:
    """A publisher of fundus for a newspaper at an address."""
    from fundus import RSSFeed, Sitemap
    from fundus.parser import ArticleBody, BaseParser, ParserProxy, attribute
    from fundus.parser.utility import extract_article_body_with_selector, generic_date_parsing
    from fundus.publishers.base_objects import Publisher
    from lxml.etree import XPath

    class Parser(ParserProxy):
        class V1(BaseParser):
            @attribute
            def title(self) -> str | None:
                return next(iter(self.precomputed.doc.xpath("//h1/text()")), None)

            @attribute
            def body(self) -> ArticleBody | None:
                return extract_article_body_with_selector(
                    self.precomputed.doc,
                    paragraph_selector=XPath("//article/p"),
                    summary_selector=XPath("//p[@class='lead']"),
                )

            @attribute
            def publishing_date(self) -> Any:
                return generic_date_parsing(self.precomputed.meta.get("when"))

    sources = [RSSFeed(f"{url}/feed.xml"), Sitemap(f"{url}/sitemap.xml")]
    return Publisher(name=name, domain=url, parser=Parser, sources=sources, **more)


def collection(**countries: dict[str, Any]) -> Any:
    """Publishers by country and name, as fundus's own `PublisherCollection`."""
    from fundus.publishers.base_objects import PublisherGroup

    groups = {
        country: PublisherGroup(country.upper(), (), {"default_language": "en", **own})
        for country, own in countries.items()
    }
    return PublisherGroup("Papers", (), groups)
