"""Layers of language models that PyTorch does not have."""

from __future__ import annotations

import math
from typing import Any, Optional, Tuple

from .. import ops
from .._create import default_generator
from .._netcl import Tensor
from ..autograd import no_grad
from ..errors import ShapeError
from .activation import GELU
from .containers import ModuleList
from .dropout import Dropout
from .linear import Embedding, Linear, normal
from .module import Module
from .norm import LayerNorm


class SinusoidalPositions(Module):
    """Adds sines and cosines of the positions (Vaswani et al. 2017): x (B, T, C) with up to ``length`` tokens."""

    def __init__(self, length: int, width: int, device: Any = None) -> None:
        super().__init__()
        from .._host import from_lists

        def place(t: int, c: int) -> float:
            angle = t / 10000 ** (2 * (c // 2) / width)
            return math.cos(angle) if c % 2 else math.sin(angle)

        self.register_buffer("table", from_lists([[place(t, c) for c in range(width)] for t in range(length)], None, device))

    def forward(self, x: Tensor) -> Tensor:
        """Returns x with the positions added."""
        table: Tensor = self.table
        return x + table[: x.shape[1]]


class LearnedPositions(Module):
    """Adds a trained vector for each position: x (B, T, C) with up to ``length`` tokens."""

    def __init__(self, length: int, width: int, std: float = 0.02, dtype: Any = None, device: Any = None) -> None:
        super().__init__()
        self.weight = normal((length, width), std, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Returns x with the positions added."""
        return x + self.weight[: x.shape[1]]


class RotaryPositions(Module):
    """Rotates heads by their positions (Su et al. 2021): packed rows (B, T, N), of which the first ``heads`` of ``size`` elements are rotated."""

    def __init__(self, length: int, heads: int, size: int, base: float = 10000.0, device: Any = None) -> None:
        super().__init__()
        from .._host import from_lists

        self.heads, self.size = heads, size
        angles = [[t / base ** (2 * i / size) for i in range(size // 2)] for t in range(length)]
        self.register_buffer("cosines", from_lists([[math.cos(a) for a in row] for row in angles], None, device))
        self.register_buffer("sines", from_lists([[math.sin(a) for a in row] for row in angles], None, device))

    def forward(self, x: Tensor) -> Tensor:
        """Returns the rotated rows."""
        t = x.shape[1]
        return ops.rope(x, self.cosines[:t], self.sines[:t], heads=self.heads, size=self.size)


class MultiHeadAttention(Module):
    """Self-attention over x (B, T, C) with one packed projection. If ``kv_heads`` is less than ``heads``, queries share keys and values."""

    def __init__(
        self,
        width: int,
        heads: int,
        kv_heads: Optional[int] = None,
        causal: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
        rotary: Optional[int] = None,
        dtype: Any = None,
        device: Any = None,
    ) -> None:
        super().__init__()
        if width % heads:
            raise ShapeError(f"MultiHeadAttention: width {width} is not divisible by {heads} heads")
        self.heads, self.kv_heads, self.causal, self.dropout = heads, kv_heads or heads, causal, dropout
        size = width // heads
        packed = (heads + 2 * self.kv_heads) * size
        self.qkv = Linear(width, packed, bias, device, dtype)
        self.out = Linear(width, width, bias, device, dtype)
        turned = heads + self.kv_heads
        self.rotary = None if rotary is None else RotaryPositions(rotary, turned, size, device=device)

    def forward(self, x: Tensor) -> Tensor:
        """Returns (B, T, C)."""
        made: Tensor = self.out(self.heads_of(x))
        return made

    def heads_of(self, x: Tensor) -> Tensor:
        """Returns the heads' results (B, T, C), before the last projection."""
        packed: Tensor = self.qkv(x)
        if self.rotary is not None:
            packed = self.rotary(packed)
        dropped = self.dropout if self.training else 0.0
        seed = None if dropped else 0
        return ops.attention_qkv(packed, heads=self.heads, kv_heads=self.kv_heads, causal=self.causal, dropout=dropped, seed=seed)


class TransformerBlock(Module):
    """Attention and feed-forward layer over x (B, T, C), each after a norm and added to a residual stream."""

    def __init__(
        self, width: int, heads: int, hidden: Optional[int] = None, causal: bool = True, dropout: float = 0.0, dtype: Any = None, device: Any = None
    ) -> None:
        super().__init__()
        hidden = hidden or 4 * width
        self.norm1 = LayerNorm(width, dtype=dtype, device=device)
        self.attention = MultiHeadAttention(width, heads, causal=causal, dropout=dropout, dtype=dtype, device=device)
        self.norm2 = LayerNorm(width, dtype=dtype, device=device)
        self.up = Linear(width, hidden, dtype=dtype, device=device)
        self.act = GELU("tanh")
        self.down = Linear(hidden, width, dtype=dtype, device=device)
        self.drop = Dropout(dropout)

    def _fused(self) -> Optional[Tuple[Tensor, Tensor, Tensor]]:
        """Returns the biases of the projections if fused operations can compute the block: no dropout, no hook, no replaced layer."""
        if (self.training and self.drop.p > 0) or type(self.attention) is not MultiHeadAttention:
            return None
        layers, kinds = (self.norm1, self.norm2, self.act, self.attention.out, self.up, self.down), (LayerNorm, LayerNorm, GELU, Linear, Linear, Linear)
        if any(type(layer) is not kind for layer, kind in zip(layers, kinds)) or self.act.approximate != "tanh" or self.is_hooked():
            return None
        out, up, down = self.attention.out.bias, self.up.bias, self.down.bias
        return None if out is None or up is None or down is None else (out, up, down)

    def forward(self, x: Tensor) -> Tensor:
        """Returns (B, T, C)."""
        biases = self._fused()
        if biases is not None:
            out, up, down = biases
            x, h = ops.residual_layer_norm(x, self.norm1.weight, self.norm1.bias, self.norm1.eps)
            x = ops.linear_add(x, self.attention.heads_of(h), self.attention.out.weight.T, out)
            x, h = ops.residual_layer_norm(x, self.norm2.weight, self.norm2.bias, self.norm2.eps)
            return ops.feed_forward(x, h, self.up.weight.T, up, self.down.weight.T, down)
        x = x + self.drop(self.attention(self.norm1(x)))
        y: Tensor = x + self.drop(self.down(self.act(self.up(self.norm2(x)))))
        return y


class GPT(Module):
    """A GPT-2 style decoder: ids (B, T) → logits (B, T, V), or their loss if targets (B, T) are given. The output head is the embedding."""

    def __init__(self, vocab: int, length: int, layers: int, heads: int, width: int, dropout: float = 0.0, dtype: Any = None, device: Any = None) -> None:
        super().__init__()
        self.length = length
        self.tokens = Embedding(vocab, width, std=0.02, dtype=dtype, device=device)
        self.positions = LearnedPositions(length, width, dtype=dtype, device=device)
        self.blocks = ModuleList(
            TransformerBlock(width, heads, dropout=dropout, dtype=dtype, device=device) for _ in range(layers)
        )
        self.norm = LayerNorm(width, dtype=dtype, device=device)
        with no_grad():
            self._initialize(layers)

    def _initialize(self, layers: int) -> None:
        for name, parameter in self.named_parameters():
            if name.endswith(".bias") and "norm" not in name:
                parameter.zero_()
            elif parameter.ndim == 2 and "blocks" in name:
                # Projections into the residual stream accumulate over the layers.
                last = name.endswith(("out.weight", "down.weight"))
                std = 0.02 / math.sqrt(2 * layers) if last else 0.02
                parameter.copy_(default_generator.normal(parameter.shape, 0.0, std, parameter.dtype, parameter.device))

    def forward(self, ids: Tensor, targets: Optional[Tensor] = None) -> Tensor:
        """Returns the logits, or the mean loss."""
        x = self.positions(self.tokens(ids))
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        if targets is not None:
            return ops.linear_cross_entropy(x, self.tokens.weight, targets)
        logits: Tensor = x @ self.tokens.weight.T
        return logits


__all__ = ["GPT", "LearnedPositions", "MultiHeadAttention", "RotaryPositions", "SinusoidalPositions", "TransformerBlock"]
