"""Conversion of a model's Linears to quantized ones."""

import fnmatch
from collections.abc import Callable

import torch
from dovetail.mx import modules
from dovetail.mx.modules import Linear, Quantized
from dovetail.mx.recipe import Recipe, find_recipe
from torch import nn

Named = dict[str, nn.Module]
CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


def is_conv1d(module: nn.Module) -> bool:
    """True for Conv1D of transformers, a Linear whose weight is (in, out)."""
    return any(f"{c.__module__}.{c.__name__}" == "transformers.pytorch_utils.Conv1D" for c in type(module).__mro__)


def is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or is_conv1d(module)


def find_stacks(model: nn.Module) -> dict[str, list[str]]:
    """Find the stacks of blocks: containers of modules of one class, each with Linears inside, and in no other stack.

    Returns:
        For the name of each stack, the names of its blocks in order.
    """
    stacks: dict[str, list[str]] = {}
    for name, module in model.named_modules():
        blocks = dict(module.named_children())
        few = len(blocks) < (2 if isinstance(module, nn.Sequential) else 1)
        if not isinstance(module, CONTAINERS) or few or any(name.startswith(f"{stack}.") for stack in stacks):
            continue
        similar = len({type(block) for block in blocks.values()}) == 1
        if similar and all(not is_linear(b) and any(map(is_linear, b.modules())) for b in blocks.values()):
            stacks[name] = [f"{name}.{key}" if name else key for key in blocks]
    return stacks


def inside(name: str, blocks: list[str]) -> bool:
    return any(name.startswith(f"{block}.") for block in blocks)


def tied_weights(model: nn.Module) -> set[int]:
    """Identities of the parameters that a Linear shares with a module of another kind, such as an embedding."""
    others = [module for module in model.modules() if not is_linear(module)]
    return {id(p) for module in others for p in module.parameters(recurse=False)}


def default_choice(model: nn.Module, found: Named, stacks: dict[str, list[str]]) -> Named:
    """The Linears in blocks; in a model without blocks all but the head. Tied weights are left out."""
    tied, get_head = tied_weights(model), getattr(model, "get_output_embeddings", lambda: None)
    head = get_head()
    blocks = [block for of_stack in stacks.values() for block in of_stack]
    return {
        name: module
        for name, module in found.items()
        if id(module.weight) not in tied and module is not head and (not blocks or inside(name, blocks))
    }


def without_ends(chosen: Named, stacks: dict[str, list[str]], recipe: Recipe) -> Named:
    """Leave out the first and last blocks of each stack, as many as the recipe says."""
    count = recipe.high_precision_ends
    if count == 0:
        return chosen
    if not stacks:
        raise ValueError(
            f"{recipe.name} keeps {count} blocks at each end in high precision, but this model has no stack of blocks "
            "(a ModuleList, ModuleDict or Sequential of modules of one class); use a recipe with high_precision_ends=0"
        )
    ends = [block for blocks in stacks.values() for block in blocks[:count] + blocks[-count:]]
    left = {name: module for name, module in chosen.items() if not inside(name, ends)}
    if chosen and not left:
        raise ValueError(
            f"{recipe.name} keeps {count} blocks at each end in high precision, and the chosen Linears are all in "
            "these; nothing would be quantized. Use a recipe with high_precision_ends=0, or a deeper model"
        )
    return left


def choose(model: nn.Module, recipe: Recipe, layers: list[str] | None, filter) -> Named:
    """Choose the modules to convert; see :func:`convert`."""
    found = {name: module for name, module in model.named_modules() if is_linear(module)}
    if not found:
        raise ValueError(f"{type(model).__name__} has no torch.nn.Linear to quantize")
    for glob in layers or []:
        if not fnmatch.filter(found, glob):
            raise ValueError(f"{glob!r} matches no Linear of this model; they are called {', '.join(found)}")
    stacks = find_stacks(model)
    chosen = found if layers is not None or filter is not None else default_choice(model, found, stacks)
    if layers is not None:
        chosen = {n: m for n, m in chosen.items() if any(fnmatch.fnmatchcase(n, glob) for glob in layers)}
    if filter is not None:
        chosen = {name: module for name, module in chosen.items() if filter(module, name)}
    chosen = without_ends(chosen, stacks, recipe)
    if not chosen:
        raise ValueError(
            f"nothing of {type(model).__name__} would be quantized: head and tied weights are left out unless layers "
            f"or filter choose them. Its Linears are called {', '.join(found)}"
        )
    return chosen


def check_module(name: str, module: nn.Module) -> None:
    """Raise ValueError if a chosen module cannot be converted."""
    if type(module) is nn.modules.linear.NonDynamicallyQuantizableLinear:
        raise ValueError(
            f"{name} is the output projection of torch.nn.MultiheadAttention, which reads its weights without calling "
            "it; so it cannot be quantized. Leave attention out with layers, such as ['*linear1', '*linear2']"
        )
    if type(module) not in (nn.Linear, Linear) and not is_conv1d(module):
        raise ValueError(f"{name} is a {type(module).__name__}, whose own forward would be lost; leave it out")
    if module.weight.dtype == torch.float16:
        raise ValueError(
            f"{name} is float16, whose range the scales of quantized products exceed; convert the model to bfloat16"
        )


def hold_off_fast_path(model: nn.Module, chosen: Named) -> None:
    """Keep torch's encoder from its fast path in inference, which reads weights without calling the Linears."""
    converted = {id(module) for module in chosen.values()}
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer) and converted & {id(m) for m in module.modules()}:
            module.activation_relu_or_gelu = 0  # the layer's own sign that the fast path does not apply
        if isinstance(module, nn.TransformerEncoder) and converted & {id(m) for m in module.modules()}:
            module.use_nested_tensor = False


def convert(
    model: nn.Module,
    recipe: str | Recipe = "mxfp8",
    layers: list[str] | None = None,
    filter: Callable[[nn.Module, str], bool] | None = None,
) -> nn.Module:
    """Turn the Linears of ``model`` into quantized ones, in place.

    By default, these are the Linears inside the blocks of the model, as in arXiv 2506.08027. Embedding, head and tied
    weights stay in high precision. Blocks are the modules of one class in a ModuleList, ModuleDict or Sequential.
    A model without blocks has all Linears converted but those that are its head or tied to an embedding.

    Parameters stay the same objects, so an optimizer that holds them keeps working. Conv1D of Hugging Face's GPT-2 is
    converted as well.

    Args:
        model: any module.
        recipe: name of a built-in recipe, or a :class:`Recipe`. Its ``high_precision_ends`` first and last blocks of
            each stack are left out, whatever else is chosen.
        layers: globs over module names, such as ``"blocks.*"``, in place of the default choice.
        filter: function of a module and its name that returns whether to convert it, in place of the default choice.
            With ``layers``, both must agree.

    Returns:
        ``model``.

    Raises:
        ValueError: nothing would be converted, or a glob matches no Linear.
        ValueError: a chosen module cannot be converted. It has float16 weights, belongs to
            ``torch.nn.MultiheadAttention``, or is a subclass with its own ``forward``.
        RuntimeError: unknown recipe, or one with delayed scaling.
    """
    known = recipe if isinstance(recipe, Recipe) else find_recipe(recipe)
    chosen = choose(model, known, layers, filter)
    for name, module in chosen.items():
        check_module(name, module)
    for module in chosen.values():
        if not isinstance(module, Quantized):
            module.__class__ = modules.QuantizedConv1D if is_conv1d(module) else Linear
        module.set_recipe(recipe)
    hold_off_fast_path(model, chosen)
    return model
