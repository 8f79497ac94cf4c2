"""Exceptions: one for each kind of netcl error, with the same message. Each is also derived from a matching built-in exception."""

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
    """Base class of netcl's errors. The message says where the error occurred, what was expected, what was found, and what to do."""


class ShapeError(NetclError, ValueError):
    """Shapes do not match each other or the operation."""


class DTypeError(NetclError, TypeError):
    """An operation does not support this dtype."""


class DeviceError(NetclError, RuntimeError):
    """Unknown device, missing OpenCL, lost device, or tensors on different devices."""


class OutOfMemoryError(NetclError, MemoryError):
    """Out of device or host memory, or above a limit of the device."""


class BuildError(NetclError, RuntimeError):
    """A kernel does not compile. The message contains the log and the source lines that it refers to."""


class LaunchError(NetclError, RuntimeError):
    """A driver call for a kernel, a copy or a queue failed."""


class UnsupportedError(NetclError, NotImplementedError):
    """This device or version does not support the request."""


class FormatError(NetclError, ValueError):
    """The contents of a file, a name or an argument are invalid."""


class IndexOutOfBounds(FormatError, IndexError):
    """An index is out of range for a tensor."""


class IoError(NetclError, OSError):
    """Reading or writing a file failed."""


class InternalError(NetclError, RuntimeError):
    """A defect of netcl itself; please report it."""
