"""examples/cpp built against an installed library, as a user would."""
# ctest-labels: package

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_example_builds_and_learns(tmp_path):
    tools = dict(os.environ, PATH=f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}")
    build = pathlib.Path(os.environ["DOVETAIL_LIBRARY_DIR"]).parent
    prefix = tmp_path / "prefix"
    subprocess.run(["cmake", "--install", build, "--prefix", prefix], check=True, env=tools, capture_output=True)
    configure = ["cmake", "-G", "Ninja", "-S", ROOT / "examples/cpp", "-B", tmp_path / "build"]
    configure += [f"-DCMAKE_PREFIX_PATH={prefix}", f"-DPython_EXECUTABLE={sys.executable}"]
    subprocess.run(configure, check=True, env=tools, capture_output=True)
    subprocess.run(["cmake", "--build", tmp_path / "build"], check=True, env=tools, capture_output=True)
    for program, said in (("train_by_hand", "step 100"), ("plan_memory", "planned step")):
        done = subprocess.run([tmp_path / "build" / program], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        assert said in done.stdout
