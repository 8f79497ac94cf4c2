"""Distributions have PyTorch's log probabilities, entropies, moments, divergences and gradients; samples have the moments."""

import math

import numpy as np
import pytest

import netcl as nc
import netcl.distributions as ours

torch = pytest.importorskip("torch")
theirs = torch.distributions


def drawn(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def rates(seed, *shape):
    return np.random.default_rng(seed).uniform(0.2, 0.9, shape).astype(np.float32)


INDICES = np.array([[0, 3, 1], [2, 1, 0]], dtype=np.int32)
BITS = np.array([[0, 1, 1], [1, 1, 0]], dtype=np.float32)
MADE = {
    "categorical probs": (lambda d, p: d.Categorical(p), rates(0, 2, 3, 4), INDICES),
    "categorical logits": (lambda d, p: d.Categorical(logits=p), drawn(1, 2, 3, 4), INDICES),
    "categorical vector": (lambda d, p: d.Categorical(p), rates(2, 4), INDICES),
    "bernoulli probs": (lambda d, p: d.Bernoulli(p), rates(3, 2, 3), BITS),
    "bernoulli logits": (lambda d, p: d.Bernoulli(logits=p), drawn(4, 3), BITS),
    "normal": (lambda d, p: d.Normal(p, 0.7), drawn(5, 2, 3), drawn(6, 2, 3)),
    "normal scale": (lambda d, p: d.Normal(0.3, p), rates(7, 3), drawn(6, 2, 3)),
    "laplace": (lambda d, p: d.Laplace(p, 0.7), drawn(8, 2, 3), drawn(6, 2, 3)),
    "uniform": (lambda d, p: d.Uniform(-p, 2.0), rates(9, 3), rates(10, 2, 3)),
    "exponential": (lambda d, p: d.Exponential(p), rates(11, 3), rates(10, 2, 3)),
    "independent": (lambda d, p: d.Independent(d.Normal(p, 1.5), 1), drawn(12, 2, 3), drawn(6, 2, 3)),
}


def measures(lib, d, name):
    make, parameter, value = MADE[name]
    p = lib.tensor(parameter, requires_grad=True)
    found = make(d, p)
    log = found.log_prob(lib.tensor(value))
    entropy = found.entropy()
    (log.sum() + 0.3 * entropy.sum()).backward()
    arrays = [log, entropy, p.grad, found.mean, found.variance, found.stddev] + ([found.probs, found.logits] if hasattr(found, "probs") else []) + ([found.cdf(lib.tensor(value))] if "normal" in name or "uniform" in name else [])
    return [x.detach().numpy() for x in arrays] + [np.array(tuple(found.batch_shape)), np.array(tuple(found.event_shape))]


@pytest.mark.parametrize("name", MADE)
def test_measures(name):
    for x, y in zip(measures(torch, theirs, name), measures(nc, ours, name)):
        assert x.shape == y.shape
        np.testing.assert_allclose(y, x, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", MADE)
def test_samples_have_the_moments_and_shapes(name):
    make, parameter, _ = MADE[name]
    nc.manual_seed(3)
    found = make(ours, nc.tensor(parameter, requires_grad=True))
    expected = make(theirs, torch.tensor(parameter))
    assert found.sample().shape == tuple(expected.sample().shape) and found.sample((2, 5)).shape == tuple(expected.sample((2, 5)).shape)
    x = found.sample((4000,))
    assert not x.requires_grad and x.numpy().shape == tuple(expected.sample((4000,)).shape)
    if "categorical" in name:
        counts = np.stack([(x.numpy() == i).mean(0) for i in range(4)], -1)
        np.testing.assert_allclose(counts, expected.probs.numpy(), atol=0.05)
    else:
        bound = 5 * expected.stddev.numpy() / math.sqrt(4000)
        assert (np.abs(x.numpy().mean(0) - expected.mean.numpy()) < bound).all()
        np.testing.assert_allclose(x.numpy().std(0), expected.stddev.numpy(), rtol=0.1)


@pytest.mark.parametrize("name", ["normal", "laplace", "uniform", "exponential"])
def test_gradients_flow_through_rsample(name):
    make, parameter, _ = MADE[name]
    p = nc.tensor(parameter, requires_grad=True)
    made = make(ours, p)
    assert made.has_rsample
    made.rsample((3,)).sum().backward()
    assert p.grad is not None and bool(p.grad.abs().sum() > 0)


PAIRS = {
    "categorical": lambda d, lib: (d.Categorical(lib.tensor(rates(0, 2, 4))), d.Categorical(logits=lib.tensor(drawn(1, 2, 4)))),
    "categorical with 0": lambda d, lib: (d.Categorical(lib.tensor([[0.0, 1.0], [0.5, 0.5]])), d.Categorical(lib.tensor([[0.5, 0.5], [0.0, 1.0]]))),
    "bernoulli": lambda d, lib: (d.Bernoulli(lib.tensor(rates(2, 3))), d.Bernoulli(logits=lib.tensor(drawn(3, 3)))),
    "normal": lambda d, lib: (d.Normal(lib.tensor(drawn(4, 3)), 0.5), d.Normal(0.1, lib.tensor(rates(5, 3)))),
    "independent": lambda d, lib: (d.Independent(d.Normal(lib.tensor(drawn(4, 3)), 0.5), 1), d.Independent(d.Normal(lib.tensor(drawn(6, 3)), 1.5), 1)),
    "uniform": lambda d, lib: (d.Uniform(lib.tensor([0.0, 0.0]), 1.0), d.Uniform(lib.tensor([-1.0, 0.5]), 1.0)),
    "exponential": lambda d, lib: (d.Exponential(lib.tensor(rates(7, 3))), d.Exponential(lib.tensor(rates(8, 3)))),
}


@pytest.mark.parametrize("name", PAIRS)
def test_divergences(name):
    expected, found = (d.kl_divergence(*PAIRS[name](d, lib)).numpy() for d, lib in ((theirs, torch), (ours, nc)))
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6)


WRONG = {
    "below 0": lambda d, lib: d.Categorical(lib.tensor([0.5, -0.5])), "sum 0": lambda d, lib: d.Categorical(lib.tensor([0.0, 0.0])), "NaN": lambda d, lib: d.Categorical(logits=lib.tensor([0.5, math.nan])),
    "no arguments": lambda d, lib: d.Categorical(), "both": lambda d, lib: d.Bernoulli(lib.tensor(0.5), lib.tensor(0.5)), "index": lambda d, lib: d.Categorical(lib.tensor([0.5, 0.5])).log_prob(lib.tensor(2)),
    "fraction": lambda d, lib: d.Categorical(lib.tensor([0.5, 0.5])).log_prob(lib.tensor(0.5)), "probability": lambda d, lib: d.Bernoulli(lib.tensor(1.5)), "scale": lambda d, lib: d.Normal(0.0, lib.tensor(0.0)),
    "range": lambda d, lib: d.Uniform(lib.tensor(1.0), lib.tensor(1.0)), "outside": lambda d, lib: d.Uniform(0.0, lib.tensor(1.0)).log_prob(lib.tensor(2.0)), "axes": lambda d, lib: d.Independent(d.Normal(lib.tensor(0.0), 1.0), 1),
    "bit": lambda d, lib: d.Bernoulli(lib.tensor(0.5)).log_prob(lib.tensor(0.5)), "rate": lambda d, lib: d.Exponential(lib.tensor(-1.0)),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_errors_there_and_here(name):
    for d, lib in ((theirs, torch), (ours, nc)):
        with pytest.raises(ValueError):
            WRONG[name](d, lib)


def test_values_are_not_checked_on_request():
    assert ours.Uniform(0.0, 1.0, validate_args=False).log_prob(nc.tensor(2.0)).item() == -math.inf
    assert ours.Bernoulli(nc.tensor(1.5), validate_args=False).probs.item() == 1.5


def test_other_distributions_say_what_to_write():
    with pytest.raises(AttributeError, match="Independent"):
        ours.MultivariateNormal
    with pytest.raises(AttributeError, match="numpy.random"):
        ours.Beta
    with pytest.raises(NotImplementedError, match="log_prob"):
        ours.kl_divergence(ours.Normal(0.0, 1.0), ours.Laplace(0.0, 1.0))
    with pytest.raises(NotImplementedError, match="rsample"):
        ours.Categorical(nc.tensor([0.5, 0.5])).rsample()
