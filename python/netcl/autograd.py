"""What is recorded for gradients."""

from __future__ import annotations

import functools
from types import TracebackType
from typing import Any, Callable, List, Optional, Type, TypeVar

from ._netcl import is_recording, set_recording

F = TypeVar("F", bound=Callable[..., Any])


class _Recording:
    """For a ``with`` statement or as a decorator: operations of this thread are recorded, or are not."""

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
    """Operations leave nothing on the tape."""


class enable_grad(_Recording):
    """Operations are recorded again, within a ``no_grad``."""

    _on = True


def is_grad_enabled() -> bool:
    """Whether operations of this thread are recorded."""
    return is_recording()


__all__ = ["enable_grad", "is_grad_enabled", "no_grad"]
