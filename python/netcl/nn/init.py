"""Initial values with PyTorch's distributions: ``nn.init.kaiming_uniform_(weight)`` overwrites a tensor and returns it."""

from __future__ import annotations

import math
from typing import Any, Optional, Tuple

from .._create import default_generator
from .._host import from_numpy
from .._netcl import Generator, Tensor, evaluate
from ..autograd import no_grad
from ..errors import ShapeError

LINEAR = ("linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "sigmoid")


def _write(tensor: Tensor, values: Any) -> Tensor:
    with no_grad():
        tensor.copy_(values)
    return tensor


def calculate_gain(nonlinearity: str, param: Optional[float] = None) -> float:
    """Returns the factor that keeps the variance after a nonlinearity. ``param`` is the slope of ``leaky_relu`` [default: 0.01]."""
    if nonlinearity in LINEAR:
        return 1.0
    if nonlinearity == "tanh":
        return 5.0 / 3
    if nonlinearity == "relu":
        return math.sqrt(2.0)
    if nonlinearity == "leaky_relu":
        if isinstance(param, bool) or param is not None and not isinstance(param, (int, float)):
            raise ValueError(f"calculate_gain: the slope is {param!r}, expected a number")
        return math.sqrt(2.0 / (1 + (0.01 if param is None else param) ** 2))
    if nonlinearity == "selu":
        return 3.0 / 4
    raise ValueError(f"calculate_gain: unknown nonlinearity {nonlinearity!r}; expected one of {', '.join(LINEAR)}, tanh, relu, leaky_relu, selu")


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Optional[Generator] = None) -> Tensor:
    """Draws uniform values from ``a`` to ``b``."""
    return _write(tensor, (generator or default_generator).uniform(tensor.shape, a, b, tensor.dtype, tensor.device))


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Optional[Generator] = None) -> Tensor:
    """Draws normally distributed values."""
    return _write(tensor, (generator or default_generator).normal(tensor.shape, mean, std, tensor.dtype, tensor.device))


def _error_function_inverse(x: Tensor) -> Tensor:
    """Computes the inverse of the error function by two steps of Newton's method from an approximation (Winitzki 2008)."""
    logs = "log((1.0f - x0) * (1.0f + x0))"
    half = evaluate(f"4.3307468f + 0.5f * {logs}", [x], "float32")
    y = evaluate(f"copysign(sqrt(fmax(sqrt(x1 * x1 - {logs} / 0.147f) - x1, 0.0f)), x0)", [x, half], "float32")
    for _ in range(2):
        y = evaluate("x1 - (erf(x1) - x0) * 0.88622693f * exp(x1 * x1)", [x, y], "float32")
    return y


def trunc_normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0, generator: Optional[Generator] = None) -> Tensor:
    """Draws normally distributed values from ``a`` to ``b``."""

    def share(x: float) -> float:
        return (1 + math.erf((x - mean) / (std * math.sqrt(2)))) / 2

    low, high = share(a), share(b)
    drawn = (generator or default_generator).uniform(tensor.shape, 2 * low - 1, 2 * high - 1, "float32", tensor.device)
    with no_grad():
        limit = 1 - 2.0**-24
        values = _error_function_inverse(drawn.clamp(-limit, limit)) * (std * math.sqrt(2)) + mean
        return _write(tensor, values.clamp(a, b)._to(None, tensor.dtype))


def constant_(tensor: Tensor, val: float) -> Tensor:
    """Writes a value to every element."""
    return _write(tensor, float(val))


def ones_(tensor: Tensor) -> Tensor:
    """Writes 1 to every element."""
    return _write(tensor, 1.0)


def zeros_(tensor: Tensor) -> Tensor:
    """Writes 0 to every element."""
    return _write(tensor, 0.0)


def eye_(tensor: Tensor) -> Tensor:
    """Writes the identity matrix."""
    if tensor.ndim != 2:
        raise ShapeError(f"eye_: the tensor has {tensor.ndim} axes, expected 2")
    import numpy as np

    return _write(tensor, np.eye(*tensor.shape, dtype=np.float32))


def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """Writes convolution weights that return their input channels."""
    if tensor.ndim not in (3, 4, 5) or tensor.shape[0] % groups:
        raise ShapeError(f"dirac_: the tensor has shape {tuple(tensor.shape)}, expected 3, 4 or 5 axes with channels divisible by {groups}")
    import numpy as np

    values = np.zeros(tuple(tensor.shape), dtype=np.float32)
    out = tensor.shape[0] // groups
    for g in range(groups):
        for d in range(min(out, tensor.shape[1])):
            values[(g * out + d, d, *(n // 2 for n in tensor.shape[2:]))] = 1.0
    return _write(tensor, values)


def _fans(tensor: Tensor) -> Tuple[int, int]:
    """Returns the numbers of inputs and outputs of a weight (out, in, ..)."""
    if tensor.ndim < 2:
        raise ValueError(f"init: the tensor has shape {tuple(tensor.shape)}, expected at least 2 axes to count inputs and outputs")
    field = math.prod(tensor.shape[2:])
    return tensor.shape[1] * field, tensor.shape[0] * field


def _fan(tensor: Tensor, mode: str) -> int:
    mode = mode.lower()
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"init: mode is {mode!r}, expected 'fan_in' or 'fan_out'")
    return _fans(tensor)[mode == "fan_out"]


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Optional[Generator] = None) -> Tensor:
    """Draws uniform values within gain · √(6 / (in + out)) (Glorot and Bengio 2010)."""
    bound = gain * math.sqrt(6 / sum(_fans(tensor)))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Optional[Generator] = None) -> Tensor:
    """Draws normally distributed values with standard deviation gain · √(2 / (in + out)) (Glorot and Bengio 2010)."""
    return normal_(tensor, 0.0, gain * math.sqrt(2 / sum(_fans(tensor))), generator)


def _kaiming(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    return calculate_gain(nonlinearity, a) / math.sqrt(_fan(tensor, mode))


def kaiming_uniform_(
    tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", generator: Optional[Generator] = None
) -> Tensor:
    """Draws uniform values within gain · √(3 / fan) (He et al. 2015). ``a`` is the slope of ``leaky_relu``."""
    if 0 in tensor.shape:
        return tensor
    bound = math.sqrt(3.0) * _kaiming(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", generator: Optional[Generator] = None
) -> Tensor:
    """Draws normally distributed values with standard deviation gain / √fan (He et al. 2015). ``a`` is the slope of ``leaky_relu``."""
    if 0 in tensor.shape:
        return tensor
    return normal_(tensor, 0.0, _kaiming(tensor, a, mode, nonlinearity), generator)


def orthogonal_(tensor: Tensor, gain: float = 1, generator: Optional[Generator] = None) -> Tensor:
    """Writes a random matrix (out, rest) with orthonormal rows or columns, times ``gain`` (Saxe et al. 2013). It is computed on the host."""
    if tensor.ndim < 2:
        raise ValueError(f"orthogonal_: the tensor has shape {tuple(tensor.shape)}, expected at least 2 axes")
    if tensor.size == 0:
        return tensor
    import numpy as np

    rows, columns = tensor.shape[0], tensor.size // tensor.shape[0]
    drawn = (generator or default_generator).normal((rows, columns), 0.0, 1.0, "float32", tensor.device).numpy().astype(np.float64)
    q, r = np.linalg.qr(drawn.T if rows < columns else drawn)
    # The signs make the distribution uniform.
    q = q * np.where(np.diag(r) < 0, -1.0, 1.0)
    made = np.ascontiguousarray(q.T if rows < columns else q, dtype=np.float32) * np.float32(gain)
    return _write(tensor, from_numpy(made, None, tensor.device).reshape(tensor.shape)._to(None, tensor.dtype))


def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01, generator: Optional[Generator] = None) -> Tensor:
    """Draws normally distributed values, of which the share ``sparsity`` of each column is 0 (Martens 2010). It is computed on the host."""
    if tensor.ndim != 2:
        raise ValueError(f"sparse_: the tensor has shape {tuple(tensor.shape)}, expected 2 axes")
    import numpy as np

    source = generator or default_generator
    rows, columns = tensor.shape
    values = source.normal((rows, columns), 0.0, std, "float32", tensor.device).numpy().copy()
    order = np.argsort(source.uniform((rows, columns), 0.0, 1.0, "float32", tensor.device).numpy(), axis=0)
    np.put_along_axis(values, order[: math.ceil(sparsity * rows)], 0.0, axis=0)
    return _write(tensor, values)


__all__ = [
    "calculate_gain", "constant_", "dirac_", "eye_", "kaiming_normal_", "kaiming_uniform_", "normal_", "ones_", "orthogonal_", "sparse_", "trunc_normal_",
    "uniform_", "xavier_normal_", "xavier_uniform_", "zeros_",
]  # fmt: skip
