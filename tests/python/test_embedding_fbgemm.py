"""dovetail.embedding against FBGEMM's table-batched embedding on the CPU, if `./dev bench embedding` installed it."""

import logging
import sys
from pathlib import Path

import pytest
import torch
from dovetail.embedding import EmbeddingCollection, Table

ROWS, DIM, SAMPLES, FEATURES = 23, 16, 11, 3
PEER = Path(sys.prefix).parent / "peers" / "fbgemm-gpu-cpu-1.6.0"  # beside the environment, as bench/peers.py has it


def peer_tables(optimizer, pooling, weights):
    """A table for each feature: FBGEMM's row-wise Adagrad on the CPU refuses features that share one."""
    if not (PEER / "fbgemm_gpu").exists():
        pytest.skip("fbgemm-gpu-cpu is not there; ./dev bench embedding installs it")
    sys.path.append(str(PEER))
    logging.disable(logging.CRITICAL)  # it does not know this torch by name
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode, EmbeddingLocation, PoolingMode
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    logging.disable(logging.NOTSET)
    module = SplitTableBatchedEmbeddingBagsCodegen(
        [(ROWS, DIM, EmbeddingLocation.HOST, ComputeDevice.CPU)] * len(weights),
        optimizer={"rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD, "sgd": EmbOptimType.EXACT_SGD}[optimizer],
        learning_rate=0.1,
        eps=1e-6,
        pooling_mode={"sum": PoolingMode.SUM, "mean": PoolingMode.MEAN}[pooling],
        bounds_check_mode=BoundsCheckMode.NONE,
    )
    for own, theirs in zip(weights, module.split_embedding_weights(), strict=True):
        theirs.copy_(own)
    return module


def names():
    return [f"table_{f}" for f in range(FEATURES)]


def our_tables(optimizer, pooling):
    tables = [Table(name, ROWS, DIM, pooling) for name in names()]
    return EmbeddingCollection(tables, {name: name for name in names()}, optimizer, lr=0.1, eps=1e-6)


def batch(seed):
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(0, 5, (FEATURES * SAMPLES,), generator=generator)
    values = torch.randint(0, ROWS, (int(sizes.sum()),), generator=generator)
    return values, torch.cat([torch.zeros(1, dtype=torch.long), sizes.cumsum(0)]), generator


@pytest.mark.parametrize("optimizer", ["rowwise_adagrad", "sgd"])
@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_pooled_rows_and_updates_are_fbgemms(optimizer, pooling):
    ours = our_tables(optimizer, pooling)
    peer = peer_tables(optimizer, pooling, [ours.weight(name) for name in names()])
    for step in range(4):
        values, offsets, generator = batch(step)
        y, theirs = ours(values, offsets), peer(values, offsets)
        torch.testing.assert_close(y, theirs, rtol=1e-5, atol=1e-6)
        upstream = torch.randn(y.shape, generator=generator)
        y.backward(upstream)
        theirs.backward(upstream)
        for name, weight in zip(names(), peer.split_embedding_weights(), strict=True):
            torch.testing.assert_close(ours.weight(name), weight, rtol=1e-5, atol=1e-6)
    if optimizer == "rowwise_adagrad":
        for name, (state,) in zip(names(), peer.split_optimizer_states(), strict=True):
            torch.testing.assert_close(ours.state_dict()[f"{name}.s"], state, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["rowwise_adagrad", "sgd"])
def test_without_pooling_is_fbgemm_of_bags_of_one_id(optimizer):
    """FBGEMM has no unpooled lookup on the CPU; bags of one id each are the same, a table at a time."""
    ours = our_tables(optimizer, "none")
    peers = [peer_tables(optimizer, "sum", [ours.weight(name)]) for name in names()]
    for step in range(4):
        values, offsets, generator = batch(step)
        of_tables = values.split([int(offsets[(f + 1) * SAMPLES] - offsets[f * SAMPLES]) for f in range(FEATURES)])
        y = ours(values, offsets)
        theirs = torch.cat([peer(ids, torch.arange(len(ids) + 1)) for peer, ids in zip(peers, of_tables, strict=True)])
        torch.testing.assert_close(y, theirs, rtol=1e-5, atol=1e-7)  # rows differ by how updates round
        upstream = torch.randn(y.shape, generator=generator)
        y.backward(upstream)
        theirs.backward(upstream)
        for name, peer in zip(names(), peers, strict=True):
            torch.testing.assert_close(ours.weight(name), peer.split_embedding_weights()[0], rtol=1e-5, atol=1e-6)
