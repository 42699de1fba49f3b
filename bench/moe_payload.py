"""Training with tokens sent to their experts as codes: bytes on the wire and the loss after 500 steps.

usage: ./dev bench moe_payload [--out runs/moe_payload] [--ranks N] [--steps N] [--seeds N] [--set KEY=VALUE]
                               [--result FILE]

Trains configs/moe_tiny.toml in BF16 with its experts spread over the ranks, 2048 tokens per step. At its learning
rate runs without relevant differences end close to each other (docs/design/mx.md). The runs of a seed differ in the
format of rows on the way to the experts: unchanged, mxfp8, fp8, fp32. Everything else is sent unchanged. So the runs'
bytes differ in dispatched rows, and in the few tokens that another run routes elsewhere. FP32 sends twice BF16's bytes
of dispatched rows, which tells these bytes from the rest. For exact counts see tests/moe/parallel_test.cpp.

Claims for mxfp8 and fp8: the final validation loss is within 0.5 % of BF16's. The dispatched bytes are at most 0.52 of
BF16's. Exit code 1 when one does not hold. Existing runs are kept.
"""

import argparse
import json
import pathlib
import sys

from runs import ROOT, final_loss, read_lines, read_machine, train_once, write_file_list

CONFIG = ROOT / "configs/moe_tiny.toml"
ARMS = {"bf16": "unchanged", "fp32": "fp32", "mxfp8": "mxfp8", "fp8": "fp8"}
CODES = ["mxfp8", "fp8"]


def train(options, arm: str, seed: int) -> dict:
    folder = options.out / f"{arm}-{seed}"
    settings = [f"run.seed={seed}", f"train.steps={options.steps}", "precision.recipe=bf16", "optimizer.lr=1e-3"]
    settings += ["train.batch=16", "schedule.warmup_steps=75", "log.experts_every=50", "eval.every_steps=0"]
    settings += ["eval.max_tokens=200000"]  # the default: nothing is evaluated before the end
    settings += [f"parallel.expert={options.ranks}", f"parallel.dispatch={ARMS[arm]}"]
    train_once(CONFIG, folder, [*settings, *options.set], ranks=options.ranks)
    return {
        "loss": final_loss(folder),
        "bytes": [line["all_to_all"]["bytes_sent"] for line in read_lines(folder, "experts.jsonl")],
        "machine": read_machine(folder)["machine"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "runs/moe_payload")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--result", type=pathlib.Path, help="write the figures here (JSON)")
    options = parser.parse_args()
    options.out = options.out.resolve()
    write_file_list()

    rows, holds = [], True
    for seed in range(1, options.seeds + 1):
        runs = {arm: train(options, arm, seed) for arm in ARMS}
        sent = {arm: sum(runs[arm]["bytes"]) / len(runs[arm]["bytes"]) for arm in ARMS}
        dispatched = sent["fp32"] - sent["bf16"]
        row = {"seed": seed, "bytes": sent, "loss": {arm: runs[arm]["loss"] for arm in ARMS}}
        for arm in CODES:
            difference = runs[arm]["loss"] / runs["bf16"]["loss"] - 1
            ratio = 1 - (sent["bf16"] - sent[arm]) / dispatched
            holds &= abs(difference) <= 0.005 and ratio <= 0.52
            print(
                f"seed {seed}: loss {runs['bf16']['loss']:.4f}, {arm} {runs[arm]['loss']:.4f}, {100 * difference:+.2f} %"
            )
            print(f"  all-to-all bytes of a step and rank: {sent['bf16']:.0f}, {sent[arm]:.0f}; dispatch {ratio:.3f}")
            row[arm] = {"difference": difference, "dispatch_ratio": ratio}
        rows.append(row)
    print("claims hold" if holds else "a claim does NOT hold")
    if options.result:
        result = {"steps": options.steps, "ranks": options.ranks, "rows": rows, "holds": holds}
        options.result.write_text(json.dumps({**result, "machine": runs["bf16"]["machine"]}, indent=2) + "\n")
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
