"""A polynomial found by one linear layer, with steps written in a loop."""

from itertools import count

import torch
import torch.nn.functional as F

FACTORS, OFFSET = torch.tensor([[3.0], [-1.5], [0.5], [2.0]]), torch.tensor([0.7])


def powers(x):
    x = x.unsqueeze(1)
    return torch.cat([x**i for i in range(1, len(FACTORS) + 1)], 1)


def described(factors, offset):
    return " ".join("{:+.2f} x^{}".format(f, i + 1) for i, f in enumerate(factors)) + " {:+.2f}".format(offset[0])


def models():
    return {"line": torch.nn.Linear(FACTORS.size(0), 1)}


def main(line):
    losses = []
    for step in count(1):
        x = powers(torch.randn(32))
        wanted = x.mm(FACTORS) + OFFSET.item()
        line.zero_grad()
        loss = F.smooth_l1_loss(line(x), wanted)
        loss.backward()
        for weight in line.parameters():
            weight.data.add_(-0.1 * weight.grad)
        losses.append(loss.item())
        if losses[-1] < 1e-3 or step >= 30:
            break
    assert described(FACTORS.view(-1), OFFSET) == "+3.00 x^1 -1.50 x^2 +0.50 x^3 +2.00 x^4 +0.70"
    return losses + [float(word) for word in described(line.weight.view(-1), line.bias).split() if "x" not in word]
