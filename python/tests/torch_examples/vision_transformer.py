"""A vision transformer (Dosovitskiy et al. 2021): patches by unfold, a class token, attention after normalization."""

import numpy as np

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim

PATCH, WIDTH = 4, 16


class Patches(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(3 * PATCH * PATCH, WIDTH)
        self.token, self.places = nn.Parameter(torch.randn(1, 1, WIDTH)), nn.Parameter(torch.randn(1, 10, WIDTH))

    def forward(self, images):
        n = images.size(0)
        cut = images.unfold(2, PATCH, PATCH).unfold(3, PATCH, PATCH).permute(0, 2, 3, 1, 4, 5).contiguous()
        x = self.project(cut.view(n, -1, 3 * PATCH * PATCH))
        x = torch.cat((self.token.expand(n, -1, -1), x), dim=1)
        x += self.places[:, : x.size(1), :]
        return x


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = nn.MultiheadAttention(WIDTH, 4, 0.0, batch_first=True)
        self.think = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Dropout(0.0), nn.Linear(4 * WIDTH, WIDTH))
        self.norms = nn.ModuleDict({"attend": nn.LayerNorm(WIDTH), "think": nn.LayerNorm(WIDTH)})

    def forward(self, x):
        y = self.norms["attend"](x)
        x = x + self.attend(y, y, y)[0]
        return x + self.think(self.norms["think"](x))


def models():
    return {"net": nn.Sequential(Patches(), *[Layer() for _ in range(2)]), "head": nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 5))}


def shares(scores, labels, counts):
    best = scores.topk(max(counts), 1, True, True)[1].t()
    right = best.eq(labels.view(1, -1).expand_as(best))
    return [right[:k].reshape(-1).float().sum(0, keepdim=True).mul_(100.0 / labels.size(0))[0].item() for k in counts]


def main(net, head):
    random, measure = np.random.default_rng(13), nn.CrossEntropyLoss()
    optimizer = optim.AdamW([*net.parameters(), *head.parameters()], lr=1e-3, weight_decay=0.1)
    rates = optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=4)
    losses = []
    for _ in range(8):
        images, labels = torch.as_tensor(random.normal(size=(6, 3, 12, 12)).astype(np.float32)), torch.as_tensor(random.integers(0, 5, 6))
        optimizer.zero_grad()
        scores = head(net(images)[:, 0])
        loss = measure(scores, labels)
        loss.backward()
        optimizer.step()
        rates.step()
        losses += [loss.item(), *shares(scores, labels, (1, 3)), F.softmax(scores, 1).max().item()]
    return losses
