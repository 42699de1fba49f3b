"""Sharding rules of the operators for DTensors: replicated, column, row and data parallel.

A rule lists placements of results and arguments on one dimension of a mesh. Blocks never cross a shard: each rank
quantizes its own. Where shards hold whole blocks, the result differs from one rank's only by the order of sums.
"""

import functools
import math
import sys

import torch

registered = False


@functools.cache
def scaled_elements(recipe: str) -> tuple[int, int, int]:
    """Elements of weight, activation and gradient that share a scale: 1 without quantization, 0 for a whole tensor."""
    weight, activation, gradient = torch.ops.dovetail.mx_scaled_elements(recipe)
    return weight, activation, gradient


def shards_tokens(x, recipe: str) -> bool:
    """True if shards of the first dimension hold whole blocks of tokens. Then they are quantized as the whole is."""
    block, ranks = math.lcm(*scaled_elements(recipe)[1:]), x.mesh.size()
    if block == 0 or len(x.shape) < 2 or x.shape[0] % ranks != 0:
        return False
    return math.prod(x.shape[:-1]) // ranks % block == 0


def on(dimension: int, spec):
    """Shard a kept tensor along a dimension from its end; a tensor without elements or dimensions is replicated."""
    from torch.distributed.tensor import Replicate, Shard

    return Replicate() if len(spec.shape) < 2 else Shard(dimension % len(spec.shape))


def forward_rules(x, weight, bias, copies, recipe, layer):
    """Placements of y, kept and scales; then of x, weight and bias.

    Raises:
        ValueError: a sharded weight with one scale for a whole tensor, since the tensor is spread over ranks.
    """
    from torch.distributed.tensor import Partial, Replicate, Shard

    blocks = scaled_elements(recipe)
    if 0 in blocks and any(p.is_shard() for p in weight.placements):
        raise ValueError(
            "mx_linear: this recipe has one scale for a whole tensor, but each rank has a shard of weight "
            f"({', '.join(map(str, weight.placements))}); use a recipe with blocks, such as mxfp8 or fp8_block"
        )
    copied = copies and blocks[1] != 1
    whole, columns, rows, width = Replicate(), Shard(1), Shard(0), Shard(len(x.shape) - 1)

    def rule(y, kept, x, weight, of_bias):
        kept = kept if copied else whole
        return [y, kept, kept], [x, weight, None if bias is None else of_bias]

    rules = [rule(whole, whole, whole, whole, whole)]
    if 0 not in blocks:
        rules.append(rule(width, whole, whole, rows, rows))
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

    rules = [rule([whole, whole, whole], whole, whole, whole, whole)]
    if 0 not in scaled_elements(recipe):
        rules.append(rule([Partial(), rows, rows], width, rows, whole, whole))
        rules.append(rule([width, columns, whole], whole, columns, on(-1, kept), on(-1, scales)))
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
