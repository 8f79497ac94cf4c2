"""Losses."""

from __future__ import annotations

from .. import ops
from .._netcl import Tensor
from .module import Module

REDUCTIONS = ("mean", "sum", "none")


def _reduced(losses: Tensor, reduction: str) -> Tensor:
    if reduction not in REDUCTIONS:
        raise ValueError(f"a reduction {reduction!r}, expected one of {', '.join(REDUCTIONS)}")
    return losses.mean() if reduction == "mean" else losses.sum() if reduction == "sum" else losses


class CrossEntropyLoss(Module):
    """Cross entropy of logits (.., V) and class numbers (..)."""

    def __init__(self, ignore_index: int = -100, label_smoothing: float = 0.0, reduction: str = "mean") -> None:
        super().__init__()
        self.ignore_index, self.label_smoothing, self.reduction = ignore_index, label_smoothing, reduction

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss, f32."""
        return ops.cross_entropy(
            logits, targets, ignore_index=self.ignore_index, label_smoothing=self.label_smoothing, reduction=self.reduction  # type: ignore[arg-type]
        )


class MSELoss(Module):
    """Mean of the squares of the differences."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """The loss."""
        return _reduced(ops.square(x - target), self.reduction)


class L1Loss(Module):
    """Mean of the sizes of the differences."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """The loss."""
        return _reduced(ops.abs(x - target), self.reduction)


class BCEWithLogitsLoss(Module):
    """Binary cross entropy of logits and probabilities of one shape, in a form that keeps its digits."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """The loss."""
        return ops.bce_with_logits(x, target, reduction=self.reduction)  # type: ignore[arg-type]


__all__ = ["BCEWithLogitsLoss", "CrossEntropyLoss", "L1Loss", "MSELoss"]
