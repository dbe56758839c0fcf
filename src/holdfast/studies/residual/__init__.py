"""The instruction residual (Balancing Continuous Pre-Training) as a job and as a study: continue the base, add what
instruction tuning had changed, measure all of them."""
