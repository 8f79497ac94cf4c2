"""Token ids from the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._netcl import Tensor


def valid_ids(ids: Any, size: int) -> Any:
    """Returns ids as an int32 array, with -1 for each that is not in [0, ``size``). Ids of any integer type are compared before the conversion, so
    none wraps around to a valid one.
    """
    given = np.asarray(ids.detach().numpy() if isinstance(ids, Tensor) else ids)
    if given.dtype.kind == "f" and given.size:
        # Fractions, infinities and NaN are not ids.
        whole = np.isfinite(given) & (given == np.floor(given))
        given = np.where(whole, given, -1.0)
    elif given.dtype.kind not in "iuf" and not (given.dtype == object and all(isinstance(i, int) for i in given.reshape(-1))):
        raise TypeError(f"token ids: got an array of {given.dtype}, expected integers")
    inside = np.asarray((given >= 0) & (given < size), dtype=bool)
    return np.where(inside, given, -1).astype(np.int32)


__all__ = ["valid_ids"]
