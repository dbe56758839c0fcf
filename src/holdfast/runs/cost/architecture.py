"""What of a model costs something: its parameters by what they do, and the shapes of its layers, read from a skeleton
without weights.

Parameters are counted as PyTorch holds them, tied ones once. A token is multiplied with the matrices of the layers (of
experts with those that its router chooses) and with the output head; it is looked up in the embeddings, which costs no
products; norms and biases are element-wise:

    active = sum over layers of inputs x outputs x uses        uses: 1, for experts the number a token visits

A layer's matrices are found by their dimensions, its attention by its name, so architectures need no table. What is not
a matrix product between tokens and weights or between tokens (convolutions, recurrent states) is not counted;
`Architecture.notes` says so where a model has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

ATTENDING = {"full_attention", "sliding_attention", "chunked_attention"}
"""Kinds of layers, as configs name them, whose tokens are multiplied with each other."""
_IN_ATTENTION = re.compile(r"(^|\.)(\w*att(e?n|ention)\w*)(\.|$)", re.IGNORECASE)
_NUMBERED_EXPERT = re.compile(r"(^|\.)experts\.\d+\.")
_CHOSEN = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "moe_topk",
    "moe_top_k",
    "top_k_experts",
    "num_selected_experts",
)
_ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function")


@dataclass(frozen=True, kw_only=True)
class Product:
    """One matrix of a layer that tokens are multiplied with; equal matrices of several experts are one."""

    name: str
    """Within the layer."""
    inputs: int
    outputs: int
    place: str
    """"attention", "mlp", "expert" or "router"."""
    uses: float = 1.0
    """Times a token is multiplied with it: for experts the number that a token visits."""
    copies: int = 1
    """Experts that have one."""
    stacked: bool = False
    """Whether all experts are one parameter, whose grouped product autocast leaves in the weights' dtype."""
    trained: bool = True
    rank: int = 0
    """Of the LoRA adapter on it; 0 without."""

    @property
    def active(self) -> float:
        """Multiplications a token."""
        return self.inputs * self.outputs * self.uses

    @property
    def adapter(self) -> int:
        """Parameters of the adapter, every one of which multiplies a token once."""
        return self.rank * (self.inputs + self.outputs)

    @property
    def numbers(self) -> int:
        """Of all its copies."""
        return self.inputs * self.outputs * self.copies


@dataclass(frozen=True, kw_only=True)
class Norm:
    """One normalisation of a layer."""

    elements: int
    """Of a token: the width, or heads x head width where queries or keys are normalised."""
    centred: bool
    """LayerNorm, one kernel that keeps its input; otherwise RMSNorm as transformers writes it, in several
    operations."""
    trained: bool = True


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One kind of decoder layer."""

    products: tuple[Product, ...]
    norms: tuple[Norm, ...]
    attends: bool
    """Whether tokens are multiplied with each other."""
    window: int | None
    """Keys that a token sees at most; None: all before it."""
    parameters: int
    count: int
    """Layers of this kind in the model."""

    @property
    def active(self) -> float:
        """Multiplications a token, adapters left out."""
        return sum(p.active for p in self.products)

    @property
    def active_trained(self) -> float:
        """Of them those with weights that get a gradient."""
        return sum(p.active for p in self.products if p.trained)

    @property
    def adapters(self) -> int:
        """Parameters of the adapters."""
        return sum(p.adapter for p in self.products)

    @property
    def matrices(self) -> int:
        """Numbers in its matrices, stacks of experts left out: those that are quantised, and copied by autocast."""
        return sum(p.numbers for p in self.products if not p.stacked)


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A model's parameters and shapes."""

    name: str
    kind: str
    """transformers' model type, such as "llama"."""
    parameters: int
    """All of the base model, tied ones once, adapters left out."""
    trainable: int
    """Those that a run trains: all, or the adapter's."""
    adapter: int
    """The adapter's; 0 without."""
    embedding: int
    """Input embeddings (positions too): tables that are looked up."""
    tied: bool
    """Whether the head is the table of the input embeddings."""
    head: int
    """Vocabulary x width: the products of the output head, with its own parameters or tied ones."""
    head_trained: bool
    embedding_trained: bool
    vocabulary: int
    width: int
    heads: int
    kv_heads: int
    key_width: int
    """Of one head's queries and keys."""
    value_width: int
    """Of one head's values."""
    activation: str
    experts: int
    """Of a layer; 0 in dense models."""
    experts_used: float
    """By a token."""
    layers: tuple[Layer, ...]
    weights_dtype: str
    """What the checkpoint says it was saved in; "float32" where it says nothing."""
    notes: tuple[str, ...] = ()
    """What the counts leave out."""

    @property
    def depth(self) -> int:
        """Layers."""
        return sum(layer.count for layer in self.layers)

    @property
    def active(self) -> float:
        """Multiplications a token in all layers, adapters and head left out."""
        return sum(layer.active * layer.count for layer in self.layers)

    @property
    def matrices(self) -> int:
        """Numbers in the matrices of all layers, stacks of experts left out."""
        return sum(layer.matrices * layer.count for layer in self.layers)

    @property
    def largest(self) -> int:
        """Parameters of the largest layer."""
        return max(layer.parameters for layer in self.layers)

    @property
    def multiplied(self) -> float:
        """N of 6 N D: multiplications a token in layers and head."""
        return self.active + self.head


def describe(model: Any, *, name: str) -> Architecture:
    """Reads a model, or a skeleton of `holdfast.training.skeleton`, bare or with an adapter.

    Args:
        model: a causal LM on any device; no values are read.
        name: what to call it.

    Raises:
        ModelError: a model without separate backbone, head or list of layers.
    """
    from holdfast.ops.heads import causal_lm, describe_head
    from holdfast.retention.offload import decoder_layers

    lm = causal_lm(model)
    config: Any = lm.config
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    head, table = describe_head(lm).weight_VH, lm.get_input_embeddings().weight  # type: ignore[operator]
    unique = {id(p): (n, p) for n, p in model.named_parameters()}
    adapter = sum(p.numel() for n, p in unique.values() if _is_adapter(n))
    vocabulary, width = head.shape
    heads = int(getattr(text, "num_attention_heads", 0) or getattr(text, "n_head", 0) or 1)
    kv_heads = int(getattr(text, "num_key_value_heads", None) or heads)
    head_width = int(getattr(text, "head_dim", None) or width // heads)
    split = (getattr(text, "qk_nope_head_dim", None), getattr(text, "qk_rope_head_dim", None))
    key_width = int(split[0] + split[1]) if all(isinstance(part, int) for part in split) else head_width  # type: ignore[operator]
    value_width = int(getattr(text, "v_head_dim", None) or head_width) if key_width != head_width else head_width
    notes: list[str] = []
    used = next((float(v) for n in _CHOSEN if isinstance(v := getattr(text, n, None), int)), None)
    found = decoder_layers(lm)
    kinds = list(getattr(text, "layer_types", None) or [])
    kinds = kinds if len(kinds) == len(found) else ["full_attention"] * len(found)
    if odd := sorted(set(kinds) - ATTENDING):
        notes.append(f"layers of kind {', '.join(odd)}: their matrices are counted, what they do between tokens is not")
    everywhere = not getattr(text, "layer_types", None)
    window = getattr(text, "sliding_window", None)
    shapes: dict[Any, int] = {}
    for layer, kind in zip(found, kinds, strict=True):
        slides = isinstance(window, int) and (kind != "full_attention" or everywhere)
        products = tuple(_products(layer, width, used))
        shape = (
            products,
            tuple(_norms(layer, width, heads * key_width, kv_heads * key_width)),
            kind in ATTENDING,
            int(window) if slides else None,  # type: ignore[arg-type]
            sum(p.numel() for n, p in layer.named_parameters() if not _is_adapter(n)),
        )
        shapes[shape] = shapes.get(shape, 0) + 1
    layers = tuple(
        Layer(products=products, norms=norms, attends=attends, window=limit, parameters=parameters, count=count)
        for (products, norms, attends, limit, parameters), count in shapes.items()
    )
    experts = max((p.copies for layer in layers for p in layer.products if p.place == "expert"), default=0)
    if experts and used is None:
        notes.append("its config does not say how many experts a token visits: all are counted")
    inside = {id(p) for layer in found for p in layer.parameters()}
    tables = {
        id(p): p.numel()
        for n, p in unique.values()
        if id(p) not in inside and p.dim() == 2 and (p is table or (p is not head and _is_table(n)))
    }
    dtype = getattr(config, "dtype", None) or getattr(text, "dtype", None)
    return Architecture(
        name=name,
        kind=str(getattr(config, "model_type", "")),
        parameters=sum(p.numel() for n, p in unique.values() if not _is_adapter(n)),
        trainable=sum(p.numel() for _, p in unique.values() if p.requires_grad),
        adapter=adapter,
        embedding=sum(tables.values()),
        tied=head is table,
        head=vocabulary * width,
        head_trained=bool(head.requires_grad),
        embedding_trained=bool(table.requires_grad),
        vocabulary=int(vocabulary),
        width=int(width),
        heads=heads,
        kv_heads=kv_heads,
        key_width=key_width,
        value_width=value_width,
        activation=str(next((v for n in _ACTIVATIONS if (v := getattr(text, n, None))), "")),
        experts=experts,
        experts_used=float(used if used is not None else experts) if experts else 0.0,
        layers=layers,
        weights_dtype=str(dtype).removeprefix("torch.") if dtype is not None else "float32",
        notes=tuple(notes),
    )


def _is_adapter(name: str) -> bool:
    return ".lora_" in name or ".modules_to_save." in name


def _is_table(name: str) -> bool:
    return bool(re.search(r"emb|wte|wpe", name))


def _products(layer: Any, width: int, used: float | None) -> Iterator[Product]:
    """The matrices of one layer; those of numbered experts once, with the number of copies."""
    numbered: dict[str, list[Product]] = {}
    for name, module in layer.named_modules():
        if ".lora_" in name or ".modules_to_save." in name:
            continue
        own = dict(module.named_parameters(recurse=False))
        ranks = _ranks(layer, name)
        for part, parameter in own.items():
            stacked = parameter.dim() == 3
            if not stacked and (parameter.dim() != 2 or part != "weight"):
                continue
            plain = (name if part == "weight" else f"{name}.{part}").replace(".base_layer", "")
            inputs, outputs = _sides(type(module).__name__, plain, parameter.shape[-2:], width, stacked=stacked)
            place = _place(plain, outputs, stacked=stacked, expert=bool(_NUMBERED_EXPERT.search(plain)))
            copies = int(parameter.shape[0]) if stacked else 1
            product = Product(
                name=plain,
                inputs=inputs,
                outputs=outputs,
                place=place,
                uses=(used if used is not None else float(copies)) if stacked else 1.0,
                copies=copies,
                stacked=stacked,
                trained=bool(parameter.requires_grad),
                rank=ranks,
            )
            if place == "expert" and not stacked:
                numbered.setdefault(_NUMBERED_EXPERT.sub(r"\1experts.", plain), []).append(product)
            else:
                yield product
    for plain, members in numbered.items():
        first, copies = members[0], len(members)
        yield Product(
            name=plain,
            inputs=first.inputs,
            outputs=first.outputs,
            place="expert",
            uses=used if used is not None else float(copies),
            copies=copies,
            trained=first.trained,
            rank=first.rank,
        )


def _ranks(layer: Any, name: str) -> int:
    """The rank of the LoRA adapter around a base layer, 0 without."""
    if not name.endswith("base_layer"):
        return 0
    around = layer.get_submodule(name.rpartition(".")[0])
    return sum(int(r) for r in getattr(around, "r", {}).values())


def _sides(kind: str, name: str, shape: Any, width: int, *, stacked: bool) -> tuple[int, int]:
    """(inputs, outputs) of a matrix: `nn.Linear` stores [outputs, inputs], GPT-2's Conv1D the other way, stacks of
    experts one or the other."""
    first, second = int(shape[0]), int(shape[1])
    if kind == "Conv1D":
        return first, second
    if stacked and (("down" in name) == (second == width)) and first != second:
        return first, second
    return second, first


def _place(name: str, outputs: int, *, stacked: bool, expert: bool) -> str:
    if stacked or expert:
        return "expert"
    if _IN_ATTENTION.search(name):
        return "attention"
    return (
        "router"
        if re.search(r"(router|gate|classifier)$", name.removesuffix(".weight")) and "shared" not in name
        else "mlp"
    )


def _norms(layer: Any, width: int, queries: int, keys: int) -> Iterator[Norm]:
    for name, module in layer.named_modules():
        kind = type(module).__name__
        if "norm" not in kind.lower() or list(module.children()):
            continue
        weight = getattr(module, "weight", None)
        elements = int(weight.shape[0]) if weight is not None else width
        last = name.rpartition(".")[2]
        if last.startswith("q") and elements < width:
            elements = queries
        elif last.startswith("k") and "kv" not in last and elements < width:
            elements = keys
        yield Norm(
            elements=elements, centred=kind == "LayerNorm", trained=weight is not None and bool(weight.requires_grad)
        )
