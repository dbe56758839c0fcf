"""Takes a merge request written for mergekit (0.1.5) as one for `holdfast merge`.

Methods that both have are translated with mergekit's own defaults and semantics (`semantics: mergekit`, where a method
knows several). What is not here is one error that lists all of it, with what to do. mergekit's arithmetic is in
`dtype`; here it is always float32, rounded once.

Only the request is read; numbers that are drawn at random (DARE) are other ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from holdfast.config.declare import Meta, Setting
from holdfast.config.decode import coerce_all, decode
from holdfast.config.values import Mistake, Refused
from holdfast.config.values import Path as Keys
from holdfast.support.paths import expanded

MARKS = (
    "merge_method",
    "base_model",
    "slices",
    "modules",
    "tokenizer_source",
    "out_dtype",
    "parameters",
    "chat_template",
)
"""Keys that only mergekit's requests have."""


class _Method(NamedTuple):
    """A method that both have, with the parameters that mergekit gives it."""

    name: str
    """Here."""
    each: tuple[str, ...]
    """Parameters that every model may have of its own."""
    shared: tuple[str, ...] = ("normalize", "lambda", "rescale")
    """Parameters of the whole request, besides those."""
    without_effect: tuple[str, ...] = ("int8_mask",)
    """mergekit takes them and they change no number."""


METHODS = {
    "linear": _Method("linear", ("weight",), ("normalize",)),
    "slerp": _Method("slerp", (), ("t",)),
    "task_arithmetic": _Method(
        "task_arithmetic", ("weight",), ("normalize", "lambda"), ("int8_mask", "density", "rescale")
    ),
    "ties": _Method("ties", ("weight", "density")),
    "dare_linear": _Method("dare", ("weight", "density")),
    "dare_ties": _Method("dare_ties", ("weight", "density")),
    "breadcrumbs": _Method("breadcrumbs", ("weight", "density", "gamma")),
}
"""By mergekit's name."""
_PARAMETERS = {
    **{n: Setting(name=n, types=(float,)) for n in ("weight", "density", "gamma", "lambda", "t")},
    **{n: Setting(name=n, types=(bool,)) for n in ("normalize", "rescale")},
}
_LORA = "write the adapter's folder as a model; --adapter_base names its base where it does not do so itself"
_WHOLE = "name whole models under 'models', or use mergekit for this one"


def _refused(text: str, *path: str) -> Refused:
    return Refused(Mistake(path=path, text=text))


def read_model(value: Any) -> str:
    """A model's folder or hub id, as mergekit writes it: a text, or mappings with its path and revision.

    Raises:
        ValueError: something else.
        Refused: an adapter or an architecture of its own, with what to do.
    """
    if isinstance(value, dict) and set(value) <= {"model", "lora", "override_architecture"} and "model" in value:
        for key, advice in (("lora", _LORA), ("override_architecture", "not here; tensors are matched by name")):
            if value.get(key) is not None:
                raise _refused(advice, key)
        value = value["model"]
    if isinstance(value, dict) and set(value) <= {"path", "revision"} and "path" in value:
        value = f"{value['path']}@{value['revision']}" if value.get("revision") else value["path"]
    if not isinstance(value, str):
        raise ValueError("a folder or a hub id")
    if "+" in value and not expanded(value).exists():
        raise _refused(f"{value}: {_LORA}")
    return value


def read_tokenizer(value: Any) -> str:
    """The parent whose vocabulary the result takes: "base" or a model.

    Raises:
        Refused: a union of several vocabularies, which is not here.
    """
    if value == "union":
        raise _refused(
            "union is not here; name one parent, whose vocabulary the result takes (base or a model's folder), and "
            "what to do with other rows (--vocabulary keep)"
        )
    return read_model(value)


def _not_here(advice: str) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        raise _refused(advice)

    return read


Model = Meta(parse=read_model, expected="a folder or a hub id")
Tokenizer = Meta(parse=read_tokenizer)
ByName = Annotated[dict[str, Any] | None, Meta(expected="parameters by name")]


@dataclass(frozen=True, kw_only=True)
class MergekitModel:
    """One entry of `models`."""

    model: Annotated[str, Model]
    """Folder or hub id."""
    parameters: ByName = None
    """Of this model."""


@dataclass(frozen=True, kw_only=True)
class MergekitTokenizer:
    """The long form of `tokenizer_source`."""

    source: Annotated[str, Tokenizer]
    """Base or a model."""
    tokens: Annotated[
        Any, Meta(parse=_not_here("not here; remove it (rows that not all have follow --vocabulary)"))
    ] = None
    """Embeddings token by token."""


@dataclass(frozen=True, kw_only=True)
class MergekitRequest:
    """The keys of mergekit's requests."""

    merge_method: Annotated[str, Meta(choices=tuple(METHODS))]
    """The method."""
    models: Annotated[list[MergekitModel], Meta(least=1, expected="a list of {model: FOLDER, parameters: {...}}")]
    """What is merged."""
    base_model: Annotated[str | None, Model] = None
    """What the models were tuned from."""
    parameters: ByName = None
    """Of all models together."""
    dtype: str | None = None
    """Of the arithmetic and, without `out_dtype`, of the result."""
    out_dtype: str | None = None
    """Of the result."""
    tokenizer_source: Annotated[str | None, Tokenizer] = None
    """Base or a model."""
    tokenizer: MergekitTokenizer | None = None
    """The same."""
    name: Any = None
    """Without effect."""
    slices: Annotated[Any, Meta(parse=_not_here(f"merging ranges of layers: {_WHOLE}"))] = None
    """Ranges of layers."""
    modules: Annotated[Any, Meta(parse=_not_here(f"merging parts of a model each in its own way: {_WHOLE}"))] = None
    """Parts of a model."""
    chat_template: Annotated[
        Any,
        Meta(
            parse=_not_here(
                "the template travels with the tokenizer; remove the key and choose its parent with --tokenizer"
            )
        ),
    ] = None
    """The template of the result."""


def is_mergekit(mapping: Mapping[str, Any]) -> bool:
    """Whether a YAML's content is a request for mergekit."""
    return any(mark in mapping for mark in MARKS)


def translate(mapping: Mapping[str, Any], notes: list[str]) -> tuple[dict[str, Any], list[Mistake]]:
    """The same request in the keys of `holdfast merge`, and a mistake for everything that cannot be translated.

    Args:
        mapping: the YAML's content.
        notes: gets what is worth knowing.
    """
    request, mistakes = decode(MergekitRequest, mapping)
    method = METHODS.get(str(mapping.get("merge_method")))
    entries = mapping.get("models")
    held: list[tuple[Keys, Any, tuple[str, ...] | None]]
    held = [(("parameters",), mapping.get("parameters"), method and (*method.shared, *method.each))]
    for number, entry in enumerate(entries if isinstance(entries, list) else []):
        own = entry.get("parameters") if isinstance(entry, dict) else None
        held.append((("models", number, "parameters"), own, method and method.each))
    found = []
    for path, values, takes in held:
        read, wrong = _parameters(values, takes, method, path, notes)
        found.append(read)
        mistakes += wrong
    if request is None or method is None or mistakes:
        return _named(entries), mistakes
    if request.name is not None:
        notes.append("name: without effect, as in mergekit")
    translation = _Translation(request, method, found[0], found[1:], notes)
    return translation.result(), translation.mistakes


def _parameters(
    values: Any, takes: tuple[str, ...] | None, method: _Method | None, path: Keys, notes: list[str]
) -> tuple[dict[str, Any], list[Mistake]]:
    """Plain values of parameters; whatever varies by layer or by tensor is a mistake."""
    plain: dict[str, Any] = {}
    mistakes: list[Mistake] = []
    for key, value in values.items() if isinstance(values, dict) else ():
        try:
            if key in (method.without_effect if method else ("int8_mask",)):
                notes.append(f"{'.'.join(map(str, path))}.{key}: without effect, here and in mergekit")
            else:
                plain[key] = _one_value(value)
        except ValueError as error:
            mistakes.append(Mistake(path=(key,), text=str(error)))
    known = {name: _PARAMETERS[name] for name in (_PARAMETERS if takes is None else takes)}
    found, wrong = coerce_all(known, plain)
    return found, [Mistake(path=(*path, *m.path), text=m.text, key=m.key) for m in (*mistakes, *wrong)]


def _named(entries: Any) -> dict[str, Any]:
    """Of a request with mistakes the models that it names, so that they do not count as missing beside them."""
    found = [entry.get("model") for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    names = [name for name in found if isinstance(name, str)]
    return {"models": names} if names else {}


def _one_value(value: Any) -> Any:
    if value is None:
        raise ValueError("expected a value, got nothing (null). Give one, or leave the key out for mergekit's default.")
    if isinstance(value, list) and value and all(one == value[0] for one in value):
        return _one_value(value[0])
    if isinstance(value, dict) and set(value) == {"value"}:
        return _one_value(value["value"])
    if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(one, dict) for one in value)):
        raise ValueError("filters by tensor name are not here; give one value for all tensors")
    if isinstance(value, list):
        middle = value[len(value) // 2] if value else 0.5
        raise ValueError(f"gradients over the layers are not here; give one value, such as {middle}")
    return value


class _Translation:
    """A request whose keys are sound, as one of `holdfast merge`; what does not fit together is in `mistakes`."""

    def __init__(
        self,
        request: MergekitRequest,
        method: _Method,
        shared: dict[str, Any],
        each: list[dict[str, Any]],
        notes: list[str],
    ) -> None:
        self.request, self.method, self.shared, self.notes = request, method, shared, notes
        self.models = [(number, entry.model, each[number]) for number, entry in enumerate(request.models)]
        self.tuned = [held for held in self.models if held[1] != request.base_model]
        self.mistakes: list[Mistake] = []

    def result(self) -> dict[str, Any]:
        """The keys of `holdfast merge`."""
        found = {"method": self.method.name, **self._method(), "tokenizer": self._tokenizer()}
        found["dtype"] = self.request.out_dtype or self.request.dtype
        return {key: value for key, value in found.items() if value is not None}

    def _wrong(self, text: str, *path: str | int) -> None:
        self.mistakes.append(Mistake(path=path, text=text))

    def _method(self) -> dict[str, Any]:
        base, name, asked = self.request.base_model, self.method.name, self.request.merge_method
        names = [model for _, model, _ in self.models]
        if name == "linear":
            if base is not None and base not in names:
                advice = "linear takes no base; list it under 'models' with a weight if it is to take part"
                self._wrong(advice, "base_model")
            weights, normalize = self._each("weight", self.models), self.shared.get("normalize", True)
            return {"models": names, "weights": weights, "normalize": normalize, "layout": base}
        if base is None:
            self._wrong(f"is missing: {asked} needs one", "base_model")
        others = [model for _, model, _ in self.tuned]
        if name == "slerp":
            if "t" not in self.shared:
                self._wrong("is missing: mergekit requires it", "parameters", "t")
            return {"models": [*([base] if base else []), *others], "t": self.shared.get("t")}
        weights = self._each("weight", self.tuned)
        return {"base": base, "models": others, "weights": weights, **self._changes(weights)}

    def _changes(self, weights: list[float]) -> dict[str, Any]:
        """What methods on changes of a base take besides weights."""
        method, shared = self.method.name, self.shared
        result: dict[str, Any] = {"scale": shared.get("lambda", 1.0)}
        normalize = shared.get("normalize", method == "ties")
        if method in ("ties", "dare_ties"):
            result["normalize"] = normalize
        elif normalize and abs(sum(weights)) >= 1e-8:
            result["scale"] /= sum(weights)
            self.notes.append(f"normalize: divided into the scale, which is {result['scale']:g}")
        rescale = shared.get("rescale", method in ("dare", "dare_ties"))
        if method in ("dare", "dare_ties"):
            result["rescale"] = rescale
            self.notes.append("DARE drops at random: other elements than mergekit's, the same share")
        elif rescale:
            advice = f"{method} has no rescaling here; remove it (mergekit's default is false)"
            self._wrong(advice, "parameters", "rescale")
        if method != "task_arithmetic":
            result["density"] = self._same("density", 1.0)
        if method == "breadcrumbs":
            # mergekit leaves everything in at density 1, whatever gamma says
            result["gamma"] = 0.0 if result["density"] == 1 else self._same("gamma", 0.01)
        if method in ("ties", "dare", "dare_ties"):
            result["semantics"] = "mergekit"
        return result

    def _tokenizer(self) -> str | None:
        request = self.request
        nested = request.tokenizer is not None
        key = ("tokenizer", "source") if nested else ("tokenizer_source",)
        source = request.tokenizer.source if request.tokenizer is not None else request.tokenizer_source
        if source == "base" and request.base_model is None:
            self._wrong("base is asked for, but there is no base_model", *key)
        name = request.base_model if source == "base" else source
        parents = [model for _, model, _ in self.models]
        if name is not None and name not in (request.base_model, *parents):
            self._wrong(f"expected one of the parents (base, {', '.join(parents)}), got {name}", *key)
        return name

    def _each(
        self, key: str, models: list[tuple[int, str, dict[str, Any]]], default: float | None = None
    ) -> list[float]:
        """A parameter of every model: its own, else the one for all, else the default."""
        found = []
        for number, _, parameters in models:
            value = parameters.get(key, self.shared.get(key, default))
            if value is None:
                self._wrong("is missing: mergekit requires it", "models", number, "parameters", key)
            found.append(1.0 if value is None else value)
        return found

    def _same(self, key: str, default: float) -> float:
        """A parameter that is one for all models here."""
        values = self._each(key, self.tuned, default)
        if len(set(values)) > 1:
            listed = ", ".join(f"{v:g}" for v in values)
            name = self.method.name
            self._wrong(f"{name} has one for all models here, this request has {listed}; choose one", key)
        return values[0] if values else default
