"""The diagonal of the Fisher information: how much each parameter matters to what the model says
about some data.

    F = 1/N * sum_n g_n^2          g_n = d/d theta  sum_t log p(y_t | x_<=t)
                                   over the trained tokens t of sample n, squared
                                   elementwise

N is the number of trained tokens of all samples together, so F is in squared nats per trained
token. The reason: the loss of fine-tuning is a mean over tokens, and the Laplace approximation of
the old data's loss around theta_o is a sum over its tokens,
`1/2 sum_i (sum_n g_n,i^2) (theta_i - theta_o,i)^2`. Divided by N it is a mean over tokens too, and
a penalty `coefficient/2 sum_i F_i (theta_i - theta_o,i)^2` with coefficient 1 weighs a token of the
old data like one of the new.

Gradients are squared per sample and then added up. Squaring a batch's mean gradient, as is often
seen, gives another thing: it shrinks with the batch size and vanishes where gradients cancel, at
the optimum of all places.

| estimator | labels | |
|---|---|---|
| empirical | the data's | no second forward pass; larger than the Fisher information where the model is wrong about the
data |
| sampled | drawn from the model | an unbiased estimate of the diagonal of the Fisher information at the data's contexts
|

Samples are taken whole: under "sampled" labels the terms of two tokens of a sample have mean 0
against each other, so a whole sequence costs one backward pass and estimates the same as token by
token; under "empirical" labels they need not have, and the sequence's gradient is what is squared.

A Fisher diagonal is kept as a folder: `fisher.safetensors` (float32, names as checkpoints write
them) and `fisher.json` (what it was computed of). The folder is complete or absent.
`holdfast merge --method fisher` takes it as it is.

References: Kirkpatrick et al. 2017, Overcoming catastrophic forgetting in neural networks
(arXiv:1612.00796), section 2; Kunstner et al. 2019, Limitations of the empirical Fisher
approximation (arXiv:1905.12558).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from holdfast.errors import DataError, ModelError, StorageError
from holdfast.support.files import fingerprint, read_json, write_json
from holdfast.support.leftovers import NewFolder, scratch_folder
from holdfast.support.paths import expanded
from holdfast.support.progress import progress

if TYPE_CHECKING:
    import torch
    from datasets import Dataset

    from holdfast.checkpoints.reader import CheckpointReader
    from holdfast.retention.anchor import Kept
    from holdfast.retention.protocol import NamedParams
    from holdfast.retention.services import Services

FILE, RECORD = "fisher.safetensors", "fisher.json"
KIND = "diagonal Fisher information"
Estimator = Literal["empirical", "sampled"]
"""Whose labels the gradients are taken for: the data's, or labels drawn from the model."""
COMPARED = 1 << 16
"""Values of each tensor that a fingerprint looks at, at most about twice as many."""


class Diagonal(NamedTuple):
    """A diagonal Fisher information."""

    values: dict[str, torch.Tensor]
    """By parameter: its shape, on its device, 0 or more, float32 (float64 for float64 parameters),
    squared nats per trained token."""
    samples: int
    tokens: int
    """Trained tokens of all samples."""


def diagonal_fisher(
    services: Services,
    named: NamedParams,
    rows: Dataset,
    *,
    sampled: bool,
    seed: int,
    label: str = "the data",
) -> Diagonal:
    """The diagonal Fisher information of a model on rows; the same on all ranks, which all have to
    call it.

    Args:
        services: gives the gradients, sample by sample, and sums over ranks.
        named: the parameters it is wanted of.
        rows: tokenised, `input_ids` and `labels`, each with a trained token.
        sampled: labels drawn from the model instead of the rows' own.
        seed: of the draws.
        label: what the progress bar calls the rows.

    Raises:
        DataError: no trained token in the rows.
        ModelError: logits or gradients that are not finite.
    """
    import torch

    from holdfast.ops.annealing import NonFiniteLogits

    sums = {}
    for name, parameter in named.items():
        dtype = torch.promote_types(parameter.dtype, torch.float32)
        sums[name] = torch.zeros(parameter.shape, dtype=dtype, device=parameter.device)
    counts = {"samples": 0, "tokens": 0}
    bar = (
        progress(f"Fisher information of {label}", total=len(rows))
        if services.first()
        else contextlib.nullcontext(lambda amount: None)
    )
    with bar as advance:
        processes = {
            "processes": torch.ones((), dtype=torch.int64, device=next(iter(sums.values())).device)
        }
        services.sum_(processes)
        try:
            for tokens, gradients in services.sample_gradients(rows, sampled=sampled, seed=seed):
                for name, gradient in gradients.items():
                    if name in sums:
                        gradient = gradient.detach().to(sums[name].dtype)
                        sums[name].addcmul_(gradient, gradient)
                counts["samples"] += 1
                counts["tokens"] += tokens
                advance(float(processes["processes"]))
        except NonFiniteLogits as error:
            raise ModelError(
                f"The Fisher information of {label} cannot be computed: the model's logits are "
                f"not finite ({error})."
            ) from error
    together = {
        name: torch.tensor(count, device=processes["processes"].device)
        for name, count in counts.items()
    }
    services.sum_(together)
    services.sum_(sums)
    samples, tokens = int(together["samples"]), int(together["tokens"])
    if tokens == 0:
        raise DataError(
            f"Expected samples with trained tokens in {label}, found none. Give data with tokens "
            "to train on."
        )
    for total in sums.values():
        total.div_(tokens)
    broken = [name for name, total in sums.items() if not bool(torch.isfinite(total).all())]
    if broken:
        raise ModelError(
            f"The Fisher information of {label} is not finite in {len(broken)} of {len(sums)} "
            f"parameters: {', '.join(broken[:3])}. Compute it in float32 or bfloat16 (float16 "
            "gradients overflow), and check that the model's loss on the data is finite."
        )
    return Diagonal(sums, samples, tokens)


def made_of(
    rows: Dataset,
    weights: Mapping[str, str],
    *,
    estimator: str,
    seed: int,
    data: str,
    model: Mapping[str, str],
    earlier: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What a Fisher diagonal is computed of, as its record says it; "made_of" in it is a hash of
    the rest.

    Args:
        rows: the chosen ones, tokenised.
        weights: `fingerprints` of the model.
        estimator: as of `Estimator`.
        seed: of the choice and of the draws.
        data: what to call the data.
        model: what else to say of the model.
        earlier: what the diagonal of earlier tasks is, and the share of it that is kept.
    """
    content = {
        "estimator": estimator,
        "seed": seed,
        "samples": len(rows),
        "data": {"name": data, "hash": rows_hash(rows)},
        "model": {**model, "weights": dict(weights)},
        "earlier": None if earlier is None else dict(earlier),
    }
    return {**content, "made_of": fingerprint(content, length=16)}


def all_ranks(services: Services, named: NamedParams, yes: bool) -> bool:
    """Whether it is so on every rank; all ranks have to ask, and none goes on before all have."""
    import torch

    device = next(iter(named.values())).device
    votes = {"yes": torch.tensor(int(yes), device=device), "ranks": torch.tensor(1, device=device)}
    services.sum_(votes)
    return int(votes["yes"]) == int(votes["ranks"])


def choose_rows(rows: Dataset, samples: int, *, seed: int, label: str) -> Dataset:
    """Up to `samples` rows that have a trained token, drawn without replacement, in their order.

    Args:
        rows: tokenised, `input_ids` and `labels` (-100: not trained; the first label of a row is
            never predicted).
        samples: how many at most.
        seed: of the draw.
        label: what errors call the rows.

    Raises:
        DataError: no row has a trained token.
    """
    from random import Random

    # In random order until there are enough, so that a large data set is not read whole.
    order = Random(seed).sample(range(len(rows)), len(rows))
    chosen: list[int] = []
    for index in order:
        if len(chosen) == samples:
            break
        if any(label != -100 for label in rows[index]["labels"][1:]):
            chosen.append(index)
    if not chosen:
        raise DataError(
            f"Expected samples with trained tokens in {label}, found none in {len(rows)}. Check "
            "that prompts are shorter than the window."
        )
    return rows.select(sorted(chosen))


def rows_hash(rows: Dataset) -> str:
    """SHA-256 over token ids and labels, 64 hexadecimal digits: of what was trained on, whatever
    file or hub id it came from."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(repr((list(row["input_ids"]), list(row["labels"]))).encode())
    return digest.hexdigest()


# -------------------------------------------------------------------------------- which model it is


def fingerprints(named: NamedParams, held: Kept | None = None) -> dict[str, str]:
    """16 hexadecimal digits for the values of each parameter, by its name in checkpoints.

    About 65,536 values of each, evenly spread, are looked at after rounding to bfloat16: the same
    weights loaded in float32 and in bfloat16 are one model, and weights that differ by less than
    that are too. Weights that are loaded in float16 from a file in another dtype are rounded twice,
    so that they may count as another model.

    Args:
        named: plain parameters.
        held: other values under the same names, in memory or in an open folder; None: the
            parameters' own.

    Raises:
        ModelError: `held` lacks parameters or has other shapes; all of them are named.
    """
    from holdfast.checkpoints.live import counterparts
    from holdfast.checkpoints.live_tensors import checkpoint_names

    values = named if held is None else held
    digests = {}
    for target, key in counterparts(named, values, header="The weights do not fit the model"):
        digests[checkpoint_names(target.name)[0]] = _digest(_tensor(values, key))
    return digests


def _tensor(held: Kept, key: str) -> torch.Tensor:
    return held[key].detach() if isinstance(held, Mapping) else held.tensor(key)


def _digest(tensor: torch.Tensor) -> str:
    import torch

    # odd: an even step would meet the same few columns of a matrix again and again
    step = max(1, tensor.numel() // COMPARED) | 1
    values = tensor.reshape(-1)[::step].to(torch.bfloat16).cpu().contiguous()
    return hashlib.blake2b(values.view(torch.int16).numpy().tobytes(), digest_size=8).hexdigest()


# ------------------------------------------------------------------------------------------ on disk


class SavedFisher:
    """A Fisher diagonal on disk.

    Args:
        folder: as `save_fisher` writes it.

    Raises:
        ModelError: no such folder, no Fisher diagonal in it, files that cannot be read or do not
            belong together.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        from holdfast.checkpoints.reader import CheckpointReader

        self.folder = expanded(folder)
        problems = fisher_folder_problems(str(folder))
        if problems:
            raise ModelError(" ".join(problems))
        try:
            self.record: dict[str, Any] = read_json(self.folder / RECORD)
            known = self.record["kind"] == KIND and isinstance(
                self.record["model"]["weights"], dict
            )
        except (DataError, KeyError, TypeError):
            known = False
        if not known:
            raise ModelError(
                f"{self.folder / RECORD} does not describe a Fisher diagonal. Compute it again "
                "with 'holdfast fisher'."
            )
        self.reader: CheckpointReader = CheckpointReader(self.folder)
        wrong = sorted(set(self.reader.entries) ^ set(self.record["model"]["weights"]))
        if wrong:
            raise ModelError(
                f"{self.folder}: {FILE} and {RECORD} do not match; {len(wrong)} tensors are in "
                f"one of them only: {', '.join(wrong[:3])}. Compute it again with 'holdfast "
                "fisher'."
            )

    @property
    def identity(self) -> str:
        """A hash of everything that its record says, the fingerprints of its values among it."""
        return fingerprint(self.record, length=16)

    def fit(self, named: NamedParams) -> None:
        """Checks that there is a value for every element.

        Raises:
            ModelError: parameters are missing or have other shapes; all of them are named.
        """
        self._pairs(named)

    def other_model(self, weights: Mapping[str, str]) -> list[str]:
        """A sentence where it was computed of other weights.

        Args:
            weights: `fingerprints` of the model it is meant for.
        """
        of: dict[str, str] = self.record["model"]["weights"]
        wrong = sorted(name for name, digest in weights.items() if of.get(name) != digest)
        if not wrong:
            return []
        names = f"{', '.join(wrong[:3])}{', ...' if len(wrong) > 3 else ''}"
        return [
            f"The Fisher information {self.folder} was computed on another model "
            f"({self.record['model'].get('name') or 'the start of a run'}): the values of "
            f"{len(wrong)} of {len(weights)} parameters differ ({names}). Compute it again "
            "with 'holdfast fisher' on the reference of this run. If the folder is meant for "
            "earlier tasks, keep it and also set data (of the newest task)."
        ]

    def kept(self, named: NamedParams, where: str) -> Kept:
        """The values where they are to be kept: beside the parameters, in host memory, or on the
        disk, streamed (`retention.anchor.Keep`)."""
        from holdfast.retention.anchor import like, streamed

        if where == "disk":
            return streamed(str(self.folder), named)
        tensors = {}
        for name, key in self._pairs(named):
            tensor = self.reader.tensor(key)
            tensors[name] = tensor.clone() if where == "cpu" else like(tensor, named[name].detach())
        return tensors

    def add_to(self, values: dict[str, torch.Tensor], scale: float) -> None:
        """`values += scale * these`, tensor by tensor."""
        for name, key in self._pairs(values):
            values[name].add_(self.reader.tensor(key).to(values[name]), alpha=scale)

    def _pairs(self, named: NamedParams) -> list[tuple[str, str]]:
        from holdfast.checkpoints.live import counterparts

        header = f"The Fisher information {self.folder} does not fit the model being trained"
        return [
            (target.name, key) for target, key in counterparts(named, self.reader, header=header)
        ]


def save_fisher(
    folder: str | os.PathLike[str], values: NamedParams, record: Mapping[str, Any]
) -> None:
    """Writes a Fisher diagonal, complete or not at all; one that is there is replaced.

    Args:
        folder: where; its parents are made.
        values: by parameter name, as of `Diagonal`.
        record: goes to `fisher.json`, with kind and fingerprints of the values added.

    Raises:
        RunFolderError: the place cannot be written.
        StorageError: the disk is full or failed.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    from holdfast.checkpoints.live_tensors import checkpoint_names
    from holdfast.checkpoints.writer import (
        disk_errors,
        fsync_path,
        replace_folder,
        restore_replaced,
    )

    folder = expanded(folder)
    stored = {
        checkpoint_names(name)[0]: tensor.detach().float().cpu().contiguous()
        for name, tensor in values.items()
    }
    described = {
        "kind": KIND,
        **record,
        "values": {name: _digest(tensor) for name, tensor in stored.items()},
    }
    with disk_errors(folder), NewFolder(folder.parent, content=False):
        restore_replaced(folder)
        with scratch_folder(folder.parent, f".{folder.name}-") as scratch:
            staging = scratch / folder.name
            staging.mkdir()
            try:
                save_file(stored, str(staging / FILE), metadata={"format": "pt"})
            except SafetensorError as error:  # the system's error, as text
                raise StorageError(
                    f"Could not write {folder} ({error}). Free some space or choose another folder."
                ) from error
            fsync_path(staging / FILE)
            write_json(staging / RECORD, described)
            replace_folder(staging, folder)
        fsync_path(folder.parent)


def fisher_folder_problems(folder: str) -> list[str]:
    """Says so where a folder is missing or holds no Fisher diagonal; looks at names only."""
    from holdfast.retention.anchor import anchor_problems

    path = expanded(folder)
    if not path.is_dir():
        return [*anchor_problems("Fisher information", str(path))]
    missing = [name for name in (FILE, RECORD) if not (path / name).is_file()]
    if not missing:
        return []
    inside = path / "fisher"
    hint = (
        f" There is a Fisher diagonal in {inside}."
        if (inside / RECORD).is_file()
        else " Compute it with 'holdfast fisher MODEL --data FILE'."
    )
    return [
        f"Expected a Fisher diagonal ({FILE} and {RECORD}) in {folder}, found no "
        f"{' and no '.join(missing)}.{hint}"
    ]
