"""Tensor methods that combine other operations."""

from __future__ import annotations

import math
from typing import Any, Iterator, List, NamedTuple, Optional, Tuple, Union

from . import _host, _inplace, _pool, _text, ops
from ._dtype import DTYPES, DType, bool_, float16, float32, int32
from ._netcl import Device, Op, Tensor, evaluate, fold_axes, is_recording
from ._netcl import full as _full
from ._state import state
from .errors import IndexOutOfBounds, ShapeError, UnsupportedError


Axes = Union[None, int, Tuple[int, ...], List[int]]



def _ints(sizes: Tuple[Any, ...]) -> Tuple[int, ...]:
    return tuple(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else tuple(sizes)


def _axes(x: Tensor, axis: Axes, dim: Axes) -> Tuple[int, ...]:
    axis = dim if axis is None else axis
    if axis is None:
        return ()
    return (axis,) if isinstance(axis, int) else tuple(axis)


def place(name: str, axis: int, ndim: int) -> int:
    """Returns an axis counted from the front. An axis out of range is an error."""
    n = max(ndim, 1)
    if not -n <= axis < n:
        raise IndexOutOfBounds(f"{name}: axis {axis} is out of range, expected {-n} to {n - 1}")
    return axis % n


def _kept(keepdim: bool, keepdims: bool, keep: bool) -> bool:
    return keepdim or keepdims or keep


def dtype(self: Tensor) -> DType:
    """Storage type of the elements."""
    return DTYPES[self._dtype]


def to(self: Tensor, *args: Any, device: Any = None, dtype: Any = None) -> Tensor:
    """Moves the tensor to another device, off the tape, or converts it to another dtype."""
    for arg in args:
        if isinstance(arg, Device):
            device = arg
        elif isinstance(arg, Tensor):
            device, dtype = arg.device, arg.dtype
        elif isinstance(arg, str) and arg not in DTYPES:
            device = arg
        else:
            dtype = arg
    return self._to(device, dtype)


def reshape(self: Tensor, *shape: Any) -> Tensor:
    """Returns the same elements in another shape. One size may be -1 and is then inferred."""
    return ops.reshape(self, _ints(shape))


def view(self: Tensor, *shape: Any) -> Tensor:
    """Returns the same memory in another shape. If this is not possible, it is an error."""
    sizes = _ints(shape)
    if -1 in sizes and self.size:
        known = -math.prod(sizes)
        sizes = tuple(self.size // known if n == -1 and known > 0 else n for n in sizes)
    # A graph of operations has only reshape.
    if not self.size or self.is_contiguous() or state.capturing or math.prod(sizes) != self.size or min(sizes, default=1) < 1:
        return ops.reshape(self, _ints(shape))
    made = self._view(sizes)
    if made is None:
        raise ShapeError(f"view: a tensor of shape {tuple(self.shape)} and strides {tuple(self.strides)} needs a copy for the shape {sizes}; write x.reshape(…)")
    return made


def flatten(self: Tensor, start: int = 0, end: int = -1) -> Tensor:
    """Merges axes ``start`` to ``end`` into one."""
    start, end = place("flatten", start, self.ndim), place("flatten", end, self.ndim)
    if start > end:
        raise ValueError(f"flatten: axis {start} is after axis {end}")
    sizes = self.shape or (1,)
    middle = 1
    for size in sizes[start : end + 1]:
        middle *= size
    return ops.reshape(self, (*sizes[:start], middle, *sizes[end + 1 :]))


def permute(self: Tensor, *axes: Any) -> Tensor:
    """Reorders the axes."""
    return ops.permute(self, _ints(axes))


def transpose(self: Tensor, a: int = -2, b: int = -1) -> Tensor:
    """Swaps two axes."""
    return ops.transpose(self, a, b)


def reverse_axes(self: Tensor) -> Tensor:
    """Reverses the order of the axes."""
    return ops.permute(self, tuple(range(self.ndim))[::-1])


def unsqueeze(self: Tensor, axis: int) -> Tensor:
    """Inserts an axis of size 1 before ``axis``."""
    return ops.unsqueeze(self, axis)


def squeeze(self: Tensor, axis: Axes = None) -> Tensor:
    """Removes axes of size 1 [default: all of them]. Axes of other sizes are kept."""
    given = range(self.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
    gone = {place("squeeze", a, self.ndim) for a in given}
    return ops.reshape(self, tuple(n for a, n in enumerate(self.shape) if n != 1 or a not in gone))


def expand(self: Tensor, *shape: Any) -> Tensor:
    """Repeats the tensor along axes of size 1 and new leading axes, without a copy. -1 keeps a size."""
    sizes = _ints(shape)
    new = len(sizes) - self.ndim
    if -1 in sizes[: max(new, 0)]:
        raise ShapeError(f"expand: the size -1 keeps a size, but the new axes of {sizes} do not have one")
    return ops.expand(self, tuple(self.shape[i - new] if n == -1 else n for i, n in enumerate(sizes)))


def sum_(self: Tensor, axis: Axes = None, keepdim: bool = False, *, dim: Axes = None, keepdims: bool = False, keep: bool = False) -> Tensor:
    """Sums over axes [default: all]. The sum of integers is exact. The sum of a mask is its count."""
    self = self._to(None, int32) if self.dtype is bool_ else self
    return ops.sum(self, _axes(self, axis, dim), _kept(keepdim, keepdims, keep))


def mean(self: Tensor, axis: Axes = None, keepdim: bool = False, *, dim: Axes = None, keepdims: bool = False, keep: bool = False) -> Tensor:
    """Computes the mean over axes [default: all]."""
    return ops.mean(self, _axes(self, axis, dim), _kept(keepdim, keepdims, keep))


class Extremes(NamedTuple):
    """Largest or smallest elements along an axis and their indices."""

    values: Tensor
    indices: Tensor


def amax(self: Tensor, axis: Axes = None, keepdim: bool = False, *, dim: Axes = None, keepdims: bool = False, keep: bool = False) -> Tensor:
    """Computes the maximum over axes [default: all]. NaN if an element is NaN. Equal elements share the gradient."""
    return ops.max(self, _axes(self, axis, dim), _kept(keepdim, keepdims, keep))


def amin(self: Tensor, axis: Axes = None, keepdim: bool = False, *, dim: Axes = None, keepdims: bool = False, keep: bool = False) -> Tensor:
    """Computes the minimum over axes [default: all]. NaN if an element is NaN. Equal elements share the gradient."""
    if not self.dtype.is_floating_point:
        return fold_axes("min", self, _axes(self, axis, dim), _kept(keepdim, keepdims, keep))
    return -amax(-self, axis, keepdim, dim=dim, keepdims=keepdims, keep=keep)


def _extremes(name: str, x: Tensor, axis: Any, kept: bool) -> Any:
    whole, indices, pairs = (amax, argmax, ops.maximum) if name == "max" else (amin, argmin, ops.minimum)
    if isinstance(axis, Tensor):
        return pairs(x, axis)
    if axis is None:
        return whole(x, None, kept)
    if not isinstance(axis, int):
        raise TypeError(f"{name}: got the axes {axis!r}, expected one; write x.a{name}({axis!r}) for several")
    axis = place(name, axis, x.ndim)
    if x.ndim == 0:
        return Extremes(whole(x), indices(x))
    found = indices(x, axis, True)
    values = ops.gather(x, found, axis) if x.dtype.is_floating_point else whole(x, axis, True)
    return Extremes(*(t if kept else ops.squeeze(t, axis) for t in (values, found)))


def max_(self: Tensor, axis: Any = None, keepdim: bool = False, *, dim: Any = None, keepdims: bool = False, keep: bool = False) -> Any:
    """Returns the maximum of all elements. With an axis, returns ``(values, indices)`` along it, and with a tensor the larger elements of both.
    ``amax`` returns values over any axes.
    """
    return _extremes("max", self, dim if axis is None else axis, _kept(keepdim, keepdims, keep))


def min_(self: Tensor, axis: Any = None, keepdim: bool = False, *, dim: Any = None, keepdims: bool = False, keep: bool = False) -> Any:
    """Returns the minimum of all elements. With an axis, returns ``(values, indices)`` along it, and with a tensor the smaller elements of both.
    ``amin`` returns values over any axes.
    """
    return _extremes("min", self, dim if axis is None else axis, _kept(keepdim, keepdims, keep))


def prod(self: Tensor, axis: Axes = None, keepdim: bool = False, *, dim: Axes = None, keepdims: bool = False) -> Tensor:
    """Computes the product over axes [default: all]. It does not have a gradient."""
    return fold_axes("prod", _ungraded("prod", self), _axes(self, axis, dim), _kept(keepdim, keepdims, False))


def any_(self: Tensor, axis: Axes = None, keepdim: bool = False, *, dim: Axes = None, keepdims: bool = False) -> Tensor:
    """Returns a mask that is set if any element along the axes is nonzero."""
    return fold_axes("any", self, _axes(self, axis, dim), _kept(keepdim, keepdims, False))


def all_(self: Tensor, axis: Axes = None, keepdim: bool = False, *, dim: Axes = None, keepdims: bool = False) -> Tensor:
    """Returns a mask that is set if all elements along the axes are nonzero."""
    return fold_axes("all", self, _axes(self, axis, dim), _kept(keepdim, keepdims, False))


def _ungraded(name: str, x: Tensor) -> Tensor:
    if x.requires_grad and is_recording():
        raise UnsupportedError(f"{name} does not have a gradient; call it on x.detach()")
    return x


def var(
    self: Tensor,
    axis: Any = None,
    unbiased: Optional[bool] = None,
    keepdim: bool = False,
    *,
    dim: Axes = None,
    keepdims: bool = False,
    correction: Optional[float] = None,
) -> Tensor:
    """Computes the variance over axes: squared differences from the mean, divided by the number of elements minus ``correction``. ``unbiased`` is
    correction 1, the default.
    """
    if isinstance(axis, bool):
        axis, unbiased = None, axis
    if unbiased is not None and not isinstance(unbiased, bool):
        raise TypeError(f"var: unbiased is {unbiased!r}, expected a bool; write correction={unbiased!r}")
    if unbiased is not None and correction is not None:
        raise TypeError("var: unbiased and correction are both given, expected one of them")
    correction = correction if correction is not None else 1 if unbiased is None else int(unbiased)
    axes = _axes(self, axis, dim)
    n = 1
    for a in axes or range(self.ndim):
        n *= self.shape[a]
    apart = self - mean(self, axes, True)
    total = sum_(apart * apart, axes, _kept(keepdim, keepdims, False))
    if n > correction:
        return total / (n - correction)
    # The sum of the squares is 0 then, so this gives NaN, as 0 / 0 does.
    return total / 0.0


def std(
    self: Tensor,
    axis: Any = None,
    unbiased: Optional[bool] = None,
    keepdim: bool = False,
    *,
    dim: Axes = None,
    keepdims: bool = False,
    correction: Optional[float] = None,
) -> Tensor:
    """Computes the standard deviation, the square root of the variance."""
    return var(self, axis, unbiased, keepdim, dim=dim, keepdims=keepdims, correction=correction).sqrt()


def roll(self: Tensor, shifts: Axes, dims: Axes = None, *, axis: Axes = None) -> Tensor:
    """Moves elements along axes; those that leave an axis reappear at its other end. Without ``dims``, the flattened tensor is rolled."""
    dims = axis if dims is None else dims
    amounts = (shifts,) if isinstance(shifts, int) else tuple(shifts or ())
    if dims is None:
        if len(amounts) != 1:
            raise ValueError(f"roll: got {len(amounts)} shifts without dims, expected one")
        return ops.reshape(ops.roll(ops.reshape(self, (-1,)), amounts[0], 0), tuple(self.shape))
    axes = (dims,) if isinstance(dims, int) else tuple(dims)
    if len(axes) != len(amounts):
        raise ValueError(f"roll: got {len(amounts)} shifts for {len(axes)} axes")
    for amount, a in zip(amounts, axes):
        self = ops.roll(self, amount, place("roll", a, self.ndim))
    return self


def multinomial(self: Tensor, num_samples: int, replacement: bool = False, *, seed: Optional[int] = None) -> Tensor:
    """Draws indices of each row of the last axis. The probability of an index is proportional to its weight."""
    if not replacement and num_samples > 1:
        raise UnsupportedError("multinomial: drawing several indices without replacement is not supported; pass replacement=True")
    return ops.multinomial(self, num_samples, seed=seed)


def argmax(self: Tensor, axis: Optional[int] = None, keepdim: bool = False, *, dim: Optional[int] = None) -> Tensor:
    """Returns the indices (int32) of the largest elements along an axis, or in the flattened tensor. The first of equal elements wins."""
    axis = dim if axis is None else axis
    axis = axis if axis is None else place("argmax", axis, self.ndim)
    if self.ndim == 0:
        return _full((), 0, int32, self.device)
    if not self.dtype.is_floating_point:
        return _arg_integer("max", self, axis, keepdim)
    if axis is None:
        found = ops.argmax(reshape(self, -1), 0)
        return ops.reshape(found, (1,) * self.ndim) if keepdim else found
    found = ops.argmax(self, axis)
    return ops.unsqueeze(found, axis) if keepdim else found


def argmin(self: Tensor, axis: Optional[int] = None, keepdim: bool = False, *, dim: Optional[int] = None) -> Tensor:
    """Returns the indices (int32) of the smallest elements."""
    if not self.dtype.is_floating_point and self.ndim:
        return _arg_integer("min", self, dim if axis is None else axis, keepdim)
    return argmax(-self, axis, keepdim, dim=dim)


def _arg_integer(how: str, x: Tensor, axis: Optional[int], keepdim: bool) -> Tensor:
    """Returns the first index of the largest or smallest integers."""
    ndim = x.ndim
    if axis is None:
        found = _arg_integer(how, reshape(x, -1), 0, False)
        return ops.reshape(found, (1,) * ndim) if keepdim else found
    axis = place("arg" + how, axis, ndim)
    from ._create import arange

    n = x.shape[axis]
    places = ops.reshape(arange(n, dtype="int32", device=x.device), [n if a == axis else 1 for a in range(x.ndim)])
    best = fold_axes(how, x, (axis,), True)
    return fold_axes("min", evaluate(f"x0 == x1 ? x2 : {n}", [x, best, places], "int32"), (axis,), keepdim)


def where(self: Tensor, mask: Tensor, other: Union[Tensor, float]) -> Tensor:
    """Returns these elements where the mask is nonzero, and ``other`` elsewhere."""
    from .functions import where as choose

    return choose(mask, self, other)


def float_(self: Tensor) -> Tensor:
    """Converts to float32."""
    return self._to(None, float32)


def half(self: Tensor) -> Tensor:
    """Converts to float16."""
    return self._to(None, float16)


def requires_grad_(self: Tensor, requires_grad: bool = True) -> Tensor:
    """Makes the tensor a leaf that collects its gradient, or stops this."""
    self.requires_grad = requires_grad
    return self


def iterate(self: Tensor) -> Iterator[Tensor]:
    """Iterates over the first axis."""
    return (self[i] for i in range(len(self)))


def truth(self: Tensor) -> bool:
    """Returns whether the only element is nonzero."""
    if self.size != 1:
        raise ValueError(f"the truth value of a tensor of shape {tuple(self.shape)} is not defined; expected one element")
    return bool(self.item())


def index_(self: Tensor) -> int:
    """Returns the only element of an integer tensor, for Python's indices and ranges."""
    if self.dtype.is_floating_point or self.dtype is bool_:
        raise TypeError(f"a tensor of {self.dtype.name} cannot be an index; expected int32 or uint32")
    return int(self.item())


def namespace(self: Tensor, *, api_version: Optional[str] = None) -> Any:
    """Returns the namespace of the Python array API, version 2023.12."""
    from . import array_api

    if api_version not in (None, "2021.12", "2022.12", "2023.12"):
        raise ValueError(f"array API version {api_version!r} is not supported; expected 2023.12")
    return array_api


def attach() -> None:
    """Adds the methods to the class: those of this file, then each operation whose first input is a tensor."""
    own = {
        "dtype": property(dtype),
        "T": property(reverse_axes),
        "mT": property(lambda self: transpose(self)),
        "to": to, "cast": lambda self, dtype: self._to(None, dtype), "float": float_, "half": half,
        "cpu": lambda self: self._to(None, None),
        "reshape": reshape, "view": view, "flatten": flatten, "permute": permute, "transpose": transpose,
        "unsqueeze": unsqueeze, "squeeze": squeeze, "expand": expand,
        "sum": sum_, "mean": mean, "max": max_, "min": min_, "amax": amax, "amin": amin, "roll": roll, "multinomial": multinomial, "var": var, "std": std,
        "prod": prod, "any": any_, "all": all_, "argmax": argmax, "argmin": argmin, "where": where,
        "add": lambda self, other: self + other, "sub": lambda self, other: self - other,
        "mul": lambda self, other: self * other, "div": lambda self, other: self / other,
        "pow": lambda self, other: self**other, "matmul": lambda self, other: self @ other,
        "eq": lambda self, other: self == other, "ne": lambda self, other: self != other,
        "lt": lambda self, other: self < other, "le": lambda self, other: self <= other,
        "gt": lambda self, other: self > other, "ge": lambda self, other: self >= other,
        "to_host": _pool.to_host, "from_host": classmethod(_pool.from_host), "from_shape": classmethod(_pool.from_shape),
        "pool_handle": property(_pool.pool_handle),
        "numel": lambda self: self.size, "dim": lambda self: self.ndim,
        "requires_grad_": requires_grad_, "fill_": _inplace.fill_, "zero_": _inplace.zero_, "copy_": _inplace.copy_,
        **_inplace.operators(),
        "numpy": _host.numpy, "tolist": _host.tolist, "__array__": _host.array, "__buffer__": _host.buffer,
        "__dlpack__": _host.dlpack, "__dlpack_device__": _host.dlpack_device,
        "__setitem__": _inplace.setitem, "__iter__": iterate, "__bool__": truth,
        "__float__": lambda self: float(self.item()), "__int__": lambda self: int(self.item()),
        "__complex__": lambda self: complex(self.item()), "__index__": index_, "__array_namespace__": namespace,
        "to_device": lambda self, device, stream=None: self._to(device),
        "__array_ufunc__": None, "__reduce__": _host.reduce, "__repr__": _text.represent, "__str__": _text.represent, "_repr_html_": _text.html,
        "__deepcopy__": lambda self, memo: self.detach().clone().requires_grad_(self.requires_grad),
    }  # fmt: skip
    for name, method in own.items():
        setattr(Tensor, name, method)
    for name in ops.__all__:
        op = Op(name)
        if op.inputs[0][1] == "one" and name not in own:
            setattr(Tensor, name, ops.function(op))


__all__ = ["attach"]
