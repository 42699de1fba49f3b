"""Tables larger than the memory: 100 million rows trained under a cap, beside the same run held in RAM.

usage: ./dev bench tiers [--steps N] [--cap BYTES] [--policies hot,lru,lfu] [--zipf S] [--folder D] [--out FILE]

8 tables of 12.5 million rows of 16 float32 and row-wise Adagrad, batches of 4096 samples with one id a feature from a
Zipf distribution over permuted rows. Each side is a process of build/release/bin/bench_tiers. The tiered one runs in a
memory control group (version 1 or 2; needs root) of `--cap` bytes, in which the page cache of its files counts, and
gives 3/4 of that to its fast tier and all that belongs to it; all rows are in the files before the first step, as they
are late in a training, so that every miss reads. The first three quarters of the steps fill the fast tier; of the
others the median counts, without the time to draw ids. The last side has PackedTables in RAM, without a cap. Exit code
1 when a side ends with other bits than that in its rows and state.
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


def print_side(line: dict) -> None:
    print(
        f"{line['side']:7}{line.get('policy', ''):4} {line['step_ms']:8.1f} ms a step (mean {line['mean_step_ms']:.1f})"
        f" {line['samples_per_s']:10.0f} samples/s {line['rows_per_s'] / 1e6:7.2f} M rows/s,"
        f" bits {line['checksum']}, RSS {line['max_rss_bytes'] / 2**20:.0f} MiB"
    )
    if line["side"] == "tiered":
        print(
            f"    hit rate {line['hit_rate']:.4f}, ideal {line['ideal_hit_rate']:.4f} with"
            f" {line['fast_rows_of_table']} rows of each table; read {line['bytes_read'] / 1e6:.0f} MB in"
            f" {line['rows_read']} rows, wrote {line['bytes_written'] / 1e6:.0f} MB in {line['rows_written']};"
            f" group's peak {line['group_peak_bytes'] / 2**20:.0f} of {line['cap_bytes'] / 2**20:.0f} MiB"
        )
    sys.stdout.flush()


def cpu_name() -> str:
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--cap", type=int, default=2 << 30)
    parser.add_argument("--memory", type=int, help="bytes of the tiers in RAM; default 5/8 of the cap")
    parser.add_argument("--policies", default="hot,lru,lfu", help="separated by commas")
    parser.add_argument("--zipf", type=float, default=1.1)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="on the disk that holds the rows")
    parser.add_argument("--out", help="also write the result as JSON")
    options = parser.parse_args()
    shared = ["--rows", options.rows, "--steps", options.steps, "--skip", options.steps * 3 // 4]
    shared = [str(x) for x in [*shared, "--zipf", options.zipf, "--threads", options.threads]]
    result = {"benchmark": "tiers", "machine": {"cpu": cpu_name(), "load_average": os.getloadavg()[0]}}
    result |= {name: getattr(options, name) for name in ["rows", "steps", "zipf", "threads"]}
    result["results"] = []
    for policy in options.policies.split(","):
        result["results"].append(tiered_side(options, shared, policy))
        print_side(result["results"][-1])
    plain = side(["--side", "plain", *shared])
    print_side(plain)
    result["results"].append(plain)
    same = all(line["checksum"] == plain["checksum"] for line in result["results"])
    print("the same bits in all rows and their state" if same else "BITS DIFFER")
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps(result, indent=1) + "\n")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
