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
    """Makes a device the one of all tensors: a number of ``netcl.devices()``, or a name, such as ``sim``. Its name."""
    set_default_device(str(device_index))
    OclTensor._ocl_initialized = True
    return default_device().name


def ocl_shutdown() -> None:
    """Frees the memory of every buffer and tensor that is left, and gives it back to the driver."""
    for each in list(_there):
        each.free_memory()
    OclTensor._ocl_initialized = False
    default_device().release_cached_memory()


class GPUBuffer:
    """Bytes on the device."""

    def __init__(self, size_in_bytes: int, tag: str = "buffer", _init_zeros: bool = False, dtype: Any = FP_TYPE, _tensor: Optional[Tensor] = None) -> None:
        self.size_in_bytes, self.tag, self.dtype = size_in_bytes, tag, np.dtype(dtype)
        self._tensor = _zeros(-(-size_in_bytes // self.dtype.itemsize), dtype=to_dtype(self.dtype)) if _tensor is None else _tensor
        self._allocated = True
        _there.add(self)

    @property
    def ptr(self) -> Optional[Tensor]:
        """What stands for the memory; ``None`` once it is free."""
        return self._tensor if self._allocated else None

    def _there(self) -> Tensor:
        if not self._allocated:
            raise FormatError(f"GPUBuffer {self.tag!r}: its memory is free")
        return self._tensor

    def write(self, host_data: Any) -> None:
        """Overwrites it with an array of as many bytes."""
        data = np.ascontiguousarray(host_data)
        if data.nbytes != self.size_in_bytes:
            raise FormatError(f"GPUBuffer {self.tag!r}: {data.nbytes} bytes for a buffer of {self.size_in_bytes}")
        place = self._there()
        place._set_bytes(data.tobytes() + bytes(place.size * place.itemsize - data.nbytes))

    def read(self, shape: Tuple[int, ...], dtype: Any = FP_TYPE) -> Any:
        """An array with what is in it."""
        wanted = np.dtype(dtype)
        count = int(np.prod(shape, dtype=np.int64))
        if count * wanted.itemsize > self.size_in_bytes:
            raise FormatError(f"GPUBuffer {self.tag!r}: {count * wanted.itemsize} bytes of a buffer of {self.size_in_bytes}")
        return np.frombuffer(self._there()._bytes(), dtype=wanted, count=count).reshape(shape).copy()

    def clone(self) -> "GPUBuffer":
        """A copy on the device."""
        return GPUBuffer(self.size_in_bytes, self.tag, dtype=self.dtype, _tensor=self._there().detach().clone())

    def free(self) -> None:
        """Frees the memory."""
        if self._allocated:
            self._allocated = False
            free_memory(self._tensor)

    free_memory = free


class OclTensor(Tensor):
    """A float32 tensor with the methods that OCL-LLM has."""

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
        """Memory for elements that are written later."""
        return OclTensor.zeros(shape, requires_grad)

    @staticmethod
    def zeros(shape: Any, requires_grad: bool = False) -> "OclTensor":
        """Zeros."""
        return OclTensor(_zeros(*([shape] if isinstance(shape, int) else shape)), requires_grad)

    @staticmethod
    def no_grad() -> Any:
        """``with OclTensor.no_grad():`` leaves nothing on the tape."""
        return no_grad()

    @property
    def data(self) -> GPUBuffer:
        """Its memory as a buffer."""
        return GPUBuffer(self.size * self.itemsize, "tensor", _tensor=self.detach())

    @property
    def numel(self) -> int:  # type: ignore[override, unused-ignore]
        """Number of elements."""
        return self.size

    def get_grad_tensor(self) -> "Optional[OclTensor]":
        """The gradient, or ``None``."""
        return None if self.grad is None else OclTensor._of(self.grad)

    def zero_grad(self) -> None:
        """Drops the gradient: the next one is set, not added."""
        self.grad = None

    def to_host(self) -> Any:
        """A NumPy array."""
        return self.detach().numpy()

    def detach(self) -> "OclTensor":
        """The same memory, off the tape."""
        return OclTensor._of(super().detach())

    def clone(self) -> "OclTensor":
        """A copy with memory of its own."""
        return OclTensor._of(super().clone())

    def free_memory(self) -> None:
        """Frees the memory of elements and gradient; a later use is an error that says so."""
        if self.grad is not None:
            free_memory(self.grad)
            self.grad = None
        free_memory(self)

    def matmul(self, other: Tensor) -> "OclTensor":  # type: ignore[override, unused-ignore]
        """(M, K) (K, N), (B, M, K) (K, N) or (B, M, K) (B, K, N)."""
        return OclTensor._of(self @ other)

    def add(self, other: Any) -> "OclTensor":  # type: ignore[override, unused-ignore]
        """Of one shape, or broadcast."""
        return OclTensor._of(self + other)

    def mul(self, other: Any) -> "OclTensor":  # type: ignore[override, unused-ignore]
        """Element by element."""
        return OclTensor._of(self * other)

    def mul_scalar(self, scalar: float) -> "OclTensor":  # type: ignore[override, unused-ignore]
        """Times a number."""
        return OclTensor._of(self * scalar)

    def div_scalar(self, scalar: float) -> "OclTensor":  # type: ignore[override, unused-ignore]
        """By a number."""
        return OclTensor._of(self / scalar)

    def gelu(self) -> "OclTensor":
        """``x · Φ(x)``."""
        return OclTensor._of(ops.gelu(self))

    def softmax(self, dim: int = -1) -> "OclTensor":  # type: ignore[override, unused-ignore]
        """Over an axis."""
        return OclTensor._of(ops.softmax(self, dim))

    def layer_norm(self, eps: float = 1e-5) -> "OclTensor":  # type: ignore[override, unused-ignore]
        """Rows with mean 0 and variance 1."""
        n = self.shape[-1]
        with no_grad():
            one, none = _zeros(n, device=self.device) + 1.0, _zeros(n, device=self.device)
        return OclTensor._of(ops.layer_norm(self, one, none, eps))

    def transpose(self, dim0: int, dim1: int) -> "OclTensor":  # type: ignore[override, unused-ignore]
        """Two axes exchanged."""
        return OclTensor._of(ops.transpose(self, dim0, dim1))

    def reshape(self, *shape: Any) -> "OclTensor":
        """The same elements in another shape."""
        return OclTensor._of(Tensor.reshape(self, *shape))


class Parameter(OclTensor):
    """A tensor that is trained."""

    def __new__(cls, data: Any, requires_grad: bool = True) -> "Parameter":
        made: Parameter = super().__new__(cls, data, requires_grad)  # type: ignore[assignment]
        return made


__all__ = ["FP_TYPE", "GPUBuffer", "OclTensor", "Parameter", "ocl_initialize", "ocl_shutdown"]
