"""Functions with PyTorch's names that arrange elements: shapes, axes, joins, parts and triangles."""

from __future__ import annotations

import itertools
import math
from typing import Any, List, Optional, Sequence, Tuple, Union

from .. import _methods, ops
from .._create import arange
from .._dtype import int32
from .._methods import place
from .._netcl import Tensor
from .._netcl import full as _full
from ..errors import IndexOutOfBounds, ShapeError, UnsupportedError
from ._apply import Dims, arranged, dims_of, promoted
from ._join import atleast_2d, several

Sizes = Union[int, Sequence[int]]


def ints(sizes: Tuple[Any, ...]) -> Tuple[int, ...]:
    """Returns sizes that were given as numbers or as one sequence."""
    return tuple(int(n) for n in (sizes[0] if len(sizes) == 1 and not isinstance(sizes[0], int) and not isinstance(sizes[0], Tensor) else sizes))


def reshape(input: Tensor, shape: Any, *sizes: int) -> Tensor:
    """Returns the same elements in another shape. One size may be -1."""
    return arranged(input, ints((shape, *sizes)))


def reshape_as(input: Tensor, other: Tensor) -> Tensor:
    """Returns the same elements in the shape of ``other``."""
    return arranged(input, tuple(other.shape))


def view_as(input: Tensor, other: Tensor) -> Tensor:
    """Returns the same memory in the shape of ``other``."""
    return input.view(tuple(other.shape))


def broadcast_to(input: Tensor, size: Sequence[int]) -> Tensor:
    """Repeats the tensor along axes of size 1 and new leading axes, without a copy."""
    return input.expand(tuple(size))


def expand_as(input: Tensor, other: Tensor) -> Tensor:
    """Repeats the tensor to the shape of ``other``, without a copy."""
    return input.expand(tuple(other.shape))


def broadcast_shapes(*shapes: Sizes) -> Tuple[int, ...]:
    """Returns the shape to which all shapes broadcast."""
    given = [(s,) if isinstance(s, int) else tuple(s) for s in shapes]
    made: List[int] = []
    for column in itertools.zip_longest(*(s[::-1] for s in given), fillvalue=1):
        sizes = {n for n in column if n != 1}
        if len(sizes) > 1:
            raise ShapeError(f"broadcast_shapes: the shapes {given} do not broadcast")
        made.append(sizes.pop() if sizes else 1)
    return tuple(made[::-1])


def broadcast_tensors(*tensors: Any) -> Tuple[Tensor, ...]:
    """Expands all tensors to their common shape."""
    given = tensors[0] if len(tensors) == 1 and not isinstance(tensors[0], Tensor) else tensors
    shape = broadcast_shapes(*(tuple(t.shape) for t in given))
    return tuple(t.expand(shape) for t in given)


def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Merges axes ``start_dim`` to ``end_dim`` into one."""
    start, end = place("flatten", start_dim, input.ndim), place("flatten", end_dim, input.ndim)
    if start > end:
        raise ValueError(f"flatten: axis {start} is after axis {end}")
    sizes = tuple(input.shape) or (1,)
    return arranged(input, (*sizes[:start], math.prod(sizes[start : end + 1]), *sizes[end + 1 :]))


def ravel(input: Tensor) -> Tensor:
    """Returns the elements as a vector."""
    return arranged(input, (input.numel(),))


def unflatten(input: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """Divides an axis into several. One size may be -1."""
    at, parts = place("unflatten", dim, input.ndim), [int(n) for n in sizes]
    if -1 in parts:
        known = -math.prod(parts)
        parts[parts.index(-1)] = input.shape[at] // known if known > 0 else 0
    if math.prod(parts) != input.shape[at]:
        raise ShapeError(f"unflatten: the sizes {tuple(sizes)} do not multiply to {input.shape[at]}")
    return arranged(input, (*input.shape[:at], *parts, *input.shape[at + 1 :]))


def squeeze(input: Tensor, dim: Dims = None, *, axis: Dims = None) -> Tensor:
    """Removes axes of size 1 [default: all of them]. Axes of other sizes are kept."""
    dim = axis if dim is None else dim
    given = range(input.ndim) if dim is None else (dim,) if isinstance(dim, int) else dim
    gone = {place("squeeze", a, input.ndim) for a in given}
    return arranged(input, tuple(n for a, n in enumerate(input.shape) if n != 1 or a not in gone))


def unsqueeze(input: Tensor, dim: int) -> Tensor:
    """Inserts an axis of size 1 before ``dim``."""
    at = place("unsqueeze", dim, input.ndim + 1)
    return arranged(input, (*input.shape[:at], 1, *input.shape[at:]))


def permute(input: Tensor, dims: Any, *more: int) -> Tensor:
    """Reorders the axes."""
    return ops.permute(input, ints((dims, *more)))


def transpose(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """Swaps two axes."""
    if not input.ndim:
        place("transpose", dim0, 0), place("transpose", dim1, 0)
        return input
    return ops.transpose(input, dim0, dim1)


def t(input: Tensor) -> Tensor:
    """Transposes a matrix. Vectors and scalars are returned unchanged."""
    if input.ndim > 2:
        raise RuntimeError(f"t: got {input.ndim} axes, expected at most 2; write x.mT or x.transpose(dim0, dim1)")
    return ops.transpose(input, 0, 1) if input.ndim == 2 else input


def adjoint(input: Tensor) -> Tensor:
    """Swaps the last two axes."""
    if input.ndim == 0:
        return input
    if input.ndim < 2:
        raise RuntimeError(f"adjoint: got {input.ndim} axes, expected at least 2")
    return ops.transpose(input, -2, -1)


def movedim(input: Tensor, source: Sizes, destination: Sizes) -> Tensor:
    """Moves axes to other places. The other axes keep their order."""
    if not input.ndim:
        dims_of("movedim", input, source), dims_of("movedim", input, destination)
        return input
    sources = dims_of("movedim", input, source)
    targets = dims_of("movedim", input, destination)
    if len(sources) != len(targets):
        raise RuntimeError(f"movedim: got {len(sources)} sources and {len(targets)} destinations")
    order: List[int] = [-1] * input.ndim
    for a, b in zip(sources, targets):
        order[b] = a
    rest = (a for a in range(input.ndim) if a not in sources)
    return ops.permute(input, tuple(next(rest) if a < 0 else a for a in order))


def unbind(input: Tensor, dim: int = 0) -> Tuple[Tensor, ...]:
    """Returns views without the axis, one for each of its places."""
    at = place("unbind", dim, input.ndim)
    if not input.ndim:
        raise RuntimeError("unbind: a scalar does not have an axis")
    return tuple(select(input, at, i) for i in range(input.shape[at]))


def select(input: Tensor, dim: int, index: int) -> Tensor:
    """Returns the view at one place of an axis."""
    at = place("select", dim, input.ndim)
    if not input.ndim or not -input.shape[at] <= index < input.shape[at]:
        raise IndexOutOfBounds(f"select: index {index} is out of range for axis {dim} of a tensor of shape {tuple(input.shape)}")
    found: Tensor = input[(slice(None),) * at + (int(index),)]
    return found


def narrow(input: Tensor, dim: int, start: Any, length: int) -> Tensor:
    """Returns the view of ``length`` places of an axis from ``start`` on."""
    at, first = place("narrow", dim, input.ndim), int(start)
    n = input.shape[at] if input.ndim else 0
    first = first + n if first < 0 else first
    if length < 0 or not 0 <= first <= n or first + length > n:
        raise RuntimeError(f"narrow: start {start} and length {length} exceed the size {n} of axis {dim}")
    return ops.slice(input, at, first, first + length)


def tile(input: Tensor, dims: Any, *more: int) -> Tensor:
    """Repeats the tensor along its axes. Missing counts are 1."""
    counts = ints((dims, *more))
    return repeat(input, (1,) * (input.ndim - len(counts)) + counts)


def repeat(input: Tensor, repeats: Any, *more: int) -> Tensor:
    """Copies the tensor these numbers of times along its axes and new leading axes."""
    counts = ints((repeats, *more))
    if len(counts) < input.ndim:
        raise RuntimeError(f"repeat: got {len(counts)} counts for {input.ndim} axes")
    shape = (1,) * (len(counts) - input.ndim) + tuple(input.shape)
    if 0 in counts or not input.size:
        return _full(tuple(n * c for n, c in zip(shape, counts)), 0.0, input.dtype, input.device)
    within = [size for n in shape for size in (1, n)]
    wide = [size for n, c in zip(shape, counts) for size in (c, n)]
    spread = ops.expand(ops.reshape(input, within), wide) if counts else input
    made = ops.reshape(ops.contiguous(spread), tuple(n * c for n, c in zip(shape, counts)))
    return made.clone() if all(c == 1 for c in counts) else made


def repeat_interleave(input: Tensor, repeats: Any, dim: Optional[int] = None, *, output_size: Optional[int] = None) -> Tensor:
    """Repeats each element along an axis [default: the flattened tensor]: all equally often, or each as often as ``repeats`` says."""
    x, at = (ravel(input), 0) if dim is None else (input, place("repeat_interleave", dim, input.ndim))
    if isinstance(repeats, Tensor) and repeats.numel() == 1:
        repeats = int(repeats.item())
    if isinstance(repeats, int):
        if repeats < 0:
            raise RuntimeError(f"repeat_interleave: repeats is {repeats}, expected at least 0")
        shape = tuple(x.shape)
        if not repeats:
            return ops.slice(x, at, 0, 0)
        wide = ops.expand(ops.unsqueeze(x, at + 1), (*shape[: at + 1], repeats, *shape[at + 1 :]))
        return ops.reshape(ops.contiguous(wide), (*shape[:at], shape[at] * repeats, *shape[at + 1 :]))
    counts = repeats.tolist()
    if len(counts) != x.shape[at]:
        raise RuntimeError(f"repeat_interleave: got {len(counts)} counts, expected {x.shape[at]}")
    places = [i for i, count in enumerate(counts) for _ in range(count)]
    if not places:
        return ops.slice(x, at, 0, 0)
    from ._index import index_select

    return index_select(x, at, _indices(places, x))


def _indices(places: Sequence[int], like: Tensor) -> Tensor:
    from .._create import tensor

    return tensor(list(places), dtype=int32, device=like.device)


def flip(input: Tensor, dims: Any, *more: int) -> Tensor:
    """Reverses axes, as a copy."""
    given = ints((dims, *more))
    axes = dims_of("flip", input, given) if given else ()
    return _flipped(input, axes) if axes else input.clone()


def _flipped(x: Tensor, axes: Tuple[int, ...]) -> Tensor:
    from ._index import on_any_dtype

    return on_any_dtype(x, lambda t: ops.flip(t, axes))


def fliplr(input: Tensor) -> Tensor:
    """Reverses the second axis."""
    if input.ndim < 2:
        raise RuntimeError("fliplr: expected at least 2 axes")
    return _flipped(input, (1,))


def flipud(input: Tensor) -> Tensor:
    """Reverses the first axis."""
    if input.ndim < 1:
        raise RuntimeError("flipud: expected at least 1 axis")
    return _flipped(input, (0,))


def rot90(input: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """Rotates a plane of two axes by 90 degrees, ``k`` times."""
    a, b = dims_of("rot90", input, dims)
    turns = k % 4
    if turns == 2:
        return _flipped(input, (a, b))
    if not turns:
        return input.clone()
    return _flipped(ops.transpose(input, a, b), (a,)) if turns == 1 else ops.transpose(_flipped(input, (a,)), a, b)


def roll(input: Tensor, shifts: Any, dims: Any = None) -> Tensor:
    """Moves elements along axes; those that leave an axis reappear at its other end."""
    return _methods.roll(input, shifts, dims if dims is None or isinstance(dims, int) or len(dims) else None)


def meshgrid(*tensors: Any, indexing: str = "ij") -> Tuple[Tensor, ...]:
    """Returns the coordinates of a grid, one tensor for each vector."""
    if indexing not in ("ij", "xy"):
        raise RuntimeError(f"meshgrid: indexing is {indexing!r}, expected 'ij' or 'xy'")
    given = [ops.reshape(x, (x.size,)) for x in several(tensors)]
    swap = indexing == "xy" and len(given) > 1
    places = [1, 0, *range(2, len(given))] if swap else list(range(len(given)))
    shape = tuple(given[i].size for i in places)
    return tuple(ops.expand(ops.reshape(x, tuple(n if a == places[i] else 1 for a, n in enumerate(shape))), shape) for i, x in enumerate(given))


def cartesian_prod(*tensors: Tensor) -> Tensor:
    """Returns all combinations of one element of each vector, as rows."""
    if len(tensors) == 1:
        return tensors[0]
    return ops.stack([ops.reshape(g, (-1,)) for g in meshgrid(*tensors)], 1)


def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """Returns all combinations of ``r`` elements of a vector, as rows."""
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    places = list(choose(range(input.shape[0]), r))
    if not places or not r:
        return _full((len(places) if r else 0, r), 0.0, input.dtype, input.device)
    from ._index import index_select

    flat = [i for row in places for i in row]
    return ops.reshape(index_select(input, 0, _indices(flat, input)), (len(places), r))


def block_diag(*tensors: Tensor) -> Tensor:
    """Returns a matrix with these matrices on its diagonal."""
    given = promoted(*(atleast_2d(x) for x in tensors))
    columns, rows, before = sum(x.shape[1] for x in given), [], 0
    for x in given:
        sides = [_full((x.shape[0], n), 0.0, x.dtype, x.device) for n in (before, columns - before - x.shape[1])]
        rows.append(ops.cat([part for part in (sides[0], x, sides[1]) if part.shape[1]], 1))
        before += x.shape[1]
    return ops.cat(rows, 0)


def diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Returns a diagonal of two axes as the last axis: a view if the tensor is contiguous, otherwise a copy."""
    a, b = dims_of("diagonal", input, (dim1, dim2))
    x = ops.permute(input, tuple(d for d in range(input.ndim) if d not in (a, b)) + (a, b))
    rows, columns = x.shape[-2:]
    n = max(0, min(rows + min(offset, 0), columns - max(offset, 0)))
    first = offset if offset >= 0 else -offset * columns
    if not n:
        return ops.reshape(ops.slice(x, x.ndim - 1, 0, 0), (*x.shape[:-2], 0)) if rows == 0 else ops.slice(x, x.ndim - 1, 0, 0)[..., 0, :]
    flat = x.view(*x.shape[:-2], rows * columns) if x.is_contiguous() else ops.reshape(x, (*x.shape[:-2], rows * columns))
    found: Tensor = flat[..., first : first + (n - 1) * (columns + 1) + 1 : columns + 1]
    return found


def _on_diagonal(x: Tensor, offset: int) -> Tensor:
    return diagonal(x, offset)


def diag_embed(input: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Puts the last axis on a diagonal of two axes, with zeros elsewhere."""
    n = input.shape[-1]
    size, before = n + abs(offset), max(-offset, 0)
    wide = ops.expand(ops.unsqueeze(input, input.ndim), (*input.shape, size))
    rows, columns = arange(n, device=input.device), arange(size, device=input.device)
    on = ops.unsqueeze(rows + max(offset, 0), 1) == ops.unsqueeze(columns, 0)
    body = wide.masked_fill(~on, 0.0) if input.dtype.is_floating_point else wide * on._to(None, input.dtype)
    if size > n:
        sides = [_full((*input.shape[:-1], k, size), 0.0, input.dtype, input.device) for k in (before, size - n - before)]
        body = ops.cat([part for part in (sides[0], body, sides[1]) if part.shape[-2]], body.ndim - 2)
    a, b = place("diag_embed", dim1, body.ndim), place("diag_embed", dim2, body.ndim)
    rest = iter(range(body.ndim - 2))
    return ops.permute(body, tuple(body.ndim - 2 if d == a else body.ndim - 1 if d == b else next(rest) for d in range(body.ndim)))


def diag(input: Tensor, diagonal: int = 0) -> Tensor:
    """Returns the matrix with a vector on its diagonal, or the diagonal of a matrix as a copy."""
    if input.ndim == 1:
        return diag_embed(input, diagonal)
    if input.ndim != 2:
        raise RuntimeError(f"diag: got {input.ndim} axes, expected 1 or 2")
    return _on_diagonal(input, diagonal).clone()



def diagflat(input: Tensor, offset: int = 0) -> Tensor:
    """Returns the matrix with all elements on its diagonal."""
    return diag_embed(ravel(input), offset)


def tril(input: Tensor, diagonal: int = 0) -> Tensor:
    """Returns the lower triangle of the last two axes, and zeros above it."""
    return _triangle("tril", input, diagonal)


def triu(input: Tensor, diagonal: int = 0) -> Tensor:
    """Returns the upper triangle of the last two axes, and zeros below it."""
    return _triangle("triu", input, diagonal)


def _triangle(name: str, x: Tensor, diagonal: int) -> Tensor:
    if x.ndim < 2:
        raise RuntimeError(f"{name}: got {x.ndim} axes, expected at least 2")
    if x.dtype.is_floating_point:
        made: Tensor = getattr(ops, name)(x, diagonal)
        return made
    rows, columns = ops.unsqueeze(arange(x.shape[-2], device=x.device), 1) + diagonal, ops.unsqueeze(arange(x.shape[-1], device=x.device), 0)
    kept = columns <= rows if name == "tril" else columns >= rows
    return x & kept if x.dtype.name == "bool" else x * kept._to(None, x.dtype)


def _triangle_indices(rows: int, columns: int, offset: int, lower: bool, dtype: Any, device: Any) -> Tensor:
    from .._create import tensor, zeros

    places = [(r, c) for r in range(rows) for c in range(columns) if (c <= r + offset if lower else c >= r + offset)]
    if not places:
        return zeros(2, 0, dtype=int32 if dtype is None else dtype, device=device)
    return tensor([[p[0] for p in places], [p[1] for p in places]], dtype=int32 if dtype is None else dtype, device=device)


def tril_indices(row: int, col: int, offset: int = 0, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Returns the rows and columns of a lower triangle (2, N)."""
    return _triangle_indices(row, col, offset, True, dtype, device)


def triu_indices(row: int, col: int, offset: int = 0, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Returns the rows and columns of an upper triangle (2, N)."""
    return _triangle_indices(row, col, offset, False, dtype, device)


def unfold(input: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Returns windows of ``size`` elements of an axis, one every ``step`` elements. The elements of a window are the last axis of the result. It is a
    view if no two windows overlap, and otherwise a copy.
    """
    from .._create import tensor
    from ._index import index_select

    at = place("unfold", dimension, input.ndim)
    n = input.shape[at] if input.ndim else 1
    if not 0 <= size <= n or step < 1:
        raise RuntimeError(f"unfold: size {size} and step {step} do not fit an axis of {n} elements; expected a size up to {n} and a step of at least 1")
    if not input.ndim:
        return narrow(ops.reshape(input, (1,)), 0, 0, size)
    count = (n - size) // step + 1
    if step >= size and count * step <= n:
        parts = narrow(unflatten(narrow(input, at, 0, count * step), at, (count, step)), at + 1, 0, size)
    else:
        places = tensor([start * step + i for start in range(count) for i in range(size)], int32, input.device)
        parts = unflatten(index_select(input, at, places), at, (count, size))
    return movedim(parts, at + 1, -1)
