"""Searching, sorting and sets. Sorting, sets and ``nonzero`` work on the host: their results' shapes, or orders, depend on values."""

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
        raise TypeError(f"{name}: a mask, expected numbers")
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
    """The first place of the largest element along an axis, or in the flat array."""
    return _best("argmax", x, axis, keepdims)


def argmin(x: Tensor, /, *, axis: Optional[int] = None, keepdims: builtins.bool = False) -> Tensor:
    """The first place of the smallest element."""
    return _best("argmin", x, axis, keepdims)


def nonzero(x: Tensor, /) -> Tuple[Tensor, ...]:
    """Places of what is not 0: an array for each axis."""
    if x.ndim == 0:
        raise ValueError("nonzero: an array without axes")
    return tuple(_indices(found, x) for found in _host.numpy(x).nonzero())


def searchsorted(x1: Tensor, x2: Tensor, /, *, side: str = "left", sorter: Optional[Tensor] = None) -> Tensor:
    """Where each of ``x2`` would be put into the sorted ``x1``."""
    import numpy as np

    order = None if sorter is None else _host.numpy(sorter)
    left: Any = side
    return _indices(np.searchsorted(_host.numpy(x1), _host.numpy(x2), side=left, sorter=order), x1)


def where(condition: Tensor, x1: Any, x2: Any, /) -> Tensor:
    """``x1`` where the mask is set, else ``x2``."""
    from ..functions import where as choose

    if isinstance(x1, Tensor) or isinstance(x2, Tensor):
        x1, x2 = both(x1, x2)
    return choose(condition, x1, x2)


def _order(x: Tensor, axis: int, descending: builtins.bool) -> Any:
    """Places of the elements in order, equal ones as they come; NaN last."""
    import numpy as np

    values = _host.numpy(x)
    if not descending:
        return np.argsort(values, axis=axis, kind="stable")
    # Backwards from the end: what is equal then stays in order.
    turned = np.flip(np.argsort(np.flip(values, axis=axis), axis=axis, kind="stable"), axis=axis)
    return values.shape[axis] - 1 - turned


def argsort(x: Tensor, /, *, axis: int = -1, descending: builtins.bool = False, stable: builtins.bool = True) -> Tensor:
    """Places of the elements in order."""
    return _indices(_order(x, _axis(axis, x.ndim), descending), x)


def sort(x: Tensor, /, *, axis: int = -1, descending: builtins.bool = False, stable: builtins.bool = True) -> Tensor:
    """Elements in order along an axis."""
    import numpy as np

    place = _axis(axis, x.ndim)
    return _again(np.take_along_axis(_host.numpy(x), _order(x, place, descending), axis=place), x)


class UniqueAll(NamedTuple):
    """What ``unique_all`` gives."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """What ``unique_counts`` gives."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """What ``unique_inverse`` gives."""

    values: Tensor
    inverse_indices: Tensor


def unique_all(x: Tensor, /) -> UniqueAll:
    """Each value once, in order, with its first place, where it is among them, and how often it occurs. Every NaN is one of its own."""
    import numpy as np

    flat = _host.numpy(x).reshape(-1)
    values, first, inverse, counts = np.unique(flat, return_index=True, return_inverse=True, return_counts=True, equal_nan=False)
    return UniqueAll(_again(values, x), _indices(first, x), _indices(inverse.reshape(x.shape), x), _indices(counts, x))


def unique_counts(x: Tensor, /) -> UniqueCounts:
    """Each value once, and how often it occurs."""
    found = unique_all(x)
    return UniqueCounts(found.values, found.counts)


def unique_inverse(x: Tensor, /) -> UniqueInverse:
    """Each value once, and for each element which it is."""
    found = unique_all(x)
    return UniqueInverse(found.values, found.inverse_indices)


def unique_values(x: Tensor, /) -> Tensor:
    """Each value once, in order."""
    return unique_all(x).values
