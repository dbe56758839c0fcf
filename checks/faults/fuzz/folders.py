"""Folders that holdfast wrote: results, checkpoints to resume from, caches. Something in them is not as it was."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import gallery
import what_stays
from commandline import Outcome
from fuzz.case import Case
from fuzz.junk import cut, flipped, no_json, other_value
from fuzz.stage import RESUMABLE, SHOWN, said_by

AGAIN = dict(gallery.STEPS)
RESULTS: dict[str, tuple[str, list[list[str]]]] = {
    "runs": ("direct/run.json", [*SHOWN[:2], AGAIN["train-direct"]]),
    "measured": ("evaluate.json", [*SHOWN[2:4], AGAIN["evaluate"]]),
    "study": ("study.json", [*SHOWN[4:], ["report", "study"], AGAIN["sweep"]]),
    "updated": ("update.json", [AGAIN["update"]]),
    "residuals": ("update.json", [AGAIN["residual-study"]]),
    "merged": ("ties/provenance.json", [["inspect", "merged/ties", "--verify"], ["inspect", "base", "merged/ties"]]),
}
"""Folder: its record, and the commands that read it."""
DATA = (".json", ".jsonl", ".db", ".safetensors")


def damage(path: Path, rng: random.Random, kinds: tuple[str, ...] = ()) -> str:
    """Damages one file; how."""
    content = path.read_bytes()
    kind = rng.choice(
        kinds or ("cut short", "a bit changed", "no JSON", "gone", "another value", "a folder", "a link to nothing")
    )
    if not content or (kind in ("no JSON", "another value") and path.suffix not in (".json", ".jsonl")):
        kind = "zeros"
    path.unlink()
    if kind == "cut short":
        path.write_bytes(cut(content, rng))
    elif kind == "a bit changed":
        path.write_bytes(flipped(content, rng))
    elif kind == "no JSON":
        name, new = no_json(rng)
        path.write_bytes(new)
        kind = f"no JSON ({name})"
    elif kind == "zeros":
        path.write_bytes(bytes(len(content)))
    elif kind == "a folder":
        path.mkdir()
    elif kind == "a link to nothing":
        path.symlink_to("nothing")
    elif kind == "another value":
        lines = content.decode().splitlines() if path.suffix == ".jsonl" else [content.decode()]
        number = rng.randrange(len(lines)) if lines else 0
        value = json.loads(lines[number])
        where, new_value = other_value(value, rng)
        lines[number] = json.dumps(value)
        path.write_text("\n".join(lines) + "\n")
        kind = f"{'.'.join(map(str, where))} is {str(new_value)[:20]}"
    return kind


def results_case(rng: random.Random) -> Case:
    """A file of a finished result."""
    folder = rng.choice(("runs", "runs", "measured", "measured", "study", "study", "study", *RESULTS))
    record, commands = RESULTS[folder]
    words = rng.choice(commands[: -1 if rng.random() < 0.8 and len(commands) > 1 else None])
    of_record = rng.random() < 0.3
    sure = of_record and rng.random() < 0.6
    seed = rng.random()
    name = ["", ""]

    def prepare(place: Path) -> str:
        own = random.Random(seed)
        files = sorted(
            p for p in (place / folder).rglob("*") if p.suffix in DATA and p.is_file() and not p.is_symlink()
        )
        path = place / folder / record if of_record else own.choice(files)
        name[0] = path.name
        name[1] = damage(path, own, ("no JSON",) if sure else ())
        return f"{path.relative_to(place)}: {name[1]}"

    def check(place: Path, outcome: Outcome) -> str | None:
        """What cannot be read is said, or made no difference to what was shown."""
        if not name[1].startswith(("no JSON", "zeros", "a folder")) or words not in SHOWN:
            return None
        same = outcome.out == (place / said_by(words)).read_text()
        return None if same or name[0] in outcome.out + outcome.err else f"other figures, and no word of {name[0]}"

    valid = False if sure and words in (*SHOWN, ["report", "study"]) and words[:2] != ["sweep", "status"] else None
    return Case(
        what=" ".join(words)[:60],
        words=words,
        valid=valid,
        copies=(folder,),
        prepare=prepare,
        check=check,
        codes=(2, 1),
    )


# ---------------------------------------------------------------------------------------------------------- checkpoints


def same_weights(one: str, other: str) -> Callable[[Path, Outcome], str | None]:
    """A check that two folders hold the same tensors, bit for bit."""

    def check(place: Path, outcome: Outcome) -> str | None:
        left, right = (what_stays.tensors_hash(place / name / "model.safetensors") for name in (one, other))
        return None if left == right else "other weights than without the fault"

    return check


def checkpoints_case(rng: random.Random) -> Case:
    """Checkpoints of an interrupted run, and the run continued."""
    seed = rng.random()

    def prepare(place: Path) -> str:
        own = random.Random(seed)
        half = place / "half"
        newest = sorted(half.glob("checkpoint-*"), key=lambda p: int(p.name.rpartition("-")[2]))[-1]
        kind = own.choice(
            (
                "a file",
                "a file",
                "a file",
                "a file",
                "two files",
                "a step",
                "a file as checkpoint",
                "all gone",
                "an empty one",
            )
        )
        if kind in ("a file", "two files"):
            found = []
            for _ in range(2 if kind == "two files" else 1):
                path = own.choice(
                    sorted(p for p in half.rglob("*") if p.is_file() and not p.is_symlink() and p.suffix != ".html")
                )
                found.append(f"{path.relative_to(half)}: {damage(path, own)}")
            return ", ".join(found)
        if kind == "a step":
            state = json.loads((newest / "trainer_state.json").read_text())
            state["global_step"] = own.choice((-3, 0, 3, 10**9, 10**30, "4", None, 1.5))
            (newest / "trainer_state.json").write_text(json.dumps(state))
            return f"global_step of {newest.name} is {state['global_step']}"
        if kind == "a file as checkpoint":
            (half / "checkpoint-6").write_bytes(own.choice((b"", b"x")))
        elif kind == "an empty one":
            (half / "checkpoint-6").mkdir()
        else:
            for path in half.glob("checkpoint-*"):
                shutil.rmtree(path)
        return kind

    return Case(
        what="train continues",
        words=RESUMABLE,
        valid=None,
        copies=("half",),
        prepare=prepare,
        check=same_weights("half", "whole"),
        names=("half",),
    )


# --------------------------------------------------------------------------------------------------------------- caches

TRAIN = [*RESUMABLE[:-1], "out"]
EVALUATE = ["evaluate", "base", "math", "--suite", "suite.yaml", "--output_dir", "out", "--cache", "shared"]


def caches_case(rng: random.Random) -> Case:
    """A file of a cache that several commands share."""
    seed = rng.random()
    words, cache, check = rng.choice(
        [
            (TRAIN, "cache/teacher_states", same_weights("out", "whole")),
            (EVALUATE, "shared", same_figures),
        ]
    )

    def prepare(place: Path) -> str:
        own = random.Random(seed)
        files = sorted(p for p in (place / cache).rglob("*") if p.is_file() and not p.is_symlink())
        path = own.choice(files)
        how = damage(path, own, ("cut short", "a bit changed", "no JSON", "gone", "zeros", "another value"))
        return f"{path.relative_to(place)}: {how}"

    return Case(
        what=f"{words[0]} with {cache}",
        words=words,
        valid=None,
        copies=("cache", "shared"),
        prepare=prepare,
        check=check,
    )


def same_figures(place: Path, outcome: Outcome) -> str | None:
    """The evaluation in `out` has the figures of the stage's."""
    for path in sorted(p for model in ("base", "math") for p in (place / "measured" / model).rglob("*.json")):
        there = place / "out" / path.relative_to(place / "measured")
        if not there.is_file():
            return f"{there.name} is missing"
        one, other = (json.loads(p.read_text()).get("metrics") for p in (path, there))
        if one != other:
            return f"other figures in {there.name}"
    return None
