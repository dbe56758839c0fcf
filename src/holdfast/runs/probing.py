"""`holdfast probe`: every model as it is and under every change, measured on one plan, into one folder.

A model is loaded once and changed in place. What a change gives is an ordinary evaluation in a folder of its own, keyed
by the weights, the change and the data: nothing is measured twice, and what was interrupted goes on in the middle.
`records.probe` has the layout.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigError, Interrupted, ModelError, NotFinite, RunFolderError, UserError
from holdfast.evaluation.entries import EvaluationPlan, PerplexityEntry
from holdfast.evaluation.probe.changes import Change, Material, kept
from holdfast.evaluation.probe.outcome import line_of, sensitivities, trends
from holdfast.evaluation.probe.settings import CurvatureSettings, labels_of
from holdfast.evaluation.session import ModelRequest, check_request
from holdfast.records.evaluation import Evaluation, EvaluationFolder
from holdfast.records.probe import (
    AS_IT_IS,
    NOISE,
    RECORD_FILE,
    TOWARD,
    Line,
    ProbedModel,
    ProbeRecord,
    Sharpness,
    read_probe,
)
from holdfast.statistics.intervals import t_half_width
from holdfast.support.environment import (
    hardware,
    now,
    quiet_libraries,
    result_folder,
    shown_name,
    terminated_is_interrupted,
    versions,
)
from holdfast.support.files import fingerprint, write_json
from holdfast.support.ledger import Ledger, read_ledger
from holdfast.support.progress import counted

if TYPE_CHECKING:
    from holdfast.evaluation.probe.curvature import Curvature

MERGED = "merged"
_RULES = 1
"""Raised when a change comes to mean something else."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Probe:
    """What is done to every model."""

    changes: Sequence[Change]
    std: str = "init"
    toward: Sequence[str] = ()
    curvature: CurvatureSettings = dataclasses.field(default_factory=CurvatureSettings)


def probe_models(
    models: Sequence[ModelRequest],
    plan: EvaluationPlan,
    probe: Probe,
    output_dir: str | Path,
    *,
    tokens: Mapping[str, float] | None = None,
    settings: Mapping[str, Any] | None = None,
    dtype: str = "auto",
    device: str | None = None,
    trust_remote_code: bool = False,
    console: Any = None,
    say: Callable[[str], None] = lambda line: None,
) -> ProbeRecord:
    """Measures every model under every change.

    Args:
        models: in the order of the report; of a ladder the smallest budget first.
        plan: what to measure.
        probe: the changes.
        output_dir: new, empty or of an earlier call.
        tokens: pre-training budgets by label; given, the models are a ladder.
        settings: for the record.
        dtype: one of `holdfast.models.DTYPES`.
        device: None: the first accelerator, else the CPU.
        trust_remote_code: runs Python code that comes with a model.
        console: for progress bars; None: standard error.
        say: called with what is done, a line at a time.

    Returns:
        The record, which is in the folder too. A change under which a figure is not finite is part of it.

    Raises:
        ConfigError: a model, a task or its data does not fit; all mistakes in one message, before anything is measured.
        RunFolderError: the folder holds something else, or another process is at work in it.
        NotFinite: a model as it is has figures that are not finite.
        Interrupted: Ctrl-C or SIGTERM; calling again continues.
    """
    out = Path(output_dir)
    if out.is_dir() and not (out / RECORD_FILE).is_file() and any(not f.name.startswith(".") for f in out.iterdir()):
        raise RunFolderError(
            f"{out} is not empty and holds no probe of holdfast. Expected a new or empty --output_dir, or an earlier "
            f"one."
        )
    session = _Session(plan, probe, out, dtype, device, trust_remote_code, console, say)
    with result_folder(out) as made, quiet_libraries(), terminated_is_interrupted():
        check_probe(models, plan, probe, dtype=dtype, device=device, trust_remote_code=trust_remote_code)
        made.keep()
        record = ProbeRecord(
            models=[],
            settings=dict(settings or {}),
            ladder=bool(tokens),
            confidence=plan.confidence,
            created=read_probe(out).created if (out / RECORD_FILE).is_file() else now(),
            versions=versions(),
            hardware=hardware(),
        )
        write_json(out / RECORD_FILE, record)
        ended = "failed"
        try:
            for model in models:
                found = session.model(model, (tokens or {}).get(model.label))
                record.models.append(found[0])
                record.sharpness.extend(found[1])
                record.notes.extend(n for n in found[2] if n not in record.notes)
            record.sensitivities.extend(
                s
                for model in models
                for s in sensitivities(out, model.label, probe.changes, confidence=plan.confidence, seed=plan.seed)
            )
            if tokens:
                ends = models[0].label, models[-1].label
                record.trends.extend(trends(record.sensitivities, *ends, confidence=plan.confidence))
            ended = "finished"
        except KeyboardInterrupt:
            ended = "interrupted"
            raise Interrupted(f"Interrupted; what was finished is in {out}. The same command continues.") from None
        finally:
            record = dataclasses.replace(record, status=ended)
            write_json(out / RECORD_FILE, record)
    return record


def check_probe(
    models: Sequence[ModelRequest],
    plan: EvaluationPlan,
    probe: Probe,
    *,
    dtype: str = "auto",
    device: str | None = None,
    trust_remote_code: bool = False,
) -> None:
    """Finds out before anything is measured whether all of it can be.

    Raises:
        ConfigError: all mistakes in one message.
    """
    from holdfast.checkpoints.locate import open_source
    from holdfast.models import check_causal_lm

    problems: list[str] = []
    try:
        check_request(models, plan, dtype=dtype, device=device, trust_remote_code=trust_remote_code)
    except ConfigError as error:
        problems += error.problems
    asked = probe.curvature
    if asked.curvature:
        if not any(_is_text(entry) for entry in plan.entries):
            problems.append("curvature: expected text to measure it on. Add --corpus FILE.")
        if dtype not in ("auto", "float32"):
            problems.append(f"curvature: expected --dtype float32, got {dtype}: products of its gradients are noise.")
        for model in models if dtype == "auto" and not problems else ():
            stored = getattr(check_causal_lm(model.name, trust_remote_code=trust_remote_code), "dtype", None)
            if stored is not None and "float32" not in str(stored):
                problems.append(
                    f"curvature: {model.label} is stored in {str(stored).removeprefix('torch.')}, whose gradients "
                    f"cannot be differentiated again. Add --dtype float32."
                )
    for name in probe.toward if not problems else ():
        try:
            shapes = {n: e.shape for n, e in open_source(name).entries.items()}
            for model in models:
                own = {n: e.shape for n, e in open_source(model.name).entries.items()}
                differ = sorted(n for n in own if shapes.get(n) != own[n])
                if differ:
                    problems.append(
                        f"toward: expected a model of {model.label}'s shapes, but {len(differ)} tensors of {name} are "
                        f"missing or differ ({', '.join(differ[:3])}). Name a model that was tuned from it."
                    )
        except UserError as error:
            problems.append(f"toward: {error}")
    if problems:
        raise ConfigError(problems, source="the probe")


@dataclasses.dataclass
class _Session:
    plan: EvaluationPlan
    probe: Probe
    out: Path
    dtype: str
    device: str | None
    trust_remote_code: bool
    console: Any
    say: Callable[[str], None]

    def model(self, request: ModelRequest, tokens: float | None) -> tuple[ProbedModel, list[Sharpness], list[str]]:
        """One model as it is and under every change: the model, its curvature, and notes."""
        from holdfast.models import load

        self.say(f"{request.label}: loading {request.name}")
        loaded = load(
            self._whole(request), dtype=self.dtype, device=self.device, trust_remote_code=self.trust_remote_code
        )
        material, std, notes = self._material(request, loaded)
        start = self._measured(request, loaded, None, material)
        if broken := [f"{e.suite}/{e.name}: {e.failed}" for e in start if e.failed is not None]:
            raise NotFinite(f"{request.label}: expected finite figures of the model as it is, got {' '.join(broken)}")
        for number, change in enumerate(self.probe.changes, 1):
            measured = self._measured(request, loaded, change, material)
            self.say(
                f"{request.label}: {change.name} ({number} of {len(self.probe.changes)}): {_told(start, measured)}"
            )
        sharpness = self._curvature(request, loaded, material) if self.probe.curvature.curvature else []
        identity = {k: v for k, v in loaded.identity.items() if k != "name"}
        del loaded
        gc.collect()
        model = ProbedModel(label=request.label, name=shown_name(request.name), tokens=tokens, stds=std, **identity)
        return model, sharpness, notes

    def _whole(self, request: ModelRequest) -> str:
        """The model, or the folder where an adapter is merged into its base: what is changed has to be whole."""
        from holdfast.checkpoints.adapters import is_adapter
        from holdfast.checkpoints.merge import prepare_merge
        from holdfast.checkpoints.named import located

        if not is_adapter(located(request.name)):
            return request.name
        folder = self.out / MERGED / request.label
        if not any(folder.glob("*.safetensors")):  # it appears whole
            prepare_merge("linear", [request.name]).write(folder, overwrite=True)
        return str(folder)

    def _material(self, request: ModelRequest, loaded: Any) -> tuple[Material, str, list[str]]:
        """What changes need, what noise is scaled by, and notes."""
        from holdfast.checkpoints.locate import open_source
        from holdfast.checkpoints.perturb import own_stds
        from holdfast.training.fresh_init import init_stds

        others = {label: open_source(name) for label, name in labels_of(self.probe.toward).items()}
        if not any(change.kind == NOISE for change in self.probe.changes):
            return Material(others=others), "", []
        if self.probe.std == "init":
            try:
                return Material(stds=init_stds(loaded.model), others=others), "init", []
            except ModelError as error:
                note = (
                    f"{request.label}: how it was initialised is not known ({error}), so noise is scaled by each "
                    f"tensor's present standard deviation, and its gammas are not those of models where it is."
                )
                self.say(note)
                stds = own_stds(open_source(self._whole(request)))
                return Material(stds=stds, others=others), "tensor", [note]
        return Material(stds=own_stds(open_source(self._whole(request))), others=others), "tensor", []

    def _measured(
        self, request: ModelRequest, loaded: Any, change: Change | None, material: Material
    ) -> list[Evaluation]:
        """The evaluations of a model as it is, or under a change; those that failed are among them."""
        from holdfast.evaluation.runner import evaluate, kept_evaluations

        folder = EvaluationFolder(self.out / request.label / (AS_IT_IS if change is None else change.name))
        identity = {"name": request.label, "hash": self._hash(loaded, change, material)}
        if found := kept_evaluations(self.plan, loaded.tokenizer, folder, identity):
            return found
        changed = contextlib.nullcontext() if change is None else change.on(loaded.model, material)
        with changed, contextlib.suppress(NotFinite):  # the evaluations say so
            evaluate(
                loaded.model,
                loaded.tokenizer,
                self.plan,
                folder=folder,
                model_identity=identity,
                console=self.console,
                start=EvaluationFolder(self.out / request.label / AS_IT_IS),
            )
        return [e for entry in self.plan.entries if (e := folder.find(entry.suite, entry.name)) is not None]

    def _hash(self, loaded: Any, change: Change | None, material: Material) -> str:
        """What identifies the figures of a changed model."""
        own = str(loaded.identity["hash"])
        if change is None:
            return own
        parts: list[Any] = [_RULES, own, change.kind, change.label, change.size, change.seed]
        if change.kind == NOISE:
            parts.append(dict(material.stds or {}))
        if change.kind == TOWARD:
            from holdfast.models import weights_hash

            parts[3] = weights_hash(labels_of(self.probe.toward)[change.label])
        return fingerprint(parts)

    def _curvature(self, request: ModelRequest, loaded: Any, material: Material) -> list[Sharpness]:
        from holdfast.evaluation.probe.curvature import Curvature, inner
        from holdfast.evaluation.text.documents import encode_document
        from holdfast.evaluation.text.perplexity import documents_of

        asked = self.probe.curvature
        entry = next(e for e in self.plan.entries if isinstance(e, PerplexityEntry) and _is_text(e))
        documents = documents_of(entry, loaded.tokenizer)[: asked.curvature]
        encoded = [encode_document(document, loaded.tokenizer) for document in documents]
        curvature = Curvature(loaded.model, encoded)
        names = [e.doc for e in encoded]
        file = self.out / request.label / "curvature.jsonl"
        key = fingerprint([_RULES, loaded.identity["hash"], names])
        held = {k: row["value"] for k, row in read_ledger(file).items()} if file.is_file() else {}

        def once(name: str, compute: Callable[[Callable[[int, int], None]], Any]) -> Any:
            place = f"{key} {name}"
            if place not in held:
                with counted(f"Curvature of {request.label}: {name}", console=self.console) as report:
                    held[place] = compute(report)
                with Ledger(file) as ledger:
                    ledger.add([{"key": place, "value": held[place]}])
            return held[place]

        def at_start(report: Callable[[int, int], None]) -> list[float]:
            zeros = [p.detach() * 0 for p in curvature.parameters]
            loss, gradient, _ = curvature.product(zeros, report)
            return [loss, math.sqrt(inner(gradient, gradient))]

        def traced(stds: Mapping[str, float] | None) -> tuple[float, tuple[float, float] | None]:
            what = "trace" if stds is None else f"noise trace {fingerprint(dict(stds), length=8)}"
            found = []
            for seed in range(asked.probes):
                signs = curvature.signs(seed, stds)
                found.append(once(f"{what} {seed}", partial(_curvature_along, curvature, signs)))
            mean, half = math.fsum(found) / len(found), t_half_width(found, confidence=self.plan.confidence)
            return mean, (mean - half, mean + half)

        loss, norm = once("loss", at_start)
        trace, trace_interval = traced(None)
        noise = traced(_by_parameter(loaded.model, material.stds)) if material.stds is not None else (None, None)
        count = min(asked.eigenvalues, curvature.size - 1)
        eigenvalues = once(f"{count} eigenvalues", partial(_eigenvalues, curvature, count)) if count else []
        lines = []
        for label, change in self._directions():
            found = once(
                f"{change.name} direction {self._hash(loaded, change, material)}",
                partial(_along, curvature, change, material),
            )
            losses = line_of(self.out / request.label, label, self.probe.changes, entry, names)
            lines.append(Line(label=label, losses=losses, **found))
        return [
            Sharpness(
                model=request.label,
                documents=len(documents),
                tokens=curvature.tokens,
                loss=loss,
                gradient_norm=norm,
                trace=trace,
                trace_interval=trace_interval,
                noise_trace=noise[0],
                noise_trace_interval=noise[1],
                probes=asked.probes,
                eigenvalues=eigenvalues,
                lines=lines,
            )
        ]

    def _directions(self) -> Iterator[tuple[str, Change]]:
        """Each line through the model that changes lie on, as a change of size 1: noise of the first seed, and each
        model that is stepped towards."""
        seen = set()
        first = next((c.seed for c in self.probe.changes if c.kind == NOISE), None)
        for change in self.probe.changes:
            on_line = change.kind == TOWARD or (change.kind == NOISE and change.seed == first)
            label = change.label or f"noise, seed {change.seed}"
            if on_line and label not in seen:
                seen.add(label)
                yield label, dataclasses.replace(change, size=1.0)  # type: ignore[type-var]


def _curvature_along(curvature: Curvature, vector: Sequence[Any], report: Callable[[int, int], None]) -> float:
    return curvature.along(vector, report).curvature


def _eigenvalues(curvature: Curvature, count: int, report: Callable[[int, int], None]) -> list[float]:
    return curvature.eigenvalues(count, report=report)


def _along(
    curvature: Curvature, change: Change, material: Material, report: Callable[[int, int], None]
) -> dict[str, float]:
    return dataclasses.asdict(curvature.along(_direction(curvature.model, change, material), report))


def _direction(model: Any, change: Change, material: Material) -> list[Any]:
    """What a change adds to each parameter."""
    parameters = list(model.parameters())
    with kept(parameters) as before, change.on(model, material):
        return [p.detach() - old for p, old in zip(parameters, before, strict=True)]


def _by_parameter(model: Any, stds: Mapping[str, float]) -> dict[str, float]:
    """Standard deviations by parameter, of those that may be given by the names in checkpoints."""
    from holdfast.checkpoints.live_tensors import checkpoint_names

    return {
        name: next(stds[n] for n in (name, *checkpoint_names(name)) if n in stds)
        for name, _ in model.named_parameters()
    }


def _is_text(entry: Any) -> bool:
    return isinstance(entry, PerplexityEntry) and not entry.memorisation


def _told(start: Sequence[Evaluation], measured: Sequence[Evaluation]) -> str:
    """The figures that lead, with their change."""
    found = []
    before = {(e.suite, e.name): e for e in start}
    for e in measured:
        one, old = e.metrics[e.primary], before[e.suite, e.name]
        value = (
            f"{one.value:.4g} ({one.value - old.metrics[e.primary].value:+.3g})" if e.failed is None else "not finite"
        )
        found.append(f"{e.name} {value}")
    return ", ".join(found[:4])
