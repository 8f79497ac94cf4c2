"""Functions and methods with PyTorch's names next to PyTorch's, on drawn tensors: values, dtypes, shapes, gradients, and refusals."""

import numpy as np
import pytest
from torch_pairs import same

import netcl as nc

torch = pytest.importorskip("torch")
RANDOM = np.random.default_rng(11)


def drawn(shape, kind="float", low=-2.0, high=2.0):
    """Draws an array without ties."""
    if kind == "int":
        return RANDOM.integers(-9, 10, shape).astype(np.int32)
    if kind == "bool":
        return RANDOM.integers(0, 2, shape).astype(bool)
    return RANDOM.uniform(low, high, shape).astype(np.float32)


LAYOUTS = {"plain": lambda x: x, "transposed": lambda x: x.mT if x.ndim > 1 else x, "steps": lambda x: x[::2] if x.ndim else x, "part": lambda x: x[..., 1:] if x.ndim else x}
SHAPES = [(), (5,), (4, 6), (3, 2, 4)]


def forms(name, args, kwargs, in_place=False):
    """Returns a function as a function, and as a method if PyTorch has both."""
    found = []
    if hasattr(torch, name):
        found.append(lambda lib, *x: getattr(lib, name)(*x, *args, **kwargs))
    if hasattr(torch.Tensor, name):
        found.append(lambda lib, *x: getattr(x[0], name)(*x[1:], *args, **kwargs))
    if in_place and hasattr(torch.Tensor, name + "_"):
        found.append(lambda lib, *x: getattr(x[0].clone(), name + "_")(*x[1:], *args, **kwargs))
    assert found, name
    return found


def every(name, *arrays, args=(), kwargs=None, layouts=LAYOUTS, in_place=False, **options):
    """Compares all forms and layouts of a call. Returns the number of calls that agree."""
    count = 0
    # PyTorch gives x.logical_and_(y) the gradient of x.
    for form, call in enumerate(forms(name, args, kwargs or {}, in_place and "logical" not in name)):
        for layout, change in layouts.items():
            done = same(torch, lambda lib, *x: call(lib, *(change(t) for t in x)), *arrays, where=f"{name}{args}{kwargs or ''} form {form}, {layout}, {[a.shape for a in arrays]}", **options)
            count += done == "agree"
    return count


UNARY = {
    "abs": (-2, 2), "absolute": (-2, 2), "acos": (-0.9, 0.9), "arccos": (-0.9, 0.9), "acosh": (1.1, 4), "arccosh": (1.1, 4), "asin": (-0.9, 0.9), "arcsin": (-0.9, 0.9),
    "asinh": (-3, 3), "arcsinh": (-3, 3), "atan": (-3, 3), "arctan": (-3, 3), "atanh": (-0.9, 0.9), "arctanh": (-0.9, 0.9), "ceil": (-3, 3), "cos": (-3, 3), "cosh": (-3, 3),
    "deg2rad": (-90, 90), "erf": (-2, 2), "erfc": (-2, 2), "exp": (-2, 2), "exp2": (-2, 2), "expm1": (-1, 1), "fix": (-3, 3), "floor": (-3, 3), "frac": (-3, 3), "log": (0.1, 4),
    "log10": (0.1, 4), "log1p": (-0.9, 3), "log2": (0.1, 4), "neg": (-2, 2), "negative": (-2, 2), "positive": (-2, 2), "rad2deg": (-3, 3), "reciprocal": (0.3, 3),
    "relu": (-2, 2), "round": (-5, 5), "rsqrt": (0.2, 4), "sigmoid": (-3, 3), "sign": (-2, 2), "sgn": (-2, 2), "sin": (-3, 3), "sinc": (-2, 2), "sinh": (-2, 2), "sqrt": (0.1, 4),
    "square": (-2, 2), "tan": (-1, 1), "tanh": (-2, 2), "trunc": (-3, 3), "logit": (0.1, 0.9), "nan_to_num": (-2, 2),
    "isfinite": (-2, 2), "isinf": (-2, 2), "isnan": (-2, 2), "isposinf": (-2, 2), "isneginf": (-2, 2), "isreal": (-2, 2), "signbit": (-2, 2), "logical_not": (-1, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_element(name):
    low, high = UNARY[name]
    count = sum(every(name, drawn(shape, low=low, high=high), in_place=True, rtol=1e-4, atol=2e-4 if name == "sinc" else 1e-5) for shape in SHAPES)
    assert count >= 20
    for kind in ("int", "bool"):
        every(name, np.abs(drawn((3, 4), kind)) if kind == "int" and low >= 0 else drawn((3, 4), kind), layouts={"plain": lambda x: x}, rtol=1e-4)
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 0.5, 2.5, 1e30], np.float32)
    if name not in ("round", "frac"):
        every(name, special, graded=False, layouts={"plain": lambda x: x}, rtol=1e-4)


def test_bits_and_attributes():
    for kind in ("int", "bool"):
        every("bitwise_not", drawn((3, 4), kind), in_place=True)
    for name in ("H", "mH", "mT", "T", "is_leaf", "itemsize", "nbytes", "ndim", "real", "requires_grad", "is_cuda", "is_sparse"):
        for array in (drawn((3, 4)), drawn((2, 2), "bool")):
            same(torch, lambda lib, x: getattr(x, name) + 0 if name[-1] in "HT" and x.dtype != lib.bool else getattr(x, name), array, where=name)
    for name in ("is_pinned", "is_shared", "is_complex", "is_signed"):
        same(torch, lambda lib, x: getattr(x, name)(), drawn((3,)), where=name)
    for lib in (nc, torch):
        assert tuple(lib.ones(2).new_empty((2, 3)).shape) == (2, 3) and lib.from_dlpack(np.ones(2, np.float32)).tolist() == [1.0, 1.0]
    with pytest.raises(NotImplementedError, match="pow"):
        nc.float_power(nc.ones(2), 2)


def test_functions_without_a_gradient():
    every("lgamma", drawn((3, 4), low=0.3, high=4), graded=False, in_place=True, rtol=1e-4)
    every("round", drawn((3, 4), low=-300, high=300), kwargs={"decimals": 1}, rtol=1e-4)
    every("round", drawn((3, 4), low=-300, high=300), kwargs={"decimals": -2})
    every("nan_to_num", np.array([np.nan, np.inf, -np.inf, 1.0], np.float32), args=(0.5, 9.0, -9.0))
    every("logit", drawn((3, 4), low=-0.2, high=1.2), args=(0.1,), rtol=1e-4)


BINARY = {
    "add": "any", "sub": "any", "subtract": "any", "mul": "any", "multiply": "any", "div": "any", "divide": "any", "true_divide": "any", "floor_divide": "any", "remainder": "any",
    "fmod": "any", "maximum": "any", "minimum": "any", "fmax": "any", "fmin": "any", "eq": "any", "ne": "any", "not_equal": "any", "lt": "any", "less": "any", "le": "any",
    "less_equal": "any", "gt": "any", "greater": "any", "ge": "any", "greater_equal": "any", "logical_and": "any", "logical_or": "any", "logical_xor": "any", "atan2": "float",
    "arctan2": "float", "hypot": "float", "copysign": "float", "logaddexp": "float", "logaddexp2": "float", "xlogy": "positive", "pow": "positive", "ldexp": "float",
    "bitwise_and": "whole", "bitwise_or": "whole", "bitwise_xor": "whole", "bitwise_left_shift": "shift", "bitwise_right_shift": "shift", "heaviside": "float",
}  # fmt: skip
BROADCASTS = [((4, 6), (4, 6)), ((4, 6), (6,)), ((3, 1, 4), (2, 4)), ((5,), ())]


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_elements(name):
    kind = BINARY[name]
    count = 0
    for a, b in BROADCASTS:
        for low in (0.2,) if kind == "positive" else (-2.0,):
            if kind in ("any", "float", "positive"):
                layouts = LAYOUTS if a == b else {"plain": lambda x: x}
                count += every(name, drawn(a, low=low), drawn(b, low=low), layouts=layouts, in_place=True, rtol=1e-4, graded=name != "heaviside")
        if kind in ("any", "whole"):
            first, second = drawn(a, "int"), drawn(b, "int")
            second = np.where(second == 0, 3, second).astype(np.int32)
            count += every(name, first, second, layouts={"plain": lambda x: x})
            count += every(name, drawn(a, "bool"), drawn(b, "bool"), layouts={"plain": lambda x: x}) if name not in ("floor_divide", "remainder", "fmod") else 0
        if kind == "shift":
            count += every(name, drawn(a, "int"), np.abs(drawn(b, "int")), layouts={"plain": lambda x: x})
    assert count >= 8


@pytest.mark.parametrize("name", [n for n, kind in BINARY.items() if kind == "any" and n not in ("maximum", "minimum", "fmax", "fmin") and "logical" not in n])
@pytest.mark.parametrize("number", [2, 2.5, -3])
def test_a_number_as_the_second_operand(name, number):
    for array in (drawn((3, 4)), drawn((3, 4), "int")):
        every(name, array, args=(number,), layouts={"plain": lambda x: x}, in_place=True)


@pytest.mark.parametrize("options", [{"alpha": 2}, {"alpha": -0.5}])
def test_factors_and_rounding(options):
    for name in ("add", "sub", "subtract"):
        every(name, drawn((3, 4)), drawn((4,)), kwargs=options, layouts={"plain": lambda x: x}, in_place=True)
    every("rsub", drawn((3, 4)), drawn((4,)), kwargs=options, layouts={"plain": lambda x: x})
    for mode in ("floor", "trunc", None, "up"):
        for a, b in ((drawn((3, 4)), drawn((3, 4), low=0.3)), (drawn((3, 4), "int"), np.full((3, 4), -3, np.int32))):
            every("div", a, b, kwargs={"rounding_mode": mode}, layouts={"plain": lambda x: x}, in_place=True)
    for name in ("addcmul", "addcdiv"):
        every(name, drawn((3, 4)), drawn((4,)), drawn((3, 1), low=0.5), kwargs={"value": options["alpha"]}, layouts={"plain": lambda x: x}, in_place=True)
    every("lerp", drawn((3, 4)), drawn((3, 4)), args=(0.3,), in_place=True)
    every("lerp", drawn((3, 4)), drawn((3, 4)), drawn((3, 4)), in_place=True)


CLAMPS = [((-0.5, 0.7), {}), ((), {"min": 0.1}), ((), {"max": 0.1}), ((1.0, -1.0), {}), ((-1, 1), {}), ((), {})]


@pytest.mark.parametrize("args, kwargs", CLAMPS, ids=str)
def test_clamp(args, kwargs):
    for name in ("clamp", "clip"):
        for array in (drawn((3, 4)), np.array([-0.5, 0.7, 0.1, -1, 1, np.nan], np.float32), drawn((3, 4), "int")):
            every(name, array, args=args, kwargs=kwargs, layouts={"plain": lambda x: x}, in_place=True)
    every("clamp", drawn((3, 4)), drawn((4,), high=0), drawn((3, 1), low=0), layouts={"plain": lambda x: x}, in_place=True)
    every("clamp_min", drawn((3, 4)), args=(0.2,), in_place=True), every("clamp_max", drawn((3, 4)), args=(0.2,), in_place=True)


def test_comparisons_of_whole_tensors():
    a = drawn((3, 4))
    for b in (a, a + 1e-7, a + 1e-3, a[:2], np.where(a > 0, np.nan, a)):
        for name in ("equal", "allclose", "isclose", "is_same_size"):
            for options in ({},) if name in ("equal", "is_same_size") else ({}, {"rtol": 1e-2}, {"atol": 1e-2}, {"equal_nan": True}):
                every(name, a, np.asarray(b, np.float32), kwargs=options, graded=False, layouts={"plain": lambda x: x})
    every("allclose", drawn((3,), "int"), drawn((3,), "int"), graded=False, layouts={"plain": lambda x: x})
    for value in ([1.0], [0.0], [1.0, 2.0]):
        every("is_nonzero", np.array(value, np.float32), graded=False, layouts={"plain": lambda x: x})


DIMS = [{}, {"dim": 0}, {"dim": -1, "keepdim": True}, {"dim": 1}, {"dim": (0, 1)}, {"dim": (-1, 0), "keepdim": True}, {"dim": 5}, {"dim": (0, 0)}, {"axis": 0}]
REDUCTIONS = ["sum", "mean", "prod", "amax", "amin", "any", "all", "var", "std", "logsumexp", "nansum", "nanmean", "count_nonzero", "norm", "argmax", "argmin", "max", "min",
              "median", "cumsum", "cumprod", "logcumsumexp", "cummax", "cummin", "softmax", "log_softmax", "sort", "argsort", "aminmax", "var_mean", "std_mean"]  # fmt: skip
LENIENT = {"logsumexp", "cumsum", "cumprod", "softmax", "log_softmax"}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name):
    count = 0
    for options in DIMS:
        if not options and name in LENIENT or name in ("softmax", "log_softmax", "cumsum", "cumprod", "sort", "argsort") and "keepdim" in options:
            continue
        if "axis" in options and name in ("logsumexp", "nansum", "nanmean", "norm", "count_nonzero", "median", "logcumsumexp", "cummax", "cummin", "argsort", "aminmax", "var_mean",
                                          "std_mean", "softmax", "log_softmax", "cumsum", "cumprod", "prod", "any", "all", "sort", "max", "min", "argmax", "argmin", "var", "std"):  # fmt: skip
            continue
        if name == "std" and options == {"dim": (0, 0)}:
            continue
        for shape in ((4, 6), (3, 2, 4), (7,)):
            count += every(name, drawn(shape), kwargs=options, rtol=1e-4)
    assert count >= 20
    for kind in ("int", "bool"):
        if (name, kind) in {("cummax", "bool"), ("cummin", "bool"), ("sort", "bool"), ("argsort", "bool"), ("norm", "int"), ("norm", "bool"), ("median", "bool")} or name in LENIENT | {"logcumsumexp"}:
            continue
        for options in ({}, {"dim": 0}, {"dim": -1}):
            every(name, drawn((4, 5), kind), kwargs=options, layouts={"plain": lambda x: x}, rtol=1e-4)


def test_options_of_reductions():
    x = drawn((3, 4, 5))
    for name in ("var", "std", "var_mean", "std_mean"):
        for options in ({"correction": 0}, {"correction": 2, "dim": 1}, {"unbiased": False, "dim": 0}, {"dim": (0, 2), "keepdim": True}):
            every(name, x, kwargs=options, rtol=1e-4)
        every(name, x, args=(1, False)), every(name, x, args=(False,))
    for p in (1, 2, 3, 0, 0.5, float("inf"), -float("inf"), "fro"):
        for options in ({}, {"dim": 1}, {"dim": (0, 1), "keepdim": True}):
            if p != "fro" or options != {"dim": 1}:
                every("norm", x, kwargs={"p": p, **options}, rtol=1e-3)
    for q in (0.0, 0.3, 1.0, [0.1, 0.9]):
        for options in ({}, {"dim": 1}, {"dim": -1, "keepdim": True}, {"interpolation": "lower"}, {"dim": 0, "interpolation": "nearest"}, {"interpolation": "midpoint"}):
            for form in range(2):
                same(torch, lambda lib, x: (lib.quantile(x, lib.tensor(q), **options), x.quantile(lib.tensor(q), **options))[form], x, rtol=1e-4, where=f"quantile {q} {options}")
    for options in ({"k": 2}, {"k": 1, "dim": 0}, {"k": 3, "dim": 1, "keepdim": True}, {"k": 9}):
        every("kthvalue", x, kwargs=options)
    every("median", np.array([[1.0, np.nan, 0.0], [5.0, 4.0, 6.0]], np.float32), args=(1,), graded=False, layouts={"plain": lambda x: x})
    for options in ({"n": 2}, {"dim": 0}, {"dim": 1, "n": 3}, {"n": 9}):
        every("diff", x, kwargs=options)
    every("diff", x, kwargs={}, layouts={"plain": lambda x: x}), every("trace", x[0]), every("dist", x, x * 2), every("dist", x, x * 2, args=(1,))
    for dtype in ("float16", "int32"):
        same(torch, lambda lib, x: (x.sum(dtype=getattr(lib, dtype)), lib.cumsum(x, 0, dtype=getattr(lib, dtype)), lib.prod(x, dtype=getattr(lib, dtype))), np.round(x[0, :2, :3] + 3), graded=False, rtol=1e-2)
    zeros = np.array([[0.0, 2.0, 3.0], [1.0, 0.0, 0.0]], np.float32)
    for options in ({}, {"dim": 0}, {"dim": 1}):
        every("prod", zeros, kwargs=options), every("cumprod", zeros, kwargs={"dim": 1})
