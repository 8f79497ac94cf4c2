"""The operations of a transformer, for device tensors and for host arrays.

Device tensors give device tensors without copies. NumPy arrays, numbers and nested lists give NumPy arrays: they are uploaded to ``device``,
computed, and read back. The device memory for this is freed before the function returns, even if it raises. A function takes device tensors or
host arrays, not both.

Each function has a backward, which takes the gradient of the result and returns those of the inputs. None of them records on the tape. Attention
returns a ``Cache`` on the device for its backward, which frees it.

>>> import netcl as nc
>>> nc.hybrid.matmul([[1.0, 2.0], [3.0, 4.0]], [[0.5, 0.5], [1.0, 1.0]], [0.1, 0.2], device="sim").round(4).tolist()
[[2.6, 2.7], [5.6, 5.7]]

``levels`` has the operations once more under names that say the level: ``matmul_forward_gpu``, ``matmul_forward_hybrid`` and so on. The benchmarks
compare a device with NumPy.
"""

from ._benchmarks import Speed, benchmark_attention, benchmark_gelu, benchmark_layernorm, benchmark_matmul, benchmark_residual
from ._operations import (
    Cache,
    attention,
    attention_backward,
    gelu,
    gelu_backward,
    layer_norm,
    layer_norm_backward,
    matmul,
    matmul_backward,
    residual,
    residual_,
    residual_backward,
)
from .levels import (
    attention_backward_qkv_gpu,
    attention_backward_qkv_hybrid,
    attention_forward_qkv_gpu,
    attention_forward_qkv_hybrid,
    gelu_backward_gpu,
    gelu_forward_gpu,
    gelu_forward_hybrid,
    gpu_available,
    initialize_gpu,
    layernorm_backward_gpu,
    layernorm_forward_gpu,
    layernorm_forward_hybrid,
    matmul_backward_gpu,
    matmul_forward_gpu,
    matmul_forward_hybrid,
    residual_backward_gpu,
    residual_forward_gpu,
    residual_forward_gpu_inplace,
    residual_forward_hybrid,
    to_cpu,
    to_gpu,
)

__all__ = [
    "Cache", "Speed", "attention", "attention_backward", "attention_backward_qkv_gpu", "attention_backward_qkv_hybrid", "attention_forward_qkv_gpu",
    "attention_forward_qkv_hybrid", "benchmark_attention", "benchmark_gelu", "benchmark_layernorm", "benchmark_matmul", "benchmark_residual", "gelu", "gelu_backward",
    "gelu_backward_gpu", "gelu_forward_gpu", "gelu_forward_hybrid", "gpu_available", "initialize_gpu", "layer_norm", "layer_norm_backward", "layernorm_backward_gpu",
    "layernorm_forward_gpu", "layernorm_forward_hybrid", "matmul", "matmul_backward", "matmul_backward_gpu", "matmul_forward_gpu", "matmul_forward_hybrid", "residual",
    "residual_", "residual_backward", "residual_backward_gpu", "residual_forward_gpu", "residual_forward_gpu_inplace", "residual_forward_hybrid", "to_cpu", "to_gpu",
]  # fmt: skip
