"""Training throughput of GPT on a GPU: `dovetail train` and PyTorch, eager and compiled, on the same card.

usage: ./dev bench gpt_gpu [--sizes 124m,10m] [--sides bf16,mxfp8,eager,compile] [--seconds N]

Dovetail's side is the whole program as a user runs it. A peer is the same GPT in PyTorch: autocast to bfloat16,
float32 weights, fused AdamW, foreach clipping, TF32 allowed. A row is a JSON line. It has the median step after
warm-up, tokens per second and peak memory of the allocator. It also has the loss of the first and the last step. Each
row is a process of its own with a time limit.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent

SIZES = {
    "10m": {"layers": 6, "width": 384, "heads": 6, "context": 256, "vocab": 320, "batch": 64, "steps": 120},
    "124m": {"layers": 12, "width": 768, "heads": 12, "context": 1024, "vocab": 50304, "batch": 16, "steps": 40},
}
WARM = 10  # steps before the first that counts


def some_text(length: int) -> str:
    words = ["two", "gears", "mesh", "and", "neither", "waits", "for", "the", "other", "while", "data", "flows"]
    state, text = 1, []
    while length > 0:
        state = (state * 1103515245 + 12345) % 2**31
        word = words[state // 65536 % len(words)] + (".\n" if state // 1024 % 11 == 0 else " ")
        text.append(word)
        length -= len(word)
    return "".join(text)


def ours(size: dict, recipe: str, folder: pathlib.Path) -> dict:
    program = os.environ.get("DOVETAIL_BINARY", str(ROOT / "build/release/bin/dovetail"))
    (folder / "text.txt").write_text(some_text(2_000_000))
    settings = {
        "run.folder": f'"{folder / "run"}"',
        "run.name": '"bench"',
        "run.device": '"cuda"',
        "data.text": f'["{folder / "text.txt"}"]',
        "data.path": f'"{folder / "data"}"',
        "data.tokenizer.kind": '"bytes"',
        "data.validation_split": '"tail"',
        "data.validation_fraction": "0.02",
        "model.layers": size["layers"],
        "model.width": size["width"],
        "model.heads": size["heads"],
        "model.context": size["context"],
        "model.vocab_size": size["vocab"],
        "model.norm": '"layernorm"',
        "model.activation": '"gelu"',
        "model.positions": '"learned"',
        "model.bias": "true",
        "model.tied": "true",
        "train.steps": size["steps"],
        "train.batch": size["batch"],
        "train.clip": "1.0",
        "precision.recipe": f'"{recipe}"',
        "eval.every_steps": "0",
        "checkpoint.every_steps": "0",
        "log.tensorboard": "false",
    }
    (folder / "bench.toml").write_text("\n".join(f"{key} = {value}" for key, value in settings.items()) + "\n")
    done = subprocess.run([program, "train", str(folder / "bench.toml"), "--fresh"], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-2000:])
    timings = [json.loads(line) for line in (folder / "run/timings.jsonl").read_text().splitlines()]
    losses = [json.loads(line)["loss"] for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    machine = json.loads((folder / "run/machine.json").read_text())
    return {
        "step_ms": statistics.median(line["step_ms"] for line in timings[WARM:]),
        "least_ms": min(line["step_ms"] for line in timings[WARM:]),
        "peak_bytes": machine["memory"]["peak_bytes"],
        "losses": [losses[0], losses[-1]],
    }


def peer(size: dict, compiled: bool) -> dict:
    import torch
    from peer_gpt import PeerGPT

    torch.set_float32_matmul_precision("high")
    torch.manual_seed(1)
    model = PeerGPT(size["layers"], size["width"], size["heads"], size["context"], size["vocab"]).cuda()
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), eps=1e-8, fused=True)
    forward = torch.compile(model) if compiled else model
    tokens = torch.randint(min(size["vocab"], 256), (size["batch"], size["context"] + 1), device="cuda")

    def step():
        with torch.autocast("cuda", torch.bfloat16):
            loss = forward(tokens)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    first = step().item()
    for _ in range(WARM - 1):
        loss = step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(max(4, (size["steps"] - WARM) // 5)):
        begin = time.perf_counter()
        for _ in range(5):
            loss = step()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - begin) / 5)
    return {
        "step_ms": statistics.median(times),
        "least_ms": min(times),
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "losses": [first, loss.item()],
    }


def row(name: str, side: str) -> dict:
    size = SIZES[name]
    if side in ("eager", "compile"):
        result = peer(size, side == "compile")
    else:
        with tempfile.TemporaryDirectory() as folder:
            result = ours(size, side, pathlib.Path(folder))
    result["tokens_per_s"] = round(1e3 * size["batch"] * size["context"] / result["step_ms"])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="124m,10m")
    parser.add_argument("--sides", default="bf16,mxfp8,eager,compile")
    parser.add_argument("--seconds", type=float, default=150, help="limit of each row")
    parser.add_argument("--row", nargs=2, metavar=("SIZE", "SIDE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        print(json.dumps(row(*options.row)))
        return
    for size in options.sizes.split(","):
        for side in options.sides.split(","):
            line = {"benchmark": "gpt_gpu", "size": size, "side": side}
            command = [sys.executable, __file__, "--row", size, side]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=options.seconds)
                if done.returncode == 0:
                    line |= json.loads(done.stdout.splitlines()[-1])
                else:
                    line["failed"] = done.stderr[-1500:]
            except subprocess.TimeoutExpired:
                line["failed"] = f"not done after {options.seconds} s"
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
