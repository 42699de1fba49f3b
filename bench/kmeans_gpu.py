"""K-means on cores, on a GPU and on both: time per iteration beside the bound and PyTorch.

usage: ./dev bench kmeans_gpu [--rows N] [--columns N] [--clusters 5,64,1024] [--cores N] [--iterations N] [--out FILE]

Each row is a run of `dovetail kmeans` from the first K rows, on the cores, on the GPU, and on both. The time of an
iteration is the median after the first five, in which the scheduler finds the shares. `bound_ms` is the longer of two
times. One reads the rows once at the card's measured bandwidth. The other does 6 N D K FLOPs on TF32 tensor cores. The
TF32 rate is measured by a product of square matrices. PyTorch's side computes labels, sums and counts by float32
products, TF32 allowed.

Claims, on a GPU such as an H100 with 16 cores:
- The GPU takes at most 0.25, 0.6 and 3 ms at K = 5, 64 and 1024.
- Both have at least 0.93 of the sum of both speeds, unless one side is ten times as fast.
- Both are at most 2 % slower than the better one alone.
- The inertia has the same bits.
Exit code 1 if a claim does not hold, 2 without a GPU.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import numpy as np
import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
WARM = 5  # iterations before the first that counts
GOALS_MS = {5: 0.25, 64: 0.6, 1024: 3.0}


def seconds_of(work, rounds: int = 10) -> float:
    times = []
    for _ in range(rounds + 2):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return min(times[2:])


def bandwidth() -> float:
    """Bytes per second of a copy, read plus written."""
    source = torch.ones(1 << 28, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / seconds_of(lambda: target.copy_(source))


def tensor_rate() -> float:
    """FLOPs per second of a TF32 product."""
    size = 8192
    a, b = torch.randn(size, size, device="cuda"), torch.randn(size, size, device="cuda")
    return 2 * size**3 / seconds_of(lambda: a @ b)


def ours(path: pathlib.Path, folder: pathlib.Path, clusters: int, executors: str, iterations: int) -> dict:
    program = os.environ.get("DOVETAIL_BINARY", str(ROOT / "build/release/bin/dovetail"))
    out = folder / f"{clusters}-{executors.replace(':', '').replace(',', '-')}"
    command = [program, "kmeans", "--data", path, "--k", clusters, "--init", "first", "--tolerance", 0, "--fresh"]
    command += ["--iterations", iterations, "--executors", executors, "--out", out, "--json"]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"error: {executors}: {done.stderr.strip()}")
    result = json.loads(done.stdout)
    times = [json.loads(line)["seconds"] for line in (out / "iterations.jsonl").read_text().splitlines()]
    return {
        "ms": 1e3 * statistics.median(times[WARM:]),
        "third_ms": 1e3 * times[2],
        "inertia": result["inertia"],
        "executors": result["executors"],
    }


def peer_ms(x: torch.Tensor, clusters: int) -> float:
    centres = x[:clusters].clone()

    def iterate() -> None:
        labels = torch.addmm((centres * centres).sum(1), x, centres.T, alpha=-2).argmin(1)
        torch.zeros_like(centres).index_add_(0, labels, x)
        torch.bincount(labels, minlength=clusters)

    return 1e3 * seconds_of(iterate)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=819_200)
    parser.add_argument("--columns", type=int, default=100)
    parser.add_argument("--clusters", default="5,64,1024")
    parser.add_argument("--cores", type=int, default=max(1, len(os.sched_getaffinity(0)) - 1))
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("kmeans_gpu: torch finds no GPU", file=sys.stderr)
        return 2
    torch.backends.cuda.matmul.allow_tf32 = True
    x = np.random.default_rng(0).random((options.rows, options.columns), np.float32)
    on_card = torch.from_numpy(x).cuda()
    read_s, flops = on_card.nbytes / bandwidth(), tensor_rate()
    rows, failed = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        np.save(folder / "x.npy", x)
        for clusters in (int(k) for k in options.clusters.split(",")):
            lists = {"cores": f"cpu:{options.cores}", "gpu": "cuda:0", "both": f"cpu:{options.cores},cuda:0"}
            runs = {k: ours(folder / "x.npy", folder, clusters, v, options.iterations) for k, v in lists.items()}
            cores, gpu, both = (runs[side]["ms"] for side in ("cores", "gpu", "both"))
            bound = 1e3 * max(read_s, 6 * options.rows * options.columns * clusters / flops)
            together = 1 / (1 / cores + 1 / gpu)
            row = {
                "clusters": clusters,
                "bound_ms": bound,
                "of_bound": bound / gpu,
                "peer_ms": peer_ms(on_card, clusters),
            }
            row |= {"of_both_speeds": together / both, "runs": runs}
            rows.append(row)
            print(json.dumps(row), flush=True)
            if gpu > GOALS_MS.get(clusters, float("inf")):
                failed.append(f"K = {clusters}: {gpu:.3f} ms on the GPU")
            if max(cores, gpu) <= 10 * min(cores, gpu) and together / both < 0.93:
                failed.append(f"K = {clusters}: both have {together / both:.2f} of both speeds")
            if both > 1.02 * min(cores, gpu):
                failed.append(f"K = {clusters}: both take {both:.3f} ms, the better one {min(cores, gpu):.3f}")
            if len({run["inertia"] for run in runs.values()}) > 1:
                failed.append(f"K = {clusters}: inertias differ")
    if options.out:
        card = torch.cuda.get_device_name()
        result = {"benchmark": "kmeans_gpu", "card": card, "rows": options.rows, "columns": options.columns}
        options.out.write_text(json.dumps(result | {"cores": options.cores, "results": rows}, indent=1) + "\n")
    for text in failed:
        print(f"does not hold: {text}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
