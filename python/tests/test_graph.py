"""Captured steps give the same bits as steps that are not captured."""

import collections

import numpy as np
import pytest

import netcl as nc
from netcl import nn, optim


def train(compiled, steps=6, rule=optim.AdamW):
    nc.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3))
    optimizer = rule(model.named_parameters(), lr=1e-2)
    optimizer.clip_grad_norm(1.0)

    def step(x, y):
        optimizer.zero_grad()
        loss = nc.ops.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    run = nc.compile(step) if compiled else step
    generator, losses = nc.Generator(1), []
    for i in range(steps):
        optimizer.lr = 1e-2 / (i + 1)
        x = nc.randn(4, 8, generator=generator)
        losses.append(run(x, nc.randint(0, 3, (4,), generator=generator)).item())
    return losses, [p.tolist() for p in model.parameters()], optimizer.state_dict()


def plain(state):
    """Returns a state with lists instead of tensors."""
    if isinstance(state, dict):
        return {key: plain(value) for key, value in state.items()}
    return state.tolist() if isinstance(state, nc.Tensor) else state


@pytest.mark.parametrize("rule", [optim.AdamW, optim.SGD])
def test_a_compiled_training_step_has_the_bits_of_one_that_is_not(rule):
    eager, compiled = train(False, rule=rule), train(True, rule=rule)
    assert eager[0] == compiled[0] and eager[1] == compiled[1]
    assert plain(eager[2]) == plain(compiled[2])


def test_a_graph_for_each_form():
    calls = []

    @nc.compile
    def f(x, factor):
        calls.append(x.shape)
        return x * factor + 1, x.sum()

    for shape in [(2,), (3,), (2,), (2,)]:
        x = nc.randn(*shape)
        y, total = f(x, 2.0)
        np.testing.assert_allclose(y.numpy(), x.numpy() * 2 + 1, rtol=1e-6)
        np.testing.assert_allclose(total.item(), x.numpy().sum(), rtol=1e-5)
    assert len(f.graphs) == 2 and len(calls) == 4
    x = nc.ones(2)
    assert f(x, 3.0)[0].tolist() == [4, 4]


def test_train_and_eval_are_two_graphs():
    class Mode(nn.Module):
        def forward(self, x):
            return x * 2 if self.training else x

    model = nn.Sequential(Mode(), Mode())
    run = nc.compile(lambda x: model(x))
    x = nc.ones(3)
    model.eval()
    assert [run(x).tolist(), run(x).tolist()] == [[1] * 3] * 2
    model.train()
    assert [run(x).tolist(), run(x).tolist()] == [[4] * 3] * 2
    model.eval()
    assert run(x).tolist() == [1] * 3
    model[1].train()
    assert run(x).tolist() == [2] * 3, "a nested module"
    assert run(nc.full((3,), 5.0)).tolist() == [10] * 3


def test_equal_numbers_of_other_types_are_other_arguments():
    seen = []

    @nc.compile
    def f(x, factor):
        seen.append(factor)
        return x * factor if isinstance(factor, float) else x + 1

    x = nc.tensor([3.0])
    assert [f(x, v).item() for v in (2, 2.0, True, 0.0, -0.0)] == [4, 6, 4, 0, 0]
    assert len(seen) == 10


def test_tensors_within_tuples_lists_and_dicts_are_inputs():
    f = nc.compile(lambda x, pair: x + pair[0] + pair[1]["a"][0])
    x, a, b = nc.tensor([1.0]), nc.tensor([10.0]), nc.tensor([20.0])
    assert [f(x, (t, {"a": [x]})).item() for t in (a, b, a)] == [12, 22, 12]
    assert len(f.graphs) == 1
    with pytest.raises(ValueError, match="no tensor"):
        nc.compile(lambda n: n)(1)


def test_tensors_within_other_containers_are_not_confused():
    class Own(list):
        pass

    Pair = collections.namedtuple("Pair", "a b")
    x, a, b = nc.tensor([1.0]), nc.tensor([10.0]), nc.tensor([20.0])
    f = nc.compile(lambda x, own: x + own[0] if isinstance(own, Own) else x)
    assert [f(x, Own([t])).item() for t in (a, b, a)] == [11, 21, 11]
    assert [f(x, Own([[t]])[0]).item() for t in (a, b)] == [1, 1]
    g = nc.compile(lambda x, pair: x + pair.b)
    assert [g(x, Pair(x, t)).item() for t in (a, b)] == [11, 21] and len(g.graphs) == 1
    h = nc.compile(lambda x, pairs: x + pairs[0][0])
    assert [h(x, Own([[t]])).item() for t in (a, b)] == [11, 21]


def test_a_parameter_within_a_list_stays_itself():
    w = nc.tensor([3.0], requires_grad=True)
    x = nc.tensor([2.0])

    @nc.compile
    def gradient(x, parameters):
        parameters[0].grad = None
        (x * parameters[0]).sum().backward()
        return parameters[0].grad

    assert gradient(x, [w]).item() == 2 and gradient(nc.tensor([5.0]), [w]).item() == 5
    other = nc.tensor([7.0], requires_grad=True)
    assert gradient(x, [other]).item() == 2 and len(gradient.graphs) == 2


def test_a_graph_by_hand():
    x = nc.tensor([1.0, 2.0])
    graph = nc.Graph(lambda x: x.square().exp(), x)
    assert graph.commands[0] == 1, "captured graphs fuse operations that need no gradient"
    again = graph(nc.tensor([0.0, 1.0]))
    np.testing.assert_allclose(again.numpy(), np.exp([0.0, 1.0]), rtol=1e-6)
    assert graph(x) is again
    np.testing.assert_allclose(again.numpy(), np.exp([1.0, 4.0]), rtol=1e-6)
    with pytest.raises(ValueError, match="those that it was captured with"):
        graph(nc.ones(3))
    with pytest.raises(ValueError, match="no tensor among the examples"):
        nc.Graph(lambda: 1)


def test_what_cannot_be_captured_is_refused():
    with pytest.raises(NotImplementedError):
        nc.Graph(lambda x: nc.tensor([x.sum().item()]), nc.ones(2))
    with pytest.raises(NotImplementedError, match="seed"):
        nc.Graph(lambda x: nc.multinomial(x, 2, True), nc.ones(2))
    with pytest.raises(NotImplementedError, match="seed"):
        nc.Graph(lambda x: x + nc.default_generator.draw_seed(), nc.ones(2))
    with pytest.raises(NotImplementedError, match="random numbers"):
        nc.OpGraph(lambda x: x + nc.rand(2), nc.ones(2))
    with pytest.raises(KeyError, match="own"):

        def fails(x):
            if nc._state.state.capturing:
                raise KeyError("own")
            return x

        nc.Graph(fails, nc.ones(2))
    assert (nc.ones(2) + 1).tolist() == [2, 2], "eager work goes on"
