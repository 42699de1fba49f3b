"""`dovetail simulate moe` and `dovetail bench comm`: a layer of experts predicted, and costs that are measured."""

import json
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from cli import dovetail, dovetail_json
from tiny_run import BINARY

CLUSTER = Path(__file__).resolve().parents[2] / "configs/clusters/a100_8x_hdr.json"


def test_plans_are_ordered_and_the_fastest_is_chosen(tmp_path):
    words = ["simulate", "moe", "--cost", CLUSTER, "--ranks", 64, "--experts", 32, "--most-shadowed", 1]
    result = dovetail_json(*words, folder=tmp_path)
    totals = [plan["forward_s"] + plan["backward_s"] for plan in result["plans"]]
    assert totals == sorted(totals) and result["plans"][0] == result["chosen"]
    assert len(totals) == 1 + 4 * 8 * 2 * 2  # algorithms, overlap, r of 1 and 2, none or one shadowed; data parallel
    assert result["simulated_from"].startswith("nominal")
    text = dovetail(*words, folder=tmp_path).stdout
    assert text.startswith("Simulated, not measured; the costs are: nominal")
    assert "data parallel" not in text and "Chosen of 129 plans" in text


def test_the_plot_has_a_line_for_each_algorithm(tmp_path):
    dovetail("simulate", "moe", "--cost", CLUSTER, "--ranks", 32, "--plot", "layer.svg", folder=tmp_path)
    root = ElementTree.parse(tmp_path / "layer.svg").getroot()
    names = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"linear", "2dh", "flexible", "2dh_flexible", "data parallel", "ranks"} <= names
    lines = list(root.iter("{http://www.w3.org/2000/svg}polyline"))
    assert len(lines) == 5
    assert all(len(line.attrib["points"].split()) == 5 for line in lines)  # 2, 4, 8, 16, 32 ranks


def test_mistakes_are_named(tmp_path):
    words = ["simulate", "moe", "--cost", CLUSTER, "--ranks"]
    assert "12 ranks do not fill nodes of 8" in dovetail(*words, 12, folder=tmp_path, code=2).stderr
    assert "do not fit 16 ranks" in dovetail(*words, 16, "--experts", 6, folder=tmp_path, code=2).stderr
    (tmp_path / "cost.json").write_text('{"ranks_per_node": 2}')
    stderr = dovetail("simulate", "moe", "--cost", "cost.json", "--ranks", 2, folder=tmp_path, code=2).stderr
    assert "cost.json: inside is missing" in stderr
    assert "this job has one" in dovetail("bench", "comm", folder=tmp_path, code=2).stderr


def test_what_two_ranks_measure_can_be_simulated(tmp_path):
    words = ["launch", "-n", "2", "bench", "comm", "--out", "cost.json", "--json", "--tokens", "256"]
    done = subprocess.run([BINARY, *words], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert len(result["all_to_all"]) == 4 and len(result["layer_forward"]) == 3
    assert all(point["measured_s"] > 0 and point["predicted_s"] > 0 for point in result["all_to_all"])
    assert json.loads((tmp_path / "cost.json").read_text()) == result["model"]
    assert "between" not in result["model"]
    plans = dovetail_json("simulate", "moe", "--cost", "cost.json", "--ranks", 2, folder=tmp_path)
    assert plans["simulated_from"].startswith("measured on 2 ranks of ")
