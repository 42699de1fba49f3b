"""Small models for tests of dovetail.mx, built from configs without a network."""

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    """A transformer block with one attention head for 32 channels."""

    def __init__(self, width=64):
        super().__init__()
        self.norm, self.ffn_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, time, width = x.shape
        heads = self.qkv(self.norm(x)).view(batch, time, 3, width // 32, 32).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, time, width))
        return x + self.down(F.gelu(self.up(self.ffn_norm(x))))


class Gpt(nn.Module):
    """Embedding, blocks and a head whose weight is the embedding's."""

    def __init__(self, blocks=4, width=64, vocabulary=96, tied=True):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(blocks)])
        self.head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def llama(**changes):
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=96)
    return LlamaForCausalLM(LlamaConfig(**{**sizes, "num_key_value_heads": 2, **changes}))


def gradients(loss, model):
    """Gradients of the parameters by name, after clearing earlier ones."""
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_same(ours, expected):
    assert set(ours) == set(expected) and ours
    for name, gradient in ours.items():
        assert torch.equal(gradient, expected[name]), name


def assert_near(ours, expected, tolerance):
    assert set(ours) == set(expected) and ours
    for name, gradient in ours.items():
        error = (gradient.float() - expected[name].float()).norm() / expected[name].float().norm()
        assert error <= tolerance, f"{name}: {error}"
