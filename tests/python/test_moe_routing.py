"""torch.ops.dovetail.moe_* against plain loops in FP64, a network simplex and the routers of transformers."""

import functools
import importlib
import itertools
import math
import random

import dovetail  # noqa: F401
import networkx
import pytest
import torch
import torch.nn.functional as F

ops = torch.ops.dovetail
WORDS = {
    "score": ["softmax", "sigmoid"], "normalize": ["before", "after", "none"], "slot_order": ["choice", "token"],
    "drop": ["position", "probability", "none"], "aux": ["first_choice", "all_choices"], "group_score": ["top2", "max"],
    "capacity_rule": ["tutel", "switch", "megatron", "megablocks", "mesh_tf"],
}  # fmt: skip
DTYPES = [(torch.float64, {"rtol": 1e-12, "atol": 1e-12}), (torch.float32, {"rtol": 1e-5, "atol": 1e-6})]


def probabilities(row, score):
    if score == "softmax":
        e = [math.exp(x - max(row)) for x in row]
        return [x / math.fsum(e) for x in e]
    return [1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x)) for x in row]


def choose(p, k, bias, num_groups, top_groups, group_score):
    ranks = [a + b for a, b in zip(p, bias, strict=True)]
    size = len(p) // num_groups
    of_group = [sorted(ranks[g * size : (g + 1) * size], reverse=True) for g in range(num_groups)]
    of_group = [scores[0] if group_score == "max" else sum(scores[:2]) for scores in of_group]
    best = sorted(range(num_groups), key=lambda g: (-of_group[g], g))[:top_groups]
    return sorted((e for e in range(len(p)) if e // size in best), key=lambda e: (-ranks[e], e))[:k]


def capacity_by_rule(rule, tokens, experts, k, factor, largest):
    if rule == "tutel":
        bound = k * int(abs(factor) * math.ceil(tokens / experts))
        return bound if factor > 0 else largest if factor == 0 else min(largest, bound)
    switch, mesh_tf = int(tokens / experts * factor), max(4, int(tokens * factor / experts))
    megatron, megablocks = math.ceil(tokens * k / experts * factor), int(factor * k * tokens / experts)
    return {"switch": switch, "megatron": megatron, "megablocks": megablocks, "mesh_tf": mesh_tf}[rule]


def reference(
    logits, k, score="softmax", normalize="before", slot_order="choice", drop="position", capacity_factor=1.0,
    capacity=0, batch_prioritized=False, bias=None, num_groups=1, top_groups=1, scale=1.0, aux="first_choice",
    group_score="top2", capacity_rule="tutel", draw=None, draw_frees_slot=False, chosen=None,
):  # fmt: skip
    tokens, experts = logits.shape
    p = [probabilities(row, score) for row in logits.tolist()]
    bias = [0.0] * experts if bias is None else bias.tolist()
    if chosen is None:
        chosen = [choose(row, k, bias, num_groups, top_groups, group_score) for row in p]
    picked = [[p[t][e] for e in chosen[t]] for t in range(tokens)]
    count = [sum(e in row for row in chosen) for e in range(experts)]
    limit = capacity or capacity_by_rule(capacity_rule, tokens, experts, k, capacity_factor, max(count))
    limit = math.inf if drop == "none" else limit
    draws = [] if draw is None else draw.tolist()
    out = {(t, 1) for t, u in enumerate(draws) if 2 * picked[t][1] / max(sum(picked[t]), 1e-20) < u}

    order = sorted(range(tokens), key=lambda t: (-max(p[t]) if batch_prioritized else 0, t))
    visits = [(t, j) for j in range(k) for t in order]
    if slot_order == "token":
        visits = [(t, j) for t in order for j in range(k)]
    if draw_frees_slot:
        visits = [visit for visit in visits if visit not in out]
    if drop == "probability":
        rivals = [[] for _ in range(experts)]
        for t, j in visits:
            rivals[chosen[t][j]].append((-picked[t][j], t, j))
        kept = {(t, j) for of_expert in rivals for _, t, j in sorted(of_expert)[:limit]}
        visits = [visit for visit in visits if visit in kept]
    slot, taken = [[-1] * k for _ in range(tokens)], [0] * experts
    for t, j in visits:
        e = chosen[t][j]
        if taken[e] < limit and (t, j) not in out:
            slot[t][j] = taken[e]
        taken[e] += 1

    weight, aux_loss, z_loss = [None] * tokens, 0.0, 0.0
    for t, row in enumerate(logits.tolist()):
        total = max(sum(picked[t][j] for j in range(k) if normalize == "before" or slot[t][j] >= 0), 1e-20)
        total = 1.0 if k == 1 or normalize == "none" else total
        weight[t] = [picked[t][j] / total * scale if slot[t][j] >= 0 else 0.0 for j in range(k)]
        z_loss += (max(row) + math.log(math.fsum(math.exp(x - max(row)) for x in row))) ** 2 / tokens
    for e in range(experts if tokens else 0):
        share = count[e] / (tokens * k) if aux == "all_choices" else sum(row[0] == e for row in chosen) / tokens
        aux_loss += experts * share * math.fsum(row[e] / math.fsum(row) for row in p) / tokens
    pairs = [torch.tensor(x, dtype=torch.int32).reshape(tokens, k) for x in (chosen, slot)]
    weight, *losses = (torch.tensor(x, dtype=torch.float64) for x in (weight, aux_loss, z_loss))
    return *pairs, weight.reshape(tokens, k), torch.tensor(count), *losses


def route(logits, k, **options):
    """The operation, its floating options in the dtype of the logits."""
    floating = {n: v.to(logits.dtype) for n, v in options.items() if torch.is_tensor(v) and n != "chosen"}
    return ops.moe_route(logits, k, **options | floating)


def check(ours, expected, dtype, tolerance):
    computed = [torch.int32, torch.int32, dtype, torch.int64, dtype, dtype]
    assert [x.dtype for x in ours] == computed and [x.shape for x in ours] == [x.shape for x in expected]
    for i, (a, b) in enumerate(zip(ours, expected, strict=True)):
        torch.testing.assert_close(a, b.to(a.dtype), **(tolerance if i in (2, 4, 5) else {}))


def near(values, size):
    """Marks values that differ from another value of their row by less than FP32 can distinguish."""
    values, order = values.sort(dim=1)
    gap = values.diff(dim=1) / size.gather(1, order)[:, 1:]
    close = (gap > 1e-14) & (gap < 2e-6)
    return torch.zeros_like(values, dtype=torch.bool).scatter(1, order, F.pad(close, (0, 1)) | F.pad(close, (1, 0)))


def random_logits(tokens, experts, score="softmax", num_groups=1, with_bias=False, seed=0):
    """Numbers of FP32, in FP64, with which whatever is compared is either clearly apart or copied, and so equal."""
    generator = torch.Generator().manual_seed(seed)
    some = functools.partial(torch.randint, generator=generator)
    twin = torch.arange(experts)
    twin[some(experts, (experts // 4,))] = some(experts, (experts // 4,))
    twin.view(num_groups, -1)[some(num_groups, (num_groups // 2,))] = twin[: experts // num_groups].clone()
    popular = torch.randn(experts, generator=generator)
    bias = 0.3 * torch.randn(experts, generator=generator)[twin] * with_bias
    bias, logits = bias.double(), torch.zeros(tokens, experts, dtype=torch.float64)
    redraw = torch.ones(tokens, dtype=torch.bool)
    while redraw.any():
        fresh = popular + torch.randn(int(redraw.sum()), experts, generator=generator)
        logits[redraw] = fresh[:, twin].double()
        p = logits.softmax(1) if score == "softmax" else logits.sigmoid()
        ranks, sizes, top = p + bias, p + bias.abs(), p.amax(1)[None]
        pairs, where = ranks.view(tokens, num_groups, -1).topk(min(2, experts // num_groups))
        of_pairs = sizes.view(tokens, num_groups, -1).gather(2, where)
        redraw = near(ranks, sizes).any(1) | near(pairs.sum(2), of_pairs.sum(2)).any(1)
        redraw |= near(p.T, p.T).any(0) | near(top, top)[0]
    logits[some(tokens + 1, (tokens // 4,)) - 1] = logits[some(tokens + 1, (tokens // 4,)) - 1]
    return logits, bias if with_bias else None


def random_case(seed):
    pick = random.Random(seed)
    options = {name: pick.choice(words) for name, words in WORDS.items()}
    tokens, experts = pick.choice([0, 1, 7, 64, 193, 193]), pick.choice([1, 2, 8, 60])
    tokens, experts = (1500, 60) if seed % 100 == 99 else (tokens, experts)
    groups = pick.choice([g for g in (1, 1, 2, 4, 8, 30, 60) if experts % g == 0])
    options |= {"num_groups": groups, "top_groups": pick.randint(1, groups), "scale": pick.choice([1.0, 2.5])}
    k = min(pick.choice([1, 2, 2, 2, 3, 8]), options["top_groups"] * experts // groups)
    signed = options["drop"] == "none" or options["capacity_rule"] == "tutel"
    options["capacity_factor"] = pick.choice([0.5, 1.0, 1.25, 2.0] + [0.0, -0.5, -1.0] * signed)
    options |= {"capacity": pick.choice([0, 0, 0, 1, 3, 10]), "batch_prioritized": pick.random() < 0.5}
    logits, options["bias"] = random_logits(tokens, experts, options["score"], groups, pick.random() < 0.5, seed)
    if k == 2 and pick.random() < 0.7:
        draw = torch.rand(tokens, generator=torch.Generator().manual_seed(seed)).double()
        weight = reference(logits, k, **options | {"normalize": "before", "scale": 1.0, "drop": "none"})[2]
        draw[(2 * weight[:, 1] - draw).abs() < 1e-5] = 0
        options |= {"draw": draw, "draw_frees_slot": pick.random() < 0.5}
    return logits.T.contiguous().T if seed % 2 else logits, k, options


def dense(logits, expert_idx, slot, k, options):
    """weight, aux_loss and z_loss by torch alone, the choices held constant."""
    experts, idx, kept = logits.shape[1], expert_idx.long(), (slot >= 0).to(logits.dtype)
    p = logits.sigmoid() if options["score"] == "sigmoid" else logits.softmax(1)
    weight = p.gather(1, idx)
    if k > 1 and options["normalize"] != "none":
        weight = weight / (weight * (kept if options["normalize"] == "after" else 1)).sum(1, True).clamp(min=1e-20)
    share = F.one_hot(idx if options["aux"] == "all_choices" else idx[:, :1], experts).to(p.dtype).mean((0, 1))
    aux_loss = experts * (share * (p / p.sum(1, True)).mean(0)).sum()
    return weight * kept * options["scale"], aux_loss, logits.logsumexp(1).square().mean()


@pytest.mark.parametrize("seed", range(400))
def test_random_cases_and_their_gradients(seed):
    logits, k, options = random_case(seed)
    expected = reference(logits, k, **options)
    for dtype, tolerance in DTYPES:
        x = logits.to(dtype, copy=True).requires_grad_()
        ours = route(x, k, **options)
        check(ours, expected, dtype, tolerance)
        for a, b in zip([ours[2], *ours[4:]], dense(x, *ours[:2], k, options), strict=True):
            mine, theirs = (torch.autograd.grad(y.square().sum(), x, retain_graph=True)[0] for y in (a, b))
            torch.testing.assert_close(mine, theirs if len(x) else x.detach(), **tolerance)


@pytest.mark.parametrize("k", [1, 2, 8])
@pytest.mark.parametrize("name", ["equal", "one_expert", "huge", "minus_infinity"])
def test_adversarial_logits(name, k):
    logits = random_logits(33, 8)[0] if name == "minus_infinity" else torch.zeros(33, 8, dtype=torch.float64)
    if name == "minus_infinity":
        logits[::2, 2] = logits[5, 1:] = -math.inf
    elif name == "huge":
        logits[:, 1:] = 2e4 * torch.randint(2, (33, 7), generator=torch.Generator().manual_seed(1)) - 1e4
    logits[:, 0] += {"one_expert": 1, "huge": 1e4}.get(name, 0)
    for options in (
        {"capacity": 1},
        {"capacity": 1, "drop": "probability", "normalize": "after"},
        {"capacity": 20, "slot_order": "token", "batch_prioritized": True},
        {"capacity": 20, "drop": "probability", "batch_prioritized": True},
        {"score": "sigmoid", "drop": "none", "num_groups": 4, "top_groups": 4},
        {"score": "sigmoid", "capacity": 7, "normalize": "after", "aux": "all_choices"},
    ):
        for dtype, tolerance in DTYPES:
            x = logits.to(dtype, copy=True).requires_grad_()
            ours = route(x, k, **options)
            check(ours, reference(logits, k, **options), dtype, tolerance)
            assert torch.autograd.grad(ours[2].sum() + ours[4] + ours[5], x)[0].isfinite().all()


def in_turn(tokens, experts, k):
    return [[(t * k + j) % experts for j in range(k)] for t in range(tokens)]


@pytest.mark.parametrize("tokens, experts, k", [(0, 4, 2), (1, 1, 1), (37, 8, 3), (64, 6, 6)])
def test_given_experts_and_balanced_ones(tokens, experts, k):
    logits, _ = random_logits(tokens, experts)
    generator = random.Random(1)
    some = [generator.sample(range(experts), k) for _ in range(tokens)]
    for options in (
        {},
        {"capacity": 3, "drop": "probability", "normalize": "after"},
        {"score": "sigmoid", "scale": 2.5},
    ):
        for dtype, tolerance in DTYPES:
            x = logits.to(dtype)
            for kind in (torch.int32, torch.int64):
                given = torch.tensor(some, dtype=kind).reshape(tokens, k)
                check(
                    route(x, k, chosen=given, **options), reference(logits, k, chosen=some, **options), dtype, tolerance
                )
            expected = reference(logits, k, chosen=in_turn(tokens, experts, k), **options)
            check(route(x, k, router="balanced", **options), expected, dtype, tolerance)


def sinkhorn_by_loops(logits):
    """Megatron's: rows, then columns, until the columns' factors rest."""
    mass = [[math.exp(x - max(row)) for x in row] for row in logits.tolist()]
    of_token, of_expert = [0.0] * len(mass), [1.0] * logits.shape[1]
    for _ in range(1000):
        for t, row in enumerate(mass):
            of_token[t] = 1 / (len(mass) * math.fsum(m * f for m, f in zip(row, of_expert, strict=True)))
        before = of_expert
        sums = [math.fsum(row[e] * f for row, f in zip(mass, of_token, strict=True)) for e in range(len(before))]
        of_expert = [1 / (len(before) * x) for x in sums]
        if sum(abs(a - b) for a, b in zip(before, of_expert, strict=True)) <= 1e-4 * sum(of_expert):
            break
    return [[m * f * g for m, f in zip(row, of_expert, strict=True)] for row, g in zip(mass, of_token, strict=True)]


@pytest.mark.parametrize("tokens, experts, k", [(1, 1, 1), (40, 8, 1), (193, 60, 4)])
def test_sinkhorn(tokens, experts, k):
    logits = random_logits(tokens, experts)[0]
    plan, expected = ops.moe_sinkhorn(logits), sinkhorn_by_loops(logits)
    torch.testing.assert_close(plan, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0)
    torch.testing.assert_close(plan.sum(0), torch.full((experts,), 1 / experts).double())
    chosen = [sorted(range(experts), key=lambda e: (-row[e], e))[:k] for row in plan.tolist()]
    for dtype, tolerance in DTYPES:
        ours = route(logits.to(dtype), k, router="sinkhorn", drop="none")
        check(ours, reference(logits, k, chosen=chosen, drop="none"), dtype, tolerance)


def test_sinkhorn_spreads_what_softmax_piles_up():
    logits = torch.randn(512, 8, generator=torch.manual_seed(0)) + torch.arange(8)
    greedy, even = (route(logits, 1, router=router)[3] for router in ("top_k", "sinkhorn"))
    assert greedy.max() > 4 * 64 and even.min() > 0.7 * 64 and even.max() < 1.4 * 64
    assert ops.moe_sinkhorn(torch.zeros(0, 4)).shape == (0, 4)
    for bad in (math.nan, -math.inf):
        assert ops.moe_sinkhorn(torch.tensor([[bad, 1.0], [0.0, 2.0]])).isfinite().all()


def largest_total(scores):
    """Returns the maximum total score over balanced assignments, as a minimum-cost flow by network simplex.

    Each expert gets floor or ceil of an even share of the tokens.
    """
    tokens, experts = len(scores), len(scores[0])
    graph = networkx.DiGraph()
    for t, row in enumerate(scores):
        graph.add_node(("token", t), demand=-1)
        for e, score in enumerate(row):
            graph.add_edge(("token", t), e, capacity=1, weight=-score)
    for e in range(experts):
        graph.add_node(e, demand=tokens // experts)
        graph.add_edge(e, "extra", capacity=1, weight=0)
    graph.add_node("extra", demand=tokens % experts)
    return -networkx.network_simplex(graph)[0]


@pytest.mark.parametrize("tokens, experts", [(0, 3), (1, 4), (3, 4), (8, 1), (24, 8), (61, 7), (120, 16), (100, 3)])
@pytest.mark.parametrize("kind", ["normal", "few", "equal", "popular"])
def test_base_is_the_best_balanced_assignment(tokens, experts, kind):
    generator = torch.Generator().manual_seed(tokens)
    scores = (1024 * torch.randn(tokens, experts, generator=generator)).round()  # exact, whatever the order of sums
    if kind == "few":
        scores = (scores / 1024).round()
    elif kind == "equal":
        scores = torch.zeros(tokens, experts)
    elif kind == "popular":
        scores[:, 0] += 5000
    expert = ops.moe_base(scores)
    assert expert.dtype == torch.int32 and expert.shape == (tokens,)
    count = torch.bincount(expert, minlength=experts)
    assert count.min() >= tokens // experts and count.max() <= -(-tokens // experts) and count.sum() == tokens
    total = scores[torch.arange(tokens), expert.long()].sum().item()
    assert total == (largest_total(scores.long().tolist()) if tokens else 0)
    given = {"chosen": expert[:, None].tolist(), "score": "sigmoid", "drop": "none"}
    ours = route(scores.double() / 1024, 1, router="base", score="sigmoid", drop="none")
    check(ours, reference(scores / 1024, 1, **given), *DTYPES[0])


def test_base_takes_what_is_not_finite():
    """As -2^14 and 2^14: of the first three the second loses the least by expert 0."""
    scores = torch.tensor([[math.nan, 0.0], [1.0, math.inf], [-math.inf, 1e30], [5.0, -1e30]])
    assert ops.moe_base(scores).tolist() == [1, 0, 1, 0]


def squared_variation(values):
    mean = math.fsum(values) / len(values)
    return math.fsum((x - mean) ** 2 for x in values) / len(values) / mean**2


def noisy_losses(logits, noise, scale, weight, expert_idx, k):
    """Importance and load loss of Shazeer et al. 2017 by their definitions."""
    experts = logits.shape[1]
    importance, load = [0.0] * experts, [0.0] * experts
    for clean, n, s, weights, chosen in zip(
        *(x.tolist() for x in (logits, noise, scale, weight, expert_idx)), strict=True
    ):
        for e, w in zip(chosen, weights, strict=True):
            importance[e] += w
        noisy = [a + b * c for a, b, c in zip(clean, n, s, strict=True)]
        for e in range(experts):
            others = sorted(noisy[:e] + noisy[e + 1 :], reverse=True)
            z = (clean[e] - others[k - 1]) / s[e]
            load[e] += 0.5 * (1 + math.erf(z / math.sqrt(2)))
    return squared_variation(importance), squared_variation(load)


@pytest.mark.parametrize("tokens, experts, k", [(1, 2, 1), (31, 5, 4), (64, 16, 2)])
def test_noisy_losses(tokens, experts, k):
    generator = torch.Generator().manual_seed(tokens)
    logits, noise, raw = torch.randn(3, tokens, experts, generator=generator, dtype=torch.float64)
    scale = F.softplus(raw) + 0.01
    expert_idx, _, weight, *_ = route(logits + noise * scale, k, drop="none")
    expected = noisy_losses(logits, noise, scale, weight, expert_idx, k)
    for dtype, tolerance in DTYPES:
        importance = ops.moe_importance_loss(weight.to(dtype), expert_idx, experts)
        load = ops.moe_smooth_load_loss(*(x.to(dtype) for x in (logits, noise, scale)), k)
        for ours, theirs in zip((importance, load), expected, strict=True):
            assert ours.dtype == dtype and ours.shape == ()
            torch.testing.assert_close(ours, torch.tensor(theirs, dtype=dtype), **tolerance)
    leaves = [x.clone().requires_grad_() for x in (logits, scale, weight)]
    losses = lambda x, s, w: (ops.moe_smooth_load_loss(x, noise, s, k), ops.moe_importance_loss(w, expert_idx, experts))  # noqa: E731
    assert torch.autograd.gradcheck(losses, leaves)


def test_noisy_losses_at_their_ends():
    even, one = torch.tensor([[0, 1], [2, 3]]), torch.tensor([[0, 1], [1, 0]])
    weight = torch.full((2, 2), 0.5)
    assert ops.moe_importance_loss(weight, even, 4) == 0 and ops.moe_importance_loss(weight, one, 4) == 1
    logits, scale = torch.randn(3, 7, 4)[:2], torch.ones(7, 4)
    assert ops.moe_smooth_load_loss(logits[0], logits[1], scale, 4) == 0  # each expert has each token
    assert ops.moe_smooth_load_loss(*torch.zeros(3, 0, 4), 2) == 0
    for name, arguments in {
        "noise": (logits[0], logits[1][:3], scale, 2), "noise_scale": (logits[0], logits[1], scale[0], 2),
        "k": (logits[0], logits[1], scale, 5), "logits": (logits[0][0], logits[1], scale, 2),
    }.items():  # fmt: skip
        with pytest.raises(RuntimeError, match=rf"\b{name}\b"):
            ops.moe_smooth_load_loss(*arguments)
    for name, arguments in {
        "weight": (even, even, 4), "expert_idx": (weight, even[:1], 4), "num_experts": (weight, even, 0),
    }.items():  # fmt: skip
        with pytest.raises(RuntimeError, match=rf"\b{name}\b"):
            ops.moe_importance_loss(*arguments)


@pytest.mark.parametrize("aux", WORDS["aux"])
@pytest.mark.parametrize("score", WORDS["score"])
def test_load_loss_of_sequences(score, aux):
    logits = random_logits(48, 8)[0]
    expected = [reference(part, 3, score=score, aux=aux)[4] for part in logits.split(12)]
    for dtype, tolerance in DTYPES:
        x = logits.to(dtype, copy=True).requires_grad_()
        ours = route(x, 3, score=score, aux=aux, sequence=12)[4]
        torch.testing.assert_close(ours, torch.stack(expected).mean().to(dtype), **tolerance)
        theirs = torch.stack(
            [
                dense(
                    part,
                    *route(part, 3, score=score)[:2],
                    3,
                    {"score": score, "aux": aux, "normalize": "none", "scale": 1},
                )[1]
                for part in x.split(12)
            ]
        ).mean()
        torch.testing.assert_close(
            *(torch.autograd.grad(y, x, retain_graph=True)[0] for y in (ours, theirs)), **tolerance
        )
    whole = route(logits, 3, score=score, aux=aux)[4]
    assert abs(ours - whole) > 1e-3 and route(logits, 3, score=score, aux=aux, sequence=48)[4] == whole


def test_slots_by_hand():
    """The tokens choose (0, 1), (1, 0), (0, 1), each surer than the one before; of the first one 2 w2 is 0.54."""
    logits, draw = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]]), torch.tensor([0.9, 0.0, 0.0])
    for expected, options in (
        ([[0, 1], [0, 2], [1, 2]], {"drop": "none"}),
        ([[0, 0], [1, 1], [2, 2]], {"drop": "none", "slot_order": "token"}),
        ([[1, 2], [0, 2], [0, 1]], {"drop": "none", "batch_prioritized": True}),
        ([[2, 2], [1, 1], [0, 0]], {"drop": "none", "slot_order": "token", "batch_prioritized": True}),
        ([[0, 1], [0, -1], [1, -1]], {"capacity": 2}),
        ([[-1, -1], [0, -1], [0, -1]], {"capacity": 1, "drop": "probability"}),
        ([[0, -1], [0, 2], [1, 2]], {"drop": "none", "draw": draw}),
        ([[0, -1], [0, 2], [1, 1]], {"drop": "none", "draw": draw, "draw_frees_slot": True}),
    ):
        assert route(logits, 2, **options)[1].tolist() == expected, options
    assert route(torch.tensor([[1e4, 0.0]]), 2, draw=torch.zeros(1), drop="none")[1].tolist() == [[0, 0]]


def test_capacity_rules_by_hand():
    """Ten tokens with the same two of four experts: each of the two keeps as many as its capacity."""
    logits = torch.tensor([3.0, 2.0, 1.0, 0.0]).repeat(10, 1)
    for rule, of_factor in {
        "tutel": {1.0: 6, 1.3: 6, 1.4: 8, 0.3: 0, 0.0: 10, -0.5: 2, -1.0: 6, -9.0: 10},
        "switch": {1.0: 2, 1.3: 3, 2.0: 5, 0.3: 0},
        "megatron": {1.0: 5, 1.3: 7, 0.3: 2},
        "megablocks": {1.0: 5, 1.3: 6, 0.3: 1},
        "mesh_tf": {1.0: 4, 1.3: 4, 2.5: 6},
    }.items():
        for (factor, capacity), given, drop in itertools.product(of_factor.items(), (0, 9), WORDS["drop"]):
            options = {"capacity_rule": rule, "capacity_factor": factor, "capacity": given, "drop": drop}
            _, slot, _, count, _, _ = route(logits, 2, **options)
            assert (slot >= 0).sum(0).tolist() == [10 if drop == "none" else given or capacity] * 2, options
            assert count.tolist() == [10, 10, 0, 0]


def test_a_tiny_sum_counts_as_1e_20():
    logits = torch.full((1, 4), -60.0, dtype=torch.float64)
    p = logits.sigmoid()[:, :1]
    for k, normalize, expected in ((2, "before", p / 1e-20), (2, "after", p / 1e-20), (1, "before", p)):
        weight = route(logits, k, score="sigmoid", capacity=1, normalize=normalize)[2]
        torch.testing.assert_close(weight, expected.expand(1, k), rtol=1e-12, atol=0)


@pytest.mark.parametrize("score", WORDS["score"])
@pytest.mark.parametrize("aux", WORDS["aux"])
def test_aux_loss_is_1_at_balance_and_E_when_one_expert_has_all(aux, score):
    steps = torch.tensor([2.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    balanced, collapsed = torch.stack([steps.roll(t) for t in range(24)]), 1e4 * (steps - 1.5).repeat(24, 1)
    assert route(balanced, 2, score=score, aux=aux)[4].item() == pytest.approx(1, abs=1e-12)
    assert route(collapsed, 1, score=score, aux=aux)[4].item() == pytest.approx(4, abs=1e-12)


@pytest.mark.parametrize("score", WORDS["score"])
def test_gradcheck_and_a_bias_without_gradient(score):
    torch.manual_seed(0)
    x, bias = (torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((7, 8), (8,)))
    options = {"score": score, "normalize": "after", "capacity": 3, "scale": 2.0, "aux": "all_choices", "bias": bias}
    assert torch.autograd.gradcheck(lambda y: [route(y, 3, **options)[i] for i in (2, 4, 5)], x)
    assert torch.autograd.gradcheck(lambda y: ops.moe_expert_choice(y, 3)[1], x)
    assert torch.autograd.grad(route(x, 3, **options)[2].sum(), bias, allow_unused=True) == (None,)


def values_and_gradient(logits):
    ours = ops.moe_route(logits, 6, "softmax", "after", "choice", "probability")
    by_expert = ops.moe_expert_choice(logits, len(logits) // 15)
    loss = ours[2].square().sum() + ours[4] + ours[5] + by_expert[1].square().sum()
    return [*ours, *by_expert, *torch.autograd.grad(loss, logits)]


def test_repeated_calls_give_the_same_bits():
    logits = random_logits(3000, 60)[0].float().requires_grad_()
    first, *others = (values_and_gradient(logits) for _ in range(3))
    assert all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_computed_in_float32(dtype):
    logits = random_logits(64, 8)[0].to(dtype).requires_grad_()
    *ours, gradient = values_and_gradient(logits)
    *theirs, of_float = values_and_gradient(logits.detach().float().requires_grad_())
    assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert gradient.dtype == dtype and (gradient - of_float).abs().max() < 0.01 * of_float.abs().max()


@pytest.mark.parametrize("tokens, experts, capacity", [(1, 1, 1), (7, 2, 7), (64, 8, 16), (193, 60, 1), (193, 60, 50)])
def test_expert_choice(tokens, experts, capacity):
    logits = random_logits(tokens, experts)[0]
    p = [probabilities(row, "softmax") for row in logits.tolist()]
    expected = [sorted(range(tokens), key=lambda t: (-p[t][e], t))[:capacity] for e in range(experts)]
    for dtype, tolerance in DTYPES:
        x = logits.to(dtype, copy=True).requires_grad_()
        token_idx, weight = ops.moe_expert_choice(x, capacity)
        assert token_idx.dtype == torch.int32 and token_idx.tolist() == expected
        gathered = x.softmax(1).T.gather(1, token_idx.long())
        torch.testing.assert_close(weight, gathered, **tolerance)
        ours, theirs = (torch.autograd.grad(y.square().sum(), x)[0] for y in (weight, gathered))
        torch.testing.assert_close(ours, theirs, **tolerance)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_meta_tensors_have_shapes(dtype):
    logits = torch.zeros(5, 8, dtype=dtype)
    for op, argument in ((ops.moe_route, 3), (ops.moe_expert_choice, 2)):
        for ours, theirs in zip(op(logits.to("meta"), argument), op(logits, argument), strict=True):
            assert ours.is_meta and ours.shape == theirs.shape and ours.dtype == theirs.dtype


@pytest.mark.parametrize(
    "k, options, name",
    [
        *[(k, {}, "k") for k in (-1, 0, 9)], (5, {"num_groups": 4, "top_groups": 2}, "k"),
        (2, {"num_groups": 3}, "num_groups"), *[(2, {name: "other"}, name) for name in WORDS],
        *[(2, {"num_groups": 4, "top_groups": x}, "top_groups") for x in (0, 5)],
        (2, {"bias": torch.zeros(7)}, "bias"), (2, {"capacity": -1}, "capacity"),
        *[(2, {"sequence": x}, "sequence") for x in (-1, 3, 5)],
        (2, {"router": "other"}, "router"), (2, {"router": "base"}, "k"),
        (1, {"router": "base", "num_groups": 2}, "num_groups"),
        (2, {"router": "balanced", "top_groups": 2}, "top_groups"),
        (2, {"router": "sinkhorn", "bias": torch.zeros(8)}, "bias"),
        (2, {"chosen": torch.zeros(4, 2), "router": "sinkhorn"}, "chosen"),
        *[(2, {"chosen": torch.tensor(rows).to(kind)}, "chosen")
          for rows, kind in (([[0, 1]] * 4, torch.float32), ([[0, 1]] * 3, torch.int32), ([[0]] * 4, torch.int32),
                             ([[0, 0]] * 4, torch.int32), ([[0, 8]] * 4, torch.int32), ([[-1, 0]] * 4, torch.int64))],
        *[(k, {"draw": torch.zeros(size)}, "draw") for k, size in ((2, 3), (1, 4), (3, 4))],
        *[(2, {name: x}, name) for name in ("scale", "capacity_factor") for x in (math.nan, math.inf, -math.inf)],
        *[(2, {"capacity_rule": rule, "capacity_factor": x}, "capacity_factor")
          for rule in WORDS["capacity_rule"][1:] for x in (0.0, -1.0)],
    ],
)  # fmt: skip
def test_a_wrong_argument_is_named(k, options, name):
    with pytest.raises(RuntimeError, match=rf"\b{name}\b"):
        route(torch.randn(4, 8), k, **options)


def test_wrong_logits_and_capacities_are_named():
    for logits in (torch.zeros(8), torch.zeros(2, 4, 8), torch.zeros(4, 8, dtype=torch.long)):
        with pytest.raises(RuntimeError, match=r"\blogits\b"):
            ops.moe_route(logits, 1)
    for tokens, capacity in ((4, 0), (4, 5), (4, -1), (0, 1)):
        with pytest.raises(RuntimeError, match=r"\bcapacity\b"):
            ops.moe_expert_choice(torch.zeros(tokens, 8), capacity)


def router_of(model, name, logits, **config):
    """The module of a model in transformers, and its router, whose logits are made its input."""
    from transformers import AutoConfig

    module = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    config |= dict.fromkeys(("hidden_size", "d_model", "num_experts", "num_local_experts"), logits.shape[1])
    router = getattr(module, name)(AutoConfig.for_model(model.replace("nllb_", "nllb-"), **config))
    getattr(router, "classifier", router).weight.data = torch.eye(logits.shape[1])
    return module, router


def check_weights(ours, theirs, expert_idx=None):
    zeros = torch.zeros(len(theirs), len(ours[3]))
    theirs = theirs if expert_idx is None else zeros.scatter(1, expert_idx, theirs)
    torch.testing.assert_close(zeros.scatter(1, ours[0].long(), ours[2]), theirs)


def test_mixtral_and_switch_transformers():
    logits = torch.randn(193, 8, generator=torch.Generator().manual_seed(0))
    for k in (2, 4):
        mixtral, router = router_of("mixtral", "MixtralTopKRouter", logits, num_experts_per_tok=k)
        ours = route(logits, k, drop="none", aux="all_choices")
        check_weights(ours, *router(logits)[1:])
        torch.testing.assert_close(ours[4] * k, mixtral.load_balancing_loss_func((logits,), 8, k))
    config = {"expert_capacity": 20, "router_jitter_noise": 0.0}
    switch, router = router_of("switch_transformers", "SwitchTransformersTop1Router", logits, **config)
    ours, (kept, p, router_logits) = route(logits, 1, capacity=20), router(logits[None])
    check_weights(ours, kept[0] * p[0])
    torch.testing.assert_close(ours[4], switch.load_balancing_loss_func(logits.softmax(1)[None], ours[0].T))
    torch.testing.assert_close(ours[5], switch.router_z_loss_func(router_logits))


@pytest.mark.parametrize("groups, top_groups, k", [(1, 1, 6), (8, 4, 6), (4, 1, 3)])
def test_deepseek_v2_and_v3(groups, top_groups, k):
    torch.manual_seed(0)
    logits, bias = torch.randn(193, 64), 0.2 * torch.randn(64)
    config = {"n_routed_experts": 64, "num_experts_per_tok": k, "n_group": groups, "topk_group": top_groups}
    config |= {"routed_scaling_factor": 2.5, "norm_topk_prob": True, "topk_method": "group_limited_greedy"}
    for version, options in ((2, {"normalize": "none", "group_score": "max"}), (3, {"score": "sigmoid", "bias": bias})):
        _, router = router_of(f"deepseek_v{version}", f"DeepseekV{version}TopkRouter", logits, **config)
        router.e_score_correction_bias = bias
        ours = route(logits, k, drop="none", num_groups=groups, top_groups=top_groups, scale=2.5, **options)
        check_weights(ours, *router(logits)[1:])


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("policy, experts, normalize", [("all", 8, "after"), ("random", 2, "before")])
def test_nllb(policy, experts, normalize, prioritized):
    """Its random second expert compares p itself, which is the normalised weight where there are two experts."""
    logits = torch.randn(193, experts, generator=torch.Generator().manual_seed(0))
    config = {"expert_capacity": 40, "second_expert_policy": policy, "batch_prioritized_routing": prioritized}
    config["normalize_router_prob_before_dropping"] = normalize == "before"
    _, router = router_of("nllb_moe", "NllbMoeTop2Router", logits, **config)
    draw = torch.rand(193, generator=torch.manual_seed(1)) if policy == "random" else None
    torch.manual_seed(1)
    options = {"draw": draw, "draw_frees_slot": True, "normalize": normalize, "batch_prioritized": prioritized}
    check_weights(route(logits, 2, capacity=40, **options), router.route_tokens(logits)[1])
