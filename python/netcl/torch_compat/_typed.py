"""Constructors of one dtype: ``torch.FloatTensor([1, 2])`` and ``torch.LongTensor(2, 3)``."""

from __future__ import annotations

from typing import Any, Dict

from .._create import tensor, zeros
from .._dtype import DType, bfloat16, bool_, float16, float32, int32
from .._netcl import Tensor


class TensorType:
    """Constructor of tensors with one dtype, from elements or from sizes. Tensors from sizes have zeros."""

    def __init__(self, name: str, dtype: DType) -> None:
        self.__name__, self.dtype = name, dtype

    def __call__(self, *given: Any) -> Tensor:
        if all(isinstance(n, int) for n in given):
            return zeros(*given, dtype=self.dtype) if given else zeros(0, dtype=self.dtype)
        if len(given) != 1:
            raise TypeError(f"{self.__name__}: got {len(given)} arguments, expected sizes, or the elements as lists or an array")
        return tensor(given[0], self.dtype)

    def __instancecheck__(self, x: Any) -> bool:
        return isinstance(x, Tensor) and x.dtype is self.dtype

    def __repr__(self) -> str:
        return f"torch.{self.__name__}"


TYPES: Dict[str, TensorType] = {
    name: TensorType(name, dtype)
    for name, dtype in {"FloatTensor": float32, "HalfTensor": float16, "BFloat16Tensor": bfloat16, "IntTensor": int32, "LongTensor": int32, "BoolTensor": bool_}.items()
}
"""Constructors by name. A LongTensor has int32: integers out of its range are an error."""

__all__ = ["TYPES", "TensorType"]
