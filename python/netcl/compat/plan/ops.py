"""Operations with the plan's names and arguments. ``tape`` and ``pool`` are accepted and ignored: netcl records operations itself, and all memory
comes from the pool.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional

from ... import ops as _ops
from ..._kernel import kernel
from ..._netcl import Tensor as _Tensor
from .memory import Tensor


def add(a: _Tensor, b: Any, tape: Any = None, pool: Any = None) -> Tensor:
    """Computes ``a + b``."""
    return Tensor.of(a + b)


def bias_add(x: _Tensor, bias: _Tensor, tape: Any = None, pool: Any = None) -> Tensor:
    """Adds bias (N) to x (.., N)."""
    return Tensor.of(x + bias)


def relu(x: _Tensor, tape: Any = None, pool: Any = None) -> Tensor:
    """Computes ``max(x, 0)``."""
    return Tensor.of(_ops.relu(x))


def matmul(a: _Tensor, b: _Tensor, pool: Any = None, tape: Any = None) -> Tensor:
    """Computes the matrix product."""
    return Tensor.of(a @ b)


matmul_op = matmul


def softmax(x: _Tensor, axis: int = 1, tape: Any = None, pool: Any = None) -> Tensor:
    """Computes the softmax over an axis."""
    return Tensor.of(_ops.softmax(x, axis))


def reduce_sum(x: _Tensor, axis: Optional[int] = None, tape: Any = None, pool: Any = None) -> Tensor:
    """Sums over an axis, or all elements."""
    return Tensor.of(x.sum() if axis is None else x.sum(axis=axis))


def layer_norm(x: _Tensor, gamma: _Tensor, beta: _Tensor, eps: float = 1e-5, tape: Any = None, pool: Any = None) -> Tensor:
    """Normalizes rows to mean 0 and variance 1, multiplies by gamma and adds beta."""
    return Tensor.of(_ops.layer_norm(x, gamma, beta, eps))


def conv2d(x: _Tensor, w: _Tensor, stride: int = 1, pad: int = 0, bias: Optional[_Tensor] = None, tape: Any = None, pool: Any = None) -> Tensor:
    """Computes a convolution of x (B, C, H, W) with w (O, C, KH, KW)."""
    return Tensor.of(_ops.conv2d(x, w, bias, stride=(stride,), padding=(pad,)))


def max_pool2d(x: _Tensor, size: int = 2, stride: Optional[int] = None, tape: Any = None, pool: Any = None) -> Tensor:
    """Computes the maximum of each window."""
    return Tensor.of(_ops.max_pool2d(x, size=(size,), stride=(size if stride is None else stride,)))


_made: Dict[str, Callable[..., Any]] = {}


def elementwise_binary(expr: str) -> Callable[[_Tensor, _Tensor], Tensor]:
    """Builds a function of two float32 tensors of equal shape from an OpenCL C expression in ``a`` and ``b``: ``elementwise_binary("a * b + 1.0f")(x,
    y)``. It does not have a gradient.
    """
    if expr not in _made:
        _made[expr] = _kernel_of(expr)

    def call(x: _Tensor, y: _Tensor) -> Tensor:
        if tuple(x.shape) != tuple(y.shape):
            raise ValueError(f"elementwise_binary: got shapes {tuple(x.shape)} and {tuple(y.shape)}, expected one shape")
        return Tensor.of(_made[expr](x.contiguous(), y.contiguous(), n=x.size))

    return call


def _kernel_of(expr: str) -> Callable[..., Any]:
    text = "__kernel void elementwise_binary(__global const float *x, __global const float *y, __global float *z, const uint n) {\n"
    text += "  const uint i = get_global_id(0);\n  if (i >= n) return;\n  const float a = x[i], b = y[i];\n"
    return kernel(f"{text}  z[i] = {expr};\n}}\n", items=lambda x, y: max(x.size, 1))


__all__ = ["add", "bias_add", "conv2d", "elementwise_binary", "layer_norm", "matmul", "matmul_op", "max_pool2d", "reduce_sum", "relu", "softmax"]
