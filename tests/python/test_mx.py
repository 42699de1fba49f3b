"""torch.ops.dovetail.mx_quantize and mx_dequantize, with ml_dtypes and torchao as oracles where these are installed."""

import dovetail  # noqa: F401
import pytest
import torch

FLOAT_FORMATS = ["e4m3", "e5m2", "e3m2", "e2m3", "e2m1"]
FORMATS = [*FLOAT_FORMATS, "mxint8"]
MODES = ["round_up", "floor", "ceil", "even"]

ops = torch.ops.dovetail


def blocks(rows=64, cols=96, seed=0, dtype=torch.float32):
    """Values of all sizes; every row of another magnitude, none of them subnormal."""
    generator = torch.Generator().manual_seed(seed)
    spread = torch.exp2(torch.randint(-60, 60, (rows, 1), generator=generator).float())
    x = torch.randn(rows, cols, generator=generator) * torch.exp2(2 * torch.randn(rows, cols, generator=generator))
    return (x * spread).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("format", FORMATS)
def test_shapes_and_dtypes(format, dtype):
    x = torch.randn(33, 65).to(dtype)
    codes, scales = ops.mx_quantize(x, format, "round_up", -1, "poison")
    assert codes.dtype == scales.dtype == torch.uint8
    assert codes.shape == x.shape and scales.shape == (33, 3)
    codes, scales = ops.mx_quantize(x, format, "round_up", 0, "poison")
    assert codes.shape == x.shape and scales.shape == (2, 65)
    assert ops.mx_dequantize(codes, scales, format, 0).dtype == torch.float32
    assert ops.mx_dequantize(codes, scales, format, 0, torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
def test_any_axis_is_the_last_axis_moved(axis):
    x = torch.randn(34, 35, 36)
    codes, scales = ops.mx_quantize(x, "e4m3", "round_up", axis, "poison")
    moved_codes, moved_scales = ops.mx_quantize(x.movedim(axis, -1), "e4m3", "round_up", -1, "poison")
    assert torch.equal(codes.movedim(axis, -1), moved_codes)
    assert torch.equal(scales.movedim(axis, -1), moved_scales)
    y = ops.mx_dequantize(codes, scales, "e4m3", axis)
    assert y.shape == x.shape
    torch.testing.assert_close(y, x, rtol=1 / 16, atol=2e-2)


def test_meta_and_fake_tensors_have_shapes():
    codes, scales = ops.mx_quantize(torch.empty(5, 70, device="meta"), "e2m1", "even", -1, "saturate")
    assert codes.is_meta and codes.shape == (5, 70) and scales.shape == (5, 3)
    y = ops.mx_dequantize(codes, scales, "e2m1", -1, torch.bfloat16)
    assert y.is_meta and y.shape == (5, 70) and y.dtype == torch.bfloat16
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        codes, scales = ops.mx_quantize(torch.empty(5, 2, 70), "e4m3", "round_up", 1, "poison")
        assert codes.shape == (5, 2, 70) and scales.shape == (5, 1, 70)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("e4m4", "round_up", -1, "poison"), "e4m3, e5m2"),
        (("e4m3", "up", -1, "poison"), "round_up, floor"),
        (("e4m3", "floor", 2, "poison"), "axis 2"),
        (("e4m3", "floor", 0, "ignore"), "poison, saturate"),
    ],
)
def test_a_wrong_option_is_named(arguments, message):
    with pytest.raises(RuntimeError, match=message):
        ops.mx_quantize(torch.zeros(3, 4), *arguments)


def test_a_wrong_dtype_is_named():
    with pytest.raises(RuntimeError, match="Long"):
        ops.mx_quantize(torch.zeros(3, 4, dtype=torch.long), "e4m3", "round_up", -1, "poison")


@pytest.mark.parametrize("format", FLOAT_FORMATS)
def test_elements_are_those_of_ml_dtypes(format):
    """With the largest number in every block its scale is one, and an element is a cast."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    import numpy

    names = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}
    oracle = getattr(ml_dtypes, names.get(format, f"float{6 if format != 'e2m1' else 4}_{format}fn"))
    largest = float(ml_dtypes.finfo(oracle).max)
    steps = torch.arange(0, 1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    x = steps[steps.abs() <= largest]
    ulps = torch.cat([x, (x.view(torch.int32) + 1).view(torch.float32), (x.view(torch.int32) - 1).view(torch.float32)])
    x = ulps[ulps.abs() <= largest]
    x = x[: x.numel() // 31 * 31].view(-1, 31)
    x = torch.cat([torch.full((x.shape[0], 1), largest), x], 1)
    codes, scales = ops.mx_quantize(x, format, "round_up", -1, "poison")
    assert (scales == 127).all()
    expected = torch.from_numpy(x.numpy().astype(oracle).view(numpy.uint8).copy())
    assert torch.equal(codes, expected)
    back = torch.from_numpy(x.numpy().astype(oracle).astype(numpy.float32))
    assert torch.equal(ops.mx_dequantize(codes, scales, format, -1), back)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("format", FLOAT_FORMATS)
def test_scales_and_codes_are_those_of_torchao(format, mode, dtype):
    """Compares blocks whose scales are normal numbers. For other scales torchao divides by 2^-126 or takes a logarithm
    of a rounded quotient. The tests in C++ have the exact results for these."""
    pytest.importorskip("torchao")
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.prototype.mx_formats.mx_tensor import to_mx

    theirs = {
        "e4m3": torch.float8_e4m3fn,
        "e5m2": torch.float8_e5m2,
        "e3m2": "fp6_e3m2",
        "e2m3": "fp6_e2m3",
        "e2m1": torch.float4_e2m1fn_x2,
    }[format]
    name = "RCEIL" if mode == "round_up" else mode.upper()
    for seed in range(4):
        x = blocks(seed=seed, dtype=dtype)
        scales, codes = to_mx(x, theirs, 32, ScaleCalculationMode[name])
        ours, our_scales = ops.mx_quantize(x, format, mode, -1, "poison")
        assert torch.equal(our_scales, scales.view(torch.uint8))
        if format == "e2m1":
            ours = ours[:, ::2] | ours[:, 1::2] << 4
        assert torch.equal(ours, codes.view(torch.uint8))


@pytest.mark.parametrize("shape", [(128, 4), (1, 1), (130, 5), (300, 9)])
def test_swizzled_scales_are_torchaos_blocked_ones(shape):
    utils = pytest.importorskip("torchao.prototype.mx_formats.utils")
    scales = torch.randint(0, 255, shape, dtype=torch.uint8)
    expected = utils.to_blocked(scales, use_triton_kernel=False).flatten()
    assert torch.equal(torch.ops.dovetail.mx_swizzle_scales(scales), expected)
