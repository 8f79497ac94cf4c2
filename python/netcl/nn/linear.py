"""Linear layers, tables of embeddings, and changes of shape."""

from __future__ import annotations

import math
from typing import Any, Optional, Sequence, Tuple

from .. import functional as F
from .. import ops
from .._create import default_generator
from .._methods import place
from .._netcl import Tensor
from ..autograd import no_grad
from ..errors import ShapeError
from .module import Module
from .parameter import Parameter


def uniform(shape: Tuple[int, ...], bound: float, device: Any, dtype: Any) -> Parameter:
    """Draws a parameter from -bound to bound."""
    return Parameter(default_generator.uniform(shape, -bound, bound, dtype, device))


def normal(shape: Tuple[int, ...], std: float, device: Any, dtype: Any) -> Parameter:
    """Draws a parameter with mean 0 and a standard deviation."""
    return Parameter(default_generator.normal(shape, 0.0, std, dtype, device))


def redraw(parameter: Optional[Tensor], bound: float) -> None:
    """Overwrites a parameter with values from -bound to bound."""
    if parameter is not None:
        with no_grad():
            parameter.copy_(default_generator.uniform(parameter.shape, -bound, bound, parameter.dtype, parameter.device))


class Identity(Module):
    """Returns its input. Arguments of the constructor are ignored."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Any) -> Any:
        """Returns the input."""
        return input


class Linear(Module):
    """Computes ``x weightᵀ + bias`` with x (.., in), weight (out, in), bias (out). Initial values are uniform within 1/√in, as in PyTorch."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        bound = 1 / math.sqrt(in_features) if in_features else 0.0
        self.weight = uniform((out_features, in_features), bound, device, dtype)
        self.register_parameter("bias", uniform((out_features,), bound, device, dtype) if bias else None)

    def reset_parameters(self) -> None:
        """Draws the initial values again."""
        bound = 1 / math.sqrt(self.in_features) if self.in_features else 0.0
        redraw(self.weight, bound)
        redraw(self.bias, bound)

    def forward(self, input: Tensor) -> Tensor:
        """Applies the layer to the last axis."""
        return F.linear(input, self.weight, self.bias) if input.ndim < 2 else ops.linear(input, self.weight.T, self.bias)

    def extra_repr(self) -> str:
        """Returns the sizes."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class Bilinear(Module):
    """Computes ``x1ᵀ W x2 + bias`` for each output: inputs (.., in1) and (.., in2), weight (out, in1, in2). Initial values are within 1/√in1."""

    def __init__(self, in1_features: int, in2_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        if in1_features <= 0:
            raise ValueError(f"Bilinear: in1_features is {in1_features}, expected more than 0")
        self.in1_features, self.in2_features, self.out_features = in1_features, in2_features, out_features
        bound = 1 / math.sqrt(in1_features)
        self.weight = uniform((out_features, in1_features, in2_features), bound, device, dtype)
        self.register_parameter("bias", uniform((out_features,), bound, device, dtype) if bias else None)

    def reset_parameters(self) -> None:
        """Draws the initial values again."""
        redraw(self.weight, 1 / math.sqrt(self.in1_features))
        redraw(self.bias, 1 / math.sqrt(self.in1_features))

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        """Returns (.., out)."""
        return F.bilinear(input1, input2, self.weight, self.bias)

    def extra_repr(self) -> str:
        """Returns the sizes."""
        return f"in1_features={self.in1_features}, in2_features={self.in2_features}, out_features={self.out_features}, bias={self.bias is not None}"


def _table(name: str, rows: int, width: int, given: Optional[Tensor], std: float, padding: Optional[int], device: Any, dtype: Any) -> Parameter:
    """Returns a given table, or a new one whose row ``padding`` is 0."""
    if given is not None:
        if tuple(given.shape) != (rows, width):
            raise ShapeError(f"{name}: _weight has shape {tuple(given.shape)}, expected {(rows, width)}")
        return given if isinstance(given, Parameter) else Parameter(given)
    made = normal((rows, width), std, device, dtype)
    if padding is not None:
        with no_grad():
            made[padding] = 0.0
    return made


class Embedding(Module):
    """Looks up rows of a table: ids of any shape → the ids' shape with a last axis of size ``embedding_dim``. The row ``padding_idx`` starts with 0 and
    does not get a gradient. Other initial values have mean 0 and standard deviation ``std``.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: Optional[int] = None,
        max_norm: Optional[float] = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Optional[Tensor] = None,
        _freeze: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        std: float = 1.0,
    ) -> None:
        super().__init__()
        from ..functional._embedding import refuse_options, row_of

        refuse_options("Embedding", max_norm, scale_grad_by_freq, sparse)
        self.num_embeddings, self.embedding_dim, self.padding_idx = num_embeddings, embedding_dim, row_of("Embedding", padding_idx, num_embeddings)
        self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse = max_norm, norm_type, scale_grad_by_freq, sparse
        self.weight = _table("Embedding", num_embeddings, embedding_dim, _weight, std, self.padding_idx, device, dtype)
        if _freeze:
            self.weight.requires_grad = False

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Tensor,
        freeze: bool = True,
        padding_idx: Optional[int] = None,
        max_norm: Optional[float] = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> "Embedding":
        """Creates the layer with the rows (V, C) of a tensor."""
        rows, width = embeddings.shape
        return cls(rows, width, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse, embeddings, freeze)

    def reset_parameters(self) -> None:
        """Draws initial values with standard deviation 1 again."""
        with no_grad():
            self.weight.copy_(default_generator.normal(self.weight.shape, 0.0, 1.0, self.weight.dtype, self.weight.device))
            if self.padding_idx is not None:
                self.weight[self.padding_idx] = 0.0

    def forward(self, input: Tensor) -> Tensor:
        """Returns the rows."""
        return F.embedding(input, self.weight, self.padding_idx)

    def extra_repr(self) -> str:
        """Returns the sizes."""
        return f"{self.num_embeddings}, {self.embedding_dim}" + ("" if self.padding_idx is None else f", padding_idx={self.padding_idx}")


class EmbeddingBag(Module):
    """Computes sums, means or maxima of rows of a table. See ``functional.embedding_bag``."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: Optional[float] = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        _weight: Optional[Tensor] = None,
        include_last_offset: bool = False,
        padding_idx: Optional[int] = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        from ..functional._embedding import refuse_options, row_of

        refuse_options("EmbeddingBag", max_norm, scale_grad_by_freq, sparse)
        self.num_embeddings, self.embedding_dim, self.mode = num_embeddings, embedding_dim, mode
        self.include_last_offset, self.padding_idx = include_last_offset, row_of("EmbeddingBag", padding_idx, num_embeddings)
        self.weight = _table("EmbeddingBag", num_embeddings, embedding_dim, _weight, 1.0, self.padding_idx, device, dtype)

    def forward(self, input: Tensor, offsets: Optional[Tensor] = None, per_sample_weights: Optional[Tensor] = None) -> Tensor:
        """Returns (B, C): one row for each bag."""
        return F.embedding_bag(
            input, self.weight, offsets, mode=self.mode, per_sample_weights=per_sample_weights, include_last_offset=self.include_last_offset,
            padding_idx=self.padding_idx,
        )  # fmt: skip

    def extra_repr(self) -> str:
        """Returns the sizes."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}, mode={self.mode!r}{padding}"


class Flatten(Module):
    """Merges axes ``start_dim`` to ``end_dim`` into one."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, input: Tensor) -> Tensor:
        """Returns the same elements."""
        return input.flatten(self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        """Returns the axes."""
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Unflatten(Module):
    """Divides an axis into several. One size may be -1 and is then inferred."""

    def __init__(self, dim: int, unflattened_size: Sequence[int]) -> None:
        super().__init__()
        if not isinstance(dim, int) or not all(isinstance(n, int) for n in unflattened_size):
            raise TypeError("Unflatten: expected the number of an axis and sizes; tensors do not have names of axes")
        self.dim, self.unflattened_size = dim, tuple(unflattened_size)

    def forward(self, input: Tensor) -> Tensor:
        """Returns the same elements."""
        axis, sizes = place("Unflatten", self.dim, input.ndim), list(self.unflattened_size)
        if sizes.count(-1) == 1:
            known = -math.prod(sizes)
            sizes[sizes.index(-1)] = input.shape[axis] // known if known else 0
        if math.prod(sizes) != input.shape[axis] or min(sizes) < 0:
            raise ShapeError(f"Unflatten: axis {self.dim} of shape {tuple(input.shape)} does not have {self.unflattened_size} elements")
        return input.reshape(*input.shape[:axis], *sizes, *input.shape[axis + 1 :])

    def extra_repr(self) -> str:
        """Returns axis and sizes."""
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"


class CosineSimilarity(Module):
    """Cosine of the angle between vectors along an axis."""

    def __init__(self, dim: int = 1, eps: float = 1e-8) -> None:
        super().__init__()
        self.dim, self.eps = dim, eps

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        """Returns the cosines."""
        return F.cosine_similarity(x1, x2, self.dim, self.eps)


class PairwiseDistance(Module):
    """p-norm of ``x1 - x2 + eps`` over the last axis."""

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> None:
        super().__init__()
        self.norm, self.eps, self.keepdim = p, eps, keepdim

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        """Returns the distances."""
        return F.pairwise_distance(x1, x2, self.norm, self.eps, self.keepdim)


__all__ = ["Bilinear", "CosineSimilarity", "Embedding", "EmbeddingBag", "Flatten", "Identity", "Linear", "PairwiseDistance", "Unflatten"]
