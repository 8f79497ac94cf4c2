"""Kernels in OpenCL C and the arguments of their launches."""

from __future__ import annotations

import struct
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple, Union

import numpy as np

from .. import errors
from .._netcl import MachineProgram

# Formats of the struct module for scalar types of OpenCL C.
_SCALARS: Dict[str, str] = {
    "char": "<b", "uchar": "<B", "short": "<h", "ushort": "<H", "int": "<i", "uint": "<I", "long": "<q", "ulong": "<Q", "float": "<f", "double": "<d",
    "half": "<e", "unsigned char": "<B", "unsigned short": "<H", "unsigned int": "<I", "unsigned long": "<Q", "size_t": "<Q",
}


class Buffer(NamedTuple):
    """A range of device memory as an argument."""

    address: int
    bytes: int
    access: str
    """``read`` or ``write``."""


class Local(NamedTuple):
    """Local memory as an argument."""

    bytes: int


def read(address: int, bytes: int) -> Buffer:
    """Returns an argument: ``bytes`` bytes of device memory that the kernel only reads. A store to them is a finding."""
    return Buffer(address, bytes, "read")


def write(address: int, bytes: int) -> Buffer:
    """Returns an argument: ``bytes`` bytes of device memory that the kernel reads and writes."""
    return Buffer(address, bytes, "write")


def local(bytes: int) -> Local:
    """Returns an argument: ``bytes`` bytes of local memory for each work-group."""
    return Local(bytes)


Argument = Union[Buffer, Local, bool, int, float, bytes, "np.generic", "np.ndarray[Any, Any]"]
Given = Tuple[str, int, int, bytes]


class Program:
    """A compiled program. A build error is a ``BuildError`` with the compiler's messages."""

    def __init__(self, source: str, options: str = ""):
        self._program = MachineProgram(source, options)
        self._parameters: Dict[str, List[Tuple[str, str, str]]] = dict(self._program.kernels())

    @property
    def kernels(self) -> List[str]:
        """Names of the kernels."""
        return list(self._parameters)

    def _arguments(self, kernel: str, arguments: Sequence[Argument]) -> List[Given]:
        parameters = self._parameters.get(kernel)
        if parameters is None:
            raise errors.FormatError(f"the program does not have a kernel {kernel!r}; its kernels are {', '.join(self._parameters)}")
        if len(parameters) != len(arguments):
            names = ", ".join(name for name, _, _ in parameters)
            raise errors.FormatError(f"{kernel} has {len(parameters)} parameters ({names}), but {len(arguments)} arguments are given")
        return [_given(f"{kernel}: argument {name}", type_, kind, value) for (name, type_, kind), value in zip(parameters, arguments)]

    def __repr__(self) -> str:
        return f"<Program with the kernels {', '.join(self._parameters)}>"


def _given(what: str, type_: str, kind: str, value: Argument) -> Given:
    if kind in ("read", "write"):
        if not isinstance(value, Buffer):
            raise errors.FormatError(f"{what} is a buffer; pass read(address, bytes) or write(address, bytes)")
        return value.access, value.address, value.bytes, b""
    if kind == "local":
        if not isinstance(value, Local):
            raise errors.FormatError(f"{what} is local memory; pass local(bytes)")
        return "local", 0, value.bytes, b""
    if kind != "value" or isinstance(value, (Buffer, Local)):
        raise errors.FormatError(f"{what} of type {type_} cannot be passed from Python" if kind != "value" else f"{what} is a {type_}; pass a number")
    if isinstance(value, bytes):
        return "value", 0, 0, value
    if isinstance(value, np.ndarray):
        return "value", 0, 0, value.tobytes()
    spelled = " ".join(word for word in type_.split() if word != "const")
    if spelled not in _SCALARS:
        raise errors.FormatError(f"{what} of type {type_}: pass its bytes, or a NumPy array with its elements")
    try:
        number = float(value) if _SCALARS[spelled][1] in "efd" else int(value)
        if number != value and not number != number and _SCALARS[spelled][1] not in "efd":
            raise ValueError("it is not an integer")
        return "value", 0, 0, struct.pack(_SCALARS[spelled], number)
    except (struct.error, OverflowError, TypeError, ValueError) as error:
        raise errors.FormatError(f"{what}: {value!r} is not a valid {type_} ({error})") from None
