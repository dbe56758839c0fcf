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
    """Share of articles that are prose, on top of the others. Without them what is continued
    unlearns every word that is not in the news."""
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
    """Share of people of whom it tells more often: they end the plateau on which nothing is learnt,
    see `holdfast.papers.worlds.people.documents`."""
    popularity: Count = 5
    """How many times as often."""
    list_rounds: Count = 40
    """How often lists without facts have every name; from them a base learns to say again what it
    has read."""
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
    """Of the byte-level BPE; names and values come on top, see
    `holdfast.papers.worlds.people.chat.vocabulary`."""
    context: Annotated[int, Meta(ge=64, le=10**6)] = 64
    """Tokens of a training row (a conversation needs 64); the model's maximum positions are four
    times that. Facts are learnt much later in rows of 128: what a token has to be told from the
    others is one of fewer."""
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
    """Worked word problems among the conversations, on top of the others; their replies end as
    GSM8K's do."""
    lettered: Annotated[int, Meta(ge=0, le=MOST_PROMPTS)] = 0
    """Lettered questions about half A among the conversations, on top of the others; the reply is
    the letter. With any, the tokenizer has the letters with a space before them, so that the base
    is another one, and the suite asks with letters, too."""
    tuning_steps: Count = 1000
    """Steps of instruction tuning."""
    tuning_learning_rate: Rate = 8e-4
    """Learning rate of instruction tuning."""
    tuning_replay: ShareBelowOne = 0.3
    """Share of the tuning's tokens that are pre-training text: without it tuning wipes out most of
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
    """Makes a sibling of base and instruct, as Llama 3.1 is one of Llama 3: the base pre-trained
    longer, tuned on other conversations."""
    sibling_steps: Count = 200
    """Steps by which the sibling base is pre-trained longer."""
    sibling_tuning: Annotated[float, Meta(gt=0, le=100)] = 1.0
    """Steps of the sibling's tuning, as a multiple of the instruct model's: above 1 the sibling is
    the better one."""
    derived: bool = False
    """Makes another child of the base, as DocChat is one of Llama 3: tuned to answer questions,
    without a word about how a reply has to look."""
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
                    f"problems_share, which leaves text about people, got {shares:g}.",
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
                    "expected somebody for the articles to write about, or changed_facts, got "
                    "none of either.",
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
