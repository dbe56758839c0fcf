"""The embedded world with its models: a base that knows generated people, an instruct model that follows instructions,
new facts, and what to ask.

```python
paths = build_world(WorldRecipe(seed=0), "runs/world")
paths["base"], paths["instruct"], paths["articles"], paths["suite"]
```

The base is pre-trained on text about the world's people and on prose, the instruct model is the base tuned on
conversations. Both lie in the cache (`holdfast.support.cache`) under what decides their weights, so that every study
pays for them once; an interrupted building goes on where it was. Data files are written into a folder of the user's:
what the models were trained on, dated articles with what is new, questions, and a suite that asks all.

What the world is, and what a model of this size cannot show: docs/embedded_world.md.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from holdfast.config.declare import Meta, Seed
from holdfast.config.decode import mistakes_in
from holdfast.errors import ConfigError
from holdfast.papers.worlds.drawing import phrases
from holdfast.papers.worlds.people.instructions import MOST_PROMPTS
from holdfast.papers.worlds.pretrain import BaseSettings, Count, Rate, ShareBelowOne
from holdfast.papers.worlds.tuned import deciding_libraries, made_already, made_once, write_files
from holdfast.papers.worlds.world_models import common_settings, conversations, make_models, pretraining_texts
from holdfast.support.files import fingerprint, to_jsonable, write_bytes_atomic, write_json, write_jsonl
from holdfast.support.paths import expanded, real

if TYPE_CHECKING:
    from holdfast.papers.worlds.embedded import EmbeddedCorpus
    from holdfast.papers.worlds.people.facts import World

WORLD_VERSION = 1
"""Part of what says whether a folder holds a world already; raise it when the files come out differently."""

RECORD = "world.json"
HELD_OUT_PROBLEMS = 200
"""Word problems that are asked."""
MOST_OTHER_TEXT = 0.9
"""Of the pre-training text's characters."""

_DECLARED = phrases(__file__)
FILES: dict[str, str] = _DECLARED["files"]
"""What `build_world` returns a path for, and what lies there."""
SHARED: dict[str, Any] = _DECLARED["shared"]
"""What the shared base's world has in place of `WorldRecipe`'s defaults, see `holdfast.papers.worlds.shared_base`."""


Share = Annotated[float, Meta(ge=0, le=1)]


@dataclass(frozen=True, kw_only=True)
class _People:
    settings_group: ClassVar[str] = "the world"

    seed: Seed = 0
    """Of people, texts, conversations, articles and weights."""
    people: int = 120
    """Whom the base knows; half of them are asked about."""
    new_people: int = 30
    """Of whom only the articles tell."""
    changed_facts: int = 0
    """Facts of old people that the articles correct."""
    articles: Count = 1000
    """Articles about new people and changed facts."""
    old_people: Share = 0.3
    """Share of articles that also tell a fact of somebody whom the base knows, as news do."""
    articles_prose: ShareBelowOne = 0.2
    """Share of articles that are prose, on top of the others. Without them what is continued unlearns every word that
    is not in the news."""
    instructions: Annotated[int, Meta(ge=1, le=MOST_PROMPTS)] = 300
    """Prompts to test instruction following with."""
    held_out_prose: Count = 120
    """Held-out pieces of prose."""


@dataclass(frozen=True, kw_only=True)
class _Text:
    settings_group: ClassVar[str] = "the base"
    settings_section: ClassVar[str] = "base"

    tellings: Count = 95
    """How often the pre-training text tells each fact."""
    popular: Share = 0.17
    """Share of people of whom it tells more often: they end the plateau on which nothing is learnt, see
    `holdfast.papers.worlds.people.documents`."""
    popularity: Count = 5
    """How many times as often."""
    list_rounds: Count = 40
    """How often lists without facts have every name; from them a base learns to say again what it has read."""
    prose_share: ShareBelowOne = 0.15
    """Share of the pre-training text's characters that is prose."""
    code_share: ShareBelowOne = 0.0
    """Share that is source of the standard library, see `holdfast.papers.worlds.embedded`."""
    problems_share: ShareBelowOne = 0.0
    """Share that is articles of worked word problems."""


@dataclass(frozen=True, kw_only=True)
class _Base(BaseSettings):
    settings_group: ClassVar[str] = "the base"
    settings_section: ClassVar[str] = "base"

    vocab_size: Count = 768
    """Of the byte-level BPE; names and values come on top, see `holdfast.papers.worlds.people.chat.vocabulary`."""
    context: Annotated[int, Meta(ge=64, le=10**6)] = 64
    """Tokens of a training row (a conversation needs 64); the model's maximum positions are four times that. Facts are
    learnt much later in rows of 128: what a token has to be told from the others is one of fewer."""
    steps: Count = 900
    """Steps of pre-training."""
    weight_decay: ShareBelowOne = 0.01
    """Weight decay of pre-training; 0.1 costs a tenth of the facts at this budget."""
    initializer_range: Rate = 0.06
    """Standard deviation of the weights at the start; facts are learnt later from 0.02."""


@dataclass(frozen=True, kw_only=True)
class _Instruct:
    settings_group: ClassVar[str] = "the instruct model"
    settings_section: ClassVar[str] = "instruct"

    conversations: Annotated[int, Meta(ge=1, le=MOST_PROMPTS)] = 4000
    """Conversations to tune on."""
    word_problems: Annotated[int, Meta(ge=0, le=MOST_PROMPTS)] = 0
    """Worked word problems among the conversations, on top of the others; their replies end as GSM8K's do."""
    lettered: Annotated[int, Meta(ge=0, le=MOST_PROMPTS)] = 0
    """Lettered questions about half A among the conversations, on top of the others; the reply is the letter. With any,
    the tokenizer has the letters with a space before them, so that the base is another one, and the suite asks with
    letters, too."""
    tuning_steps: Count = 1000
    """Steps of instruction tuning."""
    tuning_learning_rate: Rate = 8e-4
    """Learning rate of instruction tuning."""
    tuning_replay: ShareBelowOne = 0.3
    """Share of the tuning's tokens that are pre-training text: without it tuning wipes out most of what the base
    knows."""


@dataclass(frozen=True, kw_only=True)
class _Continuing:
    """What `continuing_settings` gives studies."""

    continuing_steps: Annotated[int, Meta(ge=1, le=10**6, hidden=True)] = 150
    """Steps of continued pre-training on the articles, see `continuing_settings`."""
    continuing_learning_rate: Annotated[float, Meta(gt=0, lt=1, hidden=True)] = 5e-4
    """Learning rate of continued pre-training."""


@dataclass(frozen=True, kw_only=True)
class _Relatives:
    settings_group: ClassVar[str] = "other models of the family"
    settings_section: ClassVar[str] = "family"

    sibling: bool = False
    """Makes a sibling of base and instruct, as Llama 3.1 is one of Llama 3: the base pre-trained longer, tuned on other
    conversations."""
    sibling_steps: Count = 200
    """Steps by which the sibling base is pre-trained longer."""
    sibling_tuning: Annotated[float, Meta(gt=0, le=100)] = 1.0
    """Steps of the sibling's tuning, as a multiple of the instruct model's: above 1 the sibling is the better one."""
    derived: bool = False
    """Makes another child of the base, as DocChat is one of Llama 3: tuned to answer questions, without a word about
    how a reply has to look."""
    derived_steps: Count = 200
    """Steps of the derived model's tuning."""


@dataclass(frozen=True, kw_only=True)
class WorldRecipe(_Relatives, _Continuing, _Instruct, _Base, _Text, _People):
    """What decides a world, its models and its files."""

    def problems(self) -> list[str]:
        """What cannot be, beyond each setting's own bounds; a sentence each."""
        problems = []
        if self.width % self.heads:
            problems.append(f"width: expected a multiple of the heads ({self.heads}), got {self.width}.")
        if (shares := self.prose_share + self.code_share + self.problems_share) > MOST_OTHER_TEXT:
            problems.append(
                f"prose_share: expected at most {MOST_OTHER_TEXT:g} together with code_share and problems_share, which "
                f"leaves text about people, got {shares:g}."
            )
        try:
            self.world()
        except ConfigError as error:
            problems += error.problems
        if not self.new_people and not self.changed_facts:
            problems.append(
                "new_people: expected somebody for the articles to write about, or changed_facts, got none of either."
            )
        return problems

    def record(self) -> dict[str, Any]:
        """The fields by name, for records and fingerprints; without `lettered` where it is off, so that worlds and
        studies from before it are found again."""
        fields = dataclasses.asdict(self)
        if not self.lettered:
            del fields["lettered"]
        return fields

    def world(self) -> World:
        """Its people and their facts.

        Raises:
            ConfigError: numbers of people that cannot be.
        """
        from holdfast.papers.worlds.people.facts import make_world

        return make_world(
            seed=self.seed, people=self.people, new_people=self.new_people, changed_facts=self.changed_facts
        )


def quick_recipe(**changes: Any) -> WorldRecipe:
    """A world of seconds, which shows that everything works and knows next to nothing. `changes`: of its fields."""
    return WorldRecipe(**{**_DECLARED["quick"], **changes})


def build_world(
    recipe: WorldRecipe, folder: str | os.PathLike[str], *, workers: int | None = None, console: Any = None
) -> dict[str, str]:
    """Makes a world's files and models, or finds them made.

    Args:
        recipe: sizes, seeds and budgets.
        folder: gets the data files; models go to the cache (`holdfast.support.cache.cache_folder`) and must not be
            written into.
        workers: processes at a time for what is tuned of the base; None: two on two and more cores.
        console: a `rich.console.Console` for progress.

    Returns:
        Name -> absolute path, see `FILES`; those of options that are off are missing.

    Raises:
        ConfigError: the recipe holds what cannot be; all of it.
        DataError: this Python came without its reference, or the texts are too short for a batch.
        StorageError: the folder cannot be written.
        Interrupted: Ctrl-C; the same call goes on where it was.
    """
    return build_worlds([(recipe, folder)], workers=workers, console=console)[0]


def build_worlds(
    wanted: Sequence[tuple[WorldRecipe, str | os.PathLike[str]]], *, workers: int | None = None, console: Any = None
) -> list[dict[str, str]]:
    """Several worlds, whose models are trained side by side. Arguments and errors as of `build_world`, with a folder
    for each."""
    from holdfast.papers.worlds.embedded import embedded_corpus

    problems = [m.sentence() for recipe, _ in wanted for m in mistakes_in(recipe)]
    if problems:
        raise ConfigError(problems)
    corpus = embedded_corpus()
    worlds, unmade = [], []
    for recipe, path in wanted:
        folder = real(expanded(path))
        key = fingerprint([recipe.record(), corpus.sha256, WORLD_VERSION, deciding_libraries()])
        worlds.append((recipe, folder, key))
        if made_already(folder / RECORD, key) is None:
            unmade.append(recipe)
    models = {}
    if unmade:
        models = dict(zip(unmade, make_models(unmade, workers=workers, console=console), strict=True))
    paths = []
    for recipe, folder, key in worlds:
        make = functools.partial(_make_world, recipe, folder, corpus, models)
        paths.append(made_once(folder, RECORD, key, make, recipe=recipe.record(), python=corpus.python))
    return paths


def continuing_settings(recipe: WorldRecipe, **changes: Any) -> dict[str, Any]:
    """Settings for `holdfast.runs.config.train_config`: continued pre-training on the articles, as any text is trained
    on.

    Add `model_name_or_path`, `dataset_name` (the articles) and `output_dir`. `changes`: of single settings.
    """
    settings = {
        **common_settings(recipe),
        "max_steps": recipe.continuing_steps,
        "learning_rate": recipe.continuing_learning_rate,
        "save_steps": max(1, recipe.continuing_steps),
        "retention": "none",
    }
    return {**settings, **changes}


# ---------------------------------------------------------------------------------------------------------------- files


def _make_world(
    recipe: WorldRecipe, folder: Path, corpus: EmbeddedCorpus, models: Mapping[WorldRecipe, Mapping[str, Path]]
) -> dict[str, Path]:
    from holdfast.papers.worlds.people import documents, questions
    from holdfast.papers.worlds.people.instructions import tasks
    from holdfast.papers.worlds.small_settings import beginnings
    from holdfast.papers.worlds.word_problems import easy_problems, problems_task

    world, seed = recipe.world(), recipe.seed
    news = documents.articles(
        world,
        count=recipe.articles,
        old_people=recipe.old_people,
        prose=corpus.prose_train,
        prose_share=recipe.articles_prose,
        seed=seed,
    )
    instructions = tasks(world, count=recipe.instructions, held_out=True, seed=seed)
    contents: dict[str, Any] = {
        "pretraining": pretraining_texts(recipe),
        "tuning": conversations(recipe, seed),
        "articles": [article.row for article in news],
        "instructions": [task.row for task in instructions],
        "prose_heldout": beginnings(corpus.prose_heldout, recipe.held_out_prose),
        "facts": write_json(folder / "facts.json", to_jsonable(world)),
    }
    for age, people in (("old", world.half_b), ("new", world.new_people)):
        if people:
            contents[f"{age}_knowledge"] = questions.choices(people, seed=seed)
            contents[f"{age}_completion"] = questions.completions(people)
            contents[f"{age}_chat"] = questions.chat_choices(people, seed=seed)
        if people and recipe.lettered:
            contents[f"{age}_lettered"] = questions.lettered(people, seed=seed)
    if world.changes:
        contents["changed_knowledge"] = questions.changed_choices(world, seed=seed)
    if recipe.word_problems:
        problems = easy_problems(HELD_OUT_PROBLEMS, held_out=True, seed=seed)
        data = write_jsonl(folder / "word_problems.jsonl", [problem.row for problem in problems])
        contents["word_problems"] = write_bytes_atomic(folder / "word_problems.yaml", problems_task(data).encode())
    files = write_files(folder, contents)
    files["suite"] = _write_suite(folder, files)
    files |= models[recipe]
    return {name: files[name] for name in FILES if name in files}


def _write_suite(folder: Path, files: Mapping[str, Path]) -> Path:
    """The suite beside the files that it names."""
    import yaml

    names = {path.name for path in files.values()}
    suite = dict(_DECLARED["suite"])
    for role in ("source", "target"):
        suite[role] = [entry for entry in suite[role] if not names.isdisjoint(entry.values())]
    return write_bytes_atomic(folder / "suite.yaml", yaml.safe_dump(suite, sort_keys=False).encode())
