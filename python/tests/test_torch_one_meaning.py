"""Names that PyTorch has in several modules have one implementation here, with PyTorch's values, gradients, required arguments and keywords."""

import math

import numpy as np
import pytest

import netcl as nc
import netcl.functional as F

torch = pytest.importorskip("torch")


def run(lib, function, arrays, dtype=None):
    leaves = [lib.tensor(a, requires_grad=True) for a in arrays]
    y = function(*[x if dtype is None else x.to(getattr(lib, dtype)) for x in leaves])
    found = [y.detach().float().numpy()]
    if y.requires_grad:
        weights = np.linspace(0.5, 1.5, max(1, y.numel()), dtype=np.float32).reshape(tuple(y.shape))
        (y.float() * lib.tensor(weights)).sum().backward()
        found += [x.grad.float().numpy() if x.grad is not None else np.zeros(a.shape) for x, a in zip(leaves, arrays)]
    return found


def both(theirs, ours, *arrays, dtype=None, tolerance=1e-4):
    expected, found = run(torch, theirs, arrays, dtype), run(nc, ours, arrays, dtype)
    found += [np.zeros(a.shape) for a in arrays][len(found) - 1 :]
    expected += [np.zeros(a.shape) for a in arrays][len(expected) - 1 :]
    for x, y in zip(expected, found):
        np.testing.assert_allclose(y, x, rtol=tolerance, atol=tolerance / 100)


def sample(*shape):
    x = np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)
    if x.ndim > 1:
        x[0, 1], x[:, 2] = 0.0, 0.0
    return x


def test_each_pair_is_one_function():
    assert F.cosine_similarity is nc.cosine_similarity and F.sigmoid is nc.sigmoid and F.tanh is nc.tanh
    assert nc.linalg.vector_norm is nc.vector_norm
    x = nc.ones(2, 3)
    for name in ("softmax", "log_softmax", "relu"):
        assert nc.equal(getattr(F, name)(x, *(1,) * (name != "relu")), getattr(nc, name)(x, *(1,) * (name != "relu")))


@pytest.mark.parametrize("p", [2, 1.0, 0.0, 3.0, 0.5, -1.0, -2.0, math.inf, -math.inf])
@pytest.mark.parametrize("dim", [None, 0, -1, (0, 1), (-1,)])
def test_norms(p, dim):
    for x in (sample(3, 4, 5), sample(4, 5), np.array(-2.5, np.float32)):
        if x.ndim or dim in (None, 0, -1):
            both(lambda t: torch.linalg.vector_norm(t, p, dim, True), lambda t: nc.vector_norm(t, p, dim, True), x)
            both(lambda t: t.norm(p, dim), lambda t: t.norm(p, dim), x)
    if p in (1.0, 2, 3.0):
        both(lambda t: torch.linalg.vector_norm(t, p, dim), lambda t: nc.vector_norm(t, p, dim), sample(3, 4, 5), dtype="bfloat16", tolerance=2e-2)


def test_norm_of_large_float16_numbers_adds_in_float32():
    both(lambda t: t.norm(), lambda t: t.norm(), np.full(300, 300.0, np.float32), dtype="float16", tolerance=1e-3)


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("eps", [1e-8, 0.5, 3.0])
def test_cosine_similarity_of_short_vectors(dim, eps):
    y = sample(3, 4, 5)
    y[1] *= 1e-9
    for a, b in ((sample(3, 4, 5), y), (sample(3, 4, 5), sample(4, 5))):
        both(lambda s, t: torch.cosine_similarity(s, t, dim, eps), lambda s, t: nc.cosine_similarity(s, t, dim, eps), a, b)
    with pytest.raises(NotImplementedError, match="float"):
        F.cosine_similarity(nc.ones(2, 3).int(), nc.ones(2, 3).int())


REQUIRED = ("softmax", "log_softmax", "logsumexp", "cumsum", "cumprod")


@pytest.mark.parametrize("name", REQUIRED)
def test_dim_is_required_where_pytorch_requires_it(name):
    x = nc.ones(2, 3)
    for call in (lambda: getattr(nc, name)(x), lambda: getattr(x, name)()):
        with pytest.raises(TypeError, match=rf"{name}: dim is missing; write {name}\(x, dim=-1\)"):
            call()
    for dim in (0, 1, -1):
        both(lambda t: getattr(torch, name)(t, dim), lambda t: getattr(nc, name)(t, dim), sample(3, 4, 5))
        both(lambda t: getattr(t, name)(dim=dim), lambda t: getattr(t, name)(axis=dim), sample(4, 5))
    both(lambda t: getattr(torch, name)(t, -1), lambda t: getattr(nc, name)(t, -1), np.array(0.5, np.float32))


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "softmin"])
def test_functional_requires_dim_too(name):
    with pytest.raises(TypeError, match="dim is missing"):
        getattr(F, name)(nc.ones(2, 3))
    both(lambda t: getattr(torch.nn.functional, name)(t, 1, 3, torch.float32), lambda t: getattr(F, name)(t, 1, 3, nc.float32), sample(4, 5))


CALLS = {
    "flip keyword": lambda lib, x: lib.flip(x, dims=[0, 1]), "flip list": lambda lib, x: x.flip([1]), "flip numbers": lambda lib, x: x.flip(0, 1), "flip none": lambda lib, x: x.flip(()),
    "permute keyword": lambda lib, x: lib.permute(x, dims=(1, 0)), "permute method": lambda lib, x: x.permute(dims=(1, 0)), "tile keyword": lambda lib, x: lib.tile(x, dims=(2, 1)),
    "tile numbers": lambda lib, x: x.tile(2, 2, 1), "repeat keyword": lambda lib, x: x.repeat(repeats=(2, 1)), "reshape keyword": lambda lib, x: lib.reshape(x, shape=(-1,)),
    "reshape numbers": lambda lib, x: x.reshape(5, 4), "pow": lambda lib, x: lib.pow(x, exponent=2), "full_like": lambda lib, x: lib.full_like(x, fill_value=2.0), "copy_": lambda lib, x: lib.zeros(4, 5).copy_(x, non_blocking=True),
    "eye": lambda lib, x: x @ lib.eye(n=5, m=3), "linspace": lambda lib, x: x * lib.linspace(start=1, end=2, steps=5), "relu": lambda lib, x: lib.relu(x) + lib.relu(x.detach().int()), "stack": lambda lib, x: lib.stack([x, x], dim=-1),
    "unfold over": lambda lib, x: x.unfold(1, 3, 1), "unfold apart": lambda lib, x: x.unfold(0, 2, 2), "unfold gaps": lambda lib, x: x.unfold(dimension=1, size=1, step=3), "unfold all": lambda lib, x: x.unfold(-1, 5, 2),
    "unfold twice": lambda lib, x: x.unfold(0, 2, 1).unfold(1, 2, 2), "unfold of a number": lambda lib, x: x.sum().unfold(0, 1, 1) + x.sum(), "dropout2d": lambda lib, x: lib.nn.functional.dropout2d(x, 0.0) + lib.nn.functional.dropout3d(x, 0.5, False),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_keywords_and_forms(name):
    both(lambda x: CALLS[name](torch, x), lambda x: CALLS[name](nc, x), sample(4, 5))


def test_windows_that_do_not_overlap_are_views():
    for lib in (torch, nc):
        x = lib.zeros(4, 6)
        x.unfold(1, 3, 3)[0, 1, 2] = 5.0
        assert x[0, 5].item() == 5.0
    for size, step in ((7, 1), (2, 0), (-1, 1)):
        with pytest.raises(RuntimeError):
            torch.zeros(4, 6).unfold(1, size, step)
        with pytest.raises(RuntimeError, match="unfold"):
            nc.zeros(4, 6).unfold(1, size, step)


@pytest.mark.parametrize("name", ["flip", "permute", "tile", "repeat", "reshape", "transpose", "swapaxes"])
def test_missing_arguments_are_errors(name):
    with pytest.raises(TypeError, match="missing"):
        getattr(nc.ones(2, 3), name)()


def test_negative_axes_of_operations():
    x = nc.tensor(sample(2, 3, 4))
    for axis in range(4):
        assert nc.equal(nc.ops.stack([x, x], axis - 4), nc.ops.stack([x, x], axis)), axis
        assert nc.equal(nc.ops.unsqueeze(x, axis - 4), nc.ops.unsqueeze(x, axis)), axis
    for call in (lambda: nc.ops.stack([x, x], -5), lambda: nc.ops.stack([x, x], 4), lambda: nc.ops.unsqueeze(x, -5)):
        with pytest.raises(nc.errors.ShapeError, match="out of range for a new axis"):
            call()


WRITES = {
    "+=": lambda x: x.__iadd__(1), "add_": lambda x: x.add_(1), "relu inplace": lambda x: F.relu(x, inplace=True), "relu_": lambda x: x.relu_(),
    "dropout inplace": lambda x: F.dropout(x, 0.5, True, True),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITES)
def test_writes_follow_one_rule(name):
    write = WRITES[name]
    leaf = nc.ones(2, 3, requires_grad=True)
    with pytest.raises(NotImplementedError, match="a leaf that requires a gradient"):
        write(leaf)
    with pytest.raises(NotImplementedError, match="share memory"):
        write(nc.ones(1, 3).expand(2, 3))
    with pytest.raises(NotImplementedError, match="a graph of operations cannot contain a write"):
        nc.OpGraph(lambda x: write(x * 2), nc.ones(2, 3))
    x = nc.ones(2, 3)
    assert write(x) is x
