"""Plain records of runs, evaluations, comparisons and studies: JSON on disk, no torch."""
