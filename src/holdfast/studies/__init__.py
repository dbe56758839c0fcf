"""Studies built from the rooms below: one file a study."""
