"""Schedules that rise and fall."""

from __future__ import annotations

import math
from typing import Callable, List, Optional, Sequence, Tuple, Union

from ._base import Optimizer
from ._rates import LRScheduler, momentum_key, per_group, set_momentum

Numbers = Union[float, Sequence[float]]


class CosineAnnealingWarmRestarts(LRScheduler):
    """Follows a cosine to ``eta_min`` in ``T_0`` steps, and then again from the initial rate, each time ``T_mult`` times as long."""

    def __init__(self, optimizer: Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        if T_0 <= 0 or T_mult < 1 or not isinstance(T_0, int) or not isinstance(T_mult, int):
            raise ValueError(f"CosineAnnealingWarmRestarts: T_0 is {T_0} and T_mult is {T_mult}, expected integers of at least 1")
        self.T_0, self.T_i, self.T_mult, self.eta_min = T_0, T_0, T_mult, eta_min
        self.T_cur: float = last_epoch
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> List[float]:
        """Returns the rate of each group."""
        share = (1 + math.cos(math.pi * self.T_cur / self.T_i)) / 2
        return [self.eta_min + (base - self.eta_min) * share for base in self.base_lrs]

    def step(self, epoch: Optional[float] = None) -> None:
        """Sets the rates of the next step, or those of step ``epoch``, which may be a fraction."""
        self._step_count += 1
        if epoch is None and self.last_epoch < 0:
            epoch = 0
        if epoch is None:
            epoch = self.last_epoch + 1
            self.T_cur += 1
            if self.T_cur >= self.T_i:
                self.T_cur -= self.T_i
                self.T_i *= self.T_mult
        elif epoch < 0:
            raise ValueError(f"CosineAnnealingWarmRestarts: epoch is {epoch}, expected at least 0")
        else:
            self._jump(epoch)
        self.last_epoch = math.floor(epoch)
        self._set(self.get_lr())

    def _jump(self, epoch: float) -> None:
        self.T_i, self.T_cur = self.T_0, epoch
        if epoch >= self.T_0 and self.T_mult == 1:
            self.T_cur = epoch % self.T_0
        elif epoch >= self.T_0:
            n = int(math.log(epoch / self.T_0 * (self.T_mult - 1) + 1, self.T_mult))
            self.T_cur = epoch - self.T_0 * (self.T_mult**n - 1) / (self.T_mult - 1)
            self.T_i = self.T_0 * self.T_mult**n


class CyclicLR(LRScheduler):
    """Moves the rate between ``base_lr`` and ``max_lr`` (Smith 2017), and the momentum in the opposite direction."""

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: Numbers,
        max_lr: Numbers,
        step_size_up: int = 2000,
        step_size_down: Optional[int] = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_fn: Optional[Callable[[float], float]] = None,
        scale_mode: str = "cycle",
        cycle_momentum: bool = True,
        base_momentum: Numbers = 0.8,
        max_momentum: Numbers = 0.9,
        last_epoch: int = -1,
    ) -> None:
        if scale_fn is None and mode not in ("triangular", "triangular2", "exp_range"):
            raise ValueError(f"CyclicLR: mode is {mode!r}, expected triangular, triangular2 or exp_range")
        bases = per_group("base_lr", optimizer, base_lr)
        if last_epoch == -1:
            for group, lr in zip(optimizer.param_groups, bases):
                group["lr"] = lr
        self.max_lrs = per_group("max_lr", optimizer, max_lr)
        self.total_size = float(step_size_up) + float(step_size_up if step_size_down is None else step_size_down)
        self.step_ratio = float(step_size_up) / self.total_size
        self.mode, self.gamma = mode, gamma
        self._scale_fn = scale_fn
        self.scale_mode = scale_mode if scale_fn is not None else "iterations" if mode == "exp_range" else "cycle"
        self.cycle_momentum, self._key = cycle_momentum, momentum_key("CyclicLR", optimizer) if cycle_momentum else ""
        self.base_momentums = per_group("base_momentum", optimizer, base_momentum)
        self.max_momentums = per_group("max_momentum", optimizer, max_momentum)
        super().__init__(optimizer, last_epoch)
        self.base_lrs = bases

    def scale_fn(self, x: float) -> float:
        """Returns the height of a cycle, by its number or by that of the step."""
        if self._scale_fn is not None:
            return self._scale_fn(x)
        heights = {"triangular": 1.0, "triangular2": 1 / math.pow(2.0, x - 1), "exp_range": math.pow(self.gamma, x)}
        return heights[self.mode]

    def get_lr(self) -> List[float]:
        """Returns the rate of each group, and sets the momentum."""
        cycle = math.floor(1 + self.last_epoch / self.total_size)
        x = 1.0 + self.last_epoch / self.total_size - cycle
        height = x / self.step_ratio if x <= self.step_ratio else (x - 1) / (self.step_ratio - 1)
        height *= self.scale_fn(cycle if self.scale_mode == "cycle" else self.last_epoch)
        if self.cycle_momentum:
            for group, low, high in zip(self.optimizer.param_groups, self.base_momentums, self.max_momentums):
                set_momentum(group, self._key, high - (high - low) * height)
        return [base + (top - base) * height for base, top in zip(self.base_lrs, self.max_lrs)]


class OneCycleLR(LRScheduler):
    """Raises the rate to ``max_lr``, then lowers it far below its start, in ``total_steps`` steps (Smith and Topin 2019). The momentum moves in the
    opposite direction.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: Numbers,
        total_steps: Optional[int] = None,
        epochs: Optional[int] = None,
        steps_per_epoch: Optional[int] = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: Numbers = 0.85,
        max_momentum: Numbers = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        if total_steps is None and (epochs is None or steps_per_epoch is None):
            raise ValueError("OneCycleLR: expected total_steps, or epochs and steps_per_epoch")
        self.total_steps = int(total_steps if total_steps is not None else (epochs or 0) * (steps_per_epoch or 0))
        if self.total_steps <= 0 or not 0 <= pct_start <= 1:
            raise ValueError(f"OneCycleLR: {self.total_steps} steps and pct_start {pct_start}, expected at least 1 step and a share from 0 to 1")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"OneCycleLR: anneal_strategy is {anneal_strategy!r}, expected 'cos' or 'linear'")
        self._anneal_strategy, self.cycle_momentum = anneal_strategy, cycle_momentum
        rise = float(pct_start * self.total_steps) - 1
        last = float(self.total_steps - 1)
        phases: List[Tuple[float, str, str, str, str]] = [(rise, "initial_lr", "max_lr", "max_momentum", "base_momentum")]
        if three_phase:
            phases += [(2 * rise, "max_lr", "initial_lr", "base_momentum", "max_momentum"), (last, "initial_lr", "min_lr", "max_momentum", "max_momentum")]
        else:
            phases.append((last, "max_lr", "min_lr", "base_momentum", "max_momentum"))
        self._phases = phases
        self._key = momentum_key("OneCycleLR", optimizer) if cycle_momentum else ""
        lows, highs = per_group("base_momentum", optimizer, base_momentum), per_group("max_momentum", optimizer, max_momentum)
        for group, top, low, high in zip(optimizer.param_groups, per_group("max_lr", optimizer, max_lr), lows, highs):
            if last_epoch == -1:
                group.update(initial_lr=top / div_factor, max_lr=top, min_lr=top / div_factor / final_div_factor)
                if cycle_momentum:
                    group.update(max_momentum=high, base_momentum=low)
        super().__init__(optimizer, last_epoch)

    def _between(self, start: float, end: float, share: float) -> float:
        if self._anneal_strategy == "linear":
            return (end - start) * share + start
        return end + (start - end) / 2.0 * (math.cos(math.pi * share) + 1)

    def get_lr(self) -> List[float]:
        """Returns the rate of each group, and sets the momentum."""
        if self.last_epoch > self.total_steps:
            raise ValueError(f"OneCycleLR: step {int(self.last_epoch)} exceeds the {self.total_steps} steps of the cycle")
        begin = 0.0
        for end, *keys in self._phases:
            if self.last_epoch <= end or end == self._phases[-1][0]:
                share = (self.last_epoch - begin) / (end - begin)
                break
            begin = end
        values = []
        for group in self.optimizer.param_groups:
            values.append(self._between(group[keys[0]], group[keys[1]], share))
            if self.cycle_momentum:
                set_momentum(group, self._key, self._between(group[keys[2]], group[keys[3]], share))
        return values


__all__ = ["CosineAnnealingWarmRestarts", "CyclicLR", "OneCycleLR"]
