"""Every operation of the registry, as a function and as a method."""

import inspect

import numpy as np
import pytest

import netcl as nc
import opinfo_map
from netcl import ops
from netcl._netcl import Op


def test_every_operation_is_here_with_its_documentation():
    assert len(ops.__all__) > 80
    for name in ops.__all__:
        function = getattr(ops, name)
        assert callable(function) and function.__doc__ == Op(name).doc and function.__name__ == name
        other = getattr(nc.functional, name)
        assert other is function or (other.__module__.startswith(("netcl.functional.", "netcl._torch.")) and other.__doc__), f"{name}: PyTorch's arguments"
        if Op(name).inputs[0][1] == "one":
            assert callable(getattr(nc.Tensor, name)), name


def test_every_operation_has_an_opinfo_or_says_why_not():
    """test_opinfo.py compares the operations with an OpInfo, if PyTorch is installed."""
    assert set(opinfo_map.MAPPED) | set(opinfo_map.UNMAPPED) == set(ops.__all__)
    assert not set(opinfo_map.MAPPED) & set(opinfo_map.UNMAPPED)


def test_attributes_by_place_and_by_name():
    x = nc.tensor([[1.0, 2.0], [3.0, 5.0]])
    by_name = ops.softmax(x, axis=0).tolist()
    assert ops.softmax(x, 0).tolist() == by_name == x.softmax(0).tolist() == ops.softmax(axis=0, x=x).tolist()
    values, indices = x.topk(1)
    assert values.tolist() == [[2], [5]] and indices.tolist() == [[1], [1]]
    assert ops.cat([x, x, x], axis=1).shape == (2, 6)
    assert [p.tolist() for p in x.chunk(2)] == [[[1, 2]], [[3, 5]]]
    y = ops.linear(x, x, bias=nc.ones(2))
    np.testing.assert_allclose(y.numpy(), x.numpy() @ x.numpy() + 1)
    assert ops.linear(x, x, None).tolist() == ops.linear(x, x).tolist()
    assert ops.cross_entropy(x, nc.tensor([0, 1]), ignore_index=None).shape == ()


def test_a_wrong_call_says_what_is_wrong():
    x = nc.ones(2, 2)
    for call, kind, words in [
        (lambda: ops.softmax(x, axes=0), TypeError, "no argument \"axes\", expected one of x, axis"),
        (lambda: ops.softmax(x, 0, axis=0), TypeError, "axis is given twice"),
        (lambda: ops.softmax(x, 0, 1), TypeError, "3 arguments, at most 2"),
        (lambda: ops.softmax(3), TypeError, "x is int, expected a netcl.Tensor"),
        (lambda: ops.softmax(), ValueError, "missing input x"),
        (lambda: ops.topk(x, k=-1), ValueError, "attribute k is -1"),
        (lambda: ops.topk(x, k="a"), TypeError, "attribute k"),
        (lambda: ops.gated(x, gate="swish"), ValueError, "expected one of silu"),
        (lambda: Op("sofmax"), ValueError, "did you mean softmax"),
    ]:
        with pytest.raises(kind, match=words):
            call()


def test_random_operations_draw_from_the_default_generator():
    x = nc.ones(4, 64)
    nc.manual_seed(1)
    first, second = ops.dropout(x, 0.5), x.dropout(0.5)
    assert first.tolist() != second.tolist()
    nc.manual_seed(1)
    assert ops.dropout(x, 0.5).tolist() == first.tolist()
    assert ops.dropout(x, 0.5, seed=3).tolist() == ops.dropout(x, 0.5, seed=3).tolist()
    assert abs(first.numpy().mean() - 1) < 0.3


def test_gradients_flow_through_calls_by_name():
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((4, 6)).astype(np.float32) for _ in range(2))
    x = nc.tensor(a, requires_grad=True)
    (ops.log_softmax(x) * nc.tensor(b)).sum().backward()
    p = np.exp(a) / np.exp(a).sum(-1, keepdims=True)
    np.testing.assert_allclose(x.grad.numpy(), b - p * b.sum(-1, keepdims=True), atol=1e-5)


def test_signatures_in_stubs_are_those_of_the_registry():
    from netcl import _stubs

    assert _stubs.outdated() == []
    assert inspect.getdoc(ops.layer_norm).startswith("Layer normalization")
