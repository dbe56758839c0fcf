"""Greedy generation in batches: what a model says after prompts, whatever its checkpoint says about sampling.

Prompts of similar length go together, padded on the left, the longest first, so that what does not fit into memory
shows at once and the remaining time is never too low. transformers fills whatever a generation configuration leaves
open from the model's own (a repetition penalty of 1.05 stands in released instruct models), so the model's own is empty
meanwhile.

Shapes: B prompts of a batch, T tokens of the longest of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Continuation:
    """What a model wrote after one prompt."""

    index: int
    """Of the prompt."""
    ids: list[int]
    """Tokens up to the end token, without it."""
    cut: bool
    """Whether there was no end token within the tokens that it was given."""
    broken: bool = False
    """Whether logits that it, or another of its batch, was chosen by were NaN or plus infinity."""


class Watch:
    """A logits processor that remembers whether replies were chosen by numbers: the largest of NaNs is a token too, and
    the text that is made of them looks like any other.

    Minus infinity beside others is a probability of 0, which models and other processors give on purpose.
    """

    def __init__(self) -> None:
        self.broken = False
        """Whether the largest of a reply's logits was none."""

    def __call__(self, ids_BT: torch.Tensor, logits_BV: torch.Tensor) -> torch.Tensor:
        if bool(logits_BV.amax(-1).isfinite().all()):  # NaN is the largest of all
            return logits_BV
        self.broken = True
        return logits_BV.nan_to_num(0.0, posinf=0.0)  # sampling from NaN is an error of torch's


BROKEN = "the logits that replies were chosen by are NaN or infinite."
"""What an entry with such replies has failed by."""


def greedy(
    model: Any,
    tokenizer: Any,
    encoded: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    batch_size: int,
    window: int | None = None,
) -> Iterator[list[Continuation]]:
    """Greedy continuations, batch by batch.

    Args:
        model: a Hugging Face causal LM.
        tokenizer: its tokenizer.
        encoded: token ids of the prompts, none empty.
        max_new_tokens: tokens of a continuation at most.
        batch_size: prompts a forward pass; continuations depend on it in the last digits, hence in rare words.
        window: the model's context in tokens, which prompt and continuation share; None: there is room.

    Raises:
        HoldfastError: the accelerator's memory does not suffice.
    """
    import torch
    from transformers import GenerationConfig, LogitsProcessorList

    from holdfast.evaluation.modes import evaluation_mode

    ends = end_tokens(model, tokenizer)
    padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else ends[0] if ends else 0
    device = model.get_input_embeddings().weight.device
    order = sorted(range(len(encoded)), key=lambda i: -len(encoded[i]))
    with evaluation_mode(model), _without_defaults(model):
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            longest = len(encoded[batch[0]])
            config = GenerationConfig(
                do_sample=False,
                num_beams=1,
                max_new_tokens=max_new_tokens if window is None else min(max_new_tokens, window - longest),
                eos_token_id=ends or None,
                pad_token_id=padding,
                use_cache=True,
            )
            watch = Watch()
            ids_BT = torch.tensor(
                [[padding] * (longest - len(encoded[i])) + list(encoded[i]) for i in batch], device=device
            )
            mask_BT = torch.tensor(
                [[0] * (longest - len(encoded[i])) + [1] * len(encoded[i]) for i in batch], device=device
            )
            try:
                out_BT = model.generate(
                    input_ids=ids_BT,
                    attention_mask=mask_BT,
                    generation_config=config,
                    logits_processor=LogitsProcessorList([watch]),
                )
            except torch.OutOfMemoryError as error:
                raise HoldfastError(
                    f"Not enough memory to continue {len(batch)} prompts of up to {longest} tokens at once. Lower "
                    f"batch_size or max_new_tokens; "
                    "what was finished is kept."
                ) from error
            rows = zip(batch, out_BT[:, longest:].tolist(), strict=True)
            yield [_continuation(i, row, ends, broken=watch.broken) for i, row in rows]


def end_tokens(model: Any, tokenizer: Any) -> list[int]:
    """The tokens that end what a model says: its generation configuration's and the tokenizer's."""
    found = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ends = list(found) if isinstance(found, (list, tuple)) else [] if found is None else [found]
    return list(dict.fromkeys([*ends, *([tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else [])]))


def _continuation(index: int, row: list[int], ends: Sequence[int], *, broken: bool) -> Continuation:
    stop = next((place for place, token in enumerate(row) if token in ends), len(row))
    return Continuation(index=index, ids=row[:stop], cut=stop == len(row), broken=broken)


@contextlib.contextmanager
def _without_defaults(model: Any) -> Iterator[None]:
    """The model's own generation configuration is empty inside. In place: an adapter's wrapper hands the object on to
    the model in it."""
    from transformers import GenerationConfig

    own = getattr(model, "generation_config", None)
    if own is None:
        yield
        return
    held = dict(vars(own))
    vars(own).clear()
    vars(own).update(vars(GenerationConfig()))
    try:
        yield
    finally:
        vars(own).clear()
        vars(own).update(held)
