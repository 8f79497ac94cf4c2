"""Reductions, scans and statistics with PyTorch's names."""

from __future__ import annotations

import math
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple, Union

from .. import _methods, ops
from .._dtype import bool_, float32, int32
from .._host import to_dtype
from .._methods import Extremes, place
from .._netcl import Tensor, evaluate, fold_axes, is_recording
from .._netcl import full as _full
from ..errors import UnsupportedError
from ..functions import where
from ._apply import Dims, dims_of, floating, numeric
from ._pointwise import isnan, maximum, minimum


class MinMax(NamedTuple):
    """Smallest and largest elements."""

    min: Tensor
    max: Tensor


class VarMean(NamedTuple):
    """Variance, or standard deviation, and mean."""

    var: Tensor
    mean: Tensor


def _typed(x: Tensor, dtype: Any) -> Tensor:
    return x if dtype is None else x._to(None, to_dtype(dtype))


def _one(dim: Any, axis: Any) -> Any:
    return axis if dim is None else dim


def sum(input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None, axis: Dims = None, keepdims: bool = False, keep: bool = False) -> Tensor:
    """Sums over axes [default: all]. The sum of integers is exact, in int32. The sum of a mask is its count."""
    axes = dims_of("sum", input, _one(dim, axis))
    return ops.sum(numeric(_typed(input, dtype)), axes, keepdim or keepdims or keep) if axes else numeric(_typed(input, dtype))


def mean(input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None, axis: Dims = None, keepdims: bool = False, keep: bool = False) -> Tensor:
    """Computes the mean of floats over axes [default: all]."""
    x = _typed(input, dtype)
    if not x.dtype.is_floating_point:
        raise UnsupportedError(f"mean: got a tensor of {x.dtype}; write x.float().mean()")
    axes = dims_of("mean", x, _one(dim, axis))
    return ops.mean(x, axes, keepdim or keepdims or keep) if axes else x


def prod(input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None, axis: Dims = None, keepdims: bool = False) -> Tensor:
    """Computes the product over an axis [default: all]. The gradient is exact where elements are 0."""
    x, dim, kept = numeric(_typed(input, dtype)), _one(dim, axis), keepdim or keepdims
    if dim is not None and not isinstance(dim, int):
        raise UnsupportedError(f"prod: got the axes {dim!r}, expected one; write x.prod(a).prod(b)")
    axes = dims_of("prod", x, dim)
    if not (x.requires_grad and is_recording()):
        return fold_axes("prod", x, axes, kept) if axes else x
    y = ops.permute(x, tuple(a for a in range(x.ndim) if a not in axes) + axes)
    rest = tuple(y.shape[: x.ndim - len(axes)])
    y = ops.reshape(y, (*rest, math.prod(y.shape[len(rest) :])))
    while y.shape[-1] > 1:
        half = y.shape[-1] // 2
        made = y[..., :half] * y[..., half : 2 * half]
        y = ops.cat([made, y[..., 2 * half :]], -1) if y.shape[-1] % 2 else made
    return ops.reshape(y, tuple(1 if a in axes else n for a, n in enumerate(x.shape)) if kept else rest)


def _reduced(name: str) -> Any:
    def function(input: Tensor, dim: Dims = None, keepdim: bool = False, *, axis: Dims = None, keepdims: bool = False) -> Tensor:
        axes = dims_of(name, input, _one(dim, axis))
        return fold_axes(name, input.detach(), axes, keepdim or keepdims) if axes else evaluate("x0 != 0", [input.detach()], bool_)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Returns a mask that is set if {name} elements along the axes are nonzero."
    return function


any: Callable[..., Tensor] = _reduced("any")
all: Callable[..., Tensor] = _reduced("all")


def amax(input: Tensor, dim: Dims = (), keepdim: bool = False, *, axis: Dims = None, keepdims: bool = False, keep: bool = False) -> Tensor:
    """Computes the maximum over axes [default: all]. NaN if an element is NaN. Equal elements share the gradient."""
    return _methods.amax(input, dims_of("amax", input, dim if axis is None else axis), keepdim or keepdims or keep)


def amin(input: Tensor, dim: Dims = (), keepdim: bool = False, *, axis: Dims = None, keepdims: bool = False, keep: bool = False) -> Tensor:
    """Computes the minimum over axes [default: all]. NaN if an element is NaN. Equal elements share the gradient."""
    return _methods.amin(input, dims_of("amin", input, dim if axis is None else axis), keepdim or keepdims or keep)


def max(input: Tensor, dim: Any = None, keepdim: bool = False, *, other: Optional[Tensor] = None, axis: Any = None, keepdims: bool = False, keep: bool = False) -> Any:
    """Returns the maximum of all elements. With an axis, returns ``(values, indices)`` along it, and with a tensor the larger elements of both."""
    pair = other if other is not None else dim
    return maximum(input, pair) if isinstance(pair, Tensor) else _methods.max_(input, _one(dim, axis), keepdim or keepdims or keep)


def min(input: Tensor, dim: Any = None, keepdim: bool = False, *, other: Optional[Tensor] = None, axis: Any = None, keepdims: bool = False, keep: bool = False) -> Any:
    """Returns the minimum of all elements. With an axis, returns ``(values, indices)`` along it, and with a tensor the smaller elements of both."""
    pair = other if other is not None else dim
    return minimum(input, pair) if isinstance(pair, Tensor) else _methods.min_(input, _one(dim, axis), keepdim or keepdims or keep)


def aminmax(input: Tensor, *, dim: Optional[int] = None, keepdim: bool = False) -> MinMax:
    """Returns the smallest and largest elements, along an axis if one is given."""
    if dim is not None and not isinstance(dim, int):
        raise TypeError(f"aminmax: got the axes {dim!r}, expected one; write x.amin(dim) and x.amax(dim)")
    return MinMax(amin(input, dim if dim is not None else (), keepdim), amax(input, dim if dim is not None else (), keepdim))


def _no_mask(name: str, x: Tensor) -> None:
    if x.dtype is bool_:
        raise UnsupportedError(f"{name}: got a mask; write x.int().{name}()")


def argmax(input: Tensor, dim: Optional[int] = None, keepdim: bool = False, *, axis: Optional[int] = None) -> Tensor:
    """Returns the indices (int32) of the largest elements, the first of equal ones."""
    _no_mask("argmax", input)
    return _methods.argmax(input, _one(dim, axis), keepdim)


def argmin(input: Tensor, dim: Optional[int] = None, keepdim: bool = False, *, axis: Optional[int] = None) -> Tensor:
    """Returns the indices (int32) of the smallest elements, the first of equal ones."""
    _no_mask("argmin", input)
    return _methods.argmin(input, _one(dim, axis), keepdim)


def var(input: Tensor, dim: Any = None, unbiased: Optional[bool] = None, keepdim: bool = False, *, correction: Optional[float] = None, axis: Dims = None) -> Tensor:
    """Computes the variance over axes, divided by the number of elements minus ``correction`` [default: 1]. ``unbiased=False`` is correction 0."""
    return _methods.var(input, dim, unbiased, keepdim, dim=None if axis is None else dims_of("var", input, axis), correction=correction)


def std(input: Tensor, dim: Any = None, unbiased: Optional[bool] = None, keepdim: bool = False, *, correction: Optional[float] = None, axis: Dims = None) -> Tensor:
    """Computes the standard deviation, the square root of the variance."""
    return _methods.std(input, dim, unbiased, keepdim, dim=None if axis is None else dims_of("std", input, axis), correction=correction)


def _averaged(input: Tensor, dim: Any, keepdim: bool) -> Tensor:
    return mean(input, None if isinstance(dim, bool) else dim, keepdim)


def var_mean(input: Tensor, dim: Any = None, unbiased: Optional[bool] = None, keepdim: bool = False, *, correction: Optional[float] = None) -> VarMean:
    """Returns variance and mean."""
    return VarMean(var(input, dim, unbiased, keepdim, correction=correction), _averaged(input, dim, keepdim))


def std_mean(input: Tensor, dim: Any = None, unbiased: Optional[bool] = None, keepdim: bool = False, *, correction: Optional[float] = None) -> VarMean:
    """Returns standard deviation and mean."""
    return VarMean(std(input, dim, unbiased, keepdim, correction=correction), _averaged(input, dim, keepdim))


def _needed(name: str, dim: Any, axis: Any = None) -> Any:
    """Returns the axis of a function that does not have a default one."""
    if dim is None and axis is None:
        raise TypeError(f"{name}: dim is missing; write {name}(x, dim=-1) for the last axis")
    return _one(dim, axis)


def logsumexp(input: Tensor, dim: Dims = None, keepdim: bool = False, *, axis: Dims = None) -> Tensor:
    """Computes ``log(sum(exp(x)))`` over one or several axes, which must be given."""
    dim = _needed("logsumexp", dim, axis)
    x, axes = floating(input), dims_of("logsumexp", input, dim)
    y = ops.permute(x, tuple(a for a in range(x.ndim) if a not in axes) + axes)
    rest = tuple(y.shape[: x.ndim - len(axes)])
    y = ops.logsumexp(ops.reshape(y, (*rest, math.prod(y.shape[len(rest) :]))), -1)
    return ops.reshape(y, tuple(1 if a in axes else n for a, n in enumerate(x.shape))) if keepdim else y


def softmax(input: Tensor, dim: Optional[int] = None, dtype: Any = None, *, axis: Optional[int] = None) -> Tensor:
    """Computes ``exp(x) / sum(exp(x))`` over an axis, which must be given."""
    at, x = place("softmax", _needed("softmax", dim, axis), input.ndim), _typed(input, dtype)
    return ops.softmax(x, at) if x.ndim else x * 0.0 + 1.0


def log_softmax(input: Tensor, dim: Optional[int] = None, dtype: Any = None, *, axis: Optional[int] = None) -> Tensor:
    """Computes ``x - log(sum(exp(x)))`` over an axis, which must be given."""
    at, x = place("log_softmax", _needed("log_softmax", dim, axis), input.ndim), _typed(input, dtype)
    return ops.log_softmax(x, at) if x.ndim else x * 0.0


def _without_nan(x: Tensor) -> Tensor:
    return x.masked_fill(isnan(x), 0.0) if x.dtype.is_floating_point else x


def nansum(input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """Sums over axes, counting NaN as 0."""
    return sum(_without_nan(input), dim, keepdim, dtype=dtype)


def nanmean(input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """Computes the mean of the elements that are not NaN."""
    x = _typed(input, dtype)
    if not x.dtype.is_floating_point:
        raise UnsupportedError(f"nanmean: got a tensor of {x.dtype}; write x.float()")
    return sum(_without_nan(x), dim, keepdim) / sum(~isnan(x), dim, keepdim)


def count_nonzero(input: Tensor, dim: Dims = None) -> Tensor:
    """Counts the elements that are nonzero."""
    return sum(evaluate("x0 != 0", [input.detach()], bool_), dim)


def _scan_axis(name: str, input: Tensor, dim: int) -> Tuple[Tensor, int]:
    return input, place(name, dim, input.ndim)


def cumsum(input: Tensor, dim: Optional[int] = None, *, dtype: Any = None, axis: Optional[int] = None) -> Tensor:
    """Computes cumulative sums along an axis, which must be given."""
    x, at = _scan_axis("cumsum", numeric(_typed(input, dtype)), _needed("cumsum", dim, axis))
    if not x.ndim or not x.size:
        return x.clone()
    if x.dtype.is_floating_point:
        return ops.cumsum(x, at)
    return _scanned(x, at, lambda a, b: a + b)


def _shifted(x: Tensor, at: int, by: int) -> Tuple[Tensor, Tensor, Tensor]:
    """Returns the first elements, the rest, and the elements that precede each of the rest by ``by``."""
    n = x.shape[at]
    return ops.slice(x, at, 0, by), ops.slice(x, at, by, n), ops.slice(x, at, 0, n - by)


def _scanned(x: Tensor, at: int, join: Any) -> Tensor:
    by = 1
    while by < x.shape[at]:
        first, rest, before = _shifted(x, at, by)
        x = ops.cat([first, join(rest, before)], at)
        by *= 2
    return x


def cumprod(input: Tensor, dim: Optional[int] = None, *, dtype: Any = None, axis: Optional[int] = None) -> Tensor:
    """Computes cumulative products along an axis, which must be given."""
    x, at = _scan_axis("cumprod", numeric(_typed(input, dtype)), _needed("cumprod", dim, axis))
    return _scanned(x, at, lambda a, b: a * b) if x.ndim else x.clone()


def logcumsumexp(input: Tensor, dim: int) -> Tensor:
    """Computes ``log(cumsum(exp(x)))`` along an axis."""
    from ._pointwise import logaddexp

    x, at = _scan_axis("logcumsumexp", floating(input), dim)
    return _scanned(x, at, logaddexp) if x.ndim else x.clone()


def _extremes(name: str, sign: str, input: Tensor, dim: int) -> Extremes:
    from .._create import arange

    x, at = _scan_axis(name, input, dim)
    if not x.ndim:
        return Extremes(x.clone(), _full((), 0, int32, x.device))
    values, n = numeric(x.detach()), x.shape[at]
    places = ops.expand(ops.reshape(arange(n, dtype="int32", device=x.device), [n if a == at else 1 for a in range(x.ndim)]), tuple(x.shape))
    by = 1
    while by < n:
        (v0, v, before), (i0, i, earlier) = _shifted(values, at, by), _shifted(places, at, by)
        test = f"(x1 {sign} x0 && x0 == x0) || (x1 != x1 && x0 == x0)"
        taken = evaluate(f"{test} ? x3 : x2", [v, before, i, earlier], int32)
        values = ops.cat([v0, evaluate(f"{test} ? x1 : x0", [v, before], values.dtype)], at)
        places = ops.cat([i0, taken], at)
        by *= 2
    return Extremes(ops.gather(x, places, at) if x.dtype.is_floating_point else values, places)


def cummax(input: Tensor, dim: int) -> Extremes:
    """Returns cumulative maxima along an axis, and their indices, the last of equal ones."""
    return _extremes("cummax", ">", input, dim)


def cummin(input: Tensor, dim: int) -> Extremes:
    """Returns cumulative minima along an axis, and their indices, the last of equal ones."""
    return _extremes("cummin", "<", input, dim)


def _last(x: Tensor, dim: Optional[int], keepdim: bool, name: str) -> Tuple[Tensor, int]:
    if dim is None:
        return ops.reshape(x, (-1,)), 0
    return x, place(name, dim, x.ndim)


def kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Extremes:
    """Returns the k-th smallest elements along an axis, counted from 1, and their indices."""
    at = place("kthvalue", dim, input.ndim)
    if not input.ndim:
        return Extremes(input.clone(), _full((), 0, int32, input.device))
    if not 1 <= k <= input.shape[at]:
        raise RuntimeError(f"kthvalue: k is {k}, expected 1 to {input.shape[at]}")
    values, indices = _sorted(input, at)
    made = (ops.slice(t, at, k - 1, k) for t in (values, indices))
    return Extremes(*(t if keepdim else ops.squeeze(t, at) for t in made))


def _sorted(x: Tensor, at: int) -> Any:
    from ._index import sort

    return sort(x, at)


def median(input: Tensor, dim: Optional[int] = None, keepdim: bool = False) -> Any:
    """Returns the median, the lower of two. With an axis, returns ``(values, indices)`` along it. NaN if an element is NaN."""
    flat, at = _last(input, dim, keepdim, "median")
    if not flat.ndim:
        return Extremes(input.clone(), _full((), 0, int32, input.device))
    n = flat.shape[at]
    found = kthvalue(flat, (n + 1) // 2, at, keepdim)
    if not input.dtype.is_floating_point or not bool(isnan(input).any().item()):
        return found if dim is not None else found.values
    # A row with a NaN has its first NaN as the median.
    spoiled = isnan(flat)
    row, where = any(spoiled, at, keepdim), argmax(spoiled._to(None, "float32"), at, keepdim)
    indices = evaluate("x0 ? x1 : x2", [row, where, found.indices], int32)
    values = ops.gather(flat, indices if keepdim else ops.unsqueeze(indices, at), at)
    values = values if keepdim else ops.squeeze(values, at)
    return values if dim is None else Extremes(values, indices)


def quantile(input: Tensor, q: Union[float, Tensor, Sequence[float]], dim: Optional[int] = None, keepdim: bool = False, *, interpolation: str = "linear") -> Tensor:
    """Computes quantiles by linear interpolation between neighbors. Several quantiles are on a new first axis."""
    if interpolation not in ("linear", "lower", "higher", "nearest", "midpoint"):
        raise ValueError(f"quantile: interpolation is {interpolation!r}, expected linear, lower, higher, nearest or midpoint")
    given: Any = q.reshape(-1).tolist() if isinstance(q, Tensor) else q if isinstance(q, (list, tuple)) else [q]
    shares: List[float] = [float(v) for v in given]
    if [v for v in shares if not 0 <= v <= 1]:
        raise RuntimeError(f"quantile: q is {shares}, expected shares from 0 to 1")
    flat, at = _last(input, dim, keepdim, "quantile")
    values, n, made = _sorted(flat, at)[0], flat.shape[at], []
    spoiled = any(isnan(flat), at, True)
    for share in shares:
        rank = share * (n - 1)
        low, high = math.floor(rank), math.ceil(rank)
        weight = {"linear": rank - low, "lower": 0.0, "higher": 1.0, "midpoint": 0.5, "nearest": float(round(rank) - low)}[interpolation]
        first, second = ops.slice(values, at, low, low + 1), ops.slice(values, at, high, high + 1)
        y = (first + (second - first) * weight if high > low else first).masked_fill(spoiled, math.nan)
        made.append(y if keepdim else ops.squeeze(y, at))
    if keepdim and dim is None:
        made = [ops.reshape(y, (1,) * input.ndim) for y in made]
    several = q.ndim > 0 if isinstance(q, Tensor) else isinstance(q, (list, tuple))
    return ops.stack(made, 0) if several else made[0]


def norm(input: Tensor, p: Any = "fro", dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    """Computes the vector norm of order ``p`` over axes [default: all]; ``"fro"`` is order 2."""
    if p == "nuc":
        raise UnsupportedError("norm: the nuclear norm is not supported; write numpy.linalg.norm(x.numpy(), 'nuc')")
    return vector_norm(_typed(input, dtype), 2.0 if p in ("fro", None) else float(p), dim, keepdim)


def vector_norm(x: Tensor, ord: float = 2.0, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """Computes the vector norm of order ``ord`` over axes [default: all]. Its gradient is 0 where the norm is 0. Sums and powers are float32."""
    x = _typed(x, dtype)
    if not x.dtype.is_floating_point:
        raise UnsupportedError(f"norm: got a tensor of {x.dtype}; write x.float()")
    axes = dims_of("norm", x, dim)
    if ord == 0:
        nonzero = (x.detach() != 0)._to(None, x.dtype)
        return sum(nonzero, axes, keepdim) if axes else nonzero
    if not axes or ord in (1, math.inf, -math.inf):
        size = ops.abs(x)
        return size if not axes else sum(size, axes, keepdim) if ord == 1 else (amax if ord > 0 else amin)(size, axes, keepdim)
    wide, limit = x._to(None, float32), 0.0 if ord > 0 else math.inf
    powers = ops.square(wide) if ord == 2 else _power(ops.abs(wide), float(ord), 0.0, limit)
    return _power(ops.sum(powers, axes, keepdim), 1.0 / ord, limit, 0.0)._to(None, x.dtype)


def _power(x: Tensor, p: float, edge: float, value: float) -> Tensor:
    """Computes the power of numbers that are not negative. At ``edge`` it is ``value``, with a gradient of 0."""
    needs_edge = x.requires_grad and is_recording()
    at = x == edge if needs_edge else x
    inner = where(at, 1.0, x) if needs_edge else x
    made = ops.sqrt(inner) if p == 0.5 else ops.pow_scalar(inner, p)
    return where(at, value, made) if needs_edge else made


def dist(input: Tensor, other: Tensor, p: float = 2.0) -> Tensor:
    """Computes the norm of the difference."""
    return vector_norm(input - other, float(p))


def trace(input: Tensor) -> Tensor:
    """Sums the diagonal of a matrix."""
    from ._shape import diagonal

    if input.ndim != 2:
        raise RuntimeError(f"trace: got shape {tuple(input.shape)}, expected a matrix")
    return sum(diagonal(input))


def diff(input: Tensor, n: int = 1, dim: int = -1, prepend: Optional[Tensor] = None, append: Optional[Tensor] = None) -> Tensor:
    """Computes differences of neighbors along an axis, ``n`` times."""
    at = place("diff", dim, input.ndim)
    parts = [t for t in (prepend, input, append) if t is not None]
    x = ops.cat(parts, at) if len(parts) > 1 else input
    for _ in range(n):
        if x.shape[at] < 2:
            return ops.slice(x, at, 0, 0)
        _, rest, before = _shifted(x, at, 1)
        x = rest ^ before if x.dtype is bool_ else rest - before
    return x


def mode(input: Tensor, dim: int = -1, keepdim: bool = False) -> Extremes:
    """Refuses: write torch.unique(x, return_counts=True) and take the value of the largest count."""
    raise UnsupportedError("mode: not supported; write torch.unique(x, return_counts=True) and take the value of the largest count")

