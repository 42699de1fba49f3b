"""Benefit of each technique of PICASSO (arXiv 2204.04903) in training a recommender, on one rank and on two.

usage: ./dev bench picasso [--rounds N] [--steps N] [--features N] [--rows N] [--ranks 1,2] [--link RATE] [--cap MiB]
       [--only PART] [--result FILE] [--plot FILE]

Trains DLRM on generated rows: 4 numbers and `--features` features (26) of one id each. Ids come from a Zipf
distribution (1.1) over the permuted rows of tables of `--rows` rows of 16. Batches have 4096 samples over all ranks.
Runs of `dovetail train` take turns within a round; their configs differ only in the techniques:

- none: every table a pack of its own, one micro-batch, one group
- P: packing (embedding.packing)
- P+D: micro-batches of a quarter (train.micro_batch)
- P+K: four groups of packs (embedding.groups)
- P+D+K: all
- auto: P, with micro-batches and groups chosen by the engine's own measurement before the first step
- tiers: P with rows and state in an eighth of their memory, the others in files. Policies: none kept (16 rows of each
  table), hot, lru, lfu. Next to them is the ideal: the share of the accesses that hot counted in equally many most
  frequent rows

A round gives the median step of a run. The gain of a technique in a round is the step of its base over its own step.
The base of D and K is P, the base of all others is none. A gain counts if all rounds but a tenth agree that it is
above 1, or below 1. Otherwise it is within the spread, and the technique gains nothing that can be seen.

With `--link` (as tc writes it, 200mbit) two more ranks run in two network namespaces. A link of this bandwidth
connects them. Namespaces need root.

The engine's trace of one step on rank 0 gives the operators of a step and three shares of its time. In these, rows
are moved (memory), messages are in flight (communication) and the dense part computes.

The largest batch is found by bisection, to 512 samples. It must train three steps in a memory control group of
`--cap` MiB (needs root). Three variants: all samples at once, the dense part in grains of 256, and in addition
lookups in micro-batches of 1024. All runs must end with the same loss: to 1e-5 on two ranks, the same digits on one.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys

import numpy as np
import pyarrow as pa
from link import Link
from memory_group import MemoryGroup
from pyarrow import parquet

from runs import DOVETAIL, ROOT, read_lines, read_machine

BATCH, DENSE, DIM = 4096, 4, 16
GRANULE = 512  # samples to which the largest batch is found
P, D, K = "embedding.packing=true", f"train.micro_batch={BATCH // 4}", "embedding.groups=4"
ARMS = {"none": ["embedding.packing=false"], "P": [P], "P+D": [P, D], "P+K": [P, K], "P+D+K": [P, D, K]}
ARMS["auto"] = [P, "train.micro_batch=auto", "embedding.groups=auto"]
BASES = {"P+D": "P", "P+K": "P", "P+D+K": "P"}  # the others are compared with "none"
MEMORY = ("dovetail::embedding_pool", "dovetail::embedding_update", "dovetail::embedding_tiers_begin")
MEMORY += ("dovetail::embedding_tiers_end", "dovetail::embedding_stitch")
LANES = {"memory": MEMORY, "communication": ("gloo:",), "compute": ("forward", "backward")}


def write_rows(folder: pathlib.Path, features: int, rows: int, samples: int) -> pathlib.Path:
    draw = np.random.default_rng(1)
    shares = np.cumsum(np.arange(1, rows + 1) ** -1.1)
    columns = {"label": draw.integers(0, 2, samples)}
    columns |= {f"x{i}": draw.standard_normal(samples).astype(np.float32) for i in range(DENSE)}
    for i in range(features):
        ranks = np.searchsorted(shares, draw.random(samples) * shares[-1])
        columns[f"c{i}"] = draw.permutation(rows)[np.minimum(ranks, rows - 1)]
    folder.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table(columns), folder / "rows.parquet", row_group_size=1 << 16)
    sparse = "".join(f'  {{ columns = ["c{i}"], ids = "integer", num_rows = {rows} }},\n' for i in range(features))
    dense = ", ".join(f'"x{i}"' for i in range(DENSE))
    config = folder / "picasso.toml"
    config.write_text(
        f'[recommender]\nmodel = "dlrm"\ndim = {DIM}\nbottom = [64]\ndeep = [256, 128]\n\n'
        f'[rows]\nfiles = ["{folder}/rows.parquet"]\nlabel = "label"\nshuffle_window = "all"\n'
        f"dense = [{{ columns = [{dense}] }}]\nsparse = [\n{sparse}]\n\n"
        '[precision]\nrecipe = "fp32"\n\n'
        f'[train]\nbatch = {BATCH}\n\n[schedule]\nwarmup_steps = 0\ndecay = "constant"\n\n'
        "[checkpoint]\nevery_steps = 0\n\n[log]\ntensorboard = false\n"
    )
    return config


def words_of(config: pathlib.Path, folder: pathlib.Path, ranks: int, settings: list[str]) -> list[str]:
    threads = max(1, len(os.sched_getaffinity(0)) // ranks)
    words = ["train", str(config)]
    for setting in [f"run.folder={folder}", f"run.threads={threads}", *settings]:
        words += ["--set", setting]
    return words


def train(
    config: pathlib.Path, folder: pathlib.Path, ranks: int, settings: list[str], **process
) -> subprocess.CompletedProcess:
    shutil.rmtree(folder, ignore_errors=True)
    launch = [] if ranks == 1 else ["launch", "-n", str(ranks), "--max-restarts", "0"]
    command = [str(DOVETAIL), *launch, *words_of(config, folder, ranks, settings)]
    environment = {**os.environ, "DOVETAIL_PYTHON": sys.executable}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, **process)


def train_over(
    link: Link, config: pathlib.Path, folder: pathlib.Path, settings: list[str]
) -> subprocess.CompletedProcess:
    """Trains on two ranks, one at each end of the link. Returns what rank 0 did."""
    shutil.rmtree(folder, ignore_errors=True)
    ranks = []
    for rank in range(2):
        command = link.command(rank, [str(DOVETAIL), *words_of(config, folder, 2, settings)])
        output = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        ranks.append(subprocess.Popen(command, cwd=ROOT, env=link.environment(rank), **output))
    ended = [subprocess.CompletedProcess(p.args, p.wait(), stderr=p.stderr.read()) for p in ranks]
    return max(ended, key=lambda done: done.returncode != 0)


def checked(done: subprocess.CompletedProcess) -> None:
    if done.returncode != 0:
        sys.exit(f"bench/picasso: {' '.join(done.args)} ended with code {done.returncode}\n{done.stderr}")


def covered_us(spans: list[tuple[float, float]]) -> float:
    """Microseconds in which at least one of the spans runs."""
    total, end = 0.0, -np.inf
    for begin, stop in sorted(spans):
        total += max(0.0, stop - max(begin, end))
        end = max(end, stop)
    return total


def read_trace(folder: pathlib.Path, step: int) -> dict:
    events = [e for e in json.loads((folder / f"trace-{step}.json").read_text())["traceEvents"] if e["ph"] == "X"]
    spans = {
        lane: [(e["ts"], e["ts"] + e["dur"]) for e in events if e["name"].startswith(names)]
        for lane, names in LANES.items()
    }
    whole = max(e["ts"] + e["dur"] for e in events) - min(e["ts"] for e in events)
    operators = sum(e["name"].startswith(("aten::", "dovetail::")) for e in events)
    return {"operators": operators, "lanes": {lane: covered_us(found) / whole for lane, found in spans.items()}}


class Bench:
    def __init__(self, options):
        self.options, self.out = options, options.out
        self.samples = 40 * BATCH
        self.config = write_rows(options.out, options.features, options.rows, self.samples)
        self.tables = options.features * options.rows * (DIM + 1) * 4

    def least_memory(self, ranks: int) -> int:
        """Returns the memory that tiers need with 16 rows of each table, as the engine reports it."""
        settings = ["train.steps=2", "embedding.memory_bytes=1", f"embedding.step_rows={BATCH}"]
        done = train(self.config, self.out / "least", ranks, settings)
        found = re.search(r"but at least (\d+) are needed", done.stderr)
        if not found:
            sys.exit(f"bench/picasso: no memory was named\n{done.stderr}")
        return int(found[1])

    def arms(self, ranks: int) -> dict[str, list[str]]:
        if ranks > 1:
            return ARMS
        eighth = self.tables // 8
        tiers = {"none kept": [f"embedding.memory_bytes={self.least_memory(ranks)}"]}
        for policy in ["hot", "lru", "lfu"]:
            tiers[policy] = [f"embedding.memory_bytes={eighth}", f"embedding.policy={policy}"]
        tiers["hot"] += ["embedding.warmup_steps=20"]
        return ARMS | {name: [P, f"embedding.step_rows={BATCH}", *settings] for name, settings in tiers.items()}

    def measure(self, ranks: int, link: Link | None = None) -> dict[str, dict]:
        steps, arms = self.options.steps, self.arms(ranks)
        found = {name: {"step_ms": np.inf} for name in arms}
        rounds: dict[str, list[float]] = {name: [] for name in arms}
        for index in range(self.options.rounds):
            for name in list(arms)[:: 1 if index % 2 == 0 else -1]:
                folder = self.out / "run"
                settings = [f"train.steps={steps}", f"log.trace_steps=[{steps - 1}]", *arms[name]]
                done = (
                    train_over(link, self.config, folder, settings)
                    if link
                    else train(self.config, folder, ranks, settings)
                )
                checked(done)
                timings = read_lines(folder, "timings.jsonl")[steps // 2 : steps - 2]
                median = float(np.median([line["step_ms"] for line in timings]))
                rounds[name].append(median)
                if median >= found[name]["step_ms"]:
                    continue
                found[name] = {"step_ms": median, "samples_per_s": 1e3 * BATCH / median} | read_trace(folder, steps - 1)
                found[name]["chosen"] = json.loads((folder / "embedding_plan.json").read_text()).get("auto")
                found[name]["loss"] = read_lines(folder, "metrics.jsonl")[-1]["loss"]
                if "hit_rate" in timings[0]:
                    found[name]["hit_rate"] = float(np.mean([line["hit_rate"] for line in timings]))
                if name == "hot":
                    ideal = re.search(r"([\d.]+) % if the most frequent rows", done.stderr)
                    found[name]["ideal_hit_rate"] = float(ideal[1]) / 100
        for name, arm in found.items():
            base = BASES.get(name, "none")
            gains = [a / b for a, b in zip(rounds[base], rounds[name], strict=True)]
            arm |= {"step_ms_of_rounds": rounds[name], "base": base, "gain": gain_of(gains)}
        return found

    def fits(self, batch: int, settings: list[str]) -> bool:
        group = MemoryGroup(self.options.cap << 20)
        try:
            sizes = ["train.steps=3", f"train.batch={batch}"]
            done = train(self.config, self.out / "fits", 1, [*sizes, *settings], preexec_fn=group.join)
        finally:
            group.close()
        killed = done.returncode == -signal.SIGKILL
        if done.returncode != 0 and not killed:
            checked(done)
        return not killed

    def largest_batch(self, settings: list[str]) -> int:
        fits, too_large = 0, self.samples // GRANULE
        while too_large - fits > 1:
            middle = (fits + too_large) // 2
            if self.fits(middle * GRANULE, settings):
                fits = middle
            else:
                too_large = middle
        return fits * GRANULE

    def largest_batches(self) -> dict[str, int]:
        return {
            "at once": self.largest_batch(["recommender.grain=1000000"]),
            "grains": self.largest_batch([]),
            "grains, D": self.largest_batch(["train.micro_batch=1024"]),
        }


def gain_of(gains: list[float]) -> dict:
    """Median and spread of the gains of all rounds. Sign: 1 for a gain, -1 for a loss, 0 within the spread."""
    above, needed = sum(g > 1 for g in gains), len(gains) - len(gains) // 10
    sign = 1 if above >= needed else -1 if len(gains) - above >= needed else 0
    return {"median": statistics.median(gains), "least": min(gains), "most": max(gains), "sign": sign}


def words_of_gain(name: str, arm: dict) -> str:
    gain = arm["gain"]
    if name == arm["base"]:
        return ""
    verdict = {1: "", 0: ", within the spread", -1: ", a loss"}[gain["sign"]]
    return f"{gain['median']:.2f} of {arm['base']} ({gain['least']:.2f} to {gain['most']:.2f}{verdict})"


def report(ranks: str, found: dict[str, dict]) -> None:
    print(f"\n{ranks} ranks: ms a step, samples/s, gain, operators, busy share of the lanes")
    for name, arm in found.items():
        lanes = "  ".join(f"{lane} {share:4.0%}" for lane, share in arm["lanes"].items())
        hits = f"  hit rate {arm['hit_rate']:.4f}" if "hit_rate" in arm else ""
        hits += f" (ideal {arm['ideal_hit_rate']:.4f})" if "ideal_hit_rate" in arm else ""
        chosen = arm["chosen"] or {}
        hits += "".join(f"  {key} {chosen[key]}" for key in ("groups", "micro_batch") if chosen)
        print(
            f"  {name:10} {arm['step_ms']:7.1f}  {arm['samples_per_s']:8.0f}  {words_of_gain(name, arm):44} "
            f"{arm['operators']:6}  {lanes}{hits}"
        )


def same_results(found: dict[str, dict], tolerance: float) -> bool:
    losses = [arm["loss"] for arm in found.values()]
    return max(losses) - min(losses) <= tolerance * abs(losses[0])


def picture(results: dict[str, dict[str, dict]], batches: dict[str, int]) -> str:
    rows, y = [], 20

    def bar(name: str, value: float, most: float, text: str) -> None:
        nonlocal y
        rows.append(f'<text x="92" y="{y + 10}" text-anchor="end">{name}</text>')
        rows.append(f'<rect x="98" y="{y}" width="{300 * value / most:.1f}" height="12"/>')
        rows.append(f'<text x="{102 + 300 * value / most:.1f}" y="{y + 10}">{text}</text>')
        y += 17

    for ranks, found in results.items():
        rows.append(f'<text x="10" y="{y + 10}" class="t">{ranks} ranks: samples/s, operators of a step</text>')
        y += 20
        most = max(arm["samples_per_s"] for arm in found.values())
        for name, arm in found.items():
            hits = f", hit rate {arm['hit_rate']:.2f}" if "hit_rate" in arm else ""
            bar(name, arm["samples_per_s"], most, f"{arm['samples_per_s']:.0f}, {arm['operators']}{hits}")
        y += 10
    if batches:
        rows.append(f'<text x="10" y="{y + 10}" class="t">largest batch that fits</text>')
        y += 20
    for name, batch in batches.items():
        bar(name, batch, max(batches.values()), str(batch))
    style = "text{font:11px sans-serif;fill:#444}.t{font-weight:bold}rect{fill:#4878a8}"
    body = "\n".join(rows)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="620" height="{y + 10}">'
    return f"{head}<style>{style}</style>\n{body}\n</svg>\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--features", type=int, default=26)
    parser.add_argument("--ranks", default="1,2", help="1, 2 or 1,2")
    parser.add_argument("--link", help="bandwidth of a link between two more ranks, as 200mbit")
    parser.add_argument("--rows", type=int, default=100_000, help="of a table")
    parser.add_argument("--cap", type=int, default=700, help="MiB of the memory control group")
    parser.add_argument("--only", choices=["techniques", "batches"], help="the other part stays as --result has it")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "runs/picasso")
    parser.add_argument("--result", type=pathlib.Path, help="write the figures here (JSON)")
    parser.add_argument("--plot", type=pathlib.Path, help="draw them here (SVG)")
    options = parser.parse_args()
    options.out = options.out.resolve()
    kept = options.only and options.result and options.result.exists()
    record = json.loads(options.result.read_text()) if kept else {}
    bench = Bench(options)
    if options.only != "batches":
        record["results"] = {ranks: bench.measure(int(ranks)) for ranks in options.ranks.split(",")}
        if options.link:
            with Link(options.link) as link:
                record["results"][f"2 over {options.link}"] = bench.measure(2, link)
        record |= {"features": options.features, "rows": options.rows}
        record["machine"] = read_machine(options.out / "run")["machine"]
    if options.only != "techniques":
        record |= {"largest_batch": bench.largest_batches(), "cap_mib": options.cap}
    results, batches = record.get("results", {}), record.get("largest_batch", {})
    for ranks, found in results.items():
        report(ranks, found)
    if batches:
        sizes = ", ".join(f"{batch} {name}" for name, batch in batches.items())
        print(f"\nlargest batch in {record['cap_mib']} MiB: {sizes}")
    holds = all(same_results(found, 0 if ranks == "1" else 1e-5) for ranks, found in results.items())
    print("all runs end with the same loss" if holds else "LOSSES DIFFER")
    if options.result:
        options.result.write_text(json.dumps(record | {"holds": holds}, indent=1) + "\n")
    if options.plot:
        options.plot.write_text(picture(results, batches))
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
