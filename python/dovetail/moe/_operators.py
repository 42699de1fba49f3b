"""Operators of a mixture of experts, as functions."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor


class Routing(NamedTuple):
    """Experts of T tokens with k choices each."""

    #: (T, k) int32: chosen experts, best first.
    expert: Tensor
    #: (T, k) int32: slot of each choice in its expert; -1 if dropped.
    slot: Tensor
    #: (T, k): weight of each choice, 0 if dropped. Differentiable.
    weight: Tensor
    #: (E) int64: choices of each expert before dropping.
    count: Tensor
    #: Scalar: load-balancing loss, 1 when the load is even. Differentiable.
    load_loss: Tensor
    #: Scalar: mean of ``logsumexp(logits) ** 2`` (Zoph et al. 2022). Differentiable.
    z_loss: Tensor


def route(logits: Tensor, k: int, **options) -> Routing:
    """Choose ``k`` experts for each token.

    Weights and losses are float64 for float64 logits and float32 otherwise. Ties go to the lowest index. The result
    depends on neither threads nor repetition. Works under ``torch.compile`` and ``torch.export``.

    Args:
        logits: (T, E), any floating dtype.
        k: choices per token.
        options: options of ``torch.ops.dovetail.moe_route`` by name. These are the frequent ones:

            - ``score``: ``"softmax"`` or ``"sigmoid"`` of the logits.
            - ``normalize``: weights sum to 1 over a token's choices ``"before"`` or ``"after"`` dropping; ``"none"``.
            - ``drop``: choices beyond an expert's capacity: drop the last (``"position"``), drop the lowest
              scores (``"probability"``), or keep all (``"none"``).
            - ``capacity_factor``, ``capacity_rule``: capacity of an expert; ``capacity`` sets it as a number.
            - ``bias``: (E), added to the scores where experts are chosen, and only there.
            - ``router``: ``"top_k"``, ``"sinkhorn"``, ``"base"`` or ``"balanced"``.
            - ``chosen``: (T, k) integers, experts in place of the router's. Their numbers are checked. On a GPU
              the host waits for the check, and a compiled program does not check them.

    Returns:
        The routing of the T tokens.

    Raises:
        RuntimeError: an option is unknown or does not fit, by name.
    """
    return Routing(*torch.ops.dovetail.moe_route(logits, k, **options))


def dispatch(x: Tensor, routing: Routing) -> tuple[Tensor, Tensor]:
    """Gather the rows of ``x`` by expert. Differentiable.

    The number of rows depends on the values of ``routing``. So ``torch.compile(fullgraph=True)`` needs
    ``torch._dynamo.config.capture_dynamic_output_shape_ops = True``, as for ``torch.nonzero``. On the meta device no
    choice counts as dropped.

    Args:
        x: (T, C).
        routing: routing of the T tokens.

    Returns:
        Rows (R, C) of the R choices that were not dropped, sorted by expert and slot. Also the number of rows of
        each expert, (E) int64 on the CPU.

    Raises:
        RuntimeError: a choice that was not dropped names no expert. On the CPU the message says so. A GPU stops with
            "device-side assert triggered", which a later call of CUDA may raise. The process can then not use the
            GPU any more.
    """
    return torch.ops.dovetail.moe_dispatch(x, routing.expert, routing.slot, len(routing.count))


def combine(rows: Tensor, routing: Routing) -> Tensor:
    """Add the experts' rows back to their tokens, times their weights; the inverse of :func:`dispatch`. Differentiable.

    Args:
        rows: (R, C), in the order of :func:`dispatch`.
        routing: the same routing.

    Returns:
        (T, C), dtype of the routing's weights; zeros for a token whose choices were all dropped.

    Raises:
        RuntimeError: a choice that was not dropped names no expert; on a GPU as in :func:`dispatch`.
    """
    return torch.ops.dovetail.moe_combine(rows, routing.weight, routing.expert, routing.slot, len(routing.count))


def grouped_linear(x: Tensor, weight: Tensor, count: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``x @ weight[e].T + bias[e]`` for the rows of each group e. Differentiable in x, weight and bias.

    ``torch.autocast`` converts x, weight and bias.

    Args:
        x: (rows, in), sorted by group.
        weight: (E, out, in).
        count: (E) int64 on the CPU: rows of each group; sums to ``rows``.
        bias: (E, out).

    Returns:
        (rows, out).
    """
    return torch.ops.dovetail.grouped_linear(x, weight, count, bias)


def _dispatch_shapes(x, expert, slot, experts):
    traced = isinstance(x, FakeTensor)
    rows = torch.library.get_ctx().new_dynamic_size() if traced else expert.numel()
    count = torch.empty(experts, dtype=torch.int64, device="cpu" if traced else x.device)
    return x.new_empty(rows, x.shape[1]), count


def _dispatch_gradient_shapes(drows, expert, slot, experts):
    return drows.new_empty(expert.shape[0], drows.shape[1])


def _save_choices(ctx, inputs, output):
    _, expert, slot, ctx.experts = inputs
    ctx.save_for_backward(expert, slot)


def _dispatch_gradient(ctx, drows, _):
    return torch.ops.dovetail.moe_dispatch_backward(drows, *ctx.saved_tensors, ctx.experts), None, None, None


def _combine_shapes(rows, weight, expert, slot, experts):
    return weight.new_empty(weight.shape[0], rows.shape[1])


def _combine_gradient_shapes(dy, rows, weight, expert, slot, experts):
    return rows.new_empty(rows.shape), weight.new_empty(weight.shape)


def _save_rows(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:4])
    ctx.experts = inputs[4]


def _combine_gradient(ctx, dy):
    return *torch.ops.dovetail.moe_combine_backward(dy, *ctx.saved_tensors, ctx.experts), None, None, None


def _linear_shapes(x, weight, count, bias):
    return x.new_empty(x.shape[0], weight.shape[1])


def _linear_gradient_shapes(dy, x, weight, count, wanted):
    shapes = (x.shape, weight.shape, weight.shape[:2])
    return tuple(x.new_empty(shape if given else (0,)) for shape, given in zip(shapes, wanted, strict=True))


def _save_factors(ctx, inputs, output):
    *factors, bias = inputs
    ctx.save_for_backward(*factors)
    ctx.has_bias = bias is not None


def _linear_gradient(ctx, dy):
    needs = ctx.needs_input_grad
    wanted = [needs[0], needs[1], ctx.has_bias and needs[3]]
    made = torch.ops.dovetail.grouped_linear_backward(dy, *ctx.saved_tensors, wanted)
    dx, dweight, dbias = (gradient if given else None for gradient, given in zip(made, wanted, strict=True))
    return dx, dweight, None, dbias


def register_shapes() -> None:
    """Gives the operators that tracers see their shapes and gradients, once the library is loaded."""
    for name, shapes, gradient_shapes, gradient, save in [
        ("moe_dispatch", _dispatch_shapes, _dispatch_gradient_shapes, _dispatch_gradient, _save_choices),
        ("moe_combine", _combine_shapes, _combine_gradient_shapes, _combine_gradient, _save_rows),
        ("grouped_linear", _linear_shapes, _linear_gradient_shapes, _linear_gradient, _save_factors),
    ]:
        torch.library.register_fake(f"dovetail::{name}_forward", shapes)
        torch.library.register_fake(f"dovetail::{name}_backward", gradient_shapes)
        torch.library.register_autograd(f"dovetail::{name}_forward", gradient, setup_context=save)
