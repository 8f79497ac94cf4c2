"""Utilities for training."""

from . import progress

__all__ = ["progress"]
