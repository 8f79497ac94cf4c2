"""Operations, forward and backward, for device tensors and for host arrays."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple

from .. import ops
from .._kernel import kernel
from .._create import tensor
from .._netcl import Tensor
from .._scope import scope
from ..autograd import enable_grad, no_grad
from ..errors import FormatError, ShapeError


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

    def __init__(self, qkv: Tensor, out: Tensor, on_device: bool, heads: int = 1, causal: bool = True, scale: Optional[float] = None) -> None:
        self._kept: Optional[Tuple[Tensor, Tensor]] = (qkv, out)
        self.on_device, self.heads, self.causal, self.scale = on_device, heads, causal, scale

    @property
    def is_free(self) -> bool:
        """Whether the cache was freed."""
        return self._kept is None

    def free(self) -> None:
        """Frees the cache."""
        self._kept = None

    def __getitem__(self, name: str) -> Tensor:
        """Returns a copy of a part on the device: ``q``, ``k`` and ``v`` (.., T, C), ``att_probs`` (.., heads, T, T)."""
        if self._kept is None:
            raise FormatError("cache: it was freed by a backward or by `free`")
        if name not in ("q", "k", "v", "att_probs"):
            raise KeyError(f"cache: no part {name!r}; parts are q, k, v and att_probs")
        with no_grad():
            qkv = self._kept[0].detach()
            width = qkv.shape[-1] // 3
            q, k, v = (qkv[..., i * width : (i + 1) * width] for i in range(3))
            if name != "att_probs":
                return {"q": q, "k": k, "v": v}[name].clone()
            size = width // self.heads
            q, k = (x.reshape(*x.shape[:-1], self.heads, size).transpose(-3, -2) for x in (q, k))
            scores = (q @ k.transpose(-2, -1)) * (size**-0.5 if self.scale is None else self.scale)
            if self.causal:
                t = qkv.shape[-2]
                scores = scores + tensor([[0.0 if j <= i else -1e30 for j in range(t)] for i in range(t)], device=qkv.device)
            return ops.softmax(scores, -1)

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
        return (out.detach() if on_device else out.detach().numpy()), Cache(leaf, out, on_device, heads, causal, scale)


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


_ADD = """
__kernel void residual_inplace(__global T *x, __global const T *y, const uint n) {
  const uint i = get_global_id(0);
  if (i < n) ST(x, i, LD(x, i) + LD(y, i));
}
"""


def residual_(x: Tensor, y: Tensor) -> Tensor:
    """Adds y to x in place, for device tensors with equal shapes, and returns x. Allocates no memory, and is not recorded on the tape."""
    if not (isinstance(x, Tensor) and isinstance(y, Tensor)):
        raise TypeError("residual_: expected two device tensors, because it overwrites memory on the device")
    if tuple(x.shape) != tuple(y.shape):
        raise ShapeError(f"residual_: x has shape {tuple(x.shape)} and y has {tuple(y.shape)}, expected equal shapes")
    if x.dtype is not y.dtype or not x.is_contiguous():
        return x.copy_(x.detach() + y.detach())
    if x.size:
        kernel(_ADD, items=lambda n: int(n)).launch({"x": x.detach(), "y": y}, {"n": x.size})
    return x


def residual_backward(dout: Any, device: Any = None) -> Tuple[Any, Any]:
    """Returns the gradients of both inputs: two copies of the result's gradient."""
    dx, dy = _call("residual_backward", [dout], device, lambda dout: (dout.clone(), dout.clone()))
    return dx, dy


__all__ = [
    "Cache", "attention", "attention_backward", "gelu", "gelu_backward", "layer_norm", "layer_norm_backward", "matmul", "matmul_backward", "residual", "residual_",
    "residual_backward",
]  # fmt: skip
