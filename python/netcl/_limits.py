"""Limits of dtypes."""

from __future__ import annotations

from typing import Any

from ._dtype import float32
from ._host import to_dtype


class finfo:
    """Limits of a float dtype: ``eps``, ``max``, ``min``, ``tiny``, ``smallest_normal``, ``resolution`` and ``bits``."""

    def __init__(self, dtype: Any = None) -> None:
        kind = float32 if dtype is None else to_dtype(dtype)
        if not kind.is_floating_point:
            raise TypeError(f"finfo: got {kind}, expected a float dtype; write iinfo")
        digits, top, least = {"float32": (23, 127, -126), "float16": (10, 15, -14), "bfloat16": (7, 127, -126)}[kind.name]
        self.dtype, self.bits = kind.name, kind.itemsize * 8
        self.eps = 2.0**-digits
        self.max = (2.0 - self.eps) * 2.0**top
        self.min, self.tiny, self.smallest_normal = -self.max, 2.0**least, 2.0**least
        self.resolution = {"float32": 1e-06, "float16": 0.001, "bfloat16": 0.01}[kind.name]

    def __repr__(self) -> str:
        return f"finfo(resolution={self.resolution}, min={self.min}, max={self.max}, eps={self.eps}, tiny={self.tiny}, dtype={self.dtype})"


class iinfo:
    """Limits of an integer dtype: ``min``, ``max`` and ``bits``."""

    def __init__(self, dtype: Any) -> None:
        kind = to_dtype(dtype)
        if kind.name not in ("int32", "uint32"):
            raise TypeError(f"iinfo: got {kind}, expected an integer dtype; write finfo for floats")
        self.dtype, self.bits = kind.name, 32
        self.min, self.max = (0, 2**32 - 1) if kind.name == "uint32" else (-(2**31), 2**31 - 1)

    def __repr__(self) -> str:
        return f"iinfo(min={self.min}, max={self.max}, dtype={self.dtype})"


__all__ = ["finfo", "iinfo"]
