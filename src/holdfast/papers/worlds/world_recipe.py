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
    """People that the base knows; questions are about half of them."""
    new_people: int = 30
    """People that only the articles mention."""
    changed_facts: int = 0
    """Facts about known people that the articles change."""
    articles: Count = 1000
    """Articles about new people and changed facts."""
    old_people: Share = 0.3
    """Share of articles that also tell a fact about somebody that the base knows, as news does."""
    articles_prose: ShareBelowOne = 0.2
    """Share of articles that are prose, on top of the others. Without them, a continued model
    unlearns every word that is not in the news."""
    instructions: Annotated[int, Meta(ge=1, le=MOST_PROMPTS)] = 300
    """Prompts that test instruction following."""
    held_out_prose: Count = 120
    """Held-out pieces of prose."""


@dataclass(frozen=True, kw_only=True)
class _Text:
    settings_group: ClassVar[str] = "the base"
    settings_section: ClassVar[str] = "base"

    tellings: Count = 95
    """How often the pre-training text tells each fact."""
    popular: Share = 0.17
    """Share of people whose facts the text tells more often. They end the plateau on which nothing
    is learnt, see `holdfast.papers.worlds.people.documents`."""
    popularity: Count = 5
    """How many times as often it tells their facts."""
    list_rounds: Count = 40
    """How often each name occurs in lists without facts. From them a base learns to repeat what it
    has read."""
    prose_share: ShareBelowOne = 0.15
    """Share of the pre-training text's characters that is prose."""
    code_share: ShareBelowOne = 0.0
    """Share that is source code of the standard library, see `holdfast.papers.worlds.embedded`."""
    problems_share: ShareBelowOne = 0.0
    """Share that is articles with worked word problems."""


@dataclass(frozen=True, kw_only=True)
class _Base(BaseSettings):
    settings_group: ClassVar[str] = "the base"
    settings_section: ClassVar[str] = "base"

    vocab_size: Count = 768
    """Vocabulary of the byte-level BPE; names and values are added, see
    `holdfast.papers.worlds.people.chat.vocabulary`."""
    context: Annotated[int, Meta(ge=64, le=10**6)] = 64
    """Tokens of a training row (a conversation needs 64); the model's maximum positions are four
    times that. Facts are learnt much later in rows of 128, where a token has to find its fact among
    more others."""
    steps: Count = 900
    """Steps of pre-training."""
    weight_decay: ShareBelowOne = 0.01
    """Weight decay of pre-training; 0.1 costs a tenth of the facts at this budget."""
    initializer_range: Rate = 0.06
    """Standard deviation of the initial weights; with 0.02, facts are learnt later."""


@dataclass(frozen=True, kw_only=True)
class _Instruct:
    settings_group: ClassVar[str] = "the instruct model"
    settings_section: ClassVar[str] = "instruct"

    conversations: Annotated[int, Meta(ge=1, le=MOST_PROMPTS)] = 4000
    """Conversations to tune on."""
    word_problems: Annotated[int, Meta(ge=0, le=MOST_PROMPTS)] = 0
    """Worked word problems among the conversations, on top of the others; their replies end like
    GSM8K's."""
    lettered: Annotated[int, Meta(ge=0, le=MOST_PROMPTS)] = 0
    """Lettered questions about half A among the conversations, on top of the others; the reply is
    the letter. With any, the tokenizer has tokens for letters after a space, so the base is a
    different one. The suite then also asks with letters."""
    tuning_steps: Count = 1000
    """Steps of instruction tuning."""
    tuning_learning_rate: Rate = 8e-4
    """Learning rate of instruction tuning."""
    tuning_replay: ShareBelowOne = 0.3
    """Share of the tuning's tokens that are pre-training text. Without it, tuning wipes out most of
    what the base knows."""


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
    """Makes a sibling of base and instruct, as Llama 3.1 is of Llama 3: a base pre-trained longer,
    and tuned on other conversations."""
    sibling_steps: Count = 200
    """Additional pre-training steps of the sibling base."""
    sibling_tuning: Annotated[float, Meta(gt=0, le=100)] = 1.0
    """Steps of the sibling's tuning, as a multiple of the instruct model's. Above 1, the sibling is
    the better one."""
    derived: bool = False
    """Makes a model derived from the base, as DocChat is from Llama 3: tuned to answer questions,
    without any instruction about the form of the reply."""
    derived_steps: Count = 200
    """Steps of the derived model's tuning."""


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
                    f"expected at most {MOST_OTHER_TEXT:g} together with code_share and "
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
                    "expected new people or changed_facts for the articles to write about, got "
                    "neither.",
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
