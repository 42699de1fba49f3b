"""Decoding rows for a recommender against pyarrow's own reading of the same columns.

usage: ./dev bench rows [--threads N] [--rounds N] [--rows N] [--folder FOLDER] [--out FILE]

The table is generated (seed 1): a label, 13 integers and 26 texts of 8 hexadecimal digits of Zipf 1.1 over 100,000,
the widths of Criteo's, as TSV without header and as Parquet (Snappy, row groups of 65,536). Sides take turns within a
round and the best round of each counts, in rows per second: Dovetail's decoding to numbers and hashed ids (`decode`),
the same with statistics (`scan`), batches of 4096 out of decoded rows (`batches`); pyarrow.csv.read_csv and
pyarrow.parquet.read_table, which stop at columns of numbers and texts. Both sides use as many threads.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

ROOT = pathlib.Path(__file__).resolve().parent.parent
ENGINE = ROOT / "build/release/bin/bench_rows"
DENSE = [f"i{i}" for i in range(13)]
SPARSE = [f"c{i}" for i in range(26)]
COMMANDS = ("decode", "scan", "batches")


def make_table(rows):
    generator = np.random.default_rng(1)
    columns = {"label": pa.array((generator.random(rows) < 0.25).astype(np.int8))}
    for name in DENSE:
        values = generator.geometric(0.01, rows) - 1
        columns[name] = pa.array(values, pa.int32(), mask=generator.random(rows) < 0.1)
    shares = 1 / np.arange(1, 100001) ** 1.1
    words = np.array([f"{word:08x}" for word in generator.integers(0, 2**32, 100000)], dtype=object)
    for name in SPARSE:
        values = words[generator.choice(len(words), rows, p=shares / shares.sum())]
        columns[name] = pa.array(values, pa.string(), mask=generator.random(rows) < 0.05)
    return pa.table(columns)


def write_config(folder, name, threads):
    lines = [
        "[rows]",
        f'files = "{folder / name}"',
        'label = "label"',
        f"threads = {threads}",
        'shuffle_window = "all"',
    ]
    lines += ["cache_bytes = 16_000_000_000", "validation_fraction = 0"]
    if name.endswith("tsv"):
        lines += ["header = false", f"columns = {json.dumps(['label', *DENSE, *SPARSE])}"]
    lines += ["[[rows.dense]]", f"columns = {json.dumps(DENSE)}", 'transform = "log1p"']
    for column in SPARSE:
        lines += ["[[rows.sparse]]", f'columns = "{column}"', "num_rows = 100_000"]
    path = folder / f"{name}.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


class Engine:
    """Our process, which reads on request."""

    def __init__(self, config):
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([str(ENGINE), str(config)], stdin=pipe, stdout=pipe, text=True)

    def rate(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"error: the engine stopped with exit code {self.process.wait()}")
        done = json.loads(line)
        return done["rows"] / done["seconds"]


def read_tsv(path):
    names = ["label", *DENSE, *SPARSE]
    types = {name: pa.string() for name in SPARSE} | {name: pa.float64() for name in DENSE}
    return pa.csv.read_csv(
        path,
        pa.csv.ReadOptions(column_names=names),
        pa.csv.ParseOptions(delimiter="\t", quote_char=False),
        pa.csv.ConvertOptions(column_types=types),
    )


def rate_of(read, path):
    begin = time.perf_counter()
    rows = read(path).num_rows
    return rows / (time.perf_counter() - begin)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=300000)
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "data/bench_rows")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    pa.set_cpu_count(options.threads)
    pa.set_io_thread_count(options.threads)
    options.folder.mkdir(parents=True, exist_ok=True)
    table = make_table(options.rows)
    no_header = pa.csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    pa.csv.write_csv(table, options.folder / "rows.tsv", no_header)
    pq.write_table(table, options.folder / "rows.parquet", row_group_size=65536)
    sides = {"tsv": read_tsv, "parquet": pq.read_table}
    engines = {kind: Engine(write_config(options.folder, f"rows.{kind}", options.threads)) for kind in sides}
    best = {}
    for _ in range(options.rounds):
        for kind, read in sides.items():
            rates = {command: engines[kind].rate(command) for command in COMMANDS}
            rates["pyarrow"] = rate_of(read, options.folder / f"rows.{kind}")
            for name, rate in rates.items():
                best[kind, name] = max(best.get((kind, name), 0), rate)
    result = {"threads": options.threads, "rows": options.rows, "rows_per_s": {}}
    for (kind, name), rate in best.items():
        result["rows_per_s"].setdefault(kind, {})[name] = round(rate)
        print(f"{kind:8} {name:8} {rate / 1e3:8,.0f} k rows/s  {rate / best[kind, 'pyarrow']:.2f} of pyarrow")
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
