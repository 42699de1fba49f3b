"""FP8 Linears on a GPU beside BF16's: forward and backward, in parts of the time of nn.Linear.

usage: ./dev bench fp8_gpu [--rows N] [--widths 2048,4096] [--recipes A,B] [--seconds N]

A line of JSON for each width and recipe. Events of the GPU time a pass; medians count, after five passes to warm up.
`--seconds` limits the whole run. Claims at width 4096: at most 0.75 of BF16's time by tensor, 0.85 by block. Exit code
1 when one does not hold, 2 without a GPU.
"""

import argparse
import json
import statistics
import sys
import time

import dovetail  # noqa: F401  registers torch.ops.dovetail
import torch

CLAIMS = {"fp8_tensor": 0.75, "fp8_block": 0.85, "fp8_block_float32": 0.85}
WARM_UP, MOST_PASSES = 5, 50


def median_ms(work, seconds: float) -> float:
    for _ in range(WARM_UP):
        work()
    torch.cuda.synchronize()
    times, stop = [], time.monotonic() + seconds
    while not times or (len(times) < MOST_PASSES and time.monotonic() < stop):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=16384)
    parser.add_argument("--widths", default="2048,4096")
    parser.add_argument("--recipes", default=",".join(CLAIMS))
    parser.add_argument("--seconds", type=float, default=30)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU", file=sys.stderr)
        return 2
    widths, recipes = [int(width) for width in options.widths.split(",")], options.recipes.split(",")
    share = options.seconds / (len(widths) * (len(recipes) + 1))
    holds = True
    for width in widths:
        kinds = {"device": "cuda", "dtype": torch.bfloat16}
        x = torch.randn(options.rows, width, **kinds).requires_grad_()
        dy = torch.randn(options.rows, width, **kinds)
        weight = (torch.randn(width, width, **kinds) / width**0.5).requires_grad_()

        def train(linear, x=x, weight=weight, dy=dy) -> None:
            x.grad = weight.grad = None
            linear(x, weight).backward(dy)

        bf16 = median_ms(lambda: train(torch.nn.functional.linear), share)
        for recipe in recipes:

            def linear(x, weight, recipe=recipe):
                return torch.ops.dovetail.mx_linear(x, weight, None, recipe)

            found = median_ms(lambda: train(linear), share)
            part, claim = found / bf16, CLAIMS.get(recipe) if width == 4096 else None
            holds = holds and (claim is None or part <= claim)
            line = {"width": width, "rows": options.rows, "recipe": recipe, "ms": round(found, 4)}
            line |= {"bf16_ms": round(bf16, 4), "over_bf16": round(part, 4), "claim": claim}
            print(json.dumps(line | {"device": torch.cuda.get_device_name()}), flush=True)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
