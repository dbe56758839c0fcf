"""The annealing op and its peers behind one signature: mean cross-entropy plus mean forward KL at T = 1, from hidden
states.

    loss = ce_weight * mean_n CE_n + kl_weight * mean_n KL(softmax(w_n) || softmax(z_n))        z = h W^T, w = h_t W_t^T

Every contestant takes a `Problem` and the two weights and returns the loss, ready for `backward()`, which leaves
gradients at the student's hidden states and head. The teacher is frozen. A peer is used as its authors use it, in its
cheapest form that does the job; what a library lacks (a cross-entropy in the same pass, say) is added in the way its
own trainer does it.

| contestant | what it is |
|---|---|
| `ours` | `holdfast.ops.annealing.annealed_loss`, everything left to it |
| `ours, eager` | the same with its element-wise part in plain PyTorch: no C compiler, no Triton, no `torch.compile` |
| `ours, compiled` | the same with its element-wise part through `torch.compile` |
| `naive` | whole logits and autograd. Half-precision inputs are multiplied in half precision and the product made
float32, as models do |
| `Liger` | `LigerFusedLinearJSDLoss`, PyTorch, in chunks of 256 rows, not compiled |
| `Liger, compiled` | the same with its own `compiled=True` |
| `TRL` | `ChunkedDivergenceFunction`, and `ChunkedLogProbFunction`, which its SFT trainer takes for the cross-entropy |
| `TRL + torch CE` | the same divergence with PyTorch's own `linear_cross_entropy`, where PyTorch has it |
| `torchtune` | `ForwardKLWithChunkedOutputLoss` and `CEWithChunkedOutputLoss` over 8 chunks of whole logits |

`load` raises `Unavailable` with the reason where a contestant cannot run here. `reference_gradients` is the float64
yardstick, written apart from all of them.

Shapes: N rows (tokens), H hidden width of both models, V vocabulary.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

LIGER_CHUNK = 256
"""Rows a chunk for Liger: the form that the bars name. Its own default is 1024."""
TORCHTUNE_CHUNKS = 8
"""torchtune's default."""


class Unavailable(Exception):
    """A contestant cannot run here; the message says why."""


@dataclass
class Problem:
    """Student and teacher. All tensors of one dtype and device; the first two require gradients."""

    hidden_NH: Tensor
    weight_VH: Tensor
    teacher_hidden_NH: Tensor
    teacher_weight_VH: Tensor
    labels_N: Tensor
    """`[N]` int64, none ignored."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """N, H, V."""
        return (*self.hidden_NH.shape, self.weight_VH.shape[0])  # type: ignore[return-value]

    def clear(self) -> None:
        """Forgets the gradients."""
        self.hidden_NH.grad = self.weight_VH.grad = None


Step = Callable[[Problem, float, float], Tensor]
"""(problem, ce_weight, kl_weight) -> loss `[]`, differentiable."""


@dataclass(frozen=True)
class Contestant:
    """One way to compute the loss."""

    name: str
    family: str
    """The library: bars are judged against the fastest contestant of a family."""
    loader: Callable[[], Step]
    variant: bool = False
    """A second form of a peer; left out of --quick and --sweep, with a line that says so."""
    whole_logits: bool = False
    """Holds several tensors of [N, V], so it needs memory in proportion."""
    omits_teacher_entropy: bool = False
    """Its loss is the KL plus the teacher's entropy, a constant; the gradient is the KL's."""

    def load(self) -> Step:
        """
        Raises:
            Unavailable: the library is missing, or is not what this benchmark knows.
        """
        try:
            return self.loader()
        except Unavailable:
            raise
        except Exception as error:  # a library that fails while it is imported is as missing as one that is not there
            first_line = (str(error).strip().splitlines() or [""])[0]
            raise Unavailable(f"{type(error).__name__}: {first_line}") from error


# ------------------------------------------------------------------------------------------------------- ours and naive


def load_ours(*, rows: Literal["auto", "eager", "compiled"] = "auto") -> Step:
    """This project's op; `rows` as the op's own argument."""
    from holdfast.ops.annealing import annealed_loss
    from holdfast.ops.heads import Head

    def step(p: Problem, ce_weight: float, kl_weight: float) -> Tensor:
        return annealed_loss(
            p.hidden_NH,
            Head(weight_VH=p.weight_VH),
            p.labels_N,
            teacher_hidden_NK=p.teacher_hidden_NH,
            teacher_head=Head(weight_VH=p.teacher_weight_VH),
            ce_scale=ce_weight / len(p.labels_N),
            kl_scale=kl_weight / len(p.labels_N),
            rows=rows,
        ).loss

    return step


def load_naive() -> Step:
    def step(p: Problem, ce_weight: float, kl_weight: float) -> Tensor:
        z = (p.hidden_NH @ p.weight_VH.T).float()
        with torch.no_grad():
            w = (p.teacher_hidden_NH @ p.teacher_weight_VH.T).float()
        kl = functional.kl_div(z.log_softmax(-1), w.log_softmax(-1), log_target=True, reduction="batchmean")
        return kl_weight * kl + (ce_weight * functional.cross_entropy(z, p.labels_N) if ce_weight else 0.0)

    return step


# ---------------------------------------------------------------------------------------------------------------- peers


def load_liger(*, compiled: bool) -> Step:
    _require("liger_kernel")
    from liger_kernel.chunked_loss.jsd_loss import LigerFusedLinearJSDLoss

    def step(p: Problem, ce_weight: float, kl_weight: float) -> Tensor:
        loss = LigerFusedLinearJSDLoss(
            weight_hard_loss=ce_weight,
            weight_soft_loss=kl_weight,
            beta=0.0,
            temperature=1.0,
            compiled=compiled,
            chunk_size=LIGER_CHUNK,
        )
        return loss(p.hidden_NH, p.weight_VH, p.teacher_hidden_NH, p.teacher_weight_VH, p.labels_N)

    return step


def load_trl(*, torch_ce: bool) -> Step:
    _require("trl")
    from trl.kernels.chunked_divergence import ChunkedDivergenceFunction
    from trl.kernels.chunked_logprob import ChunkedLogProbFunction
    from trl.trainer.utils import _CHUNKED_LOGPROB_CHUNK_SIZE

    linear_cross_entropy = getattr(functional, "linear_cross_entropy", None)
    if torch_ce and linear_cross_entropy is None:
        raise Unavailable(f"torch {torch.__version__} has no linear_cross_entropy")

    def cross_entropy(p: Problem) -> Tensor:
        if torch_ce:
            assert linear_cross_entropy is not None
            return linear_cross_entropy(p.hidden_NH, p.weight_VH, p.labels_N)
        log_probs = ChunkedLogProbFunction.apply(
            p.hidden_NH, p.weight_VH, None, p.labels_N, 1.0, _CHUNKED_LOGPROB_CHUNK_SIZE, None, 1.0, ()
        )[0]
        return -log_probs.mean()

    def step(p: Problem, ce_weight: float, kl_weight: float) -> Tensor:
        divergence, _ = ChunkedDivergenceFunction.apply(
            p.hidden_NH, p.weight_VH, None, p.teacher_hidden_NH, p.teacher_weight_VH, None, 0.0, 1.0
        )
        loss = kl_weight * divergence.mean()
        return loss + ce_weight * cross_entropy(p) if ce_weight else loss

    return step


def load_torchtune() -> Step:
    # The package refuses to be imported without torchao, which its losses do not use; each of them is one file over
    # torch.
    folder = _require("torchtune") / "modules" / "loss"
    kl_loss = _module_from(folder / "kd_losses.py").ForwardKLWithChunkedOutputLoss(num_output_chunks=TORCHTUNE_CHUNKS)
    ce_loss = _module_from(folder / "ce_chunked_output_loss.py").CEWithChunkedOutputLoss(
        num_output_chunks=TORCHTUNE_CHUNKS
    )

    def step(p: Problem, ce_weight: float, kl_weight: float) -> Tensor:
        z = [h[None] @ p.weight_VH.T for h in p.hidden_NH.chunk(TORCHTUNE_CHUNKS)]
        with torch.no_grad():
            w = [h[None] @ p.teacher_weight_VH.T for h in p.teacher_hidden_NH.chunk(TORCHTUNE_CHUNKS)]
        labels = p.labels_N[None]
        loss = kl_weight * kl_loss(z, w, labels)
        return loss + ce_weight * ce_loss(z, labels) if ce_weight else loss

    return step


CONTESTANTS = (
    Contestant("ours", "ours", load_ours),
    Contestant("ours, eager", "ours, eager", lambda: load_ours(rows="eager")),
    Contestant("ours, compiled", "ours, compiled", lambda: load_ours(rows="compiled"), variant=True),
    Contestant("naive", "naive", load_naive, whole_logits=True),
    Contestant("Liger", "Liger", lambda: load_liger(compiled=False)),
    Contestant("Liger, compiled", "Liger", lambda: load_liger(compiled=True), variant=True),
    Contestant("TRL", "TRL", lambda: load_trl(torch_ce=False)),
    Contestant("TRL + torch CE", "TRL", lambda: load_trl(torch_ce=True), variant=True),
    Contestant("torchtune", "torchtune", load_torchtune, whole_logits=True, omits_teacher_entropy=True),
)


def _require(package: str) -> Path:
    """The folder of an installed package, found without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise Unavailable(f"{package} is not installed")
    return Path(next(iter(spec.submodule_search_locations)))


def _module_from(file: Path) -> ModuleType:
    if not file.is_file():
        raise Unavailable(f"{file.name} is not where torchtune 0.6 has it")
    spec = importlib.util.spec_from_file_location(f"_peer_{file.stem}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ------------------------------------------------------------------------------------------------------------- problems


def make_problem(
    rows: int,
    width: int,
    vocabulary: int,
    *,
    dtype: torch.dtype,
    device: str,
    kl: float,
    seed: int = 0,
    tolerance: float = 0.02,
) -> tuple[Problem, float]:
    """A student that lies `kl` nats (mean over rows) from its teacher, as after some training: hidden states and head
    have both moved.

    Teacher logits are normal with standard deviation 3. The student is the teacher plus noise, rounded to `dtype`; the
    noise's size is found by iteration on the rounded tensors, since rounding is of the size of the smallest changes.

    Returns:
        The problem, and its mean KL in float64 over at most 256 rows.
    """
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device)

    hidden, weight = normal(rows, width), normal(vocabulary, width) * (3.0 / width**0.5)
    moved_hidden, moved_weight = normal(rows, width), normal(vocabulary, width) * (3.0 / width**0.5)
    labels = torch.randint(0, vocabulary, (rows,), generator=generator, device=device)
    teacher_hidden, teacher_weight = hidden.to(dtype), weight.to(dtype)
    probe = slice(0, min(rows, 256))
    # KL is about half the variance of the logits' change, which is 2 * 9 * size^2: the first guess.
    size, found = (kl / 9.0) ** 0.5, 0.0
    for _ in range(20):
        student_hidden, student_weight = (
            torch.add(hidden, moved_hidden, alpha=size).to(dtype),
            torch.add(weight, moved_weight, alpha=size).to(dtype),
        )
        found = reference_kl(student_hidden[probe], student_weight, teacher_hidden[probe], teacher_weight)
        if abs(found / kl - 1.0) < tolerance:
            break
        size *= min(4.0, max(0.25, (kl / found) ** 0.5)) if found > 0 else 2.0
    problem = Problem(
        student_hidden.requires_grad_(), student_weight.requires_grad_(), teacher_hidden, teacher_weight, labels
    )
    return problem, found


def _slices(rows: int, vocabulary: int) -> list[slice]:
    """Row slices of about 32 MB of float64 logits."""
    step = max(1, (1 << 22) // vocabulary)
    return [slice(i, min(i + step, rows)) for i in range(0, rows, step)]


@torch.no_grad()
def reference_kl(hidden: Tensor, weight: Tensor, teacher_hidden: Tensor, teacher_weight: Tensor) -> float:
    """Mean forward KL in float64, nats."""
    weight, teacher_weight = weight.double(), teacher_weight.double()
    total = 0.0
    for part in _slices(len(hidden), len(weight)):
        log_q = (hidden[part].double() @ weight.T).log_softmax(-1)
        log_p = (teacher_hidden[part].double() @ teacher_weight.T).log_softmax(-1)
        total += float((log_p.exp() * (log_p - log_q)).sum())
    return total / len(hidden)


@dataclass
class Reference:
    """What a contestant should give, in float64."""

    ce: float
    """Mean cross-entropy, nats."""
    kl: float
    """Mean forward KL, nats."""
    teacher_entropy: float
    """Mean entropy of the teacher, nats."""
    grad_hidden_NH: Tensor
    grad_weight_VH: Tensor


@torch.no_grad()
def reference_gradients(problem: Problem, ce_weight: float, kl_weight: float) -> Reference:
    """Loss and gradients in float64 from the problem's own (rounded) tensors, a few rows at a time, in closed form."""
    weight, teacher_weight = problem.weight_VH.double(), problem.teacher_weight_VH.double()
    rows = len(problem.labels_N)
    grad_hidden, grad_weight = torch.zeros_like(problem.hidden_NH, dtype=torch.float64), torch.zeros_like(weight)
    ce = kl = entropy = 0.0
    for part in _slices(rows, len(weight)):
        hidden, labels = problem.hidden_NH[part].double(), problem.labels_N[part, None]
        log_q = (hidden @ weight.T).log_softmax(-1)
        log_p = (problem.teacher_hidden_NH[part].double() @ teacher_weight.T).log_softmax(-1)
        q, p = log_q.exp(), log_p.exp()
        ce -= float(log_q.gather(1, labels).sum())
        kl += float((p * (log_p - log_q)).sum())
        entropy -= float((p * log_p).sum())
        gradient = (ce_weight + kl_weight) * q - kl_weight * p
        gradient.scatter_add_(1, labels, torch.full_like(labels, -ce_weight, dtype=torch.float64))
        gradient /= rows
        grad_hidden[part] = gradient @ weight
        grad_weight.addmm_(gradient.T, hidden)
    return Reference(ce / rows, kl / rows, entropy / rows, grad_hidden, grad_weight)


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Frobenius norm of the difference over that of what was expected."""
    return float((found.double() - expected).norm() / expected.norm())
