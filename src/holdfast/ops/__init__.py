"""Tensor maths without models: the annealing op and the vocabulary head."""
