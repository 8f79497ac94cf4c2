"""``torch.nn.parallel`` and the process groups of ``torch.distributed``. Programs can import these names; several processes are refused."""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional

from .. import distributed
from .._netcl import Tensor
from ..errors import UnsupportedError
from ..nn.module import Module

_RANKS = "write netcl.distributed.init, and start the program with mpirun, or call netcl.distributed.run(function, devices)"


def _refused(name: str, advice: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        raise UnsupportedError(f"{name} is not supported; {advice}")

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"Refuses: {advice}."
    return call


class DataParallel(Module):
    """Calls its module, as PyTorch's wrapper does without a GPU. ``netcl.distributed.DataParallel`` divides batches between devices."""

    def __init__(self, module: Module, device_ids: Optional[Any] = None, output_device: Any = None, dim: int = 0) -> None:
        super().__init__()
        if device_ids:
            raise UnsupportedError("DataParallel: device_ids names GPUs of PyTorch; write netcl.distributed.DataParallel(model, devices)")
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the module."""
        return self.module(*args, **kwargs)


def data_parallel(module: Module, inputs: Any, device_ids: Optional[Any] = None, output_device: Any = None, dim: int = 0, module_kwargs: Optional[Dict[str, Any]] = None) -> Any:
    """Calls the module, as PyTorch does without a GPU."""
    given = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    return DataParallel(module, device_ids, output_device, dim)(*given, **(module_kwargs or {}))


PARALLEL: Dict[str, Any] = {
    "DataParallel": DataParallel, "data_parallel": data_parallel,
    "DistributedDataParallel": _refused("DistributedDataParallel", "write netcl.distributed.DataParallel"),
}  # fmt: skip
"""Names of ``torch.nn.parallel``."""

GROUPS: Dict[str, Any] = {
    name: _refused(f"torch.distributed.{name}", _RANKS)
    for name in ("init_process_group", "destroy_process_group", "new_group", "reduce", "reduce_scatter", "all_to_all", "send", "recv", "isend", "irecv")
}  # fmt: skip
GROUPS.update(is_available=lambda: True, is_initialized=distributed.is_initialized)
"""Names of ``torch.distributed`` beyond those of ``netcl.distributed``."""

__all__ = ["DataParallel", "GROUPS", "PARALLEL", "data_parallel"]
