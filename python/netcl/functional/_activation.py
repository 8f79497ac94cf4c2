"""Activation functions."""

from __future__ import annotations

from typing import Any, Callable, Optional

from .. import _torch, ops
from .._create import default_generator
from .._methods import place
from .._netcl import Tensor
from .._netcl import full as _full
from .._torch import sigmoid, tanh
from ..errors import ShapeError
from ..functions import where
from ._common import in_place

SELU_ALPHA = 1.6732632423543772848170429916717
SELU_SCALE = 1.0507009873554804934193349852946


def _made(name: str, x: Tensor, inplace: bool, compute: Callable[[Tensor], Tensor]) -> Tensor:
    return in_place(name, x, compute) if inplace else compute(x)


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """Computes ``max(x, 0)``, also of integers."""
    return _made("relu", input, inplace, _torch.relu)


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """Computes ``x sigmoid(x)``."""
    return _made("silu", input, inplace, ops.silu)


def mish(input: Tensor, inplace: bool = False) -> Tensor:
    """Computes ``x tanh(softplus(x))``."""
    return _made("mish", input, inplace, ops.mish)


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """Computes ``x``, or ``negative_slope x`` below 0."""
    return _made("leaky_relu", input, inplace, lambda x: ops.leaky_relu(x, negative_slope))


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """Computes ``x``, or ``alpha (e^x - 1)`` below 0."""
    return _made("elu", input, inplace, lambda x: ops.elu(x, alpha))


def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """Computes the ELU with the factors of self-normalizing networks (Klambauer et al. 2017)."""
    return _made("selu", input, inplace, lambda x: ops.elu(x, SELU_ALPHA) * SELU_SCALE)


def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """Computes ``x``, or ``alpha (e^(x / alpha) - 1)`` below 0."""
    if alpha == 0:
        raise ValueError("celu: alpha is 0, expected another number")

    def compute(x: Tensor) -> Tensor:
        if alpha > 0:
            return ops.elu(x / alpha, 1.0) * alpha
        return where(x > 0, x, (ops.exp(where(x > 0, 0.0, x) / alpha) - 1) * alpha)

    return _made("celu", input, inplace, compute)


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """Computes ``x Φ(x)``, or its tanh approximation."""
    if approximate not in ("none", "tanh"):
        raise ValueError(f"gelu: approximate is {approximate!r}, expected 'none' or 'tanh'")
    return ops.gelu_tanh(input) if approximate == "tanh" else ops.gelu(input)


def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    """Computes ``min(max(x, min_val), max_val)``."""
    if min_val > max_val:
        raise ValueError(f"hardtanh: min_val {min_val} is greater than max_val {max_val}")
    return _made("hardtanh", input, inplace, lambda x: ops.clamp(x, min_val, max_val))


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """Computes ``min(max(x, 0), 6)``."""
    return _made("relu6", input, inplace, lambda x: ops.clamp(x, 0.0, 6.0))


def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """Computes ``min(max(x + 3, 0), 6) / 6``."""
    return _made("hardsigmoid", input, inplace, lambda x: ops.clamp(x + 3.0, 0.0, 6.0) / 6.0)


def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    """Computes ``x min(max(x + 3, 0), 6) / 6``."""
    return _made("hardswish", input, inplace, ops.hard_swish)


def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """Computes ``x``, or 0 from ``-lambd`` to ``lambd``."""
    return where(ops.abs(input) <= lambd, 0.0, input)


def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """Moves x by ``lambd`` towards 0. Values from ``-lambd`` to ``lambd`` become 0."""
    if lambd < 0:
        raise ValueError(f"softshrink: lambd is {lambd}, expected at least 0")
    return where(ops.abs(input) <= lambd, 0.0, where(input > 0, input - lambd, input + lambd))


def tanhshrink(input: Tensor) -> Tensor:
    """Computes ``x - tanh(x)``."""
    return input - ops.tanh(input)


def softsign(input: Tensor) -> Tensor:
    """Computes ``x / (1 + |x|)``."""
    return input / (ops.abs(input) + 1.0)


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """Computes ``log(1 + e^(beta x)) / beta``, or ``x`` where ``beta x`` is above ``threshold``."""
    scaled = input if beta == 1 else input * beta
    above = scaled > threshold
    made = ops.softplus(where(above, 0.0, scaled))
    return where(above, input, made if beta == 1 else made / beta)


def logsigmoid(input: Tensor) -> Tensor:
    """Computes ``log(sigmoid(x))``."""
    return -ops.softplus(-input)


def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """Computes ``x`` above the threshold, and ``value`` elsewhere."""
    return _made("threshold", input, inplace, lambda x: where(x <= threshold, value, x))


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """Computes ``a sigmoid(b)`` with the halves a and b of an axis."""
    axis = place("glu", dim, input.ndim)
    if input.ndim == 0 or input.shape[axis] % 2:
        raise ShapeError(f"glu: axis {dim} of shape {tuple(input.shape)} cannot be halved; expected an even size")
    a, b = ops.chunk(input, 2, axis)
    return a * ops.sigmoid(b)


def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """Computes ``x``, or ``weight x`` below 0. The weight has one element, or one for each channel of axis 1."""
    if weight.size != 1:
        channels = input.shape[1] if input.ndim > 1 else 1
        if weight.ndim != 1 or weight.size != channels:
            raise ShapeError(f"prelu: weight has shape {tuple(weight.shape)}, expected 1 or {channels} elements, the channels of {tuple(input.shape)}")
        weight = weight.reshape(channels, *(1,) * (input.ndim - 2))
    elif input.ndim == 0:
        weight = weight.reshape(())
    return where(input > 0, input, weight * input)


def rrelu(input: Tensor, lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False, inplace: bool = False) -> Tensor:
    """Computes ``x``, or ``a x`` below 0. In training, ``a`` is drawn between ``lower`` and ``upper`` for each element. In evaluation, it is their mean."""
    if lower > upper:
        raise ValueError(f"rrelu: lower {lower} is greater than upper {upper}")
    if not training:
        return leaky_relu(input, (lower + upper) / 2, inplace)
    slope = _drawn(input, lower, upper)
    return _made("rrelu", input, inplace, lambda x: where(x > 0, x, x * slope))


def _drawn(like: Tensor, low: float, high: float) -> Tensor:
    return default_generator.uniform(tuple(like.shape), low, high, like.dtype, like.device)


def softmax(input: Tensor, dim: Optional[int] = None, _stacklevel: int = 3, dtype: Any = None, *, axis: Optional[int] = None) -> Tensor:
    """Computes ``exp(x) / sum(exp(x))`` over an axis, which must be given."""
    return _torch.softmax(input, dim, dtype, axis=axis)


def log_softmax(input: Tensor, dim: Optional[int] = None, _stacklevel: int = 3, dtype: Any = None, *, axis: Optional[int] = None) -> Tensor:
    """Computes ``x - log(sum(exp(x)))`` over an axis, which must be given."""
    return _torch.log_softmax(input, dim, dtype, axis=axis)


def softmin(input: Tensor, dim: Optional[int] = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    """Computes the softmax of ``-x`` over an axis, which must be given."""
    return _torch.softmax(-input, dim, dtype)


def gumbel_softmax(logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1) -> Tensor:
    """Draws from a relaxed categorical distribution (Jang et al. 2017). With ``hard``, values are one-hot and gradients those of the soft ones."""
    axis = place("gumbel_softmax", dim, logits.ndim)
    drawn = _drawn(logits.float(), 2.0**-25, 1.0)
    noise = -ops.log(-ops.log(ops.clamp(drawn, 2.0**-25, 1 - 2.0**-24)))
    soft = ops.softmax((logits + noise._to(None, logits.dtype)) / tau, axis)
    if not hard:
        return soft
    chosen = soft.detach().argmax(axis, True)
    ones = _full(chosen.shape, 1.0, soft.dtype, soft.device)
    one_hot = ops.scatter(_full(soft.shape, 0.0, soft.dtype, soft.device), chosen, ones, axis)
    return one_hot - soft.detach() + soft


def relu_(input: Tensor) -> Tensor:
    """Computes ``relu`` in place."""
    return relu(input, True)


def elu_(input: Tensor, alpha: float = 1.0) -> Tensor:
    """Computes ``elu`` in place."""
    return elu(input, alpha, True)


def selu_(input: Tensor) -> Tensor:
    """Computes ``selu`` in place."""
    return selu(input, True)


def celu_(input: Tensor, alpha: float = 1.0) -> Tensor:
    """Computes ``celu`` in place."""
    return celu(input, alpha, True)


def leaky_relu_(input: Tensor, negative_slope: float = 0.01) -> Tensor:
    """Computes ``leaky_relu`` in place."""
    return leaky_relu(input, negative_slope, True)


def hardtanh_(input: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """Computes ``hardtanh`` in place."""
    return hardtanh(input, min_val, max_val, True)


def threshold_(input: Tensor, threshold: float, value: float) -> Tensor:
    """Computes ``threshold`` in place."""
    return in_place("threshold_", input, lambda x: where(x <= threshold, value, x))


def rrelu_(input: Tensor, lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False) -> Tensor:
    """Computes ``rrelu`` in place."""
    return rrelu(input, lower, upper, training, True)


__all__ = [
    "celu", "celu_", "elu", "elu_", "gelu", "glu", "gumbel_softmax", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "hardtanh_", "leaky_relu",
    "leaky_relu_", "log_softmax", "logsigmoid", "mish", "prelu", "relu", "relu6", "relu_", "rrelu", "rrelu_", "selu", "selu_", "sigmoid", "silu", "softmax",
    "softmin", "softplus", "softshrink", "softsign", "tanh", "tanhshrink", "threshold", "threshold_",
]  # fmt: skip
