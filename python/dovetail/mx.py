"""Linears in microscaling formats, for models of plain PyTorch.

>>> model = dovetail.mx.convert(model, "mxfp8", layers=["blocks.*"])

Master weights stay what they are; each product of forward and backward reads operands quantized along its reduction.
Recipes: ``dovetail config --explain precision.recipe``, or ``dovetail/mx/recipe.cpp``.
"""

import fnmatch

import torch
from torch import Tensor, nn


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, recipe: str = "mxfp8") -> Tensor:
    """``x @ weight.T + bias`` of quantized operands: x (..., in), weight (out, in), bias (out)."""
    return torch.ops.dovetail.mx_linear(x, weight, bias, recipe)


def quantize(
    x: Tensor, format: str = "e4m3", scale_mode: str = "round_up", axis: int = -1, non_finite: str = "poison"
) -> tuple[Tensor, Tensor]:
    """Codes, one uint8 for each element of x, and E8M0 scales, one uint8 for each 32 elements along `axis`."""
    return torch.ops.dovetail.mx_quantize(x, format, scale_mode, axis, non_finite)


def dequantize(
    codes: Tensor, scales: Tensor, format: str = "e4m3", axis: int = -1, dtype: torch.dtype = torch.float32
) -> Tensor:
    """The numbers that codes and scales stand for, in float32 or bfloat16."""
    return torch.ops.dovetail.mx_dequantize(codes, scales, format, axis, dtype)


class Linear(nn.Linear):
    """``torch.nn.Linear`` with quantized products: the same parameters under the same names."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True, recipe: str = "mxfp8", **options):
        super().__init__(in_features, out_features, bias, **options)
        self._set_recipe(recipe)

    def _set_recipe(self, recipe: str) -> None:
        # Shapes alone: an unknown recipe is an error here and not in the first step.
        linear(torch.empty(1, 1, device="meta"), torch.empty(1, 1, device="meta"), None, recipe)
        self.recipe = recipe

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias, self.recipe)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, recipe={self.recipe}"


def convert(model: nn.Module, recipe: str = "mxfp8", layers: list[str] | None = None) -> nn.Module:
    """Make the ``torch.nn.Linear`` modules of `model` quantized ones, in place; parameters stay the same objects.

    `layers` are globs over module names, such as ``"blocks.*"``; all Linears if it is None. Returns `model`. Raises
    ValueError for a glob that matches no Linear. Embedding and head should stay in high precision: leave them out.
    """
    found = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
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
