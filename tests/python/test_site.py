"""The documentation site has each public Python name and each page of docs/."""

import fnmatch
import importlib
import inspect
import pathlib
import re
import types

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SITE = ROOT / "docs/site"
PACKAGE = ROOT / "python/dovetail"
DIRECTIVE = re.compile(r"^\.\. auto(?:module|function|class):: (\S+)$", re.MULTILINE)


def public_modules() -> list[str]:
    files = [path.stem for path in PACKAGE.glob("[!_]*.py")]
    folders = [path.parent.name for path in PACKAGE.glob("[!_]*/__init__.py")]
    return ["dovetail", *(f"dovetail.{name}" for name in sorted(files + folders))]


def public_objects() -> list[tuple[str, object]]:
    """Names of `__all__` with their module, except the version."""
    found = []
    for name in public_modules():
        module = importlib.import_module(name)
        found += [(f"{name}.{entry}", getattr(module, entry)) for entry in module.__all__ if entry != "__version__"]
    return found


def described() -> set[str]:
    return {name for page in (SITE / "python").glob("*.rst") for name in DIRECTIVE.findall(page.read_text())}


def test_modules_are_found():
    assert {"dovetail", "dovetail.cluster", "dovetail.functional", "dovetail.recommender"} <= set(public_modules())


@pytest.mark.parametrize("name", public_modules())
def test_a_public_module_has_names_and_a_page(name):
    module = importlib.import_module(name)
    assert module.__all__ and inspect.cleandoc(module.__doc__)
    assert name in described()


@pytest.mark.parametrize(("name", "value"), public_objects(), ids=lambda x: x if isinstance(x, str) else "")
def test_a_public_name_has_a_docstring_and_an_entry(name, value):
    assert value.__doc__ and value.__doc__.strip()
    if not name.removeprefix("dovetail.").count("."):  # the package repeats names of its modules
        name = value.__name__ if isinstance(value, types.ModuleType) else f"dovetail.functional.{value.__name__}"
    assert name in described()
    methods = vars(value) if inspect.isclass(value) else {}
    bare = [m for m, f in methods.items() if m[0] != "_" and inspect.isfunction(f) and not inspect.getdoc(f)]
    assert not bare


def test_each_page_is_in_a_toctree():
    trees = re.findall(r"```\{toctree\}\n(.*?)```", (SITE / "index.md").read_text(), re.DOTALL)
    patterns = [line for tree in trees for line in tree.splitlines() if line and not line.startswith(":")]
    pages = [*ROOT.glob("docs/*.md"), *ROOT.glob("docs/design/*.md"), *ROOT.glob("*.md"), *ROOT.glob("examples/*.md")]
    names = {page.relative_to(ROOT).with_suffix("").as_posix() for page in pages} - {"README"}  # the start page
    assert {"docs/debugging", "docs/design/plan", "CHANGELOG"} <= names

    def matches(name: str, pattern: str) -> bool:  # a star stands for no slash, as in Sphinx
        return fnmatch.fnmatchcase(name, pattern) and name.count("/") == pattern.count("/")

    assert not {name for name in names if not any(matches(name, pattern) for pattern in patterns)}
