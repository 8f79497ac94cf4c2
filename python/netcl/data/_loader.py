"""Batches of a data set."""

from __future__ import annotations

import weakref
from typing import Any, Callable, Iterable, Iterator, List, Optional

from .._netcl import Generator
from ._collate import default_collate, default_convert
from ._datasets import IterableDataset
from ._samplers import BatchSampler, RandomSampler, SequentialSampler, default
from ._workers import Pool


class DataLoader:
    """Batches of a data set, with PyTorch's arguments. With ``shuffle``, the order comes from ``generator`` [default: that of ``manual_seed``], or from
    ``seed`` and the number of the pass.

    ``num_workers`` processes load samples. They start with the method ``spawn``, so the data set must be picklable, and the program needs ``if __name__ ==
    "__main__":``. With ``multiprocessing_context="fork"`` they start faster, but samples must be arrays and numbers, because devices do not survive a
    fork. ``pin_memory`` is accepted; copies to a device use pinned memory by themselves.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: Optional[int] = 1,
        shuffle: Optional[bool] = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Optional[Callable[[List[Any]], Any]] = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Optional[Callable[[int], None]] = None,
        multiprocessing_context: Any = None,
        generator: Optional[Generator] = None,
        *,
        prefetch_factor: Optional[int] = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: Optional[int] = None,
    ) -> None:
        if isinstance(sampler, bool):
            raise TypeError("DataLoader: sampler is a bool; write drop_last=True by name")
        _check(num_workers, timeout, prefetch_factor, persistent_workers, multiprocessing_context)
        self.iterable = isinstance(dataset, IterableDataset)
        if self.iterable and (shuffle or sampler is not None or batch_sampler is not None):
            raise ValueError("DataLoader: an IterableDataset has its own order; shuffle, sampler and batch_sampler are not possible")
        if sampler is not None and shuffle:
            raise ValueError("DataLoader: sampler and shuffle are both given, expected one of them")
        if batch_sampler is not None:
            if batch_size != 1 or shuffle or sampler is not None or drop_last:
                raise ValueError("DataLoader: batch_sampler excludes batch_size, shuffle, sampler and drop_last")
            batch_size = None
        elif batch_size is None and drop_last:
            raise ValueError("DataLoader: drop_last needs a batch_size")
        elif batch_size is not None and batch_size < 1:
            raise ValueError(f"DataLoader: batch_size is {batch_size}, expected at least 1")
        self.dataset, self.batch_size, self.drop_last, self.shuffle = dataset, batch_size, drop_last, bool(shuffle)
        self.num_workers, self.timeout, self.worker_init_fn, self.generator = num_workers, timeout, worker_init_fn, generator
        self.pin_memory, self.prefetch_factor, self.persistent_workers, self.in_order = pin_memory, prefetch_factor or 2, persistent_workers, in_order
        self.multiprocessing_context, self._given_collate = multiprocessing_context, collate_fn
        self.seed, self.passes, self._pool = seed, 0, None  # type: Optional[int], int, Optional[Pool]
        if sampler is None and not self.iterable:
            sampler = RandomSampler(dataset, generator=generator) if shuffle else SequentialSampler(dataset)
        self.sampler = sampler
        self.batch_sampler = batch_sampler if batch_sampler is not None or batch_size is None or self.iterable else BatchSampler(sampler, batch_size, drop_last)
        self.collate_fn = collate_fn or (default_convert if batch_size is None and batch_sampler is None else default_collate)

    @property
    def _batches(self) -> bool:
        return self.batch_size is not None or self.batch_sampler is not None

    def __len__(self) -> int:
        if not self.iterable:
            return len(self.batch_sampler if self._batches else self.sampler)
        n = len(self.dataset)
        if self.batch_size is None:
            return n
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)

    def _tasks(self) -> Iterable[Any]:
        """Yields the indices of each batch, or of each sample without batches."""
        if self.seed is not None and isinstance(self.sampler, RandomSampler):
            self.sampler.generator = Generator(self.seed + (self.passes << 32))
        self.passes += 1
        return iter(self.batch_sampler) if self._batches else iter(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        if self.num_workers:
            return self._from_workers()
        return self._iterated() if self.iterable else self._indexed()

    def _indexed(self) -> Iterator[Any]:
        for task in self._tasks():
            if not self._batches:
                yield self.collate_fn(self.dataset[task])
            elif hasattr(self.dataset, "__getitems__"):
                yield self.collate_fn(self.dataset.__getitems__(list(task)))
            else:
                yield self.collate_fn([self.dataset[i] for i in task])

    def _iterated(self) -> Iterator[Any]:
        samples = iter(self.dataset)
        if self.batch_size is None:
            yield from (self.collate_fn(s) for s in samples)
            return
        while True:
            batch = [s for _, s in zip(range(self.batch_size), samples)]
            if not batch or (self.drop_last and len(batch) < self.batch_size):
                return
            yield self.collate_fn(batch)

    def _orders(self) -> Iterator[Any]:
        """Yields the tasks of workers, each in a tuple."""
        if self.iterable:
            while True:
                yield ((self.batch_size, self.drop_last),)
        for task in self._tasks():
            yield (list(task) if self._batches else task,)

    def _from_workers(self) -> Iterator[Any]:
        seed = default(self.generator).draw_seed() % 2**40
        pool = self._pool
        if pool is None:
            pool = Pool(self.dataset, self.num_workers, self._given_collate, self.worker_init_fn, self.multiprocessing_context, self.timeout, self.iterable)
            if self.persistent_workers:
                self._pool = pool
                weakref.finalize(self, pool.close)
        try:
            yield from pool.run(self._orders(), seed, self.prefetch_factor, self.in_order)
        finally:
            if not self.persistent_workers:
                pool.close()


def _check(workers: int, timeout: float, prefetch: Optional[int], persistent: bool, context: Any) -> None:
    if workers < 0 or timeout < 0:
        raise ValueError(f"DataLoader: num_workers is {workers} and timeout {timeout}, expected at least 0")
    if not workers and (prefetch is not None or persistent or context is not None):
        raise ValueError("DataLoader: prefetch_factor, persistent_workers and multiprocessing_context need num_workers above 0")
    if prefetch is not None and prefetch < 1:
        raise ValueError(f"DataLoader: prefetch_factor is {prefetch}, expected at least 1")


__all__ = ["DataLoader"]
