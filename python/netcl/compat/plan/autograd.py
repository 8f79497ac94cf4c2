"""Tensors and the tape. Both are thin, because netcl records operations itself."""

from __future__ import annotations

from typing import Any, Optional

from ..._create import tensor as _tensor
from ..._netcl import Tensor as _Tensor
from .memory import Tensor
from .ops import add, bias_add, matmul_op, relu


def tensor(x: Any, requires_grad: bool = False) -> Tensor:
    """Creates a tensor from a tensor or host data. Floats are float32, integers int32."""
    made = x if isinstance(x, _Tensor) else _tensor(x)
    if not requires_grad or made.requires_grad:
        return Tensor.of(made)
    return Tensor.of(made.detach(), True)


class Tape:
    """Starts the backward: each leaf's gradient is added to the gradient that it has."""

    def backward(self, loss: _Tensor, grad: Optional[_Tensor] = None) -> None:
        """Runs the backward from ``loss``, whose own gradient is ``grad`` [default: ones]."""
        if grad is None and loss.size != 1:
            from ..._create import ones_like

            grad = ones_like(loss)
        loss.backward(grad)


__all__ = ["Tape", "add", "bias_add", "matmul_op", "relu", "tensor"]
