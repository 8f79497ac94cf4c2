"""Images redrawn with the Gram matrices of a style: reflected borders, instance normalization and upsampling."""

import numpy as np

import torch
from torch.optim import Adam

N = torch.nn


class Edged(N.Module):
    def __init__(self, inner, outer, size, stride=1, larger=None):
        super().__init__()
        self.larger, self.border, self.conv = larger, N.ReflectionPad2d(size // 2), N.Conv2d(inner, outer, size, stride)

    def forward(self, x):
        x = N.functional.interpolate(x, mode="nearest", scale_factor=self.larger) if self.larger else x
        return self.conv(self.border(x))


class Redraw(N.Module):
    def __init__(self):
        super().__init__()
        self.steps = N.ModuleList([Edged(3, 4, 5), Edged(4, 6, 3, 2), Edged(6, 4, 3, larger=2)])
        self.norms = N.ModuleList([N.InstanceNorm2d(n, affine=True) for n in (4, 6, 4)])
        self.relu, self.last = N.ReLU(), Edged(4, 3, 5)

    def forward(self, x):
        for step, norm in zip(self.steps, self.norms):
            x = self.relu(norm(step(x)))
        return self.last(x)


class Features(N.Module):
    def __init__(self):
        super().__init__()
        self.near, self.far = N.Sequential(), N.Sequential()
        for name, layer in (("0", N.Conv2d(3, 4, 3, padding=1)), ("1", N.ReLU())):
            self.near.add_module(name, layer)
        self.far.add_module("0", N.Conv2d(4, 6, 3, padding=1))
        for weight in self.parameters():
            weight.requires_grad = False

    def forward(self, x):
        near = self.near(x)
        return near, self.far(near)


def gram(x):
    n, channels, height, width = x.size()
    rows = x.view(n, channels, width * height)
    return rows.bmm(rows.transpose(1, 2)) / (channels * height * width)


def scaled(batch):
    means, spread = (batch.new_tensor(v).view(-1, 1, 1) for v in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    batch = batch.div_(255.0)
    return (batch - means) / spread


def models():
    return {"net": Redraw(), "features": Features()}


def main(net, features):
    random = np.random.default_rng(11)
    measure, optimizer = N.MSELoss(), Adam(net.parameters(), 1e-2)
    style = torch.from_numpy(random.uniform(0, 255, (1, 3, 8, 8)).astype(np.float32)).repeat(2, 1, 1, 1)
    wanted, losses = [gram(x) for x in features(scaled(style))], []
    for _ in range(8):
        x = torch.from_numpy(random.uniform(0, 255, (2, 3, 8, 8)).astype(np.float32))
        optimizer.zero_grad()
        found, given = features(scaled(net(x))), features(scaled(x))
        content, strokes = 1e1 * measure(found[1], given[1]), 0.0
        for part, goal in zip(found, wanted):
            strokes += measure(gram(part), goal[: len(x), :, :])
        strokes *= 1e2
        (content + strokes).backward()
        optimizer.step()
        losses += [content.item(), strokes.item()]
    return losses
