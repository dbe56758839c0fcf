"""What a run costs, before anything runs: operations, memory by part, GPU-hours. Counts from config.json and the
training settings; no weights."""
