"""How far a model has drifted from what it was, on a few texts: kept are the start's distributions at some hundred
positions, and nothing else of the start.

    kl      KL(start || now), nats a token
    rise    mean of log p_start(token) - log p_now(token): the change of the loss
    fisher  mean of (log p_now(token) - log p_start(token))^2. With d = theta_now - theta_start it is d'Fd to leading
            order, F the empirical Fisher information of the text a token: the whole matrix, not its diagonal, and
            without a gradient (as the KL is half of d'Fd for the model's own F)

Logits are in float32. The KL is computed as `sum p d + log sum p exp(-d)` in float64, p of the start and d the change
of the log probability: errors of the float32 normalisation, which are as large as a KL of 1e-7, drop out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.errors import DataError
from holdfast.evaluation.modes import evaluation_mode
from holdfast.evaluation.text.perplexity import Piece

if TYPE_CHECKING:
    import torch

POSITIONS = 512
"""That are looked at, spread over the text."""
CELLS = 1 << 24
"""Probabilities that are kept at most, 64 MB of them: with a vocabulary of 128,000 at 131 positions."""


@dataclass(frozen=True, kw_only=True)
class Drifted:
    """See the module; nats a token."""

    loss: float
    """Of the start."""
    rise: float
    kl: float
    fisher: float


class Drift:
    """The start's distributions on a text.

    Args:
        model: the start: a Hugging Face causal LM, PEFT-wrapped or not, left as it came.
        pieces: the text, with the positions that may be looked at.
        kept: what `tensors` gave for the same pieces: the model is then not asked.

    Raises:
        DataError: no position to look at, or kept distributions of another text.
    """

    def __init__(self, model: Any, pieces: Sequence[Piece], *, kept: torch.Tensor | None = None) -> None:
        import torch

        from holdfast.ops.heads import describe_head

        places = [(number, target) for number, piece in enumerate(pieces) for target in piece.targets]
        if not places:
            raise DataError("Expected text with a token that can be scored, got none.")
        most = max(1, min(POSITIONS, CELLS // describe_head(model).vocabulary, len(places)))
        chosen = [places[i] for i in np.linspace(0, len(places) - 1, most).round().astype(int)]
        self.rows = [
            Piece(document=n, ids=pieces[n].ids, targets=[t for m, t in chosen if m == n])
            for n in dict.fromkeys(number for number, _ in chosen)
        ]
        self.tensors: torch.Tensor = torch.cat(list(self._asked(model))) if kept is None else kept
        """Log-probabilities `[N, V]` of the start, float32, on the CPU."""
        if len(self.tensors) != most:
            raise DataError(f"Expected the start's distributions at {most} positions, got {len(self.tensors)}.")

    def since(self, model: Any) -> Drifted:
        """How far a model is from the start."""
        import torch

        sums, begin, tokens = np.zeros(4), 0, len(self.tensors)
        for piece, now_NV in zip(self.rows, self._asked(model), strict=True):
            start_NV = self.tensors[begin : begin + len(now_NV)]
            begin += len(now_NV)
            targets_N1 = torch.tensor([piece.ids[t] for t in piece.targets])[:, None]
            start_N, now_N = (logp.gather(1, targets_N1)[:, 0].double() for logp in (start_NV, now_NV))
            p_NV = start_NV.double().softmax(-1)
            fell_NV = (start_NV - now_NV).double().masked_fill(p_NV == 0, 0.0)
            kl_N = (p_NV * fell_NV).sum(-1) + (p_NV * (-fell_NV).exp()).sum(-1).log()
            rise_N = start_N - now_N
            sums += [float(v.sum()) for v in (-start_N, rise_N, kl_N, rise_N.square())]
        loss, rise, kl, fisher = (sums / tokens).tolist()
        return Drifted(loss=loss, rise=rise, kl=kl if math.isnan(kl) else max(kl, 0.0), fisher=fisher)

    def _asked(self, model: Any) -> Any:
        """Log-probabilities `[positions, V]` of each row, on the CPU."""
        import torch

        from holdfast.ops.heads import describe_head, project, run_backbone

        head, device = describe_head(model), model.get_input_embeddings().weight.device
        for piece in self.rows:
            with evaluation_mode(model):
                hidden_TH = run_backbone(model, input_ids=torch.tensor([piece.ids], device=device))[0]
                before_N = torch.tensor(piece.targets, device=hidden_TH.device) - 1
                hidden_NH = hidden_TH[before_N].to(head.weight_VH.device)
                yield project(hidden_NH, head).log_softmax(-1).float().cpu()


def row_piece(batch: Mapping[str, Any], *, longest: int) -> Piece:
    """The first document of a collated row, as far as it is trained on.

    Args:
        batch: of one row, as the trainer's collator makes it: `input_ids`, `labels` (-100: not trained on), and where
            documents share the row `position_ids`.
        longest: tokens that are taken.
    """
    ids, labels = (batch[key][0].tolist() for key in ("input_ids", "labels"))
    end = min(len(ids), longest)
    if (positions := batch.get("position_ids")) is not None:
        end = next((i for i in range(1, end) if int(positions[0][i]) == 0), end)
    if (mask := batch.get("attention_mask")) is not None and mask.dim() == 2:
        end = min(end, int(mask[0].sum()))
    return Piece(document=0, ids=ids[:end], targets=[i for i in range(1, end) if labels[i] != -100])
