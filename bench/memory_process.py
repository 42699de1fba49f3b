"""memory.budget and the memory of the process: three GPTs at several budgets on a CPU, without a folder to offload to.

usage: ./dev bench memory_process [--sizes small,medium,large] [--budgets 0.3,0.4,0.6,0.8] [--out FILE]

Every side is a process of its own. A budget of 0.3 is 0.3x of the growth of the process that trains without a plan.
Growth is its high-water mark minus its memory before the model. The plan gets that many bytes. Its process records,
plans and then trains by the plan; its high-water mark counts from the start. Step times are the best of the steps by
the plan.

Claims: the process grows by at most the budget plus 64 MiB. Each step has the loss of the process without a plan.
Exit code 1 when a claim does not hold.
"""

import argparse
import json
import os
import pathlib
import sys
import tempfile

from gpt import ENGINE, Side

SIZES = {
    "small": {"layers": 6, "width": 256, "heads": 4, "context": 128, "vocab": 512, "batch": 32},
    "medium": {"layers": 8, "width": 384, "heads": 6, "context": 256, "vocab": 512, "batch": 24},
    "large": {"layers": 12, "width": 512, "heads": 8, "context": 256, "vocab": 1024, "batch": 24},
}
LR = 1e-3
BESIDE_BYTES = 64 << 20
UNTIL_PLAN = 8  # steps


def train(size: dict, threads: int, weights: str, steps: int, budget: int = 0) -> dict:
    command = [str(ENGINE), *(f"--{key}={value}" for key, value in size.items()), f"--threads={threads}", f"--lr={LR}"]
    command += ["--dtype=fp32", f"--save-weights={weights}"]
    side = Side("plan" if budget else "eager", command + ([f"--budget={budget}", "--solve=10"] if budget else []))
    side.steps(UNTIL_PLAN)
    first_s, side.best = side.best, float("inf")
    for _ in range(steps):
        side.steps(1)
    out = {"first_steps_s": first_s, "step_s": side.best, "peak_bytes": side.ask("memory")["bytes"]}
    out |= {"losses": side.losses, "machine": side.info["machine"]}
    if budget:
        out |= {key: value for key, value in side.ask("plan").items() if key.endswith("_bytes")}
    side.close()
    return out


def mib(count: float) -> str:
    return f"{count / (1 << 20):.0f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="small,medium,large")
    parser.add_argument("--budgets", default="0.3,0.4,0.6,0.8", help="shares of the growth without a plan, with commas")
    parser.add_argument("--steps", type=int, default=4, help="steps by the plan")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--out", help="also write the result as JSON")
    options = parser.parse_args()
    rows, holds, machine = [], True, None
    print(f"{'':8}{'budget':>8}{'MiB':>8}{'process MiB':>13}{'above':>7}{'step s':>9}{'of eager':>10}")
    with tempfile.TemporaryDirectory() as folder:
        weights = os.path.join(folder, "weights.safetensors")
        for name in options.sizes.split(","):
            eager = train(SIZES[name], options.threads, weights, options.steps)
            machine = eager.pop("machine")
            print(f"{name:8}{'none':>8}{'':8}{mib(eager['peak_bytes']):>13}{'':7}{eager['step_s']:9.3f}", flush=True)
            rows.append({"size": name, **eager})
            for share in options.budgets.split(","):
                budget = int(float(share) * eager["peak_bytes"])
                side = train(SIZES[name], options.threads, weights, options.steps, budget)
                side.pop("machine")
                above = side["peak_bytes"] - budget
                same = side["losses"] == eager["losses"]
                holds &= above <= BESIDE_BYTES and same
                print(
                    f"{name:8}{share:>8}{mib(budget):>8}{mib(side['peak_bytes']):>13}{mib(above):>7}"
                    f"{side['step_s']:9.3f}{side['step_s'] / eager['step_s']:9.2f}x{'' if same else '  OTHER LOSSES'}",
                    flush=True,
                )
                rows.append({"size": name, "budget": float(share), "budget_bytes": budget, "same_losses": same, **side})
    for row in rows:
        row.pop("losses")
    print(f"{machine['cpu']}, {machine['simd']}, {options.threads} threads, load {machine['load_average']:.2f}")
    verdict = "holds" if holds else "DOES NOT HOLD"
    print(f"claim: process at most the budget and {mib(BESIDE_BYTES)} MiB, losses equal: {verdict}")
    if options.out:
        result = {"benchmark": "memory_process", "threads": options.threads, "machine": machine, "sizes": SIZES}
        pathlib.Path(options.out).write_text(json.dumps(result | {"rows": rows}, indent=1) + "\n")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
