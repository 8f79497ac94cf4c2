"""Files of ``torch.save``: a zip archive of a pickle and the tensors' bytes. Only tensors, numbers, text and containers are read and written; no
code of the file runs.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import struct
import zipfile
from collections import OrderedDict
from typing import Any, Callable, Dict, List, Mapping, Tuple

from ._host import from_numpy, to_dtype
from ._netcl import Tensor
from .errors import FormatError, UnsupportedError

STORAGES = {
    "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16", "IntStorage": "int32", "BoolStorage": "bool",
    "DoubleStorage": "float64", "LongStorage": "int64", "ShortStorage": "int16", "CharStorage": "int8", "ByteStorage": "uint8",
}  # fmt: skip
"""Storage classes of PyTorch and their types."""
WRITTEN = {"float32": "FloatStorage", "float16": "HalfStorage", "bfloat16": "BFloat16Storage", "int32": "IntStorage", "bool": "BoolStorage"}
SIZES = {"float16": 2, "bfloat16": 2, "float64": 8, "int64": 8, "int16": 2, "int8": 1, "uint8": 1, "bool": 1}
LARGEST = 2**31
"""Elements that a tensor may have beyond those in the file."""


class _Storage:
    def __init__(self, dtype: str, data: bytes) -> None:
        self.dtype, self.data = dtype, data
        self.count = len(data) // SIZES.get(dtype, 4)


class _Reader(pickle.Unpickler):
    """Unpickler that knows tensors and containers only."""

    def __init__(self, pickled: bytes, storage: Callable[[str], bytes], device: Any) -> None:
        super().__init__(io.BytesIO(pickled))
        self._bytes, self._device = storage, device
        self._storages: Dict[str, _Storage] = {}

    def find_class(self, module: str, name: str) -> Any:
        known: Dict[Tuple[str, str], Any] = {
            ("collections", "OrderedDict"): OrderedDict,
            ("torch", "Size"): tuple,
            ("torch._utils", "_rebuild_tensor_v2"): self._tensor,
            ("torch._utils", "_rebuild_parameter"): self._parameter,
            ("torch.serialization", "_get_layout"): str,
            ("torch", "device"): lambda *args: args[0],
        }
        if (module, name) in known:
            return known[module, name]
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        if module == "torch" and name in ("float32", "float16", "bfloat16", "int32", "bool"):
            return to_dtype(name)
        raise FormatError(
            f"load: the file has an object of {module}.{name}; only tensors, numbers, text, lists, tuples and dictionaries are read. Save "
            "model.state_dict() instead of the model"
        )

    def persistent_load(self, pid: Any) -> _Storage:
        if not isinstance(pid, tuple) or len(pid) != 5 or pid[0] != "storage" or not isinstance(pid[1], str):
            raise FormatError("load: the file refers to an unknown kind of data")
        key = str(pid[2])
        if key not in self._storages:
            self._storages[key] = _Storage(pid[1], self._bytes(key))
        return self._storages[key]

    def _tensor(self, storage: _Storage, offset: int, size: Tuple[int, ...], strides: Tuple[int, ...], requires_grad: bool = False, *_: Any) -> Tensor:
        import numpy as np

        numbers = [offset, *size, *strides]
        if not isinstance(storage, _Storage) or len(size) != len(strides) or any(not isinstance(n, int) or n < 0 for n in numbers):
            raise FormatError("load: the file has a damaged tensor")
        count = math.prod(size)
        end = offset + sum((n - 1) * s for n, s in zip(size, strides)) + 1 if count else 0
        if end > storage.count or count > max(storage.count, LARGEST):
            raise FormatError(f"load: a tensor of shape {tuple(size)} exceeds the {storage.count} elements in the file")
        kind = {"bfloat16": "<u2", "bool": "|u1", "uint8": "|u1", "int8": "|i1"}.get(storage.dtype, None) or np.dtype(storage.dtype).newbyteorder("<")
        flat = np.frombuffer(storage.data, dtype=kind)
        width = flat.dtype.itemsize
        view = np.lib.stride_tricks.as_strided(flat[offset:], tuple(size), tuple(s * width for s in strides)) if count else np.zeros(tuple(size), flat.dtype)
        if storage.dtype == "bfloat16":
            made = from_numpy((np.ascontiguousarray(view).astype(np.uint32) << 16).view(np.float32).reshape(tuple(size)), "bfloat16", self._device)
        elif storage.dtype == "bool":
            made = from_numpy(view != 0, None, self._device)
        else:
            made = from_numpy(np.ascontiguousarray(view).reshape(tuple(size)), None, self._device)
        return made.requires_grad_() if requires_grad and made.dtype.is_floating_point else made

    def _parameter(self, data: Tensor, requires_grad: bool, *_: Any) -> Tensor:
        from .nn.parameter import Parameter

        return Parameter(data, bool(requires_grad))


def is_pt(file: Any) -> bool:
    """Returns whether a file was written by ``torch.save``."""
    try:
        with zipfile.ZipFile(file) as archive:
            return any(name.endswith("/data.pkl") for name in archive.namelist())
    except (zipfile.BadZipFile, OSError):
        return False


def read_pt(file: Any, device: Any = None) -> Any:
    """Reads a file of ``torch.save``. int64 and smaller integers become int32, float64 becomes float32. Tensors that shared memory get their own."""
    try:
        with zipfile.ZipFile(file) as archive:
            names = set(archive.namelist())
            place = next((n for n in names if n.endswith("/data.pkl")), None)
            if place is None:
                raise FormatError("load: the archive does not have data.pkl, so torch.save did not write it")
            folder = place[: -len("data.pkl")]
            if f"{folder}byteorder" in names and archive.read(f"{folder}byteorder") != b"little":
                raise UnsupportedError("load: the file was written on a big-endian machine")

            def storage(key: str) -> bytes:
                if f"{folder}data/{key}" not in names:
                    raise FormatError(f"load: the file does not have the data of tensor {key}")
                return archive.read(f"{folder}data/{key}")

            return _Reader(archive.read(place), storage, device).load()
    except zipfile.BadZipFile as e:
        raise FormatError(f"load: not a file of torch.save: {e}") from None
    except (pickle.UnpicklingError, EOFError, AttributeError, IndexError, KeyError, TypeError, struct.error, UnicodeDecodeError) as e:
        raise FormatError(f"load: the file is damaged: {e}") from None


class _Writer:
    """Writer of a pickle, protocol 2, with PyTorch's references to tensors."""

    def __init__(self) -> None:
        self.out: List[bytes] = [b"\x80\x02"]
        self.tensors: List[Tensor] = []

    def value(self, x: Any) -> None:
        """Appends a value."""
        if x is None or isinstance(x, bool):
            self.out.append({None: b"N", True: b"\x88", False: b"\x89"}[x])
        elif isinstance(x, Tensor):
            self._tensor(x)
        elif isinstance(x, int):
            n = (x.bit_length() + 8) // 8
            data = int(x).to_bytes(n, "little", signed=True)
            self.out.append(b"J" + struct.pack("<i", x) if -(2**31) <= x < 2**31 else b"\x8a" + bytes([n]) + data)
        elif isinstance(x, float):
            self.out.append(b"G" + struct.pack(">d", x))
        elif isinstance(x, str):
            data = x.encode("utf-8", "surrogatepass")
            self.out.append(b"X" + struct.pack("<I", len(data)) + data)
        elif isinstance(x, Mapping):
            self._mapping(x)
        elif isinstance(x, (list, tuple)):
            self._sequence(x)
        else:
            raise FormatError(f"save: got an object of {type(x).__name__}; only tensors, numbers, text, lists, tuples and dictionaries are written. Save model.state_dict()")

    def _sequence(self, x: Any) -> None:
        self.out.append(b"(" if isinstance(x, tuple) else b"](")
        for each in x:
            self.value(each)
        self.out.append(b"t" if isinstance(x, tuple) else b"e")

    def _mapping(self, x: Mapping[Any, Any]) -> None:
        self.out.append(b"ccollections\nOrderedDict\n)R(" if isinstance(x, OrderedDict) else b"}(")
        for key, value in x.items():
            self.value(key)
            self.value(value)
        self.out.append(b"u")

    def _tensor(self, x: Tensor) -> None:
        if x.dtype.name not in WRITTEN:
            raise FormatError(f"save: PyTorch's files do not have {x.dtype}; convert the tensor with x.int()")
        strides: List[int] = []
        step = 1
        for n in reversed(x.shape):
            strides.insert(0, step)
            step *= max(n, 1)
        self.out.append(b"ctorch._utils\n_rebuild_tensor_v2\n((")
        self.value("storage")
        self.out.append(b"ctorch\n" + WRITTEN[x.dtype.name].encode() + b"\n")
        for each in (str(len(self.tensors)), "cpu", x.numel()):
            self.value(int(each) if isinstance(each, int) else each)
        self.out.append(b"tQ")
        parts: List[Any] = [0, tuple(int(n) for n in x.shape), tuple(strides), bool(x.requires_grad and x.is_leaf), OrderedDict()]
        for part in parts:
            self.value(part)
        self.out.append(b"tR")
        self.tensors.append(x)


def write_pt(obj: Any, file: Any) -> None:
    """Writes a file that ``torch.load`` reads. A path is written atomically."""
    writer = _Writer()
    writer.value(obj)
    if not hasattr(file, "write"):
        path = os.fspath(file)
        beside = f"{path}.{os.getpid()}.part"
        try:
            with open(beside, "wb") as f:
                _archive(writer, f)
                f.flush()
                os.fsync(f.fileno())
            os.replace(beside, path)
        finally:
            if os.path.exists(beside):
                os.unlink(beside)
        return
    _archive(writer, file)


def _archive(writer: _Writer, file: Any) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", b"".join(writer.out) + b".")
        archive.writestr("archive/byteorder", b"little")
        for i, x in enumerate(writer.tensors):
            archive.writestr(f"archive/data/{i}", x.detach()._bytes())
        archive.writestr("archive/version", b"3\n")


__all__ = ["is_pt", "read_pt", "write_pt"]
