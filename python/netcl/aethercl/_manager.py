"""Several simulated GPUs of one process."""

from __future__ import annotations

from typing import Any, Iterator, List

from .. import errors
from ._gpu import GPU, shutdown


class GPUManager:
    """Opens ``count`` simulated GPUs with the options of :class:`GPU`, and closes them at exit or at the end of a ``with`` block."""

    def __init__(self, count: int = 1, profile: str = "teaching", **options: Any):
        if count < 1:
            raise errors.FormatError(f"GPUManager: {count} GPUs, expected at least 1")
        self.gpus: List[GPU] = [self._create(index, profile, options) for index in range(count)]

    def _create(self, index: int, profile: str, options: "dict[str, Any]") -> GPU:
        return GPU(index, profile, **options)

    def get_gpu(self, index: int) -> GPU:
        """Returns a GPU by its index."""
        if not 0 <= index < len(self.gpus):
            raise errors.IndexOutOfBounds(f"GPUManager: GPU {index} does not exist; there are {len(self.gpus)}")
        return self.gpus[index]

    def __getitem__(self, index: int) -> GPU:
        return self.get_gpu(index)

    def __len__(self) -> int:
        return len(self.gpus)

    def __iter__(self) -> Iterator[GPU]:
        return iter(self.gpus)

    def shutdown(self) -> None:
        """Closes the GPUs of this manager."""
        for gpu in self.gpus:
            gpu.close()

    def __enter__(self) -> GPUManager:
        return self

    def __exit__(self, *exception: object) -> None:
        self.shutdown()


__all__ = ["GPUManager", "shutdown"]
