"""Buffers and tensors."""

from __future__ import annotations

import weakref
from typing import Any, Optional, Tuple, Union

import numpy as np

from ... import ops
from ..._create import tensor as _tensor
from ..._create import zeros as _zeros
from ..._host import to_dtype
from ..._netcl import Tensor, default_device, free_memory, set_default_device
from ...autograd import is_grad_enabled, no_grad
from ...errors import FormatError

FP_TYPE = np.float32

_there: "weakref.WeakSet[Any]" = weakref.WeakSet()


def ocl_initialize(device_index: Union[int, str] = 0) -> str:
    """Selects the device of all tensors: an index into ``netcl.devices()``, or a name such as ``sim``. Returns its name."""
    set_default_device(str(device_index))
    OclTensor._ocl_initialized = True
    return default_device().name


def ocl_shutdown() -> None:
    """Frees the memory of all remaining buffers and tensors, and returns it to the driver."""
    for each in list(_there):
        each.free_memory()
    OclTensor._ocl_initialized = False
    default_device().release_cached_memory()


class GPUBuffer:
    """A buffer on the device."""

    def __init__(self, size_in_bytes: int, tag: str = "buffer", _init_zeros: bool = False, dtype: Any = FP_TYPE, _tensor: Optional[Tensor] = None) -> None:
        self.size_in_bytes, self.tag, self.dtype = size_in_bytes, tag, np.dtype(dtype)
        self._tensor = _zeros(-(-size_in_bytes // self.dtype.itemsize), dtype=to_dtype(self.dtype)) if _tensor is None else _tensor
        self._allocated = True
        _there.add(self)

    @property
    def ptr(self) -> Optional[Tensor]:
        """Object that represents the memory, or ``None`` after it was freed."""
        return self._tensor if self._allocated else None

    def _there(self) -> Tensor:
        if not self._allocated:
            raise FormatError(f"GPUBuffer {self.tag!r}: its memory was freed")
        return self._tensor

    def write(self, host_data: Any) -> None:
        """Overwrites the buffer with an array of the same size in bytes."""
        data = np.ascontiguousarray(host_data)
        if data.nbytes != self.size_in_bytes:
            raise FormatError(f"GPUBuffer {self.tag!r}: got {data.nbytes} bytes, expected {self.size_in_bytes} bytes")
        place = self._there()
        place._set_bytes(data.tobytes() + bytes(place.size * place.itemsize - data.nbytes))

    def read(self, shape: Tuple[int, ...], dtype: Any = FP_TYPE) -> Any:
        """Returns an array with the contents."""
        wanted = np.dtype(dtype)
        count = int(np.prod(shape, dtype=np.int64))
        if count * wanted.itemsize > self.size_in_bytes:
            raise FormatError(f"GPUBuffer {self.tag!r}: cannot read {count * wanted.itemsize} bytes from {self.size_in_bytes} bytes")
        return np.frombuffer(self._there()._bytes(), dtype=wanted, count=count).reshape(shape).copy()

    def clone(self) -> "GPUBuffer":
        """Returns a copy on the device."""
        return GPUBuffer(self.size_in_bytes, self.tag, dtype=self.dtype, _tensor=self._there().detach().clone())

    def free(self) -> None:
        """Frees the memory."""
        if self._allocated:
            self._allocated = False
            free_memory(self._tensor)

    free_memory = free


class OclTensor(Tensor):
    """A float32 tensor with OCL-LLM's methods."""

    _ocl_initialized = False

    def __new__(cls, data: Any = None, requires_grad: bool = False, _gpu_buffer: Optional[GPUBuffer] = None, _shape: Optional[Tuple[int, ...]] = None) -> "OclTensor":
        if _gpu_buffer is not None:
            made = _gpu_buffer._there()
            made = made if _shape is None else made.reshape(_shape)
        elif isinstance(data, Tensor):
            made = data
        else:
            made = _tensor(np.asarray(data, dtype=FP_TYPE))
        out = cls._of(made)
        if requires_grad and is_grad_enabled():
            out.requires_grad = True
        return out

    @classmethod
    def _of(cls, made: Tensor) -> "OclTensor":
        out: OclTensor = Tensor.__new__(cls, made)  # type: ignore[assignment, unused-ignore]
        _there.add(out)
        return out

    @staticmethod
    def empty(shape: Any, requires_grad: bool = False) -> "OclTensor":
        """Creates a tensor whose elements will be written later."""
        return OclTensor.zeros(shape, requires_grad)

    @staticmethod
    def zeros(shape: Any, requires_grad: bool = False) -> "OclTensor":
        """Creates a tensor of zeros."""
        return OclTensor(_zeros(*([shape] if isinstance(shape, int) else shape)), requires_grad)

    @staticmethod
    def no_grad() -> Any:
        """Turns recording off: ``with OclTensor.no_grad():``."""
        return no_grad()

    @property
    def data(self) -> GPUBuffer:
        """The tensor's memory as a buffer."""
        return GPUBuffer(self.size * self.itemsize, "tensor", _tensor=self.detach())

    @property
    def numel(self) -> int:  # type: ignore[override, unused-ignore]
        """Returns the number of elements."""
        return self.size

    def get_grad_tensor(self) -> "Optional[OclTensor]":
        """Returns the gradient, or ``None``."""
        return None if self.grad is None else OclTensor._of(self.grad)

    def zero_grad(self) -> None:
        """Drops the gradient, so that the next one replaces it."""
        self.grad = None

    def to_host(self) -> Any:
        """Returns a NumPy array."""
        return self.detach().numpy()

    def detach(self) -> "OclTensor":
        """Returns a tensor that shares the memory, off the tape."""
        return OclTensor._of(super().detach())

    def clone(self) -> "OclTensor":
        """Returns a copy with separate memory."""
        return OclTensor._of(super().clone())

    def free_memory(self) -> None:
        """Frees the memory of elements and gradient. Later uses raise an error."""
        if self.grad is not None:
            free_memory(self.grad)
            self.grad = None
        free_memory(self)

    def matmul(self, other: Tensor) -> "OclTensor":  # type: ignore[override, unused-ignore]
        """Multiplies (M, K) (K, N), (B, M, K) (K, N) or (B, M, K) (B, K, N)."""
        return OclTensor._of(self @ other)

    def add(self, other: Any) -> "OclTensor":  # type: ignore[override, unused-ignore]
        """Adds tensors of equal shape, or broadcast."""
        return OclTensor._of(self + other)

    def mul(self, other: Any) -> "OclTensor":  # type: ignore[override, unused-ignore]
        """Multiplies elementwise."""
        return OclTensor._of(self * other)

    def mul_scalar(self, scalar: float) -> "OclTensor":  # type: ignore[override, unused-ignore]
        """Multiplies by a number."""
        return OclTensor._of(self * scalar)

    def div_scalar(self, scalar: float) -> "OclTensor":  # type: ignore[override, unused-ignore]
        """Divides by a number."""
        return OclTensor._of(self / scalar)

    def gelu(self) -> "OclTensor":
        """Computes ``x · Φ(x)``."""
        return OclTensor._of(ops.gelu(self))

    def softmax(self, dim: int = -1) -> "OclTensor":  # type: ignore[override, unused-ignore]
        """Computes the softmax over an axis."""
        return OclTensor._of(ops.softmax(self, dim))

    def layer_norm(self, eps: float = 1e-5) -> "OclTensor":  # type: ignore[override, unused-ignore]
        """Normalizes rows to mean 0 and variance 1."""
        n = self.shape[-1]
        with no_grad():
            one, none = _zeros(n, device=self.device) + 1.0, _zeros(n, device=self.device)
        return OclTensor._of(ops.layer_norm(self, one, none, eps))

    def transpose(self, dim0: int, dim1: int) -> "OclTensor":  # type: ignore[override, unused-ignore]
        """Swaps two axes."""
        return OclTensor._of(ops.transpose(self, dim0, dim1))

    def reshape(self, *shape: Any) -> "OclTensor":
        """Returns the same elements in another shape."""
        return OclTensor._of(Tensor.reshape(self, *shape))


class Parameter(OclTensor):
    """A tensor that is trained."""

    def __new__(cls, data: Any, requires_grad: bool = True) -> "Parameter":
        made: Parameter = super().__new__(cls, data, requires_grad)  # type: ignore[assignment]
        return made


__all__ = ["FP_TYPE", "GPUBuffer", "OclTensor", "Parameter", "ocl_initialize", "ocl_shutdown"]
