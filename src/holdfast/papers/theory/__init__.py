"""The papers' theories as computations: formulas, and the checks that hold them against numbers."""

THEORIES: dict[str, str] = {
    "label-annealing": "holdfast.papers.theory.label_annealing",
    "overtraining": "holdfast.papers.theory.overtraining",
    "sfa": "holdfast.papers.theory.sfa",
}
"""Paper, as `holdfast reproduce` names it: the module whose `theory(seeds)` computes it."""
SEEDS = 20
"""Random problems that are drawn; intervals are over them."""
QUICK_SEEDS = 4
"""The same for a quick look."""
