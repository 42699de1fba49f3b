"""The recipes fp8_tensor and fp8_block against products of operands that torchao scaled and cast."""

import dovetail  # noqa: F401  (registers torch.ops.dovetail)
import pytest
import torch

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
kernels = pytest.importorskip("torchao.prototype.blockwise_fp8_training.kernels")
utils = pytest.importorskip("torchao.float8.float8_utils")


def by_tensor(x, dtype, power_of_two=False):
    scale = utils.tensor_to_scale(x, dtype, round_scales_to_power_of_2=power_of_two)
    return utils.to_fp8_saturated(x * scale, dtype).double() / scale.double()


def values(codes, scales):
    return codes.double() * scales.double()


def by_rows(x):
    codes, scales = kernels.torch_blockwise_scale_act_quant_lhs(x.contiguous())
    return values(codes, scales.repeat_interleave(128, 1))


def by_squares(x):
    codes, scales = kernels.torch_blockwise_scale_weight_quant(x.contiguous())
    return values(codes, scales.repeat_interleave(128, 0).repeat_interleave(128, 1))


def operands(tokens=256, width=384, out=128):
    generator = torch.Generator().manual_seed(3)

    def random(rows, cols):
        sizes = torch.exp2(
            3 * torch.randn(rows, 1, generator=generator) + 3 * torch.randn(1, cols, generator=generator)
        )
        return torch.randn(rows, cols, generator=generator) * sizes

    return random(tokens, width), random(out, width), random(tokens, out)


def assert_products(recipe, row_x, row_w, row_dy, column_w, column_x, column_dy):
    x, weight, dy = operands()
    x.requires_grad_(), weight.requires_grad_()
    y = torch.ops.dovetail.mx_linear(x, weight, None, recipe)
    y.backward(dy)
    expected = row_x @ row_w.T, row_dy @ column_w, column_dy.T @ column_x
    for result, product in zip((y.detach(), x.grad, weight.grad), expected, strict=True):
        assert (result.double() - product).norm() / product.norm() < 1e-6


def test_fp8_tensor_is_e4m3_and_e5m2_under_one_scale():
    x, w, dy = operands()
    x, w, dy = by_tensor(x, E4M3), by_tensor(w, E4M3), by_tensor(dy, E5M2)
    assert_products("fp8_tensor", row_x=x, row_w=w, row_dy=dy, column_w=w, column_x=x, column_dy=dy)


def test_fp8_block_float32_has_blocks_along_each_reduction_and_squares_of_weights():
    x, w, dy = operands()
    assert_products(
        "fp8_block_float32",
        row_x=by_rows(x),
        row_w=by_squares(w),
        row_dy=by_rows(dy),
        column_w=by_squares(w),
        column_x=by_rows(x.T).T,
        column_dy=by_rows(dy.T).T,
    )


def test_fp8_block_rounds_its_scales_to_powers_of_two():
    def blocks(x, rows, cols):
        """Each block as a tensor of its own."""
        y = torch.empty_like(x, dtype=torch.float64)
        for i in range(0, x.shape[0], rows):
            for j in range(0, x.shape[1], cols):
                block = x[i : i + rows, j : j + cols]
                y[i : i + rows, j : j + cols] = by_tensor(block, E4M3, power_of_two=True)
        return y

    x, w, dy = operands()
    assert_products(
        "fp8_block",
        row_x=blocks(x, 1, 128),
        row_w=blocks(w, 128, 128),
        row_dy=blocks(dy, 1, 128),
        column_w=blocks(w, 128, 128),
        column_x=blocks(x, 128, 1),
        column_dy=blocks(dy, 128, 1),
    )


@pytest.mark.parametrize("recipe", ["fp8_tensor", "fp8_block", "fp8_block_float32"])
def test_backward_keeps_one_byte_an_element_and_the_scales(recipe):
    x = torch.randn(256, 128, dtype=torch.bfloat16)
    weight = torch.randn(64, 128, dtype=torch.bfloat16, requires_grad=True)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        torch.ops.dovetail.mx_linear(x, weight, None, recipe)
    scales = 1 if recipe == "fp8_tensor" else 2 * 128
    assert sum(t.nbytes for t in saved if t is not weight) == 256 * 128 + 4 * scales


def test_delayed_scaling_needs_a_run():
    x, weight, _ = operands()
    with pytest.raises(RuntimeError, match=r"fp8_tensor_delayed.*earlier steps"):
        torch.ops.dovetail.mx_linear(x, weight, None, "fp8_tensor_delayed")


@pytest.mark.parametrize("recipe", ["fp8_tensor", "fp8_block_float32"])
def test_float32_scales_are_not_rounded_to_bfloat16(recipe):
    x, weight, dy = (t.bfloat16() for t in operands())

    def products(dtype):
        a, b = (t.to(dtype, copy=True).requires_grad_() for t in (x, weight))
        y = torch.ops.dovetail.mx_linear(a, b, None, recipe)
        y.backward(dy.to(dtype))
        return y.detach(), a.grad, b.grad

    for ours, wide in zip(products(torch.bfloat16), products(torch.float32), strict=True):
        assert (ours == wide.bfloat16()).float().mean() > 0.999
