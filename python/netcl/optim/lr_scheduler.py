"""Schedules of learning rates with PyTorch's names. Each sets ``group["lr"]`` of an optimizer's groups; call ``step()`` after ``optimizer.step()``."""

from ._cycles import CosineAnnealingWarmRestarts, CyclicLR, OneCycleLR
from ._rates import (
    ConstantLR,
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    MultiplicativeLR,
    MultiStepLR,
    PolynomialLR,
    StepLR,
)
from ._sequences import ChainedScheduler, ReduceLROnPlateau, SequentialLR

_LRScheduler = LRScheduler
"""Older name."""

__all__ = [
    "ChainedScheduler", "ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "CyclicLR", "ExponentialLR", "LRScheduler", "LambdaLR",
    "LinearLR", "MultiStepLR", "MultiplicativeLR", "OneCycleLR", "PolynomialLR", "ReduceLROnPlateau", "SequentialLR", "StepLR",
]  # fmt: skip
