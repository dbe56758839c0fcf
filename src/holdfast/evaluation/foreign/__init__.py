"""Evaluations that other tools made, read so that `holdfast compare` compares them as its own.

One reader a file, all of them in `registry.READERS`. A reader turns a tool's log into values
(`log.ForeignLog`); those are written as an evaluation folder into a temporary place for the time of
a command. What a tool logged is never changed.
"""
