"""Losses."""

from __future__ import annotations

from .. import ops
from .._netcl import Tensor
from ..functional import cross_entropy
from .module import Module

REDUCTIONS = ("mean", "sum", "none")


def _reduced(losses: Tensor, reduction: str) -> Tensor:
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction is {reduction!r}, expected one of {', '.join(REDUCTIONS)}")
    return losses.mean() if reduction == "mean" else losses.sum() if reduction == "sum" else losses


class CrossEntropyLoss(Module):
    """Cross entropy of logits (C), (N, C) or (N, C, ..) and class indices, as in ``functional.cross_entropy``."""

    def __init__(self, ignore_index: int = -100, label_smoothing: float = 0.0, reduction: str = "mean") -> None:
        super().__init__()
        self.ignore_index, self.label_smoothing, self.reduction = ignore_index, label_smoothing, reduction

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Returns the loss in f32."""
        return cross_entropy(logits, targets, ignore_index=self.ignore_index, label_smoothing=self.label_smoothing, reduction=self.reduction)


class MSELoss(Module):
    """Mean of the squared differences."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """Returns the loss."""
        return _reduced(ops.square(x - target), self.reduction)


class L1Loss(Module):
    """Mean of the absolute differences."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """Returns the loss."""
        return _reduced(ops.abs(x - target), self.reduction)


class BCEWithLogitsLoss(Module):
    """Binary cross entropy of logits and probabilities of equal shape, in a numerically stable form."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """Returns the loss."""
        return ops.bce_with_logits(x, target, reduction=self.reduction)  # type: ignore[arg-type]


__all__ = ["BCEWithLogitsLoss", "CrossEntropyLoss", "L1Loss", "MSELoss"]
