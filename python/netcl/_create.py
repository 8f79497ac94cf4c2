"""New tensors."""

from __future__ import annotations

import math
from typing import Any, Optional, Sequence, Tuple, Union

from ._dtype import DType, bool_, float32, int32
from ._host import from_lists, from_numpy, to_dtype
from ._netcl import Generator, Tensor, from_bytes
from ._netcl import full as _full

Shape = Union[int, Sequence[int]]

default_generator = Generator(0)


def manual_seed(seed: int) -> Generator:
    """Begins the stream of random numbers of ``seed``; the same numbers on every device."""
    default_generator.manual_seed(seed)
    return default_generator


def _shape(sizes: Tuple[Any, ...]) -> Tuple[int, ...]:
    if len(sizes) == 1 and not isinstance(sizes[0], int):
        return tuple(sizes[0])
    return tuple(sizes)


def _leaf(made: Tensor, requires_grad: bool) -> Tensor:
    if requires_grad:
        made.requires_grad = True
    return made


def _numbers(data: Any) -> Any:
    """Nested lists with the numbers of tensors in their place."""
    if isinstance(data, (list, tuple)):
        return [_numbers(v) for v in data]
    return data.tolist() if isinstance(data, Tensor) else data


def tensor(data: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor with a copy of ``data``: numbers, nested lists, NumPy arrays, buffers, or what speaks DLPack. Floats are float32, integers int32."""
    if isinstance(data, Tensor):
        made = data.detach()._to(device, dtype).clone()
    elif isinstance(data, (int, float, list, tuple)):
        made = from_lists(_numbers(data), dtype, device)
    elif hasattr(data, "__array__") or hasattr(data, "__array_interface__"):
        made = from_numpy(data, dtype, device)
    elif hasattr(data, "__dlpack__"):
        made = from_dlpack(data)._to(device, dtype)
    else:
        made = from_numpy(memoryview(data), dtype, device)
    return _leaf(made, requires_grad)


def asarray(data: Any, dtype: Any = None, device: Any = None, copy: Optional[bool] = None) -> Tensor:
    """``data`` as a tensor, itself where it is one already."""
    if isinstance(data, Tensor) and not copy:
        return data._to(device, dtype)
    return tensor(data, dtype, device)


def from_dlpack(data: Any) -> Tensor:
    """A tensor with a copy of what another library's object holds on the host."""
    if isinstance(data, Tensor):
        return data.detach().clone()
    import numpy as np

    return from_numpy(np.from_dlpack(data))


def full(shape: Shape, value: float, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Every element ``value``."""
    if dtype is None:
        dtype = bool_ if isinstance(value, bool) else int32 if isinstance(value, int) else float32
    return _leaf(_full(shape, value, dtype, device), requires_grad)


def zeros(*shape: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Zeros."""
    return _leaf(_full(_shape(shape), 0.0, dtype, device), requires_grad)


def ones(*shape: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Ones."""
    return _leaf(_full(_shape(shape), 1.0, dtype, device), requires_grad)


def empty(*shape: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Memory for elements that are written later; zeros, so that runs repeat."""
    return zeros(*shape, dtype=dtype, device=device, requires_grad=requires_grad)


def _like(x: Tensor, dtype: Any, device: Any) -> Tuple[Any, Any]:
    return (x.dtype if dtype is None else dtype, x.device if device is None else device)


def zeros_like(x: Tensor, dtype: Any = None, device: Any = None) -> Tensor:
    """Zeros of the shape, dtype and device of ``x``."""
    dtype, device = _like(x, dtype, device)
    return _full(x.shape, 0.0, dtype, device)


def ones_like(x: Tensor, dtype: Any = None, device: Any = None) -> Tensor:
    """Ones of the shape, dtype and device of ``x``."""
    dtype, device = _like(x, dtype, device)
    return _full(x.shape, 1.0, dtype, device)


def full_like(x: Tensor, value: float, dtype: Any = None, device: Any = None) -> Tensor:
    """``value`` everywhere, of the shape, dtype and device of ``x``."""
    dtype, device = _like(x, dtype, device)
    return _full(x.shape, value, dtype, device)


def arange(start: float, stop: Optional[float] = None, step: float = 1, dtype: Any = None, device: Any = None) -> Tensor:
    """Numbers from ``start`` up to ``stop`` without it; integers give int32."""
    if stop is None:
        start, stop = 0, start
    if step == 0:
        raise ValueError("arange: a step of 0, expected another")
    count = max(0, math.ceil((stop - start) / step))
    values = [start + i * step for i in range(count)]
    integers = all(isinstance(v, int) for v in (start, stop, step))
    stored = (int32 if integers else float32) if dtype is None else to_dtype(dtype)
    return from_lists(values, stored, device) if values else zeros(0, dtype=stored, device=device)


def linspace(start: float, stop: float, count: int, dtype: Any = None, device: Any = None, endpoint: bool = True) -> Tensor:
    """``count`` numbers from ``start`` to ``stop``, evenly apart."""
    parts = count - 1 if endpoint else count
    values = [start + (stop - start) * i / parts if parts else start for i in range(count)]
    if endpoint and count > 1:
        values[-1] = stop
    return from_lists([float(v) for v in values], dtype, device) if values else zeros(0, dtype=dtype, device=device)


def eye(rows: int, columns: Optional[int] = None, k: int = 0, dtype: Any = None, device: Any = None) -> Tensor:
    """1 on diagonal ``k``, 0 elsewhere."""
    columns = rows if columns is None else columns
    stored = float32 if dtype is None else to_dtype(dtype)
    if rows == 0 or columns == 0:
        return zeros(rows, columns, dtype=stored, device=device)
    return from_lists([[float(c == r + k) for c in range(columns)] for r in range(rows)], stored, device)


def rand(*shape: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False, generator: Optional[Generator] = None) -> Tensor:
    """Uniform in [0, 1)."""
    made = (generator or default_generator).uniform(_shape(shape), 0.0, 1.0, dtype, device)
    return _leaf(made, requires_grad)


def randn(*shape: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False, generator: Optional[Generator] = None) -> Tensor:
    """Normal with mean 0 and standard deviation 1."""
    made = (generator or default_generator).normal(_shape(shape), 0.0, 1.0, dtype, device)
    return _leaf(made, requires_grad)


def randint(low: int, high: int, shape: Shape, dtype: Any = None, device: Any = None, generator: Optional[Generator] = None) -> Tensor:
    """Integers from ``low`` (inclusive) to ``high`` (exclusive), all equally likely."""
    if high <= low:
        raise ValueError(f"randint: from {low} to {high}, expected a range with a number in it")
    stored = int32 if dtype is None else to_dtype(dtype)
    name = "uint32" if stored.name == "uint32" else "int32"
    least, most = (0, 2**32) if name == "uint32" else (-(2**31), 2**31)
    if low < least or high > most:
        raise ValueError(f"randint: from {low} to {high}, expected a range within {least} to {most}, that of {name}")
    drawn = (generator or default_generator).integers(shape, low, high, name == "uint32", device)
    return drawn if stored.name == name else drawn._to(dtype=stored)
