"""Layers that resize and reorder images."""

from __future__ import annotations

from typing import Any, Optional

from .. import functional as F
from .._netcl import Tensor
from ..functional._common import Sizes
from ..functional._resize import Factors
from .module import Module


class Upsample(Module):
    """Resizes the axes after the channels to ``size``, or by ``scale_factor``. See ``functional.interpolate``."""

    def __init__(
        self,
        size: Any = None,
        scale_factor: Factors = None,
        mode: str = "nearest",
        align_corners: Optional[bool] = None,
        recompute_scale_factor: Optional[bool] = None,
    ) -> None:
        super().__init__()
        self.size, self.mode, self.align_corners, self.recompute_scale_factor = size, mode, align_corners, recompute_scale_factor
        is_number = scale_factor is None or isinstance(scale_factor, (int, float))
        self.scale_factor: Any = (None if scale_factor is None else float(scale_factor)) if is_number else tuple(float(v) for v in scale_factor)  # type: ignore[arg-type, union-attr]

    def forward(self, input: Tensor) -> Tensor:
        """Returns the resized tensor."""
        return F.interpolate(input, self.size, self.scale_factor, self.mode, self.align_corners, self.recompute_scale_factor)

    def extra_repr(self) -> str:
        """Returns the arguments."""
        first = f"scale_factor={self.scale_factor}" if self.scale_factor is not None else f"size={self.size}"
        return f"{first}, mode={self.mode!r}"


class UpsamplingNearest2d(Upsample):
    """Resizes images by the nearest pixel."""

    def __init__(self, size: Any = None, scale_factor: Factors = None) -> None:
        super().__init__(size, scale_factor, "nearest")


class UpsamplingBilinear2d(Upsample):
    """Resizes images linearly, with pixels as corners of a grid."""

    def __init__(self, size: Any = None, scale_factor: Factors = None) -> None:
        super().__init__(size, scale_factor, "bilinear", True)


class PixelShuffle(Module):
    """Moves channels into pixels: (.., C r², H, W) → (.., C, H r, W r) with factor r."""

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        self.upscale_factor = upscale_factor

    def forward(self, input: Tensor) -> Tensor:
        """Returns the same elements."""
        return F.pixel_shuffle(input, self.upscale_factor)

    def extra_repr(self) -> str:
        """Returns the factor."""
        return f"upscale_factor={self.upscale_factor}"


class PixelUnshuffle(Module):
    """Moves pixels into channels: (.., C, H r, W r) → (.., C r², H, W) with factor r."""

    def __init__(self, downscale_factor: int) -> None:
        super().__init__()
        self.downscale_factor = downscale_factor

    def forward(self, input: Tensor) -> Tensor:
        """Returns the same elements."""
        return F.pixel_unshuffle(input, self.downscale_factor)

    def extra_repr(self) -> str:
        """Returns the factor."""
        return f"downscale_factor={self.downscale_factor}"


class ChannelShuffle(Module):
    """Interleaves the channels of groups: (N, C, ..)."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, input: Tensor) -> Tensor:
        """Returns the same elements."""
        return F.channel_shuffle(input, self.groups)

    def extra_repr(self) -> str:
        """Returns the number of groups."""
        return f"groups={self.groups}"


class Unfold(Module):
    """Windows of images (N, C, H, W) as columns (N, C I J, L)."""

    def __init__(self, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1) -> None:
        super().__init__()
        self.kernel_size, self.dilation, self.padding, self.stride = kernel_size, dilation, padding, stride

    def forward(self, input: Tensor) -> Tensor:
        """Returns the columns."""
        return F.unfold(input, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        """Returns the arguments."""
        return f"kernel_size={self.kernel_size}, dilation={self.dilation}, padding={self.padding}, stride={self.stride}"


class Fold(Module):
    """Sums of columns (N, C I J, L) at the places of their windows in images (N, C, H, W)."""

    def __init__(self, output_size: Sizes, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1) -> None:
        super().__init__()
        self.output_size, self.kernel_size, self.dilation, self.padding, self.stride = output_size, kernel_size, dilation, padding, stride

    def forward(self, input: Tensor) -> Tensor:
        """Returns the images."""
        return F.fold(input, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        """Returns the arguments."""
        text = f"output_size={self.output_size}, kernel_size={self.kernel_size}, dilation={self.dilation}"
        return f"{text}, padding={self.padding}, stride={self.stride}"


__all__ = ["ChannelShuffle", "Fold", "PixelShuffle", "PixelUnshuffle", "Unfold", "Upsample", "UpsamplingBilinear2d", "UpsamplingNearest2d"]
