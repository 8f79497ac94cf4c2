"""Optimizers and schedules. Steps of SGD, Adam, AdamW and Lion update all parameters in a few launches. Clipping runs on the device."""

from . import lr_scheduler
from ._base import Optimizer
from ..nn.utils.clip import clip_grad_norm_
from ._composed import ASGD, Adadelta, Adagrad, Adamax, NAdam, RAdam, RMSprop, Rprop
from ._lbfgs import LBFGS
from ._refused import __getattr__ as __getattr__
from ._rules import SGD, Adam, AdamW, Lion
from ._schedule import Schedule, cosine, linear

__all__ = [
    "ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "LBFGS", "Lion", "NAdam", "Optimizer", "RAdam", "RMSprop", "Rprop", "SGD", "Schedule",
    "clip_grad_norm_", "cosine", "linear", "lr_scheduler",
]  # fmt: skip
