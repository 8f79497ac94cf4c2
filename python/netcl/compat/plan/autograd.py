"""Nodes and the tape: netcl records by itself, so both are thin."""

from __future__ import annotations

from typing import Any, Optional

from ..._create import tensor as _tensor
from ..._netcl import Tensor as _Tensor
from .memory import Tensor
from .ops import add, bias_add, matmul_op, relu


def tensor(x: Any, requires_grad: bool = False) -> Tensor:
    """A node of a tensor or of host data: floats are float32, integers int32."""
    made = x if isinstance(x, _Tensor) else _tensor(x)
    if not requires_grad or made.requires_grad:
        return Tensor.of(made)
    return Tensor.of(made.detach(), True)


class Tape:
    """``backward`` gives every leaf its gradient, which is added to what it has."""

    def backward(self, loss: _Tensor, grad: Optional[_Tensor] = None) -> None:
        """From ``loss``, whose own gradient is ``grad``, or ones."""
        if grad is None and loss.size != 1:
            from ..._create import ones_like

            grad = ones_like(loss)
        loss.backward(grad)


__all__ = ["Tape", "add", "bias_add", "matmul_op", "relu", "tensor"]
