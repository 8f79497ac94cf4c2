"""Tensors from and to the host, the memory pool, and timing."""

from __future__ import annotations

import math
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from ..._create import tensor as _tensor
from ..._create import zeros as _zeros
from ..._netcl import Device, default_device, free_memory
from ..._netcl import Tensor as _Tensor


class Tensor(_Tensor):
    """A tensor with the plan's names. A queue is a device, its name, or ``None`` for the default device."""

    @staticmethod
    def of(made: _Tensor, requires_grad: bool = False) -> "Tensor":
        """Returns the same tensor with these names."""
        out: Tensor = _Tensor.__new__(Tensor, made)  # type: ignore[assignment, unused-ignore]
        if requires_grad:
            out.requires_grad = True
        return out

    @staticmethod
    def from_host(queue: Any, data: Any, dtype: Any = "float32", requires_grad: bool = False) -> "Tensor":
        """Copies host data to the device."""
        return Tensor.of(_tensor(data, dtype=dtype, device=queue), requires_grad)

    @staticmethod
    def from_shape(queue: Any, shape: Tuple[int, ...], dtype: Any = "float32", pool: "Optional[BufferPool]" = None, requires_grad: bool = False) -> "Tensor":
        """Creates a tensor whose elements will be written later."""
        if pool is not None:
            return Tensor.of(pool.allocate(shape, dtype), requires_grad)
        return Tensor.of(_zeros(*shape, dtype=dtype, device=queue), requires_grad)

    def to_host(self) -> Any:
        """Returns a NumPy array."""
        return self.detach().numpy()


class BufferPool:
    """The memory pool of a device, with buckets by size, which serves every tensor."""

    def __init__(self, device: Any = None) -> None:
        self.device = default_device() if device is None else device if isinstance(device, Device) else Device(device)

    def allocate(self, shape: Tuple[int, ...], dtype: Any = "float32") -> _Tensor:
        """Allocates a tensor."""
        return _zeros(*shape, dtype=dtype, device=self.device)

    def release(self, tensor: _Tensor) -> None:
        """Returns a tensor's memory to the pool at once. Later uses raise an error."""
        free_memory(tensor)

    def trim(self) -> None:
        """Returns memory that no tensor uses to the driver."""
        self.device.release_cached_memory()

    def stats(self) -> Dict[str, int]:
        """Returns the bytes in use, reserved and at the peak, and the number of buffers."""
        return dict(zip(("live", "reserved", "peak", "buffers"), self.device.memory()))


class EventTimer:
    """Times work on a device. An event is a function that enqueues the work."""

    def __init__(self, device: Any = None, rounds: int = 5) -> None:
        self.device = default_device() if device is None else device if isinstance(device, Device) else Device(device)
        self.rounds = rounds

    def time_event(self, event: Callable[[], Any]) -> float:
        """Returns the milliseconds from the first command to the last: the minimum of ``rounds`` runs after a run that compiles."""
        event()
        self.device.synchronize()
        best = math.inf
        for _ in range(self.rounds):
            began = time.perf_counter()
            event()
            self.device.synchronize()
            best = min(best, time.perf_counter() - began)
        return 1e3 * best

    def kernels(self, event: Callable[[], Any]) -> List[Tuple[str, int, float]]:
        """Returns name, launches and milliseconds of each kernel, the slowest first."""
        self.device._start_profile()
        event()
        found = [(name, count, 1e3 * seconds) for name, count, seconds, _, _ in self.device._stop_profile()]
        return sorted(found, key=lambda row: -row[2])


__all__ = ["BufferPool", "EventTimer", "Tensor"]
