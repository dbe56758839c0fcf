"""Exact log-likelihood of documents, in nats a document, at the speed of training.

For scored tokens t of a document, `nats = - sum_t log p(x_t | x_<t)`. The backbone runs once over
the tokens; the head and the cross-entropy run over slices of rows, so no `[tokens, vocabulary]`
array exists. Logits and the sum are float32 whatever the model's dtype.

- Short documents share a row, one after another, with position ids that restart and no attention
  mask: transformers reads the restarts as borders and keeps the documents apart. An architecture or
      attention implementation that does not
  is found out on the first shared row (other text in front must change nothing) and gets its
  documents one by one.
- Documents longer than the window W are read in windows of W tokens that advance by the stride S;
  only tokens not yet scored count, each with at least W - S tokens of context. Cost grows as W / S,
  and the figure depends on both, so both are reported.

Which tokens are scored, BOS included, stands in `holdfast.evaluation.text.documents`. Nothing is
truncated. Does not average: figures come out of the rows in `holdfast.statistics.estimates`.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import inspect
import itertools
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.errors import DataError, ModelError
from holdfast.evaluation.eval_mode import evaluation_mode
from holdfast.evaluation.measures import Report, no_report
from holdfast.evaluation.resume import Partial
from holdfast.evaluation.served import ServedModel, in_groups
from holdfast.evaluation.text.documents import Document, EncodedDocument, encode_document

if TYPE_CHECKING:
    import torch

    from holdfast.ops.heads import Head

logger = logging.getLogger(__name__)

_SLICE_CELLS = 2**25
"""Logits alive at once: 128 MiB in float32."""


@dataclass(frozen=True, kw_only=True)
class Windows:
    """How much of a document goes through the model at once, in tokens."""

    window: int | None = None
    """W; None: the model's maximum."""
    stride: int | None = None
    """S; None: half of the window."""
    batch_tokens: int | None = None
    """A forward pass; None: 8192 on an accelerator, 512 on a CPU, whose attention computes the
    masked blocks of a shared row too. Changes speed and memory, not the result."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A stretch of one document that goes through the model at once."""

    document: int
    ids: list[int]
    targets: list[int]
    """Positions within `ids`, each >= 1, whose tokens are scored from the position before."""


def context_of(model: Any) -> int | None:
    """The most tokens that a model was built for; None where its configuration does not say."""
    config = text_config(model)
    for name in (
        "max_position_embeddings",
        "n_positions",
        "max_sequence_length",
        "max_seq_len",
        "seq_length",
    ):
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 0:
            return int(value)
    return None


def text_config(model: Any) -> Any:
    """The configuration of a model's language model, which is a part of that of a vision-language
    model."""
    return (
        model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
    )


def resolve_window(
    model: Any, window: int | None = None, stride: int | None = None
) -> tuple[int, int]:
    """(W, S) in tokens: the model's maximum and half of it unless given.

    Raises:
        ModelError: `window` is beyond what the model was built for.
        DataError: the stride leaves no context.
    """
    longest = context_of(model)
    if window is not None and longest is not None and window > longest:
        raise ModelError(
            f"Expected a window of at most {longest} tokens, the model's context, got {window}. "
            "Lower `window`."
        )
    window = window or longest or 2048
    stride = stride or max(1, window // 2)
    if stride >= window:
        raise DataError(
            f"Expected a stride below the window ({window} tokens), got {stride}. A scored token "
            "needs at least one token before it. Lower `stride`."
        )
    return window, stride


def cut(encoded: Sequence[EncodedDocument], *, window: int, stride: int) -> list[Piece]:
    """Documents as pieces of at most `window` tokens; every scored token is a target of exactly one
    piece."""
    pieces = []
    for index, document in enumerate(encoded):
        scored = list(itertools.chain(*(range(*span) for span in document.spans)))
        begin, end, next_target = 0, min(window, len(document.ids)), 0
        while next_target < len(scored):
            stop = bisect.bisect_left(scored, end, lo=next_target)
            if stop > next_target:
                targets = [t - begin for t in scored[next_target:stop]]
                pieces.append(
                    Piece(
                        document=index,
                        ids=document.ids[begin : targets[-1] + begin + 1],
                        targets=targets,
                    )
                )
                next_target = stop
            end = min(end + stride, len(document.ids))
            begin = max(0, end - window)
    return pieces


def pack(pieces: Sequence[Piece], *, batch_tokens: int) -> list[list[Piece]]:
    """Pieces in order, as many a row as fit into `batch_tokens`; a longer piece has a row of its
    own."""
    rows: list[list[Piece]] = []
    filled = 0
    for piece in pieces:
        if rows and filled + len(piece.ids) <= batch_tokens:
            rows[-1].append(piece)
            filled += len(piece.ids)
        else:
            rows.append([piece])
            filled = len(piece.ids)
    return rows


def score_documents(
    model: Any,
    tokenizer: Any,
    documents: Iterable[Document],
    *,
    windows: Windows = Windows(),
    progress: Report = no_report,
    notes: list[str] | None = None,
    memorisation: bool = False,
    partial: Partial | None = None,
) -> list[dict[str, Any]]:
    """Scores every document.

    Args:
        model: a Hugging Face causal LM, PEFT-wrapped or not, on any device in any floating dtype.
            Left in the train / eval state it came in.
        tokenizer: its tokenizer.
        documents: see `holdfast.evaluation.text.documents`.
        windows: how much of a document goes through the model at once.
        progress: called with (tokens done, tokens in all) after each forward pass.
        notes: remarks for the reader of the result are appended.
        memorisation: adds `"exact"`, the scored tokens that were the most likely one (Tirumala et
            al. 2022, section 2), and `"entropy"`, the entropies of the distributions that they were
            scored by, summed, in nats.
        partial: where sums of finished rows are kept, so that an interrupted measurement goes on.

    Returns:
        One row a document, in order: `{"doc": hash, "nats": float, "tokens": int, "bytes": int}`,
            where tokens and bytes are the scored ones.

    Raises:
        DataError: nothing to score. ModelError: the tokenizer does not belong to the model, or the
            model is no causal LM.
    """
    import numpy as np

    from holdfast.ops.heads import describe_head

    encoded = [encode_document(document, tokenizer) for document in documents]
    if not any(document.spans for document in encoded):
        raise DataError(
            f"Expected text to score, but none of the {len(encoded)} documents has a token that "
            "can be scored. Check the data and its templates."
        )
    if not isinstance(model, ServedModel):  # whose tokenizer was compared with the server's
        check_ids(model, max(max(document.ids, default=0) for document in encoded))
    rewritten = sum(document.rewritten for document in encoded)
    if rewritten:
        _note(
            f"The chat template rewrites {rewritten} replies once later turns follow. Each of them "
            "is scored only up to the first difference.",
            notes,
        )
    window, stride = resolve_window(model, windows.window, windows.stride)
    pieces = cut(encoded, window=window, stride=stride)
    partial = partial or Partial(None)
    with evaluation_mode(model):
        if isinstance(model, ServedModel):
            rows = [[piece] for piece in pieces]
            batches, sums_of = (
                in_groups(range(len(rows)), model.at_once),
                functools.partial(_served_sums, model, rows),
            )
        else:
            head = float_head(describe_head(model))
            rows = _rows(model, head, pieces, windows.batch_tokens, notes)
            batches = [[number] for number in range(len(rows))]
            sums_of = functools.partial(_computed_sums, model, head, rows, memorisation)
        done = list(itertools.accumulate(sum(len(piece.ids) for piece in row) for row in rows))
        sums_of_rows = partial.resumed(
            "row",
            ((numbers, numbers) for numbers in batches),
            sums_of,
            total=len(rows),
            report=lambda finished, total: progress(done[finished - 1], done[-1]),
        )
    sums = np.zeros((len(encoded), 3 if memorisation else 1))
    for row, values in zip(rows, sums_of_rows, strict=True):
        np.add.at(sums, [piece.document for piece in row], np.array(values))
    scored = []
    for document, (nats, *more) in zip(encoded, sums.tolist(), strict=True):
        figures = {
            "doc": document.doc,
            "nats": nats,
            "tokens": document.tokens,
            "bytes": document.bytes,
        }
        if memorisation:
            figures |= {"exact": round(more[0]), "entropy": more[1]}
        scored.append(figures)
    return scored


def _served_sums(
    model: ServedModel, rows: Sequence[Sequence[Piece]], numbers: Sequence[int]
) -> list[list[list[float]]]:
    """Of some of the rows, one piece each, the sums `[pieces, columns]`."""
    pieces = [rows[number][0] for number in numbers]
    sums = []
    for piece, scores in zip(pieces, model.scores([piece.ids for piece in pieces]), strict=True):
        sums.append([[-sum(scores[target - 1][0] for target in piece.targets)]])
    return sums


def _rows(
    model: Any,
    head: Head,
    pieces: Sequence[Piece],
    batch_tokens: int | None,
    notes: list[str] | None,
) -> list[list[Piece]]:
    """Pieces in rows that they may share."""
    batch_tokens = batch_tokens or (
        512 if model.get_input_embeddings().weight.device.type == "cpu" else 8192
    )
    rows = pack(pieces, batch_tokens=batch_tokens)
    shared = [row for row in rows if len(row) > 1]
    if not shared or documents_stay_apart(model, head, *shared[0][:2]):
        return rows
    _note(
        f"{type(model).__name__} cannot separate documents that share a row, so documents were "
        "scored one by one.",
        notes,
    )
    return [[piece] for piece in pieces]


def _computed_sums(
    model: Any,
    head: Head,
    rows: Sequence[Sequence[Piece]],
    memorisation: bool,
    numbers: Sequence[int],
) -> list[list[list[float]]]:
    """Of some of the rows the sums `[pieces, columns]`."""
    import numpy as np

    sums = []
    for row in [rows[number] for number in numbers]:
        of_piece = np.repeat(np.arange(len(row)), [len(piece.targets) for piece in row])
        values = np.zeros((len(row), 3 if memorisation else 1))
        scores = score_row(model, head, row, memorisation=memorisation).double().cpu().numpy()
        np.add.at(values, of_piece, scores)
        if len(row) > 1 and not np.isfinite(values).all():
            # 0 times NaN is NaN: one document spoils all of its row, whatever the mask says
            alone = _computed_sums(
                model, head, [[piece] for piece in row], memorisation, range(len(row))
            )
            sums.append(list(itertools.chain(*alone)))
        else:
            sums.append(values.tolist())
    return sums


def documents_stay_apart(
    model: Any, head: Head, first: Piece, second: Piece, *, tokens: int = 32
) -> bool:
    """True where the model scores `second` behind `first` as in a row of its own, and whatever
    `first` is.

    Two tests, as each is blind where the other sees: other text in front gives the same kernels the
    same shapes, so that any difference is a leak, in every dtype; the piece in its own row finds
    positions that did not restart, within what the dtype explains.

    Args:
        tokens: how many tokens of each piece are tried.
    """
    import torch

    if not takes_positions(model):
        return False
    front = dataclasses.replace(first, ids=first.ids[:tokens], targets=[])
    vocabulary = head.vocabulary
    other = dataclasses.replace(front, ids=[(i * 7 + 13) % vocabulary for i in front.ids])
    ids = second.ids[:tokens]
    piece = dataclasses.replace(second, ids=ids, targets=list(range(1, len(ids))))
    if not piece.targets:
        return True
    behind = score_row(model, head, [front, piece])
    behind_other = score_row(model, head, [other, piece])
    alone = score_row(model, head, [piece])
    if not bool(alone.isfinite().all()):
        return True  # of the weights, not of documents: rows that are not finite are scored again, piece by piece
    exact = next(model.parameters()).dtype in (torch.float32, torch.float64)
    leak = float((behind - behind_other).abs().max())
    shift = float((behind - alone).abs().mean())
    return leak <= (1e-4 if exact else 1e-2) and shift <= (1e-3 if exact else 0.1)


def _note(text: str, notes: list[str] | None) -> None:
    logger.warning(text)
    if notes is not None:
        notes.append(text)


def takes_positions(model: Any) -> bool:
    """Whether the model's backbone takes position ids."""
    from holdfast.ops.heads import backbone_of

    parameters = inspect.signature(backbone_of(model).forward).parameters
    return "position_ids" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def score_row(
    model: Any, head: Head, row: Sequence[Piece], *, memorisation: bool = False
) -> torch.Tensor:
    """Nats `[targets of the row, 1]`, float32, in the order of pieces and their targets; with
    `memorisation` `[.., 3]`: nats, whether the target was the most likely token, entropy."""
    import torch

    from holdfast.ops.heads import project, run_backbone

    device = model.get_input_embeddings().weight.device
    input_ids = torch.tensor([list(itertools.chain(*(piece.ids for piece in row)))], device=device)
    inputs: dict[str, Any] = {"input_ids": input_ids}
    if len(row) > 1:
        inputs["position_ids"] = torch.cat([torch.arange(len(piece.ids)) for piece in row])[
            None
        ].to(device)
    hidden_TH = run_backbone(model, **inputs)[0]
    offsets: list[int] = []
    offset = 0
    for piece in row:
        offsets.extend(offset + target for target in piece.targets)
        offset += len(piece.ids)
    target_positions_N = torch.tensor(offsets, device=device, dtype=torch.long)
    targets_N = input_ids[0, target_positions_N].to(head.weight_VH.device)
    hidden_NH = hidden_TH[(target_positions_N - 1).to(hidden_TH.device)].to(head.weight_VH.device)
    rows_at_once = min(1024, max(64, _SLICE_CELLS // head.vocabulary))
    losses = []
    for start in range(0, len(offsets), rows_at_once):
        stop = start + rows_at_once
        logits_NV, gold_N = project(hidden_NH[start:stop], head), targets_N[start:stop]
        losses_N = torch.nn.functional.cross_entropy(logits_NV, gold_N, reduction="none")
        if memorisation:
            entropy_N = entropies(logits_NV.log_softmax(-1))
            exact_N = (logits_NV.argmax(-1) == gold_N).to(losses_N.dtype)
            losses.append(torch.stack([losses_N, exact_N, entropy_N], dim=-1))
        else:
            losses.append(losses_N[:, None])
    return (
        torch.cat(losses)
        if losses
        else hidden_NH.new_zeros((0, 3 if memorisation else 1), dtype=torch.float32)
    )


def entropies(logp_NV: torch.Tensor) -> torch.Tensor:
    """Entropies `[N]` in nats of distributions given by their logarithms; NaN of what is none."""
    p_NV = logp_NV.exp()
    return -(p_NV * logp_NV).masked_fill(p_NV == 0, 0.0).sum(-1)  # 0 log 0 = 0


def float_head(head: Head) -> Head:
    """The head with float32 tensors, converted once and not again for every slice. Costs 4 V H
    bytes for a half-precision model."""
    import torch

    keep = (torch.float32, torch.float64)
    weight = head.weight_VH if head.weight_VH.dtype in keep else head.weight_VH.float()
    bias = None if head.bias_V is None else head.bias_V.to(weight.dtype)
    return dataclasses.replace(head, weight_VH=weight, bias_V=bias)


def check_ids(model: Any, largest: int) -> None:
    """Whether a model has embeddings for all token ids up to the largest.

    Raises:
        ModelError: it has not.
    """
    known = int(model.get_input_embeddings().weight.shape[0])
    if largest >= known:
        raise ModelError(
            f"The tokenizer gives the token id {largest}, but the model has embeddings for {known} "
            "tokens only. Use the model's own tokenizer."
        )
