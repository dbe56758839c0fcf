"""Judging against a server that plays faults: verdicts, both orders, retries, resuming, and the key that goes
nowhere."""

from __future__ import annotations

import json
import logging
import math
import threading

import pytest

from evaluation import fake_endpoint as fake
from evaluation.fake_endpoint import FakeEndpoint, completion
from holdfast.errors import ConfigError, DataError, FolderBusy, HoldfastError, RunFolderError
from holdfast.evaluation.judge.judge import (
    JUDGEMENTS,
    AnswerPair,
    judge_pairs,
    pair_result,
    question,
)
from holdfast.evaluation.judge.settings import JudgeSettings
from holdfast.evaluation.judge.verdict import MalformedReply, letter_of, read_verdict
from holdfast.support.endpoint import Endpoint, find_key
from holdfast.support.ledger import Ledger, read_ledger

pytest.importorskip("openai", reason="judging needs the extra 'judge'")

SECRET = "sk-very-secret-0123456789"
PAIRS = [
    AnswerPair(instruction=f"Say {i}.", candidate=f"{i}" + "!" * (i % 3), reference=f"{i} {'!' * ((i + 1) % 3)}")
    for i in range(5)
]
SETTINGS = JudgeSettings(model="judge")


def endpoint(server: FakeEndpoint, **changes) -> Endpoint:
    return Endpoint(base_url=server.url, **{"first_wait": 0.01, "workers": 2, **changes})


def ask(server: FakeEndpoint, folder, pairs=PAIRS, settings=SETTINGS, **changes):
    return judge_pairs(pairs, settings, endpoint(server, **changes), folder)


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


# ------------------------------------------------------------------------------------------------------------ verdicts


@pytest.mark.parametrize(
    ("reply", "letter"),
    [
        ("m", "m"),
        (" m\n", "m"),
        ("_m_", "m"),
        ("The better output is: M.", "M"),
        ("<think>M or m? M is long.</think>\nm", "m"),
        ("Tie", "tie"),
        ("It's a tie", None),
        ("I'm sorry, I can't judge that.", None),
        ("m or M", None),
        ("mm", None),
    ],
)
def test_letters(reply, letter):
    assert letter_of(reply) == letter


def test_the_probability_sums_the_variants_of_both_letters():
    """Leading spaces and marks are the same letter, capitals are not, other words are neither."""
    found = read_verdict(completion("m", 0.8))
    assert (found.outcome, found.letter, found.source) == ("judged", "m", "logprobs")
    assert found.p_first == pytest.approx(0.8) and found.mass == pytest.approx(1.0)
    leaking = read_verdict(completion("M", 0.3, leak=0.4))
    assert leaking.p_first == pytest.approx(0.3) and leaking.mass == pytest.approx(0.6)
    body = completion("m", 0.5)
    top = {"▁m": 0.2, "Ġm": 0.1, "**m": 0.1, "M.": 0.1, "Model": 0.4, "m2": 0.05}
    body["choices"][0]["logprobs"]["content"][0] = {
        "token": "▁m",
        "logprob": math.log(0.2),
        "top_logprobs": [{"token": t, "logprob": math.log(p)} for t, p in top.items()],
    }
    assert read_verdict(body).p_first == pytest.approx(0.4 / 0.5)


def test_the_verdict_token_is_found_behind_others():
    assert read_verdict(completion("Output (m)", 0.9, tokens=["Output", " (", "m", ")"])).p_first == pytest.approx(0.9)
    reasoned = completion("<think>m?</think> m", 0.9, tokens=["<think>", "m", "?", "</think>", " m"])
    earlier = completion("m", 0.1)["choices"][0]["logprobs"]["content"][0]
    reasoned["choices"][0]["logprobs"]["content"][1] = earlier
    assert read_verdict(reasoned).p_first == pytest.approx(0.9)


@pytest.mark.parametrize(
    "logprobs",
    [
        None,
        {},
        {"content": None},
        {"content": []},
        {"content": [{"token": "M", "logprob": -0.1, "top_logprobs": []}]},
        {"content": [{"token": "M", "logprob": None, "top_logprobs": [{"token": "M", "logprob": None}]}]},
        "odd",
    ],
)
def test_without_log_probabilities_the_letter_counts_whole(logprobs):
    body = completion("M")
    body["choices"][0]["logprobs"] = logprobs
    found = read_verdict(body)
    assert (found.p_first, found.source, found.mass) == (0.0, "text", None)


def with_logprob(value, *, token="m", place="alternative"):
    """A verdict for `m` with one log-probability changed: of the letter's token, of an alternative, of another word."""
    body = completion("m", 0.8, leak=0.1)
    [said] = body["choices"][0]["logprobs"]["content"]
    if place == "token":
        said["logprob"] = value
    else:
        next(e for e in said["top_logprobs"] if e["token"] == token)["logprob"] = value
    return body


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, 1e308, 0.5, 10**400, -(10**400), "-0.1", "", True, [-0.1], {}]
)
@pytest.mark.parametrize(("token", "place"), [("m", "token"), ("m", ""), ("M", ""), ("Both", "")])
def test_what_is_no_log_probability_is_a_fault_of_the_answer(value, token, place):
    """Left out, NaN for `m` would give the verdict to the other letter."""
    with pytest.raises(MalformedReply, match="expected log-probabilities of at most 0"):
        read_verdict(with_logprob(value, token=token, place=place))


def test_refusals_are_no_ties():
    refusal = completion(None)
    refusal["choices"][0]["message"]["refusal"] = "I won't."
    for body in (refusal, completion(None), completion("I cannot compare these.", 0.5), completion("")):
        found = read_verdict(body)
        assert (found.outcome, found.p_first) == ("refused", None)
    assert read_verdict(refusal).reply == "I won't."
    tie = read_verdict(completion("tie"))
    assert (tie.outcome, tie.p_first) == ("judged", 0.5)


@pytest.mark.parametrize(
    "body",
    [None, [], "m", {}, {"choices": []}, {"choices": None}, {"choices": [None]}, {"choices": [{"message": None}]}],
)
def test_what_is_no_completion_is_malformed(body):
    with pytest.raises(MalformedReply):
        read_verdict(body)


# ------------------------------------------------------------------------------------------------------------- judging


def test_both_orders_are_asked_and_averaged(tmp_path):
    with FakeEndpoint() as server:
        found = ask(server, tmp_path)
    shown = {asked.parts for asked in server.asked}
    assert shown == {
        (p.instruction, *order) for p in PAIRS for order in ((p.candidate, p.reference), (p.reference, p.candidate))
    }
    assert len(server.asked) == found.questions == found.asked == 10
    for pair, result in zip(PAIRS, found.pairs, strict=True):
        gap = pair.candidate.count("!") - pair.reference.count("!")
        assert result.candidate_first == pytest.approx(sigmoid(gap + 0.2)) and result.candidate_second == pytest.approx(
            sigmoid(gap - 0.2)
        )
        assert result.preference == pytest.approx((sigmoid(gap + 0.2) + sigmoid(gap - 0.2)) / 2)
    assert (found.judged, found.refused, found.failed, found.notes) == (10, 0, 0, [])


def test_a_pair_counts_only_with_both_orders():
    judged, refused = {"outcome": "judged", "p_first": 0.75}, {"outcome": "refused", "p_first": None}

    def result(candidate_first, reference_first):
        pair = AnswerPair(instruction="d", candidate="long", reference="s")
        return pair_result(pair, candidate_first=candidate_first, reference_first=reference_first)

    both = result(judged, judged)
    assert (both.candidate_first, both.candidate_second, both.preference) == (0.75, 0.25, 0.5)
    assert (both.length_candidate, both.length_reference) == (4, 1)
    cases = [(judged, refused, "refused"), (refused, {"outcome": "failed"}, "failed"), (None, judged, "failed")]
    for first, second, status in cases:
        assert result(first, second).status == status
        assert result(first, second).preference is None


def test_what_is_sent(tmp_path):
    with FakeEndpoint() as server:
        ask(server, tmp_path, PAIRS[:1], api_key=SECRET)
    asked = server.asked[0]
    assert asked.path == "/v1/chat/completions" and asked.headers["authorization"] == f"Bearer {SECRET}"
    assert [m["role"] for m in asked.body.pop("messages")] == ["user"]
    assert asked.body == {"model": "judge", "max_tokens": 8, "temperature": 0.0, "logprobs": True, "top_logprobs": 20}


def test_braces_in_answers_stay(tmp_path):
    sent = question("{first}?", "{second} {", "{0} }", SETTINGS)[1]
    assert "### Instruction\n{first}?\n" in sent
    assert "### Output (m)\n{second} {\n" in sent
    assert "### Output (M)\n{0} }\n" in sent


def test_what_is_wrong_with_an_endpoint_is_named_together():
    assert len(Endpoint(base_url="http://127.0.0.1:1", workers=0, timeout=0).problems()) == 2


def test_equal_answers_are_ties_and_never_asked(tmp_path):
    same = [AnswerPair(instruction=str(i), candidate="a", reference="a") for i in range(3)]
    with FakeEndpoint() as server:
        found = ask(server, tmp_path, same)
    assert server.asked == []
    assert [result.preference for result in found.pairs] == [0.5] * 3


def test_the_same_question_is_asked_once(tmp_path):
    with FakeEndpoint() as server:
        found = ask(
            server,
            tmp_path,
            [
                PAIRS[1],
                PAIRS[1],
                AnswerPair(instruction="Say 1.", candidate=PAIRS[1].reference, reference=PAIRS[1].candidate),
            ],
        )
    assert len(server.asked) == found.questions == 2
    assert found.pairs[0].preference == pytest.approx(1 - found.pairs[2].preference)


def test_refusals_are_counted_and_not_asked_again(tmp_path):
    def rule(instruction, first, second):
        return (
            completion("I'm not able to", finish_reason="length")
            if "2" in instruction
            else fake.by_quality(instruction, first, second)
        )

    with FakeEndpoint(rule=rule) as server:
        found = ask(server, tmp_path)
        again = ask(server, tmp_path)
    assert (found.refused, found.judged, len(server.asked)) == (2, 8, 10)
    assert [p.status for p in found.pairs].count("refused") == 1 and again.pairs == found.pairs and again.asked == 0
    assert "2 replies were cut at max_tokens" in found.notes[0]


# -------------------------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize(
    "fault",
    [fake.status(503), fake.status(429), fake.cut(), fake.reset(), fake.body(b"<html>busy</html>"), fake.late(0.6)],
    ids=["503", "429", "cut", "reset", "html", "late"],
)
def test_faults_are_asked_again(fault, tmp_path):
    with FakeEndpoint(faults=[fault, fault]) as server:
        found = ask(server, tmp_path, PAIRS[:2], timeout=0.3)
    assert (found.judged, found.failed) == (4, 0)
    assert len(server.asked) == 6
    assert found.pairs == ask(server, tmp_path, PAIRS[:2]).pairs  # needs no server any more


def test_what_fails_for_good_is_recorded_and_asked_again_by_the_next_run(tmp_path):
    def failing(handler, asked):
        return "Say 1." in asked.message and fake.status(
            400, {"error": {"message": "This prompt is too long for the temperature of today"}}
        )(handler, asked)

    with FakeEndpoint(always=failing) as server:
        found = ask(server, tmp_path)
        assert (found.judged, found.failed, len(server.asked)) == (8, 2, 10), "a 400 is not asked again within a run"
        assert [p.status for p in found.pairs].count("failed") == 1
        row = next(r for r in read_ledger(tmp_path / JUDGEMENTS).values() if r["outcome"] == "failed")
        assert row["error"] == "HTTP 400: This prompt is too long for the temperature of today"
        server.always = None
        again = ask(server, tmp_path)
    assert (again.asked, again.judged, again.failed, len(server.asked)) == (2, 10, 0, 12)


@pytest.mark.parametrize(
    ("code", "message", "expected"),
    [
        (401, f"Incorrect API key provided: {SECRET}", ("401", "MY_KEY", "Check the key")),
        (404, "The model `judge` does not exist", ("404", "judge_model ('judge')", "base_url")),
        (
            429,
            {
                "error": {
                    "message": "You exceeded your current quota",
                    "type": "insufficient_quota",
                    "code": "insufficient_quota",
                }
            },
            ("quota", "credit"),
        ),
    ],
)
def test_what_cannot_succeed_stops_at_once(code, message, expected, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    with FakeEndpoint(always=fake.status(code, message)) as server, pytest.raises(HoldfastError) as caught:
        ask(server, tmp_path, api_key=SECRET, key_variable="MY_KEY")
    assert len(server.asked) <= 2, "one a worker"
    assert all(word in str(caught.value) for word in expected), str(caught.value)
    assert isinstance(caught.value, ConfigError) == (code in (401, 403, 404))
    written = "".join(p.read_text() for p in tmp_path.rglob("*") if p.is_file())
    assert SECRET not in str(caught.value) + repr(caught.value) + caplog.text + written
    assert SECRET not in repr(endpoint(server, api_key=SECRET))


def test_an_echoed_key_is_not_kept(tmp_path):
    """In replies, in errors that are recorded, and in addresses."""
    with FakeEndpoint(rule=lambda i, a, b: completion(f"You sent {SECRET}")) as server:
        ask(server, tmp_path, PAIRS[:1], api_key=SECRET)
        server.always = fake.status(400, f"bad {SECRET}")
        ask(server, tmp_path, PAIRS[1:2], api_key=SECRET)
        server.always = fake.body(f"oops {SECRET}".encode())
        ask(server, tmp_path, PAIRS[2:3], api_key=SECRET, attempts=1)
    content = (tmp_path / JUDGEMENTS).read_text()
    assert len(content.splitlines()) == 6 and content.count("***") == 6 and SECRET not in content
    assert Endpoint(base_url=f"https://me:{SECRET}@host:1/v1?key={SECRET}").shown == "https://host:1/v1"


def test_the_key_of_openai_goes_to_its_own_endpoint_alone(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setenv("MY_KEY", "mine")
    assert find_key("https://api.openai.com/v1", None) == ("OPENAI_API_KEY", SECRET, "")
    assert find_key("http://localhost:1/v1", None)[1] is None
    assert find_key("http://localhost:1/v1", "MY_KEY")[1] == "mine"
    _, key, problem = find_key("http://localhost:1/v1", SECRET)
    assert key is None and "the one given is not set" in problem and SECRET not in problem


def test_nobody_there_is_reported_and_not_recorded_as_failures(tmp_path):
    with FakeEndpoint() as server:
        url = server.url
    with pytest.raises(HoldfastError, match=r"No answer from http://127\.0\.0\.1") as caught:
        judge_pairs(PAIRS, SETTINGS, Endpoint(base_url=url, first_wait=0.01, attempts=2), tmp_path)
    assert "2 attempts" in str(caught.value) and read_ledger(tmp_path / JUDGEMENTS) == {}


# ------------------------------------------------------------------------------------------------ what endpoints take


@pytest.mark.parametrize(
    ("refusals", "left"),
    [
        (
            [
                (400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.", "max_tokens"),
                (400, "Unsupported value", "temperature"),
            ],
            {"max_completion_tokens": 8, "logprobs": True, "top_logprobs": 20},
        ),
    ],
)
def test_refused_parameters_are_left_out(refusals, left, tmp_path):
    faults = [fake.status(code, {"error": {"message": message, "param": param}}) for code, message, param in refusals]
    with FakeEndpoint(faults=faults) as server:
        found = ask(server, tmp_path, workers=1)
    assert found.judged == 10 and found.failed == 0 and len(server.asked) == 10 + len(refusals)
    assert [
        {k: v for k, v in asked.body.items() if k not in ("model", "messages")}
        for asked in server.asked[len(refusals) :]
    ] == [left] * 10
    assert any("refused a parameter" in note for note in found.notes)


# ------------------------------------------------------------------------------------------------------------ resuming


def test_a_second_run_asks_nothing_and_other_settings_ask_anew(tmp_path):
    with FakeEndpoint() as server:
        first = ask(server, tmp_path)
        again = ask(server, tmp_path, workers=5, api_key="other")
        assert again.pairs == first.pairs and (again.asked, len(server.asked)) == (0, 10)
        assert again.judged == first.judged
        assert ask(server, tmp_path, settings=JudgeSettings(model="other")).asked == 10
    others = [JudgeSettings(model="judge", **change) for change in ({"max_tokens": 9}, {"top_logprobs": 5})]
    keys = {question(*parts, SETTINGS)[0] for parts in (("a", "b", "c"), ("a", "c", "b"), ("x", "b", "c"))}
    assert len(keys | {question("a", "b", "c", settings)[0] for settings in others}) == 5


def test_an_interrupted_run_goes_on_where_it_was(tmp_path):
    """The run dies while a request is on its way; what was recorded is not asked again."""
    pairs = [AnswerPair(instruction=str(i), candidate=f"{i}!", reference=f"{i}.") for i in range(12)]
    calls = []

    def dies(done, total):
        calls.append((done, total))
        if done == 7:
            raise KeyboardInterrupt

    with FakeEndpoint() as server:
        with pytest.raises(KeyboardInterrupt):
            judge_pairs(pairs, SETTINGS, endpoint(server, workers=3), tmp_path, progress=dies)
        kept = read_ledger(tmp_path / JUDGEMENTS)
        assert len(kept) == 7 and calls[0] == (0, 24)
        asked = len(server.asked)
        found = ask(server, tmp_path, pairs)
        assert found.asked == 17 and len(server.asked) == asked + 17
        later = {question(i, a, b, SETTINGS)[0] for i, a, b in (x.parts for x in server.asked[asked:])}
    assert later.isdisjoint(kept) and found.judged == 24
    lines = [json.loads(line) for line in (tmp_path / JUDGEMENTS).read_text().splitlines()]
    assert len({line["key"] for line in lines}) == len(lines) == 24


@pytest.mark.parametrize("torn", [b'{"key": "abc", "outc', b'{"key": "abc"}', b"\xe4", b"x" * 200_000])
def test_a_torn_last_line_is_cut_off(torn, tmp_path):
    with FakeEndpoint() as server:
        found = ask(server, tmp_path)
        whole = (tmp_path / JUDGEMENTS).read_bytes()
        lines = whole.splitlines(keepends=True)
        (tmp_path / JUDGEMENTS).write_bytes(b"".join(lines[:-1]) + torn)
        again = ask(server, tmp_path)
    assert again.asked == 1 and len(server.asked) == 11 and again.pairs == found.pairs
    assert (tmp_path / JUDGEMENTS).read_bytes().splitlines()[:-1] == whole.splitlines()[:-1]


def test_the_ledger_belongs_to_one_at_a_time_and_to_holdfast(tmp_path):
    with Ledger(tmp_path / "a.jsonl") as one:
        one.add([{"key": "k", "v": 1}, {"key": "k", "v": float("nan")}, {"key": "\ud800"}])
        with pytest.raises(FolderBusy, match="Another holdfast process"), Ledger(tmp_path / "a.jsonl"):
            pass
    (tmp_path / "b.jsonl").write_text('{"text": "mine"}\n')
    with pytest.raises(DataError, match="holdfast did not write"), Ledger(tmp_path / "b.jsonl"):
        pass
    assert (tmp_path / "b.jsonl").read_text() == '{"text": "mine"}\n'
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="Could not write"), Ledger(tmp_path / "file" / "a.jsonl"):
        pass


def test_workers_work_at_once(tmp_path):
    """Four requests have to be on their way together before any is answered."""
    barrier = threading.Barrier(4, timeout=5)

    def rule(*parts):
        barrier.wait()
        return fake.by_quality(*parts)

    with FakeEndpoint(rule=rule) as server:
        assert ask(server, tmp_path, PAIRS[:4], workers=4).judged == 8


def test_inside_a_running_loop(tmp_path):
    """As in a notebook."""
    import asyncio

    async def cell():
        return ask(server, tmp_path, PAIRS[:2])

    with FakeEndpoint() as server:
        assert asyncio.run(cell()).judged == 4
