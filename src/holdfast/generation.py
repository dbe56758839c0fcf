"""Continuations by a model in memory, in batches: what evaluation asks greedily, and what is drawn
to be trained on.

Prompts of a batch are padded on the left. In some architectures the padding moves what comes behind
it whatever the mask says (RWKV, which reads a row as one); that is found out once a model, and
their prompts are continued one by one.

transformers fills whatever a generation configuration leaves open from the model's own (a
repetition penalty of 1.05 stands in released instruct models), so the model's own is empty
meanwhile.

Shapes: B prompts of a batch, T tokens of the longest of them.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    import torch


BROKEN = "the logits of the generated replies are NaN or infinite."
"""What an evaluation with such replies has failed by."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How tokens are drawn."""

    temperature: float = 1.0
    """Above 0."""
    top_p: float = 1.0
    """Share of the probability that is drawn from, in (0, 1]; 1: all of it."""
    seed: int
    """Equal prompts, seeds and devices, equal continuations."""


@dataclass(frozen=True, kw_only=True)
class Continued:
    """What a model wrote after one prompt."""

    ids: list[int]
    """Tokens up to the end token, with it where there is one."""
    ended: bool
    """Whether there was an end token within the tokens that it was given."""
    broken: bool = False
    """Whether logits that it, or another of its batch, was chosen by were NaN or plus infinity."""


class Watch:
    """A logits processor that remembers whether replies were chosen by numbers: the largest of NaNs
    is a token too, and the text that is made of them looks like any other.

    Minus infinity beside others is a probability of 0, which models and other processors give on
    purpose.
    """

    def __init__(self) -> None:
        self.broken = False
        """Whether the largest of a reply's logits was none."""

    def __call__(self, ids_BT: torch.Tensor, logits_BV: torch.Tensor) -> torch.Tensor:
        if bool(logits_BV.amax(-1).isfinite().all()):  # NaN is the largest of all
            return logits_BV
        self.broken = True
        return logits_BV.nan_to_num(0.0, posinf=0.0)  # sampling from NaN is an error of torch's


def continued(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    sampling: Sampling | None = None,
    advice: str = "Lower batch_size or max_new_tokens. Finished replies are kept.",
) -> list[Continued]:
    """Continuations of one batch of prompts, in their order.

    Args:
        model: a Hugging Face causal LM in evaluation mode.
        tokenizer: its tokenizer.
        prompts: token ids, none empty.
        max_new_tokens: tokens of a continuation at most, at least 1.
        sampling: how tokens are drawn; None: the most likely one each time. The global random state
            is left as it was.
        advice: what to do where memory does not suffice.

    Raises:
        HoldfastError: the accelerator's memory does not suffice.
    """
    import torch
    from transformers import GenerationConfig, LogitsProcessorList

    ends = end_tokens(model, tokenizer)
    padding = (
        tokenizer.pad_token_id if tokenizer.pad_token_id is not None else ends[0] if ends else 0
    )
    device = model.get_input_embeddings().weight.device
    longest = max(map(len, prompts))
    drawn: dict[str, Any] = {"do_sample": False}
    if sampling is not None:
        drawn = {
            "do_sample": True,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": 0,
        }
    config = GenerationConfig(
        num_beams=1,
        max_new_tokens=max_new_tokens,
        eos_token_id=ends or None,
        pad_token_id=padding,
        use_cache=True,
        **drawn,
    )
    watch = Watch()
    ids_BT = torch.tensor(
        [[padding] * (longest - len(ids)) + list(ids) for ids in prompts], device=device
    )
    mask_BT = torch.tensor(
        [[0] * (longest - len(ids)) + [1] * len(ids) for ids in prompts], device=device
    )
    seeded = _seeded(sampling.seed, device) if sampling is not None else contextlib.nullcontext()
    try:
        with torch.no_grad(), _without_defaults(model), seeded:
            generate = functools.partial(
                model.generate,
                generation_config=config,
                logits_processor=LogitsProcessorList([watch]),
            )
            out_BT = generate_padded(model, generate, ids_BT, mask_BT, padding=padding)
    except torch.OutOfMemoryError as error:
        raise HoldfastError(
            f"Not enough memory to generate {len(prompts)} replies at once, to prompts of up to "
            f"{longest} tokens. {advice}"
        ) from error
    return [_up_to_end(row, ends, broken=watch.broken) for row in out_BT[:, longest:].tolist()]


def generate_padded(
    model: Any,
    generate: Callable[..., torch.Tensor],
    ids_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    padding: int,
) -> torch.Tensor:
    """Prompts with their continuations `[B, T + new]`, padded on both sides: of one batch, or row
    by row where padding would move them.

    Args:
        model: that generates.
        generate: takes `input_ids` and `attention_mask`.
        ids_BT, mask_BT: prompts, padded on the left, and 0 where they are.
        padding: the token that fills rows.
    """
    import torch

    if bool(mask_BT.all()) or ignores_padding(model):
        return generate(input_ids=ids_BT, attention_mask=mask_BT)
    rows = []
    for ids_T, mask_T in zip(ids_BT, mask_BT, strict=True):
        prompt = ids_T[mask_T != 0][None]
        written = generate(input_ids=prompt, attention_mask=torch.ones_like(prompt))
        rows.append(torch.cat([ids_T, written[0, prompt.shape[1] :]]))
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=padding)


def ignores_padding(model: Any) -> bool:
    """Whether a model continues a prompt that is padded on the left as it continues it alone: tried
    once a model, on the logits of a few tokens."""
    if model not in _ignoring:
        try:
            _ignoring[model] = _padding_moves(model) <= (5e-3 if _is_exact(model) else 0.15)
        except Exception:  # it generates nothing at all, which whoever asks it meets
            _ignoring[model] = True
    return _ignoring[model]


_ignoring: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
"""What came of the trials of `ignores_padding`."""


def _is_exact(model: Any) -> bool:
    import torch

    return next(model.parameters()).dtype in (torch.float32, torch.float64)


def _padding_moves(model: Any) -> float:
    """How far padding moves the logits of a few tokens that follow a prompt: root mean square over
    the vocabulary, in their standard deviations; the largest of the tokens."""
    import torch
    from transformers import GenerationConfig

    embeddings = model.get_input_embeddings().weight
    prompt = torch.arange(3, 9, device=embeddings.device) % len(embeddings)
    other = torch.arange(2, 13, device=embeddings.device) * 7 % len(embeddings)
    padded = torch.cat(
        [torch.zeros(len(other) - len(prompt), dtype=prompt.dtype, device=prompt.device), prompt]
    )
    config = GenerationConfig(max_new_tokens=4, do_sample=False, pad_token_id=0, use_cache=True)
    how = {"generation_config": config, "output_logits": True, "return_dict_in_generate": True}
    with torch.no_grad(), _without_defaults(model):
        alone = model.generate(
            input_ids=prompt[None], attention_mask=torch.ones_like(prompt)[None], **how
        )
        ids_BT = torch.stack([padded, other])
        mask_BT = torch.ones_like(ids_BT)
        mask_BT[0, : -len(prompt)] = 0
        both = model.generate(input_ids=ids_BT, attention_mask=mask_BT, **how)
    moved = 0.0
    for step, (single, two) in enumerate(zip(alone.logits, both.logits, strict=True)):
        position = len(prompt) + step
        if step and alone.sequences[0, position - 1] != both.sequences[0, len(other) + step - 1]:
            break  # a near tie of the token before: what follows is of another text
        moved = max(
            moved,
            float((single[0] - two[0]).float().square().mean().sqrt() / single[0].float().std()),
        )
    return moved


def end_tokens(model: Any, tokenizer: Any) -> list[int]:
    """The tokens that end what a model says: its generation configuration's and the tokenizer's."""
    stop_ids = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ends = (
        list(stop_ids)
        if isinstance(stop_ids, (list, tuple))
        else []
        if stop_ids is None
        else [stop_ids]
    )
    return list(
        dict.fromkeys(
            [*ends, *([tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else [])]
        )
    )


def beginning_token(model: Any, tokenizer: Any, config: Any) -> int | None:
    """The token that texts begin with, else the one that ends them; None where there is neither.

    Args:
        model: a Hugging Face causal LM.
        tokenizer: its tokenizer.
        config: of the language model in it.
    """
    for holder in (tokenizer, getattr(model, "generation_config", None), config):
        token = getattr(holder, "bos_token_id", None)
        if token is not None:
            return int(token)
    ends = end_tokens(model, tokenizer)
    return ends[0] if ends else None


def _up_to_end(row: list[int], ends: Sequence[int], *, broken: bool) -> Continued:
    stop = next((position for position, token in enumerate(row) if token in ends), len(row))
    return Continued(ids=row[: stop + 1], ended=stop < len(row), broken=broken)


@contextlib.contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    import torch

    kind = device.type if device.type != "cpu" else None
    with torch.random.fork_rng(devices=[device] if kind else [], device_type=kind or "cuda"):
        torch.default_generator.manual_seed(seed)
        if kind:
            getattr(torch, kind).manual_seed(seed)
        yield


@contextlib.contextmanager
def _without_defaults(model: Any) -> Iterator[None]:
    """The model's own generation configuration is empty inside. In place: an adapter's wrapper
    hands the object on to the model in it."""
    from transformers import GenerationConfig

    defaults = getattr(model, "generation_config", None)
    if defaults is None:
        yield
        return
    saved = dict(vars(defaults))
    vars(defaults).clear()
    vars(defaults).update(vars(GenerationConfig()))
    try:
        yield
    finally:
        vars(defaults).clear()
        vars(defaults).update(saved)
