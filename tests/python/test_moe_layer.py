"""dovetail.moe: rows to experts and back, grouped products and the layer, against plain loops and transformers."""

import copy
import pathlib
import pickle
import subprocess
import sys

import dovetail
import pytest
import torch
from dovetail import moe

DTYPES = [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 3e-2)]


def routing_of(tokens=37, experts=5, k=2, dtype=torch.float32, **options):
    torch.manual_seed(0)
    logits = torch.randn(tokens, experts, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    routing = moe.route(logits, k, **options)
    return routing._replace(weight=routing.weight.detach().requires_grad_())


def order_of(routing):
    """(token, choice) of every row: expert by expert, slot by slot."""
    kept = [
        (int(e), int(s), t, j)
        for t, (es, ss) in enumerate(zip(routing.expert, routing.slot, strict=True))
        for j, (e, s) in enumerate(zip(es, ss, strict=True))
        if s >= 0
    ]
    return [(t, j) for _, _, t, j in sorted(kept)]


@pytest.mark.parametrize("options", [{"drop": "none"}, {"capacity_factor": 0.5}, {"k": 1, "slot_order": "token"}])
@pytest.mark.parametrize("dtype,tolerance", DTYPES)
def test_dispatch_and_combine_are_gather_and_weighted_sum(dtype, tolerance, options):
    routing = routing_of(dtype=dtype, **options)
    x = torch.randn(37, 19, dtype=dtype, requires_grad=True)
    order = order_of(routing)
    rows, count = moe.dispatch(x, routing)
    assert torch.equal(rows, torch.stack([x[t] for t, _ in order]))
    assert (
        count.tolist()
        == torch.bincount(torch.tensor([int(routing.expert[t, j]) for t, j in order]), minlength=5).tolist()
    )

    made = torch.randn(rows.shape, dtype=dtype, requires_grad=True)
    y, direction = moe.combine(made, routing), torch.randn(37, 19, dtype=routing.weight.dtype)
    expected = torch.zeros_like(y)
    for i, (t, j) in enumerate(order):
        expected[t] += routing.weight[t, j] * made[i].to(y.dtype)
    torch.testing.assert_close(y, expected, rtol=tolerance, atol=tolerance)
    leaves = [made, routing.weight]
    for found, wanted in zip(
        torch.autograd.grad(y, leaves, direction), torch.autograd.grad(expected, leaves, direction), strict=True
    ):
        torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)
    drows = torch.randn_like(rows)
    (dx,) = torch.autograd.grad(rows, x, drows)
    wanted = torch.zeros(37, 19, dtype=torch.float64)
    for i, (t, _) in enumerate(order):
        wanted[t] += drows[i].double()
    torch.testing.assert_close(dx, wanted.to(dtype), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype,tolerance", DTYPES)
def test_grouped_linear_is_a_linear_for_each_group(dtype, tolerance, bias):
    torch.manual_seed(1)
    count = torch.tensor([7, 0, 30, 1])
    x, weight = torch.randn(38, 21, dtype=dtype), torch.randn(4, 33, 21, dtype=dtype)
    leaves = [x, weight] + ([torch.randn(4, 33, dtype=dtype)] if bias else [])
    leaves = [leaf.requires_grad_() for leaf in leaves]
    y, direction = moe.grouped_linear(*leaves[:2], count, *leaves[2:]), torch.randn(38, 33, dtype=dtype)
    parts = [part @ weight[e].t() + (leaves[2][e] if bias else 0) for e, part in enumerate(x.split(count.tolist()))]
    expected = torch.cat(parts)
    scale = 21**0.5
    torch.testing.assert_close(y, expected, rtol=tolerance, atol=tolerance * scale)
    for found, wanted in zip(
        torch.autograd.grad(y, leaves, direction), torch.autograd.grad(expected, leaves, direction), strict=True
    ):
        torch.testing.assert_close(found, wanted, rtol=tolerance, atol=10 * tolerance * scale)


def test_wrong_arguments_are_named():
    routing = routing_of(drop="none")
    for call, message in [
        (
            lambda: moe.grouped_linear(torch.ones(3, 4), torch.ones(2, 5, 4), torch.tensor([1, 1])),
            "adds to 2, but x has 3",
        ),
        (lambda: moe.grouped_linear(torch.ones(3, 4), torch.ones(2, 5, 3), torch.tensor([1, 2])), "x must be"),
        (lambda: moe.grouped_linear(torch.ones(1, 4), torch.ones(2, 5, 4), torch.tensor([2, -1])), "holds -1"),
        (lambda: moe.combine(torch.ones(3, 4), routing), r"rows must be \(74, C\)"),
        (lambda: moe.dispatch(torch.ones(37, 4), routing._replace(expert=routing.expert.long())), "expert_idx must be"),
        (lambda: moe.dispatch(torch.ones(37, 4), routing._replace(expert=routing.expert + 9)), "in 0 to 4"),
        (lambda: moe.MoELayer(8, 4, experts=2, k=3), "k = 3"),
        (lambda: moe.MoELayer(8, 4, experts=2, score="tanh"), "tanh"),
        (lambda: moe.MoELayer(8, 4, experts=2, activation="silu"), "silu"),
    ]:
        with pytest.raises((RuntimeError, ValueError), match=message):
            call()


def test_the_layer_is_mixtrals():
    from transformers.models.mixtral.configuration_mixtral import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    torch.manual_seed(2)
    config = MixtralConfig(hidden_size=24, intermediate_size=40, num_local_experts=6, num_experts_per_tok=2)
    config._experts_implementation = "eager"
    peer = MixtralSparseMoeBlock(config)
    for parameter in peer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    layer = moe.MoELayer(24, 40, experts=6, k=2, load_loss=0)
    with torch.no_grad():
        layer.router.copy_(peer.gate.weight)
        for e in range(6):
            layer.up[e].copy_(peer.experts.gate_up_proj[e])
            layer.down[e].copy_(peer.experts.down_proj[e])
    x = torch.randn(3, 11, 24)
    theirs = peer(x)
    torch.testing.assert_close(layer(x)[0], theirs[0] if isinstance(theirs, tuple) else theirs, rtol=1e-4, atol=1e-5)


class ByTurns(torch.nn.Module):
    """A gate that no option of the router gives: token t goes to experts t and t + 1, weighed by learned numbers."""

    def __init__(self, experts):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor([0.75, 0.5]))
        self.experts = experts

    def forward(self, rows):
        first = torch.arange(len(rows)) % self.experts
        expert = torch.stack([first, (first + 1) % self.experts], 1).int()
        taken = torch.nn.functional.one_hot(expert.flatten().long(), self.experts)
        slot = (taken.cumsum(0) - 1).gather(1, expert.flatten().long()[:, None]).view_as(expert).int()
        none = rows.new_zeros(())
        return moe.Routing(expert, slot, self.scale.expand(len(rows), 2), taken.sum(0), none, none)


def test_the_layer_takes_a_gate_of_ones_own():
    torch.manual_seed(4)
    layer = moe.MoELayer(16, 12, experts=3, activation="gelu", gate=ByTurns(3))
    assert not any(name.startswith("router") for name, _ in layer.named_parameters())
    x = torch.randn(7, 16)
    y, loss = layer(x)
    y.sum().backward()
    assert loss == 0
    assert layer.gate.scale.grad.abs().min() > 0
    for t, row in enumerate(x):
        made = [layer.down[e] @ dovetail.gelu(layer.up[e] @ row) for e in (t % 3, (t + 1) % 3)]
        torch.testing.assert_close(y[t], 0.75 * made[0] + 0.5 * made[1], rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="score: options of the router"):
        moe.MoELayer(16, 12, experts=3, gate=ByTurns(3), score="sigmoid")


def test_the_layer_composes_of_its_operations():
    torch.manual_seed(3)
    layer = moe.MoELayer(
        16, 12, experts=4, k=2, activation="gelu", bias=True, z_loss=0.1, capacity_factor=0.7, drop="position"
    )
    x = torch.randn(40, 16, requires_grad=True)
    y, loss = layer(x)
    routing = moe.route(x @ layer.router.t(), 2, capacity_factor=0.7, drop="position")
    rows, count = moe.dispatch(x, routing)
    hidden = dovetail.gelu(
        moe.grouped_linear(rows, torch.stack(list(layer.up)), count, torch.stack(list(layer.up_bias)))
    )
    made = moe.grouped_linear(hidden, torch.stack(list(layer.down)), count, torch.stack(list(layer.down_bias)))
    expected = moe.combine(made, routing)
    expected_loss = 0.01 * routing.load_loss + 0.1 * routing.z_loss
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(loss, expected_loss)
    leaves = [x, *layer.parameters()]
    for found, wanted in zip(
        torch.autograd.grad(y.square().sum() + loss, leaves),
        torch.autograd.grad(expected.square().sum() + expected_loss, leaves),
        strict=True,
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


RANK = """
import sys
import torch
import torch.distributed as dist
from dovetail import moe

dist.init_process_group("gloo")
torch.manual_seed(4)
layer, x = moe.MoELayer(16, 12, experts=4, load_loss=0), torch.randn(64, 16)
alone = moe.MoELayer(16, 12, experts=4, load_loss=0)
alone.load_state_dict(layer.state_dict())
alone(x)[0].square().mean().backward()
parallel = torch.nn.parallel.DistributedDataParallel(layer)
y, loss = parallel(x.chunk(2)[dist.get_rank()])
(y.square().mean() + loss).backward()
for a, b in zip(layer.parameters(), alone.parameters(), strict=True):
    torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-7)
print("equal")
dist.destroy_process_group()
"""


def test_the_weights_of_the_experts_lie_in_one_storage():
    """So the products of a GPU read them without a copy. Names and values stay as with single parameters."""

    def expect_one_storage(layer):
        for parameters in (layer.up, layer.down, layer.up_bias, layer.down_bias):
            first = parameters[0]
            assert len({p.untyped_storage().data_ptr() for p in parameters}) == 1
            assert [p.storage_offset() for p in parameters] == [i * first.numel() for i in range(4)]

    layer = moe.MoELayer(8, 16, 4, k=2, bias=True)
    expect_one_storage(layer)
    values = {name: p.detach().clone() for name, p in layer.named_parameters()}
    assert {"up.0", "up.3", "down_bias.2"} <= set(values)
    expect_one_storage(copy.deepcopy(layer))
    expect_one_storage(pickle.loads(pickle.dumps(layer)))
    expect_one_storage(moe.MoELayer(8, 16, 4, k=2, bias=True, device="meta").to_empty(device="cpu"))
    of_layer = list(layer.parameters())
    expect_one_storage(layer.double())
    assert all(a is b for a, b in zip(of_layer, layer.parameters(), strict=True))
    assert all(torch.equal(p, values[name].double()) for name, p in layer.named_parameters())
    for e, p in enumerate(layer.up):
        p.data.fill_(e)
    assert [float(p.detach().min()) for p in layer.up] == [float(p.detach().max()) for p in layer.up] == [0, 1, 2, 3]


def test_the_layer_stands_beside_distributed_data_parallel(tmp_path: pathlib.Path):
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("equal") == 2
