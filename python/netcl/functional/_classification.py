"""Losses of classifiers."""

from __future__ import annotations

from typing import Any, Optional, Tuple

from .. import ops
from .._create import arange
from .._netcl import Tensor
from .._netcl import full as _full
from ..autograd import Function, no_grad
from ..errors import ShapeError
from ..functions import where
from ._common import can_read, legacy, reduced, refuse
from ._norm import at_least

Flag = Optional[bool]


def _classes_last(logits: Tensor) -> Tensor:
    """Moves the classes (N, C, ..) to the last axis."""
    return logits if logits.ndim < 3 else logits.permute(0, *range(2, logits.ndim), 1)


def _matching(name: str, input: Tensor, target: Tensor, weight: Optional[Tensor]) -> int:
    """Checks the shapes and returns the axis of the classes."""
    expected = tuple(input.shape[:1] if input.ndim > 1 else ()) + tuple(input.shape[2:])
    if input.ndim == 0 or tuple(target.shape) != expected:
        raise ShapeError(f"{name}: target has shape {tuple(target.shape)}, expected the shape of the input {tuple(input.shape)} without axis 1, the classes")
    return _weighted(name, input, weight)


def _weighted(name: str, input: Tensor, weight: Optional[Tensor]) -> int:
    axis = 1 if input.ndim > 1 else 0
    if weight is not None and tuple(weight.shape) != (input.shape[axis],):
        raise ShapeError(f"{name}: weight has shape {tuple(weight.shape)}, expected one element for each of {input.shape[axis]} classes")
    return axis


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Optional[Tensor] = None,
    size_average: Flag = None,
    ignore_index: int = -100,
    reduce: Flag = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Computes the cross entropy of logits (C), (N, C) or (N, C, ..) and class indices, or of probabilities of the logits' shape. ``weight`` (C) has
    the classes' weights. The result for class indices is float32.
    """
    reduction = legacy(size_average, reduce, reduction)
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"cross_entropy: label_smoothing is {label_smoothing}, expected a number from 0 to 1")
    if target.dtype.is_floating_point:
        return _soft_cross_entropy(input, target, weight, reduction, label_smoothing)
    axis = _matching("cross_entropy", input, target, weight)
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"cross_entropy: reduction is {reduction!r}, expected mean, sum or none")
    if weight is None:
        return ops.cross_entropy(_classes_last(input), target, ignore_index, label_smoothing, reduction)  # type: ignore[arg-type]
    logs = ops.log_softmax(input, axis)
    if label_smoothing == 0:
        return nll_loss(logs, target, weight, ignore_index=ignore_index, reduction=reduction)
    counted = (target != ignore_index)._to(None, logs.dtype)
    smooth = -(logs * weight.reshape(-1, *(1,) * max(0, input.ndim - 2))).sum(axis) * counted
    hard, chosen = _picked(logs, target, weight, ignore_index)
    losses = hard * (1 - label_smoothing) + smooth * (label_smoothing / input.shape[axis])
    return losses.sum() / chosen.sum() if reduction == "mean" else reduced("cross_entropy", losses, reduction)


def _soft_cross_entropy(logits: Tensor, target: Tensor, weight: Optional[Tensor], reduction: str, smoothing: float) -> Tensor:
    if tuple(target.shape) != tuple(logits.shape):
        raise ShapeError(f"cross_entropy: probabilities have shape {tuple(target.shape)}, expected that of the logits, {tuple(logits.shape)}")
    axis = _weighted("cross_entropy", logits, weight)
    target = target * (1 - smoothing) + smoothing / logits.shape[axis]
    logs = ops.log_softmax(logits, axis)
    if weight is not None:
        logs = logs * weight.reshape(-1, *(1,) * max(0, logits.ndim - 2))
    return reduced("cross_entropy", -(logs * target).sum(axis), reduction)


def _picked(logs: Tensor, target: Tensor, weight: Optional[Tensor], ignore_index: int) -> Tuple[Tensor, Tensor]:
    """Returns the weighted negative log likelihoods of the targets, and the weights. Both are 0 where the target is ignored."""
    used = target != ignore_index
    safe = where(used, target, 0)
    axis = 1 if logs.ndim > 1 else 0
    found = ops.gather(logs, safe.unsqueeze(axis), axis).squeeze(axis)
    weights = _full(tuple(target.shape), 1.0, logs.dtype, logs.device) if weight is None else ops.embedding(weight.unsqueeze(1), safe).squeeze(-1)
    weights = where(used, weights, 0.0)
    return -found * weights, weights


def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Optional[Tensor] = None,
    size_average: Flag = None,
    ignore_index: int = -100,
    reduce: Flag = None,
    reduction: str = "mean",
) -> Tensor:
    """Computes the negative log likelihood of log probabilities (C), (N, C) or (N, C, ..) and class indices. ``weight`` (C) has the classes' weights."""
    reduction = legacy(size_average, reduce, reduction)
    _matching("nll_loss", input, target, weight)
    if weight is None and reduction in ("mean", "sum", "none"):
        return ops.nll_loss(_classes_last(input), target, reduction, ignore_index)  # type: ignore[arg-type]
    losses, weights = _picked(input, target, weight, ignore_index)
    return losses.sum() / weights.sum() if reduction == "mean" else reduced("nll_loss", losses, reduction)


def linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Optional[Tensor] = None,
    weight: Optional[Tensor] = None,
    reduction: str = "mean",
    ignore_index: Optional[int] = None,
    label_smoothing: float = 0.0,
    options: Any = None,
) -> Tensor:
    """Computes the cross entropy of ``input linear_weightᵀ`` with input (N, C), linear_weight (V, C) and class indices (N). The mean without bias and
    weight never stores all logits at once.
    """
    if options is not None:
        raise refuse("linear_cross_entropy: options", "netcl divides the work itself; omit the argument")
    if linear_weight.ndim != 2 or target.dtype.is_floating_point:
        raise refuse("linear_cross_entropy: targets of several axes, or probabilities", "write F.cross_entropy(F.linear(input, linear_weight), target)")
    ignored = -100 if ignore_index is None else ignore_index
    if reduction == "mean" and linear_bias is None and weight is None:
        return ops.linear_cross_entropy(input, linear_weight, target, ignored, label_smoothing)
    logits = ops.linear(input, linear_weight.T, linear_bias)
    return cross_entropy(logits, target, weight, ignore_index=ignored, reduction=reduction, label_smoothing=label_smoothing)


class _BinaryCrossEntropy(Function):
    """Binary cross entropy of probabilities. Logarithms count as at least -100, and the gradient's denominator as at least 1e-12."""

    @staticmethod
    def forward(ctx: Any, p: Tensor, target: Tensor) -> Tensor:
        """Returns the loss of each element."""
        ctx.save_for_backward(p, target)
        return (target - 1.0) * at_least(ops.log(1.0 - p), -100.0) - target * at_least(ops.log(p), -100.0)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Returns the gradients of the probabilities and the targets."""
        kinds = [t.dtype for t in ctx.saved_tensors]
        # 1e-12 is 0 in float16.
        p, target = (t.float() for t in ctx.saved_tensors)
        dy = grads[0].float()
        dp = dy * (p - target) / at_least((1.0 - p) * p, 1e-12) if ctx.needs_input_grad[0] else None
        dt = dy * (ops.log(1.0 - p) - ops.log(p)) if ctx.needs_input_grad[1] else None
        return tuple(None if g is None else g._to(None, kind) for g, kind in zip((dp, dt), kinds))


def _same_shapes(name: str, input: Tensor, target: Tensor) -> None:
    if tuple(input.shape) != tuple(target.shape):
        raise ShapeError(f"{name}: target has shape {tuple(target.shape)}, expected that of the input, {tuple(input.shape)}")


def binary_cross_entropy(
    input: Tensor, target: Tensor, weight: Optional[Tensor] = None, size_average: Flag = None, reduce: Flag = None, reduction: str = "mean"
) -> Tensor:
    """Computes the cross entropy of probabilities and targets from 0 to 1. Probabilities out of range raise an error, except in a captured step."""
    _same_shapes("binary_cross_entropy", input, target)
    with no_grad():
        if can_read() and input.size and (((input < 0) | (input > 1)).any() | (input != input).any()).item():
            raise ValueError("binary_cross_entropy: expected probabilities from 0 to 1; write F.binary_cross_entropy_with_logits for logits")
    losses: Tensor = _BinaryCrossEntropy.apply(input, target)
    return reduced("binary_cross_entropy", losses if weight is None else losses * weight, legacy(size_average, reduce, reduction))


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Optional[Tensor] = None,
    size_average: Flag = None,
    reduce: Flag = None,
    reduction: str = "mean",
    pos_weight: Optional[Tensor] = None,
) -> Tensor:
    """Computes the binary cross entropy of ``sigmoid(input)`` and targets from 0 to 1 without losing digits."""
    name, reduction = "binary_cross_entropy_with_logits", legacy(size_average, reduce, reduction)
    _same_shapes(name, input, target)
    if pos_weight is None:
        losses = ops.bce_with_logits(input, target, reduction="none")
    else:
        logs = -ops.softplus(-input)
        losses = (1.0 - target) * input - ((pos_weight - 1.0) * target + 1.0) * logs
    return reduced(name, losses if weight is None else losses * weight, reduction)


def multi_margin_loss(
    input: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Optional[Tensor] = None,
    size_average: Flag = None,
    reduce: Flag = None,
    reduction: str = "mean",
) -> Tensor:
    """Computes how far scores (N, C) or (C) of other classes exceed that of the target minus ``margin``, to the power ``p``, divided by C."""
    if p not in (1, 2):
        raise ValueError(f"multi_margin_loss: p is {p}, expected 1 or 2")
    x, ids = (input.unsqueeze(0), target.reshape(1)) if input.ndim == 1 else (input, target)
    if x.ndim != 2 or tuple(ids.shape) != (x.shape[0],):
        raise ShapeError(f"multi_margin_loss: target has shape {tuple(target.shape)} for an input of shape {tuple(input.shape)}, expected (N) and (N, C)")
    own = ops.gather(x, ids.unsqueeze(1), 1)
    over = at_least(x - own + margin, 0.0)
    over = over if p == 1 else ops.square(over)
    if weight is not None:
        over = over * ops.embedding(weight.unsqueeze(1), ids)
    others = arange(x.shape[1], dtype="int32", device=x.device) != ids.unsqueeze(1)
    losses = where(others, over, 0.0).sum(1) / float(x.shape[1])
    losses = losses.reshape(()) if input.ndim == 1 else losses
    return reduced("multi_margin_loss", losses, legacy(size_average, reduce, reduction))


def multilabel_margin_loss(input: Tensor, target: Tensor, size_average: Flag = None, reduce: Flag = None, reduction: str = "mean") -> Tensor:
    """Computes the margins of 1 between the scores (N, C) or (C) of target classes and others. A row of targets ends at the first -1."""
    _same_shapes("multilabel_margin_loss", input, target)
    x, ids = (input.unsqueeze(0), target.unsqueeze(0)) if input.ndim == 1 else (input, target)
    n, c = x.shape
    used = ops.cumsum((ids < 0).float(), 1) == 0
    safe = where(used, ids, 0)
    marks = ops.one_hot(safe, c) * used.float().unsqueeze(-1)
    others = marks.sum(1) == 0
    gaps = at_least(1.0 - ops.gather(x, safe, 1).unsqueeze(2) + x.unsqueeze(1), 0.0)
    losses = where(used.unsqueeze(2) & others.unsqueeze(1), gaps, 0.0).sum((1, 2)) / float(c)
    losses = losses.reshape(()) if input.ndim == 1 else losses
    return reduced("multilabel_margin_loss", losses, legacy(size_average, reduce, reduction))


def multilabel_soft_margin_loss(
    input: Tensor, target: Tensor, weight: Optional[Tensor] = None, size_average: Flag = None, reduce: Flag = None, reduction: str = "mean"
) -> Tensor:
    """Computes the mean over the last axis of the binary cross entropies of logits (.., C)."""
    losses = ops.softplus(-input) * target + ops.softplus(input) * (1.0 - target)
    losses = losses if weight is None else losses * weight
    return reduced("multilabel_soft_margin_loss", losses.mean(-1), legacy(size_average, reduce, reduction))


__all__ = [
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "linear_cross_entropy", "multi_margin_loss", "multilabel_margin_loss",
    "multilabel_soft_margin_loss", "nll_loss",
]  # fmt: skip
