"""The ``dovetail`` command of the wheel: finds torch beside it and becomes the program in the package.

A package of its own, so that starting the command does not import torch.
"""

import importlib.util
import os
import sys


def folder_of(package: str) -> str | None:
    spec = importlib.util.find_spec(package)
    return spec.submodule_search_locations[0] if spec and spec.submodule_search_locations else None


def main() -> None:
    package, torch = folder_of("dovetail"), folder_of("torch")
    if package is None or torch is None:
        sys.exit("error: the Python package torch is not installed beside dovetail\nhelp: pip install 'torch==2.11.*'")
    libraries = [os.path.join(package, "lib"), os.path.join(torch, "lib"), folder_of("pyarrow")]
    if highs := folder_of("highsbox"):
        libraries.append(os.path.join(highs, "highs_dist", "lib"))
    libraries.append(os.environ.get("LD_LIBRARY_PATH"))
    environment = dict(
        os.environ,
        LD_LIBRARY_PATH=os.pathsep.join(folder for folder in libraries if folder),
        DOVETAIL_PYTHON=sys.executable,
    )
    program = os.path.join(package, "bin", "dovetail")
    os.execve(program, [program, *sys.argv[1:]], environment)
