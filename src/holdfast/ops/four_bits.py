"""4-bit layers of bitsandbytes, kept as they were loaded.

On CPUs with AVX-512 BF16 bitsandbytes (0.50) repacks a 4-bit layer in place at its first forward in
evaluation mode, for a product in bfloat16 that passes no gradient on to its input; output sizes
that are not multiples of 32 fail. Unpacking rounds the scales, and without double quantisation
leaves them transposed.
"""

from __future__ import annotations

from torch import nn

from holdfast.errors import ModelError


def keep_unpacked(model: nn.Module) -> None:
    """Keeps bitsandbytes from repacking a model's 4-bit layers on CPUs with AVX-512 BF16; other
    layers are left as they are.

    Call it between loading and the first forward. The layers then compute as they do on other CPUs,
    for good.

    Raises:
        ModelError: layers that were repacked already, even if they were unpacked again.
    """
    repacked = []
    for name, module in model.named_modules():
        if not hasattr(module, "support_avx512bf16_for_cpu"):
            continue
        module.support_avx512bf16_for_cpu = False
        # The state has this attribute from the first repacking on; unpacking sets it to False.
        if hasattr(getattr(module.weight, "quant_state", None), "packing_format_for_cpu"):
            repacked.append(name)
    if repacked:
        raise ModelError(
            f"Expected 4-bit weights as they were loaded, got {len(repacked)} layers that "
            f"bitsandbytes has repacked for inference on a CPU ({repacked[0]}, ...). bitsandbytes "
            "repacks weights at the first forward pass in evaluation mode. Repacked layers pass no "
            "gradients, and unpacking loses precision. Load the model again, and give it to the "
            "trainer before any forward pass. To evaluate the model earlier, call "
            "holdfast.ops.four_bits.keep_unpacked(model) right after loading."
        )
