"""A mixture of experts in a plain PyTorch training loop: `dovetail.moe.MoELayer` in the place of a feed-forward.

The task is to predict the next character of Python's own help texts. Each position takes 2 of 16 experts. It is
compared with a dense feed-forward that is as wide as 2 experts. Except for the small router both multiply equally much.
"""

import time
from pydoc_data.topics import topics

import dovetail
import torch
from dovetail.moe import MoELayer
from torch import nn

CONTEXT, WIDTH, EXPERT_WIDTH, EXPERTS, K = 16, 128, 128, 16, 2
BATCH, STEPS = 512, 600

# Each row of `windows` is CONTEXT characters and the one that follows them. The last tenth of the text is held out.
text = "\n".join(topics[name] for name in sorted(topics))
alphabet = sorted(set(text))
index = {character: i for i, character in enumerate(alphabet)}
windows = torch.tensor([index[character] for character in text]).unfold(0, CONTEXT + 1, 1)
train, held_out = windows[: len(windows) * 9 // 10], windows[len(windows) * 9 // 10 :: 8]


class Dense(nn.Module):
    """A SwiGLU feed-forward as wide as the K experts of a position together. Without a router, its loss is 0."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * K * EXPERT_WIDTH, bias=False)
        self.down = nn.Linear(K * EXPERT_WIDTH, WIDTH, bias=False)

    def forward(self, x):
        gate, up = self.up(x).chunk(2, -1)
        return self.down(nn.functional.silu(gate) * up), torch.zeros(())


class Model(nn.Module):
    def __init__(self, feed_forward):
        super().__init__()
        self.embed = nn.Sequential(nn.Embedding(len(alphabet), 32), nn.Flatten(), nn.Linear(CONTEXT * 32, WIDTH))
        self.norm, self.feed_forward = nn.LayerNorm(WIDTH), feed_forward
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(alphabet)))

    def forward(self, x):
        x = self.embed(x)
        y, router_loss = self.feed_forward(self.norm(x))
        return self.head(x + y), router_loss


def fit(feed_forward):
    """Returns the trained model and its milliseconds a step. Every model sees the same batches."""
    model, batches = Model(feed_forward), torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    begin = time.perf_counter()
    for _ in range(STEPS):
        rows = train[torch.randint(len(train), (BATCH,), generator=batches)]
        logits, router_loss = model(rows[:, :-1])
        loss = nn.functional.cross_entropy(logits, rows[:, -1]) + router_loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, 1000 * (time.perf_counter() - begin) / STEPS


def load(model):
    """Returns each expert's share of the held-out choices: (experts), sum 1."""
    layer = model.feed_forward
    logits = model.norm(model.embed(held_out[:, :-1])) @ layer.router.T
    count = dovetail.moe.route(logits, layer.k, **layer.routing).count
    return count / count.sum()


layers = {
    "dense": Dense,
    "mixture": lambda: MoELayer(WIDTH, EXPERT_WIDTH, EXPERTS, K, load_loss=0.01),
    "mixture, no load loss": lambda: MoELayer(WIDTH, EXPERT_WIDTH, EXPERTS, K, load_loss=0.0),
}
models = {}
print(f"{'':22} held-out loss  parameters of the layer  ms per step")
for name, layer in layers.items():
    torch.manual_seed(0)
    models[name], ms = fit(layer())
    with torch.no_grad():
        loss = nn.functional.cross_entropy(models[name](held_out[:, :-1])[0], held_out[:, -1]).item()
    size = sum(parameter.numel() for parameter in models[name].feed_forward.parameters())
    print(f"{name:22} {loss:13.4f}  {size:23,}  {ms:11.1f}")

print(f"\nload of the {EXPERTS} experts in per cent; {100 / EXPERTS:.1f} is even")
for name in list(layers)[1:]:
    with torch.no_grad():
        shares = 100 * load(models[name])
    print(f"{name:22} " + " ".join(f"{share:4.1f}" for share in shares) + f"  largest {shares.max():.1f}")
