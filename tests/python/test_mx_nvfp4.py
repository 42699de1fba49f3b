"""NVFP4 against torchao bit for bit, its Hadamard transform, stochastic rounding, and the Linear's products."""

import dovetail
import pytest
import torch
from dovetail.mx import nvfp4_dequantize, nvfp4_hadamard, nvfp4_quantize

torchao = pytest.importorskip("torchao.prototype.mx_formats.nvfp4_tensor")
kernels = pytest.importorskip("torchao.prototype.mx_formats.kernels")
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def random(*sizes, seed=3, dtype=torch.float32):
    """Rows and columns of many magnitudes."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.exp2(3 * torch.randn(sizes[0], 1, generator=generator))
    cols = torch.exp2(3 * torch.randn(1, sizes[1], generator=generator))
    return (torch.randn(*sizes, generator=generator) * rows * cols).to(dtype)


def neighbours(x):
    return torch.cat([x, torch.nextafter(x, torch.tensor(torch.inf)), torch.nextafter(x, -torch.tensor(torch.inf))])


def adversarial():
    """Numbers of the format, ties, one ulp around them, under scales that are ties of E4M3; subnormals and limits."""
    points = neighbours(torch.cat([E2M1, (E2M1[1:] + E2M1[:-1]) / 2]))
    rows = []
    generator = torch.Generator().manual_seed(1)
    for exponent in (-149, -130, -60, -20, -9, -6, 0, 4, 8, 9, 20, 60):
        for amax in neighbours(torch.tensor([6.0, 6.375, 6.75, 7.125, 9, 11.9])):
            row = points[torch.randint(len(points), (16,), generator=generator)]
            row[3] = amax
            rows.append(
                torch.ldexp(row * (1 - 2 * torch.randint(2, (16,), generator=generator)), torch.tensor(exponent))
            )
    rows += [torch.zeros(16), torch.full((16,), -0.0), torch.full((16,), 1e-45), torch.linspace(-6, 6, 16)]
    return torch.stack(rows)


def same(ours, reference):
    scales, codes = reference
    assert torch.equal(ours[1].view(torch.uint8), scales.view(torch.uint8).view(ours[1].shape))
    assert torch.equal(ours[0], codes)


INPUTS = [adversarial(), adversarial() * 2.0**-40, random(37, 2096), random(5, 48, dtype=torch.bfloat16)]


@pytest.mark.parametrize("x", INPUTS)
def test_codes_and_scales_are_torchaos(x):
    amax = x.float().abs().max()
    scale = torchao.per_tensor_amax_to_scale(amax)
    ours = nvfp4_quantize(x)
    assert ours[2] == scale
    same(ours, torchao.nvfp4_quantize(x, 16, scale))
    for given in (scale, scale * 0.25, scale * 3):
        same(nvfp4_quantize(x, given), torchao.nvfp4_quantize(x, 16, given))
    alone = nvfp4_quantize(x, False)
    assert alone[2] is None
    same(alone, torchao.nvfp4_quantize(x, 16))


@pytest.mark.parametrize("x", INPUTS)
@pytest.mark.parametrize("scaled", [False, True])
def test_numbers_are_torchaos(x, scaled):
    codes, scales, scale = nvfp4_quantize(x, scaled)
    reference = torchao.NVFP4Tensor.to_nvfp4(x, 16, scale)
    for dtype in (torch.float32, torch.bfloat16):
        assert torch.equal(nvfp4_dequantize(codes, scales, scale, dtype=dtype), reference.dequantize(dtype))
    pairs = codes.view(torch.float4_e2m1fn_x2)
    assert torch.equal(nvfp4_dequantize(pairs, scales, scale), reference.dequantize(torch.float32))


def test_short_blocks_strides_and_empty_tensors():
    x = random(20, 38)
    padded = torch.nn.functional.pad(x, (0, 10))
    codes, scales, scale = nvfp4_quantize(x)
    whole = nvfp4_quantize(padded)
    assert torch.equal(codes, whole[0][:, :19])
    assert torch.equal(scales.view(torch.uint8), whole[1].view(torch.uint8))
    turned = nvfp4_quantize(x.T.contiguous().T)
    assert torch.equal(codes, turned[0])
    assert nvfp4_dequantize(*nvfp4_quantize(x[None, :, None]))[0, :, 0].equal(nvfp4_dequantize(codes, scales, scale))
    for sizes in ((0,), (0, 32), (3, 0)):
        made = nvfp4_quantize(torch.zeros(sizes))
        assert nvfp4_dequantize(*made).shape == sizes


def test_square_blocks_share_a_scale_both_ways():
    x = random(48, 40)
    codes, scales, scale = nvfp4_quantize(x, blocks="16x16")
    turned = nvfp4_quantize(x.T.contiguous(), blocks="16x16")
    assert scales.shape == (3, 3)
    numbers = nvfp4_dequantize(codes, scales, scale, "16x16")
    assert torch.equal(numbers.T, nvfp4_dequantize(*turned, "16x16"))
    for row in range(3):
        for col in range(3):
            block = x[16 * row : 16 * row + 16, 16 * col : 16 * col + 16]
            expected = (block.abs().max() / 6 / scale).clamp(2**-6, 448).to(torch.float8_e4m3fn)
            assert scales[row, col].float() == expected.float()
            scaled = (block * ((1 / scale) / expected.float())).clamp(-6, 6)
            elements = kernels.f4_unpacked_to_f32(kernels.f32_to_f4_unpacked(scaled.contiguous()))
            found = numbers[16 * row : 16 * row + 16, 16 * col : 16 * col + 16]
            assert torch.equal(found, elements * (scale * expected.float()))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_block_with_a_nan_or_an_infinity(bad):
    x = random(3, 48)
    clean = nvfp4_quantize(torch.where(torch.arange(48) == 20, 0.0, x))
    x[:, 20] = bad
    poisoned = nvfp4_dequantize(*nvfp4_quantize(x))
    assert poisoned[:, 16:32].isnan().all()
    assert torch.equal(poisoned[:, :16], nvfp4_dequantize(*clean)[:, :16])
    codes, scales, scale = nvfp4_quantize(x, non_finite="saturate")
    assert torch.equal(scales.float(), clean[1].float())
    numbers = nvfp4_dequantize(codes, scales, scale)
    sign = -1 if bad == -torch.inf else 1
    assert torch.equal(numbers[:, 20], sign * 6 * (scale * scales.float()[:, 1]))


def test_stochastic_rounding_is_unbiased_and_repeats_by_seed():
    x = torch.linspace(-5.9, 5.9, 64).repeat(1, 1)
    x[:, ::16] = 6  # scale 1 with a given tensor scale of 1
    one = torch.tensor(1.0)

    def numbers(seed):
        return nvfp4_dequantize(*nvfp4_quantize(x, one, rounding="stochastic", seed=seed))

    assert torch.equal(numbers(7), numbers(7))
    calls = torch.stack([numbers(seed) for seed in range(1000)]).double()
    deviation = calls.std(0)
    moves = ~torch.isin(x.abs(), E2M1)
    assert (deviation[moves] > 0).all()
    assert (calls.std(0)[~moves] == 0).all()
    assert ((calls.mean(0) - x).abs() <= 5 * deviation / 1000**0.5 + 1e-6).all()
    nearest = nvfp4_dequantize(*nvfp4_quantize(x, one))
    assert ((nearest - x).abs()[moves] > 0).all()


def dense_hadamard(seed=0):
    """H D from transforms of the unit vectors."""
    return nvfp4_hadamard(torch.eye(16), seed).double()


def test_the_hadamard_transform_is_orthogonal_and_has_random_signs():
    matrix = dense_hadamard()
    assert torch.equal(matrix @ matrix.T, torch.eye(16, dtype=torch.float64))
    i = torch.arange(16)
    sylvester = torch.tensor([[(-1.0) ** bin(int(a & b)).count("1") for a in i] for b in i]).double() / 4
    signs = matrix[0] * 4
    assert torch.equal(matrix, sylvester * signs)
    assert (signs == 1).any() and (signs == -1).any()
    assert any(not torch.equal(matrix, dense_hadamard(seed)) for seed in range(1, 5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sizes", [(16, 5), (37, 33), (48, 2061), (1, 1), (0, 4)])
def test_the_hadamard_transform_is_the_dense_product(sizes, dtype):
    x = random(*sizes, dtype=dtype)
    padded = torch.nn.functional.pad(x.double(), (0, 0, 0, -len(x) % 16))
    expected = (dense_hadamard() @ padded.view(-1, 16, sizes[1])).view(padded.shape)
    torch.testing.assert_close(nvfp4_hadamard(x).double(), expected, rtol=1e-6, atol=1e-6 * float(padded.abs().sum()))


def rows(x, **options):
    """x quantized with blocks along its last dimension, and back."""
    x = torch.nn.functional.pad(x.contiguous(), (0, x.shape[-1] % 2))
    return nvfp4_dequantize(*nvfp4_quantize(x, **options), options.get("blocks", "1x16")).double()


def products(recipe, x, weight, dy, bias=None, seed=5):
    x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    y = dovetail.mx.linear(x, weight, bias, recipe, seed)
    y.backward(dy)
    return y.detach().double(), x.grad.double(), weight.grad.double()


def assert_near(results, expected, tolerance):
    for result, product in zip(results, expected, strict=True):
        assert (result - product).norm() <= tolerance * product.norm()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 4e-3)])
@pytest.mark.parametrize("tokens", [64, 50])
def test_plain_products_are_of_dequantized_operands(dtype, tolerance, tokens):
    x, w, dy = (random(*s, dtype=dtype) for s in ((tokens, 96), (80, 96), (tokens, 80)))
    expected = rows(x) @ rows(w).T, rows(dy) @ rows(w.T).T, (rows(dy.T) @ rows(x.T).T)
    assert_near(products("nvfp4_plain", x, w, dy), expected, tolerance)


@pytest.mark.parametrize("tokens", [64, 50])
def test_the_full_recipe_has_square_weights_and_transformed_operands_of_the_weight_gradient(tokens):
    x, w, dy = (random(*s) for s in ((tokens, 96), (80, 96), (tokens, 80)))
    exact = dy.double()
    w_q = rows(w, blocks="16x16")
    x_h = rows(nvfp4_hadamard(x).T)
    y, _, _ = products("nvfp4", x, w, dy)
    assert_near([y], [rows(x) @ w_q.T], 1e-6)
    # Gradients are random: their mean is the product of the exact gradient, save for saturated elements.
    dy = torch.sign(dy) * (0.5 + torch.rand(dy.shape, generator=torch.Generator().manual_seed(1)))
    exact = dy.double()
    calls = [products("nvfp4", x, w, dy, seed=seed)[1:] for seed in range(200)]
    assert not torch.equal(calls[0][0], calls[1][0]) and not torch.equal(calls[0][1], calls[1][1])
    again = products("nvfp4", x, w, dy, seed=0)[1:]
    assert torch.equal(again[0], calls[0][0]) and torch.equal(again[1], calls[0][1])
    means = [torch.stack(of).mean(0) for of in zip(*calls, strict=True)]
    expected = exact @ w_q, nvfp4_hadamard(dy).double().T @ x_h.T
    assert_near(means, expected, 0.03)
    plain = rows(dy.T) @ rows(x.T).T
    assert (means[1] - plain).norm() > (means[1] - expected[1]).norm()


def test_tiny_and_large_operands_keep_their_products():
    x, w, dy = (random(*s) for s in ((32, 64), (48, 64), (32, 48)))
    expected = products("nvfp4_plain", x, w, dy)[0]
    small = products("nvfp4_plain", x * 2.0**-60, w * 2.0**-60, dy)[0] * 2.0**120
    assert_near([small], [expected], 1e-6)


def test_the_bias_is_added_after_the_scales():
    x, w, dy = (random(*s) for s in ((32, 64), (48, 64), (32, 48)))
    bias = torch.randn(48)
    y = products("nvfp4_plain", x, w, dy)[0]
    torch.testing.assert_close(products("nvfp4_plain", x, w, dy, bias)[0], y + bias.double(), rtol=1e-6, atol=1e-4)


def test_errors_name_what_is_wrong():
    for call, text in (
        (lambda: nvfp4_quantize(torch.zeros(3)), "even"),
        (lambda: nvfp4_quantize(torch.zeros(4, dtype=torch.float64)), "float32 or bfloat16"),
        (lambda: nvfp4_quantize(torch.zeros(4), blocks="2x2"), "2x2"),
        (lambda: nvfp4_quantize(torch.zeros(2, 2, 4), blocks="16x16"), "two dimensions"),
        (lambda: nvfp4_quantize(torch.zeros(4), torch.tensor(0.0)), "tensor scale"),
        (lambda: nvfp4_quantize(torch.zeros(4), torch.zeros(2)), "tensor scale"),
        (lambda: nvfp4_quantize(torch.zeros(4), rounding="up"), "up"),
        (lambda: nvfp4_dequantize(torch.zeros(4, dtype=torch.uint8), torch.zeros(3, dtype=torch.uint8)), "scales"),
    ):
        with pytest.raises(RuntimeError, match=text):
            call()
