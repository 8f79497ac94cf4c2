"""Functions with the names, arguments and meanings of ``torch.nn.functional``: ``import netcl.functional as F``.

All other operations of ``netcl.ops`` are here too. An argument of PyTorch that is missing here is an error.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence, Tuple, Union

from . import ops
from ._create import ones, zeros
from ._dtype import int32
from ._netcl import Tensor
from .autograd import no_grad
from .errors import ShapeError, UnsupportedError

# Made by `python -m netcl._stubs` from the registry of operations.
from .ops import abs as abs
from .ops import adaptive_avg_pool2d as adaptive_avg_pool2d
from .ops import adaptive_max_pool2d as adaptive_max_pool2d
from .ops import add as add
from .ops import add_relu as add_relu
from .ops import add_scalar as add_scalar
from .ops import argmax as argmax
from .ops import attention as attention
from .ops import attention_qkv as attention_qkv
from .ops import balance_loss as balance_loss
from .ops import batch_norm_inference as batch_norm_inference
from .ops import batch_statistics as batch_statistics
from .ops import bce_with_logits as bce_with_logits
from .ops import cache_append as cache_append
from .ops import cache_gather as cache_gather
from .ops import cast as cast
from .ops import cat as cat
from .ops import choose as choose
from .ops import chunk as chunk
from .ops import clamp as clamp
from .ops import contiguous as contiguous
from .ops import conv1d as conv1d
from .ops import conv2d as conv2d
from .ops import cos as cos
from .ops import cumsum as cumsum
from .ops import decode_attention as decode_attention
from .ops import decode_embedding as decode_embedding
from .ops import div as div
from .ops import div_scalar as div_scalar
from .ops import einsum as einsum
from .ops import eq as eq
from .ops import exp as exp
from .ops import expand as expand
from .ops import experts as experts
from .ops import feed_forward as feed_forward
from .ops import flip as flip
from .ops import fused_linear as fused_linear
from .ops import gated as gated
from .ops import gather as gather
from .ops import ge as ge
from .ops import gelu_tanh as gelu_tanh
from .ops import gt as gt
from .ops import hard_swish as hard_swish
from .ops import huber_loss as huber_loss
from .ops import index_select as index_select
from .ops import interpolate as interpolate
from .ops import kl_div as kl_div
from .ops import l1_loss as l1_loss
from .ops import le as le
from .ops import linear_add as linear_add
from .ops import linear_cross_entropy as linear_cross_entropy
from .ops import linear_residual as linear_residual
from .ops import log as log
from .ops import logsumexp as logsumexp
from .ops import lt as lt
from .ops import masked_fill as masked_fill
from .ops import matmul as matmul
from .ops import max as max
from .ops import maximum as maximum
from .ops import mean as mean
from .ops import minimum as minimum
from .ops import mse_loss as mse_loss
from .ops import mul as mul
from .ops import mul_scalar as mul_scalar
from .ops import multinomial as multinomial
from .ops import neg as neg
from .ops import permute as permute
from .ops import pow as pow
from .ops import pow_scalar as pow_scalar
from .ops import rdiv_scalar as rdiv_scalar
from .ops import reshape as reshape
from .ops import residual_layer_norm as residual_layer_norm
from .ops import residual_rms_norm as residual_rms_norm
from .ops import roll as roll
from .ops import rope as rope
from .ops import route as route
from .ops import rsqrt as rsqrt
from .ops import rsub_scalar as rsub_scalar
from .ops import scatter as scatter
from .ops import scatter_add as scatter_add
from .ops import sigmoid as sigmoid
from .ops import sin as sin
from .ops import slice as slice
from .ops import softplus as softplus
from .ops import sort as sort
from .ops import split as split
from .ops import sqrt as sqrt
from .ops import square as square
from .ops import squeeze as squeeze
from .ops import stack as stack
from .ops import sub as sub
from .ops import sub_scalar as sub_scalar
from .ops import sum as sum
from .ops import sum_f32 as sum_f32
from .ops import sum_to as sum_to
from .ops import tanh as tanh
from .ops import topk as topk
from .ops import transpose as transpose
from .ops import tril as tril
from .ops import triu as triu
from .ops import unsqueeze as unsqueeze
from .ops import where_cond as where_cond

__all__ = ['neg', 'exp', 'log', 'sqrt', 'rsqrt', 'tanh', 'sigmoid', 'relu', 'silu', 'gelu', 'gelu_tanh', 'abs', 'square', 'sin', 'cos', 'add_scalar', 'mul_scalar', 'rsub_scalar', 'rdiv_scalar', 'pow_scalar', 'leaky_relu', 'elu', 'softplus', 'hard_swish', 'mish', 'clamp', 'sub_scalar', 'div_scalar', 'add', 'sub', 'mul', 'div', 'maximum', 'minimum', 'pow', 'reshape', 'contiguous', 'unsqueeze', 'squeeze', 'permute', 'transpose', 'slice', 'expand', 'cast', 'sum', 'sum_f32', 'mean', 'sum_to', 'max', 'layer_norm', 'rms_norm', 'residual_layer_norm', 'residual_rms_norm', 'embedding', 'cross_entropy', 'linear_cross_entropy', 'softmax', 'log_softmax', 'logsumexp', 'where_cond', 'eq', 'lt', 'le', 'gt', 'ge', 'tril', 'masked_fill', 'cat', 'stack', 'split', 'chunk', 'argmax', 'topk', 'sort', 'cumsum', 'gather', 'scatter', 'scatter_add', 'multinomial', 'choose', 'dropout', 'attention', 'attention_qkv', 'decode_attention', 'decode_embedding', 'cache_append', 'cache_gather', 'rope', 'gated', 'route', 'balance_loss', 'experts', 'matmul', 'linear', 'conv2d', 'conv1d', 'conv_transpose2d', 'max_pool2d', 'adaptive_max_pool2d', 'avg_pool2d', 'adaptive_avg_pool2d', 'batch_norm', 'batch_norm_inference', 'group_norm', 'instance_norm', 'batch_statistics', 'add_relu', 'linear_add', 'linear_residual', 'feed_forward', 'fused_linear', 'index_select', 'flip', 'roll', 'pad', 'one_hot', 'triu', 'interpolate', 'mse_loss', 'l1_loss', 'huber_loss', 'bce_with_logits', 'kl_div', 'nll_loss', 'einsum']  # fmt: skip
# End of what is made.

Sizes = Union[int, Sequence[int]]
EPSILONS = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""Distance from 1 to the next number of each dtype, the default ``eps`` of ``rms_norm``."""


def _pair(sizes: Any) -> Tuple[int, ...]:
    return (sizes,) if isinstance(sizes, int) else tuple(sizes)


def linear(input: Tensor, weight: Tensor, bias: Optional[Tensor] = None) -> Tensor:
    """Computes ``input weightᵀ + bias``: input (.., in), weight (out, in) or (in), bias (out)."""
    if weight.ndim == 1:
        made = input @ weight
        return made if bias is None else made + bias
    if weight.ndim != 2:
        raise ShapeError(f"linear: weight has shape {tuple(weight.shape)}, expected (out, in)")
    one = input.ndim == 1
    made = ops.linear(input.unsqueeze(0) if one else input, weight.T, bias)
    return made.squeeze(0) if one else made


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Sets elements to 0 with probability ``p`` and scales the others by ``1 / (1 - p)``, if ``training``."""
    _no_inplace("dropout", inplace)
    if not 0 <= p <= 1:
        raise ValueError(f"dropout: p is {p}, expected a probability from 0 to 1")
    if not training or p == 0:
        return input
    return input * 0.0 if p == 1 else ops.dropout(input, p)


def _no_inplace(name: str, inplace: bool) -> None:
    if inplace:
        raise UnsupportedError(f"{name}: inplace=True is not supported; write x = F.{name}(x)")


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """Computes ``max(x, 0)``."""
    _no_inplace("relu", inplace)
    return ops.relu(input)


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """Computes ``x sigmoid(x)``."""
    _no_inplace("silu", inplace)
    return ops.silu(input)


def mish(input: Tensor, inplace: bool = False) -> Tensor:
    """Computes ``x tanh(softplus(x))``."""
    _no_inplace("mish", inplace)
    return ops.mish(input)


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """Computes ``x``, or ``negative_slope x`` below 0."""
    _no_inplace("leaky_relu", inplace)
    return ops.leaky_relu(input, negative_slope)


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """Computes ``x``, or ``alpha (e^x - 1)`` below 0."""
    _no_inplace("elu", inplace)
    return ops.elu(input, alpha)


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """Computes ``x Φ(x)``, or its tanh approximation."""
    if approximate not in ("none", "tanh"):
        raise ValueError(f"gelu: approximate is {approximate!r}, expected 'none' or 'tanh'")
    return ops.gelu_tanh(input) if approximate == "tanh" else ops.gelu(input)


def _along(name: str, x: Tensor, dim: Optional[int], dtype: Any) -> Tuple[Tensor, int]:
    if dim is None:
        raise TypeError(f"{name}: dim is missing; write F.{name}(x, dim=-1) for the last axis")
    return (x if dtype is None else x._to(None, dtype)), dim


def softmax(input: Tensor, dim: Optional[int] = None, *, dtype: Any = None, axis: Optional[int] = None) -> Tensor:
    """Computes ``exp(x) / sum(exp(x))`` over an axis, which must be given."""
    return ops.softmax(*_along("softmax", input, axis if dim is None else dim, dtype))


def log_softmax(input: Tensor, dim: Optional[int] = None, *, dtype: Any = None, axis: Optional[int] = None) -> Tensor:
    """Computes ``x - log(sum(exp(x)))`` over an axis, which must be given."""
    return ops.log_softmax(*_along("log_softmax", input, axis if dim is None else dim, dtype))


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
    """Divides the last axes by their root mean square. The default ``eps`` is the dtype's epsilon."""
    x, n = _rows("rms_norm", input, normalized_shape)
    return ops.rms_norm(x, _weight(weight, n, 1, x), EPSILONS[x.dtype.name] if eps is None else eps).reshape(input.shape)


def group_norm(input: Tensor, num_groups: int, weight: Optional[Tensor] = None, bias: Optional[Tensor] = None, eps: float = 1e-5) -> Tensor:
    """Normalizes groups of channels: input (N, C, ..), weight and bias (C)."""
    n = input.shape[1]
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
    """Normalizes each channel of each image of input (N, C, ..). Running statistics are not supported."""
    if running_mean is not None or running_var is not None or not use_input_stats:
        raise UnsupportedError("instance_norm: running statistics are not supported; pass None and use_input_stats=True")
    n = input.shape[1]
    return ops.instance_norm(input, _weight(weight, n, 1, input), _weight(bias, n, 0, input), eps)


def embedding(input: Tensor, weight: Tensor) -> Tensor:
    """Returns rows of ``weight`` (V, C) by the indices in ``input``."""
    return ops.embedding(weight, input)


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """Returns int32 rows with 1 at each index and 0 elsewhere. By default, there are as many classes as the largest index needs."""
    classes = int(tensor.max().item()) + 1 if num_classes == -1 else num_classes
    return ops.one_hot(tensor, classes)._to(None, int32)


def _classes_last(logits: Tensor) -> Tensor:
    """Moves the classes (N, C, ..) to the last axis."""
    return logits if logits.ndim < 3 else logits.permute(0, *range(2, logits.ndim), 1)


def cross_entropy(
    input: Tensor, target: Tensor, weight: Optional[Tensor] = None, *, ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0
) -> Tensor:
    """Computes the cross entropy of logits (C), (N, C) or (N, C, ..) and class indices, or of probabilities of the logits' shape."""
    if weight is not None:
        raise UnsupportedError("cross_entropy: weight is not supported; multiply the losses of reduction='none' by weight[target]")
    if target.dtype.is_floating_point:
        return _soft_cross_entropy(input, target, reduction, label_smoothing)
    if tuple(target.shape) != tuple(input.shape[:1] if input.ndim > 1 else ()) + tuple(input.shape[2:]):
        raise ShapeError(f"cross_entropy: target has shape {tuple(target.shape)}, expected the shape of the logits {tuple(input.shape)} without axis 1, the classes")
    made = ops.cross_entropy(_classes_last(input), target, ignore_index, label_smoothing, reduction)  # type: ignore[arg-type]
    return made


def _soft_cross_entropy(logits: Tensor, target: Tensor, reduction: str, smoothing: float) -> Tensor:
    if tuple(target.shape) != tuple(logits.shape):
        raise ShapeError(f"cross_entropy: probabilities have shape {tuple(target.shape)}, expected that of the logits, {tuple(logits.shape)}")
    axis = 1 if logits.ndim > 1 else 0
    target = target * (1 - smoothing) + smoothing / logits.shape[axis]
    losses = -(ops.log_softmax(logits, axis) * target).sum(axis)
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"cross_entropy: reduction is {reduction!r}, expected mean, sum or none")
    return losses if reduction == "none" else losses.sum() if reduction == "sum" else losses.mean()


def nll_loss(input: Tensor, target: Tensor, weight: Optional[Tensor] = None, *, ignore_index: int = -100, reduction: str = "mean") -> Tensor:
    """Computes the negative log likelihood of log probabilities (N, C) or (N, C, ..) and class indices."""
    if weight is not None:
        raise UnsupportedError("nll_loss: weight is not supported; multiply the losses of reduction='none' by weight[target]")
    return ops.nll_loss(_classes_last(input), target, reduction, ignore_index)  # type: ignore[arg-type]


def _images(x: Tensor) -> Tuple[Tensor, bool]:
    return (x.unsqueeze(0), True) if x.ndim == 3 else (x, False)


def avg_pool2d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Optional[Sizes] = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Optional[int] = None,
) -> Tensor:
    """Computes means of windows: input (N, C, H, W) or (C, H, W)."""
    if ceil_mode or divisor_override is not None:
        raise UnsupportedError("avg_pool2d: ceil_mode and divisor_override are not supported; pad the input with F.pad, or scale the result")
    x, one = _images(input)
    made = ops.avg_pool2d(x, _pair(kernel_size), () if stride is None else _pair(stride), _pair(padding), count_include_pad)
    return made.squeeze(0) if one else made


def max_pool2d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Optional[Sizes] = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor:
    """Computes maxima of windows: input (N, C, H, W) or (C, H, W)."""
    if ceil_mode or return_indices:
        raise UnsupportedError("max_pool2d: ceil_mode and return_indices are not supported; pad the input with F.pad")
    x, one = _images(input)
    made = ops.max_pool2d(x, _pair(kernel_size), () if stride is None else _pair(stride), _pair(padding), _pair(dilation))
    return made.squeeze(0) if one else made


def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Optional[Tensor] = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor:
    """Computes the transposed convolution of images (N, G C, H, W) with weight (G C, O, I, J)."""
    return ops.conv_transpose2d(input, weight, bias, _pair(stride), _pair(padding), _pair(dilation), groups, _pair(output_padding))


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: Optional[float] = None) -> Tensor:
    """Pads the last axes: two amounts per axis, starting with the last axis."""
    return ops.pad(input, tuple(pad), 0.0 if value is None else value, mode)  # type: ignore[arg-type]
