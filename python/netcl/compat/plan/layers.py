"""Layers, initial values and losses."""

from __future__ import annotations

import math
from typing import Any, Optional, Sequence, Tuple, Union

from ... import nn
from ... import ops as _ops
from ..._create import default_generator, ones, zeros
from ..._netcl import Tensor as _Tensor
from ...autograd import no_grad
from ...errors import ShapeError
from ...nn import Parameter
from .ops import max_pool2d

Sizes = Union[int, Sequence[int]]


def _pair(given: Sizes) -> Tuple[int, int]:
    both = (given, given) if isinstance(given, int) else tuple(given)
    if len(both) != 2:
        raise ShapeError(f"got {len(both)} sizes, expected one number or two")
    return both[0], both[1]


def _fans(tensor: _Tensor) -> Tuple[int, int]:
    """Returns the numbers of inputs and outputs of a weight (out, in, …)."""
    out, inner = tensor.shape[0], tensor.shape[1]
    field = math.prod(tensor.shape[2:])
    return inner * field, out * field


def _uniform(tensor: _Tensor, bound: float) -> _Tensor:
    with no_grad():
        tensor.copy_(default_generator.uniform(tensor.shape, -bound, bound, tensor.dtype, tensor.device))
    return tensor


def xavier_uniform(tensor: _Tensor) -> _Tensor:
    """Overwrites a weight with uniform values within √(6 / (in + out)) (Glorot and Bengio 2010)."""
    inner, out = _fans(tensor)
    return _uniform(tensor, math.sqrt(6 / (inner + out)))


def kaiming_uniform(tensor: _Tensor) -> _Tensor:
    """Overwrites a weight with uniform values within √(6 / in) (He et al. 2015)."""
    return _uniform(tensor, math.sqrt(6 / _fans(tensor)[0]))


class _Taped:
    """A layer whose call accepts a tape and ignores it: netcl's tape is implicit."""

    def __call__(self, x: Any, tape: Any = None) -> Any:
        return super().__call__(x)  # type: ignore[misc]


class Linear(_Taped, nn.Linear):
    """Computes ``x weightᵀ + bias`` with x (.., in)."""


class ReLU(_Taped, nn.ReLU):
    """``max(x, 0)``."""


class Sigmoid(_Taped, nn.Sigmoid):
    """``1 / (1 + e^-x)``."""


class Tanh(_Taped, nn.Tanh):
    """Hyperbolic tangent."""


class Dropout(_Taped, nn.Dropout):
    """Drops elements with probability ``p`` in training."""


class Flatten(_Taped, nn.Flatten):
    """Merges the axes after the first into one."""


class LeakyReLU(_Taped, nn.Module):
    """``x`` if x is positive, ``slope x`` otherwise."""

    def __init__(self, slope: float = 0.01) -> None:
        super().__init__()
        self.slope = slope

    def forward(self, x: _Tensor) -> _Tensor:
        """Applies the function elementwise."""
        return _ops.leaky_relu(x, self.slope)


class Conv2d(_Taped, nn.Module):
    """2D convolution: x (B, C, H, W) → (B, O, H', W'). Sizes are one number or one per axis. ``groups`` equal to the channels is a depthwise one."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes = 0,
        bias: bool = True,
        groups: int = 1,
        dilation: Sizes = 1,
    ) -> None:
        super().__init__()
        if in_channels % groups or out_channels % groups:
            raise ShapeError(f"Conv2d: {in_channels} and {out_channels} channels are not divisible by {groups} groups")
        self.in_channels, self.out_channels, self.kernel_size, self.stride, self.padding = in_channels, out_channels, kernel_size, stride, padding
        self.groups, self.dilation = groups, dilation
        window = _pair(kernel_size)
        bound = 1 / math.sqrt(in_channels // groups * math.prod(window))
        self.weight = Parameter(default_generator.uniform((out_channels, in_channels // groups, *window), -bound, bound))
        self.bias = Parameter(default_generator.uniform((out_channels,), -bound, bound)) if bias else None

    def forward(self, x: _Tensor) -> _Tensor:
        """Computes the convolution."""
        sizes = {"stride": _pair(self.stride), "padding": _pair(self.padding), "dilation": _pair(self.dilation)}
        return _ops.conv2d(x, self.weight, self.bias, groups=self.groups, **sizes)


class BatchNorm(_Taped, nn.Module):
    """Batch normalization of channels: x (B, C, ..) (Ioffe and Szegedy 2015). Training uses the statistics of the batch and updates the running ones by
    ``momentum``; evaluation uses the running statistics.
    """

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.weight, self.bias = Parameter(ones(num_features)), Parameter(zeros(num_features))
        self.register_buffer("running_mean", zeros(num_features))
        self.register_buffer("running_var", ones(num_features))

    def forward(self, x: _Tensor) -> _Tensor:
        """Returns the normalized channels."""
        if not self.training:
            return _ops.batch_norm_inference(x, self.weight, self.bias, self.running_mean, self.running_var, self.eps)
        y, mean, variance = _ops.batch_norm(x, self.weight, self.bias, self.eps)
        count = x.size // self.num_features
        with no_grad():
            keep, new = 1 - self.momentum, self.momentum
            self.running_mean.copy_(self.running_mean * keep + mean.detach() * new)
            # The running variance is that of the population, which the batch is a sample of.
            self.running_var.copy_(self.running_var * keep + variance.detach() * (new * count / max(count - 1, 1)))
        return y


class MaxPool2d(_Taped, nn.Module):
    """Maximum of each window."""

    def __init__(self, size: Sizes = 2, stride: Optional[Sizes] = None) -> None:
        super().__init__()
        self.size, self.stride = size, size if stride is None else stride

    def forward(self, x: _Tensor) -> _Tensor:
        """Returns (B, C, H', W')."""
        return max_pool2d(x, self.size, self.stride)


class AvgPool2d(_Taped, nn.Module):
    """Mean of each window."""

    def __init__(self, size: Sizes = 2, stride: Optional[Sizes] = None) -> None:
        super().__init__()
        self.size, self.stride = size, size if stride is None else stride

    def forward(self, x: _Tensor) -> _Tensor:
        """Returns (B, C, H', W')."""
        return _ops.avg_pool2d(x, size=_pair(self.size), stride=_pair(self.stride))


class Sequential(_Taped, nn.Sequential):
    """Layers in sequence."""


def mse_loss(pred: _Tensor, target: _Tensor, tape: Any = None) -> _Tensor:
    """Computes the mean of the squared differences."""
    return _ops.mse_loss(pred, target)


def cross_entropy(logits: _Tensor, targets: _Tensor, tape: Any = None) -> _Tensor:
    """Computes the mean cross entropy of logits (.., V) and class indices (..)."""
    return _ops.cross_entropy(logits, targets)


__all__ = [
    "AvgPool2d", "BatchNorm", "Conv2d", "Dropout", "Flatten", "LeakyReLU", "Linear", "MaxPool2d", "ReLU", "Sequential", "Sigmoid", "Tanh", "cross_entropy", "kaiming_uniform",
    "max_pool2d", "mse_loss", "xavier_uniform",
]  # fmt: skip
