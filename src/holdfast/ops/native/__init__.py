"""The annealing op's inner loops in C (`annealing.c`), built at first use with the machine's own C
compiler and loaded through ctypes.

`holdfast.support.native` builds and keeps the library. Before anything uses it, every entry point
has to reproduce PyTorch's result on a small problem. Without a compiler, with `HOLDFAST_NATIVE=0`,
or where the check fails, `load()` gives None and `why_not()` the reason; the callers then use
PyTorch alone.

The bfloat16 products use PyTorch's own small product (`at::native::cpublas::brgemm`, oneDNN inside)
by its exported name, because no public function multiplies bfloat16 matrices into float32 on CPUs.
Where that name is missing or gives other numbers, only these products are off.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdfast.ops.annealing_terms import GATES, Terms
from holdfast.support.native import Settings, build, settings

SOURCE = Path(__file__).with_name("annealing.c")
FLAGS = (
    "-std=gnu11",
    "-O3",
    "-march=native",
    "-fPIC",
    "-fopenmp",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
)
_PRODUCT = "_ZN2at6native7cpublas6brgemmEllllllbPKN3c108BFloat16ES5_Pfb"
_RELEASE = "_ZN2at6native7cpublas14brgemm_releaseEb"

Empty = Callable[[int, int, torch.dtype], Tensor]
"""Gives an uninitialised `[rows, columns]` tensor of a dtype."""

_DIRECTIONS = {"forward": 0, "reverse": 1, "jsd": 2}
_KINDS = {None: 0, torch.float32: 1, torch.bfloat16: 2}


class _Terms(ctypes.Structure):
    _fields_ = [
        ("vocabulary", ctypes.c_int64),
        ("teacher_vocabulary", ctypes.c_int64),
        *((name, ctypes.c_double) for name in ("scale", "cap", "temperature", "beta", "ce", "kl")),
        *((name, ctypes.c_double) for name in ("gate_power", "floor", "gate_strength")),
        *((name, ctypes.c_int64) for name in ("direction", "kind", "gate", "mask_target")),
    ]


@dataclass(frozen=True)
class Native:
    """The loaded library."""

    library: Any
    compiler: str
    """The compiler's first line about itself."""
    product: int | None
    release: int | None
    """Addresses of PyTorch's small bfloat16 product and of what it frees; None where it is not to
    be had."""

    @property
    def has_bfloat16(self) -> bool:
        """Whether `logits` and `add_weight_gradient` can be used."""
        return self.product is not None

    def rows(
        self,
        z_CV: Tensor,
        w_CU: Tensor | None,
        *,
        labels_C: Tensor,
        kl_rows_C: Tensor | None,
        ce_weights_C: Tensor | None,
        kl_weights_C: Tensor | None,
        gate_power: float,
        ce_scale: float,
        kl_scale: float,
        terms: Terms,
        gradient_CV: Tensor | None,
        figures_CF: Tensor,
    ) -> None:
        """The row stage (see `ops.annealing_rows`) for float32 logits that already carry bias,
        scale and cap.

        Args:
            z_CV, w_CU: `[C, V]`, `[C, U]` float32, rows contiguous; `w_CU` is destroyed.
            ce_weights_C, kl_weights_C: `[C]` float32, or None.
            gradient_CV: float32 (may be `z_CV`) or bfloat16, rows contiguous, or None.
            figures_CF: `[C, 7]` float32.
            terms: scale and cap are what the logits went through, for the gradient's slope.
        """
        for tensor, dtype in (
            (z_CV, torch.float32),
            (w_CU, torch.float32),
            (figures_CF, torch.float32),
            (ce_weights_C, torch.float32),
            (kl_weights_C, torch.float32),
            (labels_C, torch.int64),
        ):
            assert tensor is None or (
                tensor.dtype == dtype and tensor.device.type == "cpu" and tensor.stride(-1) == 1
            ), "native row stage"
        assert (gradient_CV is None or gradient_CV.stride(-1) == 1) and (
            kl_rows_C is None or kl_rows_C.is_contiguous()
        ), "native row stage"
        numbers = _Terms(
            z_CV.shape[1],
            0 if w_CU is None else w_CU.shape[1],
            terms.logit_scale,
            terms.softcap or 0.0,
            terms.temperature,
            terms.beta,
            ce_scale,
            kl_scale,
            gate_power,
            terms.floor,
            terms.gate_strength,
            _DIRECTIONS[terms.direction],
            _KINDS[None if gradient_CV is None else gradient_CV.dtype],
            GATES.index(terms.gate),
            terms.mask_target,
        )
        failed = self.library.holdfast_rows(
            z_CV.shape[0],
            _at(z_CV),
            z_CV.stride(0),
            _at(w_CU),
            0 if w_CU is None else w_CU.stride(0),
            _at(labels_C),
            _at(kl_rows_C),
            _at(ce_weights_C),
            _at(kl_weights_C),
            ctypes.byref(numbers),
            _at(gradient_CV),
            0 if gradient_CV is None else gradient_CV.stride(0),
            _at(figures_CF),
            figures_CF.stride(0),
        )
        if failed:
            raise MemoryError(
                f"Label annealing: not enough memory for {4 * z_CV.shape[1] * 4} bytes of scratch "
                "space per thread."
            )

    def fresh(self, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
        """An uninitialised `[rows, columns]` tensor on large pages where the system has them."""
        tensor = torch.empty(rows, columns, dtype=dtype)
        self.library.holdfast_large_pages(tensor.data_ptr(), tensor.nbytes)
        return tensor

    def pack(self, weight_VH: Tensor, empty: Empty | None = None) -> Tensor:
        """`[V, H]` bfloat16 weights in the order `logits` reads them; H even. Rounded up to whole
        blocks of 64 rows.

        Args:
            weight_VH: `[V, H]` bfloat16, rows contiguous.
            empty: gives the memory for the result; None: fresh.
        """
        vocabulary, width = weight_VH.shape
        packed = (empty or self.fresh)(-(-vocabulary // 64) * 64, width, torch.bfloat16)
        self.library.holdfast_pack(
            vocabulary, width, _at(weight_VH), weight_VH.stride(0), _at(packed)
        )
        return packed

    def logits(self, hidden_CH: Tensor, packed: Tensor, out_CV: Tensor) -> None:
        """`out_CV = hidden_CH @ weight_VH.T` in float32, of bfloat16 hidden states and packed
        weights."""
        (rows, width), vocabulary = hidden_CH.shape, out_CV.shape[1]
        self.library.holdfast_logits(
            self.product,
            self.release,
            rows,
            vocabulary,
            width,
            _at(hidden_CH),
            hidden_CH.stride(0),
            _at(packed),
            _at(out_CV),
            out_CV.stride(0),
        )

    def pack_pairs(self, weight_VH: Tensor, empty: Empty | None = None) -> Tensor:
        """`[V, H]` bfloat16 weights in the order `hidden_gradient` reads them; arguments as of
        `pack`."""
        vocabulary, width = weight_VH.shape
        packed = (empty or self.fresh)(vocabulary + vocabulary % 2, width, torch.bfloat16)
        self.library.holdfast_pack_pairs(
            vocabulary, width, _at(weight_VH), weight_VH.stride(0), _at(packed)
        )
        return packed

    def hidden_gradient(self, gradient_CV: Tensor, packed: Tensor, out_CH: Tensor) -> None:
        """`out_CH = gradient_CV @ weight_VH` in float32, of bfloat16 gradients and weights from
        `pack_pairs`.

        Where V is odd, a 0 must follow each row of the gradient in memory (the row stage writes
        it).
        """
        (rows, vocabulary), width = gradient_CV.shape, out_CH.shape[1]
        assert (
            gradient_CV.stride(1) == out_CH.stride(1) == 1
            and gradient_CV.stride(0) >= vocabulary + vocabulary % 2
        ), "native hidden gradient"
        self.library.holdfast_hidden_gradient(
            self.product,
            self.release,
            rows,
            vocabulary,
            width,
            _at(gradient_CV),
            gradient_CV.stride(0),
            _at(packed),
            _at(out_CH),
            out_CH.stride(0),
        )

    def add_weight_gradient(
        self, gradient_CV: Tensor, hidden_CH: Tensor, out_VH: Tensor, *, add: bool = True
    ) -> None:
        """`out_VH += gradient_CV.T @ hidden_CH` (without `add`: `=`) in float32, of bfloat16
        inputs; `out_VH` contiguous."""
        (rows, vocabulary), width = gradient_CV.shape, hidden_CH.shape[1]
        assert out_VH.is_contiguous() and gradient_CV.stride(1) == hidden_CH.stride(1) == 1, (
            "native weight gradient"
        )
        failed = self.library.holdfast_weight_gradient(
            self.product,
            self.release,
            rows,
            vocabulary,
            width,
            _at(gradient_CV),
            gradient_CV.stride(0),
            _at(hidden_CH),
            hidden_CH.stride(0),
            _at(out_VH),
            add,
        )
        if failed:
            raise MemoryError(
                f"Label annealing's weight gradient: not enough memory for {128 * rows * 2} bytes "
                "of scratch space per thread."
            )


def load() -> Native | None:
    """The library, built if need be; None where it cannot be had (see `why_not`)."""
    return _load(settings())[0]


def why_not() -> str | None:
    """Why `load()` gives None, as a sentence; None when it does not."""
    return _load(settings())[1]


@functools.lru_cache(maxsize=4)
def _load(wanted: Settings) -> tuple[Native | None, str | None]:
    # Compiled with OpenMP, linked without: the symbols come from the OpenMP that PyTorch has
    # loaded, so that there is one pool of threads.
    built = build(SOURCE, flags=FLAGS, wanted=wanted)
    if isinstance(built, str):
        return None, built
    _declare(built.library)
    native = Native(*built, *_torch_product())
    if not _rows_are_right(native):
        return None, f"the library built by {native.compiler} does not reproduce PyTorch's numbers"
    if native.has_bfloat16 and not _products_are_right(native):
        native = Native(*built, None, None)
    return native, None


def _declare(library: Any) -> None:
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    library.holdfast_rows.argtypes = [
        integer,
        pointer,
        integer,
        pointer,
        integer,
        *[pointer] * 6,
        integer,
        pointer,
        integer,
    ]
    library.holdfast_pack.argtypes = [integer, integer, pointer, integer, pointer]
    library.holdfast_pack.restype = None
    library.holdfast_logits.argtypes = [
        pointer,
        pointer,
        integer,
        integer,
        integer,
        pointer,
        integer,
        pointer,
        pointer,
        integer,
    ]
    library.holdfast_logits.restype = None
    library.holdfast_pack_pairs.argtypes = library.holdfast_pack.argtypes
    library.holdfast_pack_pairs.restype = None
    library.holdfast_hidden_gradient.argtypes = library.holdfast_logits.argtypes
    library.holdfast_hidden_gradient.restype = None
    library.holdfast_large_pages.argtypes = [pointer, integer]
    library.holdfast_large_pages.restype = None
    sizes = [pointer, pointer, integer, integer, integer]
    library.holdfast_weight_gradient.argtypes = [
        *sizes,
        pointer,
        integer,
        pointer,
        integer,
        pointer,
        ctypes.c_int,
    ]


def _torch_product() -> tuple[int | None, int | None]:
    if not (
        hasattr(torch.cpu, "_is_avx512_bf16_supported")
        and (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    ):
        return None, None  # without the instructions, float32 products are as fast
    try:
        torch_cpu = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        product, release = getattr(torch_cpu, _PRODUCT), getattr(torch_cpu, _RELEASE)
    except (OSError, AttributeError):
        return None, None
    return ctypes.cast(product, ctypes.c_void_p).value, ctypes.cast(release, ctypes.c_void_p).value


def _rows_are_right(native: Native) -> bool:
    """Cross-entropy and forward KL of a few rows against PyTorch in float64."""
    g = torch.Generator().manual_seed(0)
    z, w = 3 * torch.randn(5, 83, generator=g), 3 * torch.randn(5, 83, generator=g)
    ce_weights, kl_weights = torch.rand(5, generator=g), torch.rand(5, generator=g)
    labels, kl_mask = (
        torch.tensor([3, -100, 82, 0, 41]),
        torch.tensor([True, True, False, True, False]),
    )
    q, p = z.double().softmax(1), w.double().softmax(1)
    ce_N, kl_N = (labels >= 0).double(), kl_mask.double()
    ce_row, kl_row = ce_N * 0.5 * ce_weights, kl_N * 0.25 * kl_weights
    expected = (ce_row + kl_row)[:, None] * q - kl_row[:, None] * p
    expected[labels >= 0, labels[labels >= 0]] -= ce_row[labels >= 0]
    kl = kl_N * (p * (p.log() - q.log())).sum(1)
    figures = torch.full((5, 7), torch.nan)
    native.rows(
        z,
        w,
        labels_C=labels,
        kl_rows_C=kl_mask,
        ce_weights_C=ce_weights,
        kl_weights_C=kl_weights,
        gate_power=1.0,
        ce_scale=0.5,
        kl_scale=0.25,
        terms=Terms(),
        gradient_CV=z,
        figures_CF=figures,
    )
    return bool((z - expected).abs().max() < 1e-5) and bool((figures[:, 1] - kl).abs().max() < 1e-4)


def _products_are_right(native: Native) -> bool:
    """The bfloat16 products against PyTorch in float64, on sizes that fill no block."""
    g = torch.Generator().manual_seed(0)
    hidden, weight, padded = (
        torch.randn(*shape, generator=g).bfloat16() for shape in ((37, 26), (131, 26), (37, 134))
    )
    gradient = padded[:, :131]
    padded[:, 131] = 0
    z, dw, dh = (
        torch.full((37, 131), torch.nan),
        torch.ones(131, 26),
        torch.full((37, 26), torch.nan),
    )
    native.logits(hidden, native.pack(weight), z)
    native.add_weight_gradient(gradient, hidden, dw)
    native.hidden_gradient(gradient, native.pack_pairs(weight), dh)
    exact = (
        hidden.double() @ weight.double().T,
        1 + gradient.double().T @ hidden.double(),
        gradient.double() @ weight.double(),
    )
    return all(
        bool((got - right).abs().max() < 1e-4)
        for got, right in zip((z, dw, dh), exact, strict=True)
    )


def _at(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
