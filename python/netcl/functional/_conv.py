"""Convolutions, windows of images, and linear maps."""

from __future__ import annotations

import math
from typing import Any, List, Optional, Tuple, Union

from .. import ops
from .._create import zeros
from .._netcl import Tensor
from .._host import from_lists
from ..errors import ShapeError
from ._common import Sizes, batched, sizes

Padding = Union[str, Sizes]


def linear(input: Tensor, weight: Tensor, bias: Optional[Tensor] = None) -> Tensor:
    """Computes ``input weightᵀ + bias``: input (.., in), weight (out, in) or (in), bias (out)."""
    if weight.ndim == 1:
        made = input @ weight
        return made if bias is None else made + bias
    if weight.ndim != 2:
        raise ShapeError(f"linear: weight has shape {tuple(weight.shape)}, expected (out, in)")
    one = input.ndim == 1
    made = ops.linear(input.unsqueeze(0) if one else input, weight.T, bias)
    return made.squeeze(0) if one else made


def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Optional[Tensor] = None) -> Tensor:
    """Computes ``x1ᵀ W x2 + bias`` for each output: inputs (.., A) and (.., B), weight (out, A, B), bias (out)."""
    if tuple(input1.shape[:-1]) != tuple(input2.shape[:-1]):
        raise ShapeError(f"bilinear: the inputs have shapes {tuple(input1.shape)} and {tuple(input2.shape)}, expected the same except for the last axis")
    if weight.ndim != 3 or tuple(weight.shape[1:]) != (input1.shape[-1], input2.shape[-1]):
        raise ShapeError(f"bilinear: weight has shape {tuple(weight.shape)}, expected (out, {input1.shape[-1]}, {input2.shape[-1]})")
    lead, out = tuple(input1.shape[:-1]), weight.shape[0]
    flat = [x.reshape(-1, x.shape[-1]) for x in (input1, input2)]
    made = ops.einsum([flat[0], weight, flat[1]], "ni,oij,nj->no").reshape(*lead, out)
    return made if bias is None else made + bias


def _same(name: str, kernel: Tuple[int, ...], stride: Tuple[int, ...], dilation: Tuple[int, ...]) -> List[Tuple[int, int]]:
    """Returns the padding before and after each axis that keeps the size."""
    if any(s != 1 for s in stride):
        raise ValueError(f"{name}: padding='same' needs stride 1, got {stride}")
    totals = [d * (k - 1) for k, d in zip(kernel, dilation)]
    return [(total // 2, total - total // 2) for total in totals]


def _checked(name: str, n: int, x: Tensor, weight: Tensor, groups: int, inner: int) -> None:
    if weight.ndim != n + 2:
        raise ShapeError(f"{name}: weight has shape {tuple(weight.shape)}, expected {n + 2} axes")
    if groups < 1 or x.shape[1] != inner or weight.shape[0] % groups:
        raise ShapeError(f"{name}: {x.shape[1]} channels, weight {tuple(weight.shape)} and {groups} groups do not match; expected {inner} channels")


def _conv(name: str, n: int, input: Tensor, weight: Tensor, bias: Optional[Tensor], stride: Sizes, padding: Padding, dilation: Sizes, groups: int) -> Tensor:
    x, one = batched(name, input, n)
    _checked(name, n, x, weight, groups, weight.shape[1] * groups)
    steps, holes = sizes(name, "stride", stride, n), sizes(name, "dilation", dilation, n)
    if min(steps) < 1 or min(holes) < 1:
        raise ValueError(f"{name}: stride {steps} and dilation {holes} must be at least 1")
    if isinstance(padding, str):
        if padding not in ("same", "valid"):
            raise ValueError(f"{name}: padding is {padding!r}, expected 'same', 'valid' or numbers")
        both = _same(name, tuple(weight.shape[2:]), steps, holes) if padding == "same" else [(0, 0)] * n
        if any(a != b for a, b in both):
            x = ops.pad(x, [amount for pair in reversed(both) for amount in (0, pair[1] - pair[0])], 0.0)
        edges = tuple(a for a, _ in both)
    else:
        edges = sizes(name, "padding", padding, n)
    made = (_conv1, _conv2, _conv3)[n - 1](x, weight, bias, steps, edges, holes, groups)
    return made.squeeze(0) if one else made


def _conv1(x: Tensor, w: Tensor, bias: Optional[Tensor], s: Tuple[int, ...], p: Tuple[int, ...], d: Tuple[int, ...], groups: int) -> Tensor:
    return ops.conv1d(x, w, bias, s[0], p[0], d[0], groups)


def _conv2(x: Tensor, w: Tensor, bias: Optional[Tensor], s: Tuple[int, ...], p: Tuple[int, ...], d: Tuple[int, ...], groups: int) -> Tensor:
    return ops.conv2d(x, w, bias, s, p, d, groups)


def _conv3(x: Tensor, w: Tensor, bias: Optional[Tensor], s: Tuple[int, ...], p: Tuple[int, ...], d: Tuple[int, ...], groups: int) -> Tensor:
    """Computes a convolution of images whose channels are those of all depths under the kernel."""
    x = ops.pad(x, (0, 0, 0, 0, p[0], p[0]), 0.0) if p[0] else x
    taps = w.shape[2]
    out = (x.shape[2] - d[0] * (taps - 1) - 1) // s[0] + 1
    if out < 1:
        raise ShapeError(f"conv3d: a kernel of depth {taps} with dilation {d[0]} does not fit into {x.shape[2]} padded rows")
    parts = [x[:, :, k * d[0] : k * d[0] + (out - 1) * s[0] + 1 : s[0]] for k in range(taps)]
    stacked = ops.stack(parts, 2).permute(0, 3, 1, 2, 4, 5)
    n, c = x.shape[0], x.shape[1]
    images = stacked.reshape(n * out, c * taps, *x.shape[3:])
    made = ops.conv2d(images, w.reshape(w.shape[0], -1, *w.shape[3:]), bias, s[1:], p[1:], d[1:], groups)
    return made.reshape(n, out, *made.shape[1:]).permute(0, 2, 1, 3, 4)


def conv1d(
    input: Tensor, weight: Tensor, bias: Optional[Tensor] = None, stride: Sizes = 1, padding: Padding = 0, dilation: Sizes = 1, groups: int = 1
) -> Tensor:
    """Computes the convolution of sequences (N, G C, T) or (G C, T) with weight (O, C, K)."""
    return _conv("conv1d", 1, input, weight, bias, stride, padding, dilation, groups)


def conv2d(
    input: Tensor, weight: Tensor, bias: Optional[Tensor] = None, stride: Sizes = 1, padding: Padding = 0, dilation: Sizes = 1, groups: int = 1
) -> Tensor:
    """Computes the convolution of images (N, G C, H, W) or (G C, H, W) with weight (O, C, I, J)."""
    return _conv("conv2d", 2, input, weight, bias, stride, padding, dilation, groups)


def conv3d(
    input: Tensor, weight: Tensor, bias: Optional[Tensor] = None, stride: Sizes = 1, padding: Padding = 0, dilation: Sizes = 1, groups: int = 1
) -> Tensor:
    """Computes the convolution of volumes (N, G C, D, H, W) or (G C, D, H, W) with weight (O, C, K, I, J)."""
    return _conv("conv3d", 3, input, weight, bias, stride, padding, dilation, groups)


def conv_tbc(input: Tensor, weight: Tensor, bias: Tensor, pad: int = 0) -> Tensor:
    """Computes the convolution of sequences (T, N, C) with weight (K, C, O) and bias (O). Returns (T', N, O)."""
    return ops.conv1d(input.permute(1, 2, 0), weight.permute(2, 1, 0), bias, 1, pad).permute(2, 0, 1)


def _transposed(
    name: str, n: int, input: Tensor, weight: Tensor, bias: Optional[Tensor], stride: Sizes, padding: Sizes, more: Sizes, groups: int, dilation: Sizes
) -> Tensor:
    x, one = batched(name, input, n)
    _checked(name, n, x, weight, groups, weight.shape[0])
    s, p, d = sizes(name, "stride", stride, n), sizes(name, "padding", padding, n), sizes(name, "dilation", dilation, n)
    o = sizes(name, "output_padding", more, n)
    if any(a >= max(b, c) for a, b, c in zip(o, s, d)):
        raise ValueError(f"{name}: output_padding {o} must be less than the stride {s} or the dilation {d}")
    if any(a and b == 1 for a, b in zip(o, s)):
        # With stride 1, zeros after the input have the same effect.
        x = ops.pad(x, [amount for a, b in reversed(list(zip(o, s))) for amount in (0, a if b == 1 else 0)], 0.0)
        o = tuple(0 if b == 1 else a for a, b in zip(o, s))
    out = [(a - 1) * b - 2 * c + e * (k - 1) + f + 1 for a, b, c, e, k, f in zip(x.shape[2:], s, p, d, weight.shape[2:], o)]
    if min(out) == 0:
        empty = zeros(x.shape[0], weight.shape[1] * groups, *out, dtype=x.dtype, device=x.device)
        made = empty + (x.sum() + weight.sum() + (0.0 if bias is None else bias.sum())) * 0.0
    elif n == 1:
        made = ops.conv_transpose2d(x.unsqueeze(2), weight.unsqueeze(2), bias, (1, *s), (0, *p), (1, *d), groups, (0, *o)).squeeze(2)
    elif n == 2:
        made = ops.conv_transpose2d(x, weight, bias, s, p, d, groups, o)
    else:
        made = _transposed3(x, weight, bias, s, p, o, groups, d)
    return made.squeeze(0) if one else made


def _transposed3(
    x: Tensor, w: Tensor, bias: Optional[Tensor], s: Tuple[int, ...], p: Tuple[int, ...], o: Tuple[int, ...], groups: int, d: Tuple[int, ...]
) -> Tensor:
    """Computes one image for each depth of input and kernel, then adds them at their depth of the result."""
    n, c, depth, taps = x.shape[0], x.shape[1], x.shape[2], w.shape[2]
    images = x.permute(0, 2, 1, 3, 4).reshape(n * depth, c, *x.shape[3:])
    made = ops.conv_transpose2d(images, w.reshape(c, -1, *w.shape[3:]), None, s[1:], p[1:], d[1:], groups, o[1:])
    height, width = made.shape[2:]
    out = made.shape[1] // taps
    rows = made.reshape(n, depth, out * taps, height * width).permute(0, 2, 1, 3)
    total = ops.conv_transpose2d(rows, _one_hot_kernel(rows, out, taps, 1), None, (s[0], 1), (p[0], 0), (d[0], 1), out, (o[0], 0))
    total = total.reshape(n, out, total.shape[2], height, width)
    return total if bias is None else total + bias.reshape(out, 1, 1, 1)


def _one_hot_kernel(like: Tensor, channels: int, height: int, width: int) -> Tensor:
    """Returns a weight (channels height width, 1, height, width) that puts each input channel at its own place of the window."""
    taps = height * width
    rows = [[float(i == k) for i in range(taps)] for k in range(taps)]
    kernel = from_lists(rows, like.dtype, like.device).reshape(1, taps, 1, height, width)
    return ops.expand(kernel, (channels, taps, 1, height, width)).reshape(channels * taps, 1, height, width)


def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Optional[Tensor] = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor:
    """Computes the transposed convolution of sequences (N, G C, T) with weight (G C, O, K)."""
    return _transposed("conv_transpose1d", 1, input, weight, bias, stride, padding, output_padding, groups, dilation)


def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Optional[Tensor] = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor:
    """Computes the transposed convolution of images (N, G C, H, W) with weight (G C, O, I, J)."""
    return _transposed("conv_transpose2d", 2, input, weight, bias, stride, padding, output_padding, groups, dilation)


def conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Optional[Tensor] = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor:
    """Computes the transposed convolution of volumes (N, G C, D, H, W) with weight (G C, O, K, I, J)."""
    return _transposed("conv_transpose3d", 3, input, weight, bias, stride, padding, output_padding, groups, dilation)


def _places(name: str, shape: Tuple[int, ...], k: Any, d: Any, p: Any, s: Any) -> Tuple[int, ...]:
    """Counts the windows along each axis."""
    found = tuple((n + 2 * b - a * (w - 1) - 1) // c + 1 for n, w, a, b, c in zip(shape, k, d, p, s))
    if min(found) < 1:
        raise ShapeError(f"{name}: windows of {k} with dilation {d} do not fit into {shape} with padding {p}")
    return found


def unfold(input: Tensor, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1) -> Tensor:
    """Returns the windows of images (N, C, H, W) as columns (N, C I J, L)."""
    x, one = batched("unfold", input, 2)
    k, d, p, s = (sizes("unfold", what, v, 2) for what, v in (("kernel_size", kernel_size), ("dilation", dilation), ("padding", padding), ("stride", stride)))
    rows, columns = _places("unfold", tuple(x.shape[2:]), k, d, p, s)
    x = ops.pad(x, (p[1], p[1], p[0], p[0]), 0.0) if any(p) else x
    parts = []
    for i in range(k[0]):
        for j in range(k[1]):
            top, left = i * d[0], j * d[1]
            parts.append(x[:, :, top : top + (rows - 1) * s[0] + 1 : s[0], left : left + (columns - 1) * s[1] + 1 : s[1]])
    made = ops.stack(parts, 2).reshape(x.shape[0], x.shape[1] * math.prod(k), rows * columns)
    return made.squeeze(0) if one else made


def fold(input: Tensor, output_size: Sizes, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1) -> Tensor:
    """Adds columns (N, C I J, L) at the places of their windows in images (N, C, H, W)."""
    x, one = batched("fold", input, 1)
    k, d, p, s = (sizes("fold", what, v, 2) for what, v in (("kernel_size", kernel_size), ("dilation", dilation), ("padding", padding), ("stride", stride)))
    size = sizes("fold", "output_size", output_size, 2)
    rows, columns = _places("fold", size, k, d, p, s)
    taps = math.prod(k)
    if x.shape[1] % taps or x.shape[2] != rows * columns:
        raise ShapeError(f"fold: the input has shape {tuple(input.shape)}, expected (N, C · {taps}, {rows * columns})")
    channels = x.shape[1] // taps
    least = [(n - 1) * c - 2 * b + a * (w - 1) + 1 for n, w, a, b, c in zip((rows, columns), k, d, p, s)]
    more = tuple(n - m for n, m in zip(size, least))
    made = ops.conv_transpose2d(x.reshape(x.shape[0], -1, rows, columns), _one_hot_kernel(x, channels, k[0], k[1]), None, s, p, d, channels, more)
    return made.squeeze(0) if one else made


__all__ = ["bilinear", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "fold", "linear", "unfold"]
