"""The names of OCL-LLM for netcl: tensors with OCL-LLM's methods and contexts, layers, ``SimpleModel``, ``AdamOptimizer``, checkpoints, and its
training script, ``python -m netcl.compat.ocl_llm``.

Differences: everything runs on the device, so nothing falls back to NumPy, and ids are looked up there. ``SimpleModel`` has causal attention only with
a mask, ``causal_mask(length)``. A checkpoint is an ``.npz`` file of arrays with metadata as JSON, and pickles are never read.
"""

from typing import Any

from .buffer import ADAM_STATE_TYPE, FP_TYPE, GPUBuffer
from .checkpoint import load_checkpoint, save_checkpoint
from .context import FunctionContext
from .contexts import (
    AddBackwardContext,
    AddBroadcastPEBackwardContext,
    BatchedTransposeLastTwoBackwardContext,
    EmbeddingBackwardContext,
    GeluBackwardContext,
    LayerNormBackwardContext,
    LayerNormBackwardContextRevised,
    MatMulBackwardContext,
    MatMulBatchedBackwardContext,
    MulBackwardContext,
    ReshapeBackwardContext,
    ScalarMulBackwardContext,
    SoftmaxBackwardContext,
    Transpose12BatchedBackwardContext,
    TransposeBackwardContext,
    TransposeCPUFallbackBackwardContext,
)
from .device import availability, ocl_initialize, ocl_shutdown
from .layers import Embedding, GeLUActivation, LayerNorm, Linear, MultiHeadAttention, PositionalEncoding, SimpleModel, TransformerBlock, causal_mask
from .loss import cross_entropy_loss_and_backward
from .optimizer import AdamOptimizer
from .tensor import OclTensor, Parameter
from .tokenizer import TinyTokenizer

FLAGS = [
    "HAS_ADD_BROADCAST_PE", "HAS_BMM_BATCHED", "HAS_EMBEDDING_BACKWARD", "HAS_EMBEDDING_LOOKUP", "HAS_GPU_CROSS_ENTROPY", "HAS_REDUCE_SUM",
    "HAS_TRANSPOSE_12_BATCHED", "HAS_TRANSPOSE_LAST_TWO", "has_atomics_support",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Returns whether an operation works on the device."""
    if name in FLAGS:
        return availability()[name]
    raise AttributeError(f"module {__name__!r} does not have {name!r}")


__all__ = [
    "ADAM_STATE_TYPE", "AdamOptimizer", "AddBackwardContext", "AddBroadcastPEBackwardContext", "BatchedTransposeLastTwoBackwardContext", "Embedding",
    "EmbeddingBackwardContext", "FP_TYPE", "FunctionContext", "GPUBuffer", "GeLUActivation", "GeluBackwardContext", "LayerNorm",
    "LayerNormBackwardContext", "LayerNormBackwardContextRevised", "Linear", "MatMulBackwardContext", "MatMulBatchedBackwardContext",
    "MulBackwardContext", "MultiHeadAttention", "OclTensor", "Parameter", "PositionalEncoding", "ReshapeBackwardContext", "ScalarMulBackwardContext",
    "SimpleModel", "SoftmaxBackwardContext", "TinyTokenizer", "TransformerBlock", "Transpose12BatchedBackwardContext", "TransposeBackwardContext",
    "TransposeCPUFallbackBackwardContext", "causal_mask", "cross_entropy_loss_and_backward", "load_checkpoint", "ocl_initialize", "ocl_shutdown",
    "save_checkpoint",
]  # fmt: skip
