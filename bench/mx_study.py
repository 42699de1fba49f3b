"""Precision recipes compared with BF16: the same GPT, seeds and data order under each, one page of results.

usage: ./dev bench mx_study [--out runs/mx_study] [--seeds N] [--arms NAME,...] [--jobs N] [--set KEY=VALUE] [--list]

Trains configs/mx/study.toml in every arm, on the quickstart's text, which is prepared first. Three arms run on five
seeds each. These are bf16, mxfp8, and bf16 with initial weights moved by 1e-3 of their deviation. The last one is the
noise that no recipe can be distinguished from. Every other arm runs on one seed. Existing runs are kept, so an
interrupted study resumes.

The page, OUT/study.html, shows losses and paired differences (arm - bf16) / bf16 of the final validation loss.
Differences have 95 % intervals (Student's t). The paper's figures are next to them. Exit code 1 when mxfp8's interval
does not lie inside 0.5 %. Exit code 1, too, when no control separates from bf16 by three of its intervals: then the
study has no power.
"""

import argparse
import concurrent.futures
import html
import json
import math
import pathlib
import sys

from runs import ROOT, read_lines, read_machine, train_once, write_file_list

CONFIG = ROOT / "configs/mx/study.toml"

SQUARE = '{ name = "mxfp8_square", weight = { blocks = "32x32" } }'

# Arm: settings in addition to the config, and whether it runs on every seed.
ARMS = {
    "bf16": (["precision.recipe=bf16"], True),
    "bf16_noise": (["precision.recipe=bf16", "train.init_noise=1e-3"], True),
    "mxfp8": (["precision.recipe=mxfp8"], True),
    "mxfp8_square": (["precision.recipe=mxfp8_square", f"precision.recipes=[{SQUARE}]"], False),
    "mxfp8_floor": (["precision.recipe=mxfp8_floor"], False),
    "mxfp8_e5m2_grad": (["precision.recipe=mxfp8_e5m2_grad"], False),
    "mxfp8_e5m2_grad_floor": (["precision.recipe=mxfp8_e5m2_grad_floor"], False),
    "mxfp8_e5m2_act": (["precision.recipe=mxfp8_e5m2_act"], False),
    "mxfp8_e5m2_weight": (["precision.recipe=mxfp8_e5m2_weight"], False),
    "mxfp6_e2m3": (["precision.recipe=mxfp6_e2m3"], False),
    "mxfp6_e3m2": (["precision.recipe=mxfp6_e3m2"], False),
    "mxfp4": (["precision.recipe=mxfp4"], False),
    "mxfp4_stochastic": (["precision.recipe=mxfp4_stochastic"], False),
    "fp8_tensor": (["precision.recipe=fp8_tensor"], False),
    "fp8_tensor_delayed": (["precision.recipe=fp8_tensor_delayed"], False),
    "fp8_block": (["precision.recipe=fp8_block"], False),
    "fp8_block_float32": (["precision.recipe=fp8_block_float32"], False),
}
CONTROLS = ["mxfp8_e5m2_weight", "mxfp4"]
BOUND = 0.005

# Results of arXiv 2506.08027, at sizes that are not reached here.
PAPER = [
    ("E4M3 for all tensors, scales rounded up", "training matches BF16's (up to 8 B parameters and 15 T tokens)"),
    ("scales rounded down, as OCP v1.0 suggests", "training can diverge"),
]

# Two-sided 95 % quantiles of Student's t by degrees of freedom.
T_QUANTILES = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262]


def run_folder(options, arm: str, seed: int) -> pathlib.Path:
    return options.out / f"{arm}-{seed}"


def train(options, arm: str, seed: int) -> None:
    settings = [f"run.seed={seed}", *ARMS[arm][0], *options.set]
    train_once(CONFIG, run_folder(options, arm, seed), settings, options.jobs)


def read_run(folder: pathlib.Path) -> dict:
    lines = read_lines(folder, "metrics.jsonl")
    curve = [(line["tokens"], line["validation_loss"]) for line in lines if "validation_loss" in line]
    rates = sorted(line["tokens_per_s"] for line in read_lines(folder, "timings.jsonl"))
    return {
        "loss": [(line["tokens"], line["loss"]) for line in lines],
        "validation": curve,
        "final": curve[-1][1],
        "tokens_per_s": rates[len(rates) // 2],
    }


def interval(values: list[float]) -> tuple[float, float | None]:
    """Mean and half width of the 95 % interval; none for one value."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, None
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))
    return mean, T_QUANTILES[min(len(values) - 2, len(T_QUANTILES) - 1)] * deviation / math.sqrt(len(values))


def compare(runs: dict) -> list[dict]:
    rows = []
    for arm in ARMS:
        seeds = sorted(seed for name, seed in runs if name == arm and ("bf16", seed) in runs)
        if not seeds:
            continue
        differences = [runs[arm, s]["final"] / runs["bf16", s]["final"] - 1 for s in seeds]
        mean, half = interval(differences)
        rows.append(
            {
                "arm": arm,
                "seeds": len(seeds),
                "final": sum(runs[arm, s]["final"] for s in seeds) / len(seeds),
                "difference": mean,
                "half_width": half,
                "tokens_per_s": sum(runs[arm, s]["tokens_per_s"] for s in seeds) / len(seeds),
            }
        )
    return rows


def verdicts(rows: list[dict]) -> tuple[list[str], bool]:
    by_arm = {row["arm"]: row for row in rows}
    lines, holds = [], True
    mxfp8, noise = by_arm.get("mxfp8"), by_arm.get("bf16_noise")
    if mxfp8 and mxfp8["half_width"] is not None:
        low, high = mxfp8["difference"] - mxfp8["half_width"], mxfp8["difference"] + mxfp8["half_width"]
        inside = low > -BOUND and high < BOUND
        holds &= inside
        lines.append(
            f"mxfp8 against bf16: {100 * low:+.2f} % to {100 * high:+.2f} % over {mxfp8['seeds']} seeds: "
            f"{'inside' if inside else 'NOT inside'} {100 * BOUND:.1f} %"
        )
    if noise and noise["half_width"] is not None:
        lines.append(f"noise floor: bf16 perturbed by 1e-3 against bf16, +-{100 * noise['half_width']:.2f} %")
        separated = [arm for arm in CONTROLS if arm in by_arm and by_arm[arm]["difference"] > 3 * noise["half_width"]]
        if any(arm in by_arm for arm in CONTROLS):
            holds &= bool(separated)
            lines.append(
                f"power: {', '.join(separated)} separate{'s' if len(separated) == 1 else ''} from bf16 by three "
                "intervals of the noise"
                if separated
                else "no power at this size: no control separates from bf16 by three intervals of the noise"
            )
    return lines, holds


def mean_point(points: list) -> tuple[float, float]:
    """The last abscissa and the mean of the ordinates."""
    return points[-1][0], sum(value for _, value in points) / len(points)


def chart(runs: dict, what: str, title: str) -> str:
    """Curves of the first seed of each arm as an SVG."""
    first = {}
    for (arm, seed), run in sorted(runs.items()):
        first.setdefault(arm, (seed, run))
    width, height, left, bottom = 720, 300, 50, 30
    curves = {arm: run[what] for arm, (_, run) in first.items()}
    if what == "loss":  # means of 25 steps: single steps hide the difference
        curves = {arm: [mean_point(c[i : i + 25]) for i in range(0, len(c), 25)] for arm, c in curves.items()}
    points = [p for curve in curves.values() for p in curve[1:] or curve]
    x_most, low, high = max(p[0] for p in points), min(p[1] for p in points), max(p[1] for p in points)
    span = (high - low) or 1.0

    def place(p):
        x = left + (width - left - 10) * p[0] / x_most
        return f"{x:.1f},{10 + (height - bottom - 10) * (high - min(p[1], high)) / span:.1f}"

    svg = [f'<h3>{title}</h3><svg viewBox="0 0 {width} {height}" role="img" aria-label="{title}">']
    for i in range(5):
        value = low + span * i / 4
        y = 10 + (height - bottom - 10) * (high - value) / span
        svg.append(f'<line x1="{left}" x2="{width - 10}" y1="{y:.1f}" y2="{y:.1f}"/>')
        svg.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.2f}</text>')
    svg.append(f'<text x="{width - 10}" y="{height - 8}" text-anchor="end">{x_most / 1e6:.1f} M tokens</text>')
    for i, (arm, curve) in enumerate(curves.items()):
        colour = f"hsl({i * 360 // len(curves)} 65% 45%)"
        dash = ' stroke-dasharray="5 3"' if "floor" in arm else ""
        line = " ".join(map(place, curve))
        svg.append(f'<polyline points="{line}" style="stroke:{colour}"{dash}><title>{arm}</title></polyline>')
    svg.append("</svg><p class=legend>")
    for i, arm in enumerate(curves):
        svg.append(f'<span style="color:hsl({i * 360 // len(curves)} 65% 45%)">&#9632; {arm}</span>')
    return "\n".join(svg) + "</p>"


STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; } td, th { padding: .25rem .8rem; text-align: right; border-bottom: 1px solid #ddd; }
td:first-child, th:first-child { text-align: left; } polyline { fill: none; stroke-width: 1.6; }
svg line { stroke: #e4e4e4; } svg text { font-size: 11px; fill: #666; } .legend span { margin-right: 1rem; }
"""


def page(rows: list[dict], lines: list[str], runs: dict, machine: dict) -> str:
    cells = []
    for row in rows:
        half = "" if row["half_width"] is None else f" &plusmn; {100 * row['half_width']:.2f}"
        difference = "" if row["arm"] == "bf16" else f"{100 * row['difference']:+.2f}{half} %"
        cells.append(
            f"<tr><td>{row['arm']}</td><td>{row['seeds']}</td><td>{row['final']:.4f}</td><td>{difference}</td>"
            f"<td>{row['tokens_per_s']:.0f}</td></tr>"
        )
    paper = "".join(f"<tr><td>{html.escape(a)}</td><td>{html.escape(b)}</td></tr>" for a, b in PAPER)
    where = f"{machine['machine']['cpu']}, {machine['machine']['simd']}, {machine['threads']} threads"
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Precision recipes</title><style>{STYLE}</style>"
        f"<h1>Precision recipes</h1><p>{'<br>'.join(map(html.escape, lines))}</p><p>{html.escape(where)}; "
        f"{machine['parameters']:,} parameters, {max(r['loss'][-1][0] for r in runs.values()):,} tokens.</p>"
        "<table><tr><th>arm</th><th>seeds</th><th>validation loss</th><th>(arm - bf16) / bf16</th>"
        f"<th>tokens/s</th></tr>{''.join(cells)}</table>"
        f"{chart(runs, 'validation', 'Validation loss, first seed')}"
        f"{chart(runs, 'loss', 'Training loss, first seed, means of 25 steps')}"
        f"<h2>The paper's figures (arXiv 2506.08027)</h2><table>{paper}</table>"
        "<p>What the paper shows only at 2 B parameters and more cannot be reproduced at this size.</p></html>"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "runs/mx_study")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--arms", type=lambda text: text.split(","), default=list(ARMS))
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time; they share the cores")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--list", action="store_true", help="the arms and their settings")
    options = parser.parse_args()
    if options.list:
        for arm, (settings, every_seed) in ARMS.items():
            print(f"{arm:24} {'every seed' if every_seed else 'one seed':10}  {' '.join(settings)}")
        return
    unknown = [arm for arm in options.arms if arm not in ARMS]
    if unknown:
        sys.exit(f"error: no arm is called {unknown[0]}\nhelp: there are {', '.join(ARMS)}")
    options.out = options.out.resolve()
    write_file_list()

    # Seed by seed, so that an interrupted study has pairs.
    plan = [(arm, seed) for seed in range(1, options.seeds + 1) for arm in options.arms if ARMS[arm][1] or seed == 1]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda run: train(options, *run), plan))
    runs = {(arm, seed): read_run(run_folder(options, arm, seed)) for arm, seed in plan}
    rows = compare(runs)
    lines, holds = verdicts(rows)
    machine = read_machine(run_folder(options, *plan[0]))
    (options.out / "study.html").write_text(page(rows, lines, runs, machine))
    (options.out / "study.json").write_text(json.dumps({"rows": rows, "verdicts": lines, "machine": machine}, indent=2))
    for row in rows:
        half = "" if row["half_width"] is None else f" +- {100 * row['half_width']:.2f}"
        print(f"{row['arm']:24} {row['seeds']} seeds  {row['final']:.4f}  {100 * row['difference']:+.2f}{half} %")
    print("\n".join(lines))
    print(f"page: {options.out / 'study.html'}")
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
