"""dovetail.embedding.ShardedEmbeddingCollection against EmbeddingCollection and torch.nn.EmbeddingBag."""

import copy
import itertools
import pickle

import pytest
import torch
from dovetail.embedding import Dynamic, EmbeddingCollection, ShardedEmbeddingCollection, Table, Tiers
from ranks import on_ranks

ROWS = {"user": 90, "item": 17, "few": 2}
DIMS = {"user": 24, "item": 16, "few": 18}
TABLES = [Table("user", 90, 24), Table("item", 17, 16, "mean"), Table("few", 2, 18)]
FEATURES = {"clicked": "item", "user": "user", "few": "few", "bought": "item"}
WIDTH = sum(DIMS[table] for table in FEATURES.values())
SHARDINGS = ["auto", "row", "table", "column", "replicated"]
OPTIMIZERS = ["sgd", "momentum", "adagrad", "rowwise_adagrad", "adam"]


def batch(seed, samples=11, weighted=False):
    """Return lengths (features, samples), the ids of each bag, their weights, and a gradient."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 4, (len(FEATURES), samples), generator=generator)
    bags = [
        [torch.randint(0, ROWS[table], (int(n),), generator=generator) for n in of_feature]
        for table, of_feature in zip(FEATURES.values(), lengths, strict=True)
    ]
    weights = [[torch.rand(len(bag), generator=generator) for bag in of_feature] for of_feature in bags]
    return bags, weights if weighted else None, torch.randn(samples, WIDTH, generator=generator)


def part(bags, weights, samples):
    """Return values, offsets and weights of some samples."""
    chosen = [bag for of_feature in bags for bag in of_feature[samples]]
    lengths = torch.tensor([0, *map(len, chosen)])
    if weights is not None:
        weights = torch.cat([torch.empty(0), *(w for of_feature in weights for w in of_feature[samples])])
    return torch.cat([torch.empty(0, dtype=torch.long), *chosen]), lengths.cumsum(0), weights


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


def layouts():
    for optimizer, sharding, row_dtype in itertools.product(OPTIMIZERS, SHARDINGS, ["fp32", "bf16", "mxfp8"]):
        column = sharding == "column" and (optimizer == "rowwise_adagrad" or row_dtype == "mxfp8")
        if not column and (row_dtype == "fp32" or optimizer in ("rowwise_adagrad", "adam")):
            yield optimizer, sharding, row_dtype


@pytest.mark.parametrize("optimizer,sharding,row_dtype", list(layouts()))
def test_one_rank_has_the_bits_of_a_collection(optimizer, sharding, row_dtype):
    options = {"optimizer": optimizer, "lr": 0.1, "row_dtype": row_dtype}
    plain = EmbeddingCollection(TABLES, FEATURES, **options)
    ours = ShardedEmbeddingCollection(TABLES, FEATURES, sharding=sharding, **options)
    for step in range(3):
        bags, weights, gradient = batch(step, weighted=step == 1)
        for collection in (plain, ours):
            collection(*part(bags, weights, slice(None))).backward(gradient)
        if step == 1:
            plain.set_lr(0.03)
            ours.set_lr(0.03)
    bags, weights, gradient = batch(7)
    with torch.no_grad():
        assert torch.equal(*(collection(*part(bags, weights, slice(None))) for collection in (plain, ours)))
    assert_same(plain.state_dict(), ours.state_dict())
    # State goes from one kind to the other.
    seed = 5 if row_dtype == "fp32" else 0  # stochastic rounding follows the seed
    again = ShardedEmbeddingCollection(TABLES, FEATURES, sharding=sharding, seed=seed, **options)
    again.load_state_dict(plain.state_dict())
    plain.load_state_dict(ours.state_dict())
    again.set_lr(0.03)
    for collection in (plain, again):
        collection(*part(bags, weights, slice(None))).backward(gradient)
    assert_same(plain.state_dict(), again.state_dict())


def train_on_two_ranks(rank):
    results = {}
    for sharding in SHARDINGS:
        tables = ShardedEmbeddingCollection(TABLES, FEATURES, "adam", lr=0.1, sharding=sharding, gradients="sum")
        pooled = []
        for step, first in enumerate([5, 0, 11]):  # samples of rank 0
            bags, weights, gradient = batch(step, weighted=step > 0)
            own = slice(0, first) if rank == 0 else slice(first, 11)
            ids = part(bags, weights, own)
            if rank == 1 and step == 2:  # the rank without samples gives no weights
                ids = ids[:2]
            tables(*ids)  # a step that has no backward
            y = tables(*ids)
            y.backward(gradient[own])
            pooled.append(y.detach())
        state = tables.state_dict()
        again = ShardedEmbeddingCollection(TABLES, FEATURES, "adam", lr=0.1, seed=5, sharding="row")
        again.load_state_dict(state)
        results[sharding] = pooled, state, again.state_dict(), tables.plan()
    return results


def test_two_ranks_are_one_rank_with_the_whole_batch():
    ranks = on_ranks(train_on_two_ranks)
    plain = EmbeddingCollection(TABLES, FEATURES, "adam", lr=0.1)
    bag = {
        t.name: torch.nn.EmbeddingBag(
            t.rows, t.dim, mode="sum", sparse=True, include_last_offset=True, _weight=plain.weight(t.name).clone()
        )
        for t in TABLES
    }
    adam = torch.optim.SparseAdam([b.weight for b in bag.values()], lr=0.1)
    expected = []
    for step in range(3):
        bags, weights, gradient = batch(step, weighted=step > 0)
        expected.append(plain(*part(bags, weights, slice(None))))
        expected[-1].backward(gradient)
        outputs = []
        for f, table in enumerate(FEATURES.values()):
            values, offsets, w = part(bags[f : f + 1], weights and weights[f : f + 1], slice(None))
            w = torch.ones(len(values)) if w is None else w
            sizes = offsets.diff().clamp(min=1)[:, None] if table == "item" else 1
            outputs.append(bag[table](values, offsets, w) / sizes)
        adam.zero_grad()
        torch.cat(outputs, 1).backward(gradient)
        adam.step()
    for sharding in SHARDINGS:
        pooled = [torch.cat(of_step) for of_step in zip(*(of_rank[sharding][0] for of_rank in ranks), strict=True)]
        (_, state, again, plan), (_, nothing, _, _) = (of_rank[sharding] for of_rank in ranks)
        assert nothing == {}
        assert_same(state, again)
        assert sharding == "auto" or {pack["sharding"] for pack in plan["packs"]} == {sharding}
        for ours, theirs in zip(pooled, expected, strict=True):
            torch.testing.assert_close(ours, theirs.detach(), rtol=0, atol=1e-6)
            assert sharding == "row" or torch.equal(ours, theirs)
        for name, tensor in plain.state_dict().items():
            # From the same gradients, an update has the same bits on any number of ranks, except for row-wise means.
            tolerance = 1e-6 if sharding == "row" and name.startswith("item") else 0
            torch.testing.assert_close(state[name], tensor, rtol=tolerance, atol=tolerance)
        for name in ROWS:
            torch.testing.assert_close(state[f"{name}.weight"], bag[name].weight.detach(), rtol=1e-4, atol=1e-5)


def train_single_rows(rank):
    results = {}
    for sharding in ["row", "table", "column", "replicated"]:
        tables = ShardedEmbeddingCollection(
            TABLES, FEATURES, "adam", lr=0.1, sharding=sharding, gradients="sum", transfer="rows"
        )
        pooled = []
        for step, first in enumerate([5, 0, 11]):  # samples of rank 0
            bags, weights, gradient = batch(step, weighted=step > 0)
            own = slice(0, first) if rank == 0 else slice(first, 11)
            y = tables(*part(bags, weights, own))
            y.backward(gradient[own])
            pooled.append(y.detach())
        results[sharding] = pooled, tables.state_dict(), tables.plan()
    return results


def test_single_rows_train_as_the_whole_batch_on_one_rank():
    ranks = on_ranks(train_single_rows)
    plain = EmbeddingCollection(TABLES, FEATURES, "adam", lr=0.1)
    expected = []
    for step in range(3):
        bags, weights, gradient = batch(step, weighted=step > 0)
        expected.append(plain(*part(bags, weights, slice(None))))
        expected[-1].backward(gradient)
    for sharding in ranks[0]:
        pooled = [torch.cat(of_step) for of_step in zip(*(of_rank[sharding][0] for of_rank in ranks), strict=True)]
        _, state, plan = ranks[0][sharding]
        assert {pack["transfer"] for pack in plan["packs"]} == {"rows"}
        assert torch.equal(pooled[0], expected[0].detach())  # pooled by the rank of the samples
        for ours, theirs in zip(pooled, expected, strict=True):
            torch.testing.assert_close(ours, theirs.detach(), rtol=0, atol=1e-6)
        for name, tensor in plain.state_dict().items():
            torch.testing.assert_close(state[name], tensor, rtol=1e-5, atol=1e-6)


def test_a_transfer_has_a_name():
    with pytest.raises(RuntimeError, match=r"no transfer is named .auto.*bags"):
        ShardedEmbeddingCollection(TABLES, FEATURES, transfer="auto")


class Model(torch.nn.Module):
    def __init__(self, tables):
        super().__init__()
        self.tables, self.dense = tables, torch.nn.Linear(WIDTH, 1)

    def forward(self, *ids):
        return self.dense(self.tables(*ids)).squeeze(1)


def train_under_ddp(rank):
    torch.manual_seed(1)
    model = Model(ShardedEmbeddingCollection(TABLES, FEATURES, "sgd", lr=0.5))
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    dense = torch.optim.SGD(parallel.parameters(), lr=0.5)
    for step in range(3):
        bags, weights, _ = batch(step, samples=12)
        dense.zero_grad()
        parallel(*part(bags, weights, slice(6 * rank, 6 * rank + 6))).square().mean().backward()
        dense.step()
    return model.state_dict()


def test_a_model_in_ddp_trains_as_one_process_with_the_mean_loss():
    state, of_rank_one = on_ranks(train_under_ddp)
    assert of_rank_one.keys() == {"dense.weight", "dense.bias"}
    torch.manual_seed(1)
    model = Model(EmbeddingCollection(TABLES, FEATURES, "sgd", lr=0.5))
    dense = torch.optim.SGD(model.parameters(), lr=0.5)
    before = model.tables.weight("user").clone()
    for step in range(3):
        bags, weights, _ = batch(step, samples=12)
        dense.zero_grad()
        model(*part(bags, weights, slice(None))).square().mean().backward()
        dense.step()
    assert (model.tables.weight("user") - before).abs().max() > 1e-3
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(state[name], tensor, rtol=1e-4, atol=1e-6)


def fail_on_two_ranks(rank):
    errors = {}

    def refused(name, function):
        with pytest.raises(RuntimeError) as caught:
            function()
        errors[name] = str(caught.value)

    refused("tables", lambda: ShardedEmbeddingCollection([Table("t", 10 + rank, 4)], {"f": "t"}))
    refused("options", lambda: ShardedEmbeddingCollection([Table("t", 10, 4)], {"f": "t"}, lr=0.1 * (1 + rank)))
    tables = ShardedEmbeddingCollection([Table("t", 10, 4), Table("u", 3, 4)], {"f": "t"}, "adagrad")
    state = tables.state_dict()
    wrong = {**state, "t.s": torch.zeros(9, 4)} if rank == 0 else {}
    refused("shape", lambda: tables.load_state_dict(wrong))
    # A table that is missing keeps its rows; the others are read.
    some = {"t.weight": torch.ones(10, 4), "t.s": torch.zeros(10, 4), "u.weight": torch.zeros(3, 4)}
    keys = tables.load_state_dict(some if rank == 0 else {}, strict=False)
    errors["missing"] = keys.missing_keys
    after = tables.state_dict()
    errors["read"] = rank == 1 or bool(
        (after["t.weight"] == 1).all() and torch.equal(after["u.weight"], state["u.weight"])
    )
    # Groups of one rank each: collections beside the job's.
    groups = [torch.distributed.new_group([r]) for r in range(2)]
    own = ShardedEmbeddingCollection([Table("own", 5 + rank, 4)], {"f": "own"}, group=groups[rank], seed=rank)
    errors["own"] = tuple(own.state_dict()["own.weight"].shape)
    return errors


def test_mistakes_of_ranks_are_errors_on_all():
    for rank, errors in enumerate(on_ranks(fail_on_two_ranks)):
        assert 'rank 0 has "tables/0/rows = 10", but rank 1 has "tables/0/rows = 11"' in errors["tables"]
        assert '"optimizer/lr = 0.1"' in errors["options"] and '"optimizer/lr = 0.2"' in errors["options"]
        assert "rank 0: t.s is torch.float32 [10, 4], not torch.float32 [9, 4]" in errors["shape"]
        assert sorted(errors["missing"]) == (["steps", "u.s"] if rank == 0 else [])
        assert errors["read"]
        assert errors["own"] == (5 + rank, 4)


def ids(*values):
    return torch.tensor(values), torch.arange(len(values) + 1)


def test_one_step_is_at_a_time():
    tables = ShardedEmbeddingCollection([Table("t", 10, 4)], {"f": "t"}, "sgd", lr=1.0)
    rows = tables.state_dict()["t.weight"]
    late = tables(*ids(1, 2))
    tables(*ids(3)).sum().backward()  # ends the step before without an update
    with pytest.raises(RuntimeError, match="one step at a time"):
        late.sum().backward()
    late = tables(*ids(1, 2))
    with torch.no_grad():
        tables(*ids(4))
    with pytest.raises(RuntimeError, match="one step at a time"):
        late.sum().backward()
    rows[3] -= 1
    assert torch.equal(tables.state_dict()["t.weight"], rows)
    y = tables(*ids(5))
    y.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="one step at a time"):
        y.sum().backward()


@pytest.mark.parametrize("policy", ["hot", "lru", "lfu"])
@pytest.mark.parametrize("in_files", [False, True])
def test_tiers_change_no_bit(policy, in_files, tmp_path):
    tiers = Tiers(30_000, str(tmp_path) if in_files else None, policy, step_rows=8, warmup_steps=2, refresh_steps=2)
    plain = EmbeddingCollection(TABLES, FEATURES, "adam", lr=0.1)
    ours = ShardedEmbeddingCollection(TABLES, FEATURES, "adam", lr=0.1, tiers=tiers)
    for step in range(8):
        bags, weights, gradient = batch(step)
        for collection in (plain, ours):
            collection(*part(bags, weights, slice(None))).backward(gradient)
        with torch.no_grad():
            bags, weights, _ = batch(100 + step)
            assert torch.equal(*(collection(*part(bags, weights, slice(None))) for collection in (plain, ours)))
    assert_same(plain.state_dict(), ours.state_dict())
    counts = ours.tier_counts()
    assert counts["hits"] > 0 and counts["rows_read"] > 0 and counts["rows_written"] > 0
    assert ShardedEmbeddingCollection(TABLES, FEATURES).tier_counts() == {}
    with pytest.raises(RuntimeError, match="memory_bytes"):
        ShardedEmbeddingCollection(TABLES, FEATURES, tiers=Tiers(10))


MIXED = [
    Table("user", 300, 16),
    Table("page", 300, 16, dynamic=True),
    Table("word", 200, 16, "mean", dynamic=True),
]
MIXED_FEATURES = {"user": "user", "page": "page", "words": "word"}
MEMORY = 92_000  # rows take some 150 KB, ids 36 KB
LEAVING = Dynamic("count", min_count=2, max_candidates=50, eviction="age", max_age=3, evict_steps=2)


def mixed(**options):
    return ShardedEmbeddingCollection(MIXED, MIXED_FEATURES, "adam", lr=0.1, dynamic=LEAVING, **options)


def mixed_batch(seed, samples=11):
    """Return values and offsets with ids of dynamic tables, which drift over time."""
    generator, bags = torch.Generator().manual_seed(seed), []
    for feature in MIXED_FEATURES:
        ids = [torch.randint(0, 60, (n,), generator=generator) + 5 * (seed % 100) for n in sizes_of(samples, generator)]
        bags.append(ids if feature == "user" else [x * 2**33 - 9 for x in ids])
    return *part(bags, None, slice(None))[:2], torch.randn(samples, 48, generator=generator)


def sizes_of(samples, generator):
    return torch.randint(0, 4, (samples,), generator=generator).tolist()


@pytest.mark.parametrize("policy", ["hot", "lru", "lfu"])
@pytest.mark.parametrize("in_files", [False, True])
def test_tiers_of_dynamic_and_other_tables_change_no_bit(policy, in_files, tmp_path):
    folder = str(tmp_path) if in_files else None
    tiers = Tiers(MEMORY, folder, policy, step_rows=24, warmup_steps=2, refresh_steps=2)
    plain, ours, again = mixed(), mixed(tiers=tiers), mixed(tiers=tiers)
    for step in range(20):
        if step == 10:
            again.load_state_dict(ours.state_dict())
        values, offsets, gradient = mixed_batch(step)
        for tables in (plain, ours, again) if step >= 10 else (plain, ours):
            tables(values, offsets).backward(gradient)
        with torch.no_grad():
            counts = ours.tier_counts()
            values, offsets, _ = mixed_batch(100 + step)
            assert torch.equal(plain(values, offsets), ours(values, offsets))
            assert ours.tier_counts()["hits"] == counts["hits"]
    for tables in (ours, again):
        assert_same(plain.state_dict(), tables.state_dict())
    assert counts["rows_read"] > 0 and counts["rows_written"] > 0
    found, expected = ours.key_counts(), plain.key_counts()
    assert 0 < found.pop("bytes") <= MEMORY and expected.pop("bytes") > 0
    assert found == expected and found["evicted"] > 20
    with pytest.raises(RuntimeError, match=r'memory_bytes is 9000, but .* table "page" 2\d+ for its ids .* "word"'):
        mixed(tiers=Tiers(9000))


def keyed(dynamic=None, rows=100, **options):
    table = Table("t", rows, 4, dynamic=True, **options)
    return ShardedEmbeddingCollection([table], {"f": "t"}, "sgd", lr=1.0, dynamic=dynamic)


def test_a_dynamic_table_is_an_embedding_of_its_keys():
    tables = keyed()
    keys = torch.tensor([-5, 2**60, 7, -5, 7, 7])
    y = tables(keys, torch.arange(7))
    gradient = torch.randn(6, 4)
    y.backward(gradient)
    found, numbers = keys.unique(return_inverse=True)
    state = tables.state_dict()
    assert sorted(state["t.keys"].tolist()) == found.tolist()
    order = [state["t.keys"].tolist().index(key) for key in found.tolist()]
    start = torch.stack([y[keys.tolist().index(key)] for key in found.tolist()]).detach()
    weight = torch.nn.Parameter(start)
    torch.nn.functional.embedding(numbers, weight).backward(gradient)
    torch.testing.assert_close(state["t.weight"][order], start - weight.grad, rtol=0, atol=1e-6)
    with torch.no_grad():
        assert (tables(*ids(99)) == 0).all()  # an evaluation admits no key
    assert tables.key_counts()["rows"] == 3


def test_dynamic_tables_admit_and_evict():
    tables = keyed(Dynamic("count", min_count=2, max_candidates=50))
    assert (tables(*ids(1, 2, 2)).detach()[0] == 0).all()
    assert tables.state_dict()["t.keys"].tolist() == [2]
    assert tables.state_dict()["t.candidate_keys"].tolist() == [1]
    tables(*ids(1)).sum().backward()
    assert sorted(tables.state_dict()["t.keys"].tolist()) == [1, 2]
    tables = keyed(Dynamic(eviction="age", max_age=1, evict_steps=2))
    tables(*ids(1)).sum().backward()
    for _ in range(3):
        tables(*ids(2)).sum().backward()
    assert tables.state_dict()["t.keys"].tolist() == [2]
    tables = keyed(rows=2)
    tables(*ids(1, 2, 3)).sum().backward()
    assert tables.key_counts()["refused_full"] == 1


def test_a_dynamic_table_goes_on_from_its_state():
    rules = Dynamic("count", min_count=3, max_candidates=50, eviction="frequency", keep_rows=6, evict_steps=3)
    one, other = keyed(rules), keyed(rules)
    generator = torch.Generator().manual_seed(0)
    steps = [torch.randint(0, 30, (40,), generator=generator) for _ in range(8)]
    for step, keys in enumerate(steps):
        if step == 4:
            other.load_state_dict(one.state_dict())
        for tables in (one, other) if step >= 4 else (one,):
            tables(keys, torch.arange(41)).sum().backward()
    assert_same(one.state_dict(), other.state_dict())
    assert one.key_counts()["evicted"] > 0


def train_keys_on_two_ranks(rank):
    results = {}
    table = Table("t", 100, 4, dynamic=True)
    for sharding, tiers in [("row", None), ("table", None), ("row", Tiers(5_500, policy="lru", step_rows=4))]:
        tables = ShardedEmbeddingCollection(
            [table], {"f": "t"}, "adam", lr=0.1, gradients="sum", sharding=sharding, tiers=tiers
        )
        generator = torch.Generator().manual_seed(0)
        for _ in range(12):
            keys = torch.randint(-20, 20, (12,), generator=generator)[6 * rank : 6 * rank + 6]
            tables(keys, torch.arange(7)).sum().backward()
        results[sharding, tiers is None] = tables.state_dict()
    results["counts"] = tables.tier_counts()
    return results


def test_dynamic_tables_on_two_ranks_are_those_of_one():
    results, _ = on_ranks(train_keys_on_two_ranks)
    tables = ShardedEmbeddingCollection([Table("t", 100, 4, dynamic=True)], {"f": "t"}, "adam", lr=0.1)
    generator = torch.Generator().manual_seed(0)
    for _ in range(12):
        tables(torch.randint(-20, 20, (12,), generator=generator), torch.arange(13)).sum().backward()
    assert results.pop("counts")["rows_read"] > 0
    for state in results.values():
        assert_same(state, tables.state_dict())


def test_a_compiled_model_trains_as_the_model():
    torch._dynamo.reset()
    plain, model = (ShardedEmbeddingCollection(TABLES, FEATURES, "adam", lr=0.1) for _ in range(2))
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)
    for step, samples in enumerate([11, 5, 8]):
        bags, weights, gradient = batch(step, samples)
        for tables in (plain, compiled):
            tables(*part(bags, weights, slice(None))).backward(gradient)
    assert_same(plain.state_dict(), model.state_dict())


def test_what_it_cannot_do_is_an_error():
    tables = ShardedEmbeddingCollection(TABLES, FEATURES)
    for copied in (copy.deepcopy, pickle.dumps):
        with pytest.raises(RuntimeError, match="save its state_dict"):
            copied(tables)
    for dtype in (torch.float64, torch.bfloat16, "meta"):
        with pytest.raises(RuntimeError, match="stay on the CPU"):
            torch.nn.Sequential(tables).to(dtype)
    torch.nn.Sequential(tables).float().cpu()
    with pytest.raises(RuntimeError, match="load its state_dict into an EmbeddingCollection"):
        bags, weights, _ = batch(0)
        torch.export.export(tables, part(bags, weights, slice(None))[:2])
    with pytest.raises(RuntimeError, match="no sharding"):
        ShardedEmbeddingCollection(TABLES, FEATURES, sharding="rows")
    with pytest.raises(RuntimeError, match="mean or sum"):
        ShardedEmbeddingCollection(TABLES, FEATURES, gradients="max")
    with pytest.raises(ValueError, match="no table is dynamic"):
        ShardedEmbeddingCollection(TABLES, FEATURES, dynamic=Dynamic())
    with pytest.raises(ValueError, match="not dynamic"):
        ShardedEmbeddingCollection([Table("t", 9, 4, max_bytes=10**6)], {"f": "t"})
    with pytest.raises(ValueError, match="no features of"):
        ShardedEmbeddingCollection(TABLES, FEATURES, ids_per_sample={"other": 2.0})
    with pytest.raises(RuntimeError, match="pooling none"):
        ShardedEmbeddingCollection([Table("t", 9, 4, "none")], {"f": "t"})
