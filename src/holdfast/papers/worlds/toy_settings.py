"""Small settings: a base, what it learns and what it should keep, made on the spot from what every
Python carries.

Each setting stands in for one recipe of a paper and has its shape: a start that knows something,
fine-tuning data of another kind, held-out data of both. No network, no files of the user's. All
settings share one base (`worlds.shared_base`), which is pre-trained once and cached: some minutes
for the first setting, seconds for the others.

What is learnt has two held-out files: `..._valid`, which settings such as the learning rate are
chosen by, and `..._heldout`, which results are reported on.

```python
paths = make_setting("code", Path("runs/code/data"))
paths["base"], paths["train"], paths["prose_heldout"]
```

Everything follows from the setting's name, the seed and Python's own texts: equal files and equal
weights the next time. What they are not: small versions of the papers' models or benchmarks. A
model of a million parameters shows that a method holds on to what was known, and at what price; it
has no few-shot ability and does not reason.
"""

from __future__ import annotations

import datetime
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from holdfast.errors import ConfigError, did_you_mean
from holdfast.papers.worlds.drawing import beginnings
from holdfast.papers.worlds.shared_base import quick_shared_world, shared_world
from holdfast.papers.worlds.tuned import deciding_libraries, made_once, write_files
from holdfast.papers.worlds.word_problems import OPERATIONS, Problem, stated, word_problems
from holdfast.papers.worlds.world import WORLD_VERSION
from holdfast.papers.worlds.world_models import make_base, pretraining_texts
from holdfast.support.files import fingerprint
from holdfast.support.paths import expanded, real

if TYPE_CHECKING:
    from holdfast.papers.worlds.embedded import EmbeddedCorpus
    from holdfast.papers.worlds.people.facts import Person, World
    from holdfast.papers.worlds.people.instructions import Task
    from holdfast.papers.worlds.world import WorldRecipe

_VERSION = 9
"""Part of what says whether a folder holds a setting already; raise it when the files come out
differently."""

SHARE_TO_CHOOSE_BY = 1 / 3
"""Of what is held out of the target."""


@dataclass(frozen=True, kw_only=True)
class SmallSetting:
    """One toy setting, as `toy_settings.yaml` has it."""

    placeholders: dict[str, str]
    """What `make_setting` returns a path for, and what lies there."""
    parts: dict[str, list[str]]
    """What its files are made by: keys of `PARTS`, with the arguments of each."""
    start: Literal["model", "text", "tasks"] = "model"
    """What it makes to begin with: a language model, text to pre-train on, or nothing but tasks."""
    version: int = 0
    """Grows where the files of this setting alone come out differently; see `_VERSION`."""
    base: Mapping[str, Any] = field(default_factory=dict)
    """Of the base's world, what is not the shared one's
    (`holdfast.papers.worlds.shared_base.shared_world`)."""

    @property
    def versions(self) -> list[int]:
        """Part of what says whether files are those of this setting; none where it never changed
        alone."""
        return [self.version] if self.version else []

    def recipe(self, seed: int, quick: bool) -> WorldRecipe:
        """Of the world whose base it is."""
        return (quick_shared_world if quick else shared_world)(seed=seed, **self.base)


@dataclass(frozen=True, kw_only=True)
class _Making:
    """What a setting is made of and where."""

    folder: Path
    recipe: WorldRecipe
    """Of the world whose base it is."""
    quick: bool
    console: Any
    corpus: EmbeddedCorpus

    @property
    def seed(self) -> int:
        """Of what is drawn."""
        return self.recipe.seed

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


def make_setting(
    name: str,
    folder: str | os.PathLike[str],
    *,
    seed: int = 0,
    quick: bool = False,
    console: Any = None,
) -> dict[str, str]:
    """Makes a toy setting's base and files, or finds them made.

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
        raise ConfigError(
            f"toy: expected one of {', '.join(SETTINGS)}, got "
            f"'{name}'.{did_you_mean(name, SETTINGS)}"
        )
    from holdfast.papers.worlds.embedded import embedded_corpus

    setting, corpus = SETTINGS[name], embedded_corpus()
    folder = real(expanded(folder))
    recipe = setting.recipe(seed, quick)
    deciding = [name, recipe.record(), quick, corpus.sha256, _VERSION, deciding_libraries()]
    key = fingerprint(deciding + setting.versions)
    if quick and setting.start != "model":  # what makes its world large is left out
        recipe = quick_shared_world(seed=seed)
    making = _Making(folder=folder, recipe=recipe, quick=quick, console=console, corpus=corpus)

    def make() -> dict[str, Path]:
        contents: dict[str, Any] = {}
        for name, arguments in setting.parts.items():
            contents |= PARTS[name](making, *arguments)
        paths = write_files(making.folder, contents)
        return {placeholder: paths[placeholder] for placeholder in setting.placeholders}

    return made_once(
        folder, "setting.json", key, make, name=name, seed=seed, quick=quick, python=corpus.python
    )


def setting_version(name: str) -> str:
    """What a setting is made of, in eight characters: other ones, other models and files. Libraries
    and Python's own texts, which decide too, stand in a study's record.

    Args:
        name: a key of `SETTINGS`.
    """
    setting = SETTINGS[name]
    world = shared_world(**setting.base).record()
    return fingerprint([name, world, _VERSION, WORLD_VERSION, *setting.versions], length=8)


def base_texts(corpus: EmbeddedCorpus) -> list[str]:
    """The pre-training texts of quickstart's base: all training prose, and code of about a quarter
    of its size, mixed evenly."""
    prose = corpus.prose_train
    budget = sum(map(len, prose)) // 4
    code: list[str] = []
    for piece in corpus.code_pretrain[::7]:
        if budget <= 0:
            break
        code.append(piece)
        budget -= len(piece)
    every = max(1, len(prose) // max(1, len(code)))
    mixed: list[str] = []
    for number, text in enumerate(prose, start=1):
        mixed.append(text)
        if number % every == 0 and code:
            mixed.append(code.pop())
    return mixed + code


# -------------------------------------------------------------------------------------------- parts


Contents = dict[str, Any]
"""Texts, rows or a path by placeholder, see `holdfast.papers.worlds.tuned.write_files`."""


def _split(name: str, rows: Sequence[Mapping[str, Any]]) -> Contents:
    """What is held out of the target: the first third to choose settings by, the rest to report."""
    cut = round(SHARE_TO_CHOOSE_BY * len(rows))
    return {f"{name}_valid": rows[:cut], f"{name}_heldout": rows[cut:]}


def _solved(problems: Sequence[Problem]) -> list[dict[str, Any]]:
    """Rows of prompt, completion (the worked solution), label (the operation it takes)."""
    return [{"prompt": stated(p), "completion": p.solution, "label": p.operation} for p in problems]


def _base(making: _Making) -> Contents:
    return {"base": make_base(making.recipe, console=making.console)}


def _known(making: _Making, *names: str) -> Contents:
    """What is held out of what the base knows: "prose", "code", "facts", "problems"."""
    from holdfast.papers.worlds.people.questions import completions

    corpus, count = making.corpus, making.held_out
    contents = {
        "prose_heldout": beginnings(corpus.prose_heldout, count),
        "code_heldout": beginnings(corpus.code_heldout, count),
        "facts_heldout": completions(making.world.half_b),
        "problems_heldout": _solved(word_problems(count, held_out=True, seed=making.seed)),
    }
    return {f"{name}_heldout": contents[f"{name}_heldout"] for name in names}


def _replays(making: _Making) -> Contents:
    """Text to replay, of three kinds: what the base read; other modules' source, other problems and
    the people's facts told anew (there is no prose that is neither known nor held out);
    conversations about source."""
    from holdfast.papers.worlds.reference_chat import conversations

    recipe, corpus = making.recipe, making.corpus
    again = replace(
        recipe, tellings=max(1, recipe.tellings // 8), list_rounds=min(2, recipe.list_rounds)
    )
    read = set(pretraining_texts(recipe))
    anew = pretraining_texts(
        replace(again, prose_share=0.0), seed=making.seed + 1, code=corpus.code_new
    )
    talks = conversations(corpus.code_known[::4] if making.quick else corpus.code_known)
    other = ["\n".join(message["content"] for message in talk.messages) for talk in talks]
    return {
        "replay": pretraining_texts(again),
        "replay_unseen": [
            text for text in anew if text not in read
        ],  # short lists of names may come out alike
        "replay_other": other,
    }


def _functions(making: _Making, train: str) -> Contents:
    """Functions to write as they are described; `train`: the placeholder of what is learnt."""
    from holdfast.papers.worlds.code_tasks import code_tasks

    corpus = making.corpus
    learnt = code_tasks(
        corpus.code_new[::8] if making.quick else (*corpus.code_known, *corpus.code_new)
    )
    prompts = {task.prompt for task in learnt}
    held_out = [task.row for task in code_tasks(corpus.code_heldout) if task.prompt not in prompts]
    written = [task.prompt + task.code for task in learnt]
    return {train: written, **_split("functions", held_out[: 2 * making.held_out])}


def _problems(making: _Making, train: str) -> Contents:
    """Word problems of two steps."""
    from holdfast.papers.worlds.word_problems import articles

    learnt = word_problems(making.learnt, held_out=False, seed=making.seed, steps=2)
    held_out = word_problems(making.held_out * 3 // 2, held_out=True, seed=making.seed, steps=2)
    return {
        train: list(articles(learnt, seed=making.seed, worked=2)),
        **_split("problems", _solved(held_out)),
    }


def _operations(making: _Making, train: str) -> Contents:
    """Word problems of two steps with the operations that they take, to be classified."""
    from holdfast.data.overlap import held_in

    seed, count = making.seed + 1, making.held_out * 3 // 2
    learnt = word_problems(making.learnt, held_out=False, seed=seed, steps=2)
    candidates = word_problems(2 * count, held_out=True, seed=seed, steps=2)
    # wordings are few: two questions may differ in one number
    known = held_in(list(map(stated, candidates)), map(stated, learnt))
    unknown = [problem for index, problem in enumerate(candidates) if index not in known]
    return {train: _classified(learnt), **_split("operations", _classified(unknown[:count]))}


def _classified(problems: Sequence[Problem]) -> list[dict[str, Any]]:
    return [{**row, "completion": row["label"]} for row in _solved(problems)]


def _three_steps(making: _Making) -> Contents:
    problems = word_problems(making.held_out, held_out=True, seed=making.seed, steps=3)
    return {"three_steps_heldout": _solved(problems)}


def _conversations(making: _Making, train: str) -> Contents:
    """Conversations with instructions."""
    learnt = _tasks(making, making.learnt, held_out=False)
    held_out = _tasks(making, making.held_out * 3 // 2, held_out=True)
    measured = [task.conversation for task in held_out]
    return {train: [task.conversation for task in learnt], **_split("conversations", measured)}


def _tasks(making: _Making, count: int, *, held_out: bool) -> list[Task]:
    from holdfast.papers.worlds.people.instructions import tasks

    return tasks(making.world, count=count, held_out=held_out, seed=making.seed)


_TOKENIZER_TEXTS = 20_000
MONTHS = 12
GROUPS = 3
SKILLS = {
    "wording": {"plain:begin", "plain:end", "plain:keywords"},
    "form": {"plain:quotes", "plain:brackets", "plain:capitals", "plain:repeat", "plain:list"},
}
"""Instructions that a skill is made of, by its name: what a reply says besides, and how it
looks."""


def _news(
    making: _Making, recipe: WorldRecipe, number: int, parts: int
) -> tuple[list[Any], Sequence[Person]]:
    """Articles about one of so many parts of the world's new people, and who they are."""
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
    return [article.row for article in news], people


def _groups(making: _Making) -> Contents:
    """Articles about three groups of people."""
    from holdfast.papers.worlds.people.questions import choices

    contents: Contents = {}
    for number in range(GROUPS):
        name = f"group_{number + 1}"
        contents[f"{name}_train"], people = _news(making, making.recipe, number, GROUPS)
        contents[f"{name}_facts"] = choices(people, seed=making.seed)
    return contents


def _skills(making: _Making) -> Contents:
    """Conversations of two skills."""
    learnt = _tasks(making, 2 * making.learnt, held_out=False)
    held_out = _tasks(making, 10 * making.held_out, held_out=True)
    contents: Contents = {}
    for name, ids in SKILLS.items():
        contents[f"{name}_train"] = [task.conversation for task in learnt if _takes_only(task, ids)]
        contents[f"{name}_prompts"] = [task.row for task in held_out if _takes_only(task, ids)]
    return contents


def _takes_only(task: Task, ids: set[str]) -> bool:
    return bool(task.instruction_id_list) and ids.issuperset(task.instruction_id_list)


def _stages(making: _Making, learn: str) -> Contents:
    """Conversations with lettered questions about half A among them; text of the base's kind that
    tells of half A alone; questions about half B, and problems by their operation.

    `learn`: "people" for questions about new people, "instructions" for conversations with
    instructions about how the reply has to look.
    """
    from holdfast.papers.worlds.people.chat import conversation
    from holdfast.papers.worlds.people.questions import (
        chat_choices,
        choices,
        lettered,
        lettered_conversations,
    )
    from holdfast.papers.worlds.people.wordings import WORDINGS, statement

    recipe, world, seed = making.recipe, making.world, making.seed
    learnt: list[Any] = []
    for person in world.new_people:
        for attribute, value in person.facts.items():
            reply = statement(WORDINGS[attribute].reply, person.name, value)
            for question in WORDINGS[attribute].questions:
                learnt.append(conversation(question.format(name=person.name), reply))
    if learn == "instructions":
        learnt = [task.conversation for task in _tasks(making, len(learnt), held_out=False)]
    learnt += lettered_conversations(world.half_a, count=max(8, len(learnt) // 4), seed=seed)
    # hardly any lists, which a base finds easier than all that tells something
    again = replace(recipe, tellings=max(2, recipe.tellings // 2), list_rounds=1)
    corpus = []
    for text in pretraining_texts(again):
        if not any(person.name in text for person in world.half_b):
            corpus.append(text)
    return {
        "train": learnt,
        "corpus": corpus,
        "old_facts": choices(world.half_b, seed=seed),
        "old_lettered": lettered(world.half_b, seed=seed),
        "old_chat": chat_choices(world.half_b, seed=seed),
        "old_problems": _by_operation(word_problems(making.held_out, held_out=True, seed=seed)),
    }


def _by_operation(problems: Sequence[Problem]) -> list[dict[str, Any]]:
    """Problems of one step as multiple choice: which operation do they take?"""
    options = [f"We {operation}." for operation in OPERATIONS]
    rows = []
    for problem in problems:
        answer = OPERATIONS.index(problem.operation)
        rows.append({"prompt": stated(problem), "options": options, "answer": answer})
    return rows


def _text(making: _Making) -> Contents:
    """Text about many people, of whom some are told of more often, with source, prose and
    problems."""
    from holdfast.papers.worlds.people.facts import VALUES
    from holdfast.papers.worlds.pretrain import BaseRecipe, Vocabulary, make_tokenizer

    texts = pretraining_texts(making.recipe)
    few = texts[:: max(1, len(texts) // _TOKENIZER_TEXTS)]
    values = Vocabulary(words=tuple(itertools.chain(*VALUES.values())))
    folder = making.folder / "tokenizer"
    make_tokenizer(few, BaseRecipe(vocab_size=making.recipe.vocab_size), values).save_pretrained(
        folder
    )
    return {"text": texts, "tokenizer": folder}


def _people(making: _Making) -> Contents:
    """What is held out of text about people to pre-train on."""
    from holdfast.papers.worlds.people.documents import biographies
    from holdfast.papers.worlds.people.questions import choices

    world = making.world
    again = biographies(world, tellings=1, seed=making.seed + 1)
    people = world.half_b[:: max(1, len(world.half_b) // (2 * making.held_out))]
    return {
        "people_heldout": list(itertools.islice(again, making.held_out)),
        "facts": choices(people, seed=making.seed),
    }


def _pictures(making: _Making) -> Contents:
    """Captions and questions about pictures, and a tower that sees them, for the ladder's
    checkpoints."""
    from holdfast.papers.worlds.pictures.build import PicturesRecipe, build_pictures
    from holdfast.papers.worlds.pictures.tower import TowerRecipe

    sizes: dict[str, Any] = {}
    if making.quick:
        tower = TowerRecipe(
            width=32, layers=1, heads=2, steps=30, batch_size=32, learning_rate=5e-3
        )
        sizes = {
            "captions": 64,
            "instructions": 128,
            "questions": 12,
            "validation": 6,
            "tower": tower,
        }
    recipe = PicturesRecipe(seed=making.seed, **sizes)
    return dict(build_pictures(recipe, making.folder / "pictures", console=making.console))


def _world(making: _Making, **changes: Any) -> Contents:
    """The files of a world whose instruct model is the start."""
    from holdfast.papers.worlds.world import build_world

    paths = build_world(
        replace(making.recipe, **changes), making.folder / "world", console=making.console
    )
    files = {name: Path(path) for name, path in paths.items()}
    return {
        **files,
        "base": files["instruct"],
        "origin": files["base"],
        "conversations": files["tuning"],
    }


def _months(making: _Making) -> Contents:
    """The world's new people, a twelfth of them each month, and the articles that tell of them."""
    from holdfast.papers.worlds.people.questions import chat_choices

    changes: dict[str, Any] = {"new_people": MONTHS} if making.quick else {}
    contents = _world(making, **changes)
    for number in range(MONTHS):
        name = f"month_{number + 1:02}"
        contents[f"{name}_train"], people = _news(
            making, replace(making.recipe, **changes), number, MONTHS
        )
        contents[f"{name}_facts"] = chat_choices(people, seed=making.seed, every=True)
    return contents


def _niche(making: _Making) -> Contents:
    """The world's articles, and questions about its new people."""
    from holdfast.papers.worlds.people.questions import chat_choices

    contents, people = _world(making), making.world.new_people
    chosen_by = {person.name for person in people[: round(SHARE_TO_CHOOSE_BY * len(people))]}
    rows = chat_choices(people, seed=making.seed, every=True)
    questions = {
        "new_chat_valid": [row for row in rows if row["name"] in chosen_by],
        "new_chat_heldout": [row for row in rows if row["name"] not in chosen_by],
    }
    return {**contents, "train": contents["articles"], "replay": contents["tuning"], **questions}


PARTS: dict[str, Callable[..., Contents]] = {
    "base": _base,
    "known": _known,
    "replays": _replays,
    "functions": _functions,
    "problems": _problems,
    "operations": _operations,
    "three_steps": _three_steps,
    "conversations": _conversations,
    "groups": _groups,
    "skills": _skills,
    "stages": _stages,
    "text": _text,
    "people": _people,
    "pictures": _pictures,
    "months": _months,
    "niche": _niche,
}


def _read_settings() -> dict[str, SmallSetting]:
    """The settings of `toy_settings.yaml`."""
    import yaml

    settings = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    return {name: SmallSetting(**values) for name, values in settings.items()}


SETTINGS = _read_settings()
"""The settings by name."""
