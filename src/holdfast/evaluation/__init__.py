"""Measuring what a model knows, before and after: held-out text, lm-evaluation-harness tasks, and the paired comparison of two models.

`suite` says what to measure, `perplexity` and `harness` measure, `estimates` turns per-sample rows into figures with intervals, `compare` sets
two models side by side, and `runner` does all of it for a run folder, computing nothing twice.
"""
