"""Tensors from and to the host, the memory pool, and timing."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Callable, Dict, List, Optional, Tuple, Type, Union

from ..._create import zeros as _zeros
from ..._netcl import Device, Tensor, default_device
from ..._pool import of_queue, release
from ...errors import FormatError


def _device(given: Any) -> Device:
    given = of_queue(given)
    return default_device() if given is None else given if isinstance(given, Device) else Device(given)


class BufferPool:
    """The memory pool of a device, with buckets by size, which serves every tensor."""

    def __init__(self, device: Any = None) -> None:
        self.device = _device(device)

    def allocate(self, shape: Tuple[int, ...], dtype: Any = "float32") -> Tensor:
        """Allocates a tensor."""
        return _zeros(*shape, dtype=dtype, device=self.device)

    def release(self, tensor: Tensor) -> None:
        """Returns a tensor's memory to the pool at once. Later uses raise an error."""
        release(tensor)

    def trim(self) -> None:
        """Returns memory that no tensor uses to the driver."""
        self.device.release_cached_memory()

    def stats(self) -> Dict[str, int]:
        """Returns the bytes in use, reserved and at the peak, and the number of buffers."""
        return dict(zip(("live", "reserved", "peak", "buffers"), self.device.memory()))


def from_host(queue: Any, data: Any, dtype: Any = "float32", requires_grad: bool = False) -> Tensor:
    """Copies host data to a device."""
    return Tensor.from_host(queue, data, dtype, requires_grad)


def to_host(tensor: Tensor) -> Any:
    """Returns a NumPy array."""
    return tensor.to_host()


class Event:
    """The commands of a block on a device: ``with timer.record() as event:``. ``start`` and ``end`` are nanoseconds of the device's clock, from the
    events of its launches and transfers.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.kernels: List[Tuple[str, int, int, int, int]] = []
        """Launches: name, start, end, bytes, floating-point operations."""
        self.transfers: List[Tuple[str, int, int, int, int]] = []
        """Transfers and fills: kind, start, end, bytes, 0."""
        self._open = False

    def __enter__(self) -> "Event":
        self.device._start_timeline()
        self._open = True
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        self._open = False
        self.kernels, self.transfers = self.device._stop_timeline()

    @property
    def commands(self) -> List[Tuple[str, int, int, int, int]]:
        """Launches and transfers in the order of their starts."""
        return sorted([*self.kernels, *self.transfers], key=lambda c: c[1])

    def _span(self) -> Tuple[int, int]:
        if self._open:
            raise FormatError("event: its block has not ended")
        every = self.commands
        return (every[0][1], max(c[2] for c in every)) if every else (0, 0)

    @property
    def start(self) -> int:
        """Start of the first command, 0 without commands."""
        return self._span()[0]

    @property
    def end(self) -> int:
        """End of the last command, 0 without commands."""
        return self._span()[1]


class _OfClassToo:
    """A method that may also be called on the class, which then makes an object."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.method, self.__doc__ = method, method.__doc__

    def __get__(self, found: Any, owner: Type[Any]) -> Callable[..., Any]:
        return self.method.__get__(owner() if found is None else found, owner)  # type: ignore[no-any-return]


class EventTimer:
    """Times commands on a device by the driver's events. ``EventTimer.time_event(event)`` also works without an object."""

    def __init__(self, device: Any = None, rounds: int = 5) -> None:
        self.device, self.rounds = _device(device), rounds

    def record(self) -> Event:
        """Records the commands of a block: ``with timer.record() as event:``."""
        return Event(self.device)

    @_OfClassToo
    def time_event(self, event: Union[Event, Callable[[], Any]]) -> float:
        """Returns the milliseconds from the start of the event's first command to the end of its last one.

        ``event`` is a recorded ``Event``, or a function that enqueues commands. A function is called once to compile its kernels, and then ``rounds``
        times; the result is the minimum.
        """
        if isinstance(event, Event):
            return (event.end - event.start) * 1e-6
        if not callable(event):
            raise TypeError(f"time_event: got {type(event).__name__}, expected an event of timer.record() or a function")
        event()
        self.device.synchronize()
        done = [self._called(event) for _ in range(max(self.rounds, 1))]
        return min((each.end - each.start) * 1e-6 for each in done)

    def _called(self, function: Callable[[], Any]) -> Event:
        with self.record() as event:
            function()
        return event

    def kernels(self, event: Union[Event, Callable[[], Any]]) -> List[Tuple[str, int, float]]:
        """Returns name, launches and milliseconds of each kernel, the slowest first."""
        done = event if isinstance(event, Event) else self._called(event)
        totals: Dict[str, List[float]] = {}
        for name, start, end, _, _ in done.kernels:
            total = totals.setdefault(name, [0, 0.0])
            total[0], total[1] = total[0] + 1, total[1] + (end - start) * 1e-6
        return sorted(((name, int(n), ms) for name, (n, ms) in totals.items()), key=lambda row: -row[2])

    def bandwidth(self, event: Event) -> float:
        """Returns the gigabytes per second of all commands of an event: the bytes of kernels' arguments and transfers, by the time of the event."""
        moved, ns = sum(c[3] for c in event.commands), event.end - event.start
        return moved / ns if ns else 0.0


__all__ = ["BufferPool", "Event", "EventTimer", "from_host", "to_host"]
