"""Integers, masks, masks as indices, writes to slices, powers of tensors, and the array API's namespace."""

import operator
import pickle

import numpy as np
import pytest

import netcl as nc
from netcl import array_api as xp

NUMBERS = np.array([[7, -7, 2**31 - 1], [-(2**31), 16_777_217, 0]], dtype=np.int32)
OTHERS = np.array([3, -2, 5], dtype=np.int32)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "floordiv", "mod", "and_", "or_", "xor", "lt", "le", "gt", "ge", "eq", "ne"])
def test_operators_are_numpys(name):
    op = getattr(operator, name)
    a, b = nc.tensor(NUMBERS), nc.tensor(OTHERS)
    with np.errstate(over="ignore"):
        for ours, theirs in [(op(a, b), op(NUMBERS, OTHERS)), (op(a, 3), op(NUMBERS, np.int32(3))), (op(5, b), op(np.int32(5), OTHERS))]:
            assert ours.numpy().dtype == theirs.dtype and ours.tolist() == theirs.tolist()
    unsigned = nc.tensor(np.array([2**32 - 1, 1], dtype=np.uint32))
    assert (unsigned + 2).tolist() == [1, 3] and (unsigned > -1).tolist() == [True, True]


def test_shifts_powers_and_inverses():
    a = nc.tensor([1, -8, 3])
    assert (a << 2).tolist() == [4, -32, 12] and (a >> 1).tolist() == [0, -4, 1] and (1 << nc.tensor([0, 31])).tolist() == [1, -(2**31)]
    assert (a**3).tolist() == [1, -512, 27] and (2**a[2:]).tolist() == [8]
    assert (~a).tolist() == [-2, 7, -4] and (-a).tolist() == [-1, 8, -3] and abs(a).tolist() == [1, 8, 3]
    assert (~(a > 0)).tolist() == [False, True, False]
    x = nc.tensor([1.0, 2.0])
    with pytest.raises(nc.errors.DTypeError, match="expected integers or masks"):
        x & x


def test_types_meet():
    i, f, m, u = nc.tensor([1, 2]), nc.tensor([0.5, 1.5]), nc.tensor([True, False]), nc.tensor([1, 2], dtype="uint32")
    assert (i + f).dtype is nc.float32 and (i / 2).dtype is nc.float32 and (i + 0.5).tolist() == [1.5, 2.5]
    assert (i + m).tolist() == [2, 2] and (m + m).tolist() == [True, False] and (m * f).tolist() == [0.5, 0.0] and (i * True).dtype is nc.int32
    assert (f.half() + f).dtype is nc.float32
    with pytest.raises(nc.errors.DTypeError, match="do not have a common type"):
        i + u
    assert (i < u).tolist() == [False, False]


def test_sums_and_extremes_are_exact():
    x = nc.tensor(NUMBERS)
    assert x.sum(axis=0).tolist() == NUMBERS.sum(axis=0, dtype=np.int32).tolist() and x.max(axis=1).values.tolist() == [2**31 - 1, 16_777_217]
    assert x.min().item() == -(2**31) and nc.tensor([3, 5, 7]).prod().item() == 105
    assert (x > 0).sum().item() == 3 and (x > 0).any(axis=0).tolist() == [True, True, True] and not (x > 0).all().item()
    assert x.argmax(axis=1).tolist() == [2, 1] and x.argmin().item() == 3
    assert (nc.tensor([[1, 2], [3, 4]]) @ nc.tensor([[16_777_217], [1]])).tolist() == [[16_777_219], [50_331_655]]


def test_masks():
    mask = nc.tensor([[1.0, -1.0], [0.0, 2.0]]) > 0
    assert mask.dtype is nc.bool_ and mask.tolist() == [[True, False], [False, True]] and mask.numpy().dtype == np.bool_
    assert "True" in repr(mask) and mask[0, 0].item() is True and pickle.loads(pickle.dumps(mask)).tolist() == mask.tolist()
    assert nc.tensor(np.array([True, False])).dtype is nc.bool_ and nc.tensor([2, 0], dtype=nc.bool_).tolist() == [True, False]
    assert mask._to(dtype=nc.float32).tolist() == [[1, 0], [0, 1]] and memoryview(mask.numpy()).format == "?"
    assert nc.where(mask, nc.tensor([[1, 2], [3, 16_777_217]]), 0).tolist() == [[1, 0], [0, 16_777_217]]
    assert nc.tensor([1, 2, 3]).masked_fill(nc.tensor([True, False, True]), -1).tolist() == [-1, 2, -1]


@pytest.mark.parametrize("device", ["default", "sim"])
def test_a_mask_is_a_byte_an_element(device, tmp_path):
    device = None if device == "default" else device
    assert nc.bool_.itemsize == np.dtype(bool).itemsize == 1
    for shape in [(1,), (3,), (5,), (3, 7), (2, 0), ()]:
        a = np.asarray(np.random.default_rng(3).random(shape) > 0.5)
        mask = nc.tensor(a, device=device)
        assert mask.itemsize == 1 and mask._bytes() == a.tobytes() and mask.tolist() == a.tolist()
        for back in (mask.numpy(), np.from_dlpack(mask), nc.from_dlpack(a).numpy(), pickle.loads(pickle.dumps(mask)).numpy()):
            assert back.dtype == np.bool_ and back.shape == shape and (back == a).all()
        nc.save({"odd": mask, "f": nc.ones(3)}, tmp_path / "mask.safetensors")
        assert nc.load(tmp_path / "mask.safetensors")["odd"].tolist() == a.tolist()
    a = np.random.default_rng(4).random((5, 33)) > 0.5
    mask = nc.tensor(a, device=device)
    assert (mask[1:, 3:].numpy() == a[1:, 3:]).all() and (mask[:, 1::2].T.numpy() == a[:, 1::2].T).all()
    assert (mask[[4, 0, 0]].numpy() == a[[4, 0, 0]]).all() and (mask[:, nc.tensor([2, 1], device=device)].numpy() == a[:, [2, 1]]).all()
    mask[1:3, 5:8] = False
    a[1:3, 5:8] = False
    mask[mask] = True
    assert (mask.numpy() == a).all() and (~mask).sum().item() == (~a).sum()
    # Nonzero bytes become 1, and pickles of masks with 32 bits per element can be read.
    mask._set_bytes(bytes([7] * a.size))
    assert mask._bytes() == bytes([1] * a.size)
    assert nc._host.rebuild(np.array([1, 0, 256], "<u4").tobytes(), (3,), "bool", "sim", False).tolist() == [True, False, True]


def test_a_mask_takes_what_is_set_and_the_gradient_goes_there():
    a = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    x = nc.tensor(a, requires_grad=True)
    for mask in (a > 10, a[:, :, 0] > 3, a[:, 0, 0] > 1, np.zeros((2, 3), bool)):
        assert x[nc.tensor(mask)].tolist() == a[mask].tolist() == x[mask].tolist()
    rows = np.array([True, False, True])
    assert x[:, nc.tensor(rows)].tolist() == a[:, rows].tolist() == x[:, [True, False, True]].tolist()
    assert x[True].shape == (1, 2, 3, 4) and nc.tensor([5, 6, 7])[nc.tensor([False, True, True])].tolist() == [6, 7]
    x[x.detach() > 20].sum().backward()
    assert x.grad.tolist() == (a > 20).astype(np.float32).tolist()
    with pytest.raises(IndexError, match="a mask of shape"):
        x[nc.tensor([True, False, True])]


def test_parts_of_tensors_are_written():
    a = np.zeros((4, 6), dtype=np.float32)
    x = nc.tensor(a)
    row = np.arange(3, dtype=np.float32) + 1
    for index, values in [
        ((slice(None), slice(None, None, 2)), row),
        ((slice(None, None, -1), 1), np.arange(4, dtype=np.float32)),
        ((slice(3, 0, -2), slice(4, None)), np.array([[7.0], [8.0]], dtype=np.float32)),
        ((..., None, -1), np.float32(9)),
        (([0, 2], slice(None)), np.float32(-1)),
        (a[:, 0] > 5, np.float32(3)),
        (2, row.repeat(2)),
        ((slice(1, 1),), np.float32(4)),
    ]:
        a[index] = values
        x[index] = values
        np.testing.assert_array_equal(x.numpy(), a, err_msg=str(index))
    a[a > 2], x[x > 2] = 5, 5
    x[x == 5] = nc.tensor([6.0]) * 1
    a[a == 5] = 6
    np.testing.assert_array_equal(x.numpy(), a)
    i = nc.arange(6)
    i[1:] = i[:-1]
    assert i.tolist() == [0, 0, 1, 2, 3, 4]
    i[::2] = 16_777_217
    assert i.tolist() == [16_777_217, 0, 16_777_217, 2, 16_777_217, 4]
    with pytest.raises(IndexError, match="out of bounds"):
        x[9] = 1


def test_powers_of_tensors_have_gradients():
    a, b = nc.tensor([1.5, 2.0, 0.0], requires_grad=True), nc.tensor([2.0, -1.0, 3.0], requires_grad=True)
    y = a**b
    np.testing.assert_allclose(y.numpy(), [2.25, 0.5, 0.0], rtol=1e-6)
    y.sum().backward()
    np.testing.assert_allclose(a.grad.numpy(), [3.0, -0.25, 0.0], rtol=1e-5)
    np.testing.assert_allclose(b.grad.numpy(), [2.25 * np.log(1.5), 0.5 * np.log(2), 0.0], rtol=1e-5)
    np.testing.assert_allclose((2.0 ** nc.tensor([3.0, 0.5])).numpy(), [8, 2**0.5], rtol=1e-6)


def test_a_write_to_a_part_is_seen_by_the_backward():
    x = nc.tensor([1.0, 2.0, 3.0], requires_grad=True)
    y = x * 2
    z = (y * y).sum()
    y.detach()[::2] = 0.0
    with pytest.raises(nc.NetclError, match="version"):
        z.backward()


def test_the_namespace_of_the_array_api():
    x = nc.tensor([[3.0, 1.0], [2.0, 4.0]])
    assert x.__array_namespace__() is xp and xp.__array_api_version__ == "2023.12"
    with pytest.raises(ValueError, match="2023.12"):
        x.__array_namespace__(api_version="1999.1")
    assert all(hasattr(xp, name) for name in xp.__all__) and len(set(xp.__all__)) == len(xp.__all__)
    assert xp.sort(x, axis=0, descending=True).tolist() == [[3, 4], [2, 1]] and xp.argsort(x).tolist() == [[1, 0], [0, 1]]
    assert xp.unique_counts(nc.tensor([2, 1, 2])).counts.tolist() == [1, 2] and xp.nonzero(x > 2)[0].tolist() == [0, 1]
    assert xp.cumulative_sum(nc.tensor([1, 2, 3]), include_initial=True).tolist() == [0, 1, 3, 6]
    with pytest.raises(TypeError):
        xp.result_type(nc.int32, nc.float32)
    w = nc.tensor([0.25, 0.5], requires_grad=True)
    xp.sum(xp.asin(w) + xp.log1p(w)).backward()
    np.testing.assert_allclose(w.grad.numpy(), 1 / np.sqrt(1 - np.array([0.0625, 0.25])) + 1 / np.array([1.25, 1.5]), rtol=1e-5)
    with pytest.raises(NotImplementedError, match="does not have a gradient"):
        xp.hypot(w, w)
