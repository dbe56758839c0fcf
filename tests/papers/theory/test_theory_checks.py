"""Every theory's checks pass, see a formula that is a little wrong, and are what the page and the terminal show."""

from __future__ import annotations

import dataclasses
import html
import importlib
import math
import re

import numpy as np
import pytest

from holdfast.errors import ConfigError
from holdfast.papers.claims.registry import papers
from holdfast.papers.theory import QUICK_SEEDS, THEORIES, label_annealing, overtraining, sfa
from holdfast.papers.theory.averaging import random_quadratics
from holdfast.papers.theory.deep_linear import random_tasks
from holdfast.papers.theory.page import theory_page
from holdfast.papers.theory.regression import random_problem
from holdfast.papers.theory.results import EXACT, Theory, check, finding
from holdfast.reports.html import render

SIZES = {"dimension": 12, "pretrain_rows": 7, "finetune_rows": 4}
CHECKS = {"label-annealing": 11, "overtraining": 15, "sfa": 8}


@pytest.fixture(scope="module", params=THEORIES)
def paper(request: pytest.FixtureRequest) -> tuple[str, Theory]:
    return request.param, importlib.import_module(THEORIES[request.param]).theory(QUICK_SEEDS)


def test_every_check_holds(paper) -> None:
    name, theory = paper
    assert name in papers() and theory.passed and len(theory.checks) == CHECKS[name]
    assert len({item.name for item in (*theory.checks, *theory.findings)}) == len(theory.checks) + len(theory.findings)


def test_the_page_shows_every_check_and_statement(paper) -> None:
    theory = paper[1]
    text = html.unescape(re.sub("<[^>]+>", " ", render(theory_page(theory))))
    for item in theory.checks:
        assert item.name in text and item.formula in text and f"{item.deviation:.1e}" in text
    for item in theory.findings:
        assert item.name in text and f"[{item.low:.3f}, {item.high:.3f}]" in text
    assert theory.equations in text
    failed = dataclasses.replace(theory.checks[0], passed=False)
    broken = theory_page(dataclasses.replace(theory, checks=[failed, *theory.checks[1:]]))
    assert broken.status == ("a check fails", "bad") and f"{len(theory.checks) - 1} of" in broken.lead


def test_the_furthest_place_is_shown_and_nan_fails() -> None:
    found = check("a", "b", ([1.0, 2.0], [1.0, 2.5], 1), (np.ones((2, 1)), [1.0, 1.25], 0.5), allowed=0.6)
    assert (found.closed, found.number, found.deviation, found.passed) == (2.0, 2.5, 0.5, True)
    assert not check("a", "b", (0, [1.0, math.nan], 1), (0, 9, 1), allowed=100).passed
    assert check("a", "b", (1, 1 + 1e-12, 1)).passed and not check("a", "b", (1, 1 + 2 * EXACT, 1)).passed


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([0.5, 0.6, 0.55], "holds"),
        ([1.5, 1.6, 1.7], "does not hold"),
        ([0.5], "cannot tell"),
    ],
)
def test_verdicts(ratios, verdict) -> None:
    found = finding("a", "b", ratios)
    assert found.verdict == verdict and found.ratio == pytest.approx(np.exp(np.mean(np.log(ratios))))
    for wrong in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ConfigError, match="a: expected a finite number above 0, got"):
            finding("a", "b", [*ratios, wrong])


BROKEN = [
    (label_annealing, "closed_form", lambda f: lambda p, m, w=0.0: f(p, m, w) * (1 + 1e-6), "gradients vanish"),
    (label_annealing, "closed_form", lambda f: lambda p, m, w=0.0: f(p, m, w) * math.nan, "straight segment"),
    (label_annealing, "weight_for", lambda f: lambda p, m, s: 0.1 * f(p, m, s), "least movement"),
    (sfa, "averaging_of", lambda f: lambda rate, pull: (rate, rate * pull), "SFA is L2: quadratic"),
    (sfa, "kept_share", lambda f: lambda h, **k: f(h, **k) * (1 + 1e-6), "closed form for every p"),
    (
        sfa,
        "posterior_mode",
        lambda f: lambda *a, variance, **k: f(*a, variance=variance * 1.001, **k),
        "the penalty is a prior",
    ),
    (sfa, "fisher_merge", lambda f: lambda old, new, *a, **k: (old + new) / 2, "Fisher merging minimises"),
    (
        sfa,
        "averaged_path",
        lambda f: lambda *a, **k: f(*a, **{**k, "beta": 1.01 * k["beta"]}),
        "EWC is a merge",
    ),
    (sfa, "penalty_of", lambda f: lambda alpha, beta: (alpha, beta / alpha), "SFA with k = 1 and with k to infinity"),
    (
        overtraining,
        "perturbed_loss",
        lambda f: lambda a, b, t, g: f(a, b, t, g) - 8 * g**4,
        "loss under noise, averaged over every sign",
    ),
    (
        overtraining,
        "perturbed_losses",
        lambda f: lambda t, g, v=None: f(t, g, v) * 1.1,
        "loss under noise after n features",
    ),
    (overtraining, "harmful_in_noise", lambda f: lambda t, g: ~f(t, g), "inflection point by gamma"),
    (overtraining, "minimiser", lambda f: lambda t, w: f(t, 2 * w), "where fine-tuning ends"),
    (
        overtraining,
        "finetuned_losses",
        lambda f: lambda t, w: (f(t, w)[0], f(t, w)[1] * 0.9),
        "losses after fine-tuning",
    ),
    (overtraining, "harmful_in_finetuning", lambda f: lambda t, w: f(t, 2 * w + 1), "inflection point by lambda"),
    (
        overtraining,
        "descent_values",
        lambda f: lambda x, t, **k: f(x, 1.1 * t, **k),
        "the network reduces to its D singular values",
    ),
    (
        overtraining,
        "flow_values",
        lambda f: lambda t, **k: f(1.1 * np.asarray(t), **k),
        "every feature follows a sigmoid",
    ),
    (
        overtraining,
        "descent_factors",
        lambda f: lambda a, b, t, **k: f(a, b, 1.1 * t, **k),
        "if the singular values f are in falling order, the end point is stable",
    ),
    (
        overtraining,
        "descent_factors",
        lambda f: lambda a, b, t, **k: f(a, b, t, **{**k, "steps": 60}),
        "if f is in another order, the end point is a saddle point",
    ),
    (
        overtraining,
        "half_times",
        lambda f: lambda s, t, r=0.0: 1.1 * f(s, t, r),
        "times at which the features are learnt",
    ),
    (overtraining, "checkpoint_times", lambda f: lambda s, t: 0.8 * f(s, t), "the model is near the ideal model"),
]


@pytest.mark.parametrize(("module", "name", "wrong", "failing"), BROKEN, ids=[case[3] for case in BROKEN])
def test_a_wrong_formula_fails_its_check(module, name, wrong, failing, monkeypatch) -> None:
    monkeypatch.setattr(module, name, wrong(getattr(module, name)))
    if module is label_annealing:
        checks = module.checks(random_problem(**SIZES), random_problem(**SIZES, overlap=0.0))
    elif module is sfa:
        checks = module.checks(random_quadratics(dimension=6, seed=2))
    else:
        checks = module.checks([module.Trained(random_tasks(dimension=4, ratio=0.5, seed=seed)) for seed in range(2)])
    assert failing in [c.name for c in checks if not c.passed]
