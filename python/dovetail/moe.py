"""Mixtures of experts in plain PyTorch.

>>> layer = dovetail.moe.MoELayer(512, 1024, experts=16, k=2)
>>> y, loss = layer(x)  # add the router's loss to the model's

Sizes in shapes: T tokens, C elements a token (the width), E experts, k choices per token. Wrong shapes, dtypes and
option names raise RuntimeError. The C++ contracts are in ``dovetail/moe/routing.h`` (routers) and
``dovetail/moe/experts.h`` (products).
"""

import math
from typing import NamedTuple

import torch
from dovetail import functional
from torch import Tensor, nn

__all__ = ["MoELayer", "Routing", "combine", "dispatch", "grouped_linear", "route"]


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
    depends on neither threads nor repetition.

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


class MoELayer(nn.Module):
    """Feed-forward layer with ``experts`` experts; a router sends each token to k of them.

    An expert is ``down(activation(up(x)))``. The router and its weights are float32 whatever the experts' ``dtype``.
    Each expert's matrices are separate parameters, so DistributedDataParallel works as with any other layer.

    Args:
        width: elements per token.
        ffn_width: inner width of an expert.
        experts: number of experts.
        k: choices per token.
        activation: ``"swiglu"`` (``up`` holds gate, then up), ``"gelu"`` or ``"relu2"``.
        bias: whether ``up`` and ``down`` have biases.
        load_loss: coefficient of the load-balancing loss.
        z_loss: coefficient of the router's z-loss.
        device: device of the parameters.
        dtype: dtype of the experts' parameters.
        gate: module in place of the router. It maps rows (T, width) float32 to a :class:`Routing` with any number of
            choices per token. Slots of an expert are distinct and start at 0.
        routing: options of :func:`route`; ``drop`` is ``"none"`` (dropless) by default.

    Raises:
        ValueError: unknown activation, or options of the router together with ``gate``.
        RuntimeError: an option of the router does not fit, by name.
    """

    def __init__(
        self,
        width: int,
        ffn_width: int,
        experts: int,
        k: int = 2,
        activation: str = "swiglu",
        bias: bool = False,
        load_loss: float = 0.01,
        z_loss: float = 0.0,
        device=None,
        dtype: torch.dtype | None = None,
        gate: nn.Module | None = None,
        **routing,
    ):
        super().__init__()
        if gate is not None and routing:
            raise ValueError(f"{', '.join(routing)}: options of the router, which `gate` stands in for")
        if activation not in ("swiglu", "gelu", "relu2"):
            raise ValueError(f'activation "{activation}" is none of "swiglu", "gelu", "relu2"')
        self.k, self.activation = k, activation
        self.load_loss, self.z_loss = load_loss, z_loss
        self.routing = {"drop": "none", **routing}
        if gate is None:
            route(torch.zeros(1, experts), k, **self.routing)  # reports bad options here, before the first step
        rows = 2 * ffn_width if activation == "swiglu" else ffn_width

        def matrices(*sizes: int) -> nn.ParameterList:
            return nn.ParameterList(torch.empty(*sizes, device=device, dtype=dtype) for _ in range(experts))

        self.gate = gate
        router = None if gate is not None else torch.empty(experts, width, device=device, dtype=torch.float32)
        self.router = None if router is None else nn.Parameter(router)
        self.up, self.down = matrices(rows, width), matrices(width, ffn_width)
        self.up_bias = matrices(rows) if bias else nn.ParameterList()
        self.down_bias = matrices(width) if bias else nn.ParameterList()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters uniformly from ±1 / sqrt(fan-in), as ``torch.nn.Linear`` does."""
        own_router = [] if self.router is None else [self.router]
        for weight in [*own_router, *self.up, *self.down]:
            nn.init.uniform_(weight, -1 / math.sqrt(weight.shape[1]), 1 / math.sqrt(weight.shape[1]))
        for weights, biases in [(self.up, self.up_bias), (self.down, self.down_bias)]:
            for weight, bias in zip(weights, biases, strict=False):
                nn.init.uniform_(bias, -1 / math.sqrt(weight.shape[1]), 1 / math.sqrt(weight.shape[1]))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map x (..., width) to y of the same shape and dtype, and the router's loss.

        The loss is ``load_loss`` and ``z_loss`` of the :class:`Routing`, times their coefficients. It is a scalar.
        """
        rows = x.reshape(-1, x.shape[-1])
        if self.gate is None:
            routing = route(functional.linear(rows.float(), self.router), self.k, **self.routing)
        else:
            routing = self.gate(rows.float())
        y = torch.ops.dovetail.moe_experts(
            rows,
            routing.weight,
            routing.expert,
            routing.slot,
            list(self.up),
            list(self.down),
            list(self.up_bias),
            list(self.down_bias),
            self.activation,
        )
        loss = self.load_loss * routing.load_loss + self.z_loss * routing.z_loss
        return y.to(x.dtype).reshape(x.shape), loss

    def extra_repr(self) -> str:
        width, choices = self.down[0].shape[0], "" if self.gate else f"k={self.k}, "
        return f"width={width}, experts={len(self.up)}, {choices}activation={self.activation}"
