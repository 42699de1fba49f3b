"""docs/debugging.md lists each environment variable that the program, the package, ./dev, tests and benchmarks read."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
READ = re.compile(
    r"""getenv\(\s*"(DOVETAIL_\w+)"|variable\("(DOVETAIL_\w+)"\)|environ(?:\.get)?[(\[]\s*"(DOVETAIL_\w+)"|"""
    r"""\$\{?(DOVETAIL_\w+)|constexpr const char\* kChild\w+ = "(DOVETAIL_\w+)\""""
)
SUFFIXES = {".h", ".cpp", ".cu", ".cuh", ".py"}


def variables_read() -> dict[str, str]:
    """Variable -> a file that reads it."""
    folders = ["dovetail", "python", "tests", "bench", "tools"]
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    files += [ROOT / "dev", ROOT / ".ci/run", ROOT / "tests/bare.sh"]
    found = {}
    for path in files:
        for names in READ.findall(path.read_text()):
            found.setdefault("".join(names), path.relative_to(ROOT).as_posix())
    return found


def variables_listed() -> set[str]:
    text = (ROOT / "docs/debugging.md").read_text().split("## Environment variables")[1]
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `DOVETAIL_")]
    return set(re.findall(r"`(DOVETAIL_\w+)`", " ".join(cells)))


def test_each_variable_that_is_read_is_listed():
    read = variables_read()
    known = {"DOVETAIL_SIMD", "DOVETAIL_CACHE", "DOVETAIL_LIBRARY_DIR", "DOVETAIL_JOBS", "DOVETAIL_TEST_SAVE_FOREVER"}
    assert known <= set(read)  # the search finds every way of reading one
    assert not {name: file for name, file in read.items() if name not in variables_listed()}


def test_each_variable_listed_is_read():
    assert not variables_listed() - set(variables_read())
