"""Small models and batches of test_plan.py."""

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """Two convolutions with batch norm, as in a UNet."""

    def __init__(self, before: int, after: int):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(before, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(inplace=True),
            nn.Conv2d(after, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(inplace=True),
        )

    def forward(self, x):
        return self.layers(x)


class UNet(nn.Module):
    def __init__(self, width: int = 8, classes: int = 3):
        super().__init__()
        self.down = nn.ModuleList([Block(3, width), Block(width, 2 * width), Block(2 * width, 4 * width)])
        self.grow = nn.ModuleList(
            [nn.ConvTranspose2d(4 * width, 2 * width, 2, 2), nn.ConvTranspose2d(2 * width, width, 2, 2)]
        )
        self.up = nn.ModuleList([Block(4 * width, 2 * width), Block(2 * width, width)])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        passed = []
        for i, block in enumerate(self.down):
            x = block(x if i == 0 else functional.max_pool2d(x, 2))
            passed.append(x)
        passed.pop()
        for grow, block in zip(self.grow, self.up, strict=True):
            x = block(torch.cat([passed.pop(), grow(x)], 1))
        return self.head(x)


def resnet():
    from transformers import ResNetConfig, ResNetForImageClassification

    return ResNetForImageClassification(
        ResNetConfig(embedding_size=16, hidden_sizes=[64, 64, 96, 96], depths=[3, 4, 6, 3], num_labels=10)
    )


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(vocab_size=300, n_positions=64, n_embd=64, n_layer=3, n_head=2))


def vit():
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(
        ViTConfig(
            hidden_size=64, num_hidden_layers=3, num_attention_heads=2, intermediate_size=256, image_size=32,
            patch_size=4, num_labels=10, hidden_dropout_prob=0.1,
        )
    )  # fmt: skip


MODELS = {"unet": UNet, "resnet": resnet, "gpt2": gpt2, "vit": vit}


def batch_of(name: str, number: int, rows: int = 8) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 + number)
    if name == "gpt2":
        tokens = torch.randint(0, 300, (rows, 64), generator=generator)
        return {"input_ids": tokens, "labels": tokens}
    x = torch.randn(rows, 3, 32, 32, generator=generator)
    labels = (rows, 32, 32) if name == "unet" else (rows,)
    return {"pixel_values": x, "labels": torch.randint(0, 3, labels, generator=generator)}


def loss_of(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    if isinstance(model, UNet):
        return functional.cross_entropy(model(batch["pixel_values"]), batch["labels"])
    return model(**batch).loss
