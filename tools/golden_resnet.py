#!/usr/bin/env python3
"""Writes 20 training steps of a small residual network, computed by PyTorch: tests/goldens/resnet.safetensors, which tests/vision.rs reads.

    python3 tools/golden_resnet.py     # needs torch, no GPU

Weights and images follow a rule that the test uses too, so the file only has results. Everything is computed in float64:
losses of every step, gradients of the first and the last step, and running statistics and weights after the last step.
"""
import json
import pathlib

import torch
import torch.nn.functional as F
from torch import nn

import golden

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests/goldens/resnet.safetensors"
STEPS, BATCH, CLASSES, SIZE, LR = 20, 8, 5, 12, 0.02


def drawn(name, count):
    """Returns numbers from -1 to 1, determined by name and position (Knuth's multiplicative hash of an FNV-1a hash)."""
    h = 0x811C9DC5
    for b in name.encode():
        h = (h ^ b) * 0x01000193 % 2**32
    at = [((h + i * 2654435761) % 2**32 * 2246822519 + h) % 2**32 for i in range(count)]
    return torch.tensor([a / 2**31 - 1 for a in at], dtype=torch.float64).float().double()


class Block(nn.Module):
    def __init__(self, a, b, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b)
        self.conv2, self.bn2 = nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b)
        plain = stride == 1 and a == b
        self.downsample = None if plain else nn.Sequential(nn.Conv2d(a, b, 1, stride, bias=False), nn.BatchNorm2d(b))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8)
        self.layer1, self.layer2 = nn.Sequential(Block(8, 8, 1)), nn.Sequential(Block(8, 12, 2))
        self.fc = nn.Linear(12, CLASSES)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        return self.fc(F.adaptive_avg_pool2d(self.layer2(self.layer1(x)), 1).flatten(1))


def initialised(net, is_scale):
    """Returns the network in float64 with weights determined by their names. Parameters selected by `is_scale` are close to 1."""
    net = net.double()
    with torch.no_grad():
        for name, p in net.named_parameters():
            u = drawn(name, p.numel()).reshape(p.shape)
            value = u * (3 / p[0].numel()) ** 0.5 if p.dim() > 1 else 0.1 * u + is_scale(name)
            p.copy_(value.float().double())
    return net


def write(out, net, steps, size, classes, lr, told, batch=BATCH):
    """Trains the network. Writes `told(step)`, a summary of the gradients of each step, `told(None)`, a summary of the final state, and the losses.
    """
    opt = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    tensors, losses = {}, []
    for step in range(steps):
        x = drawn(f"images {step}", batch * 3 * size * size).reshape(batch, 3, size, size)
        y = torch.tensor([(i + step) % classes for i in range(batch)])
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        losses.append(loss.item())
        tensors.update(told(step))
        opt.step()
    tensors.update(told(None))
    tensors["losses"] = torch.tensor(losses, dtype=torch.float64).float()
    golden.write(out, tensors, {"steps": json.dumps({"steps": steps, "batch": batch, "lr": lr})})


def main():
    torch.set_num_threads(1)
    net = initialised(Net(), lambda name: ("bn" in name or "downsample.1" in name) * name.endswith("weight"))

    def told(step):
        if step is None:
            return {f"after.{n}": t.float() for n, t in net.state_dict().items() if "num_batches" not in n}
        return {f"grad.{step}.{n}": p.grad.float() for n, p in net.named_parameters()} if step in (0, STEPS - 1) else {}

    write(OUT, net, STEPS, SIZE, CLASSES, LR, told)


if __name__ == "__main__":
    main()
