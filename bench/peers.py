"""Common code of benchmarks that compare Dovetail with its peers."""

import os
import pathlib
import subprocess
import sys
import time

import torch

CLUSTERING = [
    "faiss-cpu==1.15.1",
    "scikit-learn-intelex==2026.2.0",
    "daal==2026.2.0",
    "tbb==2023.2.0",
    "tcmlib==1.6.0",
]
FBGEMM = ["fbgemm-gpu-cpu==1.6.0"]
# torchrec, and what importing it needs beside the environment.
TORCHREC = [
    "torchrec==1.6.1",
    *FBGEMM,
    "iopath==0.1.10",
    "pyre-extensions==0.0.32",
    "tensordict==0.15.3",
    "typing-inspect==0.9.0",
    "mypy-extensions==1.2.0",
    "portalocker==4.4.2",
    "pyvers==0.2.3",
]

# Pause between sides that take turns. OpenBLAS's threads wait in a loop for up to 2^26 ticks after their work.
IDLE_S = 0.1


def peer_folder(name: str) -> pathlib.Path:
    """Where a peer is installed, beside nothing else."""
    cache = pathlib.Path(
        os.environ.get("DOVETAIL_CACHE")
        or pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "dovetail"
    )
    return cache / "peers" / name


def add_clustering_peers(install: bool) -> bool:
    """Makes faiss and oneDAL (scikit-learn-intelex, daal4py) importable; False if they are not installed.

    Their dependencies are scikit-learn's, which the environment has.
    """
    return add_peers("kmeans", CLUSTERING, install)


def add_peers(name: str, packages: list[str], install: bool) -> bool:
    """Makes packages importable that lie alone in a folder of the cache; False if they are not installed."""
    folder = peer_folder("-".join([name, *(peer.split("==")[1] for peer in packages)]))
    if not (folder / ".ready").exists():
        if not install:
            return False
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--ignore-installed"]
        options = ["--disable-pip-version-check", "--no-warn-script-location", "--prefix", str(folder)]
        subprocess.run([*command, *options, *packages], check=True)
        (folder / ".ready").touch()
    sys.path.append(str(next(folder.glob("lib/python3*/site-packages"))))
    return True


def best_of(action, rounds: int = 10) -> float:
    """Seconds of the fastest round."""
    best = float("inf")
    for _ in range(rounds):
        begin = time.perf_counter()
        action()
        best = min(best, time.perf_counter() - begin)
    return best


def rates() -> tuple[float, float]:
    """Bytes read plus written per second of 128 MiB, and FLOP/s of a product of 2048 cubed."""
    source = torch.ones(1 << 25)
    target, a = torch.zeros_like(source), torch.ones(2048, 2048)
    return 2 * source.nbytes / best_of(lambda: target.copy_(source)), 2 * 2048**3 / best_of(lambda: a @ a, 5)


def machine() -> dict:
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")
    return {"cpu": name, "simd": torch.backends.cpu.get_cpu_capability(), "load_average": os.getloadavg()[0]}


def resident(key: str) -> int:
    """Bytes of this process now (VmRSS), or at most so far (VmHWM)."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(key))
