#!/usr/bin/env python3
"""Measures PyTorch's eager training throughput in images per second on this machine's CPU: the peer of `netcl train --preset mnist-cnn` and `cifar10-resnet18`.

    python3 tools/peer_vision.py [mnist-cnn|resnet18-small|mobilenet-v2-small] [steps]      # needs torch

Batches of 64, AdamW, random images that are created beforehand; contiguous and channels_last, and the faster one counts.
"""
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn


def conv(a, b, size=3, stride=1, groups=1):
    return [nn.Conv2d(a, b, size, stride, size // 2, groups=groups, bias=False), nn.BatchNorm2d(b)]


class Block(nn.Module):
    def __init__(self, a, b, stride):
        super().__init__()
        self.main = nn.Sequential(*conv(a, b, 3, stride), nn.ReLU(), *conv(b, b))
        self.short = nn.Sequential(*conv(a, b, 1, stride)) if stride > 1 or a != b else nn.Identity()

    def forward(self, x):
        return F.relu(self.main(x) + self.short(x))


class Inverted(nn.Module):
    def __init__(self, a, b, stride, expansion):
        super().__init__()
        wide = a * expansion
        first = [*conv(a, wide, 1), nn.ReLU6(inplace=True)] if expansion > 1 else []
        self.main = nn.Sequential(*first, *conv(wide, wide, 3, stride, wide), nn.ReLU6(inplace=True), *conv(wide, b, 1))
        self.plus = stride == 1 and a == b

    def forward(self, x):
        return x + self.main(x) if self.plus else self.main(x)


def mobilenet():
    """MobileNetV2 (Sandler et al. 2018). The first convolution and the stage of 24 channels keep the size, for images of 32 pixels."""
    layers, a = [*conv(3, 32), nn.ReLU6(inplace=True)], 32
    for expansion, b, blocks, stride in ((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)):
        for i in range(blocks):
            layers.append(Inverted(a, b, stride if i == 0 else 1, expansion))
            a = b
    layers += [*conv(a, 1280, 1), nn.ReLU6(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 10)]
    return nn.Sequential(*layers), (3, 32, 32)


def network(name):
    if name == "mobilenet-v2-small":
        return mobilenet()
    if name == "mnist-cnn":
        layers = [*conv(1, 16), nn.ReLU(), *conv(16, 32), nn.ReLU(), nn.MaxPool2d(2), *conv(32, 32), nn.ReLU(), *conv(32, 64), nn.ReLU(),
                  nn.MaxPool2d(2), *conv(64, 64), nn.ReLU()]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)), (1, 28, 28)
    layers, a = [*conv(3, 64), nn.ReLU()], 64
    for stage in range(4):
        for i in range(2):
            b = 64 << stage
            layers.append(Block(a, b, 2 if i == 0 and stage else 1))
            a = b
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)), (3, 32, 32)


def main():
    name = sys.argv[1] if len(sys.argv) > 1 else "mnist-cnn"
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    for layout in (torch.contiguous_format, torch.channels_last):
        net, shape = network(name)
        net = net.to(memory_format=layout)
        opt = torch.optim.AdamW(net.parameters(), 1e-3)
        x = torch.randn(64, *shape).to(memory_format=layout)
        y = torch.arange(64) % 10
        for step in range(steps + 3):
            if step == 3:
                began = time.perf_counter()
            opt.zero_grad()
            F.cross_entropy(net(x), y).backward()
            opt.step()
        print(f"{name} {layout}: {64 * steps / (time.perf_counter() - began):.1f} images/s, torch {torch.__version__}, {torch.get_num_threads()} threads")


if __name__ == "__main__":
    main()
