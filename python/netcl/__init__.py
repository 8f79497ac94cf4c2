"""netcl: tensors with gradients, training and language models on any OpenCL device, and on a simulated GPU.

>>> import netcl as nc
>>> x = nc.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True, device="sim")
>>> (x * x).sum().backward()
>>> x.grad.tolist()
[[2.0, 4.0], [6.0, 8.0]]
"""

from __future__ import annotations

import os as _os
import sys as _sys
import typing as _typing

from . import _draws, _einops, _graph, _methods, _torch, amp, autograd, data, distributed, distributions, errors, func, functional, hybrid, nn, ops, optim, profiler, utils
from ._create import (
    arange,
    asarray,
    default_generator,
    empty,
    eye,
    from_dlpack,
    full,
    full_like,
    linspace,
    manual_seed,
    ones,
    ones_like,
    rand,
    randint,
    randn,
    tensor,
    zeros,
    zeros_like,
)
from ._device import doctor
from ._dtype import DType, bfloat16, bool_, float16, float32, int32, uint32
from ._files import load, save
from ._fuse import fuse
from ._graph import Graph, compile
from ._host import from_numpy
from ._llm import LLM, Conversation, Generation, TextStream
from ._netcl import (
    Device,
    Generator,
    Tensor,
    __version__,
    after_fork_in_child as _after_fork_in_child,
    default_device,
    devices,
    set_builder as _set_builder,
    set_default_device,
)
from ._opgraph import OpGraph
from ._scope import scope
from ._trainer import Event, Trainer
from .autograd import enable_grad, inference_mode, is_grad_enabled, is_inference_mode_enabled, no_grad, set_grad_enabled
from .errors import NetclError
from ._limits import finfo, iinfo
from ._text import set_printoptions
from ._torch import *  # noqa: F403
from ._kernel import Kernel, kernel



def is_tensor(obj: object) -> bool:
    """Returns whether an object is a tensor."""
    return isinstance(obj, Tensor)


def numel(input: Tensor) -> int:
    """Returns the number of elements."""
    return int(input.size)


_draws.attach()
_graph.attach()
_methods.attach()
_torch.attach()
_einops.register()
if _sys.executable:
    # If the kernel compiler crashes, only that process ends.
    _set_builder(_sys.executable, ["-c", "import sys; from netcl._netcl import serve_builds; serve_builds(sys.argv[1])"])
if hasattr(_os, "register_at_fork"):
    _os.register_at_fork(after_in_child=_after_fork_in_child)

__all__ = [
    "Conversation",
    "DType",
    "Device",
    "Event",
    "Generation",
    "Generator",
    "Graph",
    "Kernel",
    "LLM",
    "NetclError",
    "OpGraph",
    "Tensor",
    "TextStream",
    "Trainer",
    "__version__",
    "amp",
    "arange",
    "asarray",
    "autograd",
    "bfloat16",
    "bool_",
    "compile",
    "data",
    "default_device",
    "default_generator",
    "devices",
    "distributed",
    "distributions",
    "doctor",
    "empty",
    "enable_grad",
    "errors",
    "eye",
    "float16",
    "finfo",
    "float32",
    "from_dlpack",
    "from_numpy",
    "full",
    "full_like",
    "func",
    "functional",
    "fuse",
    "hybrid",
    "iinfo",
    "inference_mode",
    "int32",
    "is_inference_mode_enabled",
    "is_tensor",
    "numel",
    "is_grad_enabled",
    "kernel",
    "linspace",
    "load",
    "manual_seed",
    "nn",
    "no_grad",
    "ones",
    "ones_like",
    "ops",
    "optim",
    "profiler",
    "rand",
    "randint",
    "randn",
    "save",
    "scope",
    "set_default_device",
    "set_grad_enabled",
    "set_printoptions",
    "tensor",
    "uint32",
    "utils",
    "zeros",
    "zeros_like",
]
# Those of ``_torch``, as a list that type checkers read.
__all__ += [
    "abs", "absolute", "acos", "acosh", "add", "addbmm", "addcdiv", "addcmul", "addmm", "addmv", "addr", "adjoint", "all", "allclose", "amax", "amin",
    "aminmax", "any", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "argmax", "argmin", "argsort", "argwhere",
    "as_tensor", "asin", "asinh", "atan", "atan2", "atanh", "atleast_1d", "atleast_2d", "atleast_3d", "baddbmm", "bernoulli", "bincount",
    "bitwise_and", "bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "block_diag", "bmm", "broadcast_shapes",
    "broadcast_tensors", "broadcast_to", "bucketize", "cartesian_prod", "cat", "cdist", "ceil", "chain_matmul", "chunk", "clamp", "clamp_max",
    "clamp_min", "clip", "clone", "column_stack", "combinations", "concat", "concatenate", "copysign", "cos", "cosh", "cosine_similarity",
    "count_nonzero", "cross", "cummax", "cummin", "cumprod", "cumsum", "deg2rad", "detach", "diag", "diag_embed", "diagflat", "diagonal", "diff",
    "dist", "div", "divide", "dot", "dsplit", "dstack", "einsum", "empty_like", "eq", "equal", "erf", "erfc", "exp", "exp2", "expm1", "fix",
    "flatten", "flip", "fliplr", "flipud", "float_power", "floor", "floor_divide", "fmax", "fmin", "fmod", "frac", "gather", "ge", "ger",
    "get_rng_state", "greater", "greater_equal", "gt", "heaviside", "histc", "hsplit", "hstack", "hypot", "index_add", "index_copy", "index_fill",
    "index_put", "index_select", "initial_seed", "inner", "is_floating_point", "is_nonzero", "is_same_size", "is_signed", "isclose", "isfinite",
    "isin", "isinf", "isnan", "isneginf", "isposinf", "isreal", "kron", "kthvalue", "ldexp", "le", "lerp", "less", "less_equal", "lgamma", "linalg",
    "log", "log10", "log1p", "log2", "log_softmax", "logaddexp", "logaddexp2", "logcumsumexp", "logical_and", "logical_not", "logical_or",
    "logical_xor", "logit", "logspace", "logsumexp", "lt", "masked_fill", "masked_select", "matmul", "matrix_power", "max", "maximum", "mean",
    "median", "meshgrid", "min", "minimum", "mm", "mode", "moveaxis", "movedim", "msort", "mul", "multi_dot", "multinomial", "multiply", "mv",
    "nan_to_num", "nanmean", "nansum", "narrow", "ne", "neg", "negative", "nonzero", "norm", "normal", "not_equal", "outer", "permute", "positive",
    "pow", "prod", "quantile", "rad2deg", "rand_like", "randint_like", "randn_like", "randperm", "ravel", "reciprocal", "relu", "remainder",
    "repeat_interleave", "reshape", "roll", "rot90", "round", "row_stack", "rsqrt", "rsub", "scalar_tensor", "scatter", "scatter_add",
    "scatter_reduce", "searchsorted", "seed", "select", "set_rng_state", "sgn", "sigmoid", "sign", "signbit", "sin", "sinc", "sinh", "softmax",
    "sort", "split", "split_with_sizes", "sqrt", "square", "squeeze", "stack", "std", "std_mean", "sub", "subtract", "sum", "swapaxes", "swapdims",
    "t", "take", "take_along_dim", "tan", "tanh", "tensor_split", "tensordot", "tile", "topk", "trace", "transpose", "tril", "tril_indices", "triu",
    "triu_indices", "true_divide", "trunc", "unbind", "unflatten", "unfold", "unique", "unique_consecutive", "unsqueeze", "var", "var_mean", "vdot",
    "vector_norm", "vsplit", "vstack", "where", "xlogy",
]  # fmt: skip

if not _typing.TYPE_CHECKING:

    def __getattr__(name):
        """Imports the modules that need NumPy when a program first uses them."""
        if name in ("aethercl", "array_api", "compat", "torch_compat"):
            from importlib import import_module

            return import_module(f"netcl.{name}")
        if name in ("float", "half", "int", "bool", "float_", "int_"):
            from ._host import to_dtype

            return to_dtype(name.rstrip("_"))
        from ._torch.refused import REFUSED

        if name in REFUSED:
            raise AttributeError(f"netcl does not have {name}; {REFUSED[name]}")
        raise AttributeError(f"module 'netcl' has no attribute {name!r}")
