"""Nats a token of many short texts, at the rate of the model's forward pass: what passages are
ranked by.

    nats_per_token(x) = - (1 / T) sum_t log p(x_t | BOS, x_<t)

Texts of a call are rows of one batch, padded to the right: a causal model's real tokens never see
padding, so no mask is needed, and callers who bring rows of like length pad hardly anything.
Padding is neither multiplied by the head nor counted. Logits are as the model's own forward has
them (in the weights' dtype), log-softmax is in float32, sums are in float64. `perplexity` reads
documents of any length, in windows; this does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.evaluation.eval_mode import evaluation_mode
from holdfast.evaluation.text.documents import starts_with_bos
from holdfast.evaluation.text.perplexity import check_ids

_CPU_CELLS, _ACCELERATOR_CELLS = 2**20, 2**27
"""Logits alive at once in float32: 4 MiB, which a CPU's cache holds, and 512 MiB."""


def passage_scorer(model: Any, tokenizer: Any) -> Callable[[Sequence[Sequence[int]]], list[float]]:
    """What gives each of a batch of texts its nats a token.

    Args:
        model: a Hugging Face causal LM on any device, in any floating dtype. Left in the train /
            eval state it came in.
        tokenizer: its tokenizer; where it has a BOS, that stands before every text.

    Returns:
        A function of token ids, rows of at least two tokens without BOS, to one float a row. It
        raises `ModelError` where an id is none of the model's.

    Raises:
        ModelError: no causal LM, or one that computes its logits in a way that is not known.
    """
    import torch

    from holdfast.ops.heads import check_head, describe_head, project, run_backbone

    bos = [int(tokenizer.bos_token_id)] if starts_with_bos(tokenizer) else []
    embeddings = model.get_input_embeddings().weight
    device, known = embeddings.device, int(embeddings.shape[0])
    check_head(model, torch.arange(2, min(10, known), device=device)[None])
    with torch.no_grad():
        head = describe_head(model)
    at_once = max(
        64, (_CPU_CELLS if device.type == "cpu" else _ACCELERATOR_CELLS) // head.vocabulary
    )

    def score(rows: Sequence[Sequence[int]]) -> list[float]:
        check_ids(model, max(map(max, rows)))
        texts = [[*bos, *row] for row in rows]
        lengths = torch.tensor([len(ids) for ids in texts])
        longest = int(lengths.max())
        ids_BT = torch.tensor([ids + [0] * (longest - len(ids)) for ids in texts])
        scored_BT = torch.arange(1, longest)[None] < lengths[:, None]
        row_N, position_N = (index.to(device) for index in scored_BT.nonzero(as_tuple=True))
        ids_BT = ids_BT.to(device)
        with evaluation_mode(model):
            hidden_BTH = run_backbone(model, input_ids=ids_BT)
            losses = []
            for start in range(0, len(row_N), at_once):
                row, position = row_N[start : start + at_once], position_N[start : start + at_once]
                logits_NV = project(hidden_BTH[row, position], head, as_stored=True)
                losses.append(
                    torch.nn.functional.cross_entropy(
                        logits_NV, ids_BT[row, position + 1], reduction="none"
                    )
                )
            sums_B = torch.zeros(len(rows), dtype=torch.float64, device=device)
            sums_B.index_add_(0, row_N, torch.cat(losses).double())
        nats: list[float] = (sums_B.cpu() / (lengths - 1)).tolist()
        return nats

    return score
