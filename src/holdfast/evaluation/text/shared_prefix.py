"""Log-likelihoods of continuations, with every shared prefix computed once.

A question with four options is asked as four texts that begin alike; questions of one subject begin
with the same examples. Texts that begin alike are merged into a tree of tokens (a trie), trees
stand one after another in a row, and the row goes through the model once:

    tokens in depth-first order; token i sees token j  <=>  j <= i < end(j)
                                                       end(j):
                                                       where the
                                                       part of
                                                       the tree
                                                       below j
                                                       ends
    position of a token: its depth

so that a token sees its own beginning and nothing else, as in a row of its own. The head is
multiplied at the scored positions only. The results are those of one text a row (float32: 1e-5
nats); what changes is how often a token is computed. With P tokens of prefix and four options of C
tokens the row holds P + 4 C tokens in place of 4 (P + C).

Rows grow while that is cheaper than to begin a new one: a token more costs its own products and the
attention of the whole row, cost(T) = T + T^2 / (6 H) in units of one token's products, with H the
hidden width (attention 4 T^2 H against 24 H^2 T a layer).

It needs a model that takes position ids and a mask of its own (`[1, 1, T, T]`: "sdpa" or "eager"
attention). Whether it does is tried on a few tokens of the first branching row; state-space and
other architectures that read a row as one text are found out and left to the caller.

Shapes: T tokens of a row, H hidden width, V vocabulary, N scored positions.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.errors import DataError
from holdfast.evaluation.measures import Report, no_report
from holdfast.evaluation.resume import Partial
from holdfast.records.evaluation import all_finite

if TYPE_CHECKING:
    import torch

    from holdfast.evaluation.served import ServedScorer
    from holdfast.ops.heads import Head

logger = logging.getLogger(__name__)

Request = tuple[Sequence[int], Sequence[int]]
"""(context, continuation) as token ids, neither empty."""

Images = Callable[[int], Mapping[str, "torch.Tensor"]]
"""What a model takes beside the tokens for the images among them, such as their pixels; of a row of
so many tokens."""

_SLICE_CELLS = 2**24
"""Logits alive at once: 64 MiB in float32."""


@dataclass(frozen=True, kw_only=True)
class Path:
    """What one request puts into a row."""

    index: int
    """Of the request."""
    ids: tuple[int, ...]
    """Input tokens: context and continuation without its last token, cut from the left to the
    model's length."""
    targets: tuple[int, ...]
    """The continuation; its first token is predicted at position `len(ids) - len(targets)`."""


@dataclass(frozen=True, kw_only=True)
class PackedRow:
    """Several paths merged into trees, in depth-first order."""

    ids: np.ndarray
    """`[T]` int64."""
    depths: np.ndarray
    """`[T]` int64, the position of each token in its own text."""
    ends: np.ndarray
    """`[T]` int64, where the part of the tree below the token ends."""
    paths: list[Path]
    where: list[np.ndarray]
    """For every path the places `[len(targets)]` in the row whose states predict its targets."""
    images: Images | None = None
    """Of a row whose texts share images."""

    @property
    def branches(self) -> bool:
        """Whether the row is more than one text, so that it needs a mask."""
        return bool((self.ends != len(self.ids)).any())


def paths_of(requests: Sequence[Request], *, length: int) -> list[Path]:
    """Requests as input tokens and targets.

    Args:
        requests: see `Request`.
        length: the most input tokens that the model takes; longer contexts lose their beginning, as
            in lm-evaluation-harness.

    Raises:
        DataError: an empty context or continuation, or a continuation longer than the model's
            length.
    """
    paths = []
    for index, (context, continuation) in enumerate(requests):
        if not context or not continuation:
            raise DataError(
                f"Expected a context and an option of at least one token each, got {len(context)} "
                f"and {len(continuation)} tokens (request {index}). An empty option cannot be "
                "scored; check the choices of the task."
            )
        if len(continuation) > length:
            raise DataError(
                f"An option has {len(continuation)} tokens, more than the model's context of "
                f"{length} (request {index}), so it cannot be scored. Take the question out, or "
                "use a model with a longer context."
            )
        ids = tuple(itertools.chain(context, continuation))[-(length + 1) :][:-1]
        paths.append(Path(index=index, ids=ids, targets=tuple(continuation)))
    return paths


def rows_of(
    paths: Sequence[Path], *, hidden: int, least: int, most: int, longest: int | None = None
) -> Iterator[PackedRow]:
    """Paths as rows, sorted by their tokens so that those that begin alike are neighbours.

    Args:
        paths: from `paths_of`.
        hidden: H, which decides what attention costs beside the rest.
        least: rows grow to so many tokens in any case, where one pass costs more than its tokens.
        most: rows never grow beyond, unless one text does.
        longest: texts of more tokens are rows of their own (sliding windows, which a mask of our
            own would not respect).
    """

    def cost(tokens: int) -> float:
        return tokens + tokens * tokens / (6 * hidden)

    members: list[Path] = []
    size = 0
    last: tuple[int, ...] = ()
    for path in sorted(paths, key=lambda p: p.ids):
        single = longest is not None and len(path.ids) > longest
        fresh = len(path.ids) - _common(last, path.ids)
        larger = size + fresh
        joins = (
            members
            and not single
            and larger <= most
            and (larger <= least or cost(larger) - cost(size) <= cost(len(path.ids)))
        )
        if not joins:
            if members:
                yield row_of(members)
            members, size, larger = [], 0, len(path.ids)
        members.append(path)
        size, last = larger, path.ids
        if single:
            yield row_of(members)
            members, size, last = [], 0, ()
    if members:
        yield row_of(members)


def row_of(paths: Sequence[Path], images: Images | None = None) -> PackedRow:
    """Paths as one row; those that begin alike are to be neighbours.

    Args:
        paths: in the order that they have in the row.
        images: as of `PackedRow`.
    """
    ids: list[int] = []
    depths: list[int] = []
    ends: list[int] = []
    where = []
    places: list[int] = []
    last: tuple[int, ...] = ()
    for path in paths:
        shared = _common(last, path.ids)
        for number in places[shared:]:
            ends[number] = len(ids)
        places = [*places[:shared], *range(len(ids), len(ids) + len(path.ids) - shared)]
        ids += path.ids[shared:]
        depths += range(shared, len(path.ids))
        ends += [-1] * (len(path.ids) - shared)
        where.append(np.array(places[len(places) - len(path.targets) :], dtype=np.int64))
        last = path.ids
    return PackedRow(
        ids=np.array(ids),
        depths=np.array(depths),
        ends=np.array([len(ids) if e < 0 else e for e in ends]),
        paths=list(paths),
        where=where,
        images=images,
    )


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common beginning, by halving: comparing slices is done in C."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


# -------------------------------------------------------------------------------------------- model


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """A model and how its texts go into rows. Make it with `scorer_for`."""

    model: Any
    least: int
    """Tokens that a row grows to in any case."""
    most: int
    """Tokens that a row never grows beyond; 0: one text a row."""
    window: int | None = None
    """The model's sliding window, in tokens."""

    @property
    def shares(self) -> bool:
        """Whether texts share a row."""
        return self.most > 0

    @functools.cached_property
    def head(self) -> Head:
        """With float32 weights: a copy, made only where something is scored."""
        from holdfast.evaluation.text.perplexity import float_head
        from holdfast.ops.heads import describe_head

        return float_head(describe_head(self.model))

    def states(self, row: PackedRow) -> torch.Tensor:
        """Last hidden states `[T, H]` of a row."""
        import torch

        from holdfast.ops.heads import run_backbone

        device = self.model.get_input_embeddings().weight.device
        dtype = next(p.dtype for p in self.model.parameters() if p.is_floating_point())
        inputs: dict[str, Any] = {"input_ids": torch.as_tensor(row.ids, device=device)[None]}
        for name, value in (row.images(len(row.ids)) if row.images is not None else {}).items():
            inputs[name] = value.to(device, dtype if value.is_floating_point() else None)
        if row.branches:
            places = torch.arange(len(row.ids), device=device)
            ends = torch.as_tensor(row.ends, device=device)
            visible = (places[None, :] <= places[:, None]) & (places[:, None] < ends[None, :])
            # additive, which "sdpa" and "eager" both take
            mask = torch.zeros(visible.shape, dtype=dtype, device=device).masked_fill_(
                ~visible, torch.finfo(dtype).min
            )
            inputs.update(
                attention_mask=mask[None, None],
                position_ids=torch.as_tensor(row.depths, device=device)[None],
            )
        return run_backbone(self.model, **inputs)[0]

    def rows(self, paths: Sequence[Path]) -> Iterator[PackedRow]:
        """The rows that the paths go through the model in."""
        hidden = int(self.head.weight_VH.shape[1])
        return rows_of(paths, hidden=hidden, least=self.least, most=self.most, longest=self.window)

    def answers(
        self,
        paths: Sequence[Path],
        *,
        name: str,
        find: Callable[[PackedRow], Iterable[Any]] | None = None,
        partial: Partial | None = None,
        report: Report = no_report,
    ) -> list[Any]:
        """What `find` gives for every path, by the paths' `index`.

        Args:
            paths: with the indices 0 to len(paths) - 1, in any order.
            name: what an answer is called where finished ones are kept.
            find: the answers to a row's paths in order; None: `score_row`.
            partial: where they are kept.
            report: called with (paths done, paths in all).
        """
        batches = (([path.index for path in row.paths], row) for row in self.rows(paths))
        return (partial or Partial(None)).resumed(
            name, batches, lambda row: self.answers_of(row, find), total=len(paths), report=report
        )

    def answers_of(
        self, row: PackedRow, find: Callable[[PackedRow], Iterable[Any]] | None = None
    ) -> list[Any]:
        """What `find` gives for the paths of one row in order; arguments as of `answers`."""
        find = find or self.score_row
        answers = list(find(row))
        if len(row.paths) > 1 and not all_finite(answers):
            # 0 times NaN is NaN: one path spoils all of its row, whatever the mask says
            return [answer for path in row.paths for answer in find(row_of([path], row.images))]
        return answers

    def score_row(self, row: PackedRow) -> list[tuple[float, bool]]:
        """(log-likelihood in nats, whether every token was the most likely one) of the paths of one
        row in its order; logits in float32."""
        import torch

        from holdfast.ops.heads import project

        device = self.head.weight_VH.device
        hidden_TH = self.states(row).to(device)
        places, inverse = np.unique(np.concatenate(row.where), return_inverse=True)
        targets = np.array(list(itertools.chain(*(path.targets for path in row.paths))))
        # pairs (place, target) by place, so that each slice of places has its own
        order = np.argsort(inverse, kind="stable")
        borders = np.searchsorted(inverse[order], np.arange(len(places) + 1))
        chosen = np.empty(len(targets))
        best = np.empty(len(targets), dtype=bool)
        at_once = min(1024, max(64, _SLICE_CELLS // self.head.vocabulary))
        for start in range(0, len(places), at_once):
            stop = min(start + at_once, len(places))
            pairs = order[borders[start] : borders[stop]]
            logits_NV = project(
                hidden_TH[torch.as_tensor(places[start:stop], device=device)], self.head
            )
            rows = torch.as_tensor(inverse[pairs] - start, device=device)
            gold = torch.as_tensor(targets[pairs], device=device)
            chosen[pairs] = (
                (logits_NV[rows, gold] - logits_NV.logsumexp(-1)[rows]).double().cpu().numpy()
            )
            best[pairs] = (logits_NV.argmax(-1)[rows] == gold).cpu().numpy()
        stop = 0
        answers = []
        for path in row.paths:
            start, stop = stop, stop + len(path.targets)
            answers.append((float(chosen[start:stop].sum()), bool(best[start:stop].all())))
        return answers


def scorer_for(model: Any, paths: Sequence[Path] = ()) -> Scorer | ServedScorer:
    """What scores a model's texts: in rows of shared prefixes, or one text a row where the model
    cannot share them (see the module's docstring).

    Args:
        model: a Hugging Face causal LM, PEFT-wrapped or not, in evaluation mode; or a served one.
        paths: of which two that branch are tried; without any that do, nothing needs to be tried.
    """
    from holdfast.evaluation.served import ServedModel, ServedScorer
    from holdfast.evaluation.text.perplexity import takes_positions, text_config
    from holdfast.ops.document_attention import IMPLEMENTATION

    if isinstance(model, ServedModel):
        return ServedScorer(model=model)

    config = text_config(model)
    single = Scorer(model=model, least=0, most=0)
    known = ("sdpa", "eager", IMPLEMENTATION)
    if (
        getattr(config, "_attn_implementation", None) not in known
        or not takes_positions(model)
        or _has_virtual_tokens(model)
    ):
        return single
    on_cpu = model.get_input_embeddings().weight.device.type == "cpu"
    windows = []
    for name in ("sliding_window", "attention_chunk_size"):
        window = getattr(config, name, None)
        if isinstance(window, int) and window > 0:
            windows.append(window)
    scorer = dataclasses.replace(
        single,
        least=512 if on_cpu else 4096,
        most=4096 if on_cpu else 16384,
        window=min(windows, default=None),
    )
    pair = branching_pair(
        paths, tokens=48 if scorer.window is None else max(1, min(48, scorer.window // 2))
    )
    return scorer if pair is None or branches_stay_apart(scorer, *pair) else single


def branches_stay_apart(
    scorer: Scorer,
    first: Path,
    second: Path,
    *,
    images: Images | None = None,
    reserved: Container[int] = (),
) -> bool:
    """True where the states of `second` in one tree with `first` are its own, and whatever `first`
    says.

    Two tests, as each is blind where the other sees: other tokens in the other branch give the same
    kernels the same shapes, so that any difference is a leak, in every dtype; a row of its own
    finds positions and masks that were not taken, within what the dtype explains.

    Args:
        first: a text that shares a beginning with `second`.
        second: comes after it in the row.
        images: as of `PackedRow`, where they share images.
        reserved: tokens that stand for images.
    """
    import torch

    vocabulary = scorer.head.vocabulary
    shared = _common(first.ids, second.ids)
    others = [(i * 7 + 13) % vocabulary for i in first.ids[shared:]]
    changed = dataclasses.replace(
        first, ids=(*first.ids[:shared], *(0 if i in reserved else i for i in others))
    )
    if _common(changed.ids, second.ids) != shared:
        return False
    scored = dataclasses.replace(second, targets=second.ids[shared:])
    if not scored.targets:
        return True
    states = []
    try:
        for paths in ([first, scored], [changed, scored], [scored]):
            row = row_of(paths, images)
            with torch.no_grad():
                states.append(scorer.states(row)[torch.as_tensor(row.where[-1])])
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        logger.debug(
            "this model cannot score several texts that share a beginning in one row: %s: %s",
            type(error).__name__,
            error,
        )
        return False
    return same_states(*states)


def same_states(behind: torch.Tensor, other: torch.Tensor, own: torch.Tensor) -> bool:
    """Whether states of a shared row are those of a row of their own.

    Args:
        behind: `[N, H]` in a row with something else.
        other: with something different in its place, of the same shapes.
        own: in a row of their own.
    """
    import torch

    exact = own.dtype in (torch.float32, torch.float64)
    scale = float(own.float().abs().mean()) or 1.0
    leak = float((behind - other).abs().max()) / scale
    shift = float((behind - own).float().abs().mean()) / scale
    return leak <= (1e-5 if exact else 1e-2) and shift <= (1e-3 if exact else 0.1)


def branching_pair(paths: Sequence[Path], *, tokens: int) -> tuple[Path, Path] | None:
    """The first two paths (in order of tokens) that begin alike and then part, cut to `tokens`
    before and after the place where they do."""
    ordered = sorted(paths, key=lambda p: p.ids)
    for first, second in itertools.pairwise(ordered):
        shared = _common(first.ids, second.ids)
        if 0 < shared < min(len(first.ids), len(second.ids)):
            start, stop = max(0, shared - tokens), shared + tokens
            targets = first.ids[shared : shared + 1], second.ids[shared : shared + 1]
            return (
                dataclasses.replace(first, ids=first.ids[start:stop], targets=targets[0]),
                dataclasses.replace(second, ids=second.ids[start:stop], targets=targets[1]),
            )
    return None


def _has_virtual_tokens(model: Any) -> bool:
    """PEFT's prompt learning puts learnt tokens in front of every text, where the bare backbone has
    none."""
    configs = getattr(model, "peft_config", None) or {}
    return any(getattr(c, "is_prompt_learning", False) for c in configs.values())
