"""Embedding tables on the CPU: forward, backward and update, compared with FBGEMM and torch.

usage: ./dev bench embedding [--threads 1,2] [--rounds N] [--tables N] [--rows N] [--out FILE]

Data: 26 tables of 100k rows of 64 float32, batches of 4096 samples with one id per feature. Ids come from a Zipf
distribution of exponent 1.1 over permuted rows. Sides take turns within a round, all with the same batches and the
same gradient. The best round of each side counts. Sides:

- Dovetail with row-wise Adagrad, SGD and Adam; bounds checks are on
- FBGEMM's table-batched embedding on the CPU with row-wise Adagrad and SGD; bounds checks are off. It is PyPI
  fbgemm-gpu-cpu 1.6.0, installed alone in the cache folder
- torch.nn.EmbeddingBag(sparse=True) with torch.optim.Adagrad

Freed memory is kept, for every side. Bytes count each distinct row of a batch and its state once per pass. Pooled
rows and their gradient count as often as they occur. Claims are the ratios below. Exit code 1 when one does not hold,
as with DOVETAIL_DISABLE=embedding.
"""

import argparse
import ctypes
import importlib.metadata
import json
import pathlib
import statistics
import sys
import time

import torch
from dovetail.embedding import EmbeddingCollection, Table
from peers import FBGEMM, add_peers, machine
from torch import Tensor, nn
from zipf import ZIPF, distinct_rows, draw_batches

DIM, SAMPLES, BATCHES = 64, 4096, 8
# (side, peer, threads or None for any) -> at least this ratio of their samples/s
CLAIMS = [
    ("rowwise_adagrad", "fbgemm rowwise_adagrad", 1, 1.2),
    ("rowwise_adagrad", "fbgemm rowwise_adagrad", 2, 1.8),
    ("rowwise_adagrad", "EmbeddingBag adagrad", None, 5.0),
    ("sgd", "fbgemm sgd", None, 1.0),
    ("adam", "fbgemm sgd", None, 0.5),
]


class Dovetail:
    def __init__(self, options, optimizer: str):
        names = [f"table_{i}" for i in range(options.tables)]
        tables = [Table(name, options.rows, DIM) for name in names]
        self.module = EmbeddingCollection(tables, {name: name for name in names}, optimizer)

    def step(self, values: Tensor, offsets: Tensor, gradient: Tensor) -> None:
        self.module(values, offsets).backward(gradient)


class Fbgemm:
    def __init__(self, options, optimizer: str):
        from fbgemm_gpu.split_embedding_configs import EmbOptimType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode, EmbeddingLocation
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice,
            SplitTableBatchedEmbeddingBagsCodegen,
        )

        kind = {"rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD, "sgd": EmbOptimType.EXACT_SGD}[optimizer]
        self.module = SplitTableBatchedEmbeddingBagsCodegen(
            [(options.rows, DIM, EmbeddingLocation.HOST, ComputeDevice.CPU)] * options.tables,
            optimizer=kind,
            learning_rate=0.01,
            bounds_check_mode=BoundsCheckMode.NONE,
        )
        self.module.init_embedding_weights_uniform(-0.003, 0.003)

    def step(self, values: Tensor, offsets: Tensor, gradient: Tensor) -> None:
        self.module(values, offsets).backward(gradient)


class EmbeddingBags:
    def __init__(self, options, optimizer: str):
        self.bags = [
            nn.EmbeddingBag(options.rows, DIM, mode="sum", sparse=True, _weight=torch.rand(options.rows, DIM) / 300)
            for _ in range(options.tables)
        ]
        self.optimizer = torch.optim.Adagrad([bag.weight for bag in self.bags], lr=0.01)

    def step(self, values: Tensor, offsets: Tensor, gradient: Tensor) -> None:
        self.optimizer.zero_grad()
        ids = values.view(len(self.bags), SAMPLES, 1)
        torch.cat([bag(x) for bag, x in zip(self.bags, ids, strict=True)], dim=1).backward(gradient)
        self.optimizer.step()


SIDES = {
    "rowwise_adagrad": (Dovetail, "rowwise_adagrad"),
    "fbgemm rowwise_adagrad": (Fbgemm, "rowwise_adagrad"),
    "sgd": (Dovetail, "sgd"),
    "fbgemm sgd": (Fbgemm, "sgd"),
    "adam": (Dovetail, "adam"),
    "EmbeddingBag adagrad": (EmbeddingBags, "adagrad"),
}
STATE = {"rowwise_adagrad": 1, "sgd": 0, "adam": 2 * DIM, "adagrad": DIM}  # floats a row


def moved_bytes(options, optimizer: str, distinct: float) -> float:
    lookups = options.tables * SAMPLES
    rows_forward, rows_update = distinct * DIM, 2 * distinct * (DIM + STATE[optimizer])
    return 4 * (rows_forward + rows_update + 2 * lookups * DIM) + 3 * 8 * lookups


def copy_bandwidth() -> float:
    """Bytes read plus written per second, of 128 MiB: the best of some rounds."""
    source = torch.ones(1 << 25)
    target, best = torch.zeros_like(source), float("inf")
    for _ in range(10):
        begin = time.perf_counter()
        target.copy_(source)
        best = min(best, time.perf_counter() - begin)
    return 2 * source.nbytes / best


def keep_freed_memory() -> None:
    """As `dovetail train`, for every side: fresh memory would cost a page fault every 4 KiB."""
    m_trim_threshold, m_mmap_threshold = -1, -3
    libc = ctypes.CDLL(None)
    libc.mallopt(m_mmap_threshold, 1 << 30)
    libc.mallopt(m_trim_threshold, -1)


def measure(options, sides: dict, batches: list[Tensor], threads: int) -> dict:
    torch.set_num_threads(threads)
    offsets = torch.arange(options.tables * SAMPLES + 1)
    gradient = torch.randn(SAMPLES, options.tables * DIM)
    times: dict[str, list[float]] = {name: [] for name in sides}
    for round_index in range(options.rounds + 1):
        # Backwards every second round: a side finds the gradient in the caches as the one before has left it.
        order = list(sides.items())[:: 1 if round_index % 2 == 0 else -1]
        for name, side in order:
            begin = time.perf_counter()
            side.step(batches[round_index % BATCHES], offsets, gradient)
            if round_index > 0:  # the first touches memory
                times[name].append(time.perf_counter() - begin)
    bandwidth, distinct = copy_bandwidth(), distinct_rows(batches, options.tables)
    lines = {}
    for name, seconds in times.items():
        moved = moved_bytes(options, SIDES[name][1], distinct)
        lines[name] = {
            "ms": 1e3 * min(seconds),
            "samples_per_s": SAMPLES / min(seconds),
            "bytes": moved,
            "of_copy_bandwidth": moved / min(seconds) / bandwidth,
        }
    claims = [
        {
            "side": side,
            "peer": peer,
            "at_least": least,
            "ratio": min(times[peer]) / min(times[side]),
            "median_ratio": statistics.median(b / a for a, b in zip(times[side], times[peer], strict=True)),
        }
        for side, peer, only, least in CLAIMS
        if only in (None, threads)
    ]
    return {"threads": threads, "copy_bytes_per_s": bandwidth, "sides": lines, "claims": claims}


def report(result: dict) -> bool:
    here, holds = result["machine"], True
    print(f"embedding, {result['tables']} tables x {result['rows']} rows x {DIM}, batch {SAMPLES}, Zipf {ZIPF}")
    print(f"{here['cpu']}, {here['simd']}, load {here['load_average']:.2f}, best of {result['rounds']} rounds")
    for line in result["results"]:
        print(f"{line['threads']} thread(s), copy {line['copy_bytes_per_s'] / 1e9:.1f} GB/s")
        for name, side in line["sides"].items():
            print(
                f"  {name:24}{side['ms']:9.2f} ms {side['samples_per_s'] / 1e3:8.0f}k samples/s"
                f"{side['bytes'] / 1e6:8.0f} MB {side['of_copy_bandwidth']:6.2f} of copy"
            )
        for claim in line["claims"]:
            good = claim["ratio"] >= claim["at_least"]
            holds = holds and good
            print(
                f"  {claim['side']} / {claim['peer']}: {claim['ratio']:.2f} (median {claim['median_ratio']:.2f}), "
                f"{'holds' if good else 'DOES NOT HOLD'}: at least {claim['at_least']:.1f}"
            )
    return holds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default="1,2", help="separated by commas")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--tables", type=int, default=26)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--out", help="also write the result as JSON")
    options = parser.parse_args()
    keep_freed_memory()
    add_peers("fbgemm", FBGEMM, install=True)
    batches = draw_batches(BATCHES, options.tables, options.rows, SAMPLES)
    sides = {name: make(options, optimizer) for name, (make, optimizer) in SIDES.items()}
    result = {
        "benchmark": "embedding",
        "machine": machine(),
        "peer": FBGEMM[0],
        "torch": importlib.metadata.version("torch"),
    }
    result |= {name: getattr(options, name) for name in ["tables", "rows", "rounds"]}
    result["results"] = [measure(options, sides, batches, int(count)) for count in options.threads.split(",")]
    holds = report(result)
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps(result, indent=1) + "\n")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
