"""Functions with PyTorch's names that write to their first tensor: those that end in ``_``."""

from __future__ import annotations

from typing import Any, Callable, Dict

from .._inplace import overwrite
from .._netcl import Tensor, is_recording
from ..errors import UnsupportedError
from . import _index, _linear, _pointwise, _reduce, _shape

def in_place(name: str, compute: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function that writes the result of ``compute`` to its first tensor."""

    def method(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        written: Tensor = overwrite(name, self, compute, *args, **kwargs)
        return written

    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"Writes the result of ``{name[:-1]}`` to the tensor, and returns it."
    return method


def _rearranged(name: str, compute: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function that gives its tensor another shape over the same memory."""

    def method(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if self.requires_grad and self.is_leaf and is_recording():
            raise UnsupportedError(f"{name}: a leaf that requires a gradient cannot change its shape; write x = x.{name[:-1]}(…)")
        self._become(compute(self, *args, **kwargs))
        return self

    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"Gives the tensor the shape of ``{name[:-1]}``, and returns it."
    return method


POINTWISE = (
    "abs acos acosh add addcdiv addcmul asin asinh atan atan2 atanh bitwise_and bitwise_not bitwise_or bitwise_xor bitwise_left_shift "
    "bitwise_right_shift ceil clamp clamp_max clamp_min copysign cos cosh deg2rad div eq erf erfc exp exp2 expm1 floor floor_divide fmod frac ge gt heaviside "
    "hypot ldexp le lerp lgamma log log10 log1p log2 logical_and logical_not logical_or logical_xor logit lt mul nan_to_num ne neg pow rad2deg reciprocal relu "
    "remainder round rsqrt sigmoid sign sin sinc sinh sqrt square sub tan tanh trunc xlogy"
)
ALIASES = {
    "absolute": "abs", "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh", "arctan": "atan", "arctan2": "atan2",
    "arctanh": "atanh", "clip": "clamp", "divide": "div", "fix": "trunc", "greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le",
    "multiply": "mul", "negative": "neg", "not_equal": "ne", "subtract": "sub", "true_divide": "div", "sgn": "sign",
}  # fmt: skip
"""Second names of functions."""


def functions() -> Dict[str, Callable[..., Any]]:
    """Returns all functions that write in place, by name."""
    made: Dict[str, Callable[..., Any]] = {f"{name}_": in_place(f"{name}_", getattr(_pointwise, name)) for name in POINTWISE.split()}
    for name in ("addbmm", "addmm", "addmv", "addr", "baddbmm"):
        made[f"{name}_"] = in_place(f"{name}_", getattr(_linear, name))
    for name in ("cumprod", "cumsum"):
        made[f"{name}_"] = in_place(f"{name}_", getattr(_reduce, name))
    for name in ("index_add", "index_copy", "index_fill", "masked_fill", "scatter", "scatter_add", "scatter_reduce"):
        made[f"{name}_"] = in_place(f"{name}_", getattr(_index, name))
    for name in ("tril", "triu"):
        made[f"{name}_"] = in_place(f"{name}_", getattr(_shape, name))
    made.update({f"{name}_": made[f"{of}_"] for name, of in ALIASES.items()})
    for name, of in (("squeeze", "squeeze"), ("unsqueeze", "unsqueeze"), ("t", "t"), ("transpose", "transpose"), ("swapaxes", "transpose"), ("swapdims", "transpose")):
        made[f"{name}_"] = _rearranged(f"{name}_", getattr(_shape, of))
    return made


def fill_diagonal_(self: Tensor, fill_value: Any, wrap: bool = False) -> Tensor:
    """Writes a number to the diagonal of a matrix."""
    from .._create import eye

    if self.ndim != 2 or wrap:
        raise UnsupportedError("fill_diagonal_: only matrices without wrap are supported; write x.masked_fill_(mask, value)")
    on = eye(self.shape[0], self.shape[1], dtype="bool", device=self.device)
    made: Tensor = overwrite("fill_diagonal_", self, lambda x: _index.masked_fill(x, on, fill_value))
    return made


def detach_(self: Tensor) -> Tensor:
    """Takes the tensor off the tape."""
    self._become(self.detach())
    return self


def index_put_(self: Tensor, indices: Any, values: Any, accumulate: bool = False) -> Tensor:
    """Writes ``x[indices] = values``, or adds the values."""
    self[tuple(indices)] = index_put(self, indices, values, accumulate)[tuple(indices)] if accumulate else values
    return self


def index_put(self: Tensor, indices: Any, values: Any, accumulate: bool = False) -> Tensor:
    """Returns a copy with ``x[indices] = values``, or with the values added."""
    places = tuple(indices)
    if not accumulate:
        made = self.clone()
        made[places] = values
        return made
    if len(places) != 1 or not isinstance(places[0], Tensor) or places[0].dtype.is_floating_point or places[0].dtype.name == "bool":
        raise UnsupportedError("index_put: accumulate=True takes one tensor of int32; write scatter_add")
    shape = (*places[0].shape, *self.shape[1:])
    added = values if tuple(values.shape) == shape else values.expand(shape)
    return _index.index_add(self, 0, places[0].reshape(-1), added.reshape(-1, *self.shape[1:]))


__all__ = ["ALIASES", "POINTWISE", "detach_", "fill_diagonal_", "functions", "in_place", "index_put", "index_put_"]
