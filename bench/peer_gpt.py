"""The peer of bench/gpt.py: the same GPT in PyTorch, as a PyTorch user would write it for speed.

Scaled-dot-product attention, fused AdamW, foreach gradient clipping, optionally torch.compile. Speaks the protocol of
bench/gpt.py on stdin and stdout.
"""

import argparse
import contextlib
import ctypes
import gc
import json
import sys
import time

import torch
import torch._functorch.config
import torch.nn.functional as F
from peers import resident
from safetensors.torch import load_file
from torch import nn
from torch.utils.checkpoint import checkpoint

EPS = 1e-5


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width, eps=EPS)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.ffn_norm = nn.LayerNorm(width, eps=EPS)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        heads = self.qkv(self.attention_norm(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(F.gelu(self.up(self.ffn_norm(x)), approximate="tanh"))


class PeerGPT(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, context: int, vocab: int):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width, eps=EPS)
        self.recompute = False

    def forward(self, tokens):
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        x = self.embed(inputs) + self.positions.weight[: inputs.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        logits = F.linear(self.norm(x), self.embed.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


# Our parameter names, so that both sides start from the same weights.
NAMES = {
    "attention.qkv": "qkv",
    "attention.out": "out",
    "ffn.up": "up",
    "ffn.down": "down",
}


def load_ours(model: PeerGPT, path: str) -> None:
    state = {}
    for name, tensor in load_file(path).items():
        for ours, theirs in NAMES.items():
            name = name.replace(ours, theirs)
        state[name] = tensor
    model.load_state_dict(state)


class Step:
    """One optimizer step; `precision` is fp32, autocast (bf16 products, fp32 weights) or master (bf16 weights)."""

    def __init__(self, model: PeerGPT, precision: str, compiled: bool, lr: float):
        self.model, self.precision = model, precision
        self.save_on_cpu = False
        self.masters = None
        if precision == "master":
            self.masters = [p.detach().clone() for p in model.parameters()]
            model.to(torch.bfloat16)
        parameters = self.masters or list(model.parameters())
        groups = [
            {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
            {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
        ]
        self.parameters = parameters
        self.optimizer = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), eps=1e-8, fused=True)
        self.forward = torch.compile(model) if compiled else model

    def __call__(self, tokens) -> float:
        saving = torch.autograd.graph.save_on_cpu() if self.save_on_cpu else contextlib.nullcontext()
        with saving, torch.autocast("cpu", torch.bfloat16, enabled=self.precision == "autocast"):
            loss = self.forward(tokens)
        loss.backward()
        if self.masters:
            working = list(self.model.parameters())
            for master, parameter in zip(self.masters, working, strict=True):
                master.grad = parameter.grad.float()
                parameter.grad = None
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.masters:
            with torch.no_grad():
                torch._foreach_copy_(list(self.model.parameters()), self.masters)
        return loss.item()


def reset_peak() -> None:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def shares(step, tokens) -> dict:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profile:
        step(tokens)
    kinds = {"gemm": 0.0, "attention": 0.0, "other": 0.0}
    for event in profile.key_averages():
        name = event.key
        if "attention" in name or "flash" in name:
            kind = "attention"
        elif name in {"aten::mm", "aten::addmm", "aten::bmm", "aten::linear", "mkldnn::_linear_pointwise"}:
            kind = "gemm"
        else:
            kind = "other"
        kinds[kind] += event.self_cpu_time_total
    total = sum(kinds.values())
    return {kind: value / total for kind, value in kinds.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("layers", "width", "heads", "context", "vocab", "batch", "threads"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--precision", choices=["fp32", "autocast", "master"], required=True)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--activation-memory-budget", type=float, help="of torch.compile's partitioner, 0 to 1")
    parser.add_argument("--checkpoint", action="store_true", help="recompute every block")
    parser.add_argument("--save-on-cpu", action="store_true", help="torch.autograd.graph.save_on_cpu")
    parser.add_argument("--weights", required=True)
    parser.add_argument("--lr", type=float, required=True)
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    if options.activation_memory_budget is not None:
        torch._functorch.config.activation_memory_budget = options.activation_memory_budget
    baseline = resident("VmRSS")
    reset_peak()
    model = PeerGPT(options.layers, options.width, options.heads, options.context, options.vocab)
    load_ours(model, options.weights)
    model.recompute = options.checkpoint
    step = Step(model, options.precision, options.compile, options.lr)
    step.save_on_cpu = options.save_on_cpu
    generator = torch.Generator().manual_seed(1)
    shape = (options.batch, options.context + 1)
    tokens = torch.randint(options.vocab, shape, generator=generator)

    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        command = line.split()
        if command[0] == "steps":
            losses, begin = [], time.perf_counter()
            for _ in range(int(command[1])):
                losses.append(step(tokens))
            reply = {"seconds": time.perf_counter() - begin, "losses": losses}
        elif command[0] == "memory":
            reply = {"bytes": resident("VmHWM") - baseline}
        elif command[0] == "warm":  # memory counts from here on: compiling took its own
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)
            reset_peak()
            reply = {}
        elif command[0] == "shares":
            reply = shares(step, tokens)
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
