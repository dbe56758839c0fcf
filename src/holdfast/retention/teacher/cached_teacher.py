"""The `cached` teacher: hidden states that were computed once and are read again in every epoch and every run.

The start model never changes, so its last hidden states of a document never change either. They are stored once
(`state_store`, filled by `teacher_states`) and each step reads what it needs; logits are made by the teacher's head
inside the loss, so the KL is the exact one over the whole vocabulary. Cost a step: reading and one vocabulary product
more.

A state depends on its document's tokens and on nothing else: documents are isolated in packed rows, and padding is
masked. So a document is found by the hash of its token ids, wherever and beside whatever it stands. `find_documents`
sees documents as the loss does: a new one begins where `position_ids` is 0 (packing), else a row is one document
without its padding.

A document that is not stored is an error: a collator that changes tokens needs `teacher: online`. Except one of a
single token, which is how the padding of a packed row looks: nothing is predicted within it, so its states are NaN, and
the loss raises should they take part after all.

Shape suffixes: B batch, T positions, D documents of a batch, K teacher width.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

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
"""Inputs that a state either depends on through its document's tokens or does not depend on. The last five say where
packed documents end, once more."""


class Document(NamedTuple):
    """One document of a batch."""

    key: bytes
    """Hash of its token ids."""
    row: int
    start: int
    """First position within its row."""
    length: int
    """Tokens, 1 or more."""


def document_key(tokens: Any) -> bytes:
    """BLAKE2b-128 of token ids, a contiguous little-endian int32 array."""
    return hashlib.blake2b(tokens, digest_size=KEY_BYTES).digest()


def find_documents(inputs: dict[str, Any]) -> list[Document]:
    """The documents of a batch, in the order of their rows and starts.

    Args:
        inputs: `input_ids [B, T]`, and `position_ids [B, T]` or `[1, T]` that restart at 0 (packing), `attention_mask
            [B, T]` (padding on either side), both or neither.

    Raises:
        DataError: inputs on which a state depends beside its document's tokens (images, embeddings, a mask with gaps,
            positions that do not count from 0), so that it cannot be looked up by them.
    """
    strange = sorted(k for k, v in inputs.items() if k not in KNOWN_INPUTS and v is not None)
    if strange:
        raise DataError(
            "label_annealing.teacher: cached looks the teacher's states up by their tokens, and this batch has "
            "inputs beside them: "
            f"{', '.join(strange)}. Instead, use teacher: online."
        )
    ids_BT: Tensor = inputs["input_ids"]
    rows, positions = ids_BT.shape
    flat = ids_BT.detach().to("cpu", torch.int32).contiguous().view(-1)
    begins_BT = torch.zeros(rows, positions, dtype=torch.bool)
    begins_BT[:, :1] = True
    position_ids, mask = inputs.get("position_ids"), inputs.get("attention_mask")
    if position_ids is not None:
        position_ids = position_ids.detach().cpu().expand(rows, positions)
        begins_BT |= position_ids == 0
    if mask is not None and mask.shape != ids_BT.shape:
        raise DataError(
            f"label_annealing.teacher: cached expects an attention_mask of the tokens' shape {tuple(ids_BT.shape)}, "
            "got "
            f"{tuple(mask.shape)}. Instead, use teacher: online."
        )
    document = begins_BT.view(-1).cumsum(0)
    kept = torch.arange(len(flat)) if mask is None else (mask.detach().cpu() != 0).reshape(-1).nonzero().squeeze(1)
    _, lengths = document[kept].unique_consecutive(return_counts=True)
    ends = lengths.cumsum(0)
    first, last = kept[ends - lengths], kept[ends - 1]
    if not torch.equal(last - first + 1, lengths):
        raise DataError(
            "label_annealing.teacher: cached expects padding at the ends of documents only, got an attention_mask "
            "with gaps inside "
            "one."
        )
    if position_ids is not None:
        counted = torch.arange(len(kept)) - (ends - lengths).repeat_interleave(lengths)
        if not torch.equal(position_ids.reshape(-1)[kept].long(), counted):
            raise DataError(
                "label_annealing.teacher: cached expects position_ids that count from 0 in every document, got "
                "others. Instead, "
                "use teacher: online."
            )
    array = flat.numpy().astype("<i4", copy=False)
    documents = []
    for start, length in zip(first.tolist(), lengths.tolist(), strict=True):
        key = document_key(array[start : start + length])
        documents.append(Document(key, start // positions, start % positions, length))
    return documents


class CachedTeacher:
    """A `Teacher` that reads its states from a store.

    Args:
        store: holds the states of every document that will come.
        head: the start model's own, a copy where training moves the original.
        dtype: the dtype that the teacher's forward yields; states that are stored in another (a lossy option) are
            converted after reading.
    """

    name = "cached"

    def __init__(self, store: StateStore, head: Head, *, dtype: torch.dtype) -> None:
        self.store, self.dtype = store, dtype
        self.width = int(head.weight_VH.shape[1])
        self._head = head

    def hidden(self, inputs: dict[str, Any]) -> tuple[Tensor, Head]:
        """Stored states `[B, T, K]` and the head; raises as `of`."""
        return self.of(inputs), self._head

    @torch.no_grad()
    def of(self, inputs: dict[str, Any]) -> Tensor:
        """`[B, T, K]` on the inputs' device, zeros at padding (NaN at that of packed rows).

        Raises:
            DataError: a document that is not stored, or inputs that `find_documents` refuses.
        """
        documents = find_documents(inputs)
        ids_BT: Tensor = inputs["input_ids"]
        pinned = ids_BT.is_cuda
        # Pinned memory goes back to a pool that waits for copies under way, so a fresh buffer a batch is cheap and
        # never overwritten too early.
        shape = (*ids_BT.shape, self.width)
        buffer_BTK = torch.zeros(shape, dtype=self.store.dtype() or self.dtype, pin_memory=pinned)
        for key, row, start, length in documents:
            states_NK = buffer_BTK[row, start : start + length]
            if key in self.store:
                states_NK.copy_(self.store.read(key))
            elif length == 1:
                states_NK.fill_(float("nan"))
            else:
                tokens = ids_BT[row, start : start + min(length, 8)].tolist()
                raise DataError(
                    f"label_annealing.teacher: cached has nothing of a document of {length} tokens that begins with "
                    f"{tokens}: it is not one of the prepared training or evaluation data. Where the collator changes "
                    f"or cuts tokens as it goes, use teacher: online; data given to evaluate() later has to be given "
                    f"as eval_dataset before training."
                )
        return buffer_BTK.to(ids_BT.device, non_blocking=pinned).to(self.dtype)
