"""Functions of several tensors in NumPy's style."""

from __future__ import annotations

from typing import Sequence, Union

from . import ops
from ._dtype import bool_, float32
from ._methods import place
from ._netcl import Tensor
from ._netcl import full as _full


def cat(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Concatenates tensors along an axis."""
    return ops.cat(tensors, axis)


def stack(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Stacks tensors of equal shape along a new axis."""
    return ops.stack(tensors, place("stack", axis, tensors[0].ndim + 1))


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Computes a matrix product. A vector is a row on the left and a column on the right."""
    return a @ b


def where(mask: Tensor, a: Union[Tensor, float], b: Union[Tensor, float]) -> Tensor:
    """Returns ``a`` where the mask is nonzero and ``b`` elsewhere; all are broadcast. An integer becomes a float next to a float, and a mask takes
    the other's type.
    """
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
