"""A small world to look at: pictures of digits, what can be said and asked about them, a vision
tower that was trained once to read digits, and vision-language models built around small language
models.

    scenes     pictures, captions and questions of five families, drawn from a seed
    tower      a tiny ViT that reads digits, trained once and cached
    build      the files of a world: two stages of training data, held-out questions, a suite

`runs.wrapping` puts the tower to a language model.
"""
