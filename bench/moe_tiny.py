"""configs/moe_tiny.toml against the dense model of as many active parameters, on paired seeds.

usage: ./dev bench moe_tiny [--out runs/moe_tiny] [--seeds N] [--jobs N] [--set KEY=VALUE] [--result FILE]

Both train on the same text in the same order for the same steps from the same seeds. The dense model is the config
without [model.moe]; its feed-forward is as wide as a token's experts together. Claim: the mean of the paired
differences of the final validation loss is more than two standard errors below zero. Exit code 1 when it does not
hold. Existing runs are kept, so an interrupted study resumes.
"""

import argparse
import concurrent.futures
import json
import math
import pathlib
import sys

from runs import ROOT, dense_config, final_loss, read_machine, train_once, write_file_list

CONFIG = ROOT / "configs/moe_tiny.toml"
ARMS = ["dense", "moe"]


def train(options, arm: str, seed: int) -> dict:
    """The run's final validation loss and its sizes."""
    folder = options.out / f"{arm}-{seed}"
    config = CONFIG if arm == "moe" else options.out / "dense.toml"
    train_once(config, folder, [f"run.seed={seed}", *options.set], options.jobs)
    return {"loss": final_loss(folder), "machine": read_machine(folder)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "runs/moe_tiny")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time; they share the cores")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--result", type=pathlib.Path, help="write the figures here (JSON)")
    options = parser.parse_args()
    options.out = options.out.resolve()
    write_file_list()
    dense_config(CONFIG, options.out)

    plan = [(arm, seed) for seed in range(1, options.seeds + 1) for arm in ARMS]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        runs = dict(zip(plan, pool.map(lambda run: train(options, *run), plan), strict=True))
    differences = []
    for seed in range(1, options.seeds + 1):
        dense, moe = runs["dense", seed]["loss"], runs["moe", seed]["loss"]
        differences.append(moe - dense)
        print(f"seed {seed}: dense {dense:.4f}, moe {moe:.4f}, {100 * (moe / dense - 1):+.2f} %")
    mean = sum(differences) / len(differences)
    deviation = math.sqrt(sum((d - mean) ** 2 for d in differences) / max(1, len(differences) - 1))
    error = deviation / math.sqrt(len(differences))
    holds = len(differences) > 1 and mean < -2 * error
    print(f"moe - dense: {mean:+.4f}, standard error {error:.4f}: {'holds' if holds else 'does NOT hold'}")
    if options.result:
        machine = runs["moe", 1]["machine"]
        options.result.write_text(
            json.dumps(
                {
                    "differences": differences,
                    "losses": {arm: [runs[arm, s]["loss"] for s in range(1, options.seeds + 1)] for arm in ARMS},
                    "mean": mean,
                    "standard_error": error,
                    "flops_per_token": {arm: runs[arm, 1]["machine"]["flops_per_token"] for arm in ARMS},
                    "parameters": {arm: runs[arm, 1]["machine"]["parameters"] for arm in ARMS},
                    "settings": options.set,
                    "machine": machine["machine"],
                    "holds": holds,
                },
                indent=2,
            )
            + "\n"
        )
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
