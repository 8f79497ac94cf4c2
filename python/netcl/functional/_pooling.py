"""Pooling: maxima and means of windows."""

from __future__ import annotations

import math
from typing import Any, List, Optional, Sequence, Tuple, Union

from .. import ops
from .._create import arange
from .._dtype import int32
from .._host import from_lists
from .._netcl import Tensor
from ..errors import ShapeError
from ..functions import where
from ._common import Sizes, batched, sizes

Ints = Tuple[int, ...]
Outputs = Union[int, None, Sequence[Optional[int]]]


def _count(n: int, k: int, s: int, p: int, d: int, ceil: bool) -> int:
    """Counts the windows along an axis of ``n`` elements. A window may not start in the padding after the axis."""
    span = n + 2 * p - d * (k - 1) - 1
    out = (-(-span // s) if ceil else span // s) + 1
    return out - 1 if ceil and (out - 1) * s >= n + p else out


def _windows(
    name: str, n: int, x: Tensor, kernel: Sizes, stride: Optional[Sizes], padding: Sizes, dilation: Sizes, ceil: bool
) -> Tuple[Ints, Ints, Ints, Ints, Ints]:
    """Returns kernel, stride, padding, dilation and the numbers of windows."""
    k, d, p = sizes(name, "kernel_size", kernel, n), sizes(name, "dilation", dilation, n), sizes(name, "padding", padding, n)
    s = k if stride is None or stride == () else sizes(name, "stride", stride, n)
    if min(k) < 1 or min(s) < 1 or min(d) < 1 or min(p) < 0:
        raise ValueError(f"{name}: kernel_size {k}, stride {s} and dilation {d} must be at least 1, padding {p} at least 0")
    if any(2 * a > b * (w - 1) + 1 for a, b, w in zip(p, d, k)):
        raise ValueError(f"{name}: padding {p} is more than half of the kernel size {k}")
    out = tuple(_count(size, w, c, a, b, ceil) for size, w, c, a, b in zip(x.shape[2:], k, s, p, d))
    if min(out) < 1:
        raise ShapeError(f"{name}: windows of {k} do not fit into an input of shape {tuple(x.shape)}")
    return k, s, p, d, out


def _padded(x: Tensor, k: Ints, s: Ints, p: Ints, d: Ints, out: Ints, value: float) -> Tensor:
    """Pads the last axes before their start, and after their end as far as the last window reaches."""
    amounts: List[int] = []
    for size, w, c, a, b, m in reversed(list(zip(x.shape[2:], k, s, p, d, out))):
        amounts += [a, max(0, (m - 1) * c + b * (w - 1) + 1 - size - a)]
    return ops.pad(x, amounts, value) if any(amounts) else x


def _planes(x: Tensor, n: int) -> Tensor:
    """Returns x with two axes after the channels: with a row for n = 1, and with the depth as part of the channels for n = 3."""
    return x.unsqueeze(2) if n == 1 else x.reshape(x.shape[0], -1, *x.shape[-2:]) if n == 3 else x


def _max(x: Tensor, n: int, k: Ints, s: Ints, p: Ints, d: Ints) -> Tensor:
    if n == 1:
        return ops.max_pool2d(x.unsqueeze(2), (1, *k), (1, *s), (0, *p), (1, *d)).squeeze(2)
    if n == 2:
        return ops.max_pool2d(x, k, s, p, d)
    planes = ops.max_pool2d(_planes(x, 3), k[1:], s[1:], p[1:], d[1:])
    height, width = planes.shape[2:]
    made = ops.max_pool2d(planes.reshape(*x.shape[:3], height * width), (k[0], 1), (s[0], 1), (p[0], 0), (d[0], 1))
    return made.reshape(*made.shape[:3], height, width)


def _indices(x: Tensor, n: int, k: Ints, s: Ints, p: Ints, d: Ints, out: Ints) -> Tensor:
    """Returns the places (int32) of the maxima in the last ``n`` axes, counted in the flattened axes."""
    full = _padded(x.detach(), k, s, p, d, out, -math.inf)
    taps: List[Ints] = [()]
    for w in k:
        taps = [(*t, i) for t in taps for i in range(w)]
    parts = [full[(slice(None), slice(None), *(slice(i * b, i * b + (m - 1) * c + 1, c) for i, b, c, m in zip(tap, d, s, out)))] for tap in taps]
    best = ops.argmax(ops.stack(parts, x.ndim), -1)
    place = best * 0
    for axis in range(n):
        inner = math.prod(k[axis + 1 :])
        shape = [out[axis] if a == axis else 1 for a in range(n)]
        start = (arange(out[axis], dtype=int32, device=x.device) * s[axis] - p[axis]).reshape(shape)
        place = place * x.shape[2 + axis] + (best // inner % k[axis]) * d[axis] + start
    return place


def _max_pool(
    n: int, input: Tensor, kernel: Sizes, stride: Optional[Sizes], padding: Sizes, dilation: Sizes, ceil_mode: bool, return_indices: bool
) -> Any:
    name = f"max_pool{n}d"
    x, one = batched(name, input, n)
    k, s, p, d, out = _windows(name, n, x, kernel, stride, padding, dilation, ceil_mode)
    if ceil_mode:
        made = _max(_padded(x, k, s, p, d, out, -math.inf), n, k, s, (0,) * n, d)
    else:
        made = _max(x, n, k, s, p, d)
    found = (made, _indices(x, n, k, s, p, d, out)) if return_indices else (made,)
    parts = tuple(t.squeeze(0) for t in found) if one else found
    return parts if return_indices else parts[0]


def max_pool1d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Optional[Sizes] = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Computes maxima of windows: input (N, C, T) or (C, T). With ``return_indices``, also returns their places (int32)."""
    return _max_pool(1, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def max_pool2d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Optional[Sizes] = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Computes maxima of windows: input (N, C, H, W) or (C, H, W). With ``return_indices``, also returns their places (int32)."""
    return _max_pool(2, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def max_pool3d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Optional[Sizes] = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Computes maxima of windows: input (N, C, D, H, W) or (C, D, H, W). With ``return_indices``, also returns their places (int32)."""
    return _max_pool(3, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def _avg(x: Tensor, n: int, k: Ints, s: Ints, p: Ints, include_pad: bool) -> Tensor:
    if n == 1:
        return ops.avg_pool2d(x.unsqueeze(2), (1, *k), (1, *s), (0, *p), include_pad).squeeze(2)
    if n == 2:
        return ops.avg_pool2d(x, k, s, p, include_pad)
    planes = ops.avg_pool2d(_planes(x, 3), k[1:], s[1:], p[1:], include_pad)
    height, width = planes.shape[2:]
    made = ops.avg_pool2d(planes.reshape(*x.shape[:3], height * width), (k[0], 1), (s[0], 1), (p[0], 0), include_pad)
    return made.reshape(*made.shape[:3], height, width)


def _divisors(x: Tensor, k: Ints, s: Ints, p: Ints, out: Ints, include_pad: bool) -> Tensor:
    """Counts the elements of each window."""
    made: Any = None
    for axis, (size, w, c, a, m) in enumerate(zip(x.shape[2:], k, s, p, out)):
        starts = [i * c - a for i in range(m)]
        ends = [min(start + w, size + a) for start in starts]
        counts = [float(e - b) if include_pad else float(min(e, size) - max(b, 0)) for b, e in zip(starts, ends)]
        row = from_lists(counts, "float32", x.device).reshape([m if j == axis else 1 for j in range(len(out))])
        made = row if made is None else made * row
    return made._to(None, x.dtype)  # type: ignore[no-any-return]


def _avg_pool(
    n: int, input: Tensor, kernel: Sizes, stride: Optional[Sizes], padding: Sizes, ceil_mode: bool, include_pad: bool, divisor: Optional[int] = None
) -> Tensor:
    name = f"avg_pool{n}d"
    if divisor == 0:
        raise ValueError(f"{name}: divisor_override is 0")
    x, one = batched(name, input, n)
    k, s, p, _, out = _windows(name, n, x, kernel, stride, padding, 1, ceil_mode)
    if ceil_mode or divisor is not None:
        zero = (0,) * n
        means = _avg(_padded(x, k, s, p, (1,) * n, out, 0.0), n, k, s, zero, True)
        means = means[(slice(None), slice(None), *(slice(0, m) for m in out))]
        totals = means * float(math.prod(k))
        made = totals / float(divisor) if divisor is not None else totals / _divisors(x, k, s, p, out, include_pad)
    else:
        made = _avg(x, n, k, s, p, include_pad)
    return made.squeeze(0) if one else made


def avg_pool1d(
    input: Tensor, kernel_size: Sizes, stride: Optional[Sizes] = None, padding: Sizes = 0, ceil_mode: bool = False, count_include_pad: bool = True
) -> Tensor:
    """Computes means of windows: input (N, C, T) or (C, T)."""
    return _avg_pool(1, input, kernel_size, stride, padding, ceil_mode, count_include_pad)


def avg_pool2d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Optional[Sizes] = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Optional[int] = None,
) -> Tensor:
    """Computes means of windows: input (N, C, H, W) or (C, H, W). ``divisor_override`` replaces the number of elements."""
    return _avg_pool(2, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


def avg_pool3d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Optional[Sizes] = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Optional[int] = None,
) -> Tensor:
    """Computes means of windows: input (N, C, D, H, W) or (C, D, H, W). ``divisor_override`` replaces the number of elements."""
    return _avg_pool(3, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


def _lp_pool(n: int, input: Tensor, norm: float, kernel: Sizes, stride: Optional[Sizes], ceil_mode: bool) -> Tensor:
    k = sizes(f"lp_pool{n}d", "kernel_size", kernel, n)
    means = _avg_pool(n, input**norm, kernel, stride, 0, ceil_mode, True)
    zero = means == 0
    roots = (where(zero, 1.0, means) * float(math.prod(k))) ** (1.0 / norm)
    return where(zero, 0.0, roots)


def lp_pool1d(input: Tensor, norm_type: float, kernel_size: Sizes, stride: Optional[Sizes] = None, ceil_mode: bool = False) -> Tensor:
    """Computes p-norms of windows of sequences."""
    return _lp_pool(1, input, float(norm_type), kernel_size, stride, ceil_mode)


def lp_pool2d(input: Tensor, norm_type: float, kernel_size: Sizes, stride: Optional[Sizes] = None, ceil_mode: bool = False) -> Tensor:
    """Computes p-norms of windows of images."""
    return _lp_pool(2, input, float(norm_type), kernel_size, stride, ceil_mode)


def lp_pool3d(input: Tensor, norm_type: float, kernel_size: Sizes, stride: Optional[Sizes] = None, ceil_mode: bool = False) -> Tensor:
    """Computes p-norms of windows of volumes."""
    return _lp_pool(3, input, float(norm_type), kernel_size, stride, ceil_mode)


def _adaptive(name: str, n: int, input: Tensor, output: Outputs) -> Tensor:
    x, one = batched(name, input, n)
    given = (output,) * n if output is None or isinstance(output, int) else tuple(output)
    given = given * n if len(given) == 1 else given
    if len(given) != n:
        raise ShapeError(f"{name}: output_size is {given}, expected one number or {n}")
    size = tuple(have if want is None else int(want) for have, want in zip(x.shape[2:], given))
    pool: Any = ops.adaptive_max_pool2d if "max" in name else ops.adaptive_avg_pool2d
    if n == 1:
        made = pool(x.unsqueeze(2), (1, *size)).squeeze(2)
    elif n == 2:
        made = pool(x, size)
    else:
        planes = pool(_planes(x, 3), size[1:])
        rows = planes.reshape(*x.shape[:3], math.prod(size[1:]))
        made = pool(rows, (size[0], rows.shape[3])).reshape(*x.shape[:2], *size)
    return made.squeeze(0) if one else made  # type: ignore[no-any-return]


def adaptive_avg_pool1d(input: Tensor, output_size: Outputs) -> Tensor:
    """Computes means of ``output_size`` windows: input (N, C, T) or (C, T)."""
    return _adaptive("adaptive_avg_pool1d", 1, input, output_size)


def adaptive_avg_pool2d(input: Tensor, output_size: Outputs) -> Tensor:
    """Computes means of ``output_size`` windows per axis: input (N, C, H, W) or (C, H, W). ``None`` keeps a size."""
    return _adaptive("adaptive_avg_pool2d", 2, input, output_size)


def adaptive_avg_pool3d(input: Tensor, output_size: Outputs) -> Tensor:
    """Computes means of ``output_size`` windows per axis: input (N, C, D, H, W) or (C, D, H, W). ``None`` keeps a size."""
    return _adaptive("adaptive_avg_pool3d", 3, input, output_size)


def _adaptive_indices(x: Tensor, n: int, out: Ints) -> Tensor:
    """Returns the places (int32) of the maxima of adaptive windows, which overlap by at most one element."""
    full, reach = x.detach(), []
    for axis, (size, m) in enumerate(zip(x.shape[2:], out)):
        starts, ends = [i * size // m for i in range(m)], [-(-(i + 1) * size // m) for i in range(m)]
        widest = max(e - s for s, e in zip(starts, ends))
        places = [min(s + k, e - 1) for s, e in zip(starts, ends) for k in range(widest)]
        full = ops.index_select(full, from_lists(places, "int32", x.device), 2 + axis)
        reach.append((widest, from_lists(places, "int32", x.device)))
    windows = full.reshape(*x.shape[:2], *(v for (w, _), m in zip(reach, out) for v in (m, w)))
    order = [0, 1, *(2 + 2 * i for i in range(n)), *(3 + 2 * i for i in range(n))]
    best = ops.argmax(windows.permute(*order).reshape(*x.shape[:2], *out, -1), -1)
    found = best * 0
    for axis, (width, places_of) in enumerate(reach):
        inner = math.prod(w for w, _ in reach[axis + 1 :])
        shape = [out[axis] if i == axis else 1 for i in range(n)]
        row = arange(out[axis], dtype=int32, device=x.device).reshape(shape) * width + best // inner % width
        found = found * x.shape[2 + axis] + places_of[row.reshape(-1)].reshape(row.shape)
    return found


def _adaptive_max(n: int, input: Tensor, output: Outputs, return_indices: bool) -> Any:
    name = f"adaptive_max_pool{n}d"
    made = _adaptive(name, n, input, output)
    if not return_indices:
        return made
    x, one = batched(name, input, n)
    found = _adaptive_indices(x, n, tuple(made.shape[-n:]))
    return made, found.squeeze(0) if one else found


def adaptive_max_pool1d(input: Tensor, output_size: Outputs, return_indices: bool = False) -> Any:
    """Computes maxima of ``output_size`` windows: input (N, C, T) or (C, T). With ``return_indices``, also returns their places (int32)."""
    return _adaptive_max(1, input, output_size, return_indices)


def adaptive_max_pool2d(input: Tensor, output_size: Outputs, return_indices: bool = False) -> Any:
    """Computes maxima of ``output_size`` windows per axis: input (N, C, H, W) or (C, H, W). ``None`` keeps a size. With ``return_indices``, also
    returns their places (int32).
    """
    return _adaptive_max(2, input, output_size, return_indices)


def adaptive_max_pool3d(input: Tensor, output_size: Outputs, return_indices: bool = False) -> Any:
    """Computes maxima of ``output_size`` windows per axis: input (N, C, D, H, W) or (C, D, H, W). ``None`` keeps a size. With ``return_indices``, also
    returns their places (int32).
    """
    return _adaptive_max(3, input, output_size, return_indices)


__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d", "avg_pool1d",
    "avg_pool2d", "avg_pool3d", "lp_pool1d", "lp_pool2d", "lp_pool3d", "max_pool1d", "max_pool2d", "max_pool3d",
]  # fmt: skip
