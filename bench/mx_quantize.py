"""Quantizing to MXFP8 on the CPU against memcpy and against torchao.

usage: ./dev bench mx_quantize [--threads N] [--rounds N] [--size N] [--format e4m3] [--peers eager,compile]
                               [--out FILE]

A 4096 x 4096 tensor in FP32 and in BF16. Sides take turns within a round, and the best round of each counts. Sides:

- memcpy
- Dovetail row-wise, column-wise and both from one read, with statistics, into existing memory like memcpy
- Dovetail row-wise with stochastic rounding (`random`)
- Dovetail row-wise with its allocation (`new`), and the same to NVFP4 with a tensor scale (`nvfp4`)
- torchao's `to_mx` (row-wise, round-up scales, no statistics), eager and under torch.compile; both allocate

Rates count the bytes read plus the bytes written, of every side. Claims are the shares of memcpy's rate and the
ratios to torchao below. `DOVETAIL_SIMD=avx2` holds the kernels to the lower one. Exit code 1 when a claim does not
hold.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
ENGINE = ROOT / "build/release/bin/bench_mx_quantize"
CASES = ["memcpy", "row", "column", "both", "random", "new", "nvfp4"]
CLAIMS = {"avx512": {"row": 0.60, "both": 0.40}, "avx2": {"row": 0.35}, "scalar": {}}
PEER_CLAIMS = {"eager": 15.0, "compile": 2.0}


class Engine:
    """Our process, which does one thing on request."""

    def __init__(self, options):
        command = [str(ENGINE), f"--threads={options.threads}", f"--size={options.size}", f"--format={options.format}"]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT)
        self.info = self.reply()

    def reply(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"error: the engine stopped with exit code {self.process.wait()}")
        return json.loads(line)

    def time(self, case: str, dtype: str) -> dict:
        self.process.stdin.write(f"time {case} {dtype}\n")
        self.process.stdin.flush()
        return self.reply()


def torchao_sides(options) -> dict:
    """Functions of no argument by (name, dtype)."""
    if not options.peers:
        return {}
    import torch
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.prototype.mx_formats.mx_tensor import to_mx

    if "compile" in options.peers:
        # The C++ back end of torch 2.11 does not know the dtype of scales and refuses to_mx; as bytes it compiles.
        from torch._inductor.codegen import cpp_utils

        cpp_utils.DTYPE_TO_CPP.setdefault(torch.float8_e8m0fnu, "uint8_t")
    torch.set_num_threads(options.threads)
    compiled = torch.compile(to_mx, dynamic=False)
    functions = {"eager": to_mx, "compile": compiled}
    sides = {}
    for dtype, torch_dtype in [("fp32", torch.float32), ("bf16", torch.bfloat16)]:
        x = torch.randn(options.size, options.size).to(torch_dtype)
        for name in options.peers:
            arguments = (x, torch.float8_e4m3fn, 32, ScaleCalculationMode.RCEIL)
            sides[name, dtype] = lambda f=functions[name], a=arguments: f(*a)
            sides[name, dtype]()  # compiles
    return sides


def measure(options) -> dict:
    engine, peers = Engine(options), torchao_sides(options)
    best: dict = {}

    def keep(name: str, dtype: str, seconds: float, count: int) -> None:
        before = best.get((name, dtype), (float("inf"), 0))
        best[name, dtype] = min(before, (seconds, count))

    for round_index in range(options.rounds + 1):
        for dtype in ["fp32", "bf16"]:
            for case in CASES:
                answer = engine.time(case, dtype)
                if round_index > 0:  # the first touches memory
                    keep(case, dtype, answer["seconds"], answer["bytes"])
            for name in options.peers:
                begin = time.perf_counter()
                peers[name, dtype]()
                if round_index > 0:
                    keep(name, dtype, time.perf_counter() - begin, best["row", dtype][1])
    return {
        "benchmark": "mx_quantize",
        "size": options.size,
        "format": options.format,
        "threads": options.threads,
        "rounds": options.rounds,
        "simd": engine.info["simd"],
        "machine": engine.info["machine"],
        "results": [
            {
                "case": case,
                "dtype": dtype,
                "seconds": seconds,
                "bytes": count,
                "of_memcpy": count / seconds / (best["memcpy", dtype][1] / best["memcpy", dtype][0]),
                "of_new": seconds / best["new", dtype][0],
            }
            for (case, dtype), (seconds, count) in best.items()
        ],
    }


def report(result: dict) -> bool:
    machine = result["machine"]
    print(f"mx_quantize {result['size']} x {result['size']}, {result['format']}, round_up, statistics on")
    print(f"{machine['cpu']}, kernels on {result['simd']}, {result['threads']} threads, ", end="")
    print(f"load {machine['load_average']:.2f}, best of {result['rounds']} rounds")
    print(f"{'':14}{'ms':>9}{'GB/s':>8}{'of memcpy':>11}{'new is faster by':>18}")
    holds = True
    for row in result["results"]:
        name, share, speedup = f"{row['case']} {row['dtype']}", row["of_memcpy"], row["of_new"]
        claim, peer_claim = CLAIMS[result["simd"]].get(row["case"]), PEER_CLAIMS.get(row["case"])
        verdict = ""
        if claim or (peer_claim and result["simd"] == "avx512"):
            good = share >= claim if claim else speedup >= peer_claim
            verdict = f"  {'holds' if good else 'DOES NOT HOLD'}: " + (
                f"{claim:.0%}" if claim else f"{peer_claim:.0f}x"
            )
            holds = holds and good
        rate = row["bytes"] / row["seconds"] * 1e-9
        faster = f"{speedup:.1f}x" if peer_claim else ""
        print(f"{name:14}{1e3 * row['seconds']:9.2f}{rate:8.2f}{share:11.2f}{faster:>18}{verdict}", flush=True)
    return holds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--format", default="e4m3", help="element format; the peers' is e4m3")
    parser.add_argument("--peers", default="eager,compile", help="torchao's sides, separated by commas; empty: none")
    parser.add_argument("--out", help="also write the result as JSON")
    options = parser.parse_args()
    options.peers = [name for name in options.peers.split(",") if name]
    for name in options.peers:
        if name not in PEER_CLAIMS:
            parser.error(f'no peer is named "{name}"; use {", ".join(PEER_CLAIMS)}')
    result = measure(options)
    holds = report(result)
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps(result, indent=1) + "\n")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
