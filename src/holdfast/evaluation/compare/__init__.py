"""Models on the same samples, paired: differences, gates, stages."""
