"""Data types: their ranges and their promotion."""

from __future__ import annotations

import builtins
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple, Union

from .._dtype import DType, bool_, float32, int32, uint32
from .._netcl import Device, Tensor, default_device, devices

bool = bool_

NAMES = {"bool": bool_, "int32": int32, "uint32": uint32, "float32": float32}
KINDS: Dict[str, Tuple[str, ...]] = {
    "bool": ("bool",),
    "signed integer": ("int32",),
    "unsigned integer": ("uint32",),
    "integral": ("int32", "uint32"),
    "real floating": ("float16", "bfloat16", "float32"),
    "complex floating": (),
    "numeric": ("int32", "uint32", "float16", "bfloat16", "float32"),
}


@dataclass(frozen=True)
class finfo_object:
    """Properties of a floating-point type."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


@dataclass(frozen=True)
class iinfo_object:
    """Properties of an integer type."""

    bits: int
    max: int
    min: int
    dtype: DType


def _dtype(x: Any) -> Any:
    return x.dtype if isinstance(x, Tensor) else x


def finfo(type: Any, /) -> finfo_object:
    """Returns the properties of a floating-point type, or of an array's type."""
    dtype = _dtype(type)
    limits = {
        "float32": (32, 2.0**-23, 3.4028234663852886e38, 2.0**-126),
        "float16": (16, 2.0**-10, 65504.0, 2.0**-14),
        "bfloat16": (16, 2.0**-7, 3.3895313892515355e38, 2.0**-126),
    }
    if not isinstance(dtype, DType) or dtype.name not in limits:
        raise TypeError(f"finfo: {dtype!r} is not a floating-point type")
    bits, eps, largest, smallest = limits[dtype.name]
    return finfo_object(bits, eps, largest, -largest, smallest, dtype)


def iinfo(type: Any, /) -> iinfo_object:
    """Returns the properties of an integer type, or of an array's type."""
    dtype = _dtype(type)
    if dtype is int32:
        return iinfo_object(32, 2**31 - 1, -(2**31), int32)
    if dtype is uint32:
        return iinfo_object(32, 2**32 - 1, 0, uint32)
    raise TypeError(f"iinfo: {dtype!r} is not an integer type")


def isdtype(dtype: DType, kind: Union[DType, str, Tuple[Union[DType, str], ...]]) -> builtins.bool:
    """Returns whether the type is this type or of this kind, or one of several."""
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
    if isinstance(kind, DType):
        return dtype is kind
    if kind not in KINDS:
        raise ValueError(f"isdtype: unknown kind {kind!r}; expected one of {', '.join(KINDS)}")
    return dtype.name in KINDS[kind]


def _promoted(a: DType, b: DType) -> DType:
    if a is b:
        return a
    if a.is_floating_point and b.is_floating_point:
        return float32
    raise TypeError(f"result_type: {a} and {b} do not have a common type")


def result_type(*arrays_and_dtypes: Any) -> DType:
    """Returns the result type of an operation on these arguments. Python numbers take the type of the arrays."""
    dtypes = [d for d in map(_dtype, arrays_and_dtypes) if isinstance(d, DType)]
    if not dtypes:
        raise ValueError("result_type: expected at least one array or dtype")
    result = dtypes[0]
    for dtype in dtypes[1:]:
        result = _promoted(result, dtype)
    for number in arrays_and_dtypes:
        if isinstance(number, float) and not result.is_floating_point or isinstance(number, builtins.bool) != (result is bool_) and isinstance(number, (int, float)) and result is bool_:
            raise TypeError(f"result_type: {number!r} cannot be combined with {result}")
    return result


def can_cast(from_: Any, to: DType, /) -> builtins.bool:
    """Returns whether one type promotes to another."""
    try:
        return _promoted(_dtype(from_), to) is to
    except TypeError:
        return False


def astype(x: Tensor, dtype: DType, /, *, copy: builtins.bool = True, device: Any = None) -> Tensor:
    """Converts the array to another type. It is copied unless ``copy`` is False and it already has the type."""
    if dtype is x.dtype and (device is None or Device(str(getattr(device, "name", device))) == x.device):
        return x.clone() if copy else x
    return x._to(device, dtype)


class _Info:
    """Properties of this namespace."""

    def capabilities(self) -> Dict[str, Any]:
        """Boolean indexing and shapes that depend on values are supported, through the host."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": None}

    def default_device(self) -> Device:
        """Returns the default device of new arrays."""
        return default_device()

    def default_dtypes(self, *, device: Any = None) -> Dict[str, DType]:
        """Returns the default types of new arrays. Complex numbers are not supported."""
        return {"real floating": float32, "integral": int32, "indexing": int32}

    def dtypes(self, *, device: Any = None, kind: Optional[Union[str, Tuple[str, ...]]] = None) -> Dict[str, DType]:
        """Returns the supported types of the standard."""
        if kind is None:
            return dict(NAMES)
        return {name: dtype for name, dtype in NAMES.items() if isdtype(dtype, kind)}

    def devices(self) -> List[Device]:
        """Returns the devices that can be opened."""
        return [Device(name) for name in devices()]


def __array_namespace_info__() -> _Info:
    """Returns the properties of this namespace."""
    return _Info()
