"""Tensors in files: safetensors, NumPy's ``.npz``, and the weights in PyTorch's files."""

from __future__ import annotations

import os
import zipfile
from typing import Any, Dict, List, Mapping, Tuple, Union

from ._dtype import DTYPES
from ._host import from_numpy
from ._netcl import Tensor, from_bytes, read_safetensors, write_safetensors
from ._pt import is_pt, read_pt, write_pt
from .errors import FormatError, IoError, UnsupportedError

Path = Union[str, "os.PathLike[str]"]
NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "I32": "int32", "U32": "uint32", "BOOL": "bool"}
CODES = {dtype: name for name, dtype in NAMES.items()}


ENDINGS = (".pt", ".pth", ".bin", ".ckpt", ".tar")
"""Endings of PyTorch's files."""


def save(tensors: Any, path: Any) -> None:
    """Writes tensors by name, such as a module's ``state_dict``, to a safetensors file, or to ``.npz`` if the path ends so. Paths that end in
    ``.pt``, ``.pth``, ``.bin``, ``.ckpt`` or ``.tar``, and files that are open for writing, get PyTorch's format. It may also have numbers, text and
    nested lists and dictionaries. A path is written atomically.
    """
    if hasattr(path, "write") or os.fspath(path).endswith(ENDINGS):
        write_pt(tensors, path)
        return
    path = os.fspath(path)
    if not isinstance(tensors, Mapping):
        raise FormatError(f"save: got {type(tensors).__name__}, expected tensors by name; give the path the ending .pt for other contents")
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise FormatError(f"save: {name} is {type(tensor).__name__}, expected a tensor")
    if path.endswith(".npz"):
        _save_npz(tensors, path)
        return
    stored = [(name, CODES[t.dtype.name], list(t.shape), t._bytes()) for name, t in tensors.items()]
    write_safetensors(path, stored)


def _save_npz(tensors: Mapping[str, Tensor], path: str) -> None:
    import numpy as np

    arrays: Dict[str, Any] = {name: t.numpy() for name, t in tensors.items()}
    beside = f"{path}.{os.getpid()}.part"
    try:
        with open(beside, "wb") as f:
            np.savez(f, **arrays)
            f.flush()
            os.fsync(f.fileno())
        os.replace(beside, path)
    except OSError as e:
        if os.path.exists(beside):
            os.unlink(beside)
        raise IoError(f"cannot write {path}: {e}") from e


def load(path: Any, device: Any = None, *, map_location: Any = None, weights_only: bool = True) -> Any:
    """Reads the tensors of a safetensors or ``.npz`` file by name, or a file of ``torch.save``. Only its tensors, numbers, text and containers are
    read. int64 becomes int32, and float64 becomes float32. ``map_location`` is PyTorch's name of ``device``.
    """
    if not weights_only:
        raise UnsupportedError("load: weights_only=False would run code of the file; save model.state_dict() and leave weights_only out")
    if callable(map_location) or isinstance(map_location, dict):
        raise UnsupportedError("load: map_location must be a device; load the file and move the tensors with .to(device)")
    # PyTorch's "cpu" says that the file's devices do not matter.
    device = device if device is not None else None if str(map_location) == "cpu" else map_location
    if hasattr(path, "read") or os.fspath(path).endswith(ENDINGS) or (os.path.isfile(path) and is_pt(path)):
        try:
            return read_pt(path, device)
        except OSError as e:
            raise IoError(f"cannot read {path}: {e}") from e
    path = os.fspath(path)
    if path.endswith(".npz"):
        return _load_npz(path, device)
    return {name: tensor_of(name, dtype, shape, data, device) for name, dtype, shape, data in read_safetensors(path)}


def tensor_of(name: str, dtype: str, shape: List[int], data: bytes, device: Any) -> Tensor:
    """Creates a tensor from an entry of a safetensors file."""
    if dtype in NAMES:
        return from_bytes(data, shape, DTYPES[NAMES[dtype]], device)
    import numpy as np

    codes = {"F64": "<f8", "I64": "<i8", "U64": "<u8"}
    if dtype not in codes:
        raise FormatError(f"load: {name} is {dtype}, expected one of {', '.join([*NAMES, *codes])}")
    return from_numpy(np.frombuffer(data, dtype=codes[dtype]).reshape(shape), None, device)


def _load_npz(path: str, device: Any) -> Dict[str, Tensor]:
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as arrays:
            found: List[Tuple[str, Any]] = [(name, arrays[name]) for name in arrays.files]
    except (ValueError, zipfile.BadZipFile, EOFError, KeyError) as e:
        raise FormatError(f"load: {path} is not an .npz file of arrays (pickles are not read): {e}") from e
    except OSError as e:
        raise IoError(f"cannot read {path}: {e}") from e
    return {name: from_numpy(array, None, device) for name, array in found}


__all__ = ["load", "save", "tensor_of"]
