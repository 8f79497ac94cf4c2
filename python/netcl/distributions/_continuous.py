"""Distributions of real numbers."""

from __future__ import annotations

import math
from typing import Any, Optional

from .._create import rand, randn
from .._netcl import Tensor
from .._torch import erf
from ._base import LOG_2PI, Distribution, parameters


class Normal(Distribution):
    """Normal distribution with mean ``loc`` and standard deviation ``scale``."""

    has_rsample = True

    def __init__(self, loc: Any, scale: Any, validate_args: Optional[bool] = None) -> None:
        self.loc, self.scale = parameters(loc, scale)
        super().__init__(tuple(self.loc.shape), (), validate_args)
        self._require("scale has an element that is not above 0", self.scale > 0)
        self._require("loc has a NaN", self.loc == self.loc)

    @property
    def mean(self) -> Tensor:
        """``loc``."""
        return self.loc

    @property
    def mode(self) -> Tensor:
        """``loc``."""
        return self.loc

    @property
    def stddev(self) -> Tensor:
        """``scale``."""
        return self.scale

    @property
    def variance(self) -> Tensor:
        """``scale²``."""
        return self.scale * self.scale

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draws numbers whose gradient flows to the parameters."""
        noise = randn(*self._extended(sample_shape), device=self.loc.device)._to(None, self.loc.dtype)
        return self.loc + noise * self.scale

    def log_prob(self, value: Tensor) -> Tensor:
        """Returns the logarithm of the density."""
        self._require("a value is NaN", value == value)
        apart = (value - self.loc) / self.scale
        return -0.5 * (apart * apart) - self.scale.log() - 0.5 * LOG_2PI

    def cdf(self, value: Tensor) -> Tensor:
        """Returns the probability of numbers up to a value."""
        return 0.5 * (1 + erf((value - self.loc) / self.scale * (1 / math.sqrt(2))))

    def entropy(self) -> Tensor:
        """Returns the entropy in nats."""
        return 0.5 + 0.5 * LOG_2PI + self.scale.log()


class Uniform(Distribution):
    """Uniform distribution from ``low`` (inclusive) to ``high`` (exclusive)."""

    has_rsample = True

    def __init__(self, low: Any, high: Any, validate_args: Optional[bool] = None) -> None:
        self.low, self.high = parameters(low, high)
        super().__init__(tuple(self.low.shape), (), validate_args)
        self._require("high has an element that is not above low", self.low < self.high)

    @property
    def mean(self) -> Tensor:
        """``(low + high) / 2``."""
        return (self.high + self.low) / 2

    @property
    def variance(self) -> Tensor:
        """``(high - low)² / 12``."""
        return (self.high - self.low) ** 2 / 12

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draws numbers whose gradient flows to the parameters."""
        drawn = rand(*self._extended(sample_shape), device=self.low.device)._to(None, self.low.dtype)
        return self.low + drawn * (self.high - self.low)

    def log_prob(self, value: Tensor) -> Tensor:
        """Returns the logarithm of the density."""
        self._require("a value is outside of low to high", (value >= self.low) & (value <= self.high))
        within = (self.low <= value) & (self.high > value)
        return within._to(None, self.low.dtype).log() - (self.high - self.low).log()

    def cdf(self, value: Tensor) -> Tensor:
        """Returns the probability of numbers up to a value."""
        return ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0)

    def entropy(self) -> Tensor:
        """Returns the entropy in nats."""
        return (self.high - self.low).log()


class Exponential(Distribution):
    """Exponential distribution with ``rate``, the inverse of its mean."""

    has_rsample = True

    def __init__(self, rate: Any, validate_args: Optional[bool] = None) -> None:
        (self.rate,) = parameters(rate)
        super().__init__(tuple(self.rate.shape), (), validate_args)
        self._require("rate has an element that is not above 0", self.rate > 0)

    @property
    def mean(self) -> Tensor:
        """``1 / rate``."""
        return 1.0 / self.rate

    @property
    def variance(self) -> Tensor:
        """``1 / rate²``."""
        return self.rate**-2.0

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draws numbers whose gradient flows to the rate."""
        drawn = rand(*self._extended(sample_shape), device=self.rate.device)._to(None, self.rate.dtype)
        return -(-drawn).log1p() / self.rate

    def log_prob(self, value: Tensor) -> Tensor:
        """Returns the logarithm of the density."""
        self._require("a value is below 0", value >= 0)
        return self.rate.log() - self.rate * value

    def cdf(self, value: Tensor) -> Tensor:
        """Returns the probability of numbers up to a value."""
        return 1 - (-self.rate * value).exp()

    def entropy(self) -> Tensor:
        """Returns the entropy in nats."""
        return 1.0 - self.rate.log()


class Laplace(Distribution):
    """Laplace distribution with mean ``loc`` and mean distance ``scale``."""

    has_rsample = True

    def __init__(self, loc: Any, scale: Any, validate_args: Optional[bool] = None) -> None:
        self.loc, self.scale = parameters(loc, scale)
        super().__init__(tuple(self.loc.shape), (), validate_args)
        self._require("scale has an element that is not above 0", self.scale > 0)

    @property
    def mean(self) -> Tensor:
        """``loc``."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """``2 scale²``."""
        return 2 * self.scale**2

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draws numbers whose gradient flows to the parameters."""
        drawn = rand(*self._extended(sample_shape), device=self.loc.device)._to(None, self.loc.dtype) * (2 - 2.0**-23) - (1 - 2.0**-23)
        return self.loc - self.scale * drawn.sign() * (-drawn.abs()).log1p()

    def log_prob(self, value: Tensor) -> Tensor:
        """Returns the logarithm of the density."""
        self._require("a value is NaN", value == value)
        return -(2 * self.scale).log() - (value - self.loc).abs() / self.scale

    def entropy(self) -> Tensor:
        """Returns the entropy in nats."""
        return 1 + (2 * self.scale).log()


__all__ = ["Exponential", "Laplace", "Normal", "Uniform"]
