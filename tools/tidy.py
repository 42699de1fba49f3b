"""clang-tidy on changed sources of the release build, in parallel.

usage: tidy.py [--all] [FILE ...]

Without arguments: sources changed since the merge base with main, on main itself since the previous commit.
"""

import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys

import changes

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build/release"
LIMIT = 8  # files a run: one takes up to 40 s, since clang cannot read g++'s precompiled header


def changed_sources() -> list[str]:
    revision, _ = changes.base(ROOT)
    names = changes.changed_lines(ROOT, revision)
    return sorted(n for n in names if n.endswith(".cpp") and n.startswith("dovetail/"))


def commands() -> dict[str, dict]:
    """The command of each source. Sources that compile as a batch have the command of the batch."""
    known = {}
    for entry in json.loads((BUILD / "compile_commands.json").read_text()):
        path = pathlib.Path(entry["file"])
        sources = [str(path)]
        if path.parent.name == "Unity":
            sources = [str(ROOT / name) for name in re.findall(r'#include "([^"]+)"', path.read_text())]
        for source in sources:
            command = entry["command"].replace(f"-c {path}", f"-c {source}")
            known[os.path.relpath(source, ROOT)] = {**entry, "file": source, "command": command}
    return known


def database(files: list[str], known: dict[str, dict]) -> pathlib.Path:
    """compile_commands.json without what only g++ understands: its precompiled header and launcher."""
    folder = BUILD / "tidy"
    folder.mkdir(exist_ok=True)
    entries = []
    for name in files:
        entry = dict(known[name])
        command = re.sub(r"-include \S*cmake_pch\.hxx", "", entry["command"])
        command = re.sub(r"^.*?(/usr/bin/c\+\+|/usr/bin/g\+\+)", "/usr/bin/c++", command)
        command = re.sub(r"-Winvalid-pch|-Wno-subobject-linkage|-fopenmp", "", command)
        entry["command"] = command
        entries.append(entry)
    (folder / "compile_commands.json").write_text(json.dumps(entries))
    return folder


def run(folder: pathlib.Path, name: str) -> tuple[str, int, str]:
    done = subprocess.run(
        ["clang-tidy", "-p", str(folder), "--quiet", name], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return name, done.returncode, done.stdout + (done.stderr if done.returncode else "")


def main() -> int:
    arguments = sys.argv[1:]
    known = commands()
    everything = "--all" in arguments
    files = [a for a in arguments if not a.startswith("-")]
    if everything:
        files = [n for n in known if n.startswith("dovetail/")]
    elif not files:
        files = changed_sources()
        if len(files) > LIMIT:
            print(
                f"tidy: {len(files)} files changed; checking {LIMIT} of them (--all checks every file)", file=sys.stderr
            )
            files = files[:: -(-len(files) // LIMIT)]
    files = [n for n in files if n in known]
    if not files:
        return 0
    folder = database(files, known)
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for _name, code, output in pool.map(lambda n: run(folder, n), files):
            if code:
                failed += 1
                print(output, file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
