"""From whatever layout the user's rows have to the columns TRL's `SFTTrainer` takes, with every row
checked.

`SFTTrainer` decides the format, and whether only completions are learnt, from the FIRST row, and
fails far inside tokenisation on a row that does not match. So the decision is made here, once, in
the open (`layouts` has the table), and all rows are looked at before training starts: a row without
a usable prompt, completion, text or conversation is an error that names the rows, never skipped.

Columns that are not needed are dropped, and counted where the caller asks for it (`unread`). Plain
text columns are only renamed (no copy is made); the rest is rewritten through `Dataset.map` into
the datasets cache.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.data import chat_templates, unread, vision
from holdfast.data.layouts import (
    LAYOUTS,
    MESSAGE_FIELDS,
    Layout,
    Messages,
    Templates,
    recognise,
    role_keys,
)
from holdfast.data.messages import (
    CALL_ROLE,
    MESSAGE_EXTRAS,
    TEMPLATE_COLUMNS,
    TRAINED_KEYS,
    BadRow,
    Convert,
    Row,
    says_what_is_trained,
    template_value,
    with_arguments,
    without_nulls,
)
from holdfast.data.sources import data_files, is_path, load_rows, locate_rows
from holdfast.data.trained_turns import TrainedTurns
from holdfast.errors import DataError, did_you_mean
from holdfast.support.environment import quiet_datasets
from holdfast.support.progress import progress

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

__all__ = ["Templates", "bad_rows", "detect", "rows_by_name", "standardise"]

_VERSION = 4
"""Part of the cache key of converted rows; raise it when rows convert differently."""

_SHOWN = 5
_AT_ONCE = 10_000
"""Rows that are looked at as arrays."""


def detect(columns: Sequence[str], first_row: Row | None = None) -> str:
    """The layout of a data set: "tokenised", "chat", "prompt_completion", "instruction",
    "question_answer" or "text".

    Args:
        columns: column names, capitals ignored.
        first_row: a row, to tell layouts apart by the kind of a column.

    Raises:
        DataError: the columns make no known layout; says which would, and how templates map
            columns.
    """
    return _recognised(columns, first_row, None)[0].name


def standardise(
    dataset: datasets.Dataset,
    tokenizer: PreTrainedTokenizerBase,
    *,
    templates: Templates | None = None,
    files: Sequence[Path] | None = None,
    read_from: Sequence[Path] | None = None,
    not_read: unread.Counts | None = None,
    one_bos: bool = True,
    turns: TrainedTurns | None = None,
) -> tuple[datasets.Dataset, str]:
    """Checks every row and gives the data set the columns that `SFTTrainer` takes.

    Args:
        dataset: rows in any known layout, or in any layout at all when `templates` are given. A
            streamed one (`IterableDataset`) is converted and checked while it is read.
        tokenizer: only asked whether it has a chat template; or the processor of a vision-language
            model, with which rows may hold images (see `data.vision`).
        templates: how to make text out of columns; goes before any recognised layout.
        files: the local files the rows came from (`sources.data_files`), so that messages can name
            file and line. Only right when `dataset` is all of their rows.
        read_from: the same files where `dataset` may be a part of their rows; None: `files`. Images
            are looked for beside them.
        not_read: gets what is in the rows and not in the result, with the number of rows (see
            `data.unread`).
        one_bos: text that begins with the token that the tokenizer itself puts before texts loses
            it.
        turns: which messages of conversations are trained. None: those that say so where any does,
            else TRL decides. Rows with images and streamed rows stay as they are.

    Returns:
        (the data set, the layout found). Its columns are `text`; or `messages`; or `prompt` and
        `completion` (both text or both lists of messages); or `input_ids` and, where given,
        `labels`. Where rows hold images, `images` and `row` stand beside them, and messages have
        their content in parts. Where messages say which of them are trained (`train`, `weight`),
        and with `turns`, `input_ids` and `labels` stand beside them. What a chat template reads beside messages
        (`messages.TEMPLATE_COLUMNS`) is kept. Row i comes from row i. Templates give "text" or
        "prompt_completion".

    Raises:
        DataError: no rows, no known layout, a template over a missing column, rows that cannot be
            used (the first five and their number), or conversations with a tokenizer that has no
            chat template.
    """
    rows = _source(dataset, tokenizer, files, files if read_from is None else read_from)
    with_images = _holds_images(rows)
    plan = _plan(rows, templates, with_images=with_images)
    _refuse_lost_text(rows, plan)
    heeded = not with_images and _may_say_what_is_trained(rows, plan)
    heeded = heeded and (turns is None or turns.which in (None, "per_message"))
    if not_read is not None:
        _count_unread(not_read, rows, plan, heeded=heeded)
    if with_images:
        return _with_images(rows, plan), plan.layout.name
    if not rows.streamed:
        plan = _without_full_masks(rows, plan)
    return _as_text_or_messages(
        rows, plan, not_read, heeded=heeded, one_bos=one_bos, turns=turns
    ), plan.layout.name


# ------------------------------------------------------------------------------- what is to be read


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Source:
    """Rows as the user has them."""

    dataset: Any
    tokenizer: Any
    """A tokenizer or a processor."""
    files: Sequence[Path] | None
    """The local files that these rows are all the rows of, for messages."""
    read_from: Sequence[Path]
    """The same files, also if only a part of their rows is here. Images lie beside them."""
    first: Row
    columns: list[str]
    """All columns except those with images."""
    image_columns: list[str]
    streamed: bool

    @property
    def sees(self) -> bool:
        """Whether the model takes images."""
        return hasattr(self.tokenizer, "image_processor")

    @property
    def has_chat_template(self) -> bool:
        """Whether there is a way to write conversations as text."""
        return bool(getattr(self.tokenizer, "chat_template", None))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Plan:
    """How rows are read."""

    layout: Layout
    fields: dict[str, str]
    """The user's columns that are read, by the fields of the layout; of templates, by their own
    names."""
    convert: Convert
    templates: Templates | None = None
    as_messages: bool = False
    """Whether the rows become messages."""
    beside: list[str] = dataclasses.field(default_factory=list)
    """Columns that a chat template reads beside messages."""

    @property
    def message_columns(self) -> list[str]:
        """The user's columns that hold messages."""
        if not self.as_messages:
            return []
        return [self.fields[field] for field in self.layout.result if field in self.fields]


def _source(
    dataset: Any, tokenizer: Any, files: Sequence[Path] | None, read_from: Sequence[Path] | None
) -> _Source:
    """
    Raises:
        DataError: there are no rows.
    """
    import datasets

    first = next(iter(dataset), None)
    if first is None:
        raise DataError(
            f"{_files_named(files)}Expected at least one row in the data set, got none."
        )
    streamed = isinstance(dataset, datasets.IterableDataset)
    if not streamed:
        dataset = vision.undecoded(dataset)
        first = dataset[0]
    columns = list(first) if streamed else dataset.column_names
    image_columns = vision.image_columns(columns, metadata=vision.is_metadata(read_from))
    return _Source(
        dataset=dataset,
        tokenizer=tokenizer,
        files=files,
        read_from=read_from or (),
        first=first,
        columns=[column for column in columns if column not in image_columns],
        image_columns=image_columns,
        streamed=streamed,
    )


def _plan(rows: _Source, templates: Templates | None, *, with_images: bool) -> _Plan:
    """
    Raises:
        DataError: no known layout, a template over a missing column, or messages without a chat
            template.
    """
    if templates is not None:
        fields = {column: column for column in templates.columns}
        convert = templates.converter(rows.columns)
        return _Plan(layout=templates.layout, fields=fields, convert=convert, templates=templates)
    layout, fields = _recognised(rows.columns, rows.first, rows.files)
    if with_images and layout.tokens:
        raise DataError(
            f"{_files_named(rows.files)}rows with images cannot be tokenised in advance, because "
            "the processor writes the tokens of an image. Give text or messages."
        )
    as_messages = _become_messages(rows, layout, fields)
    if as_messages and not rows.has_chat_template:
        raise DataError(*_NO_CHAT_TEMPLATE)
    if not as_messages:
        fields = {field: column for field, column in fields.items() if field not in MESSAGE_FIELDS}
    # beside images, converters refuse them
    beside = [
        column
        for column in rows.columns
        if column in TEMPLATE_COLUMNS and (as_messages or with_images)
    ]
    return _Plan(
        layout=layout,
        fields=fields,
        convert=lambda row: layout.convert(row, fields, as_messages),
        as_messages=as_messages,
        beside=beside,
    )


def _recognised(
    columns: Sequence[str], first_row: Row | None, files: Sequence[Path] | None
) -> tuple[Layout, dict[str, str]]:
    recognised = recognise(columns, first_row)
    if recognised is not None:
        return recognised
    known = [names.names[0] for layout in LAYOUTS for names in layout.columns.values()]
    hints = []
    for column in columns:
        hint = "" if column in known else did_you_mean(column, known)
        if hint:
            hints.append(f" '{column}':{hint}")
    examples = [*columns, *columns, "question", "answer"][:2] if columns else ["question", "answer"]
    raise DataError(
        f"{_files_named(files)}The columns {', '.join(columns) or '(none)'} match no known "
        f"layout.{''.join(hints)} Expected one of:",
        *[f"  {layout.example}" for layout in LAYOUTS],
        "Or map your columns with a template, for example",
        *_templates_shown(f"{{{examples[0]}}}", f" {{{examples[1]}}}"),
    )


def _templates_shown(prompt: str, completion: str) -> list[str]:
    """Lines of a config with templates; line breaks are written as such."""
    return ["  data:", f'    prompt: "{prompt}"', f'    completion: "{completion}"']


def _become_messages(rows: _Source, layout: Layout, fields: dict[str, str]) -> bool:
    if layout.messages is Messages.AS_WRITTEN:
        column = fields[layout.result[0]]
        written = next((row[column] for row in rows.dataset if row[column] is not None), None)
        return isinstance(written, list)
    if layout.messages is Messages.WITH_TEMPLATE:
        return rows.has_chat_template
    return layout.messages is Messages.ALWAYS


_NO_CHAT_TEMPLATE = (
    "The data holds conversations (lists of messages), but the tokenizer has no chat template. "
    "Choose the instruct version of the model, or name a template with",
    "  chat_template_path: HuggingFaceTB/SmolLM3-3B    # a model with a template, or a local "
    ".jinja file",
    "(on the command line: --chat_template_path FILE). Data with prompt and completion as plain "
    "text needs no template.",
)


def _refuse_lost_text(rows: _Source, plan: _Plan) -> None:
    """
    Raises:
        DataError: most of the text stands in columns that the layout does not read.
    """
    others = _columns_not_read(rows, plan)
    if plan.templates is not None or not plan.layout.reads_most or not others:
        return
    share = unread.share_of_text(rows.dataset, others, [*plan.fields.values(), *plan.beside])
    if share <= 0.5:
        return
    question, answer = [plan.fields[field] for field in plan.layout.columns][:2]
    raise DataError(
        f"{_files_named(rows.files)}{share:.0%} of the text of these rows is in columns that the "
        f"layout {plan.layout.example} does not read: {', '.join(others)}. To use them, write a "
        "template for the prompt, for example",
        *_templates_shown(
            f"{{{others[0]}}}\\n\\nQuestion: {{{question}}}\\nAnswer:", f" {{{answer}}}"
        ),
    )


def _columns_not_read(rows: _Source, plan: _Plan) -> list[str]:
    used = {*plan.fields.values(), *plan.beside}
    return [column for column in rows.columns if column not in used]


def _count_unread(not_read: unread.Counts, rows: _Source, plan: _Plan, *, heeded: bool) -> None:
    not_read.update(unread.columns_with_values(rows.dataset, _columns_not_read(rows, plan)))
    if plan.message_columns:
        system = plan.fields.get("system")
        not_read.update(
            unread.keys_of_messages(rows.dataset, plan.message_columns, system, heeded=heeded)
        )


def _without_full_masks(rows: _Source, plan: _Plan) -> _Plan:
    """The plan without masks that are 1 throughout: such rows need not be written anew."""
    masks = {
        field: column for field, column in plan.fields.items() if field not in plan.layout.result
    }
    if not plan.layout.tokens or not masks:
        return plan
    ids = plan.fields["input_ids"]
    tables = (
        rows.dataset.select_columns([ids, *masks.values()])
        .with_format("arrow")
        .iter(batch_size=_AT_ONCE)
    )
    for table in tables:
        if not all(_is_full_mask(table.column(mask), table.column(ids)) for mask in masks.values()):
            return plan
    fields = {field: column for field, column in plan.fields.items() if field not in masks}
    return dataclasses.replace(
        plan, fields=fields, convert=lambda row: plan.layout.convert(row, fields, False)
    )


def _is_full_mask(mask: Any, ids: Any) -> bool:
    """Whether an Arrow column of masks is 1 for each of the ids."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_list(mask.type) or mask.null_count:
        return False
    flags = pc.list_flatten(mask)
    if flags.null_count or not pc.all(flags.cast(pa.bool_())).as_py():
        return False
    return bool(pc.list_value_length(mask).equals(pc.list_value_length(ids)))


# ------------------------------------------------------------------------------ rows without images


def _as_text_or_messages(
    rows: _Source,
    plan: _Plan,
    not_read: unread.Counts | None,
    *,
    heeded: bool,
    one_bos: bool,
    turns: TrainedTurns | None,
) -> Any:
    """The rows in TRL's columns; arguments as of `standardise`."""
    import datasets

    dataset, tokenizer, convert = rows.dataset, rows.tokenizer, plan.convert
    form = known = bos = None
    if plan.message_columns and (rows.streamed or _messages_vary(rows, plan)):
        form = chat_templates.argument_form(tokenizer)
    convert = _converter_as_written(dataset, convert, beside=plan.beside, form=form)
    says = heeded and _messages_say_what_is_trained(dataset, plan.message_columns[0])
    if says and turns is None:
        turns = TrainedTurns()
    if turns is not None and plan.as_messages and not rows.streamed:
        turns = _turns_that_messages_say(rows, turns, says=says)
        convert = turns.converter(convert, tokenizer, plan.message_columns[0] if says else None)
        known = (turns, tokenizer.chat_template, tokenizer.backend_tokenizer.to_str())
    image_token = vision.image_token(tokenizer) if rows.sees and not plan.layout.tokens else None
    if image_token is not None:
        convert = vision.converter_of_text(convert, image_token)
    if one_bos and not plan.as_messages and not plan.layout.tokens:
        bos = chat_templates.added_bos(tokenizer)
        convert = _converter_with_one_bos(convert, bos)
    if rows.streamed:
        return _convert_stream(dataset, convert, rows.columns)
    only_renames = _only_renames(rows, plan)
    twice = _beginning_with(dataset, plan.fields[plan.layout.result[0]], bos) if only_renames else 0
    if twice and not_read is not None:
        not_read[f"a second {bos} at the beginning"] = twice
    if only_renames and not twice:
        _check_columns(rows, plan, convert, never=image_token)
        return _renamed(dataset, plan.fields)
    features = _features(rows, plan)
    if known is not None:
        features.update(
            dict.fromkeys(("input_ids", "labels"), datasets.List(datasets.Value("int64")))
        )
    decides = (*_decides(plan), image_token, form, bos, known)
    mapped = _mapped(rows, convert, name=plan.layout.name, features=features, decides=decides)
    if turns is not None and turns.rewritten == "whole" and known is not None:
        trained_whole = sum(labels[0] != -100 for labels in mapped["labels"])
        if (
            trained_whole and not_read is not None
        ):  # no turn of the assistant begins at the first token
            not_read["the bounds of the assistant's turns, so the whole row is trained"] = (
                trained_whole
            )
    return mapped


def _decides(plan: _Plan) -> tuple[Any, ...]:
    """What converted rows depend on, beside the rows and the tokenizer."""
    from datasets.fingerprint import Hasher

    keys = [layout.keys for layout in LAYOUTS if layout.keys is not None]
    function = Hasher.hash(plan.layout.convert)
    return (
        plan.layout.result,
        function,
        plan.fields,
        plan.as_messages,
        plan.templates,
        plan.beside,
        keys,
    )


def _features(rows: _Source, plan: _Plan) -> datasets.Features:
    """Columns of the result. Messages with more than role and content vary from one to the next,
    which only `datasets.Json` can hold."""
    import datasets

    text = datasets.Value("string")
    names: Sequence[str] = plan.layout.result
    feature: Any = text
    if plan.layout.tokens:
        # without labels or masks there are ids alone
        names = names if len(plan.fields) > 1 else names[:1]
        feature = datasets.List(datasets.Value("int64"))
    elif plan.as_messages:
        vary = _messages_vary(rows, plan)
        feature = datasets.Json() if vary else datasets.List({"role": text, "content": text})
    beside: dict[str, Any] = dict.fromkeys(plan.beside, datasets.Json())
    if "tools" in beside and getattr(rows.dataset.features["tools"], "dtype", None) == "string":
        beside["tools"] = text
    return datasets.Features({**beside, **dict.fromkeys(names, feature)})


def _messages_vary(rows: _Source, plan: _Plan) -> bool:
    """Whether messages may hold more than a role and a content."""
    for column in plan.message_columns:
        if _varies(rows.dataset.features[column]) or _calls_by_role(rows.dataset, column):
            return True
    return False


def _varies(feature: Any) -> bool:
    import datasets

    if isinstance(feature, (datasets.List, datasets.LargeList)):
        return _varies(feature.feature)
    if isinstance(feature, dict):
        return any(key in feature for key in ("function_call", *MESSAGE_EXTRAS))
    return isinstance(feature, datasets.Json)


def _calls_by_role(dataset: datasets.Dataset, column: str) -> bool:
    """Whether a message has the role `function_call`, so that its content becomes a call of a
    tool."""
    import datasets
    import pyarrow.compute as pc

    feature = dataset.features[column]
    keys = (
        feature.feature
        if isinstance(feature, datasets.List) and isinstance(feature.feature, dict)
        else {}
    )
    names = [key for key in keys if key in role_keys() and keys[key] == datasets.Value("string")]
    for table in (
        dataset.select_columns([column]).with_format("arrow").iter(batch_size=_AT_ONCE)
        if names
        else ()
    ):
        messages = pc.list_flatten(table.column(0))
        for name in names:
            if pc.any(pc.equal(pc.utf8_lower(pc.struct_field(messages, name)), CALL_ROLE)).as_py():
                return True
    return False


# ---------------------------------------------------------------------------- converters' additions


def _converter_as_written(
    dataset: Any, convert: Convert, *, beside: Sequence[str], form: Any
) -> Convert:
    """A converter that also gives what a chat template reads beside messages, without the nulls
    with which Arrow fills objects, and with the arguments of calls in the form that the template
    takes."""
    filled = [name for name, feature in (dataset.features or {}).items() if _is_filled(feature)]
    if not beside and not filled and form is None:
        return convert

    def converted(row: Row) -> dict[str, Any]:
        row = {**row, **{column: without_nulls(row[column]) for column in filled}}
        result = convert(row)
        for column in beside:
            result[column] = template_value(row, column)
        if form is not None:
            for column in ("messages", "prompt", "completion"):
                if column in result:
                    result[column] = with_arguments(result[column], form)
        return result

    return converted


def _is_filled(feature: Any) -> bool:
    """Whether Arrow has given objects stored under this feature the keys of all of them."""
    import datasets

    lists = (datasets.List, datasets.LargeList)
    return isinstance(feature, dict) or (isinstance(feature, lists) and _is_filled(feature.feature))


def _may_say_what_is_trained(rows: _Source, plan: _Plan) -> bool:
    """Whether messages are asked which of them are trained: in whole conversations, with a
    tokenizer that says where its tokens begin."""
    conversations = plan.templates is None and plan.layout.messages is Messages.ALWAYS
    return conversations and not rows.streamed and bool(getattr(rows.tokenizer, "is_fast", False))


def _messages_say_what_is_trained(dataset: datasets.Dataset, column: str) -> bool:
    import datasets

    feature = dataset.features[column]
    objects = isinstance(feature, datasets.List) and isinstance(feature.feature, dict)
    if objects and not set(TRAINED_KEYS) & set(feature.feature):
        return False
    return any(says_what_is_trained(row[column]) for row in dataset.select_columns([column]))


def _turns_that_messages_say(rows: _Source, turns: TrainedTurns, *, says: bool) -> TrainedTurns:
    """Where messages say of their own accord which are trained, those are, as they are written.

    Raises:
        DataError: they were to say, and none does.
    """
    if turns.which == "per_message" and not says:
        raise DataError(
            f"{_files_named(rows.files)}train_on: per_message expected conversations (messages) "
            "in which some messages have a train or weight key (train: false, weight: 0), got "
            "none. Use train_on: all or last."
        )
    if says and turns.which is None:
        return dataclasses.replace(turns, which="per_message", rewritten="as_written")
    return turns


def _converter_with_one_bos(convert: Convert, bos: str | None) -> Convert:
    if bos is None:
        return convert

    def converted(row: Row) -> dict[str, Any]:
        result = convert(row)
        for column in ("text", "prompt"):
            if column in result:
                result[column] = result[column].removeprefix(bos)
        return result

    return converted


def _beginning_with(dataset: datasets.Dataset, column: str, bos: str | None) -> int:
    """How many texts of a column begin with the token that the tokenizer adds."""
    import pyarrow.compute as pc

    if bos is None:
        return 0
    count = 0
    for table in dataset.select_columns([column]).with_format("arrow").iter(batch_size=_AT_ONCE):
        count += pc.sum(pc.starts_with(table.column(0), bos)).as_py() or 0
    return count


# --------------------------------------------------------------------------------- rows with images


def _holds_images(rows: _Source) -> bool:
    """
    Raises:
        DataError: images that are not looked for, or that the model or a stream has no place for.
    """
    unexpected = [] if rows.streamed else vision.unread_images(rows.dataset, rows.image_columns)
    if unexpected:
        raise DataError(
            f"{_files_named(rows.files)}column '{unexpected[0]}' holds images, but images are read "
            f"only from the columns '{vision.COLUMNS[0]}' and '{vision.COLUMNS[1]}'. Rename or "
            "remove it."
        )
    if not rows.image_columns and not rows.sees:
        return False
    looked_at = [rows.first] if rows.streamed else rows.dataset
    number = next(
        (n for n, row in enumerate(looked_at) if vision.holds_images(row, rows.image_columns)), None
    )
    if number is None:
        return False
    location = _locations(rows.files, [number])[0]
    if rows.streamed:
        where = f"column '{rows.image_columns[0]}'" if rows.image_columns else "parts of messages"
        raise DataError(
            f"{location} has images ({where}), which cannot be checked in streamed data. Leave out "
            "streaming."
        )
    if not rows.sees:
        raise vision.takes_text_only(location, rows.image_columns)
    return True


def _with_images(rows: _Source, plan: _Plan) -> datasets.Dataset:
    """The rows in TRL's columns with their images, and with their numbers."""
    import datasets

    processor = rows.tokenizer
    folders = list(dict.fromkeys(file.absolute().parent for file in rows.read_from))
    convert = vision.converter_with_images(
        plan.convert, columns=rows.image_columns, folders=folders, processor=processor
    )

    def checked(row: Row) -> dict[str, Any]:
        result = convert(row)
        problems = [vision.check_image(image) for image in result[vision.IMAGES]]
        problems.append(vision.slot_problem(processor, result))
        for problem in problems:
            if problem is not None:
                raise BadRow(problem)
        return result

    feature: Any = datasets.Json() if plan.as_messages else datasets.Value("string")
    images = datasets.List(datasets.Image(decode=False))
    features = datasets.Features(
        {**dict.fromkeys(plan.layout.result, feature), vision.IMAGES: images}
    )
    template = str(getattr(processor, "chat_template", None))
    files = vision.image_files(rows.dataset, rows.image_columns, folders)
    decides = (*_decides(plan), template, vision.image_token(processor), files)
    converted = _mapped(rows, checked, name=plan.layout.name, features=features, decides=decides)
    name = f"{converted._fingerprint[:24]}numbered"
    converted = converted.add_column(vision.ROW, _numbers(rows.dataset), new_fingerprint=name)
    return converted.cast_column(vision.IMAGES, datasets.List(datasets.Image()))


def _numbers(dataset: datasets.Dataset) -> list[int]:
    """Of each row, its number in the file, from 0: where a part was held out or the order changed,
    not its place."""
    indices = dataset._indices
    return list(range(len(dataset))) if indices is None else indices.column(0).to_pylist()


# -------------------------------------------------------------------- columns that are only renamed


def _only_renames(rows: _Source, plan: _Plan) -> bool:
    """Whether the user's columns already hold what TRL takes, so that renaming them is enough."""
    import datasets

    if plan.templates is not None or not set(plan.fields) <= set(plan.layout.result):
        return False
    features = [rows.dataset.features[column] for column in plan.fields.values()]
    if plan.layout.tokens:
        numbers = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")
        return all(
            isinstance(f, datasets.List) and getattr(f.feature, "dtype", None) in numbers
            for f in features
        )
    text = (datasets.Value("string"), datasets.Value("large_string"))
    return not plan.as_messages and all(feature in text for feature in features)


def _renamed(dataset: datasets.Dataset, fields: dict[str, str]) -> datasets.Dataset:
    columns = list(fields.values())
    if columns != dataset.column_names:
        dataset = dataset.select_columns(columns)
    changed = {column: field for field, column in fields.items() if column != field}
    return dataset.rename_columns(changed) if changed else dataset


def _check_columns(rows: _Source, plan: _Plan, convert: Convert, *, never: str | None) -> None:
    """Finds unusable rows by column arithmetic, those with the text `never` among them; only they
    are looked at one by one.

    Raises:
        DataError: there are any.
    """
    import numpy as np

    numbers: list[int] = []
    dataset, start = rows.dataset, 0
    arrow = dataset.select_columns(list(plan.fields.values())).with_format("arrow")
    with progress("Checking rows", total=len(dataset)) as advance:
        for table in arrow.iter(batch_size=_AT_ONCE):
            columns = [column.combine_chunks() for column in table.columns]
            wrong = _wrong_tokens(columns) if plan.layout.tokens else _wrong_texts(columns, never)
            numbers += (np.flatnonzero(wrong.to_numpy(zero_copy_only=False)) + start).tolist()
            start += table.num_rows
            advance(table.num_rows)
    if numbers:
        reasons = [
            (number, _reason(convert, dataset[number]) or "is empty") for number in numbers[:_SHOWN]
        ]
        raise bad_rows(reasons, len(numbers), len(dataset), plan.layout.name, rows.files)


def _wrong_texts(columns: Sequence[Any], never: str | None) -> Any:
    """Of each row, whether a text is null, empty or has `never` in it, as an Arrow array."""
    import pyarrow as pa
    import pyarrow.compute as pc

    wrong = pa.array([False] * len(columns[0]))
    for values in columns:
        wrong = pc.or_(wrong, pc.fill_null(pc.equal(pc.utf8_trim_whitespace(values), ""), True))
        if never is not None:
            wrong = pc.or_(wrong, pc.fill_null(pc.match_substring(values, never), True))
    return wrong


def _wrong_tokens(columns: Sequence[Any]) -> Any:
    """Of each row, whether a list is null, empty, has a null in it or another length than the
    first, as an Arrow array."""
    import pyarrow as pa
    import pyarrow.compute as pc

    lengths = [pc.fill_null(pc.list_value_length(values), 0) for values in columns]
    wrong = pc.equal(lengths[0], 0)
    for values, length in zip(columns, lengths, strict=True):
        wrong = pc.or_(wrong, pc.not_equal(length, lengths[0]))
        if values.flatten().null_count:
            wrong = pc.or_(
                wrong, pa.array([row is not None and None in row for row in values.to_pylist()])
            )
    return wrong


# -------------------------------------------------------------------------------- the rest: convert


def _mapped(
    rows: _Source,
    convert: Convert,
    *,
    name: str,
    features: datasets.Features,
    decides: tuple[Any, ...],
) -> datasets.Dataset:
    """Every row converted, kept in the datasets cache; `decides`: what the result depends on beside
    the rows.

    Raises:
        DataError: rows that cannot be used.
    """
    dataset = rows.dataset
    # Our own fingerprint: it spares hashing a closure, and states what the result depends on.
    stated = repr((_VERSION, dataset._fingerprint, name, *decides))
    fingerprint = hashlib.sha256(stated.encode()).hexdigest()[:32]

    with progress("Preparing examples", total=len(dataset)) as advance, quiet_datasets():

        def batch(columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
            count = len(next(iter(columns.values())))
            converted = []
            for index in range(count):
                converted.append(
                    convert({column: values[index] for column, values in columns.items()})
                )
            advance(count)
            return {column: [row[column] for row in converted] for column in converted[0]}

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
    with progress("Looking for unusable rows", total=len(dataset)) as advance:
        for number, row in enumerate(dataset):
            reason = _reason(convert, row)
            if reason is not None:
                bad.append((number, reason))
            advance(1)
    assert bad, "a row failed in datasets.map, but not when it was converted alone"
    raise bad_rows(bad[:_SHOWN], len(bad), len(dataset), name, rows.files)


def _convert_stream(dataset: Any, convert: Convert, dropped: Sequence[str]) -> Any:
    def converted(row: Row, index: int) -> dict[str, Any]:
        try:
            return convert(row)
        except BadRow as error:
            raise DataError(
                f"Row {index + 1} cannot be used: {error}. Correct or remove it."
            ) from None

    return dataset.map(converted, with_indices=True, remove_columns=list(dropped))


# ----------------------------------------------------------------------------------------- mistakes


def _reason(convert: Convert, row: Row) -> str | None:
    try:
        convert(row)
    except BadRow as error:
        return str(error)
    return None


def bad_rows(
    bad: Sequence[tuple[int, str]], count: int, total: int, name: str, files: Sequence[Path] | None
) -> DataError:
    """The error for rows that cannot be used; `bad` holds the first of `count` with their
    reasons."""
    lines = []
    for location, (_, reason) in zip(
        _locations(files, [number for number, _ in bad]), bad, strict=True
    ):
        lines.append(f"  {location}: {reason}")
    if count > len(bad):
        lines.append(f"  and {count - len(bad)} more")
    counted = "" if files else " (rows counted from 1; of a JSON Lines file, its non-blank lines)"
    title = f"{count} of {total} rows cannot be used as {name}{counted}:"
    return DataError(title, *lines, "Correct or remove them.")


def _locations(files: Sequence[Path] | None, numbers: Sequence[int]) -> list[str]:
    """Where rows are, by file and line where the files are known."""
    return locate_rows(files, numbers) if files else [f"row {number + 1}" for number in numbers]


def _files_named(files: Sequence[Path] | None) -> str:
    """The files that rows came from, for the beginning of a message."""
    more = f" and {len(files) - 1} more" if files and len(files) > 1 else ""
    return f"{files[0]}{more}: " if files else ""


def rows_by_name(
    tokenizer: Any, *, say: Callable[[str], None] | None = None
) -> Callable[[str], tuple[datasets.Dataset, str]]:
    """A loader for data that methods name (replay): any source, standard columns, no templates of
    the training data.

    Args:
        tokenizer: as in `standardise`.
        say: gets a sentence on what is not read of the rows.
    """

    def load(name: str) -> tuple[datasets.Dataset, str]:
        counts: unread.Counts = {}
        files = data_files(name) if is_path(name) else None
        rows, layout = standardise(load_rows(name), tokenizer, files=files, not_read=counts)
        if say is not None and counts:
            say(unread.sentence(counts, name))
        return rows, layout

    return load
