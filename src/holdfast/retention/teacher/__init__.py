"""The frozen model that label annealing holds a run to, and the hidden states that are kept of
it."""
