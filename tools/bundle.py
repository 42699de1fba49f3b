"""Copy into FOLDER the shared libraries that its contents need and a user's machine may lack.

usage: bundle.py FOLDER

Taken: the libraries named in BUNDLED (Debian packages of the build) and what those need in turn. Everything else comes
from the C library, the compiler's runtime, or the torch, pyarrow and highsbox wheels.
"""

import pathlib
import re
import shutil
import subprocess
import sys

BUNDLED = ("libsentencepiece", "libhwloc", "libudev", "libutf8proc", "libhwy", "libpng16", "libturbojpeg")


def needed(library: pathlib.Path) -> dict[str, str]:
    listing = subprocess.run(["ldd", str(library)], capture_output=True, text=True, check=False).stdout
    return dict(re.findall(r"^\s*(\S+) => (/\S+)", listing, re.MULTILINE))


def main() -> int:
    folder = pathlib.Path(sys.argv[1])
    queue = sorted(folder.glob("*.so*"))
    seen = {p.name for p in queue}
    while queue:
        for name, path in needed(queue.pop()).items():
            if name.startswith(BUNDLED) and name not in seen:
                target = folder / name
                shutil.copyfile(pathlib.Path(path).resolve(), target)
                target.chmod(0o755)
                seen.add(name)
                queue.append(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
