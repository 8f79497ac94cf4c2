"""Tensors and host memory, and the memory pool from which tensors come."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Sequence, Type, TypeVar, Union

from ._netcl import Device, Tensor, free_memory

T = TypeVar("T", bound=Tensor)


class PoolHandle(NamedTuple):
    """The buffer of a tensor in its device's memory pool. Tensors that share a buffer have equal handles."""

    device: Device
    number: int
    """Unique number of the buffer."""
    bytes: int
    """Size of the buffer."""


def pool_handle(self: Tensor) -> PoolHandle:
    """The tensor's buffer in the memory pool."""
    return PoolHandle(self.device, *self._buffer())


def to_host(self: Tensor) -> Any:
    """Returns a NumPy array, off the tape."""
    return self.detach().numpy()


def _classed(cls: Type[T], made: Tensor, requires_grad: bool) -> T:
    out: Any = made if cls is Tensor else cls(made)
    if requires_grad:
        out.requires_grad = True
    return out  # type: ignore[no-any-return]


def from_host(cls: Type[T], queue: Any, data: Any, dtype: Any = "float32", requires_grad: bool = False) -> T:
    """Copies host data to a device. ``queue`` is a device, its name, a stream, or ``None`` for the default device."""
    from ._create import tensor

    return _classed(cls, tensor(data, dtype=dtype, device=of_queue(queue)), requires_grad)


def from_shape(
    cls: Type[T], queue: Any, shape: Union[int, Sequence[int]], dtype: Any = "float32", pool: Any = None, requires_grad: bool = False
) -> T:
    """Creates a tensor of zeros. ``pool`` is a ``BufferPool``, whose device then holds the tensor."""
    from ._create import zeros

    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    made = pool.allocate(sizes, dtype) if pool is not None else zeros(*sizes, dtype=dtype, device=of_queue(queue))
    return _classed(cls, made, requires_grad)


def of_queue(queue: Any) -> Optional[Any]:
    """Returns the device of a queue: a device, its name, or an object with a ``device``."""
    return queue if queue is None or isinstance(queue, (str, Device)) else getattr(queue, "device", queue)


def release(tensor: Tensor) -> None:
    """Returns a tensor's memory to the pool at once. Later uses raise an error."""
    free_memory(tensor)


__all__ = ["PoolHandle", "from_host", "from_shape", "of_queue", "pool_handle", "release", "to_host"]
