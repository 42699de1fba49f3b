"""Operators of dovetail.moe: torch.compile, torch.export, autocast, the meta device, opcheck, second derivatives."""

import io
from typing import NamedTuple

import pytest
import torch
from dovetail import moe
from torch.library import opcheck

EXPERTS, WIDTH = 5, 8
OPTIONS = {"capacity_factor": 0.8, "normalize": "after"}


def routing_of(tokens):
    return moe.route(torch.randn(tokens, EXPERTS, generator=torch.Generator().manual_seed(1)), 2, **OPTIONS)


def random(*sizes, dtype=torch.float32):
    return torch.randn(*sizes, dtype=dtype, generator=torch.Generator().manual_seed(2)).requires_grad_()


class Op(NamedTuple):
    call: callable  # takes tensors
    make: callable  # tensors for a number of tokens and a dtype; the ones with a gradient require it
    arguments: callable  # makes the ones of torch.ops.dovetail.<name>


def choices(tokens):
    routing = routing_of(tokens)
    return routing.expert, routing.slot


def rows_of(tokens, dtype):
    return random(int((routing_of(tokens).slot >= 0).sum()), WIDTH, dtype=dtype)


def counts_of(tokens):
    routing = routing_of(tokens)
    return routing.expert[routing.slot >= 0].bincount(minlength=EXPERTS)


def routing(expert, slot, weight=None):
    return moe.Routing(expert, slot, weight, torch.empty(EXPERTS), None, None)


def weight_of(tokens, dtype):
    return random(tokens, 2, dtype=torch.float64 if dtype == torch.float64 else torch.float32)


OPS = {
    "moe_route": Op(
        lambda logits: tuple(moe.route(logits, 2, **OPTIONS)),
        lambda tokens, dtype: (random(tokens, EXPERTS, dtype=dtype),),
        lambda logits: (logits, 2),
    ),
    "moe_dispatch": Op(
        lambda x, expert, slot: moe.dispatch(x, routing(expert, slot)),
        lambda tokens, dtype: (random(tokens, WIDTH, dtype=dtype), *choices(tokens)),
        lambda *tensors: (*tensors, EXPERTS),
    ),
    "moe_combine": Op(
        lambda rows, weight, expert, slot: (moe.combine(rows, routing(expert, slot, weight)),),
        lambda tokens, dtype: (rows_of(tokens, dtype), weight_of(tokens, dtype), *choices(tokens)),
        lambda *tensors: (*tensors, EXPERTS),
    ),
    "grouped_linear": Op(
        lambda *tensors: (moe.grouped_linear(*tensors),),
        lambda tokens, dtype: (
            rows_of(tokens, dtype),
            random(EXPERTS, 3, WIDTH, dtype=dtype),
            counts_of(tokens),
            random(EXPERTS, 3, dtype=dtype),
        ),
        lambda *tensors: tensors,
    ),
}
every_op = pytest.mark.parametrize("name", OPS)


def run(call, tensors):
    """Results, and gradients of the sum of their squares."""
    leaves = [t for t in tensors if t.requires_grad]
    made = [t for t in call(*tensors) if t is not None]
    loss = sum(t.double().square().sum() for t in made if t.requires_grad)
    return [t.detach() for t in made], torch.autograd.grad(loss, leaves)


@pytest.fixture(autouse=True)
def rows_of_any_number():
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        yield


@every_op
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_full_graph_has_the_results_and_gradients_of_eager(name, dtype):
    op = OPS[name]
    compiled = torch.compile(op.call, fullgraph=True, backend="aot_eager")
    for tokens in (11, 7, 13):
        tensors = op.make(tokens, dtype)
        torch.testing.assert_close(run(compiled, tensors), run(op.call, tensors))


def test_inductor_compiles_a_mixture_of_operators():
    def mixture(x, logits, up, down):
        routed = moe.route(logits, 2, **OPTIONS)
        rows, count = moe.dispatch(x, routed)
        return (moe.combine(moe.grouped_linear(moe.grouped_linear(rows, up, count).relu(), down, count), routed),)

    tensors = [random(11, WIDTH), random(11, EXPERTS), random(EXPERTS, 6, WIDTH), random(EXPERTS, WIDTH, 6)]
    torch.testing.assert_close(run(torch.compile(mixture, fullgraph=True), tensors), run(mixture, tensors))


@every_op
def test_an_exported_operator_has_the_results_of_eager(name):
    class Module(torch.nn.Module):
        def forward(self, *tensors):
            return [t for t in OPS[name].call(*tensors) if t is not None]

    tensors = [t.detach() for t in OPS[name].make(11, torch.float32)]
    stored = io.BytesIO()
    torch.export.save(torch.export.export(Module(), tuple(tensors)), stored)
    stored.seek(0)
    torch.testing.assert_close(torch.export.load(stored).module()(*tensors), Module()(*tensors))


@every_op
@pytest.mark.parametrize("compiles", [False, True], ids=["eager", "compiled"])
def test_autocast_multiplies_in_its_dtype_and_leaves_the_rest(name, compiles):
    op = OPS[name]
    tensors = op.make(11, torch.float32)
    call = torch.compile(op.call, fullgraph=True, backend="aot_eager") if compiles else op.call
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, gradients = run(call, tensors)
    if name == "grouped_linear":
        narrow = [t.bfloat16() if t.is_floating_point() else t for t in tensors]
        assert found[0].dtype == torch.bfloat16 and torch.equal(found[0], op.call(*narrow)[0])
        torch.testing.assert_close(gradients, run(op.call, tensors)[1], rtol=5e-2, atol=5e-1)
    else:
        torch.testing.assert_close((found, gradients), run(op.call, tensors), rtol=0, atol=0)
    assert all(g.dtype == torch.float32 for g in gradients)


@every_op
def test_the_meta_device_has_the_shapes(name):
    tensors = OPS[name].make(11, torch.float32)
    meta = [t.detach().to("meta").requires_grad_(t.requires_grad) for t in tensors]
    found, gradients = run(OPS[name].call, meta)
    real, real_gradients = run(OPS[name].call, tensors)
    if name == "moe_dispatch":  # no choice counts as dropped
        real[0] = real[0].new_empty(22, WIDTH)
    assert [(t.shape, t.dtype) for t in found] == [(t.shape, t.dtype) for t in real]
    assert [(t.shape, t.dtype) for t in gradients] == [(t.shape, t.dtype) for t in real_gradients]
    assert all(t.is_meta for t in [*found, *gradients])


@every_op
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_opcheck(name, dtype):
    tensors = OPS[name].make(11, dtype)
    arguments = OPS[name].arguments(*tensors)
    # Its own loss is in the dtype of the first result, which is an integer for moe_route.
    utilities = ("test_schema", "test_autograd_registration", "test_faketensor")
    utilities += () if name == "moe_route" else ("test_aot_dispatch_dynamic",)
    opcheck(getattr(torch.ops.dovetail, name), arguments, test_utils=utilities)
    if name != "moe_route":
        forward = getattr(torch.ops.dovetail, f"{name}_forward")
        opcheck(forward, arguments)


@every_op
@pytest.mark.parametrize("compiles", [False, True], ids=["eager", "compiled"])
def test_a_second_derivative_is_right_or_refused(name, compiles):
    op = OPS[name]
    tensors = op.make(11, torch.float32)
    leaves = [t for t in tensors if t.requires_grad]
    call = torch.compile(op.call, fullgraph=True, backend="aot_eager") if compiles else op.call
    wanted = run(op.call, tensors)[1]
    loss = sum(t.square().sum() for t in call(*tensors) if t is not None and t.requires_grad)
    first = torch.autograd.grad(loss, leaves, create_graph=True)
    torch.testing.assert_close([g.detach() for g in first], list(wanted))
    if name == "moe_route" and not compiles:
        real = [t.detach().double().requires_grad_() for t in tensors]
        assert torch.autograd.gradgradcheck(lambda logits: op.call(logits)[2:6:2], real)
        return
    message = "does not currently support double backward" if compiles else f"{name} has no second derivative; "
    with pytest.raises(RuntimeError, match=message):
        sum(g.sum() for g in first).backward()


@pytest.mark.parametrize("name", ["moe_route", "moe_dispatch", "moe_combine"])
def test_float64_has_the_second_derivative(name):
    op = OPS[name]
    tensors = op.make(6, torch.float64)
    leaves = [t for t in tensors if t.requires_grad]
    others = [t for t in tensors if not t.requires_grad]

    def smooth(*leaves):
        return [t.square() for t in op.call(*leaves, *others) if t is not None and t.requires_grad]

    assert torch.autograd.gradgradcheck(smooth, leaves)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_layer_refuses_its_second_derivative(dtype):
    layer = moe.MoELayer(WIDTH, 6, EXPERTS).to(dtype)
    x = random(11, WIDTH, dtype=dtype)
    (first,) = torch.autograd.grad(layer(x)[0].square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"has no second derivative; .*float64"):
        first.sum().backward()


def test_the_layer_has_its_second_derivative_in_float64():
    layer = moe.MoELayer(WIDTH, 6, EXPERTS, activation="gelu").double()
    assert torch.autograd.gradgradcheck(lambda x: layer(x)[0], random(3, WIDTH, dtype=torch.float64))


def test_a_linear_refuses_its_second_derivative():
    x, weight = random(4, WIDTH), random(3, WIDTH)
    (first,) = torch.autograd.grad(torch.ops.dovetail.linear(x, weight).square().sum(), x, create_graph=True)
    with pytest.raises(
        RuntimeError, match=r"linear has no second derivative; use torch\.nn\.functional\.linear, or float64"
    ):
        first.sum().backward()
