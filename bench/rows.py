"""Decoding rows for a recommender, compared with pyarrow, pandas and TorchRec's reader.

usage: ./dev bench rows [--threads N] [--rounds N] [--rows N] [--torchrec] [--folder FOLDER] [--out FILE]

The table is generated (seed 1): a label, 13 integers and 26 texts of 8 hexadecimal digits of Zipf 1.1 over 100,000.
These are the widths of Criteo's table. It is written as TSV without header and as Parquet (Snappy, row groups of
65,536). A second Parquet file has zstd in place of Snappy. The Parquet files also have 10 columns that no side reads.
Sides take turns within a round, and the best round of each counts, in rows per second:

- `decode`: Dovetail's decoding to numbers and hashed ids
- `scan`: the same with statistics
- `batches`: batches of 4096 from decoded rows
- pyarrow on TSV: pyarrow.csv.read_csv, which ends with columns of numbers and texts
- pyarrow on Parquet: several ways, each until the columns are NumPy arrays. Numbers become float64. Texts become
  codes of their dictionary, or offsets and bytes without `read_dictionary`. Nothing is hashed
- pandas: read_csv (C engine, which has one thread) and read_parquet, with their default types
- TorchRec's CriteoIterDataPipe on TSV: a Python tuple for each row, texts as integers. It has no reader of Parquet,
  and reads a file on one thread. Its rate is taken from the first 10,000 rows. `--torchrec` installs TorchRec 1.6.1
  and FBGEMM 1.6.0 alone in the cache folder; without it this side is left out

All sides use equally many threads. Claim: `decode` of each Parquet file is at least as fast as the fastest way of
pyarrow. The spread has the smallest and the largest ratio of `decode` to the fastest way of pyarrow in one round. Exit
code 1 when the claim does not hold.
"""

import argparse
import itertools
import json
import logging
import os
import pathlib
import statistics
import subprocess
import sys
import time
import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
from peers import TORCHREC, add_peers

ROOT = pathlib.Path(__file__).resolve().parent.parent
ENGINE = ROOT / "build/release/bin/bench_rows"
DENSE = [f"i{i}" for i in range(13)]
SPARSE = [f"c{i}" for i in range(26)]
WANTED = ["label", *DENSE, *SPARSE]
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


def add_others(table):
    """The Parquet file's columns that are not read."""
    for i in range(10):
        table = table.append_column(f"other{i}", table[SPARSE[i]])
    return table


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
        lines += ["header = false", f"columns = {json.dumps(WANTED)}"]
    lines += ["[[rows.dense]]", f"columns = {json.dumps(DENSE)}", 'transform = "log1p"']
    for column in SPARSE:
        lines += ["[[rows.sparse]]", f'columns = "{column}"', "num_rows = 100_000"]
    path = folder / f"{name}-{threads}.toml"
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
    names = WANTED
    types = {name: pa.string() for name in SPARSE} | {name: pa.float64() for name in DENSE}
    return pa.csv.read_csv(
        path,
        pa.csv.ReadOptions(column_names=names),
        pa.csv.ParseOptions(delimiter="\t", quote_char=False),
        pa.csv.ConvertOptions(column_types=types),
    )


def to_numpy(table):
    """Columns of texts keep their missing values beside the codes, as Arrow's bits."""
    for name in table.column_names:
        for chunk in table[name].chunks:
            if pa.types.is_dictionary(chunk.type):
                pc.fill_null(chunk.indices, 0).to_numpy()
            elif pa.types.is_string(chunk.type):
                for buffer in chunk.buffers()[1:]:
                    np.frombuffer(buffer, np.uint8)
            else:
                pc.cast(chunk, pa.float64()).to_numpy(zero_copy_only=False)
    return table


def read_parquet(threads, **options):
    def read(path):
        return to_numpy(pq.read_table(path, columns=WANTED, use_threads=threads > 1, **options))

    return read


def read_groups(threads, **options):
    def read(path):
        file = pq.ParquetFile(path, **options)
        groups = [
            to_numpy(file.read_row_group(i, columns=WANTED, use_threads=threads > 1))
            for i in range(file.num_row_groups)
        ]
        return pa.concat_tables(groups)

    return read


def pandas_csv(path):
    return pa.table({"rows": np.empty(len(pd.read_csv(path, sep="\t", header=None, names=WANTED)), np.int8)})


def pandas_parquet(path):
    return pa.table({"rows": np.empty(len(pd.read_parquet(path, columns=WANTED)), np.int8)})


def torchrec_reader():
    """Reads the first rows by TorchRec's pipe; None if it is not installed."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    from torchrec.datasets.criteo import CriteoIterDataPipe

    def read(path):
        rows = sum(1 for _ in itertools.islice(iter(CriteoIterDataPipe([str(path)])), 10000))
        return pa.table({"rows": np.empty(rows, np.int8)})

    return read


def sides_of(threads, with_torchrec):
    codes = {"read_dictionary": SPARSE}
    tsv = {"pyarrow read_csv": read_tsv, "pandas read_csv": pandas_csv}
    if with_torchrec:
        tsv["TorchRec CriteoIterDataPipe"] = torchrec_reader()
    parquet = {
        "pyarrow read_table": read_parquet(threads),
        "pyarrow read_table, dictionaries": read_parquet(threads, **codes),
        "pyarrow read_table, dictionaries, memory map": read_parquet(threads, memory_map=True, **codes),
        "pyarrow read_row_group, dictionaries": read_groups(threads, **codes),
        "pyarrow read_row_group, dictionaries, memory map": read_groups(threads, memory_map=True, **codes),
        "pandas read_parquet": pandas_parquet,
    }
    return {"rows.tsv": tsv, "rows.parquet": parquet, "zstd.parquet": parquet}


def rate_of(read, path):
    begin = time.perf_counter()
    rows = read(path).num_rows
    return rows / (time.perf_counter() - begin)


def machine():
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")
    return {"cpu": name, "load_average": os.getloadavg()[0]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=300000)
    parser.add_argument("--torchrec", action="store_true")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "data/bench_rows")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    pa.set_cpu_count(options.threads)
    pa.set_io_thread_count(options.threads)
    options.folder.mkdir(parents=True, exist_ok=True)
    table = make_table(options.rows)
    no_header = pa.csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    pa.csv.write_csv(table, options.folder / "rows.tsv", no_header)
    wide = add_others(table)
    pq.write_table(wide, options.folder / "rows.parquet", row_group_size=65536)
    pq.write_table(wide, options.folder / "zstd.parquet", row_group_size=65536, compression="zstd")
    has_torchrec = add_peers("torchrec", TORCHREC, options.torchrec)
    if not has_torchrec:
        print("TorchRec is not installed and left out; --torchrec installs it")
    sides = sides_of(options.threads, has_torchrec)
    engines = {name: Engine(write_config(options.folder, name, options.threads)) for name in sides}
    versions = {"pyarrow": pa.__version__, "pandas": pd.__version__} | ({"torchrec": "1.6.1"} if has_torchrec else {})
    result = {"benchmark": "rows", "machine": machine(), **versions, "threads": options.threads}
    result |= {"rows": options.rows, "rounds": options.rounds, "rows_per_s": {}, "decode_of_fastest_pyarrow": {}}
    result["spread"] = {}
    rounds = {name: [] for name in sides}
    for _ in range(options.rounds):
        for name, reads in sides.items():
            rates = {command: engines[name].rate(command) for command in COMMANDS}
            rounds[name].append(rates | {side: rate_of(read, options.folder / name) for side, read in reads.items()})
    for name, of_rounds in rounds.items():
        peers = [side for side in sides[name] if side.startswith("pyarrow")]
        best = {side: max(rates[side] for rates in of_rounds) for side in of_rounds[0]}
        fastest = max(best[side] for side in peers)
        for side, rate in best.items():
            print(f"{name:12} {side:50} {rate / 1e3:8,.0f} k rows/s  {rate / fastest:.2f} of the fastest pyarrow")
        ratios = [rates["decode"] / max(rates[side] for side in peers) for rates in of_rounds]
        spread = [min(ratios), statistics.median(ratios), max(ratios)]
        print(f"{name:12} decode in a round: {spread[0]:.2f} to {spread[2]:.2f}, median {spread[1]:.2f}")
        result["rows_per_s"][name] = {side: round(rate) for side, rate in best.items()}
        result["decode_of_fastest_pyarrow"][name] = best["decode"] / fastest
        result["spread"][name] = spread
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    holds = all(ratio >= 1 for name, ratio in result["decode_of_fastest_pyarrow"].items() if name.endswith(".parquet"))
    print(f"{'holds' if holds else 'DOES NOT HOLD'}: Parquet is decoded at least as fast as by the fastest pyarrow")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
