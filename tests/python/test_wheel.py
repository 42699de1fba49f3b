"""The wheel in a fresh environment whose PATH has no compiler."""
# ctest-labels: package

import os
import pathlib
import shutil
import subprocess
import sys
import time
import venv
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel():
    """The wheel that `./dev wheel` writes from the release build."""
    # ctest gives tests a cache of their own; this Python lies in the cache that has the environment.
    environment = dict(os.environ, DOVETAIL_CACHE=str(pathlib.Path(sys.executable).parents[2]))
    begin = time.time()
    subprocess.run([ROOT / "dev", "wheel"], check=True, cwd=ROOT, env=environment)
    (path,) = [path for path in (ROOT / "dist").glob("*.whl") if path.stat().st_mtime >= begin]
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A fresh environment with the wheel: its site-packages, its bin, and variables that name nothing else."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "env", with_pip=True)
    site = next((folder / "env/lib").iterdir()) / "site-packages"
    # torch and the others are gigabytes: the packages of this environment stand in by path.
    packages = next(p for p in sys.path if p.endswith("site-packages"))
    (site / "pinned.pth").write_text(packages + "\n")
    (site / "highsbox").symlink_to(pathlib.Path(packages) / "highsbox")  # where an installed one lies
    programs = folder / "env/bin"
    subprocess.run([programs / "python", "-m", "pip", "install", "-q", "--no-deps", wheel], check=True)
    return site, programs, {"PATH": str(programs), "HOME": str(folder)}


def test_one_wheel_for_every_python(wheel):
    assert wheel.name.endswith("-py3-none-linux_x86_64.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = next(archive.read(n).decode() for n in names if n.endswith("METADATA"))
    assert {"dovetail/bin/dovetail", "dovetail/bin/dovetail-milp"} <= set(names)
    assert "Requires-Dist: torch==2.11" in metadata
    assert "Requires-Dist: pyarrow==26" in metadata
    assert "Requires-Dist: highsbox==1.15" in metadata
    assert "Provides-Extra: examples" in metadata
    if shutil.which("nvcc"):
        assert "dovetail/lib/libdovetail_cuda.so" in names
    assert not any(bundled in n for n in names for bundled in ("libtorch", "libarrow", "libhighs", "libgomp"))


def test_works_without_a_compiler(installed, tmp_path):
    site, programs, bare = installed
    source = "import torch, dovetail; print(dovetail.gelu(torch.zeros(3)).tolist(), dovetail.__file__)"
    imported = subprocess.run([programs / "python", "-c", source], env=bare, capture_output=True, text=True, check=True)
    assert imported.stdout.startswith("[0.0, 0.0, 0.0]") and str(site) in imported.stdout
    command = subprocess.run([programs / "dovetail", "--version"], env=bare, capture_output=True, text=True)
    assert command.returncode == 0, command.stderr
    assert "0.1.0" in command.stdout
    solver = subprocess.run([site / "dovetail/bin/dovetail-milp"], env=bare, capture_output=True, text=True)
    assert solver.returncode == 2, solver.stderr  # 127: it does not load
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be, that is the question\n" * 200)
    split = "data.validation_split=tail"  # one document has no validation documents beside it
    prepared = subprocess.run(
        [programs / "dovetail", "prepare", text, "--out", tmp_path / "tokens", "--set", split],
        env=bare,
        capture_output=True,
        text=True,
    )
    assert prepared.returncode == 0, prepared.stderr


@pytest.mark.parametrize("example", sorted(path.name for path in (ROOT / "examples/python").glob("*.py")))
def test_runs_the_examples_without_a_checkout(installed, example, tmp_path):
    """test_examples.py holds what they print against their baselines."""
    _, programs, bare = installed
    shutil.copy(ROOT / "examples/python" / example, tmp_path)
    done = subprocess.run(
        [programs / "python", example],
        cwd=tmp_path,
        env={**bare, "OMP_NUM_THREADS": "1"},  # small models gain little from a second thread
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
