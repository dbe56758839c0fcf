"""In place of a tokenizer, for servers that take messages and write the chat template themselves: a text is its
characters, a conversation its JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.errors import ConfigError

_END = chr(0x10FFFF)
"""No character: what `eos_token` is, which nobody asks for."""


class MessageTokenizer:
    """As much of a tokenizer as generated entries use; an id is a character's code point."""

    chat_template = "messages"
    bos_token = bos_token_id = None
    eos_token = pad_token = _END
    eos_token_id = pad_token_id = ord(_END)
    special_tokens_map: Mapping[str, str] = {}
    is_fast = False
    name_or_path = "messages"

    def __call__(self, text: str, **how: Any) -> dict[str, list[int]]:
        return {"input_ids": self.encode(text)}

    def __len__(self) -> int:
        return ord(_END) + 1

    def encode(self, text: str, **how: Any) -> list[int]:
        """Code points."""
        return [ord(character) for character in text]

    def decode(self, ids: int | Sequence[int], **how: Any) -> str:
        """The text of code points."""
        return "".join(map(chr, [ids] if isinstance(ids, int) else ids))

    def get_vocab(self) -> dict[str, int]:
        """Nothing that could differ."""
        return {}

    def conversation(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Messages as JSON, which `messages_of` reads again."""
        return json.dumps(list(messages), ensure_ascii=False)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        **how: Any,
    ) -> str:
        """As `conversation`.

        Raises:
            ConfigError: the reply is to begin with words of ours, which servers do not take.
        """
        if continue_final_message or not add_generation_prompt:
            raise ConfigError(
                "expected a conversation that ends before the reply: what is asked through messages cannot begin the "
                "reply itself. Take a server with /completions (without --chat)."
            )
        return self.conversation(messages)


def messages_of(ids: Sequence[int]) -> list[dict[str, Any]]:
    """The conversation of a prompt's ids."""
    messages: list[dict[str, Any]] = json.loads(MessageTokenizer().decode(ids))
    return messages
