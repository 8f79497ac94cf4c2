"""Deep Q-learning (Mnih et al. 2015): a memory of moves, masks of last states, a second network that follows slowly."""

import random
from collections import deque, namedtuple

import numpy as np

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim

Move = namedtuple("Move", ("state", "action", "after", "gain"))


class Worth(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.middle, self.out = nn.Linear(3, 16), nn.Linear(16, 16), nn.Linear(16, 2)

    def forward(self, x):
        return self.out(F.relu(self.middle(F.relu(self.inner(x)))))


def models():
    return {"net": Worth(), "slow": Worth()}


def learn(moves, net, slow, optimizer, device):
    many = Move(*zip(*moves))
    goes_on = torch.tensor(tuple(s is not None for s in many.after), device=device, dtype=torch.bool)
    found = net(torch.cat(many.state)).gather(1, torch.cat(many.action))
    later = torch.zeros(len(moves), device=device)
    with torch.no_grad():
        later[goes_on] = slow(torch.cat([s for s in many.after if s is not None])).max(1).values
    loss = nn.SmoothL1Loss()(found, (later * 0.99 + torch.cat(many.gain)).unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_value_(net.parameters(), 100)
    optimizer.step()
    return loss.item()


def main(net, slow):
    device = torch.device("cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu")
    slow.load_state_dict(net.state_dict())
    optimizer = optim.AdamW(net.parameters(), lr=1e-2, amsgrad=True)
    memory, drawn, losses = deque([], maxlen=100), np.random.default_rng(14), []
    state = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float32, device=device).unsqueeze(0)
    for t in range(24):
        if drawn.random() < 0.6:
            with torch.no_grad():
                action = net(state).max(1).indices.view(1, 1)
        else:
            action = torch.tensor([[int(drawn.integers(0, 2))]], device=device, dtype=torch.long)
        after = None if t % 7 == 6 else torch.tensor(drawn.normal(size=3).astype(np.float32), device=device).unsqueeze(0)
        memory.append(Move(state, action, after, torch.tensor([float(action.item()) - 0.3], device=device)))
        state = state if after is None else after
        if len(memory) >= 8:
            losses.append(learn(random.Random(t).sample(list(memory), 8), net, slow, optimizer, device))
        follow, lead = slow.state_dict(), net.state_dict()
        for key in lead:
            follow[key] = lead[key] * 0.05 + follow[key] * 0.95
        slow.load_state_dict(follow)
    return losses
