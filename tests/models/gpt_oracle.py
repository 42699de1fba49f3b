"""The transformer in plain PyTorch operators and float64, as an independent reference for tests/models/oracle_test.cpp.

usage: gpt_oracle.py FOLDER. Reads each NAME.json (config) with NAME.safetensors (parameters, "tokens"). Writes
NAME.expected.safetensors: logits, loss (sum), and grad.PARAMETER for every parameter.
"""

import json
import pathlib
import sys

import torch
from safetensors.torch import load_file, save_file


def normalise(x, config, weight, bias):
    if config["norm"] == "rmsnorm":
        return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + config["norm_eps"]) * weight
    centred = x - x.mean(-1, keepdim=True)
    y = centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + config["norm_eps"]) * weight
    return y if bias is None else y + bias


def rotate(x, config):
    """x (B, T, H, D): pairs (i, i + R / 2) turned as complex numbers by position * theta^(-2 i / R)."""
    turned = int(config["rotary_fraction"] * x.shape[-1])
    half = turned // 2
    frequency = config["rotary_theta"] ** (-2.0 * torch.arange(half, dtype=torch.float64) / turned)
    angle = torch.arange(x.shape[1], dtype=torch.float64)[:, None] * frequency
    turn = torch.polar(torch.ones_like(angle), angle)[None, :, None, :]
    z = torch.complex(x[..., :half].contiguous(), x[..., half:turned].contiguous()) * turn
    return torch.cat([z.real, z.imag, x[..., turned:]], -1)


def attend(q, k, v):
    """(B, T, H, D) with as many key heads as query heads; the mask and softmax written out."""
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
    length = q.shape[1]
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    weights = scores.masked_fill(future, -torch.inf).softmax(-1)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v)


def activate(x, config):
    if config["activation"] == "swiglu":
        gate, up = x.chunk(2, -1)
        return gate * torch.sigmoid(gate) * up
    if config["activation"] == "gelu":
        return 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))
    return x.clamp(min=0) ** 2


def model(config, p, tokens):
    def project(name, x):
        y = x @ p[name + ".weight"].T
        return y + p[name + ".bias"] if name + ".bias" in p else y

    def norm(name, x):
        return normalise(x, config, p[name + ".weight"], p.get(name + ".bias"))

    batch, length = tokens.shape
    heads, kv_heads, dim = config["heads"], config["kv_heads"], config["head_dim"]
    x = p["embed.weight"][tokens]
    if config["positions"] == "learned":
        x = x + p["positions.weight"][:length]
    for i in range(config["layers"]):
        block = f"blocks.{i}."
        qkv = project(block + "attention.qkv", norm(block + "attention_norm", x))
        qkv = qkv.view(batch, length, heads + 2 * kv_heads, dim)
        q, k, v = qkv.split([heads, kv_heads, kv_heads], 2)
        if config["positions"] == "rotary":
            q, k = rotate(q, config), rotate(k, config)
        k, v = (t.repeat_interleave(heads // kv_heads, 2) for t in (k, v))
        x = x + project(block + "attention.out", attend(q, k, v).reshape(batch, length, heads * dim))
        hidden = project(block + "ffn.up", norm(block + "ffn_norm", x))
        x = x + project(block + "ffn.down", activate(hidden, config))
    return norm("norm", x) @ p["embed.weight" if config["tied"] else "head.weight"].T


def main(folder):
    for path in sorted(folder.glob("*.json")):
        config = json.loads(path.read_text())
        parameters = load_file(path.with_suffix(".safetensors"))
        tokens = parameters.pop("tokens")
        for parameter in parameters.values():
            parameter.requires_grad_()
        logits = model(config, parameters, tokens[:, :-1].clamp(min=0))
        targets = tokens[:, 1:].reshape(-1)
        chosen = logits.log_softmax(-1).reshape(targets.numel(), -1)[
            torch.arange(targets.numel()), targets.clamp(min=0)
        ]
        loss = -chosen[targets >= 0].sum()
        loss.backward()
        expected = {"logits": logits.detach().contiguous(), "loss": loss.detach()}
        expected |= {"grad." + name: parameter.grad.contiguous() for name, parameter in parameters.items()}
        save_file(expected, path.with_suffix(".expected.safetensors"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(pathlib.Path(sys.argv[1]))
