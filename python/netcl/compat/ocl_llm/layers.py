"""Layers that take and return OclTensors, and the model."""

from __future__ import annotations

import math
from typing import Any, Dict, Iterator, List, Mapping, Tuple

import numpy as np

from ... import ops
from ..._create import default_generator
from ..._create import tensor as _tensor
from ..._netcl import Tensor
from ..._netcl import full as _full
from ...autograd import no_grad
from ...errors import FormatError, ShapeError
from .buffer import TableBuffer
from .contexts import EmbeddingBackwardContext
from .ids import valid_ids
from .tensor import OclTensor, Parameter, recorded


def _normal(shape: Tuple[int, ...], std: float) -> Parameter:
    return Parameter(default_generator.normal(shape, 0.0, std))


class Layer:
    """A layer. Its parameters are named by their attributes."""

    def named_parameters(self, prefix: str = "") -> Iterator[Tuple[str, Parameter]]:
        """Yields the parameters of this layer and nested layers by name."""
        for name, value in self.__dict__.items():
            place = f"{prefix}{name}"
            if isinstance(value, Parameter):
                yield place, value
            elif isinstance(value, Layer):
                yield from value.named_parameters(place + ".")
            elif isinstance(value, list):
                for i, each in enumerate(value):
                    if isinstance(each, Layer):
                        yield from each.named_parameters(f"{place}.{i}.")

    def parameters(self) -> List[Parameter]:
        """Returns all parameters."""
        return [p for _, p in self.named_parameters()]

    def free_memory(self) -> None:
        """Frees all parameters."""
        for parameter in self.parameters():
            parameter.free_memory()

    def state_dict(self) -> Dict[str, Any]:
        """Returns NumPy arrays by name."""
        return {name: p.to_host() for name, p in self.named_parameters()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Loads arrays from ``state_dict``. If a name or shape does not match, nothing is changed."""
        own = dict(self.named_parameters())
        if set(own) != set(state_dict):
            raise FormatError(f"load_state_dict: missing names {sorted(set(own) - set(state_dict))}, unknown names {sorted(set(state_dict) - set(own))}")
        for name, p in own.items():
            if tuple(np.shape(state_dict[name])) != tuple(p.shape):
                raise FormatError(f"load_state_dict: {name} has shape {np.shape(state_dict[name])}, expected {tuple(p.shape)}")
        with no_grad():
            for name, p in own.items():
                p.copy_(np.asarray(state_dict[name], dtype=np.float32))


class Linear(Layer):
    """Computes ``x W + b`` with W (in, out)."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        self.W = _normal((in_features, out_features), 1 / math.sqrt(in_features))
        self.b = Parameter(np.zeros(out_features, dtype=np.float32)) if bias else None

    def __call__(self, x: OclTensor) -> OclTensor:
        y = x.matmul(self.W)
        return y if self.b is None else y.add(self.b)


class Embedding(Layer):
    """Looks up rows of a table by token ids. An id outside of the table gives a row of zeros. The table is on the device, so the lookup needs no copy
    on the host.
    """

    def __init__(self, vocab_size: int, embed_dim: int) -> None:
        self.vocab_size, self.embed_dim = vocab_size, embed_dim
        self.weight_param = _normal((vocab_size, embed_dim), 0.02)
        self.weight_param._is_embedding_weight = True  # type: ignore[attr-defined]
        self.weight_param._associated_layer = self  # type: ignore[attr-defined]

    @property
    def weight_host(self) -> Any:
        """The table as an array that cannot be written to. It is read from the device, so it follows every step. Assigning an array overwrites the
        table.
        """
        values = self.weight_param.to_host()
        values.flags.writeable = False
        return values

    @weight_host.setter
    def weight_host(self, values: Any) -> None:
        with no_grad():
            self.weight_param.copy_(np.asarray(values, dtype=np.float32))

    def _rows(self, ids: Any) -> Tensor:
        table = self.weight_param
        inside = ids >= 0
        rows = ops.embedding(table, _tensor(np.where(inside, ids, 0), device=table.device))
        if inside.all():
            return rows
        mask = _tensor(np.broadcast_to(inside[..., None], rows.shape), device=table.device)
        return ops.where_cond(mask, rows, _full((), 0.0, rows.dtype, rows.device))

    def __call__(self, input_ids: Any) -> OclTensor:
        ids = valid_ids(input_ids, self.weight_param.shape[0])
        return recorded(lambda: self._rows(ids), EmbeddingBackwardContext, self.weight_param, input_ids=ids)  # type: ignore[no-any-return]


class GeLUActivation(Layer):
    """``x · Φ(x)``."""

    def __call__(self, x: OclTensor) -> OclTensor:
        return x.gelu()


class LayerNorm(Layer):
    """Normalizes rows to mean 0 and variance 1. It does not have parameters."""

    def __init__(self, embed_dim: int, eps: float = 1e-5) -> None:
        self.embed_dim, self.eps = embed_dim, eps

    def __call__(self, x: OclTensor) -> OclTensor:
        return x.layer_norm(self.eps)


class PositionalEncoding(Layer):
    """Adds sines and cosines of the positions to x (B, S, E). ``pe_gpu_full`` is the buffer of the whole table (max_len, E)."""

    def __init__(self, max_len: int, embed_dim: int) -> None:
        place = np.arange(max_len)[:, None] / 10000 ** (2 * (np.arange(embed_dim)[None] // 2) / embed_dim)
        self.pe_gpu_full = TableBuffer(np.where(np.arange(embed_dim) % 2, np.cos(place), np.sin(place)))

    def __call__(self, x: OclTensor) -> OclTensor:
        table, length = OclTensor(_gpu_buffer=self.pe_gpu_full, _shape=self.pe_gpu_full.shape), x.shape[-2]
        if length > table.shape[0]:
            raise ShapeError(f"PositionalEncoding: the sequence has {length} positions, max_len is {table.shape[0]}")
        return x.add(table[:length])

    def free_memory(self) -> None:
        """Frees the table."""
        self.pe_gpu_full.free()


def _added(mask: Any) -> OclTensor:
    """Returns a mask as a tensor that is added to scores."""
    kind = mask.dtype.name if isinstance(mask, Tensor) else np.asarray(mask).dtype.name
    if kind == "bool":
        raise FormatError("mask: expected numbers that are added to the scores, 0 for visible positions and -1e9 for hidden ones; got truth values")
    return mask if isinstance(mask, OclTensor) else OclTensor(mask)


class MultiHeadAttention(Layer):
    """Self-attention over x (B, T, C), with a mask (T, T) that is added to the scores."""

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        if embed_dim % num_heads:
            raise FormatError(f"MultiHeadAttention: width {embed_dim} is not divisible by {num_heads} heads")
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
        self.wq, self.wk, self.wv, self.wo = (Linear(embed_dim, embed_dim) for _ in range(4))

    def __call__(self, x: OclTensor, mask: Any = None) -> OclTensor:
        b, t, c = x.shape

        def heads(y: OclTensor) -> OclTensor:
            return y.reshape(b, t, self.num_heads, self.head_dim).transpose(1, 2).reshape(b * self.num_heads, t, self.head_dim)

        q, k, v = heads(self.wq(x)), heads(self.wk(x)), heads(self.wv(x))
        scores = q.matmul(k.transpose(1, 2)).mul_scalar(1 / math.sqrt(self.head_dim))
        if mask is not None:
            scores = scores.add(_added(mask))
        found = scores.softmax().matmul(v)
        return self.wo(found.reshape(b, self.num_heads, t, self.head_dim).transpose(1, 2).reshape(b, t, c))


class TransformerBlock(Layer):
    """Attention and feed-forward network, each after a norm and added to a residual stream."""

    def __init__(self, embed_dim: int, num_heads: int, d_ff: int) -> None:
        self.norm1, self.norm2 = LayerNorm(embed_dim), LayerNorm(embed_dim)
        self.attn = MultiHeadAttention(embed_dim, num_heads)
        self.ff1, self.ff2, self.act = Linear(embed_dim, d_ff), Linear(d_ff, embed_dim), GeLUActivation()

    def __call__(self, x: OclTensor, mask: Any = None) -> OclTensor:
        x = x.add(self.attn(self.norm1(x), mask))
        return x.add(self.ff2(self.act(self.ff1(self.norm2(x)))))


def causal_mask(length: int) -> OclTensor:
    """Returns a mask (T, T) that hides each position's successors: 0 for visible positions, -1e9 for hidden ones."""
    return OclTensor(np.triu(np.full((length, length), -1e9, dtype=np.float32), 1))


class SimpleModel(Layer):
    """A transformer. ``config`` has ``vocab_size``, ``max_len``, ``embed_dim``, ``num_heads``, ``d_ff`` and ``num_layers``. Computes logits (B, T, V)
    from token ids (B, T).
    """

    def __init__(self, config: Mapping[str, int]) -> None:
        self.config = dict(config)
        missing = [name for name in ("vocab_size", "max_len", "embed_dim", "num_heads", "d_ff", "num_layers") if name not in config]
        if missing:
            raise FormatError(f"SimpleModel: the config lacks {', '.join(missing)}")
        width = config["embed_dim"]
        self.embedding = Embedding(config["vocab_size"], width)
        self.positional = PositionalEncoding(config["max_len"], width)
        self.blocks = [TransformerBlock(width, config["num_heads"], config["d_ff"]) for _ in range(config["num_layers"])]
        self.norm = LayerNorm(width)
        self.output = Linear(width, config["vocab_size"])
        self.training = True

    def __call__(self, input_ids: Any, mask: Any = None) -> OclTensor:
        """Computes the logits. ``mask`` (T, T) is added to the attention scores [default: every position sees all others]. ``causal_mask(T)`` hides
        the positions that follow.
        """
        if np.ndim(input_ids) != 2:
            raise ShapeError(f"SimpleModel: the ids have shape {np.shape(input_ids)}, expected (B, T)")
        added = None if mask is None else _added(mask)
        x = self.positional(self.embedding(input_ids))
        for block in self.blocks:
            x = block(x, added)
        return self.output(self.norm(x))

    def train(self) -> "SimpleModel":
        """Has no effect, because the model does not have dropout."""
        self.training = True
        return self

    def eval(self) -> "SimpleModel":
        """Has no effect, because the model does not have dropout."""
        self.training = False
        return self

    def free_memory(self) -> None:
        """Frees the parameters and the table of positions."""
        super().free_memory()
        self.positional.free_memory()


__all__ = ["Embedding", "GeLUActivation", "Layer", "LayerNorm", "Linear", "MultiHeadAttention", "PositionalEncoding", "SimpleModel", "TransformerBlock", "causal_mask"]

