"""A GPT within a memory budget: time and peak memory of a planned step, of keeping all and of recomputing every block.

usage: ./dev bench memory [--size small|medium] [--budgets 0.5x,0.3x] [--folder DIR] [--rounds N] [--peers]
                          [--compile 0.1,0.5,0.9] [--out FILE]

Each side is a process of its own. All hold the same weights and the same tokens, and take turns. A round is a step of
each; the best round of each side counts. Sides:

- Dovetail's eager step
- the eager step with every block recomputed (train.checkpoint_activations)
- planned steps (memory.budget) at each budget of --budgets, and at the peak of recomputing every block
- with --peers: PyTorch's eager step, torch.utils.checkpoint of every block, and torch.autograd.graph.save_on_cpu
- with --compile: torch.compile at these activation_memory_budgets

Peak memory is resident memory minus the process's memory before the model. It counts steps after the plan was made or
the step was compiled. A planned step also reports the resident part of its allocation, as the system counts it.
Claims in addition to the speed: that part is within the budget and within 1 % of the plan's. A step's time is within
10 % of the prediction. Exit code 1 when a claim does not hold.
"""

import argparse
import json
import os
import pathlib
import sys
import tempfile

from gpt import ENGINE, PEER, Side

SIZES = {
    "tiny": {"layers": 6, "width": 384, "heads": 6, "context": 256, "vocab": 320, "batch": 16},
    "small": {"layers": 8, "width": 512, "heads": 8, "context": 512, "vocab": 4096, "batch": 8},
    "medium": {"layers": 12, "width": 768, "heads": 12, "context": 1024, "vocab": 50304, "batch": 2},
}
LR = 1e-3


def peak(side: Side) -> int:
    return side.ask("memory")["bytes"]


def measure(options) -> dict:
    size = SIZES[options.size]
    common = [f"--{key}={value}" for key, value in size.items()] + [f"--threads={options.threads}", f"--lr={LR}"]
    with tempfile.TemporaryDirectory() as folder:
        weights = os.path.join(folder, "weights.safetensors")
        ours = [str(ENGINE), *common, "--dtype=fp32", f"--save-weights={weights}"]
        sides = {"keep all": Side("keep all", ours), "every block again": Side("checkpoint", [*ours, "--checkpoint"])}
        if options.peers:
            peer = [sys.executable, str(PEER), *common, "--precision=fp32", f"--weights={weights}"]
            sides["PyTorch"] = Side("PyTorch", peer)
            sides["PyTorch, checkpoint"] = Side("PyTorch, checkpoint", [*peer, "--checkpoint"])
            sides["PyTorch, save_on_cpu"] = Side("PyTorch, save_on_cpu", [*peer, "--save-on-cpu"])
        for budget in filter(None, options.compile.split(",")):
            compiled = [sys.executable, str(PEER), *common, "--precision=fp32", f"--weights={weights}", "--compile"]
            name = f"PyTorch, compile {budget}"
            sides[name] = Side(name, [*compiled, f"--activation-memory-budget={budget}"])
        for name, side in sides.items():
            side.steps(2)
            if "compile" in name:
                side.ask("warm")
        plans = {}

        def add_plan(name: str, budget: str) -> None:
            sides[name] = Side(name, [*ours, f"--budget={budget}", f"--folder={options.folder}"])
            plans[name] = sides[name].ask("plan")
            sides[name].steps(1)

        for budget in options.budgets.split(","):
            add_plan(f"plan {budget}", budget)
        # A budget covers a step's tensors. The first plan shows what a process takes in addition.
        first = f"plan {options.budgets.split(',')[0]}"
        beside = peak(sides[first]) - plans[first]["step_bytes"]
        add_plan("plan, at its peak", str(peak(sides["every block again"]) - beside))
        for side in sides.values():
            side.best = float("inf")
        for _ in range(options.rounds):
            for side in sides.values():
                side.steps(1)
        for name, plan in plans.items():
            plan["measured_bytes"] = sides[name].ask("memory")["step_bytes"]
        info = sides["keep all"].info
        result = {
            "benchmark": "memory",
            "size": size,
            "threads": options.threads,
            "rounds": options.rounds,
            "tier": "disk" if options.folder else "memory",
            "machine": info["machine"],
            "parameters": info["parameters"],
            "sides": {name: {"step_s": side.best, "peak_bytes": peak(side)} for name, side in sides.items()},
            "plans": plans,
        }
        for side in sides.values():
            side.close()
    return result


def hold(claims: list[tuple[str, bool]]) -> bool:
    """Print each claim, and whether all hold."""
    for text, holds in claims:
        print(f"claim: {text}: {'holds' if holds else 'DOES NOT HOLD'}")
    return all(holds for _, holds in claims)


def report(result: dict) -> bool:
    machine = result["machine"]
    print(f"GPT of {result['parameters'] / 1e6:.1f} M parameters, {result['size']}")
    print(f"{machine['cpu']}, {machine['simd']}, {result['threads']} threads, load {machine['load_average']:.2f}")
    eager = result["sides"]["keep all"]
    print(f"{'':22}{'step ms':>9}{'x':>7}{'peak MB':>9}{'x':>7}{'plan MB':>10}{'predicted':>11}  moved, again MB")
    for name, side in result["sides"].items():
        line = f"{name:22}{1e3 * side['step_s']:9.0f}{side['step_s'] / eager['step_s']:7.3f}"
        line += f"{side['peak_bytes'] / 1e6:9.0f}{side['peak_bytes'] / eager['peak_bytes']:7.2f}"
        if plan := result["plans"].get(name):
            line += f"{plan['step_bytes'] / 1e6:10.0f}{1e3 * plan['predicted_s']:11.0f}"
            line += f"  {plan['offloaded_bytes'] / 1e6:.0f}, {plan['again_bytes'] / 1e6:.0f}"
        print(line)
    claims = []
    again, planned = result["sides"]["every block again"], result["sides"]["plan, at its peak"]
    gain = again["step_s"] / planned["step_s"]
    claims.append((f"at the peak of recomputing every block at least 15 % faster: {gain - 1:.1%}", gain >= 1.15))
    if half := result["sides"].get("plan 0.5x"):
        ratio = half["step_s"] / eager["step_s"]
        claims.append((f"half of the memory at no more than 1.35x of the time: {ratio:.3f}x", ratio <= 1.35))
    for name, plan in result["plans"].items():
        apart = plan["measured_bytes"] / plan["step_bytes"] - 1
        within = plan["measured_bytes"] <= plan["budget_bytes"] and abs(apart) <= 0.01
        text = f"{name}: {plan['measured_bytes'] / 1e6:.0f} of {plan['budget_bytes'] / 1e6:.0f} MB, {apart:+.2%}"
        claims.append((f"{text} of what was planned", within))
        late = result["sides"][name]["step_s"] / plan["predicted_s"] - 1
        claims.append((f"{name}: {late:+.1%} of the predicted time", abs(late) <= 0.1))
    return hold(claims)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=list(SIZES), default="small")
    parser.add_argument("--budgets", default="0.5x", help="shares of the peak with everything kept, with commas")
    parser.add_argument("--folder", default="", help="disk tier (without: memory)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--peers", action="store_true", help="PyTorch's ways beside")
    parser.add_argument(
        "--compile", default="", help="and torch.compile's at these budgets of activations, with commas"
    )
    parser.add_argument("--out", help="also write the result as JSON")
    options = parser.parse_args()
    result = measure(options)
    holds = report(result)
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps(result, indent=1) + "\n")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
