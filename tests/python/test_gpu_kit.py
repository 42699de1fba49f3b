"""The program `check` of the GPU kit: parts that hang, die or fail are told, and the next part runs."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

SOURCE = pathlib.Path(__file__).resolve().parents[2] / "tools/gpu_kit/check.py"
PASSES = '#!/bin/sh\necho "[       OK ] A.B (1 ms)"\n'
SKIPS = '#!/bin/sh\necho "x.cpp:1: Skipped"\necho "no card of capability 10"\necho "[  SKIPPED ] A.B (1 ms)"\n'


@pytest.fixture
def kit(tmp_path):
    """A kit with tests that pass, skip, hang, crash and fail, benchmarks, and a machine with a card."""
    folder = tmp_path / "kit"
    programs = {
        "passes": PASSES,
        "skips": SKIPS,
        "hangs": "#!/bin/sh\nsleep 60\n",
        "crashes": "#!/bin/sh\nkill -SEGV $$\n",
        "fails": '#!/bin/sh\necho "y.cpp:7: Failure"\necho "expected 3"\nexit 1\n',
    }
    for name, text in programs.items():
        path = folder / "bin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    (folder / "bench").mkdir()
    for name in ["gpt_gpu", "ops_gpu", "mx_gpu", "fp8_gpu", "embedding_gpu"]:
        (folder / "bench" / f"{name}.py").write_text("print('{\"step_ms\": 3.5}')\n")
    (folder / "bench/fp8_gpu.py").write_text("raise SystemExit('no fp8 here')\n")
    tests = [{"name": f"t.{name}", "program": name, "arguments": ["--file=x"]} for name in programs]
    (folder / "kit.json").write_text(json.dumps({"commit": "0123456789", "tests": tests}))
    shutil.copy(SOURCE, folder / "check")
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "nvidia-smi").write_text("#!/bin/sh\necho 'Some Card, 580.1'\n")
    (tools / "nvidia-smi").chmod(0o755)
    return folder, tools


def check(kit, *arguments, card=True):
    folder, tools = kit
    path = f"{tools}:{os.environ['PATH']}" if card else "/nowhere"
    return subprocess.run(
        [sys.executable, folder / "check", *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"PATH": path},
        cwd=folder,
    )


def test_without_a_card_it_says_what_it_would_run(kit):
    done = check(kit, card=False)
    assert done.returncode == 0
    assert "no GPU" in done.stdout
    for expected in ["tests ", "gpt ", "mx ", "t.hangs"]:
        assert expected in done.stdout


def test_parts_that_hang_die_or_fail_are_told_and_the_next_runs(kit):
    done = check(kit, "--parts", "tests,fp8,gpt", "--limit", "15")
    assert done.returncode == 1
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert lines[0].startswith("Some Card, driver 580.1, torch 2.11.")
    told = {line.split(":")[0]: line for line in lines if line.startswith("t.")}
    assert "passed" in told["t.passes"]
    assert "skipped: no card of capability 10" in told["t.skips"]
    assert "not done after 15 s" in told["t.hangs"]
    assert "died of SIGSEGV" in told["t.crashes"]
    assert "failed (exit code 1)" in told["t.fails"]
    assert "expected 3" in lines
    assert any(line.startswith("tests: 3 of 5 failed") for line in lines)
    assert any(line.startswith("fp8: failed") for line in lines)
    assert "no fp8 here" in lines
    assert any(line.startswith("gpt: passed") for line in lines)
    report = json.loads((kit[0] / "gpu-check.json").read_text())
    assert (report["card"], report["driver"], report["commit"]) == ("Some Card", "580.1", "0123456789")
    assert report["parts"]["gpt"]["rows"] == [{"step_ms": 3.5}]
    assert [test["name"] for test in report["parts"]["tests"]["tests"]][:2] == ["t.passes", "t.skips"]


def test_an_unknown_part_is_refused_with_the_parts_there_are(kit):
    done = check(kit, "--parts", "gpt,speed")
    assert done.returncode == 2
    assert "no part named 'speed'" in done.stderr
    assert "tests, gpt, ops, mx" in done.stderr
