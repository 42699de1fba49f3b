"""Operations of a GPT on a GPU beside PyTorch's: norms, activations, attention with rotary positions, cross-entropy.

usage: ./dev bench ops_gpu [--seconds N] [--widths 768,2048,4096]

Each operation has a line of JSON, forward and with backward. Both sides are CUDA graphs, so that no launch counts.
Events of the GPU time them in turns; medians count. `of_copy_bandwidth` is our rate over a copy's, by the bytes that
the operation must move. PyTorch runs its own functions in BF16. Its attention rotates queries and keys as Hugging
Face's Llama does. Claims: norms and cross-entropy take at most 1.0 of PyTorch's time. Exit code 1 when one does not
hold, 2 without a GPU.
"""

import argparse
import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from dovetail import functional as D

ROWS, VOCAB = 16384, 50304


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


def times_ms(works, seconds: float) -> list[float]:
    """Median of one call of each of `works`, which take turns."""
    for _ in range(3):
        for work in works:
            work()
    torch.cuda.synchronize()
    events, stop = [[] for _ in works], time.monotonic() + seconds
    while len(events[0]) < 5 or (time.monotonic() < stop and len(events[0]) < 60):
        for pairs, work in zip(events, works, strict=True):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            work()
            end.record()
            pairs.append((begin, end))
        torch.cuda.synchronize()
    return [statistics.median(begin.elapsed_time(end) for begin, end in pairs) for pairs in events]


def graphed(work):
    """Replay of `work` as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def copy_bandwidth() -> float:
    source = torch.ones(1 << 28, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / (times_ms([lambda: target.copy_(source)], 0.5)[0] / 1e3)


def leaf(*shape: int, scale: float = 1.0) -> torch.Tensor:
    return (scale * torch.randn(*shape, device="cuda", dtype=torch.bfloat16)).requires_grad_()


def cases(widths: list[int]):
    """Name, inputs, ours, theirs, passes over an input's bytes forward and with backward (None: not bound by bytes)."""
    for width in widths:
        x = leaf(ROWS, width)
        weight = torch.ones(width, device="cuda", requires_grad=True)
        bias = torch.zeros(width, device="cuda", requires_grad=True)
        weight16, bias16 = weight.detach().bfloat16().requires_grad_(), bias.detach().bfloat16().requires_grad_()
        yield (
            f"layer_norm {width}",
            [x, weight, bias, weight16, bias16],
            lambda x=x, w=weight, b=bias: D.layer_norm(x, w, b),
            lambda x=x, w=weight16, b=bias16, n=width: F.layer_norm(x, (n,), w, b, 1e-5),
            (2, 5),
        )
        yield (
            f"rms_norm {width}",
            [x, weight, weight16],
            lambda x=x, w=weight: D.rms_norm(x, w),
            lambda x=x, w=weight16, n=width: F.rms_norm(x, (n,), w, 1e-5),
            (2, 5),
        )
    x = leaf(ROWS, 8192)
    yield "gelu 8192", [x], lambda: D.gelu(x), lambda: F.gelu(x, approximate="tanh"), (2, 5)
    yield (
        "swiglu 8192",
        [x],
        lambda: D.swiglu(x),
        lambda: F.silu(x[:, :4096]) * x[:, 4096:],
        (1.5, 4),
    )
    q, k, v = (leaf(16, 1024, 12, 64) for _ in range(3))
    angle = torch.outer(torch.arange(1024, device="cuda"), 10000.0 ** (-torch.arange(0, 64, 2, device="cuda") / 64))
    cos, sin = (torch.cat([f(angle)] * 2, -1)[None, :, None].bfloat16() for f in (torch.cos, torch.sin))

    def theirs():
        turned = [rotate(t, cos, sin).transpose(1, 2) for t in (q, k)]
        return F.scaled_dot_product_attention(*turned, v.transpose(1, 2), is_causal=True).transpose(1, 2)

    yield "attention 16x1024x12x64 rotary", [q, k, v], lambda: D.attention(q, k, v, rotary_dim=64), theirs, None
    hidden, head = leaf(ROWS, 768), leaf(VOCAB, 768, scale=0.02)
    targets = torch.randint(VOCAB, (ROWS,), device="cuda")
    yield (
        "linear + cross-entropy 768x50304",
        [hidden, head],
        lambda: D.linear_cross_entropy(hidden, head, targets),
        lambda: F.cross_entropy(F.linear(hidden, head), targets, reduction="sum"),
        None,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--widths", default="768,2048,4096")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU", file=sys.stderr)
        return 2
    widths = [int(width) for width in options.widths.split(",")]
    share = options.seconds / (2 * (2 * len(widths) + 4))
    bandwidth, holds = copy_bandwidth(), True
    for name, inputs, ours, theirs, passes in cases(widths):
        gradient = torch.ones_like(ours())

        def train(work, inputs=inputs, gradient=gradient) -> None:
            for tensor in inputs:
                tensor.grad = None
            work().backward(gradient)

        def forward(work) -> None:
            with torch.no_grad():
                work()

        claimed = "norm" in name or "cross" in name
        for what, run in [("forward", forward), ("forward and backward", train)]:
            a, b = times_ms([graphed(lambda run=run, work=work: run(work)) for work in (ours, theirs)], share)
            line = {"benchmark": "ops_gpu", "operation": name, "pass": what, "ms": round(a, 4), "torch_ms": round(b, 4)}
            line["over_torch"] = round(a / b, 3)
            if passes:
                moved = passes[what != "forward"] * inputs[0].nbytes
                line["of_copy_bandwidth"] = round(moved / (a / 1e3) / bandwidth, 3)
            if claimed:
                line["holds"] = a <= b
                holds = holds and a <= b
            print(json.dumps(line), flush=True)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
