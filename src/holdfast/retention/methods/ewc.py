"""Elastic weight consolidation: a pull back to the start that is stronger where the old data needs
the weights as they are.

    penalty = coefficient / 2 * sum_i F_i (theta_i - theta_o,i)^2
        gradient added: coefficient * F * (theta - theta_o)

F is the diagonal Fisher information of the old model on the old task's data (`fisher`), per trained
token, so that coefficient 1 is the Laplace approximation of training on old and new tokens in equal
parts; the ratio of old to new tokens is the coefficient of the exact Bayesian update. The
approximation is quadratic and diagonal: it holds near theta_o and knows no correlations between
weights, so larger coefficients are common.

F comes from a folder (`fisher`: `holdfast fisher`, or the `fisher` folder of an earlier run), or is
computed on `data` before the first step, on the start model, and kept in the run's folder, where a
resumed run finds it. With both, `fisher` is of earlier tasks and `data` is the newest one's, and

    F = decay * F_earlier + F_data
        (online EWC: one penalty and one anchor, however many tasks)

The added gradient, its decoupled form, and where anchor and F may lie are those of L2 (`pull`).
Decoupled, a step is an SGD step followed by an elementwise average with theta_o of weight eta *
coefficient * F_i: sequential averaging with a weight for each parameter.

Cost: a copy of the trainable parameters and one of F (none on the device with
`reference_device: cpu` or `disk`), one element-wise pass over them a step; computing F costs a
forward and a backward pass a sample, one sample at a time.

Under LoRA F is of the adapter's parameters. Where B starts at 0 the gradient of A is 0, so F is 0
on A: A is not held at all, and B is held by what its elements matter under the A of the start. F
says nothing about the weights below the adapter, which do not move.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from holdfast.config.declare import Meta
from holdfast.errors import ConfigError, ModelError, Problem
from holdfast.retention.anchor import (
    START,
    Anchors,
    Keep,
    anchor_problems,
    kept_anchor,
    open_anchor,
)
from holdfast.retention.fisher import (
    Diagonal,
    Estimator,
    SavedFisher,
    all_ranks,
    choose_rows,
    diagonal_fisher,
    fingerprints,
    fisher_folder_problems,
    made_of,
    save_fisher,
)
from holdfast.retention.paths import data_problems
from holdfast.retention.protocol import OLD_DATA, ActiveMethod, Earlier, RetentionMethod, WeightCopy
from holdfast.retention.pull import Pull

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.checkpoints.live import Pieces
    from holdfast.retention.anchor import Kept
    from holdfast.retention.protocol import NamedParams
    from holdfast.retention.services import Services

FOLDER = "fisher"
"""Of a Fisher diagonal inside a run's folder."""


@dataclass(frozen=True, kw_only=True)
class EWC(RetentionMethod):
    """Elastic weight consolidation: a penalty on changes of the weights that matter for an old
    task. This method works on the gradient.

    References: Kirkpatrick et al. 2017 (arXiv:1612.00796), Eq. 3; decay as gamma of online EWC in
    Schwarz et al. 2018, Progress and Compress (arXiv:1805.06370), section 3; Soup to Go, section 4
    (baseline).
    """

    name: ClassVar[str] = "ewc"
    title: ClassVar[str] = "EWC"
    strength: ClassVar[tuple[str, ...]] = ("coefficient",)
    place: ClassVar[str] = "gradient"
    needs: ClassVar[frozenset[str]] = frozenset({OLD_DATA})
    summary: ClassVar[str] = "penalty on changing weights that matter for old data (Fisher)"
    source: ClassVar[str] = (
        "Kirkpatrick et al. 2017, Eq. 3; Schwarz et al. 2018, section 3 (online); Soup to Go, "
        "section 4"
    )

    coefficient: Annotated[float, Meta(ge=0)] = 1.0
    """Lambda in lambda/2 * sum F (theta - theta_o)^2, with F per trained token. 1 weights old and
    new tokens equally; 0 is direct fine-tuning."""
    fisher: str = ""
    """Folder of a Fisher diagonal ('holdfast fisher'). Default: it is computed on data."""
    data: str = ""
    """Data of the old task, on which the Fisher information is computed: file, folder or hub
    id."""
    samples: Annotated[int, Meta(ge=1)] = 256
    """Maximum number of samples of data for the Fisher information."""
    estimator: Estimator = "empirical"
    """Labels for the gradients: empirical (the labels of the data) or sampled (drawn from the
    initial model)."""
    seed: int = 0
    """Random seed for choosing samples and for sampling labels."""
    reference: Annotated[str, Meta(former=("anchor",))] = START
    """Theta_o: 'start' (the initial model), or the folder of the checkpoint on which fisher was
    computed."""
    decoupled: bool = False
    """Pull the weights toward theta_o by learning rate * lambda * F after the optimiser step, like
    AdamW's weight decay, instead of adding a gradient."""
    decay: Annotated[float, Meta(ge=0, le=1)] = 1.0
    """Share of the earlier tasks' Fisher information to keep (online EWC). It applies only with
    both fisher and data."""
    reference_device: Keep = "device"
    """Where to keep the old weights and the Fisher information: device (the model's device), cpu
    (host memory), disk (a file that is read when needed)."""

    @property
    def off(self) -> bool:
        return self.coefficient == 0

    @classmethod
    def after_tasks(cls, parameters: Mapping[str, Any], earlier: Earlier) -> list[dict[str, Any]]:
        """Returns the parameters for the next task: the Fisher information of the last task's data
        is added to that of the earlier tasks.

        Raises:
            ConfigError: the Fisher information of the earlier tasks is missing.
        """
        if parameters.get("data") or parameters.get("fisher"):
            return [dict(parameters)]
        if len(earlier.data) > 1 and earlier.fisher == "":
            raise ConfigError(
                "ewc: the folder of the previous run lacks the Fisher information of the "
                f"{len(earlier.data) - 1} tasks before that run. Repeat that run."
            )
        return [
            {
                **parameters,
                "data": earlier.data[-1],
                **({"fisher": earlier.fisher} if earlier.fisher else {}),
            }
        ]

    def problems(self) -> list[Problem]:
        problems = []
        if not self.fisher and not self.data:
            problems.append(
                Problem(
                    (),
                    "expected fisher (a folder made by 'holdfast fisher') or data (the old task's "
                    "data), got neither",
                )
            )
        if self.fisher:
            problems += [
                Problem("fisher", problem) for problem in fisher_folder_problems(self.fisher)
            ]
        if self.decay != 1 and not (self.fisher and self.data):
            problems.append(
                Problem(
                    "decay",
                    "applies only with both fisher (of earlier tasks) and data (of the newest "
                    "task)",
                )
            )
        if self.data and self.reference != START:
            problems.append(
                Problem(
                    "reference",
                    f"expected start (the initial model), because data is set, got "
                    f"{self.reference}. From data, the Fisher information is always computed on "
                    "the initial model. For another checkpoint, leave out data and set fisher "
                    "(computed on that checkpoint)",
                )
            )
        return (
            problems
            + data_problems("data", self.data)
            + anchor_problems("reference", self.reference)
        )

    def check_weights(self, named: NamedParams) -> list[Problem]:
        problems = anchor_problems("reference", self.reference, named)
        if self.fisher:
            try:
                saved = SavedFisher(self.fisher)
                saved.fit(named)
                if not self.data and not problems:
                    of_anchor = fingerprints(
                        named,
                        None if self.reference == START else open_anchor(self.reference, named),
                    )
                    problems += [
                        Problem("fisher", problem) for problem in saved.other_model(of_anchor)
                    ]
            except ModelError as error:
                problems.append(Problem("fisher", f"{error}"))
        return problems

    def copies(self) -> tuple[WeightCopy, ...]:
        anchor = kept_anchor(self.reference, self.reference_device)
        return (anchor, WeightCopy(what="Fisher information", place=anchor.place, dtype="float32"))

    def start(self, anchors: Anchors) -> ActiveMethod:
        """See `RetentionMethod.start`.

        Raises:
            ModelError: the reference or the Fisher information has another architecture, or the
                Fisher information was computed on another model than the reference. The message
                lists everything.
        """
        problems = self.check_weights(anchors.named)
        if problems:
            raise ModelError(*problems)
        saved = SavedFisher(self.fisher) if self.fisher else None
        return _Elastic(
            self, anchors.named, anchors.keep(self.reference, self.reference_device), saved
        )


class _Elastic(Pull):
    """The pull with F, which is known after `prepare`."""

    def __init__(
        self, method: EWC, named: NamedParams, anchor: Kept, saved: SavedFisher | None
    ) -> None:
        super().__init__(
            anchor, strength=method.coefficient, decoupled=method.decoupled, prefix="ewc"
        )
        self._method, self._named, self._saved = method, named, saved
        self.origin = ""
        """A hash of what F was made of."""
        if saved is not None and not method.data:
            self._take(saved.kept(named, method.reference_device), saved.identity)

    def prepare(self, services: Services) -> None:
        """Finds the run's Fisher information, or computes and saves it.

        Raises:
            DataError: the data cannot be read, or holds no trained token.
            ConfigError: the run shards its model, or takes no data.
            ModelError: gradients that are not finite.
            StorageError: no room for it in the run's folder.
        """
        method = self._method
        if not method.data:
            return
        rows = choose_rows(
            services.rows(method.data), method.samples, seed=method.seed, label=method.data
        )
        weights = fingerprints(self._named)
        earlier = (
            None
            if self._saved is None or method.decay == 0
            else {"fisher": self._saved.identity, "decay": method.decay}
        )
        name = method.data.rstrip("/").rpartition("/")[2]
        record = made_of(
            rows,
            weights,
            estimator=method.estimator,
            seed=method.seed,
            data=name,
            model={},
            earlier=earlier,
        )
        origin = record["made_of"]
        run_folder = services.folder()
        folder = None if run_folder is None else run_folder / FOLDER
        saved = self._in_run(folder, origin)
        if all_ranks(services, self._named, saved is not None) and saved is not None:
            services.say(f"ewc: the Fisher information on {method.data} is already in {folder}")
            self._take(saved.kept(self._named, method.reference_device), origin)
            return
        services.say(
            f"ewc: computing the Fisher information on {len(rows)} samples of {method.data}"
        )
        diagonal = diagonal_fisher(
            services,
            self._named,
            rows,
            sampled=method.estimator == "sampled",
            seed=method.seed,
            label=method.data,
        )
        if self._saved is not None and earlier is not None:
            self._saved.add_to(diagonal.values, method.decay)
        if folder is not None and services.first():
            save_fisher(
                folder,
                diagonal.values,
                {**record, "tokens": diagonal.tokens, "versions": _versions()},
            )
        all_ranks(services, self._named, True)  # the others wait for the file
        self._take(self._placed(diagonal, self._in_run(folder, origin)), origin)

    def _in_run(self, folder: Path | None, origin: str) -> SavedFisher | None:
        if folder is None or not folder.is_dir():
            return None
        try:
            saved = SavedFisher(folder)
            saved.fit(self._named)
        except ModelError:  # half of it, of another version, of another model: it is made again
            return None
        return saved if saved.record.get("made_of") == origin else None

    def _placed(self, diagonal: Diagonal, found: SavedFisher | None) -> Kept:
        from holdfast.retention.anchor import unnamed_file

        if self._method.reference_device == "disk":
            return (
                unnamed_file(diagonal.values) if found is None else found.kept(self._named, "disk")
            )
        return (
            {name: values.cpu() for name, values in diagonal.values.items()}
            if self._method.reference_device == "cpu"
            else diagonal.values
        )

    def _take(self, importance: Kept, origin: str) -> None:
        self._held = [self._held[0], importance]
        self.origin = origin

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "fisher": self.origin}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises: ModelError: the Fisher information has changed since the checkpoint was written."""
        if state.get("fisher", self.origin) != self.origin:
            what = self._method.fisher or self._method.data
            raise ModelError(
                f"ewc: the Fisher information of this run ({what}) has changed since the run "
                "began. Restore the old files, or choose a new output_dir."
            )
        super().load_state_dict(state)

    def _each(self, named: NamedParams) -> Pieces:
        assert len(self._held) == 2, "EWC has no Fisher information, because prepare was not called"
        return super()._each(named)


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("holdfast", "torch")}
