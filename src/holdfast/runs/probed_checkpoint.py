"""One checkpoint of a probe: measured as it is and under changes, and its curvature. It is loaded
when the first figure is missing, and not at all where none is."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import ModelError, NotFinite
from holdfast.evaluation.entries import EvaluationPlan
from holdfast.evaluation.kinds.perplexity import PerplexityEntry
from holdfast.evaluation.loading import ModelLoading
from holdfast.evaluation.probe.changes import Change, Material, kept
from holdfast.evaluation.probe.outcome import line_of
from holdfast.evaluation.probe.settings import CurvatureSettings, named_models
from holdfast.evaluation.probe.stds import INIT, TENSOR, noise_stds
from holdfast.evaluation.session import ModelRequest
from holdfast.records.evaluation import Evaluation, EvaluationFolder
from holdfast.records.figure import t_half_width
from holdfast.records.probe import AS_IT_IS, NOISE, QUANTIZE, TOWARD, Line, ProbedModel, Sharpness
from holdfast.support.environment import shown_name
from holdfast.support.files import fingerprint
from holdfast.support.ledger import Ledger, read_ledger
from holdfast.support.progress import ProgressDisplay, counted

if TYPE_CHECKING:
    from holdfast.evaluation.probe.curvature import Curvature
    from holdfast.models import Loaded

MERGED = "merged"
LEAST_IN_HALF = 0.02
"""Gamma below which noise on weights as wide as their initialisation is no larger than a few of
bfloat16's steps."""
_RULES = 1
"""Raised when a change comes to mean something else."""
Report = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Probe:
    """What is done to every model."""

    changes: Sequence[Change]
    std: str | Mapping[str, float] = INIT
    toward: Sequence[str] = ()
    curvature: CurvatureSettings = dataclasses.field(default_factory=CurvatureSettings)


class ProbedCheckpoint:
    """One model and what is found of it; arguments as of `probing.probe_models`."""

    def __init__(
        self,
        request: ModelRequest,
        *,
        plan: EvaluationPlan,
        probe: Probe,
        out: Path,
        loading: ModelLoading,
        display: ProgressDisplay,
    ) -> None:
        self.request, self.plan, self.probe, self.folder = request, plan, probe, out / request.label
        self.loading, self.display = loading, display
        self._merged = out / MERGED / request.label
        self.notes: list[str] = []
        """What a reader should know."""
        self.stds_of = ""
        """What noise is scaled by: "init" or "tensor"; "" before it is asked for."""

    # ------------------------------------------------------------------------------------ the model

    @functools.cached_property
    def name(self) -> str:
        """The model, or the folder where an adapter is merged into its base: what is changed has to
        be whole."""
        from holdfast.checkpoints.adapter_settings import is_adapter
        from holdfast.checkpoints.merge import prepare_merge
        from holdfast.checkpoints.named import located

        if not is_adapter(located(self.request.name)):
            return self.request.name
        if not any(self._merged.glob("*.safetensors")):  # it appears whole
            prepare_merge("linear", [self.request.name]).write(self._merged, overwrite=True)
        return str(self._merged)

    @functools.cached_property
    def loaded(self) -> Loaded:
        """In memory."""
        from holdfast.models import load

        self.display.say(f"{self.request.label}: loading {self.request.name}")
        loading = self.loading
        return load(
            self.name,
            dtype=loading.dtype,
            device=loading.device,
            trust_remote_code=loading.trust_remote_code,
        )

    @functools.cached_property
    def tokenizer(self) -> Any:
        from holdfast.models import load_tokenizer

        return load_tokenizer(self.name, trust_remote_code=self.loading.trust_remote_code)

    @functools.cached_property
    def processor(self) -> Callable[[], Any] | None:
        """As `models.processor_of` gives it."""
        from holdfast.models import processor_of

        return processor_of(self.name, trust_remote_code=self.loading.trust_remote_code)

    @functools.cached_property
    def hash(self) -> str:
        """Of the weights, the dtype that they are used in, and the configuration."""
        from holdfast.models import configuration_of, weights_hash

        with contextlib.suppress(ModelError):  # on a hub, and not here yet
            return fingerprint(
                [weights_hash(self.name, dtype=self.loading.dtype), configuration_of(self.name)]
            )
        return fingerprint([self.loaded.identity["hash"], self.loaded.identity["configuration"]])

    @functools.cached_property
    def material(self) -> Material:
        """What changes need to know of it."""
        from holdfast.checkpoints.locate import open_source
        from holdfast.training.fresh_init import init_stds

        others = {
            label: open_source(name) for label, name in named_models(self.probe.toward).items()
        }
        if not any(change.kind == NOISE for change in self.probe.changes):
            return Material(others=others)
        std = self.probe.std
        if std == INIT:
            try:
                stds = init_stds(self.name, trust_remote_code=self.loading.trust_remote_code)
            except ModelError as error:
                self.notes.append(
                    f"{self.request.label}: its initialisation is unknown ({error}), so noise is "
                    "scaled by each tensor's current standard deviation. Its gammas cannot be "
                    "compared with those of models of known initialisation."
                )
                self.display.say(self.notes[-1])
                std = TENSOR
            else:
                self.stds_of = INIT
                return Material(stds=stds, others=others)
        self.stds_of = TENSOR if std == TENSOR else INIT
        return Material(stds=noise_stds(std, open_source(self.name)), others=others)

    def described(self, tokens: float | None, before: Sequence[ProbedModel]) -> ProbedModel:
        """The model for the record.

        Args:
            tokens: that it was pre-trained on.
            before: models of an earlier record, which may know it without its being loaded.
        """
        known = next((m for m in before if m.hash == self.hash), None)
        if known is None:
            aside = ("name", "hash", "configuration")
            details = {k: v for k, v in self.loaded.identity.items() if k not in aside}
            known = ProbedModel(label="", name="", hash=self.hash, **details)
        small = sorted(
            {c.size for c in self.probe.changes if c.kind == NOISE and c.size < LEAST_IN_HALF}
        )
        if small and known.dtype in ("bfloat16", "float16"):
            sizes = ", ".join(f"{size:g}" for size in small)
            self.notes.append(
                f"{self.request.label} is measured in {known.dtype}, whose rounding error is as "
                f"large as the noise at γ {sizes}: much of the noise is rounded away. Use "
                "--dtype float32."
            )
        if known.origin and any(c.kind == QUANTIZE for c in self.probe.changes):
            self.notes.append(
                f"{self.request.label} is {known.origin}: its weights are rounded already. "
                "Rounding them again differs in effect from rounding the original weights."
            )
        name, label = shown_name(self.request.name), self.request.label
        return dataclasses.replace(known, label=label, name=name, tokens=tokens, stds=self.stds_of)

    # -------------------------------------------------------------------------------- under changes

    def measured(self, change: Change | None) -> list[Evaluation]:
        """The evaluations as it is, or under a change; those that failed are among them."""
        from holdfast.evaluation.runner import evaluate, kept_evaluations
        from holdfast.models import Loaded

        folder = EvaluationFolder(self.folder / (AS_IT_IS if change is None else change.name))
        identity = {"name": self.request.label, "hash": self._hash_under(change)}
        evaluations = kept_evaluations(
            self.plan, self.tokenizer, folder, identity, processor=self.processor
        )
        if evaluations:
            return evaluations
        model = self.loaded.model
        changed = contextlib.nullcontext() if change is None else change.on(model, self.material)
        with changed, contextlib.suppress(NotFinite):  # the evaluations say so
            evaluate(
                Loaded(
                    model=model,
                    tokenizer=self.tokenizer,
                    identity=identity,
                    processor=self.processor,
                ),
                self.plan,
                folder=folder,
                console=self.display.console,
                start=EvaluationFolder(self.folder / AS_IT_IS),
            )
        measured = [folder.find(entry.suite, entry.name) for entry in self.plan.entries]
        return [evaluation for evaluation in measured if evaluation is not None]

    def _hash_under(self, change: Change | None) -> str:
        """What identifies the figures of the changed model."""
        if change is None:
            return self.hash
        parts: list[Any] = [_RULES, self.hash, change.kind, change.label, change.size, change.seed]
        if change.kind == NOISE:
            parts.append(dict(self.material.stds or {}))
        if change.kind == TOWARD:
            from holdfast.models import weights_hash

            parts[3] = weights_hash(named_models(self.probe.toward)[change.label])
        return fingerprint(parts)

    # ------------------------------------------------------------------------------------ curvature

    def sharpness(self) -> Sharpness:
        """The curvature of its loss on the first documents of the first text; every product is kept
        once it is had."""
        from holdfast.evaluation.kinds.perplexity import documents_of
        from holdfast.evaluation.text.documents import encode_document

        settings = self.probe.curvature
        entry = next(e for e in self.plan.entries if isinstance(e, PerplexityEntry) and is_text(e))
        documents = documents_of(entry, self.tokenizer).documents[: settings.curvature]
        encoded = [encode_document(document, self.tokenizer) for document in documents]
        names = [e.doc for e in encoded]
        kept_products = _Kept(self, fingerprint([_RULES, self.hash, names]), encoded)
        loss, norm = kept_products("loss", _at_start)
        stds = self.material.stds
        trace, interval = self._trace(kept_products, None)
        noise = (None, None) if stds is None else self._trace(kept_products, stds)
        lines = []
        for label, change in self._directions():
            key = f"{change.name} direction {self._hash_under(change)}"
            slope_and_curvature = kept_products(key, partial(_along, change, self.material))
            losses = line_of(self.folder, label, self.probe.changes, entry, names)
            lines.append(Line(label=label, losses=losses, **slope_and_curvature))
        return Sharpness(
            model=self.request.label,
            documents=len(documents),
            tokens=sum(e.tokens for e in encoded),
            loss=loss,
            gradient_norm=norm,
            trace=trace,
            trace_interval=interval,
            noise_trace=noise[0],
            noise_trace_interval=noise[1],
            probes=settings.probes,
            lines=lines,
        )

    def _trace(
        self, products: _Kept, stds: Mapping[str, float] | None
    ) -> tuple[float, tuple[float, float]]:
        """Hutchinson's estimate with its interval over the random vectors."""
        what = "trace" if stds is None else f"noise trace {fingerprint(dict(stds), length=8)}"
        traces = []
        for seed in range(self.probe.curvature.probes):
            traces.append(products(f"{what} {seed}", partial(_random, seed, stds)))
        mean, half = (
            math.fsum(traces) / len(traces),
            t_half_width(traces, confidence=self.plan.confidence),
        )
        return mean, (mean - half, mean + half)

    def _directions(self) -> Iterator[tuple[str, Change]]:
        """Each line through the model that changes lie on, as a change of size 1: noise of the
        first seed, and each model that is stepped towards."""
        labels = set()
        first = next((c.seed for c in self.probe.changes if c.kind == NOISE), None)
        for change in self.probe.changes:
            on_line = change.kind == TOWARD or (change.kind == NOISE and change.seed == first)
            label = change.label or f"noise, seed {change.seed}"
            if on_line and label not in labels:
                labels.add(label)
                yield label, dataclasses.replace(change, size=1.0)  # type: ignore[arg-type]


class _Kept:
    """Figures of the curvature by name: computed once and kept in the model's folder."""

    def __init__(self, checkpoint: ProbedCheckpoint, key: str, encoded: Sequence[Any]) -> None:
        self.checkpoint, self.key, self.encoded = checkpoint, key, encoded
        self.file = checkpoint.folder / "curvature.jsonl"
        self.products = (
            {k: row["value"] for k, row in read_ledger(self.file).items()}
            if self.file.is_file()
            else {}
        )

    @functools.cached_property
    def curvature(self) -> Curvature:
        from holdfast.evaluation.probe.curvature import Curvature

        return Curvature(self.checkpoint.loaded.model, self.encoded)

    def __call__(self, name: str, compute: Callable[[Curvature, Report], Any]) -> Any:
        key = f"{self.key} {name}"
        if key not in self.products:
            title = f"Curvature of {self.checkpoint.request.label}: {name}"
            with counted(title, console=self.checkpoint.display.console) as report:
                self.products[key] = compute(self.curvature, report)
            with Ledger(self.file) as ledger:
                ledger.add([{"key": key, "value": self.products[key]}])
        return self.products[key]


def _at_start(curvature: Curvature, report: Report) -> list[float]:
    """The loss and the norm of its gradient."""
    from holdfast.evaluation.probe.curvature import inner

    loss, gradient, _ = curvature.product([p.detach() * 0 for p in curvature.parameters], report)
    return [loss, math.sqrt(inner(gradient, gradient))]


def _random(
    seed: int, stds: Mapping[str, float] | None, curvature: Curvature, report: Report
) -> float:
    """v.Hv for random signs v, times standard deviations where given."""
    by_name = None if stds is None else _by_parameter(curvature.model, stds)
    return curvature.along(curvature.signs(seed, by_name), report).curvature


def _along(
    change: Change, material: Material, curvature: Curvature, report: Report
) -> dict[str, float]:
    """Slope and curvature along what a change adds to each parameter."""
    parameters = list(curvature.model.parameters())
    with kept(parameters) as before, change.on(curvature.model, material):
        direction = [p.detach() - old for p, old in zip(parameters, before, strict=True)]
    return dataclasses.asdict(curvature.along(direction, report))


def _by_parameter(model: Any, stds: Mapping[str, float]) -> dict[str, float]:
    """Standard deviations by parameter, of those that may be given by the names in checkpoints."""
    from holdfast.checkpoints.live_tensors import checkpoint_names

    by_parameter = {}
    for name, _ in model.named_parameters():
        by_parameter[name] = next(stds[n] for n in (name, *checkpoint_names(name)) if n in stds)
    return by_parameter


def is_text(entry: Any) -> bool:
    """Whether an entry is text whose loss can be differentiated."""
    return isinstance(entry, PerplexityEntry) and not entry.memorisation
