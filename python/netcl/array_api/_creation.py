"""Creating arrays."""

from __future__ import annotations

import builtins
from typing import Any, List, Optional, Tuple, Union

from .. import _create, ops
from .._dtype import DType, bool_, float32, int32
from .._netcl import Tensor

Shape = Union[int, Tuple[int, ...]]


def _known(dtype: Any) -> Any:
    if dtype is not None and not isinstance(dtype, DType):
        raise TypeError(f"dtype {dtype!r} is not supported; expected bool, int32, uint32 or float32")
    return dtype


def arange(start: float, /, stop: Optional[float] = None, step: float = 1, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Creates the numbers from ``start`` to ``stop`` (exclusive)."""
    return _create.arange(start, stop, step, _known(dtype), device)


def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: Optional[builtins.bool] = None) -> Tensor:
    """Creates an array from numbers, nested sequences, buffers or another library's array. An array is returned unchanged unless ``copy`` is true."""
    _known(dtype)
    if isinstance(obj, Tensor):
        moved = obj._to(device, dtype)
        changed = (dtype is not None and dtype is not obj.dtype) or moved.device != obj.device
        if copy is False and changed:
            raise ValueError("asarray: the array has another type or device, which requires a copy")
        return moved.clone() if copy and not changed else moved
    if copy is False and not isinstance(obj, (bool, int, float)):
        raise ValueError("asarray: host memory requires a copy")
    if isinstance(obj, complex):
        raise TypeError("asarray: complex numbers are not supported")
    return _create.tensor(obj, dtype, device)


def empty(shape: Shape, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Creates an array whose elements will be written later."""
    return zeros(shape, dtype=dtype, device=device)


def empty_like(x: Tensor, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Creates an uninitialized array with the shape and type of ``x``."""
    return zeros_like(x, dtype=dtype, device=device)


def eye(n_rows: int, n_cols: Optional[int] = None, /, *, k: int = 0, dtype: Any = None, device: Any = None) -> Tensor:
    """Creates a matrix with ones on diagonal ``k`` and zeros elsewhere."""
    return _create.eye(n_rows, n_cols, k, None, device)._to(None, float32 if dtype is None else _known(dtype))


def from_dlpack(x: Any, /, *, device: Any = None, copy: Optional[builtins.bool] = None) -> Tensor:
    """Creates an array with a copy of another library's host array. netcl's own arrays are returned unchanged unless ``copy`` is true."""
    if isinstance(x, Tensor) and not copy:
        return x.detach()._to(device, None)
    if copy is False:
        raise ValueError("from_dlpack: host memory requires a copy")
    return _create.from_dlpack(x)._to(device, None)


def full(shape: Shape, fill_value: Union[bool, int, float], *, dtype: Any = None, device: Any = None) -> Tensor:
    """Creates an array with ``fill_value`` in every element."""
    if isinstance(fill_value, complex):
        raise TypeError("full: complex numbers are not supported")
    return _create.full(shape, fill_value, _known(dtype), device)


def full_like(x: Tensor, /, fill_value: Union[bool, int, float], *, dtype: Any = None, device: Any = None) -> Tensor:
    """Creates an array with ``fill_value`` in every element, and the shape and type of ``x``."""
    return _create.full_like(x, fill_value, _known(dtype), device)


def linspace(start: float, stop: float, /, num: int, *, dtype: Any = None, device: Any = None, endpoint: builtins.bool = True) -> Tensor:
    """Creates ``num`` evenly spaced numbers from ``start`` to ``stop``."""
    return _create.linspace(start, stop, num, _known(dtype), device, endpoint)


def meshgrid(*arrays: Tensor, indexing: str = "xy") -> List[Tensor]:
    """Creates the coordinates of a grid from those along its axes."""
    if indexing not in ("xy", "ij"):
        raise ValueError(f"meshgrid: indexing {indexing!r}, expected 'xy' or 'ij'")
    n = len(arrays)
    order = list(range(n))
    if indexing == "xy" and n > 1:
        order[0], order[1] = 1, 0
    shape = [0] * n
    for x, axis in zip(arrays, order):
        shape[axis] = x.size
    return [
        ops.expand(ops.reshape(x, [x.size if a == axis else 1 for a in range(n)]), shape).clone() if n else x
        for x, axis in zip(arrays, order)
    ]


def ones(shape: Shape, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Creates an array of ones."""
    return _create.full(shape, 1.0, float32 if dtype is None else _known(dtype), device)


def ones_like(x: Tensor, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Creates ones with the shape and type of ``x``."""
    return _create.ones_like(x, _known(dtype), device)


def zeros(shape: Shape, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Creates an array of zeros."""
    return _create.full(shape, 0.0, float32 if dtype is None else _known(dtype), device)


def zeros_like(x: Tensor, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Creates zeros with the shape and type of ``x``."""
    return _create.zeros_like(x, _known(dtype), device)


def _triangle(name: str, x: Tensor, k: int) -> Tensor:
    if x.ndim < 2:
        raise ValueError(f"{name}: got an array of shape {x.shape}, expected at least two axes")
    if x.dtype is bool_:
        return _triangle(name, x._to(None, int32), k)._to(None, bool_)
    rows, columns = x.shape[-2:]
    if x.size == 0:
        return x.clone()
    kept = max(-rows - 1, min(columns + 1, k))
    above = "<=" if name == "tril" else ">="
    from .._netcl import evaluate

    row = ops.reshape(_create.arange(rows, dtype=int32, device=x.device), (rows, 1))
    column = _create.arange(columns, dtype=int32, device=x.device)
    mask = evaluate(f"x1 - x0 {above} {kept}", [row, column], bool_)
    return ops.where_cond(mask, x, _create.full((), 0, x.dtype, x.device))


def tril(x: Tensor, /, *, k: int = 0) -> Tensor:
    """Returns the lower triangles of matrices: elements above diagonal ``k`` are 0."""
    return _triangle("tril", x, k)


def triu(x: Tensor, /, *, k: int = 0) -> Tensor:
    """Returns the upper triangles of matrices: elements below diagonal ``k`` are 0."""
    return _triangle("triu", x, k)

