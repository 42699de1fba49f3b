"""The operations of a transformer as functions of tensors.

Each function is also ``torch.ops.dovetail.<name>``. In float32 and bfloat16 on the CPU it runs a fused kernel, which
accumulates in float32. Other dtypes and devices go to ATen's operators. Tensors on the meta device give shapes.
Every function raises ``RuntimeError`` for a wrong shape, dtype or device; the message names both tensors. The C++
contracts are in ``dovetail/ops/functions.h`` and ``dovetail/ops/gemm.h``.
"""

import torch
from torch import Tensor

__all__ = [
    "attention",
    "embedding",
    "gelu",
    "gemm",
    "layer_norm",
    "linear",
    "linear_cross_entropy",
    "rms_norm",
    "squared_relu",
    "swiglu",
]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Affine map ``x @ weight.T + bias``.

    Args:
        x: (..., in), any floating dtype.
        weight: (out, in), dtype and device of `x`.
        bias: (out), dtype and device of `x`; None adds nothing.

    Returns:
        (..., out), dtype of `x`. Differentiable in all three.
    """
    return torch.ops.dovetail.linear(x, weight, bias)


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    """Root-mean-square normalisation over the last dimension: ``x / sqrt(mean(x**2) + eps) * weight``.

    Args:
        x: (..., width), any floating dtype.
        weight: (width), any floating dtype.
        eps: constant added to the mean of the squares.

    Returns:
        Shape and dtype of `x`. Differentiable in `x` and `weight`.

    Source: Zhang and Sennrich 2019.
    """
    return torch.ops.dovetail.rms_norm(x, weight, eps)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """Layer normalisation over the last dimension: ``(x - mean) / sqrt(variance + eps) * weight + bias``.

    Args:
        x: (..., width), any floating dtype.
        weight: (width), any floating dtype.
        bias: (width), any floating dtype; None adds nothing.
        eps: constant added to the variance.

    Returns:
        Shape and dtype of `x`. Differentiable in `x`, `weight` and `bias`.

    Source: Ba et al. 2016.
    """
    return torch.ops.dovetail.layer_norm(x, weight, bias, eps)


def attention(q: Tensor, k: Tensor, v: Tensor, rotary_dim: int = 0, theta: float = 10000.0) -> Tensor:
    """Causal scaled-dot-product attention with rotary positions on `q` and `k`, in one operation.

    Args:
        q: (B, T, H, D): batch, positions, heads, width of a head.
        k: (B, S, Hkv, D); H is a multiple of Hkv. With S > T the queries are the last T positions. `k` is then
            expected already rotated up to S - T, as a cache holds it.
        v: (B, S, Hkv, D).
        rotary_dim: leading elements of each head that are rotated, even and at most D; 0 rotates none. Element i
            turns with element i + rotary_dim / 2, as in Llama and GPT-NeoX.
        theta: base of the rotary frequencies.

    Returns:
        (B, T, H, D), dtype of `q`. Differentiable in `q`, `k` and `v`.

    Source: rotary positions of Su et al. 2021.
    """
    return torch.ops.dovetail.attention(q, k, v, rotary_dim, theta)


def swiglu(x: Tensor) -> Tensor:
    """SwiGLU activation ``silu(gate) * up``.

    Args:
        x: (..., 2 * width), any floating dtype: gate, then up.

    Returns:
        (..., width), dtype of `x`. Differentiable.

    Source: Shazeer 2020.
    """
    return torch.ops.dovetail.swiglu(x)


def gelu(x: Tensor) -> Tensor:
    """GELU activation in its tanh form, as in GPT-2.

    Args:
        x: any shape, any floating dtype.

    Returns:
        Shape and dtype of `x`. Differentiable.

    Source: Hendrycks and Gimpel 2016.
    """
    return torch.ops.dovetail.gelu(x)


def squared_relu(x: Tensor) -> Tensor:
    """Squared ReLU activation ``max(x, 0) ** 2``, as in Nemotron.

    Args:
        x: any shape, any floating dtype.

    Returns:
        Shape and dtype of `x`. Differentiable.

    Source: So et al. 2021.
    """
    return torch.ops.dovetail.squared_relu(x)


def linear_cross_entropy(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Sum of ``-log_softmax(x @ weight.T)[target]`` over tokens, in nats.

    Rows go through in chunks, forward and gradient in one pass, so the (N, vocab) logits never exist as a whole.

    Args:
        x: (N, width), any floating dtype.
        weight: (vocab, width), dtype and device of `x`.
        targets: (N), int64; the value -100 leaves a row out.

    Returns:
        Scalar, float32; float64 for float64 input. Differentiable in `x` and `weight`.
    """
    return torch.ops.dovetail.linear_cross_entropy(x, weight, targets)


def embedding(weight: Tensor, ids: Tensor) -> Tensor:
    """Rows of `weight` for `ids`.

    The gradient adds in the order of the ids, so its bits do not depend on the number of threads.

    Args:
        weight: (vocab, width), any floating dtype.
        ids: (...), int64, each from 0 to vocab - 1.

    Returns:
        (..., width), dtype of `weight`. Differentiable in `weight`.
    """
    return torch.ops.dovetail.embedding(weight, ids)


def gemm(a: Tensor, b: Tensor, transpose_a: bool = False, transpose_b: bool = False) -> Tensor:
    """Matrix product ``op(a) @ op(b)``, not differentiable; ``op`` transposes where asked.

    Args:
        a: (m, k), or (k, m) with `transpose_a`; any strides.
        b: (k, n), or (n, k) with `transpose_b`; any strides, dtype and device of `a`.
        transpose_a: read `a` transposed.
        transpose_b: read `b` transposed.

    Returns:
        (m, n), row-major, dtype of `a`. Sums of float32 and bfloat16 accumulate in float32. Their order depends on
        the shape alone, not on the number of threads.

    Source: blocking of Goto and van de Geijn 2008.
    """
    return torch.ops.dovetail.gemm(a, b, transpose_a, transpose_b)
