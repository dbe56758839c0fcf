"""Programs that a model wrote, run behind walls and scored."""
