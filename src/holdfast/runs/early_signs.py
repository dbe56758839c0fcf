"""Early signs: how far a model has drifted after the first steps of a run, for a forecast (`runs.forecasting`).

Once 5 % of its cumulative learning rate (the sum over all steps) is spent, a run looks at

    KL, change of the loss, product with the Fisher information     on each text of evaluation.source
    KL, change of the loss                                          on training rows
    distance of the weights; learning rate yet to come, over what is past
    KL of the start to itself under noise                           the probe: how easily it is moved

5 % of the steps would do where the rate is constant; with a long warm-up next to nothing has happened by then,
and runs of other schedules could not be told by the same fit.

It does not change by it: weights, losses and random states are those of a run without it, bit for bit.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from holdfast.evaluation.entries import EvaluationPlan, PerplexityEntry
from holdfast.evaluation.text.drift import Drift, row_piece
from holdfast.evaluation.text.perplexity import Piece
from holdfast.records.forecast import SUITE, EarlySigns, TextSigns
from holdfast.runs.measuring import untouched
from holdfast.support.files import fingerprint

SHARE = 0.05
"""Of the sum of a run's learning rates, after which signs are looked at."""
FEWEST_STEPS = 2
"""At least: a schedule that warms up begins at 0."""
DOCUMENTS, LONGEST = 16, 256
"""Of each text and of the training rows; tokens of each that are looked at."""
NOISE, NOISE_SEED = 0.05, 0
"""Of the probe: times each tensor's own standard deviation."""


def source_texts(plan: EvaluationPlan, model: Any, tokenizer: Any) -> dict[str, list[Piece]]:
    """The texts that are to be kept, by "suite/name", as far as they are looked at.

    Args:
        plan: what a run is measured on.
        model: the run's, whose context bounds what is looked at.
        tokenizer: of the model.

    Raises:
        DataError: a file cannot be read.
    """
    from holdfast.evaluation.text.documents import encode_document
    from holdfast.evaluation.text.perplexity import cut, documents_of, resolve_window

    found, window = {}, min(LONGEST, resolve_window(model)[0])
    for entry in plan.entries:
        if entry.suite == SUITE and isinstance(entry, PerplexityEntry):
            documents = documents_of(entry, tokenizer)[:DOCUMENTS]
            pieces = cut([encode_document(d, tokenizer) for d in documents], window=window, stride=max(1, window // 2))
            firsts = {piece.document: piece for piece in reversed(pieces)}
            found[f"{entry.suite}/{entry.name}"] = [firsts[place] for place in sorted(firsts)]
    return found


def trained_rows(trainer: Any) -> list[Piece]:
    """The first training rows of a trainer, as it collates them."""
    rows = itertools.islice(iter(trainer.train_dataset), DOCUMENTS)
    pieces = [row_piece(trainer.data_collator([row]), longest=LONGEST) for row in rows]
    return [piece for piece in pieces if piece.targets]


class SignsEarly(TrainerCallback):
    """Looks at a run once `SHARE` of its cumulative learning rate is spent.

    Args:
        texts: what is to be kept.
        rows: gives training rows, called when training begins.
        moved: gives the distance of the weights from the start, relative to their norm.
        method: how it is fine-tuned, see `records.forecast.EarlySigns`.
        kept: a file for the start's distributions, so that a run that is continued before it was looked at can be; it
            is gone afterwards.
        seen: gets the signs.
        say: gets why there will be none.
        aside: gets seconds that were no training.
    """

    def __init__(
        self,
        *,
        texts: Mapping[str, Sequence[Piece]],
        rows: Callable[[], Sequence[Piece]],
        moved: Callable[[], float],
        method: str,
        kept: Path,
        seen: Callable[[EarlySigns], None],
        say: Callable[[str], None],
        aside: Callable[[float], None],
    ) -> None:
        self.texts, self.rows, self.moved, self.method, self.kept = texts, rows, moved, method, kept
        self.seen, self.say, self.aside = seen, say, aside
        self._rates: list[float] = []
        self._at = 0
        self._start: dict[str, Drift] = {}
        self._noise: dict[str, float] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._rates = rates_of(kwargs.get("lr_scheduler"), state.max_steps)
        self._at = look_at(self._rates)
        if not state.is_world_process_zero or state.global_step >= self._at:
            return
        with self._not_training(kwargs["model"]):
            pieces = {**self.texts, "": list(self.rows())}
            if empty := [name or "the first training rows" for name, of in pieces.items() if not of]:
                self.say(f"No forecast: {', '.join(empty)} have no token that can be looked at.")
            elif state.global_step == 0:
                self._look_at_start(kwargs["model"], pieces)
            elif self.kept.is_file():
                self._read_start(kwargs["model"], pieces)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self._start or state.global_step != self._at:
            return
        model = kwargs["model"]
        with self._not_training(model):
            now = {name: start.since(model) for name, start in self._start.items()}
            rows = now.pop("")
            texts = [
                TextSigns(entry=k, loss=d.loss, rise=d.rise, kl=d.kl, fisher=d.fisher, noise=self._noise[k])
                for k, d in now.items()
            ]
            signs = EarlySigns(
                step=state.global_step,
                steps=state.max_steps,
                ahead=ahead(self._rates, state.global_step),
                distance=self.moved(),
                fall=-rows.rise,
                kl=rows.kl,
                parameters=sum(p.numel() for p in model.parameters()),
                method=self.method,
                texts=texts,
            )
            self.seen(signs)
            self._start = {}
            self.kept.unlink(missing_ok=True)

    def _look_at_start(self, model: Any, pieces: Mapping[str, Sequence[Piece]]) -> None:
        from safetensors.torch import save

        from holdfast.checkpoints.live import perturbed
        from holdfast.support.files import write_bytes_atomic

        self._start = {name: Drift(model, of) for name, of in pieces.items()}
        stds = {name: float(p.detach().float().std(correction=0)) for name, p in model.named_parameters()}
        with perturbed(model, seed=NOISE_SEED, scale=NOISE, stds=stds):
            self._noise = {name: self._start[name].since(model).kl for name in self.texts}
        held = {f"of {name}": drift.tensors for name, drift in self._start.items()}
        write_bytes_atomic(self.kept, save(held, metadata={"noise": json.dumps(self._noise), "of": _identity(pieces)}))

    def _read_start(self, model: Any, pieces: Mapping[str, Sequence[Piece]]) -> None:
        from safetensors import safe_open

        with safe_open(self.kept, framework="pt") as held:
            if held.metadata()["of"] != _identity(pieces):
                self.say("No forecast: the texts that are looked at have changed since the run began.")
                return
            self._noise = json.loads(held.metadata()["noise"])
            self._start = {k: Drift(model, of, kept=held.get_tensor(f"of {k}")) for k, of in pieces.items()}

    @contextlib.contextmanager
    def _not_training(self, model: Any) -> Iterator[None]:
        began = time.monotonic()
        with untouched(model):
            yield
        self.aside(time.monotonic() - began)


def _identity(pieces: Mapping[str, Sequence[Piece]]) -> str:
    """Of the tokens that are looked at."""
    return fingerprint({name: [[piece.ids, piece.targets] for piece in of] for name, of in pieces.items()})


def rates_of(scheduler: Any, steps: int) -> list[float]:
    """The learning rate of each step, over the highest; as if constant where the schedule cannot be asked."""
    factors = getattr(getattr(scheduler, "scheduler", scheduler), "lr_lambdas", None)
    return [float(factors[0](at)) for at in range(steps)] if factors else [1.0] * steps


def look_at(rates: Sequence[float]) -> int:
    """The step after which a run is looked at: the first by which `SHARE` of the cumulative rate is spent. 0 for none
    of its own, where it is the last."""
    total, past = math.fsum(rates), list(itertools.accumulate(rates))
    enough = (step for step, sum_ in enumerate(past, 1) if sum_ >= SHARE * total * (1 - 1e-9))
    at = max(FEWEST_STEPS, next(enough, len(rates)))
    return at if at < len(rates) else 0


def ahead(rates: Sequence[float], step: int) -> float:
    """Sum of the learning rates of a run over the sum of those of its first steps."""
    past = math.fsum(rates[:step])
    return math.fsum(rates) / past if past > 0 else math.inf
