"""The operations from plain PyTorch: values and gradients against torch's own."""

import dovetail
import pytest
import torch
import torch.nn.functional as F

torch.manual_seed(0)


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def check(ours, theirs, *leaves):
    """Same value, and the same gradients for the same upstream gradient."""
    upstream = torch.randn_like(theirs)
    torch.testing.assert_close(ours, theirs, rtol=2e-4, atol=2e-5)
    mine = torch.autograd.grad(ours, leaves, upstream)
    reference = torch.autograd.grad(theirs, leaves, upstream)
    for a, b in zip(mine, reference, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-4)


def test_linear():
    x, weight, bias = leaf(3, 5, 33), leaf(17, 33), leaf(17)
    check(dovetail.linear(x, weight, bias), F.linear(x, weight, bias), x, weight, bias)


def test_norms():
    x, weight, bias = leaf(7, 48), leaf(48), leaf(48)
    check(dovetail.rms_norm(x, weight, 1e-5), F.rms_norm(x, (48,), weight, 1e-5), x, weight)
    check(dovetail.layer_norm(x, weight, bias, 1e-5), F.layer_norm(x, (48,), weight, bias, 1e-5), x, weight, bias)


def test_activations():
    x = leaf(4, 62)
    check(dovetail.swiglu(x), F.silu(x[:, :31]) * x[:, 31:], x)
    check(dovetail.gelu(x), F.gelu(x, approximate="tanh"), x)
    check(dovetail.squared_relu(x), F.relu(x) ** 2, x)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_attention(kv_heads):
    q, k, v = leaf(2, 19, 4, 16), leaf(2, 19, kv_heads, 16), leaf(2, 19, kv_heads, 16)
    heads_first = [t.transpose(1, 2) for t in (q, k, v)]
    reference = F.scaled_dot_product_attention(*heads_first, is_causal=True, enable_gqa=True).transpose(1, 2)
    check(dovetail.attention(q, k, v), reference, q, k, v)


def test_linear_cross_entropy():
    x, weight = leaf(37, 24), leaf(101, 24)
    targets = torch.randint(101, (37,))
    targets[5] = -100
    reference = F.cross_entropy(x @ weight.T, targets, reduction="sum", ignore_index=-100)
    check(dovetail.linear_cross_entropy(x, weight, targets), reference, x, weight)


def test_embedding_accumulates_repeated_rows():
    weight, ids = leaf(11, 8), torch.tensor([[3, 3, 10], [0, 3, 10]])
    check(dovetail.functional.embedding(weight, ids), F.embedding(ids, weight), weight)


def test_a_wrong_shape_is_named():
    with pytest.raises(RuntimeError, match=r"33.*32|32.*33"):
        dovetail.linear(torch.randn(2, 33), torch.randn(4, 32))


def test_trains_in_a_plain_pytorch_loop():
    weight = torch.randn(16, 8, requires_grad=True)
    target = torch.randn(64, 16)
    x = torch.randn(64, 8)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    losses = []
    for _ in range(30):
        loss = F.mse_loss(dovetail.linear(x, weight), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
