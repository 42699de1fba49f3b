"""Check by ptxas's report that each CUDA kernel states its threads and spills registers only for a stated reason.

usage: tools/check_kernels.py [--table] [FILES]

FILES: .cu files, by default all; the report is for Hopper. `__launch_bounds__` makes ptxas keep registers x threads
within a multiprocessor's 65,536. A kernel without this attribute may fail at its first launch. By itself ptxas trades
up to 32 spilled bytes for more blocks per multiprocessor. A larger spill is allowed by a line of the file:

    // spills: name_of_kernel: reason

--table prints registers, shared memory and spilled bytes of each kernel. Exit code 1: a kernel breaks a rule.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import sysconfig

ROOT = pathlib.Path(__file__).resolve().parent.parent
NVCC = pathlib.Path(sysconfig.get_path("platlib")) / "nvidia/cu13/bin/nvcc"
TARGET = "90a"
MOST_TRADED_BYTES = 32
KERNEL = re.compile(r"__global__\s+(?:void\s+)?(__launch_bounds__\s*\()?")
ENTRY = re.compile(r"Compiling entry function '(\w+)' for '\w+'")
SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers.*?(?:(\d+) bytes smem)?$")
REASON = re.compile(r"^// spills: (\w+): \S.*", re.MULTILINE)


def short_name(mangled: str) -> str:
    """row_kernel of its mangled name; cub for the kernels of that library."""
    if mangled.startswith("_ZN3cub"):
        return "cub"
    demangled = subprocess.run(["c++filt", "-p", mangled], check=True, capture_output=True, text=True).stdout.strip()
    return re.sub(r"<.*", "", demangled.replace("(anonymous namespace)::", "")).split("::")[-1]


def report(path: pathlib.Path) -> tuple[list[str], list[str]]:
    """Faults and lines of the table of one file."""
    text = path.read_text()
    name = path.relative_to(ROOT)
    faults = [
        f"{name}:{text[: match.start()].count(chr(10)) + 1}: a kernel without __launch_bounds__"
        for match in KERNEL.finditer(text)
        if match.group(1) is None
    ]
    command = [str(NVCC), "-std=c++20", "-O3", "-I", str(ROOT), "-Xptxas=-v", "-c", "-o", "/dev/null", str(path)]
    command += ["-gencode", f"arch=compute_{TARGET},code=sm_{TARGET}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        return [*faults, f"{name}: nvcc failed: {done.stderr[-2000:]}"], []
    reasons = {match.group(1) for match in REASON.finditer(text)}
    spilled, table, entry, bytes_spilled = set(), [], None, 0
    for line in done.stderr.splitlines():
        if match := ENTRY.search(line):
            entry = short_name(match.group(1))
        elif (match := SPILLS.search(line)) and entry:
            bytes_spilled = max(int(match.group(1)), int(match.group(2)))
        elif (match := USED.search(line)) and entry:
            table.append(f"{name} {entry}: {match.group(1)} registers, {match.group(2) or 0} bytes shared, "
                         f"{bytes_spilled} bytes spilled")  # fmt: skip
            if bytes_spilled > MOST_TRADED_BYTES:
                spilled.add(entry)
                if entry not in reasons:
                    faults.append(f"{table[-1]}; give it fewer values a thread, or state: // spills: {entry}: reason")
            entry, bytes_spilled = None, 0
    faults += [
        f"{name}: '// spills: {kernel}' but {kernel} spills no more than {MOST_TRADED_BYTES} bytes"
        for kernel in sorted(reasons - spilled)
    ]
    return faults, table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    options = parser.parse_args()
    files = [path.resolve() for path in options.files] or sorted(ROOT.glob("dovetail/*/cuda/*.cu"))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        reports = list(pool.map(report, files))
    faults = [fault for found, _ in reports for fault in found]
    kernels = sum(len(table) for _, table in reports)
    if options.table:
        print("\n".join(line for _, table in reports for line in table))
    print("\n".join(faults) or f"{kernels} kernels of {len(files)} files: threads stated, no spill without a reason")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
