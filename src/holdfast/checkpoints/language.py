"""The language model inside a vision-language model, as a folder of its own: the tensors bit for
bit, under the names that a causal language model has them by, with its configuration and tokenizer.

The folder is a model like any other, so that distances to the model that it was before it saw
images, residuals, perturbations and merges work on it. On text it computes what the whole computes.

What is not done: putting a language model back into the whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.checkpoints.build import Built, Prepared
from holdfast.checkpoints.element_types import DType, Operand
from holdfast.checkpoints.fit import VISION, language_config, refuse_misfit
from holdfast.checkpoints.locate import open_source
from holdfast.checkpoints.merge import Name
from holdfast.checkpoints.methods.protocol import Recipe, Sum
from holdfast.checkpoints.parents import Parents
from holdfast.checkpoints.plan import make_plan
from holdfast.checkpoints.sources import Entry, Source, config_of, folders_of, listing, read_object
from holdfast.errors import ModelError

_INSIDE = re.compile(r"(?:model\.)?(?:language_model|text_model)\.(?:model\.)?(.+)")
"""Where wrappers keep the language model, in older files and in newer ones."""
_BARE = re.compile(r"(?:model\.(?:layers|embed_tokens|norm|rotary_emb)|lm_head)\..+")
"""Names of a causal language model, which Qwen2-VL's files have, and heads beside the wrapped
model."""
_IMAGES = re.compile(
    r"(?:model\.)?(?:vision_tower|vision_model|visual|multi_modal_projector|connector|image_newline)(?:\..+)?"
)
_OF_IMAGES = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")
"""Files that say how images become pixels."""


class LanguageModel:
    """A view of a vision-language model: its language model's tensors alone; a `Source`.

    Args:
        source: the whole.

    Raises:
        ModelError: the model takes text only, is of a type whose parts are not known, or has
            tensors that belong to neither part.
    """

    def __init__(self, source: Source) -> None:
        config = config_of(source)
        kind = config.get("model_type")
        if kind not in VISION:
            raise ModelError(
                f"Expected a vision-language model ({', '.join(VISION)}), got {source.label}, "
                f"which is of type {kind!r}. A text-only model needs no extraction: use its "
                "folder."
            )
        self.source, self.label, self.folder = source, source.label, source.folder
        self._names: dict[str, str] = {}
        unknown = []
        for name in source.entries:
            if _IMAGES.fullmatch(name):
                continue
            if inside := _INSIDE.fullmatch(name):
                rest = inside[1]
                self._names[rest if rest.startswith("lm_head.") else f"model.{rest}"] = name
            elif _BARE.fullmatch(name):
                self._names[name] = name
            else:
                unknown.append(name)
        if unknown or not self._names:
            raise ModelError(
                "Expected tensors of a language model, a vision tower and a projector in "
                f"{source.label}, got "
                f"{(listing(unknown) if unknown else 'no tensor of a language model')}. Please "
                "report the architecture."
            )
        self.entries: Mapping[str, Entry] = {
            name: source.entries[held]._replace(name=name) for name, held in self._names.items()
        }
        holder = next(f for f in reversed(folders_of(source)) if (f / "config.json").is_file())
        self.config = language_config(holder)

    def read(self, name: str, start: int, stop: int, buffer: np.ndarray) -> Operand:
        """See `Source.read`."""
        return self.source.read(self._names[name], start, stop, buffer)


@dataclass(frozen=True, kw_only=True)
class Copy(Recipe):
    """Model 1, bit for bit."""

    def as_sum(self, models: Sequence[DType], statistics: Any) -> Sum:
        return Sum(None, [(1.0, 1, None)])

    def identity(self) -> dict[str, Any]:
        return {"method": "extract-language"}


def prepare_language(
    model: Name, *, adapter_base: Name | None = None, chat_template: str | None = None
) -> Prepared:
    """Checks and plans an extraction.

    Args:
        model: a vision-language model: folder, hub id or adapter.
        adapter_base: the model that an adapter belongs to; None: the one it names.
        chat_template: in place of the model's; one that reads content in parts only writes nothing
            of plain messages.

    Raises:
        ModelError: the checkpoint cannot be read, takes text only, or is quantised.
        ShapeError: what `make_plan` refuses.
    """
    source = LanguageModel(open_source(model, base=adapter_base))
    plan = make_plan(Parents(sources=(source,), roles=("model",)))
    config = {**config_of(plan.sources[0]), **plan.config}

    def finish(folder: Path) -> None:
        (folder / "config.json").write_text(
            json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )
        for name in _OF_IMAGES:
            (folder / name).unlink(missing_ok=True)
        settings = folder / "tokenizer_config.json"
        if settings.is_file():  # AutoProcessor would look for pixels by it
            content = read_object(settings, "a tokenizer's settings")
            if content.pop("processor_class", None) is not None:
                settings.write_text(
                    json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
                )
        refuse_misfit(folder)

    return Prepared(
        command="models extract-language",
        plan=plan,
        recipe=Copy(),
        request={"chat_template": chat_template} if chat_template is not None else {},
        chat_template=chat_template,
        finish=finish,
    )


def extract_language(
    model: Name,
    output_dir: Name,
    *,
    overwrite: bool = False,
    sync: bool = True,
    workers: int | None = None,
    **request: Any,
) -> Built:
    """Writes the language model inside a vision-language model; see `prepare_language` for what
    else it takes and raises."""
    return prepare_language(model, **request).write(
        output_dir, overwrite=overwrite, sync=sync, workers=workers
    )
