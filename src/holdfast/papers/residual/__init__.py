"""The instruction residual (Balancing Continuous Pre-Training): claims and their reproduction."""
