"""Fail on includes that cmake/layers.cmake does not allow, on torch/torch.h in headers, and on names defined twice.

usage: check_layers.py [ROOT]
"""

import pathlib
import re
import sys

LAYER = re.compile(r'set\(LAYER_(\w+) "([^"]*)"\)')
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]', re.MULTILINE)
NAMESPACE = re.compile(r"^namespace (?:(\S+) )?\{")
TYPE = re.compile(r"^(?:struct|class|enum class) (\w+)\b(?!::)[^;]*\{")
CONSTANT = re.compile(r"\b(k[A-Z]\w*)(?=(?:\[\w*\])? = )")
FUNCTION = re.compile(r"^\w[\w:<>,&* ]*?[ &*](\w+\((?:[^()]|\([^()]*\))*\))[^;(]*\{$", re.MULTILINE)


def allowed_edges(root: pathlib.Path) -> dict[str, set[str]]:
    text = (root / "cmake/layers.cmake").read_text()
    return {name: {name, *filter(None, below.split(";"))} for name, below in LAYER.findall(text)}


def violations(root: pathlib.Path):
    edges = allowed_edges(root)
    for path in sorted((root / "dovetail").rglob("*")):
        if path.suffix not in {".h", ".cpp", ".cu", ".cuh"}:
            continue
        folder = path.relative_to(root / "dovetail").parts[0]
        for include in INCLUDE.findall(path.read_text()):
            where = path.relative_to(root)
            if path.suffix == ".h" and include == "torch/torch.h":
                yield f"{where}: torch/torch.h in a header costs every file 12 s; include what is used"
            if path.suffix in {".cu", ".cuh"} and include.startswith(("ATen/", "torch/")):
                yield f"{where}: device code includes no ATen ({include})"
            if include.startswith("dovetail/"):
                target = include.split("/")[1]
                if folder not in edges:
                    yield f"{where}: folder {folder} is not in cmake/layers.cmake"
                elif target not in edges[folder]:
                    yield f"{where}: {folder} may not include {include}; allowed: {sorted(edges[folder])}"


def types(text: str, unnamed: bool):
    """Types at the left margin with their namespaces, either inside or outside of unnamed ones."""
    spaces: list[str] = []
    for line in text.splitlines():
        if match := NAMESPACE.match(line):
            spaces.append(match[1] or "")
        elif line.startswith("}  // namespace"):
            spaces.pop()
        elif ("" in spaces) == unnamed and (match := TYPE.match(line)):
            yield "::".join([*spaces, match[1]])


def repeated_types(root: pathlib.Path):
    """The libraries share one namespace: of two types of one name the loader keeps the functions of one."""
    seen: dict[str, pathlib.Path] = {}
    for path in sorted((root / "dovetail").rglob("*")):
        if path.suffix not in {".h", ".cpp", ".cu", ".cuh"}:
            continue
        where = path.relative_to(root)
        for name in types(path.read_text(), unnamed=False):
            if seen.setdefault(name, where) != where:
                yield f"{where}: {name} is defined in {seen[name]} too; rename it or put it in an unnamed namespace"


def unnamed_definitions(text: str):
    """Types, constants and functions with their parameters, at the left margin of unnamed namespaces."""
    yield from types(text, unnamed=True)
    for part in re.findall(r"^namespace \{$(.*?)^\}  // namespace$", text, re.MULTILINE | re.DOTALL):
        for line in re.findall(r"^const.*", part, re.MULTILINE):
            yield from CONSTANT.findall(line)
        for match in FUNCTION.finditer(part):
            yield re.sub(r"\s+", " ", re.sub(r" \w+(?=[,)=])", "", match[1]))


def repeated_in_batches(root: pathlib.Path):
    """Sources of a folder compile in batches, where their unnamed namespaces are one."""
    seen: dict[tuple[pathlib.Path, str], pathlib.Path] = {}
    for path in sorted((root / "dovetail").rglob("*.cpp")):
        if path.stem.endswith("_simd"):
            continue
        where = path.relative_to(root)
        for name in unnamed_definitions(path.read_text()):
            if (first := seen.setdefault((path.parent, name), where)) != where:
                yield f"{where}: {name} is defined in {first} too, in an unnamed namespace; share one or rename it"


def main() -> int:
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    found = [*violations(root), *repeated_types(root), *repeated_in_batches(root)]
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
