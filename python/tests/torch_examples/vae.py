"""A variational autoencoder with noise from the log variance, and samples of the prior."""

import numpy as np

import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader

SIZE = 64


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.center, self.spread = nn.Linear(SIZE, 20), nn.Linear(20, 4), nn.Linear(20, 4)
        self.outer, self.pixels = nn.Linear(4, 20), nn.Linear(20, SIZE)

    def decode(self, code):
        return torch.sigmoid(self.pixels(F.relu(self.outer(code))))

    def forward(self, images):
        hidden = F.relu(self.inner(images.view(-1, SIZE)))
        center, log_variance = self.center(hidden), self.spread(hidden)
        deviation = torch.exp(0.5 * log_variance)
        return self.decode(center + deviation * torch.randn_like(deviation)), center, log_variance


def bound(made, images, center, log_variance):
    error = F.binary_cross_entropy(made, images.view(-1, SIZE), reduction="sum")
    return error - 0.5 * torch.sum(1 + log_variance - center.pow(2) - log_variance.exp())


def models():
    return {"net": Autoencoder()}


def main(net):
    pictures = np.random.default_rng(3).random((40, 1, 8, 8)).astype(np.float32)
    loader = DataLoader([(torch.from_numpy(p), 0) for p in pictures], batch_size=8)
    optimizer = optim.Adam(net.parameters(), lr=1e-3)
    losses = []
    for _ in range(4):
        net.train()
        for images, _unused in loader:
            optimizer.zero_grad()
            loss = bound(*(lambda made, *rest: (made, images, *rest))(*net(images)))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        net.eval()
        with torch.no_grad():
            made, center, log_variance = net(images)
            pairs = torch.cat([images[:4], made.view(-1, 1, 8, 8)[:4]])
            losses += [pairs.cpu().mean().item(), net.decode(torch.randn(6, 4)).view(6, 1, 8, 8).std().item()]
    return losses
