"""Optimizers and schedules. A step updates all parameters in a few launches. Clipping runs on the device."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, Iterable, List, Mapping, Tuple, Union

from ._netcl import Tensor, Update
from ._state import state

Params = Iterable[Union[Tensor, Tuple[str, Tensor], Mapping[str, Any]]]


def _groups(params: Params, weight_decay: float) -> List[Dict[str, Any]]:
    given = list(params)
    if not given:
        raise ValueError("optimizer: got no parameters")
    if not all(isinstance(g, Mapping) for g in given):
        given = [{"params": given}]
    groups, number = [], 0
    for group in given:
        assert isinstance(group, Mapping)
        named = []
        for p in group["params"]:
            name, tensor = p if isinstance(p, tuple) else (f"{number}", p)
            # A parameter shared with a decoder keeps its name; with another name, it would be another leaf.
            named.append((getattr(tensor, "own_name", name), tensor))
            number += 1
        groups.append({"params": named, "weight_decay": group.get("weight_decay", weight_decay), "lr_scale": group.get("lr_scale", 1.0)})
    return groups


class Optimizer:
    """Optimizer over parameters, pairs of name and parameter (``model.named_parameters()``, which makes states readable), or groups of them as
    dictionaries.
    """

    def __init__(self, rule: str, params: Params, lr: float, weight_decay: float, hyper: Dict[str, float]) -> None:
        groups = _groups(params, weight_decay)
        self.lr = lr
        self.params = [p for g in groups for _, p in g["params"]]
        self._update = Update(rule, [(g["params"], g["weight_decay"], g["lr_scale"]) for g in groups], hyper)

    def step(self) -> None:
        """Runs one step with the learning rate ``lr``. If a parameter lacks a gradient, the step raises an error that names it and changes nothing."""
        if state.capturing:
            state.capturing[-1].optimizers.append(self)
            self._update.apply()
        else:
            self._update.step(self.lr)

    def _set_rate(self) -> None:
        self._update.set_rate(self.lr)

    def _count(self) -> None:
        self._update.count()

    def zero_grad(self) -> None:
        """Drops the gradients."""
        self._update.zero_grad()

    def clip_grad_norm(self, max_norm: float) -> None:
        """Enables clipping from the next step on: gradients are scaled down so that their total norm is at most ``max_norm``. 0 only measures the
        norm.
        """
        self._update.clip_grad_norm(max_norm)

    def grad_norm(self) -> float:
        """Returns the norm of all gradients in the last step, if ``clip_grad_norm`` was called. Waits for the device."""
        return self._update.report()[0]

    def weights_changed(self) -> None:
        """Must be called after parameters were overwritten."""
        self._update.weights_changed()

    def state_dict(self) -> Dict[str, Any]:
        """Returns learning rate, step number and moments. Together with the weights, they allow resuming with bitwise equal results."""
        return {"lr": self.lr, "state": self._update.state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a state that ``state_dict`` returned."""
        self._update.load_state(state["state"])
        self.lr = state["lr"]


class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019)."""

    def __init__(self, params: Params, lr: float = 1e-3, betas: Tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 1e-2) -> None:
        super().__init__("adamw", params, lr, weight_decay, {"beta1": betas[0], "beta2": betas[1], "eps": eps})


class Adam(Optimizer):
    """Adam (Kingma and Ba 2015); weight decay is added to the gradient."""

    def __init__(self, params: Params, lr: float = 1e-3, betas: Tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0) -> None:
        super().__init__("adam", params, lr, weight_decay, {"beta1": betas[0], "beta2": betas[1], "eps": eps})


class Lion(Optimizer):
    """Steps of constant size in the direction of an average's sign (Chen et al. 2023, arXiv:2302.06675), with decoupled weight decay."""

    def __init__(self, params: Params, lr: float = 1e-4, betas: Tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0) -> None:
        super().__init__("lion", params, lr, weight_decay, {"beta1": betas[0], "beta2": betas[1]})


class SGD(Optimizer):
    """Gradient descent; weight decay is added to the gradient."""

    def __init__(self, params: Params, lr: float = 1e-2, momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False) -> None:
        super().__init__("sgd", params, lr, weight_decay, {"momentum": momentum, "dampening": dampening, "nesterov": float(nesterov)})


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


def clip_grad_norm_(params: Iterable[Tensor], max_norm: float) -> float:
    """Scales all gradients down so that their total norm is at most ``max_norm``. Returns the norm before. Waits for the device, unlike
    ``Optimizer.clip_grad_norm``.
    """
    found = [p for p in params if p.grad is not None]
    grads = [p.grad for p in found if p.grad is not None]
    norm = math.sqrt(sum(float(g.float().square().sum().item()) for g in grads))
    factor = max_norm / (norm + 1e-6)
    if factor < 1:
        for p, g in zip(found, grads):
            p.grad = g * factor
    return norm


__all__ = ["Adam", "AdamW", "Lion", "Optimizer", "SGD", "Schedule", "clip_grad_norm_", "cosine", "linear"]
