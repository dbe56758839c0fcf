"""What SFA and WiSE-FT share: averages of the trained weights with an anchor's.

Under LoRA the weights that are averaged are the merged ones: where theta_o's product B A is 0
because one factor is, as at the start, the average is (1 - beta) times the product, so that factor
is scaled and the other left as it is. Otherwise the average has a higher rank than the adapter, and
each factor is averaged on its own.

DoRA (W' = m (W + B A) / |W + B A|) is refused: averages of m, B and A are not those of W'.

Cost: one pass over the trainable parameters per average; no second model in the forward pass. The
start is kept as a copy of the trainable parameters (`keep`: on the device, in host memory, or in a
file). A named folder is read anew at each average, tensor by tensor, each rank its own part, and
nothing is kept.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from holdfast.errors import Problem
from holdfast.retention.anchor import aligned
from holdfast.retention.protocol import NamedParams, Passive, StepInfo

if TYPE_CHECKING:
    from holdfast.retention.anchor import Kept

_FACTOR = re.compile(r"\.lora_(?:embedding_)?([AB])(?=\.|$)")


def factored_problems(method: str, named: NamedParams) -> list[Problem]:
    """A problem where the trained parameters are DoRA's or OSF's, whose averages are not those of
    the weights."""
    if any(".osf_svd_params." in name for name in named):
        return [
            Problem(
                (),
                "the average of OSF's factors is not the average of the weights. Train without "
                f"{method}, and average the merged weights with 'holdfast merge'",
            )
        ]
    if not any(".lora_magnitude_vector." in name for name in named):
        return []
    return [
        Problem(
            (),
            "the average of a DoRA adapter's magnitudes and factors is not the average of the "
            f"weights. Leave out use_dora. Or train without {method}, and average the merged "
            "weights with 'holdfast merge'",
        )
    ]


def partners_of_zero(anchor: Kept) -> frozenset[str]:
    """The LoRA factors of an anchor whose partner is 0 everywhere: averaging the partner alone
    averages the product.

    Returns:
        Names as checkpoints have them.
    """
    import numpy as np

    from holdfast.checkpoints.live_tensors import checkpoint_names

    def is_zero(name: str) -> bool:
        if isinstance(anchor, Mapping):
            return not bool(anchor[name].any())
        entry = anchor.entries[
            name
        ]  # read, not mapped: a streamed anchor's file may have no name any more
        elements = math.prod(entry.shape)
        return (
            not anchor.read(name, 0, elements, np.empty(elements * entry.dtype.itemsize, np.uint8))
            .raw.view(np.uint8)
            .any()
        )

    factors = {}
    for name in anchor if isinstance(anchor, Mapping) else anchor.names():
        if _FACTOR.search(name):
            factors[checkpoint_names(name)[0]] = name
    zero = {plain for plain, name in factors.items() if is_zero(name)}

    def partner(name: str) -> str:
        return _FACTOR.sub(lambda m: m.group(0)[:-1] + ("A" if m.group(1) == "B" else "B"), name)

    return frozenset(name for name in factors if name not in zero and partner(name) in zero)


class Average(Passive):
    """Moves the weights towards an anchor's at some steps."""

    def __init__(
        self,
        anchor: Kept,
        beta: float,
        averages_at: Callable[[int, int], bool],
        *,
        reset_optimizer: bool = False,
        figure: str = "sfa_averages",
    ) -> None:
        self.left_alone = partners_of_zero(anchor)
        self.anchor, self.beta, self.averages_at, self.reset_optimizer, self.figure = (
            anchor,
            beta,
            averages_at,
            reset_optimizer,
            figure,
        )
        self.count = 0

    def weights(self, named: NamedParams, step: StepInfo) -> None:
        from holdfast.checkpoints.live import lerp_
        from holdfast.checkpoints.live_tensors import checkpoint_names

        if not self.averages_at(step.step, step.total_steps):
            return
        if isinstance(self.anchor, dict):
            self.anchor = aligned(self.anchor, named)
        lerp_(
            {n: p for n, p in named.items() if checkpoint_names(n)[0] not in self.left_alone},
            self.anchor,
            self.beta,
        )
        self.count += 1
        if self.reset_optimizer and step.reset_optimizer is not None:
            step.reset_optimizer()

    def metrics(self, named: NamedParams) -> dict[str, float]:
        return {self.figure: float(self.count)}

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = int(state["count"])
