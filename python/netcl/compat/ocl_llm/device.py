"""The device of all tensors, and the operations that work on it."""

from __future__ import annotations

import warnings
from typing import Any, Callable, Dict, Union

import numpy as np

from ... import ops
from ..._create import tensor as _tensor
from ..._create import zeros as _zeros
from ..._kernel import kernel
from ..._netcl import Tensor, default_device, devices, set_default_device
from ...autograd import no_grad
from .buffer import registered
from .tensor import OclTensor, free_placeholders

ATOMIC_ADD = """
__kernel void add(__global const uint *given, __global uint *sum, const uint n) {
  volatile __global uint *to = (volatile __global uint *)sum;
  if (get_local_id(0) == 0) *to = 0;
  barrier(CLK_GLOBAL_MEM_FENCE);
  for (uint k = get_local_id(0); k < n; k += get_local_size(0))
    for (uint old = *to; ; old = *to)
      if (atomic_cmpxchg(to, old, old + given[k]) == old) break;
}
"""


def _matrices() -> Tensor:
    return _tensor(np.arange(8, dtype=np.float32).reshape(2, 2, 2))


def _rows_of_table() -> Any:
    return ops.embedding(_matrices()[0], _tensor(np.array([1, 0], dtype=np.int32)))


def _scattered() -> Any:
    ids = _tensor(np.ones((2, 2), dtype=np.int32))
    return ops.scatter_add(_zeros(2, 2), ids, _matrices()[0], 0)


def _losses() -> Any:
    return ops.cross_entropy(_matrices()[0], _tensor(np.array([1, 0], dtype=np.int32)))


# Each runs an operation on a few elements, which builds its kernel.
PROBES: Dict[str, Callable[[], Any]] = {
    "HAS_EMBEDDING_LOOKUP": _rows_of_table,
    "HAS_EMBEDDING_BACKWARD": _scattered,
    "HAS_TRANSPOSE_LAST_TWO": lambda: ops.transpose(_matrices(), 1, 2).clone(),
    "HAS_TRANSPOSE_12_BATCHED": lambda: ops.transpose(ops.unsqueeze(_matrices(), 3), 1, 2).clone(),
    "HAS_BMM_BATCHED": lambda: ops.matmul(_matrices(), _matrices()),
    "HAS_GPU_CROSS_ENTROPY": _losses,
    "HAS_ADD_BROADCAST_PE": lambda: _matrices() + _matrices()[0],
    "HAS_REDUCE_SUM": lambda: ops.sum_to(_matrices(), (2,)),
}

_known: Dict[str, Dict[str, bool]] = {}
"""By device: whether each operation works there."""


def _works(probe: Callable[[], Any]) -> bool:
    try:
        return bool(np.isfinite(probe().numpy()).all())
    except RuntimeError:
        return False


def _has_atomics() -> bool:
    """Sums numbers of the work-items of a group by compare and exchange."""
    try:
        sum_ = kernel(ATOMIC_ADD, groups=1, local=16, out=(1,))
        return bool(sum_(_tensor(np.ones(64, dtype=np.uint32)), n=64).item() == 64)
    except RuntimeError:
        return False


def availability() -> Dict[str, bool]:
    """Returns whether each optional operation works on the device: the flags ``HAS_…``, and ``has_atomics_support``."""
    name = default_device().name
    if name not in _known:
        with no_grad():
            _known[name] = {**{flag: _works(probe) for flag, probe in PROBES.items()}, "has_atomics_support": _has_atomics()}
    return _known[name]


def _select(device: Union[int, str]) -> None:
    """Makes a device the default: by number, or by name. A number that no device has means device 0."""
    text = str(device).strip()
    if not text.lstrip("+-").isdigit():
        set_default_device(text)
        return
    number, there = int(text), devices()
    if not 0 <= number < max(len(there), 1):
        warnings.warn(f"no device {number}, using device 0; there are {len(there)}: {', '.join(there)}", RuntimeWarning, stacklevel=3)
        number = 0
    set_default_device(there[number] if there else "auto")


def ocl_initialize(device_index: Union[int, str] = 0) -> str:
    """Selects the device of all tensors: an index into ``netcl.devices()``, or a name such as ``sim``. An index that no device has gives a warning and
    selects device 0. Prints which operations work on the device. Returns its name.
    """
    _select(device_index)
    OclTensor._ocl_initialized = True
    device = default_device()
    print(f"device {device.name}: {device.description}")
    for flag, works in availability().items():
        print(f"  {flag:25} {'yes' if works else 'no'}")
    return device.name


def ocl_shutdown() -> None:
    """Frees the memory of all remaining tensors, models, optimizers and buffers, and returns it to the driver."""
    for each in list(registered):
        each.free_memory()
    free_placeholders()
    OclTensor._ocl_initialized = False
    default_device().release_cached_memory()


__all__ = ["availability", "ocl_initialize", "ocl_shutdown"]
