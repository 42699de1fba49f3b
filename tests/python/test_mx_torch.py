"""dovetail.mx under torch.compile, torch.export, torch.autocast, torch.func and activation checkpointing."""

import copy

import dovetail
import pytest
import torch
import torch.nn.functional as F
from mx_models import Gpt, assert_near, assert_same, gradients, llama
from torch.utils.checkpoint import checkpoint

RECIPES = ["bf16", "mxfp8", "mxfp8_e5m2_grad", "mxfp4", "fp8_tensor", "fp8_block", "fp8_block_float32"]
MIXED = dovetail.mx.Recipe("mixed", activation=dovetail.mx.Operand("none"))


def ids():
    return torch.randint(0, 96, (2, 32))


def loss_of(model, tokens):
    return F.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())


def compiled(model, backend="aot_eager", **options):
    torch._dynamo.reset()
    return torch.compile(model, backend=backend, fullgraph=True, **options)


@pytest.mark.parametrize("recipe", [*RECIPES, MIXED], ids=lambda r: getattr(r, "name", r))
def test_a_full_graph_has_the_gradients_of_eager(recipe):
    model, tokens = dovetail.mx.convert(Gpt(), recipe), ids()
    eager = gradients(loss_of(model, tokens), model)
    assert_same(gradients(loss_of(compiled(model), tokens), model), eager)


def test_a_full_graph_has_any_length():
    model = dovetail.mx.convert(Gpt(blocks=1), "mxfp8")
    fast = compiled(model, dynamic=True)
    for length in (32, 48, 7):
        tokens = torch.randint(0, 96, (2, length))
        eager = gradients(loss_of(model, tokens), model)
        assert_same(gradients(loss_of(fast, tokens), model), eager)


def test_quantize_and_dequantize_compile_for_any_length():
    @torch.compile(backend="aot_eager", fullgraph=True, dynamic=True)
    def there_and_back(x):
        return dovetail.mx.dequantize(*dovetail.mx.quantize(x))

    for rows in (3, 5, 64):
        x = torch.randn(rows, 40)
        assert torch.equal(there_and_back(x), dovetail.mx.dequantize(*dovetail.mx.quantize(x)))


def test_a_hugging_face_llama_compiles_to_one_graph():
    model = dovetail.mx.convert(llama(), "mxfp8")
    tokens = ids()
    eager = gradients(model(input_ids=tokens, labels=tokens).loss, model)
    fast = compiled(model)
    assert_same(gradients(fast(input_ids=tokens, labels=tokens).loss, model), eager)


def test_linears_with_one_input_share_its_copy_in_a_graph():
    class Three(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList([dovetail.mx.Linear(128, 64, bias=False) for _ in range(3)])

        def forward(self, x):
            return sum(layer(x).square().sum() for layer in self.layers)

    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        compiled(Three())(torch.randn(256, 128))
    copies = [t for t in saved if t.dtype == torch.uint8 and t.shape == (256, 128)]
    assert len({t.untyped_storage().data_ptr() for t in copies}) == 1


def test_an_exported_program_gives_the_outputs_of_eager():
    model, tokens = dovetail.mx.convert(Gpt(blocks=1), "mxfp8").eval(), ids()
    program = torch.export.export(model, (tokens,))
    targets = {str(node.target) for node in program.graph.nodes}
    assert any("dovetail.mx_linear" in target for target in targets)
    assert torch.equal(program.module()(tokens), model(tokens))


@pytest.mark.parametrize("recipe", ["mxfp8", "fp8_block", "mxfp4"])
def test_autocast_computes_as_a_bfloat16_model(recipe):
    """Weights of float32 are cast as torch's Linear casts them: by hand, each product has the same operands."""
    layer = dovetail.mx.Linear(64, 96, recipe=recipe)
    narrow = copy.deepcopy(layer).bfloat16()
    x = torch.randn(32, 64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16 and torch.equal(y, narrow(x.bfloat16()))
    y.float().square().sum().backward()
    narrow(x.bfloat16()).float().square().sum().backward()
    assert layer.weight.grad.dtype == torch.float32
    assert torch.equal(layer.weight.grad, narrow.weight.grad.float())


@pytest.mark.parametrize("compiles", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("make", [Gpt, llama])
def test_autocast_trains_models_with_float32_weights(make, compiles):
    model, tokens = dovetail.mx.convert(make(), "mxfp8"), ids()
    run = compiled(model) if compiles else model

    def loss():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = run(tokens)
        logits = getattr(logits, "logits", logits)
        return F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())

    ours = gradients(loss(), model)
    dovetail.mx.convert(model, "bf16")
    torch._dynamo.reset()
    assert_near(ours, gradients(loss(), model), 0.15)


def test_autocast_to_float16_is_refused_with_the_remedy():
    layer = dovetail.mx.Linear(64, 32)
    with pytest.raises(RuntimeError, match=r"float16.*bfloat16"), torch.autocast("cpu", dtype=torch.float16):
        layer(torch.randn(4, 64))
    with pytest.raises(RuntimeError, match=r"mx_linear: float16.*Convert x to bfloat16"):
        dovetail.mx.linear(torch.randn(4, 64).half(), torch.randn(8, 64).half())
    with pytest.raises(ValueError, match=r"0 is float16.*convert the model to bfloat16"):
        dovetail.mx.convert(torch.nn.Sequential(torch.nn.Linear(64, 64)).half())


def test_func_grad_is_backward():
    x, weight = torch.randn(40, 64), torch.randn(32, 64)
    trained = weight.clone().requires_grad_()
    dovetail.mx.linear(x, trained).square().sum().backward()
    assert torch.equal(torch.func.grad(lambda w: dovetail.mx.linear(x, w).square().sum())(weight), trained.grad)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap_is_a_loop():
    x, weight = torch.randn(3, 40, 64), torch.randn(32, 64)
    ys = torch.vmap(lambda a: dovetail.mx.linear(a, weight))(x)
    assert torch.equal(ys, torch.stack([dovetail.mx.linear(a, weight) for a in x]))
    per_sample = torch.func.grad(lambda w, a: dovetail.mx.linear(a, w).square().sum())
    each = torch.vmap(per_sample, (None, 0))(weight, x)
    assert torch.equal(each, torch.stack([per_sample(weight, a) for a in x]))
    whole = torch.func.grad(lambda w: torch.vmap(lambda a: dovetail.mx.linear(a, w))(x).square().sum())(weight)
    torch.testing.assert_close(whole, each.sum(0), rtol=1e-4, atol=1e-3)


def test_a_second_derivative_is_refused():
    x, weight = torch.randn(4, 64, requires_grad=True), torch.randn(8, 64, requires_grad=True)
    (first,) = torch.autograd.grad(dovetail.mx.linear(x, weight).square().sum(), x, create_graph=True)
    (expected,) = torch.autograd.grad(dovetail.mx.linear(x, weight).square().sum(), x)
    assert torch.equal(first, expected)
    with pytest.raises(RuntimeError, match=r"mx_linear has no second derivative.*torch\.nn\.Linear"):
        first.sum().backward()
    with pytest.raises(RuntimeError, match="no forward-mode derivative"):
        torch.func.jvp(lambda w: dovetail.mx.linear(x.detach(), w), (weight.detach(),), (weight.detach(),))


def test_a_graph_that_was_freed_is_refused():
    weight = torch.randn(8, 64, requires_grad=True)
    y = dovetail.mx.linear(torch.randn(4, 64), weight)
    y.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("compiles", [False, True], ids=["eager", "compiled"])
def test_a_checkpoint_rounds_with_the_same_numbers(compiles, reentrant):
    """Also the dropout after a stochastic Linear has the numbers of the first forward."""
    layer = torch.nn.Sequential(
        dovetail.mx.Linear(64, 64, recipe="mxfp4_stochastic"),
        torch.nn.Dropout(0.5),
        dovetail.mx.Linear(64, 64, recipe="mxfp4_stochastic"),
    )
    x = torch.randn(32, 64, requires_grad=True)

    def step(run):
        torch.manual_seed(5)
        x.grad = None
        run(x).square().sum().backward()
        return {"x": x.grad, **{name: p.grad.clone() for name, p in layer.named_parameters()}}

    def kept(x):
        return checkpoint(layer, x, use_reentrant=reentrant)

    if compiles and reentrant:
        pytest.skip("torch.compile does not trace a reentrant checkpoint")
    plain = step(compiled(layer) if compiles else layer)
    layer.zero_grad()
    assert_same(step(compiled(kept) if compiles else kept), plain)


@pytest.mark.parametrize("compiles", [False, True], ids=["eager", "compiled"])
def test_stochastic_gradients_are_unbiased_over_calls(compiles):
    """A gradient 1.2 between the codes 1 and 1.5 of FP4: its mean over 1,000 calls is within 5 standard errors."""
    weight = torch.eye(32)
    dy = torch.full((2, 32), 1.2)
    dy[:, 0] = 6.0  # sets the scale to 1

    def loss(x):
        return (dovetail.mx.linear(x, weight, None, "mxfp4_stochastic") * dy).sum()

    run = compiled(loss) if compiles else loss

    def calls(count):
        rows = []
        for _ in range(count):
            x = torch.zeros(2, 32, requires_grad=True)
            run(x).backward()
            rows.append(x.grad[:, 1:])
        return torch.stack(rows)

    gradients = calls(1000)
    assert set(gradients.unique().tolist()) == {1.0, 1.5}
    assert gradients.var(0).min() > 0
    deviation = (0.2 * 0.3) ** 0.5  # 1 has probability 0.6, 1.5 has 0.4
    assert abs(gradients.mean().item() - 1.2) < 5 * deviation / gradients.numel() ** 0.5
    assert (gradients.mean(0) - 1.2).abs().max() < 5 * deviation / 1000**0.5
    torch.manual_seed(3)
    first = calls(3)
    torch.manual_seed(3)
    assert torch.equal(calls(3), first)
    assert not torch.equal(calls(3), first)


def test_statistics_are_those_of_the_tensors():
    model = dovetail.mx.convert(Gpt(), "mxfp8")
    tokens = ids()
    with dovetail.mx.collect_statistics(model) as layers:
        with pytest.raises(RuntimeError, match="counted already"), dovetail.mx.collect_statistics(model):
            pass
        loss_of(model, tokens).backward()
    assert set(layers) == {f"blocks.{i}.{name}" for i in range(4) for name in ("qkv", "out", "up", "down")}
    up = layers["blocks.1.up"]
    weight = model.blocks[1].up.weight
    error = dovetail.mx.dequantize(*dovetail.mx.quantize(weight.detach())) - weight
    assert up.weight.elements == weight.numel() and up.weight.blocks == weight.numel() // 32
    assert up.weight.amax == weight.abs().max().item()
    assert up.weight.sqnr_db == pytest.approx(
        10 * torch.log10(weight.square().sum() / error.square().sum()).item(), rel=1e-4
    )
    assert up.activation.elements == 64 * 64 and up.gradient.elements == 64 * 256
    assert 0 <= up.gradient.underflow_fraction < 0.5
    assert torch.ops.dovetail.mx_take_statistics()[0] == []
    loss_of(model, tokens).backward()
    assert torch.ops.dovetail.mx_take_statistics()[0] == []  # nothing is counted outside
    with pytest.raises(ValueError, match="no quantized Linear"), dovetail.mx.collect_statistics(Gpt()):
        pass


def test_statistics_of_a_compiled_model():
    model = dovetail.mx.convert(Gpt(), "mxfp8")
    fast, tokens = compiled(model), ids()
    loss_of(fast, tokens).backward()
    counted = []
    for run in (model, fast):
        with dovetail.mx.collect_statistics(model) as layers:
            loss_of(run, tokens).backward()
        counted.append(layers)
    assert counted[0] == counted[1] and len(counted[0]) == 16


def test_fake_quantize_is_straight_through():
    x = torch.randn(8, 64, requires_grad=True)
    y = dovetail.mx.fake_quantize(x, "e2m1")
    assert torch.equal(y, dovetail.mx.dequantize(*dovetail.mx.quantize(x.detach(), "e2m1"), "e2m1"))
    dy = torch.randn(8, 64)
    y.backward(dy)
    assert torch.equal(x.grad, dy)
    fast = torch.compile(dovetail.mx.fake_quantize, backend="aot_eager", fullgraph=True)
    assert torch.equal(torch.autograd.grad(fast(x, "e2m1"), x, dy)[0], dy)
    assert torch.equal(torch.func.grad(lambda a: dovetail.mx.fake_quantize(a).sum())(x), torch.ones(8, 64))
    assert dovetail.mx.fake_quantize(x.half()).dtype == torch.float16


def test_codes_have_no_gradient():
    x = torch.randn(4, 32, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"mx_quantize: x requires a gradient.*fake_quantize"):
        dovetail.mx.quantize(x)
    with torch.no_grad():
        dovetail.mx.quantize(x)


def test_packed_fp4_is_torchaos():
    mx_tensor = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
    config = pytest.importorskip("torchao.prototype.mx_formats.config")
    x = torch.randn(16, 96)
    _, theirs = mx_tensor.to_mx(x, torch.float4_e2m1fn_x2, 32, config.ScaleCalculationMode.RCEIL)
    codes, scales = dovetail.mx.quantize(x, "e2m1", packed=True)
    assert codes.dtype == torch.float4_e2m1fn_x2 and codes.shape == (16, 48)
    assert torch.equal(codes.view(torch.uint8), theirs.view(torch.uint8))
    for axis in (-1, 0):
        plain = dovetail.mx.dequantize(*dovetail.mx.quantize(x, "e2m1", axis=axis), "e2m1", axis)
        codes, scales = dovetail.mx.quantize(x, "e2m1", axis=axis, packed=True)
        assert torch.equal(dovetail.mx.dequantize(codes, scales.view(torch.float8_e8m0fnu), "e2m1", axis), plain)
    with pytest.raises(ValueError, match="even last size"):
        dovetail.mx.quantize(x[:, :31], "e2m1", packed=True)
    with pytest.raises(ValueError, match="format must be 'e2m1'"):
        dovetail.mx.dequantize(codes, scales)


def test_torchs_own_dtypes_are_read_as_bytes():
    codes, scales = dovetail.mx.quantize(torch.randn(8, 64))
    typed = codes.view(torch.float8_e4m3fn), scales.view(torch.float8_e8m0fnu)
    assert torch.equal(dovetail.mx.dequantize(*typed), dovetail.mx.dequantize(codes, scales))
