"""Memory that is freed where a block ends."""

from __future__ import annotations

from typing import Any, TypeVar

from ._netcl import Tensor, enter_scope, exit_scope, keep_in_scope
from ._state import state

T = TypeVar("T")


class scope:
    """``with netcl.scope() as s:`` frees the memory of tensors that were made within when the block ends, also of those that names still refer to; to use one of them later is an
    error that says so. ``s.keep(tensor)`` takes one out. A gradient of a tensor from outside stays, and so do views of such tensors.

    It counts for the thread that it is in. Within it no step is captured, whose memory has to outlive it.
    """

    def __init__(self) -> None:
        self._depth = 0
        self.freed = 0
        """Buffers that were still referred to when the block ended."""

    def __enter__(self) -> "scope":
        self._depth = enter_scope()
        state.scopes += 1
        return self

    def __exit__(self, *_: Any) -> None:
        state.scopes -= 1
        self.freed = exit_scope(self._depth)

    def keep(self, kept: T) -> T:
        """The tensor, or tensors in a tuple, a list or a dictionary, which outlive the block; a scope around this one frees them."""
        if isinstance(kept, Tensor):
            keep_in_scope(kept)
        elif isinstance(kept, (tuple, list)):
            for each in kept:
                self.keep(each)
        elif isinstance(kept, dict):
            for each in kept.values():
                self.keep(each)
        return kept


__all__ = ["scope"]
