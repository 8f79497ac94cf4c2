"""Activation functions as layers."""

from __future__ import annotations

from typing import Any, Optional

from .. import ops
from .._create import full
from .._netcl import Tensor
from ..errors import ShapeError
from ..functional import _activation as F
from .module import Module
from .parameter import Parameter


class ReLU(Module):
    """``max(x, 0)``."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """Applies the function elementwise."""
        return F.relu(input, self.inplace)

    def extra_repr(self) -> str:
        """Returns the arguments."""
        return "inplace=True" if self.inplace else ""


class ReLU6(Module):
    """``min(max(x, 0), 6)``."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """Applies the function elementwise."""
        return F.relu6(input, self.inplace)

    def extra_repr(self) -> str:
        """Returns the arguments."""
        return "inplace=True" if self.inplace else ""


class SiLU(Module):
    """``x sigmoid(x)``."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """Applies the function elementwise."""
        return F.silu(input, self.inplace)

    def extra_repr(self) -> str:
        """Returns the arguments."""
        return "inplace=True" if self.inplace else ""


class Mish(Module):
    """``x tanh(softplus(x))``."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """Applies the function elementwise."""
        return F.mish(input, self.inplace)

    def extra_repr(self) -> str:
        """Returns the arguments."""
        return "inplace=True" if self.inplace else ""


class SELU(Module):
    """ELU with the factors of self-normalizing networks."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """Applies the function elementwise."""
        return F.selu(input, self.inplace)

    def extra_repr(self) -> str:
        """Returns the arguments."""
        return "inplace=True" if self.inplace else ""


class Hardswish(Module):
    """``x min(max(x + 3, 0), 6) / 6``."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """Applies the function elementwise."""
        return F.hardswish(input, self.inplace)


class Hardsigmoid(Module):
    """``min(max(x + 3, 0), 6) / 6``."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """Applies the function elementwise."""
        return F.hardsigmoid(input, self.inplace)


class Tanh(Module):
    """Hyperbolic tangent."""

    def forward(self, input: Tensor) -> Tensor:
        """Applies the function elementwise."""
        return F.tanh(input)


class Sigmoid(Module):
    """``1 / (1 + e^-x)``."""

    def forward(self, input: Tensor) -> Tensor:
        """Applies the function elementwise."""
        return F.sigmoid(input)


class Softsign(Module):
    """``x / (1 + |x|)``."""

    def forward(self, input: Tensor) -> Tensor:
        """Applies the function elementwise."""
        return F.softsign(input)


class Tanhshrink(Module):
    """``x - tanh(x)``."""

    def forward(self, input: Tensor) -> Tensor:
        """Applies the function elementwise."""
        return F.tanhshrink(input)


class LogSigmoid(Module):
    """``log(sigmoid(x))``."""

    def forward(self, input: Tensor) -> Tensor:
        """Applies the function elementwise."""
        return F.logsigmoid(input)


class LeakyReLU(Module):
    """``x``, or ``negative_slope x`` below 0."""

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        super().__init__()
        self.negative_slope, self.inplace = negative_slope, inplace

    def forward(self, input: Tensor) -> Tensor:
        """Applies the function elementwise."""
        return F.leaky_relu(input, self.negative_slope, self.inplace)

    def extra_repr(self) -> str:
        """Returns the arguments."""
        return f"negative_slope={self.negative_slope}" + (", inplace=True" if self.inplace else "")


class ELU(Module):
    """``x``, or ``alpha (e^x - 1)`` below 0."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        self.alpha, self.inplace = alpha, inplace

    def forward(self, input: Tensor) -> Tensor:
        """Applies the function elementwise."""
        return F.elu(input, self.alpha, self.inplace)

    def extra_repr(self) -> str:
        """Returns the arguments."""
        return f"alpha={self.alpha}" + (", inplace=True" if self.inplace else "")


class CELU(Module):
    """``x``, or ``alpha (e^(x / alpha) - 1)`` below 0."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        self.alpha, self.inplace = alpha, inplace

    def forward(self, input: Tensor) -> Tensor:
        """Applies the function elementwise."""
        return F.celu(input, self.alpha, self.inplace)

    def extra_repr(self) -> str:
        """Returns the arguments."""
        return f"alpha={self.alpha}" + (", inplace=True" if self.inplace else "")


class Hardshrink(Module):
    """``x``, or 0 from ``-lambd`` to ``lambd``."""

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.lambd = lambd

    def forward(self, input: Tensor) -> Tensor:
        """Applies the function elementwise."""
        return F.hardshrink(input, self.lambd)

    def extra_repr(self) -> str:
        """Returns the arguments."""
        return f"{self.lambd}"


class Softshrink(Module):
    """``x`` moved by ``lambd`` towards 0."""

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.lambd = lambd

    def forward(self, input: Tensor) -> Tensor:
        """Applies the function elementwise."""
        return F.softshrink(input, self.lambd)

    def extra_repr(self) -> str:
        """Returns the arguments."""
        return f"{self.lambd}"


class Softplus(Module):
    """``log(1 + e^(beta x)) / beta``, or ``x`` where ``beta x`` is above ``threshold``."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        self.beta, self.threshold = beta, threshold

    def forward(self, input: Tensor) -> Tensor:
        """Applies the function elementwise."""
        return F.softplus(input, self.beta, self.threshold)

    def extra_repr(self) -> str:
        """Returns the arguments."""
        return f"beta={self.beta}, threshold={self.threshold}"


class GLU(Module):
    """``a sigmoid(b)`` with the halves a and b of an axis."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        """Applies the function elementwise."""
        return F.glu(input, self.dim)

    def extra_repr(self) -> str:
        """Returns the arguments."""
        return f"dim={self.dim}"


class Threshold(Module):
    """``x`` above the threshold, and ``value`` elsewhere."""

    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None:
        super().__init__()
        self.threshold, self.value, self.inplace = threshold, value, inplace

    def forward(self, input: Tensor) -> Tensor:
        """Applies the function elementwise."""
        return F.threshold(input, self.threshold, self.value, self.inplace)

    def extra_repr(self) -> str:
        """Returns the arguments."""
        return f"threshold={self.threshold}, value={self.value}" + (", inplace=True" if self.inplace else "")


class RReLU(Module):
    """``x``, or ``a x`` below 0, where ``a`` is drawn for each element in training, and is the mean of the bounds otherwise."""

    def __init__(self, lower: float = 1.0 / 8, upper: float = 1.0 / 3, inplace: bool = False) -> None:
        super().__init__()
        self.lower, self.upper, self.inplace = lower, upper, inplace

    def forward(self, input: Tensor) -> Tensor:
        """Applies the function elementwise."""
        return F.rrelu(input, self.lower, self.upper, self.training, self.inplace)

    def extra_repr(self) -> str:
        """Returns the arguments."""
        return f"lower={self.lower}, upper={self.upper}" + (", inplace=True" if self.inplace else "")


class Hardtanh(Module):
    """``min(max(x, min_val), max_val)``."""

    def __init__(
        self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False, min_value: Optional[float] = None, max_value: Optional[float] = None
    ) -> None:
        super().__init__()
        self.min_val, self.max_val = min_val if min_value is None else min_value, max_val if max_value is None else max_value
        self.inplace = inplace
        if self.min_val >= self.max_val:
            raise ValueError(f"Hardtanh: min_val {self.min_val} must be less than max_val {self.max_val}")

    def forward(self, input: Tensor) -> Tensor:
        """Applies the function elementwise."""
        return F.hardtanh(input, self.min_val, self.max_val, self.inplace)

    def extra_repr(self) -> str:
        """Returns the arguments."""
        return f"min_val={self.min_val}, max_val={self.max_val}" + (", inplace=True" if self.inplace else "")


class GELU(Module):
    """``x · Φ(x)``, or its tanh approximation with ``approximate="tanh"``."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        if approximate not in ("none", "tanh"):
            raise ValueError(f"GELU: approximate is {approximate!r}, expected 'none' or 'tanh'")
        self.approximate = approximate

    def forward(self, input: Tensor) -> Tensor:
        """Applies the function elementwise."""
        return ops.gelu_tanh(input) if self.approximate == "tanh" else ops.gelu(input)

    def extra_repr(self) -> str:
        """Returns the arguments."""
        return f"approximate={self.approximate!r}"


class PReLU(Module):
    """``x``, or ``weight x`` below 0. The weight is trained: one element, or one for each channel."""

    def __init__(self, num_parameters: int = 1, init: float = 0.25, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.num_parameters, self.init = num_parameters, init
        self.weight = Parameter(full(num_parameters, float(init), dtype=dtype, device=device))

    def forward(self, input: Tensor) -> Tensor:
        """Applies the function elementwise."""
        return F.prelu(input, self.weight)

    def extra_repr(self) -> str:
        """Returns the arguments."""
        return f"num_parameters={self.num_parameters}"


class _AlongAxis(Module):
    """A function over one axis, which must be given."""

    def __init__(self, dim: Optional[int] = None) -> None:
        super().__init__()
        self.dim = dim

    def extra_repr(self) -> str:
        """Returns the axis."""
        return f"dim={self.dim}"


class Softmax(_AlongAxis):
    """``exp(x) / sum(exp(x))`` over an axis."""

    def forward(self, input: Tensor) -> Tensor:
        """Returns the probabilities."""
        return F.softmax(input, self.dim)


class Softmin(_AlongAxis):
    """Softmax of ``-x`` over an axis."""

    def forward(self, input: Tensor) -> Tensor:
        """Returns the probabilities."""
        return F.softmin(input, self.dim)


class LogSoftmax(_AlongAxis):
    """``x - log(sum(exp(x)))`` over an axis."""

    def forward(self, input: Tensor) -> Tensor:
        """Returns the logarithms of the probabilities."""
        return F.log_softmax(input, self.dim)


class Softmax2d(Module):
    """Softmax over the channels of images (N, C, H, W) or (C, H, W)."""

    def forward(self, input: Tensor) -> Tensor:
        """Returns the probabilities."""
        if input.ndim not in (3, 4):
            raise ShapeError(f"Softmax2d: the input has shape {tuple(input.shape)}, expected (N, C, H, W) or (C, H, W)")
        return F.softmax(input, -3)


__all__ = [
    "CELU", "ELU", "GELU", "GLU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "LeakyReLU", "LogSigmoid", "LogSoftmax", "Mish", "PReLU",
    "RReLU", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "Softmax", "Softmax2d", "Softmin", "Softplus", "Softshrink", "Softsign", "Tanh",
    "Tanhshrink", "Threshold",
]  # fmt: skip
