"""Tokens per second of one training step: Dovetail against the same GPT in PyTorch.

usage: ./dev bench gpt [--size 10m|124m] [--dtype fp32|bf16] [--rounds N] [--compile] [--out FILE]

Each side is a process of its own. Both hold the same weights and the same tokens, and take turns. A round is a step
of each; the best round of each side counts. The peer is eager PyTorch (SDPA, fused AdamW, foreach clipping). In bf16
it runs both with autocast and with bf16 weights over fp32 masters. With --compile it also runs under torch.compile.

Printed: the ratio to each peer, and the fraction of the machine's measured matrix-product rate that Dovetail's step
reaches. Also printed: peak memory of each side above its own baseline after import, and a breakdown of the time.
`DOVETAIL_DISABLE=gemm` (or attention, ...) replaces one of Dovetail's kernels by ATen's: the claim must then fail.
Exit code 1 when a claim does not hold.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
ENGINE = ROOT / "build/release/bin/bench_gpt"
PEER = ROOT / "bench/peer_gpt.py"

SIZES = {
    "10m": {"layers": 6, "width": 384, "heads": 6, "context": 256, "vocab": 320, "batch": 16},
    "124m": {"layers": 12, "width": 768, "heads": 12, "context": 1024, "vocab": 50304, "batch": 1},
}
CLAIMS = {("10m", "fp32"): 1.2, ("124m", "fp32"): 1.05, ("10m", "bf16"): 1.1, ("124m", "bf16"): 1.0}
LR = 1e-3


class Side:
    """One process that trains on request."""

    def __init__(self, name: str, command: list[str], join=None):
        """`join` is called in the new process before it begins."""
        self.name = name
        # The profiler of a CUDA build of torch complains about a missing GPU.
        environment = {**os.environ, "KINETO_LOG_LEVEL": "99"}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT, env=environment, preexec_fn=join
        )
        self.info = self.reply()
        self.best = float("inf")
        self.losses: list[float] = []

    def reply(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"error: {self.name} stopped with exit code {self.process.wait()}")
        return json.loads(line)

    def ask(self, command: str) -> dict:
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.reply()

    def steps(self, count: int) -> None:
        answer = self.ask(f"steps {count}")
        self.best = min(self.best, answer["seconds"] / count)
        self.losses += answer["losses"]

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def start_sides(options, weights: str) -> list[Side]:
    size = SIZES[options.size]
    arguments = [f"--{key}={value}" for key, value in size.items()]
    arguments += [f"--threads={options.threads}", f"--lr={LR}"]
    ours = Side("dovetail", [str(ENGINE), *arguments, f"--dtype={options.dtype}", f"--save-weights={weights}"])
    sides = [ours]
    modes = [options.dtype] if options.dtype == "fp32" else ["autocast", "master"]
    for mode in modes:
        for compiled in [False, True] if options.compile else [False]:
            name = ("compile" if compiled else "eager") + ("" if mode == "fp32" else f", {mode}")
            command = [sys.executable, str(PEER), *arguments, f"--precision={mode}", f"--weights={weights}"]
            sides.append(Side(name, command + (["--compile"] if compiled else [])))
    return sides


def measure(options) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        sides = start_sides(options, os.path.join(folder, "weights.safetensors"))
        for side in sides:
            side.steps(1)
            side.best = float("inf")
        for _ in range(options.rounds):
            for side in sides:
                side.steps(1)
        ours, peers = sides[0], sides[1:]
        tokens = SIZES[options.size]["batch"] * SIZES[options.size]["context"]
        memory = {side.name: side.ask("memory")["bytes"] for side in sides}
        gemm_rate = max(ours.ask("rate")["gemm_rate"] for _ in range(8))
        results = {
            side.name: {
                "tokens_per_s": tokens / side.best,
                "peak_bytes": memory[side.name],
                "shares": side.ask("shares"),
                "first_losses": side.losses[:3],
            }
            for side in sides
        }
        for side in sides:
            side.close()
    flops = ours.info["flops_per_token"] * tokens / ours.best
    return {
        "benchmark": "gpt",
        "size": options.size,
        "dtype": options.dtype,
        "threads": options.threads,
        "rounds": options.rounds,
        "disabled": os.environ.get("DOVETAIL_DISABLE", ""),
        "machine": ours.info["machine"],
        "parameters": ours.info["parameters"],
        "sides": results,
        "ratios": {peer.name: peer.best / ours.best for peer in peers},
        "gflops": flops / 1e9,
        "gemm_rate_gflops": gemm_rate / 1e9,
        "fraction_of_gemm_rate": flops / gemm_rate,
    }


def report(result: dict) -> bool:
    machine = result["machine"]
    print(f"gpt {result['size']} {result['dtype']}, {result['parameters'] / 1e6:.1f} M parameters")
    print(f"{machine['cpu']}, {machine['simd']}, {result['threads']} threads, load {machine['load_average']:.2f}")
    if result["disabled"]:
        print(f"our kernels switched off: {result['disabled']}")
    print(f"{'':20}{'tok/s':>10}{'ratio':>8}{'peak MB':>9}   gemm  attention  other")
    for name, side in result["sides"].items():
        ratio = result["ratios"].get(name)
        share = side["shares"]
        print(
            f"{name:20}{side['tokens_per_s']:10.0f}{'' if ratio is None else f'{ratio:.3f}':>8}"
            f"{side['peak_bytes'] / 1e6:9.0f}   {share['gemm']:4.0%}  {share['attention']:9.0%}  {share['other']:5.0%}"
        )
    print(
        f"dovetail: {result['gflops']:.0f} GFLOP/s of the model, {result['fraction_of_gemm_rate']:.0%} of "
        f"at::matmul's best {result['gemm_rate_gflops']:.0f}"
    )
    claim = CLAIMS[result["size"], result["dtype"]]
    eager = [r for name, r in result["ratios"].items() if name.startswith("eager")]
    lighter = all(
        result["sides"]["dovetail"]["peak_bytes"] <= side["peak_bytes"]
        for name, side in result["sides"].items()
        if name.startswith("eager")
    )
    fast = min(eager) >= claim
    print(f"claim: at least {claim}x of eager: {'holds' if fast else 'DOES NOT HOLD'} ({min(eager):.3f})")
    print(f"claim: no more memory than eager: {'holds' if lighter else 'DOES NOT HOLD'}")
    return fast and lighter


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=list(SIZES), default="10m")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--compile", action="store_true", help="torch.compile as a second peer")
    parser.add_argument("--out", help="also write the result as JSON")
    options = parser.parse_args()
    result = measure(options)
    holds = report(result)
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps(result, indent=1) + "\n")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
