"""The base of distributions, and events of several axes."""

from __future__ import annotations

import math
from typing import Any, List, Optional, Sequence, Tuple

from .._create import tensor
from .._netcl import Tensor
from .._state import state
from .._torch import broadcast_tensors
from ..autograd import no_grad
from ..errors import UnsupportedError

Shape = Tuple[int, ...]
EPSILON = 2.0**-23
"""Distance from 1 to the next float32. Probabilities count as at least this, and as at most 1 minus this, in logarithms."""


def parameters(*given: Any) -> List[Tensor]:
    """Returns numbers and tensors as float tensors of one shape."""
    device = next((g.device for g in given if isinstance(g, Tensor)), None)
    made = [g if isinstance(g, Tensor) else tensor(float(g), device=device) for g in given]
    if not all(x.dtype.is_floating_point for x in made):
        raise ValueError("distribution: a parameter has integers, expected floats; write x.float()")
    return list(broadcast_tensors(*made)) if len(made) > 1 else made


def either(name: str, probs: Any, logits: Any) -> Tuple[Tensor, bool]:
    """Returns the one of both that is given, and whether it is the logits."""
    if (probs is None) == (logits is None):
        raise ValueError(f"{name}: either probs or logits is expected, but not both")
    return parameters(logits if probs is None else probs)[0], probs is None


def limited(probs: Tensor) -> Tensor:
    """Returns probabilities whose logarithms, and those of their complements, are finite."""
    return probs.clamp(EPSILON, 1.0 - EPSILON)


class Distribution:
    """Distribution of events of shape ``event_shape``, one for each element of ``batch_shape``."""

    has_rsample = False

    def __init__(self, batch_shape: Sequence[int] = (), event_shape: Sequence[int] = (), validate_args: Optional[bool] = None) -> None:
        self._batch_shape, self._event_shape = tuple(batch_shape), tuple(event_shape)
        self._validates = validate_args is not False

    @property
    def batch_shape(self) -> Shape:
        """Shape of the parameters without the event."""
        return self._batch_shape

    @property
    def event_shape(self) -> Shape:
        """Shape of one event."""
        return self._event_shape

    def _require(self, what: str, valid: Tensor) -> None:
        """Raises an error if a mask has an element that is not set. Reads the mask, so it waits for the device."""
        if self._validates and not state.capturing and not bool(valid.detach().all().item()):
            raise ValueError(f"{type(self).__name__}: {what}")

    def _extended(self, sample_shape: Any) -> Shape:
        lead = (sample_shape,) if isinstance(sample_shape, int) else tuple(int(n) for n in sample_shape)
        return (*lead, *self._batch_shape, *self._event_shape)

    @property
    def mean(self) -> Tensor:
        """Expected value."""
        raise NotImplementedError(f"{type(self).__name__} does not define its mean")

    @property
    def variance(self) -> Tensor:
        """Expected square of the distance from the mean."""
        raise NotImplementedError(f"{type(self).__name__} does not define its variance")

    @property
    def stddev(self) -> Tensor:
        """Square root of the variance."""
        return self.variance.sqrt()

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws events, without a gradient: ``sample_shape`` of them for each element of the batch."""
        with no_grad():
            return self.rsample(sample_shape)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draws events whose gradient flows to the parameters."""
        raise UnsupportedError(f"{type(self).__name__}: rsample is not supported; write sample, and the gradient of log_prob")

    def log_prob(self, value: Tensor) -> Tensor:
        """Returns the logarithm of the probability, or of the density, of a value."""
        raise NotImplementedError(f"{type(self).__name__} does not define log_prob")

    def entropy(self) -> Tensor:
        """Returns the entropy in nats."""
        raise NotImplementedError(f"{type(self).__name__} does not define its entropy")

    def perplexity(self) -> Tensor:
        """Returns e to the power of the entropy."""
        return self.entropy().exp()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_shape={self._batch_shape}, event_shape={self._event_shape})"


class Independent(Distribution):
    """Distribution whose last batch axes are axes of the event: their log probabilities add up."""

    def __init__(self, base_distribution: Distribution, reinterpreted_batch_ndims: int, validate_args: Optional[bool] = None) -> None:
        shape, n = base_distribution.batch_shape, reinterpreted_batch_ndims
        if not 0 <= n <= len(shape):
            raise ValueError(f"Independent: {n} axes of a batch of shape {shape}, expected at most {len(shape)}")
        super().__init__(shape[: len(shape) - n], (*shape[len(shape) - n :], *base_distribution.event_shape), validate_args)
        self.base_dist, self.reinterpreted_batch_ndims = base_distribution, n
        self.has_rsample = base_distribution.has_rsample

    def _summed(self, x: Tensor) -> Tensor:
        n = self.reinterpreted_batch_ndims
        return x.sum(tuple(range(-n, 0))) if n else x

    @property
    def mean(self) -> Tensor:
        """Expected value."""
        return self.base_dist.mean

    @property
    def variance(self) -> Tensor:
        """Variance of each element."""
        return self.base_dist.variance

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws events, without a gradient."""
        return self.base_dist.sample(sample_shape)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draws events whose gradient flows to the parameters."""
        return self.base_dist.rsample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """Returns the sum of the log probabilities over the axes of the event."""
        return self._summed(self.base_dist.log_prob(value))

    def entropy(self) -> Tensor:
        """Returns the entropy in nats."""
        return self._summed(self.base_dist.entropy())


LOG_2PI = math.log(2 * math.pi)

__all__ = ["Distribution", "EPSILON", "Independent", "LOG_2PI", "either", "limited", "parameters"]
