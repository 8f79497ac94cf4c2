"""Normalization layers."""

from __future__ import annotations

from typing import Any, Optional, Sequence, Tuple, Union

from .. import functional as F
from .. import ops
from .._create import full, ones, zeros
from .._dtype import int32
from .._netcl import Tensor
from .._state import state
from ..autograd import no_grad
from ..errors import ShapeError, UnsupportedError
from ..functional._norm import EPSILON
from .module import Module
from .parameter import Parameter

Shape = Union[int, Sequence[int]]


def _shape(given: Shape) -> Tuple[int, ...]:
    return (given,) if isinstance(given, int) else tuple(given)


class _Affine(Module):
    """A layer with a trained factor and summand for each channel."""

    def _affine(self, shape: Tuple[int, ...], weight: bool, bias: bool, device: Any, dtype: Any) -> None:
        self.register_parameter("weight", Parameter(ones(*shape, dtype=dtype, device=device)) if weight else None)
        self.register_parameter("bias", Parameter(zeros(*shape, dtype=dtype, device=device)) if bias else None)

    def reset_parameters(self) -> None:
        """Sets factors to 1 and summands to 0."""
        with no_grad():
            if self.weight is not None:
                self.weight.copy_(1.0)
            if self.__dict__["_parameters"].get("bias") is not None:
                self.bias.copy_(0.0)


class LayerNorm(_Affine):
    """Layer normalization over the last axes, of sizes ``normalized_shape``."""

    def __init__(
        self, normalized_shape: Shape, eps: float = 1e-5, elementwise_affine: bool = True, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        self.normalized_shape, self.eps, self.elementwise_affine = _shape(normalized_shape), eps, elementwise_affine
        self._affine(self.normalized_shape, elementwise_affine, elementwise_affine and bias, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        """Returns the normalized elements."""
        if len(self.normalized_shape) == 1 and self.weight is not None and self.bias is not None and input.shape[-1:] == self.normalized_shape:
            return ops.layer_norm(input, self.weight, self.bias, self.eps)
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """Returns the arguments."""
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}, bias={self.bias is not None}"


class RMSNorm(_Affine):
    """Root-mean-square normalization over the last axes, of sizes ``normalized_shape``. The default ``eps`` is the epsilon of float32."""

    def __init__(
        self, normalized_shape: Shape, eps: Optional[float] = None, elementwise_affine: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        self.normalized_shape, self.eps, self.elementwise_affine = _shape(normalized_shape), eps, elementwise_affine
        self.register_parameter("weight", Parameter(ones(*self.normalized_shape, dtype=dtype, device=device)) if elementwise_affine else None)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the normalized elements."""
        if len(self.normalized_shape) == 1 and self.weight is not None and x.shape[-1:] == self.normalized_shape:
            return ops.rms_norm(x, self.weight, EPSILON if self.eps is None else self.eps)
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        """Returns the arguments."""
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class GroupNorm(_Affine):
    """Normalization of ``num_groups`` groups of the channels of each image: (N, C, ..)."""

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, device: Any = None, dtype: Any = None, *, bias: bool = True
    ) -> None:
        super().__init__()
        if num_groups < 1 or num_channels % num_groups:
            raise ValueError(f"GroupNorm: {num_channels} channels are not divisible by {num_groups} groups")
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        self._affine((num_channels,), affine, affine and bias, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        """Returns the normalized channels."""
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """Returns the arguments."""
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, bias={self.bias is not None}"


class _Running(_Affine):
    """A layer with running statistics. States without ``num_batches_tracked`` are accepted, as in PyTorch."""

    _ranks: Tuple[int, ...] = ()
    _optional_names = ("num_batches_tracked",)

    def _begin(
        self, features: int, eps: float, momentum: Optional[float], affine: bool, tracking: bool, device: Any, dtype: Any, bias: bool
    ) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum, self.affine, self.track_running_stats = features, eps, momentum, affine, tracking
        self._affine((features,), affine, affine and bias, device, dtype)
        self.register_buffer("running_mean", zeros(features, dtype=dtype, device=device) if tracking else None)
        self.register_buffer("running_var", ones(features, dtype=dtype, device=device) if tracking else None)
        self.register_buffer("num_batches_tracked", full((), 0, dtype=int32, device=device) if tracking else None)

    def reset_running_stats(self) -> None:
        """Sets the running means to 0, the variances to 1 and the count to 0."""
        if self.track_running_stats:
            with no_grad():
                self.running_mean.copy_(0.0)
                self.running_var.copy_(1.0)
                self.num_batches_tracked.copy_(0)

    def reset_parameters(self) -> None:
        """Restores the initial values."""
        self.reset_running_stats()
        super().reset_parameters()

    def _check(self, x: Tensor) -> None:
        if x.ndim not in self._ranks:
            expected = " or ".join(str(n) for n in self._ranks)
            raise ShapeError(f"{type(self).__name__}: the input has shape {tuple(x.shape)}, expected {expected} axes")

    def extra_repr(self) -> str:
        """Returns the arguments."""
        text = f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, bias={self.bias is not None}"
        return f"{text}, track_running_stats={self.track_running_stats}"


class _BatchNorm(_Running):
    """Batch normalization (Ioffe and Szegedy 2015). Training uses the statistics of the batch and updates the running ones by ``momentum``, or with
    ``momentum=None`` averages all batches. Evaluation uses the running statistics.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: Optional[float] = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        self._begin(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias)

    def _factor(self) -> float:
        """Counts the batch and returns the share of its statistics."""
        if not self.training or self.num_batches_tracked is None:
            return 0.0 if self.momentum is None else self.momentum
        with no_grad():
            self.num_batches_tracked.copy_(self.num_batches_tracked + 1)
        if self.momentum is not None:
            return self.momentum
        if state.capturing:
            raise UnsupportedError(f"{type(self).__name__}: momentum=None reads the number of batches on the host; a captured step needs a momentum")
        return 1.0 / float(self.num_batches_tracked.item())

    def forward(self, input: Tensor) -> Tensor:
        """Returns the normalized channels."""
        self._check(input)
        factor = self._factor()
        tracked = not self.training or self.track_running_stats
        mean, variance = (self.running_mean, self.running_var) if tracked else (None, None)
        own = self.training or self.running_mean is None and self.running_var is None
        return F.batch_norm(input, mean, variance, self.weight, self.bias, own, factor, self.eps)


class BatchNorm1d(_BatchNorm):
    """Batch normalization of (N, C) or (N, C, T)."""

    _ranks = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Batch normalization of images (N, C, H, W)."""

    _ranks = (4,)


class BatchNorm3d(_BatchNorm):
    """Batch normalization of volumes (N, C, D, H, W)."""

    _ranks = (5,)


class _InstanceNorm(_Running):
    """Normalization of each channel of each image."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        self._begin(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias)

    def forward(self, input: Tensor) -> Tensor:
        """Returns the normalized channels."""
        self._check(input)
        alone = input.ndim == self._ranks[0]
        x = input.unsqueeze(0) if alone else input
        if self.affine and x.shape[1] != self.num_features:
            raise ShapeError(f"{type(self).__name__}: the input has {x.shape[1]} channels, expected {self.num_features}")
        own = self.training or not self.track_running_stats
        factor = self.momentum if self.momentum is not None else 0.0
        made = F.instance_norm(x, self.running_mean, self.running_var, self.weight, self.bias, own, factor, self.eps)
        return made.squeeze(0) if alone else made


class InstanceNorm1d(_InstanceNorm):
    """Instance normalization of (N, C, T) or (C, T)."""

    _ranks = (2, 3)


class InstanceNorm2d(_InstanceNorm):
    """Instance normalization of images (N, C, H, W) or (C, H, W)."""

    _ranks = (3, 4)


class InstanceNorm3d(_InstanceNorm):
    """Instance normalization of volumes (N, C, D, H, W) or (C, D, H, W)."""

    _ranks = (4, 5)


class LocalResponseNorm(Module):
    """Division of (N, C, ..) by a power of the mean square of ``size`` neighboring channels."""

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, input: Tensor) -> Tensor:
        """Returns the normalized elements."""
        return F.local_response_norm(input, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        """Returns the arguments."""
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"


__all__ = [
    "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "GroupNorm", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d", "LayerNorm", "LocalResponseNorm",
    "RMSNorm",
]  # fmt: skip
