"""Distributions of PyTorch that netcl does not have, with what to write instead."""

from __future__ import annotations

from typing import Dict

_SAMPLES = "draw with numpy.random, and write log_prob with tensor operations"
REFUSED: Dict[str, str] = {
    **dict.fromkeys("Beta Binomial Cauchy Chi2 Dirichlet FisherSnedecor Gamma GeneralizedPareto Geometric Gumbel HalfCauchy HalfNormal InverseGamma Kumaraswamy LKJCholesky LogisticNormal".split(), _SAMPLES),
    **dict.fromkeys("LowRankMultivariateNormal Multinomial NegativeBinomial Pareto Poisson RelaxedBernoulli RelaxedOneHotCategorical StudentT VonMises Weibull Wishart".split(), _SAMPLES),
    "MultivariateNormal": "write Independent(Normal(loc, scale), 1) for a diagonal covariance",
    "OneHotCategorical": "write Categorical, and nn.functional.one_hot of its samples",
    "LogNormal": "write Normal, and exp of its samples",
    "MixtureSameFamily": "write a Categorical, and logsumexp of the log probabilities",
    "TransformedDistribution": "transform the samples, and add the log determinant to log_prob",
    "constraints": "pass validate_args=False, or check arguments before",
    "transforms": "transform the samples, and add the log determinant to log_prob",
    "register_kl": "write a function of the two distributions",
}


def __getattr__(name: str) -> object:
    if name in REFUSED:
        raise AttributeError(f"netcl.distributions does not have {name}; {REFUSED[name]}")
    raise AttributeError(f"netcl.distributions does not have {name!r}")


__all__ = ["REFUSED", "__getattr__"]
