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

from . import _methods, _torch, amp, autograd, data, distributed, errors, func, functional, hybrid, nn, ops, optim, profiler, utils
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


_methods.attach()
_torch.attach()
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
__all__ += _torch.__all__

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
