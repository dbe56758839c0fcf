"""From whatever layout the user's rows have to the columns TRL's `SFTTrainer` takes, with every row checked.

`SFTTrainer` decides the format, and whether only completions are learnt, from the FIRST row, and fails far inside
tokenisation on a row that does not match. So the decision is made here, once, in the open (`layouts` has the table),
and all rows are looked at before training starts: a row without a usable prompt, completion, text or conversation is an
error that names the rows, never skipped.

Columns that are not needed are dropped, and counted where the caller asks for it (`unread`). Plain text columns are
only renamed (no copy is made); the rest is rewritten through `Dataset.map` into the datasets cache.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.data import chat_templates, unread, vision
from holdfast.data.layouts import (
    CHAT_LAYOUTS,
    MESSAGE_EXTRAS,
    TEMPLATE_COLUMNS,
    TRAINED_KEYS,
    BadRow,
    Convert,
    Layout,
    Row,
    Templates,
    converter,
    recognise,
    says_what_is_trained,
    template_value,
    template_variables,
    trained_messages,
    with_arguments,
    without_nulls,
)
from holdfast.errors import DataError, did_you_mean
from holdfast.support.environment import quiet_datasets
from holdfast.support.progress import progress

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

__all__ = ["Templates", "detect", "standardise"]

_VERSION = 3
"""Part of the cache key of converted rows; raise it when rows convert differently."""

_SHOWN = 5


def detect(columns: Sequence[str], first_row: Row | None = None) -> str:
    """The layout of a data set: "tokenised", "chat", "prompt_completion", "instruction", "question_answer" or "text".

    Args:
        columns: column names, capitals ignored.
        first_row: a row, to tell layouts apart by the kind of a column.

    Raises:
        DataError: the columns make no known layout; says which would, and how templates map columns.
    """
    return _recognised(columns, first_row).name


def standardise(
    dataset: datasets.Dataset,
    tokenizer: PreTrainedTokenizerBase,
    *,
    templates: Templates | None = None,
    files: Sequence[Path] | None = None,
    read_from: Sequence[Path] | None = None,
    not_read: unread.Counts | None = None,
    one_bos: bool = True,
) -> tuple[datasets.Dataset, str]:
    """Checks every row and gives the data set the columns that `SFTTrainer` takes.

    Args:
        dataset: rows in any known layout, or in any layout at all when `templates` are given. A streamed one
            (`IterableDataset`) is converted and checked while it is read.
        tokenizer: only asked whether it has a chat template; or the processor of a vision-language model, with which
            rows may hold images (see `data.vision`).
        templates: how to make text out of columns; goes before any recognised layout.
        files: the local files the rows came from (`sources.data_files`), so that messages can name file and line. Only
            right when `dataset` is all of their rows.
        read_from: the same files where `dataset` may be a part of their rows; None: `files`. Images are looked for
            beside them.
        not_read: gets what is in the rows and not in the result, with the number of rows (see `data.unread`).
        one_bos: text that begins with the token that the tokenizer itself puts before texts loses it.

    Returns:
        (the data set, the layout found). Its columns are `text`; or `messages`; or `prompt` and `completion` (both text
        or both lists of messages); or `input_ids` and, where given, `labels`. Where rows hold images, `images` and
        `row` stand beside them, and messages have their content in parts. Where messages say which of them are
        trained (`train`, `weight`), `input_ids` and `labels` stand beside `messages`. What a chat template reads
        beside messages (`layouts.TEMPLATE_COLUMNS`) is kept. Row i comes from row i. Templates give "text" or
        "prompt_completion".

    Raises:
        DataError: no rows, no known layout, a template over a missing column, rows that cannot be used (the first five
            and their number), or conversations with a tokenizer that has no chat template.
    """
    import datasets

    streamed = isinstance(dataset, datasets.IterableDataset)
    first = _first_row(dataset, files)
    read_from = files if read_from is None else read_from
    if not streamed:
        dataset = vision.undecoded(dataset)
        first = dataset[0]
    columns = list(first) if streamed else dataset.column_names
    seen = vision.image_columns(columns, metadata=vision.is_metadata(read_from))
    sees = hasattr(tokenizer, "image_processor")
    if not streamed and (unread := vision.unread_images(dataset, seen)):
        raise DataError(
            f"{_named(files)}column '{unread[0]}' holds images, which are read from '{vision.COLUMNS[0]}' or "
            f"'{vision.COLUMNS[1]}'. Rename it, or remove it."
        )
    if seen or sees:
        images = _first_with_images([first] if streamed else dataset, seen)
        if images is not None and (streamed or not sees):
            raise _no_images_here(images, seen, files, streamed=streamed)
        if images is not None:
            return _with_images(
                dataset, tokenizer, seen, templates=templates, files=files, read_from=read_from, not_read=not_read
            )
    columns = [column for column in columns if column not in seen]
    has_template = bool(getattr(tokenizer, "chat_template", None))
    kept: list[str] = []
    form, known = None, None
    if templates is not None:
        name, layout, convert = templates.layout, None, templates.converter(columns)
        _count_unread(not_read, dataset, columns, templates.columns, files)
    else:
        layout = _recognised(columns, first, files)
        name, messages = layout.name, _holds_messages(dataset, layout)
        if messages and not has_template:
            raise DataError(*_NO_CHAT_TEMPLATE)
        chat = messages or (has_template and name in _INTO_MESSAGES)
        layout = layout if chat else layout.as_text()
        kept = [column for column in columns if chat and column in TEMPLATE_COLUMNS]
        by_message = name == "chat" and not streamed and getattr(tokenizer, "is_fast", False)
        _count_unread(not_read, dataset, columns, layout, files, messages=messages, kept=kept, heeded=by_message)
        if not streamed:
            layout = _without_full_masks(dataset, layout)
        convert = converter(layout, chat_template=has_template, messages=messages)
        if messages and (streamed or any(_varies(dataset.features[c]) for c in layout.columns.values())):
            form = chat_templates.argument_form(tokenizer)
        convert = _as_written(dataset, convert, kept=kept, form=form)
        if by_message and _messages_say_what_is_trained(dataset, layout.columns["messages"]):
            convert = _converter_to_tokens(convert, layout.columns["messages"], tokenizer)
            known = (tokenizer.chat_template, tokenizer.backend_tokenizer.to_str())
    token = vision.image_token(tokenizer) if sees and name != "tokenised" else None
    if token is not None:
        convert = vision.converter_of_text(convert, token)
    bos = chat_templates.added_bos(tokenizer) if one_bos and name in _TEXTS else None
    if bos is not None:
        convert = _converter_with_one_bos(convert, bos)
    if streamed:
        return _convert_stream(dataset, convert, columns), name
    twice = _beginning_with(dataset, layout, bos) if layout is not None and _only_renames(dataset, layout) else 0
    if twice and not_read is not None:
        not_read[f"a second {bos} at the beginning"] = twice
    if layout is not None and _only_renames(dataset, layout) and not twice:
        _check_texts(dataset, layout, convert, files, never=token)
        return _renamed(dataset, layout), name
    features = _features(dataset, name, layout, kept, has_template)
    if known is not None:
        features.update(dict.fromkeys(("input_ids", "labels"), datasets.List(datasets.Value("int64"))))
    # Beyond the first two, chat layouts are the user's, whose roles decide too.
    decides = (layout, templates, has_template, token, form, bos, known, *kept, *CHAT_LAYOUTS[2:])
    return _mapped(dataset, convert, name=name, features=features, decides=decides, files=files), name


def _first_row(dataset: Any, files: Sequence[Path] | None) -> Any:
    first = next(iter(dataset), None)
    if first is None:
        raise DataError(f"{_named(files)}The data set holds no rows; expected at least one.")
    return first


_INTO_MESSAGES = ("instruction", "question_answer")
"""Layouts of text that become messages where there is a chat template."""
_TEXTS = ("text", "prompt_completion", "instruction", "question_answer")


def _count_unread(
    not_read: unread.Counts | None,
    dataset: Any,
    columns: Sequence[str],
    layout: Layout | Sequence[str],
    files: Sequence[Path] | None,
    *,
    messages: bool = False,
    kept: Sequence[str] = (),
    heeded: bool = False,
) -> None:
    """Counts what a layout, or templates of some columns, leave unread.

    Raises:
        DataError: most of the text of questions and answers.
    """
    used = set(layout) if not isinstance(layout, Layout) else {*layout.columns.values(), *layout.beside.values(), *kept}
    others = [column for column in columns if column not in used]
    if isinstance(layout, Layout) and layout.name == "question_answer" and others:
        share = unread.share_of_text(dataset, others, list(used))
        if share > 0.5:
            raise DataError(
                f"{_named(files)}{share:.0%} of the text of these rows stands in columns that the layout question + "
                f"answer does not read: {', '.join(others)}. Say which columns make the prompt, for example",
                "  data:",
                f'    prompt: "{{{others[0]}}}\\n\\nQuestion: {{{layout.columns["question"]}}}\\nAnswer:"',
                f'    completion: " {{{layout.columns["answer"]}}}"',
            )
    if not_read is None:
        return
    not_read.update(unread.columns_with_values(dataset, others))
    if messages and isinstance(layout, Layout):
        columns, system = list(layout.columns.values()), layout.beside.get("system")
        not_read.update(unread.keys_of_messages(dataset, columns, system, heeded=heeded))


def _without_full_masks(dataset: datasets.Dataset, layout: Layout) -> Layout:
    """The layout without its masks where they are 1 throughout: such rows need not be written anew."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if layout.name != "tokenised" or not layout.beside:
        return layout
    ids, masks = layout.columns["input_ids"], list(layout.beside.values())
    for table in dataset.select_columns([ids, *masks]).with_format("arrow").iter(batch_size=10_000):
        for mask in masks:
            values = table.column(mask)
            if not pa.types.is_list(values.type) or values.null_count:
                return layout
            flags = pc.list_flatten(values)
            full = flags.null_count == 0 and pc.all(flags.cast(pa.bool_())).as_py()
            if not full or not pc.list_value_length(values).equals(pc.list_value_length(table.column(ids))):
                return layout
    return Layout(name=layout.name, columns=layout.columns)


def _as_written(dataset: Any, convert: Convert, *, kept: Sequence[str], form: Any) -> Convert:
    """A converter that also gives what a chat template reads beside messages, without the nulls with which Arrow fills
    objects, and with the arguments of calls in the form that the template takes."""
    filled = [name for name, feature in (dataset.features or {}).items() if _is_filled(feature)]
    if not kept and not filled and form is None:
        return convert

    def one(row: Row) -> dict[str, Any]:
        row = {**row, **{column: without_nulls(row[column]) for column in filled}}
        made = {**convert(row), **{column: template_value(row, column) for column in kept}}
        if form is not None:
            for part in ("messages", "prompt", "completion"):
                if part in made:
                    made[part] = with_arguments(made[part], form)
        return made

    return one


def _messages_say_what_is_trained(dataset: datasets.Dataset, column: str) -> bool:
    import datasets

    feature = dataset.features[column]
    keys = feature.feature if isinstance(feature, datasets.List) and isinstance(feature.feature, dict) else TRAINED_KEYS
    if not set(TRAINED_KEYS) & set(keys):
        return False
    return any(says_what_is_trained(row[column]) for row in dataset.select_columns([column]))


def _converter_to_tokens(convert: Convert, column: str, tokenizer: Any) -> Convert:
    """A converter whose conversations stand beside their tokens, with labels at the messages that are to be trained."""

    def one(row: Row) -> dict[str, Any]:
        made = convert(row)
        trained = trained_messages(row[column], made["messages"])
        tokens = chat_templates.tokens_of_messages(made["messages"], trained, tokenizer, **template_variables(made))
        return {**made, **tokens}

    return one


def _is_filled(feature: Any) -> bool:
    """Whether Arrow has given objects stored under this feature the keys of all of them."""
    import datasets

    lists = (datasets.List, datasets.LargeList)
    return isinstance(feature, dict) or (isinstance(feature, lists) and _is_filled(feature.feature))


def _converter_with_one_bos(convert: Convert, bos: str) -> Convert:
    def one(row: Row) -> dict[str, Any]:
        made = convert(row)
        for part in ("text", "prompt"):
            if isinstance(made.get(part), str):
                made[part] = made[part].removeprefix(bos)
        return made

    return one


def _beginning_with(dataset: datasets.Dataset, layout: Layout, bos: str | None) -> int:
    """How many texts of a data set begin with the token that the tokenizer adds."""
    import pyarrow.compute as pc

    if bos is None:
        return 0
    column = layout.columns.get("text") or layout.columns["prompt"]
    tables = dataset.select_columns([column]).with_format("arrow").iter(batch_size=10_000)
    return sum(pc.sum(pc.starts_with(table.column(0), bos)).as_py() or 0 for table in tables)


def _first_with_images(rows: Any, columns: Sequence[str]) -> int | None:
    return next((number for number, row in enumerate(rows) if vision.holds_images(row, columns)), None)


def _no_images_here(row: int, columns: Sequence[str], files: Sequence[Path] | None, *, streamed: bool) -> DataError:
    place = _places(files, [row])[0]
    if streamed:
        where = f"column '{columns[0]}'" if columns else "parts of messages"
        return DataError(
            f"{place} holds images ({where}), which cannot be looked at while they are streamed. Leave out streaming."
        )
    return vision.takes_text_only(place, columns)


def _with_images(
    dataset: datasets.Dataset,
    processor: Any,
    seen: Sequence[str],
    *,
    templates: Templates | None,
    files: Sequence[Path] | None,
    read_from: Sequence[Path] | None,
    not_read: unread.Counts | None,
) -> tuple[datasets.Dataset, str]:
    """`standardise` of rows with images."""
    import datasets

    columns = [column for column in dataset.column_names if column not in seen]
    has_template = bool(getattr(processor, "chat_template", None))
    layout = None
    if templates is not None:
        name, convert = templates.layout, templates.converter(columns)
        _count_unread(not_read, dataset, columns, templates.columns, files)
    else:
        layout = _recognised(columns, {column: dataset[0][column] for column in columns}, files)
        name, messages = layout.name, _holds_messages(dataset, layout)
        if name == "tokenised":
            raise DataError(
                f"{_named(files)}rows with images cannot be tokenised beforehand: the processor writes a token for "
                f"each part of an image. Give their text or messages."
            )
        if messages and not has_template:
            raise DataError(*_NO_CHAT_TEMPLATE)
        if not messages and not (has_template and name in _INTO_MESSAGES):
            layout = layout.as_text()
        tables = [column for column in columns if column in TEMPLATE_COLUMNS]  # refused beside images
        _count_unread(not_read, dataset, columns, layout, files, messages=messages, kept=tables)
        convert = converter(layout, chat_template=has_template, messages=messages)
    folders = list(dict.fromkeys(file.absolute().parent for file in read_from or ()))
    convert = vision.converter_with_images(convert, columns=seen, folders=folders, processor=processor)

    def checked(row: Row) -> dict[str, Any]:
        made = convert(row)
        for image in made[vision.IMAGES]:
            if (problem := vision.check_image(image)) is not None:
                raise BadRow(problem)
        if (problem := vision.slot_problem(processor, made)) is not None:
            raise BadRow(problem)
        return made

    conversations = layout is not None and (name == "chat" or (name != "text" and (messages or name not in _PAIRS)))
    conversations = conversations and (has_template or messages)
    text: Any = datasets.Json() if conversations else datasets.Value("string")
    parts = {"chat": ("messages",), "text": ("text",)}.get(name, ("prompt", "completion"))
    features = datasets.Features(
        {**dict.fromkeys(parts, text), vision.IMAGES: datasets.List(datasets.Image(decode=False))}
    )
    template = str(getattr(processor, "chat_template", None))
    decides = (layout, templates, template, vision.image_token(processor), vision.image_files(dataset, seen, folders))
    made = _mapped(dataset, checked, name=name, features=features, decides=decides, files=files)
    made = made.add_column(vision.ROW, _numbers(dataset), new_fingerprint=f"{made._fingerprint[:24]}numbered")
    return made.cast_column(vision.IMAGES, datasets.List(datasets.Image())), name


def _numbers(dataset: datasets.Dataset) -> list[int]:
    """Of each row, its number in the file, from 0: where a part was held out or the order changed, not its place."""
    indices = dataset._indices
    return list(range(len(dataset))) if indices is None else indices.column(0).to_pylist()


_PAIRS = ("prompt_completion",)
"""Layouts that stay text where their rows are text."""

_NO_CHAT_TEMPLATE = (
    "The data holds conversations (lists of messages), but the tokenizer has no chat template, so there is no way to "
    "write them as text. "
    "Expected a tokenizer with a chat template: choose the instruct version of the model, or name a template with",
    "  chat_template_path: HuggingFaceTB/SmolLM3-3B    # a model whose template to take, or a local .jinja file",
    "(on the command line: --chat_template_path FILE). Data with prompt and completion as plain text needs "
    "no template.",
)

_LAYOUTS_THAT_WORK = """\
  text                               (or content, body, document)
  messages                           (role and content; or conversations with from and value)
  prompt + completion                (or response, answer, output)
  instruction [+ input] + output     (or context; response)
  question + answer
  input_ids [+ labels]
Or say how to use the columns that are there, for example"""


def _named(files: Sequence[Path] | None) -> str:
    """The files that rows came from, for the beginning of a message."""
    more = f" and {len(files) - 1} more" if files and len(files) > 1 else ""
    return f"{files[0]}{more}: " if files else ""


def _recognised(columns: Sequence[str], first_row: Row | None, files: Sequence[Path] | None = None) -> Layout:
    layout = recognise(columns, first_row)
    if layout is not None:
        return layout
    known = ("text", "messages", "prompt", "completion", "instruction", "output", "question", "answer", "input_ids")
    hints = [f"'{c}':{did_you_mean(c, known)}" for c in columns if c not in known and did_you_mean(c, known)]
    examples = [*columns, *columns, "question", "answer"][:2] if columns else ["question", "answer"]
    raise DataError(
        f"{_named(files)}The columns {', '.join(columns) or '(none)'} make no layout that can be trained "
        f"on.{' ' + ' '.join(hints) if hints else ''} "
        "Expected one of:",
        *_LAYOUTS_THAT_WORK.split("\n"),
        "  data:",
        f'    prompt: "{{{examples[0]}}}"',
        f'    completion: " {{{examples[1]}}}"',
    )


def _holds_messages(dataset: Any, layout: Layout) -> bool:
    """Whether rows are conversations: always in "chat", in "prompt_completion" if the first prompt that is there is a
    list."""
    if layout.name != "prompt_completion":
        return layout.name == "chat"
    prompt = layout.columns["prompt"]
    return isinstance(next((row[prompt] for row in dataset if row[prompt] is not None), None), list)


# ------------------------------------------------------------------------------------------------ text: rename, no copy


def _only_renames(dataset: datasets.Dataset, layout: Layout) -> bool:
    """Whether the layout's columns already hold what TRL takes, so that renaming them is enough."""
    import datasets

    if layout.beside:
        return False
    if layout.name == "text" or layout.name == "prompt_completion":
        text = (datasets.Value("string"), datasets.Value("large_string"))
        return all(dataset.features[column] in text for column in layout.columns.values())
    if layout.name == "tokenised":
        whole = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")
        features = [dataset.features[column] for column in layout.columns.values()]
        return all(isinstance(f, datasets.List) and getattr(f.feature, "dtype", None) in whole for f in features)
    return False


def _renamed(dataset: datasets.Dataset, layout: Layout) -> datasets.Dataset:
    columns = {user: ours for ours, user in layout.columns.items()}
    if list(columns) != dataset.column_names:
        dataset = dataset.select_columns(list(columns))
    changed = {user: ours for user, ours in columns.items() if user != ours}
    return dataset.rename_columns(changed) if changed else dataset


def _check_texts(
    dataset: datasets.Dataset, layout: Layout, convert: Convert, files: Sequence[Path] | None, *, never: str | None
) -> None:
    """Finds unusable rows by column arithmetic, those with the text `never` among them; only they are looked at one by
    one."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    bad: list[int] = []
    columns = list(layout.columns.values())
    arrow = dataset.select_columns(columns).with_format("arrow")
    start = 0
    with progress("Checking rows", total=len(dataset)) as advance:
        for table in arrow.iter(batch_size=10_000):
            wrong = pa.array([False] * table.num_rows)
            lengths = []
            for column in columns:
                values = table.column(column).combine_chunks()
                if layout.name == "tokenised":
                    size = pc.fill_null(pc.list_value_length(values), 0)
                    lengths.append(size)
                    flat_nulls = values.flatten().null_count
                    wrong = pc.or_(wrong, pc.equal(size, 0))
                    if flat_nulls:
                        wrong = pc.or_(wrong, pa.array([v is not None and None in v for v in values.to_pylist()]))
                else:
                    wrong = pc.or_(wrong, pc.fill_null(pc.equal(pc.utf8_trim_whitespace(values), ""), True))
                    if never is not None:
                        wrong = pc.or_(wrong, pc.fill_null(pc.match_substring(values, never), True))
            if len(lengths) == 2:
                wrong = pc.or_(wrong, pc.not_equal(*lengths))
            bad += (np.flatnonzero(wrong.to_numpy(zero_copy_only=False)) + start).tolist()
            start += table.num_rows
            advance(table.num_rows)
    if bad:
        reasons = [(row, _reason(convert, dataset[row]) or "is empty") for row in bad[:_SHOWN]]
        raise bad_rows(reasons, len(bad), len(dataset), layout.name, files)


# ---------------------------------------------------------------------------------------------------- the rest: convert


def _mapped(
    dataset: datasets.Dataset,
    convert: Convert,
    *,
    name: str,
    features: datasets.Features,
    decides: tuple[Any, ...],
    files: Sequence[Path] | None,
) -> datasets.Dataset:
    """Every row converted, kept in the datasets cache; `decides`: what the result depends on beside the rows."""
    # Our own fingerprint: it spares hashing a closure, and states what the result depends on.
    stated = repr((_VERSION, dataset._fingerprint, name, *decides))
    fingerprint = hashlib.sha256(stated.encode()).hexdigest()[:32]

    with progress("Preparing examples", total=len(dataset)) as advance, quiet_datasets():

        def batch(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
            count = len(next(iter(rows.values())))
            out = [convert({column: values[i] for column, values in rows.items()}) for i in range(count)]
            advance(count)
            return {key: [row[key] for row in out] for key in out[0]}

        try:
            return dataset.map(
                batch,
                batched=True,
                remove_columns=dataset.column_names,
                features=features,
                new_fingerprint=fingerprint,
            )
        except BadRow:
            pass
    bad: list[tuple[int, str]] = []
    count = 0
    with progress("Looking for unusable rows", total=len(dataset)) as advance:
        for index, row in enumerate(dataset):
            reason = _reason(convert, row)
            if reason is not None:
                count += 1
                if len(bad) < _SHOWN:
                    bad.append((index, reason))
            advance(1)
    assert bad, "a row failed in map but not on its own"
    raise bad_rows(bad, count, len(dataset), name, files)


def _convert_stream(dataset: Any, convert: Convert, dropped: Sequence[str]) -> Any:
    def one(row: Row, index: int) -> dict[str, Any]:
        try:
            return convert(row)
        except BadRow as error:
            raise DataError(f"Row {index + 1} cannot be used: {error}. Correct or remove it.") from None

    return dataset.map(one, with_indices=True, remove_columns=list(dropped))


def _features(
    dataset: datasets.Dataset, name: str, layout: Layout | None, kept: Sequence[str], has_template: bool
) -> Any:
    """Columns of the result. Messages with more than role and content vary from one to the next, which only
    `datasets.Json` can hold."""
    import datasets

    text = datasets.Value("string")
    if name == "tokenised":
        parts = ("input_ids", "labels") if layout and layout.beside else layout.columns if layout else ()
        made: dict[str, Any] = dict.fromkeys(parts, datasets.List(datasets.Value("int64")))
    elif layout is None or name == "text":  # templates, and text that was not stored as text
        made = dict.fromkeys(("text",) if name == "text" else ("prompt", "completion"), text)
    else:
        varied = any(_varies(dataset.features[column]) for column in layout.columns.values())
        messages = datasets.Json() if varied else datasets.List({"role": text, "content": text})
        if name == "chat":
            made = {"messages": messages}
        elif name == "prompt_completion":
            made = dict.fromkeys(("prompt", "completion"), messages if _holds_messages(dataset, layout) else text)
        else:
            turn = datasets.List({"role": text, "content": text})
            made = dict.fromkeys(("prompt", "completion"), turn if has_template else text)
    beside: dict[str, Any] = {column: datasets.Json() for column in kept}
    if "tools" in kept and getattr(dataset.features["tools"], "dtype", None) == "string":
        beside["tools"] = text
    return datasets.Features({**beside, **made})


def _varies(feature: Any) -> bool:
    """Whether messages stored under this feature may hold more than a role and a content."""
    import datasets

    if isinstance(feature, (datasets.List, datasets.LargeList)):
        return _varies(feature.feature)
    return isinstance(feature, datasets.Json) or (
        isinstance(feature, dict) and any(key in feature for key in MESSAGE_EXTRAS)
    )


def _reason(convert: Convert, row: Row) -> str | None:
    try:
        convert(row)
    except BadRow as error:
        return str(error)
    return None


def bad_rows(
    bad: Sequence[tuple[int, str]], count: int, total: int, name: str, files: Sequence[Path] | None
) -> DataError:
    """The error for rows that cannot be used; `bad` holds the first of `count` with their reasons."""
    places = _places(files, [row for row, _ in bad])
    lines = [f"  {place}: {reason}" for place, (_, reason) in zip(places, bad, strict=True)]
    if count > len(bad):
        lines.append(f"  and {count - len(bad)} more")
    counted = "" if files else " (rows counted from 1; of a JSON Lines file, its non-blank lines)"
    title = f"{count} of {total} rows cannot be used as {name}{counted}:"
    return DataError(title, *lines, "Correct or remove them.")


def _places(files: Sequence[Path] | None, rows: Sequence[int]) -> list[str]:
    """Where rows are, by file and line where the files are known."""
    if not files:
        return [f"row {row + 1}" for row in rows]
    from holdfast.data.sources import locate_rows

    return locate_rows(files, rows)


def rows_by_name(
    tokenizer: Any, *, say: Callable[[str], None] | None = None
) -> Callable[[str], tuple[datasets.Dataset, str]]:
    """A loader for data that methods name (replay): any source, standard columns, no templates of the training data.

    Args:
        tokenizer: as in `standardise`.
        say: gets a sentence on what is not read of the rows.
    """

    def load(name: str) -> tuple[datasets.Dataset, str]:
        from holdfast.data.sources import data_files, is_path, load_rows

        counts: unread.Counts = {}
        files = data_files(name) if is_path(name) else None
        rows, layout = standardise(load_rows(name), tokenizer, files=files, not_read=counts)
        if say is not None and counts:
            say(unread.sentence(counts, name))
        return rows, layout

    return load
