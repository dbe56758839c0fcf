"""The embedded world: people who do not exist, told of in many wordings, asked about in others, and
a chat format with instructions to follow.

Everything follows from a seed, so it is the same on every machine and known to no model before it
was trained here:

- `facts`: who there is, and what is so about them; later, new people, and facts that change.
- `wordings`: how a fact is told, and how it is asked.
- `documents`: text to pre-train on, and dated articles with the new facts.
- `questions`: knowledge asked as multiple choice and as completion, in wordings that never stood in
  the text about those people.
- `instructions`: conversations whose replies have to do what a prompt asks for, which a program can
  check.
- `chat`: the format of conversations, and the words that the tokenizer keeps whole.

What it is for and what a tiny model cannot show: docs/embedded_world.md. Models are made of it by
`holdfast.papers.worlds.world`.
"""
