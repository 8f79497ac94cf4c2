"""Clipping of gradients."""

from __future__ import annotations

import math
from typing import Any, Iterable, List, Union

from .._netcl import Tensor
from ..autograd import no_grad


def _grads(params: Union[Tensor, Iterable[Tensor]]) -> List[Tensor]:
    given = [p.grad for p in ([params] if isinstance(params, Tensor) else params)]
    return [g for g in given if g is not None]


def _norm(grads: List[Tensor], norm_type: float) -> float:
    if norm_type == math.inf:
        return max((float(g.float().abs().amax().item()) for g in grads if g.size), default=0.0)
    if norm_type == 2:
        return math.sqrt(sum(float(g.float().square().sum().item()) for g in grads))
    total = math.fsum(float((g.float().abs() ** norm_type).sum().item()) for g in grads)
    return math.pow(total, 1 / norm_type)


def clip_grad_norm_(
    parameters: Union[Tensor, Iterable[Tensor]], max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: Any = None
) -> float:
    """Scales all gradients down in place so that their total norm is at most ``max_norm``. Returns the norm before, as a number. Waits for the
    device, unlike ``Optimizer.clip_grad_norm``.
    """
    found = _grads(parameters)
    with no_grad():
        norm = _norm(found, float(norm_type))
        if error_if_nonfinite and not math.isfinite(norm):
            raise RuntimeError(f"clip_grad_norm_: the norm of the gradients is {norm}; pass error_if_nonfinite=False to scale them anyway")
        factor = max_norm / (norm + 1e-6)
        for g in () if factor >= 1 else found:
            g *= factor
    return norm


def clip_grad_value_(parameters: Union[Tensor, Iterable[Tensor]], clip_value: float, foreach: Any = None) -> None:
    """Limits each element of the gradients to between ``-clip_value`` and ``clip_value``, in place."""
    limit = float(clip_value)
    with no_grad():
        for g in _grads(parameters):
            g.copy_(g.clamp(-limit, limit))


def get_total_norm(tensors: Iterable[Tensor], norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: Any = None) -> float:
    """Returns the norm of all tensors together, as a number."""
    with no_grad():
        norm = _norm([t.detach() for t in tensors], float(norm_type))
    if error_if_nonfinite and not math.isfinite(norm):
        raise RuntimeError(f"get_total_norm: the norm is {norm}; pass error_if_nonfinite=False to get it anyway")
    return norm


__all__ = ["clip_grad_norm_", "clip_grad_value_", "get_total_norm"]
