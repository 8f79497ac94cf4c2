"""Creating tensors."""

from __future__ import annotations

import math
from collections import deque
from typing import Any, Optional, Sequence, Tuple, Union

from ._dtype import DType, bool_, float32, int32
from ._host import from_lists, from_numpy, to_dtype
from ._netcl import Generator, Tensor, from_bytes
from ._netcl import full as _full
from ._pool import of_queue
from .errors import ShapeError

Shape = Union[int, Sequence[int]]
SEQUENCES = (list, tuple, range, deque)
"""Containers whose elements are numbers, or such containers."""

default_generator = Generator(0)


def manual_seed(seed: int) -> Generator:
    """Restarts the default random stream with ``seed``. The numbers are the same on every device."""
    default_generator.manual_seed(seed)
    return default_generator


def _shape(sizes: Tuple[Any, ...], size: Any = None) -> Tuple[int, ...]:
    sizes = (size,) if size is not None and not sizes else sizes
    if len(sizes) == 1 and not isinstance(sizes[0], int):
        return tuple(sizes[0])
    return tuple(sizes)


def _leaf(made: Tensor, requires_grad: bool) -> Tensor:
    if requires_grad:
        made.requires_grad = True
    return made


def _numbers(data: Any) -> Any:
    """Replaces tensors in nested sequences with their numbers."""
    if isinstance(data, SEQUENCES):
        return [_numbers(v) for v in data]
    return data.tolist() if isinstance(data, Tensor) else data


def _is_plain(data: Any) -> bool:
    """Returns whether nested lists have Python's numbers only."""
    kinds = set(map(type, data)) if isinstance(data, list) else {type(None)}
    return kinds <= {bool, int, float} or (kinds == {list} and all(map(_is_plain, data)))


def tensor(data: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Creates a tensor with a copy of ``data``: numbers, nested lists, NumPy arrays, buffers, or objects that support DLPack. Floats become float32,
    integers int32.
    """
    if isinstance(data, Tensor):
        made = data.detach()._to(device, dtype).clone()
    elif isinstance(data, (int, float, *SEQUENCES)):
        made = from_lists(data if _is_plain(data) else _numbers(data), dtype, device)
    elif hasattr(data, "__array__") or hasattr(data, "__array_interface__"):
        made = from_numpy(data, dtype, device)
    elif hasattr(data, "__dlpack__"):
        made = from_dlpack(data)._to(device, dtype)
    else:
        made = from_numpy(memoryview(data), dtype, device)
    return _leaf(made, requires_grad)


def constructed(device: Any, shape: Any, dtype: Any, data: Any) -> Tensor:
    """Creates the tensor of ``Tensor(device, shape, dtype, data)``: zeros without data. Data of another shape with as many elements is reshaped.
    PyTorch's forms are ``Tensor(2, 3)``, which has zeros, and ``Tensor([1, 2])``, which has float32.
    """
    sizes = [n for n in (device, shape, dtype, data) if n is not None]
    if sizes and all(isinstance(n, int) for n in sizes):
        return zeros(*sizes)
    if shape is None and dtype is None and data is None and (isinstance(device, (list, tuple)) or hasattr(device, "__array__")):
        return tensor(device, float32)
    if shape is None:
        raise TypeError("Tensor: expected Tensor(device, shape, dtype, data=None, requires_grad=False), sizes, or the elements as lists")
    device = of_queue(device)
    wanted = (int(shape),) if isinstance(shape, int) else tuple(int(n) for n in shape)
    stored = float32 if dtype is None else to_dtype(dtype)
    if data is None:
        return zeros(*wanted, dtype=stored, device=device)
    made = tensor(data.detach() if isinstance(data, Tensor) else data, dtype=stored, device=device)
    if made.size != math.prod(wanted):
        raise ShapeError(f"Tensor: data has shape {tuple(made.shape)}, expected {wanted}")
    return made if tuple(made.shape) == wanted else made.reshape(wanted)


def asarray(data: Any, dtype: Any = None, device: Any = None, copy: Optional[bool] = None) -> Tensor:
    """Converts ``data`` to a tensor. A tensor is returned unchanged."""
    if isinstance(data, Tensor) and not copy:
        return data._to(device, dtype)
    return tensor(data, dtype, device)


def from_dlpack(data: Any) -> Tensor:
    """Creates a tensor with a copy of another library's object on the host."""
    if isinstance(data, Tensor):
        return data.detach().clone()
    import numpy as np

    return from_numpy(np.from_dlpack(data))


def full(
    shape: Optional[Shape] = None, value: Optional[float] = None, dtype: Any = None, device: Any = None, requires_grad: bool = False, *, size: Optional[Shape] = None, fill_value: Optional[float] = None
) -> Tensor:
    """Creates a tensor with ``value`` in every element. ``size`` and ``fill_value`` are PyTorch's names of the arguments."""
    shape, value = (size if shape is None else shape), (fill_value if value is None else value)
    if shape is None or value is None:
        raise TypeError("full: expected a shape and a value, such as full((2, 3), 1.5)")
    if dtype is None:
        dtype = bool_ if isinstance(value, bool) else int32 if isinstance(value, int) else float32
    return _leaf(_full(shape, value, dtype, device), requires_grad)


def zeros(*shape: Any, size: Any = None, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Creates a tensor of zeros."""
    return _leaf(_full(_shape(shape, size), 0.0, dtype, device), requires_grad)


def ones(*shape: Any, size: Any = None, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Creates a tensor of ones."""
    return _leaf(_full(_shape(shape, size), 1.0, dtype, device), requires_grad)


def empty(*shape: Any, size: Any = None, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Creates a tensor whose elements will be written later. They are zeros, so that runs are reproducible."""
    return zeros(*_shape(shape, size), dtype=dtype, device=device, requires_grad=requires_grad)


def _like(x: Tensor, dtype: Any, device: Any) -> Tuple[Any, Any]:
    return (x.dtype if dtype is None else dtype, x.device if device is None else device)


def zeros_like(x: Tensor, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Creates zeros with the shape, dtype and device of ``x``."""
    dtype, device = _like(x, dtype, device)
    return _leaf(_full(x.shape, 0.0, dtype, device), requires_grad)


def ones_like(x: Tensor, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Creates ones with the shape, dtype and device of ``x``."""
    dtype, device = _like(x, dtype, device)
    return _leaf(_full(x.shape, 1.0, dtype, device), requires_grad)


def full_like(x: Tensor, fill_value: float, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Creates a tensor with ``fill_value`` in every element, and the shape, dtype and device of ``x``."""
    dtype, device = _like(x, dtype, device)
    return _leaf(_full(x.shape, fill_value, dtype, device), requires_grad)


def arange(start: float = 0, stop: Optional[float] = None, step: float = 1, dtype: Any = None, device: Any = None, *, end: Optional[float] = None, requires_grad: bool = False) -> Tensor:
    """Creates the numbers from ``start`` to ``stop`` (exclusive). Integers give int32. ``end`` is PyTorch's name of ``stop``."""
    import numpy as np

    stop = end if stop is None else stop
    if stop is None:
        start, stop = 0, start
    if step == 0:
        raise ValueError("arange: the step must not be 0")
    if (stop - start) * step < 0:
        raise ValueError(f"arange: the step {step} leads away from {stop}")
    count = max(0, math.ceil((stop - start) / step))
    integers = all(isinstance(v, int) for v in (start, stop, step))
    stored = (int32 if integers else float32) if dtype is None else to_dtype(dtype)
    if not count:
        return _leaf(zeros(0, dtype=stored, device=device), requires_grad)
    if integers:
        if not -(2**63) <= min(start, stop) <= max(start, stop) < 2**63:
            raise OverflowError(f"arange: {start} to {stop} exceeds the integers")
        last = start + (count - 1) * step
        fits = -(2**31) <= min(start, last) <= max(start, last) < 2**31 and not stored.name == "uint32"
        values: Any = np.arange(start, stop, step, dtype=np.int32) if fits and abs(step) < 2**31 and -(2**31) <= stop < 2**31 else np.arange(count, dtype=np.int64) * int(step) + int(start)
    elif stored.is_floating_point:
        values = start + np.arange(count, dtype=np.float64) * step
    else:
        # Integers of fractions: the start and the step are rounded towards 0 first, as in PyTorch.
        values = int(start) + np.arange(count, dtype=np.int64) * int(step)
    if stored.name == "uint32":
        return from_numpy(values.astype(np.uint32), None, device) if values.min() >= 0 and values.max() < 2**32 else from_numpy(values, stored, device)
    return _leaf(from_numpy(values, stored, device), requires_grad)


def linspace(
    start: float, stop: Optional[float] = None, count: Optional[int] = None, dtype: Any = None, device: Any = None, endpoint: bool = True, *, end: Optional[float] = None, steps: Optional[int] = None, requires_grad: bool = False
) -> Tensor:
    """Creates ``count`` evenly spaced numbers from ``start`` to ``stop``. ``end`` and ``steps`` are PyTorch's names."""
    import numpy as np

    stop, count = (end if stop is None else stop), (steps if count is None else count)
    if stop is None or count is None:
        raise TypeError("linspace: expected linspace(start, end, steps)")
    return _leaf(from_numpy(np.linspace(start, stop, count, endpoint), float32 if dtype is None else to_dtype(dtype), device), requires_grad)


def eye(n: int, m: Optional[int] = None, k: int = 0, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Creates a matrix (n, m) with ones on diagonal ``k`` and zeros elsewhere. ``m`` is ``n`` by default."""
    import numpy as np

    return _leaf(from_numpy(np.eye(n, m, k, np.float32), float32 if dtype is None else to_dtype(dtype), device), requires_grad)


def rand(*shape: Any, size: Any = None, dtype: Any = None, device: Any = None, requires_grad: bool = False, generator: Optional[Generator] = None) -> Tensor:
    """Draws uniform numbers in [0, 1)."""
    made = (generator or default_generator).uniform(_shape(shape, size), 0.0, 1.0, dtype, device)
    return _leaf(made, requires_grad)


def randn(*shape: Any, size: Any = None, dtype: Any = None, device: Any = None, requires_grad: bool = False, generator: Optional[Generator] = None) -> Tensor:
    """Draws normally distributed numbers with mean 0 and standard deviation 1."""
    made = (generator or default_generator).normal(_shape(shape, size), 0.0, 1.0, dtype, device)
    return _leaf(made, requires_grad)


def randint(
    low: int = 0, high: Any = None, shape: Optional[Shape] = None, dtype: Any = None, device: Any = None, generator: Optional[Generator] = None, *, size: Optional[Shape] = None
) -> Tensor:
    """Draws uniformly distributed integers (int32) from ``low`` (inclusive) to ``high`` (exclusive), or below the first number: ``randint(5, (2, 3))``."""
    shape = size if shape is None else shape
    if shape is None and high is not None and not isinstance(high, int):
        high, shape = None, high
    if high is None:
        low, high = 0, low
    if shape is None:
        raise TypeError("randint: expected randint(low, high, size)")
    if high <= low:
        raise ValueError(f"randint: the range from {low} to {high} is empty")
    stored = int32 if dtype is None else to_dtype(dtype)
    name = "uint32" if stored.name == "uint32" else "int32"
    least, most = (0, 2**32) if name == "uint32" else (-(2**31), 2**31)
    if low < least or high > most:
        raise ValueError(f"randint: the range from {low} to {high} exceeds {name}, which has {least} to {most}")
    drawn = (generator or default_generator).integers(shape, low, high, name == "uint32", device)
    return drawn if stored.name == name else drawn._to(dtype=stored)
