"""Where a batch's tokens are from, for losses that weigh new, replayed and generated ones
differently.

Rows carry one number a document (`data.mixing.ORIGIN`); a batch carries one a token, `[B, T]`
int64, under the same name. Nothing of this exists in runs whose weights are all the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from holdfast.data.mixing import NEW, ORIGIN
from holdfast.retention.protocol import ORIGINS


class OriginCollator:
    """A collator that adds `ORIGIN` to the batches of another.

    Args:
        collate: gives `input_ids` of `[B, T]`, a row of the batch for each, with an
            `attention_mask` where rows are padded; or all rows in one, one after the other.
    """

    def __init__(self, collate: Any) -> None:
        self.collate = collate

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        origins = [self._of_tokens(row) for row in rows]
        plain_rows = []
        for row in rows:
            plain_rows.append({name: value for name, value in row.items() if name != ORIGIN})
        batch = dict(self.collate(plain_rows))
        ids, mask = batch["input_ids"], batch.get("attention_mask")
        origin_BT = torch.full_like(ids, NEW)
        if mask is None:
            flat = torch.cat(origins)[: ids.numel()]
            origin_BT.view(-1)[: len(flat)] = flat
        else:
            for number, origin in enumerate(origins):
                positions = mask[number].nonzero().squeeze(-1)
                origin_BT[number, positions] = origin[: len(positions)]
        batch[ORIGIN] = origin_BT
        return batch

    def _of_tokens(self, row: Mapping[str, Any]) -> Tensor:
        lengths = row.get("seq_lengths") or [len(row["input_ids"])]
        origins = row.get(ORIGIN) or [NEW] * len(lengths)
        return torch.repeat_interleave(torch.tensor(origins), torch.tensor(lengths))


def weights_by_origin(
    origin_BT: Tensor | None, factors: Mapping[str, float], labels_BT: Tensor
) -> Tensor | None:
    """`[B, T-1]` float32, the weight of each prediction by where the token is from that it
    predicts; None where all are 1.

    Args:
        origin_BT: as `OriginCollator` gives it; None: all tokens are new.
        factors: of some `ORIGINS`, those other than 1.
        labels_BT: of the batch, for its shape and device.
    """
    if not factors:
        return None
    table = torch.tensor([factors.get(name, 1.0) for name in ORIGINS], device=labels_BT.device)
    origins = torch.full_like(labels_BT, NEW) if origin_BT is None else origin_BT
    return table[origins[:, 1:]]
