"""A generator and a discriminator of convolutions, each with its optimizer, and labels that are written in place."""

import numpy as np

import torch
import torch.nn as nn
import torch.nn.parallel
import torch.backends.cudnn as cudnn
import torch.optim as optim
import torch.utils.data

cudnn.benchmark = True
NOISE = 6


def draw_weights(layer):
    kind = type(layer).__name__
    if "Conv" in kind:
        torch.nn.init.normal_(layer.weight, 0.0, 0.02)
    elif "BatchNorm" in kind:
        torch.nn.init.normal_(layer.weight, 1.0, 0.02)
        torch.nn.init.zeros_(layer.bias)


class Painter(nn.Module):
    def __init__(self):
        super().__init__()
        up = [(NOISE, 8, 4, 1, 0), (8, 4, 4, 2, 1)]
        blocks = [b for a in up for b in (nn.ConvTranspose2d(*a, bias=False), nn.BatchNorm2d(a[1]), nn.ReLU(True))]
        self.main = nn.Sequential(*blocks, nn.ConvTranspose2d(4, 1, 4, 2, 1, bias=False), nn.Tanh())

    def forward(self, noise):
        return nn.parallel.data_parallel(self.main, noise, []) if noise.is_cuda else self.main(noise)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(1, 4, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True), nn.Conv2d(4, 8, 4, 2, 1, bias=False), nn.BatchNorm2d(8),
            nn.LeakyReLU(0.2, inplace=True), nn.Conv2d(8, 1, 4, 1, 0, bias=False), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, images):
        return self.main(images).view(-1, 1).squeeze(1)


def models():
    return {"painter": Painter().apply(draw_weights), "critic": Critic().apply(draw_weights)}


def main(painter, critic):
    device = torch.device("cpu")
    pictures = np.random.default_rng(4).uniform(-1, 1, (24, 1, 16, 16)).astype(np.float32)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.from_numpy(pictures), torch.zeros(24)), batch_size=6, num_workers=0)
    measure = nn.BCELoss()
    steps = [optim.Adam(net.parameters(), lr=0.0002, betas=(0.5, 0.999)) for net in (critic, painter)]
    fixed, losses = torch.randn(6, NOISE, 1, 1, device=device), []
    for _ in range(3):
        for real, _unused in loader:
            critic.zero_grad()
            labels = torch.full((real.size(0),), 1, dtype=real.dtype, device=device)
            seen = critic(real.to(device))
            on_real = measure(seen, labels)
            on_real.backward()
            fake = painter(torch.randn(real.size(0), NOISE, 1, 1, device=device))
            labels.fill_(0)
            on_fake = measure(critic(fake.detach()), labels)
            on_fake.backward()
            steps[0].step()
            painter.zero_grad()
            labels.fill_(1)
            fooled = measure(critic(fake), labels)
            fooled.backward()
            steps[1].step()
            losses += [(on_real + on_fake).item(), fooled.item(), seen.mean().item()]
    return losses + [painter(fixed).detach().abs().mean().item()]
