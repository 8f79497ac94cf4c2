"""Tensors that belong to a module."""

from __future__ import annotations

from typing import Any, Optional, Tuple

from .._create import zeros
from .._netcl import Tensor


class Parameter(Tensor):
    """A tensor that a module trains."""

    def __new__(cls, data: Optional[Tensor] = None, requires_grad: bool = True) -> "Parameter":
        made: Parameter = super().__new__(cls, (zeros(0) if data is None else data).detach())  # type: ignore[assignment, unused-ignore]
        made.requires_grad = requires_grad
        return made

    def __deepcopy__(self, memo: Any) -> "Parameter":
        if id(self) not in memo:
            memo[id(self)] = Parameter(self.detach().clone(), self.requires_grad)
        made: Parameter = memo[id(self)]
        return made

    def __reduce__(self) -> Tuple[Any, ...]:
        return _parameter, (Tensor(self.detach()), self.requires_grad)


def _parameter(data: Tensor, requires_grad: bool) -> Parameter:
    return Parameter(data, requires_grad)


class Buffer(Tensor):
    """A tensor that belongs to a module but is not trained. It is in the state if it is ``persistent``."""

    persistent: bool

    def __new__(cls, data: Optional[Tensor] = None, *, persistent: bool = True) -> "Buffer":
        made: Buffer = super().__new__(cls, (zeros(0) if data is None else data).detach())  # type: ignore[assignment, unused-ignore]
        made.persistent = persistent
        return made


__all__ = ["Buffer", "Parameter"]
