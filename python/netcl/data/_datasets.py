"""Data sets: samples by index or in order, and data sets made of others."""

from __future__ import annotations

import bisect
import itertools
import math
from typing import Any, Iterable, Iterator, List, Optional, Sequence, Tuple

from .._netcl import Generator
from ._samplers import default, permutation


class Dataset:
    """Samples by index. A custom class defines ``__len__`` and ``__getitem__``."""

    def __class_getitem__(cls, item: Any) -> Any:
        return cls

    def __getitem__(self, i: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} does not define __getitem__")

    def __add__(self, other: "Dataset") -> "ConcatDataset":
        return ConcatDataset([self, other])


class IterableDataset(Dataset):
    """Samples in order. A custom class defines ``__iter__``. Each worker process iterates over all samples, unless it reads ``get_worker_info()``."""

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} does not define __iter__")

    def __add__(self, other: Any) -> Any:
        return ChainDataset([self, other])


class TensorDataset(Dataset):
    """Tensors, arrays or lists of equal length. A sample is one element of each."""

    def __init__(self, *arrays: Sequence[Any]) -> None:
        lengths = {len(a) for a in arrays}
        if len(lengths) != 1:
            raise ValueError(f"TensorDataset: got lengths {sorted(lengths)}, expected equal lengths")
        self.arrays = self.tensors = arrays

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __getitem__(self, i: Any) -> Tuple[Any, ...]:
        return tuple(a[i] for a in self.arrays)


class StackDataset(Dataset):
    """Data sets of equal length. A sample is a tuple, or a dictionary for named data sets."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if bool(args) == bool(kwargs):
            raise ValueError("StackDataset: expected data sets either by position or by name")
        self.datasets: Any = kwargs or args
        parts = list(kwargs.values()) if kwargs else list(args)
        if len({len(d) for d in parts}) != 1:
            raise ValueError("StackDataset: the data sets differ in length")
        self._length = len(parts[0])

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, i: Any) -> Any:
        if isinstance(self.datasets, dict):
            return {name: d[i] for name, d in self.datasets.items()}
        return tuple(d[i] for d in self.datasets)


class ConcatDataset(Dataset):
    """Data sets one after another."""

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise ValueError("ConcatDataset: got no data sets")
        if any(isinstance(d, IterableDataset) for d in self.datasets):
            raise ValueError("ConcatDataset: an IterableDataset does not have indices; write ChainDataset")
        self.cumulative_sizes = list(itertools.accumulate(len(d) for d in self.datasets))

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]

    def __getitem__(self, i: Any) -> Any:
        at = i + len(self) if i < 0 else i
        if not 0 <= at:
            raise ValueError(f"ConcatDataset: index {i} is out of range for {len(self)} samples")
        part = bisect.bisect_right(self.cumulative_sizes, at)
        return self.datasets[part][at - (self.cumulative_sizes[part - 1] if part else 0)]


class ChainDataset(IterableDataset):
    """Iterable data sets one after another."""

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)

    def __iter__(self) -> Iterator[Any]:
        return itertools.chain.from_iterable(self.datasets)

    def __len__(self) -> int:
        return sum(len(d) for d in self.datasets)


class Subset(Dataset):
    """The samples of a data set at these indices."""

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self.dataset, self.indices = dataset, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, i: Any) -> Any:
        return self.dataset[[self.indices[j] for j in i] if isinstance(i, list) else self.indices[i]]


def random_split(dataset: Any, lengths: Sequence[float], generator: Optional[Generator] = None) -> List[Subset]:
    """Divides a data set at random into subsets of these lengths, or of these shares of it, which add up to 1."""
    n = len(dataset)
    if math.isclose(sum(lengths), 1) and sum(lengths) <= 1:
        if any(share < 0 or share > 1 for share in lengths):
            raise ValueError(f"random_split: the shares {list(lengths)} must be from 0 to 1")
        sizes = [math.floor(n * share) for share in lengths]
        for i in range(n - sum(sizes)):
            sizes[i % len(sizes)] += 1
    else:
        sizes = [int(length) for length in lengths]
    if sum(sizes) != n:
        raise ValueError(f"random_split: the lengths add up to {sum(sizes)}, expected {n}")
    order, ends = permutation(n, default(generator)), list(itertools.accumulate(sizes))
    return [Subset(dataset, order[end - size : end]) for size, end in zip(sizes, ends)]


__all__ = ["ChainDataset", "ConcatDataset", "Dataset", "IterableDataset", "StackDataset", "Subset", "TensorDataset", "random_split"]
