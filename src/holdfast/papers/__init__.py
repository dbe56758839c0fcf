"""The five papers: claims, theories and toy worlds. Nothing outside imports this except cli/, by
name.

label_annealing, sfa, stages, overtraining, residual    a paper each: claims, reproduction, page
claims          the rules by which a claim is judged, `holdfast reproduce`, its page
theory          the papers' formulas, checked against numbers
ladder          one model pre-trained at rising token budgets, which the overtraining study starts
from
worlds          toy data and toy models; `toy:` in a study's file finds them by an entry point
recipes         the studies as YAML
"""
