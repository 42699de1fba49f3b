"""Recipes: in which format each operand of a Linear's products is quantized."""

import dataclasses
import json

import torch


@dataclasses.dataclass(frozen=True)
class Operand:
    """Quantization of one operand. Fields are the keys of ``[[precision.recipes]]`` in a config of ``dovetail train``.

    Args:
        format: ``"e4m3"``, ``"e5m2"``, ``"e3m2"``, ``"e2m3"``, ``"e2m1"`` or ``"mxint8"``; ``"none"`` keeps the operand
            in high precision.
        blocks: elements that share a scale. ``"1x32"`` (microscaling) and ``"1x128"`` (FP8) lie along the reduction of
            each product; ``"32x32"`` and ``"128x128"`` are for weights; ``"tensor"`` is the whole tensor. NVFP4 has
            ``"1x16"``, and ``"16x16"`` for weights.
        scale_mode: ``"round_up"``, ``"floor"``, ``"ceil"`` or ``"even"`` for powers of two; ``"float32"`` for FP8;
            ``"e4m3"`` for NVFP4.
        history: steps of delayed scaling; only ``dovetail train`` has them.
        rounding: ``"nearest_even"``, or ``"stochastic"`` for gradients.
        hadamard: NVFP4: transform the operands of the weight's gradient. For activation and gradient together.
    """

    format: str = "e4m3"
    blocks: str = "1x32"
    scale_mode: str = "round_up"
    history: int = 0
    rounding: str = "nearest_even"
    hadamard: bool = False


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Quantization of a Linear. Instances are compared by their fields.

    >>> mine = dovetail.mx.Recipe(gradient=dovetail.mx.Operand("e5m2"))
    >>> native = dataclasses.replace(dovetail.mx.find_recipe("mxfp8"), gemm="native")

    Args:
        name: name in error messages and ``repr``.
        weight: weights of Linears.
        activation: inputs of Linears.
        gradient: gradients of the outputs of Linears.
        high_precision_ends: blocks at each end of a model that :func:`convert` leaves in high precision.
        gemm: ``"emulated"`` multiplies dequantized operands. ``"native"`` multiplies codes, which needs a GPU of
            compute capability 10.

    Raises:
        RuntimeError: a combination of options that no product has; the message names the operand.
    """

    name: str = "custom"
    weight: Operand = Operand()
    activation: Operand = Operand()
    gradient: Operand = Operand()
    high_precision_ends: int = 0
    gemm: str = "emulated"

    #: The recipe as TOML, which is what operators take.
    toml: str = dataclasses.field(init=False, repr=False, compare=False, default="")

    def __post_init__(self) -> None:
        object.__setattr__(self, "toml", to_toml(self))
        check(self.toml)

    def __str__(self) -> str:
        return self.toml


def to_toml(recipe: Recipe) -> str:
    """Return a recipe as operators read it: ``gemm``, and one table of ``[[precision.recipes]]``."""
    unset = dataclasses.asdict(Operand())
    lines = [f"gemm = {json.dumps(recipe.gemm)}", "[[recipe]]", f"name = {json.dumps(recipe.name)}"]
    lines.append(f"high_precision_ends = {recipe.high_precision_ends}")
    for operand in ("weight", "activation", "gradient"):
        fields = dataclasses.asdict(getattr(recipe, operand))
        changed = [f"{key} = {json.dumps(value)}" for key, value in fields.items() if value != unset[key]]
        lines.append(f"{operand} = {{ {', '.join(changed)} }}")
    return "\n".join(lines)


def find_recipe(name: str) -> Recipe:
    """Return a built-in recipe by name. ``dovetail config --explain precision.recipe`` lists them.

    Raises:
        RuntimeError: unknown name, or a recipe with delayed scaling; the message lists the names.
    """
    fields = json.loads(torch.ops.dovetail.mx_recipe(name))
    operands = {key: Operand(**fields[key]) for key in ("weight", "activation", "gradient")}
    return Recipe(name, **operands, high_precision_ends=fields["high_precision_ends"])


def check(recipe: str | Recipe) -> None:
    """Raise RuntimeError if the recipe is unknown, or combines options that no product has."""
    # Sizes that suit native products; tensors without memory compute shapes alone.
    empty = torch.empty(128, 128, device="meta")
    torch.ops.dovetail.mx_linear_forward(empty, empty, None, 0, str(recipe), "")
