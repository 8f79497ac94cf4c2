"""The register window: registers and rings as memory of this process, like the mapped registers of a card."""

from __future__ import annotations

import ctypes
import enum
from typing import Any, Optional, Type

from .. import errors
from .._netcl import Machine, MachineWindow


class Register(enum.IntEnum):
    """Offsets of registers in bytes. ``Register.of_queue`` returns those of a queue."""

    ID = 0x000
    UNITS = 0x004
    STATUS = 0x008
    CONTROL = 0x00C
    IRQ_STATUS = 0x010
    IRQ_MASK = 0x014
    FAULT = 0x018
    FAULT_QUEUE = 0x01C
    TIME = 0x020
    IRQ_CLEAR = 0x028
    RING_WORDS = 0x100
    HEAD = 0x104
    DOORBELL = 0x108
    FENCE = 0x110

    def of_queue(self, queue: int) -> int:
        """Returns the offset of this queue register for a queue. ``RING_WORDS``, ``HEAD``, ``DOORBELL`` and ``FENCE`` are queue registers."""
        return int(self) + 0x40 * queue


class Window:
    """The mapped window. ``words`` is a writable memoryview of 32-bit words over the shared memory; a thread of the machine polls it.

    The memoryview stays valid after :meth:`close`, but the machine no longer looks at it.
    """

    def __init__(self, machine: Machine):
        self._machine: Optional[Machine] = machine
        mapped = machine.map_window()
        # The array keeps the shared memory alive, and the memoryview keeps the array alive.
        kind: Type[Any] = type("Words", (ctypes.c_uint32 * mapped.words,), {})
        array: Any = kind.from_address(mapped.address)
        array.window = mapped
        self.words: memoryview = memoryview(array).cast("B").cast("I")
        self._mapped: MachineWindow = mapped

    @property
    def rings(self) -> int:
        """Offset of the ring of queue 0 in bytes."""
        return self._mapped.rings

    @property
    def ring_stride(self) -> int:
        """Distance between the rings of consecutive queues in bytes."""
        return self._mapped.ring_stride

    def ring(self, queue: int) -> memoryview:
        """Returns the words of a queue's ring, a part of the shared memory."""
        start = (self.rings + queue * self.ring_stride) // 4
        return self.words[start : start + self.words[Register.RING_WORDS.of_queue(queue) // 4]]

    def __getitem__(self, offset: int) -> int:
        """Reads the register at a byte offset."""
        return self.words[self._index(offset)]

    def __setitem__(self, offset: int, value: int) -> None:
        """Writes the register at a byte offset."""
        self.words[self._index(offset)] = value

    def _index(self, offset: int) -> int:
        if offset % 4 or not 0 <= offset < 4 * len(self.words):
            raise errors.IndexOutOfBounds(f"window: offset {offset:#x} is not a multiple of 4 below {4 * len(self.words):#x}")
        return int(offset) // 4

    def close(self) -> None:
        """Unmaps the window. Later writes to the memory have no effect."""
        machine, self._machine = self._machine, None
        if machine is not None:
            machine.unmap_window()

    def __enter__(self) -> Window:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
