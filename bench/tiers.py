"""Tables larger than the memory: 100 million rows trained under a memory limit, and the same run held in RAM.

usage: ./dev bench tiers [--phases A,B,C,D] [--cap BYTES] [--policies hot,lru,lfu] [--zipf S] [--folder D] [--out
FILE]

Data: 8 tables of 12.5 million rows of 16 float32 and row-wise Adagrad, batches of 4096 samples with one id per
feature. Ids come from a Zipf distribution over permuted rows. Each side is a process of
build/release/bin/bench_tiers. The tiered side runs in a memory control group (version 1 or 2; needs root) of `--cap`
bytes. The page cache of its files counts towards that limit. Its fast tier, including overhead, gets 3/4 of the
limit. All rows are in the files before the first step, as late in a training. So every miss reads. In each phase the
median step counts, without the time to draw ids.

In the first phase the fast tier still fills: rows are read and none is written. In the last phase it is full. Each
row that comes in evicts another one, which an update has changed. A phase is steady when at least nine rows were
written for ten that were read. The last side has PackedTables in RAM, without a limit.

Exit code 1 when rows and state of a side are not bitwise equal to the last side's. Exit code 1, too, when the last
phase of a tiered side is not steady.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from memory_group import MemoryGroup

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "build/release/bin/bench_tiers"


def side(arguments: list[str], group: MemoryGroup | None = None) -> dict:
    command = [str(PROGRAM), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, preexec_fn=group.join if group else None) as process:
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"bench/tiers: {' '.join(command)} ended with code {process.returncode}")
    return {**json.loads(output), "max_rss_bytes": 1024 * usage.ru_maxrss}


def tiered_side(options, shared: list[str], policy: str) -> dict:
    group = MemoryGroup(options.cap)
    try:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            memory = options.memory or group.cap * 3 // 4
            arguments = [
                "--side",
                "tiered",
                "--policy",
                policy,
                "--memory",
                str(memory),
                "--folder",
                folder,
                "--filled",
            ]
            line = side([*arguments, *shared], group)
        return {**line, "cap_bytes": group.cap, "group_peak_bytes": group.peak_bytes()}
    finally:
        group.close()


def is_steady(phase: dict) -> bool:
    return phase["rows_written"] >= 0.9 * phase["rows_read"]


def print_side(line: dict) -> None:
    print(
        f"{line['side']} {line.get('policy', '')}: bits {line['checksum']}, RSS {line['max_rss_bytes'] / 2**20:.0f} MiB"
    )
    if line["side"] == "tiered":
        print(
            f"  {line['fast_rows_of_table']} rows of each table in the fast tier, ideal hit rate"
            f" {line['ideal_hit_rate']:.4f}; group's peak {line['group_peak_bytes'] / 2**20:.0f} of"
            f" {line['cap_bytes'] / 2**20:.0f} MiB"
        )
    for phase in line["phases"]:
        print(
            f"  steps {phase['steps'][0]} to {phase['steps'][1]}: {phase['step_ms']:.2f} ms a step (mean"
            f" {phase['mean_step_ms']:.2f}), {phase['samples_per_s']:.0f} samples/s, {phase['rows_per_s'] / 1e6:.2f} M"
            " rows/s"
        )
        if line["side"] == "tiered":
            print(
                f"    hit rate {phase['hit_rate']:.4f}; read {phase['rows_read']} rows, wrote {phase['rows_written']}:"
                f" {'steady' if is_steady(phase) else 'filling'}"
            )
    sys.stdout.flush()


def cpu_name() -> str:
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--phases", default="3000,4000,9000,10000", help="steps that are measured: first, end, ...")
    parser.add_argument("--cap", type=int, default=2 << 30)
    parser.add_argument("--memory", type=int, help="bytes of the tiers in RAM; default 3/4 of the cap")
    parser.add_argument("--policies", default="hot,lru,lfu", help="separated by commas")
    parser.add_argument("--zipf", type=float, default=1.1)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="on the disk that holds the rows")
    parser.add_argument("--out", help="also write the result as JSON")
    options = parser.parse_args()
    shared = ["--rows", options.rows, "--phases", options.phases, "--zipf", options.zipf]
    shared = [str(x) for x in [*shared, "--threads", options.threads]]
    result = {"benchmark": "tiers", "machine": {"cpu": cpu_name(), "load_average": os.getloadavg()[0]}}
    result |= {name: getattr(options, name) for name in ["rows", "phases", "zipf", "threads"]}
    result["results"] = []
    for policy in options.policies.split(","):
        result["results"].append(tiered_side(options, shared, policy))
        print_side(result["results"][-1])
    plain = side(["--side", "plain", *shared])
    print_side(plain)
    result["results"].append(plain)
    same = all(line["checksum"] == plain["checksum"] for line in result["results"])
    print("the same bits in all rows and their state" if same else "BITS DIFFER")
    steady = all(is_steady(line["phases"][-1]) for line in result["results"][:-1])
    if not steady:
        print("THE FAST TIER STILL FILLS: take more steps")
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps(result, indent=1) + "\n")
    return 0 if same and steady else 1


if __name__ == "__main__":
    sys.exit(main())
