"""Common code of benchmarks that compare Dovetail with its peers."""

import os
import pathlib

import torch


def peer_folder(name: str) -> pathlib.Path:
    """Where a peer is installed, beside nothing else."""
    cache = pathlib.Path(
        os.environ.get("DOVETAIL_CACHE")
        or pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "dovetail"
    )
    return cache / "peers" / name


def machine() -> dict:
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")
    return {"cpu": name, "simd": torch.backends.cpu.get_cpu_capability(), "load_average": os.getloadavg()[0]}


def resident(key: str) -> int:
    """Bytes of this process now (VmRSS), or at most so far (VmHWM)."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(key))
