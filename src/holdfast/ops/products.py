"""Matrix products of the annealing op: logits and the two gradients, with float32 results whatever
the inputs are.

The student starts at the teacher, so the difference of their logits is tiny, and logits rounded to
bfloat16 drown it: the KL gradient is then 85 % noise at a KL of 0.0002 nats. So half-precision
inputs are multiplied with float32 accumulation AND float32 results, and the head's gradient
accumulates in float32. Storing the logit GRADIENT in half precision costs 0.2 % and halves the
gradient products, so that is done. Which way the products take:

| inputs | where | products |
|---|---|---|
| float64 | any | `torch.mm` |
| float32 | Intel's CPUs | `torch.mm` (MKL; 1.2 to 1.4 times as fast as oneDNN there) |
| float32 | other CPUs | oneDNN (a tenth faster than `torch.mm` on AMD's), weight gradient by `addmm_` |
| float32 | elsewhere | `torch.mm` |
| bfloat16, float16 | CUDA | cuBLAS with float32 results |
| bfloat16 | CPU with AVX512-BF16 or AMX and `ops.native` | oneDNN's small products with float32 results |
| other half precision | | converted to float32 once a call |

For float32 inputs the user's own choice of TF32 applies, as in any PyTorch product.

Shapes: C rows of a chunk, H width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from holdfast.ops import native
from holdfast.support.environment import is_intel

Memory = Callable[[str, int, int, torch.dtype], Tensor]
"""Gives an uninitialised `[rows, columns]` buffer of a dtype by name."""
HALF = (torch.bfloat16, torch.float16)


class Product:
    """Rows of hidden states times one head, and the two products back; float32 and float64 by
    `torch.mm`.

    Args:
        weight_VH: `[V, H]`.
        dtype: of the logits and of everything accumulated: float32 or float64.
    """

    gradient_dtype: torch.dtype
    """What the logits' gradient has to be stored in."""

    def __init__(self, weight_VH: Tensor, dtype: torch.dtype) -> None:
        self.weight_VH = weight_VH.to(dtype)
        self.dtype = self.gradient_dtype = dtype

    @property
    def name(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} products"

    def logits(self, hidden_CH: Tensor, out_CV: Tensor) -> Tensor:
        """`[C, V]`, in `out_CV` or in a tensor of its own."""
        return torch.mm(hidden_CH.to(self.dtype), self.weight_VH.T, out=out_CV)

    def hidden_gradient(self, gradient_CV: Tensor, out_CH: Tensor) -> None:
        """`out = gradient @ weight`."""
        torch.mm(gradient_CV, self.weight_VH, out=out_CH)

    def weight_gradient(
        self, gradient_CV: Tensor, hidden_CH: Tensor, out_VH: Tensor, *, add: bool
    ) -> None:
        """`out = gradient.T @ hidden`, added to what is there with `add`."""
        if add:
            out_VH.addmm_(gradient_CV.T, hidden_CH.to(self.dtype))
        else:
            torch.mm(gradient_CV.T, hidden_CH.to(self.dtype), out=out_VH)


class _OneDNN(Product):
    """float32 on CPUs by the product that PyTorch's own compiler uses for linear layers."""

    def logits(self, hidden_CH: Tensor, out_CV: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(
            hidden_CH.to(self.dtype), self.weight_VH, None, "none", [], ""
        )

    def hidden_gradient(self, gradient_CV: Tensor, out_CH: Tensor) -> None:
        out_CH.copy_(
            torch.ops.mkldnn._linear_pointwise(gradient_CV, self.weight_VH.T, None, "none", [], "")
        )


class _Native(Product):
    """bfloat16 on CPUs, float32 results."""

    name = "bfloat16 products, float32 results"

    def __init__(self, weight_VH: Tensor, library: native.Native, memory: Memory | None) -> None:
        self.weight_VH = weight_VH if weight_VH.stride(1) == 1 else weight_VH.contiguous()
        self.dtype, self.gradient_dtype = torch.float32, torch.bfloat16
        self.library, self.memory = library, memory
        self.packed = library.pack(
            self.weight_VH, partial(memory, "packed head") if memory else None
        )
        self.pairs: Tensor | None = None

    def logits(self, hidden_CH: Tensor, out_CV: Tensor) -> Tensor:
        self.library.logits(hidden_CH, self.packed, out_CV)
        return out_CV

    def hidden_gradient(self, gradient_CV: Tensor, out_CH: Tensor) -> None:
        if (
            gradient_CV.shape[1] % 2 and gradient_CV.stride(0) == gradient_CV.shape[1]
        ):  # products read pairs, and there is no room for one
            out_CH.copy_(torch.mm(gradient_CV, self.weight_VH))
            return
        if self.pairs is None:
            self.pairs = self.library.pack_pairs(
                self.weight_VH, partial(self.memory, "paired head") if self.memory else None
            )
        self.library.hidden_gradient(gradient_CV, self.pairs, out_CH)

    def weight_gradient(
        self, gradient_CV: Tensor, hidden_CH: Tensor, out_VH: Tensor, *, add: bool
    ) -> None:
        self.library.add_weight_gradient(gradient_CV, hidden_CH, out_VH, add=add)


class _Mixed(Product):
    """Half precision on CUDA, float32 results by cuBLAS."""

    def __init__(self, weight_VH: Tensor, half: torch.dtype) -> None:
        self.weight_VH = weight_VH.to(half)
        self.dtype, self.gradient_dtype = torch.float32, half

    @property
    def name(self) -> str:
        return (
            f"{str(self.gradient_dtype).removeprefix('torch.')} products, float32 results (cuBLAS)"
        )

    def logits(self, hidden_CH: Tensor, out_CV: Tensor) -> Tensor:
        return torch.mm(hidden_CH, self.weight_VH.T, out_dtype=self.dtype, out=out_CV)

    def hidden_gradient(self, gradient_CV: Tensor, out_CH: Tensor) -> None:
        torch.mm(gradient_CV, self.weight_VH, out_dtype=self.dtype, out=out_CH)

    def weight_gradient(
        self, gradient_CV: Tensor, hidden_CH: Tensor, out_VH: Tensor, *, add: bool
    ) -> None:
        if (
            add
        ):  # in place (cuBLAS reads and writes the accumulator), so that no second [V, H] exists
            torch.addmm(out_VH, gradient_CV.T, hidden_CH, out_dtype=self.dtype, out=out_VH)
        else:
            torch.mm(gradient_CV.T, hidden_CH, out_dtype=self.dtype, out=out_VH)


def choose_product(
    weight_VH: Tensor,
    hidden_dtype: torch.dtype,
    dtype: torch.dtype,
    *,
    memory: Memory | None = None,
) -> Product:
    """The fastest product for these inputs that gives float32 (float64) results.

    Args:
        weight_VH: `[V, H]`.
        hidden_dtype: of the hidden states that will come.
        dtype: of the logits, float32 or float64.
        memory: gives buffers by name; None: fresh ones.
    """
    device = weight_VH.device.type
    if hidden_dtype in HALF and device == "cuda":
        return _Mixed(weight_VH, hidden_dtype)
    if device == "cpu" and dtype == torch.float32:
        if hidden_dtype == weight_VH.dtype == torch.bfloat16 and weight_VH.shape[1] % 2 == 0:
            library = native.load()
            if library is not None and library.has_bfloat16:
                return _Native(weight_VH, library, memory)
        if (
            not (is_intel() and torch.backends.mkl.is_available())
            and torch.backends.mkldnn.is_available()
            and torch.backends.mkldnn.enabled
            and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        ):
            return _OneDNN(weight_VH, dtype)
    return Product(weight_VH, dtype)
