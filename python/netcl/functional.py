"""The operations under another name: ``import netcl.functional as F``."""

from .ops import *  # noqa: F403
from .ops import __all__ as __all__
