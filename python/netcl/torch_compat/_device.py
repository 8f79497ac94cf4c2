"""Devices with PyTorch's names. ``"cpu"`` is the default device of netcl."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from .._netcl import Device, default_device, devices
from .._torch._attributes import known_device
from ..errors import UnsupportedError


def device(type: Any = None, index: Any = None) -> Any:
    """Returns a device by its name in netcl. ``"cpu"`` is the default device. ``"cuda"`` is refused; ``netcl.devices()`` lists the names."""
    if isinstance(type, Device):
        return type
    name = "cpu" if type is None else str(type)
    if name.split(":")[0] in ("cuda", "mps", "xpu", "xla", "meta"):
        raise UnsupportedError(f"device: {name!r} is a device of PyTorch; netcl has {', '.join(devices())}. 'cpu' is its default device")
    found = known_device("cpu" if name.startswith("cpu:") else name if index is None else f"{name}:{index}")
    return found if isinstance(found, Device) else Device(found)


def get_default_device() -> Device:
    """Returns the device on which tensors are created."""
    return default_device()


class _Cuda(ModuleType):
    """``torch.cuda`` of a machine without CUDA."""

    @staticmethod
    def is_available() -> bool:
        """Returns False: PyTorch's CUDA is not used."""
        return False

    @staticmethod
    def device_count() -> int:
        """Returns 0."""
        return 0

    @staticmethod
    def is_bf16_supported() -> bool:
        """Returns False."""
        return False

    @staticmethod
    def synchronize(device: Any = None) -> None:
        """Waits for the default device."""
        default_device().synchronize()

    @staticmethod
    def empty_cache() -> None:
        """Releases unused device memory."""
        default_device().release_cached_memory()

    @staticmethod
    def manual_seed(seed: int) -> None:
        """Restarts the default random stream."""
        from .._create import manual_seed

        manual_seed(seed)

    @staticmethod
    def manual_seed_all(seed: int) -> None:
        """Restarts the default random stream."""
        _Cuda.manual_seed(seed)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "amp":
            from .. import amp

            return amp
        raise AttributeError(f"torch.cuda.{name} is not available; write netcl.default_device(), which has memory(), synchronize() and stream()")


cuda: Any = _Cuda("netcl.torch_compat.cuda")


class _Accelerator(ModuleType):
    """``torch.accelerator`` of a machine without PyTorch's accelerators. Programs then use the device ``"cpu"``, netcl's default device."""

    @staticmethod
    def is_available() -> bool:
        """Returns False."""
        return False

    @staticmethod
    def device_count() -> int:
        """Returns 0."""
        return 0

    @staticmethod
    def current_accelerator(check_available: bool = False) -> None:
        """Returns None."""

    @staticmethod
    def synchronize(device: Any = None) -> None:
        """Waits for the default device."""
        default_device().synchronize()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(f"torch.accelerator.{name} is not available; write netcl.default_device(), which has memory(), synchronize() and stream()")


accelerator: Any = _Accelerator("netcl.torch_compat.accelerator")

__all__ = ["accelerator", "cuda", "device", "get_default_device"]
