"""Losses of values, distributions and distances."""

from __future__ import annotations

import math
from typing import Any, Callable, Optional, Union

from .. import ops
from .._netcl import Tensor
from ..autograd import no_grad
from ..errors import ShapeError
from ..functions import where
from ._common import can_read, legacy, reduced
from ._norm import at_least, pairwise_distance

Flag = Optional[bool]


def _weighted(name: str, losses: Tensor, weight: Optional[Tensor], reduction: str) -> Tensor:
    """Reduces weighted losses. Their mean is divided by the sum of the weights."""
    if weight is None:
        return reduced(name, losses, reduction)
    if tuple(weight.shape) != tuple(losses.shape):
        raise ShapeError(f"{name}: weight has shape {tuple(weight.shape)}, expected {tuple(losses.shape)}")
    total = losses * weight
    return total.sum() / weight.sum() if reduction == "mean" else reduced(name, total, reduction)


def mse_loss(
    input: Tensor, target: Tensor, size_average: Flag = None, reduce: Flag = None, reduction: str = "mean", weight: Optional[Tensor] = None
) -> Tensor:
    """Computes the squared differences."""
    return _weighted("mse_loss", ops.square(input - target), weight, legacy(size_average, reduce, reduction))


def l1_loss(
    input: Tensor, target: Tensor, size_average: Flag = None, reduce: Flag = None, reduction: str = "mean", weight: Optional[Tensor] = None
) -> Tensor:
    """Computes the absolute differences."""
    return _weighted("l1_loss", ops.abs(input - target), weight, legacy(size_average, reduce, reduction))


def smooth_l1_loss(
    input: Tensor, target: Tensor, size_average: Flag = None, reduce: Flag = None, reduction: str = "mean", beta: float = 1.0
) -> Tensor:
    """Computes half the squared difference divided by ``beta`` up to ``beta``, and a line beyond."""
    if beta < 0:
        raise ValueError(f"smooth_l1_loss: beta is {beta}, expected at least 0")
    apart = ops.abs(input - target)
    losses = apart if beta == 0 else where(apart < beta, ops.square(apart) * (0.5 / beta), apart - 0.5 * beta)
    return reduced("smooth_l1_loss", losses, legacy(size_average, reduce, reduction))


def huber_loss(input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0, weight: Optional[Tensor] = None) -> Tensor:
    """Computes half the squared difference up to ``delta``, and a line beyond (Huber 1964)."""
    if delta <= 0:
        raise ValueError(f"huber_loss: delta is {delta}, expected more than 0")
    apart = ops.abs(input - target)
    return _weighted("huber_loss", where(apart <= delta, ops.square(apart) * 0.5, (apart - 0.5 * delta) * delta), weight, reduction)


def kl_div(
    input: Tensor, target: Tensor, size_average: Flag = None, reduce: Flag = None, reduction: str = "mean", log_target: bool = False
) -> Tensor:
    """Computes the Kullback-Leibler divergence of log probabilities from ``target``: probabilities, or their logarithms with ``log_target``. The
    reduction ``batchmean`` divides the sum by the size of the first axis.
    """
    if log_target:
        losses = ops.exp(target) * (target - input)
    else:
        positive = target > 0
        losses = where(positive, target * ops.log(where(positive, target, 1.0)), target * 0.0) - target * input
    how = legacy(size_average, reduce, reduction)
    if how == "batchmean":
        return losses.sum() / float(input.shape[0] if input.ndim else 1)
    return reduced("kl_div", losses, how)


def poisson_nll_loss(
    input: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    size_average: Flag = None,
    eps: float = 1e-8,
    reduce: Flag = None,
    reduction: str = "mean",
) -> Tensor:
    """Computes the negative log likelihood of counts with a Poisson distribution, of which ``input`` is the logarithm of the mean."""
    losses = ops.exp(input) - target * input if log_input else input - target * ops.log(input + eps)
    if full:
        large = target > 1
        safe = where(large, target, 1.0)
        losses = losses + where(large, safe * ops.log(safe) - safe + ops.log(safe * (2 * math.pi)) * 0.5, 0.0)
    return reduced("poisson_nll_loss", losses, legacy(size_average, reduce, reduction))


def gaussian_nll_loss(
    input: Tensor, target: Tensor, var: Union[Tensor, float], full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Tensor:
    """Computes the negative log likelihood of ``target`` with a normal distribution of mean ``input`` and variance ``var``. The variance counts as at
    least ``eps``, without an effect on its gradient.
    """
    if isinstance(var, (int, float)):
        var = input.detach() * 0.0 + float(var)
    if tuple(var.shape) != tuple(input.shape):
        if tuple(input.shape[:-1]) == tuple(var.shape):
            var = var.unsqueeze(-1)
        elif tuple(input.shape[:-1]) != tuple(var.shape[:-1]) or var.shape[-1:] != (1,):
            raise ShapeError(f"gaussian_nll_loss: var has shape {tuple(var.shape)}, expected {tuple(input.shape)}, or 1 on the last axis")
    with no_grad():
        if can_read() and var.size and (var < 0).any().item():
            raise ValueError("gaussian_nll_loss: var has a negative element")
        raised = at_least(var, eps) - var
    var = var + raised.detach()
    losses = (ops.log(var) + ops.square(input - target) / var) * 0.5
    return reduced("gaussian_nll_loss", losses + 0.5 * math.log(2 * math.pi) if full else losses, reduction)


def hinge_embedding_loss(
    input: Tensor, target: Tensor, margin: float = 1.0, size_average: Flag = None, reduce: Flag = None, reduction: str = "mean"
) -> Tensor:
    """Computes ``x`` for targets 1 and ``max(margin - x, 0)`` for targets -1."""
    losses = where(target != 1, at_least(margin - input, 0.0), 0.0) + where(target != -1, input, 0.0)
    return reduced("hinge_embedding_loss", losses, legacy(size_average, reduce, reduction))


def soft_margin_loss(input: Tensor, target: Tensor, size_average: Flag = None, reduce: Flag = None, reduction: str = "mean") -> Tensor:
    """Computes ``log(1 + e^(-target x))``."""
    return reduced("soft_margin_loss", ops.softplus(-(target * input)), legacy(size_average, reduce, reduction))


def margin_ranking_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0, size_average: Flag = None, reduce: Flag = None, reduction: str = "mean"
) -> Tensor:
    """Computes ``max(-target (x1 - x2) + margin, 0)``."""
    if not input1.ndim == input2.ndim == target.ndim:
        raise ShapeError(f"margin_ranking_loss: shapes {tuple(input1.shape)}, {tuple(input2.shape)} and {tuple(target.shape)}, expected as many axes")
    losses = at_least((input2 - input1) * target + float(margin), 0.0)
    return reduced("margin_ranking_loss", losses, legacy(size_average, reduce, reduction))


def cosine_embedding_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0, size_average: Flag = None, reduce: Flag = None, reduction: str = "mean"
) -> Tensor:
    """Computes ``1 - cos(x1, x2)`` for targets 1 and ``max(cos(x1, x2) - margin, 0)`` for targets -1: inputs (N, C) or (C)."""
    if (target.ndim, input1.ndim, input2.ndim) not in ((0, 1, 1), (1, 2, 2)):
        raise ShapeError(f"cosine_embedding_loss: shapes {tuple(input1.shape)}, {tuple(input2.shape)} and {tuple(target.shape)}, expected (N, C), (N, C), (N)")
    products = [(a * b).sum(-1) for a, b in ((input1, input2), (input1, input1), (input2, input2))]
    cosines = products[0] / ops.sqrt((products[1] + 1e-12) * (products[2] + 1e-12))
    losses = where(target == 1, 1.0 - cosines, 0.0) + where(target == -1, at_least(cosines - float(margin), 0.0), 0.0)
    return reduced("cosine_embedding_loss", losses, legacy(size_average, reduce, reduction))


def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    size_average: Flag = None,
    reduce: Flag = None,
    reduction: str = "mean",
) -> Tensor:
    """Computes ``max(d(anchor, positive) - d(anchor, negative) + margin, 0)`` with p-norms of the last axis."""
    if margin <= 0:
        raise ValueError(f"triplet_margin_loss: margin is {margin}, expected more than 0")

    def distance(a: Tensor, b: Tensor) -> Tensor:
        return pairwise_distance(a, b, p, eps)

    return _triplet("triplet_margin_loss", distance, anchor, positive, negative, margin, swap, legacy(size_average, reduce, reduction))


def triplet_margin_with_distance_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    distance_function: Optional[Callable[[Tensor, Tensor], Tensor]] = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """Computes ``max(d(anchor, positive) - d(anchor, negative) + margin, 0)`` with a function of two tensors [default: ``pairwise_distance``]."""
    if margin <= 0:
        raise ValueError(f"triplet_margin_with_distance_loss: margin is {margin}, expected more than 0")
    return _triplet("triplet_margin_with_distance_loss", distance_function or pairwise_distance, anchor, positive, negative, margin, swap, reduction)


def _triplet(name: str, distance: Callable[..., Any], anchor: Tensor, positive: Tensor, negative: Tensor, margin: float, swap: bool, reduction: str) -> Tensor:
    near, far = distance(anchor, positive), distance(anchor, negative)
    far = ops.minimum(far, distance(positive, negative)) if swap else far
    return reduced(name, at_least(near - far + margin, 0.0), reduction)


__all__ = [
    "cosine_embedding_loss", "gaussian_nll_loss", "hinge_embedding_loss", "huber_loss", "kl_div", "l1_loss", "margin_ranking_loss", "mse_loss",
    "poisson_nll_loss", "smooth_l1_loss", "soft_margin_loss", "triplet_margin_loss", "triplet_margin_with_distance_loss",
]  # fmt: skip
