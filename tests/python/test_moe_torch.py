"""dovetail.moe.MoELayer with torch.compile, export, autocast, dtypes and copies. Its routers, and others' weights."""

import copy
import io
import math

import pytest
import torch
import torch.nn.functional as F
from dovetail import moe
from torch import nn


def layer_of(**options):
    torch.manual_seed(1)
    return moe.MoELayer(24, 16, experts=6, **{"k": 2} | options)


def rows(*sizes, dtype=torch.float32):
    return torch.randn(*sizes, 24, dtype=dtype, generator=torch.Generator().manual_seed(2))


def gradients(layer, x, call=None):
    x = x.detach().requires_grad_()
    y, loss = (layer if call is None else call)(x)
    (y.float().square().sum() + loss).backward()
    found = [x.grad, *(p.grad for p in layer.parameters())]
    layer.zero_grad()
    return y.detach(), loss.detach(), found


def assert_same(found, wanted, **tolerance):
    torch.testing.assert_close(found[:2], wanted[:2], **tolerance)
    for a, b in zip(found[2], wanted[2], strict=True):
        torch.testing.assert_close(a, b, **tolerance)


VARIANTS = {
    "top_k": {},
    "biases": {"bias": True, "activation": "gelu", "drop": "position", "capacity_factor": 0.6, "z_loss": 0.1},
    "deepseek": {
        "score": "sigmoid",
        "num_groups": 3,
        "top_groups": 2,
        "scale": 2.5,
        "bias_update_rate": 0.1,
        "shared_experts": 2,
    },
    "qwen": {"shared_experts": 1, "shared_gate": True, "normalize": "none", "activation": "relu2"},
    "expert_choice": {"router": "expert_choice", "z_loss": 0.1},
    "sinkhorn": {"router": "sinkhorn"},
    "base": {"router": "base", "k": 1},
    "balanced": {"router": "balanced"},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_compiled_layer_is_the_layer(name):
    torch._dynamo.reset()
    layer = layer_of(**VARIANTS[name])
    wanted = gradients(layer, rows(4, 9))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert_same(gradients(layer, rows(4, 9), compiled), wanted, rtol=1e-5, atol=1e-6)
    for samples in (3, 5, 6):  # sizes are symbols from the second shape on
        wanted = gradients(layer, rows(samples, 9))
        assert_same(gradients(layer, rows(samples, 9), compiled), wanted, rtol=1e-5, atol=1e-6)


def test_a_compiled_layer_counts_its_load():
    torch._dynamo.reset()
    layer = layer_of()
    for _ in range(2):
        layer(rows(4, 9))
    load = layer.load.clone()
    layer.reset_load()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        compiled(rows(4, 9))
    assert load.sum() == 144 and torch.equal(layer.load, load)


def test_inductor_compiles_the_layer():
    torch._dynamo.reset()
    layer = layer_of()
    wanted = gradients(layer, rows(4, 9))
    compiled = torch.compile(layer, fullgraph=True)
    assert_same(gradients(layer, rows(4, 9), compiled), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["top_k", "deepseek", "qwen"])
def test_an_exported_layer_is_the_layer(name):
    layer = layer_of(**VARIANTS[name]).eval()
    samples = torch.export.Dim("samples", min=2, max=64)
    program = torch.export.export(layer, (rows(4, 9),), dynamic_shapes=({0: samples},))
    stored = io.BytesIO()
    torch.export.save(program, stored)
    stored.seek(0)
    loaded = torch.export.load(stored).module()
    for count in (4, 7):
        torch.testing.assert_close(loaded(rows(count, 9)), layer(rows(count, 9)))
    torch.export.export(layer.train(), (rows(4, 9),))


@pytest.mark.parametrize("name", ["top_k", "deepseek", "qwen", "expert_choice"])
def test_autocast_runs_the_experts_in_its_dtype_and_the_router_in_float32(name):
    layer, x = layer_of(**VARIANTS[name]), rows(4, 9)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, loss = layer(x)
        narrow = layer(F.linear(x, torch.eye(24)))[0]
    assert y.dtype == torch.float32 and narrow.dtype == torch.bfloat16
    assert loss == layer(x)[1]  # the router's logits have the same bits
    exact = layer(x)[0]
    assert not torch.equal(y, exact)
    torch.testing.assert_close(y, exact, rtol=3e-2, atol=3e-2 * exact.abs().max().item())
    (y.square().sum() + loss).backward()
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_converted_layer_keeps_its_router(dtype):
    layer, x = layer_of(bias_update_rate=0.1, shared_experts=1), rows(30)
    layer.router_bias.copy_(torch.linspace(0.001, 0.002, 6))
    bias, router = layer.router_bias.clone(), layer.router.detach().clone()
    wanted = layer(x.to(dtype).float())[0]
    narrow = copy.deepcopy(layer).to(dtype)
    assert narrow.router.dtype == narrow.router_bias.dtype == torch.float32
    assert torch.equal(narrow.router, router) and torch.equal(narrow.router_bias, bias)
    assert narrow.up[0].dtype == narrow.shared_up.dtype == dtype
    y, _ = narrow(x.to(dtype))
    assert y.dtype == dtype
    torch.testing.assert_close(y.float(), wanted, rtol=3e-2, atol=3e-2 * wanted.abs().max().item())
    y.sum().backward()
    assert layer.double()(x.double())[0].dtype == torch.float64
    assert layer.router.dtype == torch.float64


def test_copies_and_the_meta_device():
    layer = layer_of(bias_update_rate=0.1)
    layer(rows(8))
    other = copy.deepcopy(layer)
    assert torch.equal(other.load, layer.load) and other.load is not layer.load
    assert torch.equal(other(rows(8))[0], layer(rows(8))[0])
    meta = moe.MoELayer(24, 16, experts=6, device="meta")
    y, loss = meta(torch.empty(4, 9, 24, device="meta", requires_grad=True))
    assert y.shape == (4, 9, 24) and y.is_meta and loss.shape == ()
    (y.sum() + loss).backward()
    assert all(p.grad.shape == p.shape for p in meta.parameters())
    real = meta.to_empty(device="cpu")
    real.load_state_dict(layer_of().state_dict())
    real.reset_load()
    assert torch.equal(real(rows(8))[0], layer_of()(rows(8))[0])
    stored = io.BytesIO()
    torch.save(layer, stored)
    stored.seek(0)
    assert torch.equal(torch.load(stored, weights_only=False)(rows(8))[0], layer(rows(8))[0])


def dense(layer, x, weight):
    """Sum over all experts of weight (T, E) times the expert's result."""
    made = []
    for up, down in zip(layer.up, layer.down, strict=True):
        gate, value = F.linear(x, up).chunk(2, -1)
        made.append(F.linear(F.silu(gate) * value, down))
    return (weight[:, :, None] * torch.stack(made, 1)).sum(1)


def test_experts_choose_their_best_tokens():
    layer, x = layer_of(router="expert_choice", k=3), rows(10)
    scores = F.linear(x, layer.router).softmax(1)
    slots = math.ceil(10 * 3 / 6)
    weight = torch.zeros(10, 6)
    for e in range(6):
        best = sorted(range(10), key=lambda t: -scores[t, e].item())[:slots]
        weight[best, e] = scores[best, e]
    torch.testing.assert_close(layer(x)[0], dense(layer, x, weight), rtol=1e-4, atol=1e-5)
    assert layer.load.tolist() == [slots] * 6
    assert layer(x[:0])[0].shape == (0, 24)


def test_noise_is_the_papers_and_only_in_training():
    layer, x = layer_of(router="noisy_top_k", importance_loss=0.5, smooth_load_loss=0.25, load_loss=0), rows(40)
    torch.manual_seed(5)
    y, loss = layer(x)
    torch.manual_seed(5)
    logits = F.linear(x, layer.router)
    scale = F.softplus(F.linear(x, layer.router_noise)) + 0.01
    noise = torch.randn_like(logits)
    noisy = logits + noise * scale
    top, index = noisy.softmax(1).topk(2)
    weight = torch.zeros_like(noisy).scatter(1, index, top / top.sum(1, True))
    torch.testing.assert_close(y, dense(layer, x, weight), rtol=1e-4, atol=1e-5)
    importance = weight.sum(0)
    # Shazeer et al. 2017, equations 6 to 11.
    values, index = noisy.topk(3)
    threshold = torch.where(noisy > values[:, 2:], values[:, 2:], values[:, 1:2])
    load = torch.distributions.Normal(0.0, 1.0).cdf((logits - threshold) / scale).sum(0)
    variation = [s.var(unbiased=False) / s.mean().square() for s in (importance, load)]
    torch.testing.assert_close(loss, 0.5 * variation[0] + 0.25 * variation[1], rtol=1e-4, atol=1e-6)
    layer.eval()
    assert torch.equal(layer(x)[0], layer(x)[0])


def test_hash_reads_the_ids_alone():
    layer, ids = layer_of(router="hash", hash_seed=7), torch.arange(50)
    x = rows(50)
    y, loss = layer(x, ids)
    chosen = torch.ops.dovetail.moe_hash(ids, 6, 2, 7)
    assert chosen.shape == (50, 2) and (chosen[:, 0] != chosen[:, 1]).all()
    torch.testing.assert_close(y, dense(layer, x, F.one_hot(chosen.long(), 6).sum(1) / 2), rtol=1e-4, atol=1e-5)
    assert loss == 0 and "router" not in dict(layer.named_parameters())
    assert not torch.equal(chosen, torch.ops.dovetail.moe_hash(ids, 6, 2, 8))
    with pytest.raises(ValueError, match=r"needs the ids of the 50 tokens: layer\(x, tokens\)"):
        layer(x)


def test_evaluation_drops_nothing_and_chooses_by_scores():
    x = rows(60)
    plain = layer_of().eval()(x)[0]
    for options in ({"drop": "position", "capacity_factor": 0.5}, {"router": "sinkhorn"}):
        layer = layer_of(**options)
        assert not torch.equal(layer(x)[0], plain)
        assert torch.equal(layer.eval()(x)[0], plain)
        one = torch.cat([layer(row)[0] for row in x.split(1)])  # decoded token by token
        torch.testing.assert_close(one, plain, rtol=1e-5, atol=1e-6)
    layer = layer_of(drop="position", capacity_factor=0.1, eval_capacity_factor=0.5).eval()
    assert torch.equal(layer(x)[0], layer_of(drop="position", capacity_factor=0.5)(x)[0])


def test_balanced_goes_by_position_in_evaluation():
    layer, x = layer_of(router="balanced").eval(), rows(3, 5)
    experts = [[(t * 2) % 6, (t * 2 + 1) % 6] for t in range(5)] * 3
    p = F.linear(x.reshape(15, 24), layer.router).softmax(1).gather(1, torch.tensor(experts))
    weight = torch.zeros(15, 6).scatter(1, torch.tensor(experts), p / p.sum(1, True))
    torch.testing.assert_close(
        layer(x)[0].reshape(15, 24), dense(layer, x.reshape(15, 24), weight), rtol=1e-4, atol=1e-5
    )


def test_the_selection_bias_evens_the_load():
    layer, x = layer_of(bias_update_rate=0.05, k=1, load_loss=0), rows(300) + 1
    layer(x)
    load = F.linear(x, layer.router).argmax(1).bincount(minlength=6)
    assert torch.equal(layer.load, load)
    layer(x)
    assert torch.equal(layer.load, 2 * load)
    layer.update_bias()
    expected = 0.05 * (load.double().mean() - load).sign().float()
    assert torch.equal(layer.router_bias, expected) and layer.load.sum() == 0
    for _ in range(60):
        layer(x)
        layer.update_bias()
    layer(x)
    assert layer.load.max() < 0.5 * load.max()
    layer.reset_load()
    layer.eval()(x)
    assert layer.load.sum() == 0
    assert "router_bias" in layer.state_dict()
    with pytest.raises(RuntimeError, match="no selection bias"):
        layer_of().update_bias()


def tiny(kind):
    import transformers

    torch.manual_seed(3)
    common = {
        "vocab_size": 61,
        "hidden_size": 32,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 64,
    }
    experts = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
    configs = {
        "mixtral": lambda: transformers.MixtralConfig(**common, num_local_experts=6, num_experts_per_tok=2),
        "deepseek_v3": lambda: transformers.DeepseekV3Config(
            **common, **experts, n_routed_experts=8, n_shared_experts=2, n_group=4, topk_group=2, q_lora_rank=8,
            kv_lora_rank=8, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8, first_k_dense_replace=1,
            routed_scaling_factor=2.5,
        ),
        "deepseek_v2": lambda: transformers.DeepseekV2Config(
            **common, **experts, n_routed_experts=8, n_shared_experts=2, n_group=4, topk_group=2, q_lora_rank=8,
            kv_lora_rank=8, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8, first_k_dense_replace=1,
            topk_method="group_limited_greedy", routed_scaling_factor=1.5,
        ),
        "qwen2_moe": lambda: transformers.Qwen2MoeConfig(
            **common, **experts, num_experts=6, shared_expert_intermediate_size=48
        ),
        "qwen3_moe": lambda: transformers.Qwen3MoeConfig(
            **common, **experts, num_experts=6, head_dim=8, norm_topk_prob=True
        ),
    }  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(configs[kind](), attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in [*model.named_parameters(), *model.named_buffers()]:
            if "gate.weight" in name or "experts" in name or "e_score" in name:
                parameter.normal_(std=0.5)
    return model


class FirstResult(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


@pytest.mark.parametrize("kind", ["mixtral", "deepseek_v3", "deepseek_v2", "qwen2_moe", "qwen3_moe"])
def test_models_of_transformers_with_our_layers_give_their_logits(kind):
    pytest.importorskip("transformers")
    model = tiny(kind)
    tokens = torch.randint(61, (3, 17), generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        wanted = model(tokens).logits
    replaced = 0
    for block in model.model.layers:
        if "Moe" not in type(block.mlp).__name__ and "MoE" not in type(block.mlp).__name__:
            continue
        theirs, before = block.mlp, dict(block.mlp.state_dict())
        layer, layout = moe.from_transformers(theirs)
        stacked = moe.weights_of(layer, layout, stacked=True)
        assert stacked.keys() == before.keys()
        assert all(torch.equal(stacked[name], tensor) for name, tensor in before.items())
        # Expert by expert, as checkpoints have them, into an empty layer.
        loaded = copy.deepcopy(layer)
        loaded.reset_parameters()
        moe.load_weights(loaded, moe.weights_of(layer, layout), layout)
        block.mlp = FirstResult(loaded)
        replaced += 1
    assert replaced == (1 if "deepseek" in kind else 2)
    with torch.no_grad():
        found = model(tokens).logits
    assert wanted.std() > 1e-3
    assert (found - wanted).abs().max() < 1e-5 * max(1, wanted.abs().max())


def test_names_of_checkpoints_are_the_hubs():
    names = moe.weights_of(layer_of(), "mixtral").keys()
    assert {"gate.weight", "experts.5.w1.weight", "experts.5.w2.weight", "experts.5.w3.weight"} < names
    layer = layer_of(shared_experts=1, shared_gate=True)
    names = moe.weights_of(layer, "qwen").keys()
    assert {"experts.0.gate_proj.weight", "shared_expert.down_proj.weight", "shared_expert_gate.weight"} < names
    weights = moe.weights_of(layer, "qwen")
    assert torch.equal(weights["experts.1.gate_proj.weight"], layer.up[1][:16])
    for call, message in [
        (lambda: moe.weights_of(layer, "mixtral"), "has no shared experts"),
        (lambda: moe.weights_of(layer, "llama"), '"llama" is none of mixtral'),
        (lambda: moe.weights_of(layer_of(bias=True), "qwen"), "without biases"),
        (lambda: moe.load_weights(layer_of(), {"gate.weight": torch.zeros(6, 24)}, "qwen"), "missing: experts.0.down"),
        (lambda: moe.load_weights(layer, weights | {"x": torch.zeros(1)}, "qwen"), "unknown: x"),
        (
            lambda: moe.load_weights(layer, weights | {"gate.weight": torch.zeros(6, 3)}, "qwen"),
            "gate.weight has shape",
        ),
        (lambda: moe.from_transformers(nn.Linear(2, 2)), "Linear is none of Mixtral"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()


def test_options_that_do_nothing_are_refused():
    for options, message in [
        ({"router": "topk"}, '"topk" is none of top_k, noisy_top_k'),
        ({"importance_loss": 1.0}, "noisy_top_k"),
        ({"router": "sinkhorn", "load_loss": 0.1}, "load_loss: does nothing"),
        ({"router": "base", "k": 1, "bias_update_rate": 0.1}, "bias_update_rate: does nothing"),
        ({"router": "hash", "score": "sigmoid"}, "score"),
        ({"router": "expert_choice", "capacity_factor": 2.0}, "capacity_factor"),
        ({"shared_gate": True}, "without shared_experts"),
        ({"router": "expert_choice", "k": 9}, "k = 9 must be 1 to 6"),
        ({"capacity_factor": 1.25}, r'capacity_factor: does nothing without a capacity \(drop="none"\)'),
        ({"eval_capacity_factor": 2.0}, "eval_capacity_factor: does nothing"),
        ({"drop": "probability", "slot_order": "token"}, "slot_order: does nothing with drop"),
        ({"drop": "position", "capacity": 4, "capacity_factor": 2.0}, "capacity_factor: does nothing with capacity"),
        ({"top_groups": 1}, "top_groups: does nothing without num_groups"),
        ({"num_groups": 3, "top_groups": 3}, "allow all groups"),
        ({"second_expert": "random", "k": 3}, "but k = 3; use k = 2"),
        ({"second_expert": "random", "router": "hash"}, 'second_expert: router="hash" does not read it'),
        ({"second_expert": "maybe"}, '"maybe" is none of "always", "random"'),
        ({"draw_frees_slot": True, "drop": "position"}, "draw_frees_slot: does nothing"),
        ({"k": 1, "normalize": "after"}, 'normalize="after" does nothing with k = 1'),
        ({"hash_seed": 4}, 'read by router="hash" alone'),
        ({"pad_to_capacity": True}, "pad_to_capacity: no option of MoELayer or route; these are aux, batch_prior"),
        ({"draw": torch.ones(3)}, "draw: no option"),
        ({"k": 2.0}, "k = 2.0 must be 1 to 6"),
        ({"shared_experts": -1}, "shared_experts = -1 must be an integer, at least 0"),
        ({"z_loss": -1.0}, "z_loss = -1.0 must be a number, at least 0"),
        ({"load_loss": math.nan}, "load_loss = nan must be"),
        ({"bias_update_rate": math.inf}, "bias_update_rate = inf must be"),
        ({"scale": 0.0}, "scale = 0.0 must be above 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            layer_of(**options)
    for sizes in [(0, 16, 6), (24, 0, 6), (24, 16, 0), (24.0, 16, 6)]:
        with pytest.raises(ValueError, match="must be an integer, at least 1"):
            moe.MoELayer(*sizes, k=1)


@pytest.mark.parametrize("x", [torch.ones(3, 23), torch.ones(3, 24, dtype=torch.long), torch.tensor(1.0)])
def test_rows_of_another_kind_are_refused(x):
    with pytest.raises(ValueError, match=r"x must be \(\.\.\., 24\) floating; it is \["):
        layer_of()(x)


def test_a_random_second_expert_is_dropped_by_its_weight():
    layer, x = layer_of(second_expert="random", load_loss=0), rows(400)
    torch.manual_seed(7)
    y, _ = layer(x)
    torch.manual_seed(7)
    draw = torch.rand(400)
    weight, chosen = (x @ layer.router.t()).softmax(1).topk(2)
    weight = weight / weight.sum(1, True)
    kept = torch.stack([torch.ones(400, dtype=torch.bool), 2 * weight[:, 1] >= draw], 1)
    assert 100 < kept[:, 1].sum() < 390
    wanted = torch.zeros(400, 24)
    for e in range(6):
        gate, up = (x @ layer.up[e].t()).chunk(2, 1)
        rows_of_e = (F.silu(gate) * up) @ layer.down[e].t()
        wanted += (weight * (chosen == e) * kept).sum(1, True) * rows_of_e
    torch.testing.assert_close(y, wanted)
    layer.eval()
    assert torch.equal(layer(x)[0], layer_of(load_loss=0)(x)[0]), "all second experts in evaluation"


def test_the_second_derivative_is_refused_under_compile():
    torch._dynamo.reset()
    layer = layer_of()
    x = rows(5).requires_grad_()
    with pytest.raises(RuntimeError):
        y, _ = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
        (dx,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        torch.autograd.grad(dx.sum(), x)
