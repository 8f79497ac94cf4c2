"""Things around training."""

from . import progress

__all__ = ["progress"]
