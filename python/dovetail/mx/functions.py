"""Functions of :mod:`dovetail.mx`: quantization of a tensor, and a Linear with quantized products."""

import torch
from dovetail.mx import sharding
from dovetail.mx.recipe import Recipe
from torch import Tensor

#: Dtypes in which codes and scales may come instead of uint8.
BYTES = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu)


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    recipe: str | Recipe = "mxfp8",
    seed: int | None = None,
    layer: str = "",
) -> Tensor:
    """Return ``x @ weight.T + bias`` with operands quantized by ``recipe``.

    Works under ``torch.compile``, ``torch.export``, ``torch.autocast`` and ``torch.func``, and with DTensors. It has no
    second derivative: differentiating twice raises RuntimeError. On a GPU nothing waits unless ``layer`` is given.

    Args:
        x: (..., in), float32 or bfloat16.
        weight: (out, in), dtype of x.
        bias: (out), dtype of x.
        recipe: name of a built-in recipe, or a :class:`Recipe`. Recipes with delayed scaling, which need earlier steps,
            raise RuntimeError.
        seed: seed of stochastic rounding. None draws one from torch's generator in each call, so ``torch.manual_seed``
            repeats a run.
        layer: name under which statistics are counted; empty: none are. See :func:`collect_statistics`.

    Returns:
        (..., out), dtype of x.
    """
    if type(x) is not Tensor:  # perhaps a DTensor
        sharding.register()
    return torch.ops.dovetail.mx_linear(x, weight, bias, str(recipe), seed, layer)


def quantize(
    x: Tensor,
    format: str = "e4m3",
    scale_mode: str = "round_up",
    axis: int = -1,
    non_finite: str = "poison",
    packed: bool = False,
) -> tuple[Tensor, Tensor]:
    """Quantize ``x``: one power-of-two scale per 32 elements along ``axis``.

    A short last block is quantized as if padded with zeros. Source: OCP Microscaling Formats v1.0; ``round_up`` is
    algorithm 1 of arXiv 2506.08027.

    Args:
        x: at least one dimension; float32, bfloat16 or float16, any strides. It must not require a gradient, which
            codes do not have: see :func:`fake_quantize`.
        format: ``"e4m3"``, ``"e5m2"``, ``"e3m2"``, ``"e2m3"``, ``"e2m1"`` or ``"mxint8"``.
        scale_mode: how a scale follows from the block's largest magnitude: ``"round_up"`` (nothing saturates),
            ``"floor"`` (OCP), ``"ceil"`` or ``"even"``.
        axis: dimension of the blocks.
        non_finite: ``"poison"`` gives a block with a NaN or an infinity the scale 255 (NaN) and codes 0.
            ``"saturate"`` replaces such elements by the largest magnitude with their sign.
        packed: return FP4 (``"e2m1"``) as ``torch.float4_e2m1fn_x2``. A byte has two elements of the last dimension,
            the first in the low half. The last size must be even.

    Returns:
        Codes and scales, both uint8. Codes have the shape of x, or half its last size if packed. Scales (E8M0) have
        the shape of x with ``axis`` divided by 32, rounded up. ``view`` gives them torch's dtypes, such as
        ``torch.float8_e4m3fn`` and ``torch.float8_e8m0fnu``.

    Raises:
        RuntimeError: x requires a gradient, has another dtype, or an option has an unknown value.
        ValueError: ``packed`` with another format or an odd last size.
    """
    if packed and (format != "e2m1" or x.shape[-1] % 2 != 0):
        raise ValueError(
            f"packed needs format 'e2m1' and an even last size, but format is {format!r} and x is {tuple(x.shape)}"
        )
    codes, scales = torch.ops.dovetail.mx_quantize(x, format, scale_mode, axis, non_finite)
    if packed:
        codes = (codes[..., ::2] | codes[..., 1::2] << 4).view(torch.float4_e2m1fn_x2)
    return codes, scales


def dequantize(
    codes: Tensor, scales: Tensor, format: str = "e4m3", axis: int = -1, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return the numbers of ``codes`` and ``scales``; a block with scale 255 is NaN.

    Args:
        codes: uint8 as from :func:`quantize`, a float8 dtype of torch with the same bytes, or packed
            ``torch.float4_e2m1fn_x2``.
        scales: uint8 or ``torch.float8_e8m0fnu``, as from :func:`quantize`.
        format: format of the codes.
        axis: dimension of the blocks.
        dtype: float32 or bfloat16.

    Returns:
        Numbers in the shape of ``codes``; the last size is doubled if they are packed. Results in float32 are exact;
        numbers beyond its range become infinite. Results in bfloat16 are rounded only below its smallest subnormal
        number, 2^-133.

    Raises:
        ValueError: packed codes with another format than ``"e2m1"``.
        RuntimeError: dtypes or shapes do not fit together.
    """
    if codes.dtype == torch.float4_e2m1fn_x2:
        if format != "e2m1":
            raise ValueError(f"packed codes are FP4: format must be 'e2m1', but is {format!r}")
        pairs = codes.view(torch.uint8)
        codes = torch.stack([pairs & 15, pairs >> 4], -1).flatten(-2)
    codes, scales = (t.view(torch.uint8) if t.dtype in BYTES else t for t in (codes, scales))
    return torch.ops.dovetail.mx_dequantize(codes, scales, format, axis, dtype)


class StraightThrough(torch.autograd.Function):
    """Values of one tensor with the gradient of another."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, values: Tensor) -> Tensor:
        return values.clone()

    @staticmethod
    def setup_context(context, inputs, output) -> None:
        pass

    @staticmethod
    def backward(context, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def fake_quantize(
    x: Tensor, format: str = "e4m3", scale_mode: str = "round_up", axis: int = -1, non_finite: str = "poison"
) -> Tensor:
    """Round ``x`` to numbers of a microscaling format, with a straight-through gradient.

    For quantization-aware training: forward quantizes and dequantizes, backward passes the gradient on unchanged.
    :func:`quantize` describes the arguments.

    Returns:
        Shape and dtype of x.
    """
    codes, scales = quantize(x.detach(), format, scale_mode, axis, non_finite)
    return StraightThrough.apply(x, dequantize(codes, scales, format, axis).to(x.dtype))
