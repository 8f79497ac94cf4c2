"""Reductions over axes."""

from __future__ import annotations

import builtins
from typing import Any, Optional, Tuple, Union

from .. import ops
from .._dtype import DType, bool_
from .._netcl import Tensor, fold_axes
from ._manipulation import _axes, _axis

Axis = Union[None, int, Tuple[int, ...]]


def _numeric(name: str, x: Tensor) -> Tensor:
    if x.dtype is bool_:
        raise TypeError(f"{name}: got a mask, expected numbers")
    return x


def _float(name: str, x: Tensor) -> Tensor:
    if not x.dtype.is_floating_point:
        raise TypeError(f"{name}: got an array of {x.dtype}, expected floats")
    return x


def all(x: Tensor, /, *, axis: Axis = None, keepdims: builtins.bool = False) -> Tensor:
    """Returns whether all elements along the axes are nonzero."""
    return _folded("all", x, axis, keepdims)


def any(x: Tensor, /, *, axis: Axis = None, keepdims: builtins.bool = False) -> Tensor:
    """Returns whether any element along the axes is nonzero."""
    return _folded("any", x, axis, keepdims)


def _folded(how: str, x: Tensor, axis: Axis, keepdims: builtins.bool) -> Tensor:
    axes = _axes(axis, x.ndim)
    if axis == ():
        return x._to(None, bool_) if how in ("any", "all") else x
    return fold_axes(how, x, axes, keepdims)


def max(x: Tensor, /, *, axis: Axis = None, keepdims: builtins.bool = False) -> Tensor:
    """Computes the maximum along the axes. NaN if an element is NaN."""
    axes = _axes(axis, _numeric("max", x).ndim)
    return x if axis == () else ops.max(x, axes, keepdims)


def min(x: Tensor, /, *, axis: Axis = None, keepdims: builtins.bool = False) -> Tensor:
    """Computes the minimum along the axes. NaN if an element is NaN."""
    axes = _axes(axis, _numeric("min", x).ndim)
    if axis == ():
        return x
    return -ops.max(-x, axes, keepdims) if x.dtype.is_floating_point else fold_axes("min", x, axes, keepdims)


def mean(x: Tensor, /, *, axis: Axis = None, keepdims: builtins.bool = False) -> Tensor:
    """Computes the mean along the axes."""
    axes = _axes(axis, _float("mean", x).ndim)
    return x if axis == () else ops.mean(x, axes, keepdims)


def prod(x: Tensor, /, *, axis: Axis = None, dtype: Optional[DType] = None, keepdims: builtins.bool = False) -> Tensor:
    """Computes the product along the axes."""
    return _folded("prod", _numeric("prod", x)._to(None, dtype), axis, keepdims)


def sum(x: Tensor, /, *, axis: Axis = None, dtype: Optional[DType] = None, keepdims: builtins.bool = False) -> Tensor:
    """Computes the sum along the axes."""
    axes = _axes(axis, _numeric("sum", x).ndim)
    x = x._to(None, dtype)
    return x if axis == () else ops.sum(x, axes, keepdims)


def var(x: Tensor, /, *, axis: Axis = None, correction: float = 0.0, keepdims: builtins.bool = False) -> Tensor:
    """Computes the variance: squared differences from the mean, divided by the number of elements minus ``correction``."""
    axes = _axes(axis, _float("var", x).ndim)
    n = 1
    for a in axes:
        n *= x.shape[a]
    apart = x - mean(x, axis=axes, keepdims=True)
    total = sum(apart * apart, axis=axes, keepdims=keepdims)
    return total / (n - correction) if n > correction else total * float("nan")


def std(x: Tensor, /, *, axis: Axis = None, correction: float = 0.0, keepdims: builtins.bool = False) -> Tensor:
    """Computes the standard deviation, the square root of the variance."""
    return ops.sqrt(var(x, axis=axis, correction=correction, keepdims=keepdims))


def cumulative_sum(x: Tensor, /, *, axis: Optional[int] = None, dtype: Optional[DType] = None, include_initial: builtins.bool = False) -> Tensor:
    """Computes cumulative sums along an axis, by adding the elements at distances 1, 2, 4, …."""
    x = _numeric("cumulative_sum", x)._to(None, dtype)
    if axis is None:
        if x.ndim != 1:
            raise ValueError("cumulative_sum: an array of several axes needs an axis argument")
        axis = 0
    a = _axis(axis, x.ndim)
    n, before = x.shape[a], (slice(None),) * a
    distance = 1
    while distance < n:
        later = x[(*before, slice(distance, n))] + x[(*before, slice(0, n - distance))]
        x = ops.cat([x[(*before, slice(0, distance))], later], a)
        distance *= 2
    if include_initial:
        from .._create import full

        shape = [1 if i == a else size for i, size in enumerate(x.shape)]
        x = ops.cat([full(shape, 0, x.dtype, x.device), x], a)
    return x
