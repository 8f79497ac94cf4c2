"""Elementwise expressions with gradients, and conversions of arguments, for functions with PyTorch's names."""

from __future__ import annotations

import math
from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

from .. import ops
from .._dtype import DType, bool_, float32, int32
from .._inplace import flat
from .._methods import place
from .._netcl import Tensor, evaluate, is_recording, record
from .._netcl import full as _full
from .._state import state
from ..errors import UnsupportedError

Number = Union[int, float, bool]
Operand = Union[Tensor, int, float, bool]
Dims = Union[None, int, Sequence[int]]

ORDER = {"bool": 0, "int32": 1, "uint32": 1, "float16": 2, "bfloat16": 2, "float32": 3}


def floating(x: Tensor) -> Tensor:
    """Converts integers and masks to float32."""
    return x if x.dtype.is_floating_point else x._to(None, float32)


def numeric(x: Tensor) -> Tensor:
    """Converts a mask to int32."""
    return x._to(None, int32) if x.dtype is bool_ else x


def promoted(*given: Operand) -> List[Tensor]:
    """Converts operands to tensors of one dtype. A number takes the dtype of the tensors if it fits."""
    tensors = [g for g in given if isinstance(g, Tensor)]
    # A scalar tensor counts only if it is of a higher category, as in PyTorch.
    wide = [t for t in tensors if t.ndim] or tensors
    names = {t.dtype.name for t in wide}
    dtype = float32 if {"float16", "bfloat16"} <= names else max((t.dtype for t in wide), key=lambda d: ORDER[d.name])
    for t in tensors:
        category = {0: 0, 1: 1}.get(ORDER[t.dtype.name], 2)
        if category > {0: 0, 1: 1}.get(ORDER[dtype.name], 2):
            dtype = t.dtype
    for g in given:
        if isinstance(g, float) and not dtype.is_floating_point:
            dtype = float32
        elif isinstance(g, int) and not isinstance(g, bool) and dtype is bool_:
            dtype = int32
    device = tensors[0].device
    return [g._to(None, dtype) if isinstance(g, Tensor) else _full((), g, dtype, device) for g in given]


def number(value: Number, like: Tensor) -> Tensor:
    """Returns a number as a float32 tensor, so that one kernel serves all numbers."""
    return _full((), value, float32, like.device)


def expression(name: str, text: str, inputs: Sequence[Tensor], dtype: DType, grads: Sequence[Optional[str]] = ()) -> Tensor:
    """Evaluates an expression over inputs that broadcast. ``grads`` has the gradient of each input as an expression in which the next number after
    the inputs is the gradient of the result. ``""`` is a gradient of 0. Without ``grads``, the function does not have a gradient.
    """
    y = evaluate(text, [x.detach() for x in inputs], dtype)
    if not is_recording() or not dtype.is_floating_point or not any(x.requires_grad for x in inputs):
        return y
    if not grads:
        raise UnsupportedError(f"{name} does not have a gradient; call it on x.detach()")
    kept = [x.detach() for x in inputs]

    def backward(dy: Any) -> List[Optional[Tensor]]:
        made: List[Optional[Tensor]] = []
        for x, grad in zip(inputs, [*grads, *[None] * len(inputs)]):
            if grad is None or not x.requires_grad or dy is None:
                made.append(None)
                continue
            whole = evaluate(grad or "0.0f * x0", [*kept, dy], x.dtype) if grad else ops.expand(_full((), 0.0, x.dtype, x.device), tuple(dy.shape))
            made.append(ops.sum_to(whole, tuple(x.shape)) if tuple(whole.shape) != tuple(x.shape) else whole)
        return made

    return record(name, list(inputs), [y], backward)[0]


def unary(name: str, doc: str, text: str, grad: Optional[str] = None) -> Callable[[Tensor], Tensor]:
    """Defines a function of floats. In ``grad``, x0 is the input and x1 the gradient of the result."""

    def function(input: Tensor) -> Tensor:
        x = floating(input)
        return expression(name, text, [x], x.dtype, () if grad is None else [grad])

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


def operation(name: str) -> Callable[[Tensor], Tensor]:
    """Defines a function of floats by an operation of netcl."""
    op: Callable[[Tensor], Tensor] = getattr(ops, name)

    def function(input: Tensor) -> Tensor:
        return op(floating(input))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = op.__doc__
    return function


def binary(name: str, doc: str, text: str, grads: Sequence[str], whole: bool = False) -> Callable[[Operand, Operand], Tensor]:
    """Defines a function of two floats, or of integers too if ``whole``. In ``grads``, x2 is the gradient of the result."""

    def function(input: Operand, other: Operand) -> Tensor:
        a, b = promoted(input, other)
        if not whole:
            a, b = floating(a), floating(b)
        return expression(name, text, [a, b], a.dtype, grads)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


def arranged(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Returns the same elements in another shape: a view if the strides allow one, otherwise a copy."""
    sizes = tuple(int(n) for n in shape)
    if x.size and not x.is_contiguous() and not state.capturing:
        if -1 in sizes:
            known = -math.prod(sizes)
            sizes = tuple(int(x.size) // known if n == -1 and known > 0 else n for n in sizes)
        made = x._view(sizes) if math.prod(sizes) == x.size and min(sizes, default=1) > 0 else None
        if made is not None:
            return made
    return ops.reshape(x, tuple(shape))


def dims_of(name: str, x: Tensor, dim: Dims) -> Tuple[int, ...]:
    """Returns axes counted from the front; all for ``None``. An axis that occurs twice is an error."""
    if dim is None:
        return tuple(range(x.ndim))
    given = [dim] if isinstance(dim, int) else list(dim)
    if not given:
        return tuple(range(x.ndim))
    axes = tuple(place(name, d, x.ndim) for d in given)
    if len(set(axes)) != len(axes):
        raise RuntimeError(f"{name}: an axis occurs twice in {tuple(given)}")
    return axes if x.ndim else ()


def only(name: str, out: Any) -> None:
    """Refuses ``out=``."""
    if out is not None:
        raise UnsupportedError(f"{name}: out= is not supported; write out.copy_(torch.{name}(…))")


__all__ = ["Dims", "Number", "Operand", "arranged", "binary", "dims_of", "expression", "flat", "floating", "number", "numeric", "only", "operation", "promoted", "unary"]
