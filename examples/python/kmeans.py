"""`dovetail.KMeans` beside `sklearn.cluster.KMeans`: the same rows, the same starting centres, times in turn.

Both are scikit-learn estimators, so either goes into a Pipeline. Dovetail's reads rows as float32 and keeps sums and
centres in float64.
"""

import statistics
import time

import dovetail
import numpy as np
from sklearn.cluster import KMeans

ROWS, COLUMNS, CLUSTERS, ROUNDS = 200_000, 64, 32, 5

# Overlapping clouds, which give Lloyd's algorithm work for the 20 iterations that both sides do.
random = np.random.default_rng(0)
middles = random.normal(0, 1, (CLUSTERS, COLUMNS))
x = (middles[random.integers(CLUSTERS, size=ROWS)] + random.normal(0, 2, (ROWS, COLUMNS))).astype(np.float32)
start = x[:CLUSTERS]

sides = {
    "scikit-learn": KMeans(CLUSTERS, init=start, n_init=1, max_iter=20, tol=0),
    "dovetail": dovetail.KMeans(CLUSTERS, init=start, max_iter=20, tol=0),
}
seconds = {name: [] for name in sides}
for _ in range(ROUNDS):  # in turn, so that a busy moment of the machine hits both
    for name, side in sides.items():
        begin = time.perf_counter()
        side.fit(x)
        seconds[name].append(time.perf_counter() - begin)

print(f"{ROWS:,} rows of {COLUMNS}, {CLUSTERS} clusters, median of {ROUNDS} fits")
for name, side in sides.items():
    median = statistics.median(seconds[name])
    print(f"{name:12}  {median:6.2f} s  {side.n_iter_} iterations  inertia {side.inertia_:.8e}")
ours, theirs = sides["dovetail"], sides["scikit-learn"]
speedup = statistics.median(a / b for a, b in zip(seconds["scikit-learn"], seconds["dovetail"], strict=True))
print(f"same labels: {(ours.labels_ == theirs.labels_).mean():.2%}  speedup: {speedup:.2f}")
