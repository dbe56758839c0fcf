"""The shapes training data comes in, and how one row of each becomes what TRL's `SFTTrainer` takes. Pure Python, a row
at a time.

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

The first layout of the table whose columns are all there is taken: a data set with `instruction`, `output` and the
joined `text` is instruction data. Capitals in column names do not matter. A converter raises `BadRow` with the reason
when a row cannot be used; nothing is repaired silently. What no layout reads is counted by `unread`.

A system prompt and earlier turns that stand in columns of their own become messages, so they are read where the result
is messages. Masks beside tokens (`MASK_NAMES`) go into the labels: a token is trained where all of them are 1.
"""

from __future__ import annotations

import dataclasses
import json
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from holdfast.errors import ConfigError, DataError, Problem, did_you_mean

BY_ENDING = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet", ".txt": "text", ".arrow": "arrow"}
"""Readers of the datasets library by a file's ending."""
BUILDERS = tuple(dict.fromkeys(BY_ENDING.values()))
"""Readers of the datasets library, which stand in place of a data set's name where files are named beside it."""
TEMPLATE_COLUMNS = ("tools", "chat_template_kwargs")
"""Columns beside messages that a chat template reads."""
TEXT_NAMES = ("text", "content", "body", "document")
COMPLETION_NAMES = ("completion", "response", "answer", "output")
INPUT_NAMES = ("input", "context")
OUTPUT_NAMES = ("output", "response", "completion", "answer")
SYSTEM_NAMES = ("system", "system_prompt")
MASK_NAMES = ("completion_mask", "assistant_masks", "assistant_mask", "loss_mask", "attention_mask")
"""Columns beside tokens that say which are trained (1) and which are not (0); the last says which are no padding."""
CHOICES = ("choice", "option", "distractor")
"""What the names of columns with the options of multiple choice begin with."""

ALPACA = {
    True: (
        "Below is an instruction that describes a task, paired with an input that provides further context. "
        "Write a response that appropriately completes the request.\n\n"
        "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n"
    ),
    False: (
        "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
        "### Instruction:\n{instruction}\n\n### Response:\n"
    ),
}
"""The prompts of Stanford's Alpaca, with and without an input. A line break ends the prompt so that no token spans its
border."""

ROLES = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "function_call": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
}
"""Names found in data sets -> the roles that chat templates know."""

MESSAGE_EXTRAS = ("name", "tool_calls", "tool_call_id", "reasoning_content", "thinking")
"""Further keys of a message that chat templates read; kept where they are not null. Anything else in a message is
dropped, and counted by `unread`."""
TRAINED_KEYS = ("train", "weight", "loss")
"""Keys of a message that say whether it is to be trained: false and 0 where it is not. A `loss` that is a number is a
figure, and says nothing."""
TEXT_PARTS = ("text", "input_text", "output_text")
"""Types of the parts of a message that are text."""

Row = Mapping[str, Any]
Convert = Callable[[Row], dict[str, Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChatLayout:
    """How rows hold a conversation: in which column, and under which keys of its messages. A new one is a value in
    `CHAT_LAYOUTS`; nothing else knows of it."""

    columns: tuple[str, ...]
    """Names of the column, which holds a list of messages."""
    role: str
    """Key of who speaks."""
    content: str
    """Key of what is said."""
    roles: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Names of roles beside `ROLES`, with the roles that chat templates know."""
    certain: bool = False
    """Whether a column of that name is a conversation whatever it holds, so that anything else there is a mistake."""


CHAT_LAYOUTS = [
    ChatLayout(columns=("messages",), role="role", content="content", certain=True),
    ChatLayout(columns=("conversations", "conversation"), role="from", content="value"),
]
"""OpenAI's form and ShareGPT's. Messages may mix them: the first key of the list that has a value counts."""


def message_keys() -> set[str]:
    """All that is read of a message."""
    keys = {key for layout in CHAT_LAYOUTS for key in (layout.role, layout.content)}
    return {*keys, "function_call", *MESSAGE_EXTRAS}


def role_in(message: Row) -> Any:
    """Who speaks, as the message has it; None where it does not say."""
    return _first_value(message, [layout.role for layout in CHAT_LAYOUTS])


def content_key(message: Row) -> str:
    """The key of what is said; the first known one where there is nothing."""
    keys = [layout.content for layout in CHAT_LAYOUTS]
    return next((key for key in keys if message.get(key) is not None), keys[0])


def _first_value(message: Row, keys: Sequence[str]) -> Any:
    return next((message[key] for key in keys if message.get(key) is not None), None)


class BadRow(Exception):
    """A row cannot be used; the text says why, in a few words."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Templates:
    """How to make training text out of columns of any name: `str.format` strings, such as `prompt="Question:
    {question}\\nAnswer:"`.

    Give either `text`, or `prompt` and `completion` together. Only plain column names go in braces; `{{` and `}}` are
    braces themselves. Nothing is added between prompt and completion: begin the completion with a space where one
    belongs.

    Raises:
        ConfigError: neither or both ways are used, or a template is not a format string over columns.
    """

    text: str | None = None
    """The whole text of an example; every token is learnt."""
    prompt: str | None = None
    """What the model is given."""
    completion: str | None = None
    """What the model has to say; by default only its tokens are learnt."""

    def __post_init__(self) -> None:
        if problems := self.problems():
            raise ConfigError(problems)

    def problems(self) -> list[str]:
        """Sentences about what does not go together, and about texts that are no templates."""
        given = {name: value for name, value in dataclasses.asdict(self).items() if value is not None}
        found = []
        if set(given) not in ({"text"}, {"prompt", "completion"}):
            got = " and ".join(given) if given else "none of them"
            found.append(f"expected a template of either text, or prompt and completion together, got {got}.")
        for name, value in given.items():
            if not isinstance(value, str):
                found.append(Problem(name, f'expected a string such as "{{question}}", got {value!r}.'))
                continue
            try:
                fields = _fields(value)
            except ValueError as error:
                text = f"expected a format string, got {value!r} ({error}). Write braces of the text itself as"
                found.append(Problem(name, f"{text} {{{{ and }}}}."))
                continue
            plain = (f.isidentifier() or f.replace(" ", "_").replace("-", "_").isidentifier() for f in fields)
            if odd := [f for f, ok in zip(fields, plain, strict=True) if not ok]:
                found.append(Problem(name, f"takes plain column names in braces, got {{{odd[0]}}}."))
            if not fields:
                found.append(Problem(name, f"names no column, so every example would be the same: {value!r}."))
        return found

    @property
    def layout(self) -> str:
        """ "text" or "prompt_completion"."""
        return "text" if self.text is not None else "prompt_completion"

    @property
    def columns(self) -> list[str]:
        """Those that the templates name."""
        given = (self.text, self.prompt, self.completion)
        return [field for template in given if template is not None for field in _fields(template)]

    def converter(self, columns: Sequence[str]) -> Convert:
        """A row to `{"text"}` or `{"prompt", "completion"}`.

        Raises:
            DataError: a template names a column that is not among `columns`.
        """
        parts = {name: value for name, value in dataclasses.asdict(self).items() if value is not None}
        for name, value in parts.items():
            for field in _fields(value):
                if field not in columns:
                    found = ", ".join(columns)
                    raise DataError(
                        f"templates: {name} uses the column '{field}', but the data has "
                        f"{found}.{did_you_mean(field, columns)}"
                    )
        fields = {name: _fields(value) for name, value in parts.items()}

        def convert(row: Row) -> dict[str, Any]:
            return {
                name: _filled(parts[name].format_map({f: as_text(row, f) for f in fields[name]}), name)
                for name in parts
            }

        return convert


def _fields(template: str) -> list[str]:
    return list(dict.fromkeys(field for _, field, _, _ in string.Formatter().parse(template) if field is not None))


# ---------------------------------------------------------------------------------------------------------- recognising


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """A recognised layout: its name and the user's column for each part ("prompt" -> "Prompt", "output" -> "response",
    ...)."""

    name: str
    columns: dict[str, str]
    beside: dict[str, str] = dataclasses.field(default_factory=dict)
    """Further columns that are read: "system", "history", "context", and masks by their own names."""

    def as_text(self) -> Layout:
        """The layout where its rows become plain text, which has no place for a system prompt or earlier turns."""
        beside = {part: column for part, column in self.beside.items() if part not in ("system", "history")}
        return dataclasses.replace(self, beside=beside)


def recognise(columns: Sequence[str], first_row: Row | None = None) -> Layout | None:
    """The layout that these columns make, or None.

    Args:
        columns: the data set's column names.
        first_row: tells apart columns of the same name: `text` holding a list, `conversations` that are no lists of
            messages.
    """
    by_name: dict[str, str] = {}
    for column in columns:
        by_name.setdefault(column.lower(), column)
    by_name.update({column: column for column in columns})

    def find(*names: str) -> str | None:
        return next((by_name[name] for name in names if name in by_name), None)

    def first_is(column: str | None, kind: type | tuple[type, ...]) -> bool:
        return column is not None and (
            first_row is None or first_row.get(column) is None or isinstance(first_row[column], kind)
        )

    def present(kind: type, *parts: str, **named: str | None) -> dict[str, str]:
        there = {part: find(part) for part in parts} | named
        return {part: column for part, column in there.items() if column is not None and first_is(column, kind)}

    if (ids := find("input_ids")) is not None:
        tokens = {"input_ids": ids} | present(object, "labels")
        return Layout(name="tokenised", columns=tokens, beside=present(object, *MASK_NAMES))
    system = present(str, system=find(*SYSTEM_NAMES))
    for chat in CHAT_LAYOUTS:
        messages = find(*chat.columns)
        if messages is not None and (chat.certain or first_is(messages, list)):
            return Layout(name="chat", columns={"messages": messages}, beside=system)
    if (prompt := find("prompt")) and (completion := find(*COMPLETION_NAMES)):
        return Layout(name="prompt_completion", columns={"prompt": prompt, "completion": completion}, beside=system)
    before = system | present(list, "history")
    if (instruction := find("instruction")) and (output := find(*OUTPUT_NAMES)):
        extra = find(*INPUT_NAMES)
        return Layout(
            name="instruction",
            columns={"instruction": instruction, "output": output} | ({"input": extra} if extra else {}),
            beside=before,
        )
    # beside choices, an answer is an index or a letter of them: multiple choice needs templates of the user's
    lettered = {"a", "b"} <= set(by_name) or any(name.startswith(CHOICES) for name in by_name)
    if (question := find("question")) and (answer := find("answer")) and not lettered:
        pair = {"question": question, "answer": answer}
        return Layout(name="question_answer", columns=pair, beside=before | present(str, "context"))
    if first_is(text := find(*TEXT_NAMES), str):
        return Layout(name="text", columns={"text": str(text)})
    return None


# ----------------------------------------------------------------------------------------------------------- converting


def converter(layout: Layout, *, chat_template: bool, messages: bool = False) -> Convert:
    """Turns a row of `layout` into TRL's columns, or raises `BadRow`.

    Args:
        layout: what `recognise` found.
        chat_template: whether the tokenizer has one; decides between messages and plain text for instructions and
            questions.
        messages: whether the prompts of a "prompt_completion" data set are lists of messages rather than text; all rows
            must agree.
    """
    c = {**layout.columns, **layout.beside}
    if layout.name == "text":
        return lambda row: {"text": _text(row, c["text"])}
    if layout.name == "chat":
        return lambda row: {"messages": _with_system(_conversation(row[c["messages"]], c["messages"]), row, c)}
    if layout.name == "prompt_completion":
        convert = _messages_pair if messages else _text_pair
        return lambda row: convert(row, c)
    if layout.name == "instruction":
        return lambda row: _instruction(row, c, chat_template)
    if layout.name == "question_answer":
        return lambda row: _question(row, c, chat_template)
    assert layout.name == "tokenised", layout
    return lambda row: _tokenised(row, layout)


def as_text(row: Row, column: str) -> str:
    """A cell as text: strings as they are, whole numbers in digits; anything else has no one way to be written."""
    value = row[column]
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if value is None:
        raise BadRow(f"'{column}' is missing or null")
    raise BadRow(f"'{column}' holds {_described(value)}, expected text")


def _text(row: Row, column: str) -> str:
    return _filled(as_text(row, column), column)


def _filled(text: str, name: str) -> str:
    if not text.strip():
        raise BadRow(f"'{name}' is empty")
    return text


def _text_or_none(row: Row, columns: Mapping[str, str], part: str) -> str:
    """The text of a column that may be missing, null or empty; then ""."""
    column = columns.get(part)
    text = "" if column is None or row[column] is None else as_text(row, column)
    return text if text.strip() else ""


def _text_pair(row: Row, columns: Mapping[str, str]) -> dict[str, Any]:
    return {"prompt": _text(row, columns["prompt"]), "completion": _text(row, columns["completion"])}


def _messages_pair(row: Row, columns: Mapping[str, str]) -> dict[str, Any]:
    prompt, completion = columns["prompt"], columns["completion"]
    for column in (prompt, completion):
        _refuse_no_list(row[column], column)
    given = [_message(m, f"'{prompt}' message {i}") for i, m in enumerate(row[prompt], 1)]
    answer = [_message(m, f"'{completion}' message {i}") for i, m in enumerate(row[completion], 1)]
    if not any(_says_something(m) for m in answer):
        raise BadRow(f"'{completion}' has no assistant message with content to learn from")
    return {"prompt": _with_system(given, row, columns), "completion": answer}


def _instruction(row: Row, columns: Mapping[str, str], chat_template: bool) -> dict[str, Any]:
    instruction, output = _text(row, columns["instruction"]), _text(row, columns["output"])
    extra = _text_or_none(row, columns, "input")  # an instruction that needs no input is the usual case
    if chat_template:
        return _turn(f"{instruction}\n\n{extra}" if extra else instruction, output, row, columns)
    return {"prompt": ALPACA[bool(extra)].format(instruction=instruction, input=extra), "completion": output}


def _question(row: Row, columns: Mapping[str, str], chat_template: bool) -> dict[str, Any]:
    question, answer = _text(row, columns["question"]), _text(row, columns["answer"])
    context = _text_or_none(row, columns, "context")
    passage = f"{context}\n\n" if context else ""
    if chat_template:
        return _turn(f"{passage}{question}", answer, row, columns)
    return {"prompt": f"{passage}Question: {question}\nAnswer:", "completion": f" {answer}"}


def _turn(user: str, assistant: str, row: Row, columns: Mapping[str, str]) -> dict[str, Any]:
    """A question and its answer behind the row's system prompt and earlier turns."""
    asked = {"role": "user", "content": user}
    prompt = _with_system([*_history(row, columns), asked], row, columns)
    return {"prompt": prompt, "completion": [{"role": "assistant", "content": assistant}]}


def _history(row: Row, columns: Mapping[str, str]) -> list[dict[str, Any]]:
    """The messages of earlier turns, which stand as pairs of a question and an answer."""
    column = columns.get("history")
    turns: list[dict[str, Any]] = []
    for pair in (row[column] if column is not None else None) or ():
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
            raise BadRow(f"'{column}' holds {_described(pair)}, expected pairs of a question and its answer")
        turns.append({"role": "user", "content": pair[0]})
        turns.append({"role": "assistant", "content": pair[1]})
    return turns


def _with_system(messages: list[dict[str, Any]], row: Row, columns: Mapping[str, str]) -> list[dict[str, Any]]:
    """The messages behind the row's system prompt, unless they begin with one of their own."""
    system = _text_or_none(row, columns, "system")
    if not system or messages[0]["role"] in ("system", "developer"):
        return messages
    return [{"role": "system", "content": system}, *messages]


def _conversation(value: Any, column: str) -> list[dict[str, Any]]:
    _refuse_no_list(value, column)
    messages = [_message(message, f"message {i}") for i, message in enumerate(value, 1)]
    if not any(_says_something(m) for m in messages):
        raise BadRow(f"'{column}' has no assistant message with content to learn from")
    return messages


def says_what_is_trained(messages: Any) -> bool:
    """Whether a message says of itself that it is not to be trained, or in part."""
    turns = [message for message in messages or () if isinstance(message, Mapping)]
    return any(flag is not True and flag != 1 for message in turns for flag in _flags(message))


def says_trained(key: str, value: Any) -> bool:
    """Whether a key of a message, with its value, says whether the message is to be trained."""
    return key in TRAINED_KEYS and value is not None and (key != "loss" or isinstance(value, bool))


def _flags(message: Row) -> list[Any]:
    return [value for key, value in message.items() if says_trained(key, value)]


def trained_messages(messages: Sequence[Row], made: Sequence[Row]) -> list[bool]:
    """Of the messages that a converter made of a row's, which are to be trained: those that say so, and those of the
    assistant that say nothing.

    Args:
        messages: as the row has them.
        made: the same, perhaps behind a system prompt.

    Raises:
        BadRow: a weight between 0 and 1, or nothing to train.
    """
    found = [False] * (len(made) - len(messages))
    for number, (message, turn) in enumerate(zip(messages, made[len(found) :], strict=True), 1):
        flags = _flags(message)
        if odd := [flag for flag in flags if flag not in (0, 1)]:
            raise BadRow(f"message {number} has the weight {odd[0]!r}, expected 0 or 1")
        found.append(all(flags) if flags else turn["role"] == "assistant")
    if not any(found):
        raise BadRow("its messages say that none of them is to be trained (weight, train)")
    return found


def _refuse_no_list(value: Any, column: str) -> None:
    if value is None:
        raise BadRow(f"'{column}' is missing or null")
    if not isinstance(value, list):
        raise BadRow(f"'{column}' holds {_described(value)}, expected a list of messages")
    if not value:
        raise BadRow(f"'{column}' is empty")


def _says_something(message: Mapping[str, Any]) -> bool:
    return message["role"] == "assistant" and bool(message["content"].strip() or message.get("tool_calls"))


def _message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise BadRow(f"{where} is {_described(message)}, expected an object with role and content")
    role, content = role_in(message), message.get(content_key(message))
    roles = {**ROLES, **{name: known for layout in CHAT_LAYOUTS for name, known in layout.roles.items()}}
    if role is None:
        raise BadRow(f"{where} has no role (keys: {', '.join(message) or 'none'})")
    known = roles.get(role.lower()) if isinstance(role, str) else None
    if known is None:
        hint = did_you_mean(role, roles) if isinstance(role, str) else ""
        raise BadRow(
            f"{where} has the unknown role {role!r}; known: {', '.join(roles)}{hint and ';' + hint.rstrip('.').lower()}"
        )
    extras = {key: message[key] for key in MESSAGE_EXTRAS if message.get(key) is not None}
    if str(role).lower() == "function_call":  # LLaMA-Factory's: the content is a call, or a list of them
        calls = _parsed(content, where)
        extras["tool_calls"] = [{"type": "function", "function": call} for call in _listed(calls)]
        content = ""
    if "tool_calls" not in extras and message.get("function_call") is not None:  # OpenAI's older form
        extras["tool_calls"] = [{"type": "function", "function": _parsed(message["function_call"], where)}]
    if extras.get("tool_calls"):
        extras["tool_calls"] = _parsed(extras["tool_calls"], where)
    if content is None and extras.get("tool_calls"):
        content = ""  # a call of a tool says nothing besides
    if isinstance(content, list):
        content = "".join(_part(part, f"{where} ({known})") for part in content)
    if not isinstance(content, str):
        raise BadRow(f"{where} ({known}): content is {_described(content)}, expected text")
    return {"role": known, "content": content, **extras}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _part(part: Any, where: str) -> str:
    """The text of one part of a message's content."""
    if isinstance(part, str):
        return part
    kind = part.get("type", "text") if isinstance(part, Mapping) else None
    if kind in TEXT_PARTS and isinstance(part.get("text"), str):
        return str(part["text"])
    got = _described(part) if kind is None else f"one of type {kind!r}"
    raise BadRow(f"{where}: expected parts of type text, got {got}; images are for vision-language models")


def _parsed(value: Any, where: str) -> Any:
    """A value, or what the JSON text of it says."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise BadRow(f"{where}: expected JSON, got {value[:40]!r} ({error})") from None


def with_arguments(messages: Sequence[Row], form: Literal["object", "text"]) -> list[dict[str, Any]]:
    """Messages whose calls of tools have their arguments in one form: objects, or JSON text of them.

    Raises:
        BadRow: text that is no JSON.
    """
    return [
        {**message, "tool_calls": [_with_arguments(call, form) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else dict(message)
        for message in messages
    ]


def _with_arguments(call: Any, form: Literal["object", "text"]) -> Any:
    if not isinstance(call, Mapping):
        return call
    if isinstance(call.get("function"), Mapping):
        return {**call, "function": _with_arguments(call["function"], form)}
    arguments = call.get("arguments")
    if form == "object" and isinstance(arguments, str):
        return {**call, "arguments": _parsed(arguments.strip() or "{}", f"the call of {call.get('name')}")}
    if form == "text" and isinstance(arguments, Mapping):
        return {**call, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return call


def template_value(row: Row, column: str) -> Any:
    """What a chat template is given of one of `TEMPLATE_COLUMNS`; tools as JSON text stay text."""
    value = row[column]
    if column == "tools":
        if isinstance(value, str):
            _parsed(value.strip() or "[]", "'tools'")
        return value or None
    if value is not None and not isinstance(value, Mapping):
        raise BadRow(f"'{column}' holds {_described(value)}, expected an object")
    return value or {}


def template_variables(row: Row) -> dict[str, Any]:
    """What `apply_chat_template` is given beside a row's messages, as TRL gives it when it trains."""
    tools = row.get("tools")
    return {"tools": json.loads(tools) if isinstance(tools, str) else tools, **(row.get("chat_template_kwargs") or {})}


def without_nulls(value: Any) -> Any:
    """A value whose objects have lost the keys that are null. Arrow gives each object of a column the keys of all of
    them, so where it stored the rows, a null is a key that the row did not have."""
    if isinstance(value, Mapping):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def _tokenised(row: Row, layout: Layout) -> dict[str, Any]:
    out: dict[str, Any] = {name: _whole_numbers(row, column) for name, column in layout.columns.items()}
    masks = {name: _whole_numbers(row, column, flags=True) for name, column in layout.beside.items()}
    ids = out["input_ids"]
    for name, values in {**out, **masks}.items():
        if len(values) != len(ids):
            raise BadRow(f"{len(ids)} input_ids but {len(values)} {name}")
    if not masks:
        return out
    trained = [all(flags) for flags in zip(*masks.values(), strict=True)]
    labels = [label if flag else -100 for label, flag in zip(out.get("labels", ids), trained, strict=True)]
    padding = masks.get("attention_mask", [1] * len(ids))
    kept = [place for place, flag in enumerate(padding) if flag]
    if not kept:
        raise BadRow("its attention_mask leaves no token")
    return {"input_ids": [ids[place] for place in kept], "labels": [labels[place] for place in kept]}


def _whole_numbers(row: Row, column: str, *, flags: bool = False) -> list[int]:
    """A list in a cell; `flags`: booleans are numbers, too."""
    value = row[column]
    if value is None:
        raise BadRow(f"'{column}' is missing or null")
    if not isinstance(value, list) or any(not isinstance(v, int) or (isinstance(v, bool) and not flags) for v in value):
        raise BadRow(f"'{column}' should be a list of whole numbers")
    if not value:
        raise BadRow(f"'{column}' is empty")
    return value


def _described(value: Any) -> str:
    if value is None:
        return "null"
    names: Iterable[tuple[type, str]] = (
        (bool, "a boolean"),
        (float, "a fraction"),
        (int, "a number"),
        (str, "text"),
        (list, "a list"),
        (dict, "an object"),
    )
    return next((name for kind, name in names if isinstance(value, kind)), f"a {type(value).__name__}")
