"""Speed and memory of devices, and the division of rows by them."""

from __future__ import annotations

import time
from typing import Any, Callable, List, NamedTuple, Optional, Sequence

from .._netcl import Device, Generator, divide_by_weights, from_bytes
from ..autograd import no_grad
from ..errors import OutOfMemoryError

# Sizes for real and simulated devices: a simulated device computes a large product for minutes.
PRODUCT = (512, 48)
UPLOAD_BYTES = (4 << 20, 1 << 16)
# Part of a device's memory that rows may use; the rest is for weights and workspace.
ROWS_SHARE = 0.5


class DeviceProfile(NamedTuple):
    """Measured properties of a device."""

    device: Device
    memory: int
    """Bytes of memory."""
    flops: float
    """Floating-point operations per second of a matrix product."""
    link: float
    """Bytes per second from the host to the device."""

    def seconds(self, row_flops: float, row_bytes: float) -> float:
        """Returns the estimated time of one row, from its operations and the bytes that the host sends."""
        return row_flops / self.flops + row_bytes / self.link


def _best(device: Device, work: Callable[[], Any]) -> float:
    work()
    device.synchronize()
    times = []
    for _ in range(3):
        began = time.perf_counter()
        work()
        device.synchronize()
        times.append(time.perf_counter() - began)
    return max(min(times), 1e-9)


def profile(device: Any) -> DeviceProfile:
    """Measures a device: a matrix product, and an upload. Takes less than a second on most devices."""
    device = device if isinstance(device, Device) else Device(device)
    simulated = device.name.startswith("sim")
    n, size = PRODUCT[simulated], UPLOAD_BYTES[simulated]
    with no_grad():
        x = Generator(1).uniform((n, n), -1.0, 1.0, None, device)
        product = _best(device, lambda: x @ x)
        data = bytes(size)
        upload = _best(device, lambda: from_bytes(data, [size // 4], "float32", device))
    return DeviceProfile(device, device.total_memory, 2 * n**3 / product, size / upload)


def divide(count: int, profiles: Sequence[DeviceProfile], row_flops: float = 0.0, row_bytes: float = 0.0) -> List[int]:
    """Divides ``count`` rows, so that all devices take equally long. A row needs ``row_flops`` operations and ``row_bytes`` bytes from the host; without
    both, only the speed counts. A device gets at most the rows that fit in half of its memory.

    Raises ``OutOfMemoryError`` if all devices together cannot hold the rows.
    """
    weights = [1 / p.seconds(row_flops, row_bytes) if row_flops or row_bytes else p.flops for p in profiles]
    most: Optional[List[int]] = None if not row_bytes else [min(int(ROWS_SHARE * p.memory / row_bytes), count) for p in profiles]
    parts = divide_by_weights(count, weights, most)
    if parts is None:
        raise OutOfMemoryError(f"divide: {count} rows of {row_bytes:.0f} bytes do not fit in half of the memory of {len(profiles)} devices")
    return parts


__all__ = ["DeviceProfile", "divide", "profile"]
