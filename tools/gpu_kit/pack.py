"""Pack build/gpu-kit: programs, libraries, CUDA tests and GPU benchmarks of the release build, for a machine without a
compiler.

usage: ./dev gpu-kit

`check` in the folder runs them there: `docs/gpu.md`. Debian's libraries travel along; torch and NVIDIA's are the other
machine's own. Parquet tables need Arrow, which the kit leaves out.
"""

import json
import os
import pathlib
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / "build/release"
KIT = ROOT / "build/gpu-kit"
MOST_BYTES = 60 << 20
# Libraries that each Linux with torch has: the C and C++ runtimes.
EVERYWHERE = ("linux-vdso", "ld-linux", "libc.", "libm.", "libdl.", "librt.", "libpthread.", "libutil.", "libstdc++.")
EVERYWHERE += ("libgcc_s.", "libgomp.")
BENCHMARKS = [
    "conv_models",
    "embedding_gpu",
    "fp8_gpu",
    "gpt_gpu",
    "kmeans_gpu",
    "moe_gpu",
    "mx_gpu",
    "ops_gpu",
    "peer_gpt",
    "peers",
    "plan_gpu",
    "zipf",
]


def output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout


def cuda_tests() -> list[dict]:
    """Entries of ctest with the label cuda: name, program, arguments."""
    found = json.loads(output("ctest", "--test-dir", str(BUILD), "-L", "^cuda$", "--show-only=json-v1"))["tests"]
    return [
        {
            "name": test["name"],
            "program": pathlib.Path(test["command"][0]).name,
            "arguments": test["command"][1:],
        }
        for test in found
    ]


def debian_libraries(files: list[pathlib.Path]) -> dict[str, pathlib.Path]:
    """Shared libraries outside the build and Python's environment that `files` load, by name."""
    found = {}
    for file in files:
        for line in output("ldd", str(file)).splitlines():
            name, arrow, rest = line.strip().partition(" => ")
            path = pathlib.Path(rest.split(" (")[0]) if arrow else None
            if path is None or name.startswith(EVERYWHERE) or "site-packages" in str(path):
                continue
            if BUILD not in path.parents:
                found[name] = path.resolve()
    return found


def put(source: pathlib.Path, target: pathlib.Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)


def main() -> None:
    shutil.rmtree(KIT, ignore_errors=True)
    tests = cuda_tests()
    programs = [BUILD / "bin" / name for name in ["dovetail", *sorted({test["program"] for test in tests})]]
    libraries = [path for path in sorted((BUILD / "lib").glob("libdovetail_*.so")) if "parquet" not in path.name]
    for path in programs:
        put(path, KIT / "bin" / path.name)
    for path in libraries:
        put(path, KIT / "lib" / path.name)
    for name, path in debian_libraries(programs + libraries).items():
        put(path, KIT / "lib" / name)
    for path in [*(KIT / "bin").iterdir(), *(KIT / "lib").iterdir()]:
        subprocess.run(["strip", "--strip-unneeded", str(path)], check=True)
    shutil.copytree(ROOT / "python/dovetail", KIT / "python/dovetail", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "configs/moe", KIT / "configs/moe")
    for name in BENCHMARKS:
        put(ROOT / "bench" / f"{name}.py", KIT / "bench" / f"{name}.py")
    put(pathlib.Path(__file__).parent / "check.py", KIT / "check")
    os.chmod(KIT / "check", 0o755)
    commit = output("git", "rev-parse", "--short=10", "HEAD").strip()
    if output("git", "status", "--porcelain", "--untracked-files=no").strip():
        commit += " with changes"
    (KIT / "kit.json").write_text(json.dumps({"commit": commit, "tests": tests}, indent=1) + "\n")
    size = sum(path.stat().st_size for path in KIT.rglob("*") if path.is_file())
    print(f"build/gpu-kit: {size / 2**20:.0f} MiB, {len(tests)} CUDA tests; build/gpu-kit/check runs them")
    if size > MOST_BYTES:
        raise SystemExit(f"error: the kit takes {size} bytes, more than {MOST_BYTES}")


if __name__ == "__main__":
    main()
