"""The operations of a transformer, for device tensors and for host arrays.

Device tensors give device tensors without copies. NumPy arrays, numbers and nested lists give NumPy arrays: they are uploaded to ``device``,
computed, and read back. The device memory for this is freed before the function returns, even if it raises. A function takes device tensors or
host arrays, not both.

Each function has a backward, which takes the gradient of the result and returns those of the inputs. None of them records on the tape. Attention
returns a ``Cache`` on the device for its backward, which frees it.

>>> import netcl as nc
>>> nc.hybrid.matmul([[1.0, 2.0], [3.0, 4.0]], [[0.5, 0.5], [1.0, 1.0]], [0.1, 0.2], device="sim").round(4).tolist()
[[2.6, 2.7], [5.6, 5.7]]
"""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple

from . import ops
from ._create import tensor
from ._netcl import Tensor
from ._scope import scope
from .autograd import enable_grad, no_grad
from .errors import FormatError


def _level(what: str, given: Sequence[Any]) -> bool:
    """Returns whether the arguments are device tensors."""
    there = [x for x in given if x is not None]
    on_device = [isinstance(x, Tensor) for x in there]
    if any(on_device) and not all(on_device):
        raise TypeError(f"{what}: device tensors and host arrays are mixed together; pass all as tensors (netcl.tensor), or all as arrays")
    return bool(there) and all(on_device)


def _call(what: str, given: Sequence[Any], device: Any, compute: Callable[..., Tuple[Tensor, ...]]) -> List[Any]:
    """Calls ``compute`` with device tensors, or with host arrays that are uploaded first."""
    if _level(what, given):
        if device is not None:
            raise TypeError(f"{what}: `device` is only for host arrays; device tensors already have a device")
        with no_grad():
            return list(compute(*[None if x is None else x.detach() for x in given]))
    with scope(), no_grad():
        uploaded = [None if x is None else tensor(x, dtype="float32", device=device) for x in given]
        return [y.numpy() for y in compute(*uploaded)]


def _gradients(forward: Callable[..., Tensor], dy: Tensor, inputs: Sequence[Optional[Tensor]]) -> Tuple[Tensor, ...]:
    """Returns the gradients of the inputs that are not ``None``."""
    leaves = [None if x is None else x.detach() for x in inputs]
    for leaf in leaves:
        if leaf is not None:
            leaf.requires_grad = True
    with enable_grad():
        y = forward(*leaves)
    if tuple(y.shape) != tuple(dy.shape):
        raise FormatError(f"backward: dy has shape {tuple(dy.shape)}, expected {tuple(y.shape)}, the shape of the result")
    y.backward(dy)
    return tuple(leaf.grad for leaf in leaves if leaf is not None and leaf.grad is not None)


def _matmul(a: Tensor, b: Tensor, bias: Optional[Tensor]) -> Tensor:
    y = a @ b
    return y if bias is None else y + bias


def matmul(a: Any, b: Any, bias: Any = None, device: Any = None) -> Any:
    """Computes ``a b + bias`` with a (.., M, K), b (K, N) or (.., K, N), bias (N)."""
    return _call("matmul", [a, b, bias], device, lambda a, b, bias: (_matmul(a, b, bias),))[0]


def matmul_backward(dy: Any, a: Any, b: Any, bias: Any = None, device: Any = None) -> Tuple[Any, ...]:
    """Returns the gradients of a, b and, if given, bias."""
    return tuple(_call("matmul_backward", [dy, a, b, bias], device, lambda dy, *inputs: _gradients(_matmul, dy, inputs)))


class Cache:
    """Data for attention's backward. It stays on the device until ``attention_backward``, ``free`` or the end of ``with cache:`` frees it."""

    def __init__(self, qkv: Tensor, out: Tensor, on_device: bool) -> None:
        self._kept: Optional[Tuple[Tensor, Tensor]] = (qkv, out)
        self.on_device = on_device

    @property
    def is_free(self) -> bool:
        """Whether the cache was freed."""
        return self._kept is None

    def free(self) -> None:
        """Frees the cache."""
        self._kept = None

    def __enter__(self) -> "Cache":
        return self

    def __exit__(self, *_: Any) -> None:
        self.free()

    def _take(self) -> Tuple[Tensor, Tensor]:
        if self._kept is None:
            raise FormatError("attention_backward: the cache was freed by a backward or by `free`")
        kept, self._kept = self._kept, None
        return kept


def attention(qkv: Any, heads: int, causal: bool = True, scale: Optional[float] = None, device: Any = None) -> Tuple[Any, Cache]:
    """Computes multi-head self-attention over packed queries, keys and values, (T, 3C) or (B, T, 3C) → (.., T, C). Also returns the cache for the
    backward.
    """
    on_device = _level("attention", [qkv])
    if on_device and device is not None:
        raise TypeError("attention: `device` is only for host arrays; device tensors already have a device")
    with scope() as inside:
        leaf = qkv.detach() if on_device else tensor(qkv, dtype="float32", device=device)
        leaf.requires_grad = True
        with enable_grad():
            packed = leaf if leaf.ndim == 3 else leaf.unsqueeze(0)
            out = ops.attention_qkv(packed, heads=heads, kv_heads=heads, causal=causal, scale=scale, dropout=0.0, seed=0)
            out = out if leaf.ndim == 3 else out.squeeze(0)
        inside.keep([leaf, out])
        return (out.detach() if on_device else out.detach().numpy()), Cache(leaf, out, on_device)


def attention_backward(dout: Any, cache: Cache) -> Any:
    """Returns the gradient of qkv, and frees the cache."""
    if _level("attention_backward", [dout]) != cache.on_device:
        raise TypeError(f"attention_backward: the forward was called with {'device tensors' if cache.on_device else 'host arrays'}; call the backward with the same kind")
    leaf, out = cache._take()
    if cache.on_device:
        out.backward(dout)
        return leaf.grad
    with scope():
        out.backward(tensor(dout, dtype="float32", device=out.device))
        assert leaf.grad is not None
        return leaf.grad.numpy()


def _layer_norm(eps: float) -> Callable[..., Tensor]:
    return lambda x, gamma, beta: ops.layer_norm(x, gamma, beta, eps)


def layer_norm(x: Any, gamma: Any, beta: Any, eps: float = 1e-5, device: Any = None) -> Any:
    """Normalizes rows to mean 0 and variance 1, multiplies by gamma (N) and adds beta (N): x (.., N)."""
    return _call("layer_norm", [x, gamma, beta], device, lambda *inputs: (_layer_norm(eps)(*inputs),))[0]


def layer_norm_backward(dy: Any, x: Any, gamma: Any, beta: Any, eps: float = 1e-5, device: Any = None) -> Tuple[Any, Any, Any]:
    """Returns the gradients of x, gamma and beta."""
    dx, dgamma, dbeta = _call("layer_norm_backward", [dy, x, gamma, beta], device, lambda dy, *inputs: _gradients(_layer_norm(eps), dy, inputs))
    return dx, dgamma, dbeta


def _gelu(approximate: str) -> Callable[[Tensor], Tensor]:
    if approximate not in ("none", "tanh"):
        raise ValueError(f"gelu: approximate is {approximate!r}, expected 'none' or 'tanh'")
    return ops.gelu_tanh if approximate == "tanh" else ops.gelu


def gelu(x: Any, approximate: str = "none", device: Any = None) -> Any:
    """Computes ``x · Φ(x)``, or its tanh approximation with ``approximate="tanh"``."""
    function = _gelu(approximate)
    return _call("gelu", [x], device, lambda x: (function(x),))[0]


def gelu_backward(dy: Any, x: Any, approximate: str = "none", device: Any = None) -> Any:
    """Returns the gradient of x."""
    function = _gelu(approximate)
    return _call("gelu_backward", [dy, x], device, lambda dy, x: _gradients(function, dy, [x]))[0]


def residual(x: Any, y: Any, device: Any = None) -> Any:
    """Computes ``x + y`` for equal shapes."""
    return _call("residual", [x, y], device, lambda x, y: (x + y,))[0]


def residual_backward(dout: Any, device: Any = None) -> Tuple[Any, Any]:
    """Returns the gradients of both inputs: two copies of the result's gradient."""
    dx, dy = _call("residual_backward", [dout], device, lambda dout: (dout.clone(), dout.clone()))
    return dx, dy


__all__ = [
    "Cache", "attention", "attention_backward", "gelu", "gelu_backward", "layer_norm", "layer_norm_backward", "matmul", "matmul_backward", "residual", "residual_backward",
]  # fmt: skip
