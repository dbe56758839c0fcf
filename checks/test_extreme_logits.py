"""Every way to compute the loss at logits where probabilities underflow, against 150 digits (`exact_loss`): the
reference is the last to fail."""

from __future__ import annotations

import shutil

import pytest
import torch

from exact_loss import LABELS, SETTINGS, Setting, exact, extreme_logits
from holdfast.ops.annealing import AnnealedLoss, NonFiniteLogits, annealed_loss
from holdfast.ops.heads import Head

CASES = {name: (z, w) for name, z, w in extreme_logits()}
NATIVE = pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler")
WAYS = {
    "reference float64": (torch.float64, {"backend": "reference"}),
    "reference float32": (torch.float32, {"backend": "reference"}),
    "eager float64": (torch.float64, {"backend": "chunked", "rows": "eager"}),
    "eager float32": (torch.float32, {"backend": "chunked", "rows": "eager"}),
    "eager bfloat16": (torch.bfloat16, {"backend": "chunked", "rows": "eager"}),
    "compiled float32": (torch.float32, {"backend": "chunked", "rows": "compiled"}),
    "native float32": (torch.float32, {"backend": "chunked", "rows": "native"}),
    "native bfloat16": (torch.bfloat16, {"backend": "chunked", "rows": "native"}),
}
MARKS = {"native": [NATIVE], "compiled": [pytest.mark.slow]}
ERRORS = {torch.float64: (1e-12, 1e-12), torch.float32: (4e-6, 4e-6), torch.bfloat16: (4e-6, 4e-3)}
"""Of figures, in relation to the figure or to 1, and of gradients, in relation to the row's largest or to 0.1."""
LOOSE = {"reference float32": (2e-5, 2e-5)}
"""It takes logarithms of whole softmaxes, which float32 rounds; the oracle of the other tests is in float64."""


def computed(z: torch.Tensor, w: torch.Tensor, setting: Setting, way: str) -> tuple[AnnealedLoss, torch.Tensor]:
    """The loss with the raw logits for hidden states and the identity for a head, and its gradient to the logits."""
    dtype, options = WAYS[way]
    hidden, identity = z.to(dtype, copy=True).requires_grad_(), torch.eye(z.shape[1], dtype=dtype)
    head = Head(weight_VH=identity, softcap=setting.cap, logit_scale=setting.scale)
    result = annealed_loss(
        hidden,
        head,
        LABELS,
        teacher_hidden_NK=w.to(dtype),
        teacher_head=head,
        ce_scale=setting.ce,
        kl_scale=setting.kl,
        direction=setting.direction,
        beta=setting.beta,
        temperature=setting.temperature,
        **options,
    )
    result.loss.backward()
    assert hidden.grad is not None
    return result, hidden.grad.double()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("way", [pytest.param(way, marks=MARKS.get(way.split()[0], [])) for way in WAYS])
def test_figures_and_gradients_are_right_however_extreme_the_logits(way: str, case: str) -> None:
    (z, w), (figures, gradients) = CASES[case], LOOSE.get(way) or ERRORS[WAYS[way][0]]
    for setting in SETTINGS:
        rows = exact(z, w, LABELS, setting)
        result, gradient = computed(z, w, setting, way)
        for name, got, wanted in (
            ("cross-entropy", result.ce_N, [r.ce for r in rows]),
            ("divergence", result.kl_N, [r.divergence for r in rows]),
            # of eager rows a difference of numbers as large as the logits
            ("entropy", result.entropy_N, [r.entropy for r in rows]),
        ):
            wanted = torch.tensor(wanted, dtype=torch.float64)
            size = wanted.abs() + (z.abs().clamp(max=1e6).amax(1) / 8 if name == "entropy" else 1)
            error = (got.detach().double() - wanted).abs() / size
            assert error.max() <= figures, f"{name} off by {error.max():.1e} at {setting}"
        wanted = torch.tensor([r.gradient for r in rows], dtype=torch.float64)
        # of the reverse direction a difference of numbers as large as the divergence
        least = 0.1 * (1 + torch.tensor([r.divergence if setting.direction == "reverse" else 0.0 for r in rows]))
        error = (gradient - wanted).abs().amax(1) / (wanted.abs().amax(1) + least)
        assert error.max() <= gradients, f"gradient off by {error.max():.1e} at {setting}"


@pytest.mark.parametrize("direction", ["forward", "reverse", "jsd"])
@pytest.mark.parametrize("masked", [False, True], ids=["in the divergence", "outside it"])
@pytest.mark.parametrize("way", [pytest.param(way, marks=MARKS.get(way.split()[0], [])) for way in WAYS])
def test_what_a_dtype_cannot_hold_is_refused_or_right(way: str, masked: bool, direction: str) -> None:
    """Masks of the largest number, over a temperature of 0.5 and with both signs: beyond float32, within float64. A row
    outside the divergence has the cross-entropy's gradient or none."""
    dtype, options = WAYS[way]
    most = float(torch.finfo(torch.bfloat16).max)
    z, w, far = (torch.tensor([row]) for row in ([1.0, -most, 0.5], [0.5, 0.25, -most], [0.5, most, -most]))
    for student, teacher, temperature in ((z, w, 1.0), (z, w, 0.5), (z, z, 0.5), (z, far, 1.0), (far, z, 0.5)):
        hidden, identity = student.to(dtype, copy=True).requires_grad_(), torch.eye(3, dtype=dtype)
        try:
            result = annealed_loss(
                hidden,
                Head(weight_VH=identity),
                torch.tensor([0]),
                teacher_hidden_NK=teacher.to(dtype),
                teacher_head=Head(weight_VH=identity),
                kl_scale=0.5,
                kl_mask_N=torch.tensor([not masked]),
                temperature=temperature,
                direction=direction,
                **options,
            )
        except NonFiniteLogits as error:
            rows = error.rows
        else:
            rows = []
        if rows:
            assert rows == [0] and dtype != torch.float64
            continue
        result.loss.backward()
        assert hidden.grad is not None and hidden.grad.isfinite().all() and result.loss.isfinite()
        (row,) = exact(
            student.double(), teacher.double(), torch.tensor([0]), Setting(direction, 0.5, temperature, ce=1.0)
        )
        if not masked and (way == "reference float64" or (student is not far and teacher is not far)):
            assert abs(float(result.kl_N) - row.divergence) <= 1e-5 * (1 + row.divergence)
