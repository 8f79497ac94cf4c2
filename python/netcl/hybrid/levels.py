"""The operations under names that say their level. ``…_gpu`` takes and returns device tensors. ``…_hybrid`` takes nested lists or arrays, and returns
nested lists; it frees everything on the device, except the cache of attention.
"""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

from .._create import tensor
from .._netcl import Device, Tensor, default_device, devices
from . import _operations as _ops
from ._operations import Cache

Lists = List[Any]


def _on_device(name: str, given: Sequence[Any]) -> None:
    wrong = [type(x).__name__ for x in given if x is not None and not isinstance(x, Tensor)]
    if wrong:
        raise TypeError(f"{name}: got {wrong[0]}, expected device tensors; use the hybrid function for host arrays, or to_gpu")


def _on_host(name: str, given: Sequence[Any]) -> None:
    if any(isinstance(x, Tensor) for x in given):
        raise TypeError(f"{name}: got a device tensor, expected nested lists or arrays; use the gpu function for device tensors")


def gpu_available() -> bool:
    """Returns whether a GPU with an OpenCL driver is available."""
    return any(Device(name).kind == "gpu" for name in devices() if not name.startswith("sim"))


def initialize_gpu() -> Dict[str, Any]:
    """Opens the default device. Returns whether a GPU is available, the device's name, and which device to use."""
    found, device = gpu_available(), default_device()
    advice = "Use the GPU" if found else f"Use {device.name}, because no GPU with an OpenCL driver was found (netcl.doctor() says what is missing)"
    return {"gpu_available": found, "device": device.name, "recommendation": advice}


def to_gpu(data: Any, device: Any = None) -> Tensor:
    """Copies nested lists or an array to a device, as float32."""
    return tensor(data, dtype="float32", device=device)


def to_cpu(x: Tensor) -> Lists:
    """Returns the elements of a device tensor as nested lists."""
    made: Lists = x.detach().tolist()
    return made


def matmul_forward_gpu(inp: Tensor, weight: Tensor, bias: Any = None) -> Tensor:
    """Computes ``inp weight + bias`` with inp (.., M, K), weight (K, N), bias (N)."""
    _on_device("matmul_forward_gpu", [inp, weight, bias])
    return _ops.matmul(inp, weight, bias)  # type: ignore[no-any-return]


def matmul_backward_gpu(dout: Tensor, inp: Tensor, weight: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
    """Returns the gradients of inp, weight and a bias."""
    _on_device("matmul_backward_gpu", [dout, inp, weight])
    dinp, dweight = _ops.matmul_backward(dout, inp, weight)
    return dinp, dweight, dout.detach().reshape(-1, dout.shape[-1]).sum(axis=0)


def matmul_forward_hybrid(inp: Any, weight: Any, bias: Any = None, device: Any = None) -> Lists:
    """Computes ``inp weight + bias``."""
    _on_host("matmul_forward_hybrid", [inp, weight, bias])
    return _ops.matmul(inp, weight, bias, device).tolist()  # type: ignore[no-any-return]


def attention_forward_qkv_gpu(qkv: Tensor, n_heads: int) -> Dict[str, Any]:
    """Computes causal self-attention over packed queries, keys and values (T, 3C). Returns ``out`` (T, C) and ``cache``."""
    _on_device("attention_forward_qkv_gpu", [qkv])
    out, cache = _ops.attention(qkv, n_heads)
    return {"out": out, "cache": cache}


def _heads(name: str, cache: Cache, n_heads: int) -> None:
    if n_heads != cache.heads:
        raise ValueError(f"{name}: n_heads is {n_heads}, but the forward was called with {cache.heads}")


def attention_backward_qkv_gpu(dout: Tensor, cache: Cache, n_heads: int) -> Tensor:
    """Returns the gradient of qkv (T, 3C), and frees the cache."""
    _on_device("attention_backward_qkv_gpu", [dout])
    _heads("attention_backward_qkv_gpu", cache, n_heads)
    return _ops.attention_backward(dout, cache)  # type: ignore[no-any-return]


def attention_forward_qkv_hybrid(qkv: Any, n_heads: int, device: Any = None) -> Dict[str, Any]:
    """Computes causal self-attention. Returns ``out`` as nested lists, and ``cache``, which stays on the device until the backward or ``free``."""
    _on_host("attention_forward_qkv_hybrid", [qkv])
    out, cache = _ops.attention(qkv, n_heads, device=device)
    return {"out": out.tolist(), "cache": cache}


def attention_backward_qkv_hybrid(dout: Any, cache: Cache, n_heads: int) -> Lists:
    """Returns the gradient of qkv as nested lists, and frees the cache."""
    _on_host("attention_backward_qkv_hybrid", [dout])
    _heads("attention_backward_qkv_hybrid", cache, n_heads)
    return _ops.attention_backward(dout, cache).tolist()  # type: ignore[no-any-return]


def layernorm_forward_gpu(x: Tensor, gamma: Tensor, beta: Tensor, eps: float = 1e-5) -> Tensor:
    """Normalizes rows to mean 0 and variance 1, multiplies by gamma and adds beta."""
    _on_device("layernorm_forward_gpu", [x, gamma, beta])
    return _ops.layer_norm(x, gamma, beta, eps)  # type: ignore[no-any-return]


def layernorm_backward_gpu(dout: Tensor, x: Tensor, gamma: Tensor, beta: Tensor, eps: float = 1e-5) -> Tuple[Tensor, Tensor, Tensor]:
    """Returns the gradients of x, gamma and beta."""
    _on_device("layernorm_backward_gpu", [dout, x, gamma, beta])
    return _ops.layer_norm_backward(dout, x, gamma, beta, eps)


def layernorm_forward_hybrid(x: Any, gamma: Any, beta: Any, eps: float = 1e-5, device: Any = None) -> Lists:
    """Normalizes rows to mean 0 and variance 1, multiplies by gamma and adds beta."""
    _on_host("layernorm_forward_hybrid", [x, gamma, beta])
    return _ops.layer_norm(x, gamma, beta, eps, device).tolist()  # type: ignore[no-any-return]


def gelu_forward_gpu(x: Tensor) -> Tensor:
    """Computes ``x · Φ(x)``."""
    _on_device("gelu_forward_gpu", [x])
    return _ops.gelu(x)  # type: ignore[no-any-return]


def gelu_backward_gpu(dout: Tensor, x: Tensor) -> Tensor:
    """Returns the gradient of x."""
    _on_device("gelu_backward_gpu", [dout, x])
    return _ops.gelu_backward(dout, x)  # type: ignore[no-any-return]


def gelu_forward_hybrid(x: Any, device: Any = None) -> Lists:
    """Computes ``x · Φ(x)``."""
    _on_host("gelu_forward_hybrid", [x])
    return _ops.gelu(x, device=device).tolist()  # type: ignore[no-any-return]


def residual_forward_gpu(x: Tensor, y: Tensor) -> Tensor:
    """Computes ``x + y``."""
    _on_device("residual_forward_gpu", [x, y])
    return _ops.residual(x, y)  # type: ignore[no-any-return]


def residual_forward_gpu_inplace(x: Tensor, y: Tensor) -> Tensor:
    """Adds y to x in place, and returns x."""
    return _ops.residual_(x, y)


def residual_backward_gpu(dout: Tensor) -> Tuple[Tensor, Tensor]:
    """Returns the gradients of both inputs."""
    _on_device("residual_backward_gpu", [dout])
    return _ops.residual_backward(dout)


def residual_forward_hybrid(x: Any, y: Any, device: Any = None) -> Lists:
    """Computes ``x + y``."""
    _on_host("residual_forward_hybrid", [x, y])
    return _ops.residual(x, y, device).tolist()  # type: ignore[no-any-return]
