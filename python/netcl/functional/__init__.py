"""Functions with the names, arguments and meanings of ``torch.nn.functional``: ``import netcl.functional as F``.

All other operations of ``netcl.ops`` are here too. A name or an argument of PyTorch that is missing here is an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List

from .. import ops as _ops
from . import _activation, _attention, _classification, _conv, _ctc, _dropout, _embedding, _losses, _norm, _places, _pooling, _resize, _sample

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...

else:
    from ..ops import *  # noqa: F403

from ._activation import *  # noqa: F403
from ._attention import *  # noqa: F403
from ._classification import *  # noqa: F403
from ._conv import *  # noqa: F403
from ._ctc import *  # noqa: F403
from ._dropout import *  # noqa: F403
from ._embedding import *  # noqa: F403
from ._losses import *  # noqa: F403
from ._norm import *  # noqa: F403
from ._places import *  # noqa: F403
from ._pooling import *  # noqa: F403
from ._resize import *  # noqa: F403
from ._sample import *  # noqa: F403

__all__: List[str] = []
__all__ += _activation.__all__
__all__ += _attention.__all__
__all__ += _classification.__all__
__all__ += _conv.__all__
__all__ += _ctc.__all__
__all__ += _dropout.__all__
__all__ += _embedding.__all__
__all__ += _losses.__all__
__all__ += _norm.__all__
__all__ += _places.__all__
__all__ += _pooling.__all__
__all__ += _resize.__all__
__all__ += _sample.__all__

if not TYPE_CHECKING:
    __all__ += [_name for _name in _ops.__all__ if _name not in __all__]
    _REFUSED = {
        "fractional_max_pool2d": "write F.max_pool2d or F.adaptive_max_pool2d",
        "fractional_max_pool3d": "write F.max_pool3d or F.adaptive_max_pool3d",
    }  # fmt: skip

    def __getattr__(name):
        """Names the replacement of a missing function."""
        advice = _REFUSED.get(name, "netcl.functional.__all__ lists the functions")
        raise AttributeError(f"netcl.functional does not have {name!r}; {advice}")
