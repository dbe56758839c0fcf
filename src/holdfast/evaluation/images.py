"""Questions with images: read with their images, put before the model through its processor.

A prompt's text has the processor's token where an image belongs; the processor makes as many of it as the image has
states, and the pixels. What follows a prompt is text, so its tokens are those of a text's continuation (see
`text.documents`), and all that is asked after one prompt goes through the model in one row (`text.shared_prefix`): the
images are read once a question. Short questions share a row, where a trial finds that each sees its own images only.
Where a model cannot share beginnings, or has positions of its own for images (Qwen-VL), each text is a row with its
images.

Pixels are made when a question is asked and not kept, so a file of any number of images can be measured.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.data import vision
from holdfast.data.layouts import BadRow
from holdfast.errors import DataError, ModelError, UserError, first_line
from holdfast.evaluation.text.documents import border_ids, prompt_ids
from holdfast.evaluation.text.shared_prefix import Path as TokenPath
from holdfast.evaluation.text.shared_prefix import (
    branches_stay_apart,
    branching_pair,
    row_of,
    same_states,
    side_by_side,
)
from holdfast.records.evaluation import all_finite
from holdfast.support.files import fingerprint
from holdfast.support.resources import is_out_of_memory

if TYPE_CHECKING:
    import torch

    from holdfast.evaluation.entries import DataEntry
    from holdfast.evaluation.measures import Report, Subject
    from holdfast.evaluation.text.shared_prefix import PackedRow, Scorer

logger = logging.getLogger(__name__)

Processor = Callable[[], Any]
"""Loads a vision-language model's processor, or finds it loaded. Where one is expected, None means that the model takes
text only."""


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
        self._convert: vision.Convert | None = None  # of the first processor: a file is read for one model

    def has(self, row: Mapping[str, Any]) -> bool:
        """Whether a row has images."""
        return bool(vision.given_images(row, self.columns))

    def prompt(
        self, row: Mapping[str, Any], text: str, *, number: int, chat: bool, processor: Processor | None
    ) -> ImagePrompt:
        """The prompt of a row with images, which are read to their end.

        Args:
            row: of the data.
            text: of the prompt; `<image>` says where an image belongs. In a chat template images come before the text
                where it does not.
            number: of the row, from 0.
            chat: puts it in the processor's chat template.
            processor: of the model.

        Raises:
            BadRow: an image that cannot be used; a number of images that the text does not have places for.
            DataError: the model takes text only, or the chat template has no slot for an image.
            ModelError: the processor cannot be loaded, or has no chat template.
        """
        place = f"{self.data}, row {number}"
        if processor is None:
            raise vision.takes_text_only(place, self.columns)
        found = processor()
        held = {column: row[column] for column in self.columns}
        prompt: Any = [{"role": "user", "content": text}] if chat else text
        if self._convert is None:
            self._convert = vision.converter_with_images(
                lambda row: {"prompt": row["prompt"]}, columns=self.columns, folders=self.folders, processor=found
            )
        made = self._convert({"prompt": prompt, **held})
        for image in made[vision.IMAGES]:
            if (problem := vision.check_image(image)) is not None:
                raise BadRow(problem)
        if chat:
            made["prompt"] = self._written(made["prompt"], found, place)
        return ImagePrompt(text=made["prompt"], images=tuple(made[vision.IMAGES]), chat=chat, place=place)

    def _written(self, messages: Sequence[Mapping[str, Any]], processor: Any, place: str) -> str:
        if not getattr(processor, "chat_template", None):
            raise ModelError(
                f"{place}: asks for the chat template, but the processor has none. Leave out `apply_chat_template`, or "
                f"use the processor of an instruction-tuned model."
            )
        if (problem := vision.slot_problem(processor, {"prompt": messages})) is not None:
            raise DataError(f"{place}: {problem}.")
        return str(processor.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True))


def image_files(entry: DataEntry) -> list[Path]:
    """The files that the images of an entry's data lie in, each once; those that are not there, or lie within the rows,
    are left out."""
    from holdfast.evaluation.text.question_files import first_rows

    if not Path(entry.data).exists():
        return []
    try:
        rows = vision.undecoded(first_rows(entry))
        images = RowImages(entry, rows)
    except UserError:
        return []  # whoever reads the rows says what is wrong
    if not images.columns:
        return []
    found = vision.image_files(rows.select_columns(images.columns), images.columns, images.folders)
    return list(dict.fromkeys(Path(file[0]) for file in found))


def processor_fingerprint(processor: Processor) -> str:
    """Hash of all that decides what a processor makes of an image and its slot; empty where it cannot be loaded."""
    try:
        found = processor()
    except ModelError:
        return ""  # whoever needs it says so
    settings = json.loads(found.to_json_string())
    return fingerprint([type(found).__name__, settings, getattr(found, "chat_template", None)])


# ----------------------------------------------------------------------------------------------------- asking the model


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
        """All of it for a row that begins with the prompt and has so many tokens; those behind are text, which is 0
        in every column that tells text from images."""
        import torch

        widths = {name: value[:, :tokens] for name, value in self.of_tokens.items()}
        more = {n: torch.nn.functional.pad(value, (0, tokens - value.shape[1])) for n, value in widths.items()}
        return {**self.of_images, **more}


def beside(questions: Sequence[Encoded], rows: Sequence[PackedRow], *, axis: int) -> PackedRow | None:
    """The rows of several prompts as one; None where their images do not fit beside each other.

    Args:
        questions: the prompts.
        rows: theirs, in the same order.
        axis: that counts images in what the processor makes: 0 for most, 1 where the first is the rows of a batch.
    """
    import torch

    parts = [one.along(len(row.ids)) for one, row in zip(questions, rows, strict=True)]
    names, of_tokens = parts[0].keys(), questions[0].of_tokens.keys()
    if any(part.keys() != names for part in parts):
        return None
    try:
        joined = {n: torch.cat([part[n] for part in parts], dim=1 if n in of_tokens else axis) for n in names}
    except (RuntimeError, IndexError):
        return None
    return side_by_side(rows, lambda tokens: joined)


def questions_stay_apart(scorer: Scorer, questions: Sequence[Encoded], rows: Sequence[PackedRow], *, axis: int) -> bool:
    """True where two prompts in one row have the states of rows of their own, whatever the other's images show.

    The tests are those of `shared_prefix.branches_stay_apart`: other images of the other leave the same kernels the
    same shapes, so that any difference is a leak.

    Args:
        scorer: of the model.
        questions, rows, axis: as of `beside`, two of them.
    """
    import torch

    def negative(one: Encoded) -> Encoded:
        pixels = {n: 1 - value if value.is_floating_point() else value for n, value in one.of_images.items()}
        return dataclasses.replace(one, of_images=pixels)

    def states(row: PackedRow | None) -> tuple[torch.Tensor, torch.Tensor]:
        if row is None:
            raise ValueError("images of different shapes")
        found = scorer.states(row)
        return found[: len(rows[0].ids)], found[len(rows[0].ids) :]

    try:
        with torch.no_grad():
            together = states(beside(questions, rows, axis=axis))
            alone = [scorer.states(row) for row in rows]
            first, second = questions
            others = (
                states(beside([first, negative(second)], rows, axis=axis))[0],
                states(beside([negative(first), second], rows, axis=axis))[1],
            )
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        logger.debug("a row of several questions is refused: %s: %s", type(error).__name__, error)
        return False
    pairs = zip(together, others, alone, strict=True)
    return all(same_states(behind, other, own) for behind, other, own in pairs)


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
            processor(text=[prompt.text], images=[images], add_special_tokens=False, padding=False, return_tensors="pt")
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
    of_tokens = {n: value for n, value in batch.items() if vision.is_of_tokens(n, value, shape)}
    tokenizer = processor.tokenizer
    plain = prompt_ids(prompt.text, tokenizer, chat=prompt.chat)
    if plain[:1] != ids[:1] and plain[:1] == [tokenizer.bos_token_id]:
        ids = [plain[0], *ids]
        of_tokens = {n: torch.nn.functional.pad(value, (1, 0)) for n, value in of_tokens.items()}
    token = tokenizer.convert_tokens_to_ids(vision.image_token(processor))
    behind = list(itertools.takewhile(lambda i: i != token, reversed(plain)))[::-1]
    if behind and ids[-len(behind) :] != behind:
        raise ModelError(
            f"{prompt.place}: {type(processor).__name__} cuts the text behind an image into other tokens than its "
            f"tokenizer does, so what follows cannot be scored. Please report the model."
        )
    rest = {n: value for n, value in batch.items() if n not in of_tokens and isinstance(value, torch.Tensor)}
    return Encoded(ids=tuple(ids), of_images=rest, of_tokens=of_tokens)


Continuation = tuple[int, tuple[int, ...]]
"""What is scored behind a prompt: how many of the prompt's last tokens it takes over, and its ids."""


def continuation(prompt: ImagePrompt, text: str, tokenizer: Any) -> Continuation:
    """A text behind a prompt, with the border of `text.documents.border_ids`."""
    given, scored = border_ids(prompt.text, text, tokenizer, chat=prompt.chat)
    return len(prompt_ids(prompt.text, tokenizer, chat=prompt.chat)) - len(given), tuple(scored)


def answers_with_images(
    on: Subject,
    scorer: Scorer,
    prompts: Sequence[ImagePrompt],
    asked: Sequence[Sequence[Continuation]],
    *,
    name: str,
    length: int,
    find: Callable[[PackedRow], Iterable[Any]] | None = None,
    report: Report,
) -> list[list[Any]]:
    """What `find` gives for every continuation of every prompt, in order; what an interrupted call had is not asked
    again, and several processes deal the prompts out.

    Args:
        on: the model, in evaluation mode, with its processor.
        scorer: of the model's texts.
        prompts: with images.
        asked: of every prompt what is scored behind it.
        name, find: as of `Scorer.answers`; `index` of a path counts the continuations of all prompts.
        length: the most tokens that the model takes.
        report: called with (continuations done, continuations in all).

    Raises:
        DataError: the processor or the model refuses a prompt, or it is longer than the model's context.
    """
    if not prompts:
        return []
    from holdfast.ops.heads import backbone_of

    assert on.processor is not None, "rows with images are refused where there is none"
    processor = on.processor()
    ends = list(itertools.accumulate(map(len, asked)))
    numbers = [range(end - len(held), end) for end, held in zip(ends, asked, strict=True)]

    def paths_of(i: int) -> tuple[Encoded, list[TokenPath]]:
        encoded = encode(prompts[i], processor)
        texts = [(*encoded.ids[: len(encoded.ids) - taken], *ids) for taken, ids in asked[i]]
        longest = max(map(len, texts)) - 1
        if longest > length:
            raise DataError(
                f"{prompts[i].place}: has {longest} tokens with its images, more than the model's context of {length}, "
                f"and an image is never cut. Have the processor make smaller images, or take the row out."
            )
        return encoded, [
            TokenPath(index=number, ids=text[:-1], targets=ids)
            for number, text, (_, ids) in zip(numbers[i], texts, asked[i], strict=True)
        ]

    @functools.cache
    def shares() -> bool:
        """Whether what is asked behind one prompt may stand in one row; tried on the first prompt where it parts."""
        if not scorer.shares or hasattr(backbone_of(on.model), "get_rope_index"):
            return False  # positions of images in three dimensions, which a row that branches would not have
        first = next((i for i in range(len(prompts)) if _parts(prompts[i], asked[i], processor.tokenizer)), None)
        if first is None:
            return True
        encoded, paths = paths_of(first)
        pair = branching_pair(paths, tokens=length)
        assert pair is not None, "texts that part behind a prompt part behind its images"
        token = processor.tokenizer.convert_tokens_to_ids(vision.image_token(processor))
        return branches_stay_apart(scorer, *pair, images=encoded.along, reserved=(token,))

    def question(i: int) -> _Question:
        encoded, paths = paths_of(i)
        within = scorer.window is None or max(len(path.ids) for path in paths) <= scorer.window
        share = within and shares()  # a mask of our own would not respect a sliding window
        together = [sorted(paths, key=lambda path: path.ids)] if share else [[path] for path in paths]
        rows = [row_of(held, encoded.along) for held in together]
        return _Question(prompt=prompts[i], encoded=encoded, rows=rows, shares=share)

    @functools.cache
    def at_once() -> tuple[int, int]:
        """(questions a row, axis of their images), tried on the first two."""
        if len(prompts) < 2:
            return 1, 0
        pair = [question(i) for i in range(2)]
        rows, both = [one.rows[0] for one in pair], [one.encoded for one in pair]
        most = scorer.least // max(len(row.ids) for row in rows)
        if most < 2 or not all(one.shares for one in pair):
            return 1, 0
        axis = next((axis for axis in (0, 1) if questions_stay_apart(scorer, both, rows, axis=axis)), None)
        return (1, 0) if axis is None else (most, axis)

    refused: list[Exception] = []

    def answers_to(group: Sequence[int]) -> list[Any]:
        """Of some questions: in one row where they fit, else, or where that row's answers are not finite, each in rows
        of its own."""
        held, found = [question(i) for i in group], list[tuple[TokenPath, Any]]()
        rows = [row for one in held for row in one.rows]
        joined = None
        if (
            not refused
            and len(held) > 1
            and all(one.shares for one in held)
            and sum(len(row.ids) for row in rows) <= scorer.most
        ):
            joined = beside([one.encoded for one in held], rows, axis=at_once()[1])
        if joined is not None:
            try:
                answers = list((find or scorer.score_row)(joined))
                found = list(zip(joined.paths, answers, strict=True)) if all_finite(answers) else []
            except (ValueError, TypeError, IndexError, RuntimeError) as error:  # out of memory among them
                logger.debug("questions go one by one from here on: %s: %s", type(error).__name__, error)
                refused.append(error)
        for one in () if found else held:
            for row in one.rows:
                with vision.reading_images(functools.partial(str, one.prompt.place)):
                    found += zip(row.paths, scorer.answers_of(row, find), strict=True)
        by_number = {path.index: answer for path, answer in found}
        return [by_number[number] for i in group for number in numbers[i]]

    size = at_once()[0]
    groups = (range(start, min(start + size, len(prompts))) for start in range(0, len(prompts), size))
    batches = (([n for i in group for n in numbers[i]], group) for group in groups)
    flat = on.partial.resumed(name, batches, answers_to, total=ends[-1], report=report)
    return [[flat[number] for number in held] for held in numbers]


@dataclass(frozen=True, kw_only=True)
class _Question:
    prompt: ImagePrompt
    encoded: Encoded
    rows: list[PackedRow]
    """One where what is asked shares it."""
    shares: bool


def _parts(prompt: ImagePrompt, asked: Sequence[Continuation], tokenizer: Any) -> bool:
    """Whether the texts that are asked behind a prompt part before they end, so that a row of them branches."""
    if len(asked) < 2:
        return False
    given = prompt_ids(prompt.text, tokenizer, chat=prompt.chat)
    texts = [(*given[: len(given) - taken], *ids)[:-1] for taken, ids in asked]
    paths = [TokenPath(index=n, ids=text, targets=(0,)) for n, text in enumerate(texts)]
    return branching_pair(paths, tokens=max(map(len, texts))) is not None


def _bytes(image: Mapping[str, Any]) -> bytes:
    content = image.get("bytes")
    return content if content is not None else Path(str(image["path"])).read_bytes()
