"""Probability distributions with the names and meaning of ``torch.distributions``.

>>> import netcl as nc
>>> from netcl.distributions import Categorical
>>> chosen = Categorical(probs=nc.tensor([0.25, 0.75]))
>>> round(chosen.log_prob(nc.tensor(1)).exp().item(), 4)
0.75
"""

from ._base import Distribution, Independent
from ._choices import Bernoulli, Categorical
from ._continuous import Exponential, Laplace, Normal, Uniform
from ._divergence import kl_divergence
from ._refused import __getattr__ as __getattr__

__all__ = ["Bernoulli", "Categorical", "Distribution", "Exponential", "Independent", "Laplace", "Normal", "Uniform", "kl_divergence"]
