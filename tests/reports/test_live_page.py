"""Live pages: what a browser is told, who is answered, and what a run's page says at each moment of its life."""

from __future__ import annotations

import dataclasses
import http.client
import json
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from synthetic_runs import comparison, metric_lines, perplexity, write_run

from holdfast.errors import ConfigError, DataError
from holdfast.records.forecast import EarlySigns, Expected, RunForecast
from holdfast.records.run import RunFolder
from holdfast.reports.blocks import Page, Paragraph, Section, Span
from holdfast.reports.live import LivePage, Look
from holdfast.reports.live_run import WatchedRun, opening_page
from holdfast.reports.live_server import LiveServer, serving
from holdfast.support.files import write_json

SECRET = "hf_abcdefghijklmnopqrstuvwxyz"


def page(*blocks, title: str = "a run", tab: str = "tab") -> Page:
    return Page(tab=tab, eyebrow="watch", title=title, lead="lead", blocks=list(blocks))


class Impatient(LivePage):
    """A live page whose clock is, at each question, far enough ahead for the next look."""

    now = 0.0

    def changes(self, since: str = "") -> dict:
        self.now += 100.0
        return super().changes(since)


def live_of(take) -> LivePage:
    live = Impatient(take, waiting=page(title="waiting"), clock=lambda: live.now)
    return live


def text_of(answer: dict) -> str:
    return " ".join(part["html"] for part in answer["parts"].values())


class Shown:
    """What a browser has after some answers."""

    def __init__(self, live: LivePage) -> None:
        self.live, self.version, self.parts = live, "", {}

    def ask(self) -> dict:
        answer = self.live.changes(self.version)
        self.version = answer["version"]
        self.parts |= answer["parts"]
        return answer

    @property
    def text(self) -> str:
        return " ".join(self.parts[k]["html"] for k in sorted(self.parts, key=int))


# -------------------------------------------------------------------------------------------------------------- changes


def test_only_what_changed_is_sent() -> None:
    shown = [page(Paragraph("one"), Paragraph("two"))]
    live = live_of(lambda: Look(page=shown[0]))
    first = live.changes()
    assert first["count"] == 3
    assert set(first["parts"]) == {"0", "1", "2"}
    assert live.changes(first["version"])["parts"] == {}
    shown[0] = page(Paragraph("one"), Paragraph("three"), tab="50 %")
    second = live.changes(first["version"])
    assert list(second["parts"]) == ["2"]
    assert "three" in second["parts"]["2"]["html"]
    assert second["tab"] == "50 %"
    shown[0] = page(Paragraph("one"))
    third = live.changes(second["version"])
    assert (third["count"], third["parts"]) == (2, {})


@pytest.mark.parametrize("since", ["", "nonsense", "0000.1", "x.-1", f".{'9' * 400}", "²"])
def test_who_has_another_version_gets_everything(since: str) -> None:
    live = live_of(lambda: Look(page=page(Paragraph("one"))))
    live.changes()
    assert set(live.changes(since)["parts"]) == {"0", "1"}


def test_what_cannot_be_read_stands_above_what_was_seen_last() -> None:
    def take() -> Look:
        if broken:
            raise broken[0]
        return Look(page=page(Paragraph("figures")))

    broken: list[Exception] = []
    shown = Shown(live_of(take))
    shown.ask()
    broken.append(DataError("the disk is away <b>"))
    shown.ask()
    assert "this is what was seen last. the disk is away &lt;b&gt;" in shown.text
    assert "figures" in shown.text
    broken[0] = ZeroDivisionError("oops")  # a defect of ours must not end the page either
    shown.ask()
    assert "ZeroDivisionError: oops" in shown.text
    broken.clear()
    answer = shown.ask()
    assert "seen last" not in " ".join(shown.parts[str(k)]["html"] for k in range(answer["count"]))


def test_nobody_waits_for_a_slow_look() -> None:
    go_on = threading.Event()

    def take() -> Look:
        go_on.wait(20)
        return Look(page=page(title="seen"))

    live = live_of(take)
    first = live.changes()
    assert "waiting" in text_of(first)
    assert first["seconds"] == 1.0
    go_on.set()
    assert "seen" in text_of(live.changes())


def test_many_browsers_cost_one_look() -> None:
    looks = []
    live = LivePage(lambda: looks.append(1) or Look(page=page()), waiting=page(), clock=lambda: 7.0)
    for _ in range(20):
        live.changes()
    assert len(looks) == 1


def test_links_to_files_are_left_out() -> None:
    section = Section("Seeds", [Paragraph(Span("seed 1", link="runs/x/report.html"))])
    assert "report.html" not in text_of(live_of(lambda: Look(page=page(section))).changes())


# --------------------------------------------------------------------------------------------------------------- server


@pytest.fixture
def server() -> Iterator[LiveServer]:
    live = LivePage(lambda: Look(page=page(Paragraph("<script>alert(1)</script>"))), waiting=page())
    with serving(live, port=0) as found:
        yield from running(found)


def running(server: LiveServer) -> Iterator[LiveServer]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()


def ask(server: LiveServer, path: str = "/", *, method: str = "GET", **headers: str) -> tuple[int, dict, bytes]:
    port = server.server_address[1]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {"Host": f"127.0.0.1:{port}", **headers}
    connection.putrequest(method, path, skip_host=True)
    for name, value in headers.items():
        if value:
            connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    answer = connection.getresponse()
    found = answer.status, dict(answer.getheaders()), answer.read()
    connection.close()
    return found


def test_it_listens_to_this_machine_alone(server: LiveServer) -> None:
    assert server.server_address[0] == "127.0.0.1"


def test_the_document_is_whole_and_may_ask_nobody_else(server: LiveServer) -> None:
    status, headers, content = ask(server)
    assert status == 200
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    text = content.decode()
    assert "default-src &#x27;none&#x27;" in text
    assert "connect-src &#x27;self&#x27;" in text
    assert " src=" not in text.split("plotly-gzip")[0]
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Cache-Control"] == "no-store"
    assert "Access-Control-Allow-Origin" not in headers


def test_changes_are_json_and_text_stays_text(server: LiveServer) -> None:
    status, headers, content = ask(server, "/changes?since=")
    assert status == 200
    assert headers["Content-Type"].startswith("application/json")
    found = json.loads(content)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text_of(found)
    assert json.loads(ask(server, f"/changes?since={found['version']}")[2])["parts"] == {}


@pytest.mark.parametrize(
    "path",
    ["/../../etc/passwd", "/..%2f..%2fetc/passwd", "/run.json", "//etc/passwd", "/changes/../run.json", "/index.html"],
)
def test_no_path_leads_to_a_file(server: LiveServer, path: str) -> None:
    status, _, content = ask(server, path)
    assert (status, content) == (404, b"Not found.\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE"])
def test_only_get(server: LiveServer, method: str) -> None:
    status, headers, _ = ask(server, method=method)
    assert (status, headers["Allow"]) == (405, "GET")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8642", "127.0.0.1.evil.example", "192.168.1.7", "", "["]
)
def test_another_sites_name_is_refused(server: LiveServer, host: str) -> None:
    for path in ("/", "/changes"):
        status, _, content = ask(server, path, Host=host)
        assert (status, content) == (403, b"This server does not answer to that host name.\n")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1234", "127.0.0.1", "[::1]:80"])
def test_this_machines_names_are_answered(server: LiveServer, host: str) -> None:
    assert ask(server, Host=host)[0] == 200


def test_listening_to_a_network_it_answers_to_addresses_and_its_own_name() -> None:
    with serving(LivePage(lambda: Look(page=page()), waiting=page()), host="0.0.0.0", port=0) as server:
        assert not server.local_only
        assert all(server.allows(h) for h in ("192.168.1.7:80", socket.gethostname(), "localhost"))
        assert not server.allows("evil.example")


def test_a_port_in_use_is_named_with_what_to_do() -> None:
    live = LivePage(lambda: Look(page=page()), waiting=page())
    with serving(live, port=0) as first:
        port = first.server_address[1]
        said = rf"port {port} of 127.0.0.1 is in use.*--port {port + 1}'.*--port 0'"
        with pytest.raises(ConfigError, match=said), serving(live, port=port):
            pass


def test_without_a_port_the_next_free_one_is_taken() -> None:
    live = LivePage(lambda: Look(page=page()), waiting=page())
    with serving(live) as first, serving(live) as second:
        assert first.server_address[1] != second.server_address[1]


def test_a_host_that_is_not_this_machine_is_named() -> None:
    live = LivePage(lambda: Look(page=page()), waiting=page())
    said = r"--host: expected a name or an address of this machine, got '203.0.113.9'"
    with pytest.raises(ConfigError, match=said), serving(live, host="203.0.113.9", port=0):
        pass


# ---------------------------------------------------------------------------------------------------------------- a run

RUNNING = {"status": "running", "stage": "train", "finished": None}


def started(tmp_path: Path, rows: int, **changes) -> RunFolder:
    """A run of 400 steps that has logged some."""
    config = {"max_steps": 400, "model_name_or_path": "m", "hub_token": None}
    lines = [{"step": n, "epoch": n / 100, "loss": 3.0 - n / 1000, "seconds": 0.5 * n, "tokens": 100 * n}
             for n in range(10, 10 * rows + 1, 10)]  # fmt: skip
    fields = {**RUNNING, "config": config, "training": {}, "distance": [], "notes": [], **changes}
    return write_run(tmp_path / "run", metrics=lines, comparisons=[], **fields)


def append(folder: RunFolder, text: str) -> None:
    with open(folder.metrics_file, "a", encoding="utf-8") as file:
        file.write(text)


def snapshot(path: Path) -> dict[str, tuple[int, int]]:
    return {str(p): (p.stat().st_mtime_ns, p.stat().st_size) for p in [path, *path.rglob("*")]}


def seen(watched: WatchedRun) -> str:
    return text_of(live_of(watched).changes())


def test_a_run_says_where_it_is_and_when_it_ends(tmp_path: Path) -> None:
    folder = started(tmp_path, 10, training={"stages": {"evaluate start": 40.0}})
    text = seen(WatchedRun(folder))
    assert "Training: step 100 of 400, about 3 min 10 s left." in text  # 300 steps at 0.5 s, and 40 s of measuring
    assert "0.5 s a step, 40 s of it to measure the result" in text
    assert ">25 %<" in text
    assert "<h3>Loss</h3>" in text


def test_the_number_of_steps_may_come_from_epochs_or_the_record(tmp_path: Path) -> None:
    epochs = started(tmp_path / "a", 10, config={"num_train_epochs": 2})
    assert "step 100 of 200" in seen(WatchedRun(epochs))
    recorded = started(tmp_path / "b", 10, config={"num_train_epochs": 2}, training={"total_steps": 150})
    assert "step 100 of 150" in seen(WatchedRun(recorded))


def test_a_new_line_moves_the_run_and_sends_the_parts_that_it_moves(tmp_path: Path) -> None:
    folder = started(tmp_path, 10)
    shown = Shown(live_of(WatchedRun(folder)))
    shown.ask()
    assert shown.ask()["parts"] == {}
    append(folder, '{"step": 110, "loss": 2.5, "sec')
    assert shown.ask()["parts"] == {}  # half written
    append(folder, 'onds": 55.0}\n')
    answer = shown.ask()
    assert "step 110 of 400" in shown.text
    assert 0 < len(answer["parts"]) < answer["count"]  # what was trained is not sent again


def test_nothing_is_written_into_the_folder(tmp_path: Path) -> None:
    folder = started(tmp_path, 10)
    before = snapshot(folder.path)
    shown = Shown(live_of(WatchedRun(folder)))
    for _ in range(3):
        shown.ask()
    assert snapshot(folder.path) == before


def test_a_run_that_has_not_begun_and_then_does(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    shown = Shown(live_of(WatchedRun(folder)))
    shown.ask()
    assert "No run has begun in this folder yet" in shown.text
    started(tmp_path, 0, stage="evaluate start")
    shown.ask()
    assert "Measuring the start model." in shown.text
    assert "No training step was logged" in shown.text


def test_evaluations_come_in_one_by_one(tmp_path: Path) -> None:
    folder = started(tmp_path, 10)
    shown = Shown(live_of(WatchedRun(folder)))
    shown.ask()
    assert "Measured so far" not in shown.text
    folder.evaluated("start").write(perplexity("source", "prose", 2.9, 20), [])
    shown.ask()
    assert "Measured so far" in shown.text
    assert "Source: prose" in shown.text
    assert "2.9" in shown.text


def test_a_forecast_is_shown_once_it_is_made(tmp_path: Path) -> None:
    folder = started(tmp_path, 10)
    shown = Shown(live_of(WatchedRun(folder)))
    shown.ask()
    signs = EarlySigns(
        step=20, steps=400, ahead=9.0, distance=0.01, fall=0.2, kl=0.1, parameters=100, method="direct", texts=[]
    )
    expected = [Expected(entry="source/prose", unit="nats/token", loss=0.25, interval=(0.2, 0.31))]
    write_json(folder.path / "forecast.json", RunForecast(signs=signs, expected=expected, level=0.9, predictor="runs"))
    shown.ask()
    assert "Predicted loss at step 20" in shown.text
    assert "+0.250 [+0.200, +0.310]" in shown.text


def test_a_run_that_ended_shows_what_changed_and_one_that_is_continued_goes_on(tmp_path: Path) -> None:
    folder = started(tmp_path, 10)
    live = live_of(WatchedRun(folder))
    shown = Shown(live)
    assert shown.ask()["over"] is False
    record = folder.read()
    folder.write(dataclasses.replace(record, status="interrupted", error="Ctrl-C"))
    assert shown.ask()["over"] is True
    assert "The run was interrupted" in shown.text
    folder.write(record)  # continued: the log is written anew without the steps after the checkpoint
    folder.metrics_file.write_text('{"step": 50, "loss": 2.9, "seconds": 25.0}\n')
    assert shown.ask()["over"] is False
    assert "step 50 of 400" in shown.text
    folder.write(dataclasses.replace(record, status="finished", stage="done"))
    folder.write_comparisons([comparison()])
    assert shown.ask()["over"] is True
    assert "Before and after" in shown.text


def test_a_folder_that_goes_away_and_comes_back(tmp_path: Path) -> None:
    folder = started(tmp_path, 10)
    shown = Shown(live_of(WatchedRun(folder)))
    shown.ask()
    os.rename(folder.path, tmp_path / "aside")
    shown.ask()
    assert "is not there any more" in shown.text
    assert "step 100 of 400" in shown.text
    os.rename(tmp_path / "aside", folder.path)
    count = shown.ask()["count"]
    assert "is not there any more" not in " ".join(shown.parts[str(k)]["html"] for k in range(count))
    shutil.rmtree(folder.path)
    shown.ask()
    assert "is not there any more" in shown.text


def test_broken_files_are_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    folder = started(tmp_path, 10)
    append(folder, "no json\n")
    folder.evaluations.mkdir(parents=True, exist_ok=True)
    (folder.evaluations / "comparisons.json").write_text("{broken")
    text = seen(WatchedRun(folder))
    assert "Left out of the curves: 1 line of metrics.jsonl" in text
    assert "evaluations/comparisons.json could not be read" in text
    assert "step 100 of 400" in text


def test_a_run_that_died_is_not_taken_for_one_that_trains(tmp_path: Path) -> None:
    folder = started(tmp_path, 10)
    now = [folder.metrics_file.stat().st_mtime + 30.0]
    watched = WatchedRun(folder, clock=lambda: now[0])
    live = live_of(watched)
    assert "Nothing was written" not in text_of(live.changes())
    now[0] += 600
    assert "Nothing was written for 10 min" in text_of(live.changes())
    folder.write(dataclasses.replace(folder.read(), status="finished"))
    assert "Nothing was written" not in text_of(live.changes())


def test_secrets_and_settings_are_not_on_the_page(tmp_path: Path) -> None:
    folder = started(tmp_path, 10, config={"max_steps": 400, "hub_token": SECRET, "output_dir": "/data/private/run"})
    text = seen(WatchedRun(folder))
    assert SECRET not in text
    assert "/data/private" not in text


def test_a_long_log_is_cheap_to_follow(tmp_path: Path) -> None:
    """A look after one more line may cost a share of the first one only in reading; drawing is the same for both."""
    folder = started(tmp_path, 0)
    folder.metrics_file.write_text(
        "".join(json.dumps({**row, "step": n}) + "\n" for n, row in enumerate(metric_lines() * 20))
    )
    watched = WatchedRun(folder)
    watched()
    read = watched.log._end
    append(folder, '{"step": 99999, "loss": 1.0}\n')
    watched()
    assert watched.log._end - read == len('{"step": 99999, "loss": 1.0}\n')
    answer = live_of(watched).changes()
    curves = [t for p in answer["parts"].values() for f in p["figures"] for t in f["data"]]
    assert curves
    assert all(len(t["x"]) <= 1300 for t in curves)


def test_the_page_before_the_first_look(tmp_path: Path) -> None:
    assert "Reading the folder." in opening_page(tmp_path).lead
