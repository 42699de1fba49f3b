"""Principal components on the CPU: whole fits of dovetail.PCA and of scikit-learn's PCA.

usage: ./dev bench pca [--threads 1,2] [--rounds N] [--out FILE]

Data: normal rows with 3 as their mean, and variances of the columns from 0.5 to 9 in random directions. Both sides
take turns within a round, and the best round of each counts. Both find 10 components by the covariance matrix.
scikit-learn computes a float32 table in float32.

The error of a side: the largest |C v - s v| over its directions v and variances s, divided by the largest s. C is the
covariance in float64. Claims: a fit takes at most scikit-learn's time, and has at most its error, or 1e-12. Exit code
1 when a claim does not hold.
"""

import argparse
import json
import pathlib
import sys
import time

import dovetail
import numpy
import torch
from peers import IDLE_S, machine
from sklearn.decomposition import PCA
from threadpoolctl import threadpool_limits

CASES = [(100_000, 20), (200_000, 20), (100_000, 48), (100_000, 100), (30_000, 500), (1_000_000, 10)]
COMPONENTS = 10
MOST_TIME, ROUNDING = 1.0, 1e-12


def make_data(rows: int, columns: int, dtype: str) -> numpy.ndarray:
    generator = numpy.random.default_rng(1)
    turn = numpy.linalg.qr(generator.normal(0, 1, (columns, columns)))[0]
    x = generator.standard_normal((rows, columns)) * numpy.geomspace(3, 0.7, columns) @ turn + 3
    return x.astype(dtype)


def covariance(x: numpy.ndarray) -> numpy.ndarray:
    z = x.astype(numpy.float64)
    z -= z.mean(0)
    return z.T @ z / (len(z) - 1)


def error(fit, c: numpy.ndarray) -> float:
    v, s = fit.components_.astype(numpy.float64), fit.explained_variance_.astype(numpy.float64)
    return float(numpy.linalg.norm(v @ c - s[:, None] * v, axis=1).max() / s.max())


def measure(rows: int, columns: int, dtype: str, threads: int, rounds: int) -> dict:
    x = make_data(rows, columns, dtype)
    sides = {
        "dovetail": dovetail.PCA(COMPONENTS),
        "scikit-learn": PCA(COMPONENTS, svd_solver="covariance_eigh"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    torch.set_num_threads(threads)
    with threadpool_limits(threads, "blas"):
        for turn in range(rounds + 1):
            for name in list(sides)[:: 1 if turn % 2 == 0 else -1]:
                begin = time.perf_counter()
                sides[name].fit(x)
                if turn > 0:  # the first touches memory
                    seconds[name].append(time.perf_counter() - begin)
                time.sleep(IDLE_S)
    ms = {name: 1e3 * min(times) for name, times in seconds.items()}
    c = covariance(x)
    errors = {name: error(fit, c) for name, fit in sides.items()}
    return {
        "rows": rows,
        "columns": columns,
        "dtype": dtype,
        "threads": threads,
        "ms": ms,
        "ratio": ms["dovetail"] / ms["scikit-learn"],
        "error": errors,
        "holds": ms["dovetail"] <= MOST_TIME * ms["scikit-learn"]
        and errors["dovetail"] <= max(ROUNDING, errors["scikit-learn"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1])
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    results = []
    for threads in map(int, options.threads.split(",")):
        for dtype in ("float32", "float64"):
            for rows, columns in CASES:
                result = measure(rows, columns, dtype, threads, options.rounds)
                results.append(result)
                times = ", ".join(f"{name} {ms:.1f} ms" for name, ms in result["ms"].items())
                errors = " and ".join(f"{value:.1e}" for value in result["error"].values())
                print(
                    f"{rows} x {columns} {dtype}, {threads} threads: {times}, ratio {result['ratio']:.2f}, errors"
                    f" {errors}{'' if result['holds'] else '  MISSED'}",
                    flush=True,
                )
    if options.out:
        options.out.write_text(json.dumps({"machine": machine(), "results": results}, indent=2) + "\n")
    sys.exit(0 if all(result["holds"] for result in results) else 1)


if __name__ == "__main__":
    main()
