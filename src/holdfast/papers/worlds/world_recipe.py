"""What decides a world, its models and its files: the settings of
`holdfast.papers.worlds.world`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from holdfast.config.declare import Meta, Seed
from holdfast.errors import ConfigError, Problem
from holdfast.papers.worlds.people.instructions import MOST_PROMPTS
from holdfast.papers.worlds.pretrain import BaseSettings, Count, Rate, ShareBelowOne

if TYPE_CHECKING:
    from holdfast.papers.worlds.people.facts import World

MOST_OTHER_TEXT = 0.9
"""Of the pre-training text's characters."""
Share = Annotated[float, Meta(ge=0, le=1)]


@dataclass(frozen=True, kw_only=True)
class _People:
    settings_group: ClassVar[str] = "the world"

    seed: Seed = 0
    """Seed of people, texts, conversations, articles and weights."""
    people: int = 120
    """People that the base knows. Questions ask about one half of them."""
    new_people: int = 30
    """People that only the articles mention."""
    changed_facts: int = 0
    """Facts about known people that the articles change."""
    articles: Count = 1000
    """Articles about new people and changed facts."""
    old_people: Share = 0.3
    """Share of articles that also state a fact about a person whom the base knows."""
    articles_prose: ShareBelowOne = 0.2
    """Prose to mix into `articles`, as a share of articles and prose together. Without prose,
    continued pre-training forgets the words that are not in the articles."""
    instructions: Annotated[int, Meta(ge=1, le=MOST_PROMPTS)] = 300
    """Prompts that test instruction following."""
    held_out_prose: Count = 120
    """Held-out pieces of prose."""


@dataclass(frozen=True, kw_only=True)
class _Text:
    settings_group: ClassVar[str] = "the base"
    settings_section: ClassVar[str] = "base"

    tellings: Count = 95
    """How often each fact occurs in the pre-training text."""
    popular: Share = 0.17
    """Share of people whose facts occur more often in the pre-training text. Without these people,
    the model learns no facts for a long time, see `holdfast.papers.worlds.people.documents`."""
    popularity: Count = 5
    """Facts about `popular` people occur this many times as often as others."""
    list_rounds: Count = 40
    """How often each name occurs in lists without facts. Such lists teach a base to repeat what it
    has read."""
    prose_share: ShareBelowOne = 0.15
    """Share of the pre-training text's characters that is prose."""
    code_share: ShareBelowOne = 0.0
    """Share of pre-training text that is standard-library source code, see
    `holdfast.papers.worlds.embedded`."""
    problems_share: ShareBelowOne = 0.0
    """Share of pre-training text that is articles with worked word problems."""


@dataclass(frozen=True, kw_only=True)
class _Base(BaseSettings):
    settings_group: ClassVar[str] = "the base"
    settings_section: ClassVar[str] = "base"

    vocab_size: Count = 768
    """Vocabulary size of the byte-level BPE, without names and values, see
    `holdfast.papers.worlds.people.chat.vocabulary`."""
    context: Annotated[int, Meta(ge=64, le=10**6)] = 64
    """Tokens in a training row. A conversation needs 64. The model accepts four times this number.
    With rows of 128 tokens, the model needs many more steps to learn facts."""
    steps: Count = 900
    """Steps of pre-training."""
    weight_decay: ShareBelowOne = 0.01
    """Weight decay of pre-training. With 0.1, the base learns a tenth fewer facts."""
    initializer_range: Rate = 0.06
    """Standard deviation of the initial weights. With 0.02, the base learns facts later."""


@dataclass(frozen=True, kw_only=True)
class _Instruct:
    settings_group: ClassVar[str] = "the instruct model"
    settings_section: ClassVar[str] = "instruct"

    conversations: Annotated[int, Meta(ge=1, le=MOST_PROMPTS)] = 4000
    """Conversations to tune on."""
    word_problems: Annotated[int, Meta(ge=0, le=MOST_PROMPTS)] = 0
    """Worked word problems added to the conversations. Their replies end like GSM8K's."""
    lettered: Annotated[int, Meta(ge=0, le=MOST_PROMPTS)] = 0
    """Questions with lettered options about one half of the people, added to the conversations. The
    reply is the letter. If there are such questions, the tokenizer gets tokens for single letters,
    so another base is trained. The suite then also has questions with lettered options."""
    tuning_steps: Count = 1000
    """Steps of instruction tuning."""
    tuning_learning_rate: Rate = 8e-4
    """Learning rate of instruction tuning."""
    tuning_replay: ShareBelowOne = 0.3
    """Share of instruction-tuning tokens that are pre-training text. Without them, tuning wipes out
    most of what the base knows."""


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
    """Makes sibling models, as Llama 3.1 is to Llama 3: a base that is pre-trained longer, and its
    instruct model, tuned on other conversations."""
    sibling_steps: Count = 200
    """How many more pre-training steps the sibling base has."""
    sibling_tuning: Annotated[float, Meta(gt=0, le=100)] = 1.0
    """Tuning steps of the sibling instruct model, as a multiple of the instruct model's. Above 1,
    the sibling is better."""
    derived: bool = False
    """Makes a model derived from the base, as DocChat is from Llama 3. It is tuned to answer
    questions, without instructions about the form of the reply."""
    derived_steps: Count = 200
    """Tuning steps of the derived model."""


@dataclass(frozen=True, kw_only=True)
class WorldRecipe(_Relatives, _Continuing, _Instruct, _Base, _Text, _People):
    """What decides a world, its models and its files."""

    def problems(self) -> list[Problem]:
        """What cannot be, beyond each setting's own bounds; a sentence each."""
        problems = []
        if self.width % self.heads:
            problems.append(
                Problem(
                    "width", f"expected a multiple of the heads ({self.heads}), got {self.width}."
                )
            )
        if (shares := self.prose_share + self.code_share + self.problems_share) > MOST_OTHER_TEXT:
            problems.append(
                Problem(
                    "prose_share",
                    f"expected a sum of at most {MOST_OTHER_TEXT:g} with code_share and "
                    f"problems_share, to leave room for text about people, got {shares:g}.",
                )
            )
        try:
            self.world()
        except ConfigError as error:
            problems += error.problems
        if not self.new_people and not self.changed_facts:
            problems.append(
                Problem(
                    "new_people",
                    "expected new_people or changed_facts above 0, so that the articles have a "
                    "subject, got 0 for both.",
                )
            )
        return problems

    def record(self) -> dict[str, Any]:
        """The fields by name, for records and fingerprints; without `lettered` where it is off, so
        that worlds and studies from before it are found again."""
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
            seed=self.seed,
            people=self.people,
            new_people=self.new_people,
            changed_facts=self.changed_facts,
        )
