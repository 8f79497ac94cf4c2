"""Command rings: a program writes packets into a queue's ring itself, as a driver does."""

from __future__ import annotations

import time
from typing import List

from .. import errors
from ._window import Register, Window

PAD, COPY_IN, COPY_OUT, COPY, FILL, LAUNCH, SIGNAL, WAIT = 0x10, 0x20, 0x21, 0x22, 0x23, 0x30, 0x40, 0x41


def _halves(*numbers: int) -> List[int]:
    return [half for n in numbers for half in (n & 0xFFFFFFFF, n >> 32)]


class CommandRing:
    """The ring of a queue in the register window. Methods write packets; :meth:`doorbell` announces them. Addresses of host memory are bus addresses
    of ``GPU.pin``, and launches are descriptors of ``GPU.describe_launch``.

    Use either this class or ``CommandQueue`` for a queue, not both. It does not lock: use a ring from one thread.
    """

    def __init__(self, window: Window, queue: int):
        self.window, self.queue = window, queue
        self._words = window.ring(queue)
        self._tail = self._register(Register.DOORBELL)
        self._signals = self._register(Register.FENCE)

    def _register(self, register: Register) -> int:
        return self.window[register.of_queue(self.queue)]

    @property
    def capacity(self) -> int:
        """Words of the ring."""
        return len(self._words)

    @property
    def fence(self) -> int:
        """Value of the last SIGNAL that the device executed."""
        return self._register(Register.FENCE)

    def push(self, operation: int, words: List[int], timeout: float = 60.0) -> None:
        """Writes a packet: header, then ``words``. A packet that does not fit before the end of the ring starts at word 0. If the ring is full, this
        rings the doorbell and waits until the device has read enough, at most ``timeout`` seconds."""
        length = 1 + len(words)
        if length >= self.capacity:
            raise errors.FormatError(f"ring: a packet of {length} words does not fit into a ring of {self.capacity}")
        pad = self.capacity - self._tail if self._tail + length > self.capacity else 0
        end = time.monotonic() + timeout
        while (self._register(Register.HEAD) - self._tail - 1) % self.capacity < length + pad:
            self.doorbell()
            if time.monotonic() > end:
                raise errors.LaunchError(f"ring: queue {self.queue} is full and has not moved for {timeout:g} s")
            time.sleep(0.0005)
        if pad:
            self._put(PAD << 24 | (pad - 1), *[0] * (pad - 1))
        self._put(operation << 24 | (length - 1), *words)

    def _put(self, *words: int) -> None:
        for word in words:
            self._words[self._tail] = word
            self._tail = (self._tail + 1) % self.capacity

    def copy_in(self, to: int, bus: int, bytes: int) -> None:
        """Copies pinned host memory at ``bus`` to device memory."""
        self.push(COPY_IN, _halves(to, bus, bytes))

    def copy_out(self, bus: int, from_: int, bytes: int) -> None:
        """Copies device memory to pinned host memory at ``bus``."""
        self.push(COPY_OUT, _halves(bus, from_, bytes))

    def copy(self, to: int, from_: int, bytes: int) -> None:
        """Copies within device memory."""
        self.push(COPY, _halves(to, from_, bytes))

    def fill(self, to: int, bytes: int, pattern: bytes = b"\0") -> None:
        """Repeats ``pattern``, of 1, 2, 4, 8 or 16 bytes, over ``bytes`` bytes of device memory."""
        padded = pattern.ljust(16, b"\0")
        self.push(FILL, [*_halves(to, bytes), len(pattern), *memoryview(padded[:16]).cast("I")])

    def launch(self, descriptor: int) -> None:
        """Runs the kernel of a descriptor."""
        self.push(LAUNCH, _halves(descriptor))

    def wait_for(self, queue: int, value: int) -> None:
        """Holds this queue until the fence of another queue has reached ``value``."""
        self.push(WAIT, [queue, *_halves(value)])

    def signal(self) -> int:
        """Writes a SIGNAL and returns its value: the fence has it when all earlier packets are complete."""
        self._signals += 1
        self.push(SIGNAL, _halves(self._signals))
        return self._signals

    def doorbell(self) -> None:
        """Announces the packets so far."""
        self.window[Register.DOORBELL.of_queue(self.queue)] = self._tail

    def finish(self, timeout: float = 60.0) -> None:
        """Writes a SIGNAL, rings the doorbell, and waits until the fence has its value. Raises ``LaunchError`` for a fault of this queue."""
        value, end = self.signal(), time.monotonic() + timeout
        self.doorbell()
        while self.fence < value:
            if time.monotonic() > end:
                raise errors.LaunchError(f"ring: fence {value} of queue {self.queue} was not reached in {timeout:g} s; it is {self.fence}")
            time.sleep(0.0002)
        fault = self.window[Register.FAULT]
        if fault and self.window[Register.FAULT_QUEUE] == self.queue:
            names = {1: "bad command", 2: "bad address", 3: "kernel failed", 4: "watchdog"}
            raise errors.LaunchError(f"ring: queue {self.queue} has a fault: {names.get(fault, fault)}; write 1 to CONTROL to reset the device")
