"""Training of a DLRM, whole jobs: `dovetail train` compared with plain PyTorch and FBGEMM.

usage: ./dev bench dlrm [--device cpu|cuda] [--features N] [--rows N] [--dim N] [--batch N] [--steps N] [--rounds N]
       [--threads N] [--peers] [--tiers] [--without-kernel] [--out FILE]

Data: generated Parquet with 13 numbers and one id for each of `--features` features. Ids come from a Zipf distribution
(1.05) over permuted rows, and the label depends on both. Equal on all sides: the batches and their order, and the dense
part (bottom 512-256, top 512-256). Its optimizer is AdamW, fused in PyTorch. Defaults are for a CPU. The setting for a
GPU is `--device cuda --rows 1000000 --dim 64 --batch 65536`. Sides:

- dovetail: `dovetail train`, which reads the Parquet file while it trains. Optimizers of the tables: row-wise Adagrad,
  and Adagrad. `--tiers` adds a run with row-wise Adagrad and an eighth of the rows in memory, or on the GPU
- torch: one `nn.EmbeddingBag(sparse=True)` for each table, with `torch.optim.Adagrad`
- torch fused: dense gradients of all tables, with `Adagrad(fused=True)`. Each step writes every row. So this side
  needs at most 2 million rows in all
- torch compiled: like torch, and `torch.compile` for the dense part
- FBGEMM: `SplitTableBatchedEmbeddingBagsCodegen` with row-wise Adagrad, and the compiled dense part. `--peers` installs
  PyPI fbgemm-gpu-cpu for `--device cpu`; on a GPU an installed fbgemm_gpu is used
- torchrec: a sharded `EmbeddingBagCollection` with row-wise Adagrad in `TrainPipelineSparseDist`, one rank, and the
  compiled dense part. `--peers` installs PyPI torchrec for `--device cpu`; on a GPU an installed one is used

The peers' batches lie ready on the device, so their input costs nothing. Sides take turns within a round. A side's
samples/s are from the second half of its steps, and its best round counts. Claims:

- dovetail with Adagrad against the fastest side of torch: at least as fast on a CPU, twice as fast on a GPU
- dovetail with row-wise Adagrad is at least as fast as FBGEMM, and as torchrec's pipeline
- with `--tiers` on a GPU: an eighth of the rows there is at least 0.7 times as fast as all rows there
- all sides end with the same loss, to 0.01

Exit code 1 when one does not hold. `--without-kernel` trains with DOVETAIL_DISABLE=embedding, on a CPU only.
"""

import argparse
import dataclasses
import itertools
import json
import logging
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

import numpy as np
import pyarrow as pa
import torch
from peers import FBGEMM, TORCHREC, add_peers, machine
from pyarrow import parquet
from torch import Tensor, nn

from runs import DOVETAIL, ROOT, read_lines

DENSE, BOTTOM, TOP, LR, TABLE_LR = 13, [512, 256], [512, 256], 1e-3, 0.02
FUSED_ROWS = 2_000_000


def write_rows(path: pathlib.Path, options) -> dict[str, np.ndarray]:
    """Writes as many rows as the steps read, and returns them."""
    draw, samples = np.random.default_rng(1), options.batch * options.steps
    shares = np.cumsum(np.arange(1, options.rows + 1) ** -1.05)
    dense = draw.standard_normal((samples, DENSE), dtype=np.float32)
    score = dense @ draw.normal(0, 0.2, DENSE)
    ids = np.empty((samples, options.features), np.int64)
    for i in range(options.features):
        ranks = np.searchsorted(shares, draw.random(samples) * shares[-1])
        ids[:, i] = draw.permutation(options.rows)[np.minimum(ranks, options.rows - 1)]
        score += draw.normal(0, 0.3, options.rows)[ids[:, i]]
    label = (draw.random(samples) < 1 / (1 + np.exp(-score))).astype(np.int8)
    columns = {"label": label} | {f"x{i}": dense[:, i] for i in range(DENSE)}
    columns |= {f"c{i}": ids[:, i] for i in range(options.features)}
    parquet.write_table(pa.table(columns), path, row_group_size=1 << 16)
    return {"label": label.astype(np.float32), "dense": dense, "ids": ids}


class Ours:
    """`dovetail train` with one optimizer of the tables. `memory_bytes` is the memory of the rows, 0 for all."""

    def __init__(self, folder: pathlib.Path, optimizer: str, options, memory_bytes: int = 0):
        self.folder, self.options = folder, options
        count = options.features
        columns = [f'  {{ columns = ["c{i}"], ids = "integer", num_rows = {options.rows} }},' for i in range(count)]
        sparse = "\n".join(columns)
        dense = ", ".join(f'"x{i}"' for i in range(DENSE))
        # A grain of 256 keeps activations in a CPU's caches. A GPU takes the whole batch at once, as its peers do.
        grain = f"grain = {options.batch}\n" if options.device == "cuda" else ""
        self.config = folder / f"{optimizer}-{memory_bytes}.toml"
        self.config.write_text(
            f'[run]\ndevice = "{options.device}"\nthreads = {options.threads}\n\n[recommender]\nmodel = "dlrm"\n'
            f"dim = {options.dim}\nbottom = {BOTTOM}\ndeep = {TOP}\n{grain}\n"
            f'[rows]\nfiles = ["{folder}/rows.parquet"]\nlabel = "label"\nshuffle_window = 1\n'
            f"validation_fraction = 0\ndense = [{{ columns = [{dense}] }}]\nsparse = [\n{sparse}]\n\n"
            f'[embedding]\noptimizer = "{optimizer}"\nlr = {TABLE_LR}\nmemory_bytes = {memory_bytes}\n\n'
            f"[train]\nbatch = {options.batch}\n"
            f"steps = {options.steps}\n\n[optimizer]\nlr = {LR}\nweight_decay = 0.0\n\n"
            '[precision]\nrecipe = "fp32"\n\n'
            '[schedule]\nwarmup_steps = 0\ndecay = "constant"\n\n[checkpoint]\nevery_steps = 0\n\n'
            "[log]\ntensorboard = false\n"
        )

    def train(self) -> tuple[float, float]:
        run = self.folder / f"{self.config.stem}-{time.monotonic_ns()}"
        command = [str(DOVETAIL), "train", str(self.config), "--set", f"run.folder={run}"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"bench/dlrm: {' '.join(command)} ended with code {done.returncode}\n{done.stderr}")
        times = {line["step"]: line["time_s"] for line in read_lines(run, "timings.jsonl")}
        half = self.options.steps // 2
        seconds = times[self.options.steps] - times[half]
        losses = [line["loss"] for line in read_lines(run, "metrics.jsonl") if line["step"] > half and "loss" in line]
        return self.options.batch * (self.options.steps - half) / seconds, statistics.fmean(losses)


class DensePart(nn.Module):
    """DLRM (Naumov et al. 2019) without its tables: numbers and pooled rows in, logits out."""

    def __init__(self, features: int, dim: int):
        super().__init__()
        vectors = features + 1
        self.bottom = tower([DENSE, *BOTTOM, dim])
        self.top = tower([dim + vectors * (vectors - 1) // 2, *TOP])
        self.head = nn.Linear(TOP[-1], 1)
        self.register_buffer("pairs", torch.tril_indices(vectors, vectors, -1))

    def forward(self, dense: Tensor, rows: Tensor) -> Tensor:
        bottom = self.bottom(dense)
        vectors = torch.cat([bottom.unsqueeze(1), rows], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.head(self.top(torch.cat([bottom, products], 1))).squeeze(1)


def tower(widths: list[int]) -> nn.Sequential:
    layers = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers)


class Bags(nn.Module):
    """One `nn.EmbeddingBag` for each table."""

    def __init__(self, options, sparse: bool):
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(options.rows, options.dim, mode="sum", sparse=sparse, device=options.device)
            for _ in range(options.features)
        )
        for table in self.tables:
            nn.init.uniform_(table.weight, -(options.rows**-0.5), options.rows**-0.5)
        fused = {} if sparse else {"fused": True}
        self.optimizer = torch.optim.Adagrad(self.parameters(), lr=TABLE_LR, eps=1e-8, **fused)

    def forward(self, ids: Tensor) -> Tensor:
        offsets = torch.arange(len(ids), device=ids.device)
        return torch.stack([table(ids[:, i], offsets) for i, table in enumerate(self.tables)], 1)

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()


class TableBatched(nn.Module):
    """FBGEMM's tables, which update themselves in backward."""

    def __init__(self, options):
        super().__init__()
        from fbgemm_gpu.split_embedding_configs import EmbOptimType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice,
            SplitTableBatchedEmbeddingBagsCodegen,
        )

        on_gpu = options.device == "cuda"
        place = (EmbeddingLocation.HOST, ComputeDevice.CPU)
        if on_gpu:
            place = (EmbeddingLocation.DEVICE, ComputeDevice.CUDA)
        self.tables = SplitTableBatchedEmbeddingBagsCodegen(
            [(options.rows, options.dim, *place)] * options.features,
            optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
            learning_rate=TABLE_LR,
            eps=1e-8,
        )
        self.tables.init_embedding_weights_uniform(-(options.rows**-0.5), options.rows**-0.5)
        self.shape = (-1, options.features, options.dim)

    def forward(self, ids: Tensor) -> Tensor:
        offsets = torch.arange(ids.numel() + 1, device=ids.device)
        return self.tables(ids.t().contiguous().view(-1), offsets).view(self.shape)

    def step(self) -> None:
        pass


class Peer:
    def __init__(self, make_tables, compiled: bool, rows: dict[str, np.ndarray], options):
        self.make_tables, self.compiled, self.options = make_tables, compiled, options
        self.batches = [
            tuple(torch.from_numpy(part).to(options.device) for part in parts)
            for parts in zip(*(np.split(rows[name], options.steps) for name in ("dense", "ids", "label")), strict=True)
        ]

    def train(self) -> tuple[float, float]:
        options = self.options
        torch.set_num_threads(options.threads)
        torch.manual_seed(0)
        tables = self.make_tables(options)
        dense_part = DensePart(options.features, options.dim).to(options.device)
        optimizer = torch.optim.AdamW(dense_part.parameters(), lr=LR, weight_decay=0, fused=True)
        forward = torch.compile(dense_part) if self.compiled else dense_part
        losses, half, begin = [], options.steps // 2, 0.0
        for index, (dense, ids, label) in enumerate(self.batches):
            if index == half:
                synchronize(options)
                begin = time.perf_counter()
            loss = nn.functional.binary_cross_entropy_with_logits(forward(dense, tables(ids)), label)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            tables.step()
            losses.append(loss.detach())
        synchronize(options)
        seconds = time.perf_counter() - begin
        return options.batch * (options.steps - half) / seconds, torch.stack(losses[half:]).mean().item()


class Pipeline:
    """TorchRec's pipeline: the ids of the next batches are distributed while this one computes."""

    def __init__(self, rows: dict[str, np.ndarray], options):
        self.options = options
        self.parts = [np.split(rows[name], options.steps) for name in ("dense", "ids", "label")]

    def train(self) -> tuple[float, float]:
        import torch.distributed as dist
        from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
        from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
        from torchrec.distributed.model_parallel import DistributedModelParallel
        from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
        from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
        from torchrec.distributed.types import ShardingEnv
        from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
        from torchrec.optim.rowwise_adagrad import RowWiseAdagrad
        from torchrec.streamable import Pipelineable

        options, device = self.options, torch.device(self.options.device)
        torch.set_num_threads(options.threads)
        torch.manual_seed(0)
        names = [f"c{i}" for i in range(options.features)]

        @dataclasses.dataclass
        class Batch(Pipelineable):
            dense: Tensor
            sparse: KeyedJaggedTensor
            label: Tensor

            def to(self, device, non_blocking=False):
                parts = (self.dense, self.sparse, self.label)
                return Batch(*(part.to(device, non_blocking=non_blocking) for part in parts))

            def record_stream(self, stream):
                for part in (self.dense, self.sparse, self.label):
                    part.record_stream(stream)

            def pin_memory(self):
                return Batch(self.dense.pin_memory(), self.sparse.pin_memory(), self.label.pin_memory())

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                configs = [
                    EmbeddingBagConfig(
                        name=f"table_{name}",
                        embedding_dim=options.dim,
                        num_embeddings=options.rows,
                        feature_names=[name],
                        weight_init_min=-(options.rows**-0.5),
                        weight_init_max=options.rows**-0.5,
                    )
                    for name in names
                ]
                self.tables = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
                self.dense_part = DensePart(options.features, options.dim).to(device)

            def forward(self, batch):
                rows = self.tables(batch.sparse).values().view(-1, options.features, options.dim)
                logits = self.dense_part(batch.dense, rows)
                loss = nn.functional.binary_cross_entropy_with_logits(logits, batch.label)
                return loss, loss.detach()

        sparse = [
            KeyedJaggedTensor(
                keys=names,
                values=torch.from_numpy(np.ascontiguousarray(ids.T).reshape(-1)),
                lengths=torch.ones(options.features * options.batch, dtype=torch.int32),
            )
            for ids in self.parts[1]
        ]
        batches = [
            Batch(torch.from_numpy(dense), ids, torch.from_numpy(label)).to(device)
            for dense, ids, label in zip(self.parts[0], sparse, self.parts[2], strict=True)
        ]
        backend = "nccl" if options.device == "cuda" else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        try:
            model, sharders = Model(), [EmbeddingBagCollectionSharder()]
            adagrad = {"lr": TABLE_LR, "eps": 1e-8}
            apply_optimizer_in_backward(RowWiseAdagrad, model.tables.parameters(), adagrad)
            planner = EmbeddingShardingPlanner(topology=Topology(world_size=1, compute_device=options.device))
            sharded = DistributedModelParallel(
                model,
                env=ShardingEnv.from_process_group(dist.group.WORLD),
                device=device,
                plan=planner.plan(model, sharders),
                sharders=sharders,
                init_data_parallel=False,
            )
            optimizer = torch.optim.AdamW(model.dense_part.parameters(), lr=LR, weight_decay=0, fused=True)
            pipeline = TrainPipelineSparseDist(sharded, optimizer, device)
            losses, half, begin, source = [], options.steps // 2, 0.0, iter(batches)
            for index in range(options.steps):
                if index == half:
                    synchronize(options)
                    begin = time.perf_counter()
                losses.append(pipeline.progress(source))
                if index == 0:  # the pipeline has traced the model
                    model.dense_part.compile()
            synchronize(options)
            seconds = time.perf_counter() - begin
        finally:
            dist.destroy_process_group()
        return options.batch * (options.steps - half) / seconds, torch.stack(losses[half:]).mean().item()


def synchronize(options) -> None:
    if options.device == "cuda":
        torch.cuda.synchronize()


def has_fbgemm(options) -> bool:
    if options.device == "cpu" and not add_peers("fbgemm", FBGEMM, options.peers):
        return False
    try:
        import fbgemm_gpu  # noqa: F401
    except ImportError:
        return False
    return True


def why_no_torchrec(options) -> str:
    """Why TorchRec cannot be a side; empty if it can."""
    if options.device == "cpu" and not add_peers("torchrec", TORCHREC, options.peers):
        return "it is not installed; --peers installs it for a CPU"
    logging.disable(logging.WARNING)  # about versions, which are pinned
    warnings.filterwarnings("ignore", module="torchrec")
    try:
        import torchrec  # noqa: F401
    except (ImportError, OSError, RuntimeError) as error:
        return f"it does not load: {error}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--features", type=int, default=26)
    parser.add_argument("--rows", type=int, default=100_000, help="of a table")
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--peers", action="store_true", help="install FBGEMM and TorchRec for a CPU")
    parser.add_argument("--tiers", action="store_true", help="also train with an eighth of the rows in memory")
    parser.add_argument("--without-kernel", action="store_true", help="tables by ATen operators")
    parser.add_argument("--out", help="also write the result as JSON")
    options = parser.parse_args()
    if options.without_kernel:
        os.environ["DOVETAIL_DISABLE"] = "embedding"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        rows = write_rows(folder / "rows.parquet", options)
        ours = ("rowwise_adagrad", "adagrad")
        sides = {f"dovetail {optimizer}": Ours(folder, optimizer, options) for optimizer in ours}
        if options.tiers:
            row_bytes = 4 * options.dim + 4
            memory_bytes = options.features * options.rows * row_bytes // 8
            sides["dovetail tiers"] = Ours(folder, "rowwise_adagrad", options, memory_bytes)
        sides["torch"] = Peer(lambda o: Bags(o, sparse=True), False, rows, options)
        if options.rows * options.features <= FUSED_ROWS:
            sides["torch fused"] = Peer(lambda o: Bags(o, sparse=False), False, rows, options)
        sides["torch compiled"] = Peer(lambda o: Bags(o, sparse=True), True, rows, options)
        if has_fbgemm(options):
            sides["FBGEMM"] = Peer(TableBatched, True, rows, options)
        no_torchrec = why_no_torchrec(options)
        if not no_torchrec:
            sides["rec pipeline"] = Pipeline(rows, options)
        rates: dict[str, list[float]] = {side: [] for side in sides}
        losses: dict[str, float] = {}
        for index in range(options.rounds):
            for side in list(sides)[:: 1 if index % 2 == 0 else -1]:
                rate, losses[side] = sides[side].train()
                rates[side].append(rate)
    gpu = torch.cuda.get_device_name() if options.device == "cuda" else None
    where = gpu or f"{machine()['cpu']}, {machine()['simd']}, {options.threads} thread(s)"
    print(
        f"DLRM, {options.features} tables of {options.rows} x {options.dim}, batches of {options.batch}; {where}, "
        f"load {os.getloadavg()[0]:.2f}"
    )
    best = {side: max(found) for side, found in rates.items()}
    for side, rate in best.items():
        spread = rate / min(rates[side])
        print(f"  {side:26}{rate:12,.0f} samples/s  slowest round {spread:.2f}x slower  loss {losses[side]:.4f}")
    torch_side = max((side for side in sides if side.startswith("torch")), key=best.__getitem__)
    ratio = best["dovetail adagrad"] / best[torch_side]
    least = 2 if gpu else 1
    claims = [(f"dovetail adagrad is {ratio:.2f} of {torch_side}, at least {least}", ratio >= least)]
    if "FBGEMM" in best:
        ratio = best["dovetail rowwise_adagrad"] / best["FBGEMM"]
        claims.append((f"dovetail rowwise_adagrad is {ratio:.2f} of FBGEMM, at least 1", ratio >= 1))
    else:
        print("FBGEMM is not installed; --peers installs it for a CPU")
    if no_torchrec:
        print(f"torchrec's pipeline is no side: {no_torchrec}")
    else:
        ratio = best["dovetail rowwise_adagrad"] / best["rec pipeline"]
        claims.append((f"dovetail rowwise_adagrad is {ratio:.2f} of torchrec's pipeline, at least 1", ratio >= 1))
    if options.tiers:
        ratio = best["dovetail tiers"] / best["dovetail rowwise_adagrad"]
        words = f"with an eighth of the rows in memory, the rate is {ratio:.2f} of the rate with all"
        if gpu:
            claims.append((f"{words}, at least 0.7", ratio >= 0.7))
        else:
            print(words)
    difference = max(losses.values()) - min(losses.values())
    claims.append((f"losses differ by {difference:.4f}, at most 0.01", difference <= 0.01))
    for words, held in claims:
        print(f"  {'holds' if held else 'DOES NOT HOLD'}: {words}")
    if options.out:
        setting = {name: value for name, value in vars(options).items() if name not in ("out", "peers", "rounds")}
        result = {"benchmark": "dlrm", "setting": setting, "machine": machine() | {"gpu": gpu}, "samples_per_s": rates}
        pathlib.Path(options.out).write_text(json.dumps(result | {"losses": losses}, indent=1) + "\n")
    return 0 if all(held for _, held in claims) else 1


if __name__ == "__main__":
    sys.exit(main())
