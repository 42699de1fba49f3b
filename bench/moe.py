"""A mixture of experts on the CPU against the dense feed-forward of the same active FLOPs, and against its peers.

usage: ./dev bench moe [--threads 1,2] [--rounds N] [--dtypes fp32,bf16] [--shapes E16,E64,large] [--peers ...]
                       [--activation swiglu|gelu|relu2] [--out FILE]

Times the whole layer, forward and backward, with its routing. x is 4096 tokens of width 512. E16 has 16 experts of
width 1024 and k = 2, E64 has 64 of width 256 and k = 8. large has 16 experts of width 4096, k = 2 and 4096 tokens of
width 1024. Sides:

- dense: the feed-forward of width k x ff with Dovetail's kernels and the same activation
- dovetail: `dovetail.moe.MoELayer`
- deepspeed: DeepSpeed-MoE without drops, with Dovetail's activation in its experts
- torchtitan, torchtitan_compiled: torchtitan's layer, plain and under torch.compile; SwiGLU alone
- four sides of PyTorch's operators, with Dovetail's activation:

  - grouped_mm: `torch._grouped_mm`
  - sorted: one product per slice of sorted rows
  - index_add: a loop over the experts
  - padded: `bmm` of rows padded to the largest load

DeepSpeed and torchtitan are packages of PyPI, installed alone in the cache folder. Tutel has no package there.

All mixtures have the same weights. Before the timing, each peer's result and gradients are compared with Dovetail's.
In bf16, x, weights, result and gradients are bfloat16. The peers multiply in bfloat16, or in float32 after a cast:
whichever ATen does faster on this CPU. Gradients stay where an optimizer reads them, one tensor per parameter. Freed
memory is kept, for every side.

Sides take turns within a round, with a pause before each. The best round of each counts. Times on one thread are the
process's CPU time, which other programs disturb less than wall time. A side that takes over three times the dense
side's time leaves after three rounds. The roofline is the rate of a product of 2048 cubed in the same rounds. Claims:

- Dovetail is the fastest mixture
- it takes at most 1.05 (E16, large) or 1.10 (E64) times the dense side's time in fp32
- it takes at most 1.10 or 1.20 times the dense side's time in bf16 on one thread

Exit code 1 when one does not hold, as with DOVETAIL_DISABLE=experts or DOVETAIL_DISABLE=gemm.
"""

import argparse
import ctypes
import itertools
import json
import pathlib
import statistics
import sys
import time
from collections.abc import Callable

import torch
from dovetail import functional
from moe_sides import ACTIVATIONS, PEERS, SWIGLU_ALONE, Dense, Dovetail, Network, Side, install
from peers import IDLE_S, machine
from torch import Tensor

SHAPES = {
    "E16": {"experts": 16, "k": 2, "ff": 1024, "width": 512, "of_dense": {"fp32": 1.05, "bf16": 1.10}},
    "E64": {"experts": 64, "k": 8, "ff": 256, "width": 512, "of_dense": {"fp32": 1.10, "bf16": 1.20}},
    "large": {"experts": 16, "k": 2, "ff": 4096, "width": 1024, "of_dense": {"fp32": 1.05, "bf16": 1.10}},
}
TOKENS = 4096
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
LARGEST_ERROR = {"fp32": 1e-4, "bf16": 3e-2}  # relative, of any row or expert
SLOW, SLOW_ROUNDS = 3, 3
TUTEL = "Tutel: no package on PyPI"


def keep_freed_memory() -> None:
    """As `dovetail train`, for every side: fresh memory would cost a page fault every 4 KiB."""
    m_trim_threshold, m_mmap_threshold = -1, -3
    libc = ctypes.CDLL(None)
    libc.mallopt(m_mmap_threshold, 1 << 30)
    libc.mallopt(m_trim_threshold, -1)


def aten_rates() -> dict[str, float]:
    """GFLOP/s of ATen's product of 512 cubed, one thread."""
    torch.set_num_threads(1)
    operands = {name: torch.ones(512, 512, dtype=dtype) for name, dtype in DTYPES.items()}
    return {
        name: max(2 * 512**3 / seconds_of(lambda a=a: a @ a) / 1e9 for _ in range(5)) for name, a in operands.items()
    }


def forget_gradients(side: Side, x: Tensor) -> None:
    side.zero_grad(set_to_none=True)
    x.grad = None


def seconds_of(action: Callable[[], object]) -> float:
    """Wall time, or the process's CPU time if it has one thread."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    begin = clock()
    action()
    return clock() - begin


def step(side: Side, x: Tensor, dy: Tensor) -> float:
    """Seconds of forward and backward."""
    seconds = seconds_of(lambda: side(x).backward(dy))
    forget_gradients(side, x)
    return seconds


def results(side: Side, x: Tensor, dy: Tensor) -> dict[str, Tensor]:
    y = side(x)
    y.backward(dy)
    out = {"y": y.detach(), "gradient of x": x.grad} | {f"gradient of {k}": v for k, v in side.gradients().items()}
    forget_gradients(side, x)
    return out


def largest_error(theirs: Tensor, ours: Tensor) -> float:
    """The largest relative error of a token's row or of an expert's weights."""
    theirs, ours = theirs.float().flatten(1), ours.float().flatten(1)
    return float(((theirs - ours).norm(dim=1) / ours.norm(dim=1).clamp_min(1e-30)).max())


def compare(sides: dict[str, Side], x: Tensor, dy: Tensor, limit: float) -> dict[str, float]:
    """The largest error of each peer against Dovetail. Exits if one computes something else."""
    ours, errors = results(sides["dovetail"], x, dy), {}
    for name in [name for name in sides if name in PEERS]:
        of_each = {what: largest_error(theirs, ours[what]) for what, theirs in results(sides[name], x, dy).items()}
        worst = max(of_each, key=of_each.__getitem__)
        errors[name] = of_each[worst]
        if not errors[name] <= limit:
            sys.exit(f"bench/moe: {name} computes something else: error of {worst} {errors[name]:.1e} > {limit:.0e}")
    return errors


def large_product(dtype: torch.dtype, by_aten: bool) -> float:
    """FLOP/s of a product of 2048 cubed: the better of Dovetail's and ATen's."""
    a = torch.ones(2048, 2048, dtype=dtype)
    products = [functional.linear, *([torch.nn.functional.linear] if by_aten else [])]
    return 2 * 2048**3 / min(seconds_of(lambda product=product: product(a, a)) for product in products)


def measure(options, shape_name: str, dtype: str, threads: int) -> dict:
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    shape = SHAPES[shape_name]
    products = torch.float32 if dtype == "fp32" else options.bf16_products
    network = Network(shape, options.activation, DTYPES[dtype], products)
    makers = {"dense": Dense, "dovetail": Dovetail, **{name: PEERS[name] for name in options.peers}}
    sides = {name: make(network) for name, make in makers.items()}
    x = torch.randn(TOKENS, network.width).to(network.dtype).requires_grad_()
    dy = torch.randn(TOKENS, network.width).to(network.dtype)
    errors = compare(sides, x, dy, LARGEST_ERROR[dtype])
    step(sides["dense"], x, dy)
    times: dict[str, list[float]] = {name: [] for name in sides}
    rates = []
    for _ in range(options.rounds):
        for name, side in sides.items():
            seconds = times[name]
            if len(seconds) < SLOW_ROUNDS or min(seconds) < SLOW * min(times["dense"]):
                time.sleep(IDLE_S)
                seconds.append(step(side, x, dy))
        rates.append(large_product(network.dtype, by_aten=products == network.dtype))
    flops = 6 * TOKENS * network.width * network.k * (network.rows + network.ff)
    line = {"shape": shape_name, "dtype": dtype, "threads": threads, "product_gflops": max(rates) / 1e9, "sides": {}}
    for name, seconds in times.items():
        line["sides"][name] = {
            "ms": 1e3 * min(seconds),
            "median_ms": 1e3 * statistics.median(seconds),
            "rounds": len(seconds),
            "gflops": flops / min(seconds) / 1e9,
            "of_product": flops / min(seconds) / max(rates),
            "of_dense": min(seconds) / min(times["dense"]),
            "of_dense_median": statistics.median(a / b for a, b in zip(seconds, times["dense"], strict=False)),
            "error": errors.get(name),
        }
    return line | {"claims": claims(line, shape["of_dense"][dtype])}


def claims(line: dict, most_of_dense: float) -> list[dict]:
    """Ratios of Dovetail's time to other sides', and their bounds."""
    ms = {name: side["ms"] for name, side in line["sides"].items()}
    out = []
    if line["dtype"] == "fp32" or line["threads"] == 1:
        out.append({"against": "dense", "ratio": ms["dovetail"] / ms["dense"], "at_most": most_of_dense})
    peers = [name for name in ms if name in PEERS]
    if peers:
        fastest = min(peers, key=ms.__getitem__)
        out.append({"against": fastest, "ratio": ms["dovetail"] / ms[fastest], "at_most": 1.0})
    return out


def print_line(line: dict) -> bool:
    threads = f"{line['threads']} thread{'s' if line['threads'] > 1 else ''}"
    print(f"{line['shape']} {line['dtype']}, {threads}; product of 2048 cubed: {line['product_gflops']:.0f} GFLOP/s")
    print(f"  {'':20}{'best ms':>9}{'median':>8}{'rounds':>7}{'GFLOP/s':>9}{'of product':>11}", end="")
    print(f"{'of dense':>9}{'median':>8}{'error':>9}")
    for name, side in line["sides"].items():
        error = "" if side["error"] is None else f"{side['error']:.0e}"
        print(
            f"  {name:20}{side['ms']:9.1f}{side['median_ms']:8.1f}{side['rounds']:7}{side['gflops']:9.1f}"
            f"{side['of_product']:11.2f}{side['of_dense']:9.3f}{side['of_dense_median']:8.3f}{error:>9}"
        )
    holds = True
    for claim in line["claims"]:
        good = claim["ratio"] <= claim["at_most"]
        holds = holds and good
        verdict = "holds" if good else "DOES NOT HOLD"
        print(f"  dovetail / {claim['against']}: {claim['ratio']:.3f}, {verdict}: at most {claim['at_most']:.2f}")
    sys.stdout.flush()
    return holds


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default="1,2", help="separated by commas")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--dtypes", default="fp32,bf16", help="of " + ",".join(DTYPES))
    parser.add_argument("--shapes", default="E16,E64", help="of " + ",".join(SHAPES))
    parser.add_argument("--activation", default="swiglu", choices=ACTIVATIONS)
    parser.add_argument("--peers", help=f"of {','.join(PEERS)}; empty: none; default: all with the activation")
    parser.add_argument("--out", help="also write the result as JSON, after each measurement")
    options = parser.parse_args()
    lacking = [] if options.activation == "swiglu" else SWIGLU_ALONE
    if options.peers is None:
        options.peers = ",".join(name for name in PEERS if name not in lacking)
        if lacking:
            print(f"without {' and '.join(lacking)}: SwiGLU alone")
    for name, known in [("peers", PEERS), ("dtypes", DTYPES), ("shapes", SHAPES)]:
        given = [part for part in getattr(options, name).split(",") if part]
        setattr(options, name, given)
        for part in given:
            if part not in known:
                parser.error(f'--{name}: "{part}" is none of {", ".join(known)}')
            if part in lacking:
                parser.error(f"--peers: {part} has SwiGLU alone; leave it out, or use --activation swiglu")
    options.threads = [int(part) for part in options.threads.split(",")]
    return options


def main() -> int:
    options = parse()
    keep_freed_memory()
    here, rates = machine(), aten_rates()
    options.bf16_products = torch.bfloat16 if rates["bf16"] > rates["fp32"] else torch.float32
    products = str(options.bf16_products).removeprefix("torch.")
    result = {"benchmark": "moe", "machine": here, "packages": install(options.peers), "tutel": TUTEL}
    result |= {name: getattr(options, name) for name in ["rounds", "activation"]}
    result |= {"tokens": TOKENS, "aten_gflops": rates, "peers_multiply_bf16_in": products, "results": []}
    print(
        f"moe {options.activation}, {TOKENS} tokens, best of {options.rounds} rounds; {', '.join(result['packages'])}"
    )
    print(f"{here['cpu']}, {here['simd']}, load {here['load_average']:.2f}. {TUTEL}")
    if "bf16" in options.dtypes:
        print(
            f"bf16: x, weights and results. ATen's products reach {rates['bf16']:.0f} GFLOP/s in bfloat16 and "
            f"{rates['fp32']:.0f} in float32 on one thread: the peers multiply in {products}"
        )
    holds = True
    for shape, dtype, threads in itertools.product(options.shapes, options.dtypes, options.threads):
        result["results"].append(measure(options, shape, dtype, threads))
        holds = print_line(result["results"][-1]) and holds
        if options.out:
            pathlib.Path(options.out).write_text(json.dumps(result, indent=1) + "\n")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
