"""Rows with images: where the images of a row are, whether they can be read, and where in its text
they belong.

| where | form |
|---|---|
| a column `images` (a list) or `image` (one) | paths, relative to the data file; bytes, with a path or alone |
| `file_name` or `file_names` of a metadata file beside the images (imagefolder) | paths |
| a part of a message | `{"type": "image"}`, filled from the columns in order, or with an `image`, `path` or `url` |

Text has its images where a message has parts of type image, or where it says `<image>`, as LLaVA's
own files do; otherwise before the first user message, as TRL has it. Rows without images stand
among the others with an empty list.

Nothing is decoded ahead of training. Every image is opened once, though, and read to its end, so
that one that is missing, cut short or absurdly large is known by file and row before anything is
trained.
"""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.data.layouts import content_key
from holdfast.data.messages import TEMPLATE_COLUMNS, BadRow, Convert, Row, conversation_of
from holdfast.errors import DataError, first_line
from holdfast.support.environment import quiet_datasets
from holdfast.support.resources import is_out_of_memory

if TYPE_CHECKING:
    import datasets

IMAGES, ROW = "images", "row"
"""Columns of the result: a list of images, and the row's number in the data, from 0."""
COLUMNS = ("images", "image")
FILE_COLUMNS = ("file_name", "file_names")
"""Of metadata files only: elsewhere a file's name is a text like any other."""
MARKER = "<image>"
"""What stands for an image within a conversation's text."""
MOST_PIXELS = 89_478_485
"""Pixels beyond which an image looks like a decompression bomb; Pillow warns there."""
_PLACE = "\U000ffffd"
"""Stands for an image in a text on its way through the layouts' converters: a code point that no
text has."""
_IMAGE_KEYS = ("image", "path", "url", "image_url")
"""Keys of a part of a message that may hold its image."""


def image_columns(columns: Sequence[str], *, metadata: bool = False) -> list[str]:
    """The columns that hold images, by their names.

    Args:
        columns: of the data set.
        metadata: its files are an imagefolder's metadata.
    """
    names = (*COLUMNS, *FILE_COLUMNS) if metadata else COLUMNS
    return [column for column in columns if column.lower() in names]


def is_metadata(files: Sequence[Path] | None) -> bool:
    """Whether files are an imagefolder's metadata."""
    stems = {file.name.split(".")[0].lower() for file in files or ()}
    return stems == {"metadata"}


def undecoded(dataset: datasets.Dataset) -> datasets.Dataset:
    """The data set with its images as bytes and paths instead of pixels."""
    import datasets

    with quiet_datasets(len(dataset)):
        for column in unread_images(dataset, ()):
            stored: Any = datasets.Image(decode=False)
            several = isinstance(dataset.features[column], datasets.List)
            dataset = dataset.cast_column(column, datasets.List(stored) if several else stored)
    return dataset


def unread_images(dataset: datasets.Dataset, columns: Sequence[str]) -> list[str]:
    """Columns that hold images by their kind, under a name that is none of `columns`."""
    import datasets

    names = []
    for name, feature in dataset.features.items():
        stored = feature.feature if isinstance(feature, datasets.List) else feature
        if isinstance(stored, datasets.Image) and name not in columns:
            names.append(name)
    return names


def given_images(row: Row, columns: Sequence[str]) -> list[Any]:
    """The images of a row's columns, as they are written there."""
    images: list[Any] = []
    for column in columns:
        value = row[column]
        if isinstance(value, list):
            images += value
        elif value is not None and value != "":
            images.append(value)
    return images


def holds_images(row: Row, columns: Sequence[str]) -> bool:
    """Whether a row has an image, in a column or in a part of a message."""
    return bool(given_images(row, columns)) or any(map(_has_image_part, _objects_of(row.values())))


def _has_image_part(message: Row) -> bool:
    types = [str(item.get("type", "")) for item in _objects_of([message.get("content")])]
    return any(kind.startswith("image") for kind in types)


def _objects_of(values: Iterable[Any]) -> Iterator[Row]:
    """The objects in those of the values that are lists."""
    for value in values:
        for item in value if isinstance(value, list) else ():
            if isinstance(item, Mapping):
                yield item


def takes_text_only(place: str, columns: Sequence[str]) -> DataError:
    """The refusal of images for a model that has no place for them.

    Args:
        place: file and row.
        columns: those that hold images; empty: they are parts of messages.
    """
    where = f"column '{columns[0]}'" if columns else "parts of messages"
    return DataError(
        f"{place} has images ({where}), but the model reads only text (like every model behind a "
        "server). Choose a vision-language model, such as HuggingFaceTB/SmolVLM-256M-Instruct, or "
        "remove the images."
    )


def image_token(processor: Any) -> str:
    """What a processor takes for an image in a text."""
    token = getattr(processor, "image_token", None) or MARKER
    return str(getattr(token, "content", token))


def image_slot(processor: Any) -> str:
    """What stands in a plain text where an image belongs: the token, between those that the chat
    template puts around it (`<|vision_start|><|image_pad|><|vision_end|>` for Qwen's, which was
    trained with them)."""
    token = image_token(processor)
    if token == MARKER or not getattr(processor, "chat_template", None):
        return token
    before, behind = "Before the image.", "After the image."
    parts = [{"type": "text", "text": before}, {"type": "image"}, {"type": "text", "text": behind}]
    try:
        text = str(
            processor.apply_chat_template([{"role": "user", "content": parts}], tokenize=False)
        )
    except (
        Exception
    ):  # a template that wants other messages says so where messages are written with it
        return token
    between = text.partition(before)[2].partition(behind)[0].strip()
    return between if between.count(token) == 1 else token


def is_of_tokens(name: str, value: Any, shape: Sequence[int]) -> bool:
    """Whether something that a processor gives has a value for each token; what belongs to images
    may have the same shape by accident.

    Args:
        name: what the processor calls it.
        value: a tensor, or something else.
        shape: of the tokens.
    """
    of_images = name.startswith(("pixel_", "image_", "video_"))
    return not of_images and tuple(getattr(value, "shape", ())) == tuple(shape)


def converter_with_images(
    convert: Convert, *, columns: Sequence[str], folders: Sequence[Path], processor: Any
) -> Convert:
    """A converter whose rows have `images` beside what `convert` makes.

    Args:
        convert: of a layout or of templates; it sees a conversation's parts as text.
        columns: those that hold images.
        folders: where relative paths begin.
        processor: says what stands for an image in plain text; `<image>` is written as that.

    Raises (when called):
        BadRow: images and their places do not match, or one cannot be found.
    """
    token, slot = image_token(processor), image_slot(processor)

    def converted(row: Row) -> dict[str, Any]:
        images = given_images(row, columns)
        extras = [name for name in TEMPLATE_COLUMNS if row.get(name)]
        if extras:
            raise BadRow(
                f"a row with images cannot have {' and '.join(extras)}, because these columns are "
                "not passed to the processor"
            )
        brought: list[Any] = []
        marked = {}
        for name, value in row.items():
            if name not in columns:
                marked[name] = _marked(value, brought, bool(images))
        result = convert(marked)
        if conversation_of(result):
            images = _filled(conversation_of(result), brought, images)
            result = _in_parts(result, (token, MARKER))
        else:
            result = _with_slots(result, slot, token, len(images))
        return {**result, IMAGES: [_stored(image, folders) for image in images]}

    return converted


def _with_slots(row: Row, slot: str, token: str, images: int) -> dict[str, Any]:
    """A row of text with the processor's own slots in place of `<image>`.

    Raises:
        BadRow: they are not as many as the images.
    """
    texts = {name: text.replace(MARKER, slot) for name, text in row.items()}
    slots = sum(text.count(token) for text in texts.values())
    if slots != images:
        raise BadRow(f"{_counted(images, 'image')}, but its text says {token} {_times(slots)}")
    return texts


def _in_parts(row: Row, tokens: Sequence[str]) -> dict[str, Any]:
    """A row of messages with their text and images as parts.

    Raises:
        BadRow: a text has one of the tokens, or a completion an image.
    """
    for token in tokens:
        _refuse_spare(token, [message["content"] for message in conversation_of(row)])
    result = {name: list(map(_parts, messages)) for name, messages in row.items()}
    for message in result.get("completion", ()):
        if _has_image_part(message):
            raise BadRow("its completion has an image, but images belong in the prompt")
    return result


def converter_of_text(convert: Convert, image_token: str) -> Convert:
    """A converter for rows without images, for a model that would take a token in them for one.

    Raises (when called):
        BadRow: the row has that token.
    """

    def converted(row: Row) -> dict[str, Any]:
        result = convert(row)
        texts = [value for value in result.values() if isinstance(value, str)]
        contents = [str(message.get("content")) for message in _objects_of(result.values())]
        _refuse_spare(image_token, texts + contents)
        return result

    return converted


def _refuse_spare(token: str, texts: Sequence[str]) -> None:
    spare = sum(text.count(token) for text in texts)
    if spare:
        raise BadRow(
            f"its text has {token} {_times(spare)} without a matching image; give the image in a column "
            f"'{COLUMNS[0]}', or use a message part of type image instead"
        )


@contextlib.contextmanager
def reading_images(place: Callable[[], str]) -> Iterator[None]:
    """What a model has against images, with the rows they are of.

    Args:
        place: file and rows, for the message.

    Raises:
        DataError: the model refuses them; lack of memory is raised as it is.
    """
    try:
        yield
    except (ValueError, TypeError, IndexError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise
        raise DataError(
            f"{place()}: the model cannot read its images: {first_line(error).rstrip('.')}. Check "
            "that the processor in the model's folder belongs to the model "
            "(processor_config.json)."
        ) from error


def check_image(stored: Mapping[str, Any]) -> str | None:
    """Why an image cannot be used, None where it can: it is opened, its size looked at before its
    pixels, and read to its end.

    Args:
        stored: its bytes, or None, and its path.
    """
    from PIL import Image, UnidentifiedImageError

    content, path = stored.get("bytes"), stored.get("path")
    name = os.path.basename(str(path)) if content is not None and path else str(path or "its image")
    try:
        with warnings.catch_warnings():  # Pillow warns of sizes that are refused here
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            opened = Image.open(io.BytesIO(content) if content is not None else str(path))
        with opened as image:
            width, height = image.size
            problem = too_many_pixels(width, height, name)
            if problem is not None:
                return problem
            image.draft("RGB", (1, 1))  # a JPEG's eighth
            image.load()
    except FileNotFoundError:
        return f"no such image: {name}"
    except (IsADirectoryError, PermissionError) as error:
        return f"{name} cannot be read: {error.strerror}"
    except Image.DecompressionBombError as error:
        return f"{name} looks like a decompression bomb ({error}). Make it smaller"
    except UnidentifiedImageError:
        return f"{name} is not an image that Pillow can read"
    except (
        OSError,
        SyntaxError,
        ValueError,
        EOFError,
        IndexError,
    ) as error:  # what damaged files make Pillow raise
        return f"{name} is cut short or damaged ({first_line(error)})"
    return None


def too_many_pixels(width: int, height: int, name: str) -> str | None:
    """Why an image of a size looks like a decompression bomb, None where it is not."""
    if width * height <= MOST_PIXELS:
        return None
    return (
        f"{name} has {width:,} x {height:,} pixels, more than {MOST_PIXELS:,}, which looks like "
        "a decompression bomb. Make it smaller"
    )


def image_files(
    dataset: datasets.Dataset, columns: Sequence[str], folders: Sequence[Path]
) -> list[tuple[Any, ...]]:
    """What the images of a data set depend on beside its rows: each file's path, size and time of
    change, in order; files that are not there are left out."""
    files: list[tuple[Any, ...]] = []
    for row in dataset:
        for image in given_images(row, columns):
            path = image.get("path") if isinstance(image, Mapping) else image
            file = _file_at(path, folders) if isinstance(path, str) else None
            if file is not None:
                stat = file.stat()
                files.append((str(file), stat.st_size, stat.st_mtime_ns))
    return files


def stored_images(
    row: Row, columns: Sequence[str], folders: Sequence[Path]
) -> list[dict[str, Any]]:
    """The images in a row's columns as `datasets.Image` stores them: bytes, or None, and path.

    Raises:
        BadRow: an image that is nowhere.
    """
    return [_stored(image, folders) for image in given_images(row, columns)]


def picture_hashes(row: Row, columns: Sequence[str], folders: Sequence[Path]) -> list[str]:
    """SHA-256 (hexadecimal) of the stored bytes of each image in a row's columns: by these a
    picture is known again.

    Raises:
        BadRow: an image that is nowhere.
    """
    import hashlib

    hashes = []
    for image in stored_images(row, columns, folders):
        content = image["bytes"] or Path(image["path"]).read_bytes()
        hashes.append(hashlib.sha256(content).hexdigest())
    return hashes


def content_of_images(dataset: datasets.Dataset) -> str:
    """SHA-256 (hexadecimal) over the files that the images of prepared rows lie in, in order; those
    within the rows are part of the data's own hash.

    Raises:
        OSError: a file cannot be read.
    """
    import hashlib

    digest = hashlib.sha256()
    for images in undecoded(dataset.select_columns([IMAGES]))[IMAGES]:
        for image in images or ():
            if image["bytes"] is None:
                with open(image["path"], "rb") as file:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


# ------------------------------------------------------------------------------------------ one row


def _marked(value: Any, brought: list[Any], images: bool) -> Any:
    """A column's value; of a conversation, its messages with text for content, in which `_PLACE`
    stands for an image.

    Args:
        value: of any column.
        brought: gets the image that each place brings itself; None where the columns have it.
        images: whether the row has images in columns, so that `<image>` in a text means one of
            them.
    """
    if not isinstance(value, list) or not all(isinstance(message, Mapping) for message in value):
        return value
    return [
        _marked_message(message, number, brought, images) for number, message in enumerate(value, 1)
    ]


def _marked_message(message: Row, number: int, brought: list[Any], images: bool) -> Row:
    key = content_key(message)
    content = message.get(key)
    if isinstance(content, str):
        if not images or MARKER not in content:
            return message
        brought += [None] * content.count(MARKER)
        return {**message, key: content.replace(MARKER, _PLACE)}
    if not isinstance(content, list):
        return message
    text = ""
    for item in content:
        kind = item.get("type") if isinstance(item, Mapping) else None
        if kind == "text" and isinstance(item.get("text"), str):
            text += item["text"]
        elif kind in ("image", "image_url"):
            brought.append(_image_of_part(item))
            text += _PLACE
        else:
            raise BadRow(f"message {number} has a part of type {kind!r}; expected text or image")
    return {**message, key: text}


def _image_of_part(part: Row) -> Any:
    """The image that a part of a message brings itself; None where it stands for one of the
    columns."""
    for key in _IMAGE_KEYS:
        image = part.get(key)
        if image is not None:
            return image["url"] if isinstance(image, Mapping) and "url" in image else image
    return None


def _filled(conversation: list[dict[str, Any]], brought: list[Any], given: list[Any]) -> list[Any]:
    """The images in the order of their places. Places that bring none take those of the columns;
    where a conversation has no places, they come before its first user message.

    Raises:
        BadRow: the numbers differ, or there is no user message.
    """
    if given and not brought:
        first = next((message for message in conversation if message["role"] == "user"), None)
        if first is None:
            raise BadRow("has images, but no user message to put them in")
        first["content"] = _PLACE * len(given) + first["content"]
        return given
    to_fill = brought.count(None)
    if to_fill != len(given):
        raise BadRow(
            f"{_counted(len(given), 'image')}, but its messages have {_counted(to_fill, 'part')} "
            "of type image to fill"
        )
    rest = iter(given)
    return [next(rest) if image is None else image for image in brought]


def _parts(message: dict[str, Any]) -> dict[str, Any]:
    """A message with its text and images as parts."""
    parts: list[dict[str, str]] = []
    for number, text in enumerate(message["content"].split(_PLACE)):
        parts += [{"type": "image"}] if number else []
        parts += [{"type": "text", "text": text}] if text else []
    return {**message, "content": parts}


def _stored(image: Any, folders: Sequence[Path]) -> dict[str, Any]:
    """An image as `datasets.Image` stores it.

    Raises:
        BadRow: it is nowhere, or is no path and no bytes.
    """
    if isinstance(image, bytes):
        return {"bytes": image, "path": None}
    if isinstance(image, Mapping):
        content, path = image.get("bytes"), image.get("path")
        if isinstance(content, bytes):
            return {"bytes": content, "path": path}
        image = path
    if not isinstance(image, str) or not image:
        raise BadRow(f"an image is {type(image).__name__}, expected a path, or bytes")
    if "://" in image or image.startswith("data:"):
        raise BadRow(f"the image {image[:60]} is a URL; save it to a file and give its path")
    file = _file_at(image, folders)
    if file is None:
        looked = ", ".join(map(str, folders)) or str(Path.cwd())
        raise BadRow(f"no such image: {image} (looked in {looked})")
    return {"bytes": None, "path": str(file)}


def _file_at(path: str, folders: Sequence[Path]) -> Path | None:
    """A file by its path, which begins at one of the folders unless it is absolute; None where
    there is none."""
    for folder in folders or (Path.cwd(),):
        file = folder / os.path.expanduser(path)
        if file.is_file():
            return file.absolute()
    return None


def _counted(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times" if number else "nowhere"


def slot_problem(processor: Any, row: Mapping[str, Any]) -> str | None:
    """What a processor's chat template makes wrong of a conversation: another number of slots than
    it has images, or the text of parts left out.

    Args:
        processor: with a chat template.
        row: as `converter_with_images` makes it; plain text is not looked at.
    """
    messages = conversation_of(row)
    if not messages:
        return None
    token = image_token(processor)
    try:
        text = str(processor.apply_chat_template(messages, tokenize=False))
    except Exception as error:  # jinja2's errors have no common base with those of its sandbox
        return f"the chat template cannot write its messages: {first_line(error)}"
    images, lost = 0, ""
    for item in _objects_of([message["content"] for message in messages]):
        if item["type"] == "image":
            images += 1
        elif item["text"].strip() not in text:
            lost = lost or item["text"].strip()
    slots = text.count(token)
    if slots != images:
        written = f"{_counted(slots, 'slot')} ({token}) for {_counted(images, 'image')}"
        return f"the chat template writes {written}. {_OTHER_TEMPLATE}"
    if lost:
        return (
            f"the chat template leaves out the text of a message ({lost[:40]!r}). {_OTHER_TEMPLATE}"
        )
    return None


_OTHER_TEMPLATE = (
    "Use the template that came with the model's processor, or one that writes a slot for each "
    "part of type image (chat_template_path)"
)
