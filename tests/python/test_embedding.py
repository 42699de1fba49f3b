"""dovetail.embedding against torch.nn.EmbeddingBag with torch.optim."""

import copy
import io
import math
import pickle
import socket

import pytest
import torch
from dovetail.embedding import EmbeddingCollection, Table

ROWS, SAMPLES = 23, 11
PEERS = {
    "sgd": lambda p, **o: torch.optim.SGD(p, **o),
    "momentum": lambda p, **o: torch.optim.SGD(p, momentum=0.9, **o),
    "adagrad": lambda p, **o: torch.optim.Adagrad(p, eps=1e-6, **o),
    "adam": lambda p, **o: torch.optim.SparseAdam(p, eps=1e-6, **o),
}


def make(optimizer, **options):
    tables = [Table("user", ROWS, 16), Table("item", ROWS, 5, "mean")]
    return EmbeddingCollection(
        tables, {"user": "user", "clicked": "item", "friend": "user"}, optimizer, lr=0.1, eps=1e-6, **options
    )


def batch(seed, every_row=False):
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(0, 5, (3, SAMPLES), generator=generator)
    if every_row:
        sizes[:, 0] = ROWS
    values = torch.randint(0, ROWS, (int(sizes.sum()),), generator=generator)
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), sizes.flatten().cumsum(0)])
    if every_row:
        for f in range(3):
            values[offsets[f * SAMPLES] : offsets[f * SAMPLES + 1]] = torch.randperm(ROWS, generator=generator)
    return values, offsets, torch.randn(SAMPLES, 16 + 5 + 16, generator=generator)


def parts(values, offsets):
    for f in range(3):
        bags = offsets[f * SAMPLES : (f + 1) * SAMPLES + 1]
        yield values[bags[0] : bags[-1]], bags[:-1] - bags[0]


@pytest.mark.parametrize("optimizer,weight_decay", [(o, 0.0) for o in PEERS] + [("sgd", 0.1), ("adagrad", 0.1)])
def test_is_embedding_bag_with_torch_optim(optimizer, weight_decay):
    ours = make(optimizer, weight_decay=weight_decay)
    # Momentum and decay in torch also change rows that do not occur in a batch. So these batches
    # have every row.
    every_row = optimizer == "momentum" or weight_decay > 0
    user, item = (
        torch.nn.EmbeddingBag(ROWS, dim, mode=mode, sparse=not every_row, _weight=ours.weight(name).clone())
        for name, dim, mode in [("user", 16, "sum"), ("item", 5, "mean")]
    )
    decay = {"weight_decay": weight_decay} if weight_decay else {}
    peer = PEERS[optimizer]([user.weight, item.weight], lr=0.1, **decay)
    for step in range(4):
        values, offsets, upstream = batch(step, every_row)
        theirs = torch.cat(
            [bag(*part) for bag, part in zip([user, item, user], parts(values, offsets), strict=True)], dim=1
        )
        y = ours(values, offsets)
        torch.testing.assert_close(y, theirs)
        y.backward(upstream)
        peer.zero_grad()
        theirs.backward(upstream)
        peer.step()
        torch.testing.assert_close(ours.weight("user"), user.weight.detach(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours.weight("item"), item.weight.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("optimizer", list(PEERS))
@pytest.mark.parametrize("update", ["backward", "apply"])
def test_without_pooling_is_embedding_with_torch_optim(optimizer, update):
    tables = [Table("user", ROWS, 8, "none"), Table("item", ROWS, 8, "none")]
    features = {"user": "user", "clicked": "item", "friend": "user"}
    ours = EmbeddingCollection(tables, features, optimizer, lr=0.1, eps=1e-6, update=update)
    every_row = optimizer == "momentum"
    user, item = (
        torch.nn.Embedding(ROWS, 8, sparse=not every_row, _weight=ours.weight(name).clone())
        for name in ["user", "item"]
    )
    peer = PEERS[optimizer]([user.weight, item.weight], lr=0.1)
    for step in range(4):
        values, offsets, _ = batch(step, every_row)
        upstream = torch.randn(len(values), 8)
        theirs = torch.cat(
            [table(ids) for table, (ids, _) in zip([user, item, user], parts(values, offsets), strict=True)]
        )
        y = ours(values, offsets)
        torch.testing.assert_close(y, theirs, rtol=0, atol=1e-6)
        y.backward(upstream)
        if update == "apply":
            ours.apply_gradients()
        peer.zero_grad()
        theirs.backward(upstream)
        peer.step()
        torch.testing.assert_close(ours.weight("user"), user.weight.detach(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours.weight("item"), item.weight.detach(), rtol=1e-4, atol=1e-5)


def test_ftrl_and_initial_ranges_are_their_definitions():
    tables = [Table("t", 6, 4, optimizer="ftrl", l1=0.3, initial_range=0.0), Table("u", 6, 4, initial_range=0.5)]
    ours = EmbeddingCollection(tables, {"a": "t", "b": "u"}, "rowwise_adam", lr=0.1, l1=9.0, l2=0.2, beta=0.5)
    assert not ours.weight("t").any() and 0.25 < ours.weight("u").abs().max() < 0.5
    with pytest.raises(ValueError, match="constant"):
        ours.set_lr(0.5)
    w, z, n = (torch.zeros(6, 4, dtype=torch.double) for _ in range(3))
    u, m, v = ours.weight("u").double().clone(), torch.zeros(6, 4, dtype=torch.double), torch.zeros(6, 1)
    for t in range(1, 6):
        ids = torch.randperm(6, generator=torch.Generator().manual_seed(t))[:4]
        upstream = torch.randn(2, 8, generator=torch.Generator().manual_seed(t))
        ours(torch.cat([ids, ids]), torch.arange(0, 9, 2)).backward(upstream)
        g = upstream.double().repeat_interleave(2, 0)
        # FTRL-Proximal, McMahan et al. 2013, Algorithm 1.
        sigma = ((n[ids] + g[:, :4] ** 2).sqrt() - n[ids].sqrt()) / 0.1
        z[ids] += g[:, :4] - sigma * w[ids]
        n[ids] += g[:, :4] ** 2
        w[ids] = torch.where(
            z[ids].abs() <= 0.3, 0.0, -(z[ids] - z[ids].sign() * 0.3) / ((0.5 + n[ids].sqrt()) / 0.1 + 0.2)
        )
        m[ids] = 0.9 * m[ids] + 0.1 * g[:, 4:]
        v[ids] = 0.999 * v[ids] + 0.001 * (g[:, 4:] ** 2).mean(1, keepdim=True).to(v.dtype)
        u[ids] -= 0.1 * math.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m[ids] / (v[ids].double().sqrt() + 1e-8)
    assert (w == 0).any() and (w != 0).any()
    torch.testing.assert_close(ours.weight("t").double(), w, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.weight("u").double(), u, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pooling", ["sum", "none"])
@pytest.mark.parametrize("update", ["backward", "apply"])
def test_every_table_may_have_an_optimizer_of_its_own(pooling, update):
    own = {
        "general": (dict(), lambda p: torch.optim.Adagrad(p, lr=0.1, eps=1e-6)),
        "adam": (
            dict(optimizer="adam", lr=0.01, betas=(0.8, 0.9), eps=1e-5),
            lambda p: torch.optim.SparseAdam(p, lr=0.01, betas=(0.8, 0.9), eps=1e-5),
        ),
        "slow": (dict(lr=0.02), lambda p: torch.optim.Adagrad(p, lr=0.02, eps=1e-6)),
        "sgd": (dict(optimizer="sgd"), lambda p: torch.optim.SGD(p, lr=0.1)),
    }
    tables = [Table(name, ROWS, 8, pooling, **options) for name, (options, _) in own.items()]
    looked_up = ["adam", "general", "sgd", "slow", "adam"]
    features = {f"f{i}": name for i, name in enumerate(looked_up)}
    ours = EmbeddingCollection(tables, features, "adagrad", lr=0.1, eps=1e-6, update=update)
    bags = {
        name: torch.nn.EmbeddingBag(ROWS, 8, mode="sum", sparse=True, _weight=ours.weight(name).clone()) for name in own
    }
    peers = {name: make_peer([bags[name].weight]) for name, (_, make_peer) in own.items()}
    generator = torch.Generator().manual_seed(1)
    for step in range(4):
        sizes = torch.randint(0, 4, (5, SAMPLES), generator=generator)
        values = torch.randint(0, ROWS, (int(sizes.sum()),), generator=generator)
        offsets = torch.cat([torch.zeros(1, dtype=torch.long), sizes.flatten().cumsum(0)])
        theirs = []
        for f, name in enumerate(looked_up):
            at = offsets[f * SAMPLES : (f + 1) * SAMPLES + 1]
            ids = values[at[0] : at[-1]]
            theirs.append(bags[name](ids, at[:-1] - at[0]) if pooling == "sum" else bags[name](ids[:, None]))
        theirs = torch.cat(theirs, dim=1 if pooling == "sum" else 0)
        y = ours(values, offsets)
        torch.testing.assert_close(y, theirs, rtol=0, atol=1e-5)
        upstream = torch.randn(y.shape, generator=generator)
        if step == 2:  # all rates by the same factor
            ours.set_lr(0.05)
            for peer in peers.values():
                peer.param_groups[0]["lr"] /= 2
        y.backward(upstream)
        if update == "apply":
            ours.apply_gradients()
        for peer in peers.values():
            peer.zero_grad()
        theirs.backward(upstream)
        for peer in peers.values():
            peer.step()
        for name in own:
            torch.testing.assert_close(ours.weight(name), bags[name].weight.detach(), rtol=1e-4, atol=1e-5)
    state = {name: tensor.clone() for name, tensor in ours.state_dict().items()}
    assert set(state) == {f"{n}.weight" for n in own} | {"general.s", "slow.s", "adam.m", "adam.v", "steps"}
    again = EmbeddingCollection(tables, features, "adagrad", lr=0.1, eps=1e-6, seed=7)
    again.load_state_dict(state)
    for name, tensor in again.state_dict().items():
        assert torch.equal(tensor, state[name]), name


def test_one_output_has_one_pooling_and_without_it_one_dim():
    def refused(*tables):
        return lambda: EmbeddingCollection(list(tables), {})

    for make_it, text in [
        (refused(Table("a", 3, 4, "none"), Table("b", 3, 4, "sum")), "only one of them has pooling none"),
        (refused(Table("a", 3, 4, "none"), Table("b", 3, 5, "none")), "4 and 5 elements"),
        (refused(Table("a", 3, 4, "none", "sgd"), Table("b", 3, 4, "sum")), "only one of them has pooling none"),
        (refused(Table("a", 3, 4), Table("a", 3, 4, "sum", "sgd")), 'two tables are named "a"'),
        (refused(Table("a", 3, 4, optimizer="lion")), "no optimizer is named"),
    ]:
        with pytest.raises(RuntimeError, match=text):
            make_it()


def test_weights_are_per_sample_weights():
    ours = make("sgd")
    values, offsets, _ = batch(0)
    weights = torch.randn(len(values))
    bag = torch.nn.EmbeddingBag(ROWS, 16, mode="sum", _weight=ours.weight("user"))
    first = offsets[SAMPLES]
    expected = bag(values[:first], offsets[:SAMPLES], weights[:first])
    torch.testing.assert_close(ours(values, offsets, weights)[:, :16], expected.detach())
    with pytest.raises(RuntimeError, match="get no gradient"):
        ours(values, offsets, weights.requires_grad_())


@pytest.mark.parametrize("row_dtype,dtype,step", [("bf16", torch.bfloat16, 2**-8), ("mxfp8", torch.uint8, 2**-3)])
def test_smaller_rows_are_those_of_fp32_rounded(row_dtype, dtype, step):
    ours, theirs = make("adagrad", row_dtype=row_dtype), make("adagrad")
    assert ours.weight("user").dtype == dtype
    every = torch.arange(ROWS).repeat(3), torch.arange(3 * ROWS + 1)
    torch.testing.assert_close(ours(*every), theirs(*every), rtol=step, atol=step / 4)
    for seed in range(3):
        values, offsets, upstream = batch(seed)
        ours(values, offsets).backward(upstream)
        theirs(values, offsets).backward(upstream)
    torch.testing.assert_close(ours(*every), theirs(*every), rtol=4 * step, atol=4 * step)
    assert not torch.equal(ours(*every), theirs(*every))
    again = make("adagrad", row_dtype=row_dtype)
    again.load_state_dict(ours.state_dict())
    torch.testing.assert_close(again(*every), ours(*every), rtol=0, atol=0)
    with pytest.raises(RuntimeError, match=r"user\.weight is"):
        theirs.load_state_dict(ours.state_dict())
    if row_dtype == "bf16":
        torch.testing.assert_close(ours(*every)[:, :16], ours.weight("user").float(), rtol=0, atol=0)


def test_no_silent_dtype_or_device():
    with pytest.raises(RuntimeError, match="row_dtype"):
        make("sgd", row_dtype="fp16")
    with pytest.raises(RuntimeError, match="on the CPU or a CUDA device"):
        make("sgd", device="meta")


def test_micro_batches_wait_for_apply_and_give_the_bits_of_the_batch():
    whole, cut = make("adam"), make("adam", update="apply")
    values, offsets, upstream = batch(1)
    whole(values, offsets).backward(upstream)
    before = cut.weight("user").clone()
    outputs, upstreams = [], []
    for begin, end in [(0, 4), (4, SAMPLES)]:
        bags = [(f * SAMPLES + b) for f in range(3) for b in range(begin, end)]
        sizes = torch.tensor([int(offsets[b + 1] - offsets[b]) for b in bags])
        ids = torch.cat([values[offsets[b] : offsets[b + 1]] for b in bags])
        outputs.append(cut(ids, torch.cat([torch.zeros(1, dtype=torch.long), sizes.cumsum(0)])))
        upstreams.append(upstream[begin:end])
    torch.autograd.backward(outputs[::-1], upstreams[::-1])
    assert torch.equal(cut.weight("user"), before)
    cut.apply_gradients()
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, cut.state_dict()[name]), name
    with pytest.raises(RuntimeError, match="every backward has been a step"):
        whole.apply_gradients()


def test_state_dict_restores_rows_state_and_steps():
    first, second = make("adam"), make("adam", seed=1)
    for step in range(2):
        values, offsets, upstream = batch(step)
        first(values, offsets).backward(upstream)
    second.load_state_dict({name: tensor.clone() for name, tensor in first.state_dict().items()})
    values, offsets, upstream = batch(9)
    for collection in (first, second):
        collection(values, offsets).backward(upstream)
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name]), name
    assert set(first.state_dict()) == {"user.weight", "user.m", "user.v", "item.weight", "item.m", "item.v", "steps"}


def test_set_lr_and_no_grad():
    ours = make("sgd")
    before = ours.weight("user").clone()
    values, offsets, upstream = batch(0)
    ours.set_lr(0.0)
    ours(values, offsets).backward(upstream)
    assert torch.equal(ours.weight("user"), before)
    with torch.no_grad():
        assert not ours(values, offsets).requires_grad


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="none of"):
        EmbeddingCollection([Table("user", 3, 4)], {"x": "item"})
    with pytest.raises(RuntimeError, match="id 99 of feature 0"):
        make("sgd")(torch.tensor([99]), torch.cat([torch.zeros(1), torch.ones(3 * SAMPLES)]).long())


def torch_save_and_load(collection):
    file = io.BytesIO()
    torch.save(collection, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("row_dtype", ["fp32", "bf16", "mxfp8"])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), torch_save_and_load])
def test_a_copy_goes_on_as_the_first_would(copied, row_dtype):
    first = make("adam", row_dtype=row_dtype)
    values, offsets, upstream = batch(1)
    first(values, offsets).backward(upstream)
    first.set_lr(0.02)
    second = copied(torch.nn.Sequential(first))[0]
    values, offsets, upstream = batch(2)
    before = first.weight("user").clone()
    first(values, offsets).backward(upstream)
    assert torch.equal(second.weight("user"), before), "a copy shares no rows"
    second(values, offsets).backward(upstream)
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name]), name


def test_a_copy_with_gradients_that_wait_is_refused():
    ours = make("sgd", update="apply")
    values, offsets, upstream = batch(1)
    ours(values, offsets).backward(upstream)
    with pytest.raises(RuntimeError, match="1 gradients wait for apply_gradients"):
        copy.deepcopy(ours)
    ours.apply_gradients()
    copy.deepcopy(ours)


def test_a_conversion_is_done_or_refused():
    for row_dtype, dtype in [("fp32", torch.float32), ("bf16", torch.bfloat16), ("mxfp8", torch.float8_e4m3fn)]:
        model = torch.nn.Sequential(make("sgd", row_dtype=row_dtype))
        before = model[0].weight("user").clone()
        for other in {torch.float64, torch.float32, torch.float16, torch.bfloat16} - {dtype}:
            with pytest.raises(RuntimeError, match=f'row_dtype = "{row_dtype}" and cannot become {other}'):
                model.to(other)
        assert torch.equal(model.to(dtype).cpu()[0].weight("user"), before)
        with pytest.raises(RuntimeError, match="on the CPU or a CUDA device"):
            model.to("meta")
        assert torch.equal(model[0].weight("user"), before)
    with pytest.raises(RuntimeError, match="cannot be shared"):
        make("sgd").share_memory()


def test_ids_and_offsets_may_be_int32():
    ours = make("sgd")
    values, offsets, upstream = batch(3)
    assert torch.equal(ours(values.int(), offsets.int()), ours(values, offsets))
    second = make("sgd")
    ours(values, offsets).backward(upstream)
    second(values.int(), offsets).backward(upstream)
    assert torch.equal(ours.weight("user"), second.weight("user"))
    with pytest.raises(RuntimeError, match="values"):
        ours(values.double(), offsets)


def train_as_rank(rank, port, results):
    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    found = {}
    for ranks in ["refuse", "separate"]:
        tables = EmbeddingCollection([Table("user", 100, 8)], {"user": "user"}, "sgd", lr=1.0, ranks=ranks)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 1)))
        values = torch.arange(16) + 50 * rank
        with torch.no_grad():
            assert tables(values, torch.arange(17)).shape == (16, 8)
        before = tables.weight("user").clone()
        try:
            model(tables(values, torch.arange(17))).sum().backward()
            found[ranks] = bool((tables.weight("user")[values] != before[values]).any(1).all())
        except RuntimeError as error:
            assert torch.equal(tables.weight("user"), before)
            found[ranks] = str(error)
    results.put(found)
    torch.distributed.destroy_process_group()


def test_several_ranks_train_separate_tables_or_none():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = torch.multiprocessing.get_context("spawn")
    results = context.Queue()
    workers = [context.Process(target=train_as_rank, args=(rank, port, results)) for rank in range(2)]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    for of_rank in found:
        assert 'give ranks="separate"' in of_rank["refuse"]
        assert of_rank["separate"] is True
    with pytest.raises(ValueError, match='ranks = "all"'):
        make("sgd", ranks="all")
