"""dovetail.plan.step on a GPU: VGG-19, UNet and a GPT within budgets, beside checkpointing and torch.compile.

usage: ./dev bench plan_gpu [--models vgg19,unet,gpt] [--sides eager,checkpoint,compile,0.8,0.6,0.6a,peak] [--seconds N]

Sides are processes of their own, with the same weights and batches:

- eager: PyTorch alone. compile: torch.compile with activation_memory_budget 0.5.
- checkpoint: torch.utils.checkpoint around each block.
- 0.8, 0.6, ...: a plan with this share of the memory of a step that keeps everything. 0.6a: cuDNN's algorithms, too.
- peak: a plan with the peak of checkpoint.

A row is a JSON line: the best step, the peak of the allocator over the last steps, and losses. The peak is counted
above the bytes before the model. Rows of plans also have the budget and the predicted step. cuDNN is deterministic, and
TF32 is off. So losses of plans without "a" must equal eager's. Exit code 1: a loss differs, or a peak exceeds its
budget by more than 1 % and 2 MiB.
"""

import argparse
import functools
import json
import subprocess
import sys
import time

import dovetail
import torch
from conv_models import unet, vgg19
from peers import resident
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

STEPS, UNTIL_PLAN = 20, 8
SIZES = {  # images or sequences of a step: on a GPU, and to try the program on a CPU
    "vgg19": {"cuda": 144, "cpu": 2},
    "unet": {"cuda": 60, "cpu": 2},
    "gpt": {"cuda": 16, "cpu": 2},
}


class Gpt(nn.Module):
    """GPT of 12 layers of 768 with a tied head."""

    def __init__(self, vocabulary=50304, context=1024, width=768, layers=12, heads=12):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, ids):
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], device=ids.device)
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return functional.linear(self.norm(x), self.tokens.weight)


def make(name: str, device: str):
    """Returns a model, its blocks, and a function that makes the batch of a step."""
    rows = SIZES[name][device]
    if name == "gpt":
        model = Gpt() if device == "cuda" else Gpt(512, 64, 64, 2, 2)
        vocabulary, context = model.tokens.num_embeddings, model.places.num_embeddings
        return model, list(model.layers), lambda g: torch.randint(vocabulary, (2, rows, context), generator=g).unbind()
    size = (224 if name == "vgg19" else 384) if device == "cuda" else 224 if name == "vgg19" else 64
    model, blocks = vgg19() if name == "vgg19" else unet(64)
    labels = (rows,) if name == "vgg19" else (rows, size, size)
    return (
        model,
        blocks,
        lambda g: (torch.randn(rows, 3, size, size, generator=g), torch.randint(0, 2, labels, generator=g)),
    )


def side(options) -> None:
    """Trains one side and prints its row."""
    on_gpu = options.device == "cuda"
    if on_gpu:
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.allow_tf32 = False
        torch.ones(8, 8, device="cuda") @ torch.ones(8, 8, device="cuda")  # workspaces of libraries
    before = torch.cuda.memory_allocated() if on_gpu else resident("VmRSS")
    torch.manual_seed(0)
    model, blocks, batch_of = make(options.models, options.device)
    model = model.to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    forward = model
    if options.side == "checkpoint":
        for block in blocks:
            block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
    if options.side == "compile":
        torch._functorch.config.activation_memory_budget = 0.5
        forward = torch.compile(model)

    def train_step(x, y):
        optimizer.zero_grad()
        made = forward(x)
        logits = made.flatten(0, 1) if y.dim() == 2 and made.dim() == 3 else made
        loss = functional.cross_entropy(logits, y.flatten() if logits is not made else y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = train_step
    if options.budget:
        allow = ["recompute"] + (["offload"] if on_gpu else []) + (["algorithms"] if options.side[-1] == "a" else [])
        step = dovetail.plan.step(train_step, model, optimizer, budget=options.budget, allow=allow, solve_s=10)
    losses, seconds = [], []
    for number in range(STEPS):
        batch = [x.to(options.device) for x in batch_of(torch.Generator().manual_seed(number))]
        torch.manual_seed(number)
        if number == UNTIL_PLAN and on_gpu:
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        losses.append(step(*batch).item())  # waits for the device
        seconds.append(time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated() if on_gpu else resident("VmHWM")
    row = {"model": options.models, "side": options.side, "rows": SIZES[options.models][options.device]}
    row |= {"step_ms": 1e3 * min(seconds[UNTIL_PLAN:]), "peak_bytes": peak - before, "losses": losses}
    if options.budget:
        report = dovetail.plan.report(step)
        row |= {"predicted_ms": 1e3 * report["predicted_s"], "budget_bytes": report["budget_bytes"]}
        row |= {key: report[key] for key in ("keep_all_bytes", "floor_bytes", "offloaded_bytes", "again_bytes")}
    print(json.dumps(row), flush=True)


def run(options, model: str, name: str, peak: int, limit: float) -> dict:
    """Runs a side as a process. Returns its row, or what went wrong."""
    budget = str(peak) if name == "peak" else f"{name.rstrip('a')}x" if name[0].isdigit() else ""
    command = [sys.executable, __file__, "--side", name, "--models", model, "--budget", budget]
    command += ["--device", options.device]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=max(limit, 1))
    except subprocess.TimeoutExpired:
        return {"model": model, "side": name, "error": "out of time"}
    rows = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not rows:
        return {"model": model, "side": name, "error": done.stderr[-1500:]}
    return json.loads(rows[-1])


def compare(options, model: str, ends: float) -> bool:
    """Prints the rows of one model. Returns False if a claim does not hold or a side fails."""
    made, holds = {}, True
    for name in options.sides.split(","):
        if name == "peak" and "peak_bytes" not in made.get("checkpoint", {}):
            print(json.dumps({"model": model, "side": name, "error": "no peak of checkpoint"}))
            holds = False
            continue
        peak = made["checkpoint"]["peak_bytes"] if name == "peak" else 0
        row = made[name] = run(options, model, name, peak, ends - time.monotonic())
        losses = row.pop("losses", None)
        if losses is not None:
            row |= {"first_loss": losses[0], "last_loss": losses[-1]}
            made.setdefault("losses", losses)
        if "budget_bytes" in row:
            row["equal"] = losses == made["losses"]
            over = row["peak_bytes"] - 1.01 * row["budget_bytes"] - (2 << 20)
            holds &= (row["equal"] or name.endswith("a")) and (over <= 0 or options.device == "cpu")
        holds &= "error" not in row
        print(json.dumps(row), flush=True)
    return holds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="vgg19,unet,gpt")
    parser.add_argument("--sides", default="eager,checkpoint,compile,0.8,0.6,0.6a,peak", help="eager must be first")
    parser.add_argument("--seconds", type=float, default=3600, help="time limit of everything")
    parser.add_argument(
        "--device", default="cuda", choices=["cuda", "cpu"], help="cpu: tiny models, to try the program"
    )
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--budget", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        side(options)
        return 0
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("error: no GPU here; --device cpu tries the program on a CPU")
    ends = time.monotonic() + options.seconds
    holds = all([compare(options, model, ends) for model in options.models.split(",")])
    print("claims hold" if holds else "claims DO NOT HOLD")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
