"""Tensors of lists and ranges are those of PyTorch, few elements and many, or an error in both."""

import math

import numpy as np
import pytest

import netcl as nc

torch = pytest.importorskip("torch")

LISTS = {
    "integers": [1], "floats": [1.5], "Booleans": [True], "mixed Booleans": [True, 2], "mixed": [1, 2.5], "infinity": [math.inf], "nothing": [math.nan], "negative": [-5], "fractions": [0.1], "large float": [1e39],
    "NumPy integer": [np.int64(3)], "NumPy float": [np.float32(1.5)], "rows": [[1, 2, 3]], "rows of floats": [[1.5, 2.0]], "deep": [[[True], [False]]],
}  # fmt: skip
REFUSED = {"ragged": [[1, 2], [3]], "rows and numbers": [[1, 2], 3], "text": ["a"], "None": [None], "too large": [2**64]}


def made(lib, values, dtype):
    try:
        x = lib.tensor(values, dtype=None if dtype is None else getattr(lib, dtype))
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        return type(error)
    return x.tolist(), str(x.dtype).split(".")[-1].replace("int64", "int32"), tuple(x.shape)


@pytest.mark.parametrize("times", [1, 100])
@pytest.mark.parametrize("dtype", [None, "float32", "int32", "bool", "float16"])
@pytest.mark.parametrize("name", [*LISTS, *REFUSED])
def test_lists(name, dtype, times):
    values = LISTS.get(name, REFUSED.get(name)) * times
    expected, found = made(torch, values, dtype), made(nc, values, dtype)
    if isinstance(expected, type) or isinstance(found, type):
        assert isinstance(found, type) or (name.startswith("NumPy") and dtype in ("int32", "bool")), found
        assert isinstance(expected, type), expected
    else:
        assert repr(found) == repr(expected)


def test_other_containers():
    from collections import deque

    for values in (range(5), range(100), deque([1.0, 2.0]), (1, 2), (1.0,) * 90):
        assert nc.tensor(values).tolist() == torch.tensor(values).tolist()
    parts = [nc.tensor(1), nc.tensor(2.5)]
    assert nc.tensor(parts).tolist() == [1.0, 2.5] and nc.tensor([[1, 2], [3, nc.tensor(4)]]).tolist() == [[1, 2], [3, 4]]
    assert nc.tensor([[nc.tensor(1)] * 3] * 40).shape == (40, 3)


@pytest.mark.parametrize("arguments", [(10,), (0, 10, 3), (10, 0, -3), (5, 5), (2**31 - 5, 2**31 - 1), (-3, 4), (0.0, 1.0, 0.1), (1, 2.5, 0.5), (3, 4, 10)])
def test_ranges(arguments):
    for dtype in (None, "int32", "float32"):
        expected, found = (lib.arange(*arguments, dtype=None if dtype is None else getattr(lib, dtype)) for lib in (torch, nc))
        np.testing.assert_allclose(found.tolist(), expected.tolist(), rtol=1e-6)
    with pytest.raises(OverflowError):
        nc.arange(2**31 - 5, 2**31 + 5)
    for steps in (0, 1, 2, 7):
        np.testing.assert_allclose(nc.linspace(-1, 2, steps).tolist(), torch.linspace(-1, 2, steps).tolist(), rtol=1e-6, atol=1e-7)
    for sizes in ((3,), (2, 4), (4, 2), (0,), (0, 3)):
        assert nc.eye(*sizes).tolist() == torch.eye(*sizes).tolist() and nc.eye(*sizes).shape == tuple(torch.eye(*sizes).shape)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32", "bool", "uint32"])
def test_lists_of_many_elements_return(dtype):
    values = [[i % 7 for i in range(20)] for _ in range(10)]
    x = nc.tensor(values).to(dtype)
    assert x.tolist() == torch.tensor(values).to(getattr(torch, dtype)).tolist()
    assert type(x.tolist()[0][1]) is type(x[:1, :2].tolist()[0][1])
