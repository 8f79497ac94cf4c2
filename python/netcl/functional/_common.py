"""Checks of arguments that several functions share."""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence, Tuple, Union

from .._inplace import overwrite
from .._netcl import Tensor
from .._state import state
from ..errors import DTypeError, ShapeError, UnsupportedError

Sizes = Union[int, Sequence[int]]


def sizes(name: str, what: str, given: Any, n: int) -> Tuple[int, ...]:
    """Returns one number for each of ``n`` axes. A single number counts for all."""
    if isinstance(given, int):
        return (given,) * n
    found = tuple(int(v) for v in given)
    if len(found) == 1:
        return found * n
    if len(found) != n:
        raise ShapeError(f"{name}: {what} is {found}, expected one number or {n}")
    return found


def batched(name: str, x: Tensor, n: int) -> Tuple[Tensor, bool]:
    """Returns x (N, C, ..) with ``n`` axes after the channels, and whether it was given without N."""
    if x.ndim not in (n + 1, n + 2):
        raise ShapeError(f"{name}: the input has shape {tuple(x.shape)}, expected {n + 2} axes, or {n + 1} without the batch")
    return (x.unsqueeze(0), True) if x.ndim == n + 1 else (x, False)


def legacy(size_average: Optional[bool], reduce: Optional[bool], reduction: str) -> str:
    """Returns the reduction that PyTorch's older arguments select."""
    if size_average is None and reduce is None:
        return reduction
    if reduce is False:
        return "none"
    return "sum" if size_average is False else "mean"


def reduced(name: str, losses: Tensor, reduction: str) -> Tensor:
    """Returns the mean, the sum, or each loss."""
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"{name}: reduction is {reduction!r}, expected mean, sum or none")
    return losses.mean() if reduction == "mean" else losses.sum() if reduction == "sum" else losses


def in_place(name: str, x: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
    """Writes ``compute(x)`` to the memory of x and returns x. A write whose gradient would be wrong is refused."""
    written: Tensor = overwrite(f"{name}: inplace=True", x, compute)
    return written


def need_floats(name: str, x: Tensor) -> None:
    """Raises an error if x does not have floats."""
    if not x.dtype.is_floating_point:
        raise DTypeError(f"{name}: the input is {x.dtype.name}, expected floats; write x.float()")


def can_read() -> bool:
    """Returns whether the values of tensors can be checked now. A captured step has only commands of the device."""
    return not state.capturing


def refuse(name: str, advice: str) -> UnsupportedError:
    """Returns the error of an argument that is not supported."""
    return UnsupportedError(f"{name} is not supported; {advice}")
