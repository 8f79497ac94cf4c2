"""Tensors, the tape, and every operation with a ``tape`` argument. The tape is thin, because netcl records operations itself.

The operations of ``plan.ops`` have the plan's arguments here, too. All other operations of ``netcl.ops`` have their own arguments.
"""

from __future__ import annotations

from typing import Any, Callable, List, Optional

from ... import ops as _all
from ..._create import ones_like
from ..._create import tensor as _tensor
from ..._netcl import Tensor
from . import layers as _layers
from . import ops as _ops
from .ops import add, batch_norm, bias_add, conv2d, depthwise_conv2d, elementwise_binary, layer_norm, matmul, matmul_op, max_pool2d, reduce_sum, relu, softmax


def tensor(x: Any, requires_grad: bool = False) -> Tensor:
    """Creates a tensor from a tensor or host data. Floats are float32, integers int32."""
    made = x if isinstance(x, Tensor) else _tensor(x)
    if not requires_grad or made.requires_grad:
        return made
    made = made.detach()
    made.requires_grad = True
    return made


class Tape:
    """Starts the backward: each leaf's gradient is added to the gradient that it has."""

    def backward(self, loss: Tensor, grad: Optional[Tensor] = None) -> None:
        """Runs the backward from ``loss``, whose own gradient is ``grad`` [default: ones]."""
        loss.backward(ones_like(loss) if grad is None and loss.size != 1 else grad)


def cross_entropy(logits: Tensor, targets: Tensor, tape: Any = None, pool: Any = None) -> Tensor:
    """Computes the mean cross entropy of logits (.., V) and class indices (..)."""
    return _layers.cross_entropy(logits, targets)


def mse_loss(pred: Tensor, target: Tensor, tape: Any = None, pool: Any = None) -> Tensor:
    """Computes the mean of the squared differences."""
    return _layers.mse_loss(pred, target)


def _with_tape(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, tape: Any = None, pool: Any = None, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    call.__name__ = call.__qualname__ = function.__name__
    call.__doc__ = function.__doc__
    return call


def __getattr__(name: str) -> Any:
    if name in _all.__all__:
        return _with_tape(getattr(_all, name))
    raise AttributeError(f"module {__name__!r} does not have {name!r}; operations are those of plan.ops and netcl.ops")


def __dir__() -> List[str]:
    return sorted({*__all__, *_all.__all__})


# Names are written out, because type checkers do not follow a list of another module. The first row is this module's own.
__all__ = [
    "Tape", "cross_entropy", "mse_loss", "tensor",
    "add", "batch_norm", "bias_add", "conv2d", "depthwise_conv2d", "elementwise", "elementwise_binary", "layer_norm", "matmul", "matmul_op", "max_pool2d", "reduce_sum",
    "relu", "softmax",
]  # fmt: skip
elementwise = _ops.elementwise
