"""Storage types. Floating-point arithmetic is f32 for all of them."""

from __future__ import annotations

from typing import Dict


class DType:
    """Storage type of elements."""

    __slots__ = ("name", "itemsize", "is_floating_point")

    def __init__(self, name: str, itemsize: int, is_floating_point: bool) -> None:
        self.name = name
        self.itemsize = itemsize
        self.is_floating_point = is_floating_point

    def __repr__(self) -> str:
        return f"netcl.{self.name}"

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> str:
        return "bool_" if self.name == "bool" else self.name


float32 = DType("float32", 4, True)
float16 = DType("float16", 2, True)
bfloat16 = DType("bfloat16", 2, True)
int32 = DType("int32", 4, False)
uint32 = DType("uint32", 4, False)
bool_ = DType("bool", 1, False)
"""Mask, such as the result of a comparison. An element is a byte, 0 or 1, as in NumPy."""

DTYPES: Dict[str, DType] = {d.name: d for d in (float32, float16, bfloat16, int32, uint32, bool_)}
