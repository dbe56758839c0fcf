"""Takes a merge request written for mergekit (0.1.5) as one for `holdfast merge`.

`METHODS` is the table: which methods of mergekit are here, and which of their parameters, with
mergekit's own defaults and semantics. Everything else that a request may hold (other methods, layer
slices, values that differ between layers or tensors, unions of vocabularies, parts of a model) is
refused, with all of it listed. mergekit's arithmetic is in `dtype`; here it is always float32,
rounded once. DARE draws other random numbers than mergekit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

from holdfast.config.declare import Meta, Setting
from holdfast.config.decode import coerce_all, decode
from holdfast.config.values import Refused
from holdfast.errors import KeyPath, Problem, did_you_mean

MARKS = (
    "merge_method",
    "base_model",
    "slices",
    "modules",
    "tokenizer_source",
    "out_dtype",
    "parameters",
)
"""Keys that only mergekit's requests have."""
NEEDED = object()
"""In place of a default: mergekit requires the parameter."""


class _Method(NamedTuple):
    """A method that both have, with mergekit's parameters and their defaults."""

    name: str
    """Here."""
    each: Mapping[str, Any]
    """Parameters that each model may set."""
    shared: Mapping[str, Any]
    """Parameters that apply to all models."""
    fixed: Mapping[str, Any] = {}
    """Further keys of the request."""
    ignored: tuple[str, ...] = ("int8_mask",)
    """Parameters that mergekit accepts and that have no effect."""
    as_here: Mapping[str, Any] = {}
    """Parameters that are not here, with the value that means what is done here."""


_SHARES = {"weight": NEEDED, "density": 1.0}
_DARE = {"lambda": 1.0, "normalize": False, "rescale": True}
_THEIRS = {"semantics": "mergekit"}
METHODS = {
    "linear": _Method("linear", {"weight": NEEDED}, {"normalize": True}),
    "slerp": _Method("slerp", {}, {"t": NEEDED}),
    "task_arithmetic": _Method(
        "task_arithmetic",
        {"weight": NEEDED},
        {"lambda": 1.0, "normalize": False},
        ignored=("int8_mask", "density", "rescale"),
    ),
    "ties": _Method(
        "ties", _SHARES, {"lambda": 1.0, "normalize": True}, _THEIRS, as_here={"rescale": False}
    ),
    "dare_linear": _Method("dare", _SHARES, _DARE, _THEIRS),
    "dare_ties": _Method("dare_ties", _SHARES, _DARE, _THEIRS),
    "model_stock": _Method("model_stock", {}, {}, ignored=(), as_here={"filter_wise": False}),
}
"""By mergekit's name."""
_OURS = {"weight": "weights", "lambda": "scale"}
"""Parameters that are called something else here."""
_NOTES = {
    "model_stock": (
        "model_stock differs from mergekit in two ways: the base's weights are kept where changes "
        "point in opposite directions, and small changes count as much as large ones"
    ),
    "dare": "DARE drops at random: the same share as mergekit, but different elements",
    "dare_ties": "DARE drops at random: the same share as mergekit, but different elements",
}
_ELSEWHERE = "use mergekit for this merge"


def read_model(value: Any) -> str:
    """A model's folder or hub id, as mergekit writes it: a text, or mappings with its path and
    revision; with an adapter on it as BASE+ADAPTER.

    Raises:
        ValueError: something else.
    """
    if isinstance(value, dict) and "model" in value and set(value) <= {"model", "lora"}:
        model = read_model(value["model"])
        return model if value.get("lora") is None else f"{model}+{read_model(value['lora'])}"
    if isinstance(value, dict) and set(value) <= {"path", "revision"} and "path" in value:
        value = f"{value['path']}@{value['revision']}" if value.get("revision") else value["path"]
    if not isinstance(value, str):
        raise ValueError("a folder or a hub id")
    return value


def _read_method(value: Any) -> str:
    """A method that both have: of another one no name that is near is any help."""
    if isinstance(value, str) and value in METHODS:
        return value
    text = f"expected one of {', '.join(METHODS)}, got {value!r}. For other methods, {_ELSEWHERE}"
    raise Refused(Problem((), text))


def _not_here(advice: str) -> Callable[[Any], Any]:
    """What reads a key that is refused, with advice."""

    def refuse(value: Any) -> Any:
        raise Refused(Problem((), advice))

    return refuse


_SLICES = _not_here(
    f"layers of several models are not supported: list whole models under 'models', or {_ELSEWHERE}"
)
_MODULES = _not_here(
    f"merging parts of a model with different methods is not supported: {_ELSEWHERE}"
)
_TOKENS = _not_here(
    "not supported. Remove it (--vocabulary decides what happens to rows that some models lack)"
)
_Model = Meta(parse=read_model, expected="a folder or a hub id")
_LIST = "a list of {model: FOLDER, parameters: {...}}"
ByName = Annotated[dict[str, Any] | None, Meta(expected="parameters by name")]


@dataclass(frozen=True, kw_only=True)
class MergekitModel:
    """One entry of `models`."""

    model: Annotated[str, _Model]
    """Folder or hub id."""
    parameters: ByName = None
    """Of this model."""


@dataclass(frozen=True, kw_only=True)
class MergekitTokenizer:
    """The long form of `tokenizer_source`."""

    source: Annotated[str, _Model]
    """Base or a model."""
    tokens: Annotated[Any, Meta(parse=_TOKENS)] = None
    """Embeddings token by token."""


@dataclass(frozen=True, kw_only=True)
class MergekitRequest:
    """The keys of mergekit's requests."""

    merge_method: Annotated[str, Meta(parse=_read_method, expected=f"one of {', '.join(METHODS)}")]
    """The method."""
    models: Annotated[list[MergekitModel], Meta(expected=_LIST)] = field(default_factory=list)
    """Models to merge."""
    base_model: Annotated[str | None, _Model] = None
    """Base that the models were tuned from."""
    parameters: ByName = None
    """Parameters that apply to all models."""
    dtype: str | None = None
    """Dtype of the arithmetic and, without `out_dtype`, of the result."""
    out_dtype: str | None = None
    """Dtype of the result."""
    tokenizer_source: Annotated[str | None, _Model] = None
    """Base or a model."""
    tokenizer: MergekitTokenizer | None = None
    """The same."""
    chat_template: str | None = None
    """Chat template of the result."""
    name: Any = None
    """Has no effect, as in mergekit."""
    slices: Annotated[Any, Meta(parse=_SLICES)] = None
    """Ranges of layers."""
    modules: Annotated[Any, Meta(parse=_MODULES)] = None
    """Parts of a model."""

    def problems(self) -> list[Problem]:
        """No models."""
        return [] if self.models else [Problem("models", f"expected {_LIST}")]


def is_mergekit(mapping: Mapping[str, Any]) -> bool:
    """Whether a YAML's content is a request for mergekit."""
    return any(mark in mapping for mark in MARKS)


def translate(mapping: Mapping[str, Any], notes: list[str]) -> tuple[dict[str, Any], list[Problem]]:
    """The same request in the keys of `holdfast merge`, and a mistake for everything that cannot be
    translated.

    Args:
        mapping: the YAML's content.
        notes: gets what is worth knowing.
    """
    if "experts" in mapping:
        text = f"is a key of mergekit-moe, whose requests are not supported: {_ELSEWHERE}"
        return {"models": [str(mapping.get("base_model"))]}, [Problem("experts", text)]
    request, problems = decode(MergekitRequest, mapping)
    method = METHODS.get(str(mapping.get("merge_method")))
    models = mapping.get("models")
    entries = (
        [entry for entry in models if isinstance(entry, dict)] if isinstance(models, list) else []
    )
    shared: dict[str, Any] = {}
    by_model: list[dict[str, Any]] = []
    if method is not None:
        known = {**method.each, **method.shared}
        shared = _parameters(method, known, ("parameters",), mapping.get("parameters"), problems)
        for number, entry in enumerate(entries):
            path = ("models", number, "parameters")
            by_model.append(
                _parameters(method, method.each, path, entry.get("parameters"), problems)
            )
    if request is None or method is None:
        names = [entry["model"] for entry in entries if isinstance(entry.get("model"), str)]
        return (
            {"models": names} if names else {}
        ), problems  # so that models do not count as missing beside them
    if method.name in _NOTES:
        notes.append(_NOTES[method.name])
    if request.tokenizer_source or request.tokenizer:
        notes.append(
            "rows of the embeddings beyond the tokenizer's tokens stay; mergekit cuts them"
        )
    translated = {
        "method": method.name,
        **_models(request, method, problems),
        **_values(request, method, shared, by_model, problems),
        **method.fixed,
        "tokenizer": _tokenizer(request, problems),
        "dtype": request.out_dtype or request.dtype,
        "chat_template": request.chat_template,
    }
    return {key: value for key, value in translated.items() if value is not None}, problems


def _parameters(
    method: _Method, known: Mapping[str, Any], path: KeyPath, values: Any, problems: list[Problem]
) -> dict[str, Any]:
    """The parameters under one key `parameters`."""
    plain: dict[str, Any] = {}
    if not isinstance(values, dict):
        return plain
    for key, wrapped in values.items():
        value = _unwrapped(wrapped)
        if key in method.ignored or (key in method.as_here and value == method.as_here[key]):
            continue
        if value is None:
            text = (
                "expected a value, got nothing (null). Give one, or leave the key out for "
                "mergekit's default."
            )
            problems.append(Problem((*path, key), text))
        elif key in known and isinstance(value, (list, dict)):
            text = (
                f"{key} has to be the same for all layers and tensors. Give one value, or "
                f"{_ELSEWHERE}"
            )
            problems.append(Problem((*path, key), text))
        elif key not in known:
            text = (
                f"is not a parameter of {method.name} in holdfast. Remove it if it has no effect, "
                f"or {_ELSEWHERE}.{did_you_mean(str(key), known)}"
            )
            problems.append(Problem((*path, key), text))
        else:
            plain[key] = value
    settings = {}
    for name in known:
        kind = bool if name in ("normalize", "rescale") else float
        settings[name] = Setting(name=name, types=(kind,))
    coerced, wrong = coerce_all(settings, plain)
    problems += [Problem((*path, *m.path), m.text, key=m.key) for m in wrong]
    # so that what was refused does not count as missing beside it
    return {**{name: 1.0 for name in known if name in values}, **coerced}


def _unwrapped(value: Any) -> Any:
    """A value without what only wraps it: a list of one value, an entry that holds for all
    tensors."""
    if isinstance(value, list) and len(value) == 1:
        return _unwrapped(value[0])
    if isinstance(value, dict) and set(value) == {"value"}:
        return _unwrapped(value["value"])
    return value


def _models(request: MergekitRequest, method: _Method, problems: list[Problem]) -> dict[str, Any]:
    """Models, base and layout."""
    base, names = request.base_model, [entry.model for entry in request.models]
    if method.name == "linear":
        if base is not None and base not in names:
            text = (
                f"expected one of the models with merge_method: linear, got {base}, which mergekit "
                "merges as one more model. List it under 'models' with its weight"
            )
            problems.append(Problem("base_model", text))
            return {"models": names}
        return {"models": names, "layout": base}
    if base is None:
        problems.append(Problem("base_model", f"is missing: {request.merge_method} needs one"))
        return {"models": names}
    tuned = [name for name in names if name != base]
    if not tuned:
        problems.append(Problem("models", f"expected a model besides base_model, got only {base}"))
        return {"models": names}
    return {"models": [base, *tuned]} if method.name == "slerp" else {"base": base, "models": tuned}


def _values(
    request: MergekitRequest,
    method: _Method,
    shared: Mapping[str, Any],
    by_model: list[dict[str, Any]],
    problems: list[Problem],
) -> dict[str, Any]:
    """The method's parameters."""
    translated: dict[str, Any] = {}

    def take(values: Mapping[str, Any], name: str, default: Any, path: KeyPath) -> Any:
        value = values.get(name, default)
        if value is NEEDED:
            problems.append(Problem((*path, name), "is missing: mergekit requires it"))
            return 1.0
        return value

    for name, default in method.each.items():
        each = []
        for number, entry in enumerate(request.models):
            if method.name == "linear" or entry.model != request.base_model:
                values = {**shared, **by_model[number]}
                each.append(take(values, name, default, ("models", number, "parameters")))
        equal = name != "weight" and len(set(each)) == 1
        translated[_OURS.get(name, name)] = each[0] if equal else each
    for name, default in method.shared.items():
        translated[_OURS.get(name, name)] = take(shared, name, default, ("parameters",))
    if method.name in (
        "task_arithmetic",
        "dare",
    ):  # which have no `normalize` here: the scale does it
        total = sum(translated["weights"])
        if translated.pop("normalize") and abs(total) >= 1e-8:
            translated["scale"] /= total
    return translated


def _tokenizer(request: MergekitRequest, problems: list[Problem]) -> str | None:
    """The parent whose tokenizer the result takes."""
    source = request.tokenizer_source
    path: KeyPath = ("tokenizer_source",)
    if request.tokenizer is not None:
        source, path = request.tokenizer.source, ("tokenizer", "source")
    parents = dict.fromkeys([request.base_model, *(entry.model for entry in request.models)])
    name = request.base_model if source == "base" else source
    text = ""
    if source == "union":
        text = f"unions of vocabularies are not supported. Name one parent, or {_ELSEWHERE}"
    elif source == "base" and name is None:
        text = "the source base needs the key base_model, which is missing"
    elif name is not None and name not in parents:
        text = f"expected one of the parents (base, {', '.join(filter(None, parents))}), got {name}"
    if not text:
        return name
    problems.append(Problem(path, text))
    return None
