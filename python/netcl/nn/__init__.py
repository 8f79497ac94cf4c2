"""Modules, layers, decoders and losses."""

from .decoder import Decoder
from .layers import (
    GELU,
    GPT,
    Dropout,
    Embedding,
    Flatten,
    Identity,
    LayerNorm,
    LearnedPositions,
    Linear,
    MultiHeadAttention,
    ReLU,
    RMSNorm,
    RotaryPositions,
    Sigmoid,
    SiLU,
    SinusoidalPositions,
    Softmax,
    Tanh,
    TransformerBlock,
)
from .losses import BCEWithLogitsLoss, CrossEntropyLoss, L1Loss, MSELoss
from .module import Handle, Module, ModuleList, Parameter, Sequential

__all__ = [
    "BCEWithLogitsLoss", "CrossEntropyLoss", "Decoder", "Dropout", "Embedding", "Flatten", "GELU", "GPT", "Handle", "Identity", "L1Loss", "LayerNorm",
    "LearnedPositions", "Linear", "MSELoss", "Module", "ModuleList", "MultiHeadAttention", "Parameter", "RMSNorm", "ReLU", "RotaryPositions",
    "Sequential", "SiLU", "Sigmoid", "SinusoidalPositions", "Softmax", "Tanh", "TransformerBlock",
]  # fmt: skip
