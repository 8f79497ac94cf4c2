"""Functions of gradients and parameters, with the meaning of ``torch.nn.utils``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import rnn
from .clip import clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_, get_total_norm
from .convert import fuse_conv_bn_eval, fuse_linear_bn_eval, parameters_to_vector, skip_init, vector_to_parameters

__all__ = [
    "clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "fuse_conv_bn_eval", "fuse_linear_bn_eval", "get_total_norm", "parameters_to_vector", "rnn",
    "skip_init", "vector_to_parameters",
]  # fmt: skip

if not TYPE_CHECKING:
    _REFUSED = {
        "weight_norm": "divide the weight by its norm in forward", "spectral_norm": "divide the weight by its norm in forward",
        "parametrize": "compute the weight in forward", "parametrizations": "compute the weight in forward", "prune": "multiply the weight by a mask in forward",
        "clip_grad_norm": "write clip_grad_norm_", "stateless": "write module.load_state_dict",
    }  # fmt: skip

    def __getattr__(name):
        """Names the replacement of a missing function."""
        raise AttributeError(f"netcl.nn.utils does not have {name!r}; {_REFUSED.get(name, 'netcl.nn.utils.__all__ lists the functions')}")
