"""Functions with the names, arguments and meanings of ``torch.nn.functional``: ``import netcl.functional as F``.

All other operations of ``netcl.ops`` are here too. A name or an argument of PyTorch that is missing here is an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

# Made by `python -m netcl._stubs` from the registry of operations.
from ..ops import abs as abs
from ..ops import add as add
from ..ops import add_relu as add_relu
from ..ops import add_scalar as add_scalar
from ..ops import argmax as argmax
from ..ops import attention as attention
from ..ops import attention_qkv as attention_qkv
from ..ops import balance_loss as balance_loss
from ..ops import batch_norm_inference as batch_norm_inference
from ..ops import batch_statistics as batch_statistics
from ..ops import bce_with_logits as bce_with_logits
from ..ops import cache_append as cache_append
from ..ops import cache_gather as cache_gather
from ..ops import cast as cast
from ..ops import cat as cat
from ..ops import choose as choose
from ..ops import chunk as chunk
from ..ops import clamp as clamp
from ..ops import contiguous as contiguous
from ..ops import cos as cos
from ..ops import cumsum as cumsum
from ..ops import decode_attention as decode_attention
from ..ops import decode_embedding as decode_embedding
from ..ops import div as div
from ..ops import div_scalar as div_scalar
from ..ops import einsum as einsum
from ..ops import eq as eq
from ..ops import exp as exp
from ..ops import expand as expand
from ..ops import experts as experts
from ..ops import feed_forward as feed_forward
from ..ops import flip as flip
from ..ops import fused_linear as fused_linear
from ..ops import gated as gated
from ..ops import gather as gather
from ..ops import ge as ge
from ..ops import gelu_tanh as gelu_tanh
from ..ops import gt as gt
from ..ops import hard_swish as hard_swish
from ..ops import index_select as index_select
from ..ops import le as le
from ..ops import linear_add as linear_add
from ..ops import linear_residual as linear_residual
from ..ops import log as log
from ..ops import logsumexp as logsumexp
from ..ops import lt as lt
from ..ops import masked_fill as masked_fill
from ..ops import matmul as matmul
from ..ops import max as max
from ..ops import maximum as maximum
from ..ops import mean as mean
from ..ops import minimum as minimum
from ..ops import mul as mul
from ..ops import mul_scalar as mul_scalar
from ..ops import multinomial as multinomial
from ..ops import neg as neg
from ..ops import permute as permute
from ..ops import pow as pow
from ..ops import pow_scalar as pow_scalar
from ..ops import rdiv_scalar as rdiv_scalar
from ..ops import reshape as reshape
from ..ops import residual_layer_norm as residual_layer_norm
from ..ops import residual_rms_norm as residual_rms_norm
from ..ops import roll as roll
from ..ops import rope as rope
from ..ops import route as route
from ..ops import rsqrt as rsqrt
from ..ops import rsub_scalar as rsub_scalar
from ..ops import scatter as scatter
from ..ops import scatter_add as scatter_add
from ..ops import sin as sin
from ..ops import slice as slice
from ..ops import sort as sort
from ..ops import split as split
from ..ops import sqrt as sqrt
from ..ops import square as square
from ..ops import squeeze as squeeze
from ..ops import stack as stack
from ..ops import sub as sub
from ..ops import sub_scalar as sub_scalar
from ..ops import sum as sum
from ..ops import sum_f32 as sum_f32
from ..ops import sum_to as sum_to
from ..ops import topk as topk
from ..ops import transpose as transpose
from ..ops import tril as tril
from ..ops import triu as triu
from ..ops import unsqueeze as unsqueeze
from ..ops import where_cond as where_cond

__all__ = ['celu', 'celu_', 'elu', 'elu_', 'gelu', 'glu', 'gumbel_softmax', 'hardshrink', 'hardsigmoid', 'hardswish', 'hardtanh', 'hardtanh_', 'leaky_relu', 'leaky_relu_', 'log_softmax', 'logsigmoid', 'mish', 'prelu', 'relu', 'relu6', 'relu_', 'rrelu', 'rrelu_', 'selu', 'selu_', 'sigmoid', 'silu', 'softmax', 'softmin', 'softplus', 'softshrink', 'softsign', 'tanh', 'tanhshrink', 'threshold', 'threshold_', 'multi_head_attention_forward', 'scaled_dot_product_attention', 'binary_cross_entropy', 'binary_cross_entropy_with_logits', 'cross_entropy', 'linear_cross_entropy', 'multi_margin_loss', 'multilabel_margin_loss', 'multilabel_soft_margin_loss', 'nll_loss', 'bilinear', 'conv1d', 'conv2d', 'conv3d', 'conv_tbc', 'conv_transpose1d', 'conv_transpose2d', 'conv_transpose3d', 'fold', 'linear', 'unfold', 'ctc_loss', 'alpha_dropout', 'dropout', 'dropout1d', 'dropout2d', 'dropout3d', 'feature_alpha_dropout', 'embedding', 'embedding_bag', 'one_hot', 'cosine_embedding_loss', 'gaussian_nll_loss', 'hinge_embedding_loss', 'huber_loss', 'kl_div', 'l1_loss', 'margin_ranking_loss', 'mse_loss', 'poisson_nll_loss', 'smooth_l1_loss', 'soft_margin_loss', 'triplet_margin_loss', 'triplet_margin_with_distance_loss', 'batch_norm', 'cosine_similarity', 'group_norm', 'instance_norm', 'layer_norm', 'local_response_norm', 'normalize', 'pairwise_distance', 'pdist', 'rms_norm', 'adaptive_max_pool1d_with_indices', 'adaptive_max_pool2d_with_indices', 'adaptive_max_pool3d_with_indices', 'max_pool1d_with_indices', 'max_pool2d_with_indices', 'max_pool3d_with_indices', 'max_unpool1d', 'max_unpool2d', 'max_unpool3d', 'adaptive_avg_pool1d', 'adaptive_avg_pool2d', 'adaptive_avg_pool3d', 'adaptive_max_pool1d', 'adaptive_max_pool2d', 'adaptive_max_pool3d', 'avg_pool1d', 'avg_pool2d', 'avg_pool3d', 'lp_pool1d', 'lp_pool2d', 'lp_pool3d', 'max_pool1d', 'max_pool2d', 'max_pool3d', 'channel_shuffle', 'interpolate', 'native_channel_shuffle', 'pad', 'pixel_shuffle', 'pixel_unshuffle', 'upsample', 'upsample_bilinear', 'upsample_nearest', 'affine_grid', 'grid_sample', 'neg', 'exp', 'log', 'sqrt', 'rsqrt', 'gelu_tanh', 'abs', 'square', 'sin', 'cos', 'add_scalar', 'mul_scalar', 'rsub_scalar', 'rdiv_scalar', 'pow_scalar', 'hard_swish', 'clamp', 'sub_scalar', 'div_scalar', 'add', 'sub', 'mul', 'div', 'maximum', 'minimum', 'pow', 'reshape', 'contiguous', 'unsqueeze', 'squeeze', 'permute', 'transpose', 'slice', 'expand', 'cast', 'sum', 'sum_f32', 'mean', 'sum_to', 'max', 'residual_layer_norm', 'residual_rms_norm', 'logsumexp', 'where_cond', 'eq', 'lt', 'le', 'gt', 'ge', 'tril', 'masked_fill', 'cat', 'stack', 'split', 'chunk', 'argmax', 'topk', 'sort', 'cumsum', 'gather', 'scatter', 'scatter_add', 'multinomial', 'choose', 'attention', 'attention_qkv', 'decode_attention', 'decode_embedding', 'cache_append', 'cache_gather', 'rope', 'gated', 'route', 'balance_loss', 'experts', 'matmul', 'batch_norm_inference', 'batch_statistics', 'add_relu', 'linear_add', 'linear_residual', 'feed_forward', 'fused_linear', 'index_select', 'flip', 'roll', 'triu', 'bce_with_logits', 'einsum']  # fmt: skip
# End of what is made.
from ._activation import *  # noqa: F403
from ._attention import *  # noqa: F403
from ._classification import *  # noqa: F403
from ._conv import *  # noqa: F403
from ._ctc import *  # noqa: F403
from ._dropout import *  # noqa: F403
from ._embedding import *  # noqa: F403
from ._losses import *  # noqa: F403
from ._norm import *  # noqa: F403
from ._places import *  # noqa: F403
from ._pooling import *  # noqa: F403
from ._resize import *  # noqa: F403
from ._sample import *  # noqa: F403

if not TYPE_CHECKING:
    _REFUSED = {
        "fractional_max_pool2d": "write F.max_pool2d or F.adaptive_max_pool2d",
        "fractional_max_pool3d": "write F.max_pool3d or F.adaptive_max_pool3d",
    }  # fmt: skip

    def __getattr__(name):
        """Names the replacement of a missing function."""
        advice = _REFUSED.get(name, "netcl.functional.__all__ lists the functions")
        raise AttributeError(f"netcl.functional does not have {name!r}; {advice}")
