"""Mixtures of experts in plain PyTorch.

>>> layer = dovetail.moe.MoELayer(512, 1024, experts=16, k=2)
>>> y, loss = layer(x)  # loss is the router's, to be added to the model's

What routers do: ``dovetail/moe/routing.h``; the products: ``dovetail/moe/experts.h``.
"""

import math
from typing import NamedTuple

import torch
from dovetail import functional
from torch import Tensor, nn


class Routing(NamedTuple):
    """Of T tokens with k choices each among E experts."""

    expert: Tensor  # (T, k) int32
    slot: Tensor  # (T, k) int32; -1: dropped
    weight: Tensor  # (T, k), differentiable
    count: Tensor  # (E) int64, before dropping
    load_loss: Tensor
    z_loss: Tensor


def route(logits: Tensor, k: int, **options) -> Routing:
    """``torch.ops.dovetail.moe_route``: logits (T, E); its options by name."""
    return Routing(*torch.ops.dovetail.moe_route(logits, k, **options))


def dispatch(x: Tensor, routing: Routing) -> tuple[Tensor, Tensor]:
    """The rows of x (T, C) that were not dropped, expert by expert, and how many each expert has (E)."""
    return torch.ops.dovetail.moe_dispatch(x, routing.expert, routing.slot, len(routing.count))


def combine(rows: Tensor, routing: Routing) -> Tensor:
    """What `dispatch` distributed, back in place: (T, C), the sum of each token's rows times their weights."""
    return torch.ops.dovetail.moe_combine(rows, routing.weight, routing.expert, routing.slot, len(routing.count))


def grouped_linear(x: Tensor, weight: Tensor, count: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ weight[e].T + bias[e]`` for the count[e] rows of each group e, which follow one another in x (rows, in).

    weight (E, out, in), bias (E, out), count (E) int64.
    """
    return torch.ops.dovetail.grouped_linear(x, weight, count, bias)


class MoELayer(nn.Module):
    """A feed-forward of which each token takes k of `experts`, weighed by a router.

    x (..., width) -> (y as x, loss): loss is the router's, load balance and z-loss with their coefficients. An expert
    is ``down(activation(up(x)))``; `activation` is "swiglu" (up holds gate, then up), "gelu" or "relu2". Further
    options are those of ``moe_route``, by name: score, normalize, drop, capacity_factor, ... Router and weights are
    float32 whatever `dtype`, that of the experts. Each expert's matrices are parameters of their own, so the layer
    stands beside DistributedDataParallel as any other.

    A `gate` of your own stands in for the router: a module that makes a Routing of rows (T, width) float32, with as
    many choices a token as it likes; choices of one expert have slots from 0 on, each its own.
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
            route(
                torch.zeros(1, experts), k, **self.routing
            )  # what cannot be is an error here and not in the first step
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
        """Uniform within 1 / sqrt(fan-in), as ``torch.nn.Linear``."""
        own_router = [] if self.router is None else [self.router]
        for weight in [*own_router, *self.up, *self.down]:
            nn.init.uniform_(weight, -1 / math.sqrt(weight.shape[1]), 1 / math.sqrt(weight.shape[1]))
        for weights, biases in [(self.up, self.up_bias), (self.down, self.down_bias)]:
            for weight, bias in zip(weights, biases, strict=False):
                nn.init.uniform_(bias, -1 / math.sqrt(weight.shape[1]), 1 / math.sqrt(weight.shape[1]))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
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
