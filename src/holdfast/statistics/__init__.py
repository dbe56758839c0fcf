"""Intervals, shares, Pareto sets and rules of selection, on plain records."""
