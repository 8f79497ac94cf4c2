"""Buffers on the device."""

from __future__ import annotations

import weakref
from typing import Any, Optional, Sequence, Tuple

import numpy as np

from ..._create import zeros as _zeros
from ..._dtype import float32, int32
from ..._netcl import Tensor, free_memory, from_bytes
from ...errors import FormatError

FP_TYPE = np.float32
"""Type of tensors on the device."""
ADAM_STATE_TYPE = np.float32
"""Type of the moments of ``AdamOptimizer``."""

registered: "weakref.WeakSet[Any]" = weakref.WeakSet()
"""Buffers and tensors whose memory ``ocl_shutdown`` frees."""


class GPUBuffer:
    """A buffer of ``size_in_bytes``. ``dtype`` is the type of its zeros; any type can be written and read. If the device lacks memory, the exception
    is a ``MemoryError``.
    """

    def __init__(self, size_in_bytes: int, tag: str = "buffer", _init_zeros: bool = False, dtype: Any = FP_TYPE, _tensor: Optional[Tensor] = None) -> None:
        if size_in_bytes < 0:
            raise FormatError(f"GPUBuffer {tag!r}: the size is {size_in_bytes} bytes, expected at least 0")
        self.size_in_bytes, self.tag, self.dtype = int(size_in_bytes), tag, np.dtype(dtype)
        stored = float32 if self.dtype == np.float32 else int32
        # New memory is always zero, so that runs are reproducible.
        self._tensor = _zeros(-(-self.size_in_bytes // 4), dtype=stored) if _tensor is None else _tensor
        self._allocated = True
        registered.add(self)

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.size_in_bytes

    @property
    def ptr(self) -> Optional[int]:
        """Number that identifies the memory, or ``None`` after it was freed. Buffers that share memory have the same number."""
        if not self._allocated:
            return None
        number, offset = self._tensor._place
        return ((number + 1) << 40) + offset

    def _there(self) -> Tensor:
        if not self._allocated:
            raise FormatError(f"GPUBuffer {self.tag!r}: its memory was freed")
        return self._tensor

    def _floats(self, shape: Optional[Sequence[int]]) -> Tensor:
        """Returns a tensor of this shape over the memory."""
        place = self._there()
        if place.dtype is not float32:
            raise FormatError(f"GPUBuffer {self.tag!r}: a tensor needs a buffer of {FP_TYPE.__name__}, not of {self.dtype.name}")
        if shape is None:
            return place
        needed = 4 * int(np.prod(shape, dtype=np.int64))
        if needed != self.size_in_bytes:
            raise FormatError(f"GPUBuffer {self.tag!r}: a tensor of shape {tuple(shape)} needs {needed} bytes, the buffer has {self.size_in_bytes} bytes")
        return place.reshape(tuple(shape))

    def write(self, host_data: Any) -> None:
        """Overwrites the buffer with an array of the same size in bytes."""
        data = np.ascontiguousarray(host_data)
        if data.nbytes != self.size_in_bytes:
            raise FormatError(f"GPUBuffer {self.tag!r}: got {data.nbytes} bytes, expected {self.size_in_bytes} bytes")
        place = self._there()
        words = data.tobytes() + bytes(place.size * place.itemsize - data.nbytes)
        if place.is_contiguous():
            place._set_bytes(words)
        else:
            place._put(..., from_bytes(words, place.shape, place.dtype, place.device))

    def read(self, shape: Any, dtype: Any = FP_TYPE) -> Any:
        """Returns an array of this shape with the first elements."""
        wanted, shape = np.dtype(dtype), (shape,) if isinstance(shape, int) else tuple(shape)
        count = int(np.prod(shape, dtype=np.int64))
        if count * wanted.itemsize > self.size_in_bytes:
            raise FormatError(f"GPUBuffer {self.tag!r}: cannot read {count * wanted.itemsize} bytes from {self.size_in_bytes} bytes")
        return np.frombuffer(self._there()._bytes(), dtype=wanted, count=count).reshape(shape).copy()

    def clone(self) -> "GPUBuffer":
        """Returns a buffer of the same size with a copy of the contents, made on the device."""
        return GPUBuffer(self.size_in_bytes, self.tag, dtype=self.dtype, _tensor=self._there().detach().clone())

    def free(self) -> None:
        """Frees the memory. Freeing it again has no effect."""
        if self._allocated:
            self._allocated = False
            free_memory(self._tensor)

    free_memory = free


class TableBuffer(GPUBuffer):
    """A buffer with the elements of a tensor that does not change."""

    def __init__(self, values: Any) -> None:
        values = np.asarray(values, dtype=FP_TYPE)
        super().__init__(values.nbytes, "table")
        self.shape: Tuple[int, ...] = values.shape
        self.write(values)

    def to_host(self) -> Any:
        """Returns a NumPy array."""
        return self.read(self.shape)


__all__ = ["ADAM_STATE_TYPE", "FP_TYPE", "GPUBuffer", "TableBuffer", "registered"]
