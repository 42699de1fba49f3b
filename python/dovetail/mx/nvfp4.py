"""NVFP4: E2M1 elements in blocks of 16, with E4M3 block scales and a float32 tensor scale.

Sources: arXiv 2509.25149; order of float32 operations as in torchao's ``nvfp4_quantize``. Tensors are on the CPU.
"""

import torch
from torch import Tensor

__all__ = ["nvfp4_dequantize", "nvfp4_hadamard", "nvfp4_quantize"]


def nvfp4_quantize(
    x: Tensor,
    tensor_scale: Tensor | bool = True,
    blocks: str = "1x16",
    non_finite: str = "poison",
    rounding: str = "nearest_even",
    seed: int = 0,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Quantize ``x`` along its last dimension.

    Args:
        x: at least one dimension; float32 or bfloat16, any strides, on the CPU. Its last size is even. A short last
            block is quantized as if padded with zeros.
        tensor_scale: True computes it as amax / (448 * 6). A float32 scalar is used as it is. False: no tensor scale.
        blocks: elements that share a scale, ``"1x16"`` or, for a matrix, ``"16x16"``.
        non_finite: ``"poison"`` makes a block with a NaN or an infinity NaN. ``"saturate"`` replaces such elements by
            the largest magnitude with their sign.
        rounding: ``"nearest_even"`` or ``"stochastic"``.
        seed: seed of stochastic rounding.

    Returns:
        Codes, block scales, tensor scale. Codes are uint8 with two elements each, the first in the low half:
        ``.view(torch.float4_e2m1fn_x2)`` reads them. Block scales are float8_e4m3fn. The tensor scale is a float32
        scalar, or None without one.

    Raises:
        RuntimeError: another dtype, device or shape, or an unknown option.
    """
    given = tensor_scale if isinstance(tensor_scale, Tensor) else None
    return torch.ops.dovetail.nvfp4_quantize(x, given, tensor_scale is not False, blocks, non_finite, rounding, seed)


def nvfp4_dequantize(
    codes: Tensor,
    scales: Tensor,
    tensor_scale: Tensor | None = None,
    blocks: str = "1x16",
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return the numbers of codes and scales: element * (tensor scale * block scale), in float32 operations.

    Args:
        codes: (..., last / 2), uint8 or float4_e2m1fn_x2, as from :func:`nvfp4_quantize`.
        scales: float8_e4m3fn, as from :func:`nvfp4_quantize`.
        tensor_scale: float32 scalar, or None for 1.
        blocks: ``"1x16"`` or ``"16x16"``.
        dtype: float32 or bfloat16.

    Returns:
        Numbers (..., last). A block with scale NaN is NaN.
    """
    return torch.ops.dovetail.nvfp4_dequantize(codes.view(torch.uint8), scales, tensor_scale, blocks, dtype)


def nvfp4_hadamard(x: Tensor, seed: int = 0) -> Tensor:
    """Return the random Hadamard transform of ``x`` along its first dimension, in blocks of 16.

    Each block v becomes H D v: H is the 16 x 16 Hadamard matrix / 4 in Sylvester's order, D has random signs. H D is
    orthogonal, so ``nvfp4_hadamard(a).T @ nvfp4_hadamard(b)`` is ``a.T @ b`` up to rounding.

    Args:
        x: (rows, ...), float32 or bfloat16, on the CPU.
        seed: seed of the signs. Recipe ``"nvfp4"`` has seed 0.

    Returns:
        float32, with rows rounded up to a multiple of 16.
    """
    return torch.ops.dovetail.nvfp4_hadamard(x, seed)
