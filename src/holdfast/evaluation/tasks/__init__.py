"""Benchmarks through lm-evaluation-harness."""
