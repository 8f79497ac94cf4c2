"""Parameters as one vector, and layers merged with their normalization."""

from __future__ import annotations

import copy
from typing import Any, Iterable

from ... import ops
from ..._create import zeros
from ..._netcl import Tensor
from ...autograd import no_grad
from ...errors import ShapeError
from ..parameter import Parameter


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """Returns the elements of all parameters as one vector."""
    return ops.cat([p.reshape(-1) for p in parameters], 0)


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Writes the elements of a vector to parameters, in order."""
    if not isinstance(vec, Tensor):
        raise TypeError(f"vector_to_parameters: got {type(vec).__name__}, expected a tensor")
    at = 0
    with no_grad():
        for p in parameters:
            if at + p.size > vec.size:
                raise ShapeError(f"vector_to_parameters: the vector has {vec.size} elements, the parameters have more")
            p.copy_(vec[at : at + p.size].reshape(p.shape))
            at += p.size


def _fused(layer: Any, norm: Any, axis: int) -> Any:
    """Returns a copy of a layer whose weights contain an evaluated batch normalization."""
    if layer.training or norm.training:
        raise ValueError("fuse: expected layers in evaluation mode; call eval() first")
    made = copy.deepcopy(layer)
    with no_grad():
        factor = ops.rsqrt(norm.running_var + norm.eps)
        factor = factor if norm.weight is None else factor * norm.weight
        shape = [1] * layer.weight.ndim
        shape[axis] = -1
        bias = zeros(norm.num_features, dtype=layer.weight.dtype, device=layer.weight.device) if layer.bias is None else layer.bias
        bias = (bias - norm.running_mean) * factor
        made.weight = Parameter((layer.weight * factor.reshape(shape))._to(None, layer.weight.dtype), layer.weight.requires_grad)
        made.bias = Parameter((bias if norm.bias is None else bias + norm.bias)._to(None, layer.weight.dtype), layer.weight.requires_grad)
    return made


def fuse_conv_bn_eval(conv: Any, bn: Any, transpose: bool = False) -> Any:
    """Returns a convolution that also computes the batch normalization after it, both in evaluation mode."""
    return _fused(conv, bn, 1 if transpose else 0)


def fuse_linear_bn_eval(linear: Any, bn: Any) -> Any:
    """Returns a linear layer that also computes the batch normalization after it, both in evaluation mode."""
    return _fused(linear, bn, 0)


def skip_init(module_cls: Any, *args: Any, **kwargs: Any) -> Any:
    """Creates a module. Its initial values are drawn as usual."""
    return module_cls(*args, **kwargs)


__all__ = ["fuse_conv_bn_eval", "fuse_linear_bn_eval", "parameters_to_vector", "skip_init", "vector_to_parameters"]
