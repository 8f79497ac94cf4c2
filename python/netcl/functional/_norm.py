"""Normalization and distances."""

from __future__ import annotations

import math
from typing import Any, Optional, Sequence, Tuple, Union

from .. import ops
from .._create import ones, zeros
from .._host import from_lists
from .._netcl import Tensor
from .._torch import cosine_similarity, vector_norm
from ..autograd import no_grad
from ..errors import ShapeError
from ..functions import where
from ._common import Sizes

EPSILON = 2.0**-23
"""Distance from 1 to the next float32, the default ``eps`` of ``rms_norm`` for every dtype, since sums are float32."""

Axes = Union[None, int, Sequence[int]]


def _pair(sizes: Any) -> Tuple[int, ...]:
    return (sizes,) if isinstance(sizes, int) else tuple(sizes)


def _rows(name: str, x: Tensor, normalized_shape: Sizes) -> Tuple[Tensor, int]:
    """Merges the last axes that are normalized together."""
    sizes = _pair(normalized_shape)
    if not sizes or tuple(x.shape[-len(sizes) :]) != sizes:
        raise ShapeError(f"{name}: normalized_shape is {sizes}, but the tensor has shape {tuple(x.shape)}")
    n = 1
    for size in sizes:
        n *= size
    return x.reshape(*x.shape[: x.ndim - len(sizes)], n), n


def _weight(given: Optional[Tensor], n: int, value: float, x: Tensor) -> Tensor:
    if given is not None:
        return given.reshape(n)
    return (ones if value else zeros)(n, dtype=x.dtype, device=x.device)


def layer_norm(input: Tensor, normalized_shape: Sizes, weight: Optional[Tensor] = None, bias: Optional[Tensor] = None, eps: float = 1e-5) -> Tensor:
    """Normalizes the last axes, of sizes ``normalized_shape``, to mean 0 and variance 1."""
    x, n = _rows("layer_norm", input, normalized_shape)
    return ops.layer_norm(x, _weight(weight, n, 1, x), _weight(bias, n, 0, x), eps).reshape(input.shape)


def rms_norm(input: Tensor, normalized_shape: Sizes, weight: Optional[Tensor] = None, eps: Optional[float] = None) -> Tensor:
    """Divides the last axes by their root mean square. The default ``eps`` is the epsilon of float32."""
    x, n = _rows("rms_norm", input, normalized_shape)
    return ops.rms_norm(x, _weight(weight, n, 1, x), EPSILON if eps is None else eps).reshape(input.shape)


def group_norm(input: Tensor, num_groups: int, weight: Optional[Tensor] = None, bias: Optional[Tensor] = None, eps: float = 1e-5) -> Tensor:
    """Normalizes groups of channels: input (N, C, ..), weight and bias (C)."""
    if input.ndim < 2 or num_groups < 1 or input.shape[1] % num_groups:
        raise ShapeError(f"group_norm: the input has shape {tuple(input.shape)}, expected (N, C, ..) with C divisible by {num_groups}")
    n = input.shape[1]
    if input.size == num_groups:
        raise ValueError(f"group_norm: expected more than 1 element per group, got shape {tuple(input.shape)} and {num_groups} groups")
    return ops.group_norm(input, _weight(weight, n, 1, input), _weight(bias, n, 0, input), num_groups, eps)


def batch_norm(
    input: Tensor,
    running_mean: Optional[Tensor],
    running_var: Optional[Tensor],
    weight: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalizes each channel of input (N, C, ..). In training, it uses the statistics of the batch and updates the running ones."""
    n = input.shape[1]
    gamma, beta = _weight(weight, n, 1, input), _weight(bias, n, 0, input)
    if not training:
        if running_mean is None or running_var is None:
            raise ValueError("batch_norm: running_mean and running_var are missing; they are required without training=True")
        return ops.batch_norm_inference(input, gamma, beta, running_mean.float(), running_var.float(), eps)
    count = input.size // n if n else 0
    if count <= 1:
        raise ValueError(f"batch_norm: expected more than 1 value per channel when training, got shape {tuple(input.shape)}")
    made, mean, variance = ops.batch_norm(input, gamma, beta, eps)
    with no_grad():
        for running, new in ((running_mean, mean), (running_var, variance * (count / (count - 1)))):
            if running is not None:
                running.copy_(running * (1 - momentum) + new.detach()._to(None, running.dtype) * momentum)
    return made


def instance_norm(
    input: Tensor,
    running_mean: Optional[Tensor] = None,
    running_var: Optional[Tensor] = None,
    weight: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalizes each channel of each image of input (N, C, ..). It also updates the running statistics, or uses only these without
    ``use_input_stats``.
    """
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    images, n = input.shape[0], input.shape[1]
    count = math.prod(input.shape[2:])
    if count <= 1:
        raise ValueError(f"instance_norm: expected more than 1 element per channel when training, got shape {tuple(input.shape)}")
    if running_mean is None and running_var is None:
        return ops.instance_norm(input, _weight(weight, n, 1, input), _weight(bias, n, 0, input), eps)
    means, variances = (None if r is None else ops.expand(r.detach().unsqueeze(0), (images, n)).reshape(images * n).clone() for r in (running_mean, running_var))
    made = batch_norm(input.reshape(1, images * n, *input.shape[2:]), means, variances, None, None, True, momentum, eps).reshape(input.shape)
    with no_grad():
        for running, new in ((running_mean, means), (running_var, variances)):
            if running is not None and new is not None:
                running.copy_(new.reshape(images, n).mean(0))
    shape = (n, *(1,) * (input.ndim - 2))
    made = made if weight is None else made * weight.reshape(shape)
    return made if bias is None else made + bias.reshape(shape)


def local_response_norm(input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Tensor:
    """Divides input (N, C, ..) by a power of the mean square of ``size`` neighboring channels (Krizhevsky et al. 2012)."""
    if input.ndim < 3:
        raise ShapeError(f"local_response_norm: the input has shape {tuple(input.shape)}, expected at least 3 axes")
    n, channels = input.shape[:2]
    squares = ops.pad(ops.square(input).reshape(n, 1, channels, -1), (0, 0, size // 2, (size - 1) // 2), 0.0)
    means = ops.avg_pool2d(squares, (size, 1), (1, 1)).reshape(input.shape)
    return input / (means * alpha + k) ** beta


def at_least(x: Tensor, least: float) -> Tensor:
    """Computes ``max(x, least)``, with the gradient of x where both are equal."""
    return where(x < least, least, x)


def normalize(input: Tensor, p: float = 2.0, dim: Axes = 1, eps: float = 1e-12, out: Optional[Tensor] = None) -> Tensor:
    """Divides by the p-norm over an axis, which counts as at least ``eps``."""
    made = input / at_least(vector_norm(input, p, dim, True), eps)
    return made if out is None else out.copy_(made)


def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    """Computes the p-norm of ``x1 - x2 + eps`` over the last axis."""
    return vector_norm(x1 - x2 + eps, p, -1, keepdim)


def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """Computes the p-norms of the differences of all pairs of rows (N, C), in the order (0, 1), (0, 2), …, (N - 2, N - 1)."""
    if input.ndim != 2:
        raise ShapeError(f"pdist: the input has shape {tuple(input.shape)}, expected (N, C)")
    n = input.shape[0]
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n)]
    if not pairs:
        return ops.slice(input.reshape(-1), 0, 0, 0)
    first, second = (ops.index_select(input, from_lists([pair[k] for pair in pairs], "int32", input.device), 0) for k in (0, 1))
    return vector_norm(first - second, p, -1, False)


__all__ = [
    "batch_norm", "cosine_similarity", "group_norm", "instance_norm", "layer_norm", "local_response_norm", "normalize", "pairwise_distance", "pdist", "rms_norm",
]  # fmt: skip
