"""Where the compiled library is, and loading it into torch."""

import importlib.metadata
import os
import pathlib

PACKAGE = pathlib.Path(__file__).resolve().parent
# Each after those it is built on.
LIBRARIES = [f"libdovetail_{layer}.so" for layer in ["ops", "mx", "plan", "moe", "embedding", "jobs", "fit"]]


def library_folder() -> pathlib.Path:
    """DOVETAIL_LIBRARY_DIR, then this package (a wheel), then the release build of the checkout around it."""
    override = os.environ.get("DOVETAIL_LIBRARY_DIR")
    candidates = [PACKAGE / "lib", PACKAGE.parent.parent / "build/release/lib"]
    if override:
        candidates = [pathlib.Path(override)]
    for folder in candidates:
        if all((folder / library).exists() for library in LIBRARIES):
            return folder
    searched = ", ".join(str(c) for c in candidates)
    raise ImportError(
        f"dovetail: {' and '.join(LIBRARIES)} are in none of: {searched}. In a checkout, run ./dev build first."
    )


def load() -> None:
    import torch

    if not torch.__version__.startswith("2.11."):
        raise ImportError(f"dovetail is built for torch 2.11, found {torch.__version__}: pip install 'torch==2.11.*'")
    folder = library_folder()
    for library in LIBRARIES:
        torch.ops.load_library(str(folder / library))


def version() -> str:
    try:
        return importlib.metadata.version("dovetail")
    except importlib.metadata.PackageNotFoundError:  # a checkout, not an installed wheel
        return "0.1.0"
