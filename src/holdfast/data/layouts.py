"""The shapes that training data comes in, each a value in one list (`LAYOUTS`), and how one row of
each becomes what TRL's `SFTTrainer` takes. Pure Python, a row at a time.

| layout | columns | becomes |
|---|---|---|
| tokenised | input_ids [, labels] [, masks] | input_ids and, where they or masks are there, labels |
| chat | messages, or ShareGPT's conversations (from / value) [, system] | messages: role, content |
| prompt_completion | prompt + completion / response / answer / output [, system] | prompt, completion |
| instruction | instruction [, input / context] + output / response [, system] [, history] | prompt, completion:
messages, or Alpaca's text without a chat template |
| question_answer | [context +] question + answer [, system] [, history] | prompt, completion: messages, or
"Question: ...\\nAnswer:" without a chat template |
| text | text / content / body / document | text |

The first layout of the list whose columns are all there is taken: a data set with `instruction`,
`output` and the joined `text` is instruction data. Capitals in column names do not matter. A
converter raises `BadRow` with the reason when a row cannot be used; nothing is repaired silently.
What no layout reads is counted by `unread`.

A system prompt and earlier turns that stand in columns of their own become messages, so they are
read where the result is messages. Masks beside tokens (`MASK_NAMES`) go into the labels: a token is
trained where all of them are 1.
"""

from __future__ import annotations

import dataclasses
import enum
import string
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from holdfast.data.messages import (
    CALL_ROLE,
    MESSAGE_EXTRAS,
    TEMPLATE_COLUMNS,
    BadRow,
    Convert,
    Row,
    describe,
    text_of_part,
    tool_calls_of,
)
from holdfast.errors import ConfigError, DataError, Problem, did_you_mean

__all__ = [
    "BUILDERS",
    "BY_ENDING",
    "LAYOUTS",
    "TEMPLATE_COLUMNS",
    "BadRow",
    "Column",
    "Convert",
    "Layout",
    "Messages",
    "Row",
    "Templates",
    "chat_layout",
    "recognise",
]

BY_ENDING = {
    ".jsonl": "json",
    ".json": "json",
    ".csv": "csv",
    ".parquet": "parquet",
    ".txt": "text",
    ".arrow": "arrow",
}
"""Readers of the datasets library by a file's ending."""
BUILDERS = tuple(dict.fromkeys(BY_ENDING.values()))
"""Readers of the datasets library, which stand in place of a data set's name where files are named
beside it."""
TEXT_NAMES = ("text", "content", "body", "document")
COMPLETION_NAMES = ("completion", "response", "answer", "output")
MASK_NAMES = ("completion_mask", "assistant_masks", "assistant_mask", "loss_mask", "attention_mask")
"""Columns beside tokens that say which are trained (1) and which are not (0); the last says which
are no padding."""
MESSAGE_FIELDS = ("system", "history")
"""Fields of a row that only messages have a place for."""
CHOICES = ("choice", "option", "distractor")
"""What the names of columns with the options of multiple choice begin with."""

ALPACA = {
    True: (
        "Below is an instruction that describes a task, paired with an input that provides "
        "further context. "
        "Write a response that appropriately completes the request.\n\n"
        "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n"
    ),
    False: (
        "Below is an instruction that describes a task. Write a response that appropriately "
        "completes the request.\n\n"
        "### Instruction:\n{instruction}\n\n### Response:\n"
    ),
}
"""The prompts of Stanford's Alpaca, with and without an input. A line break ends the prompt so that
no token spans its border."""

ROLES = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    CALL_ROLE: "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
}
"""Names found in data sets -> the roles that chat templates know."""

Fields = Mapping[str, str]
"""The user's column for each field of a layout that the rows have: "prompt" -> "Prompt", "output"
-> "response", ..."""


# --------------------------------------------------------------------------------- what a layout is


class Messages(enum.Enum):
    """When the rows of a layout become messages; they become text, or stay tokens, otherwise."""

    NEVER = enum.auto()
    ALWAYS = enum.auto()
    AS_WRITTEN = enum.auto()
    """Where the rows hold lists of messages."""
    WITH_TEMPLATE = enum.auto()
    """Where the tokenizer has a chat template."""


@dataclasses.dataclass(frozen=True)
class Column:
    """A column that a layout reads."""

    names: tuple[str, ...]
    """What it may be called; the first that is there is taken."""
    kind: type = object
    """Of its first value; a column that holds something else is not meant."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MessageKeys:
    """Under which keys messages say what."""

    role: str
    """Key of who speaks."""
    content: str
    """Key of what is said."""
    roles: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Names of roles beside `ROLES`, with the roles that chat templates know."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """A shape of rows. A new one is a value in `LAYOUTS`; nothing else knows of it."""

    name: str
    example: str
    """Its columns, for messages: "prompt + completion"."""
    columns: Mapping[str, Column]
    """By the field of the layout that each holds. All of them have to be there."""
    optional: Mapping[str, Column] = dataclasses.field(default_factory=dict)
    """Further columns that are read where they are there."""
    unless: Callable[[Collection[str]], bool] = lambda names: False
    """Whether columns of these names (in small letters) say that the rows are something else."""
    result: tuple[str, ...]
    """TRL's columns that its rows become. Columns of text or tokens that hold these fields already
    are only renamed."""
    convert: Callable[[Row, Fields, bool], dict[str, Any]]
    """A row, the user's columns, and whether it becomes messages -> TRL's columns. Raises
    `BadRow`."""
    messages: Messages = Messages.NEVER
    tokens: bool = False
    """Whether rows are token ids, not text."""
    keys: MessageKeys | None = None
    """Of the messages that rows hold in a form of their own."""
    reads_most: bool = False
    """Whether rows are refused of which most text stands in columns that the layout does not
    read."""

    def fields_of(self, columns: Mapping[str, str], first_row: Row | None) -> dict[str, str] | None:
        """The user's columns for the layout's fields; None where one is missing.

        Args:
            columns: the user's, by their names in small letters and as they are.
            first_row: by which columns of another kind are told apart.
        """
        fields = {}
        for field, column in {**self.columns, **self.optional}.items():
            name = next((columns[name] for name in column.names if name in columns), None)
            if name is not None and _holds(first_row, name, column.kind):
                fields[field] = name
            elif field in self.columns:
                return None
        return None if self.unless({name.lower() for name in columns}) else fields


def _holds(row: Row | None, column: str, kind: type) -> bool:
    value = row.get(column) if row is not None else None
    return value is None or isinstance(value, kind)


def recognise(
    columns: Sequence[str], first_row: Row | None = None
) -> tuple[Layout, dict[str, str]] | None:
    """The layout that these columns make, with the user's column for each of its fields; None where
    there is none.

    Args:
        columns: the data set's column names.
        first_row: tells apart columns of the same name: `text` holding a list, `conversations` that
            are no lists of messages.
    """
    by_name: dict[str, str] = {}
    for column in columns:
        by_name.setdefault(column.lower(), column)
    by_name.update({column: column for column in columns})
    for layout in LAYOUTS:
        fields = layout.fields_of(by_name, first_row)
        if fields is not None:
            return layout, fields
    return None


# -------------------------------------------------------------------------------------- one message


def message_keys() -> set[str]:
    """All that is read of a message."""
    read = {"function_call", *MESSAGE_EXTRAS}
    for keys in _known_keys():
        read |= {keys.role, keys.content}
    return read


def role_keys() -> set[str]:
    """Keys under which messages say who speaks."""
    return {keys.role for keys in _known_keys()}


def role_in(message: Row) -> Any:
    """Who speaks, as the message has it; None where it does not say."""
    for keys in _known_keys():
        if message.get(keys.role) is not None:
            return message[keys.role]
    return None


def content_key(message: Row) -> str:
    """The key of what is said; the first known one where there is nothing."""
    names = [keys.content for keys in _known_keys()]
    return next((name for name in names if message.get(name) is not None), names[0])


def _known_keys() -> list[MessageKeys]:
    """Of all layouts. Messages may mix their forms: the first key of the list that has a value
    counts."""
    return [layout.keys for layout in LAYOUTS if layout.keys is not None]


def _message(message: Any, where: str) -> dict[str, Any]:
    """A message of a row with `role`, `content` and what else chat templates read."""
    if not isinstance(message, Mapping):
        raise BadRow(f"{where} is {describe(message)}, expected an object with role and content")
    name, content = role_in(message), message.get(content_key(message))
    if name is None:
        raise BadRow(f"{where} has no role (keys: {', '.join(message) or 'none'})")
    role = _known_role(name, where)
    extras = {key: message[key] for key in MESSAGE_EXTRAS if message.get(key) is not None}
    calls = tool_calls_of(message, name, content, where)
    if calls is not None:
        extras["tool_calls"] = calls
    if name.lower() == CALL_ROLE or (content is None and calls):
        content = ""  # a call of a tool says nothing besides
    if isinstance(content, list):
        content = "".join([text_of_part(item, f"{where} ({role})") for item in content])
    if not isinstance(content, str):
        raise BadRow(f"{where} ({role}): content is {describe(content)}, expected text")
    return {"role": role, "content": content, **extras}


def _known_role(name: Any, where: str) -> str:
    roles = dict(ROLES)
    for keys in _known_keys():
        roles.update(keys.roles)
    if isinstance(name, str) and name.lower() in roles:
        return roles[name.lower()]
    hint = did_you_mean(name, roles).rstrip(".").lower() if isinstance(name, str) else ""
    raise BadRow(
        f"{where} has the unknown role {name!r}; known: {', '.join(roles)}{hint and ';' + hint}"
    )


def _messages(value: Any, column: str, where: str = "") -> list[dict[str, Any]]:
    """The messages of a cell; `where` stands before "message 1" in errors."""
    if value is None:
        raise BadRow(f"'{column}' is missing or null")
    if not isinstance(value, list):
        raise BadRow(f"'{column}' holds {describe(value)}, expected a list of messages")
    if not value:
        raise BadRow(f"'{column}' is empty")
    return [
        _message(message, f"{where}message {number}") for number, message in enumerate(value, 1)
    ]


def _check_reply(messages: Sequence[Row], column: str) -> None:
    for message in messages:
        if message["role"] == "assistant" and (
            message["content"].strip() or message.get("tool_calls")
        ):
            return
    raise BadRow(f"'{column}' has no assistant message with content to train on")


# ------------------------------------------------------------------------------------------ one row


def as_text(row: Row, column: str) -> str:
    """A cell as text: strings as they are, whole numbers in digits; anything else has no one way to
    be written."""
    value = row[column]
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if value is None:
        raise BadRow(f"'{column}' is missing or null")
    raise BadRow(f"'{column}' holds {describe(value)}, expected text")


def _filled(text: str, name: str) -> str:
    if not text.strip():
        raise BadRow(f"'{name}' is empty")
    return text


def _text(row: Row, column: str) -> str:
    return _filled(as_text(row, column), column)


def _text_or_none(row: Row, fields: Fields, field: str) -> str:
    """The text of a field that may be missing, null or empty; then ""."""
    column = fields.get(field)
    text = "" if column is None or row[column] is None else as_text(row, column)
    return text if text.strip() else ""


def _with_system(messages: list[dict[str, Any]], row: Row, fields: Fields) -> list[dict[str, Any]]:
    """The messages behind the row's system prompt, unless they begin with one of their own."""
    system = _text_or_none(row, fields, "system")
    if not system or messages[0]["role"] in ("system", "developer"):
        return messages
    return [{"role": "system", "content": system}, *messages]


def _turn(user: str, assistant: str, row: Row, fields: Fields) -> dict[str, Any]:
    """A question and its answer behind the row's system prompt and earlier turns."""
    prompt = [*_history(row, fields), {"role": "user", "content": user}]
    return {
        "prompt": _with_system(prompt, row, fields),
        "completion": [{"role": "assistant", "content": assistant}],
    }


def _history(row: Row, fields: Fields) -> list[dict[str, Any]]:
    """The messages of earlier turns, which stand as pairs of a question and an answer."""
    if "history" not in fields:
        return []
    column = fields["history"]
    turns: list[dict[str, Any]] = []
    for pair in row[column] or ():
        if (
            not isinstance(pair, list)
            or len(pair) != 2
            or not all(isinstance(text, str) for text in pair)
        ):
            raise BadRow(
                f"'{column}' holds {describe(pair)}, expected pairs of a question and its answer"
            )
        turns.append({"role": "user", "content": pair[0]})
        turns.append({"role": "assistant", "content": pair[1]})
    return turns


def _convert_text(row: Row, fields: Fields, as_messages: bool) -> dict[str, Any]:
    return {"text": _text(row, fields["text"])}


def _convert_chat(row: Row, fields: Fields, as_messages: bool) -> dict[str, Any]:
    column = fields["messages"]
    messages = _messages(row[column], column)
    _check_reply(messages, column)
    return {"messages": _with_system(messages, row, fields)}


def _convert_pair(row: Row, fields: Fields, as_messages: bool) -> dict[str, Any]:
    prompt, completion = fields["prompt"], fields["completion"]
    if not as_messages:
        return {"prompt": _text(row, prompt), "completion": _text(row, completion)}
    question = _messages(row[prompt], prompt, f"'{prompt}' ")
    answer = _messages(row[completion], completion, f"'{completion}' ")
    _check_reply(answer, completion)
    return {"prompt": _with_system(question, row, fields), "completion": answer}


def _convert_instruction(row: Row, fields: Fields, as_messages: bool) -> dict[str, Any]:
    instruction, output = _text(row, fields["instruction"]), _text(row, fields["output"])
    # an instruction that needs no input is the usual case
    extra = _text_or_none(row, fields, "input")
    if as_messages:
        return _turn(f"{instruction}\n\n{extra}" if extra else instruction, output, row, fields)
    return {
        "prompt": ALPACA[bool(extra)].format(instruction=instruction, input=extra),
        "completion": output,
    }


def _convert_question(row: Row, fields: Fields, as_messages: bool) -> dict[str, Any]:
    question, answer = _text(row, fields["question"]), _text(row, fields["answer"])
    context = _text_or_none(row, fields, "context")
    passage = f"{context}\n\n" if context else ""
    if as_messages:
        return _turn(f"{passage}{question}", answer, row, fields)
    return {"prompt": f"{passage}Question: {question}\nAnswer:", "completion": f" {answer}"}


def _convert_tokens(row: Row, fields: Fields, as_messages: bool) -> dict[str, Any]:
    values = {}
    for field, column in fields.items():
        values[field] = _whole_numbers(row, column, flags=field in MASK_NAMES)
    ids = values["input_ids"]
    for field, numbers in values.items():
        if len(numbers) != len(ids):
            raise BadRow(f"{len(ids)} input_ids but {len(numbers)} {field}")
    masks = [flags for field, flags in values.items() if field in MASK_NAMES]
    if not masks:
        return values
    labels = list(values.get("labels", ids))
    for flags in masks:
        labels = [label if flag else -100 for label, flag in zip(labels, flags, strict=True)]
    padding = values.get("attention_mask", [1] * len(ids))
    tokens = [index for index, flag in enumerate(padding) if flag]
    if not tokens:
        raise BadRow("its attention_mask masks every token")
    return {
        "input_ids": [ids[index] for index in tokens],
        "labels": [labels[index] for index in tokens],
    }


def _whole_numbers(row: Row, column: str, *, flags: bool) -> list[int]:
    """A list in a cell; `flags`: booleans are numbers, too."""
    value = row[column]
    if value is None:
        raise BadRow(f"'{column}' is missing or null")
    if not isinstance(value, list) or not all(_is_number(item, flags) for item in value):
        raise BadRow(f"'{column}' should be a list of whole numbers")
    if not value:
        raise BadRow(f"'{column}' is empty")
    return value


def _is_number(value: Any, flags: bool) -> bool:
    return isinstance(value, int) and (flags or not isinstance(value, bool))


def _is_multiple_choice(names: Collection[str]) -> bool:
    """Beside choices, an answer is an index or a letter of them: multiple choice needs templates of
    the user's."""
    return {"a", "b"} <= set(names) or any(name.startswith(CHOICES) for name in names)


# ----------------------------------------------------------------------------------------- the list


def chat_layout(
    *columns: str,
    role: str,
    content: str,
    roles: Mapping[str, str] | None = None,
    example: str = "",
    certain: bool = False,
) -> Layout:
    """A layout of rows that hold a conversation as a list of messages.

    Args:
        *columns: names of the column.
        role, content, roles: as in `MessageKeys`.
        example: as in `Layout`; "": the first column with the keys.
        certain: whether a column of that name is a conversation whatever it holds, so that anything
            else is a mistake.
    """
    return Layout(
        name="chat",
        example=example or f"{columns[0]} ({role} and {content})",
        columns={"messages": Column(columns, object if certain else list)},
        optional={"system": _SYSTEM},
        result=("messages",),
        convert=_convert_chat,
        messages=Messages.ALWAYS,
        keys=MessageKeys(role=role, content=content, roles=roles or {}),
    )


_SYSTEM = Column(("system", "system_prompt"), str)
_HISTORY = Column(("history",), list)

TEXT = Layout(
    name="text",
    example="text (or content, body, document)",
    columns={"text": Column(TEXT_NAMES, str)},
    result=("text",),
    convert=_convert_text,
)
PROMPT_COMPLETION = Layout(
    name="prompt_completion",
    example="prompt + completion (or response, answer, output)",
    columns={"prompt": Column(("prompt",)), "completion": Column(COMPLETION_NAMES)},
    optional={"system": _SYSTEM},
    result=("prompt", "completion"),
    convert=_convert_pair,
    messages=Messages.AS_WRITTEN,
)

LAYOUTS = [
    Layout(
        name="tokenised",
        example="input_ids [+ labels]",
        columns={"input_ids": Column(("input_ids",))},
        optional={name: Column((name,)) for name in ("labels", *MASK_NAMES)},
        result=("input_ids", "labels"),
        convert=_convert_tokens,
        tokens=True,
    ),
    chat_layout("messages", role="role", content="content", certain=True),
    chat_layout("conversations", "conversation", role="from", content="value"),
    PROMPT_COMPLETION,
    Layout(
        name="instruction",
        example="instruction [+ input] + output (or context; response)",
        columns={
            "instruction": Column(("instruction",)),
            "output": Column(("output", "response", "completion", "answer")),
        },
        optional={"input": Column(("input", "context")), "system": _SYSTEM, "history": _HISTORY},
        result=("prompt", "completion"),
        convert=_convert_instruction,
        messages=Messages.WITH_TEMPLATE,
    ),
    Layout(
        name="question_answer",
        example="question + answer",
        columns={"question": Column(("question",)), "answer": Column(("answer",))},
        optional={"system": _SYSTEM, "history": _HISTORY, "context": Column(("context",), str)},
        unless=_is_multiple_choice,
        result=("prompt", "completion"),
        convert=_convert_question,
        messages=Messages.WITH_TEMPLATE,
        reads_most=True,
    ),
    TEXT,
]
"""The first whose columns are there is taken, so one of your own goes to the beginning."""


# ---------------------------------------------------------------------------------------- templates


@dataclasses.dataclass(frozen=True, kw_only=True)
class Templates:
    """How to make training text out of columns of any name: `str.format` strings, such as
    `prompt="Question: {question}\\nAnswer:"`.

    Give either `text`, or `prompt` and `completion` together. Only plain column names go in braces;
    `{{` and `}}` are braces themselves. Nothing is added between prompt and completion: begin the
    completion with a space where one belongs.

    Raises:
        ConfigError: neither or both ways are used, or a template is not a format string over
            columns.
    """

    text: str | None = None
    """The whole text of an example. Every token is trained."""
    prompt: str | None = None
    """The prompt of an example."""
    completion: str | None = None
    """The completion of an example. By default only its tokens are trained."""

    def __post_init__(self) -> None:
        if problems := self.problems():
            raise ConfigError(problems)

    def problems(self) -> list[str]:
        """Sentences about what does not go together, and about texts that are no templates."""
        templates = self._templates
        problems = []
        if set(templates) not in ({"text"}, {"prompt", "completion"}):
            names = " and ".join(templates) if templates else "none of them"
            problems.append(
                f"expected a template for text, or for both prompt and completion, got {names}."
            )
        for name, template in templates.items():
            problem = _template_problem(template)
            if problem:
                problems.append(Problem(name, problem))
        return problems

    @property
    def layout(self) -> Layout:
        """Of rows of text, or of prompts and completions."""
        return TEXT if self.text is not None else PROMPT_COMPLETION

    @property
    def columns(self) -> list[str]:
        """Those that the templates name."""
        return [field for template in self._templates.values() for field in _fields(template)]

    @property
    def _templates(self) -> dict[str, str]:
        """Those that are there, by the column that they make."""
        return {
            name: value for name, value in dataclasses.asdict(self).items() if value is not None
        }

    def converter(self, columns: Sequence[str]) -> Convert:
        """A row to `{"text"}` or `{"prompt", "completion"}`.

        Raises:
            DataError: a template names a column that is not among `columns`.
        """
        templates = self._templates
        fields = {name: _fields(template) for name, template in templates.items()}
        for name, of_template in fields.items():
            for field in of_template:
                if field not in columns:
                    raise DataError(
                        f"templates: {name} uses the column '{field}', but the data has "
                        f"{', '.join(columns)}.{did_you_mean(field, columns)}"
                    )

        def convert(row: Row) -> dict[str, Any]:
            filled = {}
            for name, template in templates.items():
                values = {field: as_text(row, field) for field in fields[name]}
                filled[name] = _filled(template.format_map(values), name)
            return filled

        return convert


def _template_problem(template: Any) -> str:
    """What is wrong with a template; "" where nothing is."""
    if not isinstance(template, str):
        return f'expected a string such as "{{question}}", got {template!r}.'
    try:
        fields = _fields(template)
    except ValueError as error:
        return (
            f"expected a format string, got {template!r} ({error}). Write literal braces as "
            "{{ and }}."
        )
    for field in fields:
        if (
            not field.isidentifier()
            and not field.replace(" ", "_").replace("-", "_").isidentifier()
        ):
            return f"expected plain column names in braces, got {{{field}}}."
    return (
        ""
        if fields
        else (
            "expected a column name in braces, got none, so every example "
            f"would be the same: {template!r}."
        )
    )


def _fields(template: str) -> list[str]:
    return list(
        dict.fromkeys(
            field for _, field, _, _ in string.Formatter().parse(template) if field is not None
        )
    )
