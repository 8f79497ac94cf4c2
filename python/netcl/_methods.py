"""Methods of tensors that are made of others."""

from __future__ import annotations

from typing import Any, Iterator, List, Optional, Tuple, Union

from . import _host, ops
from ._dtype import DTYPES, DType, float16, float32
from ._netcl import Device, Op, Tensor
from ._netcl import full as _full


Axes = Union[None, int, Tuple[int, ...], List[int]]



def _ints(sizes: Tuple[Any, ...]) -> Tuple[int, ...]:
    return tuple(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else tuple(sizes)


def _axes(x: Tensor, axis: Axes, dim: Axes) -> Tuple[int, ...]:
    axis = dim if axis is None else axis
    if axis is None:
        return ()
    return (axis,) if isinstance(axis, int) else tuple(axis)


def _kept(keepdim: bool, keepdims: bool, keep: bool) -> bool:
    return keepdim or keepdims or keep


def dtype(self: Tensor) -> DType:
    """How elements are stored."""
    return DTYPES[self._dtype]


def to(self: Tensor, *args: Any, device: Any = None, dtype: Any = None) -> Tensor:
    """On another device, off the tape, or in another dtype."""
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
    """The same elements in another shape; one size of -1 is what is left."""
    return ops.reshape(self, _ints(shape))


def flatten(self: Tensor, start: int = 0, end: int = -1) -> Tensor:
    """Axes ``start`` to ``end`` as one."""
    n = max(self.ndim, 1)
    start, end = start % n, end % n
    sizes = self.shape or (1,)
    middle = 1
    for size in sizes[start : end + 1]:
        middle *= size
    return ops.reshape(self, (*sizes[:start], middle, *sizes[end + 1 :]))


def permute(self: Tensor, *axes: Any) -> Tensor:
    """Axes in another order."""
    return ops.permute(self, _ints(axes))


def transpose(self: Tensor, a: int = -2, b: int = -1) -> Tensor:
    """Two axes exchanged."""
    return ops.transpose(self, a, b)


def reverse_axes(self: Tensor) -> Tensor:
    """Axes in reverse."""
    return ops.permute(self, tuple(range(self.ndim))[::-1])


def unsqueeze(self: Tensor, axis: int) -> Tensor:
    """An axis of size 1 put in before ``axis``."""
    return ops.unsqueeze(self, axis)


def squeeze(self: Tensor, axis: Optional[int] = None) -> Tensor:
    """An axis of size 1 left out; all of them without ``axis``. An axis of another size stays."""
    if axis is None:
        return ops.reshape(self, tuple(n for n in self.shape if n != 1))
    return ops.squeeze(self, axis) if self.shape[axis] == 1 else self


def expand(self: Tensor, *shape: Any) -> Tensor:
    """Repeated along axes of size 1 and new ones in front, without a copy; -1 keeps a size."""
    sizes = _ints(shape)
    new = len(sizes) - self.ndim
    return ops.expand(self, tuple(self.shape[i - new] if n == -1 else n for i, n in enumerate(sizes)))


def sum_(self: Tensor, axis: Axes = None, keepdim: bool = False, *, dim: Axes = None, keepdims: bool = False, keep: bool = False) -> Tensor:
    """Sum over axes, all of them where none is named."""
    return ops.sum(self, _axes(self, axis, dim), _kept(keepdim, keepdims, keep))


def mean(self: Tensor, axis: Axes = None, keepdim: bool = False, *, dim: Axes = None, keepdims: bool = False, keep: bool = False) -> Tensor:
    """Mean over axes, all of them where none is named."""
    return ops.mean(self, _axes(self, axis, dim), _kept(keepdim, keepdims, keep))


def max_(self: Tensor, axis: Axes = None, keepdim: bool = False, *, dim: Axes = None, keepdims: bool = False, keep: bool = False) -> Tensor:
    """Maximum over axes; NaN where an element is."""
    return ops.max(self, _axes(self, axis, dim), _kept(keepdim, keepdims, keep))


def min_(self: Tensor, axis: Axes = None, keepdim: bool = False, *, dim: Axes = None, keepdims: bool = False, keep: bool = False) -> Tensor:
    """Minimum over axes; NaN where an element is."""
    return -max_(-self, axis, keepdim, dim=dim, keepdims=keepdims, keep=keep)


def var(self: Tensor, axis: Axes = None, keepdim: bool = False, *, dim: Axes = None, keepdims: bool = False, correction: float = 1) -> Tensor:
    """Variance over axes: squares of the distance from the mean, over the number of elements less ``correction``."""
    axes = _axes(self, axis, dim)
    n = 1
    for a in axes or range(self.ndim):
        n *= self.shape[a]
    apart = self - mean(self, axes, True)
    total = sum_(apart * apart, axes, _kept(keepdim, keepdims, False))
    return total / max(n - correction, 0) if n > correction else total * float("nan")


def std(self: Tensor, axis: Axes = None, keepdim: bool = False, *, dim: Axes = None, keepdims: bool = False, correction: float = 1) -> Tensor:
    """Standard deviation: the root of the variance."""
    return var(self, axis, keepdim, dim=dim, keepdims=keepdims, correction=correction).sqrt()


def argmax(self: Tensor, axis: Optional[int] = None, keepdim: bool = False, *, dim: Optional[int] = None) -> Tensor:
    """Indices, uint32, of the largest elements along an axis, or in the flat tensor. The first of equal ones."""
    axis = dim if axis is None else axis
    if axis is None:
        return ops.argmax(reshape(self, -1), 0)
    found = ops.argmax(self, axis)
    return ops.unsqueeze(found, axis % self.ndim) if keepdim else found


def argmin(self: Tensor, axis: Optional[int] = None, keepdim: bool = False, *, dim: Optional[int] = None) -> Tensor:
    """Indices, uint32, of the smallest elements."""
    return argmax(-self, axis, keepdim, dim=dim)


def where(self: Tensor, mask: Tensor, other: Union[Tensor, float]) -> Tensor:
    """These elements where the mask is not 0, else ``other``."""
    if not isinstance(other, Tensor):
        other = _full((), other, self.dtype, self.device)
    return ops.where_cond(mask, self, other)


def float_(self: Tensor) -> Tensor:
    """In float32."""
    return self._to(None, float32)


def half(self: Tensor) -> Tensor:
    """In float16."""
    return self._to(None, float16)


def requires_grad_(self: Tensor, requires_grad: bool = True) -> Tensor:
    """Makes it a leaf that collects its gradient, or ends that."""
    self.requires_grad = requires_grad
    return self


def fill_(self: Tensor, value: float) -> Tensor:
    """Overwrites every element. The tape does not know."""
    self._set_all(value)
    return self


def zero_(self: Tensor) -> Tensor:
    """Overwrites every element with 0."""
    return fill_(self, 0.0)


def copy_(self: Tensor, values: Any) -> Tensor:
    """Overwrites the elements with others of a shape that broadcasts to this one. The tape does not know."""
    _write(self, _values(values, self, self.shape))
    return self


def _values(values: Any, like: Tensor, shape: Tuple[int, ...]) -> Tensor:
    if isinstance(values, (int, float)):
        return _full(shape, values, like.dtype, like.device)
    if not isinstance(values, Tensor):
        from ._create import tensor

        values = tensor(values, like.dtype, like.device)
    moved = values.detach()._to(like.device, like.dtype)
    return ops.expand(moved, tuple(shape)) if tuple(moved.shape) != tuple(shape) else moved


def _write(x: Tensor, part: Tensor) -> None:
    if x.ndim:
        x._write_slice(0, 0, part)
    else:
        x._set_bytes(part._bytes())


def setitem(self: Tensor, index: Any, values: Any) -> None:
    """``x[index] = values`` for integers, slices without a step other than 1, and ``...``. The tape does not know."""
    parts = index if isinstance(index, tuple) else (index,)
    if Ellipsis in [p for p in parts if not isinstance(p, Tensor)]:
        at = [p is Ellipsis for p in parts].index(True)
        rest = self.ndim - (len(parts) - 1)
        parts = (*parts[:at], *([slice(None)] * rest), *parts[at + 1 :])
    ranges: List[Tuple[int, int]] = []
    whole: List[int] = []
    taken: List[int] = []
    if len(parts) > self.ndim:
        raise IndexError(f"index: {len(parts)} indices for a tensor of shape {tuple(self.shape)}")
    for axis, part in enumerate(parts):
        n = self.shape[axis]
        if isinstance(part, slice):
            start, stop, step = part.indices(n)
            if step != 1:
                raise NotImplementedError("assignment to slices with a step other than 1; write to whole ranges")
            ranges.append((start, max(start, stop)))
            taken.append(axis)
        elif isinstance(part, int):
            place = part + n if part < 0 else part
            if not 0 <= place < n:
                raise IndexError(f"index: {part} is out of bounds for axis {axis} of size {n}")
            ranges.append((place, place + 1))
        else:
            raise NotImplementedError("assignment by arrays of indices; use where and masks")
    whole = [n for n in self.shape]
    for axis, (start, stop) in enumerate(ranges):
        whole[axis] = stop - start
    shown = [n for axis, n in enumerate(whole) if axis in taken or axis >= len(parts)]
    part = ops.reshape(_values(values, self, tuple(shown)), tuple(whole))
    _assign(self, ranges, 0, part)


def _assign(x: Tensor, ranges: List[Tuple[int, int]], axis: int, part: Tensor) -> None:
    partial = [a for a in range(axis, len(ranges)) if ranges[a] != (0, x.shape[a])]
    if not partial:
        _write(x, part)
        return
    first = partial[0]
    start, stop = ranges[first]
    if len(partial) > 1:
        # What lies around the part within this range is read, and written back with it.
        around = ops.slice(x.detach(), first, start, stop).clone()
        _assign(around, [(0, n) if a <= first else r for a, (r, n) in enumerate(zip(ranges, around.shape))], first + 1, part)
        part = around
    x._write_slice(first, start, part)


def iterate(self: Tensor) -> Iterator[Tensor]:
    """Its parts along the first axis."""
    return (self[i] for i in range(len(self)))


def truth(self: Tensor) -> bool:
    """Whether the one element is not 0."""
    if self.size != 1:
        raise ValueError(f"the truth of a tensor of shape {tuple(self.shape)}; expected one element")
    return bool(self.item())


def attach() -> None:
    """Gives the class its methods: those of this file, then each operation that takes a tensor first."""
    own = {
        "dtype": property(dtype),
        "T": property(reverse_axes),
        "mT": property(lambda self: transpose(self)),
        "to": to, "cast": lambda self, dtype: self._to(None, dtype), "float": float_, "half": half,
        "cpu": lambda self: self._to(None, None),
        "reshape": reshape, "view": reshape, "flatten": flatten, "permute": permute, "transpose": transpose,
        "unsqueeze": unsqueeze, "squeeze": squeeze, "expand": expand,
        "sum": sum_, "mean": mean, "max": max_, "min": min_, "var": var, "std": std,
        "argmax": argmax, "argmin": argmin, "where": where,
        "add": lambda self, other: self + other, "sub": lambda self, other: self - other,
        "mul": lambda self, other: self * other, "div": lambda self, other: self / other,
        "pow": lambda self, other: self**other, "matmul": lambda self, other: self @ other,
        "eq": lambda self, other: self == other, "ne": lambda self, other: self != other,
        "lt": lambda self, other: self < other, "le": lambda self, other: self <= other,
        "gt": lambda self, other: self > other, "ge": lambda self, other: self >= other,
        "numel": lambda self: self.size, "dim": lambda self: self.ndim,
        "requires_grad_": requires_grad_, "fill_": fill_, "zero_": zero_, "copy_": copy_,
        "numpy": _host.numpy, "tolist": _host.tolist, "__array__": _host.array, "__buffer__": _host.buffer,
        "__dlpack__": _host.dlpack, "__dlpack_device__": _host.dlpack_device,
        "__setitem__": setitem, "__iter__": iterate, "__bool__": truth,
        "__float__": lambda self: float(self.item()), "__int__": lambda self: int(self.item()),
        "__reduce__": _host.reduce, "__repr__": _host.represent, "__str__": _host.represent,
        "__deepcopy__": lambda self, memo: self.detach().clone().requires_grad_(self.requires_grad),
    }  # fmt: skip
    for name, method in own.items():
        setattr(Tensor, name, method)
    for name in ops.__all__:
        op = Op(name)
        if op.inputs[0][1] == "one" and name not in own:
            setattr(Tensor, name, ops.function(op))


__all__ = ["attach"]
