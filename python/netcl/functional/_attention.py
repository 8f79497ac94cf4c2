"""Attention."""

from __future__ import annotations

import math
from typing import Any, Optional, Tuple

from .. import ops
from .._create import ones, zeros
from .._dtype import bool_
from .._netcl import Tensor
from .._netcl import full as _full
from ..errors import ShapeError, UnsupportedError
from ._conv import linear
from ._dropout import dropout


def _additive(mask: Tensor, like: Tensor, hidden: bool) -> Tensor:
    """Converts a mask to numbers that are added to scores. ``hidden`` is the value that a mask of bool has where a score is left out."""
    if mask.dtype is bool_:
        out = mask if hidden else mask == False  # noqa: E712
        return ops.masked_fill(_full(tuple(mask.shape), 0.0, like.dtype, like.device), out, float("-inf"))
    if not mask.dtype.is_floating_point:
        raise ShapeError(f"attention: the mask is {mask.dtype.name}, expected bool or floats")
    return mask._to(None, like.dtype)


def _causal(length: int, keys: int, like: Tensor) -> Tensor:
    """Returns scores -infinity for the keys after each query."""
    seen = ops.tril(ones(length, keys, device=like.device))
    return ops.masked_fill(_full((length, keys), 0.0, like.dtype, like.device), seen == 0, float("-inf"))


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Optional[Tensor] = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Computes ``softmax(scale query keyᵀ + mask) value``: query (.., H, L, E), key (.., H, S, E), value (.., H, S, V). True in a mask keeps a score.
    A query without keys gives 0. Without a mask, it runs as one operation that stores no scores. ``dropout_p`` always applies.
    """
    if is_causal and attn_mask is not None:
        raise ValueError("scaled_dot_product_attention: attn_mask and is_causal are both given, expected one of them")
    q, k, v = query, key, value
    if min(q.ndim, k.ndim, v.ndim) < 2 or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ShapeError(f"scaled_dot_product_attention: query {tuple(q.shape)}, key {tuple(k.shape)} and value {tuple(v.shape)} do not match")
    if not enable_gqa and q.ndim > 2 and k.ndim > 2 and q.shape[-3] != k.shape[-3] and 1 not in (q.shape[-3], k.shape[-3]):
        raise ShapeError(f"scaled_dot_product_attention: {q.shape[-3]} and {k.shape[-3]} heads differ; write enable_gqa=True if queries share keys")
    if attn_mask is None and (not is_causal or q.shape[-2] == k.shape[-2]):
        made = _in_one_pass(q, k, v, is_causal, scale, dropout_p, enable_gqa)
        if made is not None:
            return made
    if enable_gqa and q.shape[-3] != k.shape[-3]:
        k, v = (_repeated(x, q.shape[-3]) for x in (k, v))
    scores = ops.matmul(q * (1 / math.sqrt(q.shape[-1]) if scale is None else scale), k.transpose(-2, -1))
    mask = _causal(q.shape[-2], k.shape[-2], q) if is_causal else None if attn_mask is None else _additive(attn_mask, q, False)
    if mask is None:
        weights = ops.softmax(scores, -1)
    else:
        scores = scores + mask
        alone = scores.detach().amax(-1, True) == float("-inf")
        weights = ops.masked_fill(ops.softmax(ops.masked_fill(scores, alone, 0.0), -1), alone, 0.0)
    return ops.matmul(dropout(weights, dropout_p), v)


def _in_one_pass(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: Optional[float], dropped: float, grouped: bool) -> Optional[Tensor]:
    """Computes attention with one operation if it supports the shapes."""
    lead = tuple(q.shape[:-3])
    heads_match = q.ndim == 2 or q.shape[-3] == k.shape[-3] or grouped and k.shape[-3] > 0 and q.shape[-3] % k.shape[-3] == 0
    if not q.ndim == k.ndim == v.ndim or tuple(k.shape[:-3]) != lead or tuple(k.shape) != tuple(v.shape) or not heads_match:
        return None
    if not q.size or not k.size or not 0 <= dropped < 1 or not q.dtype.is_floating_point:
        return None
    b = math.prod(lead)
    qh, kh, vh = (x.reshape(b, *((1,) if x.ndim == 2 else ()), *x.shape[-3:]) for x in (q, k, v))
    made = ops.attention(qh, kh, vh, causal=causal, scale=scale, dropout=dropped, seed=None if dropped else 0)
    return made.reshape(*q.shape[:-1], v.shape[-1])


def _repeated(x: Tensor, heads: int) -> Tensor:
    """Repeats each head of (.., H, S, E) for the query heads that share it."""
    *lead, have, length, width = x.shape
    if have == 0 or heads % have:
        raise ShapeError(f"scaled_dot_product_attention: {heads} query heads are not a multiple of {have} key heads")
    wide = ops.expand(x.unsqueeze(-3), (*lead, have, heads // have, length, width))
    return wide.reshape(*lead, heads, length, width)


def _projected(
    q: Tensor, k: Tensor, v: Tensor, packed: Optional[Tensor], bias: Optional[Tensor], apart: Tuple[Optional[Tensor], ...]
) -> Tuple[Tensor, Tensor, Tensor]:
    """Projects queries, keys and values (.., E), with one product if all three are the same tensor."""
    width = q.shape[-1]
    if packed is not None and q is k and k is v:
        a, b, c = ops.chunk(linear(q, packed, bias), 3, -1)
        return a, b, c
    weights: Any = apart if packed is None else [packed[i * width : (i + 1) * width] for i in range(3)]
    biases = [None] * 3 if bias is None else [bias[i * width : (i + 1) * width] for i in range(3)]
    a, b, c = (linear(x, w, z) for x, w, z in zip((q, k, v), weights, biases))
    return a, b, c


def _extended(mask: Optional[Tensor], count: int) -> Optional[Tensor]:
    """Adds visible keys at the end of an additive mask."""
    return mask if mask is None or not count else ops.pad(mask, (0, count), 0.0)


def _checked_masks(q: Tensor, k: Tensor, heads: int, padding: Optional[Tensor], mask: Optional[Tensor]) -> None:
    length, n, keys = q.shape[0], q.shape[1], k.shape[0]
    if padding is not None and tuple(padding.shape) != (n, keys):
        raise ShapeError(f"multi_head_attention_forward: key_padding_mask has shape {tuple(padding.shape)}, expected {(n, keys)}")
    if mask is not None and tuple(mask.shape) not in ((length, keys), (n * heads, length, keys)):
        raise ShapeError(f"multi_head_attention_forward: attn_mask has shape {tuple(mask.shape)}, expected {(length, keys)} or {(n * heads, length, keys)}")


def multi_head_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Optional[Tensor],
    in_proj_bias: Optional[Tensor],
    bias_k: Optional[Tensor],
    bias_v: Optional[Tensor],
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Optional[Tensor],
    training: bool = True,
    key_padding_mask: Optional[Tensor] = None,
    need_weights: bool = True,
    attn_mask: Optional[Tensor] = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Optional[Tensor] = None,
    k_proj_weight: Optional[Tensor] = None,
    v_proj_weight: Optional[Tensor] = None,
    static_k: Optional[Tensor] = None,
    static_v: Optional[Tensor] = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> Tuple[Tensor, Optional[Tensor]]:
    """Computes multi-head attention of query (L, N, E), key (S, N, K) and value (S, N, V), or of these without N. Returns the result (L, N, E) and the
    weights (N, L, S), or ``None`` without ``need_weights``. True in a mask leaves a key out.
    """
    if static_k is not None or static_v is not None:
        raise UnsupportedError("multi_head_attention_forward: static_k and static_v are not supported; write F.scaled_dot_product_attention")
    if is_causal and attn_mask is None:
        raise ValueError("multi_head_attention_forward: is_causal needs attn_mask, for example nn.Transformer.generate_square_subsequent_mask(length)")
    alone = query.ndim == 2
    if alone and key_padding_mask is not None:
        key_padding_mask = key_padding_mask.unsqueeze(0)
    if query.ndim not in (2, 3) or key.ndim != query.ndim or value.ndim != query.ndim or query.shape[-1] != embed_dim_to_check:
        raise ShapeError(
            f"multi_head_attention_forward: query {tuple(query.shape)}, key {tuple(key.shape)} and value {tuple(value.shape)}, expected (L, N, {embed_dim_to_check}), or without N"
        )
    if alone:
        same_key, same_value = key is query, value is key
        query = query.unsqueeze(1)
        key = query if same_key else key.unsqueeze(1)
        value = key if same_value else value.unsqueeze(1)
    if tuple(key.shape[:2]) != tuple(value.shape[:2]) or key.shape[1] != query.shape[1] or embed_dim_to_check % num_heads:
        raise ShapeError(f"multi_head_attention_forward: key {tuple(key.shape)} and value {tuple(value.shape)} do not match, or {num_heads} heads do not divide the width")
    _checked_masks(query, key, num_heads, key_padding_mask, attn_mask)
    packed = None if use_separate_proj_weight else in_proj_weight
    q, k, v = _projected(query, key, value, packed, in_proj_bias, (q_proj_weight, k_proj_weight, v_proj_weight))
    made, weights = _attended(
        (q, k, v), num_heads, (bias_k, bias_v, add_zero_attn), dropout_p if training else 0.0, key_padding_mask, attn_mask, need_weights,
        is_causal and key_padding_mask is None and not need_weights,
    )  # fmt: skip
    made = linear(made, out_proj_weight, out_proj_bias)
    if weights is not None and average_attn_weights:
        weights = weights.mean(1)
    return (made.squeeze(1), None if weights is None else weights.squeeze(0)) if alone else (made, weights)


def _attended(
    projected: Tuple[Tensor, Tensor, Tensor],
    heads: int,
    further: Tuple[Optional[Tensor], Optional[Tensor], bool],
    dropped: float,
    padding: Optional[Tensor],
    mask: Optional[Tensor],
    need_weights: bool,
    causal: bool,
) -> Tuple[Tensor, Optional[Tensor]]:
    """Computes the heads' results (L, N, E) of projected tensors, and the weights (N, H, L, S) if they are needed."""
    q, k, v = projected
    length, n, width = q.shape
    added = 0
    if further[0] is not None and further[1] is not None:
        k, v = (ops.cat([x, ops.expand(b.reshape(1, 1, width), (1, n, width))], 0) for x, b in ((k, further[0]), (v, further[1])))
        added += 1
    if further[2]:
        k, v = (ops.cat([x, zeros(1, n, width, dtype=x.dtype, device=x.device)], 0) for x in (k, v))
        added += 1
    q, k, v = (x.reshape(x.shape[0], n, heads, width // heads).permute(1, 2, 0, 3) for x in (q, k, v))
    scores_mask: Optional[Tensor] = None
    if mask is not None and not causal:
        extended = _extended(_additive(mask, q, True), added)
        assert extended is not None
        scores_mask = extended if extended.ndim == 2 else extended.reshape(n, heads, *extended.shape[1:])
    if padding is not None:
        extended = _extended(_additive(padding, q, True), added)
        assert extended is not None
        row = extended.reshape(n, 1, 1, extended.shape[-1])
        scores_mask = row if scores_mask is None else row + scores_mask
    weights: Optional[Tensor] = None
    if need_weights:
        scores = ops.matmul(q * (1 / math.sqrt(width // heads)), k.transpose(-2, -1))
        weights = dropout(ops.softmax(scores if scores_mask is None else scores + scores_mask, -1), dropped)
        made = ops.matmul(weights, v)
    else:
        made = scaled_dot_product_attention(q, k, v, scores_mask, dropped, causal)
    return made.permute(2, 0, 1, 3).reshape(length, n, width), weights


__all__ = ["multi_head_attention_forward", "scaled_dot_product_attention"]
