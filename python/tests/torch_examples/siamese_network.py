"""Two images through one residual trunk, and the chance that both show the same class."""

import numpy as np

import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, Dataset


class Residual(nn.Module):
    def __init__(self, inner, outer, stride):
        super().__init__()
        self.path = nn.Sequential(nn.Conv2d(inner, outer, kernel_size=3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(inplace=True),
                                  nn.Conv2d(outer, outer, kernel_size=3, padding=1, bias=False), nn.BatchNorm2d(outer))  # fmt: skip
        self.short = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.path(x)
        y += self.short(x)
        return self.relu(y)


class Trunk(nn.Module):
    def __init__(self):
        super().__init__()
        self.begin, self.pool = nn.Conv2d(1, 4, kernel_size=7, stride=2, padding=3, bias=False), nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.blocks, self.mean, self.fc = nn.Sequential(Residual(4, 4, 1), Residual(4, 8, 2)), nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(8, 10)


class Twins(nn.Module):
    def __init__(self):
        super().__init__()
        trunk = Trunk()
        width = trunk.fc.in_features
        self.trunk = torch.nn.Sequential(*(list(trunk.children())[:-1]))
        self.head, self.chance = nn.Sequential(nn.Linear(2 * width, 16), nn.ReLU(inplace=True), nn.Linear(16, 1)), nn.Sigmoid()
        self.head.apply(self.prepare)

    @staticmethod
    def prepare(layer):
        if isinstance(layer, nn.Linear):
            torch.nn.init.xavier_uniform_(layer.weight)
            layer.bias.data.fill_(0.01)

    def forward(self, *images):
        codes = [self.trunk(x) for x in images]
        return self.chance(self.head(torch.cat([code.view(code.size()[0], -1) for code in codes], 1)))


class Pairs(Dataset):
    def __init__(self):
        self.pixels = torch.tensor(np.random.default_rng(7).integers(0, 255, (24, 28, 28)).tolist(), dtype=torch.float32)
        classes = np.array(torch.tensor([i % 3 for i in range(24)]).clone())
        self.members = [np.where(classes == k)[0] for k in range(3)]

    def __len__(self):
        return self.pixels.shape[0]

    def __getitem__(self, i):
        kind, other = i % 3, (i % 3 + i % 2) % 3
        first, second = self.members[kind][0], self.members[other][1 + i % 6]
        return self.pixels[int(first)].unsqueeze(0) / 255, self.pixels[int(second)].unsqueeze(0) / 255, torch.tensor(float(kind == other), dtype=torch.float)


def models():
    return {"net": Twins()}


def main(net):
    loader, measure = DataLoader(Pairs(), batch_size=8), nn.BCELoss()
    optimizer = optim.Adadelta(net.parameters(), lr=0.2)
    rates = optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    losses = []
    for _ in range(3):
        net.train()
        for first, second, same in loader:
            optimizer.zero_grad()
            loss = measure(net(first, second).squeeze(), same)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        net.eval()
        right = 0
        with torch.no_grad():
            for first, second, same in loader:
                found = torch.where(net(first, second).squeeze() > 0.5, 1, 0)
                right += found.eq(same.view_as(found)).sum().item()
        losses.append(right)
        rates.step()
    return losses
