"""The Triton row stage against a float64 autograd reference: in Triton's interpreter on any machine, compiled for a
GPU, and on one where there is one.

Triton decides when it is first imported whether kernels are interpreted, and any test module may have imported it
before. So this file runs twice: `test_in_the_interpreter` starts it again with TRITON_INTERPRET=1, and only there the
class `TestInTheInterpreter` is collected.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
from torch import Tensor

from exact_loss import LABELS, SETTINGS, exact, extreme_logits
from holdfast.ops import annealing_triton
from holdfast.ops.annealing import annealed_loss
from holdfast.ops.annealing_terms import FIGURES, Terms
from holdfast.ops.annealing_triton import is_available, rows_triton
from holdfast.ops.heads import Head

if sys.platform != "linux":  # elsewhere Triton may not exist; on Linux its absence is a failure, not a skip
    pytest.importorskip("triton")

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DIRECTIONS = ("forward", "reverse", "jsd")
EXTREME = {name: (z, w) for name, z, w in extreme_logits()}
CE, KL, ENTROPY, CORRECT, BAD_STUDENT, BAD_TEACHER, WEIGHT = range(len(FIGURES))
PLAIN = Terms()
CAPPED = Terms(logit_scale=0.7, softcap=4.0, teacher_logit_scale=1.3, teacher_softcap=5.0)


@dataclass
class Case:
    """Inputs of one call."""

    z: Tensor
    w: Tensor | None
    labels: Tensor
    kl_rows: Tensor | None
    terms: Terms
    bias: Tensor | None = None
    teacher_bias: Tensor | None = None
    ce_scale: float = 0.7
    kl_scale: float = 1.9
    ce_weights: Tensor | None = None
    kl_weights: Tensor | None = None
    power: float | None = None

    def weighted(self) -> Case:
        """The same with weights of its rows, 0 in one of them."""
        weights = torch.linspace(0, 2.5, len(self.z), dtype=self.z.dtype, device=self.z.device)
        return replace(self, ce_weights=weights, kl_weights=None if self.w is None else weights.flip(0) ** 2)

    def run(
        self,
        *,
        gradient: torch.dtype | Tensor | None = torch.float64,
        figures: Tensor | None = None,
        block: int | None = 128,
    ) -> tuple[Tensor | None, Tensor]:
        """The row stage's gradient and figures; buffers start as NaN, so that what is not written shows."""
        z = self.z
        figures = (
            torch.full((len(z), len(FIGURES)), torch.nan, dtype=z.dtype, device=z.device)
            if figures is None
            else figures
        )
        if isinstance(gradient, torch.dtype):
            gradient = torch.full(z.shape, torch.nan, dtype=gradient, device=z.device)
        rows_triton(
            z,
            self.w,
            bias_V=self.bias,
            teacher_bias_U=self.teacher_bias,
            labels_C=self.labels,
            kl_rows_C=self.kl_rows,
            ce_weights_C=self.ce_weights,
            kl_weights_C=self.kl_weights,
            gate_power=None if self.power is None else torch.tensor(self.power, dtype=z.dtype, device=z.device),
            ce_scale=torch.tensor(self.ce_scale, dtype=z.dtype, device=z.device),
            kl_scale=torch.tensor(self.kl_scale, dtype=z.dtype, device=z.device),
            terms=self.terms,
            gradient_CV=gradient,
            figures_CF=figures,
            block=block,
        )
        return gradient, figures

    def reference(self) -> tuple[Tensor, Tensor]:
        """The formulas of `annealing_rows` in float64, the gradient by autograd."""
        t = self.terms
        z = self.z.double().requires_grad_()

        def logits(x: Tensor, bias: Tensor | None, scale: float, cap: float | None) -> Tensor:
            x = scale * (x if bias is None else x + bias.double())
            return x if cap is None else cap * torch.tanh(x / cap)

        u = logits(z, self.bias, t.logit_scale, t.softcap)
        log_s = u.log_softmax(-1)
        labelled = self.labels >= 0
        u_label = u.gather(1, self.labels.clamp(min=0)[:, None]).squeeze(1)
        ce = torch.where(labelled, u.logsumexp(-1) - u_label, 0.0)
        weight = torch.where(labelled, 1.0 if self.ce_weights is None else self.ce_weights.double(), 0.0)
        if t.gate != "none":
            log_r = u.topk(min(20, u.shape[1])).values.log_softmax(-1)
            gate = (-ce).exp() if t.gate == "probability" else -(log_r.exp() * log_r).sum(-1) / 3
            gate = (gate.detach().clamp(min=0) ** (self.power or 1.0)).clamp(min=t.floor)
            weight = weight * (1 - t.gate_strength + t.gate_strength * gate)
        loss = self.ce_scale * (weight * ce).sum()
        kl = torch.zeros_like(ce)
        if self.w is not None:
            v = logits(self.w.double(), self.teacher_bias, t.teacher_logit_scale, t.teacher_softcap)
            common = min(z.shape[1], v.shape[1])
            label = torch.arange(common, device=z.device) == self.labels[:, None]
            label &= t.mask_target and common > 1
            log_q = (u[:, :common] / t.temperature).masked_fill(label, -math.inf).log_softmax(-1)
            log_p = (v[:, :common] / t.temperature).masked_fill(label, -math.inf).log_softmax(-1)
            log_q, log_p = log_q.masked_fill(label, 0.0), log_p.masked_fill(label, 0.0)  # add nothing to a divergence
            if t.direction == "jsd":
                log_m = torch.logaddexp(log_p + math.log(t.beta), log_q + math.log1p(-t.beta))
                kl = t.beta * divergence(log_p, log_m) + (1 - t.beta) * divergence(log_q, log_m)
            else:
                kl = divergence(log_p, log_q) if t.direction == "forward" else divergence(log_q, log_p)
            kl = torch.where(self.kl_rows, kl, 0.0)
            loss = loss + self.kl_scale * (kl if self.kl_weights is None else self.kl_weights * kl).sum()
        loss.backward()
        figures = torch.zeros(len(z), len(FIGURES), dtype=torch.float64, device=z.device)
        figures[:, CE], figures[:, KL] = ce, kl
        figures[:, ENTROPY] = -(log_s.exp() * log_s).sum(-1)
        figures[:, CORRECT] = labelled & (u_label >= u.amax(1))
        figures[:, WEIGHT] = weight
        return z.grad, figures.detach()


def divergence(first: Tensor, second: Tensor) -> Tensor:
    return (first.exp() * (first - second) + second.exp() - first.exp()).sum(-1)


def make(
    rows: int = 3,
    V: int = 150,
    U: int | None = None,
    *,
    terms: Terms = PLAIN,
    bias: bool = False,
    spread: float = 3.0,
    apart: float = 0.5,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    seed: int = 0,
) -> Case:
    """Random logits of the given spread, a teacher `apart` from the student, rows of every mixture of the two terms,
    one label the likeliest token."""
    generator = torch.Generator().manual_seed(seed)
    U = V if U is None else U

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    shared = spread * normal(rows, max(U, V))
    labels = torch.randint(0, V, (rows,), generator=generator)
    kl_rows = torch.ones(rows, dtype=torch.bool)
    z, offset = shared[:, :V] + apart * normal(rows, V), normal(V)
    labels[0] = (z[0] + offset if bias else z[0]).argmax()
    if rows > 2:
        labels[1], kl_rows[2] = -100, False
    return Case(
        z=z.to(dtype).to(device),
        w=(shared[:, :U] + apart * normal(rows, U)).to(dtype).to(device),
        labels=labels.to(device),
        kl_rows=kl_rows.to(device),
        terms=terms,
        bias=offset.to(dtype).to(device) if bias else None,
        teacher_bias=normal(U).to(dtype).to(device) if bias else None,
    )


def assert_agrees(
    case: Case, *, block: int | None = 128, gradient_error: float = 1e-6, figure_error: float = 2e-6
) -> None:
    """Gradient to a relative error in each row's norm (or 0.1: a probability near 1 is that exact), figures element by
    element."""
    gradient, figures = case.run(block=block)
    expected, expected_figures = case.reference()
    assert gradient is not None
    error = (gradient - expected).norm(dim=1)
    assert (error <= gradient_error * (expected.norm(dim=1) + 0.1)).all(), (
        f"gradient off by {error.tolist()} in {case.terms}"
    )
    torch.testing.assert_close(figures.double(), expected_figures, rtol=figure_error, atol=figure_error)


def errors_through_the_op(
    direction: str, dtype: torch.dtype, *, device: str, N: int, H: int, V: int
) -> tuple[float, float]:
    """Relative errors of `annealed_loss` with this backend against its float64 reference: the loss', and the larger of
    the two gradients'."""
    generator = torch.Generator().manual_seed(0)
    hidden, teacher_hidden, weight = (
        torch.randn(*shape, generator=generator).to(device, dtype) for shape in ((N, H), (N, H), (V, H))
    )
    weight *= 0.1
    labels = torch.randint(0, V, (N,), generator=generator).to(device)
    labels[::3] = -100
    found = []
    for backend, kind in (("triton", dtype), ("reference", torch.float64)):
        h, m = (x.to(kind, copy=True).requires_grad_() for x in (hidden, weight))
        result = annealed_loss(
            h,
            Head(weight_VH=m),
            labels,
            teacher_hidden_NK=teacher_hidden.to(kind),
            teacher_head=Head(weight_VH=weight.to(kind)),
            ce_scale=1 / N,
            kl_scale=2 / N,
            kl_mask_N=torch.arange(N, device=device) % 4 != 0,
            direction=direction,
            backend=backend,
        )
        result.loss.backward()
        found.append([x.detach().double() for x in (result.loss, h.grad, m.grad)])
    loss, *gradients = (((a - b).norm() / b.norm()).item() for a, b in zip(*found, strict=True))
    return loss, max(gradients)


# ------------------------------------------------------------------------------------------------------- the two runs


def outside(function: Callable[..., None]) -> Callable[..., None]:
    """Collected only where the interpreter is off."""
    function.__test__ = not INTERPRETED
    return function


@outside
@pytest.mark.slow
def test_in_the_interpreter():
    """Runs `TestInTheInterpreter` in a process of its own; its report is this test's report."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--noconftest",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-p",
        "no:randomly",
        "--tb=short",
        __file__,
    ]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, cwd=os.path.dirname(os.path.abspath(__file__))
    )
    report = done.stdout[-6000:] + done.stderr[-2000:]
    assert done.returncode == 0, report
    counted = re.search(r"(\d+) passed", done.stdout)
    assert counted and int(counted[1]) >= 50 and "skipped" not in done.stdout, report


class TestInTheInterpreter:
    __test__ = INTERPRETED

    @pytest.fixture(autouse=True, scope="class")
    @staticmethod
    def device_functions_are_called_directly():
        """A launch makes Triton's language interpretable; the interpreter does so anew for every device function, which
        takes much of the time."""
        from triton.runtime.interpreter import InterpretedFunction

        usual = InterpretedFunction.__call__

        def direct(function, *args, **kwargs):
            ours = function.fn.__module__ == annealing_triton.__name__
            return function.rewrite()(*args, **kwargs) if ours else usual(function, *args, **kwargs)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(InterpretedFunction, "__call__", direct)
            yield

    def test_the_kernel_is_interpreted(self):
        assert is_available()
        assert "Interpreted" in type(annealing_triton._row_kernel).__name__

    @pytest.mark.parametrize("direction", DIRECTIONS)
    def test_values_and_gradients_of_weighted_rows(self, direction):
        """Figures do without the weights, and weights of 1 change no bit."""
        case = make(V=150, U=131, terms=replace(CAPPED, direction=direction, temperature=0.7), bias=True)
        plain, figures = case.run()
        gradient, weighted = case.weighted().run()
        assert_agrees(case.weighted(), gradient_error=3e-6, figure_error=5e-6)
        assert torch.equal(weighted[:, :WEIGHT], figures[:, :WEIGHT]) and not torch.equal(gradient, plain)
        ones = torch.ones(len(case.z))
        assert torch.equal(replace(case, ce_weights=ones, kl_weights=ones).run()[0], plain)
        assert_agrees(replace(case, w=None, kl_rows=None, teacher_bias=None).weighted(), gradient_error=3e-6)

    @pytest.mark.parametrize("direction", DIRECTIONS)
    def test_a_masked_target_has_no_part_in_the_divergence(self, direction):
        """Nor does it drown the other tokens: the label has all but 1e-9 of the probability."""
        case = make(V=150, terms=Terms(direction=direction, mask_target=True))
        with_label = case.labels >= 0
        case.z[with_label, case.labels[with_label]] += 25.0
        assert_agrees(case, gradient_error=3e-6, figure_error=5e-6)
        gradient, figures = replace(case, ce_scale=0.0).run()
        assert gradient[0, case.labels[0]] == 0.0 and gradient[0].any() and figures[0, KL] > 0.01
        same = replace(case, w=case.z.clone()).run()[1]
        assert not same[:, KL].any(), "an unmoved student"

    @pytest.mark.parametrize("gate", ["probability", "entropy"])
    @pytest.mark.parametrize("V", [7, 20, 150])
    def test_values_and_gradients_of_gated_rows(self, gate, V):
        for power, floor, strength in ((None, 0.0, 1.0), (1.7, 0.05, 0.6)):
            terms = replace(CAPPED, gate=gate, floor=floor, gate_strength=strength)
            case = replace(make(V=V, terms=terms, bias=True, spread=2.0), power=power)
            for given in (case, case.weighted(), replace(case, w=None, kl_rows=None, teacher_bias=None)):
                assert_agrees(given, gradient_error=4e-6, figure_error=5e-6)

    @pytest.mark.parametrize("case", EXTREME)
    def test_extreme_logits(self, case):
        """Against 150 digits, with a soft-cap where the temperature is not 1."""
        z, w = EXTREME[case]
        for setting in SETTINGS:
            if (setting.temperature == 1.0) is not (setting.cap is None):
                continue
            cap = dict(logit_scale=setting.scale, softcap=setting.cap)
            cap |= {f"teacher_{name}": value for name, value in cap.items()}
            terms = Terms(temperature=setting.temperature, direction=setting.direction, beta=setting.beta, **cap)
            rows, shown = (
                exact(z, w, LABELS, setting),
                Case(
                    z=z.float(),
                    w=w.float(),
                    labels=LABELS,
                    kl_rows=torch.ones(5, dtype=torch.bool),
                    terms=terms,
                    ce_scale=setting.ce,
                    kl_scale=setting.kl,
                ),
            )
            gradient, figures = shown.run(block=16)
            for column, name in ((CE, "ce"), (KL, "divergence"), (ENTROPY, "entropy")):
                wanted = torch.tensor([getattr(row, name) for row in rows], dtype=torch.float64)
                torch.testing.assert_close(figures[:, column].double(), wanted, rtol=4e-6, atol=4e-6)
            wanted = torch.tensor([row.gradient for row in rows], dtype=torch.float64)
            least = 0.1 * (1 + torch.tensor([r.divergence if setting.direction == "reverse" else 0.0 for r in rows]))
            error = (gradient - wanted).abs().amax(1) / (wanted.abs().amax(1) + least)
            assert error.max() <= 4e-6, f"gradient off by {error.max():.1e} at {setting}"

    def test_gradient_buffers_of_every_dtype_hold_the_same_gradient(self):
        case = make(V=130, terms=replace(CAPPED, temperature=0.9), bias=True)
        expected, figures = case.run(gradient=torch.float32)
        for dtype in (torch.bfloat16, torch.float16, torch.float64):
            gradient, again = case.run(gradient=dtype)
            if dtype == torch.bfloat16:  # the interpreter cuts where a device rounds
                assert torch.equal(gradient, (expected.view(torch.int32) & -65536).view(torch.float32).to(dtype))
            else:
                assert torch.equal(gradient, expected.to(dtype)), dtype
            assert torch.equal(figures, again)

    @pytest.mark.parametrize("direction", DIRECTIONS)
    def test_the_gradient_may_overwrite_the_products(self, direction):
        case = make(V=130, U=120, terms=replace(CAPPED, direction=direction), bias=True)
        expected, figures = case.run(gradient=torch.float32)
        teacher = case.w.clone()
        gradient, again = case.run(gradient=case.z)
        assert gradient is case.z
        assert torch.equal(case.z, expected) and torch.equal(figures, again) and torch.equal(case.w, teacher)

    def test_rows_of_any_stride(self):
        """Buffers that are parts of larger ones, and nothing written beside them."""
        case = make(V=130, U=120)
        expected, figures = case.run(gradient=torch.bfloat16)
        wide = [
            torch.full((3, 200), 7.0, dtype=d) for d in (torch.float32, torch.float32, torch.bfloat16, torch.float32)
        ]
        wide[0][:, 11:141], wide[1][:, 3:123] = case.z, case.w
        labels = torch.stack([case.labels, case.labels + 1], 1)[:, 0]
        strided = replace(
            case,
            z=wide[0][:, 11:141],
            w=wide[1][:, 3:123],
            labels=labels,
            kl_rows=torch.stack([case.kl_rows] * 2, 1)[:, 0],
        )
        strided.run(gradient=wide[2][:, 5:135], figures=wide[3][:, 1:8])
        assert torch.equal(wide[2][:, 5:135], expected) and torch.equal(wide[3][:, 1:8], figures)
        assert (
            (wide[2][:, :5] == 7).all()
            and (wide[2][:, 135:] == 7).all()
            and (wide[3][:, 8:] == 7).all()
            and (wide[3][:, 0] == 7).all()
        )

    @pytest.mark.parametrize("terms", [PLAIN, CAPPED])
    def test_without_a_teacher(self, terms):
        case = replace(make(terms=terms, bias=True), w=None, kl_rows=None, teacher_bias=None)
        assert_agrees(case, gradient_error=3e-6)
        # What belongs to the teacher changes nothing then, to the last bit.
        same = replace(case, terms=replace(terms, temperature=3.0, direction="reverse"), kl_scale=99.0)
        assert all(torch.equal(a, b) for a, b in zip(case.run(), same.run(), strict=True))

    def test_a_coefficient_of_zero_is_plain_cross_entropy_to_the_last_bit(self):
        case = make()
        case.labels[1] = 5
        with_teacher, figures = replace(case, kl_scale=0.0).run()
        alone, figures_alone = replace(case, w=None, kl_rows=None).run()
        assert torch.equal(with_teacher, alone)
        assert torch.equal(figures[:, [CE, ENTROPY, CORRECT, WEIGHT]], figures_alone[:, [CE, ENTROPY, CORRECT, WEIGHT]])

    def test_rows_of_neither_term_are_exactly_zero(self):
        for direction, extreme in product(DIRECTIONS, (1.0, 1e30, 3e38)):
            case = make(rows=3, terms=Terms(direction=direction, temperature=0.7), V=50, U=40)
            case.labels[:2], case.kl_rows[:2] = -100, False
            case.z[0], case.w[0] = case.z[0].sign() * extreme, -case.z[0, :40].sign() * extreme
            gradient, figures = case.run()
            assert (gradient[:2] == 0).all() and gradient[2].abs().sum() > 0
            assert (figures[:2, [CE, KL, CORRECT, BAD_STUDENT, BAD_TEACHER, WEIGHT]] == 0).all()

    @pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
    @pytest.mark.parametrize("terms", [PLAIN, CAPPED])
    def test_products_that_are_not_finite_are_flagged(self, value, terms):
        """Also in padding columns, and where the soft-cap would hide an infinity; in that row and that column of the
        figures only."""
        for V, U in ((100, 130), (130, 100)):
            case = make(rows=4, V=V, U=U, terms=terms)
            good, good_figures = replace(
                case, z=case.z[3:], w=case.w[3:], labels=case.labels[3:], kl_rows=case.kl_rows[3:]
            ).run()
            case.z[0, V - 1] = case.z[1, 0] = value
            case.w[1, U - 1] = case.w[2, 0] = value
            gradient, figures = case.run()
            assert figures[:, BAD_STUDENT].tolist() == [1, 1, 0, 0]
            assert figures[:, BAD_TEACHER].tolist() == [0, 1, 1, 0]
            assert torch.equal(gradient[3:], good) and torch.equal(figures[3:], good_figures)

    @pytest.mark.parametrize("direction", DIRECTIONS)
    def test_an_unmoved_student_has_no_divergence_at_all(self, direction):
        for temperature, base in product((0.7, 1.0, 2.5), (PLAIN, CAPPED)):
            terms = replace(
                base,
                direction=direction,
                temperature=temperature,
                teacher_softcap=base.softcap,
                teacher_logit_scale=base.logit_scale,
            )
            for V, U in ((100, 100), (150, 131), (131, 150)):
                case = make(rows=1, V=V, U=U, terms=terms, bias=True)
                common = min(V, U)
                case.w[:, :common] = case.z[:, :common]
                case.teacher_bias[:common] = case.bias[:common]
                case.labels[:] = -100
                gradient, figures = case.run()
                assert (gradient == 0).all() and (figures[:, KL] == 0).all(), (terms, V, U)

    @pytest.mark.parametrize("direction", DIRECTIONS)
    def test_a_tiny_divergence_does_not_drown(self, direction):
        for apart, V in product((3e-3, 1e-4), (300, 5000)):
            case = replace(make(rows=3, V=V, apart=apart, terms=Terms(direction=direction)), ce_scale=0.0)
            expected, figures = case.reference()
            assert 1e-10 < figures[0, KL] < 2e-5
            gradient, found = case.run(block=1024)
            assert ((found.double() - figures)[:, KL].abs() <= 1e-3 * figures[:, KL]).all(), (
                found[:, KL] / figures[:, KL] - 1,
                apart,
            )
            assert ((gradient - expected).norm() / expected.norm()) < 1e-3

    @pytest.mark.parametrize(
        ("dtype", "loss_error", "gradient_error"), [(torch.float32, 1e-6, 1e-6), (torch.bfloat16, 1e-6, 6e-3)]
    )
    @pytest.mark.parametrize("direction", DIRECTIONS)
    def test_through_the_op(self, direction, dtype, loss_error, gradient_error):
        errors = errors_through_the_op(direction, dtype, device="cpu", N=12, H=16, V=100)
        assert errors[0] < loss_error and errors[1] < gradient_error

    @hypothesis.settings(max_examples=25, deadline=None, derandomize=True, database=None)
    @hypothesis.given(
        rows=st.integers(1, 3),
        V=st.integers(2, 90),
        U=st.integers(2, 90),
        direction=st.sampled_from(DIRECTIONS),
        temperature=st.sampled_from([0.5, 1.0, 1.0, 3.0]),
        beta=st.floats(0.05, 0.95),
        masked=st.booleans(),
        cap=st.sampled_from([None, 2.0, 30.0]),
        scale=st.sampled_from([1.0, 0.25]),
        bias=st.booleans(),
        apart=st.sampled_from([0.01, 0.3, 2.0]),
        dtype=st.sampled_from([torch.float32, torch.float64]),
        block=st.sampled_from([16, 32, 128]),
        seed=st.integers(0, 2**16),
        data=st.data(),
    )
    def test_any_shape_and_any_option(
        self, rows, V, U, direction, temperature, beta, masked, cap, scale, bias, apart, dtype, block, seed, data
    ):
        terms = Terms(
            logit_scale=scale,
            softcap=cap,
            teacher_logit_scale=scale,
            teacher_softcap=cap,
            temperature=temperature,
            direction=direction,
            beta=beta,
            mask_target=masked,
        )
        case = make(rows, V, U, terms=terms, bias=bias, apart=apart, dtype=dtype, seed=seed)
        case.labels = torch.tensor(
            data.draw(st.lists(st.sampled_from([-100, 0, V - 1, V // 2]), min_size=rows, max_size=rows))
        )
        case.kl_rows = torch.tensor(data.draw(st.lists(st.booleans(), min_size=rows, max_size=rows)))
        expected, expected_figures = case.reference()
        gradient, figures = case.run(block=block)
        error = 1e-5 if dtype == torch.float32 else 1e-11
        idle = (case.labels < 0) & ~case.kl_rows
        assert (gradient[idle] == 0).all()
        # A float32 logit carries an error of its own where bias, scale or cap round it, hence the absolute part.
        assert (gradient - expected).abs().max() <= error * max(expected.abs().max().item(), 0.05)
        torch.testing.assert_close(figures.double(), expected_figures, rtol=error, atol=error)


# --------------------------------------------------------------------------------------------------- without a device


@pytest.mark.slow
@outside
def test_importing_needs_no_triton():
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "from holdfast.ops.annealing_triton import is_available, rows_triton\n"
        "assert is_available() is False"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@outside
def test_availability_is_that_of_the_kernel_as_it_was_made(monkeypatch):
    """Setting the variable after Triton was imported does not make kernels interpreted."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert is_available() == torch.cuda.is_available()


# ------------------------------------------------------------------------------------------------------- on a device


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestOnADevice:
    __test__ = not INTERPRETED

    @pytest.mark.parametrize("capped", [False, True])
    @pytest.mark.parametrize("temperature", [0.7, 1.0, 2.5])
    @pytest.mark.parametrize("direction", DIRECTIONS)
    def test_values_and_gradients(self, direction, temperature, capped):
        terms = replace(CAPPED if capped else PLAIN, direction=direction, temperature=temperature, beta=0.3)
        for V, U in ((128256, 128256), (128256, 128000), (1001, 1003)):
            case = make(16, V, U, terms=terms, bias=capped, device="cuda")
            gated = replace(case, terms=replace(terms, gate="entropy"))
            for weighted in (case, case.weighted(), gated, replace(gated, terms=replace(terms, gate="probability"))):
                assert_agrees(weighted, block=None, gradient_error=2e-5 if capped else 5e-6, figure_error=1e-5)

    @pytest.mark.parametrize("direction", DIRECTIONS)
    def test_a_student_that_has_hardly_moved(self, direction):
        case = replace(make(8, 128256, apart=3e-3, terms=Terms(direction=direction), device="cuda"), ce_scale=0.0)
        expected, figures = case.reference()
        gradient, found = case.run(block=None)
        assert ((found.double() - figures)[:, KL].abs() <= 1e-3 * figures[:, KL]).all()
        assert ((gradient - expected).norm() / expected.norm()) < 1e-3
        for terms in (
            case.terms,
            replace(CAPPED, direction=direction, temperature=0.7, teacher_softcap=4.0, teacher_logit_scale=0.7),
        ):
            gradient, found = replace(case, w=case.z.clone(), terms=terms).run(block=None)
            assert (gradient == 0).all() and (found[:, KL] == 0).all()

    @pytest.mark.parametrize("direction", DIRECTIONS)
    def test_buffers(self, direction):
        case = make(32, 32003, terms=Terms(direction=direction, temperature=1.5), device="cuda")
        expected, figures = case.run(gradient=torch.float32, block=None)
        for dtype in (torch.bfloat16, torch.float16):
            assert torch.equal(case.run(gradient=dtype, block=None)[0], expected.to(dtype))
        for _ in range(20):  # a race between the passes would not show every time
            again, again_figures = replace(case, z=(z := case.z.clone())).run(gradient=z, block=None)
            assert torch.equal(again, expected) and torch.equal(again_figures, figures)

    def test_more_than_two_to_the_31_elements(self):
        if torch.cuda.mem_get_info()[0] < 30 << 30:
            pytest.skip("needs 30 GB of device memory")
        rows, V = 17000, 128256
        case = make(2, V, device="cuda")
        z, w = (x[:1].expand(rows, V).contiguous() for x in (case.z, case.w))
        big = replace(case, z=z, w=w, labels=case.labels[:1].repeat(rows), kl_rows=case.kl_rows[:1].repeat(rows))
        gradient, figures = big.run(gradient=torch.bfloat16, block=None)
        expected, expected_figures = case.run(gradient=torch.bfloat16, block=None)
        assert torch.equal(gradient[-1], expected[0]) and (figures == expected_figures[0]).all()
