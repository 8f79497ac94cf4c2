"""Blocks and functions whose operations become kernels together."""

from __future__ import annotations

import functools
import inspect
from types import TracebackType
from typing import Any, Callable, List, Optional, Type, TypeVar, overload

from ._netcl import enter_lazy, exit_lazy
from .errors import FormatError, NetclError

F = TypeVar("F", bound=Callable[..., Any])


class Fused:
    """What ``netcl.fuse()`` gives: a block for ``with``, or a decorator."""

    def __init__(self, explain: bool = False) -> None:
        self._explain = explain
        self._depths: List[int] = []
        self.explanation = ""
        """With ``explain``: the trees that the block became and the source of their kernels; empty before its end, and within another fused block, whose part it is."""

    def __enter__(self) -> "Fused":
        self._depths.append(enter_lazy(self._explain))
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        try:
            self.explanation = exit_lazy(self._depths.pop())
        except NetclError:
            # What the block itself has raised says more.
            if error is None:
                raise

    def __call__(self, function: F) -> F:
        for yields in (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction):
            if yields(function):
                raise FormatError(f"fuse: {function.__name__} gives way to other code before its end; fuse what it calls, or use `with netcl.fuse()` in it")

        @functools.wraps(function)
        def inner(*args: Any, **kwargs: Any) -> Any:
            with Fused():
                return function(*args, **kwargs)

        def explain(*args: Any, **kwargs: Any) -> str:
            """Calls the function; its trees and the source of their kernels."""
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
    """``with netcl.fuse():`` and ``@netcl.fuse``: element-wise operations, comparisons, ``where``, conversions between floats, sums, means and maxima over the last axes and softmax
    wait for others and become one kernel with them, forward and backward; what follows a product or a convolution becomes part of its kernel.

    Operations are called as ever, with the same shapes, dtypes and errors. A result is computed when something uses it: another operation, a view, the host, a backward, the end
    of the block. What nothing refers to by then is never stored, which is where time and memory are saved; so a function, whose names end with it, saves more than a block.
    Values in between are float32 and not rounded to the dtype: results agree with those of single operations within rounding, and are the same in every run. An error of the
    device comes from the operation that needed the result, or from the end of the block. A tensor that waits can be used by other threads once it is computed; before that it is
    a ``LaunchError``. A block within another one is part of it.

    ``with netcl.fuse(explain=True) as block`` notes the trees and the source of their kernels: ``print(block)`` behind the block. A fused function has
    ``function.explain(*args)``, which gives that text.

    >>> import netcl as nc
    >>> @nc.fuse
    ... def gated(x, gate):
    ...     return x * (gate / (1 + (-gate).exp()))
    >>> gated(nc.ones(3), nc.zeros(3)).tolist()
    [0.0, 0.0, 0.0]
    """
    return Fused(explain) if function is None else Fused()(function)


__all__ = ["Fused", "fuse"]
