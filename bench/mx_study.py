"""Precision recipes compared on paired seeds: the same GPT, initial weights and data order under each recipe.

usage: ./dev bench mx_study [--regime NAME] [--arms NAME,...] [--seeds N] [--jobs N] [--minutes M] [--list]
                            [--results FOLDER] [--out FOLDER] [--page-only]

A unit is one arm on one seed: configs/mx/study.toml with the settings of the regime and the arm. It trains on the
quickstart's text and takes at most an hour on one core. Units run seed by seed, so an interrupted study has pairs.
A finished unit is one line of RESULTS/REGIME.jsonl; a later call continues with the units that are missing. After
M minutes no further unit starts.

The page, OUT/study.html, shows paired differences of perplexity in per cent, with 95 % intervals of Student's t.
Intervals are computed in log perplexity, the validation loss. Pairs have the same seed and the same kind of CPU.

- mxfp8 against bf16 at every validation. arXiv 2506.08027 reports 0.5 % along the whole run.
- Each arm against mxfp8 at the end. An arm separates when its interval excludes zero.
- Power: the smallest difference of perplexity that the seeds of mxfp8 detect with a probability of 0.8. It follows
  from the spread of mxfp8 minus bf16. A regime has power if that difference is at most 0.5 %.

Exit code 1 when a regime with eight pairs has no power, or when mxfp8's last interval does not lie inside 0.5 %.
"""

import argparse
import math
import pathlib
import sys

from mx_study_page import BOUND_PERCENT, page, percent
from scipy import stats
from units import Results, Unit, run_units

from runs import ROOT

CONFIG = ROOT / "configs/mx/study.toml"
RESULTS = ROOT / "bench/results/mx_study"

# Regime: settings in addition to the config.
REGIMES = {
    "tiny": [
        "model.layers=2",
        "model.width=96",
        "model.heads=3",
        "model.context=64",
        "train.steps=600",
        "schedule.warmup_steps=60",
        "eval.every_steps=60",
        "optimizer.lr=2e-3",
    ],
    "small": [],
    "high_rate": ["optimizer.lr=3e-3"],
    "long": ["train.steps=3000", "schedule.warmup_steps=300", "eval.every_steps=300", "optimizer.lr=2e-3"],
    "wide": ["model.width=384", "model.layers=6", "train.steps=1000", "eval.every_steps=100", "optimizer.lr=2e-3"],
}


def recipe(name: str) -> list[str]:
    return [f"precision.recipe={name}"]


# Arm: settings in addition to the regime's, in the order in which a study runs them.
ARMS = {
    **{name: recipe(name) for name in ("bf16", "mxfp8", "mxfp8_floor", "mxfp8_e5m2_grad", "mxfp8_e5m2_grad_floor")},
    "bf16_noise": [*recipe("bf16"), "train.init_noise=1e-3"],
    "mxfp8_square": [
        *recipe("mxfp8_square"),
        'precision.recipes=[{ name = "mxfp8_square", weight = { blocks = "32x32" } }]',
    ],
    **{
        name: recipe(name)
        for name in (
            "fp8_tensor",
            "fp8_tensor_delayed",
            "fp8_block",
            "fp8_block_float32",
            "mxfp8_e5m2_act",
            "mxfp8_e5m2_weight",
            "mxfp6_e2m3",
            "mxfp6_e3m2",
            "mxfp4",
            "mxfp4_stochastic",
        )
    },
}
FIRST_ARMS = ["bf16", "mxfp8", "mxfp8_floor"]

ENOUGH_PAIRS = 8


def unit_of(regime: str, arm: str, seed: int) -> Unit:
    return Unit(CONFIG, arm, seed, (f"run.seed={seed}", *REGIMES[regime], *ARMS[arm]))


def interval(values: list[float]) -> tuple[float, float | None]:
    """Mean and half width of the 95 % interval by Student's t; no half width for fewer than two values."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, None
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))
    return mean, float(stats.t.ppf(0.975, len(values) - 1)) * deviation / math.sqrt(len(values))


def detectable(differences: list[float]) -> float:
    """Mean difference that a two-sided paired t test at 5 % detects with probability 0.8, for this spread.

    The normal approximation of the power of a t test: (t_0.975 + t_0.8) s / sqrt(n).
    """
    n = len(differences)
    _, half = interval(differences)
    return half * (1 + float(stats.t.ppf(0.8, n - 1)) / float(stats.t.ppf(0.975, n - 1)))


def pairs(units: list[dict], arm: str, base: str) -> list[tuple[dict, dict]]:
    """Units of `arm` and `base` with the same seed on the same kind of CPU."""
    key = {(u["arm"], u["seed"], u["cpu"], u["simd"]): u for u in units}
    return [
        (u, key[base, seed, cpu, simd])
        for (name, seed, cpu, simd), u in sorted(key.items())
        if name == arm and (base, seed, cpu, simd) in key
    ]


def difference(units: list[dict], arm: str, base: str, point: int = -1) -> dict | None:
    """Paired difference of log perplexity at a validation, or None without a pair."""
    found = pairs(units, arm, base)
    if not found:
        return None
    values = [a["validation"][point][1] - b["validation"][point][1] for a, b in found]
    mean, half = interval(values)
    return {"arm": arm, "base": base, "tokens": found[0][0]["validation"][point][0], "pairs": len(values), "mean": mean,
            "half": half, "detectable": detectable(values) if half is not None else None}  # fmt: skip


def analyse(units: list[dict]) -> dict:
    """Differences of one regime: every arm's end against mxfp8, and mxfp8's curve against bf16."""
    points = min((len(u["validation"]) for u in units), default=0)
    ends = [difference(units, arm, "mxfp8") for arm in ARMS if arm != "mxfp8"]
    curve = [difference(units, "mxfp8", "bf16", point) for point in range(points)]
    return {"ends": [e for e in ends if e], "curve": [c for c in curve if c]}


def words(row: dict) -> str:
    if row["half"] is None:
        return f"{percent(row['mean']):+.2f} % on one seed"
    low, high = percent(row["mean"] - row["half"]), percent(row["mean"] + row["half"])
    return f"{low:+.2f} to {high:+.2f} % over {row['pairs']} pairs"


def verdicts(regime: str, found: dict) -> tuple[list[str], bool]:
    """Sentences that the intervals allow, and False if the study misses its bound or its power."""
    lines, holds = [], True
    end = found["curve"][-1] if found["curve"] else None
    if end and end["half"] is not None:
        low, high = (percent(end["mean"] + sign * end["half"]) for sign in (-1, 1))
        inside = low > -BOUND_PERCENT and high < BOUND_PERCENT
        along = max(abs(percent(point["mean"])) for point in found["curve"])
        lines.append(
            f"{regime}: perplexity of mxfp8 against bf16 at the end: {words(end)}, "
            f"{'inside' if inside else 'NOT inside'} {BOUND_PERCENT:.1f} %; largest mean along the curve {along:.2f} %"
        )
        power = percent(end["detectable"])
        has_power = power <= BOUND_PERCENT
        lines.append(
            f"{regime}: {'has power' if has_power else 'NO POWER'}: the spread of mxfp8 over {end['pairs']} pairs "
            f"detects {power:.2f} % of perplexity"
        )
        if end["pairs"] >= ENOUGH_PAIRS:
            holds = inside and has_power
    for row in found["ends"]:
        if row["half"] is None:
            continue
        separates = abs(row["mean"]) > row["half"]
        what = ("above" if row["mean"] > 0 else "below") if separates else "not distinguished from"
        lines.append(f"{regime}: {row['arm']} is {what} mxfp8: {words(row)}")
    return lines, holds


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--regime", choices=list(REGIMES), default="small")
    parser.add_argument("--arms", type=lambda text: text.split(","), default=FIRST_ARMS)
    parser.add_argument("--seeds", type=int, default=ENOUGH_PAIRS)
    parser.add_argument("--jobs", type=int, default=1, help="units at a time; they share the cores")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no unit after this time")
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS, help="folder of the finished units")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "runs/mx_study", help="folder of runs and page")
    parser.add_argument("--page-only", action="store_true", help="run nothing; write the page from the results")
    parser.add_argument("--list", action="store_true", help="list regimes and arms with their settings")
    options = parser.parse_args()
    unknown = [arm for arm in options.arms if arm not in ARMS]
    if unknown:
        sys.exit(f"error: no arm is called {unknown[0]}\nhelp: there are {', '.join(ARMS)}")
    options.out, options.results = options.out.resolve(), options.results.resolve()
    return options


def main() -> None:
    options = parse()
    if options.list:
        for title, table in (("regimes", REGIMES), ("arms", ARMS)):
            print(f"{title}:")
            for name, settings in table.items():
                print(f"  {name:22} {' '.join(settings)}")
        return
    if not options.page_only:
        plan = [unit_of(options.regime, arm, seed) for seed in range(1, options.seeds + 1) for arm in options.arms]
        results = Results(options.results, options.regime)
        run_units(plan, results, options.out / options.regime, options.jobs, options.minutes)
    by_regime = {name: Results(options.results, name).units for name in REGIMES}
    by_regime = {name: units for name, units in by_regime.items() if units}
    if not by_regime:
        sys.exit(f"error: {options.results} has no finished unit\nhelp: run without --page-only")
    found = {name: analyse(units) for name, units in by_regime.items()}
    sentences, holds = [], True
    for name in found:
        lines, good = verdicts(name, found[name])
        sentences += lines
        holds &= good
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "study.html").write_text(page(found, sentences, by_regime))
    print("\n".join(sentences))
    print(f"page: {options.out / 'study.html'}")
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
