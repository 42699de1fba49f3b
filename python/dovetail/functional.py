"""The operations as Python functions. Shapes, dtypes and sources: ``dovetail/ops/functions.h``."""

import torch
from torch import Tensor


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ weight.T + bias``: x (..., in), weight (out, in), bias (out)."""
    return torch.ops.dovetail.linear(x, weight, bias)


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    """Root-mean-square normalisation over the last dimension."""
    return torch.ops.dovetail.rms_norm(x, weight, eps)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """Layer normalisation over the last dimension."""
    return torch.ops.dovetail.layer_norm(x, weight, bias, eps)


def attention(q: Tensor, k: Tensor, v: Tensor, rotary_dim: int = 0, theta: float = 10000.0) -> Tensor:
    """Causal attention with rotary positions: q (B, T, H, D), k and v (B, S, Hkv, D)."""
    return torch.ops.dovetail.attention(q, k, v, rotary_dim, theta)


def swiglu(x: Tensor) -> Tensor:
    """``silu(gate) * up`` where x (..., 2 width) holds gate, then up."""
    return torch.ops.dovetail.swiglu(x)


def gelu(x: Tensor) -> Tensor:
    """GELU in its tanh form."""
    return torch.ops.dovetail.gelu(x)


def squared_relu(x: Tensor) -> Tensor:
    """``max(x, 0) ** 2``."""
    return torch.ops.dovetail.squared_relu(x)


def linear_cross_entropy(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Sum of ``-log_softmax(x @ weight.T)[target]`` without materialising the logits; targets of -100 are left out."""
    return torch.ops.dovetail.linear_cross_entropy(x, weight, targets)


def embedding(weight: Tensor, ids: Tensor) -> Tensor:
    """Rows of ``weight`` for ``ids``; its gradient is the same bits for any number of threads."""
    return torch.ops.dovetail.embedding(weight, ids)


def gemm(a: Tensor, b: Tensor, transpose_a: bool = False, transpose_b: bool = False) -> Tensor:
    """The matrix product, not differentiable."""
    return torch.ops.dovetail.gemm(a, b, transpose_a, transpose_b)
