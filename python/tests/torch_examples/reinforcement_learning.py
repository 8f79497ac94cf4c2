"""Policy gradients for a pole on a cart: whole episodes, and an actor with a critic."""

import math
from collections import deque, namedtuple

import numpy as np

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.distributions import Categorical

Choice = namedtuple("Choice", ["log", "value"])
TINY = np.finfo(np.float32).eps.item()


class Cart:
    """The equations of motion of Barto, Sutton and Anderson 1983."""

    def __init__(self):
        self.state = np.array([0.01, 0.02, 0.03, -0.02])

    def push(self, right):
        place, speed, angle, turn = self.state
        pull = ((10.0 if right else -10.0) + 0.05 * turn**2 * math.sin(angle)) / 1.1
        turning = (9.8 * math.sin(angle) - math.cos(angle) * pull) / (0.5 * (4 / 3 - 0.1 * math.cos(angle) ** 2 / 1.1))
        self.state = self.state + 0.02 * np.array([speed, pull - 0.05 * turning * math.cos(angle) / 1.1, turn, turning])
        return abs(place) > 2.4 or abs(angle) > 0.21

    def seen(self):
        return torch.from_numpy(self.state.astype(np.float32)).float()


class Actor(nn.Module):
    def __init__(self, critic):
        super().__init__()
        self.inner, self.drop, self.choice = nn.Linear(4, 16), nn.Dropout(p=0.0), nn.Linear(16, 2)
        self.worth = nn.Linear(16, 1) if critic else None
        self.made, self.gained = [], []

    def act(self, seen):
        hidden = F.relu(self.drop(self.inner(seen if self.worth is not None else seen.unsqueeze(0))))
        chances = Categorical(F.softmax(self.choice(hidden), dim=-1))
        action = chances.sample()
        self.made.append(Choice(chances.log_prob(action), None if self.worth is None else self.worth(hidden)))
        return action.item()

    def learn(self, optimizer):
        sums, total = deque(), 0
        for gain in self.gained[::-1]:
            total = gain + 0.99 * total
            sums.appendleft(total)
        sums = torch.tensor(sums)
        sums = (sums - sums.mean()) / (sums.std() + TINY)
        if self.worth is None:
            loss = torch.cat([-choice.log * scaled for choice, scaled in zip(self.made, sums)]).sum()
        else:
            policy = torch.stack([-choice.log * (scaled - choice.value.item()) for choice, scaled in zip(self.made, sums)]).sum()
            loss = policy + torch.stack([F.smooth_l1_loss(choice.value, torch.tensor([scaled])) for choice, scaled in zip(self.made, sums)]).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        del self.made[:], self.gained[:]
        return loss.item()


def models():
    return {"alone": Actor(False), "with_critic": Actor(True)}


def main(**actors):
    losses = []
    for actor in actors.values():
        optimizer = optim.Adam(actor.parameters(), lr=1e-2)
        for _ in range(3):
            cart = Cart()
            for _ in range(12):
                over = cart.push(actor.act(cart.seen()) == 1)
                actor.gained.append(1.0)
                if over:
                    break
            losses += [len(actor.gained), actor.learn(optimizer)]
    return losses
