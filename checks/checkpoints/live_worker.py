"""Run by two processes (torchrun): the in-place forms on sharded tensors against one process on whole ones. Rank 0
writes what is equal as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

from holdfast.checkpoints import live
from holdfast.errors import ModelError

LAYOUTS = {
    "rows": ((2,), (9, 5), [Shard(0)]),
    "columns": ((2,), (4, 7), [Shard(1)]),
    "last of three": ((2,), (3, 2, 5), [Shard(-1)]),
    "middle": ((2,), (2, 5, 3), [Shard(1)]),
    "one row": ((2,), (1, 6), [Shard(0)]),  # nothing left for the second rank
    "a vector": ((2,), (3,), [Shard(0)]),
    "replicated": ((2,), (4, 3), [Replicate()]),
    "hybrid": ((1, 2), (5, 4), [Replicate(), Shard(0)]),
    "two dimensions": ((2, 1), (5, 4), [Shard(0), Shard(1)]),
}
OPERATIONS = (
    "lerp_ from a folder",
    "lerp_ from whole tensors",
    "lerp_ from shards",
    "perturb_",
    "undo",
)


def start(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, (_, shape, _) in LAYOUTS.items()}


def shard(whole: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    meshes = {sizes: init_device_mesh("cpu", sizes) for sizes in {m for m, _, _ in LAYOUTS.values()}}
    return {n: distribute_tensor(t.clone(), meshes[LAYOUTS[n][0]], LAYOUTS[n][2]) for n, t in whole.items()}


def equal(sharded: dict[str, torch.Tensor], whole: dict[str, torch.Tensor]) -> dict[str, bool]:
    gathered = {n: t.full_tensor() if hasattr(t, "full_tensor") else t for n, t in sharded.items()}
    return {n: torch.equal(t, whole[n]) for n, t in gathered.items()}


def layouts(folder: Path, dtype: torch.dtype) -> dict[str, dict[str, bool]]:
    other = {n: t * 3 + 1 for n, t in start(torch.float32).items()}
    if dist.get_rank() == 0:
        save_file(other, str(folder / "model.safetensors"))
    dist.barrier()
    stds = dict.fromkeys(LAYOUTS, 0.02)
    found = {}
    for operation in OPERATIONS:
        one, two = start(dtype), shard(start(dtype))
        for named in (one, two):
            if operation == "lerp_ from a folder":
                live.lerp_(named, folder, 0.3)
            elif operation == "lerp_ from whole tensors":
                live.lerp_(named, other, 0.3)
            elif operation == "lerp_ from shards":
                live.lerp_(named, other if named is one else shard(other), 0.3)
            else:
                handle = live.perturb_(named, seed=3, scale=0.5, stds=stds)
                if operation == "undo":
                    handle.undo()
        found[operation] = equal(two, start(dtype) if operation == "undo" else one)
    return found


class Small(nn.Module):
    """Embeddings, two layers in FSDP groups of their own, a norm and a tied head in the root's."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(31, 16)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 31, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(ids)
        for layer in self.layers:
            hidden = hidden + layer(hidden).tanh()
        return self.head(self.norm(hidden))


def fsdp() -> dict[str, bool]:
    """A model under FSDP2, with a forward pass between noise and undo."""
    whole, model = Small(4), Small(4)
    before = {n: p.detach().clone() for n, p in whole.named_parameters()}
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    stds = dict.fromkeys(before, 0.02)
    clean = logits_of(whole)
    noisy = live.perturb_(dict(whole.named_parameters()), seed=9, scale=1.0, stds=stds)
    with live.perturbed(model, seed=9, scale=1.0, stds=stds) as handle:
        logits = torch.equal(logits_of(model), logits_of(whole))
        same = all(equal(dict(model.named_parameters()), {n: p.detach() for n, p in whole.named_parameters()}).values())
        share = torch.tensor([handle.elements, handle.missed])
    dist.all_reduce(share)
    return {
        "noise": same,
        "logits": logits,
        "counts add up": share.tolist() == [noisy.elements, noisy.missed],
        "undo": all(equal(dict(model.named_parameters()), before).values()),
        "logits after": torch.equal(logits_of(model), clean),
        "lerp_": lerped(model),
    }


@torch.no_grad()
def logits_of(model: nn.Module) -> torch.Tensor:
    return model(torch.arange(8)[None])


def lerped(model: nn.Module) -> bool:
    """Between two forward passes, after which FSDP2 has not yet put the root's gathered weights away."""
    logits_of(model)
    other, wanted = Small(5), Small(4)
    for one in (model, wanted):
        live.lerp_(one, {n: p.detach() for n, p in other.named_parameters()}, 0.5)
    return torch.equal(logits_of(model), logits_of(wanted))


def refused() -> str:
    from torch.distributed.tensor import DTensor

    partial = DTensor.from_local(torch.ones(2), init_device_mesh("cpu", (2,)), [Partial()])
    try:
        live.perturb_({"w": partial}, seed=0, scale=1.0, stds={"w": 1.0})
    except ModelError as error:
        return str(error)
    return ""


def main(out: Path) -> None:
    dist.init_process_group("gloo")
    report = {
        "layouts": {str(d): layouts(out, d) for d in (torch.float32, torch.bfloat16)},
        "fsdp": fsdp(),
        "refused": refused(),
    }
    verdicts = [None, None]
    dist.all_gather_object(verdicts, report)
    if dist.get_rank() == 0:
        (out / "report.json").write_text(json.dumps(verdicts))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
