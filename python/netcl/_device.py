"""What there is on this machine, in words."""

from __future__ import annotations

from ._netcl import devices, missing


def doctor() -> str:
    """The devices that netcl finds, and what to install where there is none but the simulated one."""
    found = devices()
    real = [name for name in found if not name.startswith("sim")]
    lines = ["devices: " + (", ".join(found) if found else "none")]
    if not real:
        why = missing()
        lines.append(why if why else "no OpenCL device was found; the simulated GPU `sim` works without one")
        lines.append(
            "to install one: PoCL for processors (apt install pocl-opencl-icd ocl-icd-libopencl1), the vendor's driver for "
            "a GPU; then `netcl.devices()` lists it"
        )
    return "\n".join(lines)


__all__ = ["doctor"]
