"""Utilities for training."""

from .. import data
from ..nn.utils import clip_grad_norm_, clip_grad_value_, get_total_norm, parameters_to_vector, vector_to_parameters
from . import checkpoint, progress

__all__ = ["checkpoint", "clip_grad_norm_", "clip_grad_value_", "data", "get_total_norm", "parameters_to_vector", "progress", "vector_to_parameters"]
