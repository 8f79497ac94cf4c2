"""Optimizers whose rules netcl implements: SGD, Adam, AdamW and Lion."""

from __future__ import annotations

import math
from typing import Any, Dict, Optional, Tuple

from .._create import zeros_like
from .._netcl import Tensor, evaluate_into
from ._base import HINTS, Params
from ._fused import FusedOptimizer


def check(name: str, **values: float) -> None:
    """Refuses hyperparameters out of their bounds: betas from 0 to 1, all others from 0 on."""
    for key, value in values.items():
        share = key in ("beta1", "beta2", "rho")
        if not 0.0 <= value or (share and key != "rho" and not value < 1.0) or (key == "rho" and value > 1.0):
            raise ValueError(f"{name}: {key} is {value}, expected at least 0{' and below 1' if share else ''}")


def hints(given: Dict[str, Any], name: str) -> Dict[str, Any]:
    """Takes PyTorch's arguments that select an implementation out of the keyword arguments, and refuses unknown ones."""
    unknown = [key for key in given if key not in (*HINTS, "differentiable")]
    if unknown:
        raise TypeError(f"{name}: got the unknown argument {unknown[0]!r}")
    return {"differentiable": True} if given.get("differentiable") else {}


def f32_zeros(p: Tensor) -> Tensor:
    """Returns zeros of a parameter's shape, as float32."""
    return zeros_like(p.detach(), dtype="float32")


def change(p: Tensor, expression: str, *inputs: Tensor, numbers: Tuple[float, ...] = ()) -> None:
    """Overwrites ``p`` with an expression over ``x0``, which is ``p``, and further inputs ``x1``, …, and numbers ``s0``, …."""
    evaluate_into(expression, [p.detach(), *inputs], list(numbers), p.detach())


def prepared(p: Tensor, grad: Tensor, group: Dict[str, Any], coupled: bool = True) -> Tensor:
    """Returns the gradient as float32 with the group's sign, plus weight decay if that is added to the gradient."""
    made: Tensor = grad.detach().float()
    made = -made if group.get("maximize") else made
    decay = float(group["weight_decay"]) if coupled else 0.0
    return made + p.detach().float() * decay if decay else made.contiguous()


class SGD(FusedOptimizer):
    """Gradient descent; weight decay is added to the gradient."""

    _rule = "sgd"

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        **implementation: Any,
    ) -> None:
        check("SGD", lr=lr, momentum=momentum, weight_decay=weight_decay)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("SGD: nesterov needs a momentum and no dampening")
        defaults = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay, "nesterov": nesterov, "maximize": maximize}
        super().__init__(params, {**defaults, **hints(implementation, "SGD")})

    def update(self, p: Tensor, grad: Tensor, state: Dict[str, Any], group: Dict[str, Any]) -> None:
        """Updates one parameter, without recording."""
        g, momentum = prepared(p, grad, group), float(group["momentum"])
        if momentum:
            buffer: Optional[Tensor] = state.get("momentum_buffer")
            if buffer is None:
                buffer = state["momentum_buffer"] = g.clone()
            else:
                change(buffer, "s0 * x0 + s1 * x1", g, numbers=(momentum, 1.0 - group["dampening"]))
            g = g + buffer * momentum if group["nesterov"] else buffer
        change(p, "x0 - s0 * x1", g, numbers=(_rate(group),))


def _rate(group: Dict[str, Any]) -> float:
    return float(group["lr"]) * float(group.get("lr_scale", 1.0))


class Adam(FusedOptimizer):
    """Adam (Kingma and Ba 2015); weight decay is added to the gradient."""

    _rule = "adam"
    _decoupled = False

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: Tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        decoupled_weight_decay: bool = False,
        **implementation: Any,
    ) -> None:
        check(type(self).__name__, lr=lr, eps=eps, beta1=betas[0], beta2=betas[1], weight_decay=weight_decay)
        if decoupled_weight_decay:
            self._rule = "adamw"
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad, "maximize": maximize}
        super().__init__(params, {**defaults, "decoupled_weight_decay": decoupled_weight_decay, **hints(implementation, type(self).__name__)})

    def update(self, p: Tensor, grad: Tensor, state: Dict[str, Any], group: Dict[str, Any]) -> None:
        """Updates one parameter, without recording."""
        if not state:
            state.update(step=0.0, exp_avg=f32_zeros(p), exp_avg_sq=f32_zeros(p))
            if group["amsgrad"]:
                state["max_exp_avg_sq"] = f32_zeros(p)
        state["step"] += 1
        (b1, b2), t, lr = group["betas"], state["step"], _rate(group)
        decoupled = self._rule == "adamw"
        g = prepared(p, grad, group, not decoupled)
        if decoupled:
            change(p, "x0 * s0", numbers=(1.0 - lr * group["weight_decay"],))
        average(state["exp_avg"], state["exp_avg_sq"], g, b1, b2)
        squares = state["exp_avg_sq"]
        if group["amsgrad"]:
            change(state["max_exp_avg_sq"], "fmax(x0, x1)", squares)
            squares = state["max_exp_avg_sq"]
        numbers = (lr / (1.0 - b1**t), math.sqrt(1.0 - b2**t), float(group["eps"]))
        change(p, "x0 - s0 * x1 / (sqrt(x2) / s1 + s2)", state["exp_avg"], squares, numbers=numbers)


def average(first: Tensor, second: Tensor, g: Tensor, beta1: float, beta2: float) -> None:
    """Updates the averages of the gradient and of its square."""
    change(first, "x0 + s0 * (x1 - x0)", g, numbers=(1.0 - beta1,))
    change(second, "s0 * x0 + s1 * x1 * x1", g, numbers=(beta2, 1.0 - beta2))


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019)."""

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: Tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        **implementation: Any,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize, decoupled_weight_decay=True, **implementation)


class Lion(FusedOptimizer):
    """Steps of constant size in the direction of an average's sign (Chen et al. 2023, arXiv:2302.06675), with decoupled weight decay."""

    _rule = "lion"
    _composed = ()

    def __init__(self, params: Params, lr: float = 1e-4, betas: Tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0) -> None:
        check("Lion", lr=lr, beta1=betas[0], beta2=betas[1], weight_decay=weight_decay)
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})


__all__ = ["Adam", "AdamW", "Lion", "SGD", "average", "change", "check", "f32_zeros", "hints", "prepared"]
