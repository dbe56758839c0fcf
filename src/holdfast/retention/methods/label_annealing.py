"""Label annealing (Memory Retaining Finetuning): a KL term to the frozen start model at every
trained token.

    loss = CE + weight * KL(softmax(w / T) || softmax(z / T))
        w: teacher logits, z: student logits, nats per token
    mask_target: both softmaxes over the vocabulary without the token's label (arXiv:2605.29498)

Tokens of data that is mixed in may have a weight of their own, by where they are from:
`weight_replayed` of old data, `weight_generated` of the start model's own samples, `weight_new` of
the rest. The sum is divided by the number of all tokens, whatever they weigh. So c times the mean
KL over generated tokens beside the mean CE over new ones (2605.26097) is, but for a common factor,
`weight_new: 0` and `weight_generated: c (1 - f) / f` at a share f, with `self_replay: {ce: false}`.

The teacher is the start model, in one of three forms: a second frozen copy (`online`, which may
also have the weights of an earlier checkpoint); for LoRA students the same model with its adapters
switched off (`adapter_off`), which needs no second copy; or its last hidden states, computed once
and read from disk in every epoch and every run (`cached`). All give the exact KL over the whole
vocabulary. The op in `ops.annealing` computes both terms and their gradient in one pass.

Cost a step: one more vocabulary product a token, and, unless cached, the teacher's forward pass:
about 1.33 times direct fine-tuning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from holdfast.config.declare import Meta
from holdfast.errors import Problem
from holdfast.retention.anchor import START, anchor_problems
from holdfast.retention.protocol import (
    ORIGINS,
    ActiveMethod,
    Earlier,
    NamedParams,
    Passive,
    RetentionMethod,
    TeacherSettings,
    TokenLoss,
)

if TYPE_CHECKING:
    from holdfast.retention.anchor import Anchors

Dtype = Literal["float32", "bfloat16", "float16"]
_BELONGS = {
    "reference": ("online",),
    "teacher_dtype": ("auto", "online"),
    "teacher_sharded": ("online",),
    "cache_dir": ("cached",),
    "cache_dtype": ("cached",),
}
"""Parameter: the teachers it applies to."""


@dataclass(frozen=True, kw_only=True)
class LabelAnnealing(RetentionMethod):
    """Adds the KL to the initial model at every trained token. This method works on the loss.

    The class raises no error itself; `problems()` lists parameters out of range.

    References: Memory Retaining Finetuning, Eq. 2; gradient and direction as in its appendix A.3.
    """

    name: ClassVar[str] = "label_annealing"
    title: ClassVar[str] = "label annealing"
    strength: ClassVar[tuple[str, ...]] = ("weight", "beta")
    place: ClassVar[str] = "loss"
    summary: ClassVar[str] = "KL to the frozen initial model at every token (no old data)"
    source: ClassVar[str] = (
        "Memory Retaining Finetuning via Distillation, section 2.2 and appendix A.3"
    )

    weight: Annotated[float, Meta(ge=0)] = 1.0
    """Lambda, weight of the KL term (nats per token); 0 is direct fine-tuning. A higher weight
    prevents more forgetting, but the model learns less."""
    weight_new: Annotated[float | None, Meta(ge=0)] = None
    """Weight at tokens of the new data, if other data is mixed in. Default: the value of weight."""
    weight_replayed: Annotated[float | None, Meta(ge=0)] = None
    """Weight at replayed tokens (replay). Default: the value of weight."""
    weight_generated: Annotated[float | None, Meta(ge=0)] = None
    """Weight at tokens that the initial model wrote (self_replay). Default: the value of weight."""
    temperature: Annotated[float, Meta(gt=0)] = 1.0
    """Temperature T of both softmaxes in the KL term (no T^2 factor). A high temperature spreads
    the gradient over the vocabulary and divides it by about T^2."""
    direction: Literal["forward", "reverse", "jsd"] = "forward"
    """Direction of the KL. forward: KL(teacher || student), as in the paper's implementation;
    reverse: KL(student || teacher); jsd: generalised Jensen-Shannon divergence with beta."""
    beta: Annotated[float, Meta(gt=0, lt=1)] = 0.5
    """Weight of the teacher in the mixture, only with direction: jsd. Near 0 the divergence is like
    forward, near 1 like reverse."""
    mask_target: bool = False
    """Leave the label out of both distributions in the KL (Mask the Target). Then the label's
    probability may change freely, and the odds of all other tokens are kept."""
    tokens: Literal["trained", "all"] = "trained"
    """Tokens at which the KL is computed. trained: tokens with a label; all: also prompt tokens."""
    teacher: Literal["auto", "online", "adapter_off", "cached"] = "auto"
    """How the teacher is computed. online: a frozen second copy of the model; adapter_off: the LoRA
    base with adapters off; cached: hidden states that are computed once and kept on disk; auto:
    adapter_off under LoRA, else online."""
    reference: Annotated[str, Meta(former=("teacher_model",))] = START
    """Model of an online teacher: 'start' (the initial model), or the folder of an earlier
    checkpoint of the same architecture, such as the base of a sequence of tasks. With a folder, the
    KL does not begin at 0."""
    teacher_dtype: Dtype | None = None
    """Dtype of an online teacher; default: the initial model's."""
    teacher_sharded: bool = False
    """Shard an online teacher's weights over the processes (FSDP2 runs)."""
    cache_dir: Annotated[str | None, Meta(decides=False)] = None
    """Folder of cached states, shared between runs; default: teacher_states in $HOLDFAST_CACHE or
    the user's cache."""
    cache_dtype: Dtype | None = None
    """Dtype of cached states. Default: the dtype of the teacher's forward pass, so that nothing is
    lost."""

    @property
    def off(self) -> bool:
        return self._scale == 0

    def describe(self) -> dict[str, Any]:
        return _without_unset(super().describe())

    def identity(self) -> dict[str, Any]:
        return _without_unset(super().identity())

    @property
    def weights(self) -> dict[str, float]:
        """The weight of the KL at tokens of each origin."""
        weights = {}
        for origin in ORIGINS:
            weight = getattr(self, f"weight_{origin}")
            weights[origin] = self.weight if weight is None else weight
        return weights

    @property
    def _scale(self) -> float:
        """What a budget adapts; `weights` are multiples of it."""
        return self.weight or max(self.weights.values())

    def problems(self) -> list[Problem]:
        problems = []
        if self.beta != 0.5 and self.direction != "jsd":
            problems.append(
                Problem(
                    "beta",
                    f"applies only with direction: jsd, got direction {self.direction!r}",
                )
            )
        for key, teachers in _BELONGS.items():
            if getattr(self, key) not in (None, False, START) and self.teacher not in teachers:
                problems.append(
                    Problem(
                        key,
                        f"applies only with teacher: {teachers[-1]}, got teacher {self.teacher!r}",
                    )
                )
        return problems + anchor_problems("reference", self.reference)

    @classmethod
    def after_tasks(cls, parameters: Mapping[str, Any], earlier: Earlier) -> list[dict[str, Any]]:
        """Returns the parameters for the next task. `reference: base` is the base of the
        sequence."""
        base = {
            name: earlier.base
            for name in ("reference", "teacher_model")
            if parameters.get(name) == "base"
        }
        return [{**parameters, **base}]

    def check_weights(self, named: NamedParams) -> list[Problem]:
        if any(name.startswith("base_model.model.") for name in named):
            return []  # an adapter's parameters; the teacher is compared with the whole model when it is copied
        return anchor_problems("reference", self.reference, named)

    def start(self, anchors: Anchors) -> ActiveMethod:
        return _Weight(self._scale)

    def token_loss(self) -> TokenLoss:
        return TokenLoss(
            weight=self._scale,
            by_origin={o: w / self._scale for o, w in self.weights.items() if w != self._scale},
            temperature=self.temperature,
            direction=self.direction,
            beta=self.beta,
            mask_target=self.mask_target,
            tokens=self.tokens,
            teacher=TeacherSettings(
                kind=self.teacher,
                model=self.reference,
                dtype=self.teacher_dtype,
                sharded=self.teacher_sharded,
                cache_dir=self.cache_dir,
                cache_dtype=self.cache_dtype,
            ),
        )


def _without_unset(parameters: dict[str, Any]) -> dict[str, Any]:
    """A run with one weight is the same run whether or not there could be several, and so is one
    whose KL has the label."""
    unset: dict[str, Any] = {f"weight_{origin}": None for origin in ORIGINS}
    unset["mask_target"] = False
    return {k: v for k, v in parameters.items() if k not in unset or v is not unset[k]}


class _Weight(Passive):
    """The weight in force, which the host reads at every micro-batch."""

    def __init__(self, weight: float) -> None:
        self.strength: float | None = weight

    def state_dict(self) -> dict[str, Any]:
        return {"strength": self.strength}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.strength = state.get("strength", self.strength)  # absent where it could not change yet
