"""Benchmarks: a device compared with NumPy on the host, with and without transfers, in a table of small, medium and large inputs."""

from __future__ import annotations

import math
import time
from typing import Any, Callable, List, NamedTuple, Sequence, Tuple

from .._create import tensor
from .._netcl import Device, default_device
from . import _operations as _ops

SIZES = (16, 128, 768)
"""Rows of the small, medium and large input."""
LABELS = ("Small", "Medium", "Large")


class Speed(NamedTuple):
    """Times of an operation in milliseconds."""

    rows: int
    cpu: float
    """NumPy on the host."""
    gpu: float
    """The device, with its inputs and result on the device."""
    hybrid: float
    """The device with transfers from and to the host."""

    @property
    def speedup(self) -> float:
        """How many times faster the device is without transfers."""
        return self.cpu / self.gpu

    @property
    def hybrid_speedup(self) -> float:
        """How many times faster the device is with transfers."""
        return self.cpu / self.hybrid


def _milliseconds(work: Callable[[], Any], iterations: int, wait: Callable[[], Any]) -> float:
    """Returns the mean time of a call, after one call that warms up."""
    work()
    wait()
    began = time.perf_counter()
    for _ in range(iterations):
        work()
    wait()
    return max(1e3 * (time.perf_counter() - began) / iterations, 1e-6)


def _compare(
    name: str,
    sizes: Sequence[int],
    iterations: int,
    device: Any,
    inputs: Callable[[int], Sequence[Any]],
    ways: Tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]],
) -> List[Speed]:
    """Times NumPy, the device's function, and the function with transfers. Prints the table and returns its numbers."""
    device = device if isinstance(device, Device) else default_device() if device is None else Device(device)
    host, on_device, hybrid = ways
    found = []
    for rows in sizes:
        arrays = inputs(rows)
        tensors = [tensor(a, dtype="float32", device=device) for a in arrays]
        cpu = _milliseconds(lambda: host(*arrays), iterations, lambda: None)
        gpu = _milliseconds(lambda: on_device(*tensors), iterations, device.synchronize)
        both = _milliseconds(lambda: hybrid(device, *arrays), iterations, device.synchronize)
        found.append(Speed(rows, cpu, gpu, both))
    labels = [LABELS[i] if i < len(LABELS) else f"Size {i + 1}" for i in range(len(found))]
    lines = [
        ["Operation", *(f"{label} (T={speed.rows})" for label, speed in zip(labels, found))],
        [name, *(_factor(speed.speedup) for speed in found)],
        [f"{name}, with transfers", *(_factor(speed.hybrid_speedup) for speed in found)],
    ]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    rows_of_text = ["| " + " | ".join(cell.ljust(n) for cell, n in zip(line, widths)) + " |" for line in lines]
    rows_of_text.insert(1, "|" + "|".join("-" * (n + 2) for n in widths) + "|")
    print(f"{device.name} compared with NumPy, {iterations} calls after one that warms up")
    print("\n".join(rows_of_text))
    return found


def _factor(x: float) -> str:
    return f"{x:.0f}x" if x >= 10 else f"{x:.1f}x" if x >= 0.1 else f"{x:.3f}x"


def _random(*shape: int) -> Any:
    import numpy as np

    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def benchmark_matmul(sizes: Sequence[int] = SIZES, width: int = 768, iterations: int = 5, device: Any = None) -> List[Speed]:
    """Compares ``x w + bias`` of x (T, width), w (width, width) with NumPy, for each number of rows T in ``sizes``. Prints a table of speedups."""

    def made(t: int) -> Sequence[Any]:
        return _random(t, width), _random(width, width), _random(width)

    return _compare(
        "Matmul", sizes, iterations, device, made, (lambda x, w, b: x @ w + b, _ops.matmul, lambda d, x, w, b: _ops.matmul(x, w, b, d))
    )


def benchmark_attention(sizes: Sequence[int] = SIZES, width: int = 768, heads: int = 12, iterations: int = 5, device: Any = None) -> List[Speed]:
    """Compares causal self-attention over (T, 3 width) with NumPy. Prints a table of speedups."""
    import numpy as np

    def host(qkv: Any) -> Any:
        t = len(qkv)
        q, k, v = (qkv[:, i * width : (i + 1) * width].reshape(t, heads, -1).transpose(1, 0, 2) for i in range(3))
        scores = np.where(np.tril(np.ones((t, t), bool)), q @ k.transpose(0, 2, 1) / math.sqrt(width // heads), -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return ((weights / weights.sum(-1, keepdims=True)) @ v).transpose(1, 0, 2).reshape(t, width)

    ways = (host, lambda qkv: _ops.attention(qkv, heads)[0], lambda d, qkv: _ops.attention(qkv, heads, device=d)[0])
    return _compare("Attention", sizes, iterations, device, lambda t: [_random(t, 3 * width)], ways)


def benchmark_layernorm(sizes: Sequence[int] = SIZES, width: int = 768, iterations: int = 5, device: Any = None) -> List[Speed]:
    """Compares layer normalization of (T, width) with NumPy. Prints a table of speedups."""

    def host(x: Any, gamma: Any, beta: Any) -> Any:
        apart = x - x.mean(-1, keepdims=True)
        return apart / ((apart * apart).mean(-1, keepdims=True) + 1e-5) ** 0.5 * gamma + beta

    ways = (host, _ops.layer_norm, lambda d, x, g, b: _ops.layer_norm(x, g, b, device=d))
    return _compare("LayerNorm", sizes, iterations, device, lambda t: (_random(t, width), _random(width), _random(width)), ways)


def benchmark_gelu(sizes: Sequence[int] = SIZES, width: int = 768, iterations: int = 5, device: Any = None) -> List[Speed]:
    """Compares GELU of (T, width), by its tanh approximation, with NumPy. Prints a table of speedups."""
    import numpy as np

    def host(x: Any) -> Any:
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))

    ways = (host, lambda x: _ops.gelu(x, "tanh"), lambda d, x: _ops.gelu(x, "tanh", d))
    return _compare("GELU", sizes, iterations, device, lambda t: [_random(t, width)], ways)


def benchmark_residual(sizes: Sequence[int] = SIZES, width: int = 768, iterations: int = 5, device: Any = None) -> List[Speed]:
    """Compares the sum of two (T, width) with NumPy. Prints a table of speedups."""
    ways = (lambda x, y: x + y, _ops.residual, lambda d, x, y: _ops.residual(x, y, d))
    return _compare("Residual", sizes, iterations, device, lambda t: (_random(t, width), _random(t, width)), ways)


__all__ = ["LABELS", "SIZES", "Speed", "benchmark_attention", "benchmark_gelu", "benchmark_layernorm", "benchmark_matmul", "benchmark_residual"]
