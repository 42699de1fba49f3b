"""Embedding tables on a GPU: forward, and backward with update, as fractions of the memory bandwidth.

usage: ./dev bench embedding_gpu [--samples N] [--rounds N] [--tables N] [--rows N] [--dtypes fp32,bf16] [--out FILE]

Data: 26 tables of 100k rows of 64 elements, batches of 65,536 samples with one id per feature. Ids come from a Zipf
distribution of exponent 1.1 over permuted rows. Optimizers: row-wise Adagrad, SGD and Adam. Events of the GPU time a
pass; the best of the rounds counts.

Bytes count each distinct row of a batch and its state once per pass (the update reads and writes them). Ids and
offsets count once, pooled rows and their gradient as often as they occur. Bytes moved by sorting do not count. The
bandwidth is measured by a copy of 1 GiB on the same device, read plus written. Claims for row-wise Adagrad with FP32
rows: forward reaches at least 0.75, backward with update at least 0.40 of it. Exit code 1 when one does not hold, 2
without a GPU.
"""

import argparse
import json
import pathlib
import sys

import torch
from dovetail.embedding import EmbeddingCollection, Table
from torch import Tensor
from zipf import distinct_rows, draw_batches

DIM, BATCHES = 64, 8
STATE = {"rowwise_adagrad": 1, "sgd": 0, "adam": 2 * DIM}  # floats a row
ELEMENT = {"fp32": 4, "bf16": 2}
CLAIMS = {"forward": 0.75, "backward": 0.40}


def moved_bytes(options, optimizer: str, row_dtype: str, distinct: float) -> dict[str, float]:
    lookups = options.tables * options.samples
    row, indices, pooled = DIM * ELEMENT[row_dtype], 2 * 8 * lookups, 4 * DIM * lookups
    return {
        "forward": distinct * row + indices + pooled,
        "backward": 2 * distinct * (row + 4 * STATE[optimizer]) + indices + pooled,
    }


def seconds_of(work) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def copy_bandwidth() -> float:
    source = torch.ones(1 << 28, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / min(seconds_of(lambda: target.copy_(source)) for _ in range(10))


def measure(options, batches: list[Tensor]) -> list[dict]:
    names = [f"table_{i}" for i in range(options.tables)]
    offsets = torch.arange(options.tables * options.samples + 1, device="cuda")
    gradient = torch.randn(options.samples, options.tables * DIM, device="cuda")
    bandwidth, distinct = copy_bandwidth(), distinct_rows(batches, options.tables)
    lines = []
    for row_dtype in options.dtypes.split(","):
        for optimizer in STATE:
            tables = [Table(name, options.rows, DIM) for name in names]
            side = EmbeddingCollection(
                tables, {name: name for name in names}, optimizer, row_dtype=row_dtype, device="cuda"
            )
            seconds = {"forward": [], "backward": []}
            for i in range(options.rounds + 1):
                pooled = []
                forward = seconds_of(lambda ids=batches[i % BATCHES], y=pooled, m=side: y.append(m(ids, offsets)))
                backward = seconds_of(lambda y=pooled: y[0].backward(gradient))
                if i > 0:  # the first opens libraries and takes memory
                    seconds["forward"].append(forward)
                    seconds["backward"].append(backward)
            line = {"optimizer": optimizer, "row_dtype": row_dtype, "copy_bytes_per_s": bandwidth}
            for part, moved in moved_bytes(options, optimizer, row_dtype, distinct).items():
                best = min(seconds[part])
                line[part] = {"ms": 1e3 * best, "bytes": moved, "of_copy_bandwidth": moved / best / bandwidth}
            lines.append(line)
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=65536)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--tables", type=int, default=26)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--dtypes", default="fp32,bf16", help="separated by commas")
    parser.add_argument("--out", help="also write the result as JSON")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("embedding_gpu: there is no GPU here that torch can use")
        return 2
    result = {"benchmark": "embedding_gpu", "gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    result |= {name: getattr(options, name) for name in ["samples", "tables", "rows", "rounds"]}
    batches = draw_batches(BATCHES, options.tables, options.rows, options.samples)
    result["results"] = measure(options, [batch.cuda() for batch in batches])
    holds = True
    print(f"{result['gpu']}, copy {result['results'][0]['copy_bytes_per_s'] / 1e9:.0f} GB/s")
    for line in result["results"]:
        for part, least in CLAIMS.items():
            claimed = line["optimizer"] == "rowwise_adagrad" and line["row_dtype"] == "fp32"
            good = not claimed or line[part]["of_copy_bandwidth"] >= least
            holds = holds and good
            print(
                f"  {line['optimizer']:16}{line['row_dtype']:5}{part:9}{line[part]['ms']:8.3f} ms"
                f"{line[part]['bytes'] / 1e6:8.0f} MB{line[part]['of_copy_bandwidth']:6.2f} of copy"
                + (f", {'holds' if good else 'DOES NOT HOLD'}: at least {least:.2f}" if claimed else "")
            )
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps(result, indent=1) + "\n")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
