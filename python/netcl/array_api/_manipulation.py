"""Shapes, order of elements, and matrix products."""

from __future__ import annotations

import operator
from typing import Any, List, Optional, Sequence, Tuple, Union

from .. import ops
from .._create import arange
from .._dtype import bool_
from .._netcl import Tensor
from ._types import result_type


def _axis(axis: int, ndim: int) -> int:
    axis = operator.index(axis)
    if not -ndim <= axis < max(ndim, 0):
        raise IndexError(f"axis {axis} is out of range for an array of {ndim} axes")
    return axis % ndim


def _axes(axis: Any, ndim: int) -> Tuple[int, ...]:
    if axis is None:
        return tuple(range(ndim))
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    return tuple(_axis(a, ndim) for a in axes)


def broadcast_shapes(*shapes: Sequence[int]) -> Tuple[int, ...]:
    """Returns the shape that all of them broadcast to."""
    out: List[int] = []
    for i in range(1, max(map(len, shapes), default=0) + 1):
        sizes = {s[-i] for s in shapes if len(s) >= i} - {1}
        if len(sizes) > 1:
            raise ValueError(f"shapes {shapes} cannot be broadcast")
        out.insert(0, sizes.pop() if sizes else 1)
    return tuple(out)


def broadcast_to(x: Tensor, /, shape: Tuple[int, ...]) -> Tensor:
    """Repeats the array along axes of size 1 and new leading axes."""
    return ops.expand(x, tuple(shape))


def broadcast_arrays(*arrays: Tensor) -> List[Tensor]:
    """Broadcasts the arrays to their common shape."""
    shape = broadcast_shapes(*(x.shape for x in arrays))
    return [broadcast_to(x, shape) for x in arrays]


def _common(arrays: Sequence[Tensor]) -> List[Tensor]:
    dtype = result_type(*arrays)
    return [x._to(None, dtype) for x in arrays]


def concat(arrays: Sequence[Tensor], /, *, axis: Optional[int] = 0) -> Tensor:
    """Concatenates arrays along an axis, or flattened arrays if ``axis`` is ``None``."""
    arrays = _common(arrays)
    if axis is None:
        arrays, axis = [ops.reshape(x, (x.size,)) for x in arrays], 0
    return ops.cat(arrays, _axis(axis, arrays[0].ndim))


def expand_dims(x: Tensor, /, axis: int) -> Tensor:
    """Inserts an axis of size 1."""
    return ops.unsqueeze(x, _axis(axis, x.ndim + 1))


def flip(x: Tensor, /, *, axis: Any = None) -> Tensor:
    """Reverses the order along axes."""
    for a in _axes(axis, x.ndim):
        x = x[(slice(None),) * a + (slice(None, None, -1),)]
    return x


def moveaxis(x: Tensor, source: Any, destination: Any, /) -> Tensor:
    """Moves axes to other positions. The other axes keep their order."""
    sources, targets = _axes(source, x.ndim), _axes(destination, x.ndim)
    if len(sources) != len(targets) or len(set(sources)) != len(sources) or len(set(targets)) != len(targets):
        raise ValueError(f"moveaxis: cannot move axes {source} to {destination}")
    order = [a for a in range(x.ndim) if a not in sources]
    for target, a in sorted(zip(targets, sources)):
        order.insert(target, a)
    return ops.permute(x, order)


def permute_dims(x: Tensor, /, axes: Tuple[int, ...]) -> Tensor:
    """Reorders the axes."""
    return ops.permute(x, _axes(tuple(axes), x.ndim))


def repeat(x: Tensor, repeats: Union[int, Tensor], /, *, axis: Optional[int] = None) -> Tensor:
    """Repeats each element ``repeats`` times along an axis, or in the flattened array. Different counts are read on the host."""
    if axis is None:
        x, axis = ops.reshape(x, (x.size,)), 0
    axis = _axis(axis, x.ndim)
    n = x.shape[axis]
    if isinstance(repeats, int):
        counts = [repeats] * n
    else:
        counts = repeats.reshape(-1).tolist()
        counts = counts * n if len(counts) == 1 else counts
    if len(counts) != n:
        raise ValueError(f"repeat: got {len(counts)} counts, expected {n}, one per element")
    return take(x, _numbers([i for i, c in enumerate(counts) for _ in range(c)], x), axis=axis)


def _numbers(values: List[int], like: Tensor) -> Tensor:
    from .._host import from_lists

    if not values:
        return arange(0, dtype="uint32", device=like.device)
    return from_lists(values, "uint32", like.device)


def reshape(x: Tensor, /, shape: Tuple[int, ...], *, copy: Optional[bool] = None) -> Tensor:
    """Returns the same elements in another shape."""
    sizes = list(shape)
    if -1 in sizes:
        rest = 1
        for n in sizes:
            rest *= n if n != -1 else 1
        if sizes.count(-1) > 1 or rest == 0 or x.size % rest:
            raise ValueError(f"reshape: cannot reshape {x.shape} to {tuple(shape)}")
        sizes[sizes.index(-1)] = x.size // rest
    if copy is False and not x.is_contiguous():
        raise ValueError("reshape: the array is not contiguous, so a copy is required")
    made = ops.reshape(x, sizes)
    return made.clone() if copy else made


def roll(x: Tensor, /, shift: Any, *, axis: Any = None) -> Tensor:
    """Shifts elements along axes. Elements shifted past the end enter at the start."""
    if axis is None:
        return ops.reshape(roll(ops.reshape(x, (x.size,)), shift, axis=0), x.shape)
    axes = _axes(axis, x.ndim)
    shifts = shift if isinstance(shift, (tuple, list)) else (shift,) * len(axes)
    for by, a in zip(shifts, axes):
        n = x.shape[a]
        if n:
            at, before = by % n, (slice(None),) * a
            x = ops.cat([x[(*before, slice(n - at, n))], x[(*before, slice(0, n - at))]], a) if at else x
    return x


def squeeze(x: Tensor, /, axis: Any) -> Tensor:
    """Removes axes of size 1."""
    axes = _axes(axis, x.ndim)
    if any(x.shape[a] != 1 for a in axes):
        raise ValueError(f"squeeze: axes {axis} of shape {x.shape} do not have size 1")
    return ops.reshape(x, [n for a, n in enumerate(x.shape) if a not in axes])


def stack(arrays: Sequence[Tensor], /, *, axis: int = 0) -> Tensor:
    """Stacks arrays along a new axis."""
    arrays = _common(arrays)
    axis = _axis(axis, arrays[0].ndim + 1)
    return ops.cat([ops.unsqueeze(x, axis) for x in arrays], axis)


def take(x: Tensor, indices: Tensor, /, *, axis: Optional[int] = None) -> Tensor:
    """Takes elements of an axis by a one-dimensional array of indices."""
    if axis is None:
        if x.ndim != 1:
            raise ValueError("take: an array of several axes needs an axis argument")
        axis = 0
    return x[(slice(None),) * _axis(axis, x.ndim) + (indices,)]


def tile(x: Tensor, repetitions: Tuple[int, ...], /) -> Tensor:
    """Repeats the whole array along each axis."""
    missing = len(repetitions) - x.ndim
    x = ops.reshape(x, (1,) * max(missing, 0) + tuple(x.shape))
    for a, n in enumerate((1,) * max(-missing, 0) + tuple(repetitions)):
        x = ops.cat([x] * n, a) if n > 0 else x[(slice(None),) * a + (slice(0, 0),)]
    return x


def unstack(x: Tensor, /, *, axis: int = 0) -> Tuple[Tensor, ...]:
    """Splits the array along an axis, which is removed."""
    a = _axis(axis, x.ndim)
    return tuple(x[(slice(None),) * a + (i,)] for i in range(x.shape[a]))


def matrix_transpose(x: Tensor, /) -> Tensor:
    """Swaps the last two axes."""
    if x.ndim < 2:
        raise ValueError(f"matrix_transpose: got an array of shape {x.shape}, expected at least two axes")
    return ops.transpose(x, -2, -1)


def matmul(x1: Tensor, x2: Tensor, /) -> Tensor:
    """Computes a matrix product."""
    if x1.dtype is bool_ or x2.dtype is bool_:
        raise TypeError("matmul: got masks, expected numbers")
    if x1.ndim == 0 or x2.ndim == 0:
        raise ValueError("matmul: got a 0-dimensional array, expected at least one axis")
    a, b = _common([x1, x2])
    return a @ b


def tensordot(x1: Tensor, x2: Tensor, /, *, axes: Any = 2) -> Tensor:
    """Sums products over axes of both arrays: the last and the first ``axes``, or the axes in two lists."""
    if x1.dtype is bool_ or x2.dtype is bool_:
        raise TypeError("tensordot: got masks, expected numbers")
    if isinstance(axes, int):
        left, right = tuple(range(x1.ndim - axes, x1.ndim)), tuple(range(axes))
    else:
        left, right = _axes(tuple(axes[0]), x1.ndim), _axes(tuple(axes[1]), x2.ndim)
    if [x1.shape[a] for a in left] != [x2.shape[a] for a in right]:
        raise ValueError(f"tensordot: axes {axes} do not match shapes {x1.shape} and {x2.shape}")
    a, b = _common([x1, x2])
    rows = [n for n in range(a.ndim) if n not in left]
    columns = [n for n in range(b.ndim) if n not in right]
    inner = m = n = 1
    for axis in left:
        inner *= a.shape[axis]
    for axis in rows:
        m *= a.shape[axis]
    for axis in columns:
        n *= b.shape[axis]
    shape = [a.shape[i] for i in rows] + [b.shape[i] for i in columns]
    first = ops.reshape(ops.permute(a, rows + list(left)), (m, inner))
    second = ops.reshape(ops.permute(b, list(right) + columns), (inner, n))
    return ops.reshape(first @ second, shape)


def vecdot(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """Sums products over one axis. The other axes are broadcast."""
    if x1.dtype is bool_ or x2.dtype is bool_:
        raise TypeError("vecdot: got masks, expected numbers")
    if axis >= 0 or axis < -min(x1.ndim, x2.ndim):
        raise ValueError(f"vecdot: axis is {axis}, expected a negative axis that both arrays have")
    if x1.shape[axis] != x2.shape[axis]:
        raise ValueError(f"vecdot: axis {axis} does not match in shapes {x1.shape} and {x2.shape}")
    a, b = _common([x1, x2])
    return ops.sum(a * b, (axis,))
