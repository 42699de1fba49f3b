"""Operators of a mixture of experts, as functions."""

from typing import NamedTuple

import torch
from torch import Tensor


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

    Returns:
        The routing of the T tokens.

    Raises:
        RuntimeError: an option is unknown or does not fit, by name.
    """
    return Routing(*torch.ops.dovetail.moe_route(logits, k, **options))


def dispatch(x: Tensor, routing: Routing) -> tuple[Tensor, Tensor]:
    """Gather the rows of ``x`` by expert. Differentiable.

    Args:
        x: (T, C).
        routing: routing of the T tokens.

    Returns:
        Rows (R, C) of the R choices that were not dropped, sorted by expert and slot. Also the number of rows of
        each expert, (E) int64 on the CPU.
    """
    return torch.ops.dovetail.moe_dispatch(x, routing.expert, routing.slot, len(routing.count))


def combine(rows: Tensor, routing: Routing) -> Tensor:
    """Add the experts' rows back to their tokens, times their weights; the inverse of :func:`dispatch`. Differentiable.

    Args:
        rows: (R, C), in the order of :func:`dispatch`.
        routing: the same routing.

    Returns:
        (T, C), dtype of the routing's weights; zeros for a token whose choices were all dropped.
    """
    return torch.ops.dovetail.moe_combine(rows, routing.weight, routing.expert, routing.slot, len(routing.count))


def grouped_linear(x: Tensor, weight: Tensor, count: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``x @ weight[e].T + bias[e]`` for the rows of each group e. Differentiable in x, weight and bias.

    Args:
        x: (rows, in), sorted by group.
        weight: (E, out, in).
        count: (E) int64 on the CPU: rows of each group; sums to ``rows``.
        bias: (E, out).

    Returns:
        (rows, out).
    """
    return torch.ops.dovetail.grouped_linear(x, weight, count, bias)
