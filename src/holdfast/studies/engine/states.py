"""States of a study's jobs."""

WAITING, RUNNING, COMPLETE, PRUNED, FAILED = "waiting", "running", "complete", "pruned", "failed"
