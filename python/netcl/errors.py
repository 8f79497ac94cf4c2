"""Exceptions: one for each kind of netcl's errors, with the same text; each is also Python's own exception of that sort."""

from __future__ import annotations

__all__ = [
    "NetclError",
    "ShapeError",
    "DTypeError",
    "DeviceError",
    "OutOfMemoryError",
    "BuildError",
    "LaunchError",
    "UnsupportedError",
    "FormatError",
    "IndexOutOfBounds",
    "IoError",
    "InternalError",
]


class NetclError(Exception):
    """Every error of netcl. The text says where, what was expected, what was found, and what to do."""


class ShapeError(NetclError, ValueError):
    """Shapes do not fit each other or the operation."""


class DTypeError(NetclError, TypeError):
    """An operation does not take this dtype."""


class DeviceError(NetclError, RuntimeError):
    """No such device, no OpenCL, a lost device, or tensors of two devices."""


class OutOfMemoryError(NetclError, MemoryError):
    """Out of device or host memory, or above a limit of the device."""


class BuildError(NetclError, RuntimeError):
    """A kernel does not compile; the text has the log and the lines it points at."""


class LaunchError(NetclError, RuntimeError):
    """A driver call for a kernel, a copy or a queue failed."""


class UnsupportedError(NetclError, NotImplementedError):
    """This device or version cannot do it."""


class FormatError(NetclError, ValueError):
    """A file, a name or an argument does not say what it should."""


class IndexOutOfBounds(FormatError, IndexError):
    """An index that a tensor does not have."""


class IoError(NetclError, OSError):
    """Reading or writing a file failed."""


class InternalError(NetclError, RuntimeError):
    """A defect of netcl itself; please report it."""
