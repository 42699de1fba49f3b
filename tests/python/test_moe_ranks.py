"""dovetail.moe.MoELayer over the ranks of a torch ProcessGroup, against one rank with all tokens."""

import copy
import itertools
import pickle
from functools import cache, partial

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from dovetail import moe
from ranks import on_ranks
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH, FFN, EXPERTS = 12, 10, 6
#: Tokens of each rank.
TOKENS = {1: [24], 2: [17, 7], 4: [9, 0, 14, 1]}


class Expert(nn.Module):
    """The built-in expert with activation gelu and biases, as a module."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, FFN), nn.Linear(FFN, WIDTH)

    def forward(self, rows):
        return self.down(F.gelu(self.up(rows), approximate="tanh"))


VARIANTS = {
    "dropless": {"z_loss": 0.1},
    "capacity": {"drop": "position", "capacity_factor": 0.5, "activation": "gelu", "bias": True},
    "deepseek": {
        "score": "sigmoid",
        "aux": "all_choices",
        "scale": 2.5,
        "bias_update_rate": 0.1,
        "shared_experts": 1,
        "activation": "relu2",
    },
    "sequence": {"sequence": 1, "load_loss": 0.5},
    "expert_choice": {"router": "expert_choice", "z_loss": 0.1},
    "modules": {"expert": Expert, "drop": "probability", "capacity_factor": 0.7},
}


def layer_of(name, group=None):
    torch.manual_seed(3)
    ffn = None if "expert" in VARIANTS[name] else FFN
    return moe.MoELayer(WIDTH, ffn, EXPERTS, **VARIANTS[name], group=group).double()


def batch():
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(24, WIDTH, dtype=torch.float64, generator=generator) for _ in range(2)]


def own(tensor, counts, rank):
    return tensor.split(counts)[rank]


def gradients(layer):
    return {name: p.grad for name, p in layer.named_parameters() if p.grad is not None}


def spread(rank):
    size = dist.get_world_size()
    found = {}
    for name in VARIANTS:
        layer = layer_of(name, dist.group.WORLD)
        x, dy = (own(t, TOKENS[size], rank) for t in batch())
        x.requires_grad_()
        y, loss = layer(x)
        ((y * dy).sum() + loss / size).backward()
        found[name] = y.detach(), x.grad, loss.detach(), gradients(layer), layer.state_dict(), layer.load
    return found


@cache
def on(size):
    return on_ranks(spread, size)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_ranks_have_the_outputs_losses_and_gradients_of_one(size, name):
    layer, (x, dy) = layer_of(name), batch()
    x.requires_grad_()
    # Capacities and the choices of experts cover a rank's tokens, losses cover all.
    separate = [layer(part) for part in x.split(TOKENS[size])]
    y = torch.cat([y for y, _ in separate])
    loss = separate[0][1] if len(separate) == 1 else layer(x)[1]
    ((y * dy).sum() + loss).backward()
    ranks = [of_rank[name] for of_rank in on(size)]
    close = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)
    close(torch.cat([r[0] for r in ranks]), y.detach())
    close(torch.cat([r[1] for r in ranks]), x.grad)
    close(torch.stack([r[2] for r in ranks]).mean(), loss.detach())
    whole, state = gradients(layer), layer.state_dict()
    seen = set()
    for _, _, _, of_rank, of_state, _ in ranks:
        assert of_rank.keys() <= whole.keys()
        for key, value in of_state.items():
            assert torch.equal(value, state[key]), key
        seen |= of_state.keys()
    assert seen == state.keys()
    for key, gradient in whole.items():
        parts = [r[3][key] for r in ranks if key in r[3]]
        spread_out = key.startswith(("up", "down", "experts"))
        assert len(parts) == (1 if spread_out else size)
        close(sum(parts), gradient)
    close(sum(r[5] for r in ranks), sum_of_loads(layer_of(name), x.detach().split(TOKENS[size])))


def sum_of_loads(layer, parts):
    for part in parts:
        layer(part)
    return layer.load


def test_experts_are_spread_evenly_and_differ():
    counts = [len([k for k in r["dropless"][4] if k.startswith("up.")]) for r in on(4)]
    assert counts == [1, 2, 1, 2]
    assert [k for k in on(4)[1]["dropless"][4] if k.startswith("up.")] == ["up.1", "up.2"]
    layer, modules = layer_of("dropless"), layer_of("modules").experts
    for one, other in itertools.combinations(range(EXPERTS), 2):
        assert not torch.equal(layer.up[one], layer.up[other])
        assert not torch.equal(modules[str(one)].up.weight, modules[str(other)].up.weight)


def test_one_rank_is_a_sum_over_the_experts():
    """The layer that the other tests compare with, by the formula."""
    layer, (x, _) = layer_of("capacity").eval(), batch()
    top, index = F.linear(x, layer.router).softmax(1).topk(2)
    weight = torch.zeros(24, EXPERTS, dtype=torch.float64).scatter(1, index, top / top.sum(1, True))
    made = [
        F.linear(F.gelu(F.linear(x, layer.up[e], layer.up_bias[e]), approximate="tanh"), layer.down[e])
        + layer.down_bias[e]
        for e in range(EXPERTS)
    ]
    expected = (weight[:, :, None] * torch.stack(made, 1)).sum(1)
    torch.testing.assert_close(layer(x)[0], expected, rtol=1e-12, atol=1e-12)


class Model(nn.Module):
    def __init__(self, group, **options):
        super().__init__()
        torch.manual_seed(4)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.mixture = moe.MoELayer(WIDTH, FFN, EXPERTS, group=group, **options)
        self.last = nn.Linear(WIDTH, 1)

    def forward(self, x):
        x = self.first(x)
        y, loss = self.mixture(x)
        return self.last(x + y).square().mean() + loss


def data_parallel(rank):
    size = dist.get_world_size()
    x = own(batch()[0], [24 // size] * size, rank)
    found = []
    for replicas in [1, 2][: size // 2]:
        ranks = [[r for r in range(size) if r % replicas == i] for i in range(replicas)]
        same = [list(pair) for pair in zip(*ranks, strict=True)]
        group = [dist.new_group(r) for r in ranks][rank % replicas]
        of_experts = [dist.new_group(r) for r in same][rank // replicas] if replicas > 1 else None
        model = Model(group if replicas > 1 else dist.group.WORLD).double()
        names = list(moe.expert_parameters(model))
        assert {n for n, _ in model.named_parameters()} > set(names) != set()
        nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)
        parallel = nn.parallel.DistributedDataParallel(model)
        parallel(x).backward()
        moe.average_gradients(model, of_experts)
        found.append(gradients(model))
    return found


@pytest.mark.parametrize("size", [2, 4])
def test_distributed_data_parallel_has_the_gradients_of_one_rank(size):
    model = Model(None).double()
    if size == 2:
        model(batch()[0]).backward()
        expected = [gradients(model)]
    else:  # with two replicas, the load loss is a mean of two
        expected = []
        for parts in ([slice(None)], [[0, 2], [1, 3]]):
            model.zero_grad(set_to_none=True)
            rows = batch()[0]
            for part in parts:
                chosen = rows if part == slice(None) else torch.cat([rows.split(6)[i] for i in part])
                (model(chosen) / len(parts)).backward()
            expected.append(gradients(model))
    for of_rank in on_ranks(data_parallel, size):
        for found, wanted in zip(of_rank, expected, strict=True):
            for name, gradient in found.items():
                torch.testing.assert_close(gradient, wanted[name], rtol=1e-12, atol=1e-12)


def fully_sharded(rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = Model(dist.group.WORLD)
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)), ignored_params=set(moe.expert_parameters(model).values()))
    model(own(batch()[0].float(), [12, 12], rank)).backward()
    moe.average_gradients(model)
    return {n: g.full_tensor() if hasattr(g, "full_tensor") else g for n, g in gradients(model).items()}


def test_fsdp2_has_the_gradients_of_one_rank():
    model = Model(None)
    model(batch()[0].float()).backward()
    wanted = gradients(model)
    found = on_ranks(fully_sharded)
    assert found[0].keys() | found[1].keys() == wanted.keys()
    for name, gradient in itertools.chain(found[0].items(), found[1].items()):
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-4, atol=1e-6)


def states(rank):
    whole = layer_of("deepseek")
    layer = layer_of("deepseek", dist.group.WORLD)
    layer.reset_parameters()
    layer.load_state_dict(whole.state_dict())
    assert all(torch.equal(value, whole.state_dict()[name]) for name, value in layer.state_dict().items())
    loaded = moe.MoELayer(WIDTH, FFN, EXPERTS, group=dist.group.WORLD)
    stored = moe.MoELayer(WIDTH, FFN, EXPERTS)
    for stacked in (False, True):
        loaded.reset_parameters()
        moe.load_weights(loaded, moe.weights_of(stored, "mixtral", stacked), "mixtral")
        assert all(torch.equal(value, stored.state_dict()[name]) for name, value in loaded.state_dict().items())
    mine = {f"experts.{e}.w1.weight" for e in ([0, 1, 2] if rank == 0 else [3, 4, 5])}
    assert {name for name in moe.weights_of(loaded, "mixtral") if ".w1." in name} == mine
    modules = layer_of("modules", dist.group.WORLD)
    modules.load_state_dict(layer_of("modules").state_dict())
    with pytest.raises(ValueError, match="stacked=True needs all 6 experts; this rank has 3"):
        moe.weights_of(loaded, "mixtral", stacked=True)
    with pytest.raises(RuntimeError, match=r"Unexpected key.*up\.6"):
        loaded.load_state_dict(loaded.state_dict() | {"up.6": torch.zeros(1)})
    missing = loaded.state_dict()
    del missing[f"up.{3 * rank}"]
    with pytest.raises(RuntimeError, match=rf"Missing key.*up\.{3 * rank}"):
        loaded.load_state_dict(missing)
    with pytest.raises(IndexError, match="is none of this rank's"):
        loaded.up[3 - 3 * rank]
    return True


def test_each_rank_loads_its_experts_of_a_whole_state():
    assert on_ranks(states) == [True, True]


def forms(rank):
    """The layer in narrow dtypes, under checkpoints and torch.compile."""
    x = own(batch()[0].float(), TOKENS[2], rank)
    found = {}
    for name in ("dropless", "modules"):
        layer = layer_of(name, dist.group.WORLD).float()
        plain = layer(x)[0]
        found[name, "float32"] = plain.detach()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = layer(x)[0]
        assert y.dtype == torch.float32
        y.sum().backward()
        assert all(p.grad.dtype == torch.float32 for p in moe.expert_parameters(layer).values())
        found[name, "autocast"] = y.detach()
        layer.zero_grad()
        plain.sum().backward()
        wanted = {n: g.clone() for n, g in gradients(layer).items()}
        for call in (partial(checkpoint, layer, use_reentrant=False), torch.compile(layer, backend="aot_eager")):
            layer.zero_grad()
            y = call(x)[0]
            assert torch.equal(y, plain)
            y.sum().backward()
            assert all(torch.equal(g, wanted[n]) for n, g in gradients(layer).items())
        assert torch.equal(copy.deepcopy(layer)(x)[0], plain)
        torch._dynamo.reset()
        with pytest.raises(Exception, match="exchanges rows with other ranks"):
            torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
        with pytest.raises(Exception, match="cannot be exported"):
            torch.export.export(layer, (x,))
        with pytest.raises(RuntimeError, match="cannot be pickled; save its state_dict"):
            pickle.dumps(layer)
        wide = x.double().requires_grad_()
        (dx,) = torch.autograd.grad(layer.double()(wide)[0].sum(), wide, create_graph=True)
        with pytest.raises(RuntimeError, match="all_to_all has no second derivative; compute on one rank"):
            dx.sum().backward()
        layer.bfloat16()
        found[name, "bfloat16"] = layer(x.bfloat16())[0].float().detach()
    return found


def test_narrow_dtypes_checkpoints_copies_and_compiled_models():
    ranks = on_ranks(forms)
    for name in ("dropless", "modules"):
        layer, x = layer_of(name).float(), batch()[0].float()
        exact = torch.cat([layer(part)[0] for part in x.split(TOKENS[2])]).detach()
        for form, tolerance in [("float32", 1e-5), ("autocast", 3e-2), ("bfloat16", 3e-2)]:
            y = torch.cat([r[name, form] for r in ranks])
            assert (form == "float32") == torch.allclose(y, exact, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(y, exact, rtol=tolerance, atol=tolerance * exact.abs().max().item())


def errors(rank):
    world = dist.group.WORLD
    with pytest.raises(RuntimeError, match="1 experts for 2 ranks; each rank needs one"):
        moe.MoELayer(8, 4, experts=1, k=1, group=world)
    with pytest.raises(RuntimeError, match=r"Rank 0 has width=8.*k=1.*Rank 1 has width=8.*k=2"):
        moe.MoELayer(8, 4, experts=4, k=rank + 1, group=world)
    alone = dist.new_group([0])
    if rank == 1:
        with pytest.raises(ValueError, match="group must be a ProcessGroup that has this rank"):
            moe.MoELayer(8, 4, experts=4, group=alone)
    layer = moe.MoELayer(8, 4, experts=4, group=world)
    meta = moe.MoELayer(8, 4, experts=4, group=world, device="meta")
    with pytest.raises(RuntimeError, match="has no shapes on the meta device; leave group out"):
        meta(torch.empty(5, 8, device="meta"))
    with pytest.raises(RuntimeError, match=r"would average experts.*list\(dovetail\.moe\.expert_parameters\(model\)\)"):
        nn.parallel.DistributedDataParallel(layer)(torch.randn(5, 8))
    wrong = moe.MoELayer(8, None, experts=4, group=world, expert=partial(nn.Linear, 8, 9))
    with pytest.raises(ValueError, match=r"expert [02] maps rows \(\d+, 8\) to \(\d+, 9\); it must keep their shape"):
        wrong(torch.randn(5, 8))
    return repr(layer)


def test_errors_say_what_to_do():
    assert "ranks=2" in on_ranks(errors)[0]
    with pytest.raises(RuntimeError, match="moe_parallel_modules alone calls it"):
        torch.ops.dovetail.moe_call_expert(5, 0, torch.ones(1))
