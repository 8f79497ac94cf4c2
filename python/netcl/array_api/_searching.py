"""Searching, sorting and sets. Sorting, sets and ``nonzero`` run on the host, because the shape or order of their results depends on values."""

from __future__ import annotations

import builtins
from typing import Any, NamedTuple, Optional, Tuple

from .. import _host, ops
from .._dtype import bool_, int32
from .._netcl import Tensor
from ._elementwise import both
from ._manipulation import _axis


def _indices(x: Any, like: Tensor) -> Tensor:
    import numpy as np

    return _host.from_numpy(np.asarray(x).astype(np.int32), None, like.device)


def _again(x: Any, like: Tensor) -> Tensor:
    return _host.from_numpy(x, like.dtype, like.device)


def _best(name: str, x: Tensor, axis: Optional[int], keepdims: builtins.bool) -> Tensor:
    if x.dtype is bool_:
        raise TypeError(f"{name}: got a mask, expected numbers")
    shape = x.shape
    if axis is None:
        x, place = ops.reshape(x, (x.size,)), 0
    else:
        place = _axis(axis, x.ndim)
    search = x.detach()
    found = (search.argmax(place) if name == "argmax" else search.argmin(place))._to(None, int32)
    if not keepdims:
        return found
    return ops.reshape(found, [1 if axis is None or a == place else n for a, n in enumerate(shape)])


def argmax(x: Tensor, /, *, axis: Optional[int] = None, keepdims: builtins.bool = False) -> Tensor:
    """Returns the first index of the largest element along an axis, or in the flattened array."""
    return _best("argmax", x, axis, keepdims)


def argmin(x: Tensor, /, *, axis: Optional[int] = None, keepdims: builtins.bool = False) -> Tensor:
    """Returns the first index of the smallest element."""
    return _best("argmin", x, axis, keepdims)


def nonzero(x: Tensor, /) -> Tuple[Tensor, ...]:
    """Returns the indices of nonzero elements, one array per axis."""
    if x.ndim == 0:
        raise ValueError("nonzero: got a 0-dimensional array, expected at least one axis")
    return tuple(_indices(found, x) for found in _host.numpy(x).nonzero())


def searchsorted(x1: Tensor, x2: Tensor, /, *, side: str = "left", sorter: Optional[Tensor] = None) -> Tensor:
    """Returns the index in the sorted ``x1`` where each element of ``x2`` would be inserted."""
    import numpy as np

    order = None if sorter is None else _host.numpy(sorter)
    left: Any = side
    return _indices(np.searchsorted(_host.numpy(x1), _host.numpy(x2), side=left, sorter=order), x1)


def where(condition: Tensor, x1: Any, x2: Any, /) -> Tensor:
    """Returns ``x1`` where the mask is set, and ``x2`` elsewhere."""
    from ..functions import where as choose

    if isinstance(x1, Tensor) or isinstance(x2, Tensor):
        x1, x2 = both(x1, x2)
    return choose(condition, x1, x2)


def _order(x: Tensor, axis: int, descending: builtins.bool) -> Any:
    """Returns the indices that sort the elements. The sort is stable, and NaN comes last."""
    import numpy as np

    values = _host.numpy(x)
    if not descending:
        return np.argsort(values, axis=axis, kind="stable")
    # Sorting the reversed array keeps equal elements in order.
    turned = np.flip(np.argsort(np.flip(values, axis=axis), axis=axis, kind="stable"), axis=axis)
    return values.shape[axis] - 1 - turned


def argsort(x: Tensor, /, *, axis: int = -1, descending: builtins.bool = False, stable: builtins.bool = True) -> Tensor:
    """Returns the indices that sort the elements."""
    return _indices(_order(x, _axis(axis, x.ndim), descending), x)


def sort(x: Tensor, /, *, axis: int = -1, descending: builtins.bool = False, stable: builtins.bool = True) -> Tensor:
    """Sorts the elements along an axis."""
    import numpy as np

    place = _axis(axis, x.ndim)
    return _again(np.take_along_axis(_host.numpy(x), _order(x, place, descending), axis=place), x)


class UniqueAll(NamedTuple):
    """Result of ``unique_all``."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """Result of ``unique_counts``."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """Result of ``unique_inverse``."""

    values: Tensor
    inverse_indices: Tensor


def unique_all(x: Tensor, /) -> UniqueAll:
    """Returns the sorted distinct values, their first indices, the index of each element's value, and the counts. Every NaN is distinct."""
    import numpy as np

    flat = _host.numpy(x).reshape(-1)
    values, first, inverse, counts = np.unique(flat, return_index=True, return_inverse=True, return_counts=True, equal_nan=False)
    return UniqueAll(_again(values, x), _indices(first, x), _indices(inverse.reshape(x.shape), x), _indices(counts, x))


def unique_counts(x: Tensor, /) -> UniqueCounts:
    """Returns the distinct values and their counts."""
    found = unique_all(x)
    return UniqueCounts(found.values, found.counts)


def unique_inverse(x: Tensor, /) -> UniqueInverse:
    """Returns the distinct values, and for each element the index of its value."""
    found = unique_all(x)
    return UniqueInverse(found.values, found.inverse_indices)


def unique_values(x: Tensor, /) -> Tensor:
    """Returns the sorted distinct values."""
    return unique_all(x).values
