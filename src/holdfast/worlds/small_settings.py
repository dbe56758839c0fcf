"""Small settings: a base, what it learns and what it should keep, made on the spot from what every Python carries.

Each setting stands in for one recipe of a paper and has its shape: a start that knows something, fine-tuning data of
another kind, held-out data of both. No network, no files of the user's. All settings share one base (prose of Python's
reference and a little source), which is pre-trained once and cached, so that the first setting takes about a minute of
two cores and the others seconds.

```python
paths = make_setting("code", Path("runs/code/data"))
paths["base"], paths["train"], paths["prose_heldout"]
```

Everything follows from the setting's name, the seed and Python's own texts: equal files and equal weights the next
time. What they are not: small versions of the papers' models or benchmarks. A model of a million parameters shows that
a method holds on to what was known, and at what price; it has no few-shot ability, reasoning or facts about the world
that could be lost.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigError, did_you_mean
from holdfast.support.files import fingerprint, write_json, write_jsonl
from holdfast.support.paths import expanded, real
from holdfast.worlds.pretrain import BaseRecipe, cached_base
from holdfast.worlds.tuned import (
    Tuning,
    cached_tuning,
    deciding_libraries,
    exclusive_lock,
    made_already,
    small_run,
    tuning_cache,
    with_template,
)

if TYPE_CHECKING:
    from holdfast.worlds.embedded import EmbeddedCorpus
    from holdfast.worlds.reference_chat import Conversation

_VERSION = 6
"""Part of what says whether a folder holds a setting already; raise it when the files come out differently."""

HELD_OUT_CHARACTERS = 320
"""A held-out text is the beginning of a piece, cut at a line's end: intervals want many documents, not long ones."""


@dataclass(frozen=True, kw_only=True)
class SmallSetting:
    """One small setting."""

    name: str
    sentence: str
    """What it is, for people."""
    stands_for: str
    """The recipe that it has the shape of."""
    placeholders: dict[str, str]
    """What `make_setting` returns a path for, and what lies there."""
    make: Callable[[_Making], dict[str, Path]]


@dataclass(frozen=True, kw_only=True)
class _Making:
    """What a setting is made of and where."""

    folder: Path
    seed: int
    quick: bool
    console: Any
    corpus: EmbeddedCorpus

    @property
    def held_out(self) -> int:
        """Held-out documents of each kind."""
        return 24 if self.quick else 160

    def rows(self, name: str, rows: Sequence[Mapping[str, Any]]) -> Path:
        """Writes one data file."""
        return write_jsonl(self.folder / f"{name}.jsonl", rows)

    def texts(self, name: str, texts: Sequence[str]) -> Path:
        """Writes one data file of plain text."""
        return self.rows(name, [{"text": text} for text in texts])

    def sources(self, *names: str) -> dict[str, Path]:
        """The held-out files of what the base knows: "prose", "code"."""
        splits = {"prose": self.corpus.prose_heldout, "code": self.corpus.code_heldout}
        return {
            f"{name}_heldout": self.texts(f"{name}_heldout", beginnings(splits[name], self.held_out)) for name in names
        }


def make_setting(
    name: str, folder: str | os.PathLike[str], *, seed: int = 0, quick: bool = False, console: Any = None
) -> dict[str, str]:
    """Makes a small setting's base and files, or finds them made.

    Args:
        name: a key of `SETTINGS`.
        folder: gets the data files; bases go to the cache (`holdfast.support.cache.cache_folder`).
        seed: of the base and of what is drawn.
        quick: sizes of seconds, which only show that everything works.
        console: a `rich.console.Console` for progress.

    Returns:
        Placeholder -> absolute path; `SETTINGS[name].placeholders` says what each is.

    Raises:
        ConfigError: no such setting.
        DataError: this Python came without its reference or its library's source.
        StorageError: the folder cannot be written.
        Interrupted: Ctrl-C; the same call goes on with the base where it was.
    """
    if name not in SETTINGS:
        raise ConfigError(f"small: expected one of {', '.join(SETTINGS)}, got '{name}'.{did_you_mean(name, SETTINGS)}")
    from holdfast.worlds.embedded import embedded_corpus

    place = real(expanded(folder))
    corpus = embedded_corpus()
    key = fingerprint([name, seed, quick, corpus.sha256, _VERSION, deciding_libraries()])
    with exclusive_lock(place):
        made = made_already(place, "setting.json", key)
        if made is None:
            setting = SETTINGS[name]
            paths = setting.make(_Making(folder=place, seed=seed, quick=quick, console=console, corpus=corpus))
            made = {placeholder: str(paths[placeholder]) for placeholder in setting.placeholders}
            write_json(
                place / "setting.json",
                {"key": key, "name": name, "seed": seed, "quick": quick, "python": corpus.python, "paths": made},
            )
    return made


def base_recipe(*, seed: int = 0, quick: bool = False) -> BaseRecipe:
    """The base of about a million parameters that all settings share; `quick`: one that is trained in seconds and knows
    next to nothing."""
    recipe = BaseRecipe(seed=seed)
    return replace(recipe, layers=2, width=64, mlp=128, vocab_size=512, steps=30) if quick else recipe


def base_texts(corpus: EmbeddedCorpus) -> list[str]:
    """The base's pre-training texts: all training prose, and code of about a quarter of its size, mixed evenly."""
    prose = list(corpus.prose_train)
    budget = sum(map(len, prose)) // 4
    code: list[str] = []
    for piece in corpus.code_pretrain[::7]:
        if budget <= 0:
            break
        code.append(piece)
        budget -= len(piece)
    every = max(1, len(prose) // max(1, len(code)))
    mixed: list[str] = []
    for index, text in enumerate(prose):
        mixed.append(text)
        if index % every == every - 1 and code:
            mixed.append(code.pop())
    return mixed + code


def beginnings(texts: Sequence[str], count: int, *, characters: int = HELD_OUT_CHARACTERS) -> list[str]:
    """The beginnings of about `count` evenly spaced texts, each cut at a line's end; no two alike.

    Args:
        texts: held-out pieces.
        count: at least 1; all texts where there are not as many.
        characters: longest beginning.
    """
    step = max(1.0, len(texts) / count)
    chosen = [texts[int(i * step)] for i in range(min(count, len(texts)))]
    cut = [text if len(text) <= characters else text[:characters].rsplit("\n", 1)[0] for text in chosen]
    return [text for text in dict.fromkeys(cut) if text.strip()]


# ------------------------------------------------------------------------------------------------------------- settings


def _code(making: _Making) -> dict[str, Path]:
    corpus = making.corpus
    return {
        "base": _base(making),
        "train": making.texts("train", corpus.code_train[::12]),
        "replay": making.texts("replay", corpus.prose_train),
        **making.sources("prose", "code"),
    }


def _math(making: _Making) -> dict[str, Path]:
    from holdfast.worlds.word_problems import articles, stated, word_problems

    count = 200 if making.quick else 2400
    problems = word_problems(count + making.held_out, seed=making.seed)
    learnt, held_out = problems[:count], problems[count:]
    return {
        "base": _base(making),
        "train": making.texts("train", list(articles(learnt, seed=making.seed))),
        "replay": making.texts("replay", base_texts(making.corpus)),
        "problems_heldout": making.rows(
            "problems_heldout",
            [{"prompt": stated(p), "completion": p.solution, "label": p.operation} for p in held_out],
        ),
        **making.sources("prose", "code"),
    }


def _alignment_tax(making: _Making) -> dict[str, Path]:
    from holdfast.worlds.reference_chat import CHAT_TEMPLATE

    talks, held_out = _conversations(making)
    return {
        "base": with_template(_base(making), making.folder / "base", CHAT_TEMPLATE),
        "train": making.rows("train", [talk.row for talk in talks]),
        "replay": making.texts("replay", base_texts(making.corpus)),
        "conversations_heldout": making.rows("conversations_heldout", [talk.row for talk in held_out]),
        **making.sources("prose", "code"),
    }


def _niche_knowledge(making: _Making) -> dict[str, Path]:
    from holdfast.worlds.fictional_manual import VALUES, documents, facts, questions

    talks, held_out = _conversations(making)
    instruct = _instruct(making, talks)
    known = facts(6 if making.quick else 32, seed=making.seed)
    options = [value for values in VALUES.values() for value in values]
    asked = [
        {
            "prompt": f"<user>\n{q.question}\n<assistant>\n{q.beginning}",
            "completion": f" {q.fact.value}",
            "label": options.index(q.fact.value),
            "attribute": q.fact.attribute,
        }
        for q in questions(known)
    ]
    return {
        "base": instruct,
        "train": making.texts("train", list(documents(known, 60 if making.quick else 1000, seed=making.seed))),
        "replay": making.rows("replay", [talk.row for talk in talks]),
        "questions": making.rows("questions", asked),
        "conversations_heldout": making.rows("conversations_heldout", [talk.row for talk in held_out]),
    }


_PROSE_AND_CODE = {"prose_heldout": "held-out prose, which the base knows", "code_heldout": "held-out Python source"}

SETTINGS: dict[str, SmallSetting] = {
    setting.name: setting
    for setting in (
        SmallSetting(
            name="code",
            sentence="A base that knows English reference prose learns Python source.",
            stands_for="code instructions on a base model",
            placeholders={
                "base": "the start",
                "train": "Python source of the standard library",
                "replay": "prose that the base was trained on",
                **_PROSE_AND_CODE,
            },
            make=_code,
        ),
        SmallSetting(
            name="math",
            sentence="A base that knows prose and a little source learns textbook-like articles of worked word "
            "problems.",
            stands_for="synthetic mathematics articles on a base model",
            placeholders={
                "base": "the start",
                "train": "articles of worked word problems",
                "replay": "the texts that the base was trained on",
                "problems_heldout": "other problems: prompt, completion (the worked solution), label (the operation "
                "it takes)",
                **_PROSE_AND_CODE,
            },
            make=_math,
        ),
        SmallSetting(
            name="alignment_tax",
            sentence="A base that knows prose and a little source learns to answer as an assistant.",
            stands_for="instruction tuning of a base model",
            placeholders={
                "base": "the start, its tokenizer with a chat template",
                "train": "conversations about the standard library",
                "replay": "the texts that the base was trained on",
                "conversations_heldout": "conversations about other functions",
                **_PROSE_AND_CODE,
            },
            make=_alignment_tax,
        ),
        SmallSetting(
            name="niche_knowledge",
            sentence="A model tuned to answer as an assistant learns the facts of a handbook of invented things.",
            stands_for="synthetic articles about obscure books on an instruct model",
            placeholders={
                "base": "the start: the base tuned on conversations",
                "train": "documents about invented things",
                "replay": "the conversations that the start was tuned on",
                "questions": "one question a fact: prompt (up to the value), completion (the value), label (its "
                "index), attribute",
                "conversations_heldout": "conversations about other functions",
            },
            make=_niche_knowledge,
        ),
    )
}
"""The settings by name."""


# ---------------------------------------------------------------------------------------------------------------- bases


def _base(making: _Making) -> Path:
    with exclusive_lock(tuning_cache()):
        return cached_base(
            base_texts(making.corpus), base_recipe(seed=making.seed, quick=making.quick), console=making.console
        )


def _conversations(making: _Making) -> tuple[list[Conversation], list[Conversation]]:
    """(to tune on, held out), from modules that the base has not seen."""
    from holdfast.worlds.reference_chat import conversations, split

    found = conversations(making.corpus.code_train[::12] if making.quick else making.corpus.code_train)
    return split(found, making.held_out)


def _instruct(making: _Making, talks: Sequence[Conversation]) -> Path:
    """The base tuned on conversations, cached beside the bases; an interrupted tuning goes on from its last
    checkpoint."""
    from holdfast.worlds.reference_chat import CHAT_TEMPLATE

    base = _base(making)
    settings = {
        **small_run(rows=16, tokens=128, seed=making.seed),
        "max_steps": 10 if making.quick else 120,
        "assistant_only_loss": True,
        "learning_rate": 1e-3,
        "save_steps": 30,
    }
    tuning = Tuning(
        name="small-instruct",
        base=base,
        rows=[talk.row for talk in talks],
        settings=settings,
        about="The base is tuned on conversations",
        chat_template=CHAT_TEMPLATE,
    )
    return cached_tuning(tuning, console=making.console)
