"""Figures from plain records and rows: estimates with intervals, paired tests, shares, and rules of
selection.

estimates                   from per-sample rows to figures with bootstrap intervals
intervals                   Student's t, expanded bootstrap intervals, seeds and samples together
paired, family_wise         one test for verdict, interval and p; several tests as one decision
gains, shares               what a trial changed, and how much of direct fine-tuning's gain or loss
that is
length_controlled           win rates at equal lengths of the answers
pareto, points              the frontier and its knee; hundredths of a share
rules, stability, selection which trial a rule takes, how far that can be trusted, and both with
reasons
"""
