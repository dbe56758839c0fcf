"""Articles of newspapers on this machine: what is kept and what is not, nothing is fetched twice, and any stop goes
on."""

from __future__ import annotations

import functools
import importlib.util
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from data_files import prepared, rows_of
from holdfast.data import crawl as crawl_module
from holdfast.data.crawl import (
    BROKEN,
    NO_TEXT,
    OTHER_LANGUAGE,
    OUTSIDE,
    REPEATED,
    UNANSWERED,
    UNDATED,
    Crawl,
    chosen,
    crawl,
    plain_address,
    publishers,
)
from holdfast.errors import ConfigError, DataError, FolderBusy
from holdfast.support.ledger import Ledger, read_ledger
from local_newspaper import GERMAN, Newspaper, collection, needs_fundus, page, publisher

rows = functools.partial(rows_of, "news.jsonl")


def outcomes() -> dict[str, str]:
    return {
        url.partition("//")[2].partition("/")[2]: row["outcome"]
        for url, row in read_ledger("news.jsonl.addresses", key="url").items()
    }


def asked(*names: str, **more) -> Crawl:
    return Crawl(publishers=names or ("*",), output=Path("news.jsonl"), delay=0.0, **more)


def one(paper: Newspaper, **more):
    return collection(xx={"Paper": publisher(paper.url, "The Paper", **more)})


# --------------------------------------------------------------------------------------------------------- what is kept


@needs_fundus
def test_articles_are_kept_and_read_as_a_corpus():
    with Newspaper(6) as paper:
        found = crawl(asked("xx.Paper"), collection=one(paper))
    assert (found.kept, found.total, found.end) == ({"The Paper": 6}, 6, "exhausted")
    assert found.notes == () and found.left_out == {"The Paper": {}}
    row = rows()[0]
    assert row["text"].startswith("Report 0.\n\nThe bridge over")
    expected = {"url": f"{paper.url}/article/0", "title": "Bridge 0", "date": "2024-03-01T10:00:00+00:00"}
    expected |= {"publisher": "The Paper", "language": "en", "free_access": True}
    assert row | expected == row
    assert sorted(paper.articles) == [f"/article/{i}" for i in range(6)] and paper.asked.count("/robots.txt") == 1
    counts = prepared("corpus", "news.jsonl", output="out/new.jsonl", after="2024-03-03")["counts"]
    assert (counts["documents"], counts["first_date"], counts["malformed_dates"]) == (4, "2024-03-03", 0)
    assert rows_of("out/new.jsonl")[0]["source"].startswith(paper.url)


@needs_fundus
def test_a_page_without_end_costs_one_article(monkeypatch):
    """It is given up at a bound, and its address is noted as one that gave nothing."""
    monkeypatch.setattr(crawl_module, "LARGEST_PAGE", 100_000)
    with Newspaper(4) as paper:
        paper.endless = {"/article/1"}
        began = time.monotonic()
        found = crawl(asked("xx.Paper"), collection=one(paper))
        assert time.monotonic() - began < 10, "fundus itself waits for half a minute"
    assert (found.kept, found.end) == ({"The Paper": 3}, "exhausted")
    assert outcomes() == {"article/1": UNANSWERED}


@needs_fundus
def test_nothing_is_fetched_twice_and_the_limit_counts_all_sessions():
    with Newspaper(8) as paper:
        first = crawl(asked(limit=3), collection=one(paper))
        assert first.end == "limit" and first.total == 3 == len(rows())
        assert crawl(asked(limit=3), collection=one(paper)).kept == {"The Paper": 0} and len(paper.articles) == 3
        second = crawl(asked(limit=5), collection=one(paper))
        assert second.kept == {"The Paper": 2} and second.total == 5
        third = crawl(asked(), collection=one(paper))
        assert third.kept == {"The Paper": 3} and third.total == 8
        assert crawl(asked(), collection=one(paper)).kept == {"The Paper": 0}
    assert sorted(paper.articles) == [f"/article/{i}" for i in range(8)]


@needs_fundus
def test_what_is_outside_the_range_is_fetched_once_and_again_only_for_another_range():
    with Newspaper({f"/article/{i}": page(i, day=f"2024-0{1 + i % 3}-10") for i in range(6)}) as paper:
        found = crawl(asked(after="2024-02-01", before="2024-03-01"), collection=one(paper))
        assert found.kept == {"The Paper": 2} and found.left_out["The Paper"] == {OUTSIDE: 4}
        assert {row["date"][:7] for row in rows()} == {"2024-02"}
        crawl(asked(after="2024-02-01", before="2024-03-01"), collection=one(paper))
        assert len(paper.articles) == 6
        crawl(asked(after="2024-02-01"), collection=one(paper))
    assert len(paper.articles) == 8 and len(rows()) == 4


@needs_fundus
def test_what_is_no_article_is_counted_by_its_reason():
    pages = {
        "/article/0": page(0),
        "/article/1": page(1, text=None),
        "/article/2": page(2, day=None),
        "/article/3": page(3, text=GERMAN),
        "/article/4": page(4, title=None),
        "/article/5": "",
        "/article/6": page(6, day="2099-01-01"),
    }
    with Newspaper(pages, in_map=["/article/9", *list(pages)[3:]]) as paper:
        found = crawl(asked(after="2024-01-01", languages=("en",)), collection=one(paper))
        assert {row["title"] for row in rows()} == {"Bridge 0", None}
        assert found.left_out["The Paper"] == {NO_TEXT: 1, UNDATED: 2, OTHER_LANGUAGE: 1, BROKEN: 1}
        assert outcomes() == {
            "article/1": NO_TEXT,
            "article/2": UNDATED,
            "article/3": OTHER_LANGUAGE,
            "article/5": BROKEN,
            "article/6": UNDATED,
            "article/9": UNANSWERED,
        }
        assert any("/article/9" in note and "404" in note for note in found.notes) and any(
            "1 addresses gave no article" in note for note in found.notes
        )
        crawl(asked(after="2024-01-01", languages=("en",)), collection=one(paper))
        crawl(asked(after="2024-01-01", languages=("en",)), collection=one(paper))
        assert len(paper.articles) == 8 + 1 and paper.articles.count("/article/9") == 2, (
            "what gave no answer is asked for by one more session"
        )
        crawl(asked(), collection=one(paper))
        assert {"/article/2", "/article/3", "/article/6"} == set(paper.articles[9:])
    assert len(rows()) == 5 and {row["date"] for row in rows()} >= {None}


@needs_fundus
def test_redirections_and_addresses_that_differ_only_in_counting_visits():
    with Newspaper(3, in_map=["/article/0?utm_source=map", "/article/moved", "/article/2#top"]) as paper:
        paper.redirects["/article/moved"] = f"{paper.url}/article/1"
        crawl(asked(), collection=one(paper))
        assert len(rows()) == 3 and len({row["url"] for row in rows()}) == 3
        crawl(asked(), collection=one(paper))
        crawl(asked(), collection=one(paper))
    assert paper.articles.count("/article/0") + paper.articles.count("/article/0?utm_source=map") == 1
    assert paper.articles.count("/article/moved") <= 2 and paper.articles.count("/article/1") <= 3


@needs_fundus
def test_a_publishers_own_parameters_do_not_hide_what_is_known():
    with Newspaper(3) as paper:
        for _ in range(2):
            crawl(asked(), collection=one(paper, query_parameter={"page": "all"}))
    assert sorted(paper.articles) == [f"/article/{i}?page=all" for i in range(3)]


@needs_fundus
def test_the_same_article_under_two_addresses_is_kept_once():
    with Newspaper({"/article/0": page(0)}, in_map=["/article/also"]) as paper:
        paper.redirects["/article/also"] = f"{paper.url}/article/0"
        paper.in_feed, paper.in_map = paper.in_map, paper.in_feed
        found = crawl(asked(), collection=one(paper))
        crawl(asked(), collection=one(paper))
    assert (
        len(rows()) == 1
        and rows()[0]["asked"].endswith("/article/also")
        and sum(found.left_out["The Paper"].values()) <= 1
    )
    assert REPEATED not in outcomes().values() or len(paper.articles) <= 4


@pytest.mark.parametrize(
    ("url", "plain"),
    [
        ("https://x.org/a", "https://x.org/a"),
        ("https://x.org/a?id=3#top", "https://x.org/a?id=3"),
        ("https://x.org/a?utm_source=rss&id=3&utm_medium=feed", "https://x.org/a?id=3"),
        ("https://x.org/R&D?UTM_Campaign=x", "https://x.org/R&D"),
        ("https://x.org/?fbclid=1", "https://x.org/"),
    ],
)
def test_addresses_without_what_counts_visits(url, plain):
    assert plain_address(url) == plain


# --------------------------------------------------------------------------------------------------------- being polite


@needs_fundus
def test_robots_txt_is_minded():
    with Newspaper(6, robots="User-agent: *\nDisallow: /article/1\nDisallow: /article/2\n") as paper:
        found = crawl(asked(), collection=one(paper))
    assert sorted(paper.articles) == ["/article/0", "/article/3", "/article/4", "/article/5"] and found.total == 4
    assert all("undus" in agent for agent in paper.agents), "it says who it is"


@needs_fundus
def test_publishers_that_forbid_it_are_left_out_and_named():
    forbids = "# no text mining or training of large language models\nUser-agent: *\nAllow: /\n"
    with Newspaper(3, robots=forbids) as paper:
        found = crawl(asked(), collection=one(paper))
    assert paper.articles == [] and found.kept == {"The Paper": 0}
    assert "xx.Paper: left out, its robots.txt forbids training on its articles" in found.notes


@needs_fundus
def test_a_pause_that_robots_txt_asks_for_is_made():
    with Newspaper(3, robots="User-agent: *\nCrawl-delay: 1\nAllow: /\n", in_map=[]) as paper:
        started = time.monotonic()
        crawl(asked(limit=2), collection=one(paper))
    assert time.monotonic() - started >= 0.95


@needs_fundus
def test_a_site_that_cannot_be_reached_is_said():
    with Newspaper(1) as paper:
        gone = paper.url
    found = crawl(asked(), collection=collection(xx={"Paper": publisher(gone, "The Paper")}))
    assert (
        found.total == 0
        and any("/feed.xml" in note for note in found.notes)
        and any("/sitemap.xml" in note for note in found.notes)
    )


# --------------------------------------------------------------------------------------------------- stopping, going on


@needs_fundus
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_any_stop_keeps_what_came_and_the_next_session_goes_on(number):
    with Newspaper(8) as paper:
        paper.before = lambda path: os.kill(os.getpid(), number) if len(paper.articles) == 4 else None
        held = signal.getsignal(number)
        with pytest.raises(KeyboardInterrupt):
            crawl(asked(), collection=one(paper))
        assert signal.getsignal(number) is held
        kept = len(rows())
        assert 2 <= kept <= 4
        paper.before = lambda path: None
        found = crawl(asked(), collection=one(paper))
    assert found.kept == {"The Paper": 8 - kept} and len({row["url"] for row in rows()}) == 8
    assert len(paper.articles) <= 9, "only what was on its way is fetched again"


@needs_fundus
def test_a_stop_with_several_publishers_ends_their_threads_and_the_next_session_goes_on():
    with Newspaper(8) as first, Newspaper(8) as second:
        papers = collection(
            xx={"First": publisher(first.url, "First Paper"), "Second": publisher(second.url, "Second Paper")}
        )
        first.before = lambda path: os.kill(os.getpid(), signal.SIGINT) if len(first.articles) == 5 else None
        with pytest.raises(KeyboardInterrupt):
            crawl(asked(), collection=papers)
        kept = len(rows())
        assert 1 <= kept < 16 and UNANSWERED not in outcomes().values()
        first.before = lambda path: None
        assert crawl(asked(), collection=papers).total == 16
    assert len({row["url"] for row in rows()}) == 16
    assert len(first.articles) + len(second.articles) <= 16 + (16 - kept), "only what was not kept is fetched again"


@needs_fundus
def test_what_fundus_itself_saves_is_read_as_it_is():
    """Text, title, date and publisher are those of its own objects."""
    from fundus import Crawler

    with Newspaper(4) as paper:
        crawler = Crawler(publisher(paper.url, "The Paper"), delay=0.0, threading=False)
        articles = list(crawler.crawl(save_to_file="raw.json"))
    counts = prepared("corpus", "raw.json", output="new.jsonl")["counts"]
    assert counts["kinds"] == {"fundus": 1} and counts["undated"] == 0
    assert [(row["text"], row["title"], row["date"], row["source"]) for row in rows_of("new.jsonl")] == [
        (article.plaintext, article.title, article.publishing_date.date().isoformat(), article.publisher)
        for article in articles
    ]


@needs_fundus
def test_silence_ends_the_crawl():
    with Newspaper(6) as paper:
        paper.before = lambda path: time.sleep(4) if len(paper.articles) == 3 else None
        found = crawl(asked(timeout=1), collection=one(paper))
    # what waits in a C library hears of it late on a busy machine, and the pages that come then are kept
    assert found.end == "timeout" and found.total >= 2


@needs_fundus
def test_several_publishers_at_once():
    with Newspaper(5) as first, Newspaper(5) as second, Newspaper(2) as third:
        papers = collection(
            xx={"First": publisher(first.url, "First Paper"), "Second": publisher(second.url, "Second Paper")},
            yy={"Third": publisher(third.url, "Third Paper")},
        )
        reports = []
        found = crawl(
            asked("xx", limit=4), collection=papers, report=lambda total, kept: reports.append((total, dict(kept)))
        )
        assert (
            found.total == 4 and [total for total, _ in reports] == [1, 2, 3, 4] and sum(reports[-1][1].values()) == 4
        )
        found = crawl(asked("xx"), collection=papers)
        assert found.total == 10 and third.asked == []
        assert sorted(row["publisher"] for row in rows()) == ["First Paper"] * 5 + ["Second Paper"] * 5
        assert crawl(asked("*"), collection=papers).kept == {"First Paper": 0, "Second Paper": 0, "Third Paper": 2}
        for paper in (first, second):
            assert len(set(paper.articles)) == 5 and len(paper.articles) <= 5 + 4, (
                "what waited when the limit was reached is fetched again at most"
            )


@needs_fundus
def test_two_at_once_and_files_of_others_are_refused():
    with Newspaper(1) as paper:
        papers = one(paper)
        with Ledger("news.jsonl", key="url"), pytest.raises(FolderBusy, match="Another holdfast process"):
            crawl(asked(), collection=papers)
        Path("news.jsonl").write_text('{"text": "mine"}\n')
        with pytest.raises(DataError, match="expected rows with a 'url'"):
            crawl(asked(), collection=papers)
    assert Path("news.jsonl").read_text() == '{"text": "mine"}\n' and paper.asked == []


# ----------------------------------------------------------------------------------------------------- which publishers


@needs_fundus
def test_names_countries_and_patterns():
    known = publishers()
    keys = {item.key for item in known}
    assert len(keys) == len(known) > 100 and "us.TheNewYorker" in keys
    for names, expected in (
        (("us.TheNewYorker",), {"us.TheNewYorker"}),
        (("thenewyorker", "US.TheNewYorker"), {"us.TheNewYorker"}),
        (("us.The*",), {item.key for item in known if item.key.startswith("us.The") and not item.note}),
        (("us",), {item.key for item in known if item.key.startswith("us.") and not item.note}),
    ):
        found, problems = chosen(names)
        assert {item.key for item in found} == expected and problems == [], names
    assert {item.key for item in chosen(["*"])[0]} == {item.key for item in known if not item.note}


@needs_fundus
@pytest.mark.parametrize(
    ("name", "explained"),
    [
        ("us.TheNewYorke", "Did you mean 'us.TheNewYorker'?"),
        ("NewYorkr", "'NewYorkr' is none that fundus knows."),
        ("qqqqqq", "--list_publishers names them"),
        ("us.Zz*", "is none that fundus knows"),
    ],
)
def test_names_that_are_none(name, explained):
    assert explained in asked(name).problems()[0]


@needs_fundus
def test_publishers_that_cannot_be_crawled():
    papers = collection(
        xx={
            "Old": publisher("http://127.0.0.1:9", "Old", deprecated=True),
            "No": publisher("http://127.0.0.1:9", "No", disallows_training=True),
        }
    )
    assert chosen(["xx.Old"], papers)[1] == ["publishers: 'xx.Old' cannot be crawled: xx.Old (not kept up by fundus)"]
    assert chosen(["xx"], papers)[1] == [
        "publishers: none of 'xx' can be crawled: xx.No (forbids training on its articles), "
        "xx.Old (not kept up by fundus)"
    ]


def find_spec(monkeypatch, fundus):
    """Python finds fundus as given, and all else as it is."""
    real = importlib.util.find_spec
    spec = lambda name, *rest: fundus if name == "fundus" else real(name, *rest)
    monkeypatch.setattr(crawl_module.importlib.util, "find_spec", spec)


def test_all_mistakes_at_once_and_without_fundus_what_to_install(monkeypatch):
    find_spec(monkeypatch, None)
    wrong = {"after": "2024-02-01", "before": "2024-01-01", "limit": 0, "timeout": -1, "delay": -1}
    with pytest.raises(ConfigError) as caught:
        crawl(Crawl(publishers=("us",), output=Path("a.txt"), languages=("english", "en"), **wrong))
    problems = caught.value.problems
    assert len(problems) == 7 and "pip install 'holdfast[crawl]'" in problems[0]
    assert "output: expected a file that ends with .jsonl" in problems[1]
    assert "languages: expected codes such as en or zh-cn, got english" in problems
    with pytest.raises(ConfigError, match=r"pip install 'holdfast\[crawl\]'"):
        publishers()
    assert Crawl(publishers=(), output=Path("a.jsonl")).problems()[0].startswith("publishers: expected at least one")


def test_a_fundus_that_does_not_load_is_said(monkeypatch):
    """Its releases do not bound all the packages that they need."""
    find_spec(monkeypatch, object())
    monkeypatch.setitem(sys.modules, "fundus", None)
    assert asked("us").problems()[0].startswith(crawl_module.UNSOUND)
