"""Questions with options of their own, from a file: the base of `multiple_choice` and
`multiple_choice_letters`.

Rows have a prompt, options and the index of the right one, and image or images where there are
some.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from holdfast.config.declare import Meta
from holdfast.data.layouts import BadRow, Row
from holdfast.data.vision import MARKER, undecoded
from holdfast.evaluation.entries import DataEntry, Processor, WordOrNone, are_options
from holdfast.evaluation.images import ImagePrompt, RowImages, image_files
from holdfast.evaluation.text.documents import chat_prompt
from holdfast.evaluation.text.question_files import RowMistakes, question_rows, shown
from holdfast.evaluation.text.thoughts import refuse_open_thought
from holdfast.records.evaluation import CHANCE
from holdfast.support.files import fingerprint

COLUMNS = ("prompt", "options", "answer")


@dataclass(frozen=True, kw_only=True)
class QuestionsEntry(DataEntry):
    """Fields of all entries that ask questions, each with its own options. Rows have prompt,
    options and answer (the index of the right option, from 0), and image or images if there are
    any."""

    takes_images = True
    most_options: ClassVar[int | None] = None
    """Maximum number of options of a question; None: no limit."""

    apply_chat_template: bool = False
    """Put the prompt in the tokenizer's chat template as a user message. The option is then the
    beginning of the reply."""
    group: WordOrNone = None
    """Column by which the report breaks down results, such as the subject."""
    cluster: Annotated[WordOrNone, Meta(former=("unit",))] = None
    """Column that marks related questions, such as several about one fact. Related questions count
    as one sample with their mean accuracy. Without the column, they count as separate samples, and
    intervals are too narrow."""

    def local_files(self) -> list[Path]:
        """The data file, and those of its images."""
        return [*super().local_files(), *image_files(self)]

    def deciding(self) -> dict[str, Any]:
        """As of every entry; without `cluster` where it is not used, so that evaluations from
        before it are found."""
        settings = super().deciding()
        if self.cluster is None:
            del settings["cluster"]
        return settings

    def count(self, requests: Sequence[Question]) -> int:
        """The questions, or the clusters."""
        if self.cluster is None:
            return len(requests)
        return len({question.cluster for question in requests})

    def text_of(self, row: Row, number: int) -> str:
        """How the question of a sound row is asked; rows count from 0."""
        return str(row["prompt"])


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question as the model is given it."""

    asked: str
    """The text of the question; of choices the prompt of the file."""
    prompt: str
    """The same in the chat template, where it is put in one."""
    options: tuple[str, ...]
    gold: int
    """Index of the right option."""
    group: str | None = None
    cluster: str | None = None
    """What it is about, where several questions make one sample."""
    chat: bool = False
    """Whether `prompt` was written by a chat template."""
    images: ImagePrompt | None = None
    """The prompt with its images, where it has some."""

    def sample(self) -> dict[str, Any]:
        """What a per-sample row says of the question: `doc`, which comparisons join on, the
        prompt's hash, the group and the names of its images."""
        identity: list[Any] = [self.asked, list(self.options)]
        sample: dict[str, Any] = {}
        if self.images is None:
            sample["content"] = f"{self.options}{self.asked}"
        else:
            identity.append(self.images.content())
            sample["images"] = self.images.names
        sample["doc"] = fingerprint(identity, length=32)
        sample["prompt"] = fingerprint(self.prompt, length=32)
        if self.group is not None:
            sample["task"] = self.group
        return {**sample, "question": self.asked, "choices": list(self.options)}


def read_questions(
    entry: QuestionsEntry, tokenizer: Any, processor: Processor | None = None
) -> list[Question]:
    """The questions of an entry.

    Args:
        entry: of choices or lettered.
        tokenizer: of the model that is asked.
        processor: of a vision-language model, for rows with images.

    Raises:
        DataError: no rows, columns are missing, or rows do not hold a prompt, at least two
            different options and the index of one, or images that cannot be read or have no place
            in the prompt; all mistakes of the file in one message, each kind with the first row
            that has it. Images for a model that takes text only.
        ModelError: the chat template is asked for, and the tokenizer has none, or it opens a
            thought; no processor for images.
    """
    if entry.apply_chat_template:
        refuse_open_thought(tokenizer, entry.path)
    columns = [*COLUMNS, *filter(None, (entry.group, entry.cluster))]
    rows = undecoded(question_rows(entry, columns))
    images = RowImages(entry, rows)
    mistakes = RowMistakes(entry.data)
    questions = []
    for number, row in enumerate(rows):
        if not _is_sound(row, number, mistakes, entry.most_options):
            continue
        text = prompt = entry.text_of(row, number)
        image_prompt = None
        if images.has(row):
            try:
                image_prompt = images.prompt(
                    row, text, number=number, chat=entry.apply_chat_template, processor=processor
                )
            except BadRow as problem:
                expected = "readable images, and a place for each in the prompt"
                mistakes.add(expected, row=number, got=str(problem))
                continue
            prompt = image_prompt.text
        elif (
            processor is not None and MARKER in text
        ):  # to the tokenizer it is an image that nobody gave
            mistakes.add(
                "an image for each place in the prompt",
                row=number,
                got=f"no image, although the prompt contains {MARKER}",
            )
            continue
        elif entry.apply_chat_template:
            prompt = chat_prompt([{"role": "user", "content": prompt}], tokenizer)
        questions.append(
            Question(
                asked=text,
                prompt=prompt,
                options=tuple(row["options"]),
                gold=int(row["answer"]),
                group=None if entry.group is None else str(row[entry.group]),
                cluster=None if entry.cluster is None else str(row[entry.cluster]),
                chat=entry.apply_chat_template,
                images=image_prompt,
            )
        )
    mistakes.check()
    return questions


def _is_sound(row: Row, number: int, mistakes: RowMistakes, most: int | None) -> bool:
    prompt, options, answer = row["prompt"], row["options"], row["answer"]
    if not isinstance(prompt, str) or not prompt:
        return mistakes.add("a prompt that is a non-empty text", row=number, got=shown(prompt))
    if not isinstance(options, list) or not are_options(options):
        expected = "options that are a list of at least two different texts, none empty"
        return mistakes.add(expected, row=number, got=shown(options))
    if most is not None and len(options) > most:
        return mistakes.add(
            f"at most {most} options, one letter each", row=number, got=f"{len(options)} options"
        )
    if isinstance(answer, bool) or answer not in range(len(options)):
        expected = "an answer that is the index of one of the options, from 0"
        return mistakes.add(expected, row=number, got=f"{shown(answer)} of {len(options)} options")
    return True


def groups_of(questions: Sequence[Question]) -> list[str]:
    """The groups that there are, sorted."""
    return sorted({question.group for question in questions if question.group is not None})


def by_cluster(
    rows: Sequence[Row], questions: Sequence[Question], *, means: Sequence[str]
) -> list[dict[str, Any]]:
    """One sample for all questions of a cluster, in the order in which clusters first come: the
    means of some columns, and the nats and tokens of all.

    Args:
        rows: one a question.
        questions: in the same order.
        means: columns of which the mean is taken.
    """
    clusters: dict[str, list[Row]] = {}
    for row, question in zip(rows, questions, strict=True):
        clusters.setdefault(str(question.cluster), []).append(row)
    samples = []
    for cluster, members in clusters.items():
        sample: dict[str, Any] = {
            "doc": fingerprint([cluster, *(row["doc"] for row in members)], length=32),
            "prompt": fingerprint([row["prompt"] for row in members], length=32),
        }
        if "task" in members[0]:
            sample["task"] = members[0]["task"]
        sample |= {"question": cluster, "questions": len(members)}
        sample[CHANCE] = sum(1 / len(row["choices"]) for row in members) / len(members)
        for name in means:
            sample[name] = sum(row[name] for row in members) / len(members)
        for name in ("nats", "tokens"):
            sample[name] = sum(row[name] for row in members)
        samples.append(sample)
    return samples
