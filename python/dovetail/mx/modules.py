"""Modules with quantized products."""

from dovetail.mx import recipe as recipes
from dovetail.mx.functions import linear
from dovetail.mx.recipe import Recipe
from torch import Tensor, nn


class Quantized:
    """Base of the modules below: a recipe, and the name under which statistics are counted."""

    #: Name for statistics; empty while none are counted.
    layer = ""

    def set_recipe(self, recipe: str | Recipe) -> None:
        """Set the recipe of the products. Raises RuntimeError if it is unknown."""
        recipes.check(recipe)  # an unknown recipe is an error here and not in the first step
        self.recipe = recipe if isinstance(recipe, str) else recipe.name
        self._recipe = str(recipe)


class Linear(Quantized, nn.Linear):
    """``torch.nn.Linear`` with quantized products. Parameters have the same names and shapes.

    Args:
        in_features: width of the input.
        out_features: width of the output.
        bias: whether to add a bias.
        recipe: name of a built-in recipe, or a :class:`Recipe`.
        options: further arguments of ``torch.nn.Linear``, such as ``device`` and ``dtype``.

    Raises:
        RuntimeError: unknown recipe.
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, recipe: str | Recipe = "mxfp8", **options
    ):
        super().__init__(in_features, out_features, bias, **options)
        self.set_recipe(recipe)

    def forward(self, x: Tensor) -> Tensor:
        """Map x (..., in_features) to (..., out_features)."""
        return linear(x, self.weight, self.bias, self._recipe, layer=self.layer)

    def extra_repr(self) -> str:
        """Sizes and recipe."""
        return f"{super().extra_repr()}, recipe={self.recipe}"


def make_conv1d() -> type:
    """Make the class that stands for Conv1D of transformers, whose weight is (in, out)."""
    from transformers.pytorch_utils import Conv1D

    class QuantizedConv1D(Quantized, Conv1D):
        """``transformers.pytorch_utils.Conv1D`` with quantized products."""

        def forward(self, x: Tensor) -> Tensor:
            """Map x (..., nx) to (..., nf)."""
            return linear(x, self.weight.t(), self.bias, self._recipe, layer=self.layer)

        def __repr__(self) -> str:
            return f"QuantizedConv1D(nf={self.nf}, nx={self.nx}, recipe={self.recipe})"

    QuantizedConv1D.__module__, QuantizedConv1D.__qualname__ = __name__, "QuantizedConv1D"
    return QuantizedConv1D


def __getattr__(name: str):
    """Make ``QuantizedConv1D`` on first use, since it needs transformers. Pickles find it here as well."""
    if name != "QuantizedConv1D":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = make_conv1d()
    return globals()[name]
