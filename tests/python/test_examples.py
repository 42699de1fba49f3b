"""examples/python run as a user runs them, and what they print."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "examples/python"
# One thread: the models are small, and a second would wait for tests that run at the same time.
ENVIRONMENT = dict(os.environ, OMP_NUM_THREADS="1")


def run(name, folder, ranks=1):
    """Returns what the example printed. It runs outside the checkout and must leave no file behind."""
    command = [sys.executable, FOLDER / name]
    if ranks > 1:
        command[1:1] = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    done = subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list(folder.iterdir())
    return done.stdout


def line(output, name):
    """Returns the last line that begins with `name`, without it."""
    found = [text.removeprefix(name) for text in output.splitlines() if re.match(rf"{re.escape(name)}  ", text)]
    assert found, f"no line {name!r} in:\n{output}"
    return found[-1]


def numbers(output, name):
    return [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*\.?\d*(?:e[+-]\d+)?", line(output, name))]


def test_every_example_has_a_test_and_a_line_in_the_list():
    scripts = {path.name for path in FOLDER.glob("*.py")}
    tested = set(re.findall(r'run\("(\w+\.py)"', pathlib.Path(__file__).read_text()))
    assert scripts == tested
    assert scripts <= set(re.findall(r"python/(\w+\.py)", (FOLDER.parent / "README.md").read_text()))


def test_quantized_models_learn_what_fp32_learns(tmp_path):
    output = run("quantize_model.py", tmp_path)
    fp32, mxfp8, mxfp4 = (numbers(output, name) for name in ["fp32", "mxfp8", "mxfp4"])
    assert fp32[0] < 1.75, "nats per character"
    assert mxfp8[0] == pytest.approx(fp32[0], rel=0.01)
    assert mxfp4[0] == pytest.approx(fp32[0], rel=0.05)
    assert len({fp32[0], mxfp8[0], mxfp4[0]}) == 3, "the same loss: a recipe did nothing"
    assert mxfp8[1] == pytest.approx(fp32[1], abs=0.01)
    assert mxfp4[1] == pytest.approx(fp32[1], abs=0.03)
    assert [fp32[2], mxfp8[2], mxfp4[2]] == [32, 8.25, 4.25]


def test_mixture_learns_more_than_the_dense_layer_and_loads_its_experts(tmp_path):
    output = run("mixture_layer.py", tmp_path)
    table, loads = output.split("load of the")
    dense, mixture = (numbers(table, name) for name in ["dense", "mixture"])
    assert mixture[0] < dense[0] - 0.04, "nats per character"
    assert mixture[1] > 8 * dense[1]
    balanced, free = (numbers(loads, name) for name in ["mixture", "mixture, no load loss"])
    assert sum(balanced[:16]) == pytest.approx(100, abs=1)
    assert max(balanced[:16]) == balanced[16] < free[16]
    assert min(balanced[:16]) > min(free[:16])


def test_embeddings_rank_flights_as_torch_does_and_better_than_the_hour(tmp_path):
    output = run("recommender_embeddings.py", tmp_path)
    hour, ours, torch = (numbers(output, name)[0] for name in ["hour alone", "dovetail", "torch"])
    assert ours > hour + 0.015  # 0.007 with rows that learn nothing
    assert ours == pytest.approx(torch, abs=2e-3)


def test_a_dlrm_learns_the_same_on_ranks(tmp_path):
    outputs = [run("dlrm_ranks.py", tmp_path), run("dlrm_ranks.py", tmp_path, ranks=2)]
    hour = numbers(outputs[0], "hour alone")[0]
    one, two = (numbers(output, "DLRM")[0] for output in outputs)
    assert one > hour + 0.015
    assert two == pytest.approx(one, abs=2e-3)
    sizes = [float(x) for x in outputs[1].split("MB:")[1].split()]
    assert len(sizes) == 2 and min(sizes) > 0.4 * sum(sizes)


def test_a_mixture_learns_the_same_on_ranks(tmp_path):
    outputs = [run("mixture_ranks.py", tmp_path), run("mixture_ranks.py", tmp_path, ranks=2)]
    frequency = numbers(outputs[0], "frequency of characters")[0]
    one, two = (numbers(output, "mixture")[0] for output in outputs)
    assert one < frequency - 0.7
    assert two == pytest.approx(one, abs=0.02)
    assert [numbers(output, "experts of rank 0") for output in outputs] == [[8, 8], [4, 8]]


def test_kmeans_finds_what_scikit_learn_finds(tmp_path):
    output = run("kmeans.py", tmp_path)
    ours, theirs = (numbers(output, name) for name in ["dovetail", "scikit-learn"])
    assert ours[1] == theirs[1] == 20, "iterations"
    assert ours[2] == pytest.approx(theirs[2], rel=1e-5)
    assert float(re.search(r"same labels: ([\d.]+)%", output)[1]) > 99.5


def test_planned_steps_take_less_memory_and_have_the_losses_of_pytorch(tmp_path):
    output = run("plan_memory.py", tmp_path)
    pytorch, most, least = (numbers(output, name) for name in ["PyTorch", "0.7x", "0.4x"])
    assert output.count("equal PyTorch's: True") == 2
    assert most[1] <= 0.71 * pytorch[1]
    assert least[1] <= 0.41 * pytorch[1]
