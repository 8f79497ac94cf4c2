"""Optimizers of PyTorch that are computed with tensor operations, some launches for each parameter."""

from __future__ import annotations

import math
from typing import Any, Dict, Tuple

from .._create import full_like
from .._netcl import Tensor
from ._base import Optimizer, Params
from ._rules import average, change, check, f32_zeros, hints, prepared


def _rate(group: Dict[str, Any]) -> float:
    return float(group["lr"]) * float(group.get("lr_scale", 1.0))


def _stepped(state: Dict[str, Any], p: Tensor, *names: str) -> float:
    """Creates the state at the first step. Returns the step's number."""
    if not state:
        state["step"] = 0.0
        state.update({name: f32_zeros(p) for name in names})
    state["step"] += 1
    return float(state["step"])


class RMSprop(Optimizer):
    """Gradients divided by a moving average of their size (Hinton 2012)."""

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        *,
        maximize: bool = False,
        **implementation: Any,
    ) -> None:
        check("RMSprop", lr=lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum)
        defaults = {"lr": lr, "alpha": alpha, "eps": eps, "weight_decay": weight_decay, "momentum": momentum, "centered": centered, "maximize": maximize}
        super().__init__(params, {**defaults, **hints(implementation, "RMSprop")})

    def update(self, p: Tensor, grad: Tensor, state: Dict[str, Any], group: Dict[str, Any]) -> None:
        """Updates one parameter, without recording."""
        more = ["momentum_buffer"] if group["momentum"] > 0 else []
        more += ["grad_avg"] if group["centered"] else []
        _stepped(state, p, "square_avg", *more)
        g, alpha, eps, lr = prepared(p, grad, group), float(group["alpha"]), float(group["eps"]), _rate(group)
        squares = state["square_avg"]
        change(squares, "s0 * x0 + s1 * x1 * x1", g, numbers=(alpha, 1.0 - alpha))
        scaled = g.clone()
        if group["centered"]:
            change(state["grad_avg"], "x0 + s0 * (x1 - x0)", g, numbers=(1.0 - alpha,))
            change(scaled, "x0 / (sqrt(x1 - x2 * x2) + s0)", squares, state["grad_avg"], numbers=(eps,))
        else:
            change(scaled, "x0 / (sqrt(x1) + s0)", squares, numbers=(eps,))
        if group["momentum"] > 0:
            change(state["momentum_buffer"], "s0 * x0 + x1", scaled, numbers=(float(group["momentum"]),))
            scaled = state["momentum_buffer"]
        change(p, "x0 - s0 * x1", scaled, numbers=(lr,))


class Adagrad(Optimizer):
    """Gradients divided by the root of the sum of all squares (Duchi et al. 2011)."""

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
        **implementation: Any,
    ) -> None:
        check("Adagrad", lr=lr, lr_decay=lr_decay, weight_decay=weight_decay, initial_accumulator_value=initial_accumulator_value, eps=eps)
        defaults = {"lr": lr, "lr_decay": lr_decay, "eps": eps, "weight_decay": weight_decay, "initial_accumulator_value": initial_accumulator_value}
        super().__init__(params, {**defaults, "maximize": maximize, **hints(implementation, "Adagrad")})

    def update(self, p: Tensor, grad: Tensor, state: Dict[str, Any], group: Dict[str, Any]) -> None:
        """Updates one parameter, without recording."""
        if not state:
            state["sum"] = full_like(p.detach(), float(group["initial_accumulator_value"]), dtype="float32")
            state["step"] = 0.0
        state["step"] += 1
        g = prepared(p, grad, group)
        change(state["sum"], "x0 + x1 * x1", g)
        rate = _rate(group) / (1 + (state["step"] - 1) * group["lr_decay"])
        change(p, "x0 - s0 * x1 / (sqrt(x2) + s1)", g, state["sum"], numbers=(rate, float(group["eps"])))


class Adadelta(Optimizer):
    """Steps in units of the parameter (Zeiler 2012)."""

    def __init__(
        self, params: Params, lr: float = 1.0, rho: float = 0.9, eps: float = 1e-6, weight_decay: float = 0.0, *, maximize: bool = False, **implementation: Any
    ) -> None:
        check("Adadelta", lr=lr, rho=rho, eps=eps, weight_decay=weight_decay)
        defaults = {"lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, {**defaults, **hints(implementation, "Adadelta")})

    def update(self, p: Tensor, grad: Tensor, state: Dict[str, Any], group: Dict[str, Any]) -> None:
        """Updates one parameter, without recording."""
        _stepped(state, p, "square_avg", "acc_delta")
        g, rho, eps = prepared(p, grad, group), float(group["rho"]), float(group["eps"])
        change(state["square_avg"], "s0 * x0 + s1 * x1 * x1", g, numbers=(rho, 1.0 - rho))
        delta = g.clone()
        change(delta, "x0 * sqrt(x2 + s0) / sqrt(x1 + s0)", state["square_avg"], state["acc_delta"], numbers=(eps,))
        change(state["acc_delta"], "s0 * x0 + s1 * x1 * x1", delta, numbers=(rho, 1.0 - rho))
        change(p, "x0 - s0 * x1", delta, numbers=(_rate(group),))


class Adamax(Optimizer):
    """Adam with the largest gradient instead of the root of squares (Kingma and Ba 2015)."""

    def __init__(
        self,
        params: Params,
        lr: float = 2e-3,
        betas: Tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        **implementation: Any,
    ) -> None:
        check("Adamax", lr=lr, eps=eps, beta1=betas[0], beta2=betas[1], weight_decay=weight_decay)
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, {**defaults, **hints(implementation, "Adamax")})

    def update(self, p: Tensor, grad: Tensor, state: Dict[str, Any], group: Dict[str, Any]) -> None:
        """Updates one parameter, without recording."""
        t = _stepped(state, p, "exp_avg", "exp_inf")
        g, (b1, b2) = prepared(p, grad, group), group["betas"]
        change(state["exp_avg"], "x0 + s0 * (x1 - x0)", g, numbers=(1.0 - b1,))
        change(state["exp_inf"], "fmax(s0 * x0, fabs(x1) + s1)", g, numbers=(b2, float(group["eps"])))
        change(p, "x0 - s0 * x1 / x2", state["exp_avg"], state["exp_inf"], numbers=(_rate(group) / (1 - b1**t),))


class _Decoupling(Optimizer):
    """Optimizers with the averages of Adam, and weight decay in either place."""

    def _averaged(self, p: Tensor, grad: Tensor, state: Dict[str, Any], group: Dict[str, Any]) -> Tensor:
        decoupled = bool(group["decoupled_weight_decay"])
        g = prepared(p, grad, group, not decoupled)
        if decoupled and group["weight_decay"]:
            change(p, "x0 * s0", numbers=(1.0 - _rate(group) * group["weight_decay"],))
        average(state["exp_avg"], state["exp_avg_sq"], g, *group["betas"])
        return g


class NAdam(_Decoupling):
    """Adam with Nesterov momentum (Dozat 2016)."""

    def __init__(
        self,
        params: Params,
        lr: float = 2e-3,
        betas: Tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        maximize: bool = False,
        **implementation: Any,
    ) -> None:
        check("NAdam", lr=lr, eps=eps, beta1=betas[0], beta2=betas[1], weight_decay=weight_decay, momentum_decay=momentum_decay)
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "momentum_decay": momentum_decay, "maximize": maximize}
        super().__init__(params, {**defaults, "decoupled_weight_decay": decoupled_weight_decay, **hints(implementation, "NAdam")})

    def update(self, p: Tensor, grad: Tensor, state: Dict[str, Any], group: Dict[str, Any]) -> None:
        """Updates one parameter, without recording."""
        t = _stepped(state, p, "exp_avg", "exp_avg_sq")
        (b1, b2), lr, psi = group["betas"], _rate(group), float(group["momentum_decay"])
        mu, following = (b1 * (1.0 - 0.5 * 0.96 ** (n * psi)) for n in (t, t + 1))
        state["mu_product"] = product = float(state.get("mu_product", 1.0)) * mu
        g = self._averaged(p, grad, state, group)
        numbers = (lr * (1.0 - mu) / (1.0 - product), lr * following / (1.0 - product * following), 1.0 - b2**t, float(group["eps"]))
        change(p, "x0 - (s0 * x1 + s1 * x2) / (sqrt(x3 / s2) + s3)", g, state["exp_avg"], state["exp_avg_sq"], numbers=numbers)


class RAdam(_Decoupling):
    """Adam whose first steps are plain until the variance is known (Liu et al. 2020)."""

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: Tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        *,
        maximize: bool = False,
        **implementation: Any,
    ) -> None:
        check("RAdam", lr=lr, eps=eps, beta1=betas[0], beta2=betas[1], weight_decay=weight_decay)
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, {**defaults, "decoupled_weight_decay": decoupled_weight_decay, **hints(implementation, "RAdam")})

    def update(self, p: Tensor, grad: Tensor, state: Dict[str, Any], group: Dict[str, Any]) -> None:
        """Updates one parameter, without recording."""
        t = _stepped(state, p, "exp_avg", "exp_avg_sq")
        (b1, b2), rate = group["betas"], _rate(group)
        self._averaged(p, grad, state, group)
        rate /= 1.0 - b1**t
        most = 2 / (1 - b2) - 1
        length = most - 2 * t * b2**t / (1 - b2**t)
        if length <= 5.0:
            change(p, "x0 - s0 * x1", state["exp_avg"], numbers=(rate,))
            return
        rate *= math.sqrt((length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length)) * math.sqrt(1 - b2**t)
        change(p, "x0 - s0 * x1 / (sqrt(x2) + s1)", state["exp_avg"], state["exp_avg_sq"], numbers=(rate, float(group["eps"])))


class ASGD(Optimizer):
    """Gradient descent with an average of the parameters in ``state[p]["ax"]`` (Polyak and Juditsky 1992)."""

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        **implementation: Any,
    ) -> None:
        check("ASGD", lr=lr, weight_decay=weight_decay)
        defaults = {"lr": lr, "lambd": lambd, "alpha": alpha, "t0": t0, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, {**defaults, **hints(implementation, "ASGD")})

    def update(self, p: Tensor, grad: Tensor, state: Dict[str, Any], group: Dict[str, Any]) -> None:
        """Updates one parameter, without recording."""
        if not state:
            state.update(eta=_rate(group), mu=1.0)
            state.update(step=0.0, ax=f32_zeros(p))
        state["step"] += 1
        g, lr, lambd = prepared(p, grad, group), _rate(group), float(group["lambd"])
        change(p, "x0 * s0 - s1 * x1", g, numbers=(1.0 - lambd * state["eta"], state["eta"]))
        change(state["ax"], "s0 == 1.0f ? x1 : x0 + s0 * (x1 - x0)", p.detach(), numbers=(state["mu"],))
        state["eta"] = lr / (1 + lambd * lr * state["step"]) ** group["alpha"]
        state["mu"] = 1 / max(1.0, state["step"] - group["t0"])


class Rprop(Optimizer):
    """Steps whose size depends only on changes of the gradient's sign (Riedmiller and Braun 1993)."""

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        etas: Tuple[float, float] = (0.5, 1.2),
        step_sizes: Tuple[float, float] = (1e-6, 50),
        *,
        maximize: bool = False,
        **implementation: Any,
    ) -> None:
        check("Rprop", lr=lr)
        if not 0.0 < etas[0] < 1.0 < etas[1]:
            raise ValueError(f"Rprop: etas is {etas}, expected a number between 0 and 1, and one above 1")
        defaults = {"lr": lr, "etas": etas, "step_sizes": step_sizes, "maximize": maximize}
        super().__init__(params, {**defaults, **hints(implementation, "Rprop")})

    def update(self, p: Tensor, grad: Tensor, state: Dict[str, Any], group: Dict[str, Any]) -> None:
        """Updates one parameter, without recording."""
        if not state:
            state.update(step=0.0, prev=f32_zeros(p), step_size=full_like(p.detach(), _rate(group), dtype="float32"))
        state["step"] += 1
        g = prepared(p, grad, {**group, "weight_decay": 0.0})
        before, size, (down, up) = state["prev"], state["step_size"], group["etas"]
        limits = tuple(float(v) for v in group["step_sizes"])
        change(size, "fmin(fmax(x0 * (x1 * x2 > 0.0f ? s1 : x1 * x2 < 0.0f ? s0 : 1.0f), s2), s3)", g, before, numbers=(down, up, *limits))
        change(before, "x0 * x1 < 0.0f ? 0.0f : x1", g)
        change(p, "x0 - (x1 > 0.0f ? x2 : x1 < 0.0f ? -x2 : 0.0f)", before, size)


__all__ = ["ASGD", "Adadelta", "Adagrad", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop"]
