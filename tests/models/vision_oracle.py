"""The vision models in PyTorch and float64, as an independent reference for tests/models/vision_oracle_test.cpp.

usage: vision_oracle.py FOLDER

- reads each NAME.json (preset, classes, channels, base_width, training)
- reads NAME.safetensors (parameters and buffers as "model.NAME", "images", "targets")
- writes NAME.expected.safetensors: logits, loss (sum), grad.PARAMETER, grad.images, and buffer.NAME after the step

ResNet-50 comes from transformers. VGG is torch.nn.Sequential in torchvision's layout. U-Net is a recursion over its
levels.
"""

import json
import pathlib
import re
import sys

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

VGG = {
    "vgg16": [1, 1, "M", 2, 2, "M", 4, 4, 4, "M", 8, 8, 8, "M", 8, 8, 8, "M"],
    "vgg19": [1, 1, "M", 2, 2, "M", 4, 4, 4, 4, "M", 8, 8, 8, 8, "M", 8, 8, 8, 8, "M"],
}


class Vgg(nn.Module):
    def __init__(self, spec):
        super().__init__()
        layers, channels, width = [], spec["channels"], spec["base_width"]
        for step in VGG[spec["preset"]]:
            if step == "M":
                layers.append(nn.MaxPool2d(2, 2))
            else:
                layers += [nn.Conv2d(channels, step * width, 3, padding=1), nn.ReLU()]
                channels = step * width
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(8 * width * 49, 64 * width), nn.ReLU(), nn.Dropout(),
            nn.Linear(64 * width, 64 * width), nn.ReLU(), nn.Dropout(),
            nn.Linear(64 * width, spec["classes"]),
        )  # fmt: skip

    def forward(self, images):
        pooled = nn.AdaptiveAvgPool2d((7, 7))(self.features(images))
        return self.classifier(torch.flatten(pooled, 1))


class UNet(nn.Module):
    """Ronneberger et al. 2015, figure 1, with padding: a level is two convolutions, the level below, and two more."""

    def __init__(self, spec):
        super().__init__()
        for level in range(5):
            width = spec["base_width"] << level
            above = width // 2 if level > 0 else spec["channels"]
            name = f"down{level + 1}" if level < 4 else "bottom"
            self.add_module(name, self.convolutions(above, width))
            if level < 4:
                block = self.convolutions(2 * width, width)
                block["upsample"] = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
                self.add_module(f"up{level + 1}", block)
        self.head = nn.Conv2d(spec["base_width"], spec["classes"], 1)

    @staticmethod
    def convolutions(channels, width):
        first, second = nn.Conv2d(channels, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        return nn.ModuleDict({"conv1": first, "conv2": second})

    @staticmethod
    def twice(block, x):
        return functional.relu(block["conv2"](functional.relu(block["conv1"](x))))

    def level(self, number, x):
        if number == 5:
            return self.twice(self.bottom, x)
        skip = self.twice(self.get_submodule(f"down{number}"), x)
        below = self.level(number + 1, functional.max_pool2d(skip, 2))
        block = self.get_submodule(f"up{number}")
        return self.twice(block, torch.cat([skip, block["upsample"](below)], 1))

    def forward(self, images):
        return self.head(self.level(1, images))


class ResNet(nn.Module):
    """ResNet of transformers with torchvision's names for its state."""

    def __init__(self, spec):
        from transformers import ResNetConfig, ResNetForImageClassification

        super().__init__()
        width = spec["base_width"]
        self.model = ResNetForImageClassification(
            ResNetConfig(
                num_channels=spec["channels"],
                embedding_size=width,
                hidden_sizes=[4 * width, 8 * width, 16 * width, 32 * width],
                depths=[3, 4, 6, 3],
                layer_type="bottleneck",
                downsample_in_bottleneck=False,
                num_labels=spec["classes"],
            )
        )

    def forward(self, images):
        return self.model(images).logits

    @staticmethod
    def our_name(theirs):
        part = {"convolution": "conv", "normalization": "bn"}
        name = theirs.removeprefix("model.")
        if match := re.fullmatch(r"resnet\.embedder\.embedder\.(\w+)\.(\w+)", name):
            return f"{part[match[1]]}1.{match[2]}"
        if match := re.fullmatch(r"resnet\.encoder\.stages\.(\d)\.layers\.(\d)\.layer\.(\d)\.(\w+)\.(\w+)", name):
            stage, block, layer = int(match[1]) + 1, match[2], int(match[3]) + 1
            return f"layer{stage}.{block}.{part[match[4]]}{layer}.{match[5]}"
        if match := re.fullmatch(r"resnet\.encoder\.stages\.(\d)\.layers\.(\d)\.shortcut\.(\w+)\.(\w+)", name):
            number = ["convolution", "normalization"].index(match[3])
            return f"layer{int(match[1]) + 1}.{match[2]}.downsample.{number}.{match[4]}"
        return name.replace("classifier.1.", "fc.")


def main(folder):
    for path in sorted(folder.glob("*.json")):
        spec = json.loads(path.read_text())
        tensors = load_file(path.with_suffix(".safetensors"))
        images, targets = tensors.pop("images").requires_grad_(), tensors.pop("targets")
        kind = {"resnet50": ResNet, "unet": UNet}.get(spec["preset"], Vgg)
        model = kind(spec).double().train(spec["training"])
        ours = getattr(model, "our_name", lambda name: name)
        state = {name: tensors.pop("model." + ours(name)) for name in model.state_dict()}
        assert not tensors, f"{path.stem}: {sorted(tensors)} have no counterpart"
        model.load_state_dict(state)  # shapes too
        logits = model(images)
        chosen = logits.log_softmax(1).gather(1, targets.unsqueeze(1))
        loss = -chosen.sum()
        loss.backward()
        expected = {"logits": logits.detach(), "loss": loss.detach(), "grad.images": images.grad}
        expected |= {"grad." + ours(name): parameter.grad for name, parameter in model.named_parameters()}
        expected |= {"buffer." + ours(name): buffer for name, buffer in model.named_buffers()}
        save_file({k: v.contiguous() for k, v in expected.items()}, path.with_suffix(".expected.safetensors"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(pathlib.Path(sys.argv[1]))
