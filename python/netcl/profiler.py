"""Measures the device time of kernels."""

from __future__ import annotations

from types import TracebackType
from typing import Any, List, NamedTuple, Optional, Type

from ._netcl import Device, default_device


class KernelTime(NamedTuple):
    """All launches of one kernel."""

    name: str
    launches: int
    seconds: float
    bytes: int
    flops: int


class profile:
    """Records kernel times: ``with netcl.profiler.profile() as p: …``. ``p.kernels`` then lists all kernels, the slowest first, and ``print(p)``
    shows them.
    """

    def __init__(self, device: Any = None) -> None:
        self.device = device if isinstance(device, Device) else default_device() if device is None else Device(device)
        self.kernels: List[KernelTime] = []

    def __enter__(self) -> "profile":
        self.device._start_profile()
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        found = [KernelTime(*t) for t in self.device._stop_profile()]
        self.kernels = sorted(found, key=lambda t: -t.seconds)

    @property
    def seconds(self) -> float:
        """Total time of all kernels."""
        return sum(t.seconds for t in self.kernels)

    def __str__(self) -> str:
        width = max([len(t.name) for t in self.kernels] + [6])
        lines = [f"{'kernel':{width}}  launches        ms   share    GB/s"]
        for t in self.kernels:
            share = t.seconds / self.seconds if self.seconds else 0.0
            speed = t.bytes / t.seconds / 1e9 if t.seconds else 0.0
            lines.append(f"{t.name:{width}}  {t.launches:8}  {t.seconds * 1e3:8.3f}  {share:6.1%}  {speed:6.1f}")
        return "\n".join(lines)


__all__ = ["KernelTime", "profile"]
