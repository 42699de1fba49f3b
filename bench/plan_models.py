"""dovetail.plan.step on four PyTorch models: ResNet-50, a UNet with batch norm, GPT-2 and ViT, on a CPU.

usage: ./dev bench plan_models [--models resnet50,unet,gpt2,vit] [--budget 0.6] [--steps N] [--folder DIR] [--out FILE]

Sides are processes of their own, one after another, with the same weights and batches:

- eager: PyTorch alone.
- checkpoint: torch.utils.checkpoint around each block.
- planned: a budget of 0.6 of the growth of eager's process.
- same peak: a budget of the growth of checkpoint's process.

Growth is the high-water mark of the process minus its memory before the model, with all modules imported. It includes
the recorded steps. Step times are the best of the last steps.

Claims: planned losses of all steps are eager's to the bit. The process grows by at most the budget plus 64 MiB. At
checkpoint's peak a step takes at most 1.15 of checkpoint's time. Exit code 1 when a claim does not hold.
"""

import argparse
import functools
import json
import os
import pathlib
import subprocess
import sys
import time

import dovetail
import torch
import transformers
from conv_models import unet
from peers import machine, resident
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

# transformers imports a model's module when its class is named.
GPT2, ViT, ResNet = (
    transformers.GPT2LMHeadModel,
    transformers.ViTForImageClassification,
    transformers.ResNetForImageClassification,
)
BESIDE_BYTES = 64 << 20
MOST_TIME = 1.15
UNTIL_PLAN = 8  # steps


def make(name: str):
    """Returns a model, its blocks and a function that makes the batch of a step and computes its loss."""

    def images(size, rows, labels):
        return lambda g: (torch.randn(rows, 3, size, size, generator=g), torch.randint(0, 2, labels, generator=g))

    def classify(model, x, y):
        return functional.cross_entropy(getattr(out := model(x), "logits", out), y)

    if name == "unet":
        return *unet(), images(128, 4, (4, 128, 128)), classify
    if name == "resnet50":
        model = ResNet(transformers.ResNetConfig())
        blocks = [layer for stage in model.resnet.encoder.stages for layer in stage.layers]
        return model, blocks, images(128, 16, (16,)), classify
    if name == "vit":
        config = transformers.ViTConfig(
            hidden_size=384, num_attention_heads=6, intermediate_size=1536, image_size=128, hidden_dropout_prob=0.1
        )
        model = ViT(config)
        blocks = [
            module for module in model.modules() if isinstance(module, transformers.models.vit.modeling_vit.ViTLayer)
        ]
        return model, blocks, images(128, 16, (16,)), classify
    config = transformers.GPT2Config(
        vocab_size=8192, n_positions=256, n_embd=384, n_layer=8, n_head=6, bos_token_id=0, eos_token_id=0
    )
    model = GPT2(config)

    def tokens(generator):
        return (torch.randint(0, config.vocab_size, (8, 256), generator=generator),) * 2

    return model, list(model.transformer.h), tokens, lambda model, x, y: model(input_ids=x, labels=y).loss


def side(options) -> None:
    """Trains one side and prints its figures."""
    before = resident("VmRSS")
    torch.manual_seed(0)
    model, blocks, batch_of, loss_of = make(options.models)
    if options.side == "checkpoint":
        for block in blocks:
            block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def train_step(x, y):
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        return loss.item()

    step = train_step
    if options.bytes:
        step = dovetail.plan.step(
            train_step, model, optimizer, budget=str(options.bytes), folder=options.folder or None, solve_s=20
        )
    losses, seconds = [], []
    for number in range(options.steps):
        batch = batch_of(torch.Generator().manual_seed(number))
        torch.manual_seed(number)
        start = time.perf_counter()
        losses.append(step(*batch))
        seconds.append(time.perf_counter() - start)
    out = {"losses": losses, "step_s": min(seconds[UNTIL_PLAN:]), "growth_bytes": resident("VmHWM") - before}
    if options.bytes:
        report = dovetail.plan.report(step)
        out |= {key: report[key] for key in ("budget_bytes", "step_bytes", "keep_all_bytes", "operations", "solve_s")}
    print(json.dumps(out))


def run(options, model: str, name: str, budget: int = 0) -> dict:
    command = [sys.executable, __file__, "--side", name, "--models", model, "--steps", str(options.steps)]
    command += ["--bytes", str(budget), "--folder", options.folder]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{model}, {name}: exit code {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def compare(options, model: str) -> tuple[dict, bool]:
    """Prints the table of one model. Returns its figures, and False if a claim does not hold."""
    sides = {"eager": run(options, model, "eager"), "checkpoint": run(options, model, "checkpoint")}
    peer = sides["checkpoint"]
    sides["planned"] = run(options, model, "planned", int(options.budget * sides["eager"]["growth_bytes"]))
    sides["same peak"] = run(options, model, "same peak", peer["growth_bytes"] - BESIDE_BYTES)
    print(f"\n{model}\n{'side':12} {'ms a step':>10} {'of eager':>9} {'growth MiB':>11} {'budget MiB':>11}  losses")
    holds = True
    for name, made in sides.items():
        same = made["losses"] == sides["eager"]["losses"]
        budget = f"{made['budget_bytes'] / 2**20:.0f}" if "budget_bytes" in made else ""
        ratio = made["step_s"] / sides["eager"]["step_s"]
        print(
            f"{name:12} {1e3 * made['step_s']:10.0f} {ratio:8.2f}x {made['growth_bytes'] / 2**20:11.0f} {budget:>11}"
            f"  {'equal' if same else 'differ'}"
        )
        if budget:
            holds &= same and made["growth_bytes"] <= made["budget_bytes"] + BESIDE_BYTES
    ratio = sides["same peak"]["step_s"] / peer["step_s"]
    holds &= ratio <= MOST_TIME
    print(f"at checkpoint's peak: {ratio:.2f} of its time (claim: at most {MOST_TIME})")
    return sides, holds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="resnet50,unet,gpt2,vit")
    parser.add_argument("--budget", type=float, default=0.6, help="share of the growth of eager's process")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--folder", default="", help="folder to which plans may copy tensors")
    parser.add_argument("--out", help="also write the result as JSON")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--bytes", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        side(options)
        return 0
    here = machine()
    print(f"{here['cpu']}, {here['simd']}, {os.cpu_count()} threads, load {here['load_average']:.2f}")
    result = {"benchmark": "plan_models", "machine": here, "models": {}}
    holds = True
    for model in options.models.split(","):
        result["models"][model], good = compare(options, model)
        holds &= good
    print(f"\nclaims {'hold' if holds else 'DO NOT HOLD'}")
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps(result, indent=2) + "\n")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
