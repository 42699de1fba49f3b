"""dovetail.embedding in PyTorch programs: torch.compile, torch.export, batches like TorchRec's KeyedJaggedTensor."""

import copy
import gc
import io
import subprocess
import sys

import pytest
import torch
from dovetail.embedding import EmbeddingCollection, Table

ROWS = {"user": 23, "item": 17}
TABLES = [Table("user", ROWS["user"], 16), Table("item", ROWS["item"], 5, "mean")]
FEATURES = {"user": "user", "clicked": "item", "friend": "user"}
WIDTH = 16 + 5 + 16


def make(**options):
    return EmbeddingCollection(TABLES, FEATURES, **{"optimizer": "adam", "lr": 0.1, **options})


def batch(seed, samples=11):
    """Return values, offsets and weights."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 4, (3, samples), generator=generator)
    values = [
        torch.randint(0, ROWS[table], (int(of_feature.sum()),), generator=generator)
        for table, of_feature in zip(FEATURES.values(), lengths, strict=True)
    ]
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.flatten().cumsum(0)])
    return torch.cat(values), offsets, torch.rand(int(offsets[-1]), generator=generator)


def embedding_bags(rows, values, offsets, weights):
    """torch.nn.functional.embedding_bag for each feature. It has no weights for means."""
    samples = (len(offsets) - 1) // 3
    outputs = []
    for f, table in enumerate(FEATURES.values()):
        bags = offsets[f * samples : (f + 1) * samples + 1]
        ids = slice(int(bags[0]), int(bags[-1]))
        mean = table == "item"
        y = torch.nn.functional.embedding_bag(
            values[ids],
            rows[table],
            bags - bags[0],
            mode="sum",
            per_sample_weights=None if weights is None else weights[ids],
            include_last_offset=True,
        )
        outputs.append(y / bags.diff().clamp(min=1)[:, None] if mean else y)
    return torch.cat(outputs, dim=1)


class Model(torch.nn.Module):
    def __init__(self, tables, dense):
        super().__init__()
        self.tables, self.dense = tables, dense

    def forward(self, *args):
        return self.dense(self.tables(*args)).square().sum()


def two_models(**options):
    """Return two models with the same rows and dense part."""
    dense = torch.nn.Linear(WIDTH, 1)
    return [Model(make(**options), copy.deepcopy(dense)) for _ in range(2)]


def assert_same_tables(one, other, **tolerance):
    for name, tensor in one.state_dict().items():
        torch.testing.assert_close(tensor, other.state_dict()[name], **(tolerance or {"rtol": 0, "atol": 0}))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_a_compiled_model_trains_as_the_model(backend):
    torch._dynamo.reset()
    plain, model = two_models()
    compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=True)
    tolerance = {"rtol": 1e-4, "atol": 1e-6} if backend == "inductor" else {"rtol": 0, "atol": 0}
    before = model.tables.weight("user").clone()
    for step, samples in enumerate([11, 7, 30]):
        for weighted in [False, True]:
            values, offsets, weights = batch(step, samples)
            args = (values, offsets, weights if weighted else None)
            losses = [m(*args) for m in (plain, compiled)]
            torch.testing.assert_close(*losses, **tolerance)
            for loss in losses:
                loss.backward()
            assert_same_tables(plain.tables, model.tables, **tolerance)
    assert (model.tables.weight("user") != before).any()
    torch.testing.assert_close(plain.dense.weight.grad, model.dense.weight.grad, **tolerance)
    with torch.no_grad():
        loss = compiled(*batch(9))
    torch.testing.assert_close(loss, plain(*batch(9)), **tolerance)
    assert model.tables.state_dict()["steps"] == 6


def test_compiled_micro_batches_add_up_in_the_order_of_their_lookups():
    torch._dynamo.reset()
    plain, model = two_models(update="apply")
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)
    for m in (plain, compiled):
        losses = [m(*batch(seed)) for seed in range(5)]
        for loss in losses[::-1]:
            loss.backward()
    assert model.tables.state_dict()["steps"] == 0
    plain.tables.apply_gradients()
    model.tables.apply_gradients()
    assert_same_tables(plain.tables, model.tables)


def test_a_compiled_graph_keeps_each_of_two_equal_lookups():
    """A lookup has a backward with an effect: a graph may not make one of two."""
    torch._dynamo.reset()
    plain, compiled = make(), make()
    values, offsets, _ = batch(1)

    def twice(tables, values, offsets):
        return tables(values, offsets) + 2 * tables(values, offsets)

    twice(plain, values, offsets).sum().backward()
    torch.compile(twice, backend="inductor", fullgraph=True)(compiled, values, offsets).sum().backward()
    assert plain.state_dict()["steps"] == compiled.state_dict()["steps"] == 2


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("row_dtype", ["fp32", "bf16", "mxfp8"])
def test_an_exported_program_looks_up_on_its_own(row_dtype, strict):
    torch._dynamo.reset()
    tables = make(row_dtype=row_dtype)
    values, offsets, weights = batch(1)
    tables(values, offsets).sum().backward()
    model = torch.nn.Sequential(tables)
    dynamic = ({0: torch.export.Dim.DYNAMIC}, {0: torch.export.Dim.DYNAMIC}, {0: torch.export.Dim.DYNAMIC})
    program = torch.export.export(tables, (values, offsets, weights), dynamic_shapes=dynamic, strict=strict)
    file = io.BytesIO()
    torch.export.save(program, file)
    expected = [tables(*batch(seed, samples)).detach() for seed, samples in [(2, 5), (3, 40)]]
    if row_dtype == "fp32":
        rows = {name: tables.weight(name).clone() for name in ROWS}
        torch.testing.assert_close(expected[0], embedding_bags(rows, *batch(2, 5)))
    del tables, model, program
    gc.collect()
    file.seek(0)
    loaded = torch.export.load(file).module()
    for found, (seed, samples) in zip(expected, [(2, 5), (3, 40)], strict=True):
        assert torch.equal(loaded(*batch(seed, samples)), found)


def test_an_exported_program_runs_in_another_process(tmp_path):
    tables = make()
    values, offsets, _ = batch(1)
    torch.export.save(torch.export.export(tables, (values, offsets)), tmp_path / "tables.pt2")
    torch.save({"in": (values, offsets), "out": tables(values, offsets).detach()}, tmp_path / "batch.pt")
    program = (
        "import sys, torch, dovetail\n"
        "batch = torch.load(sys.argv[2])\n"
        "y = torch.export.load(sys.argv[1]).module()(*batch['in'])\n"
        "assert torch.equal(y, batch['out']), 'another result'\n"
    )
    subprocess.run([sys.executable, "-c", program, tmp_path / "tables.pt2", tmp_path / "batch.pt"], check=True)


def test_an_exported_program_has_each_row_once():
    big = EmbeddingCollection([Table(f"t{i}", 1000, 16) for i in range(8)], {f"t{i}": f"t{i}" for i in range(8)})
    file = io.BytesIO()
    torch.export.save(torch.export.export(big, (torch.zeros(8, dtype=torch.long), torch.arange(9))), file)
    assert 8 * 1000 * 16 * 4 < file.getbuffer().nbytes < 2 * 8 * 1000 * 16 * 4


def test_tables_of_another_process_are_named():
    tables = make()
    handle = tables.handle
    del tables
    gc.collect()
    values, offsets, _ = batch(1)
    with pytest.raises(RuntimeError, match=f"no tables with handle {handle}"):
        torch.ops.dovetail.embedding_lookup(None, handle, values, offsets, None)


class Jagged:
    """The part of TorchRec's KeyedJaggedTensor that a lookup reads."""

    def __init__(self, keys, values, offsets, weights=None, has_offsets=True):
        self._keys, self._values, self._offsets, self._weights = keys, values, offsets, weights
        self.lengths = lambda: offsets.diff()
        if has_offsets:
            self.offsets = lambda: offsets

    def keys(self):
        return self._keys

    def values(self):
        return self._values

    def weights(self):
        if self._weights is None:
            raise ValueError("this KeyedJaggedTensor has no weights")
        return self._weights

    def weights_or_none(self):
        return self._weights


def jagged(keys, seed, weighted=False, dtype=torch.int64, **options):
    """Return a Jagged, and the same batch as values, offsets and weights in the order of FEATURES."""
    samples = 11
    values, offsets, weights = batch(seed, samples)
    names = list(FEATURES)
    parts = {}
    for f, name in enumerate(names):
        ids = slice(int(offsets[f * samples]), int(offsets[(f + 1) * samples]))
        parts[name] = (values[ids], offsets.diff()[f * samples : (f + 1) * samples], weights[ids])
    parts["unused"] = (torch.tensor([10**6] * samples), torch.ones(samples, dtype=torch.long), torch.ones(samples))
    of_keys = [torch.cat(part) for part in zip(*(parts[key] for key in keys), strict=True)]
    starts = torch.cat([torch.zeros(1, dtype=torch.long), of_keys[1].cumsum(0)])
    batch_of_keys = Jagged(keys, of_keys[0].to(dtype), starts.to(dtype), of_keys[2] if weighted else None, **options)
    return batch_of_keys, (values, offsets, weights if weighted else None)


KEYS = [list(FEATURES), ["friend", "user", "clicked"], ["unused", "clicked", "friend", "user"]]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("keys", KEYS)
def test_a_keyed_jagged_tensor_is_its_bags_by_name(keys, dtype, weighted):
    tables = make()
    rows = {name: tables.weight(name) for name in ROWS}
    for has_offsets in [False, True]:
        given, plain = jagged(keys, 4, weighted, dtype, has_offsets=has_offsets)
        y = tables(given).detach()
        torch.testing.assert_close(y, embedding_bags(rows, *plain))
        assert torch.equal(y, tables(*plain))


def test_a_keyed_jagged_tensor_without_weights_trains():
    one, other = make(), make()
    given, plain = jagged(KEYS[2], 4)
    one(given).sum().backward()
    other(*plain).sum().backward()
    assert_same_tables(one, other)


@pytest.mark.parametrize("keys", KEYS)
def test_a_keyed_jagged_tensor_compiles(keys):
    torch._dynamo.reset()
    plain, model = two_models()

    def step(values, offsets):
        return model(Jagged(keys, values, offsets))

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True, dynamic=True)
    for seed in range(3):
        given, expected = jagged(keys, seed)
        plain(*expected).backward()
        compiled(given.values(), given.offsets()).backward()
        assert_same_tables(plain.tables, model.tables)


def test_mistakes_of_a_batch_are_named():
    tables = make()
    given, (values, offsets, _) = jagged(["user", "friend"], 1)
    with pytest.raises(ValueError, match=r"has the keys \['user', 'friend'\], but not \['clicked'\]"):
        tables(given)
    with pytest.raises(TypeError, match="needs offsets"):
        tables(values)
    with pytest.raises(TypeError, match="its own offsets"):
        tables(jagged(KEYS[0], 1)[0], offsets)
    with pytest.raises(TypeError, match="but it is dict"):
        tables({"user": values})
    with pytest.raises(RuntimeError, match="get no gradient"):
        tables(jagged(KEYS[0], 1)[0].values(), offsets, torch.ones(len(values), requires_grad=True))
    with pytest.raises(RuntimeError, match="get no gradient"):
        torch.ops.dovetail.embedding_select(values, offsets, torch.ones(len(values), requires_grad=True), 3, [1])
    with pytest.raises(ValueError, match="only a ShardedEmbeddingCollection"):
        EmbeddingCollection([Table("user", 10, 4, dynamic=True)], {"user": "user"})
