"""Schedules whose rate depends on the number of the step and on the last rate, so that several can be combined."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Union

from ..errors import UnsupportedError
from ._base import Optimizer

Factor = Callable[[int], float]


class LRScheduler:
    """Base of schedules. ``last_epoch`` is the number of the step. A derived class defines ``get_lr``, which returns the next rate of each group."""

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{type(self).__name__}: got {type(optimizer).__name__}, expected an optimizer")
        self.optimizer = optimizer
        for i, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", group["lr"])
            elif "initial_lr" not in group:
                raise KeyError(f"{type(self).__name__}: last_epoch is {last_epoch}, but group {i} does not have initial_lr; load the optimizer's state first")
        self.base_lrs: List[float] = [group["initial_lr"] for group in optimizer.param_groups]
        self.last_epoch: float = last_epoch
        self._step_count = 0
        self._last_lr: List[float] = []
        self._initial_step()

    def _initial_step(self) -> None:
        self._step_count = 0
        self.step()

    def _lrs(self) -> List[float]:
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def get_lr(self) -> List[float]:
        """Returns the rate of each group for step ``last_epoch``, computed from the present one."""
        raise NotImplementedError(f"{type(self).__name__} does not define get_lr")

    def _closed(self) -> Optional[List[float]]:
        """Returns the rates for step ``last_epoch`` without the present ones, if there is a formula."""
        return None

    def get_last_lr(self) -> List[float]:
        """Returns the rate of each group that the last step set."""
        return self._last_lr

    def step(self, epoch: Optional[int] = None) -> None:
        """Sets the rates of the next step, or those of step ``epoch``."""
        self._step_count += 1
        if epoch is None:
            self.last_epoch += 1
            values = self.get_lr()
        else:
            self.last_epoch = epoch
            closed = self._closed()
            values = self.get_lr() if closed is None else closed
        self._set(values)

    def _set(self, values: Sequence[float]) -> None:
        for group, value in zip(self.optimizer.param_groups, values):
            group["lr"] = value
        self._last_lr = self._lrs()

    def state_dict(self) -> Dict[str, Any]:
        """Returns the schedule's numbers. Functions are not included."""
        return {key: value for key, value in self.__dict__.items() if key != "optimizer" and not callable(value)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores a state that ``state_dict`` returned."""
        self.__dict__.update(state_dict)


class StepLR(LRScheduler):
    """Multiplies the rate by ``gamma`` every ``step_size`` steps."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1) -> None:
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> List[float]:
        """Returns the rate of each group for step ``last_epoch``, computed from the present one."""
        changes = self.last_epoch != 0 and self.last_epoch % self.step_size == 0
        return [lr * self.gamma if changes else lr for lr in self._lrs()]

    def _closed(self) -> List[float]:
        return [base * self.gamma ** (self.last_epoch // self.step_size) for base in self.base_lrs]


class MultiStepLR(LRScheduler):
    """Multiplies the rate by ``gamma`` at each of the ``milestones``."""

    def __init__(self, optimizer: Optimizer, milestones: Iterable[int], gamma: float = 0.1, last_epoch: int = -1) -> None:
        self.milestones, self.gamma = Counter(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> List[float]:
        """Returns the rate of each group for step ``last_epoch``, computed from the present one."""
        count = self.milestones.get(int(self.last_epoch), 0)
        return [lr * self.gamma**count for lr in self._lrs()]

    def _closed(self) -> List[float]:
        passed = bisect_right(sorted(self.milestones.elements()), self.last_epoch)
        return [base * self.gamma**passed for base in self.base_lrs]


class ConstantLR(LRScheduler):
    """Multiplies the rate by ``factor`` for the first ``total_iters`` steps."""

    def __init__(self, optimizer: Optimizer, factor: float = 1.0 / 3, total_iters: int = 5, last_epoch: int = -1) -> None:
        if not 0 <= factor <= 1:
            raise ValueError(f"ConstantLR: factor is {factor}, expected 0 to 1")
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> List[float]:
        """Returns the rate of each group for step ``last_epoch``, computed from the present one."""
        if self.last_epoch == 0:
            return [lr * self.factor for lr in self._lrs()]
        return [lr / self.factor if self.last_epoch == self.total_iters else lr for lr in self._lrs()]

    def _closed(self) -> List[float]:
        return [base * (1.0 if self.last_epoch >= self.total_iters else self.factor) for base in self.base_lrs]


class LinearLR(LRScheduler):
    """Multiplies the rate by a factor that changes linearly from ``start_factor`` to ``end_factor`` in ``total_iters`` steps."""

    def __init__(self, optimizer: Optimizer, start_factor: float = 1.0 / 3, end_factor: float = 1.0, total_iters: int = 5, last_epoch: int = -1) -> None:
        if not 0 < start_factor <= 1 or not 0 <= end_factor <= 1:
            raise ValueError(f"LinearLR: the factors are {start_factor} and {end_factor}, expected a start above 0, and both at most 1")
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> List[float]:
        """Returns the rate of each group for step ``last_epoch``, computed from the present one."""
        apart, n = self.end_factor - self.start_factor, self.last_epoch
        if n == 0:
            return [lr * self.start_factor for lr in self._lrs()]
        if n > self.total_iters:
            return self._lrs()
        return [lr * (1 + apart / (self.total_iters * self.start_factor + (n - 1) * apart)) for lr in self._lrs()]

    def _closed(self) -> List[float]:
        share = min(self.total_iters, self.last_epoch) / self.total_iters
        return [base * (self.start_factor + (self.end_factor - self.start_factor) * share) for base in self.base_lrs]


class ExponentialLR(LRScheduler):
    """Multiplies the rate by ``gamma`` at each step."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> List[float]:
        """Returns the rate of each group for step ``last_epoch``, computed from the present one."""
        return [lr if self.last_epoch == 0 else lr * self.gamma for lr in self._lrs()]

    def _closed(self) -> List[float]:
        return [base * self.gamma**self.last_epoch for base in self.base_lrs]


class CosineAnnealingLR(LRScheduler):
    """Follows a cosine from the initial rate to ``eta_min`` in ``T_max`` steps, and back (Loshchilov and Hutter 2017, without restarts)."""

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> List[float]:
        """Returns the rate of each group for step ``last_epoch``, computed from the present one."""
        n, period = self.last_epoch, self.T_max
        if n == 0:
            return self._lrs()
        if self._step_count == 1 and n > 0:
            return self._closed()
        if (n - 1 - period) % (2 * period) == 0:
            return [lr + (base - self.eta_min) * (1 - math.cos(math.pi / period)) / 2 for lr, base in zip(self._lrs(), self.base_lrs)]
        ratio = (1 + math.cos(math.pi * n / period)) / (1 + math.cos(math.pi * (n - 1) / period))
        return [ratio * (lr - self.eta_min) + self.eta_min for lr in self._lrs()]

    def _closed(self) -> List[float]:
        share = (1 + math.cos(math.pi * self.last_epoch / self.T_max)) / 2
        return [self.eta_min + (base - self.eta_min) * share for base in self.base_lrs]


class PolynomialLR(LRScheduler):
    """Lowers the rate to 0 in ``total_iters`` steps by ``(1 - n / total_iters) ** power``."""

    def __init__(self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1) -> None:
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> List[float]:
        """Returns the rate of each group for step ``last_epoch``, computed from the present one."""
        n, total = self.last_epoch, self.total_iters
        if n == 0 or n > total:
            return self._lrs()
        factor = ((1.0 - n / total) / (1.0 - (n - 1) / total)) ** self.power
        return [lr * factor for lr in self._lrs()]

    def _closed(self) -> List[float]:
        return [base * (1.0 - min(self.total_iters, self.last_epoch) / self.total_iters) ** self.power for base in self.base_lrs]


class _ByFunction(LRScheduler):
    """Schedules with a function for each group."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Union[Factor, Sequence[Factor]], last_epoch: int = -1) -> None:
        groups = len(optimizer.param_groups)
        self.lr_lambdas: List[Factor] = [lr_lambda] * groups if callable(lr_lambda) else list(lr_lambda)
        if len(self.lr_lambdas) != groups:
            raise ValueError(f"{type(self).__name__}: got {len(self.lr_lambdas)} functions, expected {groups}, one for each group")
        super().__init__(optimizer, last_epoch)

    def state_dict(self) -> Dict[str, Any]:
        """Returns the schedule's numbers, and the attributes of functions that are objects."""
        made = {key: value for key, value in self.__dict__.items() if key not in ("optimizer", "lr_lambdas")}
        plain = type(lambda: None)
        made["lr_lambdas"] = [None if isinstance(f, plain) else dict(getattr(f, "__dict__", {})) for f in self.lr_lambdas]
        return made

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores a state that ``state_dict`` returned."""
        given = dict(state_dict)
        for f, attributes in zip(self.lr_lambdas, given.pop("lr_lambdas")):
            if attributes is not None:
                f.__dict__.update(attributes)
        self.__dict__.update(given)


class LambdaLR(_ByFunction):
    """Multiplies the initial rate by a function of the step number."""

    def get_lr(self) -> List[float]:
        """Returns the rate of each group for step ``last_epoch``."""
        return [base * f(int(self.last_epoch)) for base, f in zip(self.base_lrs, self.lr_lambdas)]


class MultiplicativeLR(_ByFunction):
    """Multiplies the last rate by a function of the step number."""

    def get_lr(self) -> List[float]:
        """Returns the rate of each group for step ``last_epoch``, computed from the present one."""
        return [lr * f(int(self.last_epoch)) if self.last_epoch > 0 else lr for lr, f in zip(self._lrs(), self.lr_lambdas)]


def per_group(name: str, optimizer: Optimizer, given: Union[float, Sequence[float]]) -> List[float]:
    """Returns a number for each group."""
    groups = len(optimizer.param_groups)
    if not isinstance(given, (list, tuple)):
        return [float(given)] * groups  # type: ignore[arg-type]
    if len(given) != groups:
        raise ValueError(f"{name} has {len(given)} numbers, expected {groups}, one for each group")
    return [float(v) for v in given]


def momentum_key(name: str, optimizer: Optimizer) -> str:
    """Returns the key of an optimizer's momentum."""
    for key in ("betas", "momentum"):
        if key in optimizer.defaults:
            return key
    raise UnsupportedError(f"{name}: the optimizer has neither momentum nor betas; pass cycle_momentum=False")


def set_momentum(group: Dict[str, Any], key: str, value: float) -> None:
    """Writes a momentum to a group."""
    group[key] = (value, *group["betas"][1:]) if key == "betas" else value


__all__ = [
    "ConstantLR", "CosineAnnealingLR", "ExponentialLR", "LRScheduler", "LambdaLR", "LinearLR", "MultiStepLR", "MultiplicativeLR", "PolynomialLR", "StepLR",
    "momentum_key", "per_group", "set_momentum",
]  # fmt: skip
