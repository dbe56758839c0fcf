"""Methods that weigh tokens, as the trainer follows them: what they are told after the loss, and
the refusal of a run whose tokens all weigh nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from holdfast.errors import DataError
from holdfast.ops.annealing import IGNORE, AnnealedLoss
from holdfast.retention.protocol import ActiveMethod

WEIGHTLESS = 10
"""Steps from the beginning after which weights that were all 0 end a run."""


class WeighedTokens:
    """The method of a run that weighs tokens.

    Args:
        active: the method.
        label: what errors call it.
    """

    def __init__(self, active: ActiveMethod, label: str) -> None:
        self.active, self.label = active, label
        self._sums: Tensor | None = None
        self._weightless: int | None = 0
        """Steps since the beginning whose tokens all weighed 0; None once one did not."""

    def after_loss(
        self,
        inputs: Mapping[str, Any],
        labels_BT: Tensor,
        by_origin_BS: Tensor | None,
        result: AnnealedLoss,
    ) -> None:
        """Tells the method the micro-batch's cross-entropies.

        Args:
            inputs: of the model.
            labels_BT: of the micro-batch.
            by_origin_BS: factors by where tokens are from; those of factor 0 are not the method's.
                None: all 1.
            result: of the loss.
        """
        count = result.ce_count
        if by_origin_BS is not None:
            labels_BT = labels_BT.clone()
            labels_BT[:, 1:].masked_fill_(by_origin_BS == 0, IGNORE)
            count = (labels_BT[:, 1:] != IGNORE).sum()
        self.active.after_loss(inputs, labels_BT, result.ce_N.view(labels_BT.shape[0], -1))
        row = torch.stack([result.weight_sum.double(), count.double()])
        self._sums = row if self._sums is None else self._sums + row

    def refuse_no_weight(
        self, reduce: Callable[[Tensor], Tensor], *, step: int, total: int | None
    ) -> None:
        """Call it once a step. One whose tokens all weigh 0 teaches nothing, which may happen by
        chance; the first `WEIGHTLESS` of them, or all there are, are no chance.

        Args:
            reduce: sums over all ranks.
            step: the one that is taken, from 1.
            total: steps of the run, where that is known.

        Raises:
            DataError: every trained token weighed 0 from the beginning on.
        """
        row, self._sums = self._sums, None
        if row is None:
            return
        weight, count = reduce(row).tolist()
        if weight:
            self._weightless = None
        elif count and self._weightless is not None:
            self._weightless += 1
            if self._weightless < min(WEIGHTLESS, total or WEIGHTLESS):
                return
            raise DataError(
                f"{self.label}: expected trained tokens with a weight above 0, but all "
                f"{count:.0f} tokens of step {step} have weight 0, like all tokens before it. "
                "Nothing would be learnt. Use more rows per step, or a coefficient below 1."
            )
