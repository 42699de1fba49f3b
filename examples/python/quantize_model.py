"""Train a PyTorch model in 8 and 4 bits: `dovetail.mx.convert` turns its Linears into microscaling ones.

The task is to predict the next character of Python's own help texts. Three copies of one model start from the same
weights and see the same batches. They train in FP32 (plain PyTorch), MXFP8 and MXFP4.
"""

import copy
import time
from pydoc_data.topics import topics

import dovetail
import torch
from torch import nn

CONTEXT, WIDTH, BATCH, STEPS = 16, 256, 256, 600
ELEMENTS = {"mxfp8": ("e4m3", 8), "mxfp4": ("e2m1", 4)}  # format and bits of an element
torch.manual_seed(0)

# Each row of `windows` is CONTEXT characters and the one that follows them. The last tenth of the text is held out.
text = "\n".join(topics[name] for name in sorted(topics))
alphabet = sorted(set(text))
index = {character: i for i, character in enumerate(alphabet)}
windows = torch.tensor([index[character] for character in text]).unfold(0, CONTEXT + 1, 1)
train, held_out = windows[: len(windows) * 9 // 10], windows[len(windows) * 9 // 10 :: 8]

reference = nn.Sequential(
    nn.Embedding(len(alphabet), 32),
    nn.Flatten(),
    nn.Linear(CONTEXT * 32, WIDTH),
    nn.GELU(),
    nn.Linear(WIDTH, WIDTH),
    nn.GELU(),
    nn.Linear(WIDTH, len(alphabet)),
)
# Quantize the hidden Linears, "2" and "4". The embedding and the last Linear stay in FP32, as is usual.
hidden = ["2", "4"]
models = {"fp32": reference}
for recipe in ELEMENTS:
    models[recipe] = dovetail.mx.convert(copy.deepcopy(reference), recipe, layers=hidden)
optimizers = {name: torch.optim.AdamW(model.parameters(), lr=2e-3) for name, model in models.items()}
seconds = dict.fromkeys(models, 0.0)


def loss_of(model, rows):
    return nn.functional.cross_entropy(model(rows[:, :-1]), rows[:, -1])


for step in range(STEPS):
    batch = train[torch.randint(len(train), (BATCH,))]
    for name, model in models.items():
        begin = time.perf_counter()
        loss = loss_of(model, batch)
        optimizers[name].zero_grad()
        loss.backward()
        optimizers[name].step()
        seconds[name] += time.perf_counter() - begin
        if step % 200 == 0:
            print(f"step {step:4d}  {name:5}  training loss {loss.item():.3f}")

# Master weights stay FP32. The products read codes and one 8-bit scale for each 32 of them.
weight_bits = {"fp32": 32.0}
for recipe, (element, bits) in ELEMENTS.items():
    codes, scales = dovetail.mx.quantize(models[recipe][4].weight.detach(), element)
    weight_bits[recipe] = (codes.numel() * bits + scales.numel() * 8) / codes.numel()

print(f"\n{'':5}  held-out loss  accuracy  bits per weight  ms per step")
for name, model in models.items():
    with torch.no_grad():
        loss = loss_of(model, held_out).item()
        accuracy = (model(held_out[:, :-1]).argmax(1) == held_out[:, -1]).float().mean().item()
    ms = 1000 * seconds[name] / STEPS
    print(f"{name:5}  {loss:13.4f}  {accuracy:8.4f}  {weight_bits[name]:15.2f}  {ms:11.1f}")
print("A CPU emulates the formats: losses are what such hardware would give, times are not.")
