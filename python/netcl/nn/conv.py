"""Convolutions."""

from __future__ import annotations

import math
from typing import Any, List, Optional, Sequence, Tuple, Union

from .. import functional as F
from .._netcl import Tensor
from ..functional._common import Sizes, sizes
from .linear import redraw, uniform
from .module import Module

Padding = Union[str, Sizes]
MODES = ("zeros", "reflect", "replicate", "circular")


def _spread(amounts: Sequence[Tuple[int, int]]) -> List[int]:
    """Returns two amounts per axis in the order of ``functional.pad``."""
    return [n for pair in reversed(amounts) for n in pair]


class _Convolution(Module):
    """Sizes and parameters of a convolution with ``_axes`` axes."""

    _axes = 0
    _transposed = False

    def _begin(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes,
        padding: Padding,
        output_padding: Sizes,
        dilation: Sizes,
        groups: int,
        bias: bool,
        padding_mode: str,
        device: Any,
        dtype: Any,
    ) -> None:
        super().__init__()
        name, n = type(self).__name__, self._axes
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ValueError(f"{name}: {in_channels} and {out_channels} channels are not divisible by {groups} groups")
        if padding_mode not in MODES:
            raise ValueError(f"{name}: padding_mode is {padding_mode!r}, expected one of {', '.join(MODES)}")
        self.in_channels, self.out_channels, self.groups, self.padding_mode = in_channels, out_channels, groups, padding_mode
        self.kernel_size, self.stride = sizes(name, "kernel_size", kernel_size, n), sizes(name, "stride", stride, n)
        self.dilation, self.output_padding = sizes(name, "dilation", dilation, n), sizes(name, "output_padding", output_padding, n)
        self.padding: Union[str, Tuple[int, ...]] = padding if isinstance(padding, str) else sizes(name, "padding", padding, n)
        if self.padding not in ("same", "valid") and isinstance(self.padding, str):
            raise ValueError(f"{name}: padding is {padding!r}, expected 'same', 'valid' or numbers")
        if self.padding == "same" and any(s != 1 for s in self.stride):
            raise ValueError(f"{name}: padding='same' needs stride 1, got {self.stride}")
        first, second = (in_channels, out_channels // groups) if self._transposed else (out_channels, in_channels // groups)
        self.weight = uniform((first, second, *self.kernel_size), self._bound(second), device, dtype)
        self.register_parameter("bias", uniform((out_channels,), self._bound(second), device, dtype) if bias else None)

    def _bound(self, inner: int) -> float:
        fan = inner * math.prod(self.kernel_size)
        return 1 / math.sqrt(fan) if fan else 0.0

    def reset_parameters(self) -> None:
        """Draws the initial values again."""
        bound = self._bound(self.weight.shape[1])
        redraw(self.weight, bound)
        redraw(self.bias, bound)

    def _padded(self, x: Tensor) -> Tuple[Tensor, Padding]:
        """Returns the input after a padding that does not consist of zeros, and the remaining padding."""
        if self.padding_mode == "zeros":
            return x, self.padding
        if isinstance(self.padding, str):
            totals = [d * (k - 1) if self.padding == "same" else 0 for d, k in zip(self.dilation, self.kernel_size)]
            both = [(total // 2, total - total // 2) for total in totals]
        else:
            both = [(n, n) for n in self.padding]
        return (F.pad(x, _spread(both), self.padding_mode) if any(a or b for a, b in both) else x), 0

    def extra_repr(self) -> str:
        """Returns the sizes."""
        zero = (0,) * self._axes
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        text += "" if self.padding == zero else f", padding={self.padding}"
        text += "" if self.dilation == (1,) * self._axes else f", dilation={self.dilation}"
        text += "" if self.output_padding == zero else f", output_padding={self.output_padding}"
        text += "" if self.groups == 1 else f", groups={self.groups}"
        text += ", bias=False" if self.bias is None else ""
        return text + ("" if self.padding_mode == "zeros" else f", padding_mode={self.padding_mode}")


class _Conv(_Convolution):
    """A convolution. Initial values are uniform within 1/√(in / groups · kernel), as in PyTorch."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Padding = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        self._begin(in_channels, out_channels, kernel_size, stride, padding, 0, dilation, groups, bias, padding_mode, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        """Returns (N, out, ..)."""
        x, padding = self._padded(input)
        convolve: Any = (F.conv1d, F.conv2d, F.conv3d)[self._axes - 1]
        return convolve(x, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)  # type: ignore[no-any-return]


class Conv1d(_Conv):
    """Convolution of sequences (N, in, T) or (in, T), with weight (out, in / groups, K) and bias (out)."""

    _axes = 1


class Conv2d(_Conv):
    """Convolution of images (N, in, H, W) or (in, H, W), with weight (out, in / groups, I, J) and bias (out)."""

    _axes = 2


class Conv3d(_Conv):
    """Convolution of volumes (N, in, D, H, W) or (in, D, H, W), with weight (out, in / groups, K, I, J) and bias (out)."""

    _axes = 3


class _ConvTranspose(_Convolution):
    """A transposed convolution. Initial values are uniform within 1/√(out / groups · kernel), as in PyTorch."""

    _transposed = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Sizes = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        if padding_mode != "zeros":
            raise ValueError(f"{type(self).__name__}: padding_mode is {padding_mode!r}, expected 'zeros'")
        self._begin(in_channels, out_channels, kernel_size, stride, padding, output_padding, dilation, groups, bias, padding_mode, device, dtype)

    def forward(self, input: Tensor, output_size: Optional[Sequence[int]] = None) -> Tensor:
        """Returns (N, out, ..). ``output_size`` selects one of the sizes that differ by less than the stride."""
        more = self.output_padding if output_size is None else self._more(input, tuple(output_size))
        convolve: Any = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[self._axes - 1]
        made: Tensor = convolve(input, self.weight, self.bias, self.stride, self.padding, more, self.groups, self.dilation)
        return made

    def _more(self, x: Tensor, wanted: Tuple[int, ...]) -> Tuple[int, ...]:
        """Returns the output padding that gives a size."""
        n = self._axes
        size = wanted[-n:]
        edges = sizes("ConvTranspose", "padding", self.padding, n)
        least = [
            (have - 1) * s - 2 * p + d * (k - 1) + 1 for have, s, p, d, k in zip(x.shape[-n:], self.stride, edges, self.dilation, self.kernel_size)
        ]
        most = [low + s - 1 for low, s in zip(least, self.stride)]
        if len(wanted) not in (n, n + 1, n + 2) or not all(a <= v <= b for a, v, b in zip(least, size, most)):
            raise ValueError(f"{type(self).__name__}: output_size is {wanted}, expected sizes from {least} to {most}")
        return tuple(v - a for v, a in zip(size, least))


class ConvTranspose1d(_ConvTranspose):
    """Transposed convolution of sequences (N, in, T) or (in, T), with weight (in, out / groups, K) and bias (out)."""

    _axes = 1


class ConvTranspose2d(_ConvTranspose):
    """Transposed convolution of images (N, in, H, W) or (in, H, W), with weight (in, out / groups, I, J) and bias (out)."""

    _axes = 2


class ConvTranspose3d(_ConvTranspose):
    """Transposed convolution of volumes (N, in, D, H, W) or (in, D, H, W), with weight (in, out / groups, K, I, J) and bias (out)."""

    _axes = 3


__all__ = ["Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"]
