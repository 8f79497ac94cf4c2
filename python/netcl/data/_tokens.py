"""Windows of a long sequence of tokens."""

from __future__ import annotations

from typing import Any, Iterator, Sequence, Tuple

from .._netcl import Generator, Tensor, from_bytes


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


__all__ = ["TokenBatches"]
