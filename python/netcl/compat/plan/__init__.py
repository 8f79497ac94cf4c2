"""The names of a plan for a framework over PyOpenCL: ``Tensor``, ``autograd.tensor`` and ``Tape``, ``ops``, layers, optimizers, ``BufferPool``,
``graph`` and ``executor``, ``Graph`` and ``GraphExecutor``, ``distributed``, ``EventTimer``.

netcl's tape is implicit, so a ``Tape`` only starts the backward. ``Tensor`` is ``netcl.Tensor``. A queue argument is a device or its name. netcl
chooses and fuses kernels.
"""

from ... import distributed
from ..._netcl import Device, Tensor, default_device, devices
from ..._pool import PoolHandle
from ...utils.progress import ProgressBar
from . import autograd, ops
from .autograd import Tape, tensor
from .capture import executor, graph
from .files import load, save
from .graphs import Graph, GraphExecutor, TensorRef, load_graph, save_graph
from .layers import (
    AvgPool2d,
    BatchNorm,
    Conv2d,
    Dropout,
    Flatten,
    LeakyReLU,
    Linear,
    MaxPool2d,
    ReLU,
    Sequential,
    Sigmoid,
    Tanh,
    cross_entropy,
    kaiming_uniform,
    max_pool2d,
    mse_loss,
    xavier_uniform,
)
from .memory import BufferPool, Event, EventTimer, from_host, to_host
from .optim import SGD, Adam, Optimizer

__all__ = [
    "Adam", "AvgPool2d", "BatchNorm", "BufferPool", "Conv2d", "Device", "Dropout", "Event", "EventTimer", "Flatten", "Graph", "GraphExecutor", "LeakyReLU", "Linear",
    "MaxPool2d", "Optimizer", "PoolHandle", "ProgressBar", "ReLU", "SGD", "Sequential", "Sigmoid", "Tanh", "Tape", "Tensor", "TensorRef", "autograd", "cross_entropy",
    "default_device", "devices", "distributed", "executor", "from_host", "graph", "kaiming_uniform", "load", "load_graph", "max_pool2d", "mse_loss", "ops", "save", "save_graph", "tensor", "to_host",
    "xavier_uniform",
]  # fmt: skip
