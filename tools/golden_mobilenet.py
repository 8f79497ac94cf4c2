#!/usr/bin/env python3
"""Writes a training step of MobileNetV2 for small images, computed by PyTorch: tests/goldens/mobilenet.safetensors, which tests/vision.rs reads.

    python3 tools/golden_mobilenet.py     # needs torch, no GPU

The network is `netcl`'s `mobilenet-v2-small`, with torchvision's names. Weights and images follow golden_resnet.py's rule. Everything is
computed in float64. For each parameter's gradient, and for each running statistic after the step, the file has its norm and four elements. It
also has the loss. There is only one step because rounding errors grow: PyTorch's own f32 loss differs from the f64 loss by 0.01 in the second
step, and by 0.2 in the third.
"""
import pathlib

import torch
import torch.nn.functional as F
from torch import nn

from golden_resnet import initialised, write

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests/goldens/mobilenet.safetensors"
STEPS, CLASSES, SIZE, LR = 1, 10, 16, 0.01
STAGES = ((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def convolved(a, b, size=3, stride=1, groups=1):
    return nn.Sequential(nn.Conv2d(a, b, size, stride, size // 2, groups=groups, bias=False), nn.BatchNorm2d(b), nn.ReLU6())


class Inverted(nn.Module):
    def __init__(self, a, b, stride, expansion):
        super().__init__()
        wide, self.plus = a * expansion, stride == 1 and a == b
        first = [convolved(a, wide, 1)] if expansion > 1 else []
        self.conv = nn.Sequential(*first, convolved(wide, wide, 3, stride, wide), nn.Conv2d(wide, b, 1, bias=False), nn.BatchNorm2d(b))

    def forward(self, x):
        return x + self.conv(x) if self.plus else self.conv(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        layers, a = [convolved(3, 32)], 32
        for expansion, b, blocks, stride in STAGES:
            for i in range(blocks):
                layers.append(Inverted(a, b, stride if i == 0 else 1, expansion))
                a = b
        self.features = nn.Sequential(*layers, convolved(a, 1280, 1))
        self.classifier = nn.Sequential(nn.Identity(), nn.Linear(1280, CLASSES))

    def forward(self, x):
        return self.classifier(F.adaptive_avg_pool2d(self.features(x), 1).flatten(1))


def told(t):
    """Returns the norm, the first and the last element, and two elements between."""
    flat = t.detach().flatten()
    n = flat.numel()
    return torch.stack([flat.norm(), flat[0], flat[n // 3], flat[2 * n // 3], flat[n - 1]]).float()


def main():
    torch.set_num_threads(1)
    net = initialised(Net(), lambda name: ("classifier" not in name) * name.endswith("weight"))

    def of(step):
        if step is None:
            return {f"after.{n}": told(t) for n, t in net.named_buffers() if "num_batches" not in n}
        return {f"grad.{n}": told(p.grad) for n, p in net.named_parameters()} if step == 0 else {}

    write(OUT, net, STEPS, SIZE, CLASSES, LR, of)


if __name__ == "__main__":
    main()
