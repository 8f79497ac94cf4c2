"""AetherCL from Python: a simulated GPU with memory by address, command queues and rings, a register window, and schedulers that a program may replace.

>>> import numpy as np
>>> from netcl.aethercl import GPU
>>> with GPU() as gpu:
...     address = gpu.allocate(24)
...     gpu.write_data(address, np.arange(6, dtype=np.float32))
...     print(gpu.read_data(address, shape=(2, 3), dtype=np.float32))
[[0. 1. 2.]
 [3. 4. 5.]]

``docs/aethercl.md`` follows a command through the machine. Times are those of a modeled device, in nanoseconds.
"""

from ._gpu import GPU, Counters, Finding, MemoryUse
from ._launch import Program, local, read, write
from ._manager import GPUManager, shutdown
from ._queue import CommandQueue, Fence, ReadBack, Times
from ._ring import CommandRing
from ._schedulers import DISPATCH_SCHEDULERS, MEMORY_SCHEDULERS, MemoryScheduler, PageRun, ReadyQueue, Resident
from ._window import Register, Window

__all__ = [
    "GPU",
    "GPUManager",
    "CommandQueue",
    "CommandRing",
    "Counters",
    "DISPATCH_SCHEDULERS",
    "Fence",
    "Finding",
    "MEMORY_SCHEDULERS",
    "MemoryScheduler",
    "MemoryUse",
    "PageRun",
    "Program",
    "ReadBack",
    "ReadyQueue",
    "Register",
    "Resident",
    "Times",
    "Window",
    "local",
    "read",
    "shutdown",
    "write",
]
