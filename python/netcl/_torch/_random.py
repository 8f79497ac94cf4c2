"""Random numbers and new tensors with PyTorch's names. Numbers are those of netcl's generator, so that they are the same on every device."""

from __future__ import annotations

import math
from typing import Any, Callable, Optional, Sequence, Tuple

from .. import _create, ops
from .._create import default_generator, manual_seed
from .._dtype import float32, int32
from .._host import to_dtype
from .._netcl import Generator, Tensor, evaluate
from .._netcl import full as _full
from ._apply import number
from ._shape import ints


def _like(x: Tensor, dtype: Any, device: Any) -> Tuple[Any, Any]:
    return (x.dtype if dtype is None else to_dtype(dtype), x.device if device is None else device)


def _leaf(x: Tensor, requires_grad: bool) -> Tensor:
    return x.requires_grad_() if requires_grad else x


def empty_like(input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Creates zeros with the shape, dtype and device of ``input``."""
    return _leaf(_create.zeros_like(input, dtype, device), requires_grad)


def rand_like(input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Draws uniform numbers in [0, 1) with the shape, dtype and device of ``input``."""
    kind, place = _like(input, dtype, device)
    return _create.rand(*input.shape, dtype=kind, device=place, requires_grad=requires_grad)


def randn_like(input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Draws normally distributed numbers with the shape, dtype and device of ``input``."""
    kind, place = _like(input, dtype, device)
    return _create.randn(*input.shape, dtype=kind, device=place, requires_grad=requires_grad)


def randint_like(input: Tensor, low: int, high: Optional[int] = None, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Draws integers from ``low`` to ``high`` (exclusive), or below ``low``, with the shape, dtype and device of ``input``."""
    kind, place = _like(input, dtype, device)
    low, high = (0, low) if high is None else (low, high)
    return _create.randint(low, high, tuple(input.shape), dtype=kind, device=place)


def randperm(n: int, *, generator: Optional[Generator] = None, dtype: Any = None, device: Any = None) -> Tensor:
    """Returns the numbers below ``n`` (int32) in a random order."""
    from .._draws import drawn
    from ..data import permutation

    source, kind = generator or default_generator, int32 if dtype is None else to_dtype(dtype)
    if not n:
        return _create.zeros(0, dtype=kind, device=device)
    return drawn(("randperm", n, id(source)), lambda: _create.tensor(permutation(n, source), dtype=kind, device=device))


def normal(mean: Any = 0.0, std: Any = 1.0, size: Any = None, *, generator: Optional[Generator] = None, dtype: Any = None, device: Any = None) -> Tensor:
    """Draws normally distributed numbers. ``mean`` and ``std`` are numbers, then with a ``size``, or tensors."""
    given = [x for x in (mean, std) if isinstance(x, Tensor)]
    if not given:
        if size is None:
            raise TypeError("normal: size is missing; write torch.normal(mean, std, size)")
        drawn = _create.randn(*ints((size,)), dtype=dtype, device=device, generator=generator)
        made: Tensor = drawn * std + mean
        return made
    if size is not None:
        raise TypeError("normal: size is given together with a tensor; expected one of both")
    shape = ops.expand((given[0] + given[-1]).detach(), tuple((given[0] + given[-1]).shape)).shape
    scaled: Tensor = _create.randn(*shape, dtype=given[0].dtype, device=given[0].device, generator=generator) * std + mean
    return scaled


def bernoulli(input: Tensor, p: Optional[float] = None, *, generator: Optional[Generator] = None) -> Tensor:
    """Draws 1 with the probability in each element, or with probability ``p``, and 0 otherwise."""
    chance = input.detach().float() if p is None else _full(input.shape, p, float32, input.device)
    drawn = (generator or default_generator).uniform(tuple(input.shape), 0.0, 1.0, float32, input.device)
    return evaluate("x0 < x1 ? 1.0f : 0.0f", [drawn, chance], float32)._to(None, input.dtype)


def multinomial(input: Tensor, num_samples: int, replacement: bool = False, *, generator: Optional[Generator] = None, seed: Optional[int] = None) -> Tensor:
    """Draws indices (int32) with the given weights, with replacement, or one without."""
    if generator is not None and seed is None:
        seed = generator.draw_seed()
    from .._methods import multinomial as draw

    return draw(input, num_samples, replacement, seed=seed)


def logspace(start: float, end: float, steps: int, base: float = 10.0, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Creates ``steps`` numbers from ``base ** start`` to ``base ** end`` with equal ratios."""
    parts = [start + (end - start) * i / (steps - 1) if steps > 1 else start for i in range(steps)]
    return _create.tensor([math.pow(base, v) for v in parts], dtype=float32 if dtype is None else dtype, device=device) if steps else _create.zeros(0, dtype=dtype)


def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """Converts data to a tensor. A tensor of that dtype and device is returned unchanged."""
    return _create.asarray(data, dtype, device)


def scalar_tensor(value: float, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Creates a tensor of one number, without axes, as float32."""
    return _full((), value, float32 if dtype is None else to_dtype(dtype), device)


def seed() -> int:
    """Restarts the default random stream with a new seed, and returns it."""
    import os

    chosen = int.from_bytes(os.urandom(8), "little") >> 1
    manual_seed(chosen)
    return chosen


def initial_seed() -> int:
    """Returns the seed of the default random stream."""
    return default_generator.seed


def get_rng_state() -> Tensor:
    """Returns the seed and the position of the default random stream, as a tensor (4) of int32 halves."""
    words = [default_generator.seed, default_generator.offset]
    halves = [(w >> shift) & 0xFFFFFFFF for w in words for shift in (0, 32)]
    return _create.tensor([h - 2**32 if h >= 2**31 else h for h in halves], dtype=int32)


def set_rng_state(new_state: Tensor) -> None:
    """Restores a state that ``get_rng_state`` returned."""
    halves = [int(v) % 2**32 for v in new_state.tolist()]
    if len(halves) != 4:
        raise RuntimeError(f"set_rng_state: got {len(halves)} numbers, expected those of get_rng_state")
    default_generator.manual_seed(halves[0] | halves[1] << 32)
    default_generator.offset = halves[2] | halves[3] << 32


def _uniform(x: Tensor, low: float, high: float, generator: Optional[Generator]) -> Tensor:
    return (generator or default_generator).uniform(tuple(x.shape), low, high, float32, x.device)


def uniform_(self: Tensor, a: float = 0.0, b: float = 1.0, *, generator: Optional[Generator] = None) -> Tensor:
    """Overwrites the elements with uniform numbers from ``a`` (inclusive) to ``b`` (exclusive)."""
    if a > b:
        raise RuntimeError(f"uniform_: the range from {a} to {b} is empty")
    return self.copy_(_uniform(self, float(a), float(b), generator))


def normal_(self: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Optional[Generator] = None) -> Tensor:
    """Overwrites the elements with normally distributed numbers."""
    if std < 0:
        raise RuntimeError(f"normal_: std is {std}, expected at least 0")
    return self.copy_((generator or default_generator).normal(tuple(self.shape), float(mean), float(std), float32, self.device))


def random_(self: Tensor, low: int = 0, high: Optional[int] = None, *, generator: Optional[Generator] = None) -> Tensor:
    """Overwrites the elements with integers from ``low`` to ``high`` (exclusive), or below ``low``."""
    if high is None:
        most = {"float16": 2**11 + 1, "bfloat16": 2**8 + 1, "float32": 2**24 + 1, "bool": 2}.get(self.dtype.name, 2**31 - 1)
        low, high = (0, low) if low else (0, most)
    return self.copy_(_create.randint(low, high, tuple(self.shape), device=self.device, generator=generator)._to(None, self.dtype))


def bernoulli_(self: Tensor, p: Any = 0.5, *, generator: Optional[Generator] = None) -> Tensor:
    """Overwrites the elements with 1 with probability ``p``, a number or a tensor, and with 0 otherwise."""
    chance = p.detach().float().expand(tuple(self.shape)) if isinstance(p, Tensor) else _full(self.shape, float(p), float32, self.device)
    return self.copy_(bernoulli(chance, generator=generator)._to(None, self.dtype))


def exponential_(self: Tensor, lambd: float = 1.0, *, generator: Optional[Generator] = None) -> Tensor:
    """Overwrites the elements with exponentially distributed numbers of rate ``lambd``."""
    drawn = _uniform(self, 0.0, 1.0, generator)
    return self.copy_(evaluate("-log1p(-x0) / x1", [drawn, number(lambd, self)], float32))


def log_normal_(self: Tensor, mean: float = 1.0, std: float = 2.0, *, generator: Optional[Generator] = None) -> Tensor:
    """Overwrites the elements with numbers whose logarithms are normally distributed."""
    drawn = (generator or default_generator).normal(tuple(self.shape), float(mean), float(std), float32, self.device)
    return self.copy_(drawn.exp())


def new_tensor(self: Tensor, data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Creates a tensor from data with this dtype and device."""
    kind, place = _like(self, dtype, device)
    return _create.tensor(data, kind, place, requires_grad)


def _new(value: float) -> Any:
    def method(self: Tensor, *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
        kind, place = _like(self, dtype, device)
        return _leaf(_full(ints(size), value, kind, place), requires_grad)

    method.__doc__ = f"Creates a tensor of {'zeros' if not value else 'ones'} with this dtype and device."
    return method


new_zeros: Callable[..., Tensor] = _new(0.0)
new_ones: Callable[..., Tensor] = _new(1.0)
new_empty: Callable[..., Tensor] = _new(0.0)


def new_full(self: Tensor, size: Sequence[int], fill_value: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Creates a tensor with a number in every element, with this dtype and device."""
    kind, place = _like(self, dtype, device)
    return _leaf(_full(tuple(size), fill_value, kind, place), requires_grad)
