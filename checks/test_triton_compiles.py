"""The Triton row stage compiles for a GPU that is not here."""

from __future__ import annotations

import re
import subprocess

import pytest

from holdfast.ops import annealing_triton

triton = pytest.importorskip("triton")

VARIANTS = {
    "usual": {},
    "float32 gradient": {"gradient_ptr": "*fp32"},
    "reverse": {"DIRECTION": "reverse"},
    "jsd, T, caps, biases": dict.fromkeys(("bias_ptr", "teacher_bias_ptr"), "*fp32")
    | {"DIRECTION": "jsd", "BETA": 0.5, "OWN": True, "INVERSE_T": 0.4, "CAP": 30.0, "TEACHER_CAP": 30.0, "SCALE": 0.5},
    "no teacher": {"KL": False, "DIRECTION": "", "w_ptr": None, "kl_rows_ptr": None},
    "no gradient": {"WRITE": False, "gradient_ptr": None},
    "weights": dict.fromkeys(("ce_weights_ptr", "kl_weights_ptr"), "*fp32"),
    "gated by probability": {"GATE": "probability", "STRENGTH": 1.0, "FLOOR": 0.01, "gate_power_ptr": "*fp32"},
    "gated by entropy": {"GATE": "entropy", "STRENGTH": 1.0, "gate_power_ptr": "*fp32"},
    "float64": dict.fromkeys(("z_ptr", "w_ptr", "ce_scale_ptr", "kl_scale_ptr", "gradient_ptr", "figures_ptr"), "*fp64")
    | {"SERIES": 15},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_kernel_compiles_for_a_gpu_that_is_not_here(variant, tmp_path, monkeypatch):
    """To machine code of an H100 / H200, through Triton's own assembler, without spilling."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    given = dict.fromkeys(("z_ptr", "w_ptr", "ce_scale_ptr", "kl_scale_ptr", "figures_ptr"), "*fp32") | {
        "bias_ptr": None,
        "teacher_bias_ptr": None,
        "ce_weights_ptr": None,
        "kl_weights_ptr": None,
        "gate_power_ptr": None,
    }
    given |= {"labels_ptr": "*i64", "kl_rows_ptr": "*u8", "gradient_ptr": "*bf16"}
    given |= dict.fromkeys(("V", "U", "z_stride", "w_stride", "gradient_stride", "figures_stride"), "i32")
    given |= {
        "KL": True,
        "OWN": False,
        "DIRECTION": "forward",
        "WRITE": True,
        "SCALE": 1.0,
        "CAP": None,
        "TEACHER_SCALE": 1.0,
        "TEACHER_CAP": None,
        "GATE": "none",
        "FLOOR": 0.0,
        "STRENGTH": 0.0,
    }
    given |= {"INVERSE_T": 1.0, "BETA": 0.0, "SERIES": 8, "BLOCK": annealing_triton.BLOCK} | VARIANTS[variant]
    kernel = annealing_triton._row_kernel
    types = [t for t in given.values() if isinstance(t, str) and re.fullmatch(r"\*\w+|i32", t)]
    signature = {n: given[n] if given[n] in types else "constexpr" for n in kernel.arg_names}
    constants = {(i,): given[n] for i, n in enumerate(kernel.arg_names) if signature[n] == "constexpr"}
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, n in enumerate(kernel.arg_names)
        if signature[n] != "constexpr" and n != "figures_stride"
    }
    source = ASTSource(kernel, signature, constants, aligned)
    compiled = triton.compile(
        source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8, "enable_fp_fusion": False}
    )
    assert len(compiled.asm["cubin"]) > 1000
    assert "ld.global.v4.b32" in compiled.asm["ptx"] or variant == "float64"
    usage = subprocess.run(
        [triton.knobs.nvidia.cuobjdump.path, "-res-usage", "-"],
        input=compiled.asm["cubin"],
        capture_output=True,
        check=False,
    ).stdout.decode()
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    if found is None:  # cuobjdump wants a file
        (tmp_path / "kernel.cubin").write_bytes(compiled.asm["cubin"])
        usage = subprocess.check_output(
            [triton.knobs.nvidia.cuobjdump.path, "-res-usage", str(tmp_path / "kernel.cubin")], text=True
        )
        found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    assert found and int(found[2]) == 0 and int(found[1]) <= 128, usage
