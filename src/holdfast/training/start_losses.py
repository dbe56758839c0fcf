"""The start model's cross-entropy at every token of the training data: one pass, kept on disk, found by documents.

What token weighting asks for (`Host.start_losses`). The same machinery as the cached teacher's (`teacher_cache`): a
document's losses are found by the hash of its tokens, so packing, the order of rows, ranks and resumption do not
matter; what is stored is checked, computed where it is missing, and compared with the model on a batch of training.

A float32 a token, of the token that follows; 0 at a document's last. Labels play no part in what is stored: which
tokens are trained is the batch's own matter.

Shape suffixes: B batch, T positions, S = T - 1 predictions, D documents.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor

from holdfast.data.mixing import NEW, ORIGIN
from holdfast.ops.annealing import IGNORE, annealed_loss
from holdfast.ops.heads import Head
from holdfast.retention.cached_teacher import CachedStates, Wording, find_documents
from holdfast.retention.method import ORIGINS
from holdfast.retention.state_store import StateStore
from holdfast.retention.teacher import Teacher
from holdfast.support.cache import cache_folder
from holdfast.support.paths import expanded
from holdfast.training.forward import successor_mask
from holdfast.training.teacher_cache import Say, StartCache


class _Losses:
    """A `Teacher` whose states are its cross-entropies, `[B, T, 1]`."""

    def __init__(self, model: Teacher) -> None:
        self.model, self.name = model, model.name

    @torch.no_grad()
    def hidden(self, inputs: dict[str, Any]) -> tuple[Tensor, Head]:
        states_BTH, head = self.model.hidden(inputs)
        follows_BS = successor_mask(inputs).expand(states_BTH.shape[0], -1)
        labels_BS = torch.where(follows_BS, inputs["input_ids"][:, 1:], IGNORE)
        ce_N = annealed_loss(states_BTH[:, :-1].flatten(0, 1), head, labels_BS.flatten()).ce_N
        return torch.nn.functional.pad(ce_N.view(labels_BS.shape), (0, 1))[..., None], head


class LossCache(StartCache):
    """The losses of one run's training data; arguments as of `StartCache`."""

    kept = "losses"

    def __init__(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(trainer, *args, **kwargs)
        self.source = _Losses(self.source)

    def _reader(self, store: StateStore, dtype: torch.dtype) -> CachedStates:
        return CachedStates(store, width=1, dtype=dtype, words=self.words)


class FoundLosses:
    """See `retention.method.StartLosses`.

    Args:
        found: of the training data.
        data: the training data as prepared: `input_ids`, `labels`, and what tells documents apart.
        without: origins (`data.mixing.ORIGIN`) whose tokens have no cross-entropy to be weighed.
    """

    def __init__(self, found: CachedStates, data: Any, without: Collection[int] = ()) -> None:
        self._found, self._data, self._without = found, data, without

    def of(self, inputs: dict[str, Any]) -> Tensor:
        """See `StartLosses.of`. NaN of the padding of packed rows, which predicts nothing, becomes 0."""
        return self._found.of(inputs)[:, :-1, 0].nan_to_num(0.0)

    def means(self) -> tuple[Tensor, Tensor]:
        """See `StartLosses.means`."""
        pairs = [(float(losses.double().mean()), len(losses)) for _, losses in self.trained()]
        both = torch.tensor(pairs, dtype=torch.float64).reshape(-1, 2)
        return both[:, 0], both[:, 1]

    def trained(self) -> Iterator[tuple[Tensor, Tensor]]:
        """See `StartLosses.trained`."""
        for index in range(len(self._data)):
            row = self._data[index]
            inputs = {
                name: torch.as_tensor(row[name])[None]
                for name in ("input_ids", "attention_mask", "position_ids")
                if row.get(name) is not None
            }
            if row.get("seq_lengths") is not None:
                inputs["position_ids"] = torch.cat([torch.arange(int(n)) for n in row["seq_lengths"]])[None]
            ids_T = inputs["input_ids"][0]
            if not ids_T.numel():
                continue
            trained_T = torch.as_tensor(row.get("labels", row["input_ids"])) != IGNORE
            spans = find_documents(inputs, self._found.words)
            origins = row.get(ORIGIN) or [NEW] * len(spans.keys)
            for key, start, length, origin in zip(spans.keys, spans.start, spans.length, origins, strict=True):
                if origin in self._without:
                    continue
                predicted = slice(start + 1, start + length)
                trained = trained_T[predicted]
                if trained.any():
                    yield ids_T[predicted][trained], self._found.store.read(key)[:-1, 0][trained]


def find_start_losses(trainer: Any, setting: str, *, cache_dir: str | None, say: Say) -> FoundLosses:
    """The start model's losses over a trainer's training data, computed where they are not on disk.

    Args:
        trainer: a `RetentionMixin` whose model is the start model still.
        setting: who asks, for messages.
        cache_dir: where they are kept; None: in holdfast's cache folder.
        say: gets a line on what is found and done.

    Raises:
        HoldfastError: as `StartCache.prepare`.
    """
    words = Wording(
        setting=setting,
        instead="choose a kind that needs no pass of the start model (eaft, dft, talr)",
        folder="token_weighting.cache_dir",
        store="Start model's losses",
        what="the start model's losses",
    )
    root = expanded(cache_dir) if cache_dir else cache_folder() / "start_losses"
    cache = LossCache(trainer, root, words=words)
    without = [number for number, name in enumerate(ORIGINS) if trainer._ce_by_origin.get(name, 1.0) == 0]
    found = cache.prepare([trainer.train_dataset], at_start=True, say=say)
    return FoundLosses(found, trainer.train_dataset, without)
