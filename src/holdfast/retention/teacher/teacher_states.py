"""Filling a store with the start model's states: whose they are, how they are computed, and what a
smaller dtype costs.

**Whose.** `teacher_facts` are what decides the states: the weights as they are in memory (names,
shapes, dtypes, bytes; adapters left out, so that LoRA and full fine-tuning share), the model's
configuration, its attention implementation, the autocast it runs under, the dtype the states are
stored in and versions of format and library. Anything else about a run, its learning rate for
example, may differ: a sweep computes the states once.

**How.** `build_states` runs the start model itself, which every run holds before its first step, in
evaluation mode without graph. Documents are sorted by length and padded to the right
(`plan_batches`). A state depends on its neighbours in such a batch by rounding only: matrix
products over other shapes add in another order.

**A smaller dtype.** The states are stored in the dtype the forward yields. Rounding them (float32
to bfloat16 halves the file) moves the teacher by a KL of its own, and near the start, where student
and teacher are close, the gradient is the difference of two nearly equal distributions:

    relative error of the gradient  ~  sqrt(KL(teacher || rounded teacher) / KL(teacher || student))

The error falls as the student moves away and never vanishes.

Shape suffixes: B batch, T positions, N tokens of a document, K width.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from holdfast.errors import ModelError
from holdfast.ops.document_attention import IMPLEMENTATION
from holdfast.ops.heads import Head, causal_lm, describe_head, run_outside
from holdfast.retention.teacher.state_store import FORMAT, StateStore
from holdfast.retention.teacher.teacher import Teacher, without_dropout
from holdfast.support.environment import package_version

SHARD_BYTES = 256 * 2**20
"""States of a shard, bytes: few enough to lose little when a build is killed, enough that a large
cache is hundreds of files, not millions."""
SHARD_SECONDS = 300.0
"""A slow build writes what it has after this time, however little."""
_NO_EFFECT = {
    "_name_or_path",
    "name_or_path",
    "transformers_version",
    "architectures",
    "dtype",
    "torch_dtype",
    "use_cache",
    "return_dict",
    "output_hidden_states",
    "output_attentions",
    "output_router_logits",
    "id2label",
    "label2id",
    "problem_type",
    "chunk_size_feed_forward",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "sep_token_id",
    "decoder_start_token_id",
    "is_encoder_decoder",
    "auto_map",
}
"""Entries of a model's configuration that leave its hidden states alone. dtypes are hashed with the
weights."""
_LEARNT = {"modules_to_save", "trainable_tokens_delta", "trainable_tokens_original"}
"""Parts of the names that PEFT gives to what it trains, beside those that begin with the adapter's
own prefix."""
_AROUND = {"base_layer", "original_module", "token_adapter"}
"""Parts of the names that PEFT puts around the base's weights."""


class StartModel:
    """The model that is going to be trained, as its own teacher before the first step.

    Args:
        model: full fine-tuning's model; of a LoRA model `AdapterOffTeacher` gives the same.
    """

    name = "start model"

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    @torch.no_grad()
    def hidden(self, inputs: dict[str, Any]) -> tuple[Tensor, Head]:
        with without_dropout(self.model):
            return run_outside(self.model, **inputs), describe_head(self.model).detached()


# -------------------------------------------------------------------------------------------- whose


def teacher_facts(
    model: nn.Module, *, device: torch.device, stored: torch.dtype | None
) -> dict[str, Any]:
    """What decides a model's states, JSON-able; its `fingerprint` is the teacher's key. Call it
    under the autocast that the forward will run in.

    Args:
        model: the start model, plain or with adapters that are the identity.
        device: where the forward runs; only its kind counts, for autocast.
        stored: the dtype asked for; None: the one the forward yields.

    Raises:
        ModelError: the weights are not whole in this process (sharded, or not loaded).
    """
    lm: Any = causal_lm(model)
    attention = lm.config.get_text_config()._attn_implementation
    autocast = (
        torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else "off"
    )
    return {
        "format": FORMAT,
        "model": type(lm).__name__,
        "weights": weights_digest(model),
        "config": forward_configuration(lm),
        # Documents go through our own attention one by one, which is sdpa.
        "attention": "sdpa" if attention == IMPLEMENTATION else attention,
        "autocast": str(autocast),
        "stored": str(stored),
        "transformers": str(package_version("transformers")).split(".")[:2],
    }


def forward_configuration(lm: nn.Module) -> dict[str, Any]:
    """All of a causal LM's configuration but what no forward pass depends on, as plain JSON."""
    return dict(json.loads(json.dumps(lm.config.to_dict(), default=str), object_hook=_effective))


def _effective(entries: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entries.items() if name not in _NO_EFFECT}


def weights_digest(model: nn.Module) -> str:
    """SHA-256 (hex) of the weights and stored buffers in memory, without adapters and under the
    names of the bare model.

    Raises:
        ModelError: weights that are not whole in this process.
    """
    adapters = hasattr(model, "disable_adapter")
    prefix = getattr(model.base_model, "prefix", None) if adapters else None
    tensors: dict[str, Tensor] = {}
    for name, value in causal_lm(model).state_dict().items():
        path = name.split(".")
        if adapters:
            if any(name in _LEARNT or (prefix and name.startswith(prefix)) for name in path):
                continue
            path = [name for name in path if name not in _AROUND]
        if not isinstance(value, Tensor):
            continue
        tensors[".".join(path)] = value
        if (
            value.is_meta
            or hasattr(value, "full_tensor")
            or (value.numel() == 0 and hasattr(value, "ds_shape"))
        ):
            raise ModelError(
                f"Expected the whole initial model in memory, but {name} is sharded or not "
                "loaded here."
            )
    with ThreadPoolExecutor(max_workers=4) as pool:  # hashing runs outside Python's lock
        return hashlib.sha256(b"".join(pool.map(_weight_line, sorted(tensors.items())))).hexdigest()


def _weight_line(weight: tuple[str, Tensor]) -> bytes:
    name, value = weight
    content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return f"{name} {tuple(value.shape)} {value.dtype} {hashlib.sha256(content).hexdigest()}\n".encode()


# ---------------------------------------------------------------------------------------------- how


def plan_batches(documents: Mapping[bytes, Any], *, tokens: int) -> list[list[bytes]]:
    """Documents of about the same length together, the longest first, at most `tokens` a batch with
    padding (a longer document is one of its own).

    Formed of all documents of a run, whichever of them are missing: then a build that goes on after
    it was killed, or replaces a damaged shard, computes the same batches and so the same bits.
    """
    # what needs most memory first
    order = sorted(documents, key=lambda k: (len(documents[k]), k), reverse=True)
    batches: list[list[bytes]] = []
    first = 0
    while first < len(order):
        count = max(1, tokens // len(documents[order[first]]))
        batches.append(order[first : first + count])
        first += count
    return batches


def build_states(
    store: StateStore,
    documents: Mapping[bytes, Any],
    batches: Sequence[Sequence[bytes]],
    source: Teacher,
    *,
    device: torch.device,
    stored: torch.dtype | None = None,
    advance: Callable[[float], None],
) -> None:
    """Computes batches of documents and stores those that the store has not, also what was computed
    before an error. Call it under the autocast of training.

    Args:
        documents: key -> token ids, int32 arrays.
        batches: keys, of `plan_batches`; one that does not fit in an accelerator's memory is split.
        source: gives the states: `StartModel` or `AdapterOffTeacher`.
        device: where the source computes.
        stored: dtype in the file; None: what the forward yields.
        advance: gets the number of tokens that are done.

    Raises:
        ModelError: states that are not finite, or do not fit in `stored`.
        StorageError: the disk.
    """
    todo = [*reversed(batches)]
    pending: dict[bytes, Tensor] = {}
    forward = torch.float32
    size, began = 0, time.monotonic()
    try:
        while todo:
            batch = todo.pop()
            rows = [torch.as_tensor(documents[key], dtype=torch.int64) for key in batch]
            ids_BT = pad_sequence(rows, batch_first=True, padding_value=-1).to(device)
            inputs = {"input_ids": ids_BT.clamp(min=0), "attention_mask": (ids_BT >= 0).long()}
            try:
                hidden_BTK, _ = source.hidden(inputs)
            except torch.OutOfMemoryError:
                if len(batch) == 1:
                    raise
                todo += [batch[len(batch) // 2 :], batch[: len(batch) // 2]]
                continue
            forward = hidden_BTK.dtype
            hidden_BTK = hidden_BTK.to("cpu", stored or forward)
            for key, row, states_TK in zip(batch, rows, hidden_BTK, strict=True):
                states_NK = states_TK[: len(row)]
                if not torch.isfinite(states_NK).all():
                    raise ModelError(
                        "Expected finite numbers from the initial model, got NaN or infinity in "
                        f"a document of {len(row)} tokens. If {states_NK.dtype} overflows, use "
                        "another cache_dtype."
                    )
                if key in store.states:
                    continue
                pending[key] = states_NK
                size += states_NK.nbytes
                if size >= SHARD_BYTES or time.monotonic() - began > SHARD_SECONDS:
                    store.write(pending, forward)
                    pending, size, began = {}, 0, time.monotonic()
            advance(sum(map(len, rows)))
    finally:
        if pending:
            store.write(pending, forward)
