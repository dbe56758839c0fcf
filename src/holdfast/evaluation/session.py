"""`holdfast evaluate`: several models on one plan, into one folder.

```
OUT/evaluate.json                     EvaluationRecord: which models, which suites, what it ran on
OUT/<label>/<suite>.<name>.json       Evaluation, with its .samples.jsonl beside it
OUT/report.html
```

Entries that a model was measured on already (same weights, data, settings and library versions) are taken from the folder, or from the cache that all
folders share; what was interrupted goes on in the middle. Models are loaded one after the other, and not at all where nothing is left to measure.
"""

from __future__ import annotations

import dataclasses
import gc
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.environment import hardware, lock_folder, now, quiet_libraries, terminated_is_interrupted, versions
from holdfast.errors import ConfigError, Interrupted, RunFolderError
from holdfast.evaluation.entries import EvaluationPlan
from holdfast.results import EvaluationFolder, EvaluationRecord, read_json, write_json

RECORD = "evaluate.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """One model to be measured."""

    name: str
    """Folder, adapter's folder or hub id."""
    label: str
    """Its folder in the output, and its name in tables."""


def requests_of(names: Sequence[str]) -> list[ModelRequest]:
    """Models by what the user wrote: MODEL, or LABEL=MODEL. Labels are made unique.

    Raises:
        ConfigError: a label twice, or one that is no file name.
    """
    requests: list[ModelRequest] = []
    problems = []
    for text in names:
        label, equals, name = text.partition("=")
        if equals and not Path(text).exists():
            if not re.fullmatch(r"[\w.-]+", label):
                problems.append(f"expected a label of letters, digits, '.', '_' and '-' in '{text}', got '{label}'")
            requests.append(ModelRequest(name=name, label=label))
            continue
        parts = [part for part in re.split(r"[/\\]", text.rstrip("/\\")) if part not in ("", ".", "..")] or [Path(text).resolve().name]
        taken = {request.label for request in requests}
        plain = _file_name(parts[-1])
        label = plain if plain not in taken or len(parts) < 2 else _file_name("-".join(parts[-2:]))
        number = 2
        while label in taken:
            label, number = f"{plain}-{number}", number + 1
        requests.append(ModelRequest(name=text, label=label))
    labels = [request.label for request in requests]
    twice = [label for label in dict.fromkeys(labels) if labels.count(label) > 1]
    problems += [f"two models are called '{label}'. Give them labels, as in before={labels[0]}" for label in twice]
    if problems:
        raise ConfigError(problems)
    return requests


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.-]", "-", text)


def evaluate_models(
    models: Sequence[ModelRequest],
    plan: EvaluationPlan,
    output_dir: str | Path,
    *,
    suites: Sequence[str] = (),
    cache: str | Path | None = None,
    dtype: str = "auto",
    device: str | None = None,
    trust_remote_code: bool = False,
    console: Any = None,
    say: Callable[[str], None] = lambda line: None,
) -> EvaluationRecord:
    """Measures every model on every entry of a plan.

    Args:
        models: in the order of the report.
        plan: what to measure.
        output_dir: see the module's docstring; new, empty or of an earlier call.
        suites: names for the record.
        cache: folder that evaluations are shared in; None: none.
        dtype: one of `holdfast.models.DTYPES`.
        device: None: the first accelerator, else the CPU.
        trust_remote_code: runs Python code that comes with a model.
        console: for progress bars; None: standard error.
        say: is told what is done, a line at a time.

    Raises:
        UserError: a model, a task or its data does not fit; of tasks and data all mistakes in one message, before anything is measured.
        RunFolderError: the folder holds something else, or another process is at work in it.
        Interrupted: Ctrl-C or SIGTERM; calling again continues.
    """
    from holdfast.evaluation.runner import check_plan, evaluate, kept_evaluations
    from holdfast.models import load, load_tokenizer, weights_hash

    out = Path(output_dir)
    refuse_foreign(out)
    with lock_folder(out), quiet_libraries(), terminated_is_interrupted():
        record = _open(out, plan, suites)
        try:
            tokenizers = {m.label: load_tokenizer(m.name, trust_remote_code=trust_remote_code) for m in models}
            problems: list[str] = []
            for model in models:
                found = check_plan(plan, tokenizers[model.label])
                problems += [p for p in (f"{model.label}: {p}" if len(models) > 1 else p for p in found) if p not in problems]
                if found:
                    break  # what is wrong with tasks and data is wrong for all
            if problems:
                raise ConfigError(problems, source="the evaluation")
            for number, model in enumerate(models, 1):
                folder = EvaluationFolder(out / model.label)
                identity = _known(record, model) | {"name": model.label, "hash": _hash(weights_hash, model, dtype)}
                if identity["hash"] and kept_evaluations(plan, tokenizers[model.label], folder, identity, cache=cache) is not None:
                    say(f"{model.label}: measured before, nothing to do")
                    _put(record, model, identity, out)
                    continue
                say(f"{model.label}: loading {model.name}" + (f" ({number} of {len(models)})" if len(models) > 1 else ""))
                loaded = load(model.name, dtype=dtype, device=device, trust_remote_code=trust_remote_code)
                identity = {**loaded.identity, "name": model.label}
                _put(record, model, identity, out)
                evaluate(loaded.model, loaded.tokenizer, plan, folder=folder, model_identity=_short(identity), cache=cache, console=console)
                say(f"{model.label}: {len(plan.entries)} entries measured")
                del loaded
                gc.collect()
        except KeyboardInterrupt:
            _end(record, out, "interrupted")
            raise Interrupted(f"Interrupted; what was finished is in {out}. The same command continues.") from None
        except BaseException:
            _end(record, out, "failed")
            raise
        _end(record, out, "finished")
    return record


def refuse_foreign(out: Path) -> None:
    """A folder with files that are no evaluation is not touched.

    Raises:
        RunFolderError: it is such a folder.
    """
    if out.is_dir() and not (out / RECORD).is_file() and any(not entry.name.startswith(".") for entry in out.iterdir()):
        raise RunFolderError(f"{out} is not empty and holds no evaluation of holdfast. Expected a new or empty --output_dir, or an earlier one.")


def read_record(out: str | Path) -> EvaluationRecord:
    """The record of an output folder.

    Raises:
        DataError: there is none, or it cannot be read.
    """
    return EvaluationRecord.from_json(read_json(Path(out) / RECORD))


def _open(out: Path, plan: EvaluationPlan, suites: Sequence[str]) -> EvaluationRecord:
    record = read_record(out) if (out / RECORD).is_file() else EvaluationRecord(created=now())
    record.suites = list(dict.fromkeys([*record.suites, *suites]))
    record.plan = dataclasses.asdict(plan)
    record.status, record.finished = "running", None
    record.versions, record.hardware = versions(), hardware()
    write_json(out / RECORD, record)
    return record


def _put(record: EvaluationRecord, model: ModelRequest, identity: Mapping[str, Any], out: Path) -> None:
    """Adds a model to the record, or replaces the one of its label."""
    entry = {"label": model.label, **{k: v for k, v in identity.items() if k != "name"}}
    labels = [m["label"] for m in record.models]
    if model.label in labels:
        record.models[labels.index(model.label)] = entry
    else:
        record.models.append(entry)
    write_json(out / RECORD, record)


def _end(record: EvaluationRecord, out: Path, status: str) -> None:
    record.status = status
    record.finished = now() if status == "finished" else None
    write_json(out / RECORD, record)


def _known(record: EvaluationRecord, model: ModelRequest) -> dict[str, Any]:
    return next((dict(m) for m in record.models if m["label"] == model.label), {})


def _hash(weights_hash: Callable[..., str], model: ModelRequest, dtype: str) -> str:
    """The model's hash where its weights are on disk already; empty for a hub id that was never loaded."""
    from holdfast.errors import ModelError

    try:
        return weights_hash(model.name, dtype=dtype)
    except ModelError:
        return ""


def _short(identity: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": identity["name"], "hash": identity["hash"]}
