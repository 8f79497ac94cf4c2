"""Multi-head attention with PyTorch's parameters."""

from __future__ import annotations

import math
from typing import Any, Optional, Tuple

from .. import functional as F
from .._create import default_generator, zeros
from .._netcl import Tensor
from ..autograd import no_grad
from .linear import Linear, uniform
from .module import Module
from .parameter import Parameter


class MultiheadAttention(Module):
    """Attention of ``num_heads`` heads: query (L, N, E), key (S, N, kdim) and value (S, N, vdim), with N first if ``batch_first``, or without N.
    Without ``need_weights``, it runs as one operation that stores no scores. ``MultiHeadAttention`` is netcl's own layer.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: Optional[int] = None,
        vdim: Optional[int] = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if embed_dim <= 0 or num_heads <= 0 or embed_dim % num_heads:
            raise ValueError(f"MultiheadAttention: embed_dim {embed_dim} is not divisible by {num_heads} heads")
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.kdim, self.vdim = embed_dim if kdim is None else kdim, embed_dim if vdim is None else vdim
        self.dropout, self.batch_first, self.add_zero_attn = dropout, batch_first, add_zero_attn
        self._qkv_same_embed_dim = self.kdim == self.vdim == embed_dim
        packed, widths = self._qkv_same_embed_dim, {"q": embed_dim, "k": self.kdim, "v": self.vdim}
        for name, width in widths.items():
            made = None if packed else uniform((embed_dim, width), math.sqrt(6 / (embed_dim + width)), device, dtype)
            self.register_parameter(f"{name}_proj_weight", made)
        joint = uniform((3 * embed_dim, embed_dim), math.sqrt(6 / (4 * embed_dim)), device, dtype) if packed else None
        self.register_parameter("in_proj_weight", joint)
        self.register_parameter("in_proj_bias", Parameter(zeros(3 * embed_dim, dtype=dtype, device=device)) if bias else None)
        self.out_proj = Linear(embed_dim, embed_dim, bias, device, dtype)
        if bias:
            with no_grad():
                self.out_proj.bias.zero_()
        for name in ("bias_k", "bias_v"):
            self.register_parameter(name, self._token(device, dtype) if add_bias_kv else None)

    def _token(self, device: Any, dtype: Any) -> Parameter:
        # The fans of (1, 1, E) are E and E.
        return Parameter(default_generator.normal((1, 1, self.embed_dim), 0.0, math.sqrt(2 / (1 * self.embed_dim + 1 * self.embed_dim)), dtype, device))

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Optional[Tensor] = None,
        need_weights: bool = True,
        attn_mask: Optional[Tensor] = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Returns the result, shaped as the query, and the weights (N, L, S) or ``None``. True in a mask leaves a key out, and numbers are added to
        the scores. ``is_causal`` says that ``attn_mask`` is the causal mask.
        """
        turned = self.batch_first and query.ndim == 3
        if turned:
            same_key, same_value = key is query, value is key
            query = query.transpose(0, 1)
            key = query if same_key else key.transpose(0, 1)
            value = key if same_value else value.transpose(0, 1)
        made, weights = F.multi_head_attention_forward(
            query, key, value, self.embed_dim, self.num_heads, self.in_proj_weight, self.in_proj_bias, self.bias_k, self.bias_v, self.add_zero_attn,
            self.dropout, self.out_proj.weight, self.out_proj.bias, self.training, key_padding_mask, need_weights, attn_mask,
            not self._qkv_same_embed_dim, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight, None, None, average_attn_weights, is_causal,
        )  # fmt: skip
        return (made.transpose(0, 1) if turned else made), weights


__all__ = ["MultiheadAttention"]
