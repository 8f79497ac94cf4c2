"""Describes this machine's devices."""

from __future__ import annotations

from typing import Any

from ._netcl import devices, missing
from .errors import NetclError

INSTALL = (
    "the simulated GPU `sim` works without a driver. To install one: PoCL for CPUs (apt install pocl-opencl-icd ocl-icd-libopencl1), "
    "the vendor's driver for a GPU; then `netcl.devices()` lists it"
)


def doctor() -> str:
    """Lists the devices that netcl finds. If only the simulated GPU is available, says what to install."""
    try:
        found = [name for name in devices() if not name.startswith("sim")]
        why = missing()
    except NetclError as e:
        found, why = [], str(e)
    lines = ["devices: " + (", ".join(found) if found else "none")]
    if not found:
        lines += ([why] if why else []) + [INSTALL]
    return "\n".join(lines)


def named(device: Any) -> str:
    """Returns the name of a device that is given as an object or by name."""
    return device if isinstance(device, str) else str(device)


__all__ = ["doctor", "named"]
