"""The contexts of OCL-LLM's operations. Each computes the gradients of the operation's inputs from the gradient of its result."""

from __future__ import annotations

from typing import Any, Optional, Tuple

from ... import ops
from ..._create import tensor
from ..._netcl import Tensor, evaluate_into, plain_operations, uninitialised
from ..._netcl import full as _full
from .context import FunctionContext
from .ids import valid_ids


class MatMulBackwardContext(FunctionContext):
    """C = A B with A (M, K) or (B, M, K) and B (K, N). The gradients are dA = dC Bᵀ, and dB = Aᵀ dC, summed over the matrices."""

    def __init__(self, a: Tensor, b: Tensor) -> None:
        super().__init__(a, b)
        self.save_for_backward(a=a.detach(), b=b.detach())

    def backward(self, grad_output: Tensor) -> None:
        """Applies dA and dB."""
        saved = self.unpack_saved_data()
        a, b = saved["a"], saved["b"]
        da = ops.matmul(grad_output, ops.transpose(b, 0, 1)) if self.needs(0) else None
        rows, columns = ops.reshape(a, (-1, a.shape[-1])), ops.reshape(grad_output, (-1, b.shape[1]))
        db = ops.matmul(ops.transpose(rows, 0, 1), columns) if self.needs(1) else None
        self.apply_gradients(da, db)


class MatMulBatchedBackwardContext(MatMulBackwardContext):
    """C[b] = A[b] B[b]: dA[b] = dC[b] B[b]ᵀ and dB[b] = A[b]ᵀ dC[b]."""

    def backward(self, grad_output: Tensor) -> None:
        """Applies dA and dB."""
        saved = self.unpack_saved_data()
        da = ops.matmul(grad_output, ops.transpose(saved["b"], 1, 2)) if self.needs(0) else None
        db = ops.matmul(ops.transpose(saved["a"], 1, 2), grad_output) if self.needs(1) else None
        self.apply_gradients(da, db)


class AddBackwardContext(FunctionContext):
    """C = A + B, where B may be broadcast, or a number. Both get dC, summed over the axes along which they were broadcast."""

    def __init__(self, a: Tensor, b: Optional[Tensor] = None, broadcasting_occurred: Optional[bool] = None, b_original_shape: Optional[Tuple[int, ...]] = None) -> None:
        super().__init__(a, b)
        shape = b_original_shape if b_original_shape is not None or b is None else tuple(b.shape)
        self.save_for_backward(a_shape=tuple(a.shape), b_shape=shape, broadcasting_occurred=broadcasting_occurred)

    def backward(self, grad_output: Tensor) -> None:
        """Applies dA and dB."""
        saved = self.unpack_saved_data()
        shapes = (saved["a_shape"], saved["b_shape"])
        self.apply_gradients(*(ops.sum_to(grad_output, shapes[i]) if self.needs(i) else None for i in range(len(self.parents))))


class AddBroadcastPEBackwardContext(FunctionContext):
    """C = X + positions. Only X has a gradient, dC."""

    def __init__(self, x: Tensor, pe: Any = None) -> None:
        super().__init__(x)

    def backward(self, grad_output: Tensor) -> None:
        """Applies dX."""
        self.apply_gradients(grad_output)


class MulBackwardContext(FunctionContext):
    """C = A · B elementwise: dA = dC · B and dB = dC · A, summed over broadcast axes."""

    def __init__(self, a: Tensor, b: Tensor) -> None:
        super().__init__(a, b)
        self.save_for_backward(a=a.detach(), b=b.detach())

    def backward(self, grad_output: Tensor) -> None:
        """Applies dA and dB."""
        saved = self.unpack_saved_data()
        a, b = saved["a"], saved["b"]
        da = ops.sum_to(ops.mul(grad_output, b), tuple(a.shape)) if self.needs(0) else None
        db = ops.sum_to(ops.mul(grad_output, a), tuple(b.shape)) if self.needs(1) else None
        self.apply_gradients(da, db)


class ScalarMulBackwardContext(FunctionContext):
    """C = s · X: dX = s · dC."""

    def __init__(self, x: Tensor, scalar: float) -> None:
        super().__init__(x)
        self.save_for_backward(scalar=float(scalar))

    def backward(self, grad_output: Tensor) -> None:
        """Applies dX."""
        self.apply_gradients(ops.mul_scalar(grad_output, self.unpack_saved_data()["scalar"]))


class GeluBackwardContext(FunctionContext):
    """C = x · Φ(x): dX = dC · (Φ(x) + x · φ(x)), with the normal distribution's function Φ and density φ."""

    def __init__(self, x: Tensor) -> None:
        super().__init__(x)
        self.save_for_backward(x=x.detach())

    def backward(self, grad_output: Tensor) -> None:
        """Applies dX."""
        x = self.unpack_saved_data()["x"]
        gradient = uninitialised(x.shape, x.dtype, x.device)
        evaluate_into("gelu_grad(x0) * x1", [x, grad_output], [], gradient)
        self.apply_gradients(gradient)


class SoftmaxBackwardContext(FunctionContext):
    """Y = softmax(X): dX = (dY - Σ dY · Y) · Y, with sums over the softmax's axis."""

    def __init__(self, x: Tensor, y: Tensor, dim: int = -1) -> None:
        super().__init__(x)
        self.save_for_backward(y=y.detach(), dim=dim)

    def backward(self, grad_output: Tensor) -> None:
        """Applies dX."""
        saved = self.unpack_saved_data()
        y = saved["y"]
        dot = ops.sum(ops.mul(grad_output, y), (saved["dim"],), True)
        self.apply_gradients(ops.mul(ops.sub(grad_output, dot), y))


class LayerNormBackwardContextRevised(FunctionContext):
    """Y = (X - mean) / √(variance + eps) over rows: dX = (dY - mean(dY) - Y · mean(dY · Y)) / √(variance + eps)."""

    def __init__(self, x: Tensor, eps: float = 1e-5) -> None:
        super().__init__(x)
        self.save_for_backward(x=x.detach(), eps=float(eps))

    def backward(self, grad_output: Tensor) -> None:
        """Applies dX."""
        saved = self.unpack_saved_data()
        x, last = saved["x"], (-1,)
        apart = ops.sub(x, ops.mean(x, last, True))
        scale = ops.rsqrt(ops.add_scalar(ops.mean(ops.square(apart), last, True), saved["eps"]))
        y = ops.mul(apart, scale)
        along = ops.mul(y, ops.mean(ops.mul(grad_output, y), last, True))
        left = ops.sub(ops.sub(grad_output, ops.mean(grad_output, last, True)), along)
        self.apply_gradients(ops.mul(left, scale))


LayerNormBackwardContext = LayerNormBackwardContextRevised


class TransposeCPUFallbackBackwardContext(FunctionContext):
    """C = A with axes ``dim0`` and ``dim1`` swapped: dA = dC with the same axes swapped. In netcl this runs on the device too."""

    def __init__(self, x: Tensor, dim0: int, dim1: int) -> None:
        super().__init__(x)
        self.save_for_backward(dim0=dim0, dim1=dim1)

    def backward(self, grad_output: Tensor) -> None:
        """Applies dA."""
        saved = self.unpack_saved_data()
        self.apply_gradients(ops.transpose(grad_output, saved["dim0"], saved["dim1"]))


class TransposeBackwardContext(TransposeCPUFallbackBackwardContext):
    """C = Aᵀ of a matrix: dA = dCᵀ."""

    def __init__(self, x: Tensor, rows_a: Optional[int] = None, cols_a: Optional[int] = None) -> None:
        super().__init__(x, 0, 1)


class BatchedTransposeLastTwoBackwardContext(TransposeCPUFallbackBackwardContext):
    """C = A with the last two axes swapped."""

    def __init__(self, x: Tensor) -> None:
        super().__init__(x, -2, -1)


class Transpose12BatchedBackwardContext(TransposeCPUFallbackBackwardContext):
    """C (B, D2, D1, D3) = A (B, D1, D2, D3)."""

    def __init__(self, x: Tensor) -> None:
        super().__init__(x, 1, 2)


class ReshapeBackwardContext(FunctionContext):
    """C = A in another shape: dA = dC in the shape of A."""

    def __init__(self, x: Tensor) -> None:
        super().__init__(x)
        self.save_for_backward(original_shape=tuple(x.shape))

    def backward(self, grad_output: Tensor) -> None:
        """Applies dA."""
        self.apply_gradients(ops.reshape(grad_output, self.unpack_saved_data()["original_shape"]))


class EmbeddingBackwardContext(FunctionContext):
    """Rows of a table (V, E) by ids: the table's gradient is the sum of the rows' gradients for each id. Invalid ids contribute nothing."""

    def __init__(self, weight_param: Tensor, input_ids: Any) -> None:
        super().__init__(weight_param)
        self.save_for_backward(shape=tuple(weight_param.shape), ids=valid_ids(input_ids, weight_param.shape[0]))

    def backward(self, grad_output: Tensor) -> None:
        """Applies the gradient of the table."""
        saved = self.unpack_saved_data()
        (rows, width), ids = saved["shape"], saved["ids"].reshape(-1)
        places = ops.expand(ops.unsqueeze(tensor(ids, device=grad_output.device), 1), (len(ids), width))
        into = _full((rows, width), 0.0, grad_output.dtype, grad_output.device)
        # The id -1 adds nothing, so it must not raise an error.
        before = plain_operations(True)
        try:
            gradient = ops.scatter_add(into, places, ops.reshape(grad_output, (len(ids), width)), 0)
        finally:
            plain_operations(before)
        self.apply_gradients(gradient)


__all__ = [
    "AddBackwardContext", "AddBroadcastPEBackwardContext", "BatchedTransposeLastTwoBackwardContext", "EmbeddingBackwardContext", "GeluBackwardContext",
    "LayerNormBackwardContext", "LayerNormBackwardContextRevised", "MatMulBackwardContext", "MatMulBatchedBackwardContext", "MulBackwardContext",
    "ReshapeBackwardContext", "ScalarMulBackwardContext", "SoftmaxBackwardContext", "Transpose12BatchedBackwardContext", "TransposeBackwardContext",
    "TransposeCPUFallbackBackwardContext",
]  # fmt: skip
