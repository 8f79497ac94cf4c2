"""Blocks and functions whose operations are fused into kernels."""

from __future__ import annotations

import functools
import inspect
from types import TracebackType
from typing import Any, Callable, List, Optional, Type, TypeVar, overload

from ._netcl import enter_lazy, exit_lazy
from .errors import FormatError, NetclError

F = TypeVar("F", bound=Callable[..., Any])


class Fused:
    """Result of ``netcl.fuse()``: a block for ``with``, or a decorator."""

    def __init__(self, explain: bool = False) -> None:
        self._explain = explain
        self._depths: List[int] = []
        self.explanation = ""
        """With ``explain``: the block's expression trees and the source of their kernels. Empty before the block ends. Also empty within another
        fused block, which includes it.
        """

    def __enter__(self) -> "Fused":
        self._depths.append(enter_lazy(self._explain))
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        try:
            self.explanation = exit_lazy(self._depths.pop())
        except NetclError:
            # An error from the block itself is more informative.
            if error is None:
                raise

    def __call__(self, function: F) -> F:
        for yields in (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction):
            if yields(function):
                raise FormatError(f"fuse: {function.__name__} is a generator or coroutine; fuse the functions that it calls, or use `with netcl.fuse()` in it")

        @functools.wraps(function)
        def inner(*args: Any, **kwargs: Any) -> Any:
            with Fused():
                return function(*args, **kwargs)

        def explain(*args: Any, **kwargs: Any) -> str:
            """Calls the function. Returns its expression trees and the source of their kernels."""
            with Fused(explain=True) as block:
                made = function(*args, **kwargs)
            del made
            return block.explanation

        inner.explain = explain  # type: ignore[attr-defined]
        return inner  # type: ignore[return-value]

    def __str__(self) -> str:
        return self.explanation


@overload
def fuse(function: F) -> F: ...
@overload
def fuse(function: None = None, *, explain: bool = False) -> Fused: ...
def fuse(function: Optional[Callable[..., Any]] = None, *, explain: bool = False) -> Any:
    """Fuses operations into common kernels, forward and backward: ``with netcl.fuse():`` or ``@netcl.fuse``.

    These operations are deferred and fused: elementwise operations, comparisons, ``where``, conversions between floats, and sums, means, maxima
    and softmax over the last axes. Operations after a product or a convolution become part of its kernel.

    Operations are called as usual, with the same shapes, dtypes and errors. A result is computed when something uses it: another operation, a
    view, the host, a backward, or the end of the block. A result that nothing refers to by then is never stored, which saves time and memory. A
    function therefore saves more than a block, because its names end with it.

    Intermediate values are float32 and are not rounded to the dtype. Results agree with those of single operations within rounding, and are the
    same in every run. A device error is raised by the operation that needed the result, or at the end of the block. Other threads can use a
    deferred tensor after it is computed; before that, they get a ``LaunchError``. A nested block is part of the outer block.

    ``with netcl.fuse(explain=True) as block`` records the trees and the source of their kernels; ``print(block)`` after the block shows them. For
    a fused function, ``function.explain(*args)`` returns the same text.

    >>> import netcl as nc
    >>> @nc.fuse
    ... def gated(x, gate):
    ...     return x * (gate / (1 + (-gate).exp()))
    >>> gated(nc.ones(3), nc.zeros(3)).tolist()
    [0.0, 0.0, 0.0]
    """
    return Fused(explain) if function is None else Fused()(function)


__all__ = ["Fused", "fuse"]
