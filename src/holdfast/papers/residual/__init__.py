"""The study of the instruction residual (Balancing Continuous Pre-Training): budgets, siblings,
scales, sizes."""
