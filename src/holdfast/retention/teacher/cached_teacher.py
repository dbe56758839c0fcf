"""The `cached` teacher: hidden states that were computed once and are read again in every epoch and
every run.

The start model never changes, so its last hidden states of a document never change either. They are
stored once (`state_store`, filled by `teacher_states`) and each step reads what it needs; logits
are made by the teacher's head inside the loss, so the KL is the exact one over the whole
vocabulary. Cost a step: reading and one vocabulary product more.

A state depends on its document's tokens and on nothing else: documents are isolated in packed rows,
and padding is masked. So a document is found by the hash of its token ids, wherever and beside
whatever it stands. `find_documents` sees documents as the loss does: a new one begins where
`position_ids` is 0 (packing), else a row is one document without its padding.

A document that is not stored is an error: a collator that changes tokens needs `teacher: online`.
Except one of a single token, which is how the padding of a packed row looks: nothing is predicted
within it, so its states are NaN, and the loss raises should they take part after all.

Shape suffixes: B batch, T positions, D documents of a batch, K teacher width.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from holdfast.errors import DataError
from holdfast.ops.heads import Head
from holdfast.retention.teacher.state_store import KEY_BYTES, StateStore

KNOWN_INPUTS = {
    "input_ids",
    "attention_mask",
    "position_ids",
    "labels",
    "use_cache",
    "cu_seq_lens_q",
    "cu_seq_lens_k",
    "max_length_q",
    "max_length_k",
    "seq_idx",
}
"""Inputs that a state either depends on through its document's tokens or does not depend on. The
last five say where packed documents end, once more."""


class Document(NamedTuple):
    """One document of a batch."""

    key: bytes
    """Hash of its token ids."""
    span: tuple[int, slice]
    """Its row and its positions in there."""
    tokens: np.ndarray
    """Its token ids, int32; 1 or more."""


def document_key(tokens: Any) -> bytes:
    """BLAKE2b-128 of token ids, a contiguous int32 array."""
    return hashlib.blake2b(tokens, digest_size=KEY_BYTES).digest()


def find_documents(inputs: dict[str, Any]) -> list[Document]:
    """The documents of a batch, in the order of their rows and starts.

    Args:
        inputs: `input_ids [B, T]`, and `position_ids [B, T]` or `[1, T]` that restart at 0
            (packing), `attention_mask [B, T]` (padding on either side), both or neither.

    Raises:
        DataError: inputs on which a state depends beside its document's tokens (images, embeddings,
            a mask with gaps, positions that do not count from 0), so that it cannot be looked up by
            them.
    """
    unknown = sorted(
        name for name, value in inputs.items() if name not in KNOWN_INPUTS and value is not None
    )
    if unknown:
        raise DataError(
            "label_annealing.teacher: cached looks up the teacher's states by tokens, but this "
            f"batch has other inputs: {', '.join(unknown)}. Use teacher: online."
        )
    ids_BT = inputs["input_ids"].to("cpu", torch.int32).numpy()
    mask, positions = inputs.get("attention_mask"), inputs.get("position_ids")
    token_BT = np.ones(ids_BT.shape, dtype=bool)
    if mask is not None:
        token_BT = (mask != 0).cpu().numpy()
    if token_BT.shape != ids_BT.shape:
        raise DataError(
            "label_annealing.teacher: cached expects an attention_mask of the tokens' shape "
            f"{ids_BT.shape}, got {token_BT.shape}. Use teacher: online."
        )
    position_BT = token_BT.cumsum(axis=1) - 1
    if positions is not None:
        position_BT = np.broadcast_to(positions.cpu().numpy(), ids_BT.shape)
    position_BT = np.where(token_BT, position_BT, -1)
    begins_BT = position_BT == 0
    follows_BT = (position_BT > 0) & (np.diff(position_BT, prepend=-1) == 1)
    if not ((begins_BT | follows_BT) == token_BT).all():
        raise DataError(
            "label_annealing.teacher: cached expects padding only at the ends of documents, and "
            "position_ids that count from 0 without gaps in every document. This batch differs. "
            "Use teacher: online."
        )
    starts = np.flatnonzero(begins_BT)
    lengths = np.add.reduceat(token_BT.ravel(), starts, dtype=np.int64)  # padding adds nothing
    documents = []
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        row, first = divmod(start, ids_BT.shape[1])
        tokens = ids_BT[row, first : first + length]
        documents.append(
            Document(document_key(tokens), (row, slice(first, first + length)), tokens)
        )
    return documents


class CachedTeacher:
    """A `Teacher` that reads its states from a store.

    Args:
        store: holds the states of every document that will come.
        head: the start model's own, a copy where training moves the original.
    """

    name = "cached"

    def __init__(self, store: StateStore, head: Head) -> None:
        self.store, self.head = store, head

    @torch.no_grad()
    def hidden(self, inputs: dict[str, Any]) -> tuple[Tensor, Head]:
        """Stored states `[B, T, K]` on the inputs' device, zeros at padding (NaN at that of packed
        rows), and the head. States that are stored in a smaller dtype than the teacher's forward
        yields are converted as they are read.

        Raises:
            DataError: a document that is not stored, or inputs that `find_documents` refuses.
        """
        ids_BT: Tensor = inputs["input_ids"]
        # Pinned memory goes back to a pool that waits for copies under way, so a fresh buffer a
        # batch is cheap and never overwritten too early.
        shape = (*ids_BT.shape, self.head.weight_VH.shape[1])
        buffer_BTK = torch.zeros(shape, dtype=self.store.forward, pin_memory=ids_BT.is_cuda)
        for key, span, tokens in find_documents(inputs):
            if key in self.store.states:
                buffer_BTK[span] = self.store.states[key]
            elif len(tokens) == 1:
                buffer_BTK[span] = float("nan")
            else:
                raise DataError(
                    "label_annealing.teacher: cached has no states for a document of "
                    f"{len(tokens)} tokens that begins with {tokens[:8].tolist()}: it is not in "
                    "the prepared training or evaluation data. If the collator changes or "
                    "truncates tokens, use teacher: online. Give data for evaluate() as "
                    "eval_dataset before training."
                )
        return buffer_BTK.to(ids_BT.device, non_blocking=ids_BT.is_cuda), self.head
