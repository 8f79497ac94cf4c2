"""Padding layers."""

from __future__ import annotations

from typing import Tuple

from .. import functional as F
from .._netcl import Tensor
from ..functional._common import Sizes, sizes
from .module import Module

class _Pad(Module):
    """Padding of the last axes: one amount, or two per axis that start with the last axis."""

    _axes = 0
    _mode = "constant"

    def __init__(self, padding: Sizes) -> None:
        super().__init__()
        self.padding: Tuple[int, ...] = sizes(type(self).__name__, "padding", padding, 2 * self._axes)

    def forward(self, input: Tensor) -> Tensor:
        """Returns the padded tensor."""
        made: Tensor = F.pad(input, self.padding, self._mode)
        return made

    def extra_repr(self) -> str:
        """Returns the amounts."""
        return f"{self.padding}"


class _ConstantPad(_Pad):
    """Padding with a value."""

    def __init__(self, padding: Sizes, value: float) -> None:
        super().__init__(padding)
        self.value = value

    def forward(self, input: Tensor) -> Tensor:
        """Returns the padded tensor."""
        made: Tensor = F.pad(input, self.padding, "constant", self.value)
        return made

    def extra_repr(self) -> str:
        """Returns the amounts and the value."""
        return f"padding={self.padding}, value={self.value}"


class ZeroPad1d(_Pad):
    """Zeros around the last axis."""

    _axes = 1


class ZeroPad2d(_Pad):
    """Zeros around the last two axes."""

    _axes = 2


class ZeroPad3d(_Pad):
    """Zeros around the last three axes."""

    _axes = 3


class ConstantPad1d(_ConstantPad):
    """A value around the last axis."""

    _axes = 1


class ConstantPad2d(_ConstantPad):
    """A value around the last two axes."""

    _axes = 2


class ConstantPad3d(_ConstantPad):
    """A value around the last three axes."""

    _axes = 3


class ReflectionPad1d(_Pad):
    """Mirrored elements around the last axis."""

    _axes = 1
    _mode = "reflect"


class ReflectionPad2d(_Pad):
    """Mirrored elements around the last two axes."""

    _axes = 2
    _mode = "reflect"


class ReflectionPad3d(_Pad):
    """Mirrored elements around the last three axes."""

    _axes = 3
    _mode = "reflect"


class ReplicationPad1d(_Pad):
    """Repeated edges around the last axis."""

    _axes = 1
    _mode = "replicate"


class ReplicationPad2d(_Pad):
    """Repeated edges around the last two axes."""

    _axes = 2
    _mode = "replicate"


class ReplicationPad3d(_Pad):
    """Repeated edges around the last three axes."""

    _axes = 3
    _mode = "replicate"


class CircularPad1d(_Pad):
    """Elements of the other end around the last axis."""

    _axes = 1
    _mode = "circular"


class CircularPad2d(_Pad):
    """Elements of the other end around the last two axes."""

    _axes = 2
    _mode = "circular"


class CircularPad3d(_Pad):
    """Elements of the other end around the last three axes."""

    _axes = 3
    _mode = "circular"


__all__ = [
    "CircularPad1d", "CircularPad2d", "CircularPad3d", "ConstantPad1d", "ConstantPad2d", "ConstantPad3d", "ReflectionPad1d", "ReflectionPad2d",
    "ReflectionPad3d", "ReplicationPad1d", "ReplicationPad2d", "ReplicationPad3d", "ZeroPad1d", "ZeroPad2d", "ZeroPad3d",
]  # fmt: skip
