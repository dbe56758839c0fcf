"""Training files of other tools as ones of `holdfast train`: one file a tool, each a table of its
keys."""
