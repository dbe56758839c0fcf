"""Checkpoint folders for tests, written and read without any code of the engine: random tensors of every dtype, one
file or shards, a tokenizer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import deserialize

TORCH = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
FRACTION = {"F64": 52, "F32": 23, "F16": 10, "BF16": 7, "F8_E4M3": 3, "F8_E5M2": 2}
"""Bits of the fraction."""
SMALLEST = {"F64": -1074, "F32": -149, "F16": -24, "BF16": -133, "F8_E4M3": -9, "F8_E5M2": -16}
"""Exponent of the smallest subnormal number."""

Model = dict[str, "Stored"]


class Stored(NamedTuple):
    """A tensor as it lies in a file."""

    dtype: str
    shape: tuple[int, ...]
    content: bytes

    @property
    def values(self) -> np.ndarray:
        """What it means, float64 (integers as they are), in its shape; converted by PyTorch."""
        if not self.content:
            return np.zeros(self.shape)
        found = torch.frombuffer(bytearray(self.content), dtype=TORCH[self.dtype]).reshape(self.shape)
        return found.double().numpy() if self.dtype in FRACTION else found.numpy()


def stored(values: np.ndarray, dtype: str) -> Stored:
    """Numbers rounded to a dtype by PyTorch, which rounds float64 to narrow types by way of float32."""
    tensor = torch.from_numpy(np.ascontiguousarray(values)).to(TORCH[dtype])
    content = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if values.size else b""
    return Stored(dtype, tuple(values.shape), content)


def llama_shapes(
    vocabulary: int = 40, width: int = 12, layers: int = 2, *, head: bool = False
) -> dict[str, tuple[int, ...]]:
    """Names and shapes as of a small Llama, widths that no block size divides."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, width)}
    for i in range(layers):
        shapes[f"model.layers.{i}.self_attn.q_proj.weight"] = (width, width)
        shapes[f"model.layers.{i}.mlp.up_proj.weight"] = (2 * width + 1, width)
        shapes[f"model.layers.{i}.input_layernorm.weight"] = (width,)
    shapes["model.norm.weight"] = (width,)
    return shapes | ({"lm_head.weight": (vocabulary, width)} if head else {})


def random_model(
    seed: int,
    dtype: str | Mapping[str, str] = "BF16",
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    *,
    near: Model | None = None,
    spread: float = 1.0,
) -> Model:
    """Normal numbers, around 0 or around another model's values; `dtype` of all, or by name."""
    shapes = llama_shapes() if shapes is None else shapes
    draw = np.random.default_rng(seed)
    found = {}
    for name, shape in shapes.items():
        centre = near[name].values if near is not None else 0.0
        found[name] = stored(
            np.asarray(centre + spread * draw.normal(size=shape)), dtype if isinstance(dtype, str) else dtype[name]
        )
    return found


def fisher_diagonal(seed: int, shapes: Mapping[str, tuple[int, ...]] | None = None, *, floor: float = 0.0) -> Model:
    """Numbers of 0 or more; those below `floor` are 0."""
    model = random_model(seed, "F32", shapes)
    return {name: stored(np.maximum(np.abs(t.values) - floor, 0), "F32") for name, t in model.items()}


def merge_inputs(
    method: str, count: int, folders: Sequence[Path], fisher: Sequence[Path] = ()
) -> tuple[list[Path], dict[str, Any]]:
    """The models and the request of a merge of the first `count` folders after the base, which is the first."""
    from holdfast.checkpoints.methods.registry import find_method

    cls = find_method(method)
    request: dict[str, Any] = {"base": folders[0]} if cls.needs_base else {}
    return list(folders[1 : 1 + count]), request | ({"fisher": list(fisher)} if cls.extras else {})


def write_file(path: Path, tensors: Mapping[str, Stored], metadata: Mapping[str, str] | None = None) -> None:
    """One safetensors file."""
    header: dict[str, Any] = {"__metadata__": dict(metadata or {"format": "pt"})}
    position = 0
    for name, tensor in tensors.items():
        header[name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [position, position + len(tensor.content)],
        }
        position += len(tensor.content)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(t.content for t in tensors.values()))


def write_folder(
    folder: Path,
    tensors: Mapping[str, Stored],
    *,
    shards: int = 1,
    stem: str = "model",
    config: Mapping[str, Any] | None = None,
    tokens: Sequence[str] | None = None,
    files: Mapping[str, str] | None = None,
) -> Path:
    """A checkpoint folder: weights in so many files, config.json (without the model_type by which transformers would
    know which tensors belong to it), and a tokenizer.json where tokens are given (token i has row i)."""
    folder.mkdir(parents=True)
    if shards == 1:
        write_file(folder / f"{stem}.safetensors", tensors)
    else:
        order, weight_map = list(tensors), {}
        for number in range(shards):
            names = order[number * len(order) // shards : (number + 1) * len(order) // shards]
            file = f"{stem}-{number + 1:05}-of-{shards:05}.safetensors"
            write_file(folder / file, {n: tensors[n] for n in names})
            weight_map |= dict.fromkeys(names, file)
        (folder / f"{stem}.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    rows = next((t.shape[0] for n, t in tensors.items() if n.endswith("embed_tokens.weight")), 0)
    found = {
        "architectures": ["LlamaForCausalLM"],
        **({"vocab_size": rows} if rows else {}),
        "tie_word_embeddings": "lm_head.weight" not in tensors,
    }
    (folder / "config.json").write_text(json.dumps(found | dict(config or {})))
    if tokens is not None:
        write_tokenizer(folder, tokens)
    for name, text in (files or {}).items():
        (folder / name).write_text(text)
    return folder


def write_tokenizer(folder: Path, tokens: Sequence[str]) -> None:
    """tokenizer.json with tokens 0, 1, ..."""
    vocabulary = {token: i for i, token in enumerate(tokens)}
    model = {"type": "BPE", "vocab": vocabulary, "merges": []}
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))


def read_folder(folder: Path) -> Model:
    """All tensors of a folder, by the safetensors library; without a residual's remainders."""
    found = {}
    for file in sorted(f for f in folder.glob("*.safetensors") if not f.name.endswith(".remainder.safetensors")):
        for name, stated in deserialize(file.read_bytes()):
            assert name not in found
            found[name] = Stored(stated["dtype"], tuple(stated["shape"]), bytes(stated["data"]))
    return found


def contents(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder."""
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


def weights(folder: Path) -> dict[str, str]:
    """SHA-256 of every weight file of a folder."""
    return {name: digest for name, digest in contents(folder).items() if name.endswith(".safetensors")}


def half_unit(values: np.ndarray, dtype: str) -> np.ndarray:
    """Half a unit in the last place of numbers in a dtype: what one rounding may change."""
    exponent = np.frexp(np.maximum(np.abs(values), 1e-300))[1] - 1.0
    return np.exp2(np.maximum(exponent - FRACTION[dtype], SMALLEST[dtype])) / 2


def assert_rounded(found: Stored, wanted: np.ndarray, *, terms: np.ndarray | float, steps: int = 8) -> None:
    """`found` is `wanted` (float64) but for `steps` float32 roundings of numbers of the size of `terms` and one
    rounding into its dtype."""
    values = found.values
    assert values.shape == wanted.shape
    compute = 52 if found.dtype == "F64" else 23
    allowed = half_unit(
        np.maximum(np.abs(values), np.abs(wanted)), found.dtype
    ) * 1.0001 + steps * 2.0**-compute * np.asarray(terms)
    worst = np.abs(values - wanted) - allowed
    assert (worst <= 0).all(), (
        f"{found.dtype}: off by {np.abs(values - wanted).max()} at {np.unravel_index(worst.argmax(), worst.shape)}"
    )
