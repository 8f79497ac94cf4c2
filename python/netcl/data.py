"""Data sets and batches, in an order that a seed determines."""

from __future__ import annotations

from typing import Any, Callable, Iterator, List, Optional, Sequence, Tuple

from ._create import tensor
from ._netcl import Generator, Tensor, from_bytes


class Dataset:
    """Samples by index. A custom class defines ``__len__`` and ``__getitem__``."""

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, i: int) -> Any:
        raise NotImplementedError


class TensorDataset(Dataset):
    """Arrays or lists of equal length. A sample is one element of each."""

    def __init__(self, *arrays: Sequence[Any]) -> None:
        lengths = {len(a) for a in arrays}
        if len(lengths) != 1:
            raise ValueError(f"TensorDataset: got lengths {sorted(lengths)}, expected equal lengths")
        self.arrays = arrays

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __getitem__(self, i: int) -> Tuple[Any, ...]:
        return tuple(a[i] for a in self.arrays)


def collate(samples: List[Any]) -> Any:
    """Combines samples into a batch: tuples become tuples of batches, everything else becomes a tensor with a new first axis."""
    first = samples[0]
    if isinstance(first, (tuple, list)):
        return tuple(collate([s[i] for s in samples]) for i in range(len(first)))
    if isinstance(first, Tensor):
        from .functions import stack

        return stack(samples)
    if hasattr(first, "__array__"):
        import numpy as np

        return tensor(np.stack([np.asarray(s) for s in samples]))
    return tensor(samples)


def permutation(n: int, generator: Generator) -> List[int]:
    """Returns the numbers below ``n`` in an order drawn from a generator (Fisher and Yates)."""
    order = list(range(n))
    for i in range(n - 1, 0, -1):
        j = generator.draw_seed() % (i + 1)
        order[i], order[j] = order[j], order[i]
    return order


class DataLoader:
    """Batches of a data set. With ``shuffle``, ``seed`` and the number of the pass determine the order of each pass."""

    def __init__(
        self, dataset: Any, batch_size: int = 1, shuffle: bool = False, drop_last: bool = False, seed: int = 0, collate_fn: Optional[Callable[[List[Any]], Any]] = None
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"DataLoader: batch_size is {batch_size}, expected at least 1")
        self.dataset, self.batch_size, self.shuffle, self.drop_last = dataset, batch_size, shuffle, drop_last
        self.collate_fn = collate_fn or collate
        self.seed, self.passes = seed, 0

    def __len__(self) -> int:
        n = len(self.dataset)
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        n = len(self.dataset)
        generator = Generator(self.seed + (self.passes << 32))
        self.passes += 1
        order = permutation(n, generator) if self.shuffle else list(range(n))
        for start in range(0, n, self.batch_size):
            chosen = order[start : start + self.batch_size]
            if len(chosen) < self.batch_size and self.drop_last:
                return
            yield self.collate_fn([self.dataset[i] for i in chosen])


class TokenBatches:
    """Endless batches of windows of ``length`` tokens at random positions, and the same windows shifted by one token. Both are int32 (B, T)."""

    def __init__(self, tokens: Sequence[int], batch: int, length: int, seed: int = 0, device: Any = None) -> None:
        if len(tokens) <= length:
            raise ValueError(f"TokenBatches: got {len(tokens)} tokens, expected more than {length}")
        import array

        self.tokens = array.array("i", [int(t) for t in tokens])
        self.batch, self.length, self.device = batch, length, device
        self.generator = Generator(seed)

    def __iter__(self) -> Iterator[Tuple[Tensor, Tensor]]:
        while True:
            yield self.next()

    def next(self) -> Tuple[Tensor, Tensor]:
        """Returns inputs and targets."""
        places = [self.generator.draw_seed() % (len(self.tokens) - self.length) for _ in range(self.batch)]

        def rows(shift: int) -> Tensor:
            data = b"".join(self.tokens[p + shift : p + shift + self.length].tobytes() for p in places)
            return from_bytes(data, (self.batch, self.length), "int32", self.device)

        return rows(0), rows(1)


__all__ = ["DataLoader", "Dataset", "TensorDataset", "TokenBatches", "collate", "permutation"]
