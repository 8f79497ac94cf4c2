"""Samples of images at the points of a grid (Jaderberg et al. 2015)."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

from .. import ops
from .._host import from_lists
from .._netcl import Tensor
from ..errors import ShapeError
from ..functions import where
from ._common import refuse


def _line(size: int, align: bool) -> List[float]:
    """Returns the places from -1 to 1 of the elements of an axis: of their centers, or with ``align`` of the first and last."""
    if align:
        return [2 * i / (size - 1) - 1 if size > 1 else 0.0 for i in range(size)]
    return [(2 * i + 1) / size - 1 for i in range(size)]


def affine_grid(theta: Tensor, size: Sequence[int], align_corners: Optional[bool] = None) -> Tensor:
    """Returns grids (N, H, W, 2) for images, or (N, D, H, W, 3) for volumes, of the maps theta (N, 2, 3) or (N, 3, 4)."""
    n, spatial, align = int(size[0]), [int(v) for v in size[2:]], bool(align_corners)
    axes = len(spatial)
    if axes not in (2, 3) or tuple(theta.shape) != (n, axes, axes + 1) or min(size) < 1:
        raise ShapeError(f"affine_grid: theta has shape {tuple(theta.shape)} and size is {tuple(size)}, expected (N, 2, 3) and (N, C, H, W), or (N, 3, 4) and 5 sizes")
    rows: List[List[float]] = [[]]
    for line in (_line(s, align) for s in spatial):
        rows = [[*row, v] for row in rows for v in line]
    base = from_lists([[*reversed(row), 1.0] for row in rows], "float32", theta.device)._to(None, theta.dtype)
    return ops.matmul(base, theta.transpose(1, 2)).reshape(n, *spatial, axes)


def _floor(x: Tensor) -> Tensor:
    """Rounds down. Places far outside of an image are limited first."""
    limited = ops.clamp(x.detach(), -1e6, 1e6)
    cut = limited._to(None, "int32")._to(None, x.dtype)
    return cut - (cut > limited)._to(None, x.dtype)


def _reflected(x: Tensor, low: float, high: float) -> Tensor:
    """Mirrors places at two ends until they are between them."""
    span = high - low
    if span == 0:
        return x * 0.0
    apart = ops.abs(x - low)
    turns = _floor(apart / span)
    rest = apart - turns * span
    is_even = turns - _floor(turns / 2.0) * 2.0 == 0
    return where(is_even, rest + low, span - rest + low)


def _places(given: Tensor, size: int, padding_mode: str, align: bool) -> Tensor:
    """Converts places from -1 to 1 to indices of an axis."""
    x = (given + 1.0) * ((size - 1) / 2.0) if align else ((given + 1.0) * float(size) - 1.0) / 2.0
    if padding_mode == "reflection":
        x = _reflected(x, 0.0, size - 1.0) if align else _reflected(x, -0.5, size - 0.5)
    return x if padding_mode == "zeros" else ops.clamp(x, 0.0, size - 1.0)


def _nearest(x: Tensor) -> Tensor:
    """Rounds to the nearest integer, and halves to the even one."""
    low = _floor(x)
    rest = x.detach() - low
    odd = low - _floor(low / 2.0) * 2.0 == 1
    return low + ((rest > 0.5) | ((rest == 0.5) & odd))._to(None, x.dtype)


def _taken(flat: Tensor, rows: Tensor, columns: Tensor, height: int, width: int) -> Tensor:
    """Returns the pixels (N, C, P) at integer places (N, P), 0 outside of the image."""
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    ids = (ops.clamp(rows, 0.0, height - 1.0) * float(width) + ops.clamp(columns, 0.0, width - 1.0))._to(None, "float32")._to(None, "int32")
    n, channels, points = flat.shape[0], flat.shape[1], rows.shape[1]
    found = ops.gather(flat, ops.expand(ids.unsqueeze(1), (n, channels, points)), -1)
    return where(inside.unsqueeze(1), found, 0.0)


def grid_sample(
    input: Tensor, grid: Tensor, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: Optional[bool] = None
) -> Tensor:
    """Returns samples (N, C, H', W') of images (N, C, H, W) at the points grid (N, H', W', 2), which are (x, y) from -1 to 1."""
    if mode not in ("bilinear", "nearest", "bicubic") or padding_mode not in ("zeros", "border", "reflection"):
        raise ValueError(f"grid_sample: mode is {mode!r} and padding_mode {padding_mode!r}, expected bilinear or nearest, and zeros, border or reflection")
    if mode == "bicubic" or input.ndim == 5:
        raise refuse("grid_sample: mode='bicubic' and volumes", "write mode='bilinear' for images (N, C, H, W)")
    if input.ndim != 4 or grid.ndim != 4 or grid.shape[0] != input.shape[0] or grid.shape[3] != 2 or min(input.shape[2:]) < 1:
        raise ShapeError(f"grid_sample: input {tuple(input.shape)} and grid {tuple(grid.shape)}, expected (N, C, H, W) and (N, H', W', 2)")
    n, channels, height, width = input.shape
    align, points = bool(align_corners), grid.reshape(n, -1, 2)
    x = _places(points[:, :, 0], width, padding_mode, align)
    y = _places(points[:, :, 1], height, padding_mode, align)
    flat = input.reshape(n, channels, height * width)
    if mode == "nearest":
        made = _taken(flat, _nearest(y), _nearest(x), height, width)
        if grid.requires_grad:
            # The gradient of the grid is 0, as in PyTorch.
            made = made + ops.clamp(x + y, -1.0, 1.0).unsqueeze(1) * 0.0
    else:
        made = _bilinear(flat, x, y, height, width)
    return made.reshape(n, channels, *grid.shape[1:3])


def _bilinear(flat: Tensor, x: Tensor, y: Tensor, height: int, width: int) -> Tensor:
    left, top = _floor(x), _floor(y)
    right, below = x - left, y - top
    made: Any = None
    corners: List[Tuple[Tensor, Tensor, Tensor]] = [
        (top, left, (1.0 - below) * (1.0 - right)), (top, left + 1.0, (1.0 - below) * right),
        (top + 1.0, left, below * (1.0 - right)), (top + 1.0, left + 1.0, below * right),
    ]  # fmt: skip
    for rows, columns, weight in corners:
        part = _taken(flat, rows, columns, height, width) * weight.unsqueeze(1)
        made = part if made is None else made + part
    return made  # type: ignore[no-any-return]


__all__ = ["affine_grid", "grid_sample"]
