"""A mixture of experts on a GPU: sizes that stay there beside sizes from the host, a dense layer and PyTorch.

usage: ./dev bench moe_gpu [--rounds N] [--seconds N] [--shapes E16,E64] [--out FILE]

Times a layer in BF16, forward and backward, with its routing. E16 has 16 experts of width 4096, k = 2 and 16384 tokens
of width 1024. E64 has 64 experts of width 1024, k = 8 and 8192 tokens of width 2048. The activation is GELU. Sides:

- device: Dovetail, the sizes of the experts' shares stay on the GPU
- graph: the same as a CUDA graph
- host: Dovetail with DOVETAIL_DISABLE=grouped_mm, the host reads the sizes
- dense: a feed-forward of width k x ff with PyTorch's operators
- torch: sorted rows and `torch._grouped_mm`

The two ways of Dovetail are processes of their own, which take turns. Each also times dense and torch. Events of the
GPU time them in turns; medians count. Before the timing, results and gradients are compared with torch's. One line of
JSON a shape. The last line is of two ranks that share the card (`dovetail bench comm`). It has the share of an
exchange that products hide. It also has the share of a layer's exchanges that two and four chunks hide.

Claims: device takes at most the time of host and of torch. Exit code 1 when one does not hold, 2 without a GPU.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

import torch
import torch.nn.functional as F
from dovetail import moe
from ops_gpu import graphed, times_ms
from torch import Tensor, nn

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHAPES = {
    "E16": {"experts": 16, "k": 2, "tokens": 16384, "width": 1024, "ff": 4096},
    "E64": {"experts": 64, "k": 8, "tokens": 8192, "width": 2048, "ff": 1024},
}
LARGEST_ERROR = 3e-2  # relative, of any row or expert


def gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


class Mixture:
    """x, weights and the step of each side. The experts' weights lie in one tensor, as the trainer's do."""

    def __init__(self, shape: dict):
        self.k, experts, width, ff = shape["k"], shape["experts"], shape["width"], shape["ff"]
        torch.manual_seed(1)
        self.router = self.leaf(experts, width).detach().float().requires_grad_()
        self.up, self.down = self.leaf(experts, ff, width), self.leaf(experts, width, ff)
        self.ups, self.downs = ([nn.Parameter(one) for one in all_.detach().unbind()] for all_ in [self.up, self.down])
        self.dense_up, self.dense_down = self.leaf(self.k * ff, width), self.leaf(width, self.k * ff)
        self.x = self.leaf(shape["tokens"], width)
        self.dy = torch.randn(shape["tokens"], width, device="cuda", dtype=torch.bfloat16)

    @staticmethod
    def leaf(*sizes: int) -> Tensor:
        values = torch.randn(*sizes, device="cuda") * sizes[-1] ** -0.5
        return values.bfloat16().requires_grad_()

    def dovetail(self) -> Tensor:
        to = moe.route(F.linear(self.x.float(), self.router), self.k, drop="none")
        y = torch.ops.dovetail.moe_experts(self.x, to.weight, to.expert, to.slot, self.ups, self.downs, [], [], "gelu")
        return y.bfloat16()

    def torch(self) -> Tensor:
        weight, expert = torch.softmax(self.x.float() @ self.router.t(), dim=-1).topk(self.k, dim=-1)
        weight = weight / weight.sum(dim=-1, keepdim=True)
        order = expert.flatten().argsort(stable=True)
        token = order // self.k
        ends = F.one_hot(expert.flatten(), len(self.up)).sum(0).cumsum(0).int()
        hidden = gelu(torch._grouped_mm(self.x[token], self.up.transpose(1, 2), ends))
        rows = torch._grouped_mm(hidden, self.down.transpose(1, 2), ends).float() * weight.flatten()[order, None]
        return torch.zeros(self.x.shape, device="cuda").index_add(0, token, rows).bfloat16()

    def dense(self) -> Tensor:
        return gelu(self.x @ self.dense_up.t()) @ self.dense_down.t()

    def forget_gradients(self) -> None:
        for leaf in [self.x, self.router, self.up, self.down, *self.ups, *self.downs, self.dense_up, self.dense_down]:
            leaf.grad = None

    def step(self, side) -> None:
        self.forget_gradients()
        side().backward(self.dy)

    def compare(self) -> float:
        """The largest error of Dovetail against torch, of y and the gradients."""
        found = []
        for side in [self.torch, self.dovetail]:
            self.forget_gradients()
            y = side()
            y.backward(self.dy)
            up, down = (
                stacked.grad if apart[0].grad is None else torch.stack([weight.grad for weight in apart])
                for stacked, apart in [(self.up, self.ups), (self.down, self.downs)]
            )
            found.append([y.detach(), self.x.grad, self.router.grad, up, down])
        return max(largest_error(ours, theirs) for theirs, ours in zip(*found, strict=True))


def largest_error(ours: Tensor, theirs: Tensor) -> float:
    ours, theirs = ours.float().flatten(1), theirs.float().flatten(1)
    return float(((ours - theirs).norm(dim=1) / theirs.norm(dim=1).clamp_min(1e-20)).max())


def work(options) -> int:
    """The process of one way: a line of JSON for each shape."""
    way = options.way
    for name in options.shapes:
        mixture = Mixture(SHAPES[name])
        error = mixture.compare()
        if not error <= LARGEST_ERROR:
            sys.exit(f"bench/moe_gpu: {name} {way} computes something else than torch: error {error:.1e}")
        works = {
            "dense": lambda m=mixture: m.step(m.dense),
            "torch": lambda m=mixture: m.step(m.torch),
            way: lambda m=mixture: m.step(m.dovetail),
        }
        if way == "device":
            works["graph"] = graphed(works[way])
        ms = dict(zip(works, times_ms(list(works.values()), options.seconds), strict=True))
        print(json.dumps({"shape": name, "error": error, "ms": ms}), flush=True)
    return 0


def run(way: str, options) -> list[dict]:
    command = [sys.executable, __file__, "--way", way, "--seconds", str(options.seconds)]
    command += ["--shapes", ",".join(options.shapes)]
    disabled = {"DOVETAIL_DISABLE": "grouped_mm"} if way == "host" else {}
    done = subprocess.run(command, env=os.environ | disabled, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"bench/moe_gpu: the process of {way} failed")
    return [json.loads(line) for line in done.stdout.splitlines()]


def overlap() -> dict:
    """The shares of exchanges that computing hides on two ranks of this card."""
    words = ["launch", "-n", "2", "bench", "comm", "--device", "cuda", "--json"]
    words += ["--tokens", "8192", "--width", "1024", "--hidden", "4096"]
    program = os.environ.get("DOVETAIL_BINARY", str(ROOT / "build/release/bin/dovetail"))
    done = subprocess.run([program, *words], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit("bench/moe_gpu: two ranks on one card failed")
    found = json.loads(done.stdout)
    of_chunks = dict(zip(["overlap_2", "overlap_4"], found["layer_hidden_share"], strict=True))
    ms = {point["what"]: point["measured_s"] * 1e3 for point in found["layer_forward"]}
    hidden = {"exchange": found["model"]["overlap_share"], **of_chunks}
    return {"benchmark": "moe_gpu", "gpu": torch.cuda.get_device_name(), "ranks": 2, "ms": ms, "hidden_share": hidden}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2, help="of a shape in a process")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--way", choices=["device", "host"], help=argparse.SUPPRESS)
    parser.add_argument("--out", help="also write the lines as JSON")
    options = parser.parse_args()
    options.shapes = options.shapes.split(",")
    if not torch.cuda.is_available():
        print("moe_gpu: there is no GPU here that torch can use", file=sys.stderr)
        return 2
    if options.way:
        return work(options)
    found: dict[str, list[dict]] = {name: [] for name in options.shapes}
    for _ in range(options.rounds):
        for way in ["device", "host"]:
            for line in run(way, options):
                found[line["shape"]].append(line)
    holds, lines = True, []
    for name, of_shape in found.items():
        sides = sorted({side for line in of_shape for side in line["ms"]})
        ms = {side: min(line["ms"][side] for line in of_shape if side in line["ms"]) for side in sides}
        over = {f"device_over_{side}": ms["device"] / ms[side] for side in ["host", "torch", "dense"]}
        good = over["device_over_host"] <= 1 and over["device_over_torch"] <= 1
        holds = holds and good
        head = {"benchmark": "moe_gpu", "gpu": torch.cuda.get_device_name(), "shape": name, **SHAPES[name]}
        lines.append(head | {"ms": ms, "error": max(line["error"] for line in of_shape)} | over | {"holds": good})
        print(json.dumps(lines[-1]), flush=True)
    lines.append(overlap())
    print(json.dumps(lines[-1]), flush=True)
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps(lines, indent=1) + "\n")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
