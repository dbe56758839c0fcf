"""Small settings: a base, what it learns and what it should keep, made on the spot from what every Python carries.

Each setting stands in for one recipe of a paper and has its shape: a start that knows something, fine-tuning data of
another kind, held-out data of both. No network, no files of the user's. All settings share one base
(`worlds.shared_base`), which is pre-trained once and cached: some minutes for the first setting, seconds for the
others.

What is learnt has two held-out files: `..._valid`, which settings such as the learning rate are chosen by, and
`..._heldout`, which results are reported on.

```python
paths = make_setting("code", Path("runs/code/data"))
paths["base"], paths["train"], paths["prose_heldout"]
```

Everything follows from the setting's name, the seed and Python's own texts: equal files and equal weights the next
time. What they are not: small versions of the papers' models or benchmarks. A model of a million parameters shows that
a method holds on to what was known, and at what price; it has no few-shot ability and does not reason.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from holdfast.errors import ConfigError, did_you_mean
from holdfast.papers.worlds.pretrain import BaseRecipe
from holdfast.papers.worlds.shared_base import quick_shared_world, shared_world
from holdfast.papers.worlds.tuned import deciding_libraries, exclusive_lock, made_already
from holdfast.papers.worlds.word_problems import Problem, asked_problems, known_articles, stated
from holdfast.papers.worlds.world import WORLD_VERSION
from holdfast.papers.worlds.world_models import make_base, pretraining_texts
from holdfast.support.files import fingerprint, write_json, write_jsonl
from holdfast.support.paths import expanded, real

if TYPE_CHECKING:
    from holdfast.papers.worlds.embedded import EmbeddedCorpus
    from holdfast.papers.worlds.people.facts import Person, World
    from holdfast.papers.worlds.world import WorldRecipe

_VERSION = 9
"""Part of what says whether a folder holds a setting already; raise it when the files come out differently."""

HELD_OUT_CHARACTERS = 280
"""A held-out text is the beginning of a piece, cut at a line's end: intervals want many documents, not long ones, and
a row of the base has 96 tokens."""
SHARE_TO_CHOOSE_BY = 1 / 3
"""Of what is held out of the target."""


@dataclass(frozen=True, kw_only=True)
class SmallSetting:
    """One small setting."""

    name: str
    placeholders: dict[str, str]
    """What `make_setting` returns a path for, and what lies there."""
    make: Callable[[_Making], dict[str, Path]]
    start: Literal["model", "text", "tasks"] = "model"
    """What it makes to begin with: a language model, text to pre-train on, or nothing but tasks."""
    base: Mapping[str, Any] = field(default_factory=dict)
    """Of the base's world, what is not the shared one's (`holdfast.papers.worlds.shared_base.shared_world`)."""


@dataclass(frozen=True, kw_only=True)
class _Making:
    """What a setting is made of and where."""

    folder: Path
    seed: int
    quick: bool
    console: Any
    corpus: EmbeddedCorpus
    base: Mapping[str, Any] = field(default_factory=dict)
    """What the setting's base has in place of the shared one's."""

    @property
    def recipe(self) -> WorldRecipe:
        """Of the world whose base it is."""
        return (quick_shared_world if self.quick else shared_world)(seed=self.seed, **self.base)

    @property
    def world(self) -> World:
        """Whom the base knows."""
        return self.recipe.world()

    @property
    def held_out(self) -> int:
        """Held-out documents of each kind."""
        return 24 if self.quick else 160

    @property
    def learnt(self) -> int:
        """Documents to learn, where there are as many as one likes."""
        return 200 if self.quick else 6000

    def rows(self, name: str, rows: Sequence[Mapping[str, Any]]) -> Path:
        """Writes one data file."""
        return write_jsonl(self.folder / f"{name}.jsonl", rows)

    def texts(self, name: str, texts: Sequence[str]) -> Path:
        """Writes one data file of plain text."""
        return self.rows(name, [{"text": text} for text in texts])

    def sources(self, *names: str) -> dict[str, Path]:
        """The held-out files of what the base knows: "prose", "code", "facts", "problems"."""
        return {f"{name}_heldout": self.rows(f"{name}_heldout", self._known(name)) for name in names}

    def _known(self, name: str) -> list[dict[str, Any]]:
        if name == "facts":
            from holdfast.papers.worlds.people.questions import completions

            return completions(self.world.half_b)
        if name == "problems":
            return [solved(p) for p in asked_problems(self.held_out, held_out=True, seed=self.seed)]
        splits = {"prose": self.corpus.prose_heldout, "code": self.corpus.code_heldout}
        return [{"text": text} for text in beginnings(splits[name], self.held_out)]

    def held_out_files(self, name: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Path]:
        """What is held out of the target: the first third to choose settings by, the rest to report."""
        cut = round(SHARE_TO_CHOOSE_BY * len(rows))
        return {
            f"{name}_valid": self.rows(f"{name}_valid", rows[:cut]),
            f"{name}_heldout": self.rows(f"{name}_heldout", rows[cut:]),
        }

    def replays(self) -> dict[str, Path]:
        """Text to replay, of three kinds."""
        from holdfast.papers.worlds.reference_chat import conversations

        rounds = min(2, self.recipe.list_rounds)
        again = replace(self.recipe, tellings=max(1, self.recipe.tellings // 8), list_rounds=rounds)
        talks = conversations(self.corpus.code_known[::4] if self.quick else self.corpus.code_known)
        return {
            "replay": self.texts("replay", pretraining_texts(again)),
            "replay_unseen": self.texts("replay_unseen", unseen_texts(self.recipe, again, self.corpus)),
            "replay_other": self.texts("replay_other", ["\n".join(m["content"] for m in t.messages) for t in talks]),
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
    from holdfast.papers.worlds.embedded import embedded_corpus

    place = real(expanded(folder))
    corpus = embedded_corpus()
    making = _Making(folder=place, seed=seed, quick=quick, console=console, corpus=corpus, base=SETTINGS[name].base)
    key = fingerprint([name, making.recipe.record(), quick, corpus.sha256, _VERSION, deciding_libraries()])
    with exclusive_lock(place):
        made = made_already(place, "setting.json", key)
        if made is None:
            setting = SETTINGS[name]
            paths = setting.make(making)
            made = {placeholder: str(paths[placeholder]) for placeholder in setting.placeholders}
            write_json(
                place / "setting.json",
                {"key": key, "name": name, "seed": seed, "quick": quick, "python": corpus.python, "paths": made},
            )
    return made


def setting_version(name: str) -> str:
    """What a setting is made of, in eight characters: other ones, other models and files. Libraries and Python's own
    texts, which decide too, stand in a study's record.

    Args:
        name: a key of `SETTINGS`.
    """
    return fingerprint([name, shared_world(**SETTINGS[name].base).record(), _VERSION, WORLD_VERSION], length=8)


def base_recipe(*, seed: int = 0) -> BaseRecipe:
    """The recipe of the quickstart's base: a million parameters."""
    return BaseRecipe(seed=seed)


def base_texts(corpus: EmbeddedCorpus) -> list[str]:
    """The pre-training texts of quickstart's base: all training prose, and code of about a quarter of its size, mixed
    evenly."""
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


def unseen_texts(base: WorldRecipe, recipe: WorldRecipe, corpus: EmbeddedCorpus) -> list[str]:
    """Text of the kinds that a base was trained on, none of it the same: the people's facts told anew, other modules'
    source and other problems. There is no prose that is neither known nor held out.

    Args:
        base: the recipe of the base.
        recipe: the same with the amounts that are wanted.
        corpus: whose source it did not read.
    """
    from holdfast.papers.worlds.people.documents import pretraining_texts as mixed

    seed = recipe.seed + 1
    shares = [(corpus.code_new, recipe.code_share), (list(known_articles(seed=seed)), recipe.problems_share)]
    amounts = {name: getattr(recipe, name) for name in ("tellings", "popular", "popularity", "list_rounds")}
    read = set(pretraining_texts(base))
    drawn = mixed(recipe.world(), (), prose_share=0.0, others=shares, seed=seed, **amounts)
    return [text for text in drawn if text not in read]  # short lists of names come out alike now and then


def solved(problem: Problem) -> dict[str, Any]:
    """A problem as a row: prompt, completion (the worked solution), label (the operation it takes)."""
    return {"prompt": stated(problem), "completion": problem.solution, "label": problem.operation}


def _functions(making: _Making, train: str = "train") -> dict[str, Path]:
    """Functions to write as they are described; `train`: name of the file to learn."""
    from holdfast.papers.worlds.code_tasks import code_tasks

    corpus = making.corpus
    tasks = code_tasks(corpus.code_new[::8] if making.quick else (*corpus.code_known, *corpus.code_new))
    asked = {task.prompt for task in tasks}
    held_out = [task.row for task in code_tasks(corpus.code_heldout) if task.prompt not in asked]
    files = making.held_out_files("functions", held_out[: 2 * making.held_out])
    return {train: making.texts(train, [task.prompt + task.code for task in tasks]), **files}


def _problems(making: _Making, train: str = "train") -> dict[str, Path]:
    """Word problems of two steps."""
    from holdfast.papers.worlds.word_problems import articles

    learnt = asked_problems(making.learnt, held_out=False, seed=making.seed, steps=2)
    held_out = asked_problems(making.held_out * 3 // 2, held_out=True, seed=making.seed, steps=2)
    files = making.held_out_files("problems", [solved(p) for p in held_out])
    return {train: making.texts(train, list(articles(learnt, seed=making.seed, worked=2))), **files}


def _conversations(making: _Making, train: str = "train") -> dict[str, Path]:
    """Conversations with instructions."""
    from holdfast.papers.worlds.people.instructions import tasks

    learnt = tasks(making.world, count=making.learnt, held_out=False, seed=making.seed)
    held_out = tasks(making.world, count=making.held_out * 3 // 2, held_out=True, seed=making.seed)
    files = making.held_out_files("conversations", [task.conversation for task in held_out])
    return {train: making.rows(train, [task.conversation for task in learnt]), **files}


def _code(making: _Making) -> dict[str, Path]:
    return {
        "base": _base(making),
        **_functions(making),
        **making.replays(),
        **making.sources("prose", "facts", "problems"),
    }


def _math(making: _Making) -> dict[str, Path]:
    related = asked_problems(making.held_out, held_out=True, seed=making.seed, steps=3)
    return {
        "base": _base(making),
        **_problems(making),
        **making.replays(),
        "three_steps_heldout": making.rows("three_steps_heldout", [solved(p) for p in related]),
        **making.sources("prose", "code", "facts"),
    }


_TOKENIZER_TEXTS = 20_000
MONTHS = 12
GROUPS = 3
SKILLS = {
    "wording": ("plain:begin", "plain:end", "plain:keywords"),
    "form": ("plain:quotes", "plain:brackets", "plain:capitals", "plain:repeat", "plain:list"),
}
"""Instructions that a skill is made of, by its name: what a reply says besides, and how it looks."""


def _news(making: _Making, recipe: WorldRecipe, name: str, number: int, parts: int) -> tuple[Path, Sequence[Person]]:
    """Articles about one of so many parts of the world's new people, and who they are."""
    import datetime

    from holdfast.papers.worlds.people.documents import articles

    world = recipe.world()
    people = world.new_people[number::parts]
    news = articles(
        replace(world, new_people=people, changes=()),
        count=max(1, recipe.articles // parts),
        first=datetime.date(2024, number + 1, 1),
        days=28,
        seed=making.seed + number,
        old_people=recipe.old_people,
        prose=making.corpus.prose_train,
        prose_share=recipe.articles_prose,
    )
    return making.rows(f"{name}_train", [article.row for article in news]), people


def _groups(making: _Making) -> dict[str, Path]:
    """Articles about three groups of people, and conversations of two skills."""
    from holdfast.papers.worlds.people.instructions import tasks
    from holdfast.papers.worlds.people.questions import choices

    found = {"base": _base(making), **making.sources("prose", "facts")}
    for number in range(GROUPS):
        name = f"group_{number + 1}"
        found[f"{name}_train"], people = _news(making, making.recipe, name, number, GROUPS)
        found[f"{name}_facts"] = making.rows(f"{name}_facts", choices(people, seed=making.seed))
    learnt = tasks(making.world, count=2 * making.learnt, held_out=False, seed=making.seed)
    asked = tasks(making.world, count=10 * making.held_out, held_out=True, seed=making.seed)
    for name, ids in SKILLS.items():
        of_it = [
            [t for t in some if t.instruction_id_list and set(t.instruction_id_list) <= set(ids)]
            for some in (learnt, asked)
        ]
        found[f"{name}_train"] = making.rows(f"{name}_train", [task.conversation for task in of_it[0]])
        found[f"{name}_prompts"] = making.rows(f"{name}_prompts", [task.row for task in of_it[1]])
    return found


def _stages(making: _Making) -> dict[str, Path]:
    """Conversations about new people and lettered questions about half A; text of the base's kind that tells of half A
    alone; questions about half B."""
    from holdfast.papers.worlds.people.questions import choices, lettered, lettered_conversations
    from holdfast.papers.worlds.people.wordings import WORDINGS, statement

    recipe, world = making.recipe, making.world

    learnt = [
        {
            "messages": [
                {"role": "user", "content": question.format(name=person.name)},
                {"role": "assistant", "content": statement(WORDINGS[attribute].reply, person.name, value)},
            ]
        }
        for person in world.new_people
        for attribute, value in person.facts.items()
        for question in WORDINGS[attribute].questions
    ]
    letters = lettered_conversations(world.half_a, count=max(8, len(learnt) // 4), seed=making.seed)
    again = replace(recipe, tellings=max(2, recipe.tellings // 5), list_rounds=min(4, recipe.list_rounds))
    told = [text for text in pretraining_texts(again) if not any(person.name in text for person in world.half_b)]
    return {
        "base": _base(making),
        "train": making.rows("train", [*learnt, *letters]),
        "corpus": making.texts("corpus", told),
        "old_facts": making.rows("old_facts", choices(world.half_b, seed=making.seed)),
        "old_lettered": making.rows("old_lettered", lettered(world.half_b, seed=making.seed)),
    }


def _pretraining(making: _Making) -> dict[str, Path]:
    """Text about many people, of whom some are told of more often, with source, prose and problems; what is held out of
    each kind."""
    from holdfast.papers.worlds.people.facts import VALUES
    from holdfast.papers.worlds.pretrain import BaseRecipe, Vocabulary, make_tokenizer

    making = _quick_world(making)
    recipe = making.recipe
    texts = pretraining_texts(recipe)
    values = Vocabulary(words=tuple(value for group in VALUES.values() for value in group))
    few = texts[:: max(1, len(texts) // _TOKENIZER_TEXTS)]
    make_tokenizer(few, BaseRecipe(vocab_size=recipe.vocab_size), values).save_pretrained(making.folder / "tokenizer")
    return {
        "text": making.texts("text", texts),
        "tokenizer": making.folder / "tokenizer",
        **_of_pretraining(making),
    }


def _quick_world(making: _Making) -> _Making:
    """Sizes of seconds leave out what makes a world large."""
    return replace(making, base={}) if making.quick else making


def _of_pretraining(making: _Making) -> dict[str, Path]:
    """What is held out of text to pre-train on."""
    from itertools import islice

    from holdfast.papers.worlds.people.documents import biographies
    from holdfast.papers.worlds.people.questions import choices

    world = making.world
    again = biographies(world, tellings=1, seed=making.seed + 1)
    asked = world.half_b[:: max(1, len(world.half_b) // (2 * making.held_out))]
    return {
        "people_heldout": making.texts("people_heldout", list(islice(again, making.held_out))),
        **making.sources("prose", "code"),
        "facts": making.rows("facts", choices(asked, seed=making.seed)),
    }


def _overtraining(making: _Making) -> dict[str, Path]:
    making = _quick_world(making)
    return {
        **_problems(making, "problems_train"),
        **_functions(making, "functions_train"),
        **_of_pretraining(making),
    }


def _pictures(making: _Making) -> dict[str, Path]:
    """Captions and questions about pictures, and a tower that sees them, for the ladder's checkpoints."""
    from holdfast.papers.worlds.pictures.build import HELD_OUT, VALID, PicturesRecipe, build_pictures
    from holdfast.papers.worlds.pictures.tower import TowerRecipe

    making = _quick_world(making)
    recipe = PicturesRecipe(seed=making.seed)
    if making.quick:
        tower = TowerRecipe(width=32, layers=1, heads=2, steps=30, batch_size=32, learning_rate=5e-3)
        recipe = PicturesRecipe(
            seed=making.seed, captions=64, instructions=128, questions=12, validation=6, tower=tower
        )
    found = build_pictures(recipe, making.folder / "pictures", console=making.console)
    names = ("tower", "captions", "instructions", VALID, HELD_OUT)
    return {**{name: found[name] for name in names}, **_of_pretraining(making)}


def _months(making: _Making) -> dict[str, Path]:
    """The world's new people, a twelfth of them each month, and the articles that tell of them."""
    from holdfast.papers.worlds.people.questions import chat_choices
    from holdfast.papers.worlds.world import build_world

    recipe = replace(making.recipe, new_people=MONTHS) if making.quick else making.recipe
    paths = build_world(recipe, making.folder / "world", console=making.console)
    found = {
        "base": Path(paths["instruct"]),
        "origin": Path(paths["base"]),
        "conversations": Path(paths["tuning"]),
        "instructions": Path(paths["instructions"]),
        "old_chat": Path(paths["old_chat"]),
        "prose_heldout": Path(paths["prose_heldout"]),
    }
    for number in range(MONTHS):
        name = f"month_{number + 1:02}"
        found[f"{name}_train"], people = _news(making, recipe, name, number, MONTHS)
        found[f"{name}_facts"] = making.rows(f"{name}_facts", chat_choices(people, seed=making.seed, every=True))
    return found


def _alignment_tax(making: _Making) -> dict[str, Path]:
    return {
        "base": _base(making),
        **_conversations(making),
        **making.sources("prose", "code", "facts", "problems"),
    }


def _tasks(making: _Making) -> dict[str, Path]:
    return {
        "base": _base(making),
        **_problems(making, "problems_train"),
        **_functions(making, "functions_train"),
        **_conversations(making, "conversations_train"),
        **making.sources("prose", "facts"),
    }


def _niche_knowledge(making: _Making) -> dict[str, Path]:
    from holdfast.papers.worlds.people.questions import chat_choices
    from holdfast.papers.worlds.world import build_world

    paths = build_world(making.recipe, making.folder / "world", console=making.console)
    people = making.world.new_people
    asked = chat_choices(people, seed=making.seed, every=True)
    cut = round(SHARE_TO_CHOOSE_BY * len(people))
    chosen_by = {person.name for person in people[:cut]}
    return {
        "base": Path(paths["instruct"]),
        "train": Path(paths["articles"]),
        "replay": Path(paths["tuning"]),
        "new_chat_valid": making.rows("new_chat_valid", [row for row in asked if row["name"] in chosen_by]),
        "new_chat_heldout": making.rows("new_chat_heldout", [row for row in asked if row["name"] not in chosen_by]),
        "instructions": Path(paths["instructions"]),
        "old_chat": Path(paths["old_chat"]),
    }


_MAKERS: dict[str, Callable[[_Making], dict[str, Path]]] = {
    "code": _code,
    "math": _math,
    "alignment_tax": _alignment_tax,
    "tasks": _tasks,
    "months": _months,
    "groups": _groups,
    "stages": _stages,
    "pretraining": _pretraining,
    "overtraining": _overtraining,
    "pictures": _pictures,
    "niche_knowledge": _niche_knowledge,
}


def _read_settings() -> dict[str, SmallSetting]:
    """The settings of `small_settings.yaml`."""
    import yaml

    values = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    settings = {}
    for name, about in values.items():
        settings[name] = SmallSetting(
            name=name,
            placeholders=about["files"],
            make=_MAKERS[about["make"]],
            start=about.get("start", "model"),
            base=about.get("base", {}),
        )
    return settings


SETTINGS = _read_settings()
"""The settings by name."""


# ---------------------------------------------------------------------------------------------------------------- bases


def _base(making: _Making) -> Path:
    return make_base(making.recipe, console=making.console)
