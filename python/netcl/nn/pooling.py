"""Pooling layers."""

from __future__ import annotations

from typing import Any, Optional, Sequence, Tuple, Union

from .. import functional as F
from .._netcl import Tensor
from ..functional._common import Sizes, sizes
from .module import Module

Outputs = Union[int, None, Sequence[Optional[int]]]

class _MaxPool(Module):
    """Maxima of windows. With ``return_indices``, the result is a pair with their places (int32)."""

    _axes = 0

    def __init__(
        self,
        kernel_size: Sizes,
        stride: Optional[Sizes] = None,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self.kernel_size, self.stride, self.padding, self.dilation = kernel_size, kernel_size if stride is None else stride, padding, dilation
        self.return_indices, self.ceil_mode = return_indices, ceil_mode

    def forward(self, input: Tensor) -> Any:
        """Returns the maxima."""
        pool: Any = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[self._axes - 1]
        return pool(input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices)

    def extra_repr(self) -> str:
        """Returns the arguments."""
        text = f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, dilation={self.dilation}"
        return f"{text}, ceil_mode={self.ceil_mode}"


class MaxPool1d(_MaxPool):
    """Maxima of windows of sequences (N, C, T) or (C, T)."""

    _axes = 1


class MaxPool2d(_MaxPool):
    """Maxima of windows of images (N, C, H, W) or (C, H, W)."""

    _axes = 2


class MaxPool3d(_MaxPool):
    """Maxima of windows of volumes (N, C, D, H, W) or (C, D, H, W)."""

    _axes = 3


class _MaxUnpool(Module):
    """Maxima put back at their places, with 0 elsewhere."""

    _axes = 0

    def __init__(self, kernel_size: Sizes, stride: Optional[Sizes] = None, padding: Sizes = 0) -> None:
        super().__init__()
        name, n = type(self).__name__, self._axes
        self.kernel_size, self.padding = sizes(name, "kernel_size", kernel_size, n), sizes(name, "padding", padding, n)
        self.stride = self.kernel_size if stride is None else sizes(name, "stride", stride, n)

    def forward(self, input: Tensor, indices: Tensor, output_size: Optional[Sequence[int]] = None) -> Tensor:
        """Returns the larger tensor."""
        unpool: Any = (F.max_unpool1d, F.max_unpool2d, F.max_unpool3d)[self._axes - 1]
        return unpool(input, indices, self.kernel_size, self.stride, self.padding, output_size)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Returns the arguments."""
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class MaxUnpool1d(_MaxUnpool):
    """Inverse of ``MaxPool1d`` with its indices, for sequences (N, C, T) or (C, T)."""

    _axes = 1


class MaxUnpool2d(_MaxUnpool):
    """Inverse of ``MaxPool2d`` with its indices, for images (N, C, H, W) or (C, H, W)."""

    _axes = 2


class MaxUnpool3d(_MaxUnpool):
    """Inverse of ``MaxPool3d`` with its indices, for volumes (N, C, D, H, W) or (C, D, H, W)."""

    _axes = 3


class AvgPool1d(Module):
    """Means of windows of sequences (N, C, T) or (C, T)."""

    def __init__(
        self, kernel_size: Sizes, stride: Optional[Sizes] = None, padding: Sizes = 0, ceil_mode: bool = False, count_include_pad: bool = True
    ) -> None:
        super().__init__()
        self.kernel_size, self.padding = sizes("AvgPool1d", "kernel_size", kernel_size, 1), sizes("AvgPool1d", "padding", padding, 1)
        self.stride: Tuple[int, ...] = self.kernel_size if stride is None else sizes("AvgPool1d", "stride", stride, 1)
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad

    def forward(self, input: Tensor) -> Tensor:
        """Returns the means."""
        return F.avg_pool1d(input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad)

    def extra_repr(self) -> str:
        """Returns the arguments."""
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class _AvgPool(Module):
    """Means of windows."""

    _axes = 0

    def __init__(
        self,
        kernel_size: Sizes,
        stride: Optional[Sizes] = None,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: Optional[int] = None,
    ) -> None:
        super().__init__()
        self.kernel_size, self.stride, self.padding = kernel_size, kernel_size if stride is None else stride, padding
        self.ceil_mode, self.count_include_pad, self.divisor_override = ceil_mode, count_include_pad, divisor_override

    def forward(self, input: Tensor) -> Tensor:
        """Returns the means."""
        pool: Any = (F.avg_pool2d, F.avg_pool3d)[self._axes - 2]
        made: Tensor = pool(input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad, self.divisor_override)
        return made

    def extra_repr(self) -> str:
        """Returns the arguments."""
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool2d(_AvgPool):
    """Means of windows of images (N, C, H, W) or (C, H, W)."""

    _axes = 2


class AvgPool3d(_AvgPool):
    """Means of windows of volumes (N, C, D, H, W) or (C, D, H, W)."""

    _axes = 3


class _LPPool(Module):
    """p-norms of windows."""

    _axes = 0

    def __init__(self, norm_type: float, kernel_size: Sizes, stride: Optional[Sizes] = None, ceil_mode: bool = False) -> None:
        super().__init__()
        self.norm_type, self.kernel_size, self.stride, self.ceil_mode = norm_type, kernel_size, stride, ceil_mode

    def forward(self, input: Tensor) -> Tensor:
        """Returns the norms."""
        pool: Any = (F.lp_pool1d, F.lp_pool2d, F.lp_pool3d)[self._axes - 1]
        return pool(input, float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Returns the arguments."""
        return f"norm_type={self.norm_type}, kernel_size={self.kernel_size}, stride={self.stride}, ceil_mode={self.ceil_mode}"


class LPPool1d(_LPPool):
    """p-norms of windows of sequences (N, C, T) or (C, T)."""

    _axes = 1


class LPPool2d(_LPPool):
    """p-norms of windows of images (N, C, H, W) or (C, H, W)."""

    _axes = 2


class LPPool3d(_LPPool):
    """p-norms of windows of volumes (N, C, D, H, W) or (C, D, H, W)."""

    _axes = 3


class _Adaptive(Module):
    """Windows whose number is given. ``None`` keeps a size."""

    _function = ""

    def __init__(self, output_size: Outputs) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, input: Tensor) -> Any:
        """Returns one value per window."""
        return getattr(F, self._function)(input, self.output_size)

    def extra_repr(self) -> str:
        """Returns the sizes."""
        return f"output_size={self.output_size}"


class _AdaptiveMax(_Adaptive):
    """Maxima of windows whose number is given."""

    def __init__(self, output_size: Outputs, return_indices: bool = False) -> None:
        super().__init__(output_size)
        self.return_indices = return_indices

    def forward(self, input: Tensor) -> Any:
        """Returns the maxima, with ``return_indices`` as a pair with their places (int32)."""
        return getattr(F, self._function)(input, self.output_size, self.return_indices)


class AdaptiveAvgPool1d(_Adaptive):
    """Means of ``output_size`` windows of sequences (N, C, T) or (C, T)."""

    _function = "adaptive_avg_pool1d"


class AdaptiveAvgPool2d(_Adaptive):
    """Means of ``output_size`` windows of images (N, C, H, W) or (C, H, W)."""

    _function = "adaptive_avg_pool2d"


class AdaptiveAvgPool3d(_Adaptive):
    """Means of ``output_size`` windows of volumes (N, C, D, H, W) or (C, D, H, W)."""

    _function = "adaptive_avg_pool3d"


class AdaptiveMaxPool1d(_AdaptiveMax):
    """Maxima of ``output_size`` windows of sequences (N, C, T) or (C, T)."""

    _function = "adaptive_max_pool1d"


class AdaptiveMaxPool2d(_AdaptiveMax):
    """Maxima of ``output_size`` windows of images (N, C, H, W) or (C, H, W)."""

    _function = "adaptive_max_pool2d"


class AdaptiveMaxPool3d(_AdaptiveMax):
    """Maxima of ``output_size`` windows of volumes (N, C, D, H, W) or (C, D, H, W)."""

    _function = "adaptive_max_pool3d"


__all__ = [
    "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d", "AdaptiveMaxPool1d", "AdaptiveMaxPool2d", "AdaptiveMaxPool3d", "AvgPool1d",
    "AvgPool2d", "AvgPool3d", "LPPool1d", "LPPool2d", "LPPool3d", "MaxPool1d", "MaxPool2d", "MaxPool3d", "MaxUnpool1d", "MaxUnpool2d", "MaxUnpool3d",
]  # fmt: skip
