"""Batches of samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, List

from .._create import tensor
from .._netcl import Tensor


def default_collate(samples: List[Any]) -> Any:
    """Combines samples into a batch, as PyTorch does. Numbers, arrays and tensors become tensors with a new first axis. Dictionaries become dictionaries of
    batches, tuples and lists become lists of batches, and named tuples keep their class. Text becomes a list.
    """
    first = samples[0]
    if isinstance(first, Tensor):
        from .._torch import stack

        return stack(samples)
    if isinstance(first, (str, bytes)):
        return samples
    if isinstance(first, Mapping):
        batches = {key: default_collate([s[key] for s in samples]) for key in first}
        return batches if type(first) is dict else type(first)(batches)  # type: ignore[call-arg]
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(default_collate(list(part)) for part in zip(*samples)))
    if hasattr(first, "__array__"):
        import numpy as np

        if np.asarray(first).dtype.kind in "OSU":
            raise TypeError(f"collate: got an array of {np.asarray(first).dtype}, expected numbers; pass collate_fn")
        return tensor(np.stack([np.asarray(s) for s in samples]))
    if isinstance(first, Sequence):
        if any(len(s) != len(first) for s in samples):
            raise RuntimeError("collate: the samples are sequences of different lengths; pass collate_fn")
        return [default_collate(list(part)) for part in zip(*samples)]
    if isinstance(first, (bool, int, float)):
        return tensor(samples)
    raise TypeError(f"collate: a sample has {type(first).__name__}, expected tensors, arrays, numbers, text, dictionaries, tuples or lists; pass collate_fn")


def collate(samples: List[Any]) -> Any:
    """Combines samples into a batch, as ``default_collate``."""
    return default_collate(samples)


def default_convert(data: Any) -> Any:
    """Converts arrays in a sample to tensors, without a new axis."""
    if isinstance(data, (Tensor, str, bytes)):
        return data
    if isinstance(data, Mapping):
        return {key: default_convert(value) for key, value in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(default_convert(d) for d in data))
    if hasattr(data, "__array__"):
        return tensor(data)
    if isinstance(data, Sequence):
        return [default_convert(d) for d in data]
    return data


__all__ = ["collate", "default_collate", "default_convert"]
