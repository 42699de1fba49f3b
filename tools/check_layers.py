"""Fail on includes that cmake/layers.cmake does not allow, on torch/torch.h in headers, and on names defined twice.

Allowed includes form no ring: LAYER_* must have no cycle, and FOLDERS_* is an order.

usage: check_layers.py [--page] [ROOT]

--page writes the table of layers in docs/design/architecture.md.
"""

import pathlib
import re
import sys

LAYER = re.compile(r'set\(LAYER_(\w+) "([^"]*)"\)')
LAYERS = re.compile(r"set\(LAYERS ([^)]*)\)")
FOLDERS = re.compile(r"set\(FOLDERS_([a-z]+)\s(.*?)^(?=set|\n|#)", re.MULTILINE | re.DOTALL)
ABOUT = re.compile(r'set\(LAYER_(\w+) "[^"]*"\)  # (.*)')
PAGE = "docs/design/architecture.md"
BEGIN, END = "<!-- layers: begin -->\n", "<!-- layers: end -->\n"
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]', re.MULTILINE)
NAMESPACE = re.compile(r"^namespace (?:(\S+) )?\{")
TYPE = re.compile(r"^(?:struct|class|enum class) (\w+)\b(?!::)[^;]*\{")
CONSTANT = re.compile(r"\b(k[A-Z]\w*)(?=(?:\[\w*\])? = |[({])")
FUNCTION = re.compile(r"^\w[\w:<>,&* ]*?[ &*](\w+\((?:[^()]|\([^()]*\))*\))[^;(]*\{$", re.MULTILINE)


def allowed_edges(root: pathlib.Path) -> dict[str, set[str]]:
    text = (root / "cmake/layers.cmake").read_text()
    return {name: {name, *filter(None, below.split(";"))} for name, below in LAYER.findall(text)}


def folder_order(root: pathlib.Path) -> dict[str, dict[str, str]]:
    """Folders of each layer from the bottom to the top, with their comments; `.` means its own files."""
    text = (root / "cmake/layers.cmake").read_text()
    return {layer: dict(re.findall(r"([\w.]+)\)?(?:[ ]+# (.*))?\n", lines)) for layer, lines in FOLDERS.findall(text)}


def layer_order(root: pathlib.Path) -> list[str]:
    return LAYERS.search((root / "cmake/layers.cmake").read_text())[1].split()


def place(path: str) -> tuple[str, str]:
    """Layer and folder of a path below dovetail/: plan/solve/search.h is in plan, solve."""
    parts = path.split("/")
    return parts[0], parts[1] if len(parts) > 2 else "."


def rings(root: pathlib.Path):
    """Layers that LAYER_* lets include a layer that does not come before them in LAYERS."""
    order = layer_order(root)
    for layer, below in allowed_edges(root).items():
        for other in sorted(below - {layer}):
            if order.index(other) > order.index(layer):
                yield f"cmake/layers.cmake: {layer} may include {other}, which comes after it in LAYERS"


def table(root: pathlib.Path) -> str:
    """Layers and folders as the page on the architecture lists them."""
    about = dict(ABOUT.findall((root / "cmake/layers.cmake").read_text()))
    folders, order = folder_order(root), layer_order(root)
    lines = ["| folder | what it has | includes |", "|---|---|---|"]
    for layer, below in allowed_edges(root).items():
        includes = " ".join(name for name in order if name in below - {layer})
        lines.append(f"| **{layer}/** | {about.get(layer, '')} | {includes} |")
        for folder, text in folders.get(layer, {}).items():
            if folder != ".":
                lines.append(f"| {layer}/{folder}/ | {text} | |")
    return "\n".join(lines) + "\n"


def old_page(root: pathlib.Path):
    text = (root / PAGE).read_text()
    if BEGIN + table(root) + END not in text:
        yield f"{PAGE}: its table of layers differs from cmake/layers.cmake; run tools/check_layers.py --page"


def write_page(root: pathlib.Path) -> None:
    page = root / PAGE
    before, _, rest = page.read_text().partition(BEGIN)
    page.write_text(before + BEGIN + table(root) + END + rest.partition(END)[2])


def violations(root: pathlib.Path):
    edges, order = allowed_edges(root), folder_order(root)
    for path in sorted((root / "dovetail").rglob("*")):
        if path.suffix not in {".h", ".cpp", ".cu", ".cuh"}:
            continue
        layer, folder = place(str(path.relative_to(root / "dovetail")))
        folders = list(order.get(layer, [".", "cuda"]))
        where = path.relative_to(root)
        if layer not in edges:
            yield f"{where}: folder {layer} is not in cmake/layers.cmake"
            continue
        if folder not in folders:
            yield f"{where}: folder {folder} is not in FOLDERS_{layer} of cmake/layers.cmake"
            continue
        for include in INCLUDE.findall(path.read_text()):
            if path.suffix == ".h" and include == "torch/torch.h":
                yield f"{where}: torch/torch.h in a header costs every file 12 s; include what is used"
            if path.suffix in {".cu", ".cuh"} and include.startswith(("ATen/", "torch/")):
                yield f"{where}: device code includes no ATen ({include})"
            if not include.startswith("dovetail/"):
                continue
            other, below = place(include.removeprefix("dovetail/"))
            if other not in edges[layer]:
                yield f"{where}: {layer} may not include {include}; allowed: {sorted(edges[layer])}"
            elif other == layer and below not in folders[: folders.index(folder) + 1]:
                allowed = folders[: folders.index(folder) + 1]
                yield f"{where}: {layer}/{folder} may not include {include}; allowed folders: {allowed}"


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
    """Sources of a library compile in batches, where their unnamed namespaces are one."""
    apart = re.search(r"set\(FOLDERS_APART ([^)]*)\)", (root / "cmake/layers.cmake").read_text())[1].split()
    seen: dict[tuple[str, str, str], pathlib.Path] = {}
    for path in sorted((root / "dovetail").rglob("*.cpp")):
        if path.stem.endswith("_simd"):
            continue
        where = path.relative_to(root)
        layer, folder = place(str(path.relative_to(root / "dovetail")))
        library = (layer, folder if folder in apart else ".")
        for name in unnamed_definitions(path.read_text()):
            if (first := seen.setdefault((*library, name), where)) != where:
                yield f"{where}: {name} is defined in {first} too, in an unnamed namespace; share one or rename it"


def main() -> int:
    words = sys.argv[1:]
    page = "--page" in words
    root = pathlib.Path(next((word for word in words if word != "--page"), ".")).resolve()
    if page:
        write_page(root)
    found = [
        *rings(root),
        *violations(root),
        *old_page(root),
        *repeated_types(root),
        *repeated_in_batches(root),
    ]
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
