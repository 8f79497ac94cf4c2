"""Dropout layers."""

from __future__ import annotations

from .. import functional as F
from .._netcl import Tensor
from .module import Module

class _Dropout(Module):
    """A layer that drops elements with probability ``p`` in training."""

    _function = ""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"{type(self).__name__}: p is {p}, expected a probability from 0 to 1")
        self.p, self.inplace = p, inplace

    def forward(self, input: Tensor) -> Tensor:
        """Returns the remaining elements, scaled so that the mean is unchanged."""
        made: Tensor = getattr(F, self._function)(input, self.p, self.training, self.inplace)
        return made

    def extra_repr(self) -> str:
        """Returns the arguments."""
        return f"p={self.p}, inplace={self.inplace}"


class Dropout(_Dropout):
    """Sets elements to 0 with probability ``p`` in training, and scales the others by ``1 / (1 - p)``."""

    _function = "dropout"


class Dropout1d(_Dropout):
    """Drops channels of sequences (N, C, T) or (C, T) in training."""

    _function = "dropout1d"


class Dropout2d(_Dropout):
    """Drops channels of images (N, C, H, W) in training."""

    _function = "dropout2d"


class Dropout3d(_Dropout):
    """Drops channels of volumes (N, C, D, H, W) or (C, D, H, W) in training."""

    _function = "dropout3d"


class AlphaDropout(_Dropout):
    """Sets elements to the SELU's lowest value in training, and keeps mean and variance."""

    _function = "alpha_dropout"


class FeatureAlphaDropout(_Dropout):
    """Sets channels to the SELU's lowest value in training, and keeps mean and variance."""

    _function = "feature_alpha_dropout"


__all__ = [
    "AlphaDropout", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "FeatureAlphaDropout",
]  # fmt: skip
