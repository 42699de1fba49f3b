"""Lists the text of the quickstart: the Python sources of pinned packages of this environment.

    ./dev python tools/quickstart_text.py [--out FILE]

Writes one file per line as `root<TAB>relative path`, for data.file_list, ordered by relative path. Packages are
pinned, so that every machine with the same Python trains on the same text. Files above 300 kB are left out: they are
generated tables.
"""

import argparse
import sys
import sysconfig
from pathlib import Path

PACKAGES = ("functorch", "mpmath", "networkx", "sympy", "torch", "torchgen")
LARGEST_BYTES = 300_000


def text_files(root):
    """Relative paths with '/', sorted."""
    files = []
    for package in PACKAGES:
        folder = root / package
        if not folder.is_dir():
            sys.exit(f"error: {folder} is not there\nhelp: ./dev sets the environment up; run this with ./dev python")
        for path in folder.rglob("*.py"):
            if path.is_file() and 0 < path.stat().st_size <= LARGEST_BYTES:
                files.append(path.relative_to(root).as_posix())
    return sorted(files)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, help="write the list there instead of to standard output")
    arguments = parser.parse_args()
    root = Path(sysconfig.get_paths()["purelib"])
    files = text_files(root)
    listing = "".join(f"{root}\t{name}\n" for name in files)
    if arguments.out is None:
        sys.stdout.write(listing)
        return
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(listing)
    total = sum((root / name).stat().st_size for name in files)
    print(f"text: {len(files):,} files of Python source, {total / 1e6:.0f} MB", file=sys.stderr)


if __name__ == "__main__":
    main()
