"""Requests: YAML files that are no YAML, values of another kind, keys that do not exist, words of a command line."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import request_cases
from fuzz.case import Case
from fuzz.junk import DEEP, DIGITS, NO_PATH, Raw, at, cut, paths, put, wrong_for, yaml_text
from request_cases import COMMANDS, DELETED, SOUND

FILE = "asked.yaml"
RUNS_AT_ONCE = ("world", "compare", "prepare")
"""Requests without a dry run; accepted ones are run."""
MAY_BE_NEGATIVE = {"max_steps", "scale", "scales", "weights", "lambdas", "shift", "seed"}
FILES = {"dataset_name", "perplexity", "corpus", "input", "choices", "memorisation", "instructions", "reference"}
MODELS = {"model_name_or_path", "base", "instruct", "old_base"}


def yaml_case(rng: random.Random) -> Case:
    """A request in a file with one fault, or a strange way to write a sound one."""
    name = rng.choice(list(COMMANDS))
    words, sound = COMMANDS[name]
    return rng.choice((_syntax, _value, _value, _value, _key, _strange))(rng, name, list(words), copy.deepcopy(sound))


def _file(text: str | bytes) -> Any:
    content = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return lambda folder: (folder / FILE).write_bytes(content) and None


def _syntax(rng: random.Random, name: str, words: list[str], sound: dict[str, Any]) -> Case:
    text = yaml_text(sound, rng)
    key = rng.choice(list(sound))
    block = "".join(f"{k}: {json.dumps(v)}\n" for k, v in sound.items())
    made: dict[str, str | bytes] = {
        "cut short": json.dumps(sound)[: rng.randrange(1, len(json.dumps(sound)) - 1)],
        "empty": "",
        "a comment alone": "# nothing\n",
        "null": "null",
        "a list": "[1, 2]",
        "a text": "nothing",
        "a number": DIGITS,
        "deep brackets": block + f"{key}x: {'[' * rng.randrange(101, 20_000)}",
        "deep brackets that close": block + f"{key}x: {DEEP}",
        "deep indentation": "".join(f"{' ' * n}a:\n" for n in range(rng.randrange(101, 1500))),
        "a key twice": block + f"{key}: {json.dumps(sound[key])}\n",
        "!!int of a text": block + "more: !!int foo\n",
        "!!float of a list": block + "more: !!float [1]\n",
        "!!bool of a text": block + "more: !!bool perhaps\n",
        "!!timestamp": block + "more: !!timestamp 2020-13-45\n",
        "!!int of 5,000 digits": block + f"more: !!int {DIGITS}\n",
        "a Python object": block + 'more: !!python/object/apply:os.system ["true"]\n',
        "an unknown tag": block + "more: !mine 3\n",
        "an alias of nothing": block + "more: *nothing\n",
        "an alias in itself": block + "more: &a [*a]\n",
        "two documents": block + "---\n" + block,
        "a tab": block + "more:\n\ta: 1\n",
        "an open quote": block + "more: 'a\n",
        "a colon in a value": block + "more: a: b\n",
        "a null character": block + "more: \0\n",
        "a control character": block + "more: \x01\n",
        "Latin-1": (block + "more: ä\n").encode("latin-1"),
        "UTF-16": block.encode("utf-16"),
        "binary": rng.randbytes(rng.randrange(20, 3000)) + b"\xff",
        "zeros": bytes(rng.randrange(1, 3000)),
        "a list as a key": block + "? [a]\n: 1\n",
        "a byte cut out": cut(text.encode(), rng)[:-1] + b"\xc3",
    }
    what = rng.choice(list(made))
    return Case(what=f"{name}: {what}", words=words, valid=False, names=(FILE, key), prepare=_file(made[what]))


def _value(rng: random.Random, name: str, words: list[str], sound: dict[str, Any]) -> Case:
    path = rng.choice(paths(sound))
    old = at(sound, path)
    key = next((part for part in reversed(path) if isinstance(part, str)), "")
    new: Any = wrong_for(old, rng)
    if key in FILES | MODELS and isinstance(old, str) and rng.random() < 0.4:
        new = (
            rng.choice(NO_PATH)
            if key in FILES
            else rng.choice(("./nowhere", "train.jsonl", "x" * 3000, "no/such/model"))
        )
    elif key == "output_dir" and rng.random() < 0.4:
        new = rng.choice((Raw("[1, 2]"), "train.jsonl", "train.jsonl/x", "x" * 300, "a/" * 3000, "/dev/null/x", "base"))
    elif isinstance(old, int) and not isinstance(old, bool) and key not in MAY_BE_NEGATIVE and rng.random() < 0.3:
        new = rng.choice((-1, -(10**6), -(10**18)))
    elif rng.random() < 0.15 and not isinstance(old, (dict, list)):
        new = DELETED
    valid: bool | None = False
    if new is DELETED:
        place = at(sound, path[:-1])
        place.pop(path[-1])
        valid = None
    else:
        put(sound, path, new)
    if name == "suite" and path[0] == "description":
        valid = None
    shown = "nothing" if new is DELETED else repr(new)[:40]
    names = (
        FILE,
        *(str(part) for part in path if isinstance(part, str)),
        *([new[:50]] if isinstance(new, str) else []),
    )
    what = f"{name}: {'.'.join(map(str, path))} is {shown}"
    return Case(what=what, words=words, valid=valid, names=names, prepare=_file(yaml_text(sound, rng)))


def _key(rng: random.Random, name: str, words: list[str], sound: dict[str, Any]) -> Case:
    """A key that does not exist, at the top."""
    key = rng.choice(
        (*(f"{k}x" for k in sound), "nonsense", "seedz", "a b", "1", "null", "~", "- a", "x" * 5000, "ä", "{}")
    )
    sound[key] = rng.choice((1, "a", [1], {"a": 1}, None))
    valid = None if name == "suite" else False  # any other key of a suite names a group of entries
    what = f"{name}: unknown key {key[:20]!r}"
    return Case(what=what, words=words, valid=valid, names=(FILE, key), prepare=_file(yaml_text(sound, rng)))


def _strange(rng: random.Random, name: str, words: list[str], sound: dict[str, Any]) -> Case:
    """A sound request, written in an unusual way."""
    if name not in RUNS_AT_ONCE:
        sound = request_cases._changed(sound, rng.choice(SOUND[name]))
    block = "".join(f"{k}: {json.dumps(v)}\n" for k, v in sound.items())
    key, dashed = next(iter(sound)), {k.replace("_", "-"): v for k, v in sound.items()}
    made: dict[str, str | bytes] = {
        "as JSON": json.dumps(sound, indent=2),
        "as it is": block,
        "with a byte order mark": b"\xef\xbb\xbf" + block.encode(),
        "with Windows line ends": block.replace("\n", "\r\n"),
        "with comments": f"# a\n{block.replace(chr(10), '  # b' + chr(10))}",
        "as a document": f"%YAML 1.2\n---\n{block}...\n",
        "with an anchor": block.replace(f"{key}: ", f"{key}: &x ", 1),
        "with dashes in keys": "".join(f"{k}: {json.dumps(v)}\n" for k, v in dashed.items()),
        "with numbers as text": json.dumps(
            {k: str(v) if type(v) is int and name == "train" else v for k, v in sound.items()}
        ),
    }
    what = rng.choice(list(made))
    valid = None if name == "world" else True  # a world takes a while
    if name == "world":
        words = [*words, "--people", "nobody"]
    return Case(what=f"{name}: {what}", words=words, valid=valid, prepare=_file(made[what]))


# ---------------------------------------------------------------------------------------------------------------- words

QUICK: list[list[str]] = [
    [
        "train",
        "--config",
        "train.yaml",
        "--dry_run",
        "--quick",
        "--env",
        "{A: b}",
        "--learning_rate",
        "1e-3",
        "--retention",
        "label_annealing:weight=1",
    ],
    ["train", "--config", "train.yaml", "--dry_run", "--quick", "--lr_scheduler_kwargs", "{num_cycles: 1}"],
    ["evaluate", "base", "--suite", "suite.yaml", "--dry_run", "--limit", "2", "--batch_size", "2"],
    ["sweep", "--config", "sweep.yaml", "--dry_run", "--seeds", "0", "1"],
    ["update", "--config", "update.yaml", "--dry_run", "--train", "{learning_rate: 1e-3}"],
    [
        "merge",
        "math",
        "code",
        "--base",
        "base",
        "--method",
        "ties",
        "--density",
        "0.3",
        "--output_dir",
        "out",
        "--dry_run",
    ],
    ["residual", "extract", "--instruct", "instruct", "--base", "base", "--output_dir", "out", "--dry_run"],
    ["probe", "base", "--noise", "0.5", "--noise_seed", "1", "--write", "out", "--dry_run"],
    ["inspect", "base", "math", "--per", "tensor"],
    ["inspect", "base"],
    ["compare", "measured:base", "measured:math", "--fail_if", "colours drop > 90pt", "--confidence", "0.9"],
    ["report", "runs/direct"],
    ["sweep", "status", "study"],
    ["data", "prepare", "--input", "news.jsonl", "--output", "rows.jsonl", "--seed", "0"],
]
WORDS = (
    "",
    " ",
    "--",
    "-",
    "---",
    "--x",
    "x" * 70_000,
    "a/" * 3000,
    "\udcff",
    "~nobody-here/a",
    "[" * 3000,
    "{a: " * 3000,
    "!!int foo",
    "{a: 1, a: 2}",
    "9" * 5000,
    "1" + "0" * 400,
    "nan",
    ".inf",
    "-1",
    "1:30",
    "010",
    "2020-13-45",
    "\n",
    "=",
    "*",
    "--config",
    "--config=nowhere.yaml",
    "--output_dir=base",
    "--seed=-1",
    "--debug=1",
    "../..",
    "/dev/null",
    "%s",
    "{}",
)


def words_case(rng: random.Random) -> Case:
    """A command line with a word replaced, added, left out or twice."""
    words = list(rng.choice(QUICK))
    place = rng.randrange(1, len(words))
    change = rng.choice(("replaced", "replaced", "added", "left out", "twice", "at the end"))
    new = rng.choice(WORDS)
    if change == "replaced":
        words[place] = new
    elif change == "added":
        words.insert(place, new)
    elif change == "left out":
        del words[place]
    elif change == "twice":
        words.insert(place, words[place])
    else:
        words.append(new)
    shown = " ".join(w if len(w) < 40 else f"{w[:20]}..." for w in words).encode("utf-8", "backslashreplace").decode()
    return Case(what=f"{shown} ({change})", words=words, valid=None, copies=("runs", "measured", "study"))
