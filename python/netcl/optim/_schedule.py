"""Learning rates as functions of the step number."""

from __future__ import annotations

import math
from typing import Callable, Dict, Mapping

from ._base import Optimizer


class Schedule:
    """Learning rate as a function of the step number. Call ``step()`` after each optimizer step."""

    def __init__(self, optimizer: Optimizer, rate: Callable[[int], float]) -> None:
        self.optimizer, self.rate, self.number = optimizer, rate, 0
        optimizer.lr = rate(0)

    def step(self) -> None:
        """Sets the learning rate of the next step."""
        self.number += 1
        self.optimizer.lr = self.rate(self.number)

    def state_dict(self) -> Dict[str, int]:
        """Returns the step number."""
        return {"number": self.number}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continues from a saved step number."""
        self.number = state["number"]
        self.optimizer.lr = self.rate(self.number)


def cosine(lr: float, warmup: int, decay: int, min_lr: float = 0.0) -> Callable[[int], float]:
    """Linear warm-up from ``lr / (warmup + 1)``, then a cosine down to ``min_lr`` at step ``decay``, then constant."""

    def rate(step: int) -> float:
        if step < warmup:
            return lr * (step + 1) / (warmup + 1)
        if step >= decay:
            return min_lr
        return min_lr + 0.5 * (1 + math.cos(math.pi * (step - warmup) / (decay - warmup))) * (lr - min_lr)

    return rate


def linear(lr: float, warmup: int, decay: int, min_lr: float = 0.0) -> Callable[[int], float]:
    """Linear warm-up as in ``cosine``, then linear decay to ``min_lr`` at step ``decay``, then constant."""

    def rate(step: int) -> float:
        if step < warmup:
            return lr * (step + 1) / (warmup + 1)
        if step >= decay:
            return min_lr
        return min_lr + (1 - (step - warmup) / (decay - warmup)) * (lr - min_lr)

    return rate


__all__ = ["Schedule", "cosine", "linear"]
