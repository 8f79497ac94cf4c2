"""Divergence of two distributions."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict

from .._netcl import Tensor
from ..errors import UnsupportedError
from ..functional import softplus
from ._base import Distribution, Independent
from ._choices import Bernoulli, Categorical
from ._continuous import Exponential, Normal, Uniform


def _normal(p: Normal, q: Normal) -> Tensor:
    ratio = (p.scale / q.scale) ** 2
    apart = ((p.loc - q.loc) / q.scale) ** 2
    return 0.5 * (ratio + apart - 1 - ratio.log())


def _categorical(p: Categorical, q: Categorical) -> Tensor:
    terms = (p.probs * (p.logits - q.logits)).masked_fill(q.probs == 0, math.inf)
    return terms.masked_fill(p.probs == 0, 0.0).sum(-1)


def _bernoulli(p: Bernoulli, q: Bernoulli) -> Tensor:
    first = p.probs * (softplus(-q.logits) - softplus(-p.logits))
    second = (1 - p.probs) * (softplus(q.logits) - softplus(p.logits))
    return first + second


def _uniform(p: Uniform, q: Uniform) -> Tensor:
    made = ((q.high - q.low) / (p.high - p.low)).log()
    return made.masked_fill((q.low > p.low) | (q.high < p.high), math.inf)


def _exponential(p: Exponential, q: Exponential) -> Tensor:
    ratio = q.rate / p.rate
    return ratio - 1 - ratio.log()


PAIRS: Dict[type, Callable[[Any, Any], Tensor]] = {Normal: _normal, Categorical: _categorical, Bernoulli: _bernoulli, Uniform: _uniform, Exponential: _exponential}


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """Computes the Kullback-Leibler divergence of two distributions of one type, in nats for each element of the batch."""
    if isinstance(p, Independent) and isinstance(q, Independent) and p.reinterpreted_batch_ndims == q.reinterpreted_batch_ndims:
        return p._summed(kl_divergence(p.base_dist, q.base_dist))
    for kind, compute in PAIRS.items():
        if isinstance(p, kind) and isinstance(q, kind):
            return compute(p, q)
    raise UnsupportedError(f"kl_divergence: {type(p).__name__} and {type(q).__name__} are not supported; write the mean of p.log_prob(x) - q.log_prob(x) over samples x of p")


__all__ = ["kl_divergence"]
