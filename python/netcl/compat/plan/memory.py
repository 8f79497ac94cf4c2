"""Tensors from and to the host, the pool, and times."""

from __future__ import annotations

import math
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from ..._create import tensor as _tensor
from ..._create import zeros as _zeros
from ..._netcl import Device, default_device, free_memory
from ..._netcl import Tensor as _Tensor


class Tensor(_Tensor):
    """A tensor with the names of the plan. A queue is a device, its name, or ``None`` for the default one."""

    @staticmethod
    def of(made: _Tensor, requires_grad: bool = False) -> "Tensor":
        """The same tensor under these names."""
        out: Tensor = _Tensor.__new__(Tensor, made)  # type: ignore[assignment, unused-ignore]
        if requires_grad:
            out.requires_grad = True
        return out

    @staticmethod
    def from_host(queue: Any, data: Any, dtype: Any = "float32", requires_grad: bool = False) -> "Tensor":
        """A copy of host data on the device."""
        return Tensor.of(_tensor(data, dtype=dtype, device=queue), requires_grad)

    @staticmethod
    def from_shape(queue: Any, shape: Tuple[int, ...], dtype: Any = "float32", pool: "Optional[BufferPool]" = None, requires_grad: bool = False) -> "Tensor":
        """Memory for elements that are written later."""
        if pool is not None:
            return Tensor.of(pool.allocate(shape, dtype), requires_grad)
        return Tensor.of(_zeros(*shape, dtype=dtype, device=queue), requires_grad)

    def to_host(self) -> Any:
        """A NumPy array."""
        return self.detach().numpy()


class BufferPool:
    """netcl's own pool of a device: buckets by size, which every tensor's memory comes from and goes back to."""

    def __init__(self, device: Any = None) -> None:
        self.device = default_device() if device is None else device if isinstance(device, Device) else Device(device)

    def allocate(self, shape: Tuple[int, ...], dtype: Any = "float32") -> _Tensor:
        """A tensor."""
        return _zeros(*shape, dtype=dtype, device=self.device)

    def release(self, tensor: _Tensor) -> None:
        """Gives a tensor's memory back at once; its use is an error from then on."""
        free_memory(tensor)

    def trim(self) -> None:
        """Gives memory that no tensor uses back to the driver."""
        self.device.release_cached_memory()

    def stats(self) -> Dict[str, int]:
        """Bytes in use, reserved and at the peak, and the number of buffers."""
        return dict(zip(("live", "reserved", "peak", "buffers"), self.device.memory()))


class EventTimer:
    """Times of work on a device. An event is a function that enqueues it."""

    def __init__(self, device: Any = None, rounds: int = 5) -> None:
        self.device = default_device() if device is None else device if isinstance(device, Device) else Device(device)
        self.rounds = rounds

    def time_event(self, event: Callable[[], Any]) -> float:
        """Milliseconds from its first command to its last, the shortest of ``rounds`` after one that compiles."""
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
        """Name, launches and milliseconds of each kernel, the longest first."""
        self.device._start_profile()
        event()
        found = [(name, count, 1e3 * seconds) for name, count, seconds, _, _ in self.device._stop_profile()]
        return sorted(found, key=lambda row: -row[2])


__all__ = ["BufferPool", "EventTimer", "Tensor"]
