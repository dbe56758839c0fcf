"""Generated tokens drawn anew by the model as it is trained (on-policy replay), in rows that stay as many and as long.

Before a step for which nothing is ready, the micro-batches of the next `every` steps (to the end of the epoch at most)
are taken from the loader, and the answers in them are written again by the present model, after the prompts that they
have. An answer that is longer is cut; where one ends early, the rest of its place holds end tokens that nothing is
trained on, neither by cross-entropy nor by the KL of all tokens, which counts none of them (`data.mixing.FILLER`). So
packing, the number of steps and the place in the data are those of a run without, and the first `every` steps are too:
the model is the start there.

What is ready and not yet trained on is the state that a checkpoint keeps: a continued run reads the same tokens.

Shapes: B rows of a micro-batch, T tokens of a row.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigError, DataError
from holdfast.ops.annealing import IGNORE
from holdfast.retention.method import ORIGINS, Host, Passive, Redraws, Sample, Writer
from holdfast.support.files import fingerprint

if TYPE_CHECKING:
    from torch import Tensor

_IDS, _LABELS = "input_ids", "labels"


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """The place of an answer in micro-batches."""

    batch: int
    row: int
    first: int
    """Its first token's place in the row."""
    length: int
    prompt: list[int]


class Redrawing(Passive):
    """What of a run's generated tokens is drawn anew, and what of it is still to be trained on (2605.29495, between
    tasks there).

    Args:
        redraws: how often, and how tokens are drawn.
        origin: whose tokens are drawn anew, one of `ORIGINS`.
    """

    def __init__(self, redraws: Redraws, *, origin: str) -> None:
        self.redraws, self.origin = redraws, ORIGINS.index(origin)
        self._ready: deque[dict[str, Any]] = deque()
        self._kept: list[tuple[Tensor, Tensor]] = []
        self._writer: Writer | None = None
        self._ends: tuple[int, ...] = ()
        self._tokens = 0

    def prepare(self, host: Host) -> None:
        self._writer, self._ends = host.writer(), host.end_tokens()

    def batches(self, coming: Iterator[dict[str, Any]], *, a_step: int, step: int) -> Iterator[dict[str, Any]]:
        if not self._ready:
            taken = list(itertools.islice(coming, len(self._kept) or self.redraws.every * a_step))
            if self._kept:
                if len(taken) < len(self._kept):
                    raise DataError(
                        f"self_replay.refresh: the checkpoint holds drawn tokens for {len(self._kept)} micro-batches, "
                        f"and the epoch has {len(taken)} left. Continue with the data and batch size that the run "
                        f"began with, or choose a new output_dir."
                    )
                read = [
                    {**batch, _IDS: ids.to(batch[_IDS].device), _LABELS: labels.to(batch[_LABELS].device)}
                    for batch, (ids, labels) in zip(taken, self._kept, strict=True)
                ]
                self._kept = []
            else:
                read = self._drawn_anew(taken, step) if step else taken
            self._ready.extend(_filler_marked(one, loaded) for one, loaded in zip(read, taken, strict=True))
        while self._ready:
            yield self._ready.popleft()

    def _drawn_anew(self, batches: list[dict[str, Any]], step: int) -> list[dict[str, Any]]:
        """Micro-batches with other answers. Those of all ranks are put in one order, which is that of one process with
        the same batch, and dealt out in batches: what is drawn depends neither on the number of ranks nor on that of
        micro-batches a step.

        Raises:
            HoldfastError: see `Writer.continued`.
        """
        assert self._writer is not None
        writer = self._writer
        batches = [{**b, _IDS: b[_IDS].clone(), _LABELS: b[_LABELS].clone()} for b in batches]
        mine = [one for place, batch in enumerate(batches) for one in self._answers(place, batch)]
        asked = [
            (-one.length, one.batch, rank, number, one.prompt)
            for rank, own in enumerate(writer.gather(mine))
            for number, one in enumerate(own)
        ]
        asked.sort(key=lambda one: one[:-1])
        size = self.redraws.batch_size or writer.batch_size()
        chunks = [asked[first : first + size] for first in range(0, len(asked), size)]

        def draw() -> dict[tuple[int, int], list[int]]:
            found: dict[tuple[int, int], list[int]] = {}
            for place in range(writer.rank, len(chunks), writer.world):
                samples = self._answered(chunks[place], step, place)
                found |= {one[2:4]: list(said.ids) for one, said in zip(chunks[place], samples, strict=True)}
            return found

        drawn = {key: ids for found in writer.gather(writer.together(draw)) for key, ids in found.items()}
        for number, one in enumerate(mine):
            self._write(batches[one.batch], one, drawn[writer.rank, number])
        return batches

    def _answered(self, chunk: Sequence[tuple[Any, ...]], step: int, place: int) -> list[Sample]:
        assert self._writer is not None
        return self._writer.continued(
            [prompt for *_, prompt in chunk],
            max_new_tokens=-chunk[0][0],
            temperature=self.redraws.temperature,
            top_p=self.redraws.top_p,
            seed=int(fingerprint([self.redraws.seed, step, place], length=8), 16),
        )

    def _write(self, batch: dict[str, Any], one: _Answer, ids: list[int]) -> None:
        ids, filler = ids[: one.length], self._ends[0] if self._ends else one.prompt[-1]
        place = slice(one.first, one.first + one.length)
        rest = one.length - len(ids)
        new = batch[_IDS].new_tensor
        batch[_IDS][one.row, place] = new([*ids, *[filler] * rest])
        batch[_LABELS][one.row, place] = new([*ids, *[IGNORE] * rest])
        self._tokens += len(ids)

    def _answers(self, place: int, batch: dict[str, Any]) -> Iterator[_Answer]:
        """The answers of a micro-batch; of a document that was cut in the middle only the piece with its prompt."""
        from holdfast.data.mixing import ORIGIN

        ids_BT, labels_BT = batch[_IDS], batch[_LABELS]
        mine_BT = (batch[ORIGIN] == self.origin).cpu()
        if batch.get("attention_mask") is not None:
            mine_BT &= batch["attention_mask"].bool().cpu()
        positions = batch.get("position_ids")
        for row in mine_BT.any(-1).nonzero().flatten().tolist():
            begins = [0] if positions is None else (positions[row] == 0).nonzero().flatten().tolist()
            for begin, end in itertools.pairwise([*begins, ids_BT.shape[1]]):
                held = mine_BT[row, begin:end].nonzero().flatten()
                if not len(held):
                    continue
                first, last = begin + int(held[0]), begin + int(held[-1]) + 1
                trained = (labels_BT[row, first:last] != IGNORE).nonzero().flatten()
                if len(trained) and int(trained[0]):
                    start = first + int(trained[0])
                    prompt = ids_BT[row, first:start].tolist()
                    length = int(trained[-1]) - int(trained[0]) + 1
                    yield _Answer(batch=place, row=row, first=start, length=length, prompt=prompt)

    def metrics(self, named: Any) -> dict[str, float]:
        return {"redrawn_tokens": float(self._tokens)}

    def state_dict(self) -> dict[str, Any]:
        assert self._writer is not None
        mine = [(b[_IDS].cpu(), b[_LABELS].cpu()) for b in self._ready] or self._kept
        held = self._writer.gather((self._tokens, mine))
        state: dict[str, Any] = {"tokens": [tokens for tokens, _ in held], "ready": [len(left) for _, left in held]}
        for rank, (_, left) in enumerate(held):
            for number, (ids, labels) in enumerate(left):
                state |= {f"{rank}.{number}.{_IDS}": ids, f"{rank}.{number}.{_LABELS}": labels}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """
        Raises:
            ConfigError: it was written by another number of processes, each of which read rows of its own.
        """
        assert self._writer is not None
        rank, world = self._writer.rank, self._writer.world
        if len(state["ready"]) != world:
            raise ConfigError(
                f"self_replay.refresh: expected a checkpoint of {world} processes, got one of "
                f"{len(state['ready'])}, whose drawn tokens stand in other rows. Continue with as many, or choose a "
                f"new output_dir."
            )
        self._tokens = int(state["tokens"][rank])
        self._ready.clear()
        self._kept = [
            (state[f"{rank}.{number}.{_IDS}"], state[f"{rank}.{number}.{_LABELS}"])
            for number in range(state["ready"][rank])
        ]


def _filler_marked(batch: dict[str, Any], loaded: dict[str, Any]) -> dict[str, Any]:
    """A micro-batch whose `ORIGIN` says where answers ended early: labels that were loaded and are gone. So a continued
    run finds them again by what its checkpoint holds."""
    from holdfast.data.mixing import FILLER, ORIGIN

    gone_BT = (loaded[_LABELS] != IGNORE) & (batch[_LABELS] == IGNORE)
    return {**batch, ORIGIN: batch[ORIGIN].masked_fill(gone_BT, FILLER)}
