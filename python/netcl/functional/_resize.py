"""Padding, resizing and reordering of images."""

from __future__ import annotations

import math
from typing import Any, List, Optional, Sequence, Tuple, Union

from .. import ops
from .._host import from_lists
from .._netcl import Tensor
from .._netcl import full as _full
from ..errors import ShapeError
from ._common import refuse
from ._pooling import adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d

Factors = Union[None, float, Sequence[float]]


def _cropped(x: Tensor, amounts: Sequence[int]) -> Tuple[Tensor, List[int]]:
    """Removes elements where an amount is negative. Returns the other amounts."""
    for i, (before, after) in enumerate(zip(amounts[::2], amounts[1::2])):
        axis = x.ndim - 1 - i
        if before < 0 or after < 0:
            begin, end = max(0, -before), x.shape[axis] - max(0, -after)
            if begin > end:
                raise ShapeError(f"pad: the amounts {before} and {after} remove more than the {x.shape[axis]} elements of axis {axis}")
            x = ops.slice(x, axis, begin, end)
    return x, [max(0, n) for n in amounts]


def _joined(x: Tensor, axis: int, before: int, after: int, value: Optional[float]) -> Tensor:
    """Pads one axis with a value, or without one with the elements of the other end."""
    size = x.shape[axis]
    parts = [x]
    if value is None:
        parts = [ops.slice(x, axis, size - before, size)] * (before > 0) + parts + [ops.slice(x, axis, 0, after)] * (after > 0)
    else:
        shapes = [[m if a == axis else n for a, n in enumerate(x.shape)] for m in (before, after)]
        ends = [_full(shape, value, x.dtype, x.device) for shape in shapes]
        parts = ends[:1] * (before > 0) + parts + ends[1:] * (after > 0)
    return parts[0] if len(parts) == 1 else ops.cat(parts, axis)


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: Optional[float] = None) -> Tensor:
    """Pads the last axes: two amounts per axis, starting with the last axis. Negative amounts remove elements. Modes are constant, reflect, replicate
    and circular.
    """
    amounts, axes = [int(n) for n in pad], len(pad) // 2
    if mode not in ("constant", "reflect", "replicate", "circular"):
        raise ValueError(f"pad: mode is {mode!r}, expected constant, reflect, replicate or circular")
    if len(amounts) % 2 or axes > input.ndim:
        raise ShapeError(f"pad: got {len(amounts)} amounts for a tensor of {input.ndim} axes, expected two for each padded axis")
    if mode == "constant":
        x, amounts = _cropped(input, amounts)
        filled = 0.0 if value is None else value
        if x.dtype.is_floating_point:
            return ops.pad(x, amounts, filled) if any(amounts) else x
        for i in range(axes):
            x = _joined(x, x.ndim - 1 - i, amounts[2 * i], amounts[2 * i + 1], filled)
        return x
    if value not in (None, 0):
        raise ValueError(f"pad: mode {mode!r} does not use a value, got {value}")
    if axes not in (1, 2, 3) or input.ndim not in (axes + 1, axes + 2):
        raise ShapeError(f"pad: mode {mode!r} pads the last 1, 2 or 3 of 1 or 2 more axes, got {axes} of {input.ndim}")
    for i in range(axes):
        size, most = input.shape[input.ndim - 1 - i], max(amounts[2 * i : 2 * i + 2])
        if mode == "reflect" and most >= size or mode == "circular" and most > size:
            raise ShapeError(f"pad: mode {mode!r} cannot pad {size} elements by {most}")
    if mode == "circular":
        x = input
        for i in range(axes):
            x = _circular(x, x.ndim - 1 - i, amounts[2 * i], amounts[2 * i + 1])
        return x
    x, kept = input, [max(0, n) for n in amounts]
    x = ops.pad(x, kept, 0.0, mode) if any(kept) else x  # type: ignore[arg-type]
    return _cropped(x, [min(0, n) for n in amounts])[0]


def _circular(x: Tensor, axis: int, before: int, after: int) -> Tensor:
    made = _joined(x, axis, max(0, before), max(0, after), None)
    return ops.slice(made, axis, max(0, -before), made.shape[axis] - max(0, -after)) if min(before, after) < 0 else made


def _sources(size: int, out: int, scale: Optional[float], align: bool, kind: str) -> List[Tuple[List[int], List[float]]]:
    """Returns the elements and weights of each result along an axis, computed in float32 like PyTorch's."""
    import numpy as np

    f32 = np.float32
    if align:
        step = f32(size - 1) / f32(out - 1) if out > 1 else f32(0)
    else:
        step = f32(1.0 / scale) if scale is not None else f32(size) / f32(out)
    found = []
    for i in range(out):
        if kind == "nearest":
            found.append(([min(int(math.floor(f32(i) * step)), size - 1)], [1.0]))
        elif kind == "nearest-exact":
            found.append(([min(int(math.floor((f32(i) + f32(0.5)) * step)), size - 1)], [1.0]))
        else:
            place = step * f32(i) if align else step * (f32(i) + f32(0.5)) - f32(0.5)
            found.append(_linear(float(max(place, f32(0))), size) if kind == "linear" else _cubic(float(place), size))
    return found


def _linear(place: float, size: int) -> Tuple[List[int], List[float]]:
    first = min(int(place), size - 1)
    part = min(max(place - first, 0.0), 1.0)
    return [first, min(first + 1, size - 1)], [1.0 - part, part]


def _cubic(place: float, size: int, a: float = -0.75) -> Tuple[List[int], List[float]]:
    """Returns four elements with the weights of cubic convolution (Keys 1981)."""
    first = math.floor(place)
    t = place - first

    def near(x: float) -> float:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: float) -> float:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return [min(max(first + k, 0), size - 1) for k in (-1, 0, 1, 2)], [far(t + 1), near(t), near(1 - t), far(2 - t)]


def _resampled(x: Tensor, axis: int, out: int, scale: Optional[float], align: bool, kind: str) -> Tensor:
    """Resizes one axis."""
    sources = _sources(x.shape[axis], out, scale, align, kind)
    made: Optional[Tensor] = None
    for k in range(len(sources[0][0])):
        part = ops.index_select(x, from_lists([ids[k] for ids, _ in sources], "int32", x.device), axis)
        if len(sources[0][0]) > 1:
            shape = [out if a == axis else 1 for a in range(x.ndim)]
            part = part * from_lists([weights[k] for _, weights in sources], "float32", x.device).reshape(shape)._to(None, x.dtype)
        made = part if made is None else made + part
    assert made is not None
    return made


def _output_size(name: str, x: Tensor, size: Any, factor: Factors, recompute: Optional[bool]) -> Tuple[Tuple[int, ...], Tuple[Optional[float], ...]]:
    """Returns the sizes of the result, and the factors that positions are computed with, or ``None`` for the ratio of the sizes."""
    n = x.ndim - 2
    if (size is None) == (factor is None):
        raise ValueError(f"{name}: expected one of size and scale_factor")
    if size is not None:
        if recompute:
            raise ValueError(f"{name}: recompute_scale_factor needs scale_factor, got size")
        found = (int(size),) * n if isinstance(size, int) else tuple(int(v) for v in size)
        if len(found) != n:
            raise ShapeError(f"{name}: size is {found}, expected one number or {n}")
        return found, (None,) * n
    factors = (float(factor),) * n if isinstance(factor, (int, float)) else tuple(float(v) for v in factor or ())
    if len(factors) != n:
        raise ShapeError(f"{name}: scale_factor is {factors}, expected one number or {n}")
    found = tuple(int(math.floor(have * f)) for have, f in zip(x.shape[2:], factors))
    return found, (None,) * n if recompute else factors


KINDS = {
    "nearest": ("nearest", (1, 2, 3)), "nearest-exact": ("nearest-exact", (1, 2, 3)), "linear": ("linear", (1,)), "bilinear": ("linear", (2,)),
    "trilinear": ("linear", (3,)), "bicubic": ("cubic", (2,)), "area": ("area", (1, 2, 3)),
}  # fmt: skip


def interpolate(
    input: Tensor,
    size: Any = None,
    scale_factor: Factors = None,
    mode: str = "nearest",
    align_corners: Optional[bool] = None,
    recompute_scale_factor: Optional[bool] = None,
    antialias: bool = False,
) -> Tensor:
    """Resizes the axes after the channels of (N, C, ..) to ``size``, or by a factor. Modes are nearest, nearest-exact, linear (N, C, T), bilinear and
    bicubic (N, C, H, W), trilinear (N, C, D, H, W) and area.
    """
    if mode not in KINDS:
        raise ValueError(f"interpolate: mode is {mode!r}, expected one of {', '.join(KINDS)}")
    kind, ranks = KINDS[mode]
    if input.ndim - 2 not in ranks:
        raise ShapeError(f"interpolate: mode {mode!r} does not fit an input of shape {tuple(input.shape)}; expected {ranks} axes after the channels")
    if antialias:
        raise refuse("interpolate: antialias=True", "apply a low-pass filter first, or use mode='area'")
    if align_corners is not None and kind not in ("linear", "cubic"):
        raise ValueError(f"interpolate: align_corners does not apply to mode {mode!r}")
    out, factors = _output_size("interpolate", input, size, scale_factor, recompute_scale_factor)
    if min(out) < 1:
        raise ShapeError(f"interpolate: the result would have size {out}")
    if kind == "area":
        pools: Any = (adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d)
        return pools[input.ndim - 3](input, out)  # type: ignore[no-any-return]
    exact = all(f is None or f * have == want for f, have, want in zip(factors, input.shape[2:], out))
    if input.ndim == 4 and mode in ("nearest", "bilinear") and exact:
        return ops.interpolate(input, out, mode, bool(align_corners))  # type: ignore[arg-type]
    x = input
    for i, (want, factor) in enumerate(zip(out, factors)):
        x = _resampled(x, 2 + i, want, factor, bool(align_corners), kind)
    return x


def upsample(input: Tensor, size: Any = None, scale_factor: Factors = None, mode: str = "nearest", align_corners: Optional[bool] = None) -> Tensor:
    """Computes ``interpolate``."""
    return interpolate(input, size, scale_factor, mode, align_corners)


def upsample_nearest(input: Tensor, size: Any = None, scale_factor: Factors = None) -> Tensor:
    """Resizes by the nearest element."""
    return interpolate(input, size, scale_factor, "nearest")


def upsample_bilinear(input: Tensor, size: Any = None, scale_factor: Factors = None) -> Tensor:
    """Resizes images linearly, with pixels as corners of a grid."""
    return interpolate(input, size, scale_factor, "bilinear", True)


def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """Moves channels into pixels: (.., C r², H, W) → (.., C, H r, W r) with factor r."""
    r = upscale_factor
    if input.ndim < 3 or r < 1 or input.shape[-3] % (r * r):
        raise ShapeError(f"pixel_shuffle: the input has shape {tuple(input.shape)}, expected (.., C · {r * r}, H, W)")
    *lead, channels, height, width = input.shape
    made = input.reshape(-1, channels // (r * r), r, r, height, width).permute(0, 1, 4, 2, 5, 3)
    return made.reshape(*lead, channels // (r * r), height * r, width * r)


def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """Moves pixels into channels: (.., C, H r, W r) → (.., C r², H, W) with factor r."""
    r = downscale_factor
    if input.ndim < 3 or r < 1 or input.shape[-1] % r or input.shape[-2] % r:
        raise ShapeError(f"pixel_unshuffle: the input has shape {tuple(input.shape)}, expected (.., C, H · {r}, W · {r})")
    *lead, channels, height, width = input.shape
    made = input.reshape(-1, channels, height // r, r, width // r, r).permute(0, 1, 3, 5, 2, 4)
    return made.reshape(*lead, channels * r * r, height // r, width // r)


def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """Interleaves the channels of groups: (N, C, ..)."""
    if input.ndim < 3 or groups < 1 or input.shape[1] % groups:
        raise ShapeError(f"channel_shuffle: the input has shape {tuple(input.shape)}, expected (N, C, ..) with C divisible by {groups}")
    n, c, *rest = input.shape
    return input.reshape(n, groups, c // groups, *rest).transpose(1, 2).reshape(n, c, *rest)


native_channel_shuffle = channel_shuffle

__all__ = [
    "channel_shuffle", "interpolate", "native_channel_shuffle", "pad", "pixel_shuffle", "pixel_unshuffle", "upsample", "upsample_bilinear", "upsample_nearest",
]  # fmt: skip
