"""``netcl.functional`` under the name that PyTorch has: ``import netcl.nn.functional as F``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import functional as _functional
from ..functional import *  # noqa: F403
from ..functional import __all__ as __all__

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...

else:
    __getattr__ = _functional.__getattr__
