#!/usr/bin/env python3
"""Check Dovetail on this machine's GPU: run the CUDA tests, then the benchmarks.

usage: check [--parts tests,gpt,...] [--out FILE] [--jobs N] [--limit SECONDS] [--list]

Needs Linux on x86-64, Python from 3.10 with torch 2.11 and numpy, and NVIDIA's driver; no compiler. Each part has a
time limit of its own. A part that fails or hangs is reported, and the next one runs. A part prints one line; FILE gets
card, driver, commit and everything that the parts printed, as JSON. Without a GPU the program lists the parts and ends.
Exit code 0: every part passed, or there is no GPU. 1: a part failed. 2: wrong usage, or no torch 2.11.
"""

import argparse
import concurrent.futures
import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

KIT = pathlib.Path(__file__).resolve().parent


@dataclasses.dataclass
class Part:
    says: str
    command: list[str]  # after the interpreter; none for the tests
    seconds: int


PARTS = {
    "tests": Part("CUDA tests against the CPU, in parallel", [], 90),
    "gpt": Part(
        "GPT training beside PyTorch",
        ["gpt_gpu.py", "--sizes", "124m,10m", "--sides", "bf16,compile,mxfp8,fp8_tensor", "--seconds", "60"],
        180,
    ),
    "ops": Part("norms, activations, attention, cross-entropy beside PyTorch", ["ops_gpu.py", "--seconds", "15"], 40),
    "mx": Part("MX quantize, dequantize and Linear", ["mx_gpu.py", "--seconds", "40"], 65),
    "fp8": Part("FP8 Linear beside BF16", ["fp8_gpu.py", "--seconds", "15"], 40),
    "moe": Part("experts with sizes on the GPU and on the host", ["moe_gpu.py"], 90),
    "plan": Part(
        "steps within a memory budget beside checkpointing",
        ["plan_gpu.py", "--models", "unet,gpt", "--sides", "eager,checkpoint,0.6,0.6a,peak", "--seconds", "170"],
        180,
    ),
    "kmeans": Part("k-means on cores, the card and both", ["kmeans_gpu.py"], 90),
    "embedding": Part("embedding lookup and update", ["embedding_gpu.py", "--rounds", "3", "--dtypes", "fp32"], 60),
}


def run(command: list[str], environment: dict[str, str], seconds: float) -> dict:
    """Runs `command` in a process group of its own and ends the group after `seconds`."""
    start = time.monotonic()
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=tempfile.gettempdir(),
        )
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            status = None
        log.seek(0)
        text = log.read()
    return {"status": status, "seconds": round(time.monotonic() - start, 1), "output": text}


def verdict(result: dict, limit: float) -> str:
    if result["status"] is None:
        return f"not done after {limit:.0f} s"
    if result["status"] < 0:
        return f"died of {signal.Signals(-result['status']).name}"
    return "passed" if result["status"] == 0 else f"failed (exit code {result['status']})"


def run_tests(tests: list[dict], environment: dict[str, str], jobs: int, limit: float) -> dict:
    def one(test: dict) -> dict:
        with tempfile.TemporaryDirectory() as cache:
            result = run(
                [str(KIT / "bin" / test["program"]), *test["arguments"]],
                environment | {"DOVETAIL_CACHE": cache, "OMP_NUM_THREADS": "2"},
                limit,
            )
        said = verdict(result, limit)
        skipped = re.findall(r"\[  SKIPPED \] \S+ \(", result["output"])
        ran = re.findall(r"\[       OK \] \S+ \(", result["output"])
        if said == "passed" and skipped:
            reasons = sorted(set(re.findall(r"Skipped\n(.*)", result["output"])))
            said = f"{len(ran)} passed, {len(skipped)} skipped: " + "; ".join(reasons)
            if not ran:
                said = "skipped" + said.partition("skipped")[2]
        print(f"  {test['name']}: {said} ({result['seconds']:.0f} s)", flush=True)
        if result["status"] != 0:
            print("".join(f"    {line}\n" for line in failures(result["output"])), end="", flush=True)
        return {"name": test["name"], "verdict": said, **result}

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        results = list(pool.map(one, tests))
    failed = sum(result["status"] != 0 for result in results)
    return {"status": 1 if failed else 0, "tests": results, "failed": failed}


def failures(output: str) -> list[str]:
    """Lines of a test that say what failed; its last lines if none does."""
    lines = output.splitlines()
    marked = [i for i, line in enumerate(lines) if "Failure" in line or "FAILED" in line or "error:" in line]
    kept = sorted({j for i in marked for j in range(i, min(i + 6, len(lines)))})
    return [lines[i] for i in kept][:60] or lines[-15:]


def site_folders() -> list[pathlib.Path]:
    """Folders of torch's and NVIDIA's libraries, found without loading torch."""
    torch = pathlib.Path(importlib.util.find_spec("torch").origin).parent
    return [torch / "lib", *sorted(torch.parent.glob("nvidia/*/lib"))]


def card() -> tuple[str, str] | None:
    """Name and driver of GPU 0, or none."""
    try:
        line = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "-i", "0"],
            capture_output=True, text=True, timeout=30, check=True,
        ).stdout.strip()  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    name, _, driver = line.partition(", ")
    return (name, driver) if driver else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help="default: all")
    parser.add_argument("--out", default="gpu-check.json", help="default: gpu-check.json in the folder you are in")
    parser.add_argument("--jobs", type=int, default=min(13, os.cpu_count() or 1), help="tests that run at once")
    parser.add_argument("--limit", type=float, help="seconds of a test or a benchmark; default: as --list says")
    parser.add_argument("--list", action="store_true", help="list the parts and end")
    options = parser.parse_args()
    chosen = options.parts.split(",")
    for name in chosen:
        if name not in PARTS:
            print(f"error: no part named '{name}'\nhelp: the parts are {', '.join(PARTS)}", file=sys.stderr)
            return 2
    kit = json.loads((KIT / "kit.json").read_text())
    gpu = card()
    if options.list or gpu is None:
        print("parts:" if options.list else "no GPU here (nvidia-smi finds none); with one, this would run:")
        for name in chosen:
            part = PARTS[name]
            print(f"  {name:10} {part.says}; at most {part.seconds} s")
            if name == "tests":
                print("".join(f"    {test['name']}\n" for test in kit["tests"]), end="")
        return 0
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        version = "none"
    if not version.startswith("2.11."):
        print(
            f"error: the kit is built for torch 2.11, found {version}\nhelp: pip install 'torch==2.11.*' numpy",
            file=sys.stderr,
        )
        return 2
    environment = os.environ | {
        "LD_LIBRARY_PATH": ":".join(map(str, [KIT / "lib", *site_folders()])),
        "DOVETAIL_BINARY": str(KIT / "bin/dovetail"),
        "DOVETAIL_LIBRARY_DIR": str(KIT / "lib"),
        "DOVETAIL_CONFIGS": str(KIT / "configs"),
        "PYTHONPATH": f"{KIT / 'python'}:{KIT / 'bench'}",
    }
    report = {"card": gpu[0], "driver": gpu[1], "torch": version, "commit": kit["commit"], "parts": {}}
    print(f"{gpu[0]}, driver {gpu[1]}, torch {version}, commit {kit['commit']}", flush=True)
    failed = 0
    for name in chosen:
        part = PARTS[name]
        limit = options.limit or part.seconds
        start = time.monotonic()
        if name == "tests":
            result = run_tests(kit["tests"], environment, options.jobs, limit)
            said = f"{result['failed']} of {len(kit['tests'])} failed" if result["failed"] else "passed"
        else:
            command = [sys.executable, str(KIT / "bench" / part.command[0]), *part.command[1:]]
            result = run(command, environment, limit)
            said = verdict(result, limit)
            rows = [json.loads(line) for line in result["output"].splitlines() if line.startswith("{")]
            print("".join(f"  {json.dumps(row)}\n" for row in rows), end="")
            if rows:
                result["rows"] = rows
            if result["status"] != 0:
                tail = [line for line in result["output"].splitlines() if not line.startswith("{")][-12:]
                print("".join(f"  {line}\n" for line in tail), end="")
        failed += result["status"] != 0
        report["parts"][name] = result | {"verdict": said}
        print(f"{name}: {said} ({time.monotonic() - start:.0f} s)", flush=True)
        pathlib.Path(options.out).write_text(json.dumps(report, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
