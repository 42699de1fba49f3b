"""Microscaling on a GPU: quantize and dequantize in parts of a copy's bandwidth, and Linear beside BF16's.

usage: ./dev bench mx_gpu [--seconds N] [--formats e4m3,e5m2,...] [--out FILE]

Matrices of 8192 x 8192 and 4096 x 16384. Several lie in memory and take turns, so that the second-level cache holds
none. Bytes count what a pass must move: x, codes and scales. Events of the GPU time one turn of all, the median counts.
A copy of 1 GiB in the same run, read plus written, gives the bandwidth. Linear is forward and backward of 16,384
rows in BF16, `dovetail.mx.linear` over `nn.Linear`, in turns. Python has no function for both copies at once, nor for
square blocks. One line of JSON each. After `--seconds` no further row begins. Goals: quantize and dequantize at least
0.80, Linear at most 1.30 at widths 2048 and 4096. Exit code 1 when a row misses its goal, 2 without a GPU.
"""

import argparse
import json
import pathlib
import statistics
import sys
import time

import torch
from dovetail import mx
from torch import nn

SHAPES = [(8192, 8192), (4096, 16384)]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
ROWS, WIDTHS = 16384, [2048, 4096, 1024]
ROTATION = 4  # the smallest, of codes, is 64 MiB: more than the cache in all
QUANTIZE_GOAL, LINEAR_GOAL = 0.80, 1.30


def times_ms(works, rounds: int = 12) -> list[float]:
    """Median over the rounds of one call for each of `works`, which take turns; calls get numbers below ROTATION."""
    events = [[] for _ in works]
    for _ in range(rounds + 3):
        for of_work, work in zip(events, works, strict=True):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for i in range(ROTATION):
                work(i)
            end.record()
            of_work.append((begin, end))
    torch.cuda.synchronize()
    return [statistics.median(b.elapsed_time(e) for b, e in of_work[3:]) / ROTATION for of_work in events]


def copy_bandwidth() -> float:
    source = torch.ones(1 << 28, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / (times_ms([lambda _: target.copy_(source)])[0] / 1e3)


def rates(formats: list[str], bandwidth: float, out_of_time):
    """Lines of quantize and dequantize."""
    for fmt in formats:
        for shape in SHAPES:
            for dtype_name, dtype in DTYPES.items():
                if out_of_time():
                    return
                xs = [torch.randn(shape, device="cuda", dtype=dtype) for _ in range(ROTATION)]
                for copy, axis in [("row", -1), ("column", 0)]:
                    made = [mx.quantize(x, format=fmt, axis=axis) for x in xs]
                    moved = xs[0].nbytes + made[0][0].nbytes + made[0][1].nbytes
                    keys = {"format": fmt, "axis": axis}
                    ms = times_ms(
                        [
                            lambda i, xs=xs, keys=keys: mx.quantize(xs[i], **keys),
                            lambda i, made=made, keys=keys, d=dtype: mx.dequantize(*made[i], dtype=d, **keys),
                        ]
                    )
                    for what, of_what in zip(["quantize", "dequantize"], ms, strict=True):
                        part = moved / (of_what / 1e3) / bandwidth
                        yield {"what": what, "copy": copy, "format": fmt, "dtype": dtype_name, "shape": shape} | {
                            "ms": of_what,
                            "of_copy_bandwidth": part,
                            "goal": QUANTIZE_GOAL,
                            "holds": part >= QUANTIZE_GOAL,
                        }


def linears(out_of_time):
    """Lines of Linear, forward and backward."""
    for width in WIDTHS:
        if out_of_time():
            return
        x = torch.randn(ROWS, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        dy = torch.randn(ROWS, width, device="cuda", dtype=torch.bfloat16)
        plain = nn.Linear(width, width, bias=False, device="cuda", dtype=torch.bfloat16)

        def step(forward, x=x, dy=dy, weight=plain.weight):
            x.grad = weight.grad = None
            forward(x).backward(dy)

        works = [
            lambda _, p=plain: step(p),
            lambda _, p=plain: step(lambda rows: mx.linear(rows, p.weight, recipe="mxfp8")),
        ]
        bf16, mxfp8 = times_ms(works)
        goal = LINEAR_GOAL if width >= 2048 else None
        yield {"what": "linear", "rows": ROWS, "width": width, "bf16_ms": bf16, "mxfp8_ms": mxfp8} | {
            "over_bf16": mxfp8 / bf16,
            "goal": goal,
            "holds": goal is None or mxfp8 / bf16 <= goal,
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--formats", default="e4m3,e5m2,e2m3,e2m1", help="separated by commas, most wanted first")
    parser.add_argument("--out", help="also write the lines as JSON")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("mx_gpu: there is no GPU here that torch can use")
        return 2
    end = time.monotonic() + options.seconds

    def out_of_time() -> bool:
        return time.monotonic() > end

    bandwidth = copy_bandwidth()
    head = {"benchmark": "mx_gpu", "gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    lines = [head | {"copy_bytes_per_s": bandwidth}]
    print(json.dumps(lines[0]), flush=True)
    first, *others = options.formats.split(",")
    for part in [
        rates([first], bandwidth, out_of_time),
        linears(out_of_time),
        rates(others, bandwidth, out_of_time),
    ]:
        for line in part:
            print(json.dumps(line), flush=True)
            lines.append(line)
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps(lines, indent=1) + "\n")
    return 0 if all(line.get("holds", True) for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
