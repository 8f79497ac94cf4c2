"""Tensors in einops: ``einops.rearrange(x, "b c h w -> b (h w) c")`` and its other functions. Registered on import if einops is installed."""

from __future__ import annotations

import importlib.util
from typing import Any, Dict, List, Sequence, Tuple

from . import _create, _torch
from ._host import from_numpy, numpy
from ._netcl import Tensor


class Backend:
    """The operations that einops calls."""

    framework_name = "netcl"
    registered: Any = None
    """The class that einops knows; it ends when nothing refers to it."""

    def is_appropriate_type(self, tensor: Any) -> bool:
        """Returns whether a value is a tensor of netcl."""
        return isinstance(tensor, Tensor)

    def from_numpy(self, x: Any) -> Tensor:
        """Converts an array."""
        return from_numpy(x)

    def to_numpy(self, x: Tensor) -> Any:
        """Converts to an array."""
        return numpy(x.detach())

    def arange(self, start: int, stop: int) -> Tensor:
        """Returns the numbers from ``start`` to ``stop`` (exclusive)."""
        return _create.arange(start, stop)

    def shape(self, x: Tensor) -> Tuple[int, ...]:
        """Returns the shape."""
        return tuple(x.shape)

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """Returns the same elements in another shape."""
        return _torch.reshape(x, tuple(shape))

    def transpose(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        """Reorders the axes."""
        return _torch.permute(x, tuple(axes)) if x.ndim else x

    def reduce(self, x: Tensor, operation: str, axes: Sequence[int]) -> Tensor:
        """Computes min, max, sum, mean, prod, any or all over axes."""
        if not len(axes):
            return x
        if operation == "prod":
            for axis in sorted(axes, reverse=True):
                x = _torch.prod(x, axis)
            return x
        made: Tensor = getattr(_torch, {"min": "amin", "max": "amax"}.get(operation, operation))(x, tuple(axes))
        return made

    def stack_on_zeroth_dimension(self, tensors: List[Tensor]) -> Tensor:
        """Stacks tensors along a new first axis."""
        return _torch.stack(tensors, 0)

    def add_axis(self, x: Tensor, new_position: int) -> Tensor:
        """Inserts an axis of size 1."""
        return _torch.unsqueeze(x, new_position)

    def add_axes(self, x: Tensor, n_axes: int, pos2len: Dict[int, int]) -> Tensor:
        """Inserts axes and repeats the tensor along them, without a copy."""
        sizes = [-1] * n_axes
        for place, size in pos2len.items():
            x, sizes[place] = _torch.unsqueeze(x, place), size
        return x.expand(tuple(sizes))

    def tile(self, x: Tensor, repeats: Sequence[int]) -> Tensor:
        """Copies the tensor these numbers of times along its axes."""
        return _torch.tile(x, tuple(repeats))

    def concat(self, tensors: Sequence[Tensor], axis: int) -> Tensor:
        """Joins tensors along an axis."""
        return _torch.cat(list(tensors), axis)

    def is_float_type(self, x: Tensor) -> bool:
        """Returns whether the elements are floats."""
        return bool(x.dtype.is_floating_point)

    def einsum(self, pattern: str, *x: Tensor) -> Tensor:
        """Sums products by a formula of letters."""
        return _torch.einsum(pattern, *x)


def register() -> None:
    """Tells einops about tensors of netcl, if it is installed. einops finds classes derived from its ``AbstractBackend``."""
    try:
        if importlib.util.find_spec("einops") is None:
            return
        from einops import _backends  # type: ignore[import-not-found, unused-ignore]

        known = [kind for kind in _backends.AbstractBackend.__subclasses__() if kind.framework_name == "netcl"]
        if not known:
            Backend.registered = type("NetclBackend", (Backend, _backends.AbstractBackend), {"__doc__": Backend.__doc__})
    except (ImportError, AttributeError, ValueError):
        return  # another einops; its functions then say that they do not know the type


__all__ = ["Backend", "register"]
