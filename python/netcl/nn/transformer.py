"""Transformers with PyTorch's layers and parameters (Vaswani et al. 2017)."""

from __future__ import annotations

import copy
import math
from typing import Any, Callable, Optional, Union

from .. import functional as F
from .. import ops
from .._create import ones
from .._netcl import Tensor
from .._netcl import full as _full
from ..autograd import no_grad
from ..errors import ShapeError
from .attention import MultiheadAttention
from .containers import ModuleList
from .dropout import Dropout
from .linear import Linear, redraw
from .module import Module
from .norm import LayerNorm

Activation = Union[str, Callable[[Tensor], Tensor]]


def _activation(given: Activation) -> Callable[[Tensor], Tensor]:
    if isinstance(given, str):
        if given not in ("relu", "gelu"):
            raise ValueError(f"transformer: activation is {given!r}, expected 'relu', 'gelu' or a function")
        return F.relu if given == "relu" else F.gelu
    return given


class _Layer(Module):
    """Parts that layers of encoders and decoders share."""

    def _begin(
        self, width: int, heads: int, hidden: int, dropout: float, activation: Activation, batch_first: bool, norm_first: bool, bias: bool, device: Any, dtype: Any
    ) -> None:
        self.self_attn = MultiheadAttention(width, heads, dropout, bias, batch_first=batch_first, device=device, dtype=dtype)
        self.norm_first = norm_first
        self.activation = _activation(activation)

    def _feed_forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.linear2(self.dropout(self.activation(self.linear1(x))))
        return made


class TransformerEncoderLayer(_Layer):
    """Self-attention and a feed-forward layer, each added to its input: (S, N, E), or (N, S, E) if ``batch_first``."""

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = F.relu,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self._begin(d_model, nhead, dim_feedforward, dropout, activation, batch_first, norm_first, bias, device, dtype)
        self.linear1 = Linear(d_model, dim_feedforward, bias, device, dtype)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, device, dtype)
        self.norm1, self.norm2 = (LayerNorm(d_model, layer_norm_eps, bias=bias, device=device, dtype=dtype) for _ in range(2))
        self.dropout1, self.dropout2 = Dropout(dropout), Dropout(dropout)

    def _attend(self, x: Tensor, mask: Optional[Tensor], padding: Optional[Tensor], is_causal: bool) -> Tensor:
        made: Tensor = self.dropout1(self.self_attn(x, x, x, padding, False, mask, is_causal=is_causal)[0])
        return made

    def forward(
        self, src: Tensor, src_mask: Optional[Tensor] = None, src_key_padding_mask: Optional[Tensor] = None, is_causal: bool = False
    ) -> Tensor:
        """Returns the same shape. ``is_causal`` says that ``src_mask`` is the causal mask."""
        x = src
        if self.norm_first:
            x = x + self._attend(self.norm1(x), src_mask, src_key_padding_mask, is_causal)
            return x + self.dropout2(self._feed_forward(self.norm2(x)))  # type: ignore[no-any-return]
        x = self.norm1(x + self._attend(x, src_mask, src_key_padding_mask, is_causal))
        made: Tensor = self.norm2(x + self.dropout2(self._feed_forward(x)))
        return made


class TransformerDecoderLayer(_Layer):
    """Self-attention, attention to ``memory``, and a feed-forward layer: (T, N, E) and (S, N, E), or with N first if ``batch_first``."""

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = F.relu,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self._begin(d_model, nhead, dim_feedforward, dropout, activation, batch_first, norm_first, bias, device, dtype)
        self.multihead_attn = MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first, device=device, dtype=dtype)
        self.linear1 = Linear(d_model, dim_feedforward, bias, device, dtype)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, device, dtype)
        self.norm1, self.norm2, self.norm3 = (LayerNorm(d_model, layer_norm_eps, bias=bias, device=device, dtype=dtype) for _ in range(3))
        self.dropout1, self.dropout2, self.dropout3 = Dropout(dropout), Dropout(dropout), Dropout(dropout)

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Optional[Tensor] = None,
        memory_mask: Optional[Tensor] = None,
        tgt_key_padding_mask: Optional[Tensor] = None,
        memory_key_padding_mask: Optional[Tensor] = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """Returns the shape of ``tgt``."""

        def attend(x: Tensor) -> Tensor:
            return self.dropout1(self.self_attn(x, x, x, tgt_key_padding_mask, False, tgt_mask, is_causal=tgt_is_causal)[0])  # type: ignore[no-any-return]

        def look(x: Tensor) -> Tensor:
            found = self.multihead_attn(x, memory, memory, memory_key_padding_mask, False, memory_mask, is_causal=memory_is_causal)[0]
            return self.dropout2(found)  # type: ignore[no-any-return]

        x = tgt
        if self.norm_first:
            x = x + attend(self.norm1(x))
            x = x + look(self.norm2(x))
            return x + self.dropout3(self._feed_forward(self.norm3(x)))  # type: ignore[no-any-return]
        x = self.norm1(x + attend(x))
        x = self.norm2(x + look(x))
        made: Tensor = self.norm3(x + self.dropout3(self._feed_forward(x)))
        return made


class TransformerEncoder(Module):
    """``num_layers`` copies of an encoder layer. PyTorch's results at padded positions are 0 in evaluation without gradients; here they are those of
    training. ``enable_nested_tensor`` and ``mask_check`` have no effect.
    """

    def __init__(
        self, encoder_layer: Module, num_layers: int, norm: Optional[Module] = None, enable_nested_tensor: bool = True, mask_check: bool = True
    ) -> None:
        super().__init__()
        self.layers = ModuleList(copy.deepcopy(encoder_layer) for _ in range(num_layers))
        self.num_layers = num_layers
        self.norm = norm

    def forward(
        self, src: Tensor, mask: Optional[Tensor] = None, src_key_padding_mask: Optional[Tensor] = None, is_causal: Optional[bool] = None
    ) -> Tensor:
        """Returns the same shape."""
        x = src
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=bool(is_causal), src_key_padding_mask=src_key_padding_mask)
        return x if self.norm is None else self.norm(x)


class TransformerDecoder(Module):
    """``num_layers`` copies of a decoder layer."""

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Optional[Module] = None) -> None:
        super().__init__()
        self.layers = ModuleList(copy.deepcopy(decoder_layer) for _ in range(num_layers))
        self.num_layers = num_layers
        self.norm = norm

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Optional[Tensor] = None,
        memory_mask: Optional[Tensor] = None,
        tgt_key_padding_mask: Optional[Tensor] = None,
        memory_key_padding_mask: Optional[Tensor] = None,
        tgt_is_causal: Optional[bool] = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """Returns the shape of ``tgt``."""
        x = tgt
        for layer in self.layers:
            x = layer(
                x, memory, tgt_mask=tgt_mask, memory_mask=memory_mask, tgt_key_padding_mask=tgt_key_padding_mask,
                memory_key_padding_mask=memory_key_padding_mask, tgt_is_causal=bool(tgt_is_causal), memory_is_causal=memory_is_causal,
            )  # fmt: skip
        return x if self.norm is None else self.norm(x)


class Transformer(Module):
    """An encoder and a decoder: src (S, N, E) and tgt (T, N, E), or with N first if ``batch_first``."""

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = F.relu,
        custom_encoder: Optional[Any] = None,
        custom_decoder: Optional[Any] = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        options = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias, device, dtype)
        norms = [LayerNorm(d_model, layer_norm_eps, bias=bias, device=device, dtype=dtype) for _ in range(2)]
        self.encoder: Any = custom_encoder
        if custom_encoder is None:
            self.encoder = TransformerEncoder(TransformerEncoderLayer(*options), num_encoder_layers, norms[0])
        self.decoder: Any = custom_decoder
        if custom_decoder is None:
            self.decoder = TransformerDecoder(TransformerDecoderLayer(*options), num_decoder_layers, norms[1])
        self._reset_parameters()
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first

    def _reset_parameters(self) -> None:
        for parameter in self.parameters():
            if parameter.ndim > 1:
                redraw(parameter, math.sqrt(6 / (parameter.shape[0] + parameter.shape[1])))

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: Optional[Tensor] = None,
        tgt_mask: Optional[Tensor] = None,
        memory_mask: Optional[Tensor] = None,
        src_key_padding_mask: Optional[Tensor] = None,
        tgt_key_padding_mask: Optional[Tensor] = None,
        memory_key_padding_mask: Optional[Tensor] = None,
        src_is_causal: Optional[bool] = None,
        tgt_is_causal: Optional[bool] = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """Returns the shape of ``tgt``."""
        batch = 0 if self.batch_first else 1
        if src.ndim != tgt.ndim or src.ndim == 3 and src.shape[batch] != tgt.shape[batch] or src.shape[-1] != self.d_model or tgt.shape[-1] != self.d_model:
            raise ShapeError(f"Transformer: src has shape {tuple(src.shape)} and tgt {tuple(tgt.shape)}, expected the same batch and width {self.d_model}")
        memory = self.encoder(src, mask=src_mask, src_key_padding_mask=src_key_padding_mask, is_causal=src_is_causal)
        made: Tensor = self.decoder(
            tgt, memory, tgt_mask=tgt_mask, memory_mask=memory_mask, tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask, tgt_is_causal=tgt_is_causal, memory_is_causal=memory_is_causal,
        )  # fmt: skip
        return made

    @staticmethod
    def generate_square_subsequent_mask(sz: int, device: Any = None, dtype: Any = None) -> Tensor:
        """Returns a mask (sz, sz) of 0, and of -infinity for later keys."""
        with no_grad():
            seen = ops.tril(ones(sz, sz, device=device))
            return ops.masked_fill(_full((sz, sz), 0.0, dtype or "float32", device), seen == 0, float("-inf"))


__all__ = ["Transformer", "TransformerDecoder", "TransformerDecoderLayer", "TransformerEncoder", "TransformerEncoderLayer"]
