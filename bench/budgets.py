"""A GPT within many memory budgets: peak memory in a control group that holds little more, and predicted time.

usage: ./dev bench budgets [--size tiny|small] [--count N] [--steps N] [--solve S] [--folder DIR] [--out FILE]

Budgets range from twice the floor of a step to its peak with everything kept. For each of N budgets a process trains
from its first step on in a memory control group (needs root). The group's limit is the budget plus the memory of a
process outside its steps. The latter comes from a first run without a limit: its anonymous memory less its step's,
plus 16 MiB for the kernel's share. A step's memory is the resident part of its allocation, in pages, as the system
counts it. Then `dovetail plan` makes a plan of the first run's graph for each budget. All use one profile, so that
predictions compare.

Claims: no process is killed for its memory, and no step takes more than its budget. Its memory is within 1 % of the
plan's. The predicted time never rises with the budget. Exit code 1 when one does not hold.
"""

import argparse
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from gpt import ENGINE, ROOT, Side
from memory import LR, SIZES, hold
from memory_group import MemoryGroup

OF_THE_KERNEL = 16 << 20
UNLIMITED = 1 << 40
PAGE = 4096
DOVETAIL = ROOT / "build/release/bin/dovetail"


class Trained:
    """A process that trains by a plan of a budget, in a group of `cap` bytes."""

    def __init__(self, options, folder: str, budget: str, cap: int):
        self.group = MemoryGroup(cap)
        arguments = [f"--{key}={value}" for key, value in SIZES[options.size].items()]
        arguments += [f"--threads={options.threads}", f"--lr={LR}", "--dtype=fp32", f"--budget={budget}"]
        arguments += [f"--folder={folder}", f"--solve={options.solve}", f"--save-weights={folder}/weights.safetensors"]
        self.side = Side(f"the step within {budget}", [str(ENGINE), *arguments], self.group.join)
        self.plan = self.side.ask("plan")
        self.side.steps(options.steps)
        self.resident = self.side.ask("memory")["step_bytes"]

    def close(self) -> None:
        self.side.close()
        self.group.close()


def predicted(graph: str, budget: int, solve_s: float) -> float:
    command = [DOVETAIL, "plan", graph, "--budget", str(budget), "--time-limit", str(solve_s), "--json"]
    command += ["--without", "compress"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["makespan_s"]


def measure(options) -> dict:
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        first = Trained(options, folder, "1x", UNLIMITED)
        beside = first.group.own_bytes() - first.resident
        floor, most = first.plan["floor_bytes"], first.plan["keep_all_bytes"]
        graph = first.side.ask("graph")["file"]
        machine = first.side.info["machine"]
        first.close()
        result = {"benchmark": "budgets", "size": SIZES[options.size], "machine": machine, "threads": options.threads}
        result |= {"floor_bytes": floor, "keep_all_bytes": most, "beside_bytes": beside, "budgets": []}
        print(f"{machine['cpu']}, {machine['simd']}, {options.threads} threads; GPT of {SIZES[options.size]}")
        print(f"a step keeps {most / 1e6:.0f} MB, its floor is {floor / 1e6:.0f} MB; beside it {beside / 1e6:.0f} MB")
        columns = ["budget MB", "plan MB", "has MB", "cap MB", "group MB", "step s", "plan s", "same profile s"]
        print("".join(f"{column:>11}" for column in columns[:-1]) + f"{columns[-1]:>16}")
        for i in range(options.count):
            least = 2 * floor
            budget = int(least + (most - least) * i / (options.count - 1)) // PAGE * PAGE
            trained = Trained(options, folder, str(budget), budget + beside + OF_THE_KERNEL)
            line = {
                "budget_bytes": budget,
                "plan_bytes": trained.plan["step_bytes"],
                "measured_bytes": trained.resident,
                "cap_bytes": trained.group.cap,
                "group_peak_bytes": trained.group.peak_bytes(),
                "step_s": trained.side.best,
                "predicted_s": trained.plan["predicted_s"],
                "same_profile_s": predicted(graph, budget, options.solve),
            }
            trained.close()
            result["budgets"].append(line)
            keys = ["budget_bytes", "plan_bytes", "measured_bytes", "cap_bytes", "group_peak_bytes"]
            text = "".join(f"{line[key] / 1e6:11.0f}" for key in keys)
            text += f"{line['step_s']:11.3f}{line['predicted_s']:11.3f}{line['same_profile_s']:16.4f}"
            print(text, flush=True)
    return result


def report(lines: list[dict]) -> bool:
    over = [line for line in lines if max(line["plan_bytes"], line["measured_bytes"]) > line["budget_bytes"]]
    apart = max(abs(line["measured_bytes"] / line["plan_bytes"] - 1) for line in lines)
    times = [line["same_profile_s"] for line in lines]
    rises = max(b / a - 1 for a, b in itertools.pairwise(times))
    claims = [
        (f"{len(lines)} of {len(lines)} processes trained in their groups", True),
        (f"the memory of a step is above its budget at {len(over)} budgets", not over),
        (f"and within {apart:.2%} of its plan's", apart <= 0.01),
        (f"the predicted time rises with the budget by at most {max(rises, 0):.3%}", rises <= 0),
    ]
    return hold(claims)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=list(SIZES), default="tiny")
    parser.add_argument("--count", type=int, default=20, help="budgets, from 2 on")
    parser.add_argument("--steps", type=int, default=3, help="of each process after its plan was made")
    parser.add_argument("--solve", type=float, default=5, help="seconds for each plan")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="on the disk that tensors are moved to")
    parser.add_argument("--out", help="also write the result as JSON")
    options = parser.parse_args()
    result = measure(options)
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps(result, indent=1) + "\n")
    return 0 if report(result["budgets"]) else 1


if __name__ == "__main__":
    sys.exit(main())
