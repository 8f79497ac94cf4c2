"""Command queues: commands run in order within a queue, and queues run at the same time."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from .. import errors
from .._netcl import Machine, MachineReadBack
from ._launch import Argument, Program

Shape = Union[int, Sequence[int]]


class Times(NamedTuple):
    """Times of a command, in ns of the device clock."""

    queued_ns: int
    """Time of the doorbell."""
    start_ns: int
    end_ns: int


def contents(data: Any) -> bytes:
    """Returns the bytes of an array or of an object with a buffer, in row-major order."""
    return np.ascontiguousarray(data).tobytes() if isinstance(data, (np.ndarray, np.generic, list, tuple, int, float)) else bytes(data)


def layout(shape: Shape, dtype: Any) -> Tuple[Tuple[int, ...], "np.dtype[Any]", int]:
    """Returns the shape, the dtype and the number of bytes of an array."""
    axes = (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(int(n) for n in shape)
    if any(n < 0 for n in axes):
        raise errors.ShapeError(f"read_data: shape {axes} has a negative size")
    kind = np.dtype(dtype)
    if kind.hasobject:
        raise errors.DTypeError(f"read_data: dtype {kind} does not have a size in bytes")
    count = 1
    for n in axes:
        count *= n
    return axes, kind, count * kind.itemsize


class Fence:
    """Position of a command in its queue. The command is complete when the queue's fence register has reached ``value``."""

    def __init__(self, machine: Machine, queue: int, value: int):
        self._machine, self.queue, self.value = machine, queue, value

    def wait(self) -> Times:
        """Waits for the command and returns its times. Rings the doorbell first if necessary. Raises the error of the command."""
        return Times(*self._machine.wait(self.queue, self.value))

    def __repr__(self) -> str:
        return f"<Fence {self.value} of queue {self.queue}>"


class ReadBack(Fence):
    """A copy of device memory to the host that was enqueued."""

    def __init__(self, machine: Machine, read: MachineReadBack, shape: Tuple[int, ...], dtype: "np.dtype[Any]"):
        super().__init__(machine, read.queue, read.value)
        self._read, self._shape, self._dtype = read, shape, dtype
        self._array: Optional[np.ndarray[Any, Any]] = None

    def result(self) -> "np.ndarray[Any, Any]":
        """Waits for the copy and returns the array."""
        if self._array is None:
            self.wait()
            data = self._read.take()
            if data is None:
                raise errors.LaunchError(f"read_data: {self!r} was discarded by a reset of the device")
            self._array = np.frombuffer(data, self._dtype).reshape(self._shape).copy()
        return self._array


class CommandQueue:
    """A queue of a machine. Its commands begin after :meth:`doorbell`, or when something waits for them. The device has at most 8 queues."""

    def __init__(self, machine: Machine, number: int):
        self._machine, self.number = machine, number

    def _fence(self, command: Tuple[int, int]) -> Fence:
        return Fence(self._machine, *command)

    def write(self, address: int, data: Any) -> Fence:
        """Enqueues a copy of an array to device memory. The array may be changed as soon as the call returns."""
        return self._fence(self._machine.write(self.number, address, contents(data)))

    def read(self, address: int, shape: Shape, dtype: Any) -> ReadBack:
        """Enqueues a copy of device memory to a new array of this shape and dtype."""
        axes, kind, size = layout(shape, dtype)
        return ReadBack(self._machine, self._machine.read(self.number, address, size), axes, kind)

    def copy(self, to: int, from_: int, bytes: int) -> Fence:
        """Enqueues a copy of ``bytes`` bytes within device memory."""
        return self._fence(self._machine.copy(self.number, to, from_, bytes))

    def fill(self, to: int, bytes: int, pattern: bytes = b"\0") -> Fence:
        """Enqueues a fill: ``pattern``, of 1, 2, 4, 8 or 16 bytes, is repeated over ``bytes`` bytes."""
        return self._fence(self._machine.fill(self.number, to, bytes, pattern))

    def wait_for(self, fence: Fence) -> Fence:
        """Enqueues a wait: later commands of this queue start after a command of another queue."""
        return self._fence(self._machine.wait_for(self.number, fence.queue, fence.value))

    def launch(self, program: Program, kernel: str, *arguments: Argument, global_size: Shape, local_size: Shape) -> Fence:
        """Enqueues the launch of a kernel with ``global_size`` work-items, in groups of ``local_size``; both have one to three dimensions."""
        given = program._arguments(kernel, arguments)
        call = kernel, given, sizes(global_size), sizes(local_size)
        return self._fence(self._machine.launch(self.number, program._program, call))

    def doorbell(self) -> None:
        """Announces the commands so far: the command processor may now read the ring."""
        self._machine.doorbell(self.number)

    def finish(self) -> None:
        """Waits for all commands of this queue. Raises the error of the last one."""
        self._machine.finish(self.number)

    def __repr__(self) -> str:
        return f"<CommandQueue {self.number}>"


def sizes(size: Shape) -> Sequence[int]:
    """Returns a size of a launch as a list."""
    return [int(size)] if isinstance(size, (int, np.integer)) else [int(n) for n in size]
