"""A Transformer encoder trained within a part of its memory by `dovetail.plan.step`, beside plain PyTorch.

The task is to find the brightest of 64 patches. Both trainings begin with the same weights and see the same batches, so
their losses are equal to the bit.
"""

import statistics
import time

import dovetail
import torch
from torch import nn

PATCHES, WIDTH, BATCH, STEPS = 64, 96, 32, 30


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(16, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x):
        return self.head(self.layers(self.embed(x)))[..., 0]


def train(budget):
    """Returns losses, the median seconds of the last ten steps, and the step."""
    torch.manual_seed(1)
    model = Encoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def train_step(x, y):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    step = train_step
    if budget:
        step = dovetail.plan.step(train_step, model, optimizer, budget=budget, solve_s=5)
    losses, seconds = [], []
    for _ in range(STEPS):
        x = torch.randn(BATCH, PATCHES, 16)
        start = time.perf_counter()
        losses.append(step(x, x.sum(-1).argmax(1)))
        seconds.append(time.perf_counter() - start)
    return losses, statistics.median(seconds[-10:]), step


eager_losses, eager_s, _ = train(None)
print(f"{'':10} {'last loss':>9} {'MiB of a step':>13} {'ms of a step':>12}")
for budget in ("0.7x", "0.4x"):
    losses, seconds, step = train(budget)
    figures = dovetail.plan.report(step)
    if budget == "0.7x":
        print(f"{'PyTorch':10} {eager_losses[-1]:9.4f} {figures['keep_all_bytes'] / 2**20:13.1f} {1e3 * eager_s:12.1f}")
    print(f"{budget:10} {losses[-1]:9.4f} {figures['step_bytes'] / 2**20:13.1f} {1e3 * seconds:12.1f}")
    print(f"  losses of all {STEPS} steps equal PyTorch's: {losses == eager_losses}")
