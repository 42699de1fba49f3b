"""Linear layers in microscaling formats, for plain PyTorch models.

>>> model = dovetail.mx.convert(model, "mxfp8")

Master weights keep their dtype. Each product of forward and backward reads operands quantized along its reduction.
``dovetail config --explain precision.recipe`` lists the recipes; ``dovetail/mx/recipe.cpp`` defines them. The formats
follow the OCP Microscaling Formats specification v1.0. An unknown format, recipe or mode raises RuntimeError,
which lists the valid names.
"""

from dovetail.mx.conversion import convert
from dovetail.mx.functions import dequantize, fake_quantize, linear, quantize
from dovetail.mx.modules import Linear
from dovetail.mx.nvfp4 import nvfp4_dequantize, nvfp4_hadamard, nvfp4_quantize
from dovetail.mx.recipe import Operand, Recipe, find_recipe
from dovetail.mx.statistics import LayerStatistics, Statistics, collect_statistics

__all__ = [
    "LayerStatistics",
    "Linear",
    "Operand",
    "Recipe",
    "Statistics",
    "collect_statistics",
    "convert",
    "dequantize",
    "fake_quantize",
    "find_recipe",
    "linear",
    "nvfp4_dequantize",
    "nvfp4_hadamard",
    "nvfp4_quantize",
    "quantize",
]
