"""Ranks: devices that compute together."""

from __future__ import annotations

import atexit
import sys
import threading
from typing import Any, Callable, List, Optional, Sequence, Union

from .._netcl import Device, RankGroup, default_device, devices as _all_devices, divide_by_weights, join_mpi, local_ranks, mpi_launcher, set_default_device
from ..errors import DeviceError, FormatError
from ._profile import DeviceProfile, divide, profile

Shares = Union[str, Sequence[float]]


class Ranks:
    """The ranks of a computation, as this thread sees them.

    ``devices`` are those that this thread drives: all of them, or one if this thread or process is a rank. ``rank`` is this rank; 0 if this thread
    drives all devices.
    """

    def __init__(self, devices: Sequence[Device], groups: Sequence[RankGroup], shares: Shares, single: bool) -> None:
        self.devices, self.groups, self.single = list(devices), list(groups), single
        self.rank = groups[0].rank if single else 0
        self.size = groups[0].size
        self.transport = groups[0].transport
        self.shares = shares
        self._profiles: Optional[List[DeviceProfile]] = None
        self._check_shares()

    def _check_shares(self) -> None:
        if isinstance(self.shares, str):
            if self.shares not in ("equal", "profile"):
                raise FormatError(f"init: shares is {self.shares!r}, expected 'equal', 'profile' or a number for each rank")
        elif len(self.shares) != self.size or any(not s > 0 for s in self.shares):
            raise FormatError(f"init: shares has {len(self.shares)} numbers for {self.size} ranks; expected one positive number each")

    @property
    def device(self) -> Device:
        """The device of this rank, or the first one."""
        return self.devices[0]

    def profiles(self) -> List[DeviceProfile]:
        """Returns the measured profiles of this thread's devices. They are measured once."""
        if self._profiles is None:
            self._profiles = [profile(device) for device in self.devices]
        return self._profiles

    def divide(self, count: int, row_flops: float = 0.0, row_bytes: float = 0.0) -> List[int]:
        """Returns the number of rows of each rank, by the shares. With ``shares="profile"`` under MPI or in ``run``, all ranks call it."""
        if self.shares == "equal":
            return _parts(count, [1.0] * self.size)
        if not isinstance(self.shares, str):
            return _parts(count, self.shares)
        if not self.single:
            return divide(count, self.profiles(), row_flops, row_bytes)
        own = self.profiles()[0]
        texts = self.groups[0].all_gather(f"{own.memory} {own.flops} {own.link}".encode())
        numbers = [[float(word) for word in text.decode().split()] for text in texts]
        return divide(count, [DeviceProfile(own.device, int(memory), flops, link) for memory, flops, link in numbers], row_flops, row_bytes)

    def __repr__(self) -> str:
        names = ", ".join(d.name for d in self.devices)
        return f"<rank {self.rank} of {self.size} on {names}>" if self.single else f"<{self.size} ranks on {names}>"


def _parts(count: int, weights: Sequence[float]) -> List[int]:
    parts = divide_by_weights(count, list(weights))
    assert parts is not None
    return parts


class _OfThread(threading.local):
    ranks: Optional[Ranks] = None


class _OfProcess:
    ranks: Optional[Ranks] = None
    mpi: Optional[RankGroup] = None


_thread = _OfThread()
_process = _OfProcess()


def _opened(devices: Sequence[Any]) -> List[Device]:
    return [d if isinstance(d, Device) else Device(d) for d in devices]


def _attached(communicator: Any) -> bool:
    """Returns whether mpi4py has initialized MPI in this process."""
    mpi = sys.modules.get("mpi4py.MPI")
    return communicator is not None or (mpi is not None and mpi.Is_initialized())


def _left() -> None:
    """Ends MPI when the process ends. After an exception, the other processes are ended too, because they would wait for this one."""
    if _process.mpi is not None:
        if hasattr(sys, "last_type"):
            sys.stderr.flush()
            _process.mpi.abort(1)
        _process.mpi.close()


def mpi_group(communicator: Any = None) -> Optional[RankGroup]:
    """Returns the group of the processes that a launcher started, or ``None`` without a launcher."""
    if _process.mpi is None and (communicator is not None or mpi_launcher() is not None):
        _process.mpi = join_mpi(_attached(communicator))
        atexit.register(_left)
    return _process.mpi


def own_device(devices: Optional[Sequence[Any]]) -> Device:
    """Returns the device of this process: in turn one of ``devices``, or one of the machine's GPUs, or the default device."""
    launcher = mpi_launcher()
    place = launcher[3] if launcher is not None else 0
    if devices:
        return _opened([devices[place % len(devices)]])[0]
    gpus = [name for name in _all_devices() if not name.startswith("sim") and Device(name).kind != "cpu"]
    return Device(gpus[place % len(gpus)]) if gpus else default_device()


def init(
    devices: Optional[Sequence[Any]] = None, communicator: Any = None, shares: Shares = "equal", timeout: Optional[float] = None
) -> Ranks:
    """Starts a computation on several devices.

    ``devices`` are devices or their names [default: all except simulated ones]; a device may appear twice. Under ``mpirun`` or ``srun``, they are the
    devices of each machine, this process gets one of them, and it becomes the default device. ``communicator`` is mpi4py's ``COMM_WORLD``; it is
    only needed if no launcher's environment is found. ``shares`` divides batches: ``equal``, ``profile`` (by measured speed and memory) or a number
    for each rank. A rank that others wait for longer than ``timeout`` seconds counts as hung.

    Within ``run``, the ranks exist already, and this returns them.
    """
    if _thread.ranks is not None:
        return _thread.ranks
    if devices is not None and not list(devices):
        raise DeviceError("distributed.init: no devices are given; name at least one, such as devices=['pocl:0']")
    group = mpi_group(communicator)
    if group is not None:
        if communicator is not None and communicator.Get_size() != group.size:
            raise FormatError(f"distributed.init: the communicator has {communicator.Get_size()} of {group.size} processes; pass COMM_WORLD")
        own = own_device(devices)
        set_default_device(own)
        _process.ranks = Ranks([own], [group], shares, True)
        return _process.ranks
    opened = _opened(devices if devices is not None else [name for name in _all_devices() if not name.startswith("sim")] or [default_device()])
    _process.ranks = Ranks(opened, local_ranks(len(opened), timeout), shares, False)
    return _process.ranks


def shutdown() -> None:
    """Ends the computation of this program. Under MPI, the processes stay connected until they end."""
    _process.ranks = None


def is_initialized() -> bool:
    """Returns whether ``init`` was called, or this thread is a rank of ``run``."""
    return (_thread.ranks or _process.ranks) is not None


def current() -> Ranks:
    """Returns the ranks of this thread. Raises ``DeviceError`` before ``init``."""
    found = _thread.ranks or _process.ranks
    if found is None:
        raise DeviceError("distributed: call distributed.init(devices=[…]) first")
    return found


def get_rank() -> int:
    """Returns this rank."""
    return current().rank


def get_world_size() -> int:
    """Returns the number of ranks."""
    return current().size


def run(function: Callable[..., Any], devices: Sequence[Any], *args: Any, shares: Shares = "equal", timeout: Optional[float] = None) -> List[Any]:
    """Calls ``function(*args)`` in one thread per device. Each is a rank: ``current().device`` is its device, and collective operations work as under
    ``mpirun``. Returns the results in the order of ranks.

    If a rank raises an exception, the others that wait for it fail, and its exception is raised here.
    """
    opened, groups = _opened(devices), local_ranks(len(devices), timeout)
    results: List[Any] = [None] * len(opened)
    errors: List[Optional[BaseException]] = [None] * len(opened)

    def rank(i: int) -> None:
        try:
            _thread.ranks = Ranks([opened[i]], [groups[i]], shares, True)
            results[i] = function(*args)
        except BaseException as e:
            errors[i] = e
        finally:
            # Ranks that wait for this one learn that it has ended.
            _thread.ranks = None
            groups[i].leave()

    threads = [threading.Thread(target=rank, args=(i,), name=f"netcl-rank-{i}") for i in range(len(opened))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failed = [e for e in errors if e is not None]
    cause = next((e for e in failed if "which has ended" not in str(e)), failed[0] if failed else None)
    if cause is not None:
        raise cause
    return results


__all__ = ["Ranks", "current", "get_rank", "get_world_size", "init", "is_initialized", "mpi_group", "own_device", "run", "shutdown"]
