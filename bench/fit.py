"""Whole fits on the CPU, compared with scikit-learn, oneDAL and faiss.

usage: ./dev bench fit [--quick] [--peers] [--models kmeans,gmm] [--cases 200000x20x64] [--threads 1,2] [--rounds N]
       [--without-kernel] [--out FILE]

- kmeans: k-means++ and 20 iterations
- gmm: full covariances and 20 iterations, from k-means
- logistic: 5 classes, penalty 1
- linear: least squares
- pca: 10 components

Data: float32 rows in 64 overlapping normal clouds. A case is rows x columns x K. Sides take turns within a round, and
the best round of each counts. The start differs by round and is the same number for all sides. Reading is not timed;
gmm and logistic are timed inside `dovetail fit`.

A side counts only if its result is good. Its mean inertia is within 1 % of the best side's. Log-likelihood, loss and
variance are within 0.1 %. Claims:

- kmeans takes at most 1/1.5 of the fastest good peer's time
- pca takes at most scikit-learn's time
- the second thread makes kmeans at least 1.6 times as fast, or 0.9 times as much faster as scikit-learn
- each of our results is good

The k-means iteration has two bounds. One reads the data once at the machine's copy bandwidth. The other does 2 N D K
operations at the rate of a large torch product. The larger bound over the measured time is the fraction.

--quick measures k-means at 200,000 x 20 and 100,000 x 100 with 5, 64 and 512 clusters, on one thread and two.
--peers installs PyPI faiss-cpu and scikit-learn-intelex alone in the cache folder. Without them the result says so.
With --without-kernel Dovetail's kernels use no vectors (DOVETAIL_SIMD=scalar), and the claims must not hold:
 `--cases 20000x100x64 --without-kernel`. Exit code 1 when a claim does not hold.
"""

import argparse
import importlib.metadata
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import numpy
import torch
from peers import IDLE_S, add_clustering_peers, machine, rates
from threadpoolctl import threadpool_limits

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "build/release/bin/dovetail"
QUICK = [f"{shape}x{k}" for shape in ["200000x20", "100000x100"] for k in [5, 64, 512]]
ALL = [
    *(f"8192x{columns}x{k}" for columns in [20, 100] for k in [5, 64, 256]),
    *(f"20000x{columns}x{k}" for columns in [20, 100] for k in [5, 64, 256]),
    "50000x200x64",
    "50000x20x512",
    *QUICK,
    "200000x10x64",
    *(f"1000000x20x{k}" for k in [5, 64, 1024]),
]
ITERATIONS, COMPONENTS, CLASSES = 20, 10, 5
MODELS = ["kmeans", "gmm", "logistic", "linear", "pca"]
GOOD = {"kmeans": 1e-2, "gmm": 1e-3, "logistic": 1e-3, "linear": 1e-3, "pca": 1e-3}
FASTER, SECOND_THREAD, OF_PEERS_GAIN = 1.5, 1.6, 0.9


def make_data(rows: int, columns: int) -> tuple[numpy.ndarray, numpy.ndarray, numpy.ndarray]:
    """Rows, numbers that depend on them linearly with noise, and classes that depend on their cloud."""
    generator = numpy.random.default_rng(1)
    clouds = generator.normal(0, 1, (64, columns)).astype(numpy.float32)
    cloud = generator.integers(0, len(clouds), rows)
    x = generator.standard_normal((rows, columns), dtype=numpy.float32) + clouds[cloud]
    number = x @ generator.normal(0, 1, columns) + generator.normal(0, 1, rows)
    score = x @ generator.normal(0, 1, (columns, CLASSES)) + generator.gumbel(0, 2, (rows, CLASSES))
    return x, number, score.argmax(1)


class Ours:
    """`dovetail.KMeans`, `PCA`, `LinearRegression`, and `dovetail fit` for models without a class."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder

    def fit(self, model: str, data: tuple, k: int, threads: int, seed: int) -> tuple[float, object]:
        import dovetail

        x, number, _ = data
        torch.set_num_threads(threads)
        if model in {"gmm", "logistic"}:
            return self.fit_by_program(model, data, k, threads, seed)
        estimator = {
            "kmeans": lambda: dovetail.KMeans(k, n_init=1, max_iter=ITERATIONS, tol=0, random_state=seed),
            "pca": lambda: dovetail.PCA(min(COMPONENTS, x.shape[1])),
            "linear": lambda: dovetail.LinearRegression(),
        }[model]()
        return timed(estimator, x, number if model == "linear" else None)

    def fit_by_program(self, model: str, data: tuple, k: int, threads: int, seed: int) -> tuple[float, object]:
        x, _, label = data
        table = self.folder / f"{model}-{x.shape[0]}x{x.shape[1]}.npy"
        if not table.exists():
            numpy.save(table, x if model == "gmm" else numpy.column_stack([x, label]).astype(numpy.float32))
        words = ["--k", k, "--iterations", ITERATIONS, "--tolerance", 0, "--seed", seed]
        if model == "logistic":
            words = ["--target", f"c{x.shape[1]}", "--l2", 1]
        command = [PROGRAM, "fit", model, "--data", table, *words, "--threads", threads, "--out", self.folder / model]
        out = subprocess.run([*map(str, command), "--fresh", "--json"], check=True, stdout=subprocess.PIPE)
        result = json.loads(out.stdout)
        return result["seconds"]["fit"], result


class Estimators:
    """Estimators of scikit-learn, or of oneDAL in scikit-learn-intelex."""

    def __init__(self, name: str):
        self.name = name

    def fit(self, model: str, data: tuple, k: int, threads: int, seed: int) -> tuple[float, object] | None:
        x, number, label = data
        if self.name == "oneDAL":
            import daal4py
            from sklearnex import cluster, decomposition, linear_model

            daal4py.daalinit(threads)
        else:
            from sklearn import cluster, decomposition, linear_model
        from sklearn.mixture import GaussianMixture

        if model == "gmm" and self.name == "oneDAL":
            return None
        estimator = {
            "kmeans": lambda: cluster.KMeans(k, n_init=1, max_iter=ITERATIONS, tol=0, random_state=seed),
            "gmm": lambda: GaussianMixture(k, max_iter=ITERATIONS, tol=0, random_state=seed),
            "logistic": lambda: linear_model.LogisticRegression(max_iter=1000),
            "linear": lambda: linear_model.LinearRegression(),
            "pca": lambda: decomposition.PCA(min(COMPONENTS, x.shape[1])),
        }[model]()
        with threadpool_limits(threads):
            return timed(estimator, x, {"linear": number, "logistic": label}.get(model))


class Faiss:
    def fit(self, model: str, data: tuple, k: int, threads: int, seed: int) -> tuple[float, object] | None:
        import faiss

        if model != "kmeans":
            return None
        x = data[0]
        faiss.omp_set_num_threads(threads)
        clustering = faiss.Clustering(x.shape[1], k)
        clustering.niter, clustering.seed, clustering.max_points_per_centroid = ITERATIONS, seed, len(x)
        clustering.min_points_per_centroid, clustering.check_input_data_for_NaNs = 1, False
        clustering.init_method = faiss.ClusteringInitMethod_KMEANS_PLUS_PLUS
        index = faiss.IndexFlatL2(x.shape[1])
        begin = time.perf_counter()
        clustering.train(x, index)
        seconds = time.perf_counter() - begin
        return seconds, faiss.vector_to_array(clustering.centroids).reshape(k, -1).copy()


def timed(estimator, x: numpy.ndarray, y: numpy.ndarray | None) -> tuple[float, object]:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the number of iterations is the limit
        begin = time.perf_counter()
        estimator.fit(x, y)
        return time.perf_counter() - begin, estimator


def inertia(x: numpy.ndarray, centres: numpy.ndarray) -> float:
    """In float64, from the definition, by torch."""
    c, total = torch.from_numpy(centres.astype(numpy.float64)), 0.0
    for piece in torch.from_numpy(x).split(8192):
        y = piece.double()
        label = torch.addmm(c.square().sum(1), y, c.T, alpha=-2).argmin(1)
        total += (y - c[label]).square().sum().item()
    return total


def badness(model: str, data: tuple, fitted: object, folder: pathlib.Path) -> float:
    """Figure of the result, the lower the better, in float64 from the model's definition."""
    x, number, label = data
    if model == "kmeans":
        return inertia(x, fitted if isinstance(fitted, numpy.ndarray) else fitted.cluster_centers_)
    if model == "gmm":
        return -(fitted["log_likelihood"] if isinstance(fitted, dict) else fitted.score(x))
    if model == "linear":
        return float(numpy.square(fitted.predict(x) - number).mean())
    if model == "pca":
        return -float(numpy.square((x.astype(float) - x.mean(0, float)) @ fitted.components_.T).mean(0).sum())
    if isinstance(fitted, dict):
        table = numpy.loadtxt(folder / "logistic/coefficients.csv", delimiter=",", skiprows=1)
        constant, slope = table[:, 1], table[:, 2:]
    else:
        constant, slope = fitted.intercept_, fitted.coef_
    score = torch.from_numpy(x.astype(float) @ slope.T + constant)
    loss = torch.nn.functional.cross_entropy(score, torch.from_numpy(label), reduction="sum").item()
    return loss + float(numpy.square(slope).sum()) / 2


def roofline(x: numpy.ndarray, k: int, threads: int) -> dict:
    """Our iteration of k-means against its bound."""
    from kmeans import Dovetail

    torch.set_num_threads(threads)
    centres = numpy.ascontiguousarray(x[numpy.random.default_rng(k).choice(len(x), k, replace=False)])
    ours = Dovetail(x, threads)
    seconds = min(ours.step(centres, threads)[0] for _ in range(5))
    bandwidth, gemm = rates()
    floor = {"bytes": x.nbytes / bandwidth, "flops": 2 * x.size * k / gemm}
    bound = max(floor, key=floor.__getitem__)
    return {
        "iteration_ms": 1e3 * seconds,
        "copy_bytes_per_s": bandwidth,
        "gemm_flops": gemm,
        "bound_by": bound,
        "of_roofline": floor[bound] / seconds,
    }


def measure(model: str, case: str, threads: int, rounds: int, sides: dict, folder: pathlib.Path) -> dict:
    rows, columns, k = map(int, case.split("x"))
    data = make_data(rows, columns)
    times: dict[str, list[float]] = {name: [] for name in sides}
    figures: dict[str, list[float]] = {name: [] for name in sides}
    few = max(2048, 2 * k)
    for side in sides.values():  # libraries load and threads start in a fit that is not timed
        side.fit(model, tuple(part[:few] for part in data), k, threads, 0)
    for index in range(rounds):
        for name in list(sides)[:: 1 if index % 2 == 0 else -1]:
            done = sides[name].fit(model, data, k, threads, index)
            if done is None:
                continue
            times[name].append(done[0])
            torch.set_num_threads(os.cpu_count() or 1)
            figures[name].append(badness(model, data, done[1], folder))
            time.sleep(IDLE_S)
    ms = {name: 1e3 * min(seconds) for name, seconds in times.items() if seconds}
    mean = {name: statistics.fmean(figure) for name, figure in figures.items() if figure}
    best = min(mean.values())
    good = {name: figure - best <= GOOD[model] * abs(best) for name, figure in mean.items()}
    peers = [name for name in ms if name != "dovetail" and good[name]]
    fastest = min(peers, key=ms.__getitem__) if peers else None
    line = {"model": model, "rows": rows, "columns": columns, "k": k, "threads": threads, "rounds": rounds, "ms": ms}
    line["slowest_over_fastest_round"] = {name: max(s) / min(s) for name, s in times.items() if s}
    line |= {"figure": mean, "good": good, "fastest_good_peer": fastest, "load_average": os.getloadavg()[0]}
    line["ratio"] = {name: ms[name] / ms["dovetail"] for name in ms if name != "dovetail"}
    if model == "kmeans":
        line |= roofline(data[0], k, threads)
    return line


def claims(line: dict, before: dict | None) -> list[tuple[str, bool]]:
    """Claims about a line, each with True if it holds. `before`: the same case on one thread."""
    out = [("the result is good", line["good"]["dovetail"])]
    peer = line["fastest_good_peer"]
    if line["model"] == "kmeans" and peer:
        ratio = line["ratio"][peer]
        out.append((f"{peer} / dovetail is {ratio:.2f}, at least {FASTER}", ratio >= FASTER))
    if line["model"] == "pca":
        ratio = line["ratio"]["scikit-learn"]
        out.append((f"scikit-learn / dovetail is {ratio:.2f}, at least 1", ratio >= 1))
    if line["model"] == "kmeans" and before and line["threads"] == 2:
        line["gain"] = {name: before["ms"][name] / ms for name, ms in line["ms"].items()}
        ours, theirs = line["gain"]["dovetail"], line["gain"]["scikit-learn"]
        least = min(SECOND_THREAD, OF_PEERS_GAIN * theirs)
        out.append(
            (f"the second thread gains {ours:.2f} (scikit-learn {theirs:.2f}), at least {least:.2f}", ours >= least)
        )
    return out


def report(line: dict, before: dict | None) -> bool:
    print(
        f"{line['model']} {line['rows']} x {line['columns']}, K = {line['k']}, {line['threads']} thread(s), best of "
        f"{line['rounds']} rounds, load {line['load_average']:.2f}"
    )
    for name, ms in line["ms"].items():
        print(
            f"  {name:14}{ms:10.1f} ms  slowest round {line['slowest_over_fastest_round'][name]:.2f}x  figure "
            f"{line['figure'][name]:.8g}{'' if line['good'][name] else '  NOT GOOD, does not count'}"
        )
    if "of_roofline" in line:
        print(
            f"  an iteration {line['iteration_ms']:.2f} ms, {line['of_roofline']:.2f} of its bound by "
            f"{line['bound_by']}"
        )
    holds = True
    for words, held in claims(line, before):
        print(f"  {'holds' if held else 'DOES NOT HOLD'}: {words}", flush=True)
        holds = holds and held
    return holds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="k-means at two shapes, under ten minutes")
    parser.add_argument("--peers", action="store_true", help="install faiss-cpu and scikit-learn-intelex")
    parser.add_argument("--models", default="", help=f"of {', '.join(MODELS)} (all; --quick: kmeans)")
    parser.add_argument("--cases", default="", help="rows x columns x K, separated by commas")
    parser.add_argument("--threads", default="", help="separated by commas (1, 2, 4 and so on to all; --quick: 1,2)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--without-kernel", action="store_true", help="our kernels without vector instructions")
    parser.add_argument("--out", help="also write the result as JSON")
    options = parser.parse_args()
    if options.without_kernel:
        os.environ["DOVETAIL_SIMD"] = "scalar"
    models = (options.models or ("kmeans" if options.quick else ",".join(MODELS))).split(",")
    cores = len(os.sched_getaffinity(0))
    doubled = [n for n in (1 << i for i in range(8)) if n < cores] + [cores]
    threads = sorted({int(n) for n in options.threads.split(",") if n} or ({1, 2} if options.quick else set(doubled)))
    cases = options.cases.split(",") if options.cases else QUICK if options.quick else ALL
    has_peers, here = add_clustering_peers(options.peers), machine()
    here["simd_of_dovetail"] = os.environ.get("DOVETAIL_SIMD", "best of the processor")
    print(f"whole fits; {here['cpu']}, {here['simd']}, dovetail with {here['simd_of_dovetail']}")
    if not has_peers:
        print("faiss and oneDAL are not installed; --peers installs them")
    lines, holds = [], True
    with tempfile.TemporaryDirectory() as folder:
        sides = {"dovetail": Ours(pathlib.Path(folder)), "scikit-learn": Estimators("scikit-learn")}
        if has_peers:
            sides |= {"oneDAL": Estimators("oneDAL"), "faiss": Faiss()}
        for model in models:
            # The other models have no number of clusters, or are slow with many.
            few = list(dict.fromkeys(c if model == "kmeans" else f"{c.rsplit('x', 1)[0]}x8" for c in cases))
            for case in few:
                before = None
                for count in threads:
                    line = measure(model, case, count, options.rounds, sides, pathlib.Path(folder))
                    holds = report(line, before) and holds
                    before = before or (line if count == 1 else None)
                    lines.append(line)
    if options.out:
        names = ["torch", "scikit-learn", *(["faiss-cpu", "scikit-learn-intelex"] if has_peers else [])]
        versions = {name: importlib.metadata.version(name) for name in names}
        result = {"benchmark": "fit", "machine": here, "versions": versions, "peers": has_peers, "results": lines}
        pathlib.Path(options.out).write_text(json.dumps(result, indent=1) + "\n")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
