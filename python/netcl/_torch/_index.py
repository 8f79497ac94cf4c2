"""Functions with PyTorch's names that choose, write and sort elements by index or mask."""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Tuple

from .. import ops
from .._dtype import bool_, int32
from .._dtype import float32 as _F32
from .._methods import place
from .._netcl import Tensor, evaluate
from .._netcl import full as _full
from ..autograd import no_grad
from ..errors import UnsupportedError
from ._apply import Number, Operand, promoted


class Sorted(NamedTuple):
    """Sorted elements and their indices."""

    values: Tensor
    indices: Tensor


def _ids(name: str, index: Any) -> Tensor:
    if not isinstance(index, Tensor):
        raise TypeError(f"{name}: index is {type(index).__name__}, expected a tensor of int32")
    if index.dtype.is_floating_point or index.dtype is bool_:
        raise UnsupportedError(f"{name}: index is a tensor of {index.dtype}, expected int32")
    return index


def _in_order(name: str, dim: Any, index: Any, axis: Any) -> Tuple[int, Tensor]:
    """Accepts PyTorch's order (dim, index) and netcl's (index, axis)."""
    if isinstance(dim, Tensor):
        return (-1 if axis is None and index is None else index if axis is None else axis), _ids(name, dim)
    if not isinstance(dim, int):
        raise TypeError(f"{name}: dim is {type(dim).__name__}, expected an axis: write {name}(dim, index)")
    return dim, _ids(name, index)


def on_any_dtype(x: Tensor, call: Any) -> Tensor:
    """Runs an operation of floats on any dtype."""
    if x.dtype.is_floating_point:
        made: Tensor = call(x)
        return made
    if x.dtype is bool_:
        return evaluate("x0 != 0.0f", [call(x._to(None, "float32"))], bool_)
    # The upper and lower halves of an integer are exact as floats.
    high, low = evaluate("(float)(x0 >> 16)", [x], _F32), evaluate("(float)(x0 & 65535)", [x], _F32)
    return evaluate("((int)x0 << 16) | (int)x1" if x.dtype is int32 else "((uint)x0 << 16) | (uint)x1", [call(high), call(low)], x.dtype)


def gather(input: Tensor, dim: Any = None, index: Any = None, *, axis: Optional[int] = None) -> Tensor:
    """Chooses elements along an axis by index: ``y[i][j] = x[index[i][j]][j]`` for ``dim`` 0."""
    at, ids = _in_order("gather", dim, index, axis)
    at = place("gather", at, input.ndim)
    if ids.ndim != input.ndim:
        raise RuntimeError(f"gather: index has {ids.ndim} axes, expected {input.ndim}")
    return on_any_dtype(input, lambda x: ops.gather(x, ids, at))


def take_along_dim(input: Tensor, indices: Tensor, dim: Optional[int] = None) -> Tensor:
    """Chooses elements along an axis by indices that broadcast; without an axis, from the flattened tensor."""
    from ._shape import broadcast_shapes, ravel

    if dim is None:
        return gather(ravel(input), 0, ravel(indices))
    at = place("take_along_dim", dim, input.ndim)
    rest = broadcast_shapes(*(tuple(1 if a == at else n for a, n in enumerate(t.shape)) for t in (input, indices)))
    wide = [t.expand(tuple(t.shape[at] if a == at else n for a, n in enumerate(rest))) for t in (input, indices)]
    return gather(wide[0], at, ops.contiguous(wide[1]))


def index_select(input: Tensor, dim: Any = None, index: Any = None, *, axis: Optional[int] = None) -> Tensor:
    """Chooses places of an axis by a vector of indices."""
    at, ids = _in_order("index_select", dim, index, axis)
    at = place("index_select", at, input.ndim)
    if ids.ndim > 1:
        raise RuntimeError(f"index_select: index has {ids.ndim} axes, expected a vector")
    if not input.ndim:
        return input.clone()
    return on_any_dtype(input, lambda x: ops.index_select(x, ops.reshape(ids, (ids.size,)), at))


def take(input: Tensor, index: Tensor) -> Tensor:
    """Chooses elements of the flattened tensor."""
    from ._shape import ravel

    flat = ravel(input)
    ids = evaluate("x0 < 0 ? x0 + x1 : x0", [_ids("take", index), _full((), flat.size, int32, input.device)], int32)
    return ops.reshape(index_select(flat, 0, ops.reshape(ids, (-1,))), tuple(index.shape))


def _source(name: str, x: Tensor, ids: Tensor, src: Any, value: Any) -> Tensor:
    src = value if src is None else src
    if not isinstance(src, Tensor):
        return ops.expand(_full((), src, x.dtype, x.device), tuple(ids.shape))
    if src.dtype is not x.dtype:
        raise RuntimeError(f"{name}: src is {src.dtype}, expected {x.dtype}, that of the tensor")
    if tuple(src.shape) == tuple(ids.shape):
        return src
    for a, n in enumerate(ids.shape):
        if n > src.shape[a]:
            raise RuntimeError(f"{name}: index has shape {tuple(ids.shape)}, which exceeds src of shape {tuple(src.shape)}")
        src = ops.slice(src, a, 0, n)
    made: Tensor = src
    return made


def scatter(input: Tensor, dim: Any = None, index: Any = None, src: Any = None, *, value: Any = None, reduce: Optional[str] = None, axis: Optional[int] = None) -> Tensor:
    """Returns the tensor with elements replaced along an axis: ``y[index[i][j]][j] = src[i][j]`` for ``dim`` 0."""
    if reduce is not None:
        if reduce != "add":
            raise UnsupportedError(f"scatter: reduce={reduce!r} is not supported; write scatter_add, or scatter_reduce with reduce='sum' or 'mean'")
        return scatter_add(input, dim, index, _source("scatter", input, _ids("scatter", index), src, value))
    if isinstance(dim, Tensor):
        return ops.scatter(input, dim, index, -1 if axis is None else axis)
    at, ids = _in_order("scatter", dim, index, None)
    at, source = place("scatter", at, input.ndim), _source("scatter", input, ids, src, value)
    return _with_source(input, source, lambda x, s: ops.scatter(x, ids, s, at))


def _with_source(x: Tensor, source: Tensor, call: Any) -> Tensor:
    if x.dtype.is_floating_point:
        made: Tensor = call(x, source)
        return made
    if x.dtype is bool_:
        return evaluate("x0 != 0.0f", [call(x._to(None, _F32), source._to(None, _F32))], bool_)
    halves = [call(*(evaluate(text, [t], _F32) for t in (x, source))) for text in ("(float)(x0 >> 16)", "(float)(x0 & 65535)")]
    return evaluate("((int)x0 << 16) | (int)x1" if x.dtype is int32 else "((uint)x0 << 16) | (uint)x1", halves, x.dtype)


def scatter_add(input: Tensor, dim: Any = None, index: Any = None, src: Any = None, *, axis: Optional[int] = None) -> Tensor:
    """Returns the tensor with sums added along an axis: ``y[index[i][j]][j] += src[i][j]`` for ``dim`` 0."""
    if isinstance(dim, Tensor):
        return ops.scatter_add(input, dim, index, -1 if axis is None else axis)
    at, ids = _in_order("scatter_add", dim, index, None)
    at, source = place("scatter_add", at, input.ndim), _source("scatter_add", input, ids, src, None)
    if input.dtype.is_floating_point:
        return ops.scatter_add(input, ids, source, at)
    return _exact_sum(input, ids, source, at)


def _exact_sum(x: Tensor, ids: Tensor, source: Tensor, at: int) -> Tensor:
    """Adds integers by their halves of 12 bits, whose sums of up to 4096 terms are exact in float32."""
    if ids.shape[at] > 4096:
        raise UnsupportedError("scatter_add: more than 4096 integers along an axis are not supported; write x.float()")
    zeros, total = _full(x.shape, 0.0, _F32, x.device), x
    for shift in (0, 12, 24):
        part = ops.scatter_add(zeros, ids, evaluate(f"(float)((x0 >> {shift}) & 4095)", [source], _F32), at)
        total = total + evaluate(f"(int)x0 << {shift}", [part], int32)._to(None, x.dtype)
    return total


def scatter_reduce(input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True) -> Tensor:
    """Returns the tensor with sums or means of ``src`` by index along an axis."""
    if reduce not in ("sum", "mean"):
        raise UnsupportedError(f"scatter_reduce: reduce={reduce!r} is not supported, only 'sum' and 'mean'")
    at = place("scatter_reduce", dim, input.ndim)
    source, ones = _source("scatter_reduce", input, index, src, None), _full(index.shape, 1.0, _F32, input.device)
    counts = ops.scatter_add(_full(input.shape, 0.0, _F32, input.device), index, ones, at)
    kept = evaluate("x0 == 0.0f", [counts], bool_)
    base = input if include_self else input.masked_fill(~kept, 0.0)
    total = ops.scatter_add(base, index, source, at)
    if reduce == "sum":
        return total
    number = counts + 1.0 if include_self else evaluate("fmax(x0, 1.0f)", [counts], _F32)
    return total / number


def index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Number = 1) -> Tensor:
    """Returns the tensor with ``alpha * source`` added at the places ``index`` of an axis."""
    return scatter_add(input, dim, _spread(input, dim, index, source), source if alpha == 1 else source * alpha)


def index_copy(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """Returns the tensor with the places ``index`` of an axis replaced by ``source``."""
    return scatter(input, dim, _spread(input, dim, index, source), source)


def index_fill(input: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """Returns the tensor with a number at the places ``index`` of an axis."""
    at = place("index_fill", dim, input.ndim)
    shape = tuple(index.size if a == at else n for a, n in enumerate(input.shape))
    number = value.item() if isinstance(value, Tensor) else value
    return scatter(input, at, _spread(input, at, index, _full(shape, 0.0, input.dtype, input.device)), value=number)


def _spread(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """Expands a vector of indices to the shape of the elements that it places. Negative indices count from the end."""
    at, ids = place("index", dim, x.ndim), _ids("index", index)
    ids = evaluate("x0 < 0 ? x0 + x1 : x0", [ids, _full((), x.shape[at] if x.ndim else 1, int32, x.device)], int32)
    shaped = ops.reshape(ids, tuple(ids.size if a == at else 1 for a in range(source.ndim)))
    return ops.contiguous(ops.expand(shaped, tuple(source.shape)))


def masked_fill(input: Tensor, mask: Tensor, value: Any) -> Tensor:
    """Replaces the elements where the mask is set with a number, or with a tensor of one element."""
    if mask.dtype is not bool_:
        raise UnsupportedError(f"masked_fill: the mask is {mask.dtype}, expected bool; write mask != 0")
    if input.dtype.is_floating_point and not isinstance(value, Tensor) and len(mask.shape) <= input.ndim:
        return ops.masked_fill(input, mask, value)
    if isinstance(value, Tensor) and value.ndim:
        raise RuntimeError(f"masked_fill: value has shape {tuple(value.shape)}, expected a number or a tensor without axes")
    other = value._to(None, input.dtype) if isinstance(value, Tensor) else _full((), value, input.dtype, input.device)
    made: Tensor = where(mask, other, input)
    return made


def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """Returns the elements where the mask is set, as a vector."""
    from ._shape import broadcast_tensors

    if mask.dtype is not bool_:
        raise UnsupportedError(f"masked_select: the mask is {mask.dtype}, expected bool; write mask != 0")
    x, chosen = broadcast_tensors(input, mask)
    return x[ops.contiguous(chosen)]


def where(condition: Tensor, input: Optional[Operand] = None, other: Optional[Operand] = None) -> Any:
    """Returns ``input`` where the condition is set and ``other`` elsewhere; all broadcast. With the condition alone, returns the indices of its
    nonzero elements, one tensor for each axis.
    """
    if input is None and other is None:
        return nonzero(condition, as_tuple=True)
    if input is None or other is None:
        raise TypeError("where: expected where(condition) or where(condition, input, other)")
    if condition.dtype is not bool_:
        raise UnsupportedError(f"where: the condition is {condition.dtype}, expected bool; write condition != 0")
    from ..functions import where as choose

    if isinstance(input, Tensor) or isinstance(other, Tensor):
        a, b = promoted(input, other)
        return choose(condition, a, b)
    return choose(condition, input, other)


def nonzero(input: Tensor, *, as_tuple: bool = False) -> Any:
    """Returns the indices of nonzero elements as rows, or with ``as_tuple`` one vector for each axis. Waits for the device."""
    import numpy as np

    from .._create import tensor, zeros

    found = np.nonzero(np.atleast_1d(input.detach().numpy()))
    rows = len(found[0])
    if as_tuple:
        return tuple(tensor(a.astype(np.int32), device=input.device) if rows else zeros(0, dtype=int32, device=input.device) for a in found)
    if not rows or not input.ndim:
        return zeros(rows, input.ndim, dtype=int32, device=input.device)
    return tensor(np.stack(found, 1).astype(np.int32), device=input.device)


def argwhere(input: Tensor) -> Tensor:
    """Returns the indices of nonzero elements as rows. Waits for the device."""
    made: Tensor = nonzero(input)
    return made


def sort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = True, *, axis: Optional[int] = None) -> Sorted:
    """Sorts along an axis. Equal elements keep their order. Returns ``(values, indices)``."""
    at = place("sort", dim if axis is None else axis, input.ndim)
    if not input.ndim:
        return Sorted(input.clone(), _full((), 0, int32, input.device))
    if input.dtype.is_floating_point:
        return Sorted(*ops.sort(input, at, descending))
    if input.dtype is bool_:
        values, indices = ops.sort(input._to(None, _F32), at, descending)
        return Sorted(evaluate("x0 != 0.0f", [values], bool_), indices)
    # Two stable passes sort by the lower and then by the upper half, each exact as a float.
    order = ops.sort(evaluate("(float)(x0 & 65535)", [input], _F32), at, descending)[1]
    high = ops.gather(evaluate("(float)(x0 >> 16)", [input], _F32), order, at)
    second = ops.sort(high, at, descending)[1]
    indices = gather(order, at, second)
    return Sorted(gather(input, at, indices), indices)


def argsort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
    """Returns the indices that sort an axis."""
    return sort(input, dim, descending).indices


def msort(input: Tensor) -> Tensor:
    """Sorts along the first axis."""
    return sort(input, 0).values


def topk(input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Sorted:
    """Returns the ``k`` largest elements along an axis, or the smallest, and their indices."""
    at = place("topk", dim, input.ndim)
    n = input.shape[at] if input.ndim else 1
    if not 0 <= k <= n:
        raise RuntimeError(f"topk: k is {k}, expected 0 to {n}")
    if largest and input.ndim and at == input.ndim - 1 and input.dtype.is_floating_point and k:
        return Sorted(*ops.topk(input, k))
    ordered = sort(input, at, largest)
    return ordered if not input.ndim else Sorted(*(ops.slice(x, at, 0, k) for x in ordered))


def searchsorted(sorted_sequence: Tensor, input: Any, *, out_int32: bool = False, right: bool = False, side: Optional[str] = None) -> Tensor:
    """Returns the places (int32) where values fit into sorted rows: the first, or the last if ``right``."""
    if side not in (None, "left", "right") or (side == "left" and right):
        raise RuntimeError(f"searchsorted: side is {side!r} and right is {right}, expected 'left' or 'right'")
    right = right or side == "right"
    values = input if isinstance(input, Tensor) else _full((), input, sorted_sequence.dtype, sorted_sequence.device)
    rows = sorted_sequence if sorted_sequence.ndim > 1 else ops.reshape(sorted_sequence, (1,) * values.ndim + (-1,))
    if sorted_sequence.ndim > 1:
        if tuple(rows.shape[:-1]) != tuple(values.shape[:-1]):
            raise RuntimeError(f"searchsorted: the rows {tuple(rows.shape)} and the values {tuple(values.shape)} differ before the last axis")
        rows = ops.unsqueeze(rows, rows.ndim - 1)
    with no_grad():
        before = (rows <= ops.unsqueeze(values, values.ndim)) if right else (rows < ops.unsqueeze(values, values.ndim))
        return ops.sum(before._to(None, int32), (before.ndim - 1,), False)


def bucketize(input: Any, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """Returns the number (int32) of the interval between boundaries that contains each element."""
    return searchsorted(boundaries, input, right=right)


def bincount(input: Tensor, weights: Optional[Tensor] = None, minlength: int = 0) -> Tensor:
    """Counts the occurrences of each number in a vector, or adds their weights. Waits for the device."""
    if input.ndim != 1 or input.dtype.is_floating_point:
        raise RuntimeError(f"bincount: got {input.ndim} axes of {input.dtype}, expected a vector of int32")
    if input.size and int(input.min().item()) < 0:
        raise RuntimeError("bincount: a number is negative")
    n = max(int(input.max().item()) + 1 if input.size else 0, minlength)
    zeros = _full((n,), 0.0, _F32, input.device)
    if not input.size:
        return zeros if weights is not None else zeros._to(None, int32)
    if weights is not None:
        return ops.scatter_add(zeros, input, weights.float(), 0)
    return ops.scatter_add(zeros, input, _full(input.shape, 1.0, _F32, input.device), 0)._to(None, int32)


def histc(input: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """Counts elements in bins of equal width between ``min`` and ``max``, by default the smallest and largest elements."""
    if bins <= 0 or max < min:
        raise RuntimeError(f"histc: {bins} bins from {min} to {max}, expected at least 1, and min at most max")
    x = ops.reshape(input.detach(), (-1,))
    low, high = (float(x.amin().item()), float(x.amax().item())) if min == max and x.size else (float(min), float(max))
    low, high = (low - 1, high + 1) if low == high else (low, high)
    numbers = [_full((), v, _F32, x.device) for v in (low, high, float(bins))]
    place_of = evaluate("x0 >= x1 && x0 <= x2 ? min((int)((x0 - x1) * x3 / (x2 - x1)), (int)x3 - 1) : (int)x3", [x, *numbers], int32)
    counts = ops.scatter_add(_full((bins + 1,), 0.0, _F32, x.device), place_of, _full(x.shape, 1.0, _F32, x.device), 0)
    return ops.slice(counts, 0, 0, bins)._to(None, input.dtype)


def unique(input: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False, dim: Optional[int] = None) -> Any:
    """Returns the different elements in order; with an axis, its different places. Waits for the device."""
    import numpy as np

    found = np.unique(input.detach().numpy(), return_inverse=True, return_counts=True, axis=dim)
    shape = tuple(input.shape) if dim is None else (-1,)
    return _unique_results(found[0], found[1].reshape(shape), found[2], return_inverse, return_counts, input)


def unique_consecutive(input: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: Optional[int] = None) -> Any:
    """Returns the elements that differ from the one before. Waits for the device."""
    import numpy as np

    if dim is not None:
        raise UnsupportedError("unique_consecutive: dim is not supported; write it for each row")
    flat = input.detach().numpy().reshape(-1)
    first = np.concatenate([[True], flat[1:] != flat[:-1]]) if flat.size else np.zeros(0, bool)
    groups = np.cumsum(first) - 1
    return _unique_results(flat[first], groups.reshape(input.shape), np.bincount(groups) if flat.size else groups, return_inverse, return_counts, input)


def _unique_results(values: Any, inverse: Any, counts: Any, with_inverse: bool, with_counts: bool, like: Tensor) -> Any:
    from .._create import tensor, zeros

    def made(array: Any, dtype: Any) -> Tensor:
        return tensor(array, dtype=dtype, device=like.device) if array.size else zeros(*array.shape, dtype=dtype, device=like.device)

    results: List[Tensor] = [made(values, like.dtype)]
    results += [made(inverse, int32)] if with_inverse else []
    results += [made(counts, int32)] if with_counts else []
    return results[0] if len(results) == 1 else tuple(results)


def isin(elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    """Mask of elements that are among ``test_elements``."""
    like = elements if isinstance(elements, Tensor) else test_elements
    x, tests = (t if isinstance(t, Tensor) else _full((), t, like.dtype, like.device) for t in (elements, test_elements))
    flat = ops.reshape(tests, (1,) * x.ndim + (tests.size,))
    if not tests.size:
        return _full(x.shape, 1.0 if invert else 0.0, bool_, x.device)
    found: Tensor = (ops.unsqueeze(x, x.ndim) == flat).any(-1)
    return ~found if invert else found

