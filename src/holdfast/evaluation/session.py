"""`holdfast evaluate`: several models on one plan, into one folder.

```
OUT/evaluate.json                     EvaluationRecord: which models, which suites, what it ran on
OUT/<label>/<suite>.<name>.json       Evaluation, with its .samples.jsonl beside it
OUT/report.html
```

Entries that a model was measured on already (same weights, data, settings and library versions) are
taken from the folder, or from the cache that all folders share; what was interrupted goes on in the
middle. Models are loaded one after the other, and not at all where nothing is left to measure.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import re
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from holdfast.errors import (
    ConfigError,
    Interrupted,
    ModelError,
    NotFinite,
    RunFolderError,
    UserError,
)
from holdfast.evaluation.averages import SUITE
from holdfast.evaluation.compare.folders import weights_of
from holdfast.evaluation.entries import EvaluationPlan, Processor
from holdfast.evaluation.images import processor_fingerprint
from holdfast.evaluation.kinds.own import OwnEntry
from holdfast.evaluation.loading import ModelLoading
from holdfast.evaluation.processes import (
    SINGLE,
    ProcessGroup,
    check_count,
    device_of_process,
    launch,
)
from holdfast.evaluation.served import connect, is_address, refused_entries
from holdfast.records.evaluation import Evaluation, EvaluationFolder, EvaluationRecord
from holdfast.support.environment import (
    hardware,
    has_fast_bfloat16,
    now,
    quiet_libraries,
    result_folder,
    shown_name,
    terminated_is_interrupted,
    versions,
)
from holdfast.support.files import read_as, read_object, write_json
from holdfast.support.paths import expanded, real
from holdfast.support.progress import ProgressDisplay
from holdfast.support.resources import release_memory

if TYPE_CHECKING:
    from holdfast.models import Loaded

RECORD = "evaluate.json"
PAGE = "report.html"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """A model to evaluate."""

    name: str
    """Folder, adapter folder, hub id, or address of the server that has the model (see
    `served`)."""
    label: str
    """Name of the model's folder in the output, and of the model in tables."""


def requests_of(names: Sequence[str]) -> list[ModelRequest]:
    """Models by what the user wrote: MODEL, or LABEL=MODEL. Labels are made unique.

    Raises:
        ConfigError: a label twice, or one that is no file name.
    """
    requests: list[ModelRequest] = []
    problems = []
    for text in names:
        label, equals, name = text.partition("=")
        if not equals or Path(text).exists():
            name = _expanded(text)
            requests.append(
                ModelRequest(name=name, label=_free_label(name, {r.label for r in requests}))
            )
            continue
        # ".." would be a folder outside, and the record and the page lie beside the models' folders
        if not re.fullmatch(r"[\w-][\w.-]*", label) or label in (RECORD, PAGE):
            problems.append(
                f"expected a label of letters, digits, '.', '_' and '-', because the label names a "
                f"folder, got '{label}' in '{text}'"
            )
        if not name:
            problems.append(f"expected a model after '{text}', as in {label or 'before'}=FOLDER")
        requests.append(ModelRequest(name=_expanded(name), label=label))
    by_label: dict[str, list[str]] = {}
    for request in requests:
        by_label.setdefault(request.label, []).append(request.name)
    for label, models in by_label.items():
        if len(models) > 1:
            problems.append(
                f"two models have the label '{label}'. Give them different labels, as in "
                f"before={models[0]} after={models[1]}"
            )
    if problems:
        raise ConfigError(problems)
    return requests


def _free_label(name: str, taken: Container[str]) -> str:
    """The model's folder as a label, with the folder above it or a number where that is taken; a
    server's name of a model, or its host."""
    if is_address(name):
        address = urlsplit(name)
        name = address.fragment or address.netloc
    folders = []
    for folder in re.split(r"[/\\]", name.rstrip("/\\")):
        if folder not in ("", ".", ".."):
            folders.append(re.sub(r"[^\w.-]", "-", folder))
    folders = folders or [re.sub(r"[^\w.-]", "-", real(name).name)]
    last = label = folders[-1]
    if label in taken and len(folders) > 1:
        label = "-".join(folders[-2:])
    numbers = itertools.count(2)
    while label in taken:
        label = f"{last}-{next(numbers)}"
    return label


def _expanded(name: str) -> str:
    """The shell leaves `~` in LABEL=~/folder as it is."""
    return str(expanded(name)) if name.startswith("~") else name


def evaluate_models(
    models: Sequence[ModelRequest],
    plan: EvaluationPlan,
    output_dir: str | Path,
    *,
    suites: Sequence[str] = (),
    cache: str | Path | None = None,
    loading: ModelLoading = ModelLoading(),
    processes: int | ProcessGroup = 1,
    display: ProgressDisplay = ProgressDisplay(),
) -> EvaluationRecord:
    """Evaluates every model on every entry of a plan.

    Args:
        models: the models, in the order of the report.
        plan: what to measure.
        output_dir: the output folder (see the module's docstring). It is new, empty, or from an
            earlier call.
        suites: names of the suites, for the record.
        cache: a folder in which evaluations are shared; None: none.
        loading: dtype and device of the models, and how to query models behind servers.
        processes: how many processes share the questions. The call starts them, and each holds the
            whole model. Or a group of processes that already run (torchrun); each of them then
            makes this call with the same arguments.
        display: where progress is shown.

    Raises:
        ConfigError: a model, a task or its data does not fit, or two models would write to the
            folder of one label. The message lists all mistakes, before anything is measured.
        RunFolderError: the folder holds something else, or another process is using it.
        NotFinite: figures of some models are NaN or infinite; raised after all models were
            measured.
        Interrupted: Ctrl-C or SIGTERM; calling again continues.
    """
    count = processes if isinstance(processes, int) else processes.world_size
    if count > 1 and loading.device_map is not None:
        raise ConfigError(
            f"device_map: each of the {count} processes loads the whole model on its own device. "
            "Use one process, or leave device_map out."
        )
    if isinstance(processes, int) and count > 1:
        check_count(count, loading.device)
        request: dict[str, Any] = {
            "models": list(models), "plan": plan, "output_dir": output_dir, "suites": suites, "cache": cache,
            "loading": loading,
        }  # fmt: skip
        with launch(count) as launched:
            _send(request, launched)
            return evaluate_models(**request, processes=launched, display=display)
    from holdfast.support.dates import dates_of

    if count > 1:
        loading = dataclasses.replace(loading, device=device_of_process(loading.device))
    processes = SINGLE if isinstance(processes, int) else processes
    run = _Session(
        models=models, plan=plan, out=Path(output_dir), cache=cache, processes=processes, loading=loading,
        display=display,
    )  # fmt: skip
    with quiet_libraries(), terminated_is_interrupted():
        if not processes.is_main:
            with dates_of(processes.broadcast(now)):
                return run.run_worker()
        refuse_foreign(run.out)
        with result_folder(run.out) as folder:
            created = read_record(run.out).created if (run.out / RECORD).is_file() else now()
            with dates_of(processes.broadcast(lambda: created)):
                return run.run_main(suites, created, keep=folder.keep)


def _send(request: Mapping[str, Any], processes: ProcessGroup) -> None:
    """Sends the arguments of `evaluate_models` from the main process to the workers."""
    classes = []
    for entry in request["plan"].entries:
        if isinstance(entry, OwnEntry):
            classes.append(f"{entry.file}:{type(entry.own).__qualname__}")
    # loaded before the request is unpickled, which refers to them
    processes.broadcast(lambda: classes)
    processes.broadcast(lambda: request)


def load_model(model: ModelRequest, loading: ModelLoading) -> Loaded:
    """A model, in memory or behind a server."""
    from holdfast.models import load

    if is_address(model.name):
        return connect(model.name, loading.server)
    return load(
        model.name,
        dtype=precision(model.name, loading.dtype, loading.device),
        device=loading.device,
        device_map=loading.device_map,
        trust_remote_code=loading.trust_remote_code,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Session:
    """One call of `evaluate_models`, in one of its processes."""

    models: Sequence[ModelRequest]
    plan: EvaluationPlan
    out: Path
    cache: str | Path | None
    processes: ProcessGroup
    loading: ModelLoading
    display: ProgressDisplay

    def kept(self) -> dict[str, str]:
        """What is measured already, see `check_request`."""
        return self.processes.broadcast(
            lambda: check_request(
                self.models, self.plan, out=self.out, cache=self.cache, loading=self.loading
            )
        )

    def loaded(self, model: ModelRequest) -> Loaded:
        """The model, in memory or behind a server.

        Raises:
            ConfigError: as `_other_weights`; of a model of the hub the weights are known now.
        """
        loaded = load_model(model, self.loading)
        weights = loaded.identity.get("weights", loaded.identity["hash"])
        if wrong := _other_weights(EvaluationFolder(self.out / model.label), self.plan, weights):
            raise ConfigError(f"{model.label}: {wrong}")
        return loaded

    def measure(self, model: ModelRequest, loaded: Loaded) -> None:
        from holdfast.evaluation.runner import evaluate

        identity: dict[str, Any] = {"name": model.label}
        for key in ("hash", "configuration", "origin", "weights"):
            if key in loaded.identity:
                identity[key] = loaded.identity[key]
        evaluate(
            dataclasses.replace(loaded, identity=identity),
            self.plan,
            folder=EvaluationFolder(self.out / model.label),
            cache=self.cache,
            console=self.display.console,
            start=EvaluationFolder(self.out / self.models[0].label),
            processes=self.processes,
        )

    def run_worker(self) -> EvaluationRecord:
        """Measures this process's share, and returns the main process's record."""
        kept_hashes = self.kept()
        for model in self.models:
            if model.label not in kept_hashes:
                # the main process reports what is not finite
                loaded = self.loaded(model)
                with contextlib.suppress(NotFinite):
                    self.measure(model, loaded)
                del loaded
                release_memory()
        return self.processes.broadcast(lambda: EvaluationRecord(created=""))

    def run_main(
        self, suites: Sequence[str], created: str, *, keep: Callable[[], None]
    ) -> EvaluationRecord:
        """Measures with the others, if there are any, and writes the folder, which was begun
        then."""
        from holdfast.evaluation.runner import check_whole

        kept_hashes = self.kept()
        record = _open(self.out, self.plan, suites, created)
        ended = "failed"
        broken: list[str] = []
        try:
            for number, model in enumerate(self.models, 1):
                if model.label in kept_hashes:
                    keep()
                    self.display.say(f"{model.label}: measured before, nothing to do")
                    _put(
                        record,
                        model,
                        _known(record, model, kept_hashes[model.label], self.cache),
                        self.out,
                    )
                    continue
                count = f" ({number} of {len(self.models)})" if len(self.models) > 1 else ""
                self.display.say(f"{model.label}: loading {model.name}{count}")
                dtype = precision(model.name, self.loading.dtype, self.loading.device)
                if dtype != self.loading.dtype:
                    self.display.say(
                        f"{model.label}: loaded in {dtype}, because this processor has no bfloat16 "
                        "instructions (--dtype bfloat16 keeps the saved bfloat16)"
                    )
                loaded = self.loaded(model)
                _put(record, model, loaded.identity, self.out)
                if self.cache is not None:
                    write_json(_identity_file(self.cache, loaded.identity["hash"]), loaded.identity)
                keep()
                try:
                    self.measure(model, loaded)
                except NotFinite as error:  # the other models are measured all the same
                    broken.append(str(error))
                del loaded
                release_memory()
                self.display.say(f"{model.label}: {len(self.plan.entries)} entries measured")
            self.processes.broadcast(lambda: record)
            for model in self.models:
                check_whole(EvaluationFolder(self.out / model.label), self.plan)
            if broken:
                raise NotFinite(*broken)
            ended = "finished"
        except KeyboardInterrupt:
            ended = "interrupted"
            raise Interrupted(
                f"Interrupted; finished work is in {self.out}. Run the same command to continue."
            ) from None
        finally:
            record.status, record.finished = ended, now() if ended == "finished" else None
            write_json(self.out / RECORD, record)
        return record


def check_request(
    models: Sequence[ModelRequest],
    plan: EvaluationPlan,
    *,
    out: Path | None = None,
    cache: str | Path | None = None,
    loading: ModelLoading = ModelLoading(),
) -> dict[str, str]:
    """Finds out before anything is measured whether all of it can be: models, tokenizers, tasks and
    their data.

    Args:
        models, plan, cache, loading: as for `evaluate_models`.
        out: the output folder, in which a model that was measured before needs no tasks and no data
            any more; None: all are checked.

    Returns:
        Hash by label, of the models of which everything is in `out`, or was in the cache and is in
        `out` now.

    Raises:
        ConfigError: all mistakes in one message.
    """
    from holdfast.evaluation.runner import check_plan, kept_evaluations, tokenizer_fingerprint
    from holdfast.models import check_fit, usable_device

    problems = _problems(usable_device, loading.device)
    hashes: dict[str, str] = {}
    start = EvaluationFolder((out or Path()) / models[0].label) if models else None
    checked: set[tuple[str, str]] = set()
    wrong_entries: Sequence[str] = []
    for model in models:
        candidate = _Candidate(model=model, plan=plan, loading=loading)
        candidate.read()
        title = f"{model.label}: " if len(models) > 1 else ""
        problems += [f"{title}{problem}" for problem in candidate.problems]
        if candidate.tokenizer is None:
            continue
        folder = EvaluationFolder((out or Path()) / model.label)
        if out is not None and (
            cache is not None or folder.path.is_dir()
        ):  # else nothing is kept; hashes take a while
            identity = candidate.identity()
            if wrong := _other_weights(folder, plan, identity.get("weights", identity["hash"])):
                problems.append(f"{model.label}: {wrong}")
                continue
            evaluations = None
            with contextlib.suppress(UserError):  # found again below, with its place
                if identity["hash"]:
                    evaluations = kept_evaluations(
                        plan, candidate.tokenizer, folder, identity, cache=cache, start=start,
                        processor=candidate.processor,
                    )  # fmt: skip
            if evaluations is not None:
                hashes[model.label] = identity["hash"]
                continue
        if candidate.is_readable:
            for problem in _problems(
                check_fit, model.name, trust_remote_code=loading.trust_remote_code
            ):
                problems.append(f"{title}{problem}")
        processor = (
            "" if candidate.processor is None else processor_fingerprint(candidate.processor)
        )
        reader = tokenizer_fingerprint(candidate.tokenizer), processor
        if wrong_entries or reader in checked:  # what is wrong with tasks and data is wrong for all
            continue
        wrong_entries = check_plan(plan, candidate.tokenizer, candidate.processor)
        problems += [
            f"{model.label}: {problem}" if checked else problem for problem in wrong_entries
        ]
        checked.add(reader)
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)), source="the evaluation")
    return hashes


@dataclasses.dataclass(kw_only=True)
class _Candidate:
    """A model that is to be measured, as far as it is known before it is loaded."""

    model: ModelRequest
    plan: EvaluationPlan
    loading: ModelLoading
    """Runs Python code that comes with a model."""
    tokenizer: Any = None
    """None where it cannot be read."""
    processor: Processor | None = None
    served_hash: str | None = None
    """Of a model at an address."""
    is_readable: bool = False
    """Whether its configuration is sound."""
    problems: list[str] = dataclasses.field(default_factory=list)

    def read(self) -> None:
        """Finds tokenizer and processor, and what is wrong with the model."""
        from holdfast.models import check_model

        name = self.model.name
        if is_address(name):
            self.problems = _problems(self._reach)
            return
        self.problems = _problems(
            check_model, name, trust_remote_code=self.loading.trust_remote_code, fit=False
        )
        self.is_readable = not self.problems
        if (
            self.is_readable or Path(name).is_dir()
        ):  # what is not on the hub has no tokenizer there either
            self.problems += _problems(self._load)

    def _reach(self) -> None:
        loaded = connect(self.model.name, self.loading.server)
        self.tokenizer, self.served_hash = loaded.tokenizer, loaded.identity["hash"]
        scores = loaded.model.scores_prompts
        if refused := refused_entries(
            self.plan, loaded.model.name, loaded.tokenizer, scores_prompts=scores
        ):
            raise ConfigError(refused)

    def _load(self) -> None:
        from holdfast.models import load_tokenizer, processor_of

        self.tokenizer = load_tokenizer(
            self.model.name, trust_remote_code=self.loading.trust_remote_code
        )
        self.processor = processor_of(
            self.model.name, trust_remote_code=self.loading.trust_remote_code
        )

    def identity(self) -> dict[str, Any]:
        """As `runner.evaluate` takes it; the hash is empty where the weights are not on disk."""
        from holdfast.models import configuration_of

        if self.served_hash is not None:
            return {"name": self.model.label, "hash": self.served_hash, "weights": None}
        weights = _hash(
            self.model, precision(self.model.name, self.loading.dtype, self.loading.device)
        )
        identity: dict[str, Any] = {"name": self.model.label, "hash": weights}
        if weights:
            identity["configuration"] = configuration_of(self.model.name)
        return identity


def _problems(check: Callable[..., Any], *args: Any, **kwargs: Any) -> list[str]:
    """What a check has against its arguments."""
    try:
        check(*args, **kwargs)
    except UserError as error:
        return [str(error)]
    return []


def refuse_foreign(out: Path) -> None:
    """A folder with files that are no evaluation is not touched.

    Raises:
        RunFolderError: it is such a folder.
    """
    if (
        out.is_dir()
        and not (out / RECORD).is_file()
        and any(not entry.name.startswith(".") for entry in out.iterdir())
    ):
        raise RunFolderError(
            f"Expected a new or empty --output_dir, or the folder of an earlier evaluation; {out} "
            "has other files. Choose another folder."
        )


def read_record(out: str | Path) -> EvaluationRecord:
    """The record of an output folder.

    Raises:
        DataError: there is none, or it cannot be read.
    """
    return read_as(Path(out) / RECORD, EvaluationRecord)


def _open(out: Path, plan: EvaluationPlan, suites: Sequence[str], created: str) -> EvaluationRecord:
    record = read_record(out) if (out / RECORD).is_file() else EvaluationRecord(created=created)
    record.suites = list(dict.fromkeys([*record.suites, *suites]))
    record.plan = plan.record()
    record.status, record.finished = "running", None
    record.versions, record.hardware = versions(), hardware()
    write_json(out / RECORD, record)
    return record


def _put(
    record: EvaluationRecord, model: ModelRequest, identity: Mapping[str, Any], out: Path
) -> None:
    """Adds a model to the record, or replaces the one of its label."""
    entry = {"label": model.label, **identity, "name": shown_name(model.name)}
    if os.path.isdir(model.name):
        # relative, so that a folder that is moved with its models still finds them
        entry["folder"] = os.path.relpath(real(model.name), real(out))
    for number, known in enumerate(record.models):
        if known["label"] == model.label:
            record.models[number] = entry
            break
    else:
        record.models.append(entry)
    write_json(out / RECORD, record)


def _known(
    record: EvaluationRecord, model: ModelRequest, hash_: str, cache: str | Path | None
) -> dict[str, Any]:
    """What is known of a model that is not loaded, from the record or from whoever put it into the
    cache."""
    for known in record.models:
        if known["label"] == model.label and known.get("hash") == hash_:
            return dict(known)
    if cache is not None and _identity_file(cache, hash_).is_file():
        return {**read_object(_identity_file(cache, hash_)), "hash": hash_}
    return {"hash": hash_}


def _identity_file(cache: str | Path, hash_: str) -> Path:
    return Path(cache) / "models" / f"{hash_}.json"


def _other_weights(
    folder: EvaluationFolder, plan: EvaluationPlan, weights: str | None
) -> str | None:
    """Why a model cannot be measured into a label's folder: evaluations of other weights that the
    plan does not make anew would stay beside its own. None where it can, or where either's weights
    are not known."""
    if not weights:
        return None
    replaced = {(entry.suite, entry.name) for entry in plan.entries}
    replaced |= {(SUITE, average.name) for average in plan.averages}
    stay = []
    for file in folder.files():
        with contextlib.suppress(UserError):
            evaluation = read_as(file, Evaluation)
            if (evaluation.suite, evaluation.name) in replaced:
                continue
            if weights_of(evaluation) not in (None, weights):
                stay.append(f"{evaluation.suite}/{evaluation.name}")
    if not stay:
        return None
    return (
        f"{folder.path} has evaluations of other weights, or of the same weights in another dtype. "
        "This request does not measure some of their entries. The old results of these entries "
        f"would stay beside the new ones: {', '.join(stay)}. Give the model another label, as in "
        "NEW=MODEL, or use another --output_dir."
    )


def precision(name: str, dtype: str, device: str | None) -> str:
    """The dtype that a model is measured in: of weights in bfloat16, on a processor that has no
    instructions for it, float32 in place of "auto"."""
    from holdfast.models import saved_dtype, usable_device

    if (
        dtype != "auto"
        or is_address(name)
        or has_fast_bfloat16()
        or usable_device(device).type != "cpu"
    ):
        return dtype
    return "float32" if saved_dtype(name) == "bfloat16" else dtype


def _hash(model: ModelRequest, dtype: str) -> str:
    """The model's hash where its weights are on disk already; empty for a hub id that was never
    loaded."""
    from holdfast.models import weights_hash

    try:
        return weights_hash(model.name, dtype=dtype)
    except ModelError:
        return ""
