"""Held-out text scored token by token, and how much of a text a model has by heart.

The scoring is in `text.perplexity`, what of a document is scored in `text.documents`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from holdfast.config.declare import Meta
from holdfast.errors import Problem
from holdfast.evaluation.entries import CountOrNone, DataEntry, TemplateOrNone
from holdfast.evaluation.measures import Outcome, Subject
from holdfast.evaluation.text.documents import (
    Document,
    documents_from,
    encode_document,
    starts_with_bos,
)
from holdfast.evaluation.text.question_files import first_rows, refuse_images


@dataclass(frozen=True, kw_only=True)
class PerplexityEntry(DataEntry):
    """Held-out text, or completions of prompts, to be scored token by token."""

    kind = "perplexity"
    figures: ClassVar[tuple[str, ...]] = ("nats_per_token", "bits_per_byte", "perplexity")
    """Names from `statistics.estimates.TEXT_FIGURES`; the first one is the first metric."""

    window: Annotated[int | None, Meta(ge=2)] = None
    """Longest context in tokens; null: the model's maximum."""
    stride: CountOrNone = None
    """New tokens per window, in documents longer than `window`; null: half the window. Compute
    grows with window / stride."""
    text: TemplateOrNone = None
    """`str.format` template of the text over the columns."""
    prompt: TemplateOrNone = None
    """Template of the prompt, which is not scored. `prompt` needs `completion`."""
    completion: TemplateOrNone = None
    """Template of the completion, which is scored."""
    memorisation: Annotated[bool, Meta(yaml=False)] = False
    """Also count the tokens that are the model's most likely ones, and compute the entropy of the
    model's distributions."""

    def problems(self) -> list[str]:
        """What cannot be, beyond each setting's own bounds; a sentence each."""
        problems = []
        if (self.prompt is None) != (self.completion is None):
            problems.append(
                "expected both `prompt` (given) and `completion` (scored), got one of them. Add "
                "the other one, or use `text`."
            )
        if self.text is not None and self.prompt is not None:
            problems.append(
                "expected either `text` (scored whole) or `prompt` and `completion` (only completions "
                "are scored), got both. Leave one out."
            )
        if self.window is not None and self.stride is not None and self.stride >= self.window:
            problems.append(
                Problem(
                    "stride",
                    f"expected less than the window ({self.window}), got {self.stride}. A scored "
                    "token needs at least one token before it in its window.",
                )
            )
        return problems

    def needs_scores(self, tokenizer: Any) -> bool:
        """Always."""
        return True

    def requests(self, tokenizer: Any, processor: Any = None) -> Texts:
        """The documents that are scored, see `Entry.requests`."""
        texts = documents_of(self, tokenizer)
        for document in texts.documents[:8]:
            encode_document(document, tokenizer)
        return texts

    def count(self, requests: Texts) -> int:
        """The documents."""
        return len(requests.documents)

    def scores(self, requests: Texts, on: Subject) -> Outcome:
        """See `Entry.scores`."""
        from holdfast.evaluation.baselines import unigram_levels
        from holdfast.evaluation.served import ServedModel
        from holdfast.evaluation.text.perplexity import Windows, resolve_window, score_documents
        from holdfast.statistics.estimates import TEXT_FIGURES

        window, stride = resolve_window(on.model, self.window, self.stride)
        documents, notes = requests.documents, list(requests.notes)
        rows = score_documents(
            on.model,
            on.tokenizer,
            documents,
            windows=Windows(window=window, stride=stride),
            progress=on.report,
            notes=notes,
            memorisation=self.memorisation,
            partial=on.partial,
        )
        for row, document in zip(rows, documents, strict=True):
            if isinstance(document, str):
                row["content"] = document
        settings = {
            "window": window,
            "stride": stride,
            "bos": starts_with_bos(on.tokenizer),
            "tokens": sum(row["tokens"] for row in rows),
            "bytes": sum(row["bytes"] for row in rows),
            "notes": notes,
        }
        if isinstance(on.model, ServedModel):
            vocabulary = len(on.tokenizer)
        else:
            vocabulary = int(on.model.get_input_embeddings().weight.shape[0])
        encoded = [encode_document(document, on.tokenizer) for document in documents]
        return Outcome(
            rows=rows,
            figures={name: TEXT_FIGURES[name] for name in self.figures},
            settings=settings,
            references=unigram_levels(encoded, vocabulary=vocabulary),
        )


@dataclass(frozen=True, kw_only=True)
class MemorisationEntry(PerplexityEntry):
    """Text, measured by perplexity and by the share of tokens that are the model's most likely
    ones."""

    kind = "memorisation"
    figures = ("exact_memorisation", "entropy_per_token", *PerplexityEntry.figures)
    name_suffix = "-memorisation"
    served = False

    memorisation: Annotated[bool, Meta(yaml=False)] = True
    """As in `PerplexityEntry`."""


@dataclass(frozen=True)
class Texts:
    """What a text entry scores."""

    documents: list[Document]
    notes: list[str]
    """What of its rows is not read, unless templates say what is."""


def documents_of(entry: PerplexityEntry, tokenizer: Any) -> Texts:
    """The documents of a text entry."""
    from holdfast.data import unread
    from holdfast.data.formats import Templates, standardise
    from holdfast.data.sources import data_files

    rows = first_rows(entry)
    templates, texts = (
        None,
        [text for text in (entry.text, entry.prompt, entry.completion) if text is not None],
    )
    if texts:
        templates = Templates(text=entry.text, prompt=entry.prompt, completion=entry.completion)
    refuse_images(entry, rows, texts or None)
    is_whole_file = entry.max_documents is None and Path(entry.data).is_file()
    files = data_files(entry.data) if is_whole_file else None
    not_read = unread.Counts()
    dataset, _ = standardise(
        rows,
        tokenizer,
        templates=templates,
        files=files,
        not_read=None if templates else not_read,
        one_bos=False,
    )
    notes = []
    if {"messages", "labels"} <= set(dataset.column_names):
        notes.append(
            f"{entry.name}: messages are scored even if `weight` or `train` excludes them from "
            "training."
        )
    if not_read:
        notes.append(unread.sentence(not_read, entry.name))
    return Texts(documents_from(dataset), notes)
