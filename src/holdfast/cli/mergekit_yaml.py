"""Takes a merge request written for mergekit (0.1.5) as one for `holdfast merge`.

Methods that both have are translated with mergekit's own defaults and semantics (`semantics: mergekit`, where a method
knows several). What is not here is one error that lists all of it, with what to do. mergekit's arithmetic is in
`dtype`; here it is always float32, rounded once.

This reads the request alone; numbers that are drawn at random (DARE) are other ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.errors import did_you_mean

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

METHODS = {
    "linear": "linear",
    "slerp": "slerp",
    "task_arithmetic": "task_arithmetic",
    "ties": "ties",
    "dare_linear": "dare",
    "dare_ties": "dare_ties",
    "breadcrumbs": "breadcrumbs",
}
"""mergekit's name: the name here."""

_SHARED = {
    "linear": ("normalize",),
    "slerp": ("t",),
    "task_arithmetic": ("normalize", "lambda"),
    "ties": ("normalize", "lambda", "rescale"),
    "dare": ("normalize", "lambda", "rescale"),
    "dare_ties": ("normalize", "lambda", "rescale"),
    "breadcrumbs": ("normalize", "lambda", "rescale"),
}
_EACH = {
    "linear": ("weight",),
    "slerp": (),
    "task_arithmetic": ("weight",),
    "ties": ("weight", "density"),
    "dare": ("weight", "density"),
    "dare_ties": ("weight", "density"),
    "breadcrumbs": ("weight", "density", "gamma"),
}
_WITHOUT_EFFECT = {"task_arithmetic": ("int8_mask", "density", "rescale")}
"""mergekit takes them and they change no number; for methods not named: `int8_mask`."""
_NOT_HERE = {
    "slices": "merging ranges of layers: name whole models under 'models', or use mergekit for this one",
    "modules": "merging parts of a model each in its own way: name whole models under 'models', or use mergekit for "
    "this one",
    "chat_template": "the template travels with the tokenizer; remove the key and choose its parent with --tokenizer",
}


def is_mergekit(mapping: Mapping[str, Any]) -> bool:
    """Whether a YAML's content is a request for mergekit."""
    return any(mark in mapping for mark in MARKS)


def translate(mapping: Mapping[str, Any], notes: list[str]) -> tuple[dict[str, Any], list[str]]:
    """The same request in the keys of `holdfast merge`, and one sentence for everything that cannot be translated.

    Args:
        mapping: the YAML's content.
        notes: gets what is worth knowing.
    """
    translation = _Translation(mapping, notes)
    return translation.result(), translation.problems


class _Translation:
    def __init__(self, mapping: Mapping[str, Any], notes: list[str]) -> None:
        self.mapping, self.notes = mapping, notes
        self.problems: list[str] = []
        name = str(mapping.get("merge_method", ""))
        self.method = METHODS.get(name)
        if self.method is None:
            known = f"this takes {', '.join(METHODS)}.{did_you_mean(name, METHODS)}"
            self.problems.append(
                f"merge_method: expected a method, {known}"
                if not name
                else f"merge_method: there is no '{name}' here; {known}"
            )
        self.shared = self._parameters(mapping.get("parameters"), "parameters", _known(self.method))

    def result(self) -> dict[str, Any]:
        """The keys of `holdfast merge`."""
        base = (
            self._reference(self.mapping.get("base_model"), "base_model")
            if self.mapping.get("base_model") is not None
            else None
        )
        self._unknown_keys()
        models = self._models()
        result: dict[str, Any] = {}
        if self.method is not None:
            result |= {"method": self.method} | self._method(models, base)
        result |= self._tokenizer(base, [name for name, _ in models])
        dtype = self.mapping.get("out_dtype") or self.mapping.get("dtype")
        return result | ({"dtype": dtype} if dtype is not None else {})

    def _unknown_keys(self) -> None:
        known = (
            "merge_method",
            "base_model",
            "models",
            "parameters",
            "dtype",
            "out_dtype",
            "tokenizer_source",
            "tokenizer",
        )
        for key in self.mapping:
            if key in _NOT_HERE:
                self.problems.append(f"{key}: {_NOT_HERE[key]}")
            elif key == "name":
                self.notes.append("name: without effect, as in mergekit")
            elif key not in known:
                self.problems.append(
                    f"unknown key '{key}'.{did_you_mean(str(key), known) or ' Keys of mergekit: ' + ', '.join(known) + '.'}"
                )

    def _models(self) -> list[tuple[str, dict[str, Any]]]:
        value = self.mapping.get("models")
        if value is None and ("slices" in self.mapping or "modules" in self.mapping):
            return []
        if not isinstance(value, list) or not value:
            self.problems.append(f"models: expected a list of {{model: FOLDER, parameters: {{...}}}}, got {value!r}")
            return []
        found = []
        for i, entry in enumerate(value, 1):
            where = f"models, entry {i}"
            if not isinstance(entry, dict) or "model" not in entry:
                self.problems.append(f"{where}: expected {{model: FOLDER, parameters: {{...}}}}, got {entry!r}")
                continue
            for key in entry:
                if key not in ("model", "parameters"):
                    self.problems.append(
                        f"{where}: unknown key '{key}'.{did_you_mean(str(key), ('model', 'parameters'))}"
                    )
            name = self._reference(entry["model"], where)
            if name:
                found.append((name, self._parameters(entry.get("parameters"), where, _EACH.get(self.method or "", ()))))
        return found

    def _method(self, models: list[tuple[str, dict[str, Any]]], base: str | None) -> dict[str, Any]:
        if self.method == "linear":
            if base is not None and base not in [name for name, _ in models]:
                self.problems.append(
                    "base_model: linear takes no base; list it under 'models' with a weight if it is to take part"
                )
            weights = self._each("weight", models, None)
            chosen = {"layout": base} if base is not None else {}
            return {
                "models": [n for n, _ in models],
                "weights": weights,
                "normalize": self._switch("normalize", True),
            } | chosen
        if base is None:
            self.problems.append(f"base_model is missing: {self.mapping.get('merge_method')} needs one")
        tuned = [(name, parameters) for name, parameters in models if name != base]
        if self.method == "slerp":
            return {
                "models": [*([base] if base else []), *(name for name, _ in tuned)],
                "t": self._number(self.shared, "t", None, "parameters"),
            }
        result: dict[str, Any] = {
            "base": base,
            "models": [name for name, _ in tuned],
            "weights": self._each("weight", tuned, None),
        }
        return result | self._changes(tuned, result["weights"])

    def _changes(self, tuned: list[tuple[str, dict[str, Any]]], weights: list[float]) -> dict[str, Any]:
        """What methods on changes of a base take besides weights."""
        method = self.method
        result: dict[str, Any] = {"scale": self._number(self.shared, "lambda", 1.0, "parameters")}
        normalize = self._switch("normalize", method == "ties")
        if method in ("ties", "dare_ties"):
            result["normalize"] = normalize
        elif normalize and abs(sum(weights)) >= 1e-8:
            result["scale"] = (result["scale"] or 0.0) / sum(weights)
            self.notes.append(f"normalize: divided into the scale, which is {result['scale']:g}")
        rescale = self._switch("rescale", method in ("dare", "dare_ties"))
        if method in ("dare", "dare_ties"):
            result["rescale"] = rescale
            self.notes.append("DARE drops at random: other elements than mergekit's, the same share")
        elif rescale:
            self.problems.append(f"rescale: {method} has no rescaling here; remove it (mergekit's default is false)")
        if method != "task_arithmetic":
            result["density"] = self._same("density", tuned, 1.0)
        if method == "breadcrumbs":
            # mergekit leaves everything in at density 1, whatever gamma says
            result["gamma"] = 0.0 if result["density"] == 1 else self._same("gamma", tuned, 0.01)
        if method in ("ties", "dare", "dare_ties"):
            result["semantics"] = "mergekit"
        return result

    def _tokenizer(self, base: str | None, models: list[str]) -> dict[str, Any]:
        source = self.mapping.get("tokenizer_source")
        tokenizer = self.mapping.get("tokenizer")
        where = "tokenizer_source"
        if tokenizer is not None:
            if not isinstance(tokenizer, dict):
                self.problems.append(f"tokenizer: expected {{source: ...}}, got {tokenizer!r}")
                return {}
            for key in tokenizer:
                if key != "source":
                    self.problems.append(
                        f"tokenizer.{key}: not here; remove it (rows that not all have follow --vocabulary)"
                    )
            source, where = tokenizer.get("source", "union"), "tokenizer.source"
        if source is None:
            return {}
        if source == "union":
            self.problems.append(
                f"{where}: union is not here; name one parent, whose vocabulary the result takes (base or a model's "
                f"folder), "
                "and what to do with other rows (--vocabulary keep)"
            )
            return {}
        name = base if source == "base" else self._reference(source, where)
        if name is None:
            if source == "base":
                self.problems.append(f"{where}: base is asked for, but there is no base_model")
            return {}
        if name not in (base, *models):
            self.problems.append(f"{where}: expected one of the parents (base, {', '.join(models)}), got {name}")
        return {"tokenizer": name}

    def _reference(self, value: Any, where: str) -> str:
        """A model's folder or hub id; empty where it cannot be had, with the problem noted."""
        if isinstance(value, dict) and set(value) <= {"model", "lora", "override_architecture"} and "model" in value:
            for key in ("lora", "override_architecture"):
                if value.get(key) is not None:
                    self.problems.append(
                        f"{where}.{key}: {_LORA if key == 'lora' else 'not here; tensors are matched by name'}"
                    )
            value = value["model"]
        if isinstance(value, dict) and set(value) <= {"path", "revision"} and "path" in value:
            value = f"{value['path']}@{value['revision']}" if value.get("revision") else value["path"]
        if not isinstance(value, str):
            self.problems.append(f"{where}: expected a folder or a hub id, got {value!r}")
            return ""
        if "+" in value and not Path(value).expanduser().exists():
            self.problems.append(f"{where}: {value}: {_LORA}")
            return ""
        return value

    def _parameters(self, value: Any, where: str, known: tuple[str, ...]) -> dict[str, Any]:
        """Plain values of parameters; whatever varies by layer or by tensor is a problem."""
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.problems.append(f"{where}: expected parameters by name, got {value!r}")
            return {}
        found = {}
        for key, setting in value.items():
            if key in _WITHOUT_EFFECT.get(self.method or "", ("int8_mask",)):
                self.notes.append(f"{where}.{key}: without effect, here and in mergekit")
            elif self.method is not None and key not in known:
                hint = did_you_mean(str(key), known) or f" It takes {', '.join(known) or 'none there'}."
                self.problems.append(f"{where}.{key}: {self.mapping.get('merge_method')} does not take it.{hint}")
            else:
                found[key] = self._plain(setting, f"{where}.{key}")
        return found

    def _plain(self, setting: Any, where: str) -> Any:
        if isinstance(setting, list) and len(setting) == 1:
            setting = setting[0]
        if isinstance(setting, dict) and set(setting) == {"value"}:
            return self._plain(setting["value"], where)
        if isinstance(setting, dict) or (isinstance(setting, list) and any(isinstance(s, dict) for s in setting)):
            self.problems.append(f"{where}: filters by tensor name are not here; give one value for all tensors")
            return REFUSED
        if isinstance(setting, list):
            if setting and all(s == setting[0] for s in setting):
                return setting[0]
            self.problems.append(
                f"{where}: gradients over the layers are not here; give one value, such as {_middle(setting)}"
            )
            return REFUSED
        return setting

    def _number(self, holder: dict[str, Any], key: str, default: float | None, where: str) -> float | None:
        value = holder.get(key, default)
        if value is None:
            self.problems.append(f"{where}.{key} is missing: mergekit requires it")
        if value is None or value is REFUSED:
            return default
        try:
            if isinstance(value, bool):
                raise TypeError
            return float(value)
        except (TypeError, ValueError):
            self.problems.append(f"{where}.{key}: expected a number, got {value!r}")
            return default

    def _switch(self, key: str, default: bool) -> bool:
        value = self.shared.get(key, default)
        if value is REFUSED:
            return default
        if not isinstance(value, bool):
            self.problems.append(f"parameters.{key}: expected true or false, got {value!r}")
            return default
        return value

    def _each(self, key: str, models: list[tuple[str, dict[str, Any]]], default: float | None) -> list[float]:
        """A parameter of every model: its own, else the one for all, else the default; 1 where it cannot be had, with
        the problem noted."""
        found = []
        for name, parameters in models:
            own = key in parameters
            value = self._number(
                parameters if own else self.shared,
                key,
                default,
                f"models, {name}" if own or default is None else "parameters",
            )
            found.append(1.0 if value is None else value)
        return found

    def _same(self, key: str, models: list[tuple[str, dict[str, Any]]], default: float) -> float:
        """A parameter that is one for all models here."""
        known = [
            (name, parameters)
            for name, parameters in models
            if parameters.get(key, self.shared.get(key)) is not REFUSED
        ]
        values = self._each(key, known, default)
        if len(set(values)) > 1:
            listed = ", ".join(f"{v:g}" for v in values)
            self.problems.append(
                f"{key}: {self.method} has one for all models here, this request has {listed}; choose one"
            )
        return values[0] if values else default


REFUSED = object()
"""In place of a value that cannot be translated; the problem is noted."""
_LORA = "write the adapter's folder as a model; --adapter_base names its base where it does not do so itself"


def _known(method: str | None) -> tuple[str, ...]:
    return (*_SHARED.get(method or "", ()), *_EACH.get(method or "", ()))


def _middle(values: list[Any]) -> Any:
    return values[len(values) // 2] if values else 0.5
