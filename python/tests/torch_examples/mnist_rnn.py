"""Digits by an LSTM over rows, with batch normalization of its last output."""

import numpy as np

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset


class RowReader(nn.Module):
    def __init__(self):
        super(RowReader, self).__init__()
        self.reader = nn.LSTM(input_size=14, hidden_size=16, batch_first=True)
        self.norm, self.drop = nn.BatchNorm1d(16), nn.Dropout2d(0.0)
        self.hidden, self.out = nn.Linear(16, 8), nn.Linear(8, 10)

    def forward(self, pixels):
        states, (last, cell) = self.reader(pixels.reshape(-1, 14, 14))
        made = self.drop(self.norm(states[:, -1, :]))
        return F.log_softmax(self.out(F.relu(self.hidden(made))), dim=1)


def models():
    return {"net": RowReader()}


def main(net):
    random = np.random.default_rng(2)
    pixels = torch.tensor(random.normal(size=(40, 1, 14, 14)), dtype=torch.float32)
    labels = torch.tensor(random.integers(0, 10, 40).tolist())
    loader = DataLoader(TensorDataset(pixels, labels), batch_size=8, shuffle=False, drop_last=True)
    optimizer = optim.Adadelta(net.parameters(), lr=0.1)
    rates = optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)
    losses = []
    for _ in range(4):
        net.train()
        for given, wanted in loader:
            optimizer.zero_grad()
            loss = F.nll_loss(net(given), wanted)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        rates.step()
    net.eval()
    with torch.no_grad():
        return losses + [F.nll_loss(net(pixels), labels, reduction="sum").item()]
