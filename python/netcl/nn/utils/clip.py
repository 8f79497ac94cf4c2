"""Clipping of gradients."""

from __future__ import annotations

import math
from typing import Iterable, List, Optional, Union

from ... import ops
from ..._netcl import Tensor
from ..._netcl import full as _full
from ..._torch import vector_norm
from ...autograd import no_grad

Tensors = Union[Tensor, Iterable[Tensor]]


def _gradients(parameters: Tensors) -> List[Tensor]:
    listed = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    return [p.grad for p in listed if p.grad is not None]


def get_total_norm(tensors: Tensors, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: Optional[bool] = None) -> Tensor:
    """Computes the p-norm of all elements, as one tensor. It stays on the device, except with ``error_if_nonfinite``."""
    listed = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    if not listed:
        return _full((), 0.0, "float32", None)
    with no_grad():
        norms = [vector_norm(t.detach().float(), float(norm_type), None, False).to(listed[0].device) for t in listed]
        total = norms[0] if len(norms) == 1 else vector_norm(ops.stack(norms, 0), float(norm_type), None, False)
    if error_if_nonfinite and not math.isfinite(total.item()):
        raise RuntimeError(f"get_total_norm: the norm of order {norm_type} is {total.item()}; pass error_if_nonfinite=False to scale anyway")
    return total


def clip_grads_with_norm_(parameters: Tensors, max_norm: float, total_norm: Tensor, foreach: Optional[bool] = None) -> None:
    """Multiplies gradients by ``max_norm / (total_norm + 1e-6)``, if this is less than 1."""
    with no_grad():
        factor = ops.clamp(float(max_norm) / (total_norm + 1e-6), 0.0, 1.0)
        for g in _gradients(parameters):
            g.copy_((g.float() * factor.to(g.device))._to(None, g.dtype))


def clip_grad_norm_(
    parameters: Tensors, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: Optional[bool] = None
) -> Tensor:
    """Scales gradients so that their total p-norm is at most ``max_norm``. Returns the norm before, as a tensor."""
    listed = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    total = get_total_norm(_gradients(listed), norm_type, error_if_nonfinite, foreach)
    clip_grads_with_norm_(listed, max_norm, total, foreach)
    return total


def clip_grad_value_(parameters: Tensors, clip_value: float, foreach: Optional[bool] = None) -> None:
    """Clamps gradients to ``-clip_value`` to ``clip_value``."""
    with no_grad():
        for g in _gradients(parameters):
            g.copy_(ops.clamp(g.detach(), -float(clip_value), float(clip_value)))


__all__ = ["clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "get_total_norm"]
