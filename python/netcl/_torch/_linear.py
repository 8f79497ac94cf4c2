"""Products of vectors and matrices with PyTorch's names, and the namespace ``linalg``."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, Optional, Sequence

from .. import ops
from .._methods import place
from .._netcl import Tensor, full
from ..errors import UnsupportedError
from ._apply import Dims, Number, dims_of, flat, floating, only, promoted
from ._reduce import amax, amin, sum, vector_norm
from ._shape import diagonal


def _ranks(name: str, *given: Any) -> None:
    for x, rank in given:
        if x.ndim != rank:
            raise RuntimeError(f"{name}: got a tensor with {x.ndim} axes, expected {rank}")


def matmul(input: Tensor, other: Tensor, *, out: Any = None) -> Tensor:
    """Computes a matrix product. A vector is a row on the left and a column on the right."""
    only("matmul", out)
    return input @ other


def mm(input: Tensor, mat2: Tensor) -> Tensor:
    """Computes the product of two matrices."""
    _ranks("mm", (input, 2), (mat2, 2))
    return input @ mat2


def bmm(input: Tensor, mat2: Tensor) -> Tensor:
    """Computes the products of two batches of matrices."""
    _ranks("bmm", (input, 3), (mat2, 3))
    if input.shape[0] != mat2.shape[0]:
        raise RuntimeError(f"bmm: got batches of {input.shape[0]} and {mat2.shape[0]} matrices")
    return input @ mat2


def mv(input: Tensor, vec: Tensor) -> Tensor:
    """Computes the product of a matrix and a vector."""
    _ranks("mv", (input, 2), (vec, 1))
    return input @ vec


def dot(input: Tensor, tensor: Tensor) -> Tensor:
    """Computes the inner product of two vectors."""
    _ranks("dot", (input, 1), (tensor, 1))
    if input.shape != tensor.shape:
        raise RuntimeError(f"dot: got vectors of {input.shape[0]} and {tensor.shape[0]} elements")
    return sum(input * tensor)


def inner(input: Tensor, other: Tensor) -> Tensor:
    """Computes inner products over the last axes."""
    if not input.ndim or not other.ndim:
        return input * other
    return tensordot(input, other, dims=([-1], [-1]))


def outer(input: Tensor, vec2: Tensor) -> Tensor:
    """Computes the products of all pairs of elements of two vectors."""
    _ranks("outer", (input, 1), (vec2, 1))
    return ops.unsqueeze(input, 1) * ops.unsqueeze(vec2, 0)


def _scaled(x: Tensor, factor: Number) -> Tensor:
    return x if factor == 1 else x * factor


def _plus(name: str, input: Tensor, product: Tensor, beta: Number, alpha: Number) -> Tensor:
    made = _scaled(product, alpha)
    if beta == 0:
        # The input does not count, even if it has NaN, but has a gradient of 0.
        return made + flat(name, [input], full((), 0.0, made.dtype, made.device))
    result = _scaled(input, beta) + made
    if tuple(result.shape) != tuple(product.shape):
        raise RuntimeError(f"{name}: input has shape {tuple(input.shape)}, which does not broadcast to {tuple(product.shape)}")
    return result


def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    """Computes ``beta * input + alpha * mat1 @ mat2``."""
    return _plus("addmm", input, mm(mat1, mat2), beta, alpha)


def addmv(input: Tensor, mat: Tensor, vec: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    """Computes ``beta * input + alpha * mat @ vec``."""
    return _plus("addmv", input, mv(mat, vec), beta, alpha)


def addr(input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    """Computes ``beta * input + alpha * outer(vec1, vec2)``."""
    return _plus("addr", input, outer(vec1, vec2), beta, alpha)


def baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    """Computes ``beta * input + alpha * batch1 @ batch2`` for batches of matrices."""
    return _plus("baddbmm", input, bmm(batch1, batch2), beta, alpha)


def addbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    """Computes ``beta * input + alpha`` times the sum of all products of a batch."""
    return _plus("addbmm", input, sum(bmm(batch1, batch2), 0), beta, alpha)


def tensordot(a: Tensor, b: Tensor, dims: Any = 2) -> Tensor:
    """Sums products over axes: the last ``dims`` of ``a`` and the first of ``b``, or two lists of axes."""
    if isinstance(dims, Tensor):
        dims = dims.tolist()
    if isinstance(dims, int):
        first, second = list(range(a.ndim - dims, a.ndim)), list(range(dims))
    else:
        first, second = ([d] if isinstance(d, int) else list(d) for d in dims)
    first, second = [place("tensordot", d, a.ndim) for d in first], [place("tensordot", d, b.ndim) for d in second]
    if [a.shape[d] for d in first] != [b.shape[d] for d in second]:
        raise RuntimeError(f"tensordot: the axes {first} of {tuple(a.shape)} and {second} of {tuple(b.shape)} differ in size")
    left, right = [d for d in range(a.ndim) if d not in first], [d for d in range(b.ndim) if d not in second]
    shape = [a.shape[d] for d in left] + [b.shape[d] for d in right]
    n = math.prod(a.shape[d] for d in first)
    x = ops.reshape(ops.permute(a, left + first), (math.prod(a.shape[d] for d in left), n)) if a.ndim else ops.reshape(a, (1, 1))
    y = ops.reshape(ops.permute(b, second + right), (n, math.prod(b.shape[d] for d in right))) if b.ndim else ops.reshape(b, (1, 1))
    return ops.reshape(x @ y, shape)


def einsum(equation: Any, *operands: Any) -> Tensor:
    """Sums products by a formula of letters: ``einsum("bij,bjk->bik", a, b)``."""
    if not isinstance(equation, str):
        # netcl's own order: tensors, then the formula.
        if len(operands) == 1 and isinstance(operands[0], str):
            return ops.einsum(list(equation), operands[0])
        raise UnsupportedError("einsum: lists of axes are not supported; write the formula as text, such as 'ij,jk->ik'")
    given = operands[0] if len(operands) == 1 and not isinstance(operands[0], Tensor) else operands
    return ops.einsum(list(given), equation.replace(" ", ""))


def kron(input: Tensor, other: Tensor) -> Tensor:
    """Computes the Kronecker product."""
    rank = max(input.ndim, other.ndim)
    a, b = ((1,) * (rank - x.ndim) + tuple(x.shape) for x in (input, other))
    x = ops.reshape(input, [n for size in a for n in (size, 1)])
    y = ops.reshape(other, [n for size in b for n in (1, size)])
    return ops.reshape(x * y, [n * m for n, m in zip(a, b)])


def chain_matmul(*matrices: Tensor) -> Tensor:
    """Computes the product of several matrices."""
    return multi_dot(list(matrices))


def multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """Computes the product of several matrices, from the left."""
    made = tensors[0]
    for each in tensors[1:]:
        made = made @ each
    return made


def matrix_power(input: Tensor, n: int) -> Tensor:
    """Multiplies a square matrix ``n`` times with itself."""
    if input.ndim < 2 or input.shape[-1] != input.shape[-2]:
        raise RuntimeError(f"matrix_power: got shape {tuple(input.shape)}, expected square matrices")
    if n < 0:
        raise UnsupportedError("matrix_power: negative powers are not supported; write numpy.linalg.inv(x.numpy())")
    from .._create import eye

    made, power = None, input
    while n:
        made = power if made is None and n & 1 else made @ power if n & 1 and made is not None else made
        power, n = (power @ power if n > 1 else power), n >> 1
    if made is not None:
        return made
    return flat("matrix_power", [input], eye(input.shape[-1], dtype=input.dtype, device=input.device).expand(tuple(input.shape)).clone())


def cross(input: Tensor, other: Tensor, dim: Optional[int] = None) -> Tensor:
    """Computes cross products of vectors of 3 elements along an axis [default: the first of size 3]."""
    from ._shape import broadcast_tensors, roll

    a, b = broadcast_tensors(input, other)
    at = next((d for d, n in enumerate(a.shape) if n == 3), None) if dim is None else place("cross", dim, a.ndim)
    if at is None or a.shape[at] != 3:
        raise RuntimeError(f"cross: got shape {tuple(a.shape)}, expected an axis of size 3")
    a, b = ops.contiguous(a), ops.contiguous(b)
    return roll(a, -1, at) * roll(b, -2, at) - roll(a, -2, at) * roll(b, -1, at)


def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str = "use_mm_for_euclid_dist_if_necessary") -> Tensor:
    """Computes the distances of all pairs of rows: (.., P, M) and (.., R, M) give (.., P, R)."""
    if x1.ndim < 2 or x2.ndim < 2 or x1.shape[-1] != x2.shape[-1]:
        raise RuntimeError(f"cdist: got shapes {tuple(x1.shape)} and {tuple(x2.shape)}, expected rows of one size")
    apart = ops.unsqueeze(floating(x1), x1.ndim - 1) - ops.unsqueeze(floating(x2), x2.ndim - 2)
    return vector_norm(apart, float(p), -1)


def _matrix_norm(A: Tensor, ord: Any = "fro", dim: Sequence[int] = (-2, -1), keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """Computes the norm of matrices: ``"fro"``, 1, -1, infinity or -infinity."""
    rows, columns = dims_of("matrix_norm", A, dim)
    if ord == "fro":
        return vector_norm(A, 2.0, (rows, columns), keepdim, dtype=dtype)
    if ord not in (1, -1, math.inf, -math.inf):
        raise UnsupportedError(f"matrix_norm: ord={ord!r} is not supported; write numpy.linalg.norm(x.numpy(), {ord!r})")
    over, then = (rows, columns) if abs(ord) == 1 else (columns, rows)
    totals = sum(ops.abs(A), over, True)
    made = (amax if ord > 0 else amin)(totals, then, True)
    return made if keepdim else ops.reshape(made, tuple(n for d, n in enumerate(A.shape) if d not in (rows, columns)))


def _linalg_norm(A: Tensor, ord: Any = None, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """Computes the norm of a vector or of matrices; without ``ord``, of all elements."""
    matrix = (dim is not None and not isinstance(dim, int) and len(dim) == 2) or (dim is None and A.ndim == 2)
    if ord is None or (ord == "fro" and dim is None and A.ndim == 2):
        return vector_norm(A, 2.0, dim, keepdim, dtype=dtype)
    if matrix:
        return _matrix_norm(A, ord, (0, 1) if dim is None else dim, keepdim, dtype=dtype)  # type: ignore[arg-type]
    if isinstance(ord, str):
        raise RuntimeError(f"linalg.norm: ord={ord!r} is for matrices, got shape {tuple(A.shape)}")
    return vector_norm(A, float(ord), dim, keepdim, dtype=dtype)


def _vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    return sum(x * y, dim)


def _linalg_diagonal(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    return diagonal(A, offset, dim1, dim2)


class _Linalg(SimpleNamespace):
    """Functions of ``torch.linalg`` that tensor operations give."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(f"linalg.{name} is not available; write netcl.tensor(numpy.linalg.{name}(x.numpy())), which does not have a gradient")


def _linalg_cross(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    return cross(input, other, dim)


linalg: Any = _Linalg(
    norm=_linalg_norm, vector_norm=vector_norm, matrix_norm=_matrix_norm, matmul=matmul, multi_dot=multi_dot, matrix_power=matrix_power,
    cross=_linalg_cross, vecdot=_vecdot, diagonal=_linalg_diagonal,
)  # fmt: skip


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """Computes the cosine of the angle between vectors along an axis. Norms count as at least ``eps``."""
    from ._shape import broadcast_tensors

    a, b = promoted(*broadcast_tensors(x1, x2))
    if not a.dtype.is_floating_point:
        raise UnsupportedError(f"cosine_similarity: got tensors of {x1.dtype} and {x2.dtype}; write x1.float()")
    at = place("cosine_similarity", dim, a.ndim)
    a, b = (x / _limited(vector_norm(x, 2.0, at, True), eps) for x in (a, b))
    return sum(a * b, at)


def _limited(size: Tensor, least: float) -> Tensor:
    """Returns ``max(size, least)`` with the gradient of ``size``."""
    return size + ops.relu(least - size.detach())
