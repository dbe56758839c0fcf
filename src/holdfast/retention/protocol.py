"""The protocol of a retention method: a value with up to four hooks.

Memory is kept in one of four places, and a method says in which by the hook it has:

| place | hook | when it acts | methods |
|---|---|---|---|
| the data | `training_data` | once, before training, on tokenised examples | replay, multitask, self-replay |
| the loss | `loss` of the active method | every micro-batch of training, inside the model's forward | token weighting |
| the gradient | `gradient` of the active method | once an optimiser step, before clipping | L2, EWC |
| the weights | `weights` of the active method | once an optimiser step, after the optimiser, before log, evaluation
and save | SFA, WiSE-FT, EMA |

Label annealing's divergence from the frozen start is declared instead (`token_loss`): the loss op
computes it in the same pass as the cross-entropy.

A method is a frozen dataclass of plain parameters: equal parameters, equal method, usable in any
number of runs. What a run needs to remember (anchors, counters) lives in the `ActiveMethod` that
`start` returns, so no state leaks from one run to the next.

A method whose coefficient is 0 is `off`: it is left out altogether, which makes it direct
fine-tuning bit for bit.

Methods see parameters by name, as plain tensors or DTensors, and know nothing of trainers. This
module imports no torch, so that a command line can list the methods quickly.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from holdfast.config.declare import deciding, settings_of
from holdfast.errors import ConfigError, Problem, did_you_mean, problem_of
from holdfast.retention.services import DataServices, Draws, LossBatch, Services, StepFigures
from holdfast.support.own_code import is_ours

if TYPE_CHECKING:
    import torch
    from datasets import Dataset

    from holdfast.retention.anchor import Anchors

NamedParams = Mapping[str, "torch.Tensor"]
"""Trainable parameters by their name in the model."""


OLD_DATA = "old data"
INITIAL_MODEL = "the initial model while training data is generated"
WHOLE_DOCUMENTS = "whole documents"
TOKEN_WEIGHTS = "weights of tokens"
LOSS_TERM = "a loss term of its own"
STEP_FIGURES = "figures of the step"
OPTIMIZER_STATE = "the optimizer's state of each parameter"
ADAMW = "PyTorch's AdamW"
LAST_STEP = "the last step"
NEEDS: Mapping[str, str] = {
    OLD_DATA: "reads data of earlier tasks",
    INITIAL_MODEL: (
        "the initial model writes training data, so each process needs the whole model"
    ),
    WHOLE_DOCUMENTS: "computes statistics over whole documents, so packing must not split them",
    TOKEN_WEIGHTS: "weights the cross-entropy of each token; one method per run may do so",
    LOSS_TERM: "adds a term to the token loss, so the trainer has to compute that loss itself",
    STEP_FIGURES: "the method's `weights` hook gets the mean cross-entropy and KL of the step",
    OPTIMIZER_STATE: "reads the optimizer's state of each parameter, which DeepSpeed does not expose",
    ADAMW: "only works with `optim: adamw_torch` and `adamw_torch_fused`",
    LAST_STEP: (
        "changes the weights after the last step, so no checkpoint saved during training has the "
        "final weights"
    ),
}
"""What a method may need of its run (`RetentionMethod.needs`), and what that means."""
ADAMW_NAMES = ("adamw_torch", "adamw_torch_fused")
"""The values of `optim` that `ADAMW` stands for."""


@dataclass(frozen=True, kw_only=True)
class StepInfo:
    """Where training stands when a hook is called."""

    step: int
    """The optimiser step being taken (in `gradient`) or just taken (in `weights`), counted from
    1."""
    total_steps: int
    """Optimiser steps of the whole run."""
    grad_scale: float = 1.0
    """Factor on all gradients at this moment (fp16 loss scaling); an added gradient has to carry it
    too."""
    reset_optimizer: Callable[[], None] | None = None
    """Clears the optimiser's state (moments); None where the host cannot."""
    optimizer_state: Callable[[str], Mapping[str, Any]] | None = None
    """By parameter: what the optimiser keeps of it (such as `exp_avg` and `step`; nothing before
    its first step), beside the settings of its group (such as `weight_decay`) and under "optimizer"
    the class's name; None where the host cannot."""
    learning_rates: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """By parameter: the rate that the optimiser step uses (in `gradient`) or has used (in
    `weights`)."""
    figures: StepFigures | None = None
    """In `weights`: what the step's tokens gave, over accumulation and ranks; only for methods that
    need `STEP_FIGURES`."""


@dataclass(frozen=True, kw_only=True)
class TeacherSettings:
    """Who computes the teacher's hidden states, and where its weights or states lie."""

    kind: str = "auto"
    """"auto", "online", "adapter_off" or "cached"."""
    model: str = "start"
    """Weights of an online teacher: "start" (the initial model), or the folder of a checkpoint."""
    dtype: str | None = None
    """Dtype of an online teacher's weights; None: the dtype of the initial model."""
    sharded: bool = False
    """Whether an online teacher's weights are sharded over the ranks of an FSDP2 run."""
    cache_dir: str | None = None
    """Folder of a cached teacher's states; None: holdfast's cache folder."""
    cache_dtype: str | None = None
    """Dtype of the cached states; None: the dtype of the teacher's forward pass."""


PACKED_WHOLE = ("bfd", "bfd_split")
"""TRL's packing strategies that keep documents apart, and whole up to `max_length`: beyond it bfd
leaves out what is left of one, and bfd_split makes documents of their own of the pieces."""
ORIGINS = ("new", "replayed", "generated")
"""Where rows are from: the run's own data, old data, the start model. By the number in
`data.mixing.ORIGIN`."""


FORMERLY: Mapping[str, Mapping[str, Any]] = {
    "budget": {"metric_drop": None, "task": ""},
    "label_annealing": {"teacher_bits": None, "teacher_on_cpu": False},
    "self_replay": {"max_perplexity": None, "refresh": None, "server": ""},
    "token_weighting": {
        "threshold": 2.5,
        "mask_end": False,
        "temperature": None,
        "normalise": False,
    },
}
"""Parameters that methods no longer have, at their defaults. They stay in
`RetentionMethod.identity`, so that the keys of finished runs stay what they are."""


@dataclass(frozen=True, kw_only=True)
class TokenLoss:
    """A KL term at every token, for the loss op: `weight * KL` in nats per token (see
    `ops.annealing`)."""

    weight: float
    temperature: float
    direction: str
    """"forward", "reverse" or "jsd"."""
    tokens: str
    """"trained" (the tokens with a label) or "all" (every token with a successor in its document,
    prompts included)."""
    teacher: TeacherSettings
    beta: float = 0.5
    """Weight of the teacher in the mixture of the generalised Jensen-Shannon divergence, in (0, 1);
    direction "jsd" only."""
    by_origin: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Factors of the KL at tokens of some `ORIGINS`, those other than 1."""
    mask_target: bool = False
    """Whether the KL leaves the label out of both distributions."""


class ActiveMethod(Protocol):
    """What a method holds during one run. Every hook is optional in effect: the defaults of
    `Passive` do nothing."""

    strength: float | None
    """The current coefficient, which `budget` adapts during the run; None: there is nothing to
    adapt."""

    def prepare(self, services: Services) -> None:
        """Called once, when the trainer is complete and before a checkpoint is loaded or the first
        step is taken; the model is the start still."""

    def loss(self, batch: LossBatch) -> torch.Tensor | None:
        """Called in every micro-batch of training, inside the model's forward, of methods that need
        `LOSS_TERM` or `TOKEN_WEIGHTS`.

        Returns:
            `[]`, a sum over the micro-batch's trained tokens, differentiable: the host divides it
            by the trained tokens of the whole step, over accumulation and ranks, and adds it to the
            loss. None: nothing to add.
        """

    def after_loss(
        self, inputs: Mapping[str, Any], labels_BT: torch.Tensor, ce_BS: torch.Tensor
    ) -> None:
        """Called after it, of methods that need `TOKEN_WEIGHTS`: the model's own cross-entropies,
        `[B, T-1]`, at t that of the token at t + 1, 0 where that is not trained."""

    def gradient(self, named: NamedParams, step: StepInfo) -> None:
        """Adds to `p.grad` in place; called once an optimiser step with all gradients accumulated
        and reduced, before clipping."""

    def weights(self, named: NamedParams, step: StepInfo) -> None:
        """Changes parameters in place; called once an optimiser step, before anything logs,
        evaluates or saves."""

    def metrics(self, named: NamedParams) -> dict[str, float]:
        """Figures to log, computed only when a step is logged."""

    def state_dict(self) -> dict[str, Any]:
        """What cannot be had again from the config and the start model; plain values and
        tensors."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes back what `state_dict` gave."""


class Passive:
    """An `ActiveMethod` that does nothing; a base for those that use one hook."""

    strength: float | None = None

    def prepare(self, services: Services) -> None: ...

    def loss(self, batch: LossBatch) -> torch.Tensor | None:
        return None

    def after_loss(
        self, inputs: Mapping[str, Any], labels_BT: torch.Tensor, ce_BS: torch.Tensor
    ) -> None: ...

    def gradient(self, named: NamedParams, step: StepInfo) -> None: ...

    def weights(self, named: NamedParams, step: StepInfo) -> None: ...

    def metrics(self, named: NamedParams) -> dict[str, float]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state, got keys {sorted(state)}.")


@dataclass(frozen=True, kw_only=True)
class WeightCopy:
    """A copy of the trained parameters, or as many other numbers, that a method keeps during a
    run."""

    what: str
    """In a few words, such as "anchor start". Methods that keep the same thing on the device share
    one copy."""
    place: str = "device"
    """"device", "cpu" (host memory) or "disk"."""
    dtype: str | None = None
    """None: the parameters' own."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a method from outside of the package is from."""

    reference: str
    """As the user names it, such as "my_method.py:Dropback"."""
    sha256: str
    """Of the source file, the first 16 hexadecimal digits."""


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """What lies behind a task in a sequence of tasks, the oldest first."""

    data: tuple[str, ...]
    """The training data of each earlier task; at least one."""
    base: str = ""
    """The model that the first task began with."""
    fisher: str | None = None
    """Folder of the Fisher diagonal that the arm's own run before used; "" where it used none, None
    where that run is still to come."""


@dataclass(frozen=True, kw_only=True)
class RetentionMethod:
    """Base of all methods. Subclasses are frozen dataclasses whose fields declare the parameters:
    type, bounds (`Annotated[float, Meta(ge=0)]`), default, and a docstring under each
    (`holdfast.config.declare`)."""

    name: ClassVar[str]
    """The key in a config's `retention:` list."""
    title: ClassVar[str]
    """Title, in sentences and legends."""
    strength: ClassVar[tuple[str, ...]] = ()
    """Names of the parameters that set the method's strength, the most important one first. Runs
    and trials of one method are sorted by them."""
    summary: ClassVar[str]
    """What the method does, in one line, for `--help` and reports."""
    source: ClassVar[str] = ""
    """Paper and section; empty is allowed for a user's own method."""
    place: ClassVar[str]
    """Where the method acts: "data", "loss", "gradient" or "weights"."""
    hook_order: ClassVar[int] = 0
    """Order of the method's hooks within a step. Methods with smaller numbers run first, and
    methods with equal numbers in the order of the request."""
    repeatable: ClassVar[bool] = False
    """Whether a run may have the method twice."""
    shares_mixture: ClassVar[bool] = False
    """Whether the method's `fraction` is a share of the whole mixture. The fractions of
    all such methods in a run are added, and their sum has to be below 1."""
    origin: ClassVar[Origin | None] = None
    """Where a method from outside the package comes from; None for holdfast's methods."""
    row_source: ClassVar[str] = ""
    """The `ORIGINS` of the rows that the method mixes into the new data; empty if it mixes in
    none."""

    needs: ClassVar[frozenset[str]] = frozenset()
    """What the method needs from its run: keys of `NEEDS`. A host that lacks one of them refuses
    the method. Make this a property if it depends on parameters."""

    @property
    def off(self) -> bool:
        """True when the parameters make the method do nothing; it is then left out of the run."""
        return False

    def problems(self) -> Sequence[str]:
        """What is wrong with parameters together, or with one beyond what its type says: `Problem`s
        of the parameter, or sentences about the method as a whole; empty when all is well."""
        return []

    def describe(self) -> dict[str, Any]:
        """`{"method": name, **parameters}` as plain JSON values; for a method from outside of the
        package also where it is from ("from") and the SHA-256 of its source ("sha256")."""
        return {"method": self.name, **dataclasses.asdict(self), **self._origin()}

    @classmethod
    def after_tasks(cls, parameters: Mapping[str, Any], earlier: Earlier) -> list[dict[str, Any]]:
        """Parameters in a run that follows other tasks, with what was left open taken from them.
        What is held on to by default, the start, is the model after the last of them anyway.

        Args:
            parameters: as a config gives them.
            earlier: the tasks before.

        Returns:
            The parameters of the method, or of several in its place.
        """
        return [dict(parameters)]

    def _origin(self) -> dict[str, str]:
        return {} if self.origin is None else {"from": self.origin.reference, "sha256": self.sha256}

    @property
    def sha256(self) -> str:
        """Of the source that decides what the method does: the one that was recorded, where the
        method was made from a record, else the one that was loaded; empty for methods of the
        package."""
        return str(vars(self).get("recorded_sha256") or (self.origin.sha256 if self.origin else ""))

    def setting(self) -> dict[str, dict[str, Any]]:
        """The method as an item of a config's `retention:` list, of which it is made again."""
        parameters = {k: v for k, v in self.describe().items() if k not in ("method", "from")}
        return {self.origin.reference if self.origin else self.name: parameters}

    def record(self) -> dict[str, Any]:
        """`describe()` for a run's record; for a method from outside of the package also what a
        page has to know of it ("title", "strength")."""
        more = {} if is_ours(type(self)) else {"title": self.title, "strength": list(self.strength)}
        return {**self.describe(), **more}

    def identity(self) -> dict[str, Any]:
        """`describe()` without the parameters that leave the trained weights alone
        (`Meta(decides=False)`, a cache's folder for example), with those of `FORMERLY`, and under
        the names that parameters had first."""
        first_names = {s.name: s.meta.former[0] for s in settings_of(type(self)) if s.meta.former}
        parameters = {first_names.get(name, name): value for name, value in deciding(self).items()}
        return {"method": self.name, **FORMERLY.get(self.name, {}), **parameters, **self._origin()}

    def label(self) -> str:
        """A short name for tables, with the parameters that were changed and decide the weights:
        `label_annealing(weight=0.3)`."""
        defaults = {s.name: s.default for s in settings_of(type(self))}
        changed = []
        for name, value in deciding(self).items():
            if value != defaults[name]:
                changed.append(f"{name}={value}")
        return f"{self.name}({', '.join(changed)})" if changed else self.name

    def copies(self) -> tuple[WeightCopy, ...]:
        """The copies of the trained parameters that a run with the method keeps."""
        return ()

    def replayed(self) -> float:
        """The share of the training tokens that the method adds, in [0, 1)."""
        return 0.0

    def check_run(self, *, total_steps: int | None) -> Sequence[str]:
        """What is wrong with parameters that do not fit this run's length, empty when they do."""
        return []

    def check_weights(self, named: NamedParams) -> Sequence[str]:
        """What is wrong with files that do not fit the model: another architecture, another
        vocabulary, another model's. Looks at their headers, and at samples of values where a method
        has to know whose they are.

        Args:
            named: the parameters that will be trained, with the start's values.
        """
        return []

    def training_data(
        self, rows: Dataset, services: DataServices
    ) -> tuple[Dataset, dict[str, Any]]:
        """Mixes rows into the training data, once, before training; every rank calls it and has to
        get the same rows.

        Args:
            rows: `input_ids` and `labels` (-100 where a token is not trained), lists of int64, one
                a row; rows with images as they are.
            services: what the run offers.

        Returns:
            (rows of the same columns, what a run records of them). The default returns `rows`
            itself.
        """
        return rows, {}

    def check_data(self, tokenizer: Any) -> None:
        """Reads the rows that the method names, for their mistakes, before anything slow.

        Args:
            tokenizer: the model's; the processor of a vision-language model.

        Raises:
            DataError: they cannot be read, or used.
        """

    def draws(self, *, rows: int, tokens: float, window: int, at_once: int) -> Draws | None:
        """What the start model has to write before the first step; None: nothing.

        Args:
            rows, tokens: of the new data.
            window: tokens that a row has at most.
            at_once: samples of a batch, where nobody says.
        """
        return None

    def named_data(self) -> tuple[str, ...]:
        """The files, folders and hub ids that `check_data` reads."""
        return ()

    def token_loss(self) -> TokenLoss | None:
        """The method's term in the token loss, if it has one."""
        return None

    def ce_by_origin(self) -> dict[str, float]:
        """Factors of the cross-entropy at tokens of some `ORIGINS`, those other than 1."""
        return {}

    def start(self, anchors: Anchors) -> ActiveMethod:
        """Begins a run. Called before any checkpoint is loaded, with the start model's parameters
        at hand through `anchors`."""
        return Passive()


def stacked(methods: Sequence[RetentionMethod]) -> list[RetentionMethod]:
    """The methods with the fractions of several replays set so that each ends at ITS share of the
    whole mixture.

    Data is mixed one replay after the other, and each later one thins the earlier ones out: replay
    i of fractions f needs `f_i / (1 - sum of the later f)` of the mixture that stands when it is
    added. Other methods of the data come first for the same reason.
    """
    methods = [m for m in methods if not m.shares_mixture] + [
        m for m in methods if m.shares_mixture
    ]
    later = 0.0
    scaled: list[RetentionMethod] = []
    for method in reversed(methods):
        if method.shares_mixture:
            share = method.replayed()
            scaled.append(dataclasses.replace(method, fraction=share / (1 - later)))  # type: ignore[call-arg]
            later += share
        else:
            scaled.append(method)
    return scaled[::-1]


def in_turn(
    methods: Sequence[RetentionMethod], active: Sequence[ActiveMethod]
) -> list[ActiveMethod]:
    """What a run's methods hold, in the order of their hooks within a step
    (`RetentionMethod.hook_order`): the same however they were listed, unless two have the same
    place in it."""
    pairs = sorted(zip(methods, active, strict=True), key=lambda pair: pair[0].hook_order)
    return [active_method for _, active_method in pairs]


def check_declared(method: RetentionMethod, active: ActiveMethod) -> None:
    """
    Raises:
        ConfigError: `needs` holds a name that is none, or does not fit the hooks: a `loss` hook
            that nobody would call, one that is declared and missing, or no hook at all. Such a
            method would do nothing without a word.
    """
    unknown = sorted(method.needs - NEEDS.keys())
    if unknown:
        raise ConfigError(
            f"{method.name}: expected names of holdfast.retention.protocol.NEEDS in needs, got "
            f"{', '.join(map(repr, unknown))}.{did_you_mean(unknown[0], NEEDS)}"
        )
    hooks = [hook for hook in ("loss", "gradient", "weights") if _overrides(active, hook)]
    declares_loss = bool(method.needs & {LOSS_TERM, TOKEN_WEIGHTS})
    if ("loss" in hooks) != declares_loss:
        raise ConfigError(
            f"{method.name}: expected a loss hook with LOSS_TERM or TOKEN_WEIGHTS in needs, and "
            f"none without them. Got {'a' if 'loss' in hooks else 'no'} loss hook and needs = "
            f"{sorted(method.needs)}. Write for example needs = frozenset({{LOSS_TERM}})."
        )
    if not hooks and not changes_data(method) and method.token_loss() is None:
        raise ConfigError(
            f"{method.name}: expected a hook (training_data, loss, gradient or weights), got none, "
            "so the method would change nothing. See docs/extending.md."
        )


def _overrides(active: ActiveMethod, hook: str) -> bool:
    inherited = getattr(Passive, hook)
    return getattr(type(active), hook, inherited) is not inherited


def changes_data(method: RetentionMethod) -> bool:
    """Whether a method changes the training data, which then has to be rows that can be counted."""
    return type(method).training_data is not RetentionMethod.training_data


def marks_origins(methods: Iterable[RetentionMethod]) -> bool:
    """Whether the loss weighs new, replayed and generated tokens differently, so that rows have to
    say which they are."""
    terms = ((m.ce_by_origin(), m.token_loss()) for m in methods if not m.off)
    return any(factors or (term is not None and term.by_origin) for factors, term in terms)


def problems_below(method: RetentionMethod, problems: Iterable[str]) -> list[Problem]:
    """What a method says of its parameters, as problems of a run that has the method."""
    return [problem_of(problem).below(method.name) for problem in problems]


def packing_problem(methods: Iterable[RetentionMethod], strategy: str) -> list[str]:
    """What is wrong with packing rows by TRL's `strategy` beside methods, if anything is."""
    if strategy in PACKED_WHOLE:
        return []
    active = [method for method in methods if not method.off]
    expected = f"expected {' or '.join(PACKED_WHOLE)}"
    reasons = []
    for method in active:
        if WHOLE_DOCUMENTS in method.needs:
            reasons.append(
                f"{expected} with {method.label()}, got {strategy}, which cuts documents at the end "
                "of each row. The method averages over whole documents. With bfd, documents longer "
                "than max_length are truncated. With bfd_split, they are cut into pieces, and the "
                "method averages over each piece."
            )
    if marks_origins(active):
        reasons.append(
            f"{expected} if replayed or generated tokens have separate weights, got {strategy}, "
            "which does not keep rows of different origins apart."
        )
    return [Problem("packing_strategy", reason) for reason in reasons]
