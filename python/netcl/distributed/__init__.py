"""Computations on several devices: sums and copies between them, data parallel models, and the division of batches by the devices' speed.

``init`` decides what a rank is:

- ``init(devices=["pocl:0", "nvidia:0"])``: this program drives all devices. Operations take and return lists with one tensor per device.
- Under ``mpirun`` or ``srun``: each process is a rank with one device. Operations take this rank's tensor, and all ranks call them.
- ``run(function, devices)``: each device has a thread of this process, which is a rank, as under ``mpirun``.

>>> import netcl as nc
>>> from netcl import distributed
>>> ranks = distributed.init(devices=["sim", "sim"])
>>> parts = distributed.scatter(nc.tensor([1.0, 2.0, 3.0, 4.0], device="sim"))
>>> [part.tolist() for part in distributed.all_reduce(parts)]
[[4.0, 6.0], [4.0, 6.0]]
>>> distributed.shutdown()
"""

from ._collectives import all_gather, all_reduce, barrier, broadcast, gather, scatter
from ._parallel import DataParallel
from ._profile import DeviceProfile, divide, profile
from ._ranks import Ranks, current, get_rank, get_world_size, init, is_initialized, run, shutdown

__all__ = [
    "DataParallel", "DeviceProfile", "Ranks", "all_gather", "all_reduce", "barrier", "broadcast", "current", "divide", "gather", "get_rank", "get_world_size", "init",
    "is_initialized", "profile", "run", "scatter", "shutdown",
]  # fmt: skip
