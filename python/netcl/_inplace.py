"""Writes to tensors with PyTorch's meaning: ``x += y``, ``x[i] = y``, ``fill_`` and ``copy_`` change the memory of ``x``.

If a gradient flows through the write, ``x`` becomes a new tensor of the tape. This equals a write to its memory only if nothing else can reach
that memory, so the write is refused otherwise.
"""

from __future__ import annotations

import contextlib
import operator
from typing import Any, Callable, Optional, Sequence, Tuple

from . import _host, ops
from ._netcl import Tensor, is_recording, record
from ._netcl import full as _full
from ._state import state
from .autograd import no_grad
from .errors import DTypeError, ShapeError, UnsupportedError


def _rank(x: Tensor) -> int:
    """Returns the category of a dtype: 0 for masks, 1 for integers, 2 for floats."""
    return 2 if x.dtype.is_floating_point else 0 if x.dtype.name == "bool" else 1


def is_traced(name: str, x: Tensor, shared: bool, *given: Any) -> bool:
    """Returns whether a write to ``x`` is put on the tape, and refuses a write whose gradient would be wrong. ``shared``: ``x._is_shared``."""
    for n, stride in zip(x.shape, x.strides):
        if n > 1 and stride == 0:
            raise UnsupportedError(f"{name}: several elements of an expanded tensor share memory; write to x.clone()")
    if not is_recording():
        return False
    if x.requires_grad and x.is_leaf:
        raise UnsupportedError(f"{name}: a leaf that requires a gradient cannot be written in place; write within nc.no_grad(), or to x.clone()")
    if not x.requires_grad and not any(isinstance(g, Tensor) and g.requires_grad for g in given):
        return False
    if shared:
        raise UnsupportedError(
            f"{name}: the write needs a gradient, but a view, another tensor or an operation also uses this memory; "
            "use an operation with a new result, such as x = x + y or nc.where, or write to x.clone()"
        )
    return True


def flat(name: str, inputs: Sequence[Tensor], y: Tensor) -> Tensor:
    """Records a result whose gradient is 0."""
    if not (is_recording() and y.dtype.is_floating_point and any(x.requires_grad for x in inputs)):
        return y
    shapes = [(tuple(x.shape), x.dtype, x.device) for x in inputs]
    return record(name, list(inputs), [y], lambda dy: [_full(shape, 0.0, dtype, device) for shape, dtype, device in shapes])[0]


def overwrite(name: str, x: Tensor, compute: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Writes ``compute(x, *args, **kwargs)`` to the memory of ``x`` and returns ``x``, or ``NotImplemented`` if ``compute`` does.

    The result must have the shape of ``x`` and a dtype that is not of a higher category. A write whose gradient would be wrong is refused.
    """
    if state.capturing and not getattr(state.capturing[-1], "allows_writes", True):
        raise UnsupportedError(f"{name}: a graph of operations cannot contain a write to a tensor; use the operation with a new result, or set inplace=False")
    given = (*args, *kwargs.values())
    traced = is_traced(name, x, x._is_shared, *given)
    with contextlib.nullcontext() if traced else no_grad():
        made = compute(x, *args, **kwargs)
    if made is NotImplemented:
        return made
    if tuple(made.shape) != tuple(x.shape):
        raise ShapeError(f"{name}: the result has shape {tuple(made.shape)}, but the tensor that is written has {tuple(x.shape)}")
    if _rank(made) > _rank(x):
        raise DTypeError(f"{name}: the result is {made.dtype.name}, which cannot be written to {x.dtype.name}; convert with .to(dtype)")
    made = made._to(None, x.dtype)
    if traced:
        x._become(made if made.requires_grad else flat(name, [g for g in (x, *given) if isinstance(g, Tensor)], made))
    else:
        with no_grad():
            x._put(..., made)
    return x


def _in_place(symbol: str, compute: Callable[[Any, Any], Any]) -> Callable[[Tensor, Any], Any]:
    def method(self: Tensor, other: Any) -> Any:
        return overwrite(symbol, self, compute, other)

    method.__name__ = method.__qualname__ = compute.__name__
    method.__doc__ = f"Computes ``self {symbol} other`` in the memory of this tensor."
    return method


def _plain(symbol: str) -> Callable[[Any, Any], Any]:
    """Returns the operator as a function that gives ``NotImplemented`` for operands that tensors do not know."""
    name = {"+=": "add", "-=": "sub", "*=": "mul", "/=": "truediv", "//=": "floordiv", "%=": "mod", "**=": "pow"}.get(symbol)
    name = name or {"<<=": "lshift", ">>=": "rshift", "&=": "and", "|=": "or", "^=": "xor"}[symbol]
    compute: Callable[[Any, Any], Any] = getattr(Tensor, f"__{name}__")
    return compute


def operators() -> "dict[str, Any]":
    """Returns the methods of the in-place operators, such as ``__iadd__``, and ``add_``, ``sub_``, ``mul_`` and ``div_``."""
    made = {}
    for symbol in ("+=", "-=", "*=", "/=", "//=", "%=", "**=", "<<=", ">>=", "&=", "|=", "^="):
        compute = _plain(symbol)
        made[f"__i{compute.__name__.strip('_')}__"] = _in_place(symbol, compute)
    for name, method in (("add_", operator.iadd), ("sub_", operator.isub), ("mul_", operator.imul), ("div_", operator.itruediv)):
        made[name] = _named(method)
    return made


def _named(method: Callable[[Any, Any], Any]) -> Callable[[Tensor, Any], Tensor]:
    def call(self: Tensor, other: Any) -> Tensor:
        written: Tensor = method(self, other)
        return written

    return call


def fill_(self: Tensor, value: Any) -> Tensor:
    """Overwrites every element with a number. The gradient ends here."""
    if isinstance(value, Tensor):
        return copy_(self, value)
    if is_traced("fill_", self, self._is_shared):
        _recorded(self, ..., _full((), value, self.dtype, self.device))
    elif self.dtype.is_floating_point and self.is_contiguous():
        self._set_all(value)
    else:
        self._put(..., _full((), value, self.dtype, self.device))
    return self


def zero_(self: Tensor) -> Tensor:
    """Overwrites every element with 0. The gradient ends here."""
    return fill_(self, 0.0)


def copy_(self: Tensor, other: Any, non_blocking: bool = False) -> Tensor:
    """Overwrites the elements with values whose shape broadcasts to this shape. Gradients flow to the values. Copies never block."""
    if is_traced("copy_", self, self._is_shared, other):
        _recorded(self, ..., other)
    else:
        self._put(..., _values(other, self, self.shape))
    return self


def setitem(self: Tensor, index: Any, values: Any) -> None:
    """Implements ``x[index] = values`` for integers, slices with any step, ``None``, ``...`` and masks. Gradients flow to the values, and to the
    elements that are not written.

    Integer arrays, and masks combined with other indices or with several values, are processed on the host.
    """
    if is_traced("x[index] = values", self, self._is_shared, values):
        _recorded(self, index, values)
    else:
        _write(self, index, values)


def _summed(x: Tensor, shape: Tuple[int, ...]) -> Tensor:
    """Sums over the axes that broadcasting added or repeated."""
    extra = x.ndim - len(shape)
    x = ops.sum(x, tuple(range(extra)), False) if extra > 0 else x
    repeated = tuple(a for a, n in enumerate(shape) if n == 1 and x.shape[a] != 1)
    x = ops.sum(x, repeated, True) if repeated else x
    return ops.reshape(x, shape)


def _recorded(x: Tensor, index: Any, values: Any) -> None:
    """Makes ``x`` the result of a write that is on the tape."""
    given = values._to(x.device, x.dtype) if isinstance(values, Tensor) else _values(values, x, None)
    shape = tuple(given.shape)
    with no_grad():
        written = x.detach().clone()
        _write(written, index, given.detach())

    def backward(dy: Any) -> Any:
        if dy is None:
            return [None, None]
        with no_grad():
            kept, chosen = dy.clone(), dy if index is Ellipsis else dy[index]
            _write(kept, index, 0.0)
            return [kept, _summed(chosen, shape)]

    x._become(record("write", [x, given], [written], backward)[0])


def _values(values: Any, like: Tensor, shape: Optional[Tuple[int, ...]]) -> Tensor:
    """Returns the values with the dtype and device of ``like``, expanded to a shape if one is given."""
    if isinstance(values, (int, float)):
        return _full(shape or (), values, like.dtype, like.device)
    if not isinstance(values, Tensor):
        from ._create import tensor

        values = tensor(values, like.dtype, like.device)
    moved: Tensor = values.detach()._to(like.device, like.dtype)
    return moved if shape is None or tuple(moved.shape) == tuple(shape) else ops.expand(moved, tuple(shape))


def _write(self: Tensor, index: Any, values: Any) -> None:
    """Writes off the tape."""
    if _on_device(index, values):
        if not isinstance(values, Tensor):
            from ._create import tensor

            values = tensor(values, None, self.device)
        try:
            return self._put(index, _fitting(values.detach()._to(self.device), self.detach()[index].shape) if values.ndim else values)
        except NotImplementedError:
            pass
    changed = _host.numpy(self)
    changed[_host_index(index)] = _host.numpy(values) if isinstance(values, Tensor) else values
    self._put(..., _values(changed, self, self.shape))


def _fitting(values: Tensor, shape: Tuple[int, ...]) -> Tensor:
    """Removes leading axes of size 1 that the target does not have, as NumPy does."""
    extra = values.ndim - len(shape)
    if extra > 0 and all(n == 1 for n in values.shape[:extra]):
        return ops.reshape(values, values.shape[extra:])
    return values


def _on_device(index: Any, values: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    if any(not (p is None or p is Ellipsis or isinstance(p, (int, slice)) or hasattr(p, "__index__") and not isinstance(p, Tensor)) or isinstance(p, bool) for p in parts):
        one = isinstance(values, (int, float)) or isinstance(values, Tensor) and values.size == 1
        return len(parts) == 1 and isinstance(parts[0], Tensor) and parts[0].dtype.name == "bool" and one
    return True


def _host_index(index: Any) -> Any:
    parts = index if isinstance(index, tuple) else (index,)
    seen = tuple(_host.numpy(p) if isinstance(p, Tensor) else p for p in parts)
    return seen if isinstance(index, tuple) else seen[0]


__all__ = ["copy_", "fill_", "flat", "is_traced", "operators", "overwrite", "setitem", "zero_"]
