"""dovetail.mx over two gloo ranks: DTensor's tensor parallelism, FSDP2 and DDP, against one rank."""

import os
import socket
import subprocess
import sys

import pytest

RECIPES = ["mxfp8", "mxfp4", "fp8_block"]


def run(case, *arguments):
    """Runs a function of this file on two ranks. They print what went wrong."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = dict(os.environ, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port, OMP_NUM_THREADS="1")
    command = [sys.executable, __file__, case, *arguments]
    ranks = [
        subprocess.Popen(
            command, env=dict(environment, RANK=str(rank)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for rank in range(2)
    ]
    try:
        printed = [rank.communicate(timeout=200)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], printed
    return printed[0]


@pytest.mark.parametrize("recipe", RECIPES)
def test_column_and_row_parallel_linears_are_those_of_one_rank(recipe):
    run("tensor_parallel", recipe)


@pytest.mark.parametrize("recipe", ["mxfp8", "mxfp4_stochastic", "fp8_tensor"])
def test_replicated_dtensors_are_plain_tensors(recipe):
    run("replicated", recipe)


def test_shards_of_tokens_are_quantized_as_the_whole():
    run("tokens")


def test_a_sharded_weight_with_one_scale_for_a_tensor_is_refused():
    run("one_scale")


@pytest.mark.parametrize("wrap", ["fsdp", "ddp"])
def test_a_llama_over_data_parallel_ranks_has_the_mean_gradients(wrap):
    run("data_parallel", wrap)


def test_a_llama_over_tensor_parallel_ranks_has_the_gradients_of_one():
    run("llama_tensor_parallel")


def mesh():
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (2,))


def tensor_parallel(recipe):
    """Widths are multiples of two blocks of 128, so shards hold whole blocks."""
    import copy

    import dovetail
    import torch
    from mx_models import assert_near, gradients
    from torch import nn
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256))
    dovetail.mx.convert(model, recipe)
    alone = copy.deepcopy(model)
    parallelize_module(model, mesh(), {"0": ColwiseParallel(), "2": RowwiseParallel()})
    assert model[0].weight.to_local().shape == (256, 256) and model[2].weight.to_local().shape == (256, 256)
    x, dy = torch.randn(2, 64, 256), torch.randn(2, 64, 256)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    y, expected = model(ours), alone(theirs)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)
    whole = gradients((y * dy).sum(), model)
    assert_near({name: g.full_tensor() for name, g in whole.items()}, gradients((expected * dy).sum(), alone), 2e-6)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-4)
    with torch.inference_mode():
        torch.testing.assert_close(model(x), expected.detach(), rtol=1e-4, atol=1e-4)


def replicated(recipe):
    import dovetail
    import torch
    from torch.distributed.tensor import Replicate, distribute_tensor

    torch.manual_seed(0)
    plain = [torch.randn(40, 64), torch.randn(32, 64), torch.randn(32)]
    whole = [distribute_tensor(t, mesh(), [Replicate()]).requires_grad_() for t in plain]
    for t in plain:
        t.requires_grad_()
    results = []
    for x, weight, bias in (plain, whole):
        y = dovetail.mx.linear(x, weight, bias, recipe, seed=7)
        y.square().sum().backward()
        results.append([y, x.grad, weight.grad, bias.grad])
    for expected, ours in zip(*results, strict=True):
        assert torch.equal(ours.to_local(), expected)


def tokens():
    import dovetail
    import torch
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    torch.manual_seed(0)
    x, weight = torch.randn(4, 32, 64, requires_grad=True), torch.randn(32, 64, requires_grad=True)
    a = distribute_tensor(x.detach(), mesh(), [Shard(0)]).requires_grad_()
    b = distribute_tensor(weight.detach(), mesh(), [Replicate()]).requires_grad_()
    y, expected = dovetail.mx.linear(a, b), dovetail.mx.linear(x, weight)
    assert y.placements == (Shard(0),) and torch.equal(y.full_tensor(), expected)
    dy = torch.randn_like(expected)
    (y * distribute_tensor(dy, mesh(), [Shard(0)])).sum().backward()
    (expected * dy).sum().backward()
    assert torch.equal(a.grad.full_tensor(), x.grad)
    assert b.grad.placements in ((Partial(),), (Replicate(),))
    torch.testing.assert_close(b.grad.full_tensor(), weight.grad, rtol=1e-5, atol=1e-4)
    # A rank would have 24 tokens, less than a block, so x is gathered.
    b.grad = weight.grad = None
    short = x[:, :12].detach().contiguous()
    dovetail.mx.linear(distribute_tensor(short, mesh(), [Shard(0)]), b, None, "mxfp4").square().sum().backward()
    dovetail.mx.linear(short, weight, None, "mxfp4").square().sum().backward()
    torch.testing.assert_close(b.grad.full_tensor(), weight.grad, rtol=1e-5, atol=1e-4)


def one_scale():
    import dovetail
    import pytest
    import torch
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    for recipe in ("fp8_tensor", "nvfp4"):
        for of_x, of_weight in ((Shard(1), Shard(1)), (Replicate(), Shard(0))):
            x = distribute_tensor(torch.randn(32, 64), mesh(), [of_x])
            weight = distribute_tensor(torch.randn(32, 64), mesh(), [of_weight])
            with pytest.raises(Exception, match=r"one scale for a whole tensor.*mxfp8 or fp8_block"):
                dovetail.mx.linear(x, weight, None, recipe)


def data_parallel(wrap):
    """Each rank has a sequence of its own; the mean gradient equals one rank's over both sequences."""
    import dovetail
    import torch
    from mx_models import assert_near, gradients, llama
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = dovetail.mx.convert(llama(), "mxfp8")
    tokens = torch.randint(0, 96, (2, 32))
    of_rank = [gradients(model(input_ids=t[None], labels=t[None]).loss, model) for t in tokens]
    mean = {name: (of_rank[0][name] + of_rank[1][name]) / 2 for name in of_rank[0]}
    if wrap == "fsdp":
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh())
        run = fully_shard(model, mesh=mesh())
    else:
        run = torch.nn.parallel.DistributedDataParallel(model)
    mine = tokens[torch.distributed.get_rank()][None]
    ours = gradients(run(input_ids=mine, labels=mine).loss, model)
    assert_near({n: g.full_tensor() if wrap == "fsdp" else g for n, g in ours.items()}, mean, 1e-6)


def llama_tensor_parallel():
    import copy

    import dovetail
    import torch
    from mx_models import assert_near, gradients, llama
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(0)
    alone = dovetail.mx.convert(llama(hidden_size=128, intermediate_size=256), "mxfp8")
    model = copy.deepcopy(alone)
    plan = {f"self_attn.{p}_proj": ColwiseParallel() for p in "qkv"} | {"self_attn.o_proj": RowwiseParallel()}
    plan |= {"mlp.gate_proj": ColwiseParallel(), "mlp.up_proj": ColwiseParallel(), "mlp.down_proj": RowwiseParallel()}
    for layer in model.model.layers:
        parallelize_module(layer, mesh(), plan)
    tokens = torch.randint(0, 96, (2, 32))
    expected = gradients(alone(input_ids=tokens, labels=tokens).loss, alone)
    ours = gradients(model(input_ids=tokens, labels=tokens).loss, model)
    whole = {name: g.full_tensor() if hasattr(g, "full_tensor") else g for name, g in ours.items()}
    # Sums in another order move a few elements across a rounding boundary of E4M3.
    assert_near(whole, expected, 2e-2)


if __name__ == "__main__":
    import torch.distributed

    torch.distributed.init_process_group("gloo")
    globals()[sys.argv[1]](*sys.argv[2:])
    torch.distributed.destroy_process_group()
    # Python's own end aborts if a gloo thread frees a tensor meanwhile: it then asks for a lock that is gone.
    sys.stdout.flush()
    os._exit(0)
