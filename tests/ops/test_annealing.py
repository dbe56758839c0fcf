"""The annealing op against its plain-autograd reference, in float64 where possible."""

from __future__ import annotations

import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import ShapeError
from holdfast.ops import annealing_chunked, native
from holdfast.ops.annealing import (
    IGNORE,
    NonFiniteLogits,
    Weighting,
    annealed_loss,
    describe_backend,
)
from holdfast.ops.heads import Head

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler on this machine"
)
NATIVE = pytest.param("native", marks=needs_compiler)


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
        return torch.randn(*shape, generator=g).to(
            dtype
        )  # values that float32 holds exactly, so that precisions can be compared

    labels = torch.randint(0, vocabulary, (rows,), generator=g)
    labels[torch.rand(rows, generator=g) < ignored] = IGNORE
    return dict(
        hidden=r(rows, width).requires_grad_(),
        weight=(r(vocabulary, width) / 4).requires_grad_(),  # logits of the size a language model has
        bias=r(vocabulary).requires_grad_() if bias else None,
        labels=labels,
        teacher_hidden=r(rows, teacher_width),
        teacher=Head(
            weight_VH=r(teacher_vocabulary, teacher_width) / 4,
            bias_V=r(teacher_vocabulary) if bias else None,
            softcap=softcap,
            logit_scale=scale,
        ),
        mask=torch.rand(rows, generator=g) < 0.6,
        softcap=softcap,
        scale=scale,
    )


def annealed(p, **options):
    """What the op makes of a problem."""
    given = dict(
        teacher_hidden_NK=p["teacher_hidden"],
        teacher_head=p["teacher"],
        ce_scale=0.13,
        kl_scale=0.29,
        kl_mask_N=p["mask"],
        backend="chunked",
    )
    head = Head(weight_VH=p["weight"], bias_V=p["bias"], softcap=p["softcap"], logit_scale=p["scale"])
    return annealed_loss(p["hidden"], head, p["labels"], **given | options)


def run(p, *, upstream=1.7, **options):
    """The same, and the gradients of what learns."""
    result = annealed(p, **options)
    inputs = [t for t in (p["hidden"], p["weight"], p["bias"]) if t is not None and t.requires_grad]
    return result, torch.autograd.grad(result.loss * upstream, inputs) if inputs else []


def unmoved(p):
    """The same problem with the student itself as its teacher."""
    same = Head(weight_VH=p["weight"], bias_V=p["bias"], softcap=p["softcap"], logit_scale=p["scale"])
    return {**p, "teacher_hidden": p["hidden"].detach(), "teacher": same}


def assert_same(a, b, *, tolerance):
    (first, first_grads), (second, second_grads) = a, b
    for name in ("loss", "ce_sum", "kl_sum"):
        x, y = getattr(first, name).detach().double(), getattr(second, name).detach().double()
        assert abs(x - y) <= tolerance * max(abs(float(x)), 1e-12), name
    for name in ("ce_count", "kl_count", "correct"):
        assert getattr(first, name) == getattr(second, name), name
    for x, y in zip(first_grads, second_grads, strict=True):
        assert (x.double() - y.double()).norm() <= tolerance * x.double().norm() + 1e-15


def test_the_gradient_is_the_papers():
    """Appendix A.3: d KL_forward / dz = (softmax(z/T) - softmax(w/T)) / T, no T^2."""
    p, t = problem(rows=5, bias=False, teacher_vocabulary=31), 2.0
    p |= {"labels": torch.full((5,), IGNORE), "mask": torch.ones(5, dtype=torch.bool)}
    _, (got, _) = run(p, upstream=1.0, kl_scale=1.0, temperature=t)
    z, w = p["hidden"] @ p["weight"].T, p["teacher_hidden"] @ p["teacher"].weight_VH.T
    expected = ((z / t).softmax(-1) - (w / t).softmax(-1)) / t @ p["weight"]
    torch.testing.assert_close(got, expected.detach())


def test_a_large_temperature_is_no_label_smoothing():
    """The paper's section 2.2 says that it becomes one. The gradient tends to the centred difference of the logits,
    over T^2 V: it vanishes, is 0 where the student has not moved, and points elsewhere than label smoothing's."""
    z, w = torch.randn(2, 4, 31, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    head, labels = Head(weight_VH=torch.eye(31, dtype=torch.float64)), torch.full((4,), IGNORE)

    def gradient(student, teacher, t):
        student = student.clone().requires_grad_()
        kl = dict(kl_scale=1.0, kl_mask_N=torch.ones(4, dtype=torch.bool), temperature=t)
        loss = annealed_loss(student, head, labels, teacher_hidden_NK=teacher, teacher_head=head, **kl).loss
        return torch.autograd.grad(loss, student)[0]

    t, apart = 1e4, z - w
    limit = (apart - apart.mean(-1, keepdim=True)) / (t**2 * 31)
    torch.testing.assert_close(gradient(z, w, t), limit, rtol=2e-3, atol=0)
    assert gradient(z, w, t).norm() < 1e-7 * gradient(z, w, 1.0).norm()
    assert not gradient(w, w, t).any()
    smoothing = w.softmax(-1) - 1 / 31
    assert smoothing.norm() > 0.1, "label smoothing pulls there, too"
    # nor are they alike elsewhere
    cosine = torch.nn.functional.cosine_similarity(gradient(z, w, t), z.softmax(-1) - 1 / 31, dim=-1)
    assert cosine.mean() < 0.8


def test_zero_kl_scale_is_plain_cross_entropy_to_the_bit():
    p = as_dtype(problem(), torch.float32)
    plain, a = run(p, teacher_hidden_NK=None, teacher_head=None, kl_mask_N=None, kl_scale=0.0)
    off, b = run(p, kl_scale=0.0)
    assert torch.equal(plain.loss, off.loss)
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert off.kl_sum == off.kl_count == 0


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


def test_wrong_shapes_and_options_are_all_named_at_once():
    p = problem()
    with pytest.raises(ShapeError) as caught:
        annealed_loss(
            p["hidden"],
            Head(weight_VH=torch.zeros(31, 5, dtype=torch.float64)),
            p["labels"][:-1],
            temperature=0.0,
            direction="sideways",  # type: ignore[arg-type]
            teacher_hidden_NK=p["teacher_hidden"][:3],
            teacher_head=p["teacher"],
            kl_mask_N=p["mask"][:2],
            chunk_rows=0,
        )
    text = str(caught.value)
    for part in ("(31, 5)", "int64 [23]", "T > 0, got 0.0", "sideways", "(3, 6)", "kl_mask", "chunk_rows"):
        assert part in text, part


@pytest.mark.parametrize("label", [31, 5000, -1])
def test_labels_outside_the_vocabulary_are_refused(label):
    p = problem()
    p["labels"][3] = label
    with pytest.raises(ShapeError, match=rf"0\.\.30.*got {label}"):
        run(p)


@pytest.mark.parametrize("rows", ["eager", NATIVE])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_whole_logits_are_never_made(monkeypatch, rows, dtype):
    """No buffer is larger than a chunk of logits or the head's own gradient, and none has the whole logits' size."""
    count, vocabulary, width, chunk = 4096, 4096, 16, 64
    hidden = torch.randn(count, width).to(dtype).requires_grad_()
    head = Head(weight_VH=torch.randn(vocabulary, width).to(dtype).requires_grad_())
    sizes = []
    original = torch.empty

    def watched(*args, **kwargs):
        made = original(*args, **kwargs)
        sizes.append(made.nbytes)
        return made

    monkeypatch.setattr(annealing_chunked._Scratch, "_kept", [])
    monkeypatch.setattr(torch, "empty", watched)
    annealed_loss(
        hidden,
        head,
        torch.randint(0, vocabulary, (count,)),
        teacher_hidden_NK=hidden.detach(),
        teacher_head=head,
        kl_scale=1.0,
        chunk_rows=chunk,
        rows=rows,
    ).loss.backward()
    assert (
        chunk * vocabulary * 4 <= max(sizes) <= 2 * chunk * vocabulary * 4
    )  # bfloat16 gradients of four chunks together
    assert sum(sizes) < count * vocabulary * 4 / 8


# -------------------------------------------------------------------------------------------------------- every stage

STAGES = ["eager", NATIVE, pytest.param("compiled", marks=pytest.mark.slow)]


def as_dtype(p, dtype):
    """The same problem in another dtype, with the same (rounded) values."""
    cast = {
        k: (v.detach().to(dtype).requires_grad_(v.requires_grad) if torch.is_tensor(v) and v.is_floating_point() else v)
        for k, v in p.items()
    }
    t = p["teacher"]
    cast["teacher"] = Head(
        weight_VH=t.weight_VH.to(dtype),
        bias_V=None if t.bias_V is None else t.bias_V.to(dtype),
        softcap=t.softcap,
        logit_scale=t.logit_scale,
    )
    return cast


@pytest.mark.parametrize("rows", STAGES)
def test_this_machine_has_the_stage(rows):
    """The tests below would otherwise pass without looking at it."""
    assert rows in ("eager", "compiled") or native.load() is not None, native.why_not()


@pytest.mark.parametrize("rows", ["float64", *STAGES])
@settings(max_examples=80, deadline=None)
@given(
    count=st.integers(1, 40),
    vocabulary=st.integers(2, 150),
    extra=st.integers(-20, 20),
    temperature=st.sampled_from([1.0, 0.5, 3.0]),
    direction=st.sampled_from(["forward", "reverse", "jsd"]),
    beta=st.floats(0.05, 0.95),
    masked=st.booleans(),
    chunk=st.integers(1, 50),
    softcap=st.sampled_from([None, 3.0]),
    scale=st.sampled_from([1.0, 0.5]),
    bias=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_every_stage_agrees_with_the_reference(
    rows, count, vocabulary, extra, temperature, direction, beta, masked, chunk, softcap, scale, bias, seed
):
    p = problem(
        rows=count,
        vocabulary=vocabulary,
        teacher_vocabulary=max(2, vocabulary + extra),
        softcap=softcap,
        scale=scale,
        bias=bias,
        seed=seed,
    )
    options = dict(temperature=temperature, direction=direction, beta=beta, mask_target=masked)
    if rows == "float64":
        exact, got = run(p, backend="reference", **options), run(p, chunk_rows=chunk, **options)
        assert_same(exact, got, tolerance=1e-10)
        return
    single = as_dtype(p, torch.float32)
    exact, exact_grads = run(as_dtype(single, torch.float64), backend="reference", **options)
    got, grads = run(single, chunk_rows=chunk, rows=rows, **options)
    # Errors of a float32 logit product (1e-6 of logits of about 3) reach a small loss undiminished, so they are
    # measured against a loss of order one.
    for name in ("loss", "ce_sum", "kl_sum", "entropy_sum"):
        x, y = float(getattr(exact, name).detach()), float(getattr(got, name).detach())
        assert abs(x - y) <= 3e-6 * (abs(x) + count), name
    for name in ("ce_N", "kl_N", "entropy_N"):
        torch.testing.assert_close(getattr(got, name).double(), getattr(exact, name), rtol=1e-5, atol=1e-5)
    for name in ("ce_count", "kl_count"):
        assert getattr(exact, name) == getattr(got, name)
    for x, y in zip(exact_grads, grads, strict=True):
        assert (x - y.double()).norm() <= 1e-5 * (x.norm() + 2e-2)


# -------------------------------------------------------------------------------------------------------- rows' weights


def weights_of(p, dtype=torch.float64):
    """Weights of both terms between 0 and 3, some of them exactly 0 or 1."""
    g = torch.Generator().manual_seed(5)
    pair = 3 * torch.rand(2, len(p["labels"]), generator=g, dtype=torch.float64)
    pair[:, ::5], pair[:, 1::7] = 0.0, 1.0
    return dict(zip(("ce_weights_N", "kl_weights_N"), pair.to(dtype), strict=True))


@pytest.mark.parametrize(("direction", "temperature"), [("forward", 1.0), ("reverse", 1.0), ("jsd", 1.5)])
@pytest.mark.parametrize("extra", [-2, 0])
@pytest.mark.parametrize("rows", ["reference", "float64", *STAGES])
def test_weights_are_factors_of_rows_in_loss_and_gradient(rows, extra, direction, temperature):
    """Against the sum of each row's own loss and gradient times its weight, every row alone in a call."""
    p = problem(rows=17, teacher_vocabulary=31 + extra, softcap=None if extra else 3.0)
    options = dict(direction=direction, temperature=temperature)
    weights = weights_of(p)
    loss, expected = 0.0, None
    for row, (a, b) in enumerate(zip(*weights.values(), strict=True)):
        own = {**p, "labels": p["labels"][[row]], "mask": p["mask"][[row]]}
        own |= {"hidden": p["hidden"][row : row + 1], "teacher_hidden": p["teacher_hidden"][[row]]}
        result = annealed(
            own, backend="reference", ce_scale=0.13 * float(a), kl_scale=0.29 * float(b) or 1e-300, **options
        )
        grads = torch.autograd.grad(result.loss, (p["hidden"], p["weight"], p["bias"]))
        loss, expected = (
            loss + result.loss.detach(),
            grads if expected is None else list(map(torch.add, expected, grads)),
        )
    single = rows not in ("reference", "float64")
    stage = (
        dict(backend="reference") if rows == "reference" else dict(chunk_rows=5, **(dict(rows=rows) if single else {}))
    )
    got, grads = run(as_dtype(p, torch.float32) if single else p, upstream=1.0, **weights, **options, **stage)
    tolerance = 1e-5 if single else 1e-12
    assert abs(got.loss.item() - loss.item()) <= tolerance * abs(loss.item())
    for x, y in zip(expected, grads, strict=True):
        assert (x - y.double()).norm() <= tolerance * x.norm()


@pytest.mark.parametrize("rows", ["eager", NATIVE])
def test_weights_of_1_change_no_bit_and_of_0_leave_nothing(rows):
    p = as_dtype(problem(), torch.float32)
    plain, grads = run(p, rows=rows)
    for value in (1.0, 0.0):
        weights = torch.full(p["labels"].shape, value)
        got, got_grads = run(p, rows=rows, ce_weights_N=weights, kl_weights_N=weights)
        assert torch.equal(got.loss, value * plain.loss)
        assert all(torch.equal(x, value * y) for x, y in zip(got_grads, grads, strict=True))


def weighted_by_definition(p, weighting, given=None):
    """Loss, gradients and weights from whole logits and autograd; the gate of entropy as LLaMA-Factory writes it."""
    z = p["hidden"] @ p["weight"].T + (0 if p["bias"] is None else p["bias"])
    z = z * p["scale"] if p["softcap"] is None else p["softcap"] * torch.tanh(z * p["scale"] / p["softcap"])
    kept = p["labels"] != IGNORE
    ce = torch.nn.functional.cross_entropy(z[kept], p["labels"][kept], reduction="none")
    if weighting.gate == "probability":
        gate = torch.exp(-ce)
    else:
        top = z[kept].topk(min(20, z.shape[1])).values
        log_r = top - top.logsumexp(-1, keepdim=True)
        gate = -(log_r.exp() * log_r).sum(-1) / 3.0
    weights = (1 - weighting.strength) + weighting.strength * torch.clamp(gate**weighting.power, min=weighting.floor)
    weights = weights.detach() if given is None else weights.detach() * given[kept]
    loss = 0.13 * (weights * ce).sum()
    inputs = [t for t in (p["hidden"], p["weight"], p["bias"]) if t is not None]
    return loss.detach(), torch.autograd.grad(loss, inputs), weights.sum()


WEIGHTINGS = [
    Weighting(gate="probability"),
    Weighting(gate="entropy"),
    Weighting(gate="probability", power=0.4, floor=0.3, strength=0.7),
    Weighting(gate="entropy", power=2.0, floor=0.1),
]


@pytest.mark.parametrize("weighting", WEIGHTINGS, ids=lambda w: f"{w.gate}, {w.power}")
@pytest.mark.parametrize("vocabulary", [3, 20, 700])
@pytest.mark.parametrize("rows", ["reference", "float64", *STAGES])
def test_weights_from_the_pass_are_as_defined(rows, vocabulary, weighting):
    p = problem(vocabulary=vocabulary, teacher_vocabulary=vocabulary, softcap=None if vocabulary == 700 else 3.0)
    given = weights_of(p)["ce_weights_N"] if vocabulary == 20 else None
    loss, expected, total = weighted_by_definition(p, weighting, given)
    options = dict(upstream=1.0, weighting=weighting, teacher_hidden_NK=None, teacher_head=None, kl_mask_N=None)
    options |= dict(kl_scale=0.0, ce_weights_N=given)
    if rows == "reference":
        got, grads = run(p, backend="reference", **options)
    elif rows == "float64":
        got, grads = run(p, chunk_rows=5, **options)
    else:
        got, grads = run(as_dtype(p, torch.float32), chunk_rows=5, rows=rows, **options)
    tolerance = 1e-12 if rows in ("reference", "float64") else 1e-5
    assert abs(got.loss.item() - loss.item()) <= tolerance * abs(loss.item())
    assert abs(got.weight_sum.item() - total.item()) <= tolerance * total.item()
    for x, y in zip(expected, grads, strict=True):
        assert (x - y.double()).norm() <= tolerance * x.norm()


@pytest.mark.parametrize("rows", ["eager", NATIVE])
def test_a_weighting_of_strength_0_changes_no_bit(rows):
    p = as_dtype(problem(), torch.float32)
    (plain, grads), (off, off_grads) = (
        run(p, rows=rows),
        run(p, rows=rows, weighting=Weighting(gate="entropy", strength=0.0)),
    )
    assert torch.equal(plain.loss, off.loss) and off.weight_sum == off.ce_count
    assert all(torch.equal(x, y) for x, y in zip(grads, off_grads, strict=True))


@pytest.mark.parametrize("rows", ["eager", NATIVE])
@pytest.mark.parametrize("order", ["rising", "falling", "equal", "one"])
def test_the_largest_logits_are_found_in_any_order(rows, order):
    """Of 1000, a soft-cap and blocks notwithstanding."""
    logits = {
        "rising": torch.arange(1000.0) / 100,
        "falling": -torch.arange(1000.0) / 100,
        "equal": torch.ones(1000),
        "one": torch.arange(1000.0) % 37 + 500 * (torch.arange(1000) == 700),
    }[order]
    head = Head(weight_VH=logits[:, None].clone())
    labels = torch.tensor([5])
    got = annealed_loss(
        torch.ones(1, 1), head, labels, weighting=Weighting(gate="entropy"), backend="chunked", rows=rows
    )
    r = logits.double().sort(descending=True).values[:20].softmax(0)
    assert got.weight_sum.item() == pytest.approx(float(torch.special.entr(r).sum() / 3), abs=1e-6)


def test_a_weighting_that_is_none_is_refused():
    wrong = Weighting(gate="surprise", power=0.0, floor=-1.0, strength=1.5)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"got 'surprise'.*power.*got 0.0.*floor.*got -1.0.*strength.*got 1.5"):
        run(problem(), weighting=wrong)


def test_weights_that_are_none_are_refused():
    p = problem()
    for wrong, message in (
        (torch.full((23,), -0.5), "at least 0, got -0.5 in 23"),
        (torch.full((23,), float("nan")), "got nan in 23"),
        (torch.ones(22), r"expected float \(23,\), got torch.float32 \(22,\)"),
        (torch.ones(23, dtype=torch.int64), "got torch.int64"),
    ):
        for name in ("ce_weights", "kl_weights"):
            with pytest.raises(ShapeError, match=f"{name}: .*{message}"):
                run(p, **{f"{name}_N": wrong})


# -------------------------------------------------------------------------------------------------- the target masked


def masked_by_definition(p, t, direction, beta):
    """Loss and gradients row by row: the label's column is cut out of both models' logits, the rest renormalised."""
    z = p["hidden"] @ p["weight"].T + p["bias"]
    w = p["teacher_hidden"] @ p["teacher"].weight_VH.T + p["teacher"].bias_V
    common, loss, divergences = min(z.shape[1], w.shape[1]), torch.zeros((), dtype=z.dtype), []
    for n, label in enumerate(p["labels"].tolist()):
        columns = [v for v in range(common) if v != label]
        q, p_ = ((x[n, columns] / t).softmax(0) for x in (z, w))
        m = beta * p_ + (1 - beta) * q
        kl = {
            "forward": (p_ * (p_ / q).log()).sum(),
            "reverse": (q * (q / p_).log()).sum(),
            "jsd": beta * (p_ * (p_ / m).log()).sum() + (1 - beta) * (q * (q / m).log()).sum(),
        }[direction]
        kl = kl if p["mask"][n] else 0 * kl
        divergences.append(kl.detach())
        loss = loss + 0.29 * kl
        if label != IGNORE:
            loss = loss + 0.13 * torch.nn.functional.cross_entropy(z[n], torch.tensor(label))
    grads = torch.autograd.grad(loss, (p["hidden"], p["weight"], p["bias"]))
    return loss.detach(), torch.stack(divergences), grads


@pytest.mark.parametrize(
    ("direction", "temperature"), [("forward", 1.0), ("forward", 2.0), ("reverse", 1.0), ("jsd", 1.0)]
)
@pytest.mark.parametrize("extra", [-2, 0, 3])
@pytest.mark.parametrize("rows", ["reference", "float64", *STAGES])
def test_a_masked_target_is_cut_out_of_both_distributions(rows, extra, direction, temperature):
    """Rows without a label, and those whose label the teacher does not know, keep the whole vocabulary."""
    p = problem(teacher_vocabulary=31 + extra)
    p["labels"][:2] = torch.tensor([30, 29])
    p["mask"][:4] = True
    loss, kl, expected = masked_by_definition(p, temperature, direction, 0.3)
    single = rows not in ("reference", "float64")
    stage = dict(backend="reference") if rows == "reference" else dict(chunk_rows=5, rows=rows if single else "auto")
    options = dict(direction=direction, temperature=temperature, beta=0.3, mask_target=True)
    got, grads = run(as_dtype(p, torch.float32) if single else p, upstream=1.0, **options, **stage)
    tolerance = 1e-5 if single else 1e-12
    assert abs(got.loss.item() - loss.item()) <= tolerance * abs(loss.item())
    assert (got.kl_N.double() - kl).norm() <= tolerance * kl.norm()
    for x, y in zip(expected, grads, strict=True):
        assert (x - y.double()).norm() <= tolerance * x.norm()


@pytest.mark.parametrize("rows", STAGES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "jsd"])
def test_a_masked_target_is_not_held_and_hides_nothing(rows, direction):
    """No gradient reaches the label, an unmoved student has no divergence at all, and where the label has all but
    1e-9 of the probability the other tokens are held as well as anywhere."""
    generator = torch.Generator().manual_seed(0)
    z, w = torch.randn(2, 7, 50, generator=generator).unbind(0)
    labels = torch.arange(7) * 7
    z[torch.arange(7), labels] += 25.0
    head = Head(weight_VH=torch.eye(50))

    def of(student, teacher, **more):
        student = student.clone().requires_grad_()
        options = dict(direction=direction, mask_target=True, ce_scale=0.0, kl_scale=1.0, rows=rows) | more
        found = annealed_loss(student, head, labels, teacher_hidden_NK=teacher, teacher_head=head, **options)
        return found, torch.autograd.grad(found.loss, student)[0]

    found, gradient = of(z, w)
    assert not gradient[torch.arange(7), labels].any()
    assert (found.kl_N > 0.01).all() and (gradient.norm(dim=1) > 0.01).all()
    plain, _ = of(z, z)
    assert not plain.kl_N.any()
    lower = z.clone()
    lower[torch.arange(7), labels] -= 20.0
    torch.testing.assert_close(of(lower, w)[0].kl_N, found.kl_N, rtol=1e-5, atol=0)


def test_one_common_token_is_never_masked():
    p = problem(vocabulary=3, teacher_vocabulary=1, ignored=0.0)
    for backend in ("reference", "chunked"):
        result, grads = run(p, backend=backend, mask_target=True)
        assert result.loss.isfinite() and all(g.isfinite().all() for g in grads)
        assert result.kl_sum == 0


# ------------------------------------------------------------------------------------------------- half precision, zero


@pytest.mark.parametrize("rows", ["eager", NATIVE])
@pytest.mark.parametrize("vocabulary", [300, 301])
@pytest.mark.parametrize("direction", ["forward", "reverse", "jsd"])
def test_bfloat16_gradients_are_within_half_a_percent(rows, vocabulary, direction):
    """Against float64 of the same (rounded) inputs; odd sizes reach the ends of every block."""
    p = as_dtype(
        problem(rows=77, vocabulary=vocabulary, teacher_vocabulary=vocabulary, width=34, bias=False), torch.bfloat16
    )
    exact, exact_grads = run(as_dtype(p, torch.float64), backend="reference", direction=direction)
    got, grads = run(p, rows=rows, direction=direction, chunk_rows=31)
    assert abs(got.loss.item() - exact.loss.item()) < 1e-4 * abs(exact.loss.item())
    for x, y in zip(exact_grads, grads, strict=True):
        assert y.dtype == torch.bfloat16
        assert (x - y.double()).norm() <= 5e-3 * x.norm()


@pytest.mark.parametrize("rows", STAGES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "jsd"])
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_every_stage_gives_exactly_zero_for_an_unmoved_student(rows, direction, temperature):
    p = unmoved(as_dtype(problem(), torch.float32))
    options = dict(ce_scale=0.0, kl_scale=1.0, direction=direction, temperature=temperature, rows=rows)
    result, (grad, *_) = run(p, kl_mask_N=None, **options)
    assert result.kl_sum == 0.0 and result.kl_count > 0
    assert not result.kl_N.any()
    assert grad.abs().max() < 1e-6


@pytest.mark.parametrize("rows", STAGES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "jsd"])
def test_every_stage_keeps_a_tiny_divergence(rows, direction):
    """1e-5 nats within 0.5 %, from logits of one float32 product each."""
    p = unmoved(as_dtype(problem(rows=64, width=16, vocabulary=3000, bias=False), torch.float32))
    p["weight"] = p["weight"].detach()
    noise = torch.randn(64, 16, generator=torch.Generator().manual_seed(1))
    p["hidden"] = (p["hidden"].detach() + 8e-3 * noise).requires_grad_()

    def kl(dtype, **options):
        cast = as_dtype(p, dtype)
        result, (grad,) = run(cast, ce_scale=0.0, kl_scale=1.0, kl_mask_N=None, direction=direction, **options)
        return float(result.kl_sum) / float(result.kl_count), grad.double()

    (exact, exact_grad), (got, grad) = kl(torch.float64, backend="reference"), kl(torch.float32, rows=rows)
    assert 1e-6 < exact < 1e-4
    assert abs(got - exact) < 5e-3 * exact
    assert (grad - exact_grad).norm() < 2e-3 * exact_grad.norm()


@pytest.mark.parametrize("rows", [None, *STAGES])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("whose", ["student", "teacher"])
def test_every_stage_names_rows_that_are_not_finite(rows, value, whose):
    p = as_dtype(problem(bias=False, ignored=0.0), torch.float32)
    target = "hidden" if whose == "student" else "teacher_hidden"
    p[target] = p[target].detach().clone()
    p[target][[4, 9]] = value
    stage = dict(rows=rows, chunk_rows=6) if rows is not None else dict(backend="reference")
    with pytest.raises(NonFiniteLogits, match=whose) as caught:
        run(p, **stage)
    assert caught.value.rows == [4, 9]


# ----------------------------------------------------------------------------------------------------------------- more


def test_the_figures_of_each_row_are_its_own():
    p = problem(bias=False)
    result, _ = run(p)
    z = p["hidden"].detach() @ p["weight"].detach().T
    labelled = p["labels"] != IGNORE
    used = labelled | p["mask"]
    entropy = torch.distributions.Categorical(logits=z).entropy()
    torch.testing.assert_close(result.entropy_N, torch.where(used, entropy, 0.0))
    torch.testing.assert_close(result.entropy_sum, entropy[labelled].sum())
    torch.testing.assert_close(
        result.ce_N[labelled], torch.nn.functional.cross_entropy(z[labelled], p["labels"][labelled], reduction="none")
    )
    assert not result.ce_N[~labelled].any()
    assert result.correct == (z.argmax(-1) == p["labels"])[labelled].sum()
    assert not result.kl_N[~p["mask"]].any()
    assert (result.kl_N[p["mask"]] > 0).all()
    assert not result.entropy_N.requires_grad


@pytest.mark.parametrize("beta", [0.0, 1.0, -0.1])
def test_beta_outside_0_and_1_is_refused(beta):
    with pytest.raises(ShapeError, match=f"0 < beta < 1.*got {beta}"):
        run(problem(), direction="jsd", beta=beta)


@pytest.mark.parametrize(
    ("option", "message"),
    [({"backend": "cuda"}, "got 'cuda'"), ({"rows": "fast"}, "got 'fast'"), ({"rows": "native"}, "float64")],
)
def test_unknown_and_unfit_backends_are_refused(option, message):
    with pytest.raises(ShapeError, match=message):
        run(problem(), **{"backend": "chunked", **option})


@needs_compiler
def test_without_a_compiler_the_eager_rows_take_over(monkeypatch):
    p = as_dtype(problem(), torch.float32)
    expected = run(p)
    monkeypatch.setenv("HOLDFAST_NATIVE", "0")
    assert native.load() is None
    described = describe_backend(p["hidden"], Head(weight_VH=p["weight"]))
    assert "eager rows" in described
    assert "HOLDFAST_NATIVE=0" in described
    assert_same(expected, run(p), tolerance=2e-6)
    with pytest.raises(RuntimeError, match="switched off"):
        run(p, rows="native")


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_threads_change_no_bit(dtype):
    """Rows and columns are divided among threads, sums never are."""
    p = as_dtype(problem(rows=60, vocabulary=700, teacher_vocabulary=700, width=64, bias=False), dtype)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one, one_grads = run(p, rows="native")
        torch.set_num_threads(2)
        two, two_grads = run(p, rows="native")
    finally:
        torch.set_num_threads(before)
    assert torch.equal(one.kl_N, two.kl_N)
    assert torch.equal(one.ce_N, two.ce_N)
    if dtype == torch.bfloat16:
        assert all(torch.equal(x, y) for x, y in zip(one_grads, two_grads, strict=True))


def test_float16_gradients_do_not_underflow():
    """1 / tokens times a probability is below what float16 holds; the op stores gradients in units of the larger
    factor."""
    p = as_dtype(problem(rows=64, vocabulary=400, teacher_vocabulary=400, bias=False, width=16), torch.float16)
    options = dict(upstream=2.0**16, ce_scale=1e-6, kl_scale=1e-6, kl_mask_N=None)
    _, (_, exact) = run(as_dtype(p, torch.float64), backend="reference", **options)
    _, (_, got) = run(p, **options)
    assert (got.double() - exact).norm() < 5e-3 * exact.norm()


def test_eight_n_h_v_operations_and_no_more():
    """Two logit products, two gradient products; six under a frozen head; four (two forward products) without
    gradients."""
    from torch.utils.flop_counter import FlopCounterMode

    n, h, v = 32, 16, 50
    hidden, weight = torch.randn(n, h, requires_grad=True), torch.randn(v, h, requires_grad=True)

    def operations(weight, hidden):
        in_place = {torch.ops.aten.addmm_: lambda out, a, b, **_: 2 * a[0] * a[1] * b[1]}
        with FlopCounterMode(display=False, custom_mapping=in_place) as counter:
            loss = annealed_loss(
                hidden.double(),
                Head(weight_VH=weight.double()),
                torch.randint(0, v, (n,)),
                teacher_hidden_NK=hidden.detach().double(),
                teacher_head=Head(weight_VH=weight.detach().double()),
                kl_scale=1.0,
                rows="eager",
                chunk_rows=10,
            ).loss
            if loss.requires_grad:
                loss.backward()
        return counter.get_total_flops() / (n * h * v)

    assert operations(weight, hidden) == 8
    assert operations(weight.detach(), hidden) == 6
    assert operations(weight.detach(), hidden.detach()) == 4
