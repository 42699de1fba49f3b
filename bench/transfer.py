"""Bytes and time of a step on two ranks, for each `embedding.transfer`, by length of sequences and skew of ids.

usage: ./dev bench transfer [--rounds N] [--steps N] [--samples N] [--result FILE]

Trains DIN on generated rows: a user, a candidate, and a history of earlier items of the candidate's table. A history
has 20 events on average (geometric, at least 1). `max_length` cuts it, to 20, 50 or 200 places. Ids come from a Zipf
distribution over the permuted rows of tables of 100,000 rows of 16, with exponent 0.8, 1.05 or 1.3. Batches have 1024
samples over both ranks.

Runs of `dovetail train` with `bags` and with `rows` take turns within a round. The best round's median step counts.
Bytes are the mean of `table_bytes` over these steps: what rank 0 sends to rank 1. The first four losses of both must be
equal to 1e-5; later ones amplify the rounding. `auto` must choose the transfer with fewer bytes.
"""

import argparse
import itertools
import json
import pathlib
import sys

import numpy as np
import pyarrow as pa
from picasso import checked, train
from pyarrow import parquet

from runs import ROOT, read_lines, read_machine

BATCH, ROWS, DIM, EVENTS = 1024, 100_000, 16, 20
LENGTHS, ZIPF, TRANSFERS = (20, 50, 200), (0.8, 1.05, 1.3), ("bags", "rows")


def write_rows(folder: pathlib.Path, zipf: float, samples: int) -> pathlib.Path:
    draw = np.random.default_rng(1)
    shares = np.cumsum(np.arange(1, ROWS + 1) ** -zipf)
    permuted = {name: draw.permutation(ROWS) for name in ("user", "item")}

    def ids(name: str, count: int) -> np.ndarray:
        ranks = np.searchsorted(shares, draw.random(count) * shares[-1])
        return permuted[name][np.minimum(ranks, ROWS - 1)]

    lengths = draw.geometric(1 / EVENTS, samples)
    columns = {"label": draw.integers(0, 2, samples), "user": ids("user", samples), "item": ids("item", samples)}
    offsets = np.concatenate([[0], lengths.cumsum()]).astype(np.int32)
    columns["items"] = pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids("item", int(offsets[-1]))))
    folder.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table(columns), folder / "rows.parquet", row_group_size=1 << 14)
    return folder / "rows.parquet"


def write_config(rows: pathlib.Path, length: int) -> pathlib.Path:
    config = rows.parent / f"{length}.toml"
    shared = f'ids = "integer", num_rows = {ROWS}'
    config.write_text(
        f'[recommender]\nmodel = "din"\ndim = {DIM}\ndeep = [64]\n\n'
        f'[rows]\nfiles = ["{rows}"]\nlabel = "label"\nshuffle_window = "all"\nsparse = [\n'
        f'  {{ columns = ["user"], {shared} }},\n  {{ columns = ["item"], {shared} }},\n'
        f'  {{ columns = ["items"], table = "item", sequence = true, max_length = {length}, {shared} }},\n]\n\n'
        '[precision]\nrecipe = "fp32"\n\n'
        f'[train]\nbatch = {BATCH}\n\n[schedule]\nwarmup_steps = 0\ndecay = "constant"\n\n'
        "[eval]\nevery_steps = 0\n\n[checkpoint]\nevery_steps = 0\n\n[log]\ntensorboard = false\n"
    )
    return config


def measure(config: pathlib.Path, options: argparse.Namespace) -> dict[str, dict]:
    found = {transfer: {"step_ms": np.inf} for transfer in TRANSFERS}
    folder, steps = options.out / "run", options.steps
    for _ in range(options.rounds):
        for transfer in TRANSFERS:
            checked(train(config, folder, 2, [f"train.steps={steps}", f"embedding.transfer={transfer}"]))
            timings = read_lines(folder, "timings.jsonl")[steps // 3 : steps - 1]
            median = float(np.median([line["step_ms"] for line in timings]))
            if median < found[transfer]["step_ms"]:
                found[transfer]["step_ms"] = median
            found[transfer]["bytes"] = float(np.mean([line["table_bytes"] for line in timings]))
            found[transfer]["losses"] = [line["loss"] for line in read_lines(folder, "metrics.jsonl")[:4]]
    checked(train(config, folder, 2, ["train.steps=1"]))
    packs = json.loads((folder / "embedding_plan.json").read_text())["packs"]
    found["auto"] = sorted({pack["transfer"] for pack in packs})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--samples", type=int, default=12 * BATCH)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "runs/transfer")
    parser.add_argument("--result", type=pathlib.Path, help="write the figures here (JSON)")
    options = parser.parse_args()
    options.out = options.out.resolve()
    results, holds = [], True
    print(f"{'zipf':>5} {'max_length':>10}   {'MB a step: bags':>15} {'rows':>7}   {'ms a step: bags':>15} {'rows':>7}")
    for zipf, length in itertools.product(ZIPF, LENGTHS):
        rows = write_rows(options.out / str(zipf), zipf, options.samples)
        found = measure(write_config(rows, length), options)
        bags, single = (found[transfer] for transfer in TRANSFERS)
        results.append({"zipf": zipf, "max_length": length} | found)
        fewer = min(TRANSFERS, key=lambda transfer: found[transfer]["bytes"])
        holds &= np.allclose(bags["losses"], single["losses"], rtol=1e-5, atol=0) and found["auto"] == [fewer]
        print(
            f"{zipf:5} {length:10}   {bags['bytes'] / 1e6:15.2f} {single['bytes'] / 1e6:7.2f}   "
            f"{bags['step_ms']:15.1f} {single['step_ms']:7.1f}",
            flush=True,
        )
    print("same losses, and auto chooses fewer bytes" if holds else "LOSSES OR CHOICES DIFFER")
    if options.result:
        record = {"machine": read_machine(options.out / "run")["machine"], "results": results, "holds": holds}
        options.result.write_text(json.dumps(record, indent=1) + "\n")
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
