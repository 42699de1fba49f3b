"""Tutel's published gains beside the simulator's, for the paper's cluster: nodes of eight A100 with HDR InfiniBand.

usage: ./dev bench tutel_published [--out FILE]

The published figures are the maxima that the paper states (Hwang et al. 2022, arXiv:2206.03382). The simulator has
nominal costs (configs/clusters/a100_8x_hdr.json). Each gain is its maximum over layers of 256 to 16384 tokens a rank,
top 2, width and hidden width 2048, two experts a rank. Adaptive parallelism has four experts on 16 ranks.

- 2DH: forward of a layer with the linear all-to-all over the same with 2DH, 2048 ranks
- pipelining: one chunk over the best number of chunks, 16 and 64 ranks
- parallelism: the worse of the two static layouts r = 1 and r = 0 over the best r of each size
- layer: linear all-to-all, one chunk, over the best plan. Encoding and decoding by masks, which Fairseq does, are left
  out
"""

import argparse
import json
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOKENS = [256, 1024, 4096, 16384]
WIDTH = 2048


def plans(ranks: int, experts: int, tokens: int) -> list[dict]:
    """Plans of a layer that sends a row for each choice, as Tutel does."""
    words = {"ranks": ranks, "experts": experts, "tokens": tokens, "width": WIDTH, "hidden": WIDTH, "top-k": 2}
    command = [str(ROOT / "build/release/bin/dovetail"), "simulate", "moe", "--json", "--row-for", "choice"]
    command += ["--cost", str(ROOT / "configs/clusters/a100_8x_hdr.json"), "--most-shadowed", "0"]
    command += [word for key, value in words.items() for word in (f"--{key}", str(value))]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["plans"]


def seconds(plan: dict) -> float:
    return plan["forward_s"] + plan["backward_s"]


def of(found: list[dict], **wanted: object) -> list[dict]:
    return [plan for plan in found if all(plan[key] == value for key, value in wanted.items())]


def two_level_gain(tokens: int) -> float:
    found = of(plans(2048, 4096, tokens), overlap=1)
    linear, two_level = (of(found, all_to_all=name)[0] for name in ("flexible", "2dh_flexible"))
    return linear["forward_s"] / two_level["forward_s"]


def pipelining_gain(ranks: int, tokens: int) -> float:
    found = of(plans(ranks, 2 * ranks, tokens), r=1)
    return min(map(seconds, of(found, overlap=1))) / min(map(seconds, found))


def parallelism_gain(tokens: int) -> float:
    found = plans(16, 4, tokens)
    best = min(map(seconds, found))
    return max(min(map(seconds, of(found, r=r))) for r in (0, 1)) / best


def layer_gain(ranks: int, tokens: int) -> float:
    found = plans(ranks, 2 * ranks, tokens)
    return seconds(of(found, all_to_all="linear", overlap=1, r=1)[0]) / min(map(seconds, found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    gains = {
        "2DH against linear, 2048 ranks": (20.7, [two_level_gain(t) for t in TOKENS]),
        "pipelining": (2.0, [pipelining_gain(ranks, t) for ranks in (16, 64) for t in TOKENS]),
        "parallelism": (1.74, [parallelism_gain(t) for t in TOKENS]),
        "layer, 16 ranks": (4.96, [layer_gain(16, t) for t in TOKENS]),
        "layer, 2048 ranks": (5.75, [layer_gain(2048, t) for t in TOKENS]),
    }
    rows = [
        {"gain": name, "published": published, "simulated": round(max(found), 2), "smallest": round(min(found), 2)}
        for name, (published, found) in gains.items()
    ]
    for row in rows:
        print(json.dumps(row))
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
