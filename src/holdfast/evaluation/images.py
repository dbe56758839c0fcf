"""Questions with images: read with their images, put before the model through its processor.

A prompt's text has the processor's token where an image belongs; the processor makes as many of it
as the image has states, and the pixels. What follows a prompt is text, so its tokens are those of a
text's continuation (see `text.documents`), and all that is asked after one prompt goes through the
model in one row (`text.shared_prefix`): the images are read once a question. Where a model cannot
share beginnings, or has positions of its own for images (Qwen-VL), each text is a row with its
images.

Pixels are made when a question is asked and not kept, so a file of any number of images can be
measured.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.data import vision
from holdfast.data.layouts import BadRow, Row
from holdfast.errors import DataError, ModelError, UserError, first_line
from holdfast.evaluation.text.documents import border_ids, prompt_ids
from holdfast.evaluation.text.question_files import first_rows
from holdfast.support.files import fingerprint
from holdfast.support.resources import is_out_of_memory

if TYPE_CHECKING:
    import torch

    from holdfast.evaluation.entries import DataEntry, Processor
    from holdfast.evaluation.measures import Report, Subject
    from holdfast.evaluation.text.shared_prefix import PackedRow, Scorer
    from holdfast.evaluation.text.shared_prefix import Path as TokenPath


@dataclass(frozen=True, kw_only=True)
class ImagePrompt:
    """A prompt with images."""

    text: str
    """With the processor's token once where an image belongs."""
    images: tuple[Mapping[str, Any], ...]
    """As `datasets.Image` stores them: bytes, or None, and path."""
    chat: bool
    """Whether a chat template wrote the text."""
    place: str
    """File and row, for messages."""

    @property
    def names(self) -> list[str]:
        """File names of the images, empty where there is none."""
        return [os.path.basename(str(image.get("path") or "")) for image in self.images]

    def content(self) -> list[str]:
        """SHA-256 (hexadecimal) of each image's bytes as stored."""
        return [hashlib.sha256(_bytes(image)).hexdigest() for image in self.images]


class RowImages:
    """Where the rows of an entry's data have images.

    Args:
        entry: names the data.
        rows: of it.
    """

    def __init__(self, entry: DataEntry, rows: Any) -> None:
        from holdfast.data.sources import data_files

        files = data_files(entry.data, split=entry.split) if Path(entry.data).exists() else []
        self.data = entry.data
        self.columns = vision.image_columns(rows.column_names, metadata=vision.is_metadata(files))
        self.folders = list(dict.fromkeys(file.absolute().parent for file in files))
        self._convert: vision.Convert | None = (
            None  # of the first processor: a file is read for one model
        )

    def has(self, row: Row) -> bool:
        """Whether a row has images."""
        return bool(vision.given_images(row, self.columns))

    def prompt(
        self, row: Row, text: str, *, number: int, chat: bool, processor: Processor | None
    ) -> ImagePrompt:
        """The prompt of a row with images, which are read to their end.

        Args:
            row: of the data.
            text: of the prompt; `<image>` says where an image belongs. In a chat template images
                come before the text where it does not.
            number: of the row, from 0.
            chat: puts it in the processor's chat template.
            processor: of the model.

        Raises:
            BadRow: an image that cannot be used; a number of images that the text does not have
                places for.
            DataError: the model takes text only, or the chat template has no slot for an image.
            ModelError: the processor cannot be loaded, or has no chat template.
        """
        where = f"{self.data}, row {number}"
        if processor is None:
            raise vision.takes_text_only(where, self.columns)
        loaded = processor()
        if self._convert is None:
            self._convert = vision.converter_with_images(
                lambda row: {"prompt": row["prompt"]},
                columns=self.columns,
                folders=self.folders,
                processor=loaded,
            )
        question: dict[str, Any] = {column: row[column] for column in self.columns}
        question["prompt"] = [{"role": "user", "content": text}] if chat else text
        converted = self._convert(question)
        for image in converted[vision.IMAGES]:
            if (problem := vision.check_image(image)) is not None:
                raise BadRow(problem)
        prompt = converted["prompt"]
        if chat:
            prompt = self._written(prompt, loaded, where)
        return ImagePrompt(
            text=prompt, images=tuple(converted[vision.IMAGES]), chat=chat, place=where
        )

    def _written(self, messages: Sequence[Mapping[str, Any]], processor: Any, place: str) -> str:
        if not getattr(processor, "chat_template", None):
            raise ModelError(
                f"{place}: expected a processor with a chat template, got one without. Leave out "
                "`apply_chat_template`, or use the processor of an instruction-tuned model."
            )
        if (problem := vision.slot_problem(processor, {"prompt": messages})) is not None:
            raise DataError(f"{place}: {problem}.")
        return str(
            processor.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True
            )
        )


def image_files(entry: DataEntry) -> list[Path]:
    """The files that the images of an entry's data lie in, each once; those that are not there, or
    lie within the rows, are left out."""
    if not Path(entry.data).exists():
        return []
    try:
        rows = vision.undecoded(first_rows(entry))
        images = RowImages(entry, rows)
    except UserError:
        return []  # whoever reads the rows says what is wrong
    if not images.columns:
        return []
    files = vision.image_files(rows.select_columns(images.columns), images.columns, images.folders)
    return list(dict.fromkeys(Path(file[0]) for file in files))


def processor_fingerprint(processor: Processor) -> str:
    """Hash of all that decides what a processor makes of an image and its slot; empty where it
    cannot be loaded."""
    try:
        loaded = processor()
    except ModelError:
        return ""  # whoever needs it says so
    settings = json.loads(loaded.to_json_string())
    return fingerprint([type(loaded).__name__, settings, getattr(loaded, "chat_template", None)])


# --------------------------------------------------------------------------------- asking the model


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """A prompt as the model takes it."""

    ids: tuple[int, ...]
    """With as many of the image tokens as the images have states."""
    of_images: Mapping[str, torch.Tensor]
    """Pixels and what else the processor says of the images."""
    of_tokens: Mapping[str, torch.Tensor]
    """What it says of each token, `[1, len(ids)]`."""

    def along(self, tokens: int) -> dict[str, torch.Tensor]:
        """All of it for a row that begins with the prompt and has so many tokens; those behind are
        text, which is 0 in every column that tells text from images."""
        import torch

        inputs = dict(self.of_images)
        for name, value in self.of_tokens.items():
            columns = value[:, :tokens]
            inputs[name] = torch.nn.functional.pad(columns, (0, tokens - columns.shape[1]))
        return inputs


def encode(prompt: ImagePrompt, processor: Any) -> Encoded:
    """A prompt through the processor.

    Raises:
        DataError: the processor refuses it.
        ModelError: it cuts text behind an image in another way than its tokenizer does.
    """
    import datasets
    import torch

    reader = datasets.Image()
    try:
        images = [reader.decode_example(dict(image)) for image in prompt.images]
        batch = dict(
            processor(
                text=[prompt.text],
                images=[images],
                add_special_tokens=False,
                padding=False,
                return_tensors="pt",
            )
        )
    except Exception as error:  # processors' errors have no common base
        if is_out_of_memory(error):
            raise
        raise DataError(
            f"{prompt.place}: the processor ({type(processor).__name__}) cannot read it: "
            f"{first_line(error).rstrip('.')}"
        ) from error
    shape = tuple(batch["input_ids"].shape)
    ids = batch.pop("input_ids")[0].tolist()
    batch.pop("attention_mask", None)
    of_tokens, of_images = {}, {}
    for name, value in batch.items():
        if vision.is_of_tokens(name, value, shape):
            of_tokens[name] = value
        elif isinstance(value, torch.Tensor):
            of_images[name] = value
    tokenizer = processor.tokenizer
    plain = prompt_ids(prompt.text, tokenizer, chat=prompt.chat)
    if plain[:1] != ids[:1] and plain[:1] == [tokenizer.bos_token_id]:
        ids = [plain[0], *ids]
        for name, value in of_tokens.items():
            of_tokens[name] = torch.nn.functional.pad(value, (1, 0))
    token = tokenizer.convert_tokens_to_ids(vision.image_token(processor))
    behind = list(itertools.takewhile(lambda i: i != token, reversed(plain)))[::-1]
    if behind and ids[-len(behind) :] != behind:
        raise ModelError(
            f"{prompt.place}: {type(processor).__name__} and its tokenizer split the text after an "
            "image into different tokens, so this text cannot be scored. Please report the "
            "model."
        )
    return Encoded(ids=tuple(ids), of_images=of_images, of_tokens=of_tokens)


Continuation = tuple[int, tuple[int, ...]]
"""What is scored behind a prompt: how many of the prompt's last tokens it takes over, and its
ids."""


@dataclass(frozen=True, kw_only=True)
class ImageQuestion:
    """A prompt with images, and what is scored behind it."""

    prompt: ImagePrompt
    continuations: tuple[Continuation, ...]

    @classmethod
    def of(cls, prompt: ImagePrompt, texts: Sequence[str], on: Subject) -> ImageQuestion:
        """Texts behind a prompt, with the border of `text.documents.border_ids`.

        Raises:
            DataError: a text that adds no token.
        """
        assert on.processor is not None, "rows with images must be refused if there is no processor"
        tokenizer = on.processor().tokenizer
        continuations = []
        for text in texts:
            context, ids = border_ids(prompt.text, text, tokenizer, chat=prompt.chat)
            if not ids:
                raise DataError(
                    f"{prompt.place}: the option {text!r} adds no token to the prompt. Give the "
                    "option a text."
                )
            taken = len(prompt_ids(prompt.text, tokenizer, chat=prompt.chat)) - len(context)
            continuations.append((taken, tuple(ids)))
        return cls(prompt=prompt, continuations=tuple(continuations))


def answers_with_images(
    on: Subject,
    scorer: Scorer,
    questions: Sequence[ImageQuestion],
    *,
    name: str,
    length: int,
    find: Callable[[PackedRow], Iterable[Any]] | None = None,
    report: Report,
) -> list[Any]:
    """What `find` gives for every continuation of every question, one after the other; what an
    interrupted call had is not asked again, and several processes deal the questions out.

    Args:
        on: the model, in evaluation mode, with its processor.
        scorer: of the model's texts.
        questions: with images.
        name, find: as of `Scorer.answers`; `index` of a path counts the continuations of all
            questions.
        length: the most tokens that the model takes.
        report: called with (continuations done, continuations in all).

    Raises:
        DataError: the processor or the model refuses a prompt, or it is longer than the model's
            context.
    """
    from holdfast.evaluation.text.shared_prefix import Path as TokenPath
    from holdfast.evaluation.text.shared_prefix import branches_stay_apart, branching_pair, row_of
    from holdfast.ops.heads import backbone_of

    assert on.processor is not None, "rows with images must be refused if there is no processor"
    processor = on.processor()
    numbers, total = [], 0
    for question in questions:
        numbers.append(range(total, total + len(question.continuations)))
        total += len(question.continuations)
    # positions of images in three dimensions are not those of a row that branches
    may_share = scorer.shares and not hasattr(backbone_of(on.model), "get_rope_index")
    tried: list[bool] = []

    def shares(encoded: Encoded, paths: Sequence[TokenPath]) -> bool:
        """Whether what is asked behind a prompt may stand in one row; tried on the first prompt
        where it parts."""
        longest = max(len(path.ids) for path in paths)
        if not may_share or (scorer.window is not None and longest > scorer.window):
            return False  # a mask of our own would not respect a sliding window
        pair = branching_pair(paths, tokens=length)
        if pair is not None and not tried:
            token = processor.tokenizer.convert_tokens_to_ids(vision.image_token(processor))
            tried.append(
                branches_stay_apart(scorer, *pair, images=encoded.along, reserved=(token,))
            )
        return pair is None or tried[0]

    def answers_to(i: int) -> list[Any]:
        prompt = questions[i].prompt
        encoded = encode(prompt, processor)
        paths = []
        for number, (taken, ids) in zip(numbers[i], questions[i].continuations, strict=True):
            text = (*encoded.ids[: len(encoded.ids) - taken], *ids)
            paths.append(TokenPath(index=number, ids=text[:-1], targets=ids))
        longest = max(len(path.ids) for path in paths)
        if longest > length:
            raise DataError(
                f"{prompt.place}: expected at most {length} tokens (the model's context), got "
                f"{longest}, including the images, which are never cut. Set the processor to "
                "smaller images, or take the row out."
            )
        by_number: dict[int, Any] = {}
        with vision.reading_images(lambda: prompt.place):
            rows = (
                [sorted(paths, key=lambda path: path.ids)]
                if shares(encoded, paths)
                else [[path] for path in paths]
            )
            for paths_of_row in rows:
                answers = scorer.answers_of(row_of(paths_of_row, encoded.along), find)
                for path, answer in zip(paths_of_row, answers, strict=True):
                    by_number[path.index] = answer
        return [by_number[number] for number in numbers[i]]

    batches = zip(numbers, range(len(questions)), strict=True)
    return on.partial.resumed(name, batches, answers_to, total=total, report=report)


def _bytes(image: Mapping[str, Any]) -> bytes:
    content = image.get("bytes")
    return content if content is not None else Path(str(image["path"])).read_bytes()
