"""The leaderboard: many ways of fine-tuning on several tracks, each at its own best settings.

`settings` reads what is asked for and makes a trade-off study of every track, `figures` computes the record from the
studies' records, `board` runs the studies and writes what people read.
"""
