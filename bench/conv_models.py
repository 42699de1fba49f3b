"""Convolutional networks of benchmarks."""

import torch
from torch import nn
from torch.nn import functional


def vgg19(classes: int = 1000):
    """VGG-19 for images of 224 x 224 (Simonyan and Zisserman 2015). Returns it and its stages."""
    stages, before = [], 3
    for width, layers in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
        stage = []
        for _ in range(layers):
            stage += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU(inplace=True)]
            before = width
        stages.append(nn.Sequential(*stage, nn.MaxPool2d(2)))
    head = nn.Sequential(
        nn.Flatten(),
        *(nn.Linear(512 * 7 * 7, 4096), nn.ReLU(inplace=True), nn.Dropout()),
        *(nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Dropout()),
        nn.Linear(4096, classes),
    )
    return nn.Sequential(*stages, head), stages


def unet(width: int = 32):
    """UNet of four levels with batch norm: 3 channels to 2 classes for each pixel. Returns it and its blocks."""

    def block(before, after):
        layers = []
        for width in (before, after):
            layers += [nn.Conv2d(width, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
        return nn.Sequential(*layers)

    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            widths = [width, 2 * width, 4 * width, 8 * width]
            self.down = nn.ModuleList(block(a, b) for a, b in zip([3, *widths], widths, strict=False))
            upward = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
            self.grow = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in upward)
            self.up = nn.ModuleList(block(a, b) for a, b in upward)
            self.head = nn.Conv2d(width, 2, 1)

        def forward(self, x):
            passed = []
            for i, down in enumerate(self.down):
                x = down(functional.max_pool2d(x, 2) if i else x)
                passed.append(x)
            passed.pop()
            for grow, up in zip(self.grow, self.up, strict=True):
                x = up(torch.cat([passed.pop(), grow(x)], 1))
            return self.head(x)

    model = UNet()
    return model, [*model.down, *model.up]
