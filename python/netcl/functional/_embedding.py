"""Tables of rows, and one-hot rows."""

from __future__ import annotations

from typing import Any, List, Optional

from .. import ops
from .._dtype import int32
from .._netcl import Tensor
from ..errors import DTypeError, ShapeError
from ..functions import where
from ._common import refuse


def _checked(name: str, ids: Tensor, weight: Tensor, max_norm: Optional[float], scaled: bool, sparse: bool) -> None:
    if ids.dtype.is_floating_point or ids.dtype.name == "bool":
        raise DTypeError(f"{name}: the indices are {ids.dtype.name}, expected int32")
    if weight.ndim != 2:
        raise ShapeError(f"{name}: weight has shape {tuple(weight.shape)}, expected (V, C)")
    refuse_options(name, max_norm, scaled, sparse)


def refuse_options(name: str, max_norm: Optional[float], scaled: bool, sparse: bool) -> None:
    """Raises an error for options that change weights or gradients in another way."""
    if max_norm is not None:
        raise refuse(f"{name}: max_norm", "scale the rows yourself, for example with F.normalize within no_grad")
    if scaled:
        raise refuse(f"{name}: scale_grad_by_freq", "divide the gradient of a row by the number of its uses before the optimizer's step")
    if sparse:
        raise refuse(f"{name}: sparse=True", "gradients of tables are dense; write sparse=False")


def row_of(name: str, index: Optional[int], rows: int) -> Optional[int]:
    """Returns the row of ``padding_idx``, counted from the front."""
    if index is not None and not -rows <= index < rows:
        raise ValueError(f"{name}: padding_idx is {index}, expected a row of {rows}")
    return index if index is None else index % rows


def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: Optional[int] = None,
    max_norm: Optional[float] = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Returns rows of ``weight`` (V, C) by the indices in ``input``. The row ``padding_idx`` does not get a gradient."""
    _checked("embedding", input, weight, max_norm, scale_grad_by_freq, sparse)
    row = row_of("embedding", padding_idx, weight.shape[0])
    made = ops.embedding(weight, input)
    if row is None or not made.requires_grad:
        return made
    return where((input == row).unsqueeze(-1), made.detach(), made)


def _bags(ids: Tensor, offsets: Tensor, with_last: bool) -> List[Any]:
    """Returns the slices of the bags that begin at ``offsets``, which are read on the host."""
    starts = [int(v) for v in offsets.tolist()]
    if not with_last:
        starts.append(ids.shape[0])
    if starts[0] != 0 or any(a > b for a, b in zip(starts, starts[1:])) or starts[-1] > ids.shape[0]:
        raise ValueError(f"embedding_bag: offsets {starts} must begin with 0, increase, and end within {ids.shape[0]} indices")
    return [slice(a, b) for a, b in zip(starts, starts[1:])]


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Optional[Tensor] = None,
    max_norm: Optional[float] = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Optional[Tensor] = None,
    include_last_offset: bool = False,
    padding_idx: Optional[int] = None,
) -> Tensor:
    """Computes sums, means or maxima of rows of ``weight`` (V, C): one bag per row of ``input`` (B, L), or bags that begin at ``offsets``."""
    _checked("embedding_bag", input, weight, max_norm, scale_grad_by_freq, sparse)
    if mode not in ("sum", "mean", "max"):
        raise ValueError(f"embedding_bag: mode is {mode!r}, expected sum, mean or max")
    if per_sample_weights is not None and (mode != "sum" or tuple(per_sample_weights.shape) != tuple(input.shape)):
        raise ValueError("embedding_bag: per_sample_weights need mode='sum' and the shape of the input")
    if (input.ndim == 2) == (offsets is not None) or input.ndim not in (1, 2):
        raise ValueError(f"embedding_bag: an input of {input.ndim} axes; expected two, or one with offsets")
    row = row_of("embedding_bag", padding_idx, weight.shape[0])
    if offsets is not None:
        parts = [
            _bag(input[s].unsqueeze(0), weight, mode, None if per_sample_weights is None else per_sample_weights[s].unsqueeze(0), row)
            for s in _bags(input, offsets, include_last_offset)
        ]
        return ops.cat(parts, 0)
    return _bag(input, weight, mode, per_sample_weights, row)


def _bag(ids: Tensor, weight: Tensor, mode: str, weights: Optional[Tensor], row: Optional[int]) -> Tensor:
    from .._create import zeros

    if ids.shape[1] == 0:
        return zeros(ids.shape[0], weight.shape[1], dtype=weight.dtype, device=weight.device)
    rows = ops.embedding(weight, ids)
    rows = rows if weights is None else rows * weights.unsqueeze(-1)
    if row is None:
        return rows.amax(1) if mode == "max" else rows.sum(1) if mode == "sum" else rows.mean(1)
    used = (ids != row).unsqueeze(-1)
    count = used._to(None, weight.dtype).sum(1)
    if mode == "max":
        return where(count > 0, where(used, rows, float("-inf")).amax(1), 0.0)
    total = where(used, rows, 0.0).sum(1)
    return total if mode == "sum" else total / where(count > 0, count, 1.0)


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """Returns int32 rows with 1 at each index and 0 elsewhere. By default, there are as many classes as the largest index needs."""
    if tensor.dtype.is_floating_point:
        raise DTypeError(f"one_hot: the indices are {tensor.dtype.name}, expected int32")
    classes = int(tensor.max().item()) + 1 if num_classes == -1 else num_classes
    return ops.one_hot(tensor, classes)._to(None, int32)


__all__ = ["embedding", "embedding_bag", "one_hot"]
