"""K-means on the CPU: one Lloyd iteration, compared with scikit-learn, faiss and oneDAL.

usage: ./dev bench kmeans [--clusters 5,64,1024] [--threads 1,2] [--rounds N] [--rows N] [--without-kernel] [--out
FILE]

Data: 819,200 rows of 100 float32 in 64 overlapping normal clouds. All sides start from the same rows as centres.
Sides take turns within a round, and the best round of each counts. Timed is one iteration: labels of all rows and the
next centres:

- scikit-learn: its own inner step (lloyd_iter_chunked_dense, as KMeans.fit calls it)
- faiss: the time between two iterations in its iteration_stats
- oneDAL: half of the difference between three iterations and one

Peers (PyPI faiss-cpu and scikit-learn-intelex with its runtime) are installed alone in the cache folder. The inertia
of each side's next centres is computed in float64 and must agree to 1e-6.

Roofline: the data read once at the machine's copy bandwidth, 2 N D K operations at the rate of a large torch product.
With --without-kernel Dovetail's side is composed of torch's operations, and the claims must not hold. Exit code 1
when a claim does not hold.
"""

import argparse
import importlib.metadata
import json
import os
import pathlib
import statistics
import sys
import time

import dovetail  # noqa: F401  registers torch.ops.dovetail
import numpy
import torch
from peers import IDLE_S, add_clustering_peers, machine, rates
from threadpoolctl import threadpool_limits

COLUMNS = 100
# clusters -> (rounds, at least this ratio of the fastest peer's time to ours)
CASES = {5: (15, 2.0), 64: (7, 1.1), 1024: (3, 1.0)}
SAME_INERTIA = 1e-6


class Dovetail:
    def __init__(self, x: numpy.ndarray, threads: int):
        torch.set_num_threads(threads)
        self.data = torch.ops.dovetail.kmeans_data(torch.from_numpy(x))

    def step(self, centres: numpy.ndarray, threads: int) -> tuple[float, numpy.ndarray]:
        torch.set_num_threads(threads)
        begin = time.perf_counter()
        sums, counts, _ = torch.ops.dovetail.kmeans_assign(self.data, torch.from_numpy(centres))
        after = torch.where(counts[:, None] > 0, sums / counts[:, None].clamp(min=1), torch.from_numpy(centres))
        return time.perf_counter() - begin, after.numpy()


class Composed:
    """The same step of torch's operations, over pieces that stay in the caches."""

    def __init__(self, x: numpy.ndarray, threads: int):
        self.x = torch.from_numpy(x)

    def step(self, centres: numpy.ndarray, threads: int) -> tuple[float, numpy.ndarray]:
        torch.set_num_threads(threads)
        begin = time.perf_counter()
        c = torch.from_numpy(centres)
        squares = c.square().sum(1)
        sums, counts = torch.zeros_like(c), torch.zeros(len(c))
        for piece in self.x.split(4096):
            label = torch.addmm(squares, piece, c.T, alpha=-2).argmin(1)
            sums.index_add_(0, label, piece)
            counts += torch.bincount(label, minlength=len(c))
        after = torch.where(counts[:, None] > 0, sums / counts[:, None].clamp(min=1), c)
        return time.perf_counter() - begin, after.numpy()


class ScikitLearn:
    def __init__(self, x: numpy.ndarray, threads: int):
        self.x = x
        self.weight, self.labels = numpy.ones(len(x), x.dtype), numpy.full(len(x), -1, numpy.int32)

    def step(self, centres: numpy.ndarray, threads: int) -> tuple[float, numpy.ndarray]:
        from sklearn.cluster._k_means_lloyd import lloyd_iter_chunked_dense

        after, k = numpy.zeros_like(centres), len(centres)
        counts, shift = numpy.zeros(k, self.x.dtype), numpy.zeros(k, self.x.dtype)
        with threadpool_limits(1, user_api="blas"):  # as fit does: its threads are over rows
            begin = time.perf_counter()
            lloyd_iter_chunked_dense(
                self.x, self.weight, centres, after, counts, self.labels, shift, threads, update_centers=True
            )
            return time.perf_counter() - begin, after


class Faiss:
    def __init__(self, x: numpy.ndarray, threads: int):
        self.x = x

    def train(self, centres: numpy.ndarray, iterations: int):
        import faiss

        k = len(centres)
        clustering = faiss.Clustering(self.x.shape[1], k)
        clustering.niter, clustering.max_points_per_centroid = iterations, len(self.x)
        clustering.min_points_per_centroid, clustering.check_input_data_for_NaNs = 1, False
        faiss.copy_array_to_vector(centres.ravel(), clustering.centroids)
        clustering.train(self.x, faiss.IndexFlatL2(self.x.shape[1]))
        return clustering

    def step(self, centres: numpy.ndarray, threads: int) -> tuple[float, numpy.ndarray]:
        import faiss

        faiss.omp_set_num_threads(threads)
        clustering = self.train(centres, 2)  # whose statistics live as long as it does
        stats = clustering.iteration_stats
        return stats.at(1).time - stats.at(0).time, None

    def after(self, centres: numpy.ndarray, threads: int) -> numpy.ndarray:
        import faiss

        clustering = self.train(centres, 1)  # whose centroids live as long as it does
        return faiss.vector_to_array(clustering.centroids).reshape(centres.shape).copy()


class OneDal:
    def __init__(self, x: numpy.ndarray, threads: int):
        self.x = x
        self.one = self.three = float("inf")

    def compute(self, centres: numpy.ndarray, iterations: int):
        import daal4py

        algorithm = daal4py.kmeans(len(centres), iterations, fptype="float", method="lloydDense", accuracyThreshold=0.0)
        begin = time.perf_counter()
        result = algorithm.compute(self.x, centres)
        return time.perf_counter() - begin, result

    def step(self, centres: numpy.ndarray, threads: int) -> tuple[float, numpy.ndarray]:
        import daal4py

        daal4py.daalinit(threads)
        # Keep minima: a difference of two disturbed times may have any value.
        self.one = min(self.one, self.compute(centres, 1)[0])
        self.three = min(self.three, self.compute(centres, 3)[0])
        return (self.three - self.one) / 2, None

    def after(self, centres: numpy.ndarray, threads: int) -> numpy.ndarray:
        return numpy.asarray(self.compute(centres, 1)[1].centroids)


def make_data(rows: int) -> numpy.ndarray:
    generator = numpy.random.default_rng(1)
    clouds = generator.normal(0, 1, (64, COLUMNS)).astype(numpy.float32)
    x = generator.standard_normal((rows, COLUMNS), dtype=numpy.float32)
    x += clouds[generator.integers(0, len(clouds), rows)]
    return x


def inertia(x: numpy.ndarray, centres: numpy.ndarray) -> float:
    """In float64, from the definition, by torch."""
    c, total = torch.from_numpy(centres.astype(numpy.float64)), 0.0
    for piece in torch.from_numpy(x).split(8192):
        y = piece.double()
        label = torch.addmm(c.square().sum(1), y, c.T, alpha=-2).argmin(1)
        total += (y - c[label]).square().sum().item()
    return total


def measure(x: numpy.ndarray, k: int, threads: int, rounds: int, ours) -> dict:
    centres = numpy.ascontiguousarray(x[numpy.random.default_rng(k).choice(len(x), k, replace=False)])
    sides = {"dovetail": ours, "scikit-learn": ScikitLearn, "faiss": Faiss, "oneDAL": OneDal}
    sides = {name: side(x, threads) for name, side in sides.items()}
    times: dict[str, list[float]] = {name: [] for name in sides}
    after = {}
    for index in range(rounds + 1):
        for name in list(sides)[:: 1 if index % 2 == 0 else -1]:
            seconds, moved = sides[name].step(centres, threads)
            if moved is not None:
                after[name] = moved
            if index > 0:  # the first touches memory
                times[name].append(seconds)
            time.sleep(IDLE_S)
    after |= {name: sides[name].after(centres, threads) for name in ["faiss", "oneDAL"]}
    torch.set_num_threads(os.cpu_count() or 1)
    inertias = {name: inertia(x, c) for name, c in after.items()}
    torch.set_num_threads(threads)
    bandwidth, gemm = rates()
    ms = {name: 1e3 * min(seconds) for name, seconds in times.items()}
    fastest = min((name for name in ms if name != "dovetail"), key=ms.__getitem__)
    floor = {"bytes": x.nbytes / bandwidth, "flops": 2 * x.size * k / gemm}
    return {
        "clusters": k,
        "threads": threads,
        "rounds": rounds,
        "ms": ms,
        "median_ms": {name: 1e3 * statistics.median(seconds) for name, seconds in times.items()},
        "inertia": inertias,
        "copy_bytes_per_s": bandwidth,
        "gemm_flops": gemm,
        "of_roofline": {name: 1e3 * max(floor.values()) / value for name, value in ms.items()},
        "bound_by": max(floor, key=floor.__getitem__),
        "fastest_peer": fastest,
        "ratio": ms[fastest] / ms["dovetail"],
        "at_least": CASES[k][1],
        "inertia_differs_by": max(abs(v / inertias["dovetail"] - 1) for v in inertias.values()),
    }


def report(line: dict) -> bool:
    print(
        f"k = {line['clusters']}, {line['threads']} thread(s), best of {line['rounds']} rounds, copy "
        f"{line['copy_bytes_per_s'] / 1e9:.1f} GB/s, product {line['gemm_flops'] / 1e9:.0f} GFLOP/s, bound by "
        f"{line['bound_by']}, load {os.getloadavg()[0]:.2f}"
    )
    for name, ms in line["ms"].items():
        print(
            f"  {name:14}{ms:9.2f} ms (median {line['median_ms'][name]:9.2f})  {line['of_roofline'][name]:5.2f} of the "
            f"roofline  inertia {line['inertia'][name]:.9g}"
        )
    fast, same = line["ratio"] >= line["at_least"], line["inertia_differs_by"] <= SAME_INERTIA
    print(
        f"  {line['fastest_peer']} / dovetail: {line['ratio']:.2f}, "
        f"{'holds' if fast else 'DOES NOT HOLD'}: at least {line['at_least']:.1f}"
    )
    print(
        f"  inertia differs by {line['inertia_differs_by']:.1e}, "
        f"{'holds' if same else 'DOES NOT HOLD'}: at most {SAME_INERTIA:.0e}",
        flush=True,
    )
    return fast and same


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", default=",".join(map(str, CASES)), help="of 5, 64, 1024, separated by commas")
    parser.add_argument("--threads", default="1,2", help="separated by commas")
    parser.add_argument("--rounds", type=int, default=0, help="0: more for fewer clusters")
    parser.add_argument("--rows", type=int, default=819_200)
    parser.add_argument("--without-kernel", action="store_true", help="our side composed of torch's operations")
    parser.add_argument("--out", help="also write the result as JSON")
    options = parser.parse_args()
    add_clustering_peers(install=True)
    x, here = make_data(options.rows), machine()
    print(f"k-means, {options.rows} x {COLUMNS}, one iteration; {here['cpu']}, {here['simd']}")
    lines, holds = [], True
    for k in map(int, options.clusters.split(",")):
        for threads in map(int, options.threads.split(",")):
            ours = Composed if options.without_kernel else Dovetail
            lines.append(measure(x, k, threads, options.rounds or CASES[k][0], ours))
            holds = report(lines[-1]) and holds
    if options.out:
        versions = {name: importlib.metadata.version(name) for name in ["torch", "scikit-learn"]}
        versions |= {name: importlib.metadata.version(name) for name in ["faiss-cpu", "scikit-learn-intelex"]}
        result = {"benchmark": "kmeans", "machine": here, "versions": versions, "rows": options.rows, "results": lines}
        pathlib.Path(options.out).write_text(json.dumps(result, indent=1) + "\n")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
