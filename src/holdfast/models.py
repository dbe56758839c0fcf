"""Models and tokenizers by name, for whoever only reads them: a local folder, an adapter's folder,
a model that `holdfast models` made (see `checkpoints.named`), or a hub id.

Safetensors only, no remote code unless asked, no download unless a hub id is named. What is wrong
with a folder is said before the loader is asked, in words a user can act on.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.checkpoints.adapter_settings import (
    adapter_config,
    base_of,
    lacking,
    trained_otherwise,
)
from holdfast.checkpoints.chat_template import template_of
from holdfast.checkpoints.fit import (
    VISION,
    absurd,
    auto_class,
    loading_problem,
    misfit_error,
    refuse_misfit,
    unbuildable,
)
from holdfast.checkpoints.named import PACKAGED, at_revision, located, origin
from holdfast.checkpoints.reader import CheckpointReader, checkpoint_hash
from holdfast.checkpoints.sources import listing, read_config
from holdfast.errors import ConfigError, ModelError, did_you_mean, first_line
from holdfast.support.environment import shown_name
from holdfast.support.files import fingerprint
from holdfast.support.inputs import configuration_hash, file_hash
from holdfast.support.resources import is_out_of_memory

DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A model with its tokenizer, identity and processor."""

    model: Any
    """The model in evaluation mode, on its device."""
    tokenizer: Any
    identity: dict[str, Any]
    """`{"name", "hash", "configuration", "architecture", "parameters", "dtype"}`, and "origin" if
    readers should know where the weights come from (see `origin_of`). The hash changes whenever the
    weights or their dtype in use change."""
    processor: Callable[[], Any] | None = None
    """Loads the processor of a vision-language model, see `processor_of`; None: the model takes
    text only."""


def load(
    name: str,
    *,
    dtype: str = "auto",
    device: str | None = None,
    device_map: str | dict[str, Any] | None = None,
    revision: str = "main",
    trust_remote_code: bool = False,
    attn_implementation: str | None = None,
) -> Loaded:
    """Loads a causal language model or a vision-language model to be measured; its processor only
    once it is asked for.

    Args:
        name: a folder (of a model, or of a PEFT adapter, whose base is loaded as its configuration
            names it), a name that `holdfast models get` made, or a hub id, optionally with
            `@revision`.
        dtype: one of `DTYPES`; "auto" is what the checkpoint was saved in.
        device: for example "cuda:0"; None: the first accelerator, else the CPU.
        device_map: spreads the model over several devices in place of one, as transformers and
            accelerate take it: "auto", "balanced", "sequential", or a device for each module.
        revision: of a hub id whose name has none.
        trust_remote_code: runs Python code that comes with the model.
        attn_implementation: for transformers; None: its own choice.

    Raises:
        ModelError: no model, revision or tokenizer there, not a causal LM, weights that are not
            safetensors; devices that do not hold all of it.
        ConfigError: no such device, or one beside a device map.
    """
    from holdfast.ops.four_bits import keep_unpacked

    name = os.fspath(name)
    if device is not None and device_map is not None:
        raise ConfigError(
            f"device_map: cannot be combined with device, got device {device}. Leave one of them out."
        )
    target = usable_device(device)
    check_model(name, revision=revision, trust_remote_code=trust_remote_code)
    tokenizer = load_tokenizer(name, revision=revision, trust_remote_code=trust_remote_code)
    kwargs: dict[str, Any] = {
        "revision": revision,
        "trust_remote_code": trust_remote_code,
        "dtype": dtype,
        "use_safetensors": True,
    }
    if attn_implementation is not None:
        kwargs["attn_implementation"] = attn_implementation
    if device_map is not None:
        kwargs["device_map"] = device_map
    model = from_pretrained(name, **kwargs)
    if device_map is not None:
        _refuse_offloaded(model, name)
    elif str(next(model.parameters()).device) != str(
        target
    ):  # quantised weights may refuse even to stay
        model = model.to(target)
    model.eval()
    keep_unpacked(model)
    identity = {
        "name": shown_name(name),
        "hash": weights_hash(name, revision=revision, dtype=dtype),
        "configuration": configuration_of(name, revision=revision),
        "architecture": type(model).__name__,
        "parameters": sum(p.numel() for p in model.parameters()),
        "dtype": str(
            next(p.dtype for p in model.parameters() if p.is_floating_point())
        ).removeprefix("torch."),
        **({"origin": note} if (note := origin_of(name, revision)) else {}),
    }
    processor = processor_of(name, revision=revision, trust_remote_code=trust_remote_code)
    return Loaded(model=model, tokenizer=tokenizer, identity=identity, processor=processor)


def _refuse_offloaded(model: Any, name: str) -> None:
    """Stops where weights of a spread model lie in memory or on disk, to be fetched at every pass:
    what reads a weight itself, as the head is read here, would find none."""
    left = [n for n, p in model.named_parameters() if p.device.type == "meta"]
    if left:
        raise ModelError(
            f"Expected devices with room for all of {name}, but {len(left)} of its tensors do not "
            f"fit ({left[0]}, ...). Use more devices, a narrower dtype (--dtype bfloat16), or a "
            "checkpoint in 4 or 8 bits."
        )


def from_pretrained(name: str, **kwargs: Any) -> Any:
    """`from_pretrained` of the model's kind (see `auto_class`) with its failures in words. A model
    that is not whole is one: what transformers would fill with random numbers, or leave out, is
    named.

    Raises:
        ModelError: a package is missing, tensors are missing, unexpected or of another shape, or
            the model cannot be loaded.
    """
    from transformers import AutoConfig

    base = adapter_base(name)
    path, revision = at_revision(name, kwargs.pop("revision", None) or "main")
    # transformers would look for a base of `holdfast models` on the hub, and not for the revision
    # of any base
    apart = base is not None and base != adapter_config(path)["base_model_name_or_path"]
    start, revision = at_revision(base) if base is not None and apart else (path, revision)
    try:
        where, version = (start, revision) if base is None else at_revision(base)
        trusted = bool(kwargs.get("trust_remote_code"))
        # which has the configuration, too
        file = {"gguf_file": kwargs["gguf_file"]} if "gguf_file" in kwargs else {}
        kind = AutoConfig.from_pretrained(
            where, revision=version, trust_remote_code=trusted, **file
        ).model_type
        model, info = auto_class(kind).from_pretrained(
            start,
            revision=revision,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **kwargs,
        )
        if apart:
            info = model.load_adapter(path).to_dict()
    except ImportError as error:
        raise ModelError(
            f"Loading {name} needs a package that is not installed: {error}"
        ) from error
    except Exception as error:  # what absurd values make of a model's code has no common base
        if is_out_of_memory(error):
            raise
        raise ModelError(f"Could not load {name}: {unbuildable(error)}") from error
    if problem := loading_problem(info, model):
        raise misfit_error(
            name, problem, config="config.json" if base is None else "adapter_config.json"
        )
    folder = model_folder(base) if base is not None else None
    if folder is not None:
        refuse_misfit(folder, trust_remote_code=bool(kwargs.get("trust_remote_code")))
    return model


def best_device() -> Any:
    """The first accelerator that torch sees, else the CPU, as a `torch.device`."""
    import torch

    accelerator = (
        torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    )
    return torch.device("cpu") if accelerator is None else accelerator


def usable_device(device: str | None) -> Any:
    """`device` as a `torch.device`, the best one for None.

    Raises:
        ConfigError: torch does not know it, or cannot use it on this machine.
    """
    import torch

    if device is None:
        return best_device()
    try:
        usable = torch.device(device)
        torch.empty(0, device=usable)
    except (RuntimeError, AssertionError) as error:  # builds without an accelerator assert
        raise ConfigError(
            f"device: expected one that torch can use here, such as {best_device()}, got "
            f"'{device}': {first_line(error)}"
        ) from error
    return usable


def check_model(
    name: str, *, revision: str = "main", trust_remote_code: bool = False, fit: bool = True
) -> None:
    """Finds out from its files whether a model can be loaded to be measured; an adapter with its
    base. Weights are not read, those on the hub not looked at.

    Args:
        name, revision, trust_remote_code: as for `load`.
        fit: whether the weights are those of the configuration, too; see `check_fit`.

    Raises:
        ModelError: no such model, another kind of model, weights that are not safetensors or not
            whole, or that are not those of the configuration.
    """
    base = adapter_base(name)
    check_causal_lm(
        base or name, revision="main" if base else revision, trust_remote_code=trust_remote_code
    )
    name = located(name)
    for folder in (name, base):
        if folder is not None and os.path.isdir(folder):
            CheckpointReader(
                folder
            ).close()  # names a missing or damaged shard, where the loader speaks of headers
    if fit:
        check_fit(name, trust_remote_code=trust_remote_code)


def check_fit(name: str, *, trust_remote_code: bool = False) -> None:
    """Whether the weights are those of the configuration, an adapter's and its base's; see
    `checkpoints.fit`. Those on the hub are not looked at.

    Raises:
        ModelError: they are not; the tensors are named.
    """
    name, base = located(name), adapter_base(name)
    if os.path.isdir(base or name):
        refuse_misfit(base or name, trust_remote_code=trust_remote_code)
    if base is not None and os.path.isdir(base):
        with CheckpointReader(name) as adapter, CheckpointReader(base) as model:
            problems = lacking(adapter_config(name), adapter.names(), model.entries)
        if problems:
            raise misfit_error(name, listing(problems), config="adapter_config.json")


def load_tokenizer(name: str, *, revision: str = "main", trust_remote_code: bool = False) -> Any:
    """The tokenizer that lies beside a model; for an adapter without one, its base's.

    Raises:
        ModelError: there is none.
    """
    from transformers import AutoTokenizer

    from holdfast.support.rendering import guard_models, is_panic, problem_of_rules

    guard_models()
    base = adapter_base(name)
    name, revision = at_revision(name, revision)
    places = [(name, revision)] if base is None else [(name, revision), at_revision(base)]
    problems = []
    for path, version in places:
        if os.path.isdir(path) and not any(
            (Path(path) / file).exists() for file in _TOKENIZER_FILES
        ):
            problems.append(f"none of {', '.join(_TOKENIZER_FILES[:3])} exists")
            continue
        try:
            tokenizer = AutoTokenizer.from_pretrained(
                path, revision=version, trust_remote_code=trust_remote_code
            )
            hashes = _tokenizer_hashes(path)
            if (hashes, trust_remote_code) not in _with_usable_rules and (
                problem := problem_of_rules(tokenizer)
            ):
                raise ValueError(f"the rules of the tokenizer cannot be used ({problem})")
            if hashes:
                _with_usable_rules.add((hashes, trust_remote_code))
            if (
                tokenizer.chat_template is None
                and (folder := model_folder(path, version)) is not None
            ):
                # older processors have it in a file of their own
                tokenizer.chat_template = template_of(folder)
        except (ImportError, MemoryError):
            raise
        except BaseException as error:  # what absurd values in its files raise has no common base
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            kind = "" if isinstance(error, (OSError, ValueError)) else f"{type(error).__name__}: "
            problems.append(f"{kind}{first_line(error)}")
        else:
            return with_plain_messages(tokenizer)
    advice = "Copy the tokenizer files of the original model into the folder."
    if not os.path.isdir(name):
        advice = "Check the name and the network, or give a local folder."
    raise ModelError(
        f"Expected a tokenizer beside the model at {name}, but none can be loaded: "
        f"{problems[0].rstrip('.')}. {advice}"
    )


_with_usable_rules: set[tuple[tuple[str, ...], bool]] = set()
"""Tokenizers that passed `problem_of_rules` in this process, by their files and whether remote code
may run: each trial forks the process."""


def _tokenizer_hashes(folder: str) -> tuple[str, ...]:
    """SHA-256 of each tokenizer file of a local folder, "" where it has none; empty for a model of
    the hub."""
    files = [Path(folder) / name for name in _TOKENIZER_FILES]
    hashes = tuple(file_hash(file) if file.is_file() else "" for file in files)
    return hashes if any(hashes) else ()


def with_plain_messages(tokenizer: Any) -> Any:
    """The tokenizer, whose chat template takes messages whose content is a text. Those of
    vision-language models may read content in parts only, and write nothing of a text: texts become
    parts for them."""
    if not isinstance(getattr(tokenizer, "chat_template", None), str):
        return tokenizer
    probe = "holdfast"

    def writes(content: Any) -> bool:
        try:
            return probe in tokenizer.apply_chat_template(
                [{"role": "user", "content": content}], tokenize=False
            )
        except ModelError as error:  # whoever uses the template meets it, unless it takes all time
            if isinstance(error.__cause__, (TimeoutError, MemoryError)):
                raise
            return False

    if not writes(probe) and writes([{"type": "text", "text": probe}]):
        tokenizer.chat_template = _PLAIN_TO_PARTS + tokenizer.chat_template
    return tokenizer


_PLAIN_TO_PARTS = (
    "{%- set holdfast = namespace(messages=[]) -%}{%- for message in messages -%}{%- if "
    "message['content'] is string -%}{%- set holdfast.messages = holdfast.messages + "
    "[dict(message, content=[{'type': 'text', 'text': message['content']}])] -%}{%- else -%}{%- "
    "set holdfast.messages = holdfast.messages + [message] -%}{%- endif -%}{%- endfor -%}{%- set "
    "messages = holdfast.messages -%}"
)

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
)


def adapter_base(name: str) -> str | None:
    """The base model that a PEFT adapter's folder names, a folder where the name is one of
    `holdfast models`, with `@revision` where the adapter states one; None for any other folder or a
    hub id.

    Raises:
        ModelError: an adapter without the name of its base.
    """
    folder = Path(located(name))
    if not (folder / "adapter_config.json").is_file() or (folder / "config.json").is_file():
        return None
    return located(base_of(folder))


def saved_dtype(name: str) -> str | None:
    """The dtype that a model's configuration states (of an adapter its base's); None where it is
    not known here."""
    try:
        folder = model_folder(adapter_base(name) or name)
        stated = {} if folder is None else read_config(folder)
    except ModelError:  # whoever loads it says what is wrong
        return None
    dtype = stated.get("dtype") or stated.get("torch_dtype")
    return dtype if isinstance(dtype, str) else None


def weights_hash(name: str, *, revision: str = "main", dtype: str = "auto") -> str:
    """What identifies a model's figures: the hash of its weight files (with its base's for an
    adapter), and the dtype that they are used in.

    Raises:
        ModelError: the weights are nowhere on disk.
    """
    base = adapter_base(name)
    folder = model_folder(name, revision)
    if folder is None:
        raise ModelError(
            f"Expected the weights of {name} on disk (as a folder, or downloaded into the hub's "
            "cache), found none."
        )
    parts = (
        [_adapter_hash(folder), weights_hash(base)]
        if base is not None
        else [checkpoint_hash(folder)]
    )
    return parts[0] if dtype == "auto" and len(parts) == 1 else fingerprint([*parts, dtype])


def configuration_of(name: str, *, revision: str = "main") -> str:
    """What of a model beside weights and tokenizer decides its figures (see
    `inputs.configuration_hash`), of an adapter with its base.

    Raises:
        ModelError: the model is nowhere on disk.
    """
    folder, base = model_folder(name, revision), adapter_base(name)
    if folder is None:
        raise ModelError(
            f"Expected {name} on disk (as a folder, or downloaded into the hub's cache), found none."
        )
    fingerprint_of_model = configuration_hash(folder)
    return (
        fingerprint_of_model
        if base is None
        else fingerprint([fingerprint_of_model, configuration_of(base)])
    )


def _adapter_hash(folder: Path) -> str:
    import hashlib

    digest = hashlib.sha256()
    for file in sorted([*folder.glob("*.safetensors"), folder / "adapter_config.json"]):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def check_causal_lm(name: str, *, revision: str = "main", trust_remote_code: bool = False) -> Any:
    """The model's config, if it is one of a causal LM, or of a vision-language model that is
    trained here (`VISION`).

    Raises:
        ModelError: no such model, another kind of model, or one that brings code which was not
            asked for.
    """
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    )

    stated_name = name
    name, revision = at_revision(name, revision)
    local = os.path.isdir(name)
    if local and (damage := absurd(read_config(name))):
        raise ModelError(f"Expected a model at {name}, but {damage}. Copy its config.json again.")
    try:
        config = AutoConfig.from_pretrained(
            name, revision=revision, trust_remote_code=trust_remote_code
        )
    except Exception as error:  # what absurd values raise has no common base
        if is_out_of_memory(error):
            raise
        where = "this folder" if local else "a local folder or, with a network, the hub"
        at = name if revision == "main" or local else f"{name}@{revision}"
        raise ModelError(
            f"Expected a model at {at} ({where}), but its config cannot be read: "
            f"{unbuildable(error)}{_near_name(stated_name)}"
        ) from error
    if not trust_remote_code and (kernels := list(_hub_kernels(config))):
        raise ModelError(
            f"The config.json of {name} names a kernel of the hub, {kernels[0]}, which "
            "transformers would download and run. Remove attn_implementation there. If you trust "
            "the kernel, name it in the request (attn_implementation)."
        )
    architectures = getattr(config, "architectures", None) or []
    if not isinstance(architectures, list) or not all(isinstance(a, str) for a in architectures):
        raise ModelError(
            f"Expected `architectures` in the config.json of {name} to be a list of class names, "
            f"got {architectures!r}. Copy the file again."
        )
    causal = [
        a
        for a in architectures
        if a.endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration"))
    ]
    known = {*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *VISION}
    unknown = not trust_remote_code and config.model_type not in known
    # BERT and its kin load as "LMHeadModel" too, but look at the whole text unless they were made
    # decoders.
    encoder = (
        config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES
        and not getattr(config, "is_decoder", False)
        and not causal
    )
    if (
        getattr(config, "is_encoder_decoder", False)
        or (architectures and not causal)
        or unknown
        or encoder
    ):
        got = f"{', '.join(architectures) or config.model_type} at {name}"
        if config.model_type in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
            raise ModelError(
                "Expected a causal language model, or a vision-language model of a supported type "
                f"({', '.join(VISION)}), got {got}."
            )
        raise ModelError(
            "Expected a causal language model (such as LlamaForCausalLM or Qwen2ForCausalLM), got "
            f"{got}. Choose a decoder-only model."
        )
    return config


def takes_images(name: str, revision: str = "main", *, trust_remote_code: bool = False) -> bool:
    """Whether a model is one of those that are trained with images (`checkpoints.fit.VISION`), an
    adapter's base for an adapter.

    Raises:
        ModelError: see `check_causal_lm`.
    """
    base = adapter_base(name)
    if base is not None:
        name, revision = base, "main"
    return (
        check_causal_lm(name, revision=revision, trust_remote_code=trust_remote_code).model_type
        in VISION
    )


def load_processor(name: str, *, revision: str = "main", trust_remote_code: bool = False) -> Any:
    """The processor beside a vision-language model: its tokenizer, what makes pixels of images, the
    chat template. For an adapter without one, its base's.

    Raises:
        ModelError: there is none, or a package that it needs is missing.
    """
    from transformers import AutoProcessor, ProcessorMixin

    from holdfast.support.rendering import guard_models

    guard_models()
    base = adapter_base(name)
    name, revision = at_revision(name, revision)
    path, version = name, revision
    if base is not None and not any((Path(name) / file).exists() for file in _PROCESSOR_FILES):
        path, version = at_revision(base)
    lacks = os.path.isdir(path) and not any(
        (Path(path) / file).exists() for file in _PROCESSOR_FILES
    )
    problem = f"none of {', '.join(_PROCESSOR_FILES)} exists" if lacks else ""
    if not lacks:
        try:
            processor = AutoProcessor.from_pretrained(
                path, revision=version, trust_remote_code=trust_remote_code
            )
            if isinstance(processor, ProcessorMixin):
                return processor
            problem = (
                f"the only processor is a {type(processor).__name__}, which does not process images"
            )
        except ImportError as error:
            raise ModelError(
                f"The processor of {name} needs a package that is not installed "
                f"({first_line(error)}). Install 'holdfast[vision]'; torchvision has to match the "
                "build of torch."
            ) from error
        except Exception as error:  # what absurd values in its files raise has no common base
            if is_out_of_memory(error):
                raise
            problem = f"{type(error).__name__}: {first_line(error)}"
    raise ModelError(
        f"Expected a processor beside the vision-language model at {name}, but none can be loaded: "
        f"{problem.rstrip('.')}. Copy these files of the original model into the folder: "
        "processor_config.json, preprocessor_config.json and the tokenizer files."
    )


def processor_of(
    name: str, *, revision: str = "main", trust_remote_code: bool = False
) -> Callable[[], Any] | None:
    """What loads the processor of a vision-language model (see `load_processor`) the first time
    that it is called; None for a model that takes text only. A model without a processor can be
    measured on text.

    Raises:
        ModelError: see `check_causal_lm`.
    """
    if not takes_images(name, revision, trust_remote_code=trust_remote_code):
        return None
    return functools.cache(
        functools.partial(
            load_processor, name, revision=revision, trust_remote_code=trust_remote_code
        )
    )


_PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")


def _hub_kernels(config: Any) -> Iterator[str]:
    """The kernels of the hub (`owner/name`) that a config and those within it name."""
    kernel = getattr(config, "_attn_implementation", None)
    if isinstance(kernel, str) and "/" in kernel:
        yield kernel
    for name in getattr(config, "sub_configs", None) or {}:
        if (inner := getattr(config, name, None)) is not None:
            yield from _hub_kernels(inner)


def model_folder(name: str, revision: str = "main") -> Path | None:
    """The local folder of a model: itself, the one that `holdfast models` made, or its snapshot in
    the hub cache; None when it is nowhere on disk.

    Raises:
        ModelError: `holdfast models get` can make it, and has not.
    """
    name, revision = at_revision(name, revision)
    if os.path.isdir(name):
        return Path(name)
    try:
        from huggingface_hub import try_to_load_from_cache

        file = try_to_load_from_cache(name, "config.json", revision=revision)
    except ValueError:
        return None
    return Path(file).parent if isinstance(file, str) else None


def origin_of(name: str, revision: str = "main") -> str:
    """What has to be said wherever a figure of this model stands, such as "dequantised from 4 bits
    (Q4_1)", an adapter's of its base; empty for most models."""
    base = adapter_base(name)
    folder = model_folder(base or name, "main" if base else revision)
    stored = str(origin(folder).get("note", "")) or (
        _quantised(read_config(folder)) if folder is not None else ""
    )
    trained = trained_otherwise(located(name), folder) if base is not None else []
    return " ".join(filter(None, [stored, *trained]))


def _quantised(config: Mapping[str, Any]) -> str:
    """How a checkpoint's weights are quantised, by its config.json; empty where they are not."""
    settings = config.get("quantization_config")
    if not isinstance(settings, dict):
        return ""
    four = settings.get("load_in_4bit") or settings.get("_load_in_4bit")
    eight = settings.get("load_in_8bit") or settings.get("_load_in_8bit")
    bits = settings.get("bits") or (4 if four else 8 if eight else None)
    kind = (
        f", {settings['bnb_4bit_quant_type']}"
        if four and settings.get("bnb_4bit_quant_type")
        else ""
    )
    return (
        f"quantised{f' to {bits} bits' if bits else ''} "
        f"({settings.get('quant_method', 'unknown method')}{kind})"
    )


def _near_name(name: str) -> str:
    return "" if "/" in name else did_you_mean(name, PACKAGED)
