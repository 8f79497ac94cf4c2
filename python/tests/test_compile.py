"""Compiled steps draw random numbers as other steps do, take keyword arguments, and follow values outside of the function."""

import logging

import numpy as np
import pytest

import netcl as nc
import netcl.functional as F
from netcl import nn, optim

DRAWS = {
    "dropout": lambda x: F.dropout(x, 0.4), "ops.dropout": lambda x: nc.ops.dropout(x, 0.3), "rand": lambda x: x * nc.rand(4, 6) + nc.rand(6), "randn": lambda x: x + nc.randn(4, 6), "randint": lambda x: x + nc.randint(0, 9, (4, 6)),
    "rand_like": lambda x: x + nc.rand_like(x), "randn_like": lambda x: x + nc.randn_like(x) * nc.randn_like(x), "bernoulli": lambda x: nc.bernoulli(x.sigmoid()), "normal_": lambda x: (x * 1).normal_(), "uniform_": lambda x: (x * 1).uniform_(),
    "exponential_": lambda x: (x * 1).exponential_(), "randperm": lambda x: x + nc.randperm(6), "rrelu": lambda x: F.rrelu(x, training=True), "gumbel": lambda x: F.gumbel_softmax(x), "alpha": lambda x: F.alpha_dropout(x, 0.5, True),
    "channels": lambda x: F.dropout1d(x.reshape(2, 3, 4), 0.5), "module": nn.Dropout(0.2), "bfloat16": lambda x: F.dropout(x.to("bfloat16"), 0.3).float(), "rsample": lambda x: nc.distributions.Normal(x, 1.0, validate_args=False).rsample(),
    "own generator": lambda x, g=nc.Generator(7): x + g.normal((4, 6)),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWS)
def test_random_numbers_are_those_of_a_step_that_is_not_compiled(name):
    def run(function):
        nc.manual_seed(5)
        if function.__defaults__ if hasattr(function, "__defaults__") else None:
            function.__defaults__[0].manual_seed(7)
        found = []
        step = nc.compile(function) if compiled else function
        for i in range(4):
            found.append(step(nc.tensor(np.random.default_rng(i).normal(size=(4, 6)).astype(np.float32))).numpy())
        return found

    compiled = False
    expected = run(DRAWS[name])
    compiled = True
    found = run(DRAWS[name])
    for a, b in zip(expected, found):
        np.testing.assert_array_equal(b, a)
    assert not np.array_equal(found[2], found[3])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_compiled_training_step_with_dropout_has_the_same_bits(dtype):
    def train(compiled):
        nc.manual_seed(3)
        model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 3)).to(dtype)
        optimizer = optim.AdamW(model.parameters(), lr=1e-2)

        def step(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        step, losses = nc.compile(step) if compiled else step, []
        for i in range(6):
            random = np.random.default_rng(i)
            losses.append(step(nc.tensor(random.normal(size=(4, 8)).astype(np.float32), dtype=dtype), nc.tensor(random.integers(0, 3, 4).tolist())).item())
        return losses, [p.tolist() for p in model.parameters()]

    assert train(True) == train(False)


def test_keyword_arguments_are_arguments():
    @nc.compile
    def f(x, scale=1.0, *, shift=None):
        return x * scale + (0 if shift is None else shift)

    x = nc.ones(2)
    for _ in range(2):
        assert f(x).tolist() == [1, 1] and f(x, scale=3.0).tolist() == [3, 3] and f(x, shift=nc.tensor([1.0, 2.0])).tolist() == [2, 3]
        assert f(x=x, scale=2.0).tolist() == [2, 2] and f(x, shift=nc.tensor([5.0, 6.0])).tolist() == [6, 7]
    assert len(f.graphs) == 4


FACTOR = 2.0


def helper(x):
    return x * FACTOR


def test_values_outside_of_the_function_are_followed():
    global FACTOR
    scale, settings, calls = 1.0, {"shift": 1.0, "on": True}, 0

    class Config:
        power = 1

    config = Config()
    config.rate = 0.5

    def f(x):
        nonlocal calls
        calls += 1
        return helper(x) * scale + settings["shift"] + config.rate

    step, x = nc.compile(f), nc.ones(2)
    assert step(x).tolist() == [3.5, 3.5] and step(x).tolist() == [3.5, 3.5] and calls == 2
    scale = 3.0
    assert step(x).tolist() == [7.5, 7.5]
    settings["shift"] = 2.0
    assert step(x).tolist() == [8.5, 8.5]
    config.rate = 1.5
    assert step(x).tolist() == [9.5, 9.5]
    try:
        FACTOR = 4.0
        assert step(x).tolist() == [15.5, 15.5] and step(x).tolist() == [15.5, 15.5]
    finally:
        FACTOR = 2.0
    assert step(x).tolist() == [9.5, 9.5] and len(step.reasons) == 5, "the earlier graph counts again"
    assert step.reasons[0] == "first call" and [r.split()[2] for r in step.reasons[1:]] == ["scale", "settings", "config", "FACTOR"]


def test_attributes_of_modules_are_followed():
    model = nn.Sequential(nn.LeakyReLU(0.1), nn.Softplus(beta=1.0))
    step, x = nc.compile(lambda x: model(x)), nc.tensor([-1.0, 2.0])
    for slope in (0.1, 0.5, 0.5):
        model[0].negative_slope = slope
        np.testing.assert_allclose(step(x).numpy(), model(x).numpy(), rtol=1e-6)
    assert len(step.reasons) == 2 and "negative_slope of LeakyReLU" in step.reasons[1]
    weights = nc.ones(2)
    scaled = nc.compile(lambda x: x * weights)
    assert scaled(x).tolist() == [-1, 2]
    weights = nc.full((2,), 2.0)
    assert scaled(x).tolist() == [-2, 4], "another tensor with the same name"
    weights.fill_(3.0)
    assert scaled(x).tolist() == [-3, 6] and len(scaled.reasons) == 2


class Scaled(nn.Module):
    def forward(self, x):
        return helper(x)


def test_variables_that_forward_uses_are_followed():
    global FACTOR
    step, x = nc.compile(Scaled()), nc.ones(2)
    assert step(x).tolist() == [2, 2] and step(x).tolist() == [2, 2]
    try:
        FACTOR = 5.0
        assert step(x).tolist() == [5, 5]
    finally:
        FACTOR = 2.0
    assert len(step.reasons) == 2


def test_reasons_are_logged(caplog):
    step = nc.compile(lambda x, k=1, **more: x * k)
    with caplog.at_level(logging.INFO, "netcl.compile"):
        step(nc.ones(2)), step(nc.ones(3)), step(nc.ones(3), 2.0), step(nc.ones(3), k=2)
        with nc.no_grad():
            step(nc.ones(3), k=2)
    assert [r.split(" is ")[0].split(",")[0] for r in step.reasons] == ["first call", "argument 0", "2 arguments", "2 arguments", "gradients are off"]
    assert len(caplog.records) == 5 and "(3,)" in caplog.messages[1] and "(2,)" in caplog.messages[1]


READS = {
    "item": lambda x: x * x[0].item(), "float": lambda x: x * float(x[1]), "list": lambda x: x + nc.tensor(x.tolist()), "array": lambda x: x + nc.tensor(x.numpy()),
    "view": lambda x: x * x.reshape(2, 2)[1, 1].item(), "random": lambda x: x * nc.rand(1).item(), "condition": lambda x: x if x.sum() > 0 else -x,
}  # fmt: skip


@pytest.mark.parametrize("name", READS)
def test_reads_of_inputs_and_random_numbers_are_refused(name):
    with pytest.raises(NotImplementedError, match="capture: the step reads"):
        nc.compile(READS[name])(nc.ones(4))
    constant = nc.full((1,), 3.0)
    assert nc.compile(lambda x: x * constant.item())(nc.ones(2)).tolist() == [3, 3], "a constant may be read"


def test_graphs_of_one_form_are_limited():
    scale = 0
    step = nc.compile(lambda x: x * scale)
    for scale in range(20):
        assert step(nc.ones(1)).item() == scale
    (kept,) = step.graphs.values()
    assert len(kept) == 8


def test_other_draws_in_the_second_run_are_an_error():
    runs = []

    def f(x):
        runs.append(0)
        return x + nc.rand(2) if len(runs) == 1 else x + nc.rand(2) * nc.rand(2)

    with pytest.raises(ValueError, match="other random numbers"):
        nc.compile(f)(nc.ones(2))
    assert (nc.ones(2) + 1).tolist() == [2, 2]
