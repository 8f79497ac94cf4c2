"""Pooling with the places of maxima, and its inverse."""

from __future__ import annotations

import math
from typing import Any, Optional, Sequence

from .. import ops
from .._create import zeros
from .._netcl import Tensor
from ..errors import ShapeError
from ._common import Sizes, batched, sizes
from ._pooling import Outputs, adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d, max_pool1d, max_pool2d, max_pool3d


def _unpool(n: int, input: Tensor, indices: Tensor, kernel: Sizes, stride: Optional[Sizes], padding: Sizes, output_size: Optional[Sequence[int]]) -> Tensor:
    name = f"max_unpool{n}d"
    if tuple(indices.shape) != tuple(input.shape):
        raise ShapeError(f"{name}: indices have shape {tuple(indices.shape)}, expected that of the input, {tuple(input.shape)}")
    x, one = batched(name, input, n)
    ids = indices.unsqueeze(0) if one else indices
    k, p = sizes(name, "kernel_size", kernel, n), sizes(name, "padding", padding, n)
    s = k if stride is None else sizes(name, "stride", stride, n)
    usual = tuple((m - 1) * c - 2 * a + w for m, w, c, a in zip(x.shape[2:], k, s, p))
    size = usual if output_size is None else tuple(output_size)[-n:]
    if len(size) != n or any(abs(a - b) >= c for a, b, c in zip(size, usual, s)):
        raise ValueError(f"{name}: output_size is {output_size}, expected sizes that differ from {usual} by less than the stride {s}")
    rows = zeros(x.shape[0], x.shape[1], math.prod(size), dtype=x.dtype, device=x.device)
    made = ops.scatter(rows, ids.reshape(*x.shape[:2], -1), x.reshape(*x.shape[:2], -1), -1).reshape(*x.shape[:2], *size)
    return made.squeeze(0) if one else made


def max_unpool1d(
    input: Tensor, indices: Tensor, kernel_size: Sizes, stride: Optional[Sizes] = None, padding: Sizes = 0, output_size: Optional[Sequence[int]] = None
) -> Tensor:
    """Puts maxima of sequences back at the places ``indices`` and sets other elements to 0."""
    return _unpool(1, input, indices, kernel_size, stride, padding, output_size)


def max_unpool2d(
    input: Tensor, indices: Tensor, kernel_size: Sizes, stride: Optional[Sizes] = None, padding: Sizes = 0, output_size: Optional[Sequence[int]] = None
) -> Tensor:
    """Puts maxima of images back at the places ``indices`` and sets other elements to 0."""
    return _unpool(2, input, indices, kernel_size, stride, padding, output_size)


def max_unpool3d(
    input: Tensor, indices: Tensor, kernel_size: Sizes, stride: Optional[Sizes] = None, padding: Sizes = 0, output_size: Optional[Sequence[int]] = None
) -> Tensor:
    """Puts maxima of volumes back at the places ``indices`` and sets other elements to 0."""
    return _unpool(3, input, indices, kernel_size, stride, padding, output_size)


def max_pool1d_with_indices(
    input: Tensor,
    kernel_size: Sizes,
    stride: Optional[Sizes] = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Computes ``max_pool1d`` with the places of the maxima (int32)."""
    return max_pool1d(input, kernel_size, stride, padding, dilation, ceil_mode, True)


def max_pool2d_with_indices(
    input: Tensor,
    kernel_size: Sizes,
    stride: Optional[Sizes] = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Computes ``max_pool2d`` with the places of the maxima (int32)."""
    return max_pool2d(input, kernel_size, stride, padding, dilation, ceil_mode, True)


def max_pool3d_with_indices(
    input: Tensor,
    kernel_size: Sizes,
    stride: Optional[Sizes] = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Computes ``max_pool3d`` with the places of the maxima (int32)."""
    return max_pool3d(input, kernel_size, stride, padding, dilation, ceil_mode, True)


def adaptive_max_pool1d_with_indices(input: Tensor, output_size: Outputs, return_indices: bool = False) -> Any:
    """Computes ``adaptive_max_pool1d`` with the places of the maxima (int32)."""
    return adaptive_max_pool1d(input, output_size, True)


def adaptive_max_pool2d_with_indices(input: Tensor, output_size: Outputs, return_indices: bool = False) -> Any:
    """Computes ``adaptive_max_pool2d`` with the places of the maxima (int32)."""
    return adaptive_max_pool2d(input, output_size, True)


def adaptive_max_pool3d_with_indices(input: Tensor, output_size: Outputs, return_indices: bool = False) -> Any:
    """Computes ``adaptive_max_pool3d`` with the places of the maxima (int32)."""
    return adaptive_max_pool3d(input, output_size, True)


__all__ = [
    "adaptive_max_pool1d_with_indices", "adaptive_max_pool2d_with_indices", "adaptive_max_pool3d_with_indices", "max_pool1d_with_indices",
    "max_pool2d_with_indices", "max_pool3d_with_indices", "max_unpool1d", "max_unpool2d", "max_unpool3d",
]  # fmt: skip
