"""Which figures are shares, over the names that lm-evaluation-harness and holdfast give to metrics."""

from __future__ import annotations

import math

import pytest

from holdfast.records.metrics import called, is_right_or_wrong, is_share

SHARES = [
    "acc",
    "acc_norm",
    "acc_bytes",
    "acc_mutual_info",
    "acc_all",
    "accuracy",
    "exact_match",
    "exact_match,strict-match",
    "exact_match,none",
    "em",
    "f1",
    "flexible_f1",
    "precision",
    "recall",
    "pass@1",
    "pass@10",
    "ece",
    "probability",
    "mass",
    "inst_level_strict_acc",
    "prompt_level_loose_acc",
    "bleu_acc",
    "rougeL_acc",
    "win_rate",
    "contains",
    "non_greedy_accuracy",
    "math_verify",
]
SHARES += ["share", "share of tokens", "share of questions", "exact match", "fraction"]
OTHERS = [
    "bleu",
    "bleu_max",
    "bleu_diff",
    "rouge1",
    "rouge2",
    "rougeL",
    "rougeLsum",
    "chrf",
    "chrf++",
    "ter",
    "mcc",
    "brier_score",
    "bleurt",
    "perplexity",
    "word_perplexity",
    "byte_perplexity",
    "bits_per_byte",
    "bits/byte",
    "nats/token",
    "nats_per_token",
    "nats",
    "likelihood",
    "likelihood_diff",
    "loss",
    "percent_parseable",
    "%",
    "seconds",
    "tokens",
]
OTHERS += ["perplexity of the class", "perplexity per word"]


@pytest.mark.parametrize("name", SHARES)
def test_shares_by_unit_by_metric_and_by_range(name):
    assert is_share(name) and is_share("", name) and is_share(name, name, [0.0, 0.3, 1.0, math.nan])
    assert not is_share(name, values=[61.0]) and not is_share(name, values=[-0.2])


@pytest.mark.parametrize("name", OTHERS)
def test_everything_else_whatever_its_figures(name):
    assert not is_share(name, values=[0.4]) and not is_share(name, unknown=True)


def test_a_name_that_nobody_knows_is_what_its_caller_says():
    for name in ("average", "combination", "score", "libra_score", ""):
        assert not is_share(name, values=[0.4])
        assert is_share(name, values=[0.4], unknown=True) and not is_share(name, values=[4.0], unknown=True)


def test_unit_and_metric_have_to_agree():
    assert not is_share("nats/token", "acc") and is_share("accuracy", "my_own") and is_share("my_own", "acc_norm,none")


def test_a_metric_is_called_by_its_name_or_without_its_filter():
    names = ["acc", "exact_match,strict", "exact_match,flexible", "f1,none"]
    assert called("acc", names) == ["acc"] and called("f1", names) == ["f1,none"]
    assert called("exact_match", names) == names[1:3] and called("exact_match,strict", names) == names[1:2]
    assert called("exact", names) == []


def test_only_known_names_are_right_or_wrong():
    assert is_right_or_wrong("accuracy", "acc_norm") and is_right_or_wrong("exact_match", "exact_match,strict-match")
    for unit, metric in (
        ("f1", "f1"),
        ("accuracy", "f1"),
        ("mine", "mine"),
        ("nats/token", "nats_per_token"),
        ("", ""),
    ):
        assert not is_right_or_wrong(unit, metric)
