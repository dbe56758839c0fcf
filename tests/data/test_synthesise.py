"""Articles from an endpoint that plays faults: what is asked, what is kept, what it costs, and going on after any
end."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

from data_files import jsonl, rows_of
from evaluation import fake_endpoint as fake
from evaluation.fake_endpoint import FakeEndpoint, completion
from holdfast.data.synthesise import Synthesis, outcome_of, plan, prompts_of, synthesise
from holdfast.errors import ConfigError, DataError, HoldfastError, RunFolderError
from holdfast.support.endpoint import Endpoint
from holdfast.support.files import read_json
from holdfast.support.ledger import Ledger, read_ledger, stream_ledger

pytest.importorskip("openai", reason="asking needs the package openai")

LONG = "A section about sums. " * 20


@pytest.fixture(autouse=True)
def questions(place: Path) -> None:
    """Ten questions and answers."""
    jsonl("qa.jsonl", ({"question": f"What is {i}+{i}?", "answer": f"{2 * i}", "type": "x"} for i in range(10)))


def answering(reply=LONG, *, finish="stop", usage=(100, 50), **message):
    """Answers every request with the reply, or with what it makes of the message."""

    def play(handler, asked) -> bool:
        body = completion(reply(asked.message) if callable(reply) else reply, finish_reason=finish)
        body["choices"][0]["message"].update(message)
        body["usage"] = {"prompt_tokens": usage[0], "completion_tokens": usage[1]} if usage else None
        return fake.body(json.dumps(body).encode())(handler, asked)

    return play


def unlike(message: str) -> str:
    """An article that differs with the prompt."""
    import hashlib

    return f"{hashlib.sha256(message.encode()).hexdigest()}\n{LONG}"


def request(
    *, inputs=("qa.jsonl",), output="articles.jsonl", template=None, prices=(0.0, 0.0), budget=None, **changes
) -> Synthesis:
    if template is not None:
        Path("template.txt").write_text(template)
        changes["prompt"] = "template.txt"
    return Synthesis(
        input=tuple(map(Path, inputs)),
        output=Path(output),
        budget_usd=budget,
        price_input=prices[0],
        price_output=prices[1],
        **{"model": "writer", **changes},
    )


def write(server: FakeEndpoint, asked: Synthesis | None = None, *, progress=None, **changes):
    endpoint = Endpoint(base_url=server.url, **{"first_wait": 0.01, "workers": 2, **changes})
    return synthesise(asked or request(), endpoint, progress=progress)


articles = functools.partial(rows_of, "articles.jsonl")


def ledger(outcome: str) -> list[dict]:
    """Rows of the ledger with that outcome, replaced ones too."""
    return [row for row in stream_ledger("articles.jsonl.ledger.jsonl") if row["outcome"] == outcome]


# ------------------------------------------------------------------------------------------------------------- prompts


def test_rows_are_put_together_and_nothing_of_them_is_lost():
    made = list(prompts_of(request()))
    assert [len(one.sources) for one in made] == [3, 3, 3, 1]
    assert "(1)\nQuestion: What is 0+0?\n\nAnswer: 0\n\n(2)\nQuestion: What is 1+1?" in made[0].message
    assert "Question: What is 9+9?\n\nAnswer: 18" in made[3].message and "(1)" not in made[3].message
    assert "textbook" in made[0].message and "{" not in made[0].message.split("Material:")[0]


def test_variations_come_one_after_the_other_and_differ():
    made = list(prompts_of(request(variations=3)))
    assert [one.variation for one in made] == [0] * 4 + [1] * 4 + [2] * 4
    assert len({one.key for one in made}) == len({one.message for one in made}) == 12
    assert made[0].sources == made[4].sources == made[8].sources
    assert [one.key for one in prompts_of(request(variations=3, limit=5))] == [one.key for one in made[:5]]


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"text": "A {material} {focus} {0}."}, "A {material} {focus} {0}."),
        ({"prompt": "p\n\n", "completion": "c"}, "Question: p\n\nAnswer: c"),
        ({"instruction": "i", "input": "x", "output": "o"}, "Question: i\n\nx\n\nAnswer: o"),
        (
            {"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]},
            "Question: u\n\nAnswer: a",
        ),
        (
            {"prompt": [{"role": "user", "content": "u"}], "completion": [{"role": "assistant", "content": "a"}]},
            "Question: u\n\nAnswer: a",
        ),
    ],
)
def test_every_layout_becomes_material(row, text):
    Path("a.jsonl").write_text(json.dumps(row) + "\n")
    (made,) = prompts_of(request(inputs=["a.jsonl"]))
    assert made.message.endswith(f"Material:\n\n{text}\n")


def test_rows_that_cannot_be_used_are_named_before_anything_is_asked():
    Path("a.jsonl").write_text(
        '{"question": "a", "answer": "b"}\n\n{"question": "a"}\n{"question": " ", "answer": "b"}\n{oops\n'
    )
    with FakeEndpoint(always=answering()) as server, pytest.raises(DataError) as caught:
        write(server, request(inputs=["a.jsonl"]))
    assert server.asked == [] and not Path("articles.jsonl.ledger.jsonl").exists()
    explained = str(caught.value)
    assert explained.startswith("3 of 4 rows of the input cannot be used")
    assert all(f"a.jsonl, line {n}: " in explained for n in (3, 4, 5))
    for content, message in (('{"x": 1}\n', "columns x make no layout"), ("\n", "at least one row in the input")):
        Path("a.jsonl").write_text(content)
        with pytest.raises(DataError, match=message):
            plan(request(inputs=["a.jsonl"]))


# ------------------------------------------------------------------------------------------------------------- articles


def test_articles_are_written_in_the_order_of_the_prompts_with_their_sources():
    with FakeEndpoint(always=answering(unlike)) as server:
        found = write(server, request(variations=2), workers=4)
        assert len(server.asked) == 8
        assert (server.asked[0].body["max_tokens"], server.asked[0].body["temperature"]) == (3000, 0.7)
    made = list(prompts_of(request(variations=2)))
    rows = articles()
    assert [(r["key"], r["sources"], r["text"]) for r in rows] == [
        (p.key, p.sources, unlike(p.message).strip()) for p in made
    ]
    assert rows[0]["model"] == "writer" and rows[0]["prompt"] == "textbook" and rows[7]["variation"] == 1
    record = found.record
    assert record == read_json("articles.jsonl.json") and record["status"] == "complete"
    none = dict.fromkeys(("repeated", "cut", "refused", "short", "failed", "unasked"), 0)
    assert record["counts"] == {"prompts": 8, "articles": 8, **none}
    assert record["inputs"][0]["name"] == "qa.jsonl" and "{material}" in record["settings"]["template"]


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        ({"text": LONG, "finish_reason": "stop"}, "kept"),
        ({"text": LONG, "finish_reason": "length"}, "cut"),
        ({"text": LONG, "finish_reason": "content_filter"}, "refused"),
        ({"text": "", "refusal": "I will not", "finish_reason": "stop"}, "refused"),
        ({"text": "I'm sorry, but I can't help with that." + " x" * 150, "finish_reason": "stop"}, "refused"),
        ({"text": "Sorry, said the fox. " + LONG * 3, "finish_reason": "stop"}, "kept"),
        ({"text": "A section.", "finish_reason": "stop"}, "short"),
        ({"text": f"<think>{LONG}</think>\n\nYes.", "finish_reason": "stop"}, "short"),
        ({"text": f"<think>{LONG}", "finish_reason": "stop"}, "cut"),
    ],
)
def test_what_is_kept(reply, outcome):
    assert outcome_of({"outcome": "answered", **reply}, 300) == outcome


@pytest.mark.parametrize(
    ("fault", "outcome", "text"),
    [
        (answering(finish="length"), "cut", LONG),
        (answering("I can't do that."), "refused", "I can't do that."),
        (answering("Short."), "short", "Short."),
        (answering(None, refusal="no"), "refused", ""),
    ],
)
def test_what_is_not_kept_is_recorded_counted_and_not_asked_again(fault, outcome, text):
    with FakeEndpoint(faults=[fault], always=answering(unlike)) as server:
        found = write(server, workers=1)
        again = write(server)
    assert len(server.asked) == 4 and again.asked == 0 and len(articles()) == 3
    for counts in (found.record["counts"], again.record["counts"]):
        assert counts[outcome] == 1 and counts["articles"] == 3
    assert (ledger("answered")[0]["text"], ledger("answered")[0]["prompt_tokens"]) == (text, 100)
    assert any("cut at max_tokens" in note for note in found.notes) == (outcome == "cut")


# --------------------------------------------------------------------------------------------------- stopping, going on


def test_a_second_run_asks_nothing_and_more_of_the_same_is_added():
    with FakeEndpoint(always=answering(unlike)) as server:
        write(server, request(limit=2))
        first = articles()
        write(server, request(limit=2))
        assert len(server.asked) == 2
        write(server, request())
        assert len(server.asked) == 4 and articles()[:2] == first
        write(server, request(variations=2))
        assert len(server.asked) == 8
        write(server, request(least_characters=10_000))
    assert len(server.asked) == 8 and articles() == [] and read_json("articles.jsonl.json")["counts"]["short"] == 4


def test_an_interrupted_run_goes_on_where_it_was():
    done = []

    def dies(count, total, spent):
        done.append((count, total))
        if count == 3:
            raise KeyboardInterrupt

    asked = request(per_article=1)
    with FakeEndpoint(always=answering(unlike)) as server:
        with pytest.raises(KeyboardInterrupt):
            write(server, asked, progress=dies, workers=3)
        assert len(ledger("answered")) == 3 and done[0] == (0, 10) and not Path("articles.jsonl").exists()
    with FakeEndpoint(always=answering(unlike)) as server:  # another one: what was cut off may still reach the first
        write(server, asked)
        assert len(server.messages) == 7 and len(articles()) == 10
    answered = [row["key"] for row in ledger("answered")]
    assert len(answered) == len(set(answered)) == 10


def test_failures_are_asked_again_by_the_next_run():
    failing = lambda handler, asked: "What is 9+9?" in asked.message and fake.status(400, "too long")(handler, asked)
    outcomes = []
    with FakeEndpoint(always=lambda h, a: failing(h, a) or answering(unlike)(h, a)) as server:
        outcomes.append(write(server))
        server.always = answering(unlike)
        outcomes.append(write(server))
    assert [(o.record["counts"]["failed"], o.record["status"]) for o in outcomes] == [(1, "partial"), (0, "complete")]
    assert (outcomes[1].asked, len(server.asked), len(articles())) == (1, 5, 4)


def test_one_failure_after_the_other_stops_the_run():
    jsonl("qa.jsonl", ({"question": f"{i}", "answer": "a"} for i in range(100)))
    server = FakeEndpoint(faults=[answering()], always=fake.status(400, "gone"))
    with server, pytest.raises(HoldfastError, match="20 requests failed one after"):
        write(server, request(per_article=1))
    assert 21 <= len(server.asked) <= 23


# ------------------------------------------------------------------------------------------------------------ the money


PRICES = (1000.0, 10_000.0)
"""USD a million tokens; a reply of `answering` costs 0.1 + 0.5 = 0.6."""


def test_a_dry_run_counts_and_asks_nothing():
    asked = request(prices=PRICES, variations=2, max_tokens=100)
    found, tokens = plan(asked), sum(len(p.message) for p in prompts_of(asked)) // 4
    assert (found.rows, found.prompts, found.there, found.prompt_tokens, found.most_tokens) == (10, 8, 0, tokens, 800)
    assert found.most == pytest.approx(tokens * 1e-3 + 800 * 1e-2) and found.likely is None and found.spent == 0
    assert sorted(p.name for p in Path().iterdir()) == ["qa.jsonl"]
    with FakeEndpoint(always=answering(unlike)) as server:
        write(server, request(prices=PRICES, max_tokens=100))
    later = plan(asked)
    assert (later.there, later.mean_tokens, later.spent) == (4, 50, pytest.approx(2.4))
    assert later.likely == pytest.approx(later.prompt_tokens * 1e-3 + 4 * 50 * 1e-2)


@pytest.mark.parametrize("workers", [1, 4])
def test_the_budget_holds_over_all_sessions(workers):
    asked = functools.partial(request, per_article=1, prices=PRICES, max_tokens=60)
    most = max(asked().most_cost(p.message) for p in prompts_of(asked()))
    budget = most + 2.5
    with FakeEndpoint(always=answering(unlike)) as server:
        found = [write(server, asked(budget=budget), workers=workers) for _ in range(3)][-1]
        spent = found.record["cost_usd"]
        assert 3 <= len(server.asked) < 10 and spent == pytest.approx(0.6 * len(server.asked))
        assert spent <= budget < spent + most, "as far as it goes, and no further"
        assert found.left == 10 - len(server.asked) and found.record["status"] == "partial"
        assert "budget of" in found.notes[-1] and len(articles()) == len(server.asked)
    with FakeEndpoint(always=answering(unlike)) as other:
        write(other, asked(budget=1000.0))
    assert len(other.asked) == found.left and len(articles()) == 10


@pytest.fixture
def one_request() -> tuple[functools.partial, float]:
    """A request of one prompt, and the most that it can cost."""
    asked = functools.partial(request, per_article=1, prices=PRICES, limit=1)
    (one,) = prompts_of(asked())
    return asked, asked().most_cost(one.message)


def test_what_was_sent_and_never_answered_is_on_the_account(one_request):
    """A session that died with a request on its way; nobody knows whether it was charged."""
    asked, most = one_request
    with FakeEndpoint(always=answering()) as server:
        write(server, asked())
        path = Path("articles.jsonl.ledger.jsonl")
        lines = path.read_text().splitlines()
        assert [json.loads(line)["outcome"] for line in lines] == ["sent", "answered"]
        path.write_text(lines[0] + "\n")  # killed right after sending
        assert plan(asked()).spent == pytest.approx(most) and plan(asked()).there == 0
        found = write(server, asked())
    assert found.record["cost_usd"] == pytest.approx(most + 0.6) and len(server.asked) == 2
    assert plan(asked()).spent == pytest.approx(most + 0.6)


@pytest.mark.parametrize(
    ("faults", "always", "asked_for", "charged", "of_most"),
    [
        ([fake.status(500), fake.reset(), fake.late(2), fake.status(429)], answering(), 5, 0.6, 2),
        ([], answering(usage=None), 1, 0.0, 1),
    ],
    ids=["lost answers count at their most, refused requests do not", "a reply whose tokens are not counted"],
)
def test_what_a_reply_costs(one_request, faults, always, asked_for, charged, of_most):
    asked, most = one_request
    with FakeEndpoint(faults=faults, always=always) as server:
        found = write(server, asked(), timeout=0.3)
    assert len(server.asked) == asked_for
    assert found.record["cost_usd"] == pytest.approx(of_most * most + charged)


@pytest.mark.parametrize("usage", [(-(10**9), -(10**9)), (100, float("nan")), ("100", "50")])
def test_impossible_counts_do_not_enlarge_a_budget(one_request, usage):
    """A reply that says that it cost less than nothing is none; each attempt at it counts at its most."""
    asked, most = one_request
    with FakeEndpoint(always=answering(unlike, usage=usage)) as server:
        found = write(server, asked(limit=2, budget=3.5 * most), workers=1, attempts=2)
    assert len(server.asked) == 3 and found.record["counts"]["failed"] == 2
    assert found.record["cost_usd"] == pytest.approx(3 * most, rel=0.05)


@pytest.mark.parametrize("cost", [float("nan"), float("inf"), -1.0, "1"])
@pytest.mark.parametrize("outcome", ["answered", "sent"])
def test_an_account_without_a_sum_is_refused(one_request, cost, outcome):
    """Every comparison with NaN is false: a budget would end at once, or never."""
    asked, _ = one_request
    with FakeEndpoint(always=answering()) as server:
        write(server, asked())
        path = Path("articles.jsonl.ledger.jsonl")
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        rows = [{**row, "most" if outcome == "sent" else "cost": cost} for row in rows if row["outcome"] == outcome]
        with Ledger(path) as held:
            held.add(rows)
        for act in (lambda: write(server, asked()), lambda: plan(asked())):
            with pytest.raises(DataError, match="of at least 0 USD"):
                act()


# ------------------------------------------------------------------------------------------------------------ mistakes


def test_all_mistakes_at_once():
    wrong = request(
        inputs=["qa.jsnl"],
        output="a.json",
        limit=0,
        budget=-1.0,
        prices=(-1.0, 0.0),
        model="",
        template="no place",
        per_article=0,
        variations=0,
        max_tokens=0,
        temperature=3.0,
        least_characters=-1,
    )
    with pytest.raises(ConfigError) as caught:
        synthesise(wrong, Endpoint(base_url="ftp://x", workers=0))
    assert len(caught.value.problems) == 14, caught.value
    assert "Did you mean 'qa.jsonl'?" in str(caught.value) and "{material}" in str(caught.value)
    with pytest.raises(ConfigError, match="without a price nothing is counted"):
        plan(request(budget=1.0))
    with pytest.raises(ConfigError, match="makes 8 different prompts of a row, got 9"):
        plan(request(temperature=0.0, variations=9))
    with pytest.raises(ConfigError, match="is an input"):
        plan(request(output="qa.jsonl"))


def test_another_requests_output_is_not_overwritten():
    changes = ({"model": "b"}, {"per_article": 2}, {"max_tokens": 10}, {"temperature": 0.1}, {"template": "{material}"})
    with FakeEndpoint(always=answering(unlike)) as server:
        write(server)
        before = Path("articles.jsonl").read_bytes()
        for change in changes:
            with pytest.raises(RunFolderError, match="came from another model, prompt"):
                write(server, request(**change))
        assert Path("articles.jsonl").read_bytes() == before and len(server.asked) == 4
        Path("mine.jsonl").write_text("{}\n")
        with pytest.raises(RunFolderError, match="nothing says that 'holdfast data synthesise' wrote it"):
            write(server, request(output="mine.jsonl"))
    assert Path("mine.jsonl").read_text() == "{}\n"


# ------------------------------------------------------------------------------------------------------- large ledgers


def test_a_ledger_keeps_in_memory_what_it_is_told_to(tmp_path):
    seen = []

    def keep(row):
        seen.append(row["v"])
        return {"v": row["v"]}

    with Ledger(tmp_path / "a.jsonl", keep=keep) as ledger:
        ledger.add([{"key": "a", "v": 1, "text": "x" * 100}, {"key": "b", "v": 2}])
        ledger.add([{"key": "a", "v": 3}])
        assert ledger.rows == {"a": {"v": 3}, "b": {"v": 2}} and seen == [1, 2, 3]
    with Ledger(tmp_path / "a.jsonl", keep=keep) as ledger:
        assert ledger.rows == {"a": {"v": 3}, "b": {"v": 2}} and seen == [1, 2, 3] * 2
    assert [row["v"] for row in stream_ledger(tmp_path / "a.jsonl")] == [1, 2, 3]
    (tmp_path / "c.jsonl").write_bytes(b'{"key": "a", "v": 1}\n{"key": "b", "v": 2, "t": "\xe4')
    assert read_ledger(tmp_path / "c.jsonl", keep=keep) == {"a": {"v": 1}}
