"""Distributions of integers."""

from __future__ import annotations

import math
from typing import Any, Optional

from .._create import full, rand, tensor
from .._netcl import Tensor
from .._torch import broadcast_shapes, gather, multinomial
from ..autograd import no_grad
from ..functional import binary_cross_entropy_with_logits
from ._base import Distribution, either, limited


class Categorical(Distribution):
    """Distribution of the indices of the last axis. ``probs`` are weights that need not add up to 1; ``logits`` are their logarithms. Samples are int32."""

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: Optional[bool] = None) -> None:
        given, is_log = either("Categorical", probs, logits)
        if given.ndim < 1:
            raise ValueError("Categorical: the parameter has 0 axes, expected at least 1")
        super().__init__(tuple(given.shape[:-1]), (), validate_args)
        self._num_events = given.shape[-1]
        self._logits = given - given.logsumexp(-1, True) if is_log else None
        self._probs = None if is_log else given / given.sum(-1, True)
        self._require("logits have a NaN" if is_log else "probs have an element below 0, or a row without a finite sum", self._logits == self._logits if self._logits is not None else self.probs >= 0)

    @property
    def probs(self) -> Tensor:
        """Probabilities, which add up to 1."""
        if self._probs is None:
            self._probs = self.logits.softmax(-1)
        return self._probs

    @property
    def logits(self) -> Tensor:
        """Logarithms of the probabilities."""
        if self._logits is None:
            self._logits = limited(self.probs).log()
        return self._logits

    @property
    def mode(self) -> Tensor:
        """The most probable index."""
        return self.probs.argmax(-1)

    @property
    def mean(self) -> Tensor:
        """NaN: indices do not have a mean."""
        return full(self._batch_shape, math.nan, self.probs.dtype, self.probs.device)

    @property
    def variance(self) -> Tensor:
        """NaN: indices do not have a variance."""
        return self.mean

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws indices, ``sample_shape`` of them for each element of the batch."""
        shape = self._extended(sample_shape)
        rows = math.prod(self._batch_shape)
        with no_grad():
            count = math.prod(shape) // rows if rows else 0
            if not count:
                return full(shape, 0, "int32", self.probs.device)
            drawn = multinomial(self.probs.detach().reshape(rows, self._num_events), count, True)
            return drawn.transpose(0, 1).reshape(shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """Returns the logarithm of the probability of indices."""
        self._require(f"a value is not an index from 0 to {self._num_events - 1}", (value >= 0) & (value < self._num_events) & (value == value._to(None, "int32")))
        shape = broadcast_shapes(tuple(value.shape), self._batch_shape)
        logits = self.logits.expand(*shape, self._num_events)
        return gather(logits, -1, value._to(None, "int32").expand(shape).unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        """Returns the entropy in nats."""
        return -(self.logits.clamp(min=-3.4028234663852886e38) * self.probs).sum(-1)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """Returns all indices (K, 1, ..), or (K, *batch) if ``expand``."""
        values = tensor(list(range(self._num_events)), device=self.probs.device).reshape(-1, *(1,) * len(self._batch_shape))
        return values.expand(-1, *self._batch_shape) if expand else values


class Bernoulli(Distribution):
    """Distribution of 0 and 1. ``probs`` is the probability of 1, ``logits`` the logarithm of its odds. Samples are floats."""

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: Optional[bool] = None) -> None:
        given, self._is_log = either("Bernoulli", probs, logits)
        super().__init__(tuple(given.shape), (), validate_args)
        self._given = given
        self._require("logits have a NaN" if self._is_log else "probs has an element outside of 0 to 1", given == given if self._is_log else (given >= 0) & (given <= 1))

    @property
    def probs(self) -> Tensor:
        """Probabilities of 1."""
        return self._given.sigmoid() if self._is_log else self._given

    @property
    def logits(self) -> Tensor:
        """Logarithms of the odds of 1."""
        if self._is_log:
            return self._given
        p = limited(self._given)
        return p.log() - (-p).log1p()

    @property
    def mean(self) -> Tensor:
        """Probabilities of 1."""
        return self.probs

    @property
    def variance(self) -> Tensor:
        """``p (1 - p)``."""
        return self.probs * (1 - self.probs)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws 0 and 1 as floats."""
        shape, p = self._extended(sample_shape), self.probs.detach()
        return (rand(*shape, device=p.device) < p)._to(None, p.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        """Returns the logarithm of the probability of 0 and 1."""
        self._require("a value is neither 0 nor 1", (value == 0) | (value == 1))
        shape = broadcast_shapes(tuple(value.shape), self._batch_shape)
        logits = self.logits.expand(shape)
        return -binary_cross_entropy_with_logits(logits, value._to(None, logits.dtype).expand(shape), reduction="none")

    def entropy(self) -> Tensor:
        """Returns the entropy in nats."""
        return binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none")


__all__ = ["Bernoulli", "Categorical"]
