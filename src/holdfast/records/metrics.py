"""What a metric's name and unit say: whether a figure of it is a share between 0 and 1, so that
percent and points make sense. The direction travels with every figure (`Metric.higher_is_better`);
the scale is decided here and nowhere else.

Names are those of lm-evaluation-harness and of holdfast's own measures; a filter after a comma and
a parameter after an at sign are no part of a name ("exact_match,strict-match", "pass@1"). Scales of
the harness:

    share, [0, 1]      acc and its kin, exact_match, em, f1, precision, recall, pass@k, ece, contains, rates, win rates
    other              bleu, rouge*, chrf, ter (0 to 100), mcc (-1 to 1), brier_score (0 to 2), likelihoods,
                       perplexities, nats, bits, counts, seconds, anything in percent
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

_SHARE = re.compile(
    r"(quasi_|prefix_|flexible_|token_)?(exact[_ ]match|em|f1)(_\w+)?|pass(@.*)?|.*acc(uracy)?(_\w+)?|precision|recall"
    r"|ece|share|fraction|probability|mass|aligned|contains|math_verify|(\w+_)?rate|pct_\w+|exact_memorisation"
)
_OTHER = re.compile(
    r"bleu\w*|bleurt|rouge\w*|chrf\W*|ter|mcc|brier\w*|likelihood\w*|\w*perplexity|nats?|bits?|tokens?|bytes?|words?"
    r"|seconds?|percent\w*|loss|eqbench"
)
_LOWER = re.compile(
    r"\w*perplexity|ppl|ter|brier\w*|ece|wer|cer|loss|nll|nats?|bits?|errors?|seconds?|latency"
    r"|bpb|cross_?entropy|mae|mape|r?mse|(edit_)?distance|toxicity|hallucinations?|failures?|invalid"
    r"|false_(positive|negative)_rate|fpr|fnr"
)
_HIGHER_AT_THE_END = re.compile(r"acc|accuracy|f1|em|match|precision|recall|auc|auroc")
_NEGATION = {"no", "non", "not", "without", "free"}
_RATE = re.compile(r"(\w+_)?rate|pct_\w+|share|fraction|probability|mass")
_RIGHT_OR_WRONG = re.compile(
    r"(quasi_|prefix_|flexible_)?(exact[_ ]match|em)(_\w+)?|acc(uracy)?(_\w+)?|prompt_level_\w+_acc"
    r"|pass@1|contains|math_verify|turn_ended|thoughts_closed"
)

RESTATED = {"perplexity": "nats_per_token", "bits_per_byte": "nats_per_token"}
"""Metrics that say in another unit what another one of the same entry says, by that one."""


def is_lower_better(metric: str) -> bool:
    """Whether a metric is better when it is lower, by its name alone: for logs that do not say
    so."""
    name = metric.strip().lower().split(",")[0]
    words, last = re.split(r"[^a-z]+", name), re.split(r"[^a-z0-9]+", name)[-1]
    if _HIGHER_AT_THE_END.fullmatch(last) or _NEGATION.intersection(words):
        return False
    return any(_LOWER.fullmatch(word) for word in (name, *words))


def is_rate(metric: str) -> bool:
    """Whether a metric's name says how often something happens, and not whether that is good."""
    return _RATE.fullmatch(metric.strip().lower().split(",")[0]) is not None


def is_right_or_wrong(unit: str, metric: str = "") -> bool:
    """Whether each answer counts 0 or 1 by what the metric is; of names that nobody knows no.

    Args:
        unit: as of `Metric.unit`.
        metric: the metric's name.
    """
    names = [word.strip().lower().split(",")[0] for word in (unit, metric) if word]
    return bool(names) and all(_RIGHT_OR_WRONG.fullmatch(name) is not None for name in names)


def is_share(
    unit: str, metric: str = "", values: Iterable[float] = (), *, unknown: bool = False
) -> bool:
    """Whether figures of a metric are shares in [0, 1], of which a point is 1/100.

    Args:
        unit: as of `Metric.unit`.
        metric: the metric's name, where the unit alone says less.
        values: known figures of it; any beyond [0, 1] means that it is no share, whatever its name.
            What is not finite says nothing.
        unknown: the answer for names that nobody knows. A rule's author who writes "pt" says that
            it is a share; a page that has nothing but the name does not.
    """
    scales = [s for word in (unit, metric) if word for s in [_scale(word)] if s is not None]
    share = all(scales) if scales else unknown
    return share and all(-1e-9 <= v <= 1 + 1e-9 for v in values if math.isfinite(v))


def readings(name: str, metrics: Iterable[str]) -> list[str]:
    """The other readings of the same answers: one metric through other filters
    ("exact_match,flexible-extract" beside "exact_match,strict-match"), or loose beside strict."""
    stem = name.partition(",")[0]
    filtered = [m for m in metrics if "," in name and m != name and m.partition(",")[0] == stem]
    return filtered + [
        m for m in metrics if "strict" in name and m == name.replace("strict", "loose")
    ]


def called(wanted: str, names: Iterable[str]) -> list[str]:
    """The metrics that a word means: the one of this very name, else all that have it before their
    filter ("exact_match" means "exact_match,strict-match")."""
    names = list(names)
    return [wanted] if wanted in names else [name for name in names if name.split(",")[0] == wanted]


def _scale(word: str) -> bool | None:
    """Whether a unit or a name is that of shares; None where it is not known."""
    name = word.strip().lower().split(",")[0].partition("@")[0]
    if name.startswith("share ") or _SHARE.fullmatch(name):
        return True  # "bleu_acc", too: the share of answers that BLEU calls right
    if "%" in word or any(_OTHER.fullmatch(part) for part in (name, *re.split(r"[^a-z]+", name))):
        return False
    return None
