"""Pre-training a ladder: one model at rising budgets, each a run of its own (Overtrained Language
Models, appendix C.1)."""
