"""`dovetail simulate moe` and `dovetail bench comm`: a layer of experts predicted, and costs that are measured."""

import json
import os
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
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


def test_a_row_for_each_rank_is_no_slower_than_one_for_each_choice(tmp_path):
    words = ["simulate", "moe", "--cost", CLUSTER, "--ranks", 8, "--experts", 64, "--top-k", 6]
    words += ["--most-shadowed", 0, "--tokens", 1 << 20]
    plain = {"all_to_all": "linear", "overlap": 1, "r": 1, "shadowed": 0}
    seconds = []
    for what in ("rank", "choice"):
        plans = dovetail_json(*words, "--row-for", what, folder=tmp_path)["plans"]
        (plan,) = [plan for plan in plans if plain.items() <= plan.items()]
        seconds.append(plan["forward_s"] - plan["compute_s"] / 3)
    # Six choices of 64 experts on 8 ranks: a rank gets a row of 1 - C(56, 6) / C(64, 6) = 0.567 of the tokens, and
    # 6/8 rows if each choice travels alone. Latency and weights take the rest.
    assert 0.70 < seconds[0] / seconds[1] < 0.80


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
    assert "between" not in result["model"] and 0 <= result["model"]["overlap_share"] <= 1
    one, *chunks = (point["measured_s"] for point in result["layer_forward"])
    shares = result["layer_hidden_share"]
    assert result["device"] == "cpu" and len(shares) == 2
    saved = [one - seconds for seconds in chunks]
    assert shares[0] * saved[1] == pytest.approx(shares[1] * saved[0]) and shares[0] * saved[0] > 0
    plans = dovetail_json("simulate", "moe", "--cost", "cost.json", "--ranks", 2, folder=tmp_path)
    assert plans["simulated_from"].startswith("measured on 2 ranks of ")


def test_ranks_without_a_gpu_are_told(tmp_path):
    words = ["launch", "-n", "2", "bench", "comm", "--device", "cuda"]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([BINARY, *words], cwd=tmp_path, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 2 and "--device cuda, but " in done.stderr and "--device cpu" in done.stderr


def hybrid(folder, *words):
    return dovetail_json("simulate", "hybrid", "--runs", 8, "--most-nodes", 64, *words, folder=folder)


def test_the_papers_studies_are_redrawn(tmp_path):
    result = hybrid(tmp_path, "--report", "studies.html", "--plot", "nodes.svg")
    fast, slow = result["readings"]
    slowness = 23.8 * (15 / 16 / 33.87 + 1 / 29.83)
    for reading, factor in (fast, 1), (slow, slowness):
        cpu, gpu, both, two_gpus, _ = reading["one_node"]
        # Each side alone takes the time of Rodinia's program, or is slower by the factor.
        assert abs(cpu["seconds"] / (33.87 * factor) - 1) < 0.04 and abs(gpu["seconds"] / (29.83 * factor) - 1) < 0.02
        assert cpu["paper"] == {"program": "Rodinia, 16 cores", "seconds": 33.87, "variance": 1.079}
        assert "paper" not in two_gpus
        assert both["least_s"] * 0.95 <= both["seconds"] <= both["least_s"] * 1.05
        nodes = reading["nodes"]
        assert [(one["nodes"], one["gpus"]) for one in nodes] == [(n, g) for g in (1, 2) for n in range(1, 7)]
        for one in nodes[:6]:  # 0.03 s of messages; on five nodes each core has five whole shards, not 4.6
            least = both["least_s"] / one["nodes"]
            assert one["hybrid_s"] <= least * (1.07 if one["nodes"] == 5 else 1.05), one
            # Five nodes have 4.6 shards a core: no schedule of whole shards comes nearer.
            assert least <= one["least_s"] <= one["hybrid_s"] <= 1.05 * one["least_s"], one
            assert abs(one["speed_up"] / (16 * 33.87 * factor / one["hybrid_s"]) - 1) < 1e-9
            assert one["gpu_task_s"] < one["gpu_alone_task_s"]
        claims = {claim["claim"]: claim["confirmed"] for claim in reading["claims"]}
        assert all(claim["found"] for claim in reading["claims"])
        assert claims["on one node CPU cores and a GPU together are faster than either alone"]
        assert not claims["one GPU with 15 cores is ahead of two GPUs"]  # they are as fast as 0.83 of a GPU
        assert not claims["the hybrid's speed-up over one core falls back with more nodes"]
        # A reading does not judge the claim that it is fitted to.
        assert claims.get("together they take 23.8 s") == (False if reading is fast else None)
    assert abs(fast["one_node"][2]["least_s"] - 1 / (15 / 16 / 33.87 + 1 / 29.83)) < 1e-9
    assert abs(slow["one_node"][2]["least_s"] - 23.8) < 1e-6
    assert any("assumed" not in line and "shards of 1024 rows" in line for line in result["assumptions"])
    assert [one["nodes"] for one in result["scale"]] == [1, 2, 4, 8, 16, 32, 64]
    assert all(
        one["events"] > 0 and one["least_s"] / 1.05 <= one["tree_s"] <= one["ranks_s"] for one in result["scale"]
    )
    page = (tmp_path / "studies.html").read_text()
    assert page.count("<svg") == 4 and "not confirmed" in page and "dovetail simulate hybrid --nodes 6" in page
    lines = list(ElementTree.parse(tmp_path / "nodes.svg").getroot().iter("{http://www.w3.org/2000/svg}polyline"))
    assert len(lines) == 5 and all(len(line.attrib["points"].split()) == 6 for line in lines)
    text = dovetail("simulate", "hybrid", "--runs", 2, "--most-nodes", 2, folder=tmp_path).stdout
    assert text.startswith("Simulated, not measured") and text.count("assumed: ") == len(result["assumptions"])
    assert "not confirmed" in text and "events/s" in text


def test_a_seed_gives_the_same_figures(tmp_path):
    def figures(*words):
        result = hybrid(tmp_path, *words)
        for one in result["scale"]:
            del one["wall_s"]
        return result

    assert figures() == figures()
    assert figures() != figures("--seed", 1)


def test_merging_in_the_order_of_ranks_costs_more_with_more_nodes(tmp_path):
    def six_nodes_s(merge):
        words = ["--set", f"network.merge={merge}", "--set", "network.bytes_per_s=1e5"]
        return hybrid(tmp_path, *words)["readings"][0]["nodes"][5]["hybrid_s"]

    # A tree of six: three messages out, three back. One after another: back as the nodes got theirs, but five of them.
    out_s, back_s = 25600 / 1e5, 51712 / 1e5
    longer_s = 10 * ((out_s + 5 * back_s) - 3 * (out_s + back_s))
    assert 0.8 * longer_s < six_nodes_s("ranks") - six_nodes_s("tree") < 1.2 * longer_s


def test_a_cluster_of_ones_own(tmp_path):
    file = CLUSTER.with_name("hybrid_uneven.toml")
    result = hybrid(tmp_path, "--cluster", file)
    assert len(result["readings"]) == 1 and result["assumptions"] == []
    assert result["simulated_from"].startswith("assumed")
    assert "paper" not in result["readings"][0]["one_node"][0]
    faults = result["faults"]
    assert faults["with_s"] > faults["without_s"] and faults["restarts"] == 1
    assert any("node 5" in reason and "no executor is left" in reason for reason in faults["left_out"])


def test_mistakes_of_a_cluster_are_named(tmp_path):
    def refused(*words):
        return dovetail("simulate", *words, folder=tmp_path, code=2).stderr

    assert "--ranks is an option of `dovetail simulate moe`" in refused("hybrid", "--ranks", 4)
    assert "--runs is an option of `dovetail simulate hybrid`" in refused(
        "moe", "--cost", CLUSTER, "--ranks", 4, "--runs", 3
    )
    assert "simulate moe: --cost is required" in refused("moe", "--ranks", 4)
    assert "job.grian" in refused("hybrid", "--set", "job.grian=3")
    cluster = tmp_path / "cluster.toml"
    cluster.write_text('source = "none"\n')
    assert "no [[node]]" in refused("hybrid", "--cluster", cluster)
    cluster.write_text('source = "none"\n[[node]]\ncore = { row_s = 1e-5 }\n')
    assert "row_s of [node.gpu] is not given" in refused("hybrid", "--cluster", cluster)
    cluster.write_text('source = "none"\n[[node]]\ncores = 1\ngpus = 2\ngpu = { row_s = 1e-5 }\n')
    assert "every GPU binds a core" in refused("hybrid", "--cluster", cluster)
    cluster.write_text('source = "none"\n[[node]]\ngpus = 0\ncore = { row_s = 1e-5 }\n[[fault]]\nnode = 3\n')
    assert "there are nodes 0 to 0, not 3" in refused("hybrid", "--cluster", cluster)
