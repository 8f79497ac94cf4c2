"""Functions with PyTorch's names that join and divide tensors."""

from __future__ import annotations

import itertools
from typing import Any, List, Optional, Sequence, Tuple

from .. import ops
from .._methods import place
from .._netcl import Tensor
from ._apply import only, promoted


def _joined(name: str, tensors: Any) -> List[Tensor]:
    given = list(tensors)
    if not given:
        raise ValueError(f"{name}: got no tensors")
    return promoted(*given) if len({x.dtype.name for x in given}) > 1 else given


def cat(tensors: Any, dim: int = 0, *, axis: Optional[int] = None, out: Any = None) -> Tensor:
    """Concatenates tensors along an axis. Empty vectors are skipped."""
    only("cat", out)
    given = _joined("cat", tensors)
    some = [x for x in given if tuple(x.shape) != (0,)] or given[:1]
    return ops.cat(some, dim if axis is None else axis)


def stack(tensors: Any, dim: int = 0, *, axis: Optional[int] = None, out: Any = None) -> Tensor:
    """Stacks tensors of equal shape along a new axis."""
    only("stack", out)
    given = _joined("stack", tensors)
    return ops.stack(given, place("stack", dim if axis is None else axis, given[0].ndim + 1))


def several(tensors: Tuple[Any, ...]) -> List[Tensor]:
    return list(tensors[0]) if len(tensors) == 1 and not isinstance(tensors[0], Tensor) else list(tensors)


def _at_least(rank: int, tensors: Tuple[Any, ...]) -> Any:
    def one(x: Tensor) -> Tensor:
        if x.ndim >= rank:
            return x
        shapes = {0: (1,) * rank, 1: (1, *x.shape) if rank == 2 else (1, *x.shape, 1), 2: (*x.shape, 1)}
        return ops.reshape(x, shapes[x.ndim])

    if len(tensors) == 1 and isinstance(tensors[0], Tensor):
        return one(tensors[0])
    return tuple(one(x) for x in several(tensors))


def atleast_1d(*tensors: Any) -> Any:
    """Adds axes of size 1, for at least one axis."""
    return _at_least(1, tensors)


def atleast_2d(*tensors: Any) -> Any:
    """Adds axes of size 1, for at least two axes."""
    return _at_least(2, tensors)


def atleast_3d(*tensors: Any) -> Any:
    """Adds axes of size 1, for at least three axes."""
    return _at_least(3, tensors)


def hstack(tensors: Any) -> Tensor:
    """Concatenates along the second axis, or vectors along the first."""
    given = [atleast_1d(x) for x in tensors]
    return cat(given, 0 if given[0].ndim == 1 else 1)


def vstack(tensors: Any) -> Tensor:
    """Concatenates rows."""
    return cat([atleast_2d(x) for x in tensors], 0)


def dstack(tensors: Any) -> Tensor:
    """Concatenates along the third axis."""
    return cat([atleast_3d(x) for x in tensors], 2)


def column_stack(tensors: Any) -> Tensor:
    """Concatenates columns."""
    return cat([ops.reshape(x, (x.size, 1)) if x.ndim < 2 else x for x in tensors], 1)


def split(tensor: Tensor, split_size_or_sections: Any = None, dim: int = 0, *, split_size: Any = None, axis: Optional[int] = None) -> Tuple[Tensor, ...]:
    """Returns views of ``split_size`` elements along an axis, of which the last may have fewer, or views of these lengths."""
    sections = split_size if split_size_or_sections is None else split_size_or_sections
    at = place("split", dim if axis is None else axis, tensor.ndim)
    n = tensor.shape[at]
    if isinstance(sections, int):
        if sections < 0 or (sections == 0 and n):
            raise RuntimeError(f"split: the size is {sections}, expected a positive number")
        sizes = [min(sections, n - start) for start in range(0, n, sections)] if n else [0]
    else:
        sizes = [int(v) for v in sections]
        if sum(sizes) != n:
            raise RuntimeError(f"split: the lengths {sizes} add up to {sum(sizes)}, expected {n}")
    return _parts(tensor, at, sizes)


def _parts(x: Tensor, at: int, sizes: Sequence[int]) -> Tuple[Tensor, ...]:
    starts = [0, *itertools.accumulate(sizes)]
    return tuple(ops.slice(x, at, a, b) for a, b in zip(starts, starts[1:]))


def split_with_sizes(input: Tensor, split_sizes: Sequence[int], dim: int = 0) -> Tuple[Tensor, ...]:
    """Returns views of these lengths along an axis."""
    return split(input, list(split_sizes), dim)


def chunk(input: Tensor, chunks: int, dim: int = 0, *, axis: Optional[int] = None) -> Tuple[Tensor, ...]:
    """Returns at most ``chunks`` views of equal length along an axis, of which the last may have fewer elements."""
    at = place("chunk", dim if axis is None else axis, input.ndim)
    if chunks <= 0:
        raise RuntimeError(f"chunk: chunks is {chunks}, expected a positive number")
    n = input.shape[at]
    return split(input, max(-(-n // chunks), 1), at) if n else _parts(input, at, [0] * chunks)


def tensor_split(input: Tensor, indices_or_sections: Any, dim: int = 0) -> Tuple[Tensor, ...]:
    """Returns views along an axis: a number of them whose lengths differ by at most 1, or those between indices."""
    at = place("tensor_split", dim, input.ndim)
    n, given = input.shape[at], indices_or_sections
    given = given.tolist() if isinstance(given, Tensor) else given
    if isinstance(given, int):
        if given <= 0:
            raise RuntimeError(f"tensor_split: got {given} sections, expected a positive number")
        return _parts(input, at, [n // given + (i < n % given) for i in range(given)])
    ends = [slice(None, e).indices(n)[1] for e in given]
    return tuple(ops.slice(input, at, min(a, b), b) if b > a else ops.slice(input, at, 0, 0) for a, b in zip([0, *ends], [*ends, n]))


def hsplit(input: Tensor, indices_or_sections: Any) -> Tuple[Tensor, ...]:
    """Divides along the second axis, or a vector along the first."""
    return _even(input, indices_or_sections, 0 if input.ndim == 1 else 1, "hsplit", 1)


def vsplit(input: Tensor, indices_or_sections: Any) -> Tuple[Tensor, ...]:
    """Divides along the first axis."""
    return _even(input, indices_or_sections, 0, "vsplit", 2)


def dsplit(input: Tensor, indices_or_sections: Any) -> Tuple[Tensor, ...]:
    """Divides along the third axis."""
    return _even(input, indices_or_sections, 2, "dsplit", 3)


def _even(x: Tensor, sections: Any, at: int, name: str, rank: int) -> Tuple[Tensor, ...]:
    if x.ndim < rank:
        raise RuntimeError(f"{name}: got {x.ndim} axes, expected at least {rank}")
    if isinstance(sections, int) and (sections <= 0 or x.shape[at] % sections):
        raise RuntimeError(f"{name}: {sections} parts do not divide {x.shape[at]} evenly")
    return tensor_split(x, sections, at)
