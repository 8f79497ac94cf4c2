"""Operations with the plan's names and arguments. ``tape`` and ``pool`` are accepted and ignored: netcl records operations itself, and all memory
comes from the pool. ``elementwise_binary`` is in ``elementwise``.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence, Tuple, Union

from ... import ops as _ops
from ..._netcl import Tensor
from .elementwise import elementwise, elementwise_binary

Sizes = Union[int, Sequence[int]]


def _sizes(given: Sizes) -> Tuple[int, ...]:
    return (given,) if isinstance(given, int) else tuple(given)


def add(a: Tensor, b: Any, tape: Any = None, pool: Any = None) -> Tensor:
    """Computes ``a + b``."""
    made: Tensor = a + b
    return made


def bias_add(x: Tensor, bias: Tensor, tape: Any = None, pool: Any = None) -> Tensor:
    """Adds bias (N) to x (.., N)."""
    return x + bias


def relu(x: Tensor, tape: Any = None, pool: Any = None) -> Tensor:
    """Computes ``max(x, 0)``."""
    return _ops.relu(x)


def matmul(a: Tensor, b: Tensor, pool: Any = None, tape: Any = None) -> Tensor:
    """Computes the matrix product."""
    return a @ b


matmul_op = matmul


def softmax(x: Tensor, axis: int = 1, tape: Any = None, pool: Any = None) -> Tensor:
    """Computes the softmax over an axis."""
    return _ops.softmax(x, axis)


def reduce_sum(x: Tensor, axis: Optional[int] = None, tape: Any = None, pool: Any = None) -> Tensor:
    """Sums over an axis, or all elements."""
    return x.sum() if axis is None else x.sum(axis=axis)


def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, eps: float = 1e-5, tape: Any = None, pool: Any = None) -> Tensor:
    """Normalizes rows to mean 0 and variance 1, multiplies by gamma and adds beta."""
    return _ops.layer_norm(x, gamma, beta, eps)


def batch_norm(x: Tensor, gamma: Tensor, beta: Tensor, eps: float = 1e-5, tape: Any = None, pool: Any = None) -> Tensor:
    """Normalizes each channel of x (N, C, ..) over the batch, multiplies by gamma (C) and adds beta (C)."""
    return _ops.batch_norm(x, gamma, beta, eps)[0]


def conv2d(
    x: Tensor, w: Tensor, stride: Sizes = 1, pad: Sizes = 0, bias: Optional[Tensor] = None, groups: int = 1, dilation: Sizes = 1, tape: Any = None, pool: Any = None
) -> Tensor:
    """Computes a convolution of x (B, G C, H, W) with w (O, C, KH, KW). With as many groups as channels, it is a depthwise convolution."""
    return _ops.conv2d(x, w, bias, stride=_sizes(stride), padding=_sizes(pad), dilation=_sizes(dilation), groups=groups)


def depthwise_conv2d(x: Tensor, w: Tensor, stride: Sizes = 1, pad: Sizes = 0, bias: Optional[Tensor] = None, tape: Any = None, pool: Any = None) -> Tensor:
    """Convolves each channel of x (B, C, H, W) with its own filters in w (M C, 1, KH, KW), → (B, M C, H', W')."""
    return conv2d(x, w, stride, pad, bias, groups=x.shape[1])


def max_pool2d(x: Tensor, size: Sizes = 2, stride: Optional[Sizes] = None, tape: Any = None, pool: Any = None) -> Tensor:
    """Computes the maximum of each window."""
    return _ops.max_pool2d(x, size=_sizes(size), stride=_sizes(size if stride is None else stride))


__all__ = [
    "add", "batch_norm", "bias_add", "conv2d", "depthwise_conv2d", "elementwise", "elementwise_binary", "layer_norm", "matmul", "matmul_op", "max_pool2d", "reduce_sum",
    "relu", "softmax",
]  # fmt: skip
