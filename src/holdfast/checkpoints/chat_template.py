"""The chat template of a checkpoint that is written: of one's own, or the one that most of its
parents have."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from holdfast.checkpoints.sources import Source, folders_of, read_object
from holdfast.errors import ConfigError, ModelError
from holdfast.support.paths import expanded

FILE = "chat_template.jinja"
LEGACY = "chat_template.json"
"""Of processors, in older folders; their tokenizers have none."""
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
AUTO = "auto"


def template_of(folder: Path) -> str | None:
    """The chat template in a folder; None where there is none.

    Raises:
        ModelError: its tokenizer's settings cannot be read.
    """
    if (folder / FILE).is_file():
        try:
            return (folder / FILE).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(
                f"Expected a chat template in {folder / FILE}, but it cannot be read ({error})."
            ) from error
    template = None
    for name in ("tokenizer_config.json", LEGACY):
        if template is None and (folder / name).is_file():
            template = read_object(folder / name, "a tokenizer's settings").get("chat_template")
    if isinstance(template, list):  # several by name
        defaults = [
            entry
            for entry in template
            if isinstance(entry, dict) and entry.get("name") == "default"
        ]
        template = defaults[0].get("template") if defaults else None
    return template if isinstance(template, str) else None


def asked_template(value: str, sources: Sequence[Source]) -> str:
    """The text of a template.

    Args:
        value: Jinja, a file of it (`.jinja`, `.j2`), "chatml", or "auto", which is the one that
            most parents have (the first of equals).
        sources: the parents.

    Raises:
        ConfigError: none of these, a file that cannot be read, or no parent with a template.
    """
    if value == AUTO:
        present = []
        for source in sources:
            template = _template_in(source)
            if template is not None:
                present.append(template)
        if not present:
            raise ConfigError(
                "chat_template: auto uses the template that most of the merged models have, but "
                "no model has one."
            )
        return Counter(present).most_common(1)[0][0]
    if value == "chatml":
        return CHATML
    if "{%" in value or "{{" in value:
        return value
    if value.endswith((".jinja", ".j2")):
        try:
            return expanded(value).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"chat_template: {value} cannot be read: {error}") from error
    raise ConfigError(
        "chat_template: expected auto, chatml, a .jinja file, or the text of a template, got "
        f"{value!r}. To use another template, give its text."
    )


def _template_in(source: Source) -> str | None:
    """The template of the most important of a model's folders that has one."""
    for folder in reversed(folders_of(source)):
        template = template_of(folder)
        if template:
            return template
    return None


def write_template(folder: Path, text: str) -> None:
    """Gives the tokenizer in a folder this template, in place of those that it has.

    Raises:
        ModelError: the tokenizer's settings cannot be read.
    """
    settings = folder / "tokenizer_config.json"
    content = read_object(settings, "a tokenizer's settings") if settings.is_file() else {}
    (folder / FILE).write_text(text, encoding="utf-8")
    (folder / LEGACY).unlink(missing_ok=True)
    shutil.rmtree(folder / "additional_chat_templates", ignore_errors=True)
    if content.pop("chat_template", None) is not None:
        settings.write_text(
            json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )
