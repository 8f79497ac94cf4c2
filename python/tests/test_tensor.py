"""Tensors compared with NumPy: creation, operators, indexing and conversion."""

import copy
import gc
import math
import pickle
import weakref

import numpy as np
import pytest

import netcl as nc


def given(*shape, low=-2.0):
    n = math.prod(shape)
    return (np.arange(n, dtype=np.float32) * 0.37 + low).reshape(shape)


def same(x, expected):
    expected = np.asarray(expected)
    assert tuple(x.shape) == expected.shape
    np.testing.assert_allclose(x.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_creation():
    same(nc.zeros(2, 3), np.zeros((2, 3)))
    same(nc.ones((2, 3)), np.ones((2, 3)))
    same(nc.full((2,), 1.5), [1.5, 1.5])
    assert nc.full((2,), 3).dtype is nc.int32
    same(nc.arange(5), np.arange(5))
    same(nc.arange(2, 11, 3), np.arange(2, 11, 3))
    same(nc.arange(1.0, 0.0, -0.25), np.arange(1.0, 0.0, -0.25))
    assert nc.arange(0).shape == (0,)
    same(nc.linspace(0, 1, 5), np.linspace(0, 1, 5))
    same(nc.linspace(0, 1, 4, endpoint=False), np.linspace(0, 1, 4, endpoint=False))
    same(nc.eye(3, 4, 1), np.eye(3, 4, 1))
    same(nc.tensor([[1, 2], [3, 4]]), [[1, 2], [3, 4]])
    assert nc.tensor([1, 2]).dtype is nc.int32 and nc.tensor([1, 2.5]).dtype is nc.float32
    assert nc.tensor(3.5).shape == () and nc.tensor([]).shape == (0,)
    assert nc.tensor([[], []]).shape == (2, 0)
    same(nc.tensor(given(2, 3)[:, ::-1]), given(2, 3)[:, ::-1])
    same(nc.tensor(memoryview(np.arange(4, dtype=np.int32))), np.arange(4))
    same(nc.zeros_like(nc.ones(2, dtype="float16")), [0, 0])
    with pytest.raises(ValueError, match="different lengths"):
        nc.tensor([[1], [1, 2]])
    with pytest.raises(OverflowError):
        nc.tensor(np.array([2**40]))
    with pytest.raises(TypeError):
        nc.tensor(np.array(["a"]))


def test_random_numbers_repeat_and_have_their_moments():
    nc.manual_seed(7)
    a, b = nc.randn(1000), nc.rand(1000)
    nc.manual_seed(7)
    assert nc.randn(1000).tolist() == a.tolist() and nc.rand(1000).tolist() == b.tolist()
    assert abs(a.numpy().mean()) < 0.15 and abs(a.numpy().std() - 1) < 0.1
    assert 0 <= b.numpy().min() and b.numpy().max() < 1
    drawn = nc.randint(-3, 4, (500,)).numpy()
    assert set(drawn) == set(range(-3, 4))
    generator = nc.Generator(3)
    first = nc.rand(4, generator=generator).tolist()
    assert nc.rand(4, generator=generator).tolist() != first
    assert nc.rand(4, generator=nc.Generator(3)).tolist() == first


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32", "uint32"])
def test_dtypes_go_to_the_host_and_back(dtype):
    x = nc.tensor([[0, 1], [2, 3]], dtype=dtype)
    assert x.dtype is getattr(nc, dtype) and x.dtype.name == dtype
    assert x.tolist() == [[0, 1], [2, 3]]
    again = nc.from_numpy(x.numpy(), dtype=dtype)
    assert again.tolist() == x.tolist()
    assert x.to(nc.float32).dtype is nc.float32
    assert x.to(np.float32).dtype is nc.float32
    assert pickle.loads(pickle.dumps(x)).tolist() == x.tolist()
    assert copy.deepcopy(x).tolist() == x.tolist()


OPERATORS = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_broadcast(name):
    f = OPERATORS[name]
    for a, b in [((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 1), (1, 3)), ((4, 1, 2), (3, 1)), ((), (2,)), ((0, 3), (3,))]:
        x, y = given(*a), given(*b, low=-1.83)
        same(f(nc.tensor(x), nc.tensor(y)), f(x, y))
    x = given(2, 3)
    for s in (2, -1.5):
        same(f(nc.tensor(x), s), f(x, np.float32(s)))
        same(f(s, nc.tensor(x)), f(np.float32(s), x))


def test_other_operators():
    x = given(2, 3)
    t = nc.tensor(x)
    same(-t, -x)
    same(abs(t), abs(x))
    same(+t, x)
    same(t**2, x**2)
    same(2**t, 2.0**x)
    same(t @ t.T, x @ x.T)
    same(nc.tensor(x[0]) @ nc.tensor(x[1]), x[0] @ x[1])
    same(t @ nc.tensor(x[0]), x @ x[0])
    same(nc.tensor(x[:, 0]) @ t, x[:, 0] @ x)
    with pytest.raises(TypeError):
        t + "text"
    with pytest.raises(nc.errors.ShapeError, match="broadcast"):
        t + nc.zeros(4)
    with pytest.raises(ValueError):
        t @ t
    assert len({t, nc.tensor(x)}) == 2


def test_views_and_reductions():
    x = given(2, 3, 4)
    t = nc.tensor(x)
    same(t.reshape(4, -1), x.reshape(4, -1))
    same(t.view((6, 4)), x.reshape(6, 4))
    same(t.permute(2, 0, 1), x.transpose(2, 0, 1))
    same(t.transpose(0, 2), x.transpose(2, 1, 0))
    same(t.T, x.T)
    same(t.mT, x.swapaxes(1, 2))
    same(t.flatten(1), x.reshape(2, 12))
    same(t.unsqueeze(1), x[:, None])
    same(t.unsqueeze(-1), x[..., None])
    same(t[:1].squeeze(0), x[0])
    same(t[:1].squeeze(), x[0])
    same(nc.tensor(x[:, :1]).expand(-1, 5, 4), np.broadcast_to(x[:, :1], (2, 5, 4)))
    for axis in (None, 0, -1, (0, 2)):
        for keep in (False, True):
            same(t.sum(axis, keepdim=keep), x.sum(axis, keepdims=keep))
            same(t.mean(dim=axis, keepdim=keep), x.mean(axis, keepdims=keep))
            same(t.amax(axis, keepdims=keep), x.max(axis, keepdims=keep))
            same(t.amin(axis, keepdim=keep), x.min(axis, keepdims=keep))
            same(t.var(axis, keepdim=keep), x.var(axis, keepdims=keep, ddof=1))
            same(t.std(axis, keepdim=keep, correction=0), x.std(axis, keepdims=keep))
    same(t.argmax(1), x.argmax(1))
    same(t.argmin(), x.argmin())
    same(t.argmax(2, keepdim=True), x.argmax(2)[..., None])
    same(nc.cat([t, t], -1), np.concatenate([x, x], -1))
    same(nc.stack([t, t], -1), np.stack([x, x], -1))
    same(nc.where(t > 0, t, 0.0), np.where(x > 0, x, 0))
    same(t.where(t > 0, -1.0), np.where(x > 0, x, -1))
    parts = t.split([1, 2], 1)
    same(parts[1], x[:, 1:])


INDICES = [
    0, -1, slice(None), slice(1, 3), slice(None, None, 2), slice(1, None, 3), slice(None, None, -1), slice(-1, None, -2),
    slice(3, 1), slice(10, 20), None, ..., (0, 1), (..., 0), (0, ..., 1), (slice(None), None, 2), (None, ..., None),
    (slice(1, None), slice(None, None, 2), slice(None, -1)), [0, 2], [[0, 1], [-1, 0]], (slice(None), [2, 0]),
    (..., [1, 1, 0]), ([0, 1], [2, -1]), ([[0], [1]], [0, 2]), (0, [1, 2]), (slice(None), [0, 1], [1, 3]), np.array([3, 1]), np.int64(2),
    (slice(0, 4, 3),), slice(0, 5, 4), slice(2, 3, 7),
]  # fmt: skip


@pytest.mark.parametrize("index", INDICES, ids=repr)
def test_indexing_as_numpy_does_it_with_gradients(index):
    x = given(5, 3, 4)
    t = nc.tensor(x, requires_grad=True)
    y = t[index]
    expected = x[index]
    same(y, expected)
    weights = given(*expected.shape, low=0.5)
    (y * nc.tensor(weights)).sum().backward()
    grad = np.zeros_like(x)
    np.add.at(grad, index, weights)
    same(t.grad, grad)
    numbers = np.arange(60, dtype=np.int32).reshape(5, 3, 4)
    assert nc.tensor(numbers)[index].tolist() == numbers[index].tolist()


def test_indices_on_the_device():
    x = given(5, 3)
    t = nc.tensor(x)
    same(t[nc.tensor([1, -1])], x[[1, -1]])
    same(t[nc.tensor([[1], [4]], dtype=nc.uint32)], x[[[1], [4]]])
    same(t[nc.arange(3), nc.tensor([2, 0, 1])], x[np.arange(3), [2, 0, 1]])
    for bad in (5, -6, (0, 3), [0, 9]):
        with pytest.raises(IndexError):
            t[bad]
    with pytest.raises(IndexError):
        t[0, 0, 0]
    with pytest.raises(TypeError):
        t["a"]
    assert [row.tolist() for row in t] == [t[i].tolist() for i in range(5)]


@pytest.mark.parametrize(
    "index", [0, -1, slice(1, 3), (slice(None), 1), (1, 2), (slice(1, 3), slice(0, 2)), (slice(1, 4), 1, slice(2, 4)), (..., -1), ...], ids=repr
)
def test_assignment(index):
    x = given(5, 3, 4)
    t = nc.tensor(x)
    x[index] = 7
    t[index] = 7
    same(t, x)
    values = given(*x[index].shape, low=9)
    x[index] = values
    t[index] = nc.tensor(values)
    same(t, x)


def test_writing_in_place():
    t = nc.zeros(2, 3)
    t.fill_(2.5)
    assert t.tolist() == [[2.5] * 3] * 2
    t.copy_(nc.tensor([1.0, 2.0, 3.0]))
    assert t.tolist() == [[1, 2, 3]] * 2
    assert t.zero_().tolist() == [[0] * 3] * 2


def test_hosts_and_other_libraries():
    x = given(2, 3)
    t = nc.tensor(x)
    assert t.tolist() == x.tolist() and nc.tensor(2.5).item() == 2.5 and nc.tensor([7]).item() == 7
    assert isinstance(nc.tensor(7).item(), int) and float(nc.tensor(2.0)) == 2.0 and int(nc.tensor(2)) == 2
    np.testing.assert_array_equal(np.asarray(t), x)
    np.testing.assert_array_equal(np.asarray(t, dtype=np.float64), x)
    np.testing.assert_array_equal(np.from_dlpack(t), x)
    same(nc.from_dlpack(x.copy()), x)
    array = t.numpy()
    array[0, 0] = 99
    assert t[0, 0].item() == x[0, 0]
    view = memoryview(t.__buffer__())
    assert view.shape == (2, 3) and view.tolist() == x.tolist()
    with pytest.raises(nc.errors.ShapeError, match="expected one"):
        t.item()
    with pytest.raises(ValueError):
        bool(t)
    assert bool(nc.tensor(1.0)) and not nc.tensor([0])


def test_what_is_shown():
    text = repr(nc.tensor([[1.0, -2.5], [3.0, 4.0]], requires_grad=True))
    assert "-2.5" in text and "shape=(2, 2)" in text and "dtype=float32" in text and "device='" in text
    assert "requires_grad=True" in text
    assert "..." in repr(nc.zeros(100, 100)) and len(repr(nc.zeros(100, 100))) < 1000
    assert repr(nc.zeros(0, 3)).startswith("tensor([]")
    assert repr(nc.tensor(2)).startswith("tensor(2,")


def test_gradients():
    x = nc.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    (x * x).sum().backward()
    assert x.grad.tolist() == [[2, 4], [6, 8]]
    (3 * x).sum().backward()
    assert x.grad.tolist() == [[5, 7], [9, 11]]
    x.grad = None
    (x + 1).backward(nc.ones(2, 2))
    assert x.grad.tolist() == [[1, 1], [1, 1]]
    assert not x.detach().requires_grad
    with nc.no_grad():
        assert not (x * 2).requires_grad and not nc.is_grad_enabled()
        with nc.enable_grad():
            assert (x * 2).requires_grad
    assert nc.is_grad_enabled()

    @nc.no_grad()
    def inference():
        return x * 2

    assert not inference().requires_grad
    y = x * 2
    y.retain_grad()
    y.clone().sum().backward()
    assert y.grad.tolist() == [[1, 1], [1, 1]]
    with pytest.raises(nc.errors.UnsupportedError, match="needs a gradient"):
        nc.zeros(1).backward()
    with pytest.raises(nc.errors.ShapeError):
        y.backward()


def test_errors_are_exceptions_by_kind():
    kinds = dict(nc._netcl.exceptions())
    for name in kinds.values():
        assert issubclass(getattr(nc.errors, name), nc.NetclError)
    assert len(set(kinds.values())) == len(kinds)
    with pytest.raises(nc.errors.DeviceError, match="no device"):
        nc.zeros(1, device="nothing:7")
    with pytest.raises(TypeError, match="no dtype"):
        nc.zeros(1, dtype="int7")
    with pytest.raises(nc.errors.DTypeError):
        nc.tensor([1]) + nc.tensor([1], dtype="uint32")
    with pytest.raises(MemoryError):
        nc.zeros(2**40)


def test_devices():
    device = nc.Device("sim")
    x = nc.ones(2, device="sim")
    assert x.device == device and x.device == device.name and hash(x.device) == hash(device)
    assert x.to("sim").device == device
    device.synchronize()
    assert device.total_memory > 0 and "sim" in repr(device)
    assert nc.default_device().name


def test_tensors_are_freed_also_in_cycles():
    device = nc.Device("sim")
    gc.collect()
    before = device.memory()[3]
    x = nc.ones(100, device="sim")
    seen = weakref.ref(x)
    holder = [x]
    holder.append(holder)
    assert device.memory()[3] == before + 1
    del x, holder
    gc.collect()
    assert seen() is None and device.memory()[3] == before
