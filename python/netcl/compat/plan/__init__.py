"""The names of a plan for a framework over PyOpenCL: ``autograd.tensor`` and ``Tape``, ``ops``, layers, ``BufferPool``, ``Graph`` and
``GraphExecutor``, ``EventTimer``.

Differences: netcl's tape is implicit, so a ``Tape`` only starts the backward. Queues belong to the device. netcl chooses and fuses kernels.
``distributed`` does not exist, because netcl does not have collectives yet.
"""

from typing import Any

from ...utils.progress import ProgressBar
from . import autograd, ops
from .graph import Graph, GraphExecutor, TensorRef, load_graph, save_graph
from .layers import (
    SGD,
    Adam,
    Conv2d,
    Dropout,
    LeakyReLU,
    Linear,
    MaxPool2d,
    ReLU,
    Sequential,
    Sigmoid,
    Tanh,
    cross_entropy,
    kaiming_uniform,
    load,
    mse_loss,
    save,
    xavier_uniform,
)
from .memory import BufferPool, EventTimer, Tensor


def __getattr__(name: str) -> Any:
    if name == "distributed":
        raise AttributeError("netcl.compat.plan.distributed: netcl does not have collectives yet; train on one device, or split a model's layers between devices with netcl.LLM")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Adam", "BufferPool", "Conv2d", "Dropout", "EventTimer", "Graph", "GraphExecutor", "LeakyReLU", "Linear", "MaxPool2d", "ProgressBar", "ReLU", "SGD", "Sequential", "Sigmoid",
    "Tanh", "Tensor", "TensorRef", "autograd", "cross_entropy", "kaiming_uniform", "load", "load_graph", "mse_loss", "ops", "save", "save_graph", "xavier_uniform",
]  # fmt: skip
