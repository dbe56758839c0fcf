"""Takes a merge request written for mergekit (0.1.5) as one for `holdfast merge`.

Methods that both have are translated with mergekit's own defaults and semantics (`semantics: mergekit`, where a method
knows several). Values that differ between layers and tensors become `vary`, ranges of layers models such as
`math[0:24]`. What is not here is one error that lists all of it, with what to do. mergekit's arithmetic is in `dtype`;
here it is always float32, rounded once.

Only the request is read; numbers that are drawn at random (DARE) are other ones.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

from holdfast.checkpoints.methods.varying import value_problems
from holdfast.checkpoints.vocabulary_union import UNION
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

    @property
    def varying(self) -> tuple[str, ...]:
        """Parameters that may differ between layers and tensors: numbers that the method here can take so."""
        return tuple(name for name in (*self.each, "t", "select_topk") if name in (*self.each, *self.shared))


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
    "model_stock": _Method("model_stock", (), ("filter_wise",), ()),
    "karcher": _Method("karcher", (), ("max_iter", "tol"), ()),
    "sce": _Method("sce", (), ("select_topk",)),
    "nearswap": _Method("nearswap", (), ("t",), ()),
    "passthrough": _Method("linear", ("scale",), ()),
}
"""By mergekit's name."""
_PARAMETERS = {
    **{
        n: Setting(name=n, types=(float,))
        for n in ("weight", "density", "gamma", "lambda", "t", "scale", "select_topk", "tol")
    },
    **{n: Setting(name=n, types=(bool,)) for n in ("normalize", "rescale", "filter_wise")},
    "max_iter": Setting(name="max_iter", types=(int,)),
}
_LORA = "write the adapter's folder as a model; --adapter_base names its base where it does not do so itself"
_WHOLE = "name models or slices, or use mergekit for this one"
_REQUIRED = ("weight", "t")


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


def _not_here(advice: str) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        raise _refused(advice)

    return read


Model = Meta(parse=read_model, expected="a folder or a hub id")
Tokenizer = Model
ByName = Annotated[dict[str, Any] | None, Meta(expected="parameters by name")]


@dataclass(frozen=True, kw_only=True)
class MergekitModel:
    """One entry of `models`."""

    model: Annotated[str, Model]
    """Folder or hub id."""
    parameters: ByName = None
    """Of this model."""


def read_range(value: Any) -> tuple[int, int]:
    """The first layer and the one behind the last.

    Raises:
        ValueError: something else.
    """
    whole = isinstance(value, (list, tuple)) and len(value) == 2 and all(type(one) is int for one in value)
    if not whole or not 0 <= value[0] < value[1]:
        raise ValueError
    return int(value[0]), int(value[1])


@dataclass(frozen=True, kw_only=True)
class MergekitSource:
    """A model's part in a slice."""

    model: Annotated[str, Model]
    """Folder or hub id."""
    layer_range: Annotated[
        tuple[int, int], Meta(parse=read_range, expected="the first layer and the one behind the last, as [0, 16]")
    ]
    """Which of its layers."""
    parameters: ByName = None
    """Of this model here."""


@dataclass(frozen=True, kw_only=True)
class MergekitSlice:
    """One entry of `slices`."""

    sources: Annotated[list[MergekitSource], Meta(least=1, expected="a list of {model: FOLDER, layer_range: [0, 16]}")]
    """What is merged there."""
    parameters: ByName = None
    """Of all of them."""
    base_model: Annotated[Any, Meta(parse=_not_here("one base_model holds for all slices; give it there"))] = None
    """Its own base."""
    residual_weight: Annotated[Any, Meta(parse=_not_here("remove it; mergekit ignores it too"))] = None
    """Without effect."""

    @property
    def layers(self) -> int:
        """Layers of the result."""
        first, last = self.sources[0].layer_range
        return last - first

    def mismatches(self, sources: int) -> list[str]:
        """What keeps the sources from being merged layer by layer."""
        found = []
        if any(s.layer_range[1] - s.layer_range[0] != self.layers for s in self.sources):
            found.append("expected ranges of equal length")
        if len(self.sources) != sources:
            found.append(f"expected {sources} models as in the first slice, got {len(self.sources)}")
        return found


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
    models: Annotated[list[MergekitModel], Meta(expected="a list of {model: FOLDER, parameters: {...}}")] = field(
        default_factory=list
    )
    """What is merged: whole models."""
    slices: Annotated[list[MergekitSlice], Meta(expected="a list of {sources: [...]}")] = field(default_factory=list)
    """The same as ranges of layers, one on the other."""
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
    modules: Annotated[Any, Meta(parse=_not_here(f"merging parts of a model each in its own way: {_WHOLE}"))] = None
    """Parts of a model."""
    chat_template: str | None = None
    """The template of the result."""

    def problems(self) -> list[Mistake]:
        """Neither models nor slices, or both; slices whose sources do not match."""
        if not self.models and not self.slices:
            return [Mistake(path=("models",), text="expected a list of {model: FOLDER, parameters: {...}}")]
        if self.models and self.slices:
            return [Mistake(path=("slices",), text="expected one of models and slices, got both")]
        return [
            Mistake(path=("slices", number, "sources"), text=text)
            for number, one in enumerate(self.slices)
            for text in one.mismatches(len(self.slices[0].sources))
        ]


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
    read = _Parameters(method, notes)
    shared = read.of(("parameters",), mapping.get("parameters"), each=False)
    entries = _list(mapping.get("models"))
    for number, entry in enumerate(entries):
        read.of(("models", number, "parameters"), _get(entry, "parameters"))
    for number, part in enumerate(_list(mapping.get("slices"))):
        read.of(("slices", number, "parameters"), _get(part, "parameters"), each=False, of_slice=True)
        for place, source in enumerate(_list(_get(part, "sources"))):
            read.of(("slices", number, "sources", place, "parameters"), _get(source, "parameters"))
    mistakes += read.mistakes
    if request is None or method is None or mistakes:
        names = [name for entry in entries if isinstance(name := _get(entry, "model"), str)]
        return ({"models": names} if names else {}), mistakes  # so that models do not count as missing beside them
    if request.name is not None:
        notes.append("name: without effect, as in mergekit")
    translation = _Translation(request, method, shared, read.found, notes)
    return translation.result(), translation.mistakes


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _get(entry: Any, key: str) -> Any:
    return entry.get(key) if isinstance(entry, dict) else None


class _Parameters:
    """Reads the parameters that stand in several places of a request."""

    def __init__(self, method: _Method | None, notes: list[str]) -> None:
        self.method, self.notes = method, notes
        self.mistakes: list[Mistake] = []
        self.found: dict[Keys, dict[str, Any]] = {}
        """By place: plain values as declared, others as `vary` has them."""

    def of(self, path: Keys, values: Any, *, each: bool = True, of_slice: bool = False) -> dict[str, Any]:
        """The parameters in one place.

        Args:
            path: the place.
            values: what stands there.
            each: whether it is one model's.
            of_slice: whether it is one slice's.
        """
        method = self.method
        takes = method and (method.each if each else (*method.shared, *method.each))
        plain: dict[str, Any] = {}
        varying: dict[str, Any] = {}
        for key, value in values.items() if isinstance(values, dict) else ():
            if key in (method.without_effect if method else ("int8_mask",)):
                self.notes.append(f"{'.'.join(map(str, path))}.{key}: without effect, here and in mergekit")
                continue
            if of_slice and method is not None and key in method.shared and key not in method.varying:
                text = "is one for the whole request here; give it under 'parameters' beside 'slices'"
                self.mistakes.append(Mistake(path=(*path, key), text=text))
                continue
            value = _simple(value)
            if value is None:
                text = "expected a value, got nothing (null). Give one, or leave the key out for mergekit's default."
                self.mistakes.append(Mistake(path=(*path, key), text=text))
            elif not isinstance(value, (list, dict)):
                plain[key] = value
            elif method is None or key in method.varying:
                varying[key] = value
                problems = value_problems(value, "")
                self.mistakes += [Mistake(path=(*path, key), text=p.partition(": ")[2]) for p in problems]
            elif key in (takes or ()):
                text = f"{key} is one for all layers and tensors here; give one value"
                self.mistakes.append(Mistake(path=(*path, key), text=text))
            else:
                plain[key] = value  # an unknown key
        known = {name: _PARAMETERS[name] for name in (_PARAMETERS if takes is None else takes)}
        coerced, wrong = coerce_all(known, plain)
        self.mistakes += [Mistake(path=(*path, *m.path), text=m.text, key=m.key) for m in wrong]
        self.found[path] = {**coerced, **varying}
        return self.found[path]


def _simple(value: Any) -> Any:
    """A value without what only wraps it: lists of one number, one entry that holds for all tensors."""
    if isinstance(value, list):
        value = [_number(one) for one in value]
    if isinstance(value, list) and value and all(one == value[0] for one in value):
        return _simple(value[0])
    if isinstance(value, dict) and set(value) <= {"value", "filter"} and value.get("filter") in (None, "*"):
        return _simple(value.get("value"))
    return value


def _number(value: Any) -> Any:
    """A number that YAML 1.1 takes for text (1e-3); an entry with such a value; everything else as it is."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return float(value)
    if isinstance(value, dict) and isinstance(value.get("value"), list):
        return {**value, "value": [_number(one) for one in value["value"]]}
    return value


def _entries(value: Any) -> list[dict[str, Any]]:
    """A value as entries of `vary`. What lies behind the layers takes the first number of a gradient."""
    if not isinstance(value, list) or not any(isinstance(one, dict) for one in value):
        value = [value if isinstance(value, dict) else {"value": value}]
    found = []
    for entry in value:
        if isinstance(numbers := entry["value"], list):
            found.append({**entry, "part": "behind", "value": numbers[0]})
        found.append(entry)
    return found


def _filters(value: Any) -> list[str]:
    """All filters in a value."""
    if isinstance(value, list):
        return [text for one in value for text in _filters(one)]
    if not isinstance(value, dict):
        return []
    own = [str(value["filter"])] if value.get("filter") is not None else []
    return own + _filters(value.get("value"))


def _for_all(value: Any) -> bool:
    """Whether a value holds for every tensor."""
    return any(e.get("filter") in (None, "*") and not {"layers", "part"} & set(e) for e in _entries(value))


class _Translation:
    """A request whose keys are sound, as one of `holdfast merge`; what does not fit together is in `mistakes`."""

    def __init__(
        self,
        request: MergekitRequest,
        method: _Method,
        shared: dict[str, Any],
        found: Mapping[Keys, dict[str, Any]],
        notes: list[str],
    ) -> None:
        self.request, self.method, self.shared, self.found, self.notes = request, method, shared, found, notes
        self.mistakes: list[Mistake] = []
        self.vary: dict[str, Any] = {}
        self.places = self._places()
        """By model, in the request's order: where its parameters stand, slice by slice."""
        self.names = [self._name(place) for place in range(len(self.places))]
        self._filters_by_input()

    # ----------------------------------------------------------------------------------------------------- the models

    def _places(self) -> list[list[Keys]]:
        if self.request.models:
            return [[("models", number)] for number in range(len(self.request.models))]
        base, found = self.request.base_model, list[list[Keys]]()
        orders = []
        for number, part in enumerate(self.request.slices):
            order = list(range(len(part.sources)))
            own = [i for i in order if part.sources[i].model == base]
            if base is not None and not own:
                self._wrong(f"expected {base} among the sources: the base has a part in every slice", "slices", number)
            orders.append([*own[:1], *(i for i in order if i not in own[:1])])
        for place in range(len(orders[0])):
            found.append([("slices", number, "sources", order[place]) for number, order in enumerate(orders)])
        return found

    def _source(self, key: Keys) -> MergekitSource:
        return self.request.slices[int(key[1])].sources[int(key[3])]

    def _name(self, place: int) -> str:
        """A model of the request by the name that `holdfast merge` takes."""
        keys = self.places[place]
        if self.request.models:
            return self.request.models[place].model
        parts = [self._source(key) for key in keys]
        return "+".join(f"{p.model}[{p.layer_range[0]}:{p.layer_range[1]}]" for p in parts)

    def _is_base(self, place: int) -> bool:
        base = self.request.base_model
        if self.request.models:
            return self.names[place] == base
        return base is not None and place == 0

    def _filters_by_input(self) -> None:
        """mergekit looks for a filter of a model's parameter in the name of the tensor that comes in, which has another
        layer's number than the one that comes out where slices move layers."""
        moved = len(self.request.slices) > 1 or any(s.layer_range[0] for p in self.request.slices for s in p.sources)
        for path, values in self.found.items() if moved else ():
            for key, value in values.items():
                for text in _filters(value) if key in self.method.each else ():
                    if re.search(r"\d", text):
                        advice = (
                            f"the filter {text!r} names a layer by its number, which slices change; give it a slice"
                        )
                        self._wrong(advice, *path, key)

    # ------------------------------------------------------------------------------------------------------ parameters

    def _value(self, name: str, place: int | None) -> Any:
        """A parameter of a model, or (None) of all: plain, or as `vary` has it; None where it is not given. mergekit's
        order: the model's in the slice, the slice's, the request's."""
        spans, offset, entries, open_ones = [], 0, list[dict[str, Any]](), list[int]()
        for part in self.request.slices:
            spans.append([offset, offset + part.layers])
            offset += part.layers
        several = len(spans) > 1
        for number, span in enumerate(spans or [[0, 0]]):
            own = [] if place is None else [self.found[(*self.places[place][number], "parameters")]]
            slices = [self.found[("slices", number, "parameters")]] if self.request.slices else []
            for values in (*own, *slices, self.shared):
                if name not in values:
                    continue
                entries += [{"layers": span, "value": e} if several else e for e in _bare(values[name], several)]
                if _for_all(values[name]):
                    break
            else:
                open_ones.append(number)
        if not entries:
            return None
        if several and name in _REQUIRED:
            for number in open_ones:
                text = "is missing: mergekit requires a value for all tensors of every slice"
                self._wrong(text, "slices", number, "parameters", name)
        if not several and set(entries[0]) == {"value"}:
            return _simple(entries[0]["value"])
        return entries

    def _plain(self, name: str, value: Any, stand_in: float, *path: str | int) -> tuple[float, Any]:
        """A number for the method itself, and what varies over it (None: nothing does)."""
        if not isinstance(value, (list, dict)):
            return float(value), None
        several = any("layers" in entry for entry in _entries(value))  # looked at slice by slice
        if name in _REQUIRED and not several and not _for_all(value):
            self._wrong("expected an entry without a filter, too, for all other tensors: mergekit requires it", *path)
        return stand_in, value

    def result(self) -> dict[str, Any]:
        """The keys of `holdfast merge`."""
        found = {"method": self.method.name, **self._method(), "tokenizer": self._tokenizer()}
        found["dtype"] = self.request.out_dtype or self.request.dtype
        found["chat_template"] = self.request.chat_template
        found["vary"] = self.vary or None
        return {key: value for key, value in found.items() if value is not None}

    def _wrong(self, text: str, *path: str | int) -> None:
        self.mistakes.append(Mistake(path=path, text=text))

    def _method(self) -> dict[str, Any]:
        base, name, asked = self.request.base_model, self.method.name, self.request.merge_method
        places = list(range(len(self.places)))
        if asked == "passthrough":
            return self._passthrough()
        unlisted = base is not None and base not in self.names and self.request.models
        if name in ("linear", "karcher") and unlisted:
            own = " with a weight" if name == "linear" else ""
            self._wrong(f"{name} takes no base; list it under 'models'{own} if it is to take part", "base_model")
        if name == "karcher":
            if self.shared:
                self.notes.append("max_iter, tol: the search runs until it stands still, in float64")
            return {"models": self.names, "layout": base if self.request.models else None}
        if name == "linear":
            weights, normalize = self._each("weight", places), self.shared.get("normalize", True)
            layout = base if self.request.models else None
            return {"models": self.names, "weights": weights, "normalize": normalize, "layout": layout}
        if base is None:
            self._wrong(f"is missing: {asked} needs one", "base_model")
        others = [place for place in places if not self._is_base(place)]
        whole = base if self.request.models else self.names[0]
        if name == "slerp":
            value = self._value("t", None)
            if value is None:
                self._wrong("is missing: mergekit requires it", "parameters", "t")
            t, varied = self._plain("t", 0.5 if value is None else value, 0.5, "parameters", "t")
            if varied is not None:
                self.vary["t"] = varied
            models = [*([whole] if base else []), *(self.names[p] for p in others)]
            return {"models": models, "t": t if varied is not None or value is not None else None}
        if name in ("model_stock", "sce", "nearswap"):
            return {"base": whole, "models": [self.names[place] for place in others], **self._unweighted(name)}
        weights = self._each("weight", others)
        models = [self.names[place] for place in others]
        return {"base": whole, "models": models, "weights": weights, **self._changes(weights, others)}

    def _unweighted(self, name: str) -> dict[str, Any]:
        """What methods on changes of a base take that know no weights."""
        if name == "model_stock":
            self.notes.append(
                "model_stock: where changes point against each other the base stays, which mergekit leaves behind; "
                "small changes count like large ones"
            )
            return {"filter_wise": self.shared.get("filter_wise", False)}
        theirs, ours = ("select_topk", "density") if name == "sce" else ("t", "t")
        value = self._value(theirs, None)
        if value is None and name == "nearswap":
            self._wrong("is missing: mergekit requires it", "parameters", theirs)
        plain, varied = self._plain(theirs, 1.0 if value is None else value, 1.0, "parameters", theirs)
        if varied is not None:
            self.vary[ours] = varied
        return {ours: plain, **({"semantics": "mergekit"} if name == "sce" else {})}

    def _passthrough(self) -> dict[str, Any]:
        if len(self.places) > 1:
            self._wrong("passthrough takes one model, or one a slice", "slices" if self.request.slices else "models")
        value = self._value("scale", 0)
        if value is None:
            return {"models": self.names}
        scale, varied = self._plain("scale", value, 1.0, "parameters", "scale")
        if varied is not None:
            self.vary["weights"] = varied
        return {"models": self.names, "weights": [scale], "normalize": False}

    def _changes(self, weights: list[float], others: list[int]) -> dict[str, Any]:
        """What methods on changes of a base take besides weights."""
        method, shared = self.method.name, self.shared
        result: dict[str, Any] = {"scale": shared.get("lambda", 1.0)}
        normalize = shared.get("normalize", method == "ties")
        if method in ("ties", "dare_ties"):
            result["normalize"] = normalize
        elif normalize and "weights" in self.vary:
            self._wrong(f"{method} divides by one sum of weights here; leave it out", "parameters", "normalize")
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
            result["density"] = self._shares("density", 1.0, others)
        if method == "breadcrumbs":
            # mergekit leaves everything in at density 1, whatever gamma says, and so does the method here
            whole = result["density"] == 1 and "density" not in self.vary
            result["gamma"] = 0.0 if whole else self._shares("gamma", 0.01, others)
        if method in ("ties", "dare", "dare_ties"):
            result["semantics"] = "mergekit"
        return result

    def _tokenizer(self) -> str | None:
        request = self.request
        nested = request.tokenizer is not None
        key = ("tokenizer", "source") if nested else ("tokenizer_source",)
        source = request.tokenizer.source if request.tokenizer is not None else request.tokenizer_source
        if source is None or source == UNION:
            return source
        if source == "base" and request.base_model is None:
            self._wrong("base is asked for, but there is no base_model", *key)
        name = request.base_model if source == "base" else source
        if request.models:
            if name is not None and name not in (request.base_model, *self.names):
                self._wrong(f"expected one of the parents (base, {', '.join(self.names)}), got {name}", *key)
            return name
        first = [self._source(keys[0]).model for keys in self.places]
        if name is not None and name not in first:
            self._wrong(f"expected one of the models of the first slice ({', '.join(first)}), got {name}", *key)
            return None
        return self.names[first.index(name)] if name is not None else None

    def _each(self, key: str, places: list[int]) -> list[float]:
        """The weight of every model; what varies goes into `vary`."""
        found, varied = [], dict[int, Any]()
        for number, place in enumerate(places, 1):
            value, path = self._value(key, place), (*self.places[place][0], "parameters", key)
            if value is None:
                self._wrong("is missing: mergekit requires it", *path)
                found.append(1.0)
                continue
            plain, varying = self._plain(key, value, 1.0, *path)
            found.append(plain)
            if varying is not None:
                varied[number] = varying
        if varied:
            self.vary["weights"] = varied
        return found

    def _shares(self, key: str, default: float, places: list[int]) -> Any:
        """Densities: one number, or one a model; what varies goes into `vary`."""
        found, varied = [], dict[int, Any]()
        for number, place in enumerate(places, 1):
            value = self._value(key, place)
            plain, varying = self._plain(key, default if value is None else value, default)
            found.append(plain)
            if varying is not None:
                varied[number] = varying
        if varied:
            self.vary[key] = varied
        return found[0] if len(set(found)) == 1 or not found else found


def _bare(value: Any, nested: bool) -> list[Any]:
    """A value's entries; as what `value:` of an entry takes, where they are to be nested in one."""
    return [_entries(value)] if nested else _entries(value)
