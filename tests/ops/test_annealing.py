"""The annealing op against its plain-autograd reference, in float64 where possible."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import ShapeError
from holdfast.ops.annealing import IGNORE, NonFiniteLogits, annealed_loss, default_chunk_rows
from holdfast.ops.heads import Head


def problem(
    *,
    rows=23,
    width=8,
    teacher_width=6,
    vocabulary=31,
    teacher_vocabulary=29,
    bias=True,
    softcap=None,
    scale=1.0,
    dtype=torch.float64,
    seed=0,
    ignored=0.3,
):
    g = torch.Generator().manual_seed(seed)

    def r(*shape):
        return torch.randn(*shape, generator=g).to(dtype)  # values that float32 holds exactly, so that precisions can be compared

    labels = torch.randint(0, vocabulary, (rows,), generator=g)
    labels[torch.rand(rows, generator=g) < ignored] = IGNORE
    return dict(
        hidden=r(rows, width).requires_grad_(),
        weight=(r(vocabulary, width) / 4).requires_grad_(),  # logits of the size a language model has
        bias=r(vocabulary).requires_grad_() if bias else None,
        labels=labels,
        teacher_hidden=r(rows, teacher_width),
        teacher=Head(
            weight_VH=r(teacher_vocabulary, teacher_width) / 4, bias_V=r(teacher_vocabulary) if bias else None, softcap=softcap, logit_scale=scale
        ),
        mask=torch.rand(rows, generator=g) < 0.6,
        softcap=softcap,
        scale=scale,
    )


def run(p, *, upstream=1.7, backend="chunked", **changes):
    options = dict(
        teacher_hidden_NK=p["teacher_hidden"],
        teacher_head=p["teacher"],
        ce_scale=0.13,
        kl_scale=0.29,
        kl_mask_N=p["mask"],
        backend=backend,
        **changes,
    )
    head = Head(weight_VH=p["weight"], bias_V=p["bias"], softcap=p["softcap"], logit_scale=p["scale"])
    result = annealed_loss(p["hidden"], head, p["labels"], **options)
    inputs = [t for t in (p["hidden"], p["weight"], p["bias"]) if t is not None and t.requires_grad]
    grads = torch.autograd.grad(result.loss * upstream, inputs) if inputs else []
    return result, grads


def assert_same(a, b, *, tolerance):
    (first, first_grads), (second, second_grads) = a, b
    for name in ("loss", "ce_sum", "kl_sum"):
        x, y = getattr(first, name).detach().double(), getattr(second, name).detach().double()
        assert abs(x - y) <= tolerance * max(abs(float(x)), 1e-12), name
    for name in ("ce_count", "kl_count", "correct"):
        assert getattr(first, name) == getattr(second, name), name
    for x, y in zip(first_grads, second_grads, strict=True):
        assert (x.double() - y.double()).norm() <= tolerance * x.double().norm() + 1e-15


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 40),
    vocabulary=st.integers(2, 60),
    extra=st.integers(-20, 20),
    temperature=st.floats(0.3, 4.0),
    direction=st.sampled_from(["forward", "reverse"]),
    chunk=st.integers(1, 50),
    softcap=st.sampled_from([None, 3.0]),
    scale=st.sampled_from([1.0, 0.5]),
    bias=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_agrees_with_the_reference_in_float64(rows, vocabulary, extra, temperature, direction, chunk, softcap, scale, bias, seed):
    p = problem(rows=rows, vocabulary=vocabulary, teacher_vocabulary=max(2, vocabulary + extra), softcap=softcap, scale=scale, bias=bias, seed=seed)
    options = dict(temperature=temperature, direction=direction)
    assert_same(run(p, backend="reference", **options), run(p, chunk_rows=chunk, **options), tolerance=1e-10)


@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize("temperature", [0.7, 1.0, 2.5])
def test_float32_is_within_1e_6_of_the_float64_oracle(direction, temperature):
    p = problem(rows=64, vocabulary=300, teacher_vocabulary=300, width=16)
    exact = run(p, backend="reference", temperature=temperature, direction=direction)
    single = {k: (v.detach().float().requires_grad_(v.requires_grad) if torch.is_tensor(v) and v.is_floating_point() else v) for k, v in p.items()}
    single["teacher"] = Head(weight_VH=p["teacher"].weight_VH.float(), bias_V=p["teacher"].bias_V.float())
    assert_same(exact, run(single, temperature=temperature, direction=direction), tolerance=1e-6)


@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_gradcheck(direction, softcap):
    p = problem(rows=7, vocabulary=9, teacher_vocabulary=11, softcap=softcap, scale=0.8)

    def loss(hidden, weight, bias):
        head = Head(weight_VH=weight, bias_V=bias, softcap=softcap, logit_scale=0.8)
        return annealed_loss(
            hidden, head, p["labels"], teacher_hidden_NK=p["teacher_hidden"], teacher_head=p["teacher"],
            ce_scale=0.3, kl_scale=0.7, kl_mask_N=p["mask"], temperature=1.5, direction=direction, chunk_rows=3,
        ).loss  # fmt: skip

    assert torch.autograd.gradcheck(loss, (p["hidden"], p["weight"], p["bias"]))


def test_the_gradient_is_the_papers():
    """Appendix A.3: d KL_forward / dz = (softmax(z/T) - softmax(w/T)) / T, no T^2."""
    p = problem(rows=5, bias=False, teacher_vocabulary=31)
    temperature = 2.0
    head = Head(weight_VH=p["weight"])
    result = annealed_loss(
        p["hidden"], head, torch.full((5,), IGNORE), teacher_hidden_NK=p["teacher_hidden"], teacher_head=Head(weight_VH=p["teacher"].weight_VH),
        kl_scale=1.0, kl_mask_N=torch.ones(5, dtype=torch.bool), temperature=temperature,
    )  # fmt: skip
    (got,) = torch.autograd.grad(result.loss, p["hidden"])
    z, w = p["hidden"] @ p["weight"].T, p["teacher_hidden"] @ p["teacher"].weight_VH.T
    expected = ((z / temperature).softmax(-1) - (w / temperature).softmax(-1)) / temperature @ p["weight"]
    torch.testing.assert_close(got, expected.detach())


@pytest.mark.parametrize("chunk", [1, 2, 5, 22, 23, 1000])
def test_chunk_size_changes_nothing(chunk):
    p = problem()
    assert_same(run(p, chunk_rows=23), run(p, chunk_rows=chunk), tolerance=1e-13)


def test_zero_kl_scale_is_plain_cross_entropy_to_the_bit():
    p = problem(dtype=torch.float32)
    head = Head(weight_VH=p["weight"], bias_V=p["bias"])
    plain = annealed_loss(p["hidden"], head, p["labels"], ce_scale=0.1)
    off = annealed_loss(p["hidden"], head, p["labels"], ce_scale=0.1, teacher_hidden_NK=p["teacher_hidden"], teacher_head=p["teacher"], kl_scale=0.0)
    a = torch.autograd.grad(plain.loss, (p["hidden"], p["weight"], p["bias"]))
    b = torch.autograd.grad(off.loss, (p["hidden"], p["weight"], p["bias"]))
    assert torch.equal(plain.loss, off.loss)
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert off.kl_sum == 0
    assert off.kl_count == 0


@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_kl_is_exactly_zero_where_the_student_has_not_moved(direction, temperature):
    p = problem(dtype=torch.float32, teacher_vocabulary=31)
    teacher = Head(weight_VH=p["weight"], bias_V=p["bias"])
    result = annealed_loss(
        p["hidden"],
        teacher,
        p["labels"],
        teacher_hidden_NK=p["hidden"].detach(),
        teacher_head=teacher,
        kl_scale=1.0,
        direction=direction,
        temperature=temperature,
    )
    assert result.kl_sum == 0.0
    assert result.kl_count > 0


def test_a_tiny_kl_is_not_lost_to_rounding():
    """Student a hair from the teacher: the float32 KL and its gradient stay close to float64's."""
    p = problem(rows=64, vocabulary=500, teacher_vocabulary=500, teacher_width=16, width=16, bias=False)
    moved = (p["weight"].detach() + 1e-3 * torch.randn_like(p["weight"])).requires_grad_()

    def kl(dtype):
        weight, hidden = moved.detach().to(dtype).requires_grad_(), p["hidden"].detach().to(dtype)
        teacher = Head(weight_VH=p["weight"].detach().to(dtype))
        result = annealed_loss(
            hidden, Head(weight_VH=weight), p["labels"], teacher_hidden_NK=hidden, teacher_head=teacher, ce_scale=0.0, kl_scale=1.0,
            backend="reference" if dtype == torch.float64 else "chunked",
        )  # fmt: skip
        (grad,) = torch.autograd.grad(result.loss, weight)
        return float(result.kl_sum) / float(result.kl_count), grad.double()

    exact, exact_grad = kl(torch.float64)
    single, single_grad = kl(torch.float32)
    assert 1e-6 < exact < 1e-4
    assert abs(single - exact) < 1e-3 * exact
    assert (single_grad - exact_grad).norm() < 1e-3 * exact_grad.norm()


def test_bf16_inputs_keep_float32_logits():
    """bf16 hidden states near the teacher: gradient error stays under 1 %, where bf16 logits would lose most of it."""
    p = problem(rows=128, vocabulary=1000, width=32, bias=False, teacher_vocabulary=1000, teacher_width=32)
    weight = (p["weight"].detach() * 0.3).bfloat16()
    teacher_hidden = p["hidden"].detach().bfloat16()
    hidden = (teacher_hidden.double() + 0.02 * torch.randn(128, 32, dtype=torch.float64)).bfloat16()
    assert not torch.equal(hidden, teacher_hidden)

    def grad(dtype, backend):
        h = hidden.to(dtype).requires_grad_()
        result = annealed_loss(
            h, Head(weight_VH=weight.to(dtype)), p["labels"], teacher_hidden_NK=teacher_hidden.to(dtype), teacher_head=Head(weight_VH=weight.to(dtype)),
            ce_scale=0.0, kl_scale=1.0, backend=backend,
        )  # fmt: skip
        return float(result.kl_sum / result.kl_count), torch.autograd.grad(result.loss, h)[0].double()

    kl, exact = grad(torch.float64, "reference")
    assert kl < 0.01
    _, got = grad(torch.bfloat16, "chunked")
    assert (got - exact).norm() < 0.01 * exact.norm()


def test_nothing_selected_gives_zero_and_zero_gradients():
    p = problem()
    p["labels"] = torch.full_like(p["labels"], IGNORE)
    p["mask"] = torch.zeros_like(p["mask"])
    for backend in ("reference", "chunked"):
        result, grads = run(p, backend=backend)
        assert result.loss == 0
        assert result.ce_count == result.kl_count == 0
        assert all((g == 0).all() for g in grads)


def test_frozen_head_gets_no_gradient():
    p = problem(bias=False)
    p["weight"] = p["weight"].detach()
    result, grads = run(p)
    assert len(grads) == 1
    full = problem(bias=False)
    torch.testing.assert_close(grads[0], run(full)[1][0])
    assert result.loss.requires_grad


def test_no_graph_is_kept_without_grad():
    p = problem()
    with torch.no_grad():
        result = annealed_loss(p["hidden"], Head(weight_VH=p["weight"], bias_V=p["bias"]), p["labels"])
    assert not result.loss.requires_grad
    assert result.ce_sum > 0


def test_padding_rows_of_either_vocabulary_carry_no_mass():
    p = problem(vocabulary=31, teacher_vocabulary=29, bias=False)
    narrow = dict(p, teacher=Head(weight_VH=p["teacher"].weight_VH))
    wide = dict(p, teacher=Head(weight_VH=torch.cat([p["teacher"].weight_VH, 50 * torch.ones(40, 6, dtype=torch.float64)])))
    # The student has 31 rows, so the padded teacher shares 31 with it; cut the student to see that rows past the common ones do not count.
    cut = {**p, "weight": p["weight"][:29].detach().requires_grad_(), "labels": p["labels"].clamp(max=28)}
    a, _ = run({**cut, "teacher": narrow["teacher"]})
    b, _ = run({**cut, "teacher": wide["teacher"]})
    assert a.kl_sum == b.kl_sum


def test_accuracy_counts_labelled_rows_only():
    weight = torch.eye(4, dtype=torch.float64)
    hidden = torch.eye(4, dtype=torch.float64)[[0, 1, 2, 3]]
    result = annealed_loss(hidden, Head(weight_VH=weight), torch.tensor([0, 1, 0, IGNORE]))
    assert int(result.correct) == 2
    assert int(result.ce_count) == 3


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("whose", ["student", "teacher"])
@pytest.mark.parametrize("backend", ["chunked", "reference"])
def test_logits_that_are_not_finite_name_their_rows(value, whose, backend):
    p = problem(bias=False, ignored=0.0)
    target = "hidden" if whose == "student" else "teacher_hidden"
    p[target] = p[target].detach().clone()
    p[target][[4, 9]] = value
    with pytest.raises(NonFiniteLogits, match=whose) as caught:
        run(dict(p, weight=p["weight"]), backend=backend, chunk_rows=6)
    assert caught.value.rows == [4, 9]


def test_wrong_shapes_and_options_are_all_named_at_once():
    p = problem()
    with pytest.raises(ShapeError) as caught:
        annealed_loss(
            p["hidden"], Head(weight_VH=torch.zeros(31, 5, dtype=torch.float64)), p["labels"][:-1], temperature=0.0, direction="sideways",  # type: ignore[arg-type]
            teacher_hidden_NK=p["teacher_hidden"][:3], teacher_head=p["teacher"], kl_mask_N=p["mask"][:2], chunk_rows=0,
        )  # fmt: skip
    text = str(caught.value)
    for part in ("(31, 5)", "int64 [23]", "T > 0, got 0.0", "sideways", "(3, 6)", "kl_mask", "chunk_rows"):
        assert part in text, part


@pytest.mark.parametrize("label", [31, 5000, -1])
def test_labels_outside_the_vocabulary_are_refused(label):
    p = problem()
    p["labels"][3] = label
    with pytest.raises(ShapeError, match=rf"0\.\.30.*got {label}"):
        run(p)


def test_chunks_are_near_equal_and_bounded():
    assert default_chunk_rows(32_000, 2048) <= 262
    assert default_chunk_rows(10**9, 100) == 50
    assert default_chunk_rows(100, 10) == 10
    assert default_chunk_rows(100, 0) == 1


def test_whole_logits_are_never_made():
    """Peak memory of a step stays far under one [N, V] float32 tensor."""
    import tracemalloc

    rows, vocabulary, width = 4096, 8192, 16
    hidden = torch.randn(rows, width, requires_grad=True)
    head = Head(weight_VH=torch.randn(vocabulary, width, requires_grad=True))
    largest = 0
    original = torch.empty

    def watched(*args, **kwargs):
        nonlocal largest
        made = original(*args, **kwargs)
        largest = max(largest, made.numel())
        return made

    torch.empty = watched
    try:
        tracemalloc.start()
        annealed_loss(
            hidden, head, torch.randint(0, vocabulary, (rows,)), teacher_hidden_NK=hidden.detach(), teacher_head=head, kl_scale=1.0, chunk_rows=64
        ).loss.backward()
    finally:
        torch.empty = original
        tracemalloc.stop()
    assert 0 < largest <= 64 * vocabulary
