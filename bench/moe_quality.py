"""Time to loss of a mixture of experts against the dense model of equal FLOPs, on paired seeds.

usage: ./dev bench moe_quality [--regime NAME] [--seeds N] [--jobs N] [--minutes M] [--results FOLDER] [--out FOLDER]
                               [--result-only]

A unit is one arm on one seed: configs/moe_study.toml, with the settings of the regime. The dense arm has no
[model.moe], and its feed-forward is as wide as a token's experts together. A unit takes at most an hour on one core.
A finished unit is one line of RESULTS/REGIME.jsonl; a later call continues with the units that are missing. After M
minutes no further unit starts.

The bench takes the loss of each validation of the dense arm. It gives the tokens at which the mixture has this loss,
interpolated between its validations. Seconds are tokens times the median step of each arm in the same pair. Pairs have
the same seed and the same kind of CPU.

Claim, of the pairs' mean: the mixture takes fewer seconds to the dense arm's final loss. Exit code 1 if it does not
hold, or if a regime has no pair.
"""

import argparse
import math
import pathlib
import statistics
import sys

from runs import ROOT, dense_config
from units import Results, Unit, run_units

CONFIG = ROOT / "configs/moe_study.toml"
RESULTS = ROOT / "bench/results/moe_quality"
ARMS = ["dense", "moe"]

# Regime: settings in addition to the config. Active parameters without embeddings: 1, 11, 25 and 50 million.
REGIMES = {
    "1m": ["model.layers=4", "model.width=144", "model.heads=3", "model.context=128", "train.batch=128"],
    "10m": [],
    "25m": ["model.layers=8", "model.width=512", "model.heads=8", "train.steps=150"],
    "50m": ["model.layers=10", "model.width=640", "model.heads=10", "train.steps=100"],
}


def ffn_settings(settings: list[str], arm: str) -> list[str]:
    """Widths of the feed-forwards: four times the model's in the dense arm, half of that in an expert."""
    (width,) = [int(s.split("=")[1]) for s in settings if s.startswith("model.width=")] or [384]
    return [f"model.ffn_width={4 * width}", *([f"model.moe.ffn_width={2 * width}"] if arm == "moe" else [])]


def unit_of(out: pathlib.Path, regime: str, arm: str, seed: int) -> Unit:
    settings = [f"run.seed={seed}", "precision.recipe=fp32", *REGIMES[regime], *ffn_settings(REGIMES[regime], arm)]
    config = CONFIG if arm == "moe" else dense_config(CONFIG, out)
    return Unit(config, arm, seed, tuple(settings))


def tokens_to(loss: float, validation: list[list[float]]) -> float | None:
    """Tokens at which a curve first reaches `loss`, interpolated linearly; None if it stays above."""
    before = None
    for tokens, found in validation:
        if found <= loss:
            if before is None or before[1] == found:
                return tokens
            part = (before[1] - loss) / (before[1] - found)
            return before[0] + part * (tokens - before[0])
        before = (tokens, found)
    return None


def pairs(units: list[dict]) -> list[tuple[dict, dict]]:
    """Dense and mixture with the same seed on the same kind of CPU."""
    key = {(u["arm"], u["seed"], u["cpu"], u["simd"]): u for u in units}
    return [
        (u, key["moe", *rest]) for (arm, *rest), u in sorted(key.items()) if arm == "dense" and ("moe", *rest) in key
    ]


def compare(dense: dict, moe: dict) -> list[dict]:
    """For each validation of the dense arm, the mixture's tokens and seconds to the same loss, over the dense arm's."""
    cost = (moe["step_ms"] / dense["step_ms"]) if dense["step_ms"] else math.nan
    rows = []
    for tokens, loss in dense["validation"]:
        reached = tokens_to(loss, moe["validation"])
        if tokens > 0 and reached is not None:
            rows.append({"loss": loss, "tokens": reached / tokens, "seconds": reached / tokens * cost})
    return rows


def report(regime: str, units: list[dict]) -> bool:
    found = pairs(units)
    if not found:
        print(f"{regime}: no pair of a dense model and a mixture")
        return False
    ends = []
    for dense, moe in found:
        print(
            f"{regime}, seed {dense['seed']}, {dense['cpu']} ({dense['simd']}): "
            f"{dense['parameters'] / 1e6:.1f} M dense, {moe['parameters'] / 1e6:.1f} M in the mixture; of dense: "
            f"FLOPs per token {moe['flops_per_token'] / dense['flops_per_token']:.3f}, "
            f"step {moe['step_ms'] / dense['step_ms']:.3f}"
        )
        rows = compare(dense, moe)
        for row in rows[:: max(1, len(rows) // 5)]:
            print(f"  loss {row['loss']:.3f}: {row['tokens']:.2f} of the tokens, {row['seconds']:.2f} of the seconds")
        final = dense["validation"][-1][1]
        last = [row for row in rows if row["loss"] == final]
        ends.append(last[-1]["seconds"] if last else math.inf)
        print(f"  final loss: {final:.4f} dense, {moe['validation'][-1][1]:.4f} mixture")
    mean = statistics.fmean(ends)
    holds = mean < 1
    print(
        f"{regime}: seconds to the dense model's final loss: {mean:.2f} of its own "
        f"({len(ends)} pairs, {min(ends):.2f} to {max(ends):.2f}): {'holds' if holds else 'does NOT hold'}"
    )
    return holds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--regime", choices=list(REGIMES), default="10m")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="units at a time; they share the cores")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no unit after this time")
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS, help="folder of the finished units")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "runs/moe_quality", help="folder of the runs")
    parser.add_argument("--result-only", action="store_true", help="run nothing; report the finished units")
    options = parser.parse_args()
    out, results = options.out.resolve(), Results(options.results.resolve(), options.regime)
    if not options.result_only:
        plan = [unit_of(out, options.regime, arm, seed) for seed in range(1, options.seeds + 1) for arm in ARMS]
        run_units(plan, results, out / options.regime, options.jobs, options.minutes)
    sys.exit(0 if report(options.regime, results.units) else 1)


if __name__ == "__main__":
    main()
