"""A sweep (Memory Retaining Finetuning): many ways to fine-tune, what each learns and what each
forgets, and the one to take.

`study` reads what is asked for, `space` is what varies, `storage` holds trials so that several
machines can share them, `worker` runs them one by one, `session` starts workers, watches them and
ends with the page.
"""
