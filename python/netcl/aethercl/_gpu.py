"""A simulated GPU: memory by address, products of matrices, kernels, and the parts of the machine."""

from __future__ import annotations

import atexit
import threading
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

import numpy as np

from .. import errors
from .._netcl import Machine
from . import _schedulers as schedulers
from ._launch import Argument, Program, read, write
from ._queue import CommandQueue, Fence, ReadBack, Shape, contents, layout, sizes
from ._ring import CommandRing
from ._window import Window

# C = A B. A group of 8 by 8 items computes a tile of C. It copies a tile of A and one of B to local memory, and reads each value eight times.
_PRODUCT = """
#define TILE 8
__kernel __attribute__((reqd_work_group_size(TILE, TILE, 1)))
void matrix_multiply(__global const T *a, __global const T *b, __global T *c, ulong m, ulong n, ulong k) {
  __local T ta[TILE][TILE], tb[TILE][TILE];
  const uint x = get_local_id(0), y = get_local_id(1);
  const ulong column = get_global_id(0), row = get_global_id(1);
  T sum = 0;
  for (ulong p = 0; p < k; p += TILE) {
    ta[y][x] = row < m && p + x < k ? a[row * k + p + x] : (T)0;
    tb[y][x] = p + y < k && column < n ? b[(p + y) * n + column] : (T)0;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = 0; i < TILE; i++) sum += ta[y][i] * tb[i][x];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  if (row < m && column < n) c[row * n + column] = sum;
}
"""
_TILE = 8
_OPEN: "weakref.WeakSet[GPU]" = weakref.WeakSet()


class MemoryUse(NamedTuple):
    """Device memory in bytes."""

    used: int
    peak: int
    capacity: int
    moved_out: int
    """Moved to host memory by a memory scheduler."""
    moved_in: int
    """Moved back."""


class Counters(NamedTuple):
    """Counters of a launch, and its modeled time."""

    counts: Dict[str, int]
    ns: int
    """Time on the compute units in ns."""
    bound: str
    """The part of the device that limits the launch, such as ``device memory``."""


class Finding(NamedTuple):
    """A defect that the checks found in a kernel."""

    kind: str
    kernel: str
    line: int
    column: int
    occurrences: int
    text: str
    """The defect, the source line with a caret, and the work-items."""


class GPU:
    """A simulated GPU. ``profile`` is the modeled device (``teaching``, ``h200``, …) or a ``.toml`` file.

    ``memory`` limits its bytes of memory, and ``compute_units`` replaces the profile's number. ``checks`` are names separated by commas, ``all``,
    or an empty string. ``trace`` is ``off``, ``commands``, ``steps`` or ``all``; each line goes to ``on_trace`` [default: ``print``].
    ``ring_words`` is the length of each queue's ring. Queue 0 is open; the methods of this class use it.

    Methods may be called from any thread. A scheduler or ``on_trace`` must not call the GPU.
    """

    def __init__(
        self,
        index: int = 0,
        profile: str = "teaching",
        *,
        memory: Optional[int] = None,
        compute_units: Optional[int] = None,
        checks: str = "bounds",
        trace: str = "off",
        on_trace: Optional[Callable[[str], object]] = None,
        dispatch_scheduler: schedulers.Dispatch = "earliest",
        memory_scheduler: schedulers.Memory = "first-fit",
        ring_words: Optional[int] = None,
        timeline: bool = False,
    ):
        self.index = index
        machine = Machine(profile, memory, checks, ring_words, timeline, compute_units)
        self._machine_or_none: Optional[Machine] = machine
        self.profile, self.compute_units = machine.describe()
        self._programs: Dict[str, Program] = {}
        self._reader: Optional[ThreadPoolExecutor] = None
        self._reader_thread: Optional[int] = None
        self._window: Optional[Window] = None
        self.dispatch_scheduler = dispatch_scheduler
        self.memory_scheduler = memory_scheduler
        if trace != "off":
            self.trace(trace, on_trace)
        self._queue = CommandQueue(machine, machine.open_queue())
        _OPEN.add(self)

    @property
    def _machine(self) -> Machine:
        if self._machine_or_none is None:
            raise errors.DeviceError(f"GPU {self.index} is closed; open another one")
        return self._machine_or_none

    # Memory

    def allocate(self, bytes: int, tag: str = "buffer") -> int:
        """Allocates uninitialized device memory and returns its address. ``tag`` names it in findings and the trace."""
        if bytes <= 0:
            raise errors.FormatError(f"allocate: {bytes} bytes, expected at least 1")
        return self._machine.allocate(bytes, tag)

    def free(self, address: int, bytes: Optional[int] = None) -> None:
        """Frees device memory. ``bytes`` is ignored."""
        self._machine.free(address)

    def write_data(self, address: int, data: Any) -> None:
        """Copies an array to device memory, in row-major order, and waits for the copy."""
        self._queue.write(address, data).wait()

    def read_data(self, address: int, shape: Shape, dtype: Any) -> "np.ndarray[Any, Any]":
        """Copies device memory to a new array of this shape and dtype, and waits for the copy."""
        return self._queue.read(address, shape, dtype).result()

    def read_data_async(
        self, address: int, shape: Shape, dtype: Any, callback: Optional[Callable[["np.ndarray[Any, Any]"], object]] = None
    ) -> "Future[np.ndarray[Any, Any]]":
        """Starts copying device memory to a new array and returns. When the array is complete, ``callback`` gets it on another thread. The future has
        the array, or the error of the copy or of the callback. Callbacks may call the GPU."""
        read_back = self._queue.read(address, shape, dtype)
        if self._reader is None:
            self._reader = ThreadPoolExecutor(1, f"gpu-{self.index}-read")

        def arrive() -> "np.ndarray[Any, Any]":
            self._reader_thread = threading.get_ident()
            array = read_back.result()
            if callback is not None:
                callback(array)
            return array

        return self._reader.submit(arrive)

    def memory(self) -> MemoryUse:
        """Returns the bytes of device memory in use, the peak, the capacity, and the bytes that a memory scheduler moved."""
        return MemoryUse(*self._machine.memory())

    def free_pages(self) -> List[schedulers.PageRun]:
        """Returns the runs of free pages of 64 KiB."""
        return [schedulers.PageRun(*run) for run in self._machine.free_runs()]

    def resident(self) -> List[schedulers.Resident]:
        """Returns the allocations whose content is in device memory."""
        return [schedulers.Resident(*row) for row in self._machine.resident()]

    # Kernels

    def simulated_matrix_multiply(
        self, address_a: int, address_b: int, size_a: int, size_b: int, shape_a: Sequence[int], shape_b: Sequence[int]
    ) -> int:
        """Multiplies two matrices in device memory by a kernel in OpenCL C, and returns the address of the result.

        ``shape_a`` (m, k) and ``shape_b`` (k, n) are rows and columns. ``size_a`` and ``size_b`` are sizes in bytes; they determine whether the elements
        are f32 or f64. Read the result with :meth:`read_data`, shape (m, n), and free it with :meth:`free`."""
        (m, k), (rows, n) = _matrix("shape_a", shape_a), _matrix("shape_b", shape_b)
        if k != rows:
            raise errors.ShapeError(f"simulated_matrix_multiply: cannot multiply shapes {(m, k)} and {(rows, n)}: {k} columns, but {rows} rows")
        element = next((e for e in (8, 4) if m * k * e == size_a and k * n * e == size_b), None)
        if element is None:
            raise errors.ShapeError(
                f"simulated_matrix_multiply: sizes {size_a} and {size_b} do not match shapes {(m, k)} and {(k, n)}; elements have 4 or 8 bytes"
            )
        type_ = "double" if element == 8 else "float"
        program = self._programs.get(type_) or self._programs.setdefault(type_, Program(_PRODUCT, f"-D T={type_}"))
        for address, size in ((address_a, size_a), (address_b, size_b)):
            self._machine.check_range(address, size)
        address_c = self.allocate(m * n * element, "product")
        try:
            operands = read(address_a, size_a), read(address_b, size_b), write(address_c, m * n * element)
            items = -(-n // _TILE) * _TILE, -(-m // _TILE) * _TILE
            self.launch(program, "matrix_multiply", *operands, m, n, k, global_size=items, local_size=(_TILE, _TILE))
        except BaseException:
            self.free(address_c)
            raise
        return address_c

    def build(self, source: str, options: str = "") -> Program:
        """Compiles OpenCL C source; ``options`` are those of a compiler, such as ``-D N=4``."""
        return Program(source, options)

    def launch(self, program: Program, kernel: str, *arguments: Argument, global_size: Shape, local_size: Shape) -> None:
        """Runs a kernel on queue 0 and waits for it; see :meth:`CommandQueue.launch`."""
        self._queue.launch(program, kernel, *arguments, global_size=global_size, local_size=local_size).wait()

    def describe_launch(self, program: Program, kernel: str, *arguments: Argument, global_size: Shape, local_size: Shape) -> int:
        """Stores a launch descriptor in host memory and returns its bus address, for ``CommandRing.launch``. Each can be used once."""
        given = program._arguments(kernel, arguments)
        return self._machine.launch_descriptor(program._program, (kernel, given, sizes(global_size), sizes(local_size)))

    def counters(self) -> Optional[Counters]:
        """Returns the counters of the last launch, or ``None`` before the first one."""
        found = self._machine.counters()
        return None if found is None else Counters(dict(found[0]), found[1], found[2])

    def findings(self) -> List[Finding]:
        """Returns the findings of the checks since the last call."""
        return [Finding(*row) for row in self._machine.take_findings()]

    def printed(self) -> str:
        """Returns the output of ``printf`` in kernels since the last call."""
        return self._machine.take_printed()

    # The machine

    @property
    def dispatch_scheduler(self) -> schedulers.Dispatch:
        """The scheduler that chooses the next queue: a name in ``DISPATCH_SCHEDULERS``, or a function that gets the ready queues (``ReadyQueue``) and
        returns the number of one of them. Its exceptions are raised by the call that ran the commands."""
        return self._dispatch

    @dispatch_scheduler.setter
    def dispatch_scheduler(self, scheduler: schedulers.Dispatch) -> None:
        schedulers.set_dispatch(self._machine, scheduler)
        self._dispatch = scheduler

    @property
    def memory_scheduler(self) -> schedulers.Memory:
        """The scheduler that chooses the pages of allocations, and what moves to host memory: a name in ``MEMORY_SCHEDULERS``, a
        ``MemoryScheduler``, or a function like ``MemoryScheduler.place``."""
        return self._memory

    @memory_scheduler.setter
    def memory_scheduler(self, scheduler: schedulers.Memory) -> None:
        schedulers.set_memory(self._machine, scheduler)
        self._memory = scheduler

    def open_queue(self) -> CommandQueue:
        """Opens another queue; the device has 8."""
        machine = self._machine
        return CommandQueue(machine, machine.open_queue())

    @property
    def queue(self) -> CommandQueue:
        """Queue 0."""
        return self._queue

    def mmio(self) -> Window:
        """Maps registers and rings as memory. A second call returns the same window until it is closed."""
        if self._window is None or self._window._machine is None:
            self._window = Window(self._machine)
        return self._window

    def ring(self, queue: Optional[CommandQueue] = None) -> CommandRing:
        """Returns the ring of a queue in the register window [default: a new queue]. The program writes the packets itself."""
        return CommandRing(self.mmio(), (queue or self.open_queue()).number)

    def pin(self, data: Any) -> int:
        """Pins a copy of an array, or zeros for a number of bytes, in host memory, and returns the bus address."""
        return self._machine.pin(bytes(data) if isinstance(data, int) else contents(data))

    def unpin(self, bus: int, shape: Optional[Shape] = None, dtype: Any = np.uint8) -> "np.ndarray[Any, Any]":
        """Frees pinned memory and returns its content as an array of this shape [default: one axis] and dtype."""
        data = self._machine.unpin(bus)
        array = np.frombuffer(data, np.dtype(dtype)) if shape is None else np.frombuffer(data[: layout(shape, dtype)[2]], dtype).reshape(shape)
        return array.copy()

    def trace(self, level: str, function: Optional[Callable[[str], object]] = None) -> None:
        """Passes the machine's actions to ``function`` [default: ``print``], line by line: ``off``, ``commands``, ``steps`` or ``all``."""
        self._machine.set_trace(level, None if level == "off" else function or print)

    def timeline(self) -> Optional[str]:
        """Returns the timeline as JSON for ui.perfetto.dev, or ``None`` without ``timeline=True``."""
        return self._machine.timeline()

    @property
    def now_ns(self) -> int:
        """The host clock of the simulation, in ns."""
        return self._machine.now()

    def synchronize(self) -> None:
        """Waits for all commands of queue 0."""
        self._queue.finish()

    def close(self) -> None:
        """Waits for pending read-backs and their callbacks, and frees the machine. Runs at exit for GPUs that are still open."""
        machine = self._machine_or_none
        if machine is None:
            return
        if self._reader is not None:
            # A callback that closes its GPU runs on the thread that would be awaited.
            self._reader.shutdown(wait=self._reader_thread != threading.get_ident())
        if self._window is not None:
            self._window.close()
        machine.close()
        machine.set_trace("off", None)
        self._machine_or_none = None
        _OPEN.discard(self)

    def __enter__(self) -> GPU:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._machine_or_none is None else f"{self.compute_units} compute units, profile {self.profile}"
        return f"<GPU {self.index}: {state}>"


def _matrix(what: str, shape: Sequence[int]) -> "tuple[int, int]":
    sizes = [int(n) for n in shape]
    if len(sizes) != 2 or min(sizes) < 1:
        raise errors.ShapeError(f"simulated_matrix_multiply: {what} is {tuple(shape)}; expected rows and columns, both at least 1")
    return sizes[0], sizes[1]


def shutdown() -> None:
    """Closes every open GPU of this process. It runs at exit."""
    for gpu in list(_OPEN):
        gpu.close()


atexit.register(shutdown)

__all__ = ["GPU", "Counters", "Fence", "Finding", "MemoryUse", "ReadBack", "shutdown"]
