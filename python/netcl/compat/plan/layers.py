"""Layers, initial values, losses, optimizers and files."""

from __future__ import annotations

import json
import math
import os
from typing import Any, Dict, Optional, Tuple

from ... import nn
from ... import ops as _ops
from ..._create import default_generator
from ..._files import load as _load
from ..._files import save as _save
from ..._netcl import Tensor as _Tensor
from ...autograd import no_grad
from ...errors import FormatError, IoError
from ...nn import Dropout, Linear, Parameter, ReLU, Sigmoid, Tanh
from ...optim import SGD, Adam


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


class LeakyReLU(nn.Module):
    """``x`` if x is positive, ``slope x`` otherwise."""

    def __init__(self, slope: float = 0.01) -> None:
        super().__init__()
        self.slope = slope

    def forward(self, x: _Tensor) -> _Tensor:
        """Applies the function elementwise."""
        return _ops.leaky_relu(x, self.slope)


class Conv2d(nn.Module):
    """2D convolution: x (B, C, H, W) → (B, O, H', W')."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, padding: int = 0, bias: bool = True) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.kernel_size, self.stride, self.padding = in_channels, out_channels, kernel_size, stride, padding
        bound = 1 / math.sqrt(in_channels * kernel_size**2)
        self.weight = Parameter(default_generator.uniform((out_channels, in_channels, kernel_size, kernel_size), -bound, bound))
        self.bias = Parameter(default_generator.uniform((out_channels,), -bound, bound)) if bias else None

    def forward(self, x: _Tensor) -> _Tensor:
        """Computes the convolution."""
        return _ops.conv2d(x, self.weight, self.bias, stride=(self.stride,), padding=(self.padding,))


class MaxPool2d(nn.Module):
    """Maximum of each window."""

    def __init__(self, size: int = 2, stride: Optional[int] = None) -> None:
        super().__init__()
        self.size, self.stride = size, size if stride is None else stride

    def forward(self, x: _Tensor) -> _Tensor:
        """Returns (B, C, H', W')."""
        return _ops.max_pool2d(x, size=(self.size,), stride=(self.stride,))


class Sequential(nn.Sequential):
    """Layers in sequence. A tape argument is accepted and ignored."""

    def __call__(self, x: Any, tape: Any = None) -> Any:
        return super().__call__(x)


def mse_loss(pred: _Tensor, target: _Tensor, tape: Any = None) -> _Tensor:
    """Computes the mean of the squared differences."""
    return _ops.mse_loss(pred, target)


def cross_entropy(logits: _Tensor, targets: _Tensor, tape: Any = None) -> _Tensor:
    """Computes the mean cross entropy of logits (.., V) and class indices (..)."""
    return _ops.cross_entropy(logits, targets)


VERSION = 1
KINDS: Dict[str, Any] = {c.__name__: c for c in (Linear, Conv2d, MaxPool2d, ReLU, Sigmoid, Tanh, LeakyReLU, Dropout)}


def _described(layer: Any) -> Dict[str, Any]:
    kind = type(layer).__name__
    if KINDS.get(kind) is not type(layer):
        raise FormatError(f"save: cannot save a layer of type {kind}; supported are {', '.join(KINDS)}")
    if isinstance(layer, Linear):
        out, inner = layer.weight.shape
        return {"kind": kind, "in_features": inner, "out_features": out, "bias": layer.bias is not None}
    names = {"Conv2d": ("in_channels", "out_channels", "kernel_size", "stride", "padding"), "MaxPool2d": ("size", "stride"), "LeakyReLU": ("slope",), "Dropout": ("p",)}
    found: Dict[str, Any] = {"kind": kind, **{name: getattr(layer, name) for name in names.get(kind, ())}}
    if isinstance(layer, Conv2d):
        found["bias"] = layer.bias is not None
    return found


def save(model: nn.Sequential, path: str) -> None:
    """Writes layers as JSON, and the weights next to it as ``.npz``."""
    weights = os.path.splitext(path)[0] + ".npz"
    text = json.dumps({"version": VERSION, "layers": [_described(layer) for layer in model], "weights": os.path.basename(weights)}, indent=2)
    _save(model.state_dict(), weights)
    try:
        with open(path + ".part", "w", encoding="utf-8") as f:
            f.write(text)
        os.replace(path + ".part", path)
    except OSError as e:
        raise IoError(f"cannot write {path}: {e}") from e


def load(path: str, device: Any = None) -> Sequential:
    """Reads a model that ``save`` wrote."""
    try:
        with open(path, encoding="utf-8") as f:
            found = json.load(f)
        if found["version"] != VERSION:
            raise FormatError(f"{path} has version {found['version']}, expected {VERSION}")
        given = [dict(layer) for layer in found["layers"]]
        model = Sequential(*[KINDS[layer.pop("kind")](**layer) for layer in given])
    except OSError as e:
        raise IoError(f"cannot read {path}: {e}") from e
    except (KeyError, TypeError, json.JSONDecodeError) as e:
        raise FormatError(f"{path} was not written by save: {e}") from e
    model.load_state_dict(_load(os.path.join(os.path.dirname(path), found["weights"])))
    return model if device is None else model.to(device=device)


__all__ = [
    "Adam", "Conv2d", "Dropout", "LeakyReLU", "Linear", "MaxPool2d", "ReLU", "SGD", "Sequential", "Sigmoid", "Tanh", "cross_entropy", "kaiming_uniform", "load", "mse_loss", "save",
    "xavier_uniform",
]  # fmt: skip
