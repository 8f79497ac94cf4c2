"""Seed 000 (OCL-LLM), rows 71 to 80 of the table of promises: operations with their gradients and contexts."""

import re
import weakref

import numpy as np
import pytest
import seeds

import netcl as nc
from netcl.compat import ocl_llm as ocl
from netcl.compat.ocl_llm import FunctionContext, OclTensor, Parameter


@pytest.fixture(autouse=True)
def device():
    before = nc.default_device()
    ocl.ocl_initialize(before.name)
    yield before
    nc.set_default_device(before)


def drawn(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def tensor(*shape, seed=0):
    return OclTensor(drawn(*shape, seed=seed), requires_grad=True)


def numeric(function, arrays, at, dy, step=1e-3):
    """Returns the gradient of ``sum(function(*arrays) * dy)`` for one array, from central differences in f64."""
    arrays = [np.asarray(a, dtype=np.float64) for a in arrays]
    grad = np.zeros_like(arrays[at])
    for i in np.ndindex(grad.shape):
        both = []
        for sign in (1, -1):
            moved = [a.copy() for a in arrays]
            moved[at][i] += sign * step
            both.append((function(*moved) * dy).sum())
        grad[i] = (both[0] - both[1]) / (2 * step)
    return grad


def check(method, reference, arrays, atol=2e-3):
    """Compares a method of tensors and its gradients with a function of arrays."""
    tensors = [OclTensor(a, requires_grad=True) for a in arrays]
    y = method(*tensors)
    expected = reference(*[np.asarray(a, dtype=np.float64) for a in arrays])
    assert type(y) is OclTensor and np.allclose(y.to_host(), expected, atol=1e-5)
    dy = drawn(*expected.shape, seed=9)
    y.backward(OclTensor(dy))
    for i, x in enumerate(tensors):
        assert type(x.grad) is OclTensor and np.allclose(x.grad.to_host(), numeric(reference, arrays, i, dy), atol=atol)
    assert np.allclose(y.grad.to_host(), dy)
    return y


def erf(x):
    from math import erf as one

    return np.vectorize(one)(x)


def gelu(x):
    return 0.5 * x * (1 + erf(x / np.sqrt(2)))


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def layer_norm(x, eps=1e-5):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)


def test_row_071_matmul_has_three_forms():
    matmul = lambda a, b: a @ b  # noqa: E731
    for a, b, kind in (((3, 4), (4, 2), "MatMulBackwardContext"), ((2, 3, 4), (4, 2), "MatMulBackwardContext"), ((2, 3, 4), (2, 4, 2), "MatMulBatchedBackwardContext")):
        y = check(OclTensor.matmul, matmul, [drawn(*a), drawn(*b, seed=1)])
        assert type(y._ctx).__name__ == kind
    with pytest.raises(ValueError):
        tensor(2, 3).matmul(tensor(2, 3))
    with pytest.raises(TypeError):
        tensor(2, 3).matmul(2.0)


def test_row_072_add_takes_tensors_bias_positions_and_numbers():
    add = lambda a, b: a + b  # noqa: E731
    for b, kind in (((2, 3, 4), "AddBackwardContext"), ((4,), "AddBackwardContext"), ((1, 4), "AddBackwardContext"), ((1, 3, 4), "AddBackwardContext")):
        assert type(check(OclTensor.add, add, [drawn(2, 3, 4), drawn(*b, seed=1)])._ctx).__name__ == kind
    check(OclTensor.add, add, [drawn(4), drawn(2, 4, seed=1)])
    for number in (1, 0.5, np.float32(2.0)):
        check(lambda x: x.add(number), lambda x: x + float(number), [drawn(2, 3)])
    x, positions = tensor(2, 3, 4), OclTensor(drawn(3, 4))
    y = x.add(positions)
    assert type(y._ctx).__name__ == "AddBroadcastPEBackwardContext" and np.allclose(y.to_host(), drawn(2, 3, 4) + drawn(3, 4))
    with pytest.raises(TypeError):
        x.add("1")


def test_row_073_mul():
    check(OclTensor.mul, lambda a, b: a * b, [drawn(2, 3), drawn(2, 3, seed=1)])
    x = tensor(3)
    y = x.mul(x)
    y.backward(np.ones(3))
    assert type(y._ctx).__name__ == "MulBackwardContext" and np.allclose(x.grad.to_host(), 2 * drawn(3), atol=1e-6)


def test_row_074_mul_scalar_and_div_scalar():
    y = check(lambda x: x.mul_scalar(-1.5), lambda x: -1.5 * x, [drawn(2, 3)])
    assert type(y._ctx).__name__ == "ScalarMulBackwardContext" and y._ctx.unpack_saved_data()["scalar"] == -1.5
    check(lambda x: x.div_scalar(4), lambda x: x / 4, [drawn(2, 3)])
    with pytest.raises(ZeroDivisionError):
        tensor(2).div_scalar(0)


def test_row_075_gelu():
    assert type(check(OclTensor.gelu, gelu, [drawn(3, 5) * 2])._ctx).__name__ == "GeluBackwardContext"
    far = OclTensor([-60.0, -8.0, 0.0, 8.0, 60.0], requires_grad=True)
    far.gelu().backward(np.ones(5))
    assert np.allclose(far.grad.to_host(), [0, 0, 0.5, 1, 1], atol=1e-5)


def test_row_076_softmax():
    assert type(check(OclTensor.softmax, softmax, [drawn(2, 3, 4)])._ctx).__name__ == "SoftmaxBackwardContext"
    check(lambda x: x.softmax(dim=1), lambda x: softmax(x, 1), [drawn(2, 3, 4)])


def test_row_077_layer_norm():
    assert type(check(OclTensor.layer_norm, layer_norm, [drawn(2, 3, 8)])._ctx).__name__ == "LayerNormBackwardContextRevised"
    check(lambda x: x.layer_norm(eps=0.1), lambda x: layer_norm(x, 0.1), [drawn(3, 8)])


def test_row_078_transpose_has_a_context_for_each_path():
    for shape, dims, kind in (
        ((3, 4), (0, 1), "TransposeBackwardContext"), ((2, 3, 4), (1, 2), "BatchedTransposeLastTwoBackwardContext"),
        ((2, 2, 3, 4), (-1, -2), "BatchedTransposeLastTwoBackwardContext"), ((2, 3, 2, 4), (1, 2), "Transpose12BatchedBackwardContext"),
        ((2, 3, 4), (0, 2), "TransposeCPUFallbackBackwardContext"), ((2, 3, 2, 4), (0, -1), "TransposeCPUFallbackBackwardContext"),
    ):  # fmt: skip
        y = check(lambda x: x.transpose(*dims), lambda x: np.swapaxes(x, *dims), [drawn(*shape)])
        assert type(y._ctx).__name__ == kind
    x = OclTensor(drawn(2, 3))
    y = x.transpose(0, 1)
    x.data.write(np.zeros((2, 3), dtype=np.float32))
    assert y.to_host().any()
    with pytest.raises(ValueError):
        x.transpose(0, 2)


def test_row_079_reshape_shares_the_buffer():
    y = check(lambda x: x.reshape(3, 4), lambda x: x.reshape(3, 4), [drawn(2, 6)])
    assert type(y._ctx).__name__ == "ReshapeBackwardContext"
    x = tensor(2, 6)
    y = x.reshape(4, -1)
    assert y.data is x.data and y.shape == (4, 3) and x.reshape((12,)).shape == (12,)
    with pytest.raises(ValueError):
        x.reshape(5, 2)


def test_row_080_contexts_exist_and_work_by_themselves():
    named = set(re.findall(r"\w+BackwardContext(?:Revised)?\b", seeds.section("000", "Autograd Context Klassen")))
    assert len(named) == 15
    for name in named:
        assert issubclass(getattr(ocl, name), FunctionContext), name
    a, b = tensor(2, 3), tensor(3, 2, seed=1)
    context = ocl.MatMulBackwardContext(a, b)
    assert all(isinstance(p, weakref.ref) for p in context.parents) and context.parents[0]() is a and context.parents[1]() is b
    dy = drawn(2, 2, seed=2)
    context.backward(OclTensor(dy))
    assert np.allclose(a.grad.to_host(), dy @ drawn(3, 2, seed=1).T, atol=1e-5) and np.allclose(b.grad.to_host(), drawn(2, 3).T @ dy, atol=1e-5)
    weight = Parameter(np.zeros((4, 2)))
    ocl.EmbeddingBackwardContext(weight, np.array([[1, 1], [3, -7]])).backward(OclTensor(np.ones((2, 2, 2))))
    assert weight.grad.to_host().tolist() == [[0, 0], [2, 2], [0, 0], [1, 1]]
    assert a.exp()._ctx.parents[0]() is a and isinstance(a.sum()._ctx, FunctionContext)
