"""Whether the weights of a folder are those of its config.json.

transformers fills what a checkpoint lacks with random numbers and passes over what its model has no
place for. Here both are found, in two depths:

- `looks_whole` compares names and shapes with config.json, and the layers with each other:
  milliseconds, no torch.
- `fit_of` builds the model on torch's meta device and lets transformers match names and shapes as
  it does when it loads
  them: tied heads, keys that were renamed or that it ignores, experts that it stacks are what they
      will be. No weight
  is read; a second or two for any size, once torch and transformers are there.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.checkpoints.companions import config_value
from holdfast.checkpoints.layers import WRAPPERS, layer_of
from holdfast.checkpoints.reader import CheckpointReader, weight_files
from holdfast.checkpoints.sources import listing, read_config, tied_head
from holdfast.errors import ModelError
from holdfast.support.environment import quiet_transformers
from holdfast.support.resources import is_out_of_memory

if TYPE_CHECKING:
    from holdfast.checkpoints.sources import Entry

_NAMED = 6
"""Names that a sentence lists at most."""
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_WIDTHS = ("hidden_size", "n_embd", "d_model")
_COUNT = re.compile(r"(?:num|n)_(?:\w*_)?(?:layers?|heads?|experts)")
"""Keys of config.json by which a model gets that many modules."""
_MOST = 10_000
"""Layers, heads or experts beyond which a configuration is damaged; building such a model would
take all memory."""
_EMBEDDINGS = ("embed_tokens", "wte", "word_embeddings", "embed_in")
_HEADS = ("lm_head", "embed_out")
_NORMS = ("norm", "ln_f", "final_layernorm", "final_layer_norm", "norm_f")
_OUTSIDE = (*_EMBEDDINGS, *_HEADS, *_NORMS, "wpe", "embed_positions", "rotary_emb")
"""Modules outside the layers that common architectures have; others are looked at closely."""
_COMPUTED = re.compile(r"\.(?:masked_bias|inv_freq|position_ids|causal_mask|attn\.bias)$")
"""What models computed themselves and stored nevertheless, in older versions of transformers."""
_PLAIN_ERRORS = (OSError, ValueError)


VISION = (
    "idefics3",
    "llava",
    "llava_next",
    "llava_onevision",
    "qwen2_5_vl",
    "qwen2_vl",
    "qwen3_vl",
    "smolvlm",
)
"""Types of vision-language model that are trained with images: a tower, and a decoder that reads
the images' states among those of the tokens, behind one backbone and one head."""


def auto_class(model_type: Any) -> Any:
    """The class of transformers that loads a model of this type: a causal LM's, or a
    vision-language model's."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    return AutoModelForImageTextToText if model_type in VISION else AutoModelForCausalLM


_PLAIN = {"qwen2_vl_text": "qwen2", "qwen2_5_vl_text": "qwen2", "qwen3_vl_text": "qwen3"}
"""Language models that have positions in three dimensions for images. On text all three are alike,
and they are these models."""
_IN_THREE = ("mrope_section", "mrope_interleaved", "type")


def language_config(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """config.json of the language model inside a vision-language model.

    Args:
        folder: of the whole, with its config.json; of older ones, which state what differs from the
            defaults.

    Raises:
        ModelError: it cannot be read, or the language model is of a type that no class for text
            alone has.
    """
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    try:
        with quiet_transformers():
            config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except _PLAIN_ERRORS as error:
        raise ModelError(
            f"Expected a model in {folder}, but its config is invalid: {unbuildable(error)}"
        ) from error
    text = config.get_text_config()
    kind = _PLAIN.get(text.model_type, text.model_type)
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise ModelError(
            f"Expected a language model inside {folder} that transformers can load as a causal "
            f"language model, got {kind!r}. Use the whole model instead."
        )
    known = AutoConfig.for_model(kind).to_dict()
    settings = {
        name: value
        for name, value in text.to_dict().items()
        if name in known and name != "model_type"
    }
    if kind != text.model_type:
        settings["rope_parameters"] = {
            k: v for k, v in settings["rope_parameters"].items() if k not in _IN_THREE
        }
    stored = read_config(folder)
    dtype = config_value(stored, "dtype") or config_value(stored, "torch_dtype")
    return {
        **json.loads(AutoConfig.for_model(kind, **settings).to_json_string()),
        "architectures": [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]],
        "tie_word_embeddings": bool(config.tie_word_embeddings),
        **({"dtype": dtype} if dtype else {}),
    }


class Fit(NamedTuple):
    """What came of the comparison; nothing in both: every tensor has its place, and every place its
    tensor."""

    problem: str = ""
    """What does not fit, with names."""
    unknown: str = ""
    """Why it cannot be told."""


def refuse_misfit(folder: str | os.PathLike[str], *, trust_remote_code: bool = False) -> None:
    """Stops where the weights are not those of the configuration, see `fit_of`.

    Raises:
        ModelError: they are not; the tensors are named.
    """
    fit = fit_of(folder, trust_remote_code=trust_remote_code)
    if fit.problem:
        raise misfit_error(folder, fit.problem)


def misfit_error(
    folder: str | os.PathLike[str], problem: str, *, config: str = "config.json"
) -> ModelError:
    """The refusal of a model, or an adapter, that is not whole."""
    return ModelError(
        f"The weights in {folder} do not match its {config}: {problem}. Copy or download the "
        f"folder again. If {config} was edited, restore it."
    )


def refuse_suspicious(reader: CheckpointReader) -> None:
    """Stops where names and shapes are suspicious and transformers confirms that the weights are
    not those of the configuration. Folders without one, adapters and residuals pass.

    Raises:
        ModelError: they are not; the tensors are named.
    """
    is_model = all(file.name.startswith("model") for file in reader.files)
    if is_model and not looks_whole(read_config(reader.folder), reader.entries):
        refuse_misfit(reader.folder)


def fit_of(folder: str | os.PathLike[str], *, trust_remote_code: bool = False) -> Fit:
    """Whether the tensors of a model's folder, by name and shape, are those that transformers
    expects.

    Args:
        folder: with config.json and safetensors files; of these, headers are read.
        trust_remote_code: runs Python code that comes with the model.

    Raises:
        ModelError: a file is missing or damaged.
    """
    path = Path(folder)
    files = [*weight_files(path), path / "config.json"]
    stats = tuple(
        (file.name, file.stat().st_size, file.stat().st_mtime_ns)
        for file in files
        if file.is_file()
    )
    return _fit_of(os.fspath(path), stats, trust_remote_code)


@functools.lru_cache(maxsize=64)
def _fit_of(folder: str, files: tuple[tuple[str, int, int], ...], trust_remote_code: bool) -> Fit:
    config = read_config(folder)
    if not config:
        return Fit(unknown="there is no config.json")
    if config.get("quantization_config"):
        return Fit(unknown="the weights are quantised. Load the model to check them")
    if damage := absurd(config):
        return Fit(problem=damage)
    if "model_type" not in config:
        return Fit(unknown="config.json has no model_type")
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    known = config.get("model_type") in (*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *VISION)
    if not known and not (trust_remote_code and config.get("auto_map")):
        return Fit(
            unknown=f"transformers knows no causal language model of type {config.get('model_type')!r}"
        )
    with CheckpointReader(folder) as reader:
        entries = dict(reader.entries)
    try:
        return _matched(folder, entries, trust_remote_code)
    except Exception as error:  # what an absurd value makes of a model's code has no common base
        if isinstance(error, ImportError) or is_out_of_memory(
            error
        ):  # this machine's fault, not the model's
            return Fit(unknown=f"the model cannot be built here ({unbuildable(error)})")
        return Fit(problem=f"no model can be built from them ({unbuildable(error)})")


def _matched(folder: str, entries: Mapping[str, Entry], trust_remote_code: bool) -> Fit:
    import torch
    from transformers import AutoConfig

    with quiet_transformers():
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
        with torch.device("meta"):
            model: Any = auto_class(config.model_type).from_config(
                config, trust_remote_code=trust_remote_code, attn_implementation="eager"
            )
        _, info = type(model).from_pretrained(
            None,
            config=config,
            state_dict={
                name: torch.empty(entry.shape, device="meta") for name, entry in entries.items()
            },
            device_map={"": "meta"},
            dtype=torch.float32,
            attn_implementation="eager",
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    return Fit(problem=loading_problem(info, model))


def loading_problem(info: Mapping[str, Any], model: Any = None) -> str:
    """What transformers' `output_loading_info` says against a model: "" where every tensor has its
    place and shape.

    Args:
        info: "missing_keys", "unexpected_keys" (names) and "mismatched_keys" ((name, stored,
            expected shape)).
        model: the torch module; what it computes itself (masks, positions, frequencies: its
            buffers) may be left over in files of older versions.
    """
    buffers = [f".{name}" for name, _ in model.named_buffers()] if model is not None else []
    unexpected = []
    for name in sorted(info.get("unexpected_keys") or ()):
        is_computed = _COMPUTED.search(name) or any(
            buffer.endswith(f".{name}") for buffer in buffers
        )
        if not is_computed:
            unexpected.append(name)
    wrapped = list(filter(WRAPPERS.search, unexpected))
    if wrapped:
        return (
            f"{len(wrapped)} tensors have names that a wrapper changed (DistributedDataParallel, "
            f"torch.compile or FSDP), such as {wrapped[0]}. Save the wrapped model itself"
        )
    shapes = []
    for name, stored, expected in sorted(info.get("mismatched_keys") or ()):
        shapes.append(f"{name} is {list(stored)} and should be {list(expected)}")
    kinds = {
        "missing": sorted(info.get("missing_keys") or ()),
        "not part of the model": unexpected,
        "of another shape": shapes,
        "impossible to load": sorted(info.get("error_msgs") or ()),
    }
    misfits = []
    for kind, names in kinds.items():
        if names:
            verb = "tensor is" if len(names) == 1 else "tensors are"
            misfits.append(f"{len(names)} {verb} {kind}: {listing(names, _NAMED)}")
    return "; ".join(misfits)


def unbuildable(error: BaseException) -> str:
    """Why a configuration makes no model, in one line: validators put the reason below their own
    name."""
    text = str(error.__cause__ or error)
    lines = [line.strip() for line in text.strip().split("\n") if line.strip()]
    line = (lines[-1] if lines and lines[0].endswith(":") else lines[0]) if lines else ""
    known = isinstance(error, (*_PLAIN_ERRORS, ImportError)) or line.partition(":")[0].endswith(
        "Error"
    )
    return line if known and line else f"{type(error).__name__}: {line}".removesuffix(": ")


def looks_whole(config: Mapping[str, Any], entries: Mapping[str, Entry]) -> bool:
    """Whether nothing in names and shapes speaks against a model's being whole. Some architectures
    look otherwise on purpose (layers beyond the stated ones, layers that share weights): `fit_of`
    decides.

    Args:
        config: config.json; empty: there is nothing to compare with.
        entries: the tensors.
    """
    if not config:
        return True
    if not entries or absurd(config) or any(map(WRAPPERS.search, entries)):
        return False
    layers = {layer_of(name) for name in entries}
    numbers = sorted(int(layer) for layer in layers if layer.isdigit())
    count = _stated(config, _LAYERS)
    if count is not None and numbers != list(range(count)):
        return False
    outside = {["", *name.split(".")][-2] for name in entries if not layer_of(name).isdigit()}
    if not outside <= {*_OUTSIDE}:
        return False
    if outside.isdisjoint(_EMBEDDINGS) or outside.isdisjoint(_NORMS):
        return False
    if outside.isdisjoint(_HEADS) and tied_head(config) is False:
        return False
    width, rows = _stated(config, _WIDTHS), config_value(config, "vocab_size")
    for name, entry in entries.items():
        if layer_of(name) == "embed" and name.endswith(("embed_tokens.weight", "wte.weight")):
            if width is not None and entry.shape[1:] != (width,):
                return False
            if isinstance(rows, int) and entry.shape[:1] != (rows,):
                return False
    return _even(entries)


def _even(entries: Mapping[str, Entry]) -> bool:
    """Whether no module lacks in a layer what the same module has in another, and no tensor has
    another shape there."""
    modules: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    shapes: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for name, entry in entries.items():
        layer = layer_of(name)
        if layer.isdigit():
            before, _, after = name.partition(f".{layer}.")
            module, _, rest = after.partition(".")
            modules[f"{before}.N.{module}"][layer].add(rest)
            shapes[f"{before}.N.{after}"].add(entry.shape)
    if any(len(different) > 1 for different in shapes.values()):
        return False
    for layers in modules.values():
        variants = {frozenset(names) for names in layers.values()}
        for names in variants:
            if any(names < fuller for fuller in variants):
                return False
    return True


def absurd(config: Mapping[str, Any]) -> str:
    """A number in config.json with which no model can be built; "" where there is none."""
    for holder in (config, *(value for value in config.values() if isinstance(value, dict))):
        for key, value in holder.items():
            count = isinstance(value, int) and 0 <= value <= _MOST
            if (
                _COUNT.fullmatch(key)
                and not count
                and value is not None
                and not isinstance(value, list)
            ):
                return f"config.json says {key}: {value!r}, expected 0 to {_MOST:,}"
    for key in (*_WIDTHS, "vocab_size"):
        value = config_value(config, key)
        if value is not None and (type(value) is not int or value < 1):
            return f"config.json says {key}: {value!r}, expected a number of at least 1"
    return ""


def _stated(config: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    """The first of several names of one number that config.json has."""
    return next(
        (value for key in keys if isinstance(value := config_value(config, key), int)), None
    )


def completed_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The content of a config.json with defaults filled in, and without keys that the model's class
    does not know; as it is where transformers does not know the model or cannot read it."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    try:
        with quiet_transformers():
            kind = CONFIG_MAPPING[config["model_type"]]
            known = kind().to_dict()
            settings = kind.from_dict(dict(config)).to_dict()
    except Exception:  # code of many classes, each with checks of its own
        return config
    return {key: value for key, value in settings.items() if key in known}
