"""Merge methods: arithmetic on checkpoints, one file an idea. The table of all of them is in
`registry`."""
