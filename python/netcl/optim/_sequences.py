"""Schedules of schedules, and the schedule that watches a metric."""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Any, Dict, List, Mapping, Optional, Sequence, Union

from ._base import Optimizer
from ._rates import LRScheduler, per_group


class SequentialLR(LRScheduler):
    """Runs one schedule after another. Schedule ``i + 1`` starts at step ``milestones[i]``."""

    def __init__(self, optimizer: Optimizer, schedulers: List[LRScheduler], milestones: List[int], last_epoch: int = -1) -> None:
        if not schedulers or len(milestones) != len(schedulers) - 1:
            raise ValueError(f"SequentialLR: got {len(schedulers)} schedulers and {len(milestones)} milestones, expected one milestone fewer")
        for each in schedulers:
            if isinstance(each, ReduceLROnPlateau):
                raise ValueError("SequentialLR: ReduceLROnPlateau needs a metric at each step, and cannot be part of a sequence")
            if each.optimizer is not optimizer:
                raise ValueError("SequentialLR: the schedulers belong to different optimizers")
        self.optimizer, self._schedulers, self._milestones = optimizer, schedulers, milestones
        self.last_epoch = last_epoch + 1
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"]
        # Each schedule has set its first rate. That of the first schedule counts.
        for each in schedulers:
            each.last_epoch -= 1
        schedulers[0]._initial_step()
        self._last_lr = schedulers[0].get_last_lr()

    def step(self, epoch: Optional[int] = None) -> None:
        """Sets the rates of the next step."""
        if epoch is not None:
            raise TypeError("SequentialLR: step does not take an epoch")
        self.last_epoch += 1
        place = bisect_right(self._milestones, self.last_epoch)
        scheduler = self._schedulers[place]
        if place > 0 and self._milestones[place - 1] == self.last_epoch:
            scheduler.step(0)
        else:
            scheduler.step()
        self._last_lr = scheduler.get_last_lr()

    def state_dict(self) -> Dict[str, Any]:
        """Returns the numbers of all schedules."""
        made = {key: value for key, value in self.__dict__.items() if key not in ("optimizer", "_schedulers")}
        return {**made, "_schedulers": [each.state_dict() for each in self._schedulers]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores a state that ``state_dict`` returned."""
        self.__dict__.update({key: value for key, value in state_dict.items() if key != "_schedulers"})
        for each, state in zip(self._schedulers, state_dict["_schedulers"]):
            each.load_state_dict(state)


class ChainedScheduler(LRScheduler):
    """Applies all schedules at each step."""

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: Optional[Optimizer] = None) -> None:
        if not schedulers:
            raise ValueError("ChainedScheduler: got no schedulers")
        self.optimizer = optimizer or schedulers[0].optimizer
        if any(each.optimizer is not self.optimizer for each in schedulers):
            raise ValueError("ChainedScheduler: the schedulers belong to different optimizers")
        self._schedulers = list(schedulers)
        self._last_lr = self._lrs()

    def step(self, epoch: Optional[int] = None) -> None:
        """Sets the rates of the next step."""
        if epoch is not None:
            raise TypeError("ChainedScheduler: step does not take an epoch")
        for each in self._schedulers:
            each.step()
        self._last_lr = self._lrs()

    state_dict = SequentialLR.state_dict
    load_state_dict = SequentialLR.load_state_dict


class ReduceLROnPlateau(LRScheduler):
    """Multiplies the rate by ``factor`` if a metric has not improved for more than ``patience`` steps: ``scheduler.step(loss)``."""

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: Union[float, Sequence[float]] = 0.0,
        eps: float = 1e-8,
    ) -> None:
        if factor >= 1.0:
            raise ValueError(f"ReduceLROnPlateau: factor is {factor}, expected less than 1")
        if mode not in ("min", "max") or threshold_mode not in ("rel", "abs"):
            raise ValueError(f"ReduceLROnPlateau: mode is {mode!r} and threshold_mode {threshold_mode!r}, expected min or max, and rel or abs")
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"ReduceLROnPlateau: got {type(optimizer).__name__}, expected an optimizer")
        self.optimizer, self.factor, self.patience, self.cooldown = optimizer, factor, patience, cooldown
        self.mode, self.threshold, self.threshold_mode, self.eps = mode, threshold, threshold_mode, eps
        self.min_lrs = per_group("min_lr", optimizer, min_lr)
        self.last_epoch = 0
        self._last_lr = self._lrs()
        self.best, self.num_bad_epochs, self.cooldown_counter = math.inf if mode == "min" else -math.inf, 0, 0

    @property
    def in_cooldown(self) -> bool:
        """Whether the rate was reduced less than ``cooldown`` steps ago."""
        return self.cooldown_counter > 0

    def _is_better(self, value: float) -> bool:
        sign = 1.0 if self.mode == "min" else -1.0
        if self.threshold_mode == "rel":
            return sign * value < sign * self.best * (1.0 - sign * self.threshold)
        return sign * value < sign * self.best - self.threshold

    def step(self, metrics: Any, epoch: Optional[int] = None) -> None:  # type: ignore[override]
        """Records a metric, and reduces the rates if it has not improved for long enough."""
        value = float(metrics)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if self._is_better(value):
            self.best, self.num_bad_epochs = value, 0
        else:
            self.num_bad_epochs += 1
        if self.in_cooldown:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            for group, least in zip(self.optimizer.param_groups, self.min_lrs):
                lowered = max(group["lr"] * self.factor, least)
                if group["lr"] - lowered > self.eps:
                    group["lr"] = lowered
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
        self._last_lr = self._lrs()


__all__ = ["ChainedScheduler", "ReduceLROnPlateau", "SequentialLR"]
