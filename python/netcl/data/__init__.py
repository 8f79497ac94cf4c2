"""Data sets, samplers, and batches, in an order that a seed determines."""

from ._collate import collate, default_collate, default_convert
from ._datasets import ChainDataset, ConcatDataset, Dataset, IterableDataset, StackDataset, Subset, TensorDataset, random_split
from ._loader import DataLoader
from ._samplers import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    permutation,
)
from ._tokens import TokenBatches
from ._workers import WorkerInfo, get_worker_info

__all__ = [
    "BatchSampler", "ChainDataset", "ConcatDataset", "DataLoader", "Dataset", "DistributedSampler", "IterableDataset", "RandomSampler", "Sampler",
    "SequentialSampler", "StackDataset", "Subset", "SubsetRandomSampler", "TensorDataset", "TokenBatches", "WeightedRandomSampler", "WorkerInfo", "collate",
    "default_collate", "default_convert", "get_worker_info", "permutation", "random_split",
]  # fmt: skip
