"""Digits by convolutions: Adadelta, a rate that falls per epoch, accuracy, a saved state."""

import os
import tempfile

import numpy as np

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self, size, seed):
        random = np.random.default_rng(seed)
        self.labels = random.integers(0, 10, size)
        self.pixels = random.normal(size=(size, 28, 28)).astype(np.float32)
        self.pixels[np.arange(size), self.labels] += 2.0

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return torch.from_numpy(self.pixels[i]).unsqueeze(0), int(self.labels[i])


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3, 1), nn.Conv2d(4, 8, 3, 1)
        self.drop = nn.Dropout(0.0)
        self.hidden, self.out = nn.Linear(1152, 16), nn.Linear(16, 10)

    def forward(self, pixels):
        maps = F.max_pool2d(F.relu(self.second(F.relu(self.first(pixels)))), 2)
        flat = torch.flatten(self.drop(maps), 1)
        return F.log_softmax(self.out(self.drop(F.relu(self.hidden(flat)))), dim=1)


def models():
    return {"net": Classifier()}


def score(net, loader, where):
    net.eval()
    total = right = 0
    with torch.no_grad():
        for pixels, labels in loader:
            pixels, labels = pixels.to(where), labels.to(where)
            logs = net(pixels)
            total += F.nll_loss(logs, labels, reduction="sum").item()
            guess = logs.argmax(dim=1, keepdim=True)
            right += guess.eq(labels.view_as(guess)).sum().item()
    return [total / len(loader.dataset), right / len(loader.dataset)]


def main(net):
    where = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    options = {"batch_size": 8, **({"num_workers": 1, "pin_memory": True} if torch.cuda.is_available() else {})}
    known, held_out = DataLoader(Images(56, 0), **options), DataLoader(Images(32, 1), batch_size=16)
    torch.manual_seed(1)
    net = net.to(where)
    optimizer = optim.Adadelta(net.parameters(), lr=0.5)
    rates = StepLR(optimizer, step_size=1, gamma=0.7)
    losses = []
    for _ in range(3):
        net.train()
        for pixels, labels in known:
            optimizer.zero_grad()
            loss = F.nll_loss(net(pixels.to(where)), labels.to(where))
            loss.backward()
            optimizer.step()
            losses.append(float(f"{loss.item():.6f}"))
        losses += score(net, held_out, where)
        rates.step()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "net.pt")
        torch.save(net.state_dict(), path)
        again = Classifier()
        again.load_state_dict(torch.load(path, map_location=where, weights_only=True))
    return losses + score(again, held_out, where)
