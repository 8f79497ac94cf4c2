"""Memory that is freed at the end of a block."""

from __future__ import annotations

from typing import Any, TypeVar

from ._netcl import Tensor, enter_scope, exit_scope, keep_in_scope
from ._state import state

T = TypeVar("T")


class scope:
    """Frees the memory of tensors that were created within a block: ``with netcl.scope() as s:``. This includes tensors that names still refer to;
    using one of them later is an error. ``s.keep(tensor)`` excludes a tensor. Gradients and views of tensors from outside of the block are kept.

    The scope applies to the current thread. A step cannot be captured within it, because the step's memory must outlive the scope.
    """

    def __init__(self) -> None:
        self._depth = 0
        self.freed = 0
        """Number of buffers that were still in use when the block ended."""

    def __enter__(self) -> "scope":
        self._depth = enter_scope()
        state.scopes += 1
        return self

    def __exit__(self, *_: Any) -> None:
        state.scopes -= 1
        self.freed = exit_scope(self._depth)

    def keep(self, kept: T) -> T:
        """Excludes a tensor, or the tensors in a tuple, list or dictionary, from the scope. An enclosing scope frees them."""
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
