"""LoRA that begins in directions which text to be kept does not use: CorDA and LoRA-Null.

```yaml
use_peft: true
lora_init: lora_null          # or corda
lora_init_data: prose.jsonl   # text that the model is to keep
```

Both look at the second moment C = mean x x' of the inputs x of every targeted matrix W over that text, and take the
factors of a low-rank part of W out of it that matters little to the text:

    corda       U S V' = SVD(W C), the last r of it:  B0 = U_r (S_r / s)^1/2,  A0 = (S_r / s)^1/2 V_r' C^-1
    lora_null   N = eigenvectors of the r smallest eigenvalues of C,  U S V' = SVD(W N N') of rank r
                B0 = U (S / s)^1/2,  A0 = (S / s)^1/2 V'                 s: LoRA's scaling

CorDA: Yang et al. 2024, arXiv:2406.05223, knowledge-preserved adaptation; as in PEFT's `corda.py` C gets 0.01 of its
mean diagonal added, and twice as much again until its inverse is one. LoRA-Null: Tang et al. 2025, arXiv:2503.02659;
with the frozen down-projections of its second version under `lora_init_freeze_a`.

**The base stays as it is.** The authors take s B0 A0 off the base. Here the adapter has twice the rank,

    W + s [B -B0] [A; A0]          B, A trained, from B0, A0;  the other half stays as it is, bit for bit

which is the same function with the same gradients, is W at the start up to rounding, and lets teachers, anchors and
distances have the base that they mean. What is saved is a plain LoRA adapter of rank 2 r over the base as published.

Departures: C is a mean over all tokens (PEFT divides every text's inputs by their largest entry, the sign aside only
after, and LoRA-Null's code by 256 whatever the number of texts), scaled to a mean diagonal of 1: a factor of C leaves
B0 A0 as it is, and decides how it is shared between CorDA's two factors. Decompositions are in float64: the last
directions are those of the smallest values, which float32 does not tell from rounding.

Cost: a forward pass over the text; a float32 matrix `[in, in]` for each distinct input until the factors are made;
for each matrix a singular value decomposition of W C (CorDA), or one of `[out, r]` and one eigendecomposition of C
(LoRA-Null). While training, a LoRA of twice the rank, whose optimiser keeps moments of both halves.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from holdfast.checkpoints.sources import listing
from holdfast.errors import ConfigError, DataError, ModelError
from holdfast.ops.heads import run_outside
from holdfast.retention.fisher import all_ranks, choose_rows, rows_hash
from holdfast.retention.teacher_states import weights_digest
from holdfast.support.files import fingerprint, write_bytes_atomic
from holdfast.support.progress import progress
from holdfast.training.adapters import LORA_INIT_SHARDED, new_adapters_off
from holdfast.training.host import TrainerHost

if TYPE_CHECKING:
    from datasets import Dataset

    from holdfast.training.adapters import AdapterArguments

FILE = "lora_init/factors.safetensors"
"""In a run's folder: B0 and A0, so that a continued run has those it began with, on any processor."""
Factors = tuple[Tensor, Tensor]
"""B `[out, r]` and A `[r, in]`."""


class InputMoments:
    """Second moments of the inputs of linear layers, while the model is run.

    Layers that are given one tensor after one another (queries, keys and values) share their sum; which do is seen in
    the passes under `learning`, of which there has to be one before others.

    Args:
        layers: by name, in the order in which the model calls them.
    """

    def __init__(self, layers: Mapping[str, nn.Module]) -> None:
        self._layers = layers
        self._leaders = {name: name for name in layers}
        self._sums: dict[str, Tensor] = {}
        self._tokens = dict.fromkeys(layers, 0)
        self._last: tuple[Any, str] | None = None
        self._learning = self._counts = False

    @contextlib.contextmanager
    def watching(self, *, counts: bool = True, learning: bool = False) -> Iterator[None]:
        """Inside, inputs are added up.

        Args:
            counts: False: nothing is added.
            learning: which layers share their inputs is seen.
        """
        self._counts, self._learning = counts, learning
        hooks = [layer.register_forward_pre_hook(self._hook(name)) for name, layer in self._layers.items()]
        try:
            yield
        finally:
            self._last = None
            for hook in hooks:
                hook.remove()

    def _hook(self, name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def seen(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            if self._learning:
                same = self._last is not None and inputs[0] is self._last[0]
                self._leaders[name] = self._last[1] if same and self._last is not None else name
                self._last = inputs[0], self._leaders[name]
            if self._counts and self._leaders[name] == name:
                self._add(name, inputs[0].detach())

        return seen

    def _add(self, name: str, inputs: Tensor) -> None:
        flat = inputs.reshape(-1, inputs.shape[-1])
        flat = flat.to(torch.promote_types(flat.dtype, torch.float32))
        if name not in self._sums:
            self._sums[name] = flat.new_zeros(flat.shape[1], flat.shape[1])
        self._sums[name].addmm_(flat.T, flat)
        self._tokens[name] += len(flat)

    def means(self, sum_: Callable[[Mapping[str, Tensor]], None], *, label: str) -> list[tuple[list[str], Tensor]]:
        """The mean of x x' over all tokens, `[in, in]`, float32 at least, with the layers whose inputs it is of. To be
        called once.

        Args:
            sum_: sums tensors over all ranks, in place; all of them have to call this.
            label: what errors call the text.

        Raises:
            DataError: a layer was given no token.
            ModelError: a layer's inputs are not finite.
        """
        groups: dict[str, list[str]] = {}
        for name, leader in self._leaders.items():
            groups.setdefault(leader, []).append(name)
        sums: dict[str, Tensor] = {}
        for name in groups:
            base: Any = self._layers[name]
            empty = torch.zeros(base.in_features, base.in_features, device=base.weight.device)
            sums[name] = self._sums.pop(name, empty)
        counts = {name: torch.tensor(self._tokens[name], device=sums[name].device) for name in groups}
        sum_(sums)
        sum_(counts)
        if unused := [name for name in groups if not counts[name]]:
            raise DataError(
                f"lora_init_data: expected text whose tokens reach every targeted layer, got none of {label} in "
                f"{listing(unused)}. Give more or other text, or leave these out of lora_target_modules."
            )
        if broken := [name for name in groups if not bool(torch.isfinite(sums[name]).all())]:
            raise ModelError(
                f"lora_init: expected finite inputs of every targeted layer, got nan or infinities on {label} in "
                f"{listing(broken)}. Load the model in bfloat16 or float32 (dtype), or check its weights."
            )
        return [(names, sums[leader].div_(counts[leader])) for leader, names in groups.items()]


def corda_factors(moment: Tensor, *, rank: int, scaling: float) -> Callable[[Tensor], Factors]:
    """What gives CorDA's factors of a matrix.

    Args:
        moment: C `[in, in]`, any float dtype.
        rank: r.
        scaling: s.

    Returns:
        A function of W `[out, in]` whose sides are at least r; its factors are float64.
    """
    moment, eye = _scaled(moment), torch.eye(len(moment), dtype=torch.float64, device=moment.device)
    damping = 0.01
    while True:
        damped = moment + damping * eye
        inverse = torch.linalg.inv(damped)
        if float(torch.dist(damped @ inverse, eye)) < 0.05:
            break
        damping *= 2

    def factors(weight: Tensor) -> Factors:
        u, s, vt = torch.linalg.svd(weight.to(damped) @ damped, full_matrices=False)
        return _shared_out(u[:, -rank:], s[-rank:], vt[-rank:] @ inverse, scaling)

    return factors


def lora_null_factors(moment: Tensor, *, rank: int, scaling: float) -> Callable[[Tensor], Factors]:
    """What gives LoRA-Null's factors of a matrix; as `corda_factors`.

    W N N' has rank r, so its singular vectors are those of W N `[out, r]`, the right ones brought back by N'."""
    null = torch.linalg.eigh(_scaled(moment)).eigenvectors[:, :rank]

    def factors(weight: Tensor) -> Factors:
        u, s, vt = torch.linalg.svd(weight.to(null) @ null, full_matrices=False)
        return _shared_out(u, s, vt @ null.T, scaling)

    return factors


def _scaled(moment: Tensor) -> Tensor:
    """In float64, with a mean diagonal of 1 (a moment of 0 as it is)."""
    moment = moment.to("cpu" if moment.device.type == "mps" else moment.device).double()
    return moment / mean if (mean := float(moment.diagonal().mean())) else moment


def _shared_out(u: Tensor, s: Tensor, vt: Tensor, scaling: float) -> Factors:
    root = (s / scaling).sqrt()
    return u * root, root[:, None] * vt


def doubled_layers(model: nn.Module) -> dict[str, Any]:
    """The LoRA layers of an adapter that `adapter_config` has doubled, by the names of the matrices that they are of.

    Raises:
        ConfigError: there is none; one is not of an `nn.Linear`, or has a side smaller than the rank that is trained.
    """
    from peft.tuners.lora import LoraLayer

    layers = {
        name.removeprefix("base_model.model."): module
        for name, module in model.named_modules()
        if isinstance(module, LoraLayer)
    }
    found = []
    others = [name for name, layer in layers.items() if not isinstance(layer.get_base_layer(), nn.Linear)]
    if others or not layers:
        found.append(
            f"lora_init: expected matrices (nn.Linear) as lora_target_modules, whose inputs it can look at, got "
            f"{listing(others) or 'none'}. Name others, or leave lora_init out."
        )
    larger = [
        f"{name} ({base.out_features} x {base.in_features})"
        for name, layer in layers.items()
        if name not in others
        and (base := layer.get_base_layer())
        and rank_of(layer) > min(base.out_features, base.in_features)
    ]
    if larger:
        found.append(
            f"lora_r: expected at most the smaller side of every matrix with lora_init, whose factors are singular "
            f"vectors of it, got {max(rank_of(layer) for layer in layers.values())} for {listing(larger)}. Lower it, "
            f"or name other lora_target_modules."
        )
    if found:
        raise ConfigError(found)
    return layers


def rank_of(layer: Any) -> int:
    """The rank that is trained of a layer with twice as much."""
    (rank,) = layer.r.values()
    return int(rank) // 2


class LoraStart:
    """Puts the factors into a new adapter of twice the rank, and keeps the half that is not trained as it is.

    Args:
        trainer: an `SFTRetentionTrainer` that is complete but for its methods; its model is the start model, with a new
            adapter of `adapter_config` in it.
        adapter: with `lora_init`.
        say: gets a line on what is done, on the first process.

    Raises:
        ConfigError: the run shards its model, targets that have no such factors, or methods that cannot act on them.
        DataError: the text cannot be read, or does not reach every layer.
        ModelError: inputs that are not finite.
        StorageError: no room for the factors in the run's folder.
    """

    def __init__(self, trainer: Any, adapter: AdapterArguments, say: Callable[[str], None]) -> None:
        if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
            raise ConfigError(LORA_INIT_SHARDED)
        if found := [p for m in trainer.retain for p in m.check_lora_init(freeze_a=adapter.lora_init_freeze_a)]:
            raise ConfigError(found, source="retention")
        self._adapter, self._layers = adapter, doubled_layers(trainer.model)
        self.info: dict[str, Any] = {}
        """What a run records of it."""
        self._start(trainer, TrainerHost(trainer, say))
        for layer in self._layers.values():
            _train_first_half(layer, freeze_a=adapter.lora_init_freeze_a)
        self._held: list[Factors] = []
        self.hold()

    @property
    def frozen(self) -> int:
        """How many numbers of the parameters that have a gradient are not trained."""
        return sum(p.numel() // 2 for layer in self._layers.values() for p in _weights(layer) if p.requires_grad)

    def hold(self) -> None:
        """Takes the second half as it is for what it is to stay; to be called when a checkpoint was loaded."""
        self._held = [tuple(half.detach().clone() for half in _halves(layer)[1]) for layer in self._layers.values()]

    @torch.no_grad()
    def restore(self) -> None:
        """Gives the second half back what it was, whatever weight decay or a method has done to it."""
        for layer, held in zip(self._layers.values(), self._held, strict=True):
            for half, was in zip(_halves(layer)[1], held, strict=True):
                half.copy_(was)

    @torch.no_grad()
    def _start(self, trainer: Any, host: TrainerHost) -> None:
        """Finds the factors in the run's folder, or computes them and writes them there; the same on all ranks."""
        adapter, data = self._adapter, str(self._adapter.lora_init_data)
        rows = host.rows(data)
        if "images" in rows.column_names:
            raise ConfigError(f"lora_init_data: expected text, got rows with images: {data}.")
        rows = choose_rows(rows, adapter.lora_init_samples, seed=int(trainer.args.seed), label=data)
        some = next(iter(self._layers.values()))
        rank, scaling = rank_of(some), float(next(iter(some.scaling.values())))
        factors = {
            f"{name}.lora_{which}": torch.zeros_like(half)
            for name, layer in self._layers.items()
            for which, half in zip("BA", _halves(layer)[0], strict=True)
        }
        place = None if (folder := host.folder()) is None else folder / FILE
        key, known = "", None
        if host.first():
            made_of = [adapter.lora_init, rank, scaling, rows_hash(rows), weights_digest(trainer.model)]
            key = fingerprint(made_of, length=32)
            known = _read(place, key)
        if all_ranks(host, factors, known is not None or not host.first()):
            host.say(f"lora_init: the factors on {data} are in {place} already")
            for name, tensor in (known or {}).items():
                factors[name].copy_(tensor)
        else:
            host.say(f"lora_init: computing {adapter.lora_init}'s factors on {len(rows)} samples of {data}")
            self._compute(trainer, host, rows, factors, functools.partial(_of(adapter), rank=rank, scaling=scaling))
        host.sum_(factors)  # each is 0 but on the rank that has it
        if known is None and place is not None and host.first():
            from safetensors.torch import save

            held = {name: tensor.cpu().contiguous() for name, tensor in factors.items()}
            write_bytes_atomic(place, save(held, metadata={"key": key}))
        for name, layer in self._layers.items():
            b0, a0 = (factors[f"{name}.lora_{which}"] for which in "BA")
            for halves, values in zip(_halves(layer), ((b0, a0), (-b0, a0)), strict=True):
                for half, value in zip(halves, values, strict=True):
                    half.copy_(value)
        tokens = sum(len(row["input_ids"]) for row in rows)
        self.info = {
            "init": adapter.lora_init, "rank": rank, "stored_rank": 2 * rank, "freeze_a": adapter.lora_init_freeze_a,
            "data": Path(data).name, "samples": len(rows), "tokens": tokens,
        }  # fmt: skip
        widest = max(layer.get_base_layer().in_features for layer in self._layers.values())
        if tokens < widest:
            trainer.data_notes.append(
                f"lora_init: {tokens:,} tokens span fewer directions than the {widest:,} inputs of the widest layer; "
                f"which of the others are taken is up to rounding. Give more text, or raise lora_init_samples."
            )

    def _compute(
        self,
        trainer: Any,
        host: TrainerHost,
        rows: Dataset,
        factors: Mapping[str, Tensor],
        method: Callable[[Tensor], Callable[[Tensor], Factors]],
    ) -> None:
        """Fills in this rank's part of the factors."""
        from peft.utils.integrations import dequantize_module_weight

        bases = {name: layer.get_base_layer() for name, layer in self._layers.items()}
        moments, args, data = InputMoments(bases), trainer.args, str(self._adapter.lora_init_data)
        training = trainer.model.training
        trainer.model.eval()
        with (
            new_adapters_off(trainer.model, next(iter(trainer.model.peft_config.values()))),
            progress(f"Reading {data}", total=len(rows)) as advance,
        ):
            # One row at a time: without padding, which the inputs of experts would not tell from tokens.
            for number in range(len(rows)):
                mine = number % args.world_size == args.process_index
                if mine or number == 0:  # every rank has to see which layers share their inputs
                    ids = torch.tensor([rows[number]["input_ids"]], device=args.device)
                    with moments.watching(counts=mine, learning=number == 0):
                        run_outside(trainer.model, input_ids=ids, attention_mask=torch.ones_like(ids))
                advance(1)
        trainer.model.train(training)
        means = moments.means(host.sum_, label=data)
        with progress("Taking weights apart", total=len(bases)) as advance:
            for number, (names, mean) in enumerate(means):
                if number % args.world_size == args.process_index:
                    made = method(mean)
                    for name in names:
                        b0, a0 = made(dequantize_module_weight(bases[name]).detach())
                        factors[f"{name}.lora_B"].copy_(b0)
                        factors[f"{name}.lora_A"].copy_(a0)
                advance(len(names))


def _of(adapter: AdapterArguments) -> Callable[..., Callable[[Tensor], Factors]]:
    return {"corda": corda_factors, "lora_null": lora_null_factors}[str(adapter.lora_init)]


def _read(place: Path | None, key: str) -> dict[str, Tensor] | None:
    """The factors in a file, None where there is none that is whole and was made of the same."""
    from safetensors import SafetensorError, safe_open

    if place is None or not place.is_file():
        return None
    try:
        with safe_open(place, framework="pt") as file:
            if (file.metadata() or {}).get("key") != key:
                return None
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
    except SafetensorError:
        return None


def _weights(layer: Any) -> Factors:
    """B `[out, 2 r]` and A `[2 r, in]`."""
    (adapter,) = layer.r
    return layer.lora_B[adapter].weight, layer.lora_A[adapter].weight


def _halves(layer: Any) -> tuple[Factors, Factors]:
    """The trained half of B and A, and the other, as views."""
    (b, a), rank = _weights(layer), rank_of(layer)
    return (b[:, :rank], a[:rank]), (b[:, rank:], a[rank:])


def _train_first_half(layer: Any, *, freeze_a: bool) -> None:
    """Leaves gradients of the first half only; `freeze_a`: of B's."""
    (b, a), rank = _weights(layer), rank_of(layer)
    b.register_hook(functools.partial(_first, rank=rank, dim=1))
    if freeze_a:
        # PEFT asks for gradients anew whenever adapters were off, but not of what is declared here.
        (adapter,) = layer.r
        layer.frozen_peft_weight_names = {**layer.frozen_peft_weight_names, adapter: ("lora_A",)}
        a.requires_grad_(False)
    else:
        a.register_hook(functools.partial(_first, rank=rank, dim=0))


def _first(gradient: Tensor, *, rank: int, dim: int) -> Tensor:
    """The gradient, 0 beyond the first `rank` along `dim`."""
    result = gradient.clone()
    result.narrow(dim, rank, rank).zero_()
    return result
