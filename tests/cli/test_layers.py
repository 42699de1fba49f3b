"""tools/check_layers.py in small trees: an include that is not allowed, a ring and an old page fail."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools/check_layers.py"
LAYERS = """\
set(LAYER_low "")  # the bottom
set(LAYER_high "low")  # the top
set(LAYERS low high)
set(FOLDERS_high
    first  # shared files
    second
    .)

set(FOLDERS_APART cuda)
"""
FILES = {
    "low/a.h": "",
    "high/first/b.h": '#include "dovetail/low/a.h"\n',
    "high/second/c.cpp": '#include "dovetail/high/first/b.h"\n',
    "high/d.cpp": '#include "dovetail/high/second/c.h"\n',
}


class Tree:
    def __init__(self, folder: Path):
        self.folder = folder
        self.write("cmake/layers.cmake", LAYERS)
        self.write("docs/design/architecture.md", "# Page\n\n<!-- layers: begin -->\n<!-- layers: end -->\n\nMore.\n")
        for name, text in FILES.items():
            self.write(f"dovetail/{name}", text)
        assert self.check("--page").returncode == 0

    def write(self, name: str, text: str) -> None:
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(text)

    def check(self, *options: str) -> subprocess.CompletedProcess:
        command = [sys.executable, str(TOOL), *options, str(self.folder)]
        return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


def test_a_tree_without_rings_passes(tree):
    checked = tree.check()
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize(
    ("name", "include", "message"),
    [
        ("low/a.h", "high/first/b.h", "low may not include"),
        ("high/first/b.h", "high/second/c.h", "high/first may not include"),
        ("high/first/b.h", "high/d.h", "high/first may not include"),
        ("high/third/e.h", "low/a.h", "folder third is not in FOLDERS_high"),
        ("middle/f.h", "low/a.h", "folder middle is not in cmake/layers.cmake"),
    ],
)
def test_an_include_upwards_fails(tree, name, include, message):
    tree.write(f"dovetail/{name}", f'#include "dovetail/{include}"\n')
    checked = tree.check()
    assert checked.returncode == 1
    assert f"dovetail/{name}" in checked.stderr
    assert message in checked.stderr


def test_layers_that_allow_a_ring_fail(tree):
    tree.write("cmake/layers.cmake", LAYERS.replace('LAYER_low ""', 'LAYER_low "high"'))
    checked = tree.check("--page")
    assert checked.returncode == 1
    assert "low may include high, which comes after it" in checked.stderr


def test_the_page_lists_layers_and_folders_as_they_are(tree):
    page = (tree.folder / "docs/design/architecture.md").read_text()
    assert "| **high/** | the top | low |\n| high/first/ | shared files | |\n| high/second/ |  | |\n" in page
    assert page.endswith("<!-- layers: end -->\n\nMore.\n")
    tree.write("cmake/layers.cmake", LAYERS.replace("the top", "the roof"))
    checked = tree.check()
    assert checked.returncode == 1
    assert "docs/design/architecture.md: its table of layers" in checked.stderr


def test_names_of_one_library_are_defined_once(tree):
    for folder in ("first", "second"):
        tree.write(
            f"dovetail/high/{folder}/x.cpp", "namespace {\nint twice(int x) {\n  return 2 * x;\n}\n}  // namespace\n"
        )
    checked = tree.check()
    assert checked.returncode == 1
    assert "twice" in checked.stderr


def test_this_tree(tmp_path):
    checked = subprocess.run([sys.executable, str(TOOL), str(ROOT)], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
