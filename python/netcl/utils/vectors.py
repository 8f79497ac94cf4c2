"""Parameters as one vector."""

from __future__ import annotations

from typing import Iterable

from .._netcl import Tensor
from ..autograd import no_grad


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """Concatenates all parameters, flattened."""
    from .._torch import cat

    return cat([p.reshape(-1) for p in parameters])


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Writes the elements of a vector to parameters, in order."""
    given = list(parameters)
    if sum(p.numel() for p in given) > vec.numel():
        raise RuntimeError(f"vector_to_parameters: the vector has {vec.numel()} elements, fewer than the parameters")
    start = 0
    with no_grad():
        for p in given:
            p.copy_(vec[start : start + p.numel()].reshape(tuple(p.shape)))
            start += p.numel()


__all__ = ["parameters_to_vector", "vector_to_parameters"]
