"""Linear layers in microscaling formats, for plain PyTorch models.

>>> model = dovetail.mx.convert(model, "mxfp8", layers=["blocks.*"])

Master weights keep their dtype. Each product of forward and backward reads operands quantized along its reduction.
``dovetail config --explain precision.recipe`` lists the recipes; ``dovetail/mx/recipe.cpp`` defines them. The formats
follow the OCP Microscaling Formats specification v1.0. An unknown format, recipe or mode raises RuntimeError,
which lists the valid names.
"""

import fnmatch

import torch
from dovetail.mx.nvfp4 import nvfp4_dequantize, nvfp4_hadamard, nvfp4_quantize
from torch import Tensor, nn

__all__ = [
    "Linear",
    "convert",
    "dequantize",
    "linear",
    "nvfp4_dequantize",
    "nvfp4_hadamard",
    "nvfp4_quantize",
    "quantize",
]


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, recipe: str = "mxfp8", seed: int | None = None
) -> Tensor:
    """Return ``x @ weight.T + bias`` with operands quantized by ``recipe``.

    Args:
        x: (..., in), float32 or bfloat16.
        weight: (out, in), dtype of x.
        bias: (out), dtype of x.
        recipe: name of a built-in recipe. Recipes with delayed scaling, which need earlier steps, raise RuntimeError.
        seed: seed of stochastic rounding. None draws one from torch's generator in each call, so ``torch.manual_seed``
            repeats a run.

    Returns:
        (..., out), dtype of x.
    """
    return torch.ops.dovetail.mx_linear(x, weight, bias, recipe, seed)


def quantize(
    x: Tensor, format: str = "e4m3", scale_mode: str = "round_up", axis: int = -1, non_finite: str = "poison"
) -> tuple[Tensor, Tensor]:
    """Quantize ``x``: one power-of-two scale per 32 elements along ``axis``.

    A short last block is quantized as if padded with zeros. Source: OCP Microscaling Formats v1.0; ``round_up`` is
    algorithm 1 of arXiv 2506.08027.

    Args:
        x: at least one dimension; float32, bfloat16 or float16, any strides.
        format: ``"e4m3"``, ``"e5m2"``, ``"e3m2"``, ``"e2m3"``, ``"e2m1"`` or ``"mxint8"``.
        scale_mode: how a scale follows from the block's largest magnitude: ``"round_up"`` (nothing saturates),
            ``"floor"`` (OCP), ``"ceil"`` or ``"even"``.
        axis: dimension of the blocks.
        non_finite: ``"poison"`` gives a block with a NaN or an infinity the scale 255 (NaN) and codes 0.
            ``"saturate"`` replaces such elements by the largest magnitude with their sign.

    Returns:
        Codes and scales, both uint8. Codes have the shape of x. Scales (E8M0) have it with ``axis`` divided by 32,
        rounded up.
    """
    return torch.ops.dovetail.mx_quantize(x, format, scale_mode, axis, non_finite)


def dequantize(
    codes: Tensor, scales: Tensor, format: str = "e4m3", axis: int = -1, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return the numbers of ``codes`` and ``scales``; a block with scale 255 is NaN.

    Args:
        codes: uint8, as from :func:`quantize`.
        scales: uint8, as from :func:`quantize`.
        format: format of the codes.
        axis: dimension of the blocks.
        dtype: float32 or bfloat16.

    Returns:
        Numbers in the shape of ``codes``. Results in float32 are exact; numbers beyond its range become infinite.
        Results in bfloat16 are rounded only below its smallest subnormal number, 2^-133.
    """
    return torch.ops.dovetail.mx_dequantize(codes, scales, format, axis, dtype)


class Linear(nn.Linear):
    """``torch.nn.Linear`` with quantized products. Parameters have the same names and shapes.

    Args:
        in_features: width of the input.
        out_features: width of the output.
        bias: whether to add a bias.
        recipe: name of a built-in recipe.
        options: further arguments of ``torch.nn.Linear``, such as ``device`` and ``dtype``.

    Raises:
        RuntimeError: unknown recipe.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, recipe: str = "mxfp8", **options):
        super().__init__(in_features, out_features, bias, **options)
        self._set_recipe(recipe)

    def _set_recipe(self, recipe: str) -> None:
        # Shapes alone: an unknown recipe is an error here and not in the first step.
        linear(torch.empty(1, 1, device="meta"), torch.empty(1, 1, device="meta"), None, recipe)
        self.recipe = recipe

    def forward(self, x: Tensor) -> Tensor:
        """Map x (..., in_features) to (..., out_features)."""
        return linear(x, self.weight, self.bias, self.recipe)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, recipe={self.recipe}"


def convert(model: nn.Module, recipe: str = "mxfp8", layers: list[str] | None = None) -> nn.Module:
    """Turn the ``torch.nn.Linear`` modules of ``model`` into quantized ones, in place.

    Parameters stay the same objects, so an optimizer that holds them keeps working. Leave out embedding and head,
    which should stay in high precision.

    Args:
        model: any module.
        recipe: name of a built-in recipe.
        layers: globs over module names, such as ``"blocks.*"``; None converts every Linear.

    Returns:
        ``model``.

    Raises:
        ValueError: the model has no Linear, a glob matches none, or a matching module belongs to a subclass with its
            own ``forward``.
        RuntimeError: unknown recipe.
    """
    found = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    if not found:
        raise ValueError(f"{type(model).__name__} has no torch.nn.Linear to quantize")
    for glob in layers or []:
        if not fnmatch.filter(found, glob):
            raise ValueError(f"{glob!r} matches no Linear of this model; they are called {', '.join(found)}")
    for name, module in found.items():
        if layers is not None and not any(fnmatch.fnmatchcase(name, glob) for glob in layers):
            continue
        if type(module) not in (nn.Linear, Linear):
            raise ValueError(f"{name} is a {type(module).__name__}, whose own forward would be lost; leave it out")
        module.__class__ = Linear
        module._set_recipe(recipe)
    return model
