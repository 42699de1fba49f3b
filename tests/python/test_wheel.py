"""The wheel in a fresh environment whose PATH has no compiler."""
# ctest-labels: package

import os
import pathlib
import subprocess
import sys
import venv
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, ROOT],
        check=True,
        env=dict(os.environ, PATH=f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"),
    )
    (path,) = folder.glob("*.whl")
    return path


def test_one_wheel_for_every_python(wheel):
    assert wheel.name.endswith("-py3-none-linux_x86_64.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = next(archive.read(n).decode() for n in names if n.endswith("METADATA"))
    assert {"dovetail/bin/dovetail", "dovetail/bin/dovetail-milp"} <= set(names)
    assert "Requires-Dist: torch==2.11" in metadata
    assert "Requires-Dist: pyarrow==26" in metadata
    assert "Requires-Dist: highsbox==1.15" in metadata
    assert not any(bundled in n for n in names for bundled in ("libtorch", "libarrow", "libhighs", "libgomp"))


def test_works_without_a_compiler(wheel, tmp_path):
    environment = tmp_path / "env"
    venv.create(environment, with_pip=True)
    site = next((environment / "lib").iterdir()) / "site-packages"
    # torch and the others are gigabytes: the packages of this environment stand in by path.
    packages = next(p for p in sys.path if p.endswith("site-packages"))
    (site / "pinned.pth").write_text(packages + "\n")
    python = environment / "bin/python"
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", wheel], check=True)
    bare = {"PATH": str(environment / "bin"), "HOME": str(tmp_path)}
    imported = subprocess.run(
        [python, "-c", "import torch, dovetail; print(dovetail.gelu(torch.zeros(3)).tolist(), dovetail.__file__)"],
        env=bare,
        capture_output=True,
        text=True,
        check=True,
    )
    assert imported.stdout.startswith("[0.0, 0.0, 0.0]") and str(site) in imported.stdout
    command = subprocess.run([environment / "bin/dovetail", "--version"], env=bare, capture_output=True, text=True)
    assert command.returncode == 0, command.stderr
    assert "0.1.0" in command.stdout
    (site / "highsbox").symlink_to(pathlib.Path(packages) / "highsbox")  # where an installed one lies
    solver = subprocess.run([site / "dovetail/bin/dovetail-milp"], env=bare, capture_output=True, text=True)
    assert solver.returncode == 2, solver.stderr  # 127: it does not load
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be, that is the question\n" * 200)
    split = "data.validation_split=tail"  # one document has no validation documents beside it
    prepared = subprocess.run(
        [environment / "bin/dovetail", "prepare", text, "--out", tmp_path / "tokens", "--set", split],
        env=bare,
        capture_output=True,
        text=True,
    )
    assert prepared.returncode == 0, prepared.stderr
