"""Orders of indices."""

from __future__ import annotations

import math
from typing import Any, Iterable, Iterator, List, Optional, Sequence

from .._netcl import Generator


def permutation(n: int, generator: Generator) -> List[int]:
    """Returns the numbers below ``n`` in an order drawn from a generator (Fisher and Yates)."""
    return generator.permutation(n)


def default(generator: Optional[Generator]) -> Generator:
    """Returns a generator, by default that of ``netcl.manual_seed``."""
    from .._create import default_generator

    return default_generator if generator is None else generator


class Sampler:
    """Base of samplers: iterating gives indices, or lists of indices for a batch sampler."""

    def __class_getitem__(cls, item: Any) -> Any:
        return cls

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} does not define __iter__")


class SequentialSampler(Sampler):
    """All indices in order."""

    def __init__(self, data_source: Any) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler(Sampler):
    """Indices in a random order, or drawn with replacement."""

    def __init__(self, data_source: Any, replacement: bool = False, num_samples: Optional[int] = None, generator: Optional[Generator] = None) -> None:
        if num_samples is not None and (not isinstance(num_samples, int) or num_samples <= 0):
            raise ValueError(f"RandomSampler: num_samples is {num_samples}, expected a positive number")
        self.data_source, self.replacement, self.generator, self._samples = data_source, replacement, generator, num_samples

    @property
    def num_samples(self) -> int:
        """Number of indices."""
        return len(self.data_source) if self._samples is None else self._samples

    def __iter__(self) -> Iterator[int]:
        n, drawn, source = len(self.data_source), 0, default(self.generator)
        if self.replacement:
            for _ in range(self.num_samples):
                yield source.draw_seed() % n
            return
        while n and drawn < self.num_samples:
            part = permutation(n, source)[: self.num_samples - drawn]
            drawn += len(part)
            yield from part

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(Sampler):
    """These indices in a random order."""

    def __init__(self, indices: Sequence[int], generator: Optional[Generator] = None) -> None:
        self.indices, self.generator = indices, generator

    def __iter__(self) -> Iterator[int]:
        return (self.indices[i] for i in permutation(len(self.indices), default(self.generator)))

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(Sampler):
    """Indices drawn with the given weights, with or without replacement."""

    def __init__(self, weights: Sequence[float], num_samples: int, replacement: bool = True, generator: Optional[Generator] = None) -> None:
        if not isinstance(num_samples, int) or isinstance(num_samples, bool) or num_samples <= 0:
            raise ValueError(f"WeightedRandomSampler: num_samples is {num_samples}, expected a positive number")
        if not isinstance(replacement, bool):
            raise ValueError(f"WeightedRandomSampler: replacement is {replacement!r}, expected a bool")
        self.weights = [float(w) for w in (weights.tolist() if hasattr(weights, "tolist") else weights)]
        self.num_samples, self.replacement, self.generator = num_samples, replacement, generator

    def __iter__(self) -> Iterator[int]:
        import bisect
        import itertools

        source = default(self.generator)

        def uniform() -> float:
            return (source.draw_seed() % 2**53) / 2.0**53

        if self.replacement:
            ends = list(itertools.accumulate(self.weights))
            return iter([min(bisect.bisect_right(ends, uniform() * ends[-1]), len(ends) - 1) for _ in range(self.num_samples)])
        if sum(w > 0 for w in self.weights) < self.num_samples:
            raise RuntimeError(f"WeightedRandomSampler: {self.num_samples} samples without replacement exceed the weights above 0")
        # The largest of u^(1/w) are a weighted sample (Efraimidis and Spirakis 2006).
        keys = [(math.log(1.0 - uniform()) / w if w > 0 else -math.inf, i) for i, w in enumerate(self.weights)]
        return iter([i for _, i in sorted(keys, reverse=True)[: self.num_samples]])

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler):
    """Lists of ``batch_size`` indices of a sampler."""

    def __init__(self, sampler: Iterable[int], batch_size: int, drop_last: bool) -> None:
        if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size <= 0:
            raise ValueError(f"BatchSampler: batch_size is {batch_size}, expected a positive number")
        if not isinstance(drop_last, bool):
            raise ValueError(f"BatchSampler: drop_last is {drop_last!r}, expected a bool")
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last

    def __iter__(self) -> Iterator[List[int]]:
        batch: List[int] = []
        for i in self.sampler:
            batch.append(i)
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch and not self.drop_last:
            yield batch

    def __len__(self) -> int:
        n = len(self.sampler)  # type: ignore[arg-type]
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)


class DistributedSampler(Sampler):
    """The indices of one of several processes. All get equally many: the first indices are repeated, or the last ones dropped. Call ``set_epoch``
    before each pass, so that the order changes.
    """

    def __init__(
        self, dataset: Any, num_replicas: Optional[int] = None, rank: Optional[int] = None, shuffle: bool = True, seed: int = 0, drop_last: bool = False
    ) -> None:
        if num_replicas is None or rank is None:
            raise RuntimeError("DistributedSampler: num_replicas and rank are missing; pass the size of the group and this process's rank")
        if not 0 <= rank < num_replicas:
            raise ValueError(f"DistributedSampler: rank is {rank}, expected 0 to {num_replicas - 1}")
        self.dataset, self.num_replicas, self.rank, self.shuffle, self.seed, self.drop_last, self.epoch = dataset, num_replicas, rank, shuffle, seed, drop_last, 0
        n = len(dataset)
        self.num_samples = math.ceil((n - num_replicas) / num_replicas) if drop_last and n % num_replicas else math.ceil(n / num_replicas)
        self.total_size = self.num_samples * num_replicas

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the pass."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        n = len(self.dataset)
        order = permutation(n, Generator(self.seed + self.epoch)) if self.shuffle else list(range(n))
        if self.drop_last:
            order = order[: self.total_size]
        while len(order) < self.total_size:
            order += order[: self.total_size - len(order)]
        return iter(order[self.rank : self.total_size : self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples


__all__ = [
    "BatchSampler", "DistributedSampler", "RandomSampler", "Sampler", "SequentialSampler", "SubsetRandomSampler", "WeightedRandomSampler", "default", "permutation",
]  # fmt: skip
