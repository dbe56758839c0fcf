"""The merge benchmark at a tiny size: every command does what it is timed for, and the checker names what falls short.

No speed is judged here.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open

from holdfast.cli.main import main as holdfast


@pytest.fixture
def bench(script):
    return script("merge")


@pytest.fixture
def peers(script):
    return script("merge_peers")


@pytest.fixture
def size(peers):
    return peers.Size(width=64, inner=96, layers=3, vocabulary=128)


@pytest.fixture
def place(bench, size, tmp_path):
    """A workplace with three checkpoints and a residual."""
    place = bench.Workplace(
        tmp_path, {**bench.prepared(tmp_path, size, bench.ROLES), "residual": tmp_path / "residual"}
    )
    words = ("residual", "extract", "--instruct", "{a}", "--base", "{base}", "--output_dir", "{residual}")
    assert holdfast(bench.filled(list(words), {k: str(v) for k, v in place.inputs.items()})) == 0
    return place


def snippet(peers, name, text, **more):
    """A contestant of ours that is a piece of Python; sys.argv[1] is its output folder."""
    return peers.Contestant(name=name, family="ours", words=(sys.executable, "-c", text, "{out}"), **more)


# ---------------------------------------------------------------------------------------------------------- checkpoints


def test_a_checkpoint_is_what_other_libraries_read(peers, size, tmp_path):
    folder = peers.checkpoint(tmp_path / "base", size, 0)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    found = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118
                found[name] = file.get_tensor(name)
                assert index["weight_map"][name] == path.name
    assert {name: tuple(t.shape) for name, t in found.items()} == dict(size.shapes())
    assert {t.dtype for t in found.values()} == {torch.bfloat16}
    assert sum(t.nbytes for t in found.values()) == size.bytes == index["metadata"]["total_size"]
    assert len(list(folder.glob("*.safetensors"))) == 3
    raw = peers.stored_bf16(folder)
    assert all(np.array_equal(raw[name], t.view(torch.uint16).flatten().numpy()) for name, t in found.items())


def test_checkpoints_are_the_same_each_time_and_made_once(peers, size, tmp_path):
    one, again = (peers.checkpoint(tmp_path / name, size, 1) for name in ("one", "again"))
    base = peers.checkpoint(tmp_path / "base", size, 0)
    assert peers.compare(one, again)["equal"] == 1.0
    apart = peers.compare(one, base)
    assert apart["equal"] < 0.5 and 0.002 < apart["largest_difference"] < 0.02
    marked = next(one.glob("*.safetensors"))
    before = marked.stat().st_mtime_ns
    peers.checkpoint(one, size, 1)
    assert marked.stat().st_mtime_ns == before
    assert peers.is_made(one, size, 1) and not peers.is_made(one, size, 2) and not peers.is_made(one, size.times(4), 1)


def test_bfloat16_is_rounded_to_the_nearest_even(peers):
    values = np.concatenate(
        [np.random.default_rng(0).standard_normal(4096), [0.0, -0.0, 1 + 2**-8, 1 + 3 * 2**-8]]
    ).astype(np.float32)
    assert np.array_equal(peers.bfloat16(values), torch.from_numpy(values).bfloat16().view(torch.uint16).numpy())


def test_the_sizes_are_those_of_the_bars(bench):
    full = bench.SIZES["full"]
    large = full.times(bench.LARGER)
    assert full.bytes / 1e9 == pytest.approx(1.3, abs=0.05) and full.shards == 3
    assert large.bytes / full.bytes == pytest.approx(4, rel=0.01) and large.shards == 12


# ------------------------------------------------------------------------------------------------------------ comparing


def write_raw(folder, **tensors):
    folder.mkdir()
    header, content = {}, b""
    for name, values in tensors.items():
        raw = np.array(values, np.uint16).tobytes()
        header[name] = {
            "dtype": "BF16",
            "shape": [len(values)],
            "data_offsets": [len(content), len(content) + len(raw)],
        }
        content += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + content)
    return folder


def test_differences_are_counted_in_units_of_the_last_place(peers, tmp_path):
    one, two = 0x3F80, 0x4000
    ours = write_raw(tmp_path / "ours", a=[one, 0x0000, one, 0x0001], b=[two] * 4, c=[one])
    theirs = write_raw(tmp_path / "theirs", a=[one, 0x8000, one + 1, 0x8002], b=[two] * 4)
    found = peers.compare(ours, theirs, piece=3)
    assert found["elements"] == 8 and found["only_in_one"] == ["c"]
    assert found["equal"] == 6 / 8 and found["within_one"] == 7 / 8
    assert found["largest_ulps"] == 3 and found["largest_difference"] == 2**-7


def test_tensors_of_different_lengths_are_not_compared(peers, tmp_path):
    with pytest.raises(ValueError, match="a has 3 elements, ours 2"):
        peers.compare(write_raw(tmp_path / "ours", a=[1, 2]), write_raw(tmp_path / "theirs", a=[1, 2, 3]))


# ---------------------------------------------------------------------------------------------------------------- a run


@pytest.mark.skipif(sys.platform != "linux", reason="sizes as Linux counts them")
def test_memory_is_that_of_the_command_alone(bench, peers, tmp_path):
    """This process holds PyTorch and the 300 MB below; what it starts does not."""
    ballast = np.ones(300_000_000, np.uint8)
    place = bench.Workplace(tmp_path, {})
    bare = place.run(snippet(peers, "bare", "pass"))
    heavy = place.run(snippet(peers, "heavy", "x = b'1' * 100_000_000"))
    assert bare.peak < 30e6
    assert 95e6 < heavy.peak - bare.peak < 110e6
    assert ballast.nbytes > heavy.peak
    assert 0 < bare.seconds < 20 and bare.processor_seconds > 0 and bare.phases == {}


def test_a_command_that_fails_says_why(bench, peers, tmp_path):
    place = bench.Workplace(tmp_path, {})
    with pytest.raises(bench.Failed, match="ended with 3: error: no such thing"):
        place.run(snippet(peers, "a", "import sys; print('error: no such thing\\nbye', file=sys.stderr); sys.exit(3)"))
    with pytest.raises(bench.Failed, match="No such file"):
        place.run(peers.Contestant(name="b", family="cp", words=("no-such-command",)))


def test_a_command_that_writes_too_little_has_failed(bench, peers, place):
    cp = next(c for c in peers.copies("cp", "{base}") if c.name == "cp")
    place.run(cp)
    with pytest.raises(bench.Failed, match="less than it should"):
        place.run(replace(cp, words=("mkdir", "{out}")))
    with pytest.raises(bench.Failed, match="less than it should"):  # the parents' size is half of a residual's
        place.run(replace(cp, copy="cp, float32"))


def test_threads_and_kernels_do_not_depend_on_the_shell(bench, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("HOLDFAST_NATIVE", "0")
    assert not {"OMP_NUM_THREADS", "HOLDFAST_NATIVE"} & set(bench.environment({}))
    assert bench.environment({"HOLDFAST_NATIVE": "0"})["HOLDFAST_NATIVE"] == "0"


def test_every_command_of_ours_works(bench, peers, size, place, capsys):
    """In this process: starting each takes most of the time."""
    folders = {name: str(path) for name, path in place.inputs.items()}
    everyone = peers.contestants(size)
    assert len({c.name for c in everyone}) == len(everyone)
    for contestant in everyone:
        if contestant.family != "ours":
            continue
        out = place.folder / contestant.name.replace(" ", "-")
        words = bench.filled(list(contestant.words), {**folders, "out": str(out)})
        assert tuple(words[:3]) == peers.HOLDFAST
        capsys.readouterr()
        assert holdfast(words[3:]) == 0, contestant.name
        told = json.loads(capsys.readouterr().out)
        if contestant.copy:
            assert set(told["seconds"]) == {"measure", "merge", "close", "total"}
            copied = place.inputs["residual" if "float32" in contestant.copy else "base"]
            assert peers.stored_bytes(out) == pytest.approx(peers.stored_bytes(copied), rel=0.01)
    for contestant in everyone:  # names that others refer to are there
        for name in (*contestant.peers, contestant.copy, contestant.compared):
            assert name is None or name in {c.name for c in everyone}


# --------------------------------------------------------------------------------------------------------------- rounds


def test_a_contestant_that_fails_is_shown_and_the_others_go_on(bench, peers, tmp_path):
    place = bench.Workplace(tmp_path, {})
    good, bad = snippet(peers, "good", "pass"), snippet(peers, "bad", "raise SystemExit('error: broken')")
    rounds = bench.Rounds(place, [good, bad, replace(good, name="slow", rounds=1)])
    rounds.run(2, warm_up=1)
    rows = {row["name"]: row for row in rounds.rows({"other": "not installed"})}
    assert rows["bad"]["absent"] == "failed: ended with 1: error: broken" and rows["other"]["absent"] == "not installed"
    assert rows["good"]["rounds"] == 2 and rows["slow"]["rounds"] == 1
    about, *kept = [json.loads(line) for line in (tmp_path / bench.RUNS).read_text().splitlines()]
    assert about == {"about": {}}
    assert sorted((run["round"], run["name"]) for run in kept) == [(-1, "good"), (0, "good"), (0, "slow"), (1, "good")]
    assert rows["good"]["seconds"]["low"] <= rows["good"]["seconds"]["median"] <= rows["good"]["seconds"]["high"]


def test_an_interrupted_benchmark_continues(bench, peers, tmp_path):
    """Runs of the same benchmark are taken over, as they were; of another one (other code, other sizes) nothing is."""
    place = bench.Workplace(tmp_path, {})
    everyone = [snippet(peers, name, f"open('{tmp_path}/{name}', 'a').write('x')") for name in ("one", "two")]

    def counts():
        return [len((tmp_path / name).read_text()) for name in ("one", "two")]

    first = bench.Rounds(place, everyone)
    first.run(2, warm_up=1, about={"code": "a"})
    path = tmp_path / bench.RUNS
    path.write_text(
        "".join(path.read_text().splitlines(keepends=True)[:-1])
    )  # stopped before the last run of the second round
    assert counts() == [3, 3]
    again = bench.Rounds(place, everyone)
    again.run(3, warm_up=1, about={"code": "a"})
    assert sum(counts()) == 6 + 3
    taken = {name: dict(runs) for name, runs in again.taken.items()}
    assert {name: sorted(runs) for name, runs in taken.items()} == {"one": [0, 1, 2], "two": [0, 1, 2]}
    assert sum(first.taken[name][n] == taken[name][n] for name in taken for n in (0, 1)) == 3
    bench.Rounds(place, everyone).run(1, warm_up=0, about={"code": "b"})
    assert sum(counts()) == 9 + 2


def test_ratios_are_taken_within_a_round(bench, peers, tmp_path):
    copied = peers.Contestant(name="cp", family="cp", words=("cp",), copy="cp")
    mine = peers.Contestant(name="linear", family="ours", words=("x",), copy="cp", peers=("kit",))
    kit = peers.Contestant(name="kit", family="mergekit", words=("y",))
    rounds = bench.Rounds(bench.Workplace(tmp_path, {}), [copied, mine, kit])

    def run(seconds, merge=None):
        phases = {} if merge is None else {"measure": 0.0, "merge": merge, "close": 0.1, "total": seconds}
        return bench.Run(seconds=seconds, processor_seconds=seconds, peak=50_000_000, phases=phases)

    rounds.taken = {
        "cp": {0: run(1.0), 1: run(2.0), 2: run(1.0)},
        "linear": {n: run(3.0, 1.5) for n in range(3)},
        "kit": {1: run(30.0)},
    }
    row = rounds.row(mine)
    assert row["times_copy"] == {"median": 1.5, "low": 0.75, "high": 1.5}
    assert row["times_faster"] == {"kit": {"median": 10.0, "low": 10.0, "high": 10.0}}
    assert row["peak_mb"]["median"] == 50.0 and set(row["phases"]) == {"measure", "merge", "close"}
    assert rounds.row(copied)["times_copy"]["median"] == 1.0
    rounds.taken["cp, synced"] = {n: run(2.0) for n in range(3)}
    waiting = peers.Contestant(name="linear", family="ours", words=("x",), copy="cp, synced")
    assert rounds.row(waiting)["times_copy"]["median"] == (1.5 + 0.1) / 2.0  # both wait for the disk: closing counts


# ----------------------------------------------------------------------------------------------------------------- bars


def a_run(bench, **changes):
    """A run as `measure` gives it, with figures made up for the checker that reach every bar."""

    def row(name, family="ours", times=1.5, faster=20.0):
        flat = lambda value: {"median": value, "low": value, "high": value}
        ratios = {"mergekit": flat(faster + 5), "mergekit, float32": flat(faster)} if faster else {}
        return {
            "name": name,
            "family": family,
            "times_copy": flat(times) if times else None,
            "times_faster": ratios,
            "peak_mb": flat(60.0),
        }

    both = [
        n + form
        for n in ("task_arithmetic", "residual extract", "residual apply", "residual in one pass")
        for form in ("", bench.NO_SYNC)
    ]
    names = (*both, "ties (original)", "ties (mergekit)")
    rows = [
        row("cp", "cp", 1.0, None),
        *(row(name) for name in names),
        {**row("mergekit ties", "mergekit", None, None), "peak_mb": {"high": 2000.0}},
    ]
    memory = [{"name": name, "ratio": 1.02} for name in bench.FLAT]
    kits = (*bench.LINEAR, *bench.RESIDUAL, *bench.TASK_ARITHMETIC)
    numbers = [{"mergekit": name, "equal": 0.9999, "only_in_one": []} for name in kits]
    run = {"contestants": rows, "memory": memory, "numbers": numbers}
    for key, (name, change) in changes.items():
        next(r for r in run[key] if name in (r.get("name"), r.get("mergekit"))).update(change)
    return run


def test_the_checker_passes_what_reaches_the_bars(bench):
    verdicts = bench.judge(a_run(bench), bench.BARS)
    assert [v["line"] for v in verdicts if not v["met"]] == []
    assert (
        next(v for v in verdicts if v["figure"] == "mergekit: task_arithmetic")["value"] == 20.0
    )  # the faster of mergekit's two


@pytest.mark.parametrize(
    ("change", "figure"),
    [
        ({"contestants": ("task_arithmetic", {"times_copy": {"median": 2.1}})}, "times cp: task_arithmetic"),
        (
            {"contestants": ("residual apply, no sync", {"times_copy": {"median": 2.1}})},
            "times cp: residual apply, no sync",
        ),
        ({"contestants": ("residual extract", {"times_copy": None})}, "times cp: residual extract"),
        (
            {"contestants": ("residual in one pass", {"times_faster": {"mergekit residual": {"median": 3.9}}})},
            "mergekit: residual in one pass",
        ),
        (
            {"contestants": ("ties (mergekit)", {"times_faster": {"a": {"median": 30.0}, "b": {"median": 14.0}}})},
            "mergekit: ties (mergekit)",
        ),
        ({"contestants": ("ties (original)", {"times_faster": {}})}, "mergekit: ties (original)"),
        ({"contestants": ("ties (original)", {"peak_mb": {"high": 351.0}})}, "peak MB"),
        ({"memory": ("ties (original)", {"ratio": 1.11})}, "growth: ties (original)"),
        ({"memory": ("task_arithmetic", {"absent": "no room"})}, "growth: task_arithmetic"),
        ({"numbers": ("mergekit linear", {"equal": 0.99})}, "equal: mergekit linear"),
        ({"numbers": ("mergekit linear", {"only_in_one": ["lm_head.weight"]})}, "equal: mergekit linear"),
    ],
)
def test_the_checker_names_what_falls_short(bench, change, figure):
    verdicts = bench.judge(a_run(bench, **change), bench.BARS)
    assert [v["figure"] for v in verdicts if not v["met"]] == [figure]
    verdict = next(v for v in verdicts if not v["met"])
    assert ("cannot be judged" in verdict["line"]) == (verdict["value"] is None)
    assert "at least" in verdict["line"] or "at most" in verdict["line"]


# ----------------------------------------------------------------------------------------------------------- the script


def test_the_script_prints_saves_and_checks(bench, monkeypatch, size, tmp_path, capsys):
    monkeypatch.setitem(bench.SIZES, "quick", size)
    monkeypatch.setattr(
        bench, "missing", lambda contestant: "mergekit is not installed" if contestant.family == "mergekit" else None
    )
    chosen = ["--quick", "--only", "task_arithmetic", "--only", "mergekit linear", "--folder", str(tmp_path / "work")]
    assert bench.main([*chosen, "--check", "--save", str(tmp_path / "merge.json")]) == 1
    printed = capsys.readouterr()
    assert (
        "SHORT  share of elements that are the same in ours and mergekit linear" in printed.err
        and "cannot be judged" in printed.err
    )
    assert "mergekit is not installed: mergekit linear" in printed.out
    assert "slerp" not in printed.out
    saved = json.loads((tmp_path / "merge.json").read_text())
    assert (
        saved["model"]["bytes"] == size.bytes
        and saved["mode"] == "quick"
        and saved["hardware"]
        and saved["file_system"]
    )
    rows = {row["name"]: row for row in saved["contestants"]}
    row = rows["task_arithmetic, no sync"]
    assert row["times_copy"]["median"] > 0 and 20 < row["peak_mb"]["median"] < 200
    assert row["command"].startswith("holdfast merge {a} {b}") and row["phases"]["merge"]["median"] > 0
    assert rows["task_arithmetic"]["absent"] == "left out by --quick"
    (memory,) = saved["memory"]
    assert memory["name"] == "task_arithmetic" and memory["bytes"][1] == pytest.approx(4 * memory["bytes"][0], rel=0.1)
    assert 0.8 < memory["ratio"] < 1.5
    assert str(tmp_path) not in json.dumps(saved)
    assert {p.name for p in (tmp_path / "work").iterdir()} >= {"base-3", "a-3", "b-3", "residual"}
    assert not (tmp_path / "work" / "out").exists()


def test_without_room_the_larger_model_is_left_out_with_the_reason(bench, peers, monkeypatch, size, tmp_path):
    full = lambda path: type("Usage", (), {"free": 10 * size.bytes})
    monkeypatch.setattr(bench.shutil, "disk_usage", full)
    running = [c for c in peers.contestants(size) if c.name == "linear, no sync" or c.name.startswith("ties")]
    rows = bench.memory(tmp_path, size, running, 1)
    assert [row["name"] for row in rows] == ["ties (original)", "ties (mergekit)"]
    assert all("are free" in row["absent"] for row in rows) and not list(tmp_path.iterdir())
    monkeypatch.setattr(bench.shutil, "disk_usage", lambda path: type("Usage", (), {"free": size.bytes}))
    with pytest.raises(SystemExit, match="Choose another one with --folder"):
        bench.measure(tmp_path, size, 1, mode="quick")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mergekit") is None, reason="mergekit is not installed")
@pytest.mark.parametrize(
    "name", ["linear", "residual", "task_arithmetic", "task_arithmetic, float32", "ties", "ties, float32"]
)
def test_mergekit_computes_the_same(bench, peers, size, place, name):
    """Where it computes in float32 nothing but the choice among equal magnitudes differs."""
    everyone = {c.name: c for c in peers.contestants(size)}
    kit = everyone[f"mergekit {name}"]
    rounds = bench.Rounds(place, [kit, everyone[kit.compared + bench.NO_SYNC]])
    rounds.run(1, warm_up=0)
    assert rounds.failures == {}
    (found,) = rounds.numbers
    assert found["elements"] == size.bytes // 2 and found["only_in_one"] == []
    exact = kit.name in (*bench.LINEAR, *bench.RESIDUAL, bench.TASK_ARITHMETIC[1])
    assert found["equal"] > (0.999 if exact else 0.9)
    ours = next(row for row in rounds.rows({}) if row["family"] == "ours")
    assert ours["times_faster"][kit.name]["median"] > 0
