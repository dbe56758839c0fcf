"""Checkpoints: files of tensors and the JSON beside them, damaged or saying what cannot be."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzz.case import Case
from fuzz.junk import cut, flipped, no_json, other_value

READERS: dict[str, list[str]] = {
    "inspect": ["inspect", "math", "--verify"],
    "merge": ["merge", "math", "code", "--base", "base", "--method", "ties", "--density", "0.5", "--output_dir", "out"],
    "soup": ["merge", "code", "math", "--output_dir", "out"],
    "distance": ["inspect", "base", "math"],
    "probe": ["probe", "math", "--noise", "0.1", "--write", "out"],
    "extract": ["residual", "extract", "--instruct", "math", "--base", "base", "--output_dir", "out"],
    "evaluate": ["evaluate", "math", "--perplexity", "prose.jsonl", "--output_dir", "out"],
    "train": [
        "train",
        "--model_name_or_path",
        "math",
        "--dataset_name",
        "train.jsonl",
        "--max_steps",
        "1",
        "--use_cpu",
        "--report_to",
        "none",
        "--max_length",
        "64",
        "--save_strategy",
        "no",
        "--output_dir",
        "out",
    ],
}
"""Commands that read the checkpoint `math`."""
LOADS = ("evaluate", "train")
NAME = "model.safetensors"


def parts(content: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and data of a safetensors file."""
    size = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def joined(header: bytes | dict[str, Any], data: bytes) -> bytes:
    """The file of a header and its data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def tensors_case(rng: random.Random) -> Case:
    """One file of the checkpoint `math` is not as it was."""
    return rng.choice((_file, _file, _header, _header, _config, _tokenizer, _sharded))(rng)


def _case(
    rng: random.Random,
    what: str,
    change: Callable[[Path], object],
    valid: bool | None,
    *,
    reader: str = "",
    names: tuple[str, ...] = (),
) -> Case:
    reader = reader or rng.choice(list(READERS))
    return Case(
        what=f"{reader}: {what}",
        words=READERS[reader],
        valid=valid,
        names=names or ("math", "model 1", "model 2", "instruct"),
        copies=("math",),
        prepare=lambda folder: change(folder / "math") and None,
        codes=(2, 1) if reader == "inspect" else (2,),  # a report that says it is not sound
    )


def _file(rng: random.Random) -> Case:
    junk = rng.randbytes(rng.randrange(1, 4000))
    changes: dict[str, tuple[Callable[[bytes], bytes], bool | None]] = {
        "cut short": (lambda c: c[: rng.randrange(len(c) - 1)], False),
        "longer than it says": (lambda c: c + junk, False),
        "empty": (lambda c: b"", False),
        "zeros": (lambda c: bytes(len(c)), False),
        "binary": (lambda c: junk, False),
        "a header as long as the universe": (
            lambda c: struct.pack("<Q", rng.choice((2**63, 2**64 - 1, len(c), 10**9))) + c[8:],
            False,
        ),
        "a header of length 0": (lambda c: struct.pack("<Q", 0) + c[8:], False),
        "a header that is no JSON": (lambda c: joined(no_json(rng)[1], parts(c)[1]), False),
        "a bit of the header changed": (lambda c: c[:8] + flipped(c[8:200], rng) + c[200:], None),
        "a bit of the data changed": (lambda c: c[:-5000] + flipped(c[-5000:], rng), None),
        "a pickle": (lambda c: b"\x80\x04\x95" + junk, False),
    }
    what = rng.choice(list(changes))
    change, valid = changes[what]
    return _case(rng, f"weights {what}", lambda p: (p / NAME).write_bytes(change((p / NAME).read_bytes())), valid)


def _header(rng: random.Random) -> Case:
    """A header that is JSON, and nonsense."""

    def change(header: dict[str, Any], data: bytes) -> bytes:
        name = rng.choice([n for n in header if n != "__metadata__"])
        entry = header[name]
        if what == "a tensor is missing":
            del header[name]
        elif what == "a dtype that does not exist":
            entry["dtype"] = rng.choice(("F33", "", 7, None, [], "PICKLE"))
        elif what == "a shape that cannot be":
            entry["shape"] = rng.choice(([-1, 4], [2**62, 2**62], [1.5], "4", None, {}, [0], [10**400], [[1]]))
        elif what == "offsets outside":
            entry["data_offsets"] = rng.choice(
                ([0, 10**12], [-8, 8], [8, 0], [0], [0, "8"], None, [2**63, 2**64], [0, 10**400])
            )
        elif what == "offsets of another tensor":
            entry["data_offsets"] = next(
                e["data_offsets"] for n, e in header.items() if n not in ("__metadata__", name)
            )
        elif what == "an entry of another kind":
            header[name] = rng.choice((None, 7, [], "x", {}))
        elif what == "metadata of another kind":
            header["__metadata__"] = rng.choice((7, [], "x"))
        elif what == "nothing but metadata":
            return joined({"__metadata__": {}}, b"")
        return joined(header, data)

    what = rng.choice(
        (
            "a tensor is missing",
            "a dtype that does not exist",
            "a shape that cannot be",
            "offsets outside",
            "offsets of another tensor",
            "an entry of another kind",
            "metadata of another kind",
            "nothing but metadata",
        )
    )
    return _case(
        rng, f"header: {what}", lambda p: (p / NAME).write_bytes(change(*parts((p / NAME).read_bytes()))), False
    )


def _config(rng: random.Random) -> Case:
    reader = rng.choice((*LOADS, *READERS))
    if rng.random() < 0.4:
        what, content = no_json(rng)
        return _case(
            rng,
            f"config.json is {what}",
            lambda p: (p / "config.json").write_bytes(content),
            False if reader in LOADS else None,
            reader=reader,
        )
    numbers = ("hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads", "intermediate_size")
    key = rng.choice(
        (*numbers, "model_type", "architectures", "rope_parameters", "dtype", "max_position_embeddings", "")
    )
    bad = (
        rng.choice((-1, 0, "many", None, [], {}, 1.5, 10**400, 10**9))
        if key in numbers
        else rng.choice(("nonsense", 7, [7], {"a": 1}, -1))
    )

    def change(folder: Path) -> None:
        found = json.loads((folder / "config.json").read_text())
        if key:
            found[key] = bad
        else:
            other_value(found, rng)
        (folder / "config.json").write_text(json.dumps(found))

    valid = False if key in (*numbers, "model_type") and reader in LOADS else None
    return _case(
        rng, f"config.json: {key or 'something'} is {str(bad)[:30] if key else 'another'}", change, valid, reader=reader
    )


def _tokenizer(rng: random.Random) -> Case:
    reader, file = rng.choice(LOADS), rng.choice(("tokenizer.json", "tokenizer_config.json"))
    if rng.random() < 0.4:
        what, content = no_json(rng)
        return _case(rng, f"{file} is {what}", lambda p: (p / file).write_bytes(content), False, reader=reader)
    kind = rng.choice(("cut short", "another value", "another value", "gone"))

    def change(folder: Path) -> None:
        path = folder / file
        if kind == "gone":
            path.unlink()
        elif kind == "cut short":
            path.write_bytes(cut(path.read_bytes(), rng))
        else:
            found = json.loads(path.read_text())
            other_value(found, rng)
            path.write_text(json.dumps(found))

    return _case(rng, f"{file}: {kind}", change, False if kind == "cut short" else None, reader=reader)


def _sharded(rng: random.Random) -> Case:
    """An index over shards that are not as it says."""
    what = rng.choice(
        (
            "a shard missing",
            "a tensor nowhere",
            "a file outside",
            "an index that is no JSON",
            "a map of another kind",
            "sound",
        )
    )

    def change(folder: Path) -> None:
        header, data = parts((folder / NAME).read_bytes())
        (folder / NAME).unlink()
        header.pop("__metadata__", None)
        names = list(header)
        files = {}
        for number, part in enumerate((names[: len(names) // 2], names[len(names) // 2 :]), 1):
            file, own, body = f"model-{number:05d}-of-00002.safetensors", {}, b""
            for name in part:
                begin, end = header[name]["data_offsets"]
                own[name] = {**header[name], "data_offsets": [len(body), len(body) + end - begin]}
                body += data[begin:end]
                files[name] = file
            (folder / file).write_bytes(joined({"__metadata__": {"format": "pt"}, **own}, body))
        index: Any = {"metadata": {"total_size": len(data)}, "weight_map": files}
        if what == "a shard missing":
            (folder / rng.choice(list(files.values()))).unlink()
        elif what == "a tensor nowhere":
            files["model.nothing.weight"] = files[names[0]]
        elif what == "a file outside":
            files[names[0]] = rng.choice(("../base/model.safetensors", "/etc/passwd", "", "x" * 300, "\0"))
        elif what == "a map of another kind":
            index["weight_map"] = rng.choice(([], None, 7, {names[0]: 7}, {names[0]: None}))
        text = no_json(rng)[1] if what == "an index that is no JSON" else json.dumps(index).encode()
        (folder / "model.safetensors.index.json").write_bytes(text)

    return _case(rng, f"shards: {what}", change, what == "sound")
