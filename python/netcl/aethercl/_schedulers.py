"""Schedulers: the order in which queues are read, and the places of allocations. A scheduler changes times and places, never results."""

from __future__ import annotations

from typing import Callable, List, NamedTuple, Optional, Sequence, Tuple, Union

from .. import errors
from .._netcl import DISPATCH_SCHEDULERS, MEMORY_SCHEDULERS, Machine


class ReadyQueue(NamedTuple):
    """A queue whose next command can begin."""

    queue: int
    """Number of the queue."""
    ready_ns: int
    """Earliest start of the command, in ns of the device clock."""
    announced_ns: int
    """Time of the doorbell, in ns."""
    command: str
    """The command in words."""


class PageRun(NamedTuple):
    """A run of adjacent free pages of 64 KiB."""

    start: int
    pages: int


class Resident(NamedTuple):
    """An allocation whose content is in device memory."""

    address: int
    pages: int
    last_use: int
    """Number of the last command that used it; commands are counted while a memory scheduler is set."""


class MemoryScheduler:
    """Base class of memory schedulers. A subclass overrides one or both methods; the defaults are those of ``first-fit``."""

    def place(self, pages: int, free: Sequence[PageRun]) -> Optional[int]:
        """Returns the first page for an allocation of ``pages`` pages, all of which must be free. ``None``: the first run that is long enough,
        or else several pieces."""
        return None

    def evict(self, pages: int, resident: Sequence[Resident]) -> Optional[int]:
        """Returns the address of an allocation to move to host memory, because ``pages`` pages do not fit. It is called until they fit. The
        content comes back before a command uses it. ``None``: the allocation fails with ``OutOfMemoryError``."""
        return None


Dispatch = Union[str, Callable[[List[ReadyQueue]], int]]
Memory = Union[str, MemoryScheduler, Callable[[int, List[PageRun]], Optional[int]]]


def set_dispatch(machine: Machine, scheduler: Dispatch) -> None:
    """Sets a dispatch scheduler by name or as a function that gets the ready queues and returns the number of one of them."""
    if isinstance(scheduler, str):
        if scheduler not in DISPATCH_SCHEDULERS:
            raise errors.FormatError(f"dispatch_scheduler: {scheduler!r} is unknown; expected a function or one of {', '.join(DISPATCH_SCHEDULERS)}")
        machine.dispatch_by_name(scheduler)
        return
    if not callable(scheduler):
        raise errors.FormatError(f"dispatch_scheduler: expected a name or a function, got {type(scheduler).__name__}")
    choose = scheduler
    machine.dispatch_by_function(lambda ready: choose([ReadyQueue(*row) for row in ready]))


def set_memory(machine: Machine, scheduler: Memory) -> None:
    """Sets a memory scheduler by name, as a ``MemoryScheduler``, or as a function like ``MemoryScheduler.place``."""
    if isinstance(scheduler, str):
        if scheduler not in MEMORY_SCHEDULERS:
            raise errors.FormatError(f"memory_scheduler: {scheduler!r} is unknown; expected a scheduler, a function or one of {', '.join(MEMORY_SCHEDULERS)}")
        machine.memory_by_name(scheduler)
        return
    place = getattr(scheduler, "place", scheduler)
    evict = getattr(scheduler, "evict", None)
    if not callable(place) or not (evict is None or callable(evict)):
        raise errors.FormatError(f"memory_scheduler: expected a name, a function or a MemoryScheduler, got {type(scheduler).__name__}")

    def placed(pages: int, free: List[Tuple[int, int]]) -> Optional[int]:
        start: Optional[int] = place(pages, [PageRun(*run) for run in free])
        return start

    def evicted(pages: int, resident: List[Tuple[int, int, int]]) -> Optional[int]:
        address: Optional[int] = evict(pages, [Resident(*row) for row in resident]) if evict is not None else None
        return address

    machine.memory_by_function(placed, evicted if evict is not None else None)


__all__ = ["DISPATCH_SCHEDULERS", "MEMORY_SCHEDULERS", "Dispatch", "Memory", "MemoryScheduler", "PageRun", "ReadyQueue", "Resident", "set_dispatch", "set_memory"]
