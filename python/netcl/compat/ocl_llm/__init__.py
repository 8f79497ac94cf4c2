"""The names of OCL-LLM for netcl: tensors with OCL-LLM's methods, layers, ``SimpleModel``, ``AdamOptimizer``, checkpoints, and its training script,
``python -m netcl.compat.ocl_llm``.

Differences: everything runs on the device, so nothing falls back to NumPy. Gradients are the ``grad`` of netcl's tape, without custom
context classes. A checkpoint is an ``.npz`` file of arrays with metadata as JSON, and pickles are never read.
"""

from .checkpoint import load_checkpoint, save_checkpoint
from .layers import Embedding, GeLUActivation, LayerNorm, Linear, MultiHeadAttention, PositionalEncoding, SimpleModel, TransformerBlock
from .tensor import GPUBuffer, OclTensor, Parameter, ocl_initialize, ocl_shutdown
from .training import AdamOptimizer, TinyTokenizer, cross_entropy_loss_and_backward

__all__ = [
    "AdamOptimizer", "Embedding", "GPUBuffer", "GeLUActivation", "LayerNorm", "Linear", "MultiHeadAttention", "OclTensor", "Parameter", "PositionalEncoding", "SimpleModel",
    "TinyTokenizer", "TransformerBlock", "cross_entropy_loss_and_backward", "load_checkpoint", "ocl_initialize", "ocl_shutdown", "save_checkpoint",
]  # fmt: skip
