"""Dropout of elements and of channels."""

from __future__ import annotations

import math

from .. import ops
from .._create import ones
from .._netcl import Tensor
from ..errors import ShapeError
from ..functions import where
from ._common import in_place


def _probability(name: str, p: float) -> None:
    if not 0 <= p <= 1:
        raise ValueError(f"{name}: p is {p}, expected a probability from 0 to 1")


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Sets elements to 0 with probability ``p`` and scales the others by ``1 / (1 - p)``, if ``training``."""
    _probability("dropout", p)
    if not training or p == 0:
        return input
    if inplace:
        return in_place("dropout", input, lambda x: dropout(x, p))
    return input * 0.0 if p == 1 else ops.dropout(input, p)


def _channels(name: str, input: Tensor, p: float, training: bool, inplace: bool, batched: bool) -> Tensor:
    _probability(name, p)
    if not training or p == 0:
        return input
    if inplace:
        return in_place(name, input, lambda x: _channels(name, x, p, True, False, batched))
    if p == 1:
        return input * 0.0
    lead = 2 if batched else 1
    kept = ones(*input.shape[:lead], *(1,) * (input.ndim - lead), dtype=input.dtype, device=input.device)
    return input * ops.dropout(kept, p)


def _axes(name: str, input: Tensor, axes: "tuple[int, ...]") -> None:
    if input.ndim not in axes:
        raise ShapeError(f"{name}: the input has shape {tuple(input.shape)}, expected {' or '.join(map(str, axes))} axes")


def _at_least(name: str, input: Tensor, least: int) -> None:
    if input.ndim < least:
        raise ShapeError(f"{name}: the input has shape {tuple(input.shape)}, expected at least {least} axes")


def dropout1d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Drops whole channels of (N, C, T) or (C, T), if ``training``."""
    _axes("dropout1d", input, (2, 3))
    return _channels("dropout1d", input, p, training, inplace, input.ndim == 3)


def dropout2d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Drops whole channels of (N, C, H, W), if ``training``. An input with another number of axes is (N, C, ..)."""
    _at_least("dropout2d", input, 2)
    return _channels("dropout2d", input, p, training, inplace, True)


def dropout3d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Drops whole channels of (N, C, D, H, W), if ``training``. An input with another number of axes is (C, ..)."""
    _at_least("dropout3d", input, 1)
    return _channels("dropout3d", input, p, training, inplace, input.ndim == 5)


def _alpha(name: str, input: Tensor, p: float, training: bool, inplace: bool, channels: bool) -> Tensor:
    _probability(name, p)
    if not training or p == 0:
        return input
    if inplace:
        return in_place(name, input, lambda x: _alpha(name, x, p, True, False, channels))
    low = -1.7580993408473766
    if p == 1:
        return input * 0.0
    shape = (*input.shape[:2], *(1,) * (input.ndim - 2)) if channels else tuple(input.shape)
    kept = ops.dropout(ones(*shape, dtype=input.dtype, device=input.device), p) > 0
    scale = 1 / math.sqrt((low * low * p + 1) * (1 - p))
    return where(kept, input, low) * scale - scale * low * p


def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """Sets elements to the SELU's lowest value with probability ``p``, and keeps mean and variance (Klambauer et al. 2017)."""
    return _alpha("alpha_dropout", input, p, training, inplace, False)


def feature_alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """Sets whole channels of (N, C, ..) to the SELU's lowest value with probability ``p``, and keeps mean and variance."""
    return _alpha("feature_alpha_dropout", input, p, training, inplace, True)


__all__ = ["alpha_dropout", "dropout", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout"]
