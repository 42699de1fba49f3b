"""Sharding rules of the operators for DTensors: replicated, column, row and data parallel.

A rule lists placements of results and arguments on one dimension of a mesh. Blocks never cross a shard: each rank
quantizes its own. Where shards hold whole blocks, the result differs from one rank's only by the order of sums.
"""

import functools
import math
import sys

import torch
from dovetail.mx.recipe import find_recipe

registered = False


@functools.cache
def tokens_of_a_block(recipe: str) -> int | None:
    """Tokens that share a scale of the column copy of x: None if x is not quantized, 0 if the whole x has one scale."""
    if '"1x16"' in (recipe if "=" in recipe else find_recipe(recipe).toml):
        return 0  # NVFP4 keeps x instead of a copy, and has a scale of the whole x
    empty = torch.empty(128, 128, device="meta")
    _, kept, scales = torch.ops.dovetail.mx_linear_forward(empty, empty, None, 1, recipe, "")
    if kept.dim() == 1:
        return None
    return 128 // scales.shape[0] if scales.dim() == 2 else 0


def shards_tokens(x, recipe: str) -> bool:
    """True if shards of the first dimension hold whole blocks of tokens. Then they are quantized as the whole is."""
    block, ranks = tokens_of_a_block(recipe), x.mesh.size()
    if block == 0 or len(x.shape) < 2 or x.shape[0] % ranks != 0:
        return False
    return math.prod(x.shape[:-1]) // ranks % (block or 1) == 0


def on(dimension: int, spec):
    """Shard a kept tensor along a dimension from its end; a tensor without elements or dimensions is replicated."""
    from torch.distributed.tensor import Replicate, Shard

    return Replicate() if len(spec.shape) < 2 else Shard(dimension % len(spec.shape))


def forward_rules(x, weight, bias, copies, recipe, layer):
    """Placements of y, kept and scales; then of x, weight and bias.

    Raises:
        ValueError: a row-parallel Linear with one scale for x, since x is spread over ranks.
    """
    from torch.distributed.tensor import Partial, Replicate, Shard

    if tokens_of_a_block(recipe) == 0 and any(p.is_shard(1) for p in weight.placements):
        raise ValueError(
            "mx_linear: this recipe has one scale for the whole input, but a row-parallel Linear has a shard of it on "
            "each rank; use a recipe with blocks, such as mxfp8 or fp8_block"
        )
    copied = copies and tokens_of_a_block(recipe) is not None
    whole, columns, rows, width = Replicate(), Shard(1), Shard(0), Shard(len(x.shape) - 1)

    def rule(y, kept, x, weight, of_bias):
        kept = kept if copied else whole
        return [y, kept, kept], [x, weight, None if bias is None else of_bias]

    rules = [rule(whole, whole, whole, whole, whole), rule(width, whole, whole, rows, rows)]
    if tokens_of_a_block(recipe) != 0:
        rules.append(rule(Partial(), columns, width, columns, Partial()))
    if shards_tokens(x, recipe):
        rules.append(rule(rows, rows, rows, whole, whole))
    return rules


def backward_rules(dy, weight, kept, scales, seed, wanted, recipe, layer):
    """Placements of the gradients of x, weight and bias; then of dy, weight, kept, scales and seed."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    whole, columns, rows, width = Replicate(), Shard(1), Shard(0), Shard(len(dy.shape) - 1)

    def rule(gradients, dy, weight, of_kept, of_scales):
        made = [g if wanted >> i & 1 else whole for i, g in enumerate(gradients)]
        return made, [dy, weight, of_kept, of_scales, None if seed is None else whole]

    rules = [
        rule([whole, whole, whole], whole, whole, whole, whole),
        rule([Partial(), rows, rows], width, rows, whole, whole),
        rule([width, columns, whole], whole, columns, on(-1, kept), on(-1, scales)),
    ]
    if shards_tokens(dy, recipe):
        rules.append(rule([rows, Partial(), Partial()], rows, whole, on(0, kept), on(0, scales)))
    return rules


@torch.compiler.assume_constant_result
def register() -> None:
    """Register the rules, once a DTensor can exist. Importing DTensor takes seconds, so nothing else does it."""
    global registered
    if registered or "torch.distributed.tensor" not in sys.modules:
        return
    registered = True
    from torch.distributed.tensor.experimental import register_sharding

    register_sharding(torch.ops.dovetail.mx_linear_forward.default)(forward_rules)
    register_sharding(torch.ops.dovetail.mx_linear_backward.default)(backward_rules)
