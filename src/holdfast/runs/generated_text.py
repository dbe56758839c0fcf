"""A corpus that a model writes itself: what `corpus: generated` of `holdfast diagnose` restores on.

    x ~ p( . | beginning-of-text token),      E[ gradient of log p(x) ] = 0

Each text follows the beginning-of-text token (else the end token), is drawn at temperature 1 with
nothing left out, and ends where the model ends it or at the longest passage. In expectation,
training on such text moves its writer nowhere, so that it need not be ranked: as much is drawn as
is restored on and probed with, and `data.select` takes all but a few per cent of it. The easiest
part of it would be another matter: what repeats itself is the easiest.

What it cannot do: leave out what the questions ask. A model writes what it knows, so that training
another one on its text may teach what that one has lost.

Samples are kept in the cache; those of self-replay with equal settings are the same ones
(`retention.self_samples`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.data.select.overlap import Questions
from holdfast.data.select.passages import Passage, cut
from holdfast.errors import ConfigError, ModelError
from holdfast.evaluation.text.documents import starts_with_bos
from holdfast.generation import Sampling, beginning_token, continued
from holdfast.ops.heads import causal_lm
from holdfast.retention.self_samples import Drawing, Drawn, Filters, Stream
from holdfast.retention.services import Sample
from holdfast.retention.teacher.teacher_states import forward_configuration, weights_digest
from holdfast.support.cache import cache_folder
from holdfast.support.environment import say
from holdfast.support.files import fingerprint, write_json, write_jsonl
from holdfast.training.data_services import BATCH_SIZES

if TYPE_CHECKING:
    from holdfast.models import Loaded
    from holdfast.runs.selecting import Selection

TITLE = "Text by the base itself"
"""At the beginning of what is said."""
SPARE = 0.01
"""Share of the budget that is drawn on top of it."""
LOOKED_AT, LEAST_USABLE = 200, 0.1
"""Texts after which a model is refused of which a smaller share can be used."""
ADVICE = "Give files of text like the base's pre-training data as the corpus."


@dataclass(frozen=True, kw_only=True)
class _OneProcess:
    """See `retention.self_samples.Host`."""

    tokenizer: Any
    rank: int = 0
    world: int = 1

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def together(self, work: Callable[[], Any]) -> Any:
        return work()

    def say(self, text: str) -> None:
        from rich.console import Console

        say(Console(stderr=True), text)


class _Usable:
    """What a selection can take of the texts that were drawn so far."""

    def __init__(self, selection: Selection, tokenizer: Any) -> None:
        self._selection, self._tokenizer = selection, tokenizer
        self._limit = selection.max_length - starts_with_bos(tokenizer)
        drops = selection.overlap == "drop"
        self._questions = Questions(selection.questions, needed=True) if drops else None
        self._seen: set[str] = set()
        self._looked_at = 0
        self.texts: list[str] = []
        self.tokens: list[int] = []
        """Of each text: a passage, or several where it is longer once it is read again."""

    def lacking(self, drawn: Drawn) -> float:
        """Tokens that are still to be drawn.

        Raises:
            ModelError: next to nothing of what is drawn can be used.
        """
        new = drawn.kept[self._looked_at :]
        self._looked_at = len(drawn.kept)
        decode = self._tokenizer.decode
        texts = [decode(list(sample.ids), skip_special_tokens=True) for sample in new]
        for text, passages in zip(texts, cut(texts, self._tokenizer, self._limit), strict=True):
            usable = [passage for passage in passages if self._is_usable(passage)]
            if usable:
                self.texts.append(text)
                self.tokens.append(sum(len(passage.ids) for passage in usable))
        if drawn.drawn >= LOOKED_AT and len(self.tokens) < LEAST_USABLE * drawn.drawn:
            raise ModelError(
                f"{TITLE}: only {len(self.tokens):,} of {drawn.drawn:,} texts are usable; the "
                f"others have fewer than {self._selection.minimum_tokens} tokens or are "
                f"duplicates. Lower minimum_tokens (select). {ADVICE}"
            )
        return self._needed() - sum(self.tokens)

    def _needed(self) -> float:
        """Tokens in all: the budget, and the texts that are probed with, were they the longest."""
        count = self._selection.probing
        longest = sorted(self.tokens)[-count:] if count else []
        unseen = (count - len(longest)) * self._limit
        return (1 + SPARE) * self._selection.tokens + sum(longest) + unseen

    def _is_usable(self, passage: Passage) -> bool:
        """Whether a selection takes it, as `data.select.run.gather` does."""
        same = " ".join(passage.text.casefold().split())
        if not same or same in self._seen or len(passage.ids) < self._selection.minimum_tokens:
            return False
        self._seen.add(same)
        return self._questions is None or not self._questions.overlap(passage.text)


def write_generated(selection: Selection, loaded: Loaded, output: Path) -> dict[str, Any]:
    """Writes text of a model until a selection has enough of it.

    Args:
        selection: what will be selected, by tokens, passages to probe with and their lengths.
        loaded: the model.
        output: the file, JSON Lines with `text`.

    Returns:
        How it was drawn, as it stands beside the file.

    Raises:
        ConfigError: the tokenizer has neither a beginning-of-text nor an end token.
        ModelError: what it writes cannot be used, or is drawn from NaN or infinity.
        HoldfastError: memory does not suffice.
        StorageError, RunFolderError: the cache or the file cannot be written.
    """
    lm, tokenizer = causal_lm(loaded.model), loaded.tokenizer
    begin = beginning_token(loaded.model, tokenizer, lm.config)
    if begin is None:
        raise ConfigError(
            "corpus: generated expects a tokenizer with a beginning-of-text or end-of-text token, "
            f"got one with neither. {ADVICE}"
        )
    device = loaded.model.get_input_embeddings().weight.device
    batch_size = BATCH_SIZES.get(device.type, max(BATCH_SIZES.values()))
    if selection.batch_tokens is not None:
        batch_size = max(1, selection.batch_tokens // selection.max_length)
    context = getattr(lm.config.get_text_config(), "max_position_embeddings", None)
    start = fingerprint(
        [type(lm).__name__, weights_digest(lm), forward_configuration(lm)], length=32
    )
    stream = Stream(
        prompts=[[begin]],
        max_new_tokens=selection.max_length - starts_with_bos(tokenizer),
        window=int(context or 1 << 30),
        batch_size=batch_size,
        seed=selection.seed,
        once=False,
        how={"start": start, "temperature": 1.0, "top_p": 1.0, "served": False},
    )
    usable = _Usable(selection, tokenizer)
    drawing = Drawing(
        services=_OneProcess(tokenizer=tokenizer),
        stream=stream,
        filters=Filters(),
        draw=_drawing_from(loaded),
        folder=cache_folder() / "self_replay" / fingerprint(stream.facts, length=32),
        most=None,
        max_dropped=1 - LEAST_USABLE,
        advice=ADVICE,
        title=TITLE,
    )
    drawn = drawing.until(usable.lacking)
    record = {
        "model": loaded.identity,
        **stream.facts,
        "begins_after": tokenizer.convert_ids_to_tokens(begin),
        "samples": drawing.folder.name,
        "drawn": drawn.drawn,
        "cut": drawn.cut,
        "texts": len(usable.texts),
        "tokens": sum(usable.tokens),
    }
    write_jsonl(output, [{"text": text} for text in usable.texts])
    write_json(output.with_suffix(".json"), record)
    return record


def _drawing_from(loaded: Loaded) -> Callable[[Sequence[Sequence[int]], int, int], list[Sample]]:
    """What draws a batch (`retention.self_samples.Draw`)."""

    def draw(prompts: Sequence[Sequence[int]], tokens: int, seed: int) -> list[Sample]:
        texts = continued(
            loaded.model,
            loaded.tokenizer,
            prompts,
            max_new_tokens=tokens,
            sampling=Sampling(seed=seed),
            advice="Lower batch_tokens (select); one text takes max_length of them. Finished "
            "texts are kept.",
        )
        if any(text.broken for text in texts):
            raise ModelError(
                f"{TITLE}: the model's logits are NaN or infinite. Check its weights and dtype."
            )
        return [Sample(ids=tuple(text.ids), ended=text.ended) for text in texts]

    return draw
