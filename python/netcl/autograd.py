"""Gradient recording and functions with gradients."""

from __future__ import annotations

import functools
from types import TracebackType
from typing import Any, Callable, List, Optional, Tuple, Type, TypeVar

from ._class import as_instance, like_inputs
from ._netcl import Tensor, is_recording, record, set_recording
from .errors import FormatError, UnsupportedError

F = TypeVar("F", bound=Callable[..., Any])


class _Recording:
    """A ``with`` statement or decorator that turns the recording of this thread's operations on or off."""

    _on = False

    def __init__(self) -> None:
        self._before: List[bool] = []

    def __enter__(self) -> None:
        self._before.append(set_recording(self._on))

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        set_recording(self._before.pop())

    def __call__(self, function: F) -> F:
        @functools.wraps(function)
        def inner(*args: Any, **kwargs: Any) -> Any:
            with type(self)():
                return function(*args, **kwargs)

        return inner  # type: ignore[return-value]


class no_grad(_Recording):
    """Turns recording off: operations are not added to the tape."""


class enable_grad(_Recording):
    """Turns recording on again within a ``no_grad``."""

    _on = True


def is_grad_enabled() -> bool:
    """Returns whether operations of this thread are recorded."""
    return is_recording()


class Context:
    """Values that a function's forward passes to its backward: tensors through ``save_for_backward``, others as attributes."""

    def __init__(self, needs_input_grad: Tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self._saved: Optional[Tuple[Optional[Tensor], ...]] = ()

    def save_for_backward(self, *tensors: Optional[Tensor]) -> None:
        """Keeps tensors until the backward."""
        self._saved = tuple(None if t is None else t.detach() for t in tensors)

    @property
    def saved_tensors(self) -> Tuple[Any, ...]:
        """The saved tensors."""
        if self._saved is None:
            raise UnsupportedError("backward: the saved tensors were freed; run the forward again")
        return self._saved


class Function:
    """A custom operation. ``forward(ctx, …)`` computes the results. ``backward(ctx, …)`` receives the gradients of the results, ``None`` for an
    unused result. It returns the gradients of the arguments, ``None`` for an argument without a gradient.

    >>> class Cube(Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         ctx.save_for_backward(x)
    ...         return x * x * x
    ...     @staticmethod
    ...     def backward(ctx, dy):
    ...         (x,) = ctx.saved_tensors
    ...         return dy * x * x * 3
    """

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        """Returns the results: a tensor or a tuple of tensors. Its operations are not recorded."""
        raise NotImplementedError("a Function must define forward")

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Returns the gradients of ``forward``'s arguments, in their order."""
        raise NotImplementedError("a Function must define backward")

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Calls the function. It is recorded on the tape if an argument needs a gradient."""
        ctx = Context(tuple(isinstance(a, Tensor) and a.requires_grad for a in args))
        with no_grad():
            made = cls.forward(ctx, *args)
        results = list(made) if isinstance(made, (tuple, list)) else [made]
        wrong = [type(y).__name__ for y in results if not isinstance(y, Tensor)]
        if wrong:
            raise FormatError(f"{cls.__name__}: forward returns {', '.join(wrong)}, expected tensors")
        tensors = [a for a in args if isinstance(a, Tensor)]
        results = [like_inputs(y, tensors) for y in results]
        kinds = [type(y) for y in results]

        def backward(*grads: Optional[Tensor]) -> List[Optional[Tensor]]:
            found = cls.backward(ctx, *(None if g is None else as_instance(kind, g) for g, kind in zip(grads, kinds)))
            found = found if isinstance(found, (tuple, list)) else (found,)
            ctx._saved = None
            if len(found) != len(args):
                raise FormatError(f"{cls.__name__}: backward returns {len(found)} gradients, expected {len(args)}, one for each argument")
            return [g for g, a in zip(found, args) if isinstance(a, Tensor)]

        recorded = record(cls.__name__, tensors, results, backward) if is_recording() and any(ctx.needs_input_grad) else results
        return tuple(recorded) if isinstance(made, (tuple, list)) else recorded[0]


__all__ = ["Context", "Function", "enable_grad", "is_grad_enabled", "no_grad"]
