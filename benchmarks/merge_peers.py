"""What `merge.py` works on and with: checkpoints that are made, the contestants' commands, and the comparison of what
they write.

A checkpoint has the Llama architecture and normally distributed weights; the tuned ones are the base with noise of
their own, so that what a method does to changes has changes to work on. Same size and seed, same bytes. They are
written here and not by the engine that is measured.

Contestants are commands, given as words with `{base}`, `{a}`, `{b}` and `{residual}` for the inputs and `{out}` for
what is written.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

# ---------------------------------------------------------------------------------------------------------- checkpoints

EMBEDDING = "model.embed_tokens.weight"


@dataclass(frozen=True, kw_only=True)
class Size:
    """A Llama-architecture checkpoint in bfloat16."""

    width: int
    inner: int
    """Of the MLP."""
    layers: int
    vocabulary: int
    shards: int = 4
    """As many as a merge works on at a time, or more: a larger model then differs in its size alone."""

    def shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """Names and shapes of all tensors, in the order in which they are stored."""
        square, up = (self.width, self.width), (self.inner, self.width)
        layer: dict[str, tuple[int, ...]] = {f"self_attn.{name}_proj.weight": square for name in "qkvo"}
        layer |= {"mlp.gate_proj.weight": up, "mlp.up_proj.weight": up, "mlp.down_proj.weight": up[::-1]}
        layer |= {"input_layernorm.weight": (self.width,), "post_attention_layernorm.weight": (self.width,)}
        table = (self.vocabulary, self.width)
        layers = [
            (f"model.layers.{number}.{name}", shape) for number in range(self.layers) for name, shape in layer.items()
        ]
        return [
            (EMBEDDING, table),
            *layers,
            ("model.norm.weight", (self.width,)),
            ("lm_head.weight", table),
        ]

    @property
    def bytes(self) -> int:
        """Of the tensors."""
        return sum(2 * int(np.prod(shape)) for _, shape in self.shapes())

    def times(self, factor: int) -> Size:
        """The same with `factor` times the bytes, to a percent or so: more layers, more shards of the same size."""
        layer = 2 * sum(int(np.prod(shape)) for name, shape in self.shapes() if ".layers.0." in name)
        return replace(self, layers=self.layers + round((factor - 1) * self.bytes / layer), shards=factor * self.shards)


SCALE, CHANGE = 0.02, 0.001
"""Standard deviations of the base's weights and of what tuning changes."""
INEXACT = 1e-9
"""The first weight of a tuned model's embedding: so small that base and difference in float32 do not give it back. A
model of billions of weights has such a pair by chance, and its block needs the memory of the exact way."""
PIECE = 4_194_304
"""Elements that are drawn at once."""
STAMP = "made_by_benchmark.json"
"""Is written last."""


def checkpoint(folder: Path, size: Size, seed: int) -> Path:
    """Writes a checkpoint unless it is there already: seed 0 is the base, others are the base with noise of their
    own."""
    if is_made(folder, size, seed):
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shards: list[list[tuple[str, tuple[int, ...]]]] = [[] for _ in range(size.shards)]
    before = 0
    for name, shape in size.shapes():
        shards[before * size.shards // size.bytes].append((name, shape))
        before += 2 * int(np.prod(shape))
    files = [f"model-{i:05d}-of-{size.shards:05d}.safetensors" for i in range(1, size.shards + 1)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda file, tensors: write_shard(folder / file, tensors, seed), files, shards))
    index = {name: file for file, tensors in zip(files, shards, strict=True) for name, _ in tensors}
    write(folder / "model.safetensors.index.json", {"metadata": {"total_size": size.bytes}, "weight_map": index})
    write(folder / "config.json", config_of(size))
    write(folder / STAMP, stamp_of(size, seed))
    return folder


def is_made(folder: Path, size: Size, seed: int) -> bool:
    """Whether `checkpoint` has written this folder to its end."""
    stamp = folder / STAMP
    return stamp.is_file() and json.loads(stamp.read_text()) == stamp_of(size, seed)


def stamp_of(size: Size, seed: int) -> dict[str, Any]:
    """All that a checkpoint's bytes depend on."""
    return {"size": vars(size), "seed": seed, "scale": SCALE, "change": CHANGE, "inexact": INEXACT}


def write_shard(path: Path, tensors: Sequence[tuple[str, tuple[int, ...]]], seed: int) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, shape in tensors:
        end = position + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, shape in tensors:
            drawn = [
                np.random.Generator(np.random.SFC64([s, zlib.crc32(name.encode())]))
                for s in ((0, seed) if seed else (0,))
            ]
            size = left = int(np.prod(shape))
            while left:
                count = min(left, PIECE)
                values = drawn[0].standard_normal(count, np.float32) * np.float32(SCALE)
                for tuning in drawn[1:]:
                    values += tuning.standard_normal(count, np.float32) * np.float32(CHANGE)
                if left == size and seed and name == EMBEDDING:
                    values[0] = INEXACT
                file.write(bfloat16(values).data)
                left -= count


def bfloat16(values: np.ndarray) -> np.ndarray:
    """float32 rounded to the nearest bfloat16, ties to even, as uint16. No NaN."""
    bits = values.view(np.uint32)
    return ((bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)).astype(np.uint16)


def config_of(size: Size) -> dict[str, Any]:
    heads = max(1, size.width // 128)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": size.width,
        "intermediate_size": size.inner,
        "num_hidden_layers": size.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "vocab_size": size.vocabulary,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }


def write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def stored_bytes(folder: Path) -> int:
    """Of all weight files."""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def stored_bf16(folder: Path) -> dict[str, np.ndarray]:
    """Every bfloat16 tensor of a folder by name, as flat uint16 mapped into memory."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
        raw = np.memmap(path, np.uint8, "r", offset=8 + length)
        for name, entry in header.items():
            if entry.get("dtype") == "BF16":
                begin, end = entry["data_offsets"]
                found[name] = raw[begin:end].view("<u2")
    return found


# ---------------------------------------------------------------------------------------------------------- contestants

HOLDFAST = (sys.executable, "-m", "holdfast")
MERGEKIT = (sys.executable, "-m", "mergekit.scripts.run_yaml")
"""What the command `mergekit-yaml` runs."""
NO_SYNC = ", no sync"
"""Ends the names of ours that do not wait for the disk."""


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """One command."""

    name: str
    family: str
    """"cp", "ours" or "mergekit"."""
    words: tuple[str, ...]
    """The command. `{base}`, `{a}`, `{b}` and `{residual}` stand for the inputs, `{out}` for what it writes."""
    copy: str | None = None
    """The contestant that copies what this one writes."""
    peers: tuple[str, ...] = ()
    """Contestants that compute the same."""
    compared: str | None = None
    """The contestant with whose output this one's is compared."""
    recipe: dict[str, Any] = field(default_factory=dict)
    """What goes into mergekit's YAML file, `{recipe}`."""
    environment: dict[str, str] = field(default_factory=dict)
    rounds: int | None = None
    """In how many rounds it takes part, the uncounted one not among them; None: in all. For those that take minutes."""
    quick: bool = True
    """Whether --quick has it."""


def contestants(size: Size) -> list[Contestant]:
    """All of them, in the order of the table."""
    two = ("{a}", "{b}", "--base", "{base}")
    halves = ("--weights", "0.5", "0.5")
    moved = ("--instruct", "{a}", "--old_base", "{base}", "--base", "{b}")
    return [
        *copies("cp", "{base}"),
        *copies("cp, float32", "{residual}"),
        *ours("task_arithmetic", ("merge", *two, "--method", "task_arithmetic", *halves), peers=TASK_ARITHMETIC),
        *ours("residual extract", ("residual", "extract", "--instruct", "{a}", "--base", "{base}"), copy="cp, float32"),
        *ours("residual apply", ("residual", "apply", "--residual", "{residual}", "--base", "{b}")),
        *ours("residual in one pass", ("residual", "apply", *moved), peers=RESIDUAL),
        *ours("linear", ("merge", "{a}", "{b}", "--method", "linear"), peers=LINEAR),
        *ours("slerp", ("merge", "{a}", "{b}", "--method", "slerp")),
        *ours("model_stock", ("merge", *two, "--method", "model_stock"), peers=STOCK),
        *ours("ties (original)", ("merge", *two, "--method", "ties", "--density", "0.5"), peers=TIES),
        *ours(
            "ties (mergekit)",
            ("merge", *two, "--method", "ties", "--density", "0.5", "--semantics", "mergekit"),
            peers=TIES,
        ),
        *ours("dare_ties", ("merge", *two, "--method", "dare_ties", "--density", "0.5")),
        Contestant(name="distance", family="ours", words=(*HOLDFAST, "inspect", "{base}", "{a}", "--json")),
        *without_compiler(ours("task_arithmetic", ("merge", *two, "--method", "task_arithmetic", *halves))),
        *mergekits(size),
    ]


def copies(name: str, source: str) -> Iterator[Contestant]:
    """`cp -r`, and the same with everything on the disk when it ends."""
    yield Contestant(name=name, family="cp", words=("cp", "-r", source, "{out}"), copy=name)
    script = 'cp -r "$1" "$2" && sync "$2" "$2"/*'
    yield Contestant(
        name=f"{name}, synced", family="cp", words=("sh", "-c", script, "sh", source, "{out}"), copy=name, quick=False
    )


def ours(name: str, words: Sequence[str], *, copy: str = "cp", peers: tuple[str, ...] = ()) -> Iterator[Contestant]:
    """An operation as it is by default, and without waiting for the disk."""
    whole = (*HOLDFAST, *words, "--output_dir", "{out}", "--json")
    yield Contestant(name=name, family="ours", words=whole, copy=f"{copy}, synced", peers=peers, quick=False)
    yield Contestant(name=name + NO_SYNC, family="ours", words=(*whole, "--no_sync"), copy=copy, peers=peers)


def without_compiler(pair: Iterator[Contestant]) -> Iterator[Contestant]:
    """The second of a pair, without a wait for the disk, as it runs on a machine that has no C compiler."""
    first, unsynced = pair
    yield replace(unsynced, name=f"{first.name}, PyTorch", environment={"HOLDFAST_NATIVE": "0"}, rounds=2)


LINEAR, RESIDUAL = ("mergekit linear",), ("mergekit residual",)
STOCK = ("mergekit model_stock",)
TASK_ARITHMETIC = ("mergekit task_arithmetic", "mergekit task_arithmetic, float32")
TIES = ("mergekit ties", "mergekit ties, float32")


def mergekits(size: Size) -> Iterator[Contestant]:
    """mergekit's. It has no residual; three models with weights 1, 1 and -1 are the same."""

    def recipe(method: str, models: Mapping[str, Mapping[str, float]], **more: Any) -> dict[str, Any]:
        return {
            "merge_method": method,
            "models": [{"model": m, "parameters": dict(p)} for m, p in models.items()],
            "dtype": "bfloat16",
            **more,
        }

    def add(name: str, compared: str, recipe: dict[str, Any], **more: Any) -> Contestant:
        options = (
            "--quiet",
            "--no-copy-tokenizer",
            "--no-write-model-card",
            "--async-write",
            "--out-shard-size",
            str(size.bytes // size.shards),
        )
        return Contestant(
            name=name,
            family="mergekit",
            words=(*MERGEKIT, "{recipe}", "{out}", *options),
            compared=compared,
            recipe=recipe,
            **more,
        )

    halves = {"{a}": {"weight": 0.5}, "{b}": {"weight": 0.5}}
    moved = {"{b}": {"weight": 1.0}, "{a}": {"weight": 1.0}, "{base}": {"weight": -1.0}}
    arithmetic = recipe("task_arithmetic", halves, base_model="{base}")
    ties = recipe("ties", {model: {"weight": 1.0, "density": 0.5} for model in halves}, base_model="{base}")
    inside = {"dtype": "float32", "out_dtype": "bfloat16"}
    yield add(LINEAR[0], "linear", recipe("linear", halves))
    yield add(
        RESIDUAL[0], "residual in one pass", recipe("linear", moved, parameters={"normalize": False}), quick=False
    )
    yield add(TASK_ARITHMETIC[0], "task_arithmetic", arithmetic, quick=False)
    yield add(TASK_ARITHMETIC[1], "task_arithmetic", arithmetic | inside)
    stock = recipe("model_stock", {model: {} for model in halves}, base_model="{base}")
    yield add(STOCK[0], "model_stock", stock, rounds=3, quick=False)
    yield add(TIES[0], "ties (mergekit)", ties, rounds=3, quick=False)
    yield add(TIES[1], "ties (mergekit)", ties | inside, rounds=1, quick=False)


def missing(contestant: Contestant) -> str | None:
    """Why a contestant cannot take part."""
    if contestant.family == "mergekit" and importlib.util.find_spec("mergekit") is None:
        return "mergekit is not installed (pip install 'holdfast[bench]')"
    return None


# ------------------------------------------------------------------------------------------------------------ comparing


def compare(ours: Path, theirs: Path, piece: int = 1 << 24) -> dict[str, Any]:
    """How two folders of bfloat16 tensors differ: shares of elements, distances in units of the last place (zeros are
    one place, no sign)."""
    mine, other = stored_bf16(ours), stored_bf16(theirs)
    elements = equal = near = largest = 0
    difference = 0.0
    for name in sorted(mine.keys() & other.keys()):
        a, b = mine[name], other[name]
        if a.size != b.size:
            raise ValueError(f"{name} has {b.size} elements, ours {a.size}")
        for start in range(0, a.size, piece):
            x, y = a[start : start + piece], b[start : start + piece]
            apart = np.abs(places(x) - places(y))
            elements, equal, near = elements + x.size, equal + int((apart == 0).sum()), near + int((apart <= 1).sum())
            largest = max(largest, int(apart.max(initial=0)))
            difference = max(difference, float(np.abs(widened(x) - widened(y)).max(initial=0)))
    return {
        "elements": elements,
        "only_in_one": sorted(mine.keys() ^ other.keys()),
        "equal": equal / max(1, elements),
        "within_one": near / max(1, elements),
        "largest_ulps": largest,
        "largest_difference": difference,
    }


def places(raw: np.ndarray) -> np.ndarray:
    """bfloat16 bits as whole numbers in the order of the values, neighbours one apart."""
    bits = raw.astype(np.int32)
    return np.where(bits & 0x8000, -(bits & 0x7FFF), bits)


def widened(raw: np.ndarray) -> np.ndarray:
    """bfloat16 bits as float32."""
    return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
