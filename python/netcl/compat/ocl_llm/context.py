"""Contexts: the backward of one operation, as an object that a program can derive from.

A result has the context in ``_ctx``. The context has weak references to the operation's inputs in ``parents``, and values that its backward needs
in ``saved_data``. A custom operation is a subclass with its own ``backward``:

    class SquareContext(FunctionContext):
        def __init__(self, x):
            super().__init__(x)
            self.save_for_backward(x=x.detach())

        def backward(self, grad_output):
            x = self.unpack_saved_data()["x"]
            self.apply_gradients(grad_output.mul(x).mul_scalar(2.0))

    def square(x):
        y = OclTensor(x.to_host() ** 2)
        y._ctx = SquareContext(x)
        return y

Assigning ``_ctx`` puts the context on netcl's tape. A backward then calls it with the gradient of the result.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, List, Optional, Sequence, Tuple, Union

from ..._netcl import Tensor, is_recording, record
from ...autograd import no_grad
from ...errors import FormatError, ShapeError


class Running(threading.local):
    """Contexts whose backward this thread runs, the innermost last, with the gradients that they have applied."""

    def __init__(self) -> None:
        self.open: List[Tuple["FunctionContext", List[Optional[Tensor]]]] = []


_running = Running()


class FunctionContext:
    """Base class. ``parents``: the inputs that may need a gradient."""

    def __init__(self, *parents: Any) -> None:
        self.parents: List["weakref.ref[Tensor]"] = [weakref.ref(p) for p in parents if isinstance(p, Tensor)]
        self.saved_data: Any = {}

    def save_for_backward(self, *values: Any, **named: Any) -> None:
        """Keeps values for the backward: by name, or by position."""
        if values and (named or self.saved_data):
            raise FormatError(f"{type(self).__name__}: save_for_backward takes values by name or by position, not both, and positions only once")
        if values:
            self.saved_data = values
        elif not isinstance(self.saved_data, dict):
            raise FormatError(f"{type(self).__name__}: save_for_backward was called with positions before; give all values in one call")
        else:
            self.saved_data.update(named)

    def unpack_saved_data(self) -> Any:
        """Returns what ``save_for_backward`` kept: a dictionary, or a tuple of values that were given by position."""
        return self.saved_data

    def backward(self, grad_output: Any) -> Any:
        """Computes the gradients of the parents from the gradient of the result, and passes them to ``apply_gradients``."""
        raise NotImplementedError(f"{type(self).__name__} must define backward(self, grad_output)")

    def apply_gradients(self, *gradients: Any) -> None:
        """Adds one gradient to each parent, in their order; ``None`` for a parent without a gradient."""
        if len(gradients) == 1 and isinstance(gradients[0], (list, tuple)):
            gradients = tuple(gradients[0])
        if len(gradients) != len(self.parents):
            raise FormatError(f"{type(self).__name__}: apply_gradients got {len(gradients)} gradients, expected {len(self.parents)}, one for each parent")
        here = _running.open[-1] if _running.open else None
        for i, (reference, gradient) in enumerate(zip(self.parents, gradients)):
            if gradient is None:
                continue
            parent = reference()
            if here is not None and here[0] is self:
                _collect(self, here[1], i, gradient)
            elif parent is not None and parent.requires_grad:
                add_gradient(parent, gradient)

    def needs(self, i: int = 0) -> bool:
        """Returns whether parent ``i`` may need its gradient."""
        parent = self.parents[i]()
        return parent is None or parent.requires_grad


class TapeBackwardContext(FunctionContext):
    """Context of an operation that OCL-LLM does not have, such as ``sum``. netcl's tape has its gradient."""

    def __init__(self, result: Tensor, parents: Sequence[Any]) -> None:
        super().__init__(*parents)
        self.result = weakref.ref(result)

    def backward(self, grad_output: Any) -> None:
        """Runs the backward from the result to all leaves."""
        result = self.result()
        if result is None:
            raise FormatError("TapeBackwardContext: the result of the operation no longer exists")
        result.backward(grad_output)


def _collect(context: FunctionContext, found: List[Optional[Tensor]], i: int, gradient: Any) -> None:
    gradient = as_tensor(gradient, context)
    before = found[i]
    found[i] = gradient if before is None else before + gradient


def as_tensor(value: Any, context: Optional[FunctionContext] = None) -> Tensor:
    """Returns a gradient as a tensor. An array is copied to the device."""
    if isinstance(value, Tensor):
        return value
    import numpy as np

    from ..._create import tensor

    alive = [p for p in (r() for r in context.parents) if p is not None] if context is not None else []
    return tensor(np.asarray(value, dtype=np.float32), device=alive[0].device if alive else None)


def add_gradient(tensor: Tensor, gradient: Any) -> None:
    """Adds to the gradient of a tensor. Within the backward of a context, the gradient of a parent is passed on to the tape instead."""
    if _running.open:
        context, found = _running.open[-1]
        for i, reference in enumerate(context.parents):
            if reference() is tensor:
                _collect(context, found, i, gradient)
                return
    gradient = as_tensor(gradient)
    if tuple(gradient.shape) != tuple(tensor.shape):
        raise ShapeError(f"a gradient has shape {tuple(gradient.shape)}, expected {tuple(tensor.shape)}, the shape of its tensor")
    accumulate = getattr(tensor, "_add_in_place", None)
    if accumulate is not None:
        accumulate(gradient)
    else:
        tensor.grad = gradient.detach() if tensor.grad is None else tensor.grad + gradient


def _run(context: FunctionContext, grad_output: Tensor, shapes: List[Tuple[int, ...]]) -> List[Optional[Tensor]]:
    """Runs a context's backward for the tape. Returns the gradients of its parents."""
    found: List[Optional[Tensor]] = [None] * len(shapes)
    _running.open.append((context, found))
    try:
        with no_grad():
            returned = context.backward(grad_output)
            if returned is not None and all(g is None for g in found):
                context.apply_gradients(*(returned if isinstance(returned, (list, tuple)) else (returned,)))
    finally:
        _running.open.pop()
    for gradient, shape in zip(found, shapes):
        if gradient is not None and tuple(gradient.shape) != shape:
            raise ShapeError(f"{type(context).__name__}: a gradient has shape {tuple(gradient.shape)}, expected {shape}, the shape of its parent")
    return found


def _without(saved: Any, result: Tensor) -> Any:
    """Replaces the result by a tensor off the tape. Otherwise the context would keep the result, and the result the context."""
    if isinstance(saved, dict):
        return {name: _without(value, result) for name, value in saved.items()}
    if type(saved) in (list, tuple):
        return type(saved)(_without(value, result) for value in saved)
    return result.detach() if saved is result else saved


def attach(result: Any, context: FunctionContext, keep: bool) -> bool:
    """Makes ``result`` the result of the operation that ``context`` describes. Returns whether it is on the tape: whether recording is on, and a
    parent needs a gradient. With ``keep``, the parents exist until the backward.
    """
    parents: List[Union[Tensor, None]] = [reference() for reference in context.parents]
    alive = [p for p in parents if p is not None]
    if len(alive) != len(parents):
        raise FormatError(f"{type(context).__name__}: a parent no longer exists; keep a reference to it until the context is assigned")
    if not is_recording() or not any(p.requires_grad for p in alive):
        return False
    context.saved_data = _without(context.saved_data, result)
    shapes, kind = [tuple(p.shape) for p in alive], type(result)
    kept = alive if keep else None

    def backward(grad_output: Tensor) -> List[Optional[Tensor]]:
        assert kept is None or kept
        return _run(context, kind._result(grad_output), shapes)

    (made,) = record(type(context).__name__, alive, [Tensor(result)], backward)
    result._become(made)
    result.retain_grad()
    return True


__all__ = ["FunctionContext", "TapeBackwardContext", "add_gradient", "attach"]
