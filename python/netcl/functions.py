"""Functions of several tensors in the idiom of NumPy."""

from __future__ import annotations

from typing import Sequence, Union

from . import ops
from ._dtype import bool_, float32
from ._netcl import Tensor
from ._netcl import full as _full


def cat(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Tensors one after the other along an axis."""
    return ops.cat(tensors, axis)


def stack(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Tensors of one shape side by side along a new axis."""
    return ops.stack(tensors, axis % (tensors[0].ndim + 1))


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Matrix product; vectors are rows before it and columns behind it."""
    return a @ b


def where(mask: Tensor, a: Union[Tensor, float], b: Union[Tensor, float]) -> Tensor:
    """``a`` where the mask is not 0, else ``b``; all broadcast. An integer beside a float becomes one, a mask what stands beside it."""
    like = a if isinstance(a, Tensor) else b if isinstance(b, Tensor) else None
    dtype = like.dtype if like is not None else bool_ if isinstance(a, bool) and isinstance(b, bool) else float32
    for number in (a, b):
        if isinstance(number, float) and not dtype.is_floating_point:
            dtype = float32
    first, second = (x if isinstance(x, Tensor) else _full((), x, dtype, mask.device) for x in (a, b))
    weights = {"bool": 0, "int32": 1, "uint32": 1, "float16": 2, "bfloat16": 2, "float32": 3}
    w, v = weights[first.dtype.name], weights[second.dtype.name]
    if w != v:
        first, second = (first._to(None, second.dtype), second) if w < v else (first, second._to(None, first.dtype))
    return ops.where_cond(mask, first, second)


__all__ = ["cat", "matmul", "stack", "where"]
