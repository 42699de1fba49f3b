"""Decoding rows for a recommender against pyarrow's own reading of the same columns.

usage: ./dev bench rows [--threads N] [--rounds N] [--rows N] [--folder FOLDER] [--out FILE]

The table is generated (seed 1): a label, 13 integers and 26 texts of 8 hexadecimal digits of Zipf 1.1 over 100,000.
These are the widths of Criteo's table. It is written as TSV without header and as Parquet (Snappy, row groups of
65,536). The Parquet file also has 10 columns that no side reads. Sides take turns within a round, and the best round
of each counts, in rows per second:

- `decode`: Dovetail's decoding to numbers and hashed ids
- `scan`: the same with statistics
- `batches`: batches of 4096 from decoded rows
- pyarrow on TSV: pyarrow.csv.read_csv, which ends with columns of numbers and texts
- pyarrow on Parquet: several ways, each until the columns are NumPy arrays. Numbers become float64. Texts become
  codes of their dictionary, or offsets and bytes without `read_dictionary`. Nothing is hashed

Both sides use equally many threads. Claim: `decode` of Parquet is at least as fast as the fastest way of pyarrow.
Exit code 1 when it does not hold.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

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


def sides_of(threads):
    codes = {"read_dictionary": SPARSE}
    return {
        "tsv": {"pyarrow read_csv": read_tsv},
        "parquet": {
            "pyarrow read_table": read_parquet(threads),
            "pyarrow read_table, dictionaries": read_parquet(threads, **codes),
            "pyarrow read_table, dictionaries, memory map": read_parquet(threads, memory_map=True, **codes),
            "pyarrow read_row_group, dictionaries": read_groups(threads, **codes),
            "pyarrow read_row_group, dictionaries, memory map": read_groups(threads, memory_map=True, **codes),
        },
    }


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
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "data/bench_rows")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    pa.set_cpu_count(options.threads)
    pa.set_io_thread_count(options.threads)
    options.folder.mkdir(parents=True, exist_ok=True)
    table = make_table(options.rows)
    no_header = pa.csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    pa.csv.write_csv(table, options.folder / "rows.tsv", no_header)
    pq.write_table(add_others(table), options.folder / "rows.parquet", row_group_size=65536)
    sides = sides_of(options.threads)
    engines = {kind: Engine(write_config(options.folder, f"rows.{kind}", options.threads)) for kind in sides}
    result = {"benchmark": "rows", "machine": machine(), "pyarrow": pa.__version__, "threads": options.threads}
    result |= {"rows": options.rows, "rounds": options.rounds, "rows_per_s": {}, "decode_of_fastest_pyarrow": {}}
    best = {kind: {} for kind in sides}
    for _ in range(options.rounds):
        for kind, reads in sides.items():
            rates = {command: engines[kind].rate(command) for command in COMMANDS}
            rates |= {name: rate_of(read, options.folder / f"rows.{kind}") for name, read in reads.items()}
            for name, rate in rates.items():
                best[kind][name] = max(best[kind].get(name, 0), rate)
    for kind, rates in best.items():
        fastest = max(rates[name] for name in sides[kind])
        for name, rate in rates.items():
            print(f"{kind:8} {name:50} {rate / 1e3:8,.0f} k rows/s  {rate / fastest:.2f} of the fastest pyarrow")
        result["rows_per_s"][kind] = {name: round(rate) for name, rate in rates.items()}
        result["decode_of_fastest_pyarrow"][kind] = rates["decode"] / fastest
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    holds = result["decode_of_fastest_pyarrow"]["parquet"] >= 1
    print(f"{'holds' if holds else 'DOES NOT HOLD'}: Parquet is decoded at least as fast as by the fastest pyarrow")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
