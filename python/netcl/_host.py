"""Conversions between tensors and the host: lists, buffers, NumPy arrays, DLPack, pickles, and text."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any, List, Optional, Sequence, Tuple

from ._dtype import DTYPES, DType, bool_, float32, int32
from ._netcl import Tensor, from_bytes

if TYPE_CHECKING:
    import numpy as np

MANY = 64
"""Number of elements from which NumPy converts faster than Python."""
CODES = {"float32": "f", "int32": "i", "uint32": "I", "float16": "e", "bool": "B"}


def nested(values: Sequence[Any], shape: Sequence[int]) -> Any:
    """Arranges values as nested lists of this shape."""
    if not shape:
        return values[0]
    step = 1
    for n in shape[1:]:
        step *= n
    return [nested(values[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])]


def host_values(x: Tensor) -> List[Any]:
    """Returns the elements in order as numbers."""
    if x.dtype.name == "bfloat16":
        x = x._to(dtype=float32)
    code = CODES[x.dtype.name]
    data = x._bytes()
    values = list(struct.unpack(f"<{len(data) // struct.calcsize(code)}{code}", data))
    return [v != 0 for v in values] if x.dtype is bool_ else values


def tolist(self: Tensor) -> Any:
    """Returns the elements as nested lists of numbers, or as a number. Waits for the device."""
    if self.size >= MANY:
        return numpy(self).tolist()
    return nested(host_values(self), self.shape)


def numpy(self: Tensor, *, force: bool = False) -> "np.ndarray[Any, Any]":
    """Returns a NumPy array with a copy of the elements, also of a tensor that requires a gradient. bfloat16 becomes float32. Waits for the device."""
    import numpy as np

    if self.dtype.name == "bfloat16":
        self = self._to(dtype=float32)
    if self.dtype is bool_:
        mask: "np.ndarray[Any, Any]" = (np.frombuffer(self._bytes(), dtype=np.uint8) != 0).reshape(self.shape)
        return mask
    flat = np.frombuffer(bytearray(self._bytes()), dtype=np.dtype(self.dtype.name).newbyteorder("<"))
    return flat.astype(flat.dtype.newbyteorder("="), copy=False).reshape(self.shape)


def array(self: Tensor, dtype: Any = None, copy: Optional[bool] = None) -> "np.ndarray[Any, Any]":
    """Implements NumPy's protocol for ``numpy.asarray(tensor)``."""
    if copy is False:
        raise ValueError("the host cannot access a tensor's elements without a copy")
    made = numpy(self)
    return made if dtype is None else made.astype(dtype, copy=False)


def buffer(self: Tensor, flags: int = 0) -> memoryview:
    """Implements the buffer protocol of Python 3.12: returns a copy of the elements."""
    if self.dtype.name == "bfloat16":
        raise BufferError("the buffer protocol does not have a format for bfloat16; convert with .to(netcl.float32)")
    flat = memoryview(self._bytes())
    code = CODES[self.dtype.name]
    if 0 in self.shape or code == "e" or self.dtype is bool_:
        made: Any = numpy(self)
        return memoryview(made)
    return flat.cast(code, self.shape)  # type: ignore[call-overload, no-any-return, unused-ignore]


def dlpack(
    self: Tensor, *, stream: Any = None, max_version: Optional[Tuple[int, int]] = None, dl_device: Optional[Tuple[Any, int]] = None, copy: Optional[bool] = None
) -> Any:
    """Implements DLPack with a copy on the host, for tensors of any device."""
    if self.dtype.name == "bfloat16":
        raise BufferError("DLPack export does not support bfloat16; convert with .to(netcl.float32)")
    return numpy(self).__dlpack__()


def dlpack_device(self: Tensor) -> Tuple[int, int]:
    """Returns the host as the DLPack device."""
    return (1, 0)


def from_numpy(values: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """Creates a tensor with a copy of an array. float64 becomes float32. int64 and smaller integers become int32; numbers that int32 cannot hold are
    an error.
    """
    import numpy as np

    given = np.asarray(values)
    name = given.dtype.name
    if name not in ("float32", "float16", "int32", "uint32"):
        if given.dtype.kind == "f" or name == "bfloat16":
            given = given.astype(np.float32)
        elif name == "bool":
            made = from_bytes(np.ascontiguousarray(given).tobytes(), given.shape, bool_, device)
            return made if dtype is None else made._to(dtype=dtype)
        elif given.dtype.kind in "iu":
            limits = np.iinfo(np.int32)
            if given.size and (given.min() < limits.min or given.max() > limits.max):
                raise OverflowError(f"from_numpy: an array of {name} has numbers that int32 cannot hold")
            given = given.astype(np.int32)
        else:
            raise TypeError(f"from_numpy: got an array of {name}, expected floats or integers")
    given = np.ascontiguousarray(given).reshape(given.shape)
    data = given.astype(given.dtype.newbyteorder("<"), copy=False).tobytes()
    made = from_bytes(data, given.shape, given.dtype.name, device)
    return made if dtype is None else made._to(dtype=dtype)


def shape_of(values: Any) -> Tuple[int, ...]:
    """Returns the shape of nested lists."""
    if not isinstance(values, (list, tuple)):
        return ()
    shapes = {shape_of(v) for v in values}
    if len(shapes) > 1:
        raise ValueError(f"tensor: lists of different lengths in one level: {sorted(shapes)}")
    return (len(values), *(shapes.pop() if shapes else ()))


def flat_values(values: Any, out: List[Any]) -> None:
    """Appends the elements of nested lists to ``out`` in order."""
    if isinstance(values, (list, tuple)):
        for v in values:
            flat_values(v, out)
    else:
        out.append(values)


def _narrowed(values: List[Any]) -> List[Any]:
    """Returns numbers in which those beyond float32 are infinite."""
    limit = 3.4028235677973366e38
    return [math.copysign(math.inf, v) if abs(float(v)) >= limit else v for v in values]


def _is_many(values: Any) -> bool:
    """Returns whether nested lists have many elements, as far as their first lists tell, or numbers of NumPy."""
    count = 1
    while isinstance(values, (list, tuple)):
        if not values:
            return False
        count *= len(values)
        values = values[0]
    return count >= MANY or type(values) not in (bool, int, float)


def _by_numpy(values: Any, dtype: Any, device: Any) -> Optional[Tensor]:
    """Creates a tensor from many numbers by NumPy. Returns ``None`` for values that need a closer look, such as those that do not fit the dtype."""
    if not _is_many(values):
        return None
    import numpy as np

    try:
        given = np.array(values)
    except (ValueError, TypeError, OverflowError):
        return None
    wanted = None if dtype is None else to_dtype(dtype)
    if given.dtype.kind == "f":
        with np.errstate(over="ignore"):
            made = given.astype(np.float32) if wanted is None or wanted.is_floating_point or wanted is bool_ else None
    elif given.dtype.kind == "b":
        made = given
    elif given.dtype.kind in "iu" and given.size:
        name = wanted.name if wanted is not None and wanted.name in ("int32", "uint32", "float32") else "int32"
        fits = name == "float32" or np.iinfo(name).min <= given.min() and given.max() <= np.iinfo(name).max
        made = given.astype(name) if fits else None
    else:
        made = None
    return None if made is None else from_numpy(made, wanted, device)


def from_lists(values: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """Creates a tensor from nested lists of numbers: int32 if all are integers, bool if all are Booleans, and float32 otherwise."""
    quick = _by_numpy(values, dtype, device)
    if quick is not None:
        return quick
    shape = shape_of(values)
    flat: List[Any] = []
    flat_values(values, flat)
    if flat and dtype is None and all(isinstance(v, bool) for v in flat):
        dtype = bool_
    if not all(isinstance(v, (bool, int, float)) or hasattr(v, "dtype") for v in flat):
        raise TypeError("tensor: expected numbers, or nested lists of numbers")
    integers = bool(flat) and all(isinstance(v, int) for v in flat)
    if not integers and dtype is not None and to_dtype(dtype).name == "int32" and not all(-(2**31) - 1 < v < 2**31 for v in flat):
        raise ValueError("tensor: a number, such as NaN or infinity, cannot be converted to int32")
    stored = int32 if integers and (dtype is None or not to_dtype(dtype).is_floating_point) else float32
    if dtype is not None and to_dtype(dtype) is bool_:
        stored, flat = bool_, [v != 0 for v in flat]
    if dtype is not None and to_dtype(dtype).name == "uint32":
        stored = to_dtype(dtype)
    try:
        data = struct.pack(f"<{len(flat)}{CODES[stored.name]}", *(_narrowed(flat) if stored is float32 else flat))
    except struct.error as e:
        raise TypeError(f"tensor: expected numbers that {stored.name} can hold: {e}") from None
    made = from_bytes(data, shape, stored, device)
    return made if dtype is None or to_dtype(dtype) is stored else made._to(dtype=dtype)


def to_dtype(dtype: Any) -> DType:
    """Converts any name of a dtype: netcl's, NumPy's, PyTorch's, or a string."""
    if isinstance(dtype, DType):
        return dtype
    name = getattr(dtype, "__name__", None) or str(dtype)
    name = name.rsplit(".", 1)[-1]
    short = {"float": "float32", "half": "float16", "int": "int32", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "i32": "int32", "u32": "uint32", "bool_": "bool", "mask": "bool"}
    found = DTYPES.get(short.get(name, name))
    if found is None:
        raise TypeError(f"no dtype {dtype!r}; expected one of {', '.join(DTYPES)}")
    return found


def rebuild(data: bytes, shape: Tuple[int, ...], dtype: str, device: str, requires_grad: bool) -> Tensor:
    """Restores a tensor from a pickle, on its former device if that exists, or else on the default device."""
    from .errors import DeviceError

    if dtype == "bool" and len(data) == 4 * math.prod(shape):  # written by an older netcl, whose masks had 32 bits per element
        data = bytes(any(data[i : i + 4]) for i in range(0, len(data), 4))
    try:
        made = from_bytes(data, shape, dtype, device)
    except DeviceError:
        made = from_bytes(data, shape, dtype)
    made.requires_grad = requires_grad
    return made


def reduce(self: Tensor) -> Tuple[Any, ...]:
    """Pickles the elements, shape, dtype, the device's name, and whether a gradient is required."""
    return rebuild, (self._bytes(), self.shape, self.dtype.name, self.device.name, self.requires_grad)
