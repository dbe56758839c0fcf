"""Pre-training a ladder: one model at rising budgets, each a run of its own (paper 003, appendix B)."""
