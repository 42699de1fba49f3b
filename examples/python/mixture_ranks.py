"""A mixture whose experts are spread over ranks, in DistributedDataParallel, beside the same model in one process.

    python mixture_ranks.py
    torchrun --standalone --nproc-per-node 2 mixture_ranks.py

Each rank has a part of the experts and of each batch. The experts are modules of the program's own. The results are the
ones of one process, up to rounding. The task is to predict the next character of Python's own help texts.
"""

import os
import time
from pydoc_data.topics import topics

import torch
from dovetail import moe
from torch import distributed, nn

CONTEXT, WIDTH, EXPERTS, K = 16, 64, 8, 2
BATCH, STEPS = 512, 150
ranks = int(os.environ.get("WORLD_SIZE", 1))
if ranks > 1:
    distributed.init_process_group("gloo")
rank = distributed.get_rank() if ranks > 1 else 0
torch.manual_seed(0)  # the same on all ranks, so that the replicated parameters are equal

text = "\n".join(topics[name] for name in sorted(topics))
alphabet = sorted(set(text))
index = {character: i for i, character in enumerate(alphabet)}
windows = torch.tensor([index[character] for character in text]).unfold(0, CONTEXT + 1, 1)
train, held_out = windows[: len(windows) * 9 // 10], windows[len(windows) * 9 // 10 :: 32]


def expert() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 128), nn.SiLU(), nn.LayerNorm(128), nn.Linear(128, WIDTH))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Sequential(nn.Embedding(len(alphabet), 32), nn.Flatten(), nn.Linear(CONTEXT * 32, WIDTH))
        group = distributed.group.WORLD if ranks > 1 else None
        self.norm, self.mixture = nn.LayerNorm(WIDTH), moe.MoELayer(WIDTH, None, EXPERTS, K, expert=expert, group=group)
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(alphabet)))

    def forward(self, x):
        x = self.embed(x)
        y, router_loss = self.mixture(self.norm(x))
        return self.head(x + y), router_loss


model = trained = Model()
if ranks > 1:
    DDP = nn.parallel.DistributedDataParallel
    DDP._set_params_and_buffers_to_ignore_for_model(model, list(moe.expert_parameters(model)))
    trained = DDP(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

begin = time.perf_counter()
for _ in range(STEPS):
    rows = train[torch.randint(len(train), (BATCH,))].chunk(ranks)[rank]
    logits, router_loss = trained(rows[:, :-1])
    loss = nn.functional.cross_entropy(logits, rows[:, -1]) + router_loss
    optimizer.zero_grad()
    loss.backward()
    if ranks > 1:
        moe.average_gradients(model)
    optimizer.step()
seconds = time.perf_counter() - begin

model.eval()
with torch.no_grad():  # all ranks call the model, and each has all held-out windows
    loss = nn.functional.cross_entropy(model(held_out[:, :-1])[0], held_out[:, -1])
if rank == 0:
    count = torch.bincount(train[:, -1], minlength=len(alphabet)).add(1)
    frequency = (count / count.sum()).log()
    print(f"frequency of characters  {-frequency[held_out[:, -1]].mean():.4f} nats per character")
    print(f"mixture  {loss:.4f} nats per character, {1000 * seconds / STEPS:.1f} ms per step of {ranks} ranks")
    print(f"experts of rank 0  {len(model.mixture.experts)} of {EXPERTS}")
if ranks > 1:
    distributed.destroy_process_group()
