"""A mixture of experts on the CPU against the dense feed-forward of the same active FLOPs, and against its peers.

usage: ./dev bench moe [--threads N] [--rounds N] [--dtypes fp32,bf16] [--activation swiglu|gelu|relu2] [--peers ...]
                       [--out FILE]

Forward and backward, routing included. T is 4096 tokens of width 512. Experts have width 1024 (E 16, k 2) or 256 (E
64, k 8). Sides take turns within a round, and the best round of each counts. The median of the rounds' ratios is
printed next to it. Sides:

- the dense feed-forward of width k x ff with the same kernels and activation (the engine's best)
- Dovetail's mixture
- mixtures of PyTorch's operators with PyTorch's router and Dovetail's activation. Four variants: `index_add` in a
  loop, one product per slice of sorted rows, `torch._grouped_mm`, and `bmm` of rows padded to the largest load

Gradients stay where an optimizer reads them, one tensor per parameter. Freed memory is kept, for every side. Claims:
the mixture takes at most 1.05 and 1.10 times the dense side's time. Exit code 1 when one does not hold, as with
DOVETAIL_DISABLE=experts.
"""

import argparse
import ctypes
import json
import os
import pathlib
import statistics
import sys
import time

import torch
from dovetail import functional
from peers import machine
from torch import Tensor

SHAPES = [
    {"name": "E16 k2 ff1024", "experts": 16, "k": 2, "ff": 1024, "claim": 1.05},
    {"name": "E64 k8 ff256", "experts": 64, "k": 8, "ff": 256, "claim": 1.10},
]
TOKENS, WIDTH = 4096, 512
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
ACTIVATIONS = {"swiglu": functional.swiglu, "gelu": functional.gelu, "relu2": functional.squared_relu}
PEERS = ["index_add", "sorted", "grouped_mm", "padded"]


def parameter(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.randn(*sizes) * sizes[-1] ** -0.5).to(dtype).requires_grad_()


class Side:
    """`forward(x)` with parameters that `weights` hold; peers use our activation kernel too."""

    def __init__(self, options, shape: dict, dtype: torch.dtype):
        self.experts, self.k, self.ff = shape["experts"], shape["k"], shape["ff"]
        self.activation_name = options.activation
        self.activation = ACTIVATIONS[options.activation]
        self.rows = self.ff * (2 if options.activation == "swiglu" else 1)
        self.dtype = dtype
        self.weights: list[Tensor] = []

    def add(self, *sizes: int) -> Tensor:
        self.weights.append(parameter(*sizes, dtype=self.dtype))
        return self.weights[-1]

    def add_router(self) -> None:
        self.router = parameter(self.experts, WIDTH)
        self.weights.append(self.router)

    def add_listed(self) -> None:
        """Tensors for each expert."""
        self.add_router()
        self.up = [self.add(self.rows, WIDTH) for _ in range(self.experts)]
        self.down = [self.add(WIDTH, self.ff) for _ in range(self.experts)]

    def add_stacked(self) -> None:
        """One tensor for all experts, as the peers want it."""
        self.add_router()
        self.up = self.add(self.experts, self.rows, WIDTH)
        self.down = self.add(self.experts, WIDTH, self.ff)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weight, expert = torch.softmax(x.float() @ self.router.t(), dim=-1).topk(self.k, dim=-1)
        return weight / weight.sum(dim=-1, keepdim=True), expert

    def sorted_rows(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Rows by expert, their tokens, their weights and each expert's count."""
        weight, expert = self.route(x)
        order = expert.flatten().argsort(stable=True)
        token = order // self.k
        return x[token], token, weight.flatten()[order], torch.bincount(expert.flatten(), minlength=self.experts)

    def combined(self, rows: Tensor, token: Tensor, weight: Tensor) -> Tensor:
        y = torch.zeros(TOKENS, WIDTH)
        return y.index_add(0, token, rows.float() * weight[:, None]).to(self.dtype)


class Dense(Side):
    def __init__(self, options, shape, dtype):
        super().__init__(options, shape, dtype)
        self.up, self.down = self.add(self.k * self.rows, WIDTH), self.add(WIDTH, self.k * self.ff)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(self.activation(functional.linear(x, self.up)), self.down)


class Dovetail(Side):
    def __init__(self, options, shape, dtype):
        super().__init__(options, shape, dtype)
        self.add_listed()

    def forward(self, x: Tensor) -> Tensor:
        logits = functional.linear(x.float(), self.router)
        expert, slot, weight, *_ = torch.ops.dovetail.moe_route(logits, self.k, drop="none", slot_order="token")
        y = torch.ops.dovetail.moe_experts(x, weight, expert, slot, self.up, self.down, [], [], self.activation_name)
        return y.to(self.dtype)


class IndexAdd(Side):
    def __init__(self, options, shape, dtype):
        super().__init__(options, shape, dtype)
        self.add_listed()

    def forward(self, x: Tensor) -> Tensor:
        weight, expert = self.route(x)
        y = torch.zeros(TOKENS, WIDTH)
        for e in range(self.experts):
            token, choice = torch.where(expert == e)
            rows = self.activation(x[token] @ self.up[e].t()) @ self.down[e].t()
            y.index_add_(0, token, rows.float() * weight[token, choice, None])
        return y.to(self.dtype)


class Sorted(IndexAdd):
    def forward(self, x: Tensor) -> Tensor:
        rows, token, weight, count = self.sorted_rows(x)
        made = [
            self.activation(part @ self.up[e].t()) @ self.down[e].t()
            for e, part in enumerate(rows.split(count.tolist()))
        ]
        return self.combined(torch.cat(made), token, weight)


class GroupedMm(Side):
    def __init__(self, options, shape, dtype):
        super().__init__(options, shape, dtype)
        self.add_stacked()

    def forward(self, x: Tensor) -> Tensor:
        rows, token, weight, count = self.sorted_rows(x)
        ends = count.cumsum(0).int()
        hidden = self.activation(torch._grouped_mm(rows, self.up.transpose(1, 2), ends))
        return self.combined(torch._grouped_mm(hidden, self.down.transpose(1, 2), ends), token, weight)


class Padded(GroupedMm):
    def forward(self, x: Tensor) -> Tensor:
        rows, token, weight, count = self.sorted_rows(x)
        capacity = int(count.max())
        expert = torch.repeat_interleave(torch.arange(self.experts), count)
        place = expert * capacity + torch.arange(len(token)) - (count.cumsum(0) - count)[expert]
        padded = torch.zeros(self.experts * capacity, WIDTH, dtype=self.dtype).index_copy(0, place, rows)
        hidden = self.activation(torch.bmm(padded.view(self.experts, capacity, WIDTH), self.up.transpose(1, 2)))
        made = torch.bmm(hidden, self.down.transpose(1, 2)).view(-1, WIDTH)
        return self.combined(made[place], token, weight)


SIDES: dict[str, type[Side]] = {
    "dense": Dense,
    "dovetail": Dovetail,
    "index_add": IndexAdd,
    "sorted": Sorted,
    "grouped_mm": GroupedMm,
    "padded": Padded,
}


def keep_freed_memory() -> None:
    """As `dovetail train`, for every side: fresh memory would cost a page fault every 4 KiB."""
    m_trim_threshold, m_mmap_threshold = -1, -3
    libc = ctypes.CDLL(None)
    libc.mallopt(m_mmap_threshold, 1 << 30)
    libc.mallopt(m_trim_threshold, -1)


def step(side: Side, x: Tensor, dy: Tensor) -> float:
    for weight in side.weights:
        weight.grad = None
    x.grad = None
    begin = time.perf_counter()
    side.forward(x).backward(dy)
    return time.perf_counter() - begin


def measure_shape(options, shape: dict, dtype: str) -> dict:
    torch.manual_seed(1)
    sides = {name: SIDES[name](options, shape, DTYPES[dtype]) for name in ["dense", "dovetail", *options.peers]}
    x = torch.randn(TOKENS, WIDTH).to(DTYPES[dtype]).requires_grad_()
    dy = torch.randn(TOKENS, WIDTH).to(DTYPES[dtype])
    times: dict[str, list[float]] = {name: [] for name in sides}
    for round_index in range(options.rounds + 1):
        for name, side in sides.items():
            seconds = step(side, x, dy)
            if round_index > 0:  # the first touches memory
                times[name].append(seconds)
    up_rows = 2 if options.activation == "swiglu" else 1
    flops = 6 * TOKENS * WIDTH * shape["k"] * shape["ff"] * (up_rows + 1)
    return {
        "shape": shape["name"],
        "dtype": dtype,
        "claim": shape["claim"],
        "sides": {
            name: {
                "ms": 1e3 * min(seconds),
                "gflops": flops / min(seconds) / 1e9,
                "of_dense": min(seconds) / min(times["dense"]),
                "of_dense_median": statistics.median(a / b for a, b in zip(seconds, times["dense"], strict=True)),
            }
            for name, seconds in times.items()
        },
    }


def report(result: dict) -> bool:
    here = result["machine"]
    print(f"moe {result['activation']}, {TOKENS} tokens of width {WIDTH}, best of {result['rounds']} rounds")
    print(f"{here['cpu']}, {here['simd']}, {result['threads']} threads, load {here['load_average']:.2f}")
    holds = True
    for line in result["results"]:
        print(f"{line['shape']} {line['dtype']}{'':8}ms  GFLOP/s  of dense (best)  of dense (median)")
        for name, side in line["sides"].items():
            verdict = ""
            if name == "dovetail":
                good = side["of_dense"] <= line["claim"]
                holds = holds and good
                verdict = f"  {'holds' if good else 'DOES NOT HOLD'}: at most {line['claim']:.2f}"
            print(
                f"  {name:12}{side['ms']:10.1f}{side['gflops']:9.0f}{side['of_dense']:17.3f}"
                f"{side['of_dense_median']:19.3f}{verdict}"
            )
    return holds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--dtypes", default="fp32,bf16", help="of " + ",".join(DTYPES))
    parser.add_argument("--activation", default="gelu", choices=ACTIVATIONS)
    parser.add_argument("--peers", default=",".join(PEERS), help="separated by commas; empty: none")
    parser.add_argument("--out", help="also write the result as JSON")
    options = parser.parse_args()
    options.peers = [name for name in options.peers.split(",") if name]
    options.dtypes = options.dtypes.split(",")
    for name, known in [(n, PEERS) for n in options.peers] + [(n, list(DTYPES)) for n in options.dtypes]:
        if name not in known:
            parser.error(f'"{name}" is none of {", ".join(known)}')
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    result = {"benchmark": "moe", "machine": machine()}
    result |= {name: getattr(options, name) for name in ["threads", "rounds", "activation"]}
    result["results"] = [measure_shape(options, shape, dtype) for dtype in options.dtypes for shape in SHAPES]
    holds = report(result)
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps(result, indent=1) + "\n")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
